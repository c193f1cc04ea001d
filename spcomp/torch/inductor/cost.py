"""In graphs of torch.compile: whether an aggregation is worth a kernel of ours."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from spcomp.torch.inductor.shapes import aten, hint, value


@dataclass(frozen=True, slots=True)
class Costs:
    """What an aggregation costs here and there. Times are in nanoseconds, on two threads.

    *density*: at most so many edges for each pair of nodes (the degree of sparsity of the RFC).
    *call*: a call of our operator. *edge*, *element*: what we need for an edge, and for a number of
    its row. *atomic*: for such a number, ``index_put`` and ``index_add`` of inductor. *sorting*:
    the ``scatter`` functions of ATen, which sort the index in each call. *fresh*: how many times as
    long calls and edges take where edges are new in each call, and sorted there: where their number
    is not fixed, as in mini-batches.
    """

    density: float = 0.05
    call: float = 40_000
    edge: float = 0.5
    element: float = 0.03
    atomic: float = 2.5
    sorting: float = 0.6
    fresh: float = 12

    def decline(self, node: torch.fx.Node, count: Any, rows: Any) -> str | None:
        """Return why *node* is left to torch; None: it is not, or sizes are not known.

        *count*: of edges. *rows*: of what is gathered at their other ends, None if nothing is.
        """
        made = value(node)
        edges, places = hint(count), hint(made.shape[0])
        width = [hint(size) for size in made.shape[1:]]
        if edges is None or places is None or None in width:
            return None
        numbers = edges * prod(size for size in width if size is not None)
        sources = None if rows is None else hint(rows)
        if sources is not None and edges > self.density * places * sources:
            return f"has {edges} edges between {sources} and {places} nodes, which is dense"
        is_atomic = node.target in (aten.index_put.default, aten.index_add.default)
        theirs = numbers * (self.atomic if is_atomic else self.sorting)
        again = 1 if isinstance(count, int) else self.fresh
        if theirs < again * (self.call + edges * self.edge) + numbers * self.element:
            return f"is small: {numbers} numbers"
        return None


USUAL = Costs()
