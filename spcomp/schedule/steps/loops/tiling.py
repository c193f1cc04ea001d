"""Steps of stage II that rearrange loops: split, loop_partition, reorder, fuse."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, both, from_zero, may_fail, variables
from spcomp.ir.analysis.init_plan import init_plan
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.simplify import divides, prove, simplify
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import (
    ascending_axes,
    at_most_once,
    changes_range,
    conflicts,
    loop_named,
    loops_of,
    promised,
)
from spcomp.schedule.legality.reductions import only_reduces
from spcomp.schedule.nests.nests import (
    Fresh,
    can_copy,
    chain,
    find_loop,
    nest,
    reduction_loops,
    replaced,
)
from spcomp.schedule.steps.base import MOST, Step

MOST_PIECES = 16  # loops that one loop is split in


@dataclass(frozen=True, slots=True)
class Split(Step):
    """``for k in n: s  ->  for k_o in ceil(n / f): for k_i in f: s[k := k_o * f + k_i]``.

    *factors*: the trip counts of the pieces, outermost first; one may be None, which is then as
    large as needed, and a number f stands for (None, f). Two pieces are called k_o and k_i, more
    k_0, k_1, ... Legal where the factors cover the range. Where they are not proved to multiply to
    the trip count, what has an effect is guarded by ``k_o * f + k_i < n``. Source: TVM's split.
    """

    name: ClassVar[str] = "split"
    loop: str
    factors: int | tuple[int | None, ...]

    def __post_init__(self) -> None:
        if isinstance(self.factors, (tuple, list)):
            given = tuple(self.factors)
            short = len(given) == 2 and given[0] is None and isinstance(given[1], int)
            object.__setattr__(self, "factors", given[1] if short else given)

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop split in as many as there are factors."""
        loop = find_loop(func, self.loop, self, span)
        factors = self._pieces(loop, span)
        if loop.kind == "vectorized":
            why = "a loop in vectors is innermost: split it first, and vectorize a piece"
            raise self._error(why, loop, span)
        _check_range(self, loop, span)
        count, known = _count(loop), prod(f for f in factors if f is not None)
        exact = divides(known, count)
        if None not in factors:
            certain = simplify(count)
            exact = isinstance(certain, Const) and certain.value == known
        if None not in factors and not prove(BinOp("<=", count, const(known)), {}):
            raise self._error(f"the loop may run more often than {known} times", loop, span)
        most = count if exact else binary("+", count, known - 1)
        inferred = simplify(binary("//", most, known))
        trips = [inferred if f is None else const(f) for f in factors]
        names, ends = Names(func), ("o", "i") if len(trips) == 2 else range(len(trips))
        made = [names.var(f"{self.loop}_{end}") for end in ends]
        index: Expr = made[0]
        for var, trip in zip(made[1:], trips[1:], strict=True):
            index = binary("+", binary("*", index, trip), var)
        value = index if from_zero(loop) else binary("+", loop.begin, index)
        body = substitute(loop.body, {loop.var: value})
        if not exact:
            body = _Guard(BinOp("<", index, count), made).rewrite(body)
        for var, trip in reversed([*zip(made, trips, strict=True)][1:]):
            body = For(var, ZERO, trip, body, span=loop.span)
        outer = loop.replace(var=made[0], begin=ZERO, end=trips[0], body=body)
        new = replaced(func, loop, outer)
        if variables(value) - {*made, *func.params} and _starts(new) != _starts(func, loop, outer):
            raise self._error("a reduction would start further out", loop, span)
        return _claims_kept(self, func, new, loop, span)

    def _pieces(self, loop: For, span: Span | None) -> tuple[int | None, ...]:
        """Return the factors; raises ScheduleError if they are none."""
        factors = (None, self.factors) if isinstance(self.factors, int) else self.factors
        if len(factors) < 2:
            raise self._error("a loop is split in at least two", loop, span)
        if len(factors) > MOST_PIECES:
            raise self._error(f"a loop is split in at most {MOST_PIECES}", loop, span)
        if factors.count(None) > 1:
            raise self._error("only one factor can be inferred", loop, span)
        known = [factor for factor in factors if factor is not None]
        if min(known) < 1:
            raise self._error("the factor must be at least 1", loop, span)
        if prod(known) > MOST:
            raise self._error("the factors multiply to 2**31 or more", loop, span)
        return factors


def _starts(func: Func, old: For | None = None, new: For | None = None) -> dict[str, Var]:
    """Return the loop before which each reduction starts, by block; *old* counts as *new*."""
    found: dict[str, Var] = {}
    for loop, nests in init_plan(func.body).items():
        var = loop.var if isinstance(loop, For) else loop.coordinate
        if old is not None and new is not None and var is old.var:
            var = new.var
        found |= {nest.block.name: var for nest in nests}
    return found


