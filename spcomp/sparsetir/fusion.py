"""Beside the route: SparseTIR's horizontal fusion of several launches into one."""

from __future__ import annotations

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.expr import BinOp, Const, Var, const
from spcomp.ir.node import Node
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Seq, Stmt
from spcomp.ir.visitor import statements

GRID = tuple(f"{what}.{k}" for what in ("blockIdx", "threadIdx") for k in "xyz")
BLOCKS = GRID[0]


def fuse_horizontally(func: PosFunc) -> PosFunc:
    """Return *func*, whose nests are all bound to ``blockIdx.x``, as one launch of all blocks.

    The blocks of each nest follow those of the nest before. The other indices of the grid run to
    the largest extent of any nest, under conditions. Raises ScheduleError for a loop of the grid
    that does not run from 0 to a number, and for statements outside the nests.

    Source: SparseTIR (ASPLOS 2023), section 3.4.1.
    """
    body, allocs = func.body, []
    while isinstance(body, Alloc):
        allocs.append(body.buffer)
        body = body.body
    nests = body.body if isinstance(body, Seq) else (body,)
    for nest in nests:
        if not isinstance(nest, For) or nest.thread != BLOCKS:
            raise ScheduleError(f"{func.name} has a nest that is not bound to {BLOCKS}", nest.span)
    grid = _Grid(body)
    fused: Stmt | None = None
    for part in [grid.rewrite(nest) for nest in nests][::-1]:
        assert isinstance(part, If)
        fused = part.replace(otherwise=fused)
    assert fused is not None
    for thread in (index for index in reversed(GRID) if index in grid.extents):
        fused = For(grid.vars[thread], ZERO, const(grid.extents[thread]), fused, "bound", thread)
    for buffer in reversed(allocs):
        fused = Alloc(buffer, fused)
    attrs = tuple(pair for pair in func.attrs if pair[0] != "horizontal_fuse")
    return func.replace(body=fused, attrs=attrs)


class _Grid(Rewriter):
    """Replaces loops over a grid by conditions; *extents*: how far each index runs."""

    def __init__(self, body: Stmt) -> None:
        self.vars = {thread: Var(thread.lower().replace(".", "_"), int64) for thread in GRID}
        self.extents: dict[str, int] = {}
        self.first = 0
        for loop in (n for n in statements(body) if isinstance(n, For) and n.kind == "bound"):
            size, before = self._size(loop), self.extents.get(loop.thread, 0)
            self.extents[loop.thread] = (
                before + size if loop.thread == BLOCKS else max(before, size)
            )

    def _size(self, loop: For) -> int:
        begin, end = loop.begin, loop.end
        constant = isinstance(end, Const) and isinstance(begin, Const) and begin.value == 0
        if not constant or loop.thread not in GRID:
            raise ScheduleError(
                f"{loop.var.name!r}, on {loop.thread}, does not run from 0 to a number", loop.span
            )
        assert isinstance(end, Const)
        return int(end.value)

    def visit_For(self, loop: For) -> Node:
        if loop.kind != "bound":
            return self.visit_Node(loop)
        size, index = self._size(loop), self.vars[loop.thread]
        begin, self.first = self.first, self.first + (size if loop.thread == BLOCKS else 0)
        body = self.rewrite(loop.body)
        if loop.thread != BLOCKS:
            inner = substitute(body, {loop.var: index})
            full = size == self.extents[loop.thread]
            return inner if full else If(BinOp("<", index, const(size)), inner, span=loop.span)
        inside = index if begin == 0 else BinOp("-", index, const(begin))
        inner = substitute(body, {loop.var: inside})
        return If(BinOp("<", index, const(begin + size)), inner, span=loop.span)
