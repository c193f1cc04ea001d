"""Which memory expressions read and statements write, and what keeps its value meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from spcomp.ir.access import Load, Search
from spcomp.ir.axis import AnyBuffer, memory_of
from spcomp.ir.expr import Expr
from spcomp.ir.node import Node
from spcomp.ir.position import Cursor
from spcomp.ir.stmt import Store
from spcomp.ir.visitor import statements, walk


def read_by(*nodes: Node) -> Iterator[AnyBuffer]:
    """Yield the buffers that *nodes* load from, search or merge."""
    for node in (n for top in nodes for n in walk(top)):
        if isinstance(node, (Load, Search)):
            yield node.buffer
        elif isinstance(node, Cursor) and node.indices is not None:
            yield node.indices


def reads_of(*nodes: Node) -> set[object]:
    """Return the memory that *nodes* read."""
    return set(map(memory_of, read_by(*nodes)))


def writes_of(node: Node) -> set[object]:
    """Return the memory that *node* writes."""
    return {memory_of(n.buffer) for n in statements(node) if isinstance(n, Store)}


def are_constant(exprs: tuple[Expr, ...], body: Node) -> bool:
    """Whether *exprs* keep their values while *body* runs: it writes nothing that they read."""
    read = reads_of(*exprs)
    return not read or read.isdisjoint(writes_of(body))
