"""Names for what a pass introduces: unique in a function, as close to the wish as can be."""

from __future__ import annotations

from collections.abc import Iterator

from spcomp.dtypes import DType, int64
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import Var
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.stmt import Func
from spcomp.ir.visitor import gathered


class Names:
    """The names taken in a function."""

    def __init__(self, func: Func) -> None:
        self._taken = {p.name for p in func.params} | {a.name for a in func.axes}
        self._taken |= {b.name for b in func.buffers} | {func.name}
        self._taken.update(_names(func.body))

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


@gathered
def _names(node: Node) -> Iterator[str]:
    """Yield the names that the statement *node* alone gives or uses."""
    if isinstance(node, SpIter):  # its coordinates are gone when loops have names
        return
    for name in node.BINDERS:
        bound = getattr(node, name)
        for var in bound if isinstance(bound, tuple) else (bound,):
            yield var.name
    if isinstance(node, Block):
        yield node.name
    if (buffer := getattr(node, "buffer", None)) is not None:
        yield buffer.name
