"""In graphs of torch.compile: whether aggregations are worth a kernel of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from spcomp.errors import ArgumentError
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

    def __post_init__(self) -> None:
        for name in self.__slots__:
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0:
                raise ArgumentError(f"argument {name}: got {number!r}, expected a number from 0 on")

    def dense(self, node: torch.fx.Node, count: Any, rows: Any) -> str | None:
        """Return why *node* is left to torch if almost all nodes are neighbours, else None.

        *count*: of edges. *rows*: of what is gathered at their other ends, None if nothing is.
        """
        edges, places = hint(count), hint(value(node).shape[0])
        sources = None if rows is None else hint(rows)
        if edges is None or places is None or sources is None:
            return None
        if edges > self.density * places * sources:
            return f"has {edges} edges between {sources} and {places} nodes, which is dense"
        return None

    def small(self, nodes: Sequence[torch.fx.Node], count: Any) -> str | None:
        """Return why *nodes*, which would be one call of ours, are left to torch, else None.

        They aggregate along the same edges, *count* of them. None also if sizes are not known.
        """
        edges, sizes = hint(count), [[hint(n) for n in value(node).shape] for node in nodes]
        if edges is None or any(None in shape for shape in sizes):
            return None
        numbers = [edges * prod(n for n in shape[1:] if n is not None) for shape in sizes]
        theirs = sum(n * self._each(node) for node, n in zip(nodes, numbers, strict=True))
        again = 1 if isinstance(count, int) else self.fresh
        ours = again * (self.call + edges * self.edge) + sum(numbers) * self.element
        return f"is small: {sum(numbers)} numbers" if theirs < ours else None

    def _each(self, node: torch.fx.Node) -> float:
        """Return what torch needs for a number that *node* aggregates."""
        is_atomic = node.target in (aten.index_put.default, aten.index_add.default)
        return self.atomic if is_atomic else self.sorting


USUAL = Costs()
