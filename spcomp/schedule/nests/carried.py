"""Under the steps that move blocks: whether a buffer takes values from iteration to iteration."""

from __future__ import annotations

from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import trip_count, variables
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.stmt import Alloc, For, If, Let, Prefetch, Stmt, Store, While
from spcomp.ir.visitor import children, statements, walk
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.nests.sites import path_to


def carries(func: Func, buffer: AnyBuffer, writer: Block) -> bool:
    """Whether an iteration may read from *buffer* what an earlier one of the same loop stored.

    Only the block *writer* writes the buffer, which the program allocates. What that block reads
    itself is left to the caller. No loop carries a value where its iterations touch different
    elements, or where each stores the same elements again, and reads them later.
    """
    path = path_to(func, writer)
    above = (k for k, n in enumerate(path) if isinstance(n, Alloc) and n.buffer is buffer)
    own = {n for n in walk(writer) if _touches(n, buffer)}
    for node in path[next(above, -1) + 1 : -1]:
        if isinstance(node, For | While | Merge):
            others = [n for n in walk(node) if _touches(n, buffer) and n not in own]
            if not others:
                return False  # the loops inside are around the writer alone
            if not isinstance(node, For):
                return True
            if trip_count(node) in (0, 1) or not conflicts(node, {buffer}):
                continue
            first = next(n for n in walk(node) if n is writer or n in others)
            if first is not writer or not _Again(node, buffer).holds():
                return True
    return False


def _touches(node: Node, buffer: AnyBuffer) -> bool:
    return isinstance(node, Load | Store | Search | Prefetch) and node.buffer is buffer


class _Again:
    """Whether every iteration of *loop* stores the same elements of *buffer*."""

    def __init__(self, loop: For, buffer: AnyBuffer) -> None:
        self.loop, self.buffer = loop, buffer
        self.changing: set[Var] = {loop.var}
        self.written = writes_of(loop.body)

    def holds(self) -> bool:
        return self._same(self.loop.body)

    def _is_steady(self, *exprs: Expr | None) -> bool:
        """Whether *exprs* have the same value in every iteration."""
        parts = [expr for expr in exprs if expr is not None]
        return not any(variables(part) & self.changing for part in parts) and not (
            reads_of(*parts) & self.written
        )

    def _same(self, stmt: Stmt) -> bool:
        """Whether *stmt* stores the same elements in every iteration."""
        if not any(isinstance(n, Store) and n.buffer is self.buffer for n in statements(stmt)):
            return True
        match stmt:
            case While() | Merge():
                return False
            case Store(indices=indices, mask=mask):
                return self._is_steady(*indices, mask)
            case For(begin=begin, end=end):
                steady = self._is_steady(begin, end)
            case If(cond=cond):
                steady = self._is_steady(cond)
            case Let(value=value):
                steady = True
                if not self._is_steady(value):
                    self.changing.add(stmt.var)
            case Block(where=where):
                self.changing |= {i.var for i in stmt.iters if not self._is_steady(i.value)}
                steady = self._is_steady(where)
            case _:
                steady = True
        parts = (n for n in children(stmt) if isinstance(n, Stmt))
        return steady and all(self._same(part) for part in parts)
