"""Names for what a pass introduces: unique in a function, as close to the wish as can be."""

from __future__ import annotations

from spcomp.dtypes import DType, int64
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.stmt import Func
from spcomp.ir.visitor import statements


class Names:
    """The names taken in a function."""

    def __init__(self, func: Func) -> None:
        self._taken = {p.name for p in func.params} | {a.name for a in func.axes}
        self._taken |= {b.name for b in func.buffers} | {func.name}
        for node in statements(func.body):
            self._take(node)

    def _take(self, node: Node) -> None:
        if isinstance(node, SpIter):  # its coordinates are gone when loops have names
            return
        for name in node.BINDERS:
            bound = getattr(node, name)
            for var in bound if isinstance(bound, tuple) else (bound,):
                self._taken.add(var.name)
        if isinstance(node, Block):
            self._taken.add(node.name)
        if (buffer := getattr(node, "buffer", None)) is not None:
            self._taken.add(buffer.name)

    def unique(self, wish: str) -> str:
        """Return *wish*, or *wish* with the first number that is free; the name is then taken."""
        name, count = wish, 0
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        return name

    def var(self, wish: str, dtype: DType = int64) -> Var:
        """Return a new variable named after *wish*."""
        return Var(self.unique(wish), dtype)
