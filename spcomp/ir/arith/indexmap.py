"""Beside the route: maps from indices to indices, and the inverse of those that split and join."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spcomp.dtypes import int64
from spcomp.errors import ArgumentError
from spcomp.ir.arith.bounds import Env, Interval, bounds_of
from spcomp.ir.arith.linear import ONE, Algebra, Key, Linear, key_of
from spcomp.ir.expr import BinOp, Const, Expr, Var, const
from spcomp.ir.promotion import BINARY_OPS
from spcomp.ir.rewrite import substitute
from spcomp.locks import syntax_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_EXTENT = 1 << 48  # an indexed array fits in memory


@dataclass(frozen=True, slots=True)
class IndexMap:
    """``params -> results``, all int64."""

    params: tuple[Var, ...]
    results: tuple[Expr, ...]

    @classmethod
    def from_func(cls, func: Callable[..., object]) -> IndexMap:
        """Return the map that *func* computes from variables named as its parameters.

        *func* returns an expression or int, or a list or tuple of them; else ArgumentError.
        """
        if not callable(func):
            raise ArgumentError(f"an index map is a function, got {type(func).__name__}")
        params = tuple(Var(name, int64) for name in inspect.signature(func).parameters)
        output = func(*params)
        results = output if isinstance(output, (tuple, list)) else (output,)
        for result in results:
            if not isinstance(result, (int, Expr)):
                got = type(result).__name__
                raise ArgumentError(f"an index map gives {got}, expected indices")
        return cls(params, tuple(const(r) if isinstance(r, int) else r for r in results))

    @classmethod
    def from_text(cls, text: str) -> IndexMap:
        """Return the map of a text like ``lambda i, j: (j // 4, i, j % 4)``; see __str__.

        Made of parameters, integers and ``+ - * // %``; raises ValueError for anything else.
        """
        try:
            tree = syntax_tree(text.strip(), "eval").body
        except SyntaxError as error:
            raise ValueError(f"{text!r} is no Python: {error.msg}") from None
        match tree:
            case ast.Lambda(args=args, body=ast.Tuple(elts=elts)):
                results = elts
            case ast.Lambda(args=args, body=body):
                results = [body]
            case _:
                raise ValueError(f"{text!r} is no lambda")
        params = {arg.arg: Var(arg.arg, int64) for arg in args.args}
        return cls(tuple(params.values()), tuple(_read(result, params) for result in results))

    def __str__(self) -> str:
        """Return the map as Python text that from_text reads."""
        params = ", ".join(param.name for param in self.params)
        results = ", ".join(_text(result, inner=False) for result in self.results)
        return f"lambda {params}: " + (results if len(self.results) == 1 else f"({results})")

    def apply(self, exprs: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the results for *exprs*, one per parameter; nothing is simplified."""
        values = dict(zip(self.params, exprs, strict=True))
        return tuple(substitute(result, values) for result in self.results)

    def inverse(self, extents: Sequence[int | Expr]) -> IndexMap | None:
        """Return the inverse map, for parameters in ``0..extent-1``; None if none is found.

        Found for bijections made of ``+``, ``*``, ``//`` and ``%`` by constants. It is the inverse
        on the parameters, and on results in the smallest box that holds them all. Where extents do
        not divide, that box has points to which no parameters map.
        """
        highs = [
            e - 1 if isinstance(e, int) else min(bounds_of(e).high or 0, MAX_EXTENT) - 1
            for e in extents
        ]
        domain = {p: Interval(0, high) for p, high in zip(self.params, highs, strict=True)}
        outputs = tuple(Var(f"{_name(r)}{at}", int64) for at, r in enumerate(self.results))
        solver = _Solver(domain)
        for result, output in zip(self.results, outputs, strict=True):
            solver.learn(solver.algebra.of(result), output)
        values = [solver.known.get(param) for param in self.params]
        solved = tuple(value for value in values if value is not None)
        if len(solved) < len(values):
            return None
        image = {o: bounds_of(r, Env(domain)) for o, r in zip(outputs, self.results, strict=True)}
        algebra = Algebra(Env(image), trusted=True)
        inverse = IndexMap(outputs, tuple(algebra.of(value).expr() for value in solved))
        back = inverse.is_inverse_of(self, domain) and self.is_inverse_of(inverse, image)
        return inverse if back else None

    def is_inverse_of(self, other: IndexMap, domain: dict[Var, Interval]) -> bool:
        """Say whether ``self(other(x)) == x`` is proved for x in *domain*."""
        algebra = Algebra(Env(domain), trusted=True)
        round_trip = self.apply(other.results)
        pairs = zip(round_trip, other.params, strict=True)
        same = Interval(0, 0)
        return all(algebra.interval(algebra.of(a) - algebra.of(b)) == same for a, b in pairs)

    def renamed(self, names: Sequence[str]) -> IndexMap:
        """Return the map with parameters called *names*."""
        params = tuple(Var(name, int64) for name in names)
        return replace(self, params=params, results=self.apply(params))


_QUASI_AFFINE = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)


