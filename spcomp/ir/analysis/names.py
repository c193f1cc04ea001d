"""Beside the route: names for what passes introduce: unique, as close to the wish as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TypeVar

from spcomp.dtypes import DType, int64
from spcomp.ir.axis import Buffer, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For
from spcomp.ir.visitor import collector

F = TypeVar("F", bound=Func)


class Names:
    """The names taken in a function."""

    def __init__(self, func: Func) -> None:
        self._taken = {p.name for p in func.params} | {a.name for a in func.axes}
        self._taken |= {b.name for b in func.buffers} | {func.name}
        self._taken.update(_names(func.body))

    def unique(self, wish: str) -> str:
        """Take the name *wish*, or *wish* with the first free number, and return it."""
        name, count = wish, 0
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        return name

    def var(self, wish: str, dtype: DType = int64) -> Var:
        """Return a new variable named after *wish*."""
        return Var(self.unique(wish), dtype)


@collector
def _names(node: Node) -> Iterator[str]:
    """Yield the names that the statement *node* itself gives or uses, not those inside it."""
    if isinstance(node, SpIter):  # its coordinates are gone once loops have names
        return
    for name in node.BINDERS:
        bound = getattr(node, name)
        for var in bound if isinstance(bound, tuple) else (bound,):
            yield var.name
    if isinstance(node, Block):
        yield node.name
    if (buffer := getattr(node, "buffer", None)) is not None:
        yield buffer.name


def distinct(func: F) -> F:
    """Return *func*, in position space, with a distinct name for all that steps call by name.

    Loops, blocks, merges or local buffers of the same name each get a number, in the order of the
    program, so that the name they shared means none of them.
    """
    counts = (
        Counter(_names_for_steps(func.body)) if isinstance(func, PosFunc) else Counter[object]()
    )
    if len(counts) == counts.total():
        return func
    repeated = {name for name, count in counts.items() if count > 1}
    return func.replace(body=_Distinct(Names(func), repeated).rewrite(func.body))


class _Distinct(Rewriter):
    """Numbers the names in *repeated*, which are pairs of a kind of node and a name."""

    def __init__(self, names: Names, repeated: Collection[object]) -> None:
        self.names, self.repeated = names, repeated
        self.values: dict[Var, Var] = {}

    def _unique(self, kind: type[Node], name: str) -> str:
        return self.names.unique(name) if (kind, name) in self.repeated else name

    def _rename(self, kind: type[Node], var: Var) -> Var:
        name = self._unique(kind, var.name)
        self.values[var] = var if name == var.name else var.replace(name=name)
        return self.values[var]

    def visit_Var(self, var: Var) -> Node:
        """Return the variable under its new name."""
        return self.values.get(var, var)

    def visit_For(self, loop: For) -> Node:
        """Name a loop."""
        var = self._rename(For, loop.var)
        return self.visit_Node(loop if var is loop.var else loop.replace(var=var))

    def visit_Merge(self, merge: Merge) -> Node:
        """Name a merge."""
        var = self._rename(Merge, merge.coordinate)
        same = var is merge.coordinate
        return self.visit_Node(merge if same else merge.replace(coordinate=var))

    def visit_Block(self, block: Block) -> Node:
        """Name a block."""
        name = self._unique(Block, block.name)
        return self.visit_Node(block if name == block.name else block.replace(name=name))

    def visit_Buffer(self, buffer: Buffer) -> Node:
        """Name a local buffer."""
        return self._local(buffer)

    def visit_SparseBuffer(self, buffer: SparseBuffer) -> Node:
        """Name a local buffer."""
        return self._local(buffer)

    def _local(self, buffer: Buffer | SparseBuffer) -> Node:
        name = self._unique(Alloc, buffer.name)
        return self.visit_Node(buffer if name == buffer.name else buffer.replace(name=name))


@collector
def _names_for_steps(node: Node) -> Iterator[tuple[type[Node], str]]:
    """Yield the kind of the statement *node* itself, and the name by which steps call it."""
    match node:
        case For(var=var) | Merge(coordinate=var):
            yield type(node), var.name
        case Block(name=name):
            yield Block, name
        case Alloc(buffer=buffer):
            yield Alloc, buffer.name
