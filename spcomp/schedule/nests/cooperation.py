"""Under bind: threads that each run a copy fill it together, before they part."""

from __future__ import annotations

from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Redirect
from spcomp.ir.stmt import Alloc, For, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import below, statements, walk
from spcomp.schedule.nests.nests import Fresh, replace_stmt


def shared_by_threads(func: Func, outer: For, inner: For) -> Func | None:
    """Return *func* where the nest of *inner* runs once for all threads of *outer*, or None.

    ``for t in threads: for k: c = copy; s(t, c)  ->  for k: c = copy; for t in threads: s(t, c)``.
    The iterations of *outer* are independent, so what each computes again may be computed once:
    only the nest writes the buffer, and does not know *outer*. Buffers that each iteration has for
    itself get a dimension for the iteration.
    """
    part = _Partition(func, outer, inner)
    body = part.split(outer.body)
    if body is None:
        return None
    return func.replace(body=annotate_regions(replace_stmt(func, outer, body).body))


class _Partition:
    def __init__(self, func: Func, outer: For, inner: For) -> None:
        self.outer, self.inner, self.names = outer, inner, Names(func)
        self.used = False  # whether a loop over the threads has its name

    def split(self, stmt: Stmt) -> Stmt | None:
        """Return *stmt*, the body of a thread, for all threads; None if it cannot be."""
        var = self.outer.var
        if not self._has_inner(stmt):
            return self._each(stmt)
        if var not in _names(stmt):
            return stmt
        match stmt:
            case For(kind="serial" | "unroll") if var not in variables(stmt.begin) | variables(
                stmt.end
            ):
                body = self.split(stmt.body)
                return None if body is None else stmt.replace(body=body)
            case Let() if var not in variables(stmt.value):
                body = self.split(stmt.body)
                return None if body is None else stmt.replace(body=body)
            case Alloc():
                return self._alloc(stmt)
            case Seq():
                parts = [self.split(part) for part in stmt.body]
                return None if None in parts else seq(*parts)
        return None

    def _has_inner(self, stmt: Stmt) -> bool:
        return any(isinstance(n, For) and n.var is self.inner.var for n in statements(stmt))

    def _each(self, stmt: Stmt) -> Stmt:
        """Return *stmt* in a loop over the threads."""
        if not self.used:
            self.used = True
            return self.outer.replace(body=stmt)
        var = self.names.var(self.outer.var.name)
        fresh = Fresh(self.names, "", {self.outer.var: var})
        return self.outer.replace(var=var, body=fresh.rewrite(stmt))

    def _alloc(self, alloc: Alloc) -> Stmt | None:
        """Return *alloc* around all threads: of one buffer if the nest fills it, else of many."""
        once = self._once(alloc.body)
        if once is None:
            return None
        inside = {n.buffer for n in statements(once) if isinstance(n, Store)}
        outside = {
            n.buffer
            for n in statements(alloc.body)
            if isinstance(n, Store) and n not in set(statements(once))
        }
        buffer = alloc.buffer
        if buffer in inside and buffer in outside:
            return None
        if buffer not in inside:
            if not isinstance(buffer, Buffer) or buffer.strides is not None:
                return None
            many = buffer.replace(shape=(self.outer.end, *buffer.shape))
            each = _Each(buffer, many, lambda indices: (self.outer.var, *indices))
            alloc = alloc.replace(buffer=many, body=each.rewrite(alloc.body))
        body = self.split(alloc.body)
        return None if body is None else alloc.replace(body=body)

    def _once(self, stmt: Stmt) -> Stmt | None:
        """Return the largest statement with the inner loop that does not know the thread."""
        if self.outer.var not in _names(stmt):
            return stmt
        for part in below(stmt):
            if isinstance(part, Stmt) and self._has_inner(part):
                return self._once(part)
        return None


def _names(stmt: Stmt) -> set[Node]:
    return {node for node in walk(stmt) if isinstance(node, Var)}


class _Each(Redirect):
    """Replaces a buffer by many, one for each value of a variable."""

    def visit_Block(self, block: Block) -> Node:
        """Regions follow from the accesses."""
        new = self.visit_Node(block.replace(reads=(), writes=()))
        assert isinstance(new, Block)
        return new