def _read(text: ast.expr, params: dict[str, Var]) -> Expr:
    match text:
        case ast.Name(id=name) if name in params:
            return params[name]
        case ast.Constant(value=int(value)):
            return const(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return const(-value)
        case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), right=ast.Constant(value=0)):
            raise ValueError(f"{ast.unparse(text)!r} divides by 0")
        case ast.BinOp(op=op, left=left, right=right) if isinstance(op, _QUASI_AFFINE):
            return BinOp(BINARY_OPS[type(op)], _read(left, params), _read(right, params))
    raise ValueError(f"{ast.unparse(text)!r} is not made of parameters, integers and + - * // %")


def _text(expr: Expr, *, inner: bool = True) -> str:
    match expr:
        case Var(name=name):
            return name
        case Const(value=value):
            return str(value)
        case BinOp(op=op, lhs=lhs, rhs=rhs):
            text = f"{_text(lhs)} {op} {_text(rhs)}"
            return f"({text})" if inner else text
    raise ValueError(f"an index map has no {type(expr).__name__}")


def _name(result: Expr) -> str:
    return result.name if isinstance(result, Var) else "r"


class _Solver:
    """Expresses each atom in terms of the results, by splitting sums whose values are known."""

    def __init__(self, domain: dict[Var, Interval]) -> None:
        self.algebra = Algebra(Env(domain), trusted=True)
        self.known: dict[Key, Expr] = {}
        self.halves: list[BinOp] = []

    def learn(self, form: Linear, value: Expr) -> None:
        """Record that *form* equals *value*, and what follows from it."""
        value = value if not form.constant else value - form.constant
        parts = sorted(
            (form.without(ONE)).terms.items(), key=lambda part: abs(part[1].factor), reverse=True
        )
        if not parts or len(parts[0][1].atoms) != 1:
            return
        key, term = parts[0]
        remainder = form.without(ONE).without(key)
        if not remainder.terms:
            sign = const(-1) if term.factor < 0 else const(1)
            self._record(term.atoms[0], (value * sign) // abs(term.factor))
            return
        interval = self.algebra.interval(remainder)
        if term.factor < 0 or interval.low is None or interval.high is None:
            return
        if interval.high - interval.low < term.factor:
            offset = value - interval.low
            self._record(term.atoms[0], offset // term.factor)
            self.learn(remainder, offset % term.factor + interval.low)

    def _record(self, atom: Expr, value: Expr) -> None:
        if key_of(atom) in self.known:
            return
        self.known[key_of(atom)] = value
        if isinstance(atom, BinOp):
            self.halves.append(atom)
        for half in self.halves:
            self._join(half)

    def _join(self, half: BinOp) -> None:
        """``x = k * (x // k) + x % k``."""
        if not isinstance(half.rhs, Const) or half.op not in ("//", "%"):
            return
        k = int(half.rhs.value)
        form = self.algebra.of(half.lhs)
        values = list(self._values(self.algebra.div(form, k), self.algebra.mod(form, k)))
        target = form.single
        if len(values) == 2 and not (target is not None and key_of(target) in self.known):
            self.learn(form, values[0] * k + values[1])

    def _values(self, *forms: Linear) -> Iterator[Expr]:
        for form in forms:
            if form.is_constant:
                yield const(form.constant)
            elif form.key in self.known:
                yield self.known[form.key]