class _Guard(Rewriter):
    """Lets what has an effect, or may not be evaluated, happen only where *cond* holds.

    Outermost blocks take the condition. *pieces*: variables that may be beyond the last iteration.
    """

    def __init__(self, cond: Expr, pieces: list[Var]) -> None:
        self.cond, self.beyond = cond, set(pieces)

    def visit_Block(self, block: Block) -> Node:
        if any(isinstance(n, (Load, Search)) for own in block.iters for n in walk(own.value)):
            return self.visit_Stmt(block)  # what an iter stands for is evaluated before the guard
        return block.replace(where=both(self.cond, block.where))

    def visit_Seq(self, stmt: Seq) -> Node:
        return self.visit_Node(stmt)

    def visit_Alloc(self, stmt: Alloc) -> Node:
        return self.visit_Node(stmt)

    def visit_For(self, loop: For) -> Node:
        return self._around(loop, (loop.begin, loop.end))

    def visit_Let(self, let: Let) -> Node:
        return self._around(let, (let.value,))

    def _around(self, stmt: For | Let, parts: tuple[Expr, ...]) -> Node:
        if any(variables(part) & self.beyond for part in parts):
            self.beyond.add(stmt.var)
            if any(isinstance(n, (Load, Search)) or may_fail(n) for e in parts for n in walk(e)):
                return self.visit_Stmt(stmt)
        return stmt.replace(body=self.rewrite(stmt.body))

    def visit_Stmt(self, stmt: Stmt) -> Node:
        return If(self.cond, stmt, span=stmt.span)


def _check_range(step: Step, loop: For, span: Span | None) -> None:
    """Raise unless the range of *loop* can be computed again while it runs."""
    if (found := changes_range(loop)) is not None:
        raise ScheduleError(f"{step}: {found}", span or loop.span)


def _count(loop: For) -> Expr:
    return loop.end if from_zero(loop) else binary("-", loop.end, loop.begin)


