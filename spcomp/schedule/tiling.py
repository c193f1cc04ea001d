"""Steps that rearrange loops: split, loop_partition, reorder, fuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.arith import divides, simplify
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, const
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, Func, Let, Stmt, seq
from spcomp.ir.visitor import Rewriter, substitute, walk
from spcomp.passes.names import Names
from spcomp.passes.positions import ZERO, both, from_zero
from spcomp.passes.scope import variables
from spcomp.schedule.dependence import changes_range, conflicts
from spcomp.schedule.nests import (
    Fresh,
    can_copy,
    chain,
    find_loop,
    nest,
    reduction_loops,
    replaced,
)
from spcomp.schedule.reductions import only_reduces
from spcomp.schedule.step import Step


@dataclass(frozen=True, slots=True)
class Split(Step):
    """``for k in n: s  ->  for k_o in ceil(n / f): for k_i in f: s[k := k_o * f + k_i]``.

    Always legal. Where *factor* is not proved to divide the trip count, the blocks inside are
    guarded by ``k_o * f + k_i < n``.
    """

    name: ClassVar[str] = "split"
    loop: str
    factor: int

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop split in two."""
        loop = find_loop(func, self.loop, self, span)
        if self.factor < 1:
            raise ScheduleError(f"{self}: the factor must be at least 1", span or loop.span)
        _check_range(self, loop, span)
        names = Names(func)
        outer, inner = names.var(f"{self.loop}_o"), names.var(f"{self.loop}_i")
        count = _count(loop)
        index = binary("+", binary("*", outer, self.factor), inner)
        value = index if from_zero(loop) else binary("+", loop.begin, index)
        body = substitute(loop.body, {loop.var: value})
        if divides(self.factor, count):
            trips = simplify(binary("//", count, self.factor))
        else:
            trips = simplify(binary("//", binary("+", count, self.factor - 1), self.factor))
            body = self._guard(loop, body, BinOp("<", index, count), span)
        inside = For(inner, ZERO, const(self.factor), body, span=loop.span)
        return replaced(func, loop, loop.replace(var=outer, begin=ZERO, end=trips, body=inside))

    def _guard(self, loop: For, body: Stmt, cond: Expr, span: Span | None) -> Stmt:
        if not any(isinstance(node, Block) for node in walk(body)):
            raise ScheduleError(
                f"{self}: {self.factor} is not known to divide the trip count of {self.loop!r}, and"
                " there is no block to guard",
                span or loop.span,
                hint="loop_partition it first",
            )
        return _Guard(cond).rewrite(body)


class _Guard(Rewriter):
    """Puts a condition on the outermost blocks."""

    def __init__(self, cond: Expr) -> None:
        self.cond = cond

    def visit_Block(self, block: Block) -> Node:
        return block.replace(where=both(self.cond, block.where))


def _check_range(step: Step, loop: For, span: Span | None) -> None:
    """Raise unless the range of *loop* can be computed again while it runs."""
    if (found := changes_range(loop)) is not None:
        raise ScheduleError(f"{step}: {found}", span or loop.span)


def _count(loop: For) -> Expr:
    return loop.end if from_zero(loop) else binary("-", loop.end, loop.begin)


@dataclass(frozen=True, slots=True)
class LoopPartition(Step):
    """``for k in n: s  ->  d = n // m * m; for k in d: s; for r in n - d: s[k := d + r]``.

    Legal unless the loop drives a reduction whose init would then run twice.
    """

    name: ClassVar[str] = "loop_partition"
    loop: str
    multiple: int

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop cut where *multiple* last divides."""
        loop = find_loop(func, self.loop, self, span)
        if self.multiple < 1:
            raise ScheduleError(f"{self}: the multiple must be at least 1", span or loop.span)
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
        return replaced(func, loop, seq(*parts))


def _is_empty(stmt: Stmt) -> bool:
    if not isinstance(stmt, For) or not from_zero(stmt):
        return False
    return isinstance(stmt.end, Const) and stmt.end.value == 0


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """``for j: for k: s  ->  for k: for j: s`` for any order of loops nested perfectly.

    Legal where of every two loops that change places one has independent iterations, and no trip
    count needs a variable that is then inside. Loops not named keep their places.
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
        self._check(before, after, new, reduction_loops(func), span)
        return replaced(func, outermost, new)

    def _check(
        self,
        before: list[For],
        after: list[For],
        new: Stmt,
        reducing: set[Var],
        span: Span | None,
    ) -> None:
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
                    self._check_swap(first, now[second.var], reducing, span)

    def _check_swap(self, first: For, second: For, reducing: set[Var], span: Span | None) -> None:
        """One of two loops that change places must be free of conflicts, or both only reduce."""
        either = sorted((first, second), key=lambda loop: loop.var in reducing)
        if not conflicts(either[0]) or not (found := conflicts(either[1])):
            return
        serial = second.kind not in ("parallel", "bound")  # further out it is around more
        if serial and {first.var, second.var} <= reducing and only_reduces(first.body):
            return  # sums in another order: the same up to rounding
        raise ScheduleError(f"{self}: {found[0]}", span or first.span)


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """``for i in n: for j in m: s  ->  for i_j in n * m: s[i := i_j // m, j := i_j % m]``.

    Legal for two loops nested perfectly, both from 0, the range of the inner one the same
    throughout, and not one that picks the element of a reduction with one that reduces: its init
    would depend on both. Iterations keep their order.
    """

    name: ClassVar[str] = "fuse"
    outer: str
    inner: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the two loops as one."""
        outer = find_loop(func, self.outer, self, span)
        inner = find_loop(func, self.inner, self, span)
        if outer.body is not inner:
            raise self._error(f"{self.inner!r} is not directly inside {self.outer!r}", outer, span)
        if not (from_zero(outer) and from_zero(inner)) or outer.var in variables(inner.end):
            raise self._error("the inner range is not the same throughout, from 0", outer, span)
        _check_range(self, outer, span)
        _check_range(self, inner, span)
        if outer.kind != inner.kind:
            raise self._error(f"one is {outer.kind}, the other {inner.kind}", outer, span)
        reducing = reduction_loops(func)
        starts = any(isinstance(n, Block) and n.init for n in walk(inner.body))
        if starts and (outer.var in reducing) != (inner.var in reducing):
            raise self._error("one of them drives a reduction that starts inside", outer, span)
        both_ = Names(func).var(f"{self.outer}_{self.inner}")
        values: dict[Var, Expr] = {
            outer.var: binary("//", both_, inner.end),
            inner.var: binary("%", both_, inner.end),
        }
        trips = simplify(binary("*", binary("max", outer.end, 0), inner.end))
        fused = outer.replace(var=both_, end=trips, body=substitute(inner.body, values))
        return replaced(func, outer, fused)

    def _error(self, why: str, loop: For, span: Span | None) -> ScheduleError:
        return ScheduleError(f"{self}: {why}", span or loop.span)
