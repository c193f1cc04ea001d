"""Beside the route: can two iterations of a loop touch one element of a buffer?"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.arith.alike import up_to_names
from spcomp.ir.arith.bounds import Env, as_env
from spcomp.ir.arith.linear import Algebra, Key, Linear, key_of, mentions
from spcomp.ir.arith.proof import WIDE, Bounds, Facts, Prover, Ranges, product
from spcomp.ir.axis import AnyBuffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, cast, const, plain
from spcomp.ir.rewrite import substitute

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def element_key(buffer: AnyBuffer, indices: Sequence[Expr | None]) -> tuple[Expr | None, ...]:
    """Return what is the same for two accesses of *buffer* at *indices* only if their element is.

    These are the indices; for a view with strides, the distance from its first element.
    """
    strides = None if isinstance(buffer, SparseBuffer) else buffer.strides
    if strides is None:
        return tuple(indices)
    offset: Expr = const(0, int64)
    for index, stride in zip(indices, strides, strict=True):
        assert index is not None
        offset = binary("+", offset, binary("*", cast(index, int64), cast(stride, int64)))
    return (offset,)


def injective(
    indices: Sequence[Expr | None],
    var: Var,
    inner: Facts,
    *,
    bounds: Bounds = None,
    monotone: Collection[AnyBuffer] = (),
) -> bool:
    """Say whether two values of *var* are proved never to give the same tuple of *indices*.

    The variables of *inner* range over ``[low, high)`` independently in the two iterations, outer
    loops first; bounds may use *var* and variables before them. Variables that *indices* do not
    need are ignored, so that nothing is concluded from loops around other accesses. Variables not
    in *inner*, and the buffers read in *indices*, are the same in both iterations. *inner* may
    give a range for *var*. *monotone*: one-dimensional buffers whose values do not decrease.
    False: not proved.
    """
    single = {v: low for v, (low, high) in inner.items() if v is not var and _is_one(low, high)}
    indices = [index and substitute(index, single) for index in indices]
    inner = {
        v: (substitute(low, single), substitute(high, single))
        for v, (low, high) in inner.items()
        if v not in single
    }
    indices = [part for index in indices for part in distinguishing_indices(index)]
    ranges = tuple(_relevant(indices, var, inner).items())
    return _injective((tuple(indices), var, ranges, tuple(monotone)), as_env(bounds))


def _is_one(low: Expr, high: Expr) -> bool:
    """Whether there is one number from *low* to below *high*."""
    return isinstance(low, Const) and isinstance(high, Const) and high.value - low.value == 1


def distinguishing_indices(index: Expr | None) -> tuple[Expr | None, ...]:
    """Return what differs if *index* does: of a value in a distinct buffer, its place; else it."""
    load = None if index is None else plain(index)
    return load.indices if isinstance(load, Load) and load.buffer.distinct else (index,)


@up_to_names
def _injective(
    question: tuple[tuple[Expr | None, ...], Var, Ranges, tuple[AnyBuffer, ...]], env: Env
) -> bool:
    indices, var, inner, monotone = question
    return _Collision(indices, var, dict(inner), env, monotone).is_impossible()


def _relevant(indices: Sequence[Expr | None], var: Var, inner: Facts) -> Facts:
    ranges: dict[Var, tuple[Expr, Expr]] = {}
    exprs: list[Expr | None] = list(indices)
    for name, ends in reversed(tuple(inner.items())):
        if name is var or mentions(exprs, {name}):
            ranges[name] = ends
            exprs.extend(ends)
    return dict(reversed(ranges.items()))


class _Collision:
    """Two iterations assumed to give one tuple; *fixed* is what must then be equal in both.

    A fixed sum ``c * x + rest`` fixes x and rest if rest spreads over less than c, or c * x over
    less than what divides each term of rest; ``x // k`` and ``x % k`` together fix x; a fixed
    variable counts as a constant. If this fixes *var*, the two iterations are the same one.
    """

    def __init__(
        self,
        indices: Sequence[Expr | None],
        var: Var,
        inner: Facts,
        env: Env,
        monotone: Collection[AnyBuffer],
    ) -> None:
        self.var = var
        algebra = Algebra(env, trusted=True)
        self.prover = Prover(algebra, inner, monotone)
        self.unknown = {var, *inner}
        steady = {w: ends for w, ends in inner.items() if not mentions(ends, self.unknown)}
        self.steady = Prover(algebra, steady, monotone)  # what holds for every value of var
        self.fixed: set[Key] = set()
        forms = [self.prover.form(index) for index in indices if index is not None]
        self.sums: dict[Key, Linear] = {form.key: form for form in forms if form is not None}

    def is_impossible(self) -> bool:
        """Say whether all that can be fixed includes the variable, or an index ascends with it."""
        count = -1
        while count != len(self.fixed) + len(self.sums):
            count = len(self.fixed) + len(self.sums)
            for form in tuple(self.sums.values()):
                self._solve(form)
                if self.var not in self.unknown:
                    return True
        return any(
            self._ascends(form) or self._ascends(form.scale(-1)) for form in self.sums.values()
        )

    def _may_differ(self, atom: Expr) -> bool:
        """Say whether *atom* may differ between the iterations."""
        return key_of(atom) not in self.fixed and mentions((atom,), self.unknown)

    def _parts(self, form: Linear) -> dict[Key, tuple[Linear, Linear]] | None:
        """Return the part of *form* that is not fixed, as products of a fixed slope and a sum.

        None if a term has several atoms that are not fixed.
        """
        parts: dict[Key, tuple[Linear, Linear]] = {}
        for term in form.terms.values():
            free = [atom for atom in term.atoms if self._may_differ(atom)]
            if len(free) > 1:
                return None
            if free:
                others = list(term.atoms)
                others.remove(free[0])
                slope = product(term.factor, others)
                total = parts[slope.key][1] if slope.key in parts else Linear({}, WIDE)
                parts[slope.key] = slope, total + product(1, free)
        return parts

    def _solve(self, form: Linear) -> None:
        parts = self._parts(form) or {}
        for key, (slope, total) in parts.items():
            remainder = Linear({}, WIDE)
            for other_key, (factor, addend) in parts.items():
                if other_key != key:
                    remainder += factor * addend
            spread = self._spread(remainder)
            is_left = spread is not None and self._exceeds(slope, spread)
            if is_left or self._is_residue(slope, total, remainder):
                self._fix_sum(total)
                self._fix_sum(remainder)
                return

    def _is_residue(self, slope: Linear, total: Linear, remainder: Linear) -> bool:
        """Say whether ``slope * total`` spreads over less than what divides each other term."""
        if not slope.is_constant or slope.constant == 0 or not remainder.terms:
            return False
        terms = list(remainder.terms.values())
        known = [{key_of(x): x for x in t.atoms if not self._may_differ(x)} for t in terms]
        common = [x for key, x in known[0].items() if all(key in keys for keys in known)]
        divisor = product(gcd(*(term.factor for term in terms)), common)
        spread = self._spread(slope * total)
        return spread is not None and self.prover.nonnegative((divisor - spread).shift(-1))

    def _fix_sum(self, form: Linear) -> None:
        """Record that *form* is fixed."""
        if form.single is not None:
            self._fix(form.single)
        elif form.terms:
            self.sums[form.key] = form

    def _spread(self, form: Linear) -> Linear | None:
        """Return a bound, equal in both iterations, on how far values of *form* lie apart."""
        low, high = self._least(form), self._least(form.scale(-1))
        return None if low is None or high is None else (low + high).scale(-1)

    def _least(self, form: Linear) -> Linear | None:
        """Return a lower bound of *form* that is made of fixed atoms."""
        form = self._over_inner(form)
        total = Linear({}, WIDE)
        for key, term in form.terms.items():
            if not any(self._may_differ(atom) for atom in term.atoms):
                total += Linear({key: term}, WIDE)
                continue
            low = self.prover.interval(Linear({key: term}, WIDE)).low
            if low is None:
                return None
            total += product(low, ())
        return total

    def _over_inner(self, form: Linear) -> Linear:
        """Return the least of *form* over the inner variables, as far as they can be replaced."""
        for var in reversed(self.prover.ranges):
            if var in self.unknown:
                form = self.prover.least(form, var) or form
        return form

    def _exceeds(self, slope: Linear, spread: Linear) -> bool:
        sides = (slope, slope.scale(-1))
        return any(self.prover.nonnegative((side - spread).shift(-1)) for side in sides)

    def _fix(self, atom: Expr) -> None:
        if key_of(atom) in self.fixed:
            return
        self.fixed.add(key_of(atom))
        if isinstance(atom, Var):
            self.unknown.discard(atom)
        match atom:
            case BinOp(op="//" | "%", lhs=x, rhs=Const(value=int(k))) if k > 0:
                algebra = self.prover.algebra
                form = algebra.of(x)
                halves = algebra.div(form, k), algebra.mod(form, k)
                if all(self._parts(half) == {} for half in halves):
                    self._fix_sum(Linear(form.terms, WIDE))
            case BinOp(op="//" | "%", lhs=x, rhs=k) if not mentions((k,), self.unknown):
                twin = BinOp("%" if atom.op == "//" else "//", x, k)
                if key_of(twin) in self.fixed and (dividend := self.prover.form(x)) is not None:
                    self._fix_sum(dividend)  # x is (x // k) * k + x % k, whatever k

    def _ascends(self, form: Linear) -> bool:
        """Say whether *form* at v + 1 is above *form* at v for all values of the inner variables.

        That holds if its least value does not decrease with v, and at v + 1 is above the greatest
        at v.
        """
        inner = [var for var in reversed(self.prover.ranges) if var is not self.var]
        low, high = form, form.scale(-1)
        for var in inner:
            low = self.prover.least(low, var) or low
            high = self.prover.least(high, var) or high
        if any(mentions(end.atoms, self.unknown - {self.var}) for end in (low, high)):
            return False
        if (after := self._next(low)) is None:
            return False
        passes = self.prover.nonnegative((after + high).shift(-1))
        return passes and self.steady.nonnegative(after - low)

    def _next(self, form: Linear) -> Linear | None:
        if any(abs(term.factor) >> 62 for term in form.terms.values()):
            return None
        shifted = substitute(Linear(form.terms, int64).expr(), {self.var: self.var + 1})
        return self.prover.form(shifted)
