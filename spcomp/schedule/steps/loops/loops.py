"""Steps of stage II on single loops: parallel, vectorize, unroll, add_unit_loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.vectors import can_vectorize
from spcomp.ir.arith.simplify import simplify_stmt
from spcomp.ir.expr import const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, LoopKind
from spcomp.ir.visitor import statements
from spcomp.schedule.legality.dependence import conflicts, promised
from spcomp.schedule.legality.reductions import innermost, is_dot
from spcomp.schedule.nests.nests import find_loop, replaced
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.loops.annotate import find_target, sharing


def set_kind(func: Func, loop: For, kind: LoopKind) -> Func:
    """Return *func* with the kind of *loop* changed."""
    return replaced(func, loop, loop.replace(kind=kind, thread=""))


@dataclass(frozen=True, slots=True)
class Parallel(Step):
    """``for i in serial(n): s  ->  for i in parallel(n): s``.

    Legal where no two iterations touch an element that one of them writes, or where they share
    only what an ``atomic`` block updates; a loop that needs this permission runs serially on a CPU.
    That they write at coordinates of a sorted axis without repetitions will do, a call checks it.
    """

    name: ClassVar[str] = "parallel"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop run on all threads."""
        loop = find_loop(func, self.loop, self, span)
        func, found = promised(func, loop, atomic=True)
        if found:
            raise ScheduleError(f"{self}: {found[0]}", span or loop.span)
        return replaced(func, loop, sharing(func, loop).replace(kind="parallel", thread=""))


@dataclass(frozen=True, slots=True)
class Vectorize(Step):
    """``for k in serial(n): s  ->  for k in vectorized(n): s``.

    Legal for an innermost loop of straight-line stores whose iterations are independent, or that
    updates one element by an associative operation.
    """

    name: ClassVar[str] = "vectorize"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop run in vector lanes."""
        loop = find_loop(func, self.loop, self, span)
        if not can_vectorize(*innermost(loop)):
            func, loop = _simplified(func, loop)
        body, var = innermost(loop)
        if not can_vectorize(body, var):
            raise ScheduleError(
                f"{self}: the body is not straight-line arithmetic and stores", span or loop.span
            )
        if not is_dot(body, var) and (found := conflicts(loop)):
            raise ScheduleError(f"{self}: {found[0]}", span or loop.span)
        return set_kind(func, loop, "vectorized")


def _simplified(func: Func, loop: For) -> tuple[Func, For]:
    """Return *func* with *loop* in fewer operations: no ``//`` of a loop fused and split again.

    As it was, if less is left than operations: an init runs where its reduction has no iterations.
    """
    loops = (n for n in statements(simplify_stmt(func.body)) if isinstance(n, For))
    made = next((n for n in loops if n.var is loop.var and _nest(n) == _nest(loop)), loop)
    return replaced(func, loop, made), made


def _nest(loop: For) -> list[object]:
    """The loops and blocks of *loop*, in order."""
    return [
        n.var if isinstance(n, For) else n.name
        for n in statements(loop)
        if isinstance(n, (For, Block))
    ]


@dataclass(frozen=True, slots=True)
class Unroll(Step):
    """``for i in serial(n): s  ->  for i in unroll(n): s``; always legal."""

    name: ClassVar[str] = "unroll"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop marked for unrolling."""
        return set_kind(func, find_loop(func, self.loop, self, span), "unroll")


@dataclass(frozen=True, slots=True)
class AddUnitLoop(Step):
    """``s  ->  for s_u in 1: s`` around the block or loop *target*; always legal.

    Source: TVM's add_unit_loop.
    """

    name: ClassVar[str] = "add_unit_loop"
    target: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with a loop that runs once around the target."""
        node = find_target(func, self.target, self, span)
        if not isinstance(node, (Block, For)):
            raise ScheduleError(f"{self}: {self.target!r} is no block or loop", span or node.span)
        var = Names(func).var(f"{self.target}_u")
        return replaced(func, node, For(var, ZERO, const(1), node, span=node.span))
