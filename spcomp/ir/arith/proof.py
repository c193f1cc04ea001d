"""Beside the route: proofs about index arithmetic: inequalities and divisibility."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product as product_of
from typing import TYPE_CHECKING, TypeAlias

from spcomp.dtypes import DType
from spcomp.ir.access import Load
from spcomp.ir.arith.alike import up_to_names
from spcomp.ir.arith.bounds import Env, Interval, as_env
from spcomp.ir.arith.linear import (
    ONE,
    Algebra,
    Key,
    Linear,
    Term,
    is_integer,
    key_of,
    mentions,
    monomial,
    names_in,
)
from spcomp.ir.expr import COMPARISONS, NEGATED, BinOp, Cast, Const, Expr, UnOp, Var, cast

if TYPE_CHECKING:
    from spcomp.ir.axis import AnyBuffer

Facts: TypeAlias = Mapping[Var, tuple[Expr, Expr]]  # var: low <= var < high, outer loops first
Ranges: TypeAlias = tuple[tuple[Var, tuple[Expr, Expr]], ...]  # the same, hashable
Bounds: TypeAlias = Env | Mapping[Var, Interval] | None
WIDE = DType("int", 1024)  # of proofs: no sum in them wraps around
DEPTH = 12  # how many bounds a proof may substitute one after the other


def prove(cond: Expr, facts: Facts, bounds: Bounds = None) -> bool:
    """Say whether *cond* holds whenever each variable of *facts* lies in its ``[low, high)``.

    *cond* is made of integer comparisons, and, or, not; *facts* list outer loops first, so that a
    bound may use the variables before it. Nothing may write what they read between the loops and
    *cond*. 64-bit arithmetic in *cond* and *facts* is assumed not
    to overflow. False: not proved.
    """
    return _holds((cond, tuple(facts.items())), as_env(bounds))


@up_to_names
def _holds(question: tuple[Expr, Ranges], env: Env) -> bool:
    cond, facts = question
    return Prover(Algebra(env, trusted=True), dict(facts)).holds(cond)


def decide(cond: BinOp, facts: Facts, env: Env) -> bool | None:
    """Return True or False if the integer comparison *cond* is proved or disproved, else None.

    As in prove, but for arithmetic that may overflow.
    """
    return _decide((cond, _related(facts, cond)), env)


@up_to_names
def _decide(question: tuple[BinOp, Ranges], env: Env) -> bool | None:
    cond, facts = question
    algebra = Algebra(env)
    apart = algebra.of(cond.lhs) - algebra.of(cond.rhs)
    if cond.op in ("==", "!=") and apart.is_constant:  # holds even where both sides wrap
        return (not apart.terms) == (cond.op == "==")
    prover = Prover(algebra, dict(facts))
    if prover.holds(cond):
        return True
    return False if prover.holds(cond, truth=False) else None


def _related(facts: Facts, cond: Expr) -> Ranges:
    """Return the *facts* that share a name with *cond*, directly or through other facts."""
    names, connected = set(names_in(cond)), dict.fromkeys(facts, False)
    more = True
    while more:
        more = False
        for var, ends in facts.items():
            about = names_in(ends[0]) | names_in(ends[1]) | {var}
            if not connected[var] and not names.isdisjoint(about):
                names |= about
                connected[var] = more = True
    return tuple((var, facts[var]) for var, related in connected.items() if related)


def coefficient(expr: Expr, var: Var) -> int | None:
    """Return c if *expr* is ``c * var`` plus terms that do not depend on *var*, else None."""
    if not is_integer(expr):
        return None
    multiple, others = (
        Algebra(Env(), trusted=True).of(expr).split(lambda at, _: at == monomial((var,)))
    )
    if mentions(others.atoms, {var}):
        return None
    return sum(term.factor for term in multiple.terms.values())


def divides(k: int, expr: Expr, bounds: Bounds = None) -> bool:
    """Say whether *expr* is proved to be a multiple of *k*; 64-bit arithmetic does not overflow."""
    if not is_integer(expr) or k == 0:
        return False
    algebra = Algebra(as_env(bounds), trusted=True)
    form = algebra.of(expr)
    remainder = algebra.mod(form, abs(k))
    if not remainder.terms:
        return True
    match form.single:
        case BinOp(op="min" | "max", lhs=a, rhs=b):
            return divides(k, a, bounds) and divides(k, b, bounds)
    return False


class Prover:
    """Proves that sums are not negative, given the ranges of variables.

    A variable with a range is replaced by the end of it that makes the sum smallest, innermost
    first; ``min``, ``max`` and ``//`` by their bounds; intervals decide the rest. *monotone* are
    one-dimensional buffers whose values do not decrease. Sums here are integers without limits.
    """

    def __init__(
        self, algebra: Algebra, facts: Facts, monotone: Collection[AnyBuffer] = ()
    ) -> None:
        self.algebra, self.monotone = algebra, monotone
        self.ranges: dict[Var, tuple[Linear, Linear]] = {}  # both ends included
        self.nonnegatives: list[Linear] = []  # not negative, because no range is empty
        self.lows: dict[Key, int] = {}
        for var, (low, high) in facts.items():
            self._learn(var, low, high)

    def _learn(self, var: Var, low: Expr, high: Expr) -> None:
        first, end = (self.form(cast(x, var.type)) for x in (low, high))
        if first is None or end is None:
            return
        last = end.shift(-1)
        self.ranges[var] = first, last
        size = last - first
        self.nonnegatives.append(size)
        if (variable_part := size.without(ONE).single) is not None:
            self.lows[key_of(variable_part)] = -size.constant
        env = self.algebra.env
        inside = Interval(self.interval(first).low, self.interval(last).high)
        variables = {**env.vars, var: env.vars.get(var, inside) & inside}
        self.algebra = Algebra(Env(variables, env.buffers), trusted=self.algebra.trusted)

    def form(self, expr: Expr) -> Linear | None:
        """Return *expr* as a sum; None if it may overflow its dtype."""
        form = self.algebra.of(expr)
        return Linear(form.terms, WIDE) if self.algebra.exact(form) else None

    def holds(self, cond: Expr, *, truth: bool = True) -> bool:
        """Say whether *cond* is proved to be *truth*."""
        match cond:
            case Const(value=value):
                return bool(value) == truth
            case BinOp(op="and" | "or" as op, lhs=a, rhs=b):
                both = (op == "and") == truth
                return (all if both else any)(self.holds(x, truth=truth) for x in (a, b))
            case UnOp(op="not", value=value):
                return self.holds(value, truth=not truth)
            case BinOp(op=op, lhs=a, rhs=b) if op in COMPARISONS and is_integer(a):
                return self._compares(op if truth else NEGATED[op], self.form(a), self.form(b))
        return False

    def _compares(self, op: str, a: Linear | None, b: Linear | None) -> bool:
        if a is None or b is None:
            return False
        match op:
            case "<" | ">=":
                return self.nonnegative((b - a).shift(-1) if op == "<" else a - b)
            case ">" | "<=":
                return self.nonnegative((a - b).shift(-1) if op == ">" else b - a)
            case "==":
                return not (a - b).terms or (self.nonnegative(a - b) and self.nonnegative(b - a))
        return any(self.nonnegative(d.shift(-1)) for d in (a - b, b - a))

    def nonnegative(self, form: Linear, depth: int = DEPTH) -> bool:
        """Say whether *form* is proved not to be below zero."""
        low = self.interval(form).low
        if low is not None and low >= 0:
            return True
        if depth == 0:
            return False
        for step in (self._by_choice, self._by_range, self._by_division):
            proved = step(form, depth - 1)
            if proved is not None:
                return proved
        return any(
            (least := self.interval(form - fact).low) is not None and least >= 0
            for fact in (*self.nonnegatives, *self._steps(form))
        )

    def interval(self, form: Linear) -> Interval:
        """Return the interval of *form*."""
        return self.algebra.interval(form, self.lows)

    def _by_choice(self, form: Linear, depth: int) -> bool | None:
        """Try the sides of a ``min`` or ``max``: one proof is enough, or both are needed."""
        for key, term in form.terms.items():
            match term.atoms:
                case (BinOp(op="min" | "max" as op, lhs=a, rhs=b),):
                    sides = [s.scale(term.factor) for x in (a, b) if (s := self.form(x))]
                    proofs = (self.nonnegative(form.without(key) + side, depth) for side in sides)
                    if (term.factor < 0) == (op == "min"):
                        return any(proofs)
                    return len(sides) == 2 and all(proofs)
        return None

    def _by_range(self, form: Linear, depth: int) -> bool | None:
        for var in reversed(self.ranges):
            least = self.least(form, var, depth)
            if least is not None:
                return self.nonnegative(least, depth)
        return None

    def least(self, form: Linear, var: Var, depth: int = DEPTH) -> Linear | None:
        """Return *form* where *var* takes the end of its range that makes it smallest.

        None if *form* does not contain *var* in a way that allows this.
        """
        low, high = self.ranges[var]
        total, slope, bounded = Linear({}, WIDE), Linear({}, WIDE), False
        for key, term in form.terms.items():
            others = [atom for atom in term.atoms if atom is not var]
            if len(term.atoms) - len(others) == 1 and not mentions(others, {var}):
                slope += product(term.factor, others)
            elif (bound := self._least_quotient(term, var)) is not None:
                total, bounded = total + bound, True
            else:
                total += Linear({key: term}, WIDE)
        if slope.terms:
            sign = 1 if self.nonnegative(slope, min(depth, 3)) else -1
            if sign < 0 and not self.nonnegative(slope.scale(-1), min(depth, 3)):
                return None
            return total + slope * (low if sign > 0 else high)
        return total if bounded else None

    def _least_quotient(self, term: Term, var: Var) -> Linear | None:
        """Return the least of ``f * ((c * var + ...) // k)`` over the range of *var*."""
        match term.atoms:
            case (BinOp(op="//", lhs=x, rhs=Const(value=int(k))),) if k > 0:
                dividend = self.form(x)
                if dividend is None:
                    return None
                multiple, others = dividend.split(lambda key, _: key == monomial((var,)))
                if not multiple.terms or mentions(others.atoms, {var}):
                    return None
                (slope,) = (t.factor for t in multiple.terms.values())
                end = self.ranges[var][(slope > 0) != (term.factor > 0)]
                inner = Linear((others + end.scale(slope)).terms, x.dtype)
                if self.algebra.exact(inner):
                    quotient = self.algebra.div(inner, k)
                    return Linear(quotient.terms, WIDE).scale(term.factor)
        return None

    def _by_division(self, form: Linear, depth: int) -> bool | None:
        """``x - k + 1 <= k * (x // k) <= x``, after multiplying *form*, a whole number, by k."""
        for key, term in form.terms.items():
            match term.atoms:
                case (BinOp(op="//", lhs=x, rhs=Const(value=int(k))),) if k > 0:
                    dividend = self.form(x)
                    if dividend is None:
                        continue
                    bound = dividend.shift(1 - k if term.factor > 0 else 0).scale(term.factor)
                    return self.nonnegative(form.without(key).scale(k).shift(k - 1) + bound, depth)
        return None

    def _steps(self, form: Linear) -> Iterator[Linear]:
        """Yield ``b[x + c] - b[x]``, c > 0, for the loads of monotone buffers in *form*."""
        loads = [(t, load) for t in form.terms.values() if (load := self._load(t)) is not None]
        for (upper, a), (lower, b) in product_of(loads, repeat=2):
            if upper.factor > 0 > lower.factor and a.buffer is b.buffer and self._after(a, b):
                yield product(1, upper.atoms) - product(1, lower.atoms)

    def _load(self, term: Term) -> Load | None:
        match term.atoms:
            case (Load() as load,) | (Cast(value=Load() as load),):
                widened = term.atoms[0].dtype.bits >= load.dtype.bits
                return load if widened and load.buffer in self.monotone else None
        return None

    def _after(self, a: Load, b: Load) -> bool:
        if len(a.indices) != 1 or a.indices[0] is None or b.indices[0] is None:
            return False
        step = self.algebra.of(a.indices[0]) - self.algebra.of(b.indices[0])
        return step.is_constant and step.constant > 0


def product(factor: int, atoms: Sequence[Expr]) -> Linear:
    """Return *factor* times *atoms*, as an integer without limits."""
    return Linear({monomial(atoms): Term(factor, tuple(atoms))}, WIDE)
