"""In position space: the step share_workspace, which moves workspaces out of a loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.ir.analysis.exprs import variables
from spcomp.ir.axis import WORKSPACE, Buffer
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, Stmt
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.nests.sites import bound_in
from spcomp.schedule.steps.base import Step

CONCURRENT = ("parallel", "bound", "vectorized")


@dataclass(frozen=True, slots=True)
class ShareWorkspace(Step):
    """``for i in n: W = workspace(); s  ->  W = workspace(); for i in n: s``.

    A workspace is zero when it is allocated, and every user sets it back to zero (the scope
    promises this), so one serves all iterations. Legal for a serial loop, if the sizes do not
    depend on it.
    """

    name: ClassVar[str] = "share_workspace"
    loop: str

    def plan(self, func: Func) -> tuple[For, Stmt, list[Buffer]]:
        """Return the loop, its body without the workspaces, and the workspaces."""
        loop = find_loop(func, self.loop, self)
        if loop.kind in CONCURRENT:
            why = f"the loop is {loop.kind}, each iteration needs workspaces of its own"
            raise self.error(why, loop, "split it, and share them in the inner loop")
        rewriter = _RemoveWorkspaces()
        body = rewriter.rewrite(loop.body)
        if not rewriter.workspaces:
            raise self.error("there is no workspace in the loop", loop)
        inside = bound_in(loop)
        for buffer in rewriter.workspaces[::-1]:
            if any(variables(extent) & inside for extent in buffer.shape):
                raise self.error(f"the size of {buffer.name} depends on the iteration", loop)
        return loop, body, rewriter.workspaces

    def rewrite(self, func: Func, plan: tuple[For, Stmt, list[Buffer]]) -> Func:
        """Return *func* with the workspaces of *loop* allocated outside it."""
        loop, body, workspaces = plan
        stmt: Stmt = loop.replace(body=body)
        for buffer in reversed(workspaces):
            stmt = Alloc(buffer, stmt, span=loop.span)
        return replace_stmt(func, loop, stmt)


def has_workspace(loop: For) -> bool:
    """Whether *loop* allocates workspaces."""
    return any(isinstance(n, Alloc) and n.buffer.scope == WORKSPACE for n in walk(loop.body))


class _RemoveWorkspaces(Rewriter):
    """Removes the allocations of workspaces; lists these in *workspaces*."""

    def __init__(self) -> None:
        self.workspaces: list[Buffer] = []

    def visit_For(self, loop: For) -> Node:
        """Leave concurrent loops alone: their iterations need workspaces of their own."""
        return loop if loop.kind in CONCURRENT else self.visit_Node(loop)

    def visit_Alloc(self, alloc: Alloc) -> Node:
        if alloc.buffer.scope != WORKSPACE or not isinstance(alloc.buffer, Buffer):
            return self.visit_Node(alloc)
        self.workspaces.append(alloc.buffer)
        return self.rewrite(alloc.body)
