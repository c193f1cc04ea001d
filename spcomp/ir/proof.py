"""Proofs about index arithmetic: inequalities, divisibility, and which iterations meet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from spcomp.ir.axis import AnyBuffer
from spcomp.ir.bounds import Env, Interval, as_env, bounds_of
from spcomp.ir.expr import COMPARISONS, BinOp, Cast, Const, Expr, Load, UnOp, Var
from spcomp.ir.linear import (
    ONE,
    Algebra,
    Key,
    Linear,
    Monomial,
    Term,
    constant,
    is_integer,
    key_of,
    mentions,
)
from spcomp.ir.visitor import substitute

Facts: TypeAlias = Mapping[Var, tuple[Expr, Expr]]  # var: low <= var < high, outer loops first
Bounds: TypeAlias = Env | Mapping[Var, Interval] | None
DEPTH = 12  # how many bounds a proof may put into one another

_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def prove(cond: Expr, facts: Facts, bounds: Bounds = None) -> bool:
    """Say whether *cond* holds whenever each variable of *facts* lies in its ``[low, high)``.

    *cond* is made of integer comparisons, and, or, not; *facts* list outer loops first, so that a
    bound may use the variables before it. 64-bit arithmetic in *cond* and *facts* is taken not to
    overflow. False: not proved.
    """
    return Prover(Algebra(as_env(bounds), trusted=True), facts).holds(cond)


def coefficient(expr: Expr, var: Var) -> int | None:
    """Return c if *expr* is ``c * var`` plus what does not depend on *var*, else None."""
    if not is_integer(expr):
        return None
    own, rest = Algebra(Env(), trusted=True).of(expr).split(lambda key, _: key == _key(var))
    if mentions((rest.expr(),), frozenset((var,))):
        return None
    return own.terms[_key(var)].factor if own.terms else 0


def divides(k: int, expr: Expr, bounds: Bounds = None) -> bool:
    """Say whether *expr* is proved to be a multiple of *k*; 64-bit arithmetic does not overflow."""
    if not is_integer(expr) or k == 0:
        return False
    algebra = Algebra(as_env(bounds), trusted=True)
    form = algebra.of(expr)
    rest = algebra.mod(form, abs(k))
    if not rest.terms:
        return True
    match form.single:
        case BinOp(op="min" | "max", lhs=a, rhs=b):
            return divides(k, a, bounds) and divides(k, b, bounds)
    return False


class Prover:
    """Proves that sums are not negative, given the ranges of variables.

    A variable with a range is replaced by the end of it that makes the sum smallest, innermost
    first; ``min``, ``max`` and ``//`` by what bounds them; what then remains is a matter of
    intervals. *monotone* are buffers whose values do not decrease.
    """

    def __init__(
        self, algebra: Algebra, facts: Facts, monotone: Collection[AnyBuffer] = ()
    ) -> None:
        self.algebra, self.monotone = algebra, monotone
        self.ranges: dict[Var, tuple[Linear, Linear]] = {}  # both ends included
        self.known: list[Linear] = []  # sums that are not negative: no range is empty
        self.lows: dict[Key, int] = {}
        for var, (low, high) in facts.items():
            self._learn(var, low, high)

    def _learn(self, var: Var, low: Expr, high: Expr) -> None:
        first, last = self.algebra.of(low), self.algebra.of(high)
        if not self.algebra.exact(first) or not self.algebra.exact(last):
            return
        last = last.shift(-1)
        self.ranges[var] = first, last
        size = last - first
        self.known.append(size)
        if len(size.terms) <= 2 and (one := size.split(lambda key, _: key != ONE)[0].single):
            self.lows[key_of(one)] = -size.constant
        env = self.algebra.env
        inside = Interval(bounds_of(low, env).low, self._interval(last).high)
        known = env.vars.get(var, Interval())
        self.algebra = Algebra(
            Env({**env.vars, var: inside & known}, env.buffers), trusted=self.algebra.trusted
        )

    def holds(self, cond: Expr) -> bool:
        """Say whether *cond* is proved."""
        match cond:
            case Const(value=value):
                return bool(value)
            case BinOp(op="and", lhs=a, rhs=b):
                return self.holds(a) and self.holds(b)
            case BinOp(op="or", lhs=a, rhs=b):
                return self.holds(a) or self.holds(b)
            case UnOp(op="not", value=value):
                return self._fails(value)
            case BinOp(op=op, lhs=a, rhs=b) if op in COMPARISONS and is_integer(a):
                return self._compares(op, a, b)
        return False

    def _fails(self, cond: Expr) -> bool:
        match cond:
            case Const(value=value):
                return not value
            case BinOp(op="and", lhs=a, rhs=b):
                return self._fails(a) or self._fails(b)
            case BinOp(op="or", lhs=a, rhs=b):
                return self._fails(a) and self._fails(b)
            case UnOp(op="not", value=value):
                return self.holds(value)
            case BinOp(op=op, lhs=a, rhs=b) if op in COMPARISONS and is_integer(a):
                return self._compares(_NEGATED[op], a, b)
        return False

    def _compares(self, op: str, lhs: Expr, rhs: Expr) -> bool:
        a, b = self.algebra.of(lhs), self.algebra.of(rhs)
        if not self.algebra.exact(a) or not self.algebra.exact(b):
            return False
        match op:
            case "<":
                return self.nonnegative((b - a).shift(-1))
            case "<=":
                return self.nonnegative(b - a)
            case ">":
                return self.nonnegative((a - b).shift(-1))
            case ">=":
                return self.nonnegative(a - b)
            case "==":
                return not (a - b).terms or (self.nonnegative(a - b) and self.nonnegative(b - a))
        return self.nonnegative((a - b).shift(-1)) or self.nonnegative((b - a).shift(-1))

    def nonnegative(self, form: Linear, depth: int = DEPTH) -> bool:
        """Say whether *form*, as an integer, is proved not to be below zero."""
        if self._low(form) >= 0:
            return True
        if depth == 0:
            return False
        for step in (self._by_choice, self._by_range, self._by_division):
            proved = step(form, depth - 1)
            if proved is not None:
                return proved
        return self._by_known(form)

    def _low(self, form: Linear) -> float:
        low = self._interval(form).low
        return float("-inf") if low is None else low

    def _interval(self, form: Linear) -> Interval:
        total = Interval(0, 0)
        for term in form.terms.values():
            part = Interval(term.factor, term.factor)
            for factor in term.atoms:
                at_least = Interval(self.lows.get(key_of(factor))) if self.lows else Interval()
                part *= bounds_of(factor, self.algebra.env) & at_least
            total += part
        return total

    def _by_choice(self, form: Linear, depth: int) -> bool | None:
        """``min`` and ``max`` are one of their sides: any will do, or both must."""
        for key, term in form.terms.items():
            if len(term.atoms) != 1:
                continue
            match term.atoms[0]:
                case BinOp(op="min" | "max" as op, lhs=a, rhs=b):
                    rest = form.split(lambda at, _, gone=key: at != gone)[0]
                    sides = (rest + self.algebra.of(x).scale(term.factor) for x in (a, b))
                    either = any if (term.factor < 0) == (op == "min") else all
                    return either(self.nonnegative(side, depth) for side in sides)
        return None

    def _by_range(self, form: Linear, depth: int) -> bool | None:
        for var in reversed(self.ranges):
            low, high = self.ranges[var]
            made = self.extreme(form, var, low, high, depth)
            if made is not None:
                return self.nonnegative(made, depth)
        return None

    def extreme(
        self, form: Linear, var: Var, low: Linear, high: Linear, depth: int = DEPTH
    ) -> Linear | None:
        """Return *form* with *var* replaced so that it is smallest over ``low..high``.

        None if it does not contain *var* in a way that allows this.
        """
        key, total, met = _key(var), Linear({}, form.dtype), False
        slope = Linear({}, form.dtype)
        for at, term in form.terms.items():
            if at == key or (key_in(var, at) == 1 and not _hidden(term, var)):
                atoms = list(term.atoms)
                atoms.remove(var)
                slope += product(term.factor, atoms, form.dtype, self.algebra)
            elif (bound := self._monotone_atom(term, var, low, high)) is not None:
                total, met = total + bound, True
            else:
                total += Linear({at: term}, form.dtype)
        if slope.terms:
            end = self._worst(slope, low, high, depth)
            if end is None:
                return None
            total, met = total + slope * end, True
        return total if met else None

    def _worst(self, slope: Linear, low: Linear, high: Linear, depth: int) -> Linear | None:
        if self.nonnegative(slope, min(depth, 3)):
            return low
        return high if self.nonnegative(slope.scale(-1), min(depth, 3)) else None

    def _monotone_atom(self, term: Term, var: Var, low: Linear, high: Linear) -> Linear | None:
        """Bound ``c * ((a * var + ...) // k)`` over the range of *var*."""
        if len(term.atoms) != 1:
            return None
        match term.atoms[0]:
            case BinOp(op="//", lhs=x, rhs=Const(value=int(k))) if k > 0:
                form = self.algebra.of(x)
                own, rest = form.split(lambda key, _: key == _key(var))
                if not own.terms or mentions((rest.expr(),), frozenset((var,))):
                    return None
                slope = own.terms[_key(var)].factor
                end = low if (slope > 0) == (term.factor > 0) else high
                return self.algebra.div(rest + end.scale(slope), k).scale(term.factor)
        return None

    def _by_division(self, form: Linear, depth: int) -> bool | None:
        """``x - k + 1 <= k * (x // k) <= x``, after multiplying *form* by k."""
        for key, term in form.terms.items():
            if len(term.atoms) != 1:
                continue
            match term.atoms[0]:
                case BinOp(op="//", lhs=x, rhs=Const(value=int(k))) if k > 0:
                    rest = form.split(lambda at, _, gone=key: at != gone)[0]
                    bound = self.algebra.of(x).shift(1 - k if term.factor > 0 else 0)
                    return self.nonnegative(rest.scale(k) + bound.scale(term.factor), depth)
        return None

    def _by_known(self, form: Linear) -> bool:
        """Subtract what is known not to be negative: sizes of ranges, steps of monotone buffers."""
        for fact in (*self.known, *self._steps(form)):
            if fact.dtype == form.dtype and self._low(form - fact) >= 0:
                return True
        return False

    def _steps(self, form: Linear) -> list[Linear]:
        """Return ``b[x + c] - b[x]``, c > 0, for the loads of monotone buffers in *form*."""
        loads = [(term, load) for term in form.terms.values() if (load := self._load(term))]
        found = []
        for upper, a in loads:
            for lower, b in loads:
                if upper.factor > 0 > lower.factor and a.buffer is b.buffer and self._after(a, b):
                    found.append(_single(upper.atoms[0]) - _single(lower.atoms[0]))
        return found

    def _load(self, term: Term) -> Load | None:
        inner = term.atoms[0] if len(term.atoms) == 1 else None
        if isinstance(inner, Cast) and inner.dtype.bits >= inner.value.dtype.bits:
            inner = inner.value
        return inner if isinstance(inner, Load) and inner.buffer in self.monotone else None

    def _after(self, a: Load, b: Load) -> bool:
        if len(a.indices) != 1 or a.indices[0] is None or b.indices[0] is None:
            return False
        step = self.algebra.of(a.indices[0]) - self.algebra.of(b.indices[0])
        return step.is_constant and step.constant > 0


def product(factor: int, atoms: Sequence[Expr], dtype: object, algebra: Algebra) -> Linear:
    """Return *factor* times *atoms*."""
    raise NotImplementedError


def _key(var: Var) -> Monomial:
    return frozenset(((var, 1),))


def _single(expr: Expr) -> Linear:
    raise NotImplementedError
