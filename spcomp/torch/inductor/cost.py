"""In graphs of torch.compile: whether an aggregation is worth a kernel of ours."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from spcomp.torch.inductor.match import Aggregation
from spcomp.torch.inductor.shapes import aten, hint, value


@dataclass(frozen=True, slots=True)
class Costs:
    """What an aggregation costs here and there. Times are in nanoseconds, on two threads.

    *density*: at most so many edges for each pair of nodes (the degree of sparsity of the RFC).
    *call*: a call of our operator. *edge*, *element*: what we need for an edge, and for a number of
    its row. *atomic*: for such a number, ``index_put`` and ``index_add`` of inductor. *sorting*:
    the ``scatter`` functions of ATen, which sort the index in each call.
    """

    density: float = 0.05
    call: float = 40_000
    edge: float = 0.5
    element: float = 0.03
    atomic: float = 2.5
    sorting: float = 0.6

    def decline(self, found: Aggregation) -> str | None:
        """Return why *found* is left to torch; None: it is not, or sizes are not known."""
        made, index = value(found.node), value(found.index.node)
        edges, places = hint(index.shape[0]), hint(made.shape[0])
        width = [hint(size) for size in made.shape[1:]]
        if edges is None or places is None or None in width:
            return None
        numbers = edges * prod(size for size in width if size is not None)
        if found.source is not None:
            rows = hint(value(found.x).shape[0])
            if rows is not None and edges > self.density * places * rows:
                return f"has {edges} edges between {rows} and {places} nodes, which is dense"
        is_atomic = found.node.target in (aten.index_put.default, aten.index_add.default)
        theirs = numbers * (self.atomic if is_atomic else self.sorting)
        if theirs < self.call + edges * self.edge + numbers * self.element:
            return f"is small: {numbers} numbers"
        return None


USUAL = Costs()