@dataclass(frozen=True, slots=True)
class LoopPartition(Step):
    """``for k in n: s  ->  d = n // m * m; for k in d: s; for r in n - d: s[k := d + r]``.

    Legal unless the loop drives a reduction whose init would then run twice, or is bound to a
    thread index, which both parts would be with different extents.
    """

    name: ClassVar[str] = "loop_partition"
    loop: str
    multiple: int

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop cut where *multiple* last divides."""
        loop = find_loop(func, self.loop, self, span)
        if self.multiple < 1:
            raise ScheduleError(f"{self}: the multiple must be at least 1", span or loop.span)
        if loop.kind == "bound":
            why = f"{self.loop!r} is bound to {loop.thread}, its parts would not run as often"
            raise ScheduleError(f"{self}: {why}", span or loop.span)
        if loop.var in reduction_loops(func) or not can_copy(loop.body):
            raise ScheduleError(
                f"{self}: the loop reduces, or its body cannot be copied", span or loop.span
            )
        _check_range(self, loop, span)
        count = _count(loop)
        cut = simplify(binary("*", binary("//", count, self.multiple), self.multiple))
        main = loop.replace(end=cut if from_zero(loop) else binary("+", loop.begin, cut))
        names = Names(func)
        var = names.var(f"{self.loop}_rest")
        least = simplify(binary("max", cut, 0))  # the loop may end before it begins
        done = least if isinstance(least, Const) else names.var(f"{self.loop}_done")
        start = done if from_zero(loop) else binary("+", loop.begin, done)
        body = Fresh(names, "_rest", {loop.var: binary("+", start, var)}).rewrite(loop.body)
        rest = simplify(binary("-", count, done))
        tail: Stmt = loop.replace(var=var, begin=ZERO, end=rest, body=body)
        if isinstance(done, Var) and not _is_empty(tail):
            tail = Let(done, least, tail, span=loop.span)
        parts = [part for part in (main, tail) if not _is_empty(part)]
        new = replaced(func, loop, seq(*parts))
        return _claims_kept(self, func, new, loop, span)


def _claims_kept(step: Step, func: Func, new: Func, loop: For, span: Span | None) -> Func:
    """Return *new*; raises ScheduleError where loops around are no more seen to be independent.

    What is printed of it would be refused, as one reads there that they are.
    """
    for outer in loops_of(func.body):
        claims = outer.kind in ("parallel", "bound") and loop in loops_of(outer.body)
        if not claims or not any(_adds(node, outer.var, loop.var) for node in walk(loop)):
            continue
        same, known = loop_named(new.body, outer.var.name), ascending_axes(func)
        found = () if same is None else conflicts(same, atomic=True, ascending=known)
        if found and not conflicts(outer, atomic=True, ascending=known):
            raise ScheduleError(
                f"{step}: loop {outer.var.name!r} could not be seen to be {outer.kind}: {found[0]}",
                span or loop.span,
                hint="do this before the loop is split, or to one that is serial",
            )
    return new


def _adds(node: Node, *names: Var) -> bool:
    """Whether *node* is a sum with all of *names* in it."""
    return isinstance(node, BinOp) and node.op == "+" and {*names} <= variables(node)


def _is_empty(stmt: Stmt) -> bool:
    if not isinstance(stmt, For) or not from_zero(stmt):
        return False
    return isinstance(stmt.end, Const) and stmt.end.value == 0


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """``for j: for k: s  ->  for k: for j: s`` for any order of loops nested perfectly.

    Legal where of every two loops that change places one has independent iterations, and no trip
    count needs a variable that is then inside. That they write at coordinates of a sorted axis
    without repetitions will do, a call checks it. Loops not named keep their places.
    """

    name: ClassVar[str] = "reorder"
    loops: tuple[str, ...]

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loops in the order given."""
        named = [find_loop(func, name, self, span) for name in self.loops]
        outermost = next((n for n in named if {*named} <= {*chain(n)[0]}), None)
        if outermost is None or len({*named}) != len(named):
            raise ScheduleError(
                f"{self}: the loops are not nested directly in each other", span or func.span
            )
        before, body = chain(outermost)
        order = iter(named)
        after = [next(order) if loop in named else loop for loop in before]
        new = nest(after, body)
        return replaced(self._checked(func, before, after, new, span), outermost, new)

    def _checked(
        self, func: Func, before: list[For], after: list[For], new: Stmt, span: Span | None
    ) -> Func:
        """Return *func* with what it must promise for this order."""
        reducing = reduction_loops(func)
        for k, loop in enumerate(after):
            inner = {later.var for later in after[k + 1 :]}
            if (variables(loop.begin) | variables(loop.end)) & inner:
                raise ScheduleError(
                    f"{self}: the trip count of {loop.var.name!r} depends on a loop then inside it",
                    span or loop.span,
                )
        assert isinstance(new, For)
        now = {loop.var: loop for loop in chain(new)[0]}
        for k, first in enumerate(before):
            for second in before[k + 1 :]:
                if after.index(second) < after.index(first):
                    func = self._swapped(func, first, now[second.var], reducing, span)
        return func

    def _swapped(
        self, func: Func, first: For, second: For, reducing: set[Var], span: Span | None
    ) -> Func:
        """One of two loops that change places must be free of conflicts, or both only reduce."""
        if at_most_once(first) or at_most_once(second):
            return func
        either = sorted((first, second), key=lambda loop: loop.var in reducing)
        if not conflicts(either[0]) or not (found := conflicts(either[1])):
            return func
        serial = second.kind not in ("parallel", "bound")  # further out it is around more
        if serial and {first.var, second.var} <= reducing and only_reduces(first.body):
            return func  # sums in another order: the same up to rounding
        for loop in either:
            made, left = promised(func, loop)
            if not left:
                return made
        raise ScheduleError(f"{self}: {found[0]}", span or first.span)


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """``for i in n: for j in m: s  ->  for i_j in n * m: s[i := i_j // m, j := i_j % m]``.

    Legal for loops nested perfectly, all from 0, the ranges of inner ones the same throughout, all
    of one kind, and none that picks the element of a reduction with one that reduces: its init
    would depend on both. Iterations keep their order. Source: TVM's fuse.
    """

    name: ClassVar[str] = "fuse"
    loops: tuple[str, ...]

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loops as one."""
        if len(self.loops) < 2:
            raise ScheduleError(f"{self}: it takes two loops or more", span or func.span)
        outer = find_loop(func, self.loops[0], self, span)
        for name in self.loops[1:]:
            func, outer = self._pair(func, outer, find_loop(func, name, self, span), span)
        return func

    def _pair(self, func: Func, outer: For, inner: For, span: Span | None) -> tuple[Func, For]:
        """Return *func* with the two loops as one, and that loop."""
        if outer.body is not inner:
            why = f"{inner.var.name!r} is not directly inside {outer.var.name!r}"
            raise self._error(why, outer, span)
        if not (from_zero(outer) and from_zero(inner)) or outer.var in variables(inner.end):
            raise self._error("the inner range is not the same throughout, from 0", outer, span)
        _check_range(self, outer, span)
        _check_range(self, inner, span)
        if (outer.kind, outer.thread) != (inner.kind, inner.thread):
            one, other = (loop.thread or loop.kind for loop in (outer, inner))
            raise self._error(f"one is {one}, the other {other}", outer, span)
        reducing = reduction_loops(func)
        starts = any(isinstance(n, Block) and n.init for n in walk(inner.body))
        if starts and (outer.var in reducing) != (inner.var in reducing):
            raise self._error("one of them drives a reduction that starts inside", outer, span)
        both_ = Names(func).var(f"{outer.var.name}_{inner.var.name}")
        values: dict[Var, Expr] = {
            outer.var: binary("//", both_, inner.end),
            inner.var: binary("%", both_, inner.end),
        }
        trips = simplify(binary("*", binary("max", outer.end, 0), inner.end))
        fused = outer.replace(var=both_, end=trips, body=substitute(inner.body, values))
        return replaced(func, outer, fused), fused
