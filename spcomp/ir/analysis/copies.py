"""Beside the route: copies of statements, in which everything they bind has a new name."""

from __future__ import annotations

from typing import Any

from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor, Merge
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, Let, Prefix


class Fresh(Rewriter):
    """Copies a statement: every name it binds is new, so that the copy may stand beside it."""

    def __init__(self, names: Names, suffix: str, values: dict[Var, Expr]) -> None:
        self.names, self.suffix, self.values = names, suffix, dict(values)
        self.buffers: dict[object, AnyBuffer] = {}

    def _fresh(self, var: Var) -> Var:
        new = self.names.var(f"{var.name}{self.suffix}", var.dtype)
        self.values[var] = new
        return new

    def visit_Var(self, var: Var) -> Node:
        """Return the value of the variable in the copy."""
        return self.values.get(var, var)

    def visit_For(self, loop: For) -> Node:
        """Copy a loop with what it binds."""
        return self.visit_Let(loop)

    def visit_Let(self, stmt: For | Let | Prefix) -> Node:
        """Copy a let with what it binds, or a running sum."""
        outer = {x: self.rewrite(getattr(stmt, x)) for x in stmt.CHILDREN if x != "body"}
        return stmt.replace(**outer, var=self._fresh(stmt.var), body=self.rewrite(stmt.body))

    visit_Prefix = visit_Let

    def visit_Alloc(self, alloc: Alloc) -> Node:
        """Copy an allocation with its buffer."""
        buffer = self.rewrite(alloc.buffer)
        buffer = buffer.replace(name=self.names.unique(f"{buffer.name}{self.suffix}"))
        self.buffers[alloc.buffer] = buffer
        return alloc.replace(buffer=buffer, body=self.rewrite(alloc.body))

    def visit_Node(self, node: Node) -> Node:
        """Let an access in the copy use the buffer that the copy allocates."""
        new = super().visit_Node(node)
        buffer = self.buffers.get(getattr(node, "buffer", None))
        return new if buffer is None else new.replace(buffer=buffer)

    def visit_Cursor(self, cursor: Cursor) -> Node:
        """Let a cursor in the copy run over the buffer that the copy allocates."""
        new = self.visit_Node(cursor)
        buffer = self.buffers.get(cursor.indices)
        return new if buffer is None else new.replace(indices=buffer)

    def visit_Merge(self, merge: Merge) -> Node:
        """Copy a merge with what it binds."""
        cursors = tuple(map(self.rewrite, merge.cursors))
        coordinate = self._fresh(merge.coordinate)
        cursors = tuple(cursor.replace(pos=self._fresh(cursor.pos)) for cursor in cursors)
        cases: Any = tuple(self.rewrite(case) for case in merge.cases)
        return merge.replace(coordinate=coordinate, cursors=cursors, cases=cases)

    def visit_Block(self, block: Block) -> Node:
        """Copy a block with what it binds."""
        iters: list[Any] = [
            i.replace(extent=self.rewrite(i.extent), value=self.rewrite(i.value))
            for i in block.iters
        ]
        iters = [i.replace(var=self._fresh(i.var)) for i in iters]
        name = self.names.unique(f"{block.name}{self.suffix}")
        changes: dict[str, Any] = {"iters": tuple(iters), "name": name}
        for name in ("init", "body", "where"):
            part = getattr(block, name)
            changes[name] = None if part is None else self.rewrite(part)
        for name in ("reads", "writes"):
            changes[name] = tuple(self.rewrite(region) for region in getattr(block, name))
        return block.replace(**changes)
