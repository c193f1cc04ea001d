"""Steps on loops of a program in position space: parallel, vectorize, unroll."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.expr import Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block, PosFunc
from spcomp.ir.reduction import as_reduction
from spcomp.ir.stmt import For, Func, LoopKind, Stmt, Store
from spcomp.ir.visitor import Rewriter, substitute, walk
from spcomp.passes.loop_kinds import REDUCIBLE, can_vectorize
from spcomp.passes.scope import variables
from spcomp.schedule.dependence import conflicts, loops_of
from spcomp.schedule.step import Step, known


def find_loop(func: Func, name: str, step: object, span: Span | None) -> For:
    """Return the loop called *name*; raises ScheduleError if there is none, or no loops yet."""
    if not isinstance(func, PosFunc):
        raise ScheduleError(
            f"{step}: {func.name} has no loops at this level",
            span,
            hint="loops exist in position space: lower the sparse iterations first",
        )
    loops = {loop.var.name: loop for loop in loops_of(func.body)}
    if name not in loops:
        raise ScheduleError(
            f"{step}: no loop {name!r} in {func.name}", span, hint=known(loops, "loops")
        )
    return loops[name]


def set_kind(func: Func, loop: For, kind: LoopKind) -> Func:
    """Return *func* with the kind of *loop* changed."""
    return func.replace(body=_SetKind(loop, kind).rewrite(func.body))


class _SetKind(Rewriter):
    def __init__(self, loop: For, kind: LoopKind) -> None:
        self.loop, self.kind = loop, kind

    def visit_For(self, loop: For) -> Node:
        if loop is self.loop:
            return loop.replace(kind=self.kind)
        return self.visit_Node(loop)


@dataclass(frozen=True, slots=True)
class Parallel(Step):
    """``for i in serial(n): s  ->  for i in parallel(n): s``.

    Legal where no two iterations touch an element that one of them writes.
    """

    name: ClassVar[str] = "parallel"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop run on all threads."""
        loop = find_loop(func, self.loop, self, span)
        if found := conflicts(loop):
            raise ScheduleError(f"{self}: {found[0]}", span or loop.span)
        return set_kind(func, loop, "parallel")


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
        body, var = innermost(loop)
        if not can_vectorize(body, var):
            raise ScheduleError(
                f"{self}: the body is not straight-line arithmetic and stores", span or loop.span
            )
        if not is_dot(body, var) and (found := conflicts(loop)):
            raise ScheduleError(f"{self}: {found[0]}", span or loop.span)
        return set_kind(func, loop, "vectorized")


@dataclass(frozen=True, slots=True)
class Unroll(Step):
    """``for i in serial(n): s  ->  for i in unroll(n): s``; always legal."""

    name: ClassVar[str] = "unroll"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop marked for unrolling."""
        return set_kind(func, find_loop(func, self.loop, self, span), "unroll")


def innermost(loop: For) -> tuple[Stmt, Var]:
    """Return the body of *loop* with the names of its block replaced, and the loop's variable."""
    body = loop.body
    if isinstance(body, Block) and body.where is None:
        body = substitute(body.body, {i.var: i.value for i in body.iters})
    return body, loop.var


def is_dot(body: Stmt, var: Var) -> bool:
    """Whether *body* accumulates into one element, whatever the value of *var*."""
    if not isinstance(body, Store) or any(
        var in variables(i) for i in body.indices if i is not None
    ):
        return False
    found = as_reduction(body)
    if found is None or found.combiner not in REDUCIBLE or len(found.values) != 1:
        return False
    return not any(getattr(n, "buffer", None) is body.buffer for n in walk(found.values[0]))
