"""The step that moves workspaces out of a loop, so that its iterations share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.errors import ScheduleError, Span
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.axis import WORKSPACE, Buffer
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, Stmt
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_loop, replaced
from spcomp.schedule.nests.sites import bound_in
from spcomp.schedule.steps.base import Step

CONCURRENT = ("parallel", "bound", "vectorized")


@dataclass(frozen=True, slots=True)
class ShareWorkspace(Step):
    """``for i in n: W = workspace(); s  ->  W = workspace(); for i in n: s``.

    A workspace is zero when it is made, and whoever uses it leaves it as good as new (it is part of
    what the scope promises), so that one serves all iterations.
    Legal for a loop that runs serially, if the sizes are the same throughout.
    """

    name: ClassVar[str] = "share_workspace"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the workspaces of *loop* outside."""
        loop = find_loop(func, self.loop, self, span)
        if loop.kind in CONCURRENT:
            raise ScheduleError(
                f"{self}: the loop is {loop.kind}, each iteration needs workspaces of its own",
                span or loop.span,
                hint="split it, and share them in the inner loop",
            )
        taken = _TakeOut()
        body = taken.rewrite(loop.body)
        if not taken.found:
            raise ScheduleError(f"{self}: there is no workspace in the loop", span or loop.span)
        inside = bound_in(loop)
        made: Stmt = loop.replace(body=body)
        for buffer in reversed(taken.found):
            if any(variables(extent) & inside for extent in buffer.shape):
                message = f"{self}: the size of {buffer.name} depends on the iteration"
                raise ScheduleError(message, span or loop.span)
            made = Alloc(buffer, made, span=loop.span)
        return replaced(func, loop, made)


def has_workspace(loop: For) -> bool:
    """Whether iterations of *loop* have workspaces."""
    return any(isinstance(n, Alloc) and n.buffer.scope == WORKSPACE for n in walk(loop.body))


class _TakeOut(Rewriter):
    """Removes the allocations of workspaces; *found* are these."""

    def __init__(self) -> None:
        self.found: list[Buffer] = []

    def visit_For(self, loop: For) -> Node:
        """Leave alone what several threads need at once."""
        return loop if loop.kind in CONCURRENT else self.visit_Node(loop)

    def visit_Alloc(self, alloc: Alloc) -> Node:
        if alloc.buffer.scope != WORKSPACE or not isinstance(alloc.buffer, Buffer):
            return self.visit_Node(alloc)
        self.found.append(alloc.buffer)
        return self.rewrite(alloc.body)
