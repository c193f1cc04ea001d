"""In graphs of torch.compile: which aggregations run as one program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from spcomp.torch.inductor.cost import Costs
from spcomp.torch.inductor.match import Aggregation
from spcomp.torch.inductor.program import Program
from spcomp.torch.inductor.shapes import identity, same, value


@dataclass(slots=True)
class Region:
    """Aggregations that run as one *program*. *ends*: what it computes in the place of each."""

    program: Program
    found: list[Aggregation]
    ends: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)

    def like(self, found: Aggregation) -> Aggregation | None:
        """Return the first aggregation whose result has the shape of that of *found*."""
        shape = value(found.node).shape
        return next((f for f in self.found if same(value(f.node).shape, shape)), None)


@dataclass(slots=True)
class Regions:
    """The regions of a graph. *backward*: nodes that need gradients of its results.

    An aggregation joins the last region with its vector of places unless it needs a result of that
    in another way than row by row, or one of the two belongs to the backward pass, or to what
    ``torch.utils.checkpoint`` computes again there.
    """

    backward: frozenset[torch.fx.Node]
    made: list[Region] = field(default_factory=list)
    _of: dict[torch.fx.Node, Region] = field(default_factory=dict)
    _last: dict[Any, Region] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: torch.fx.Graph) -> Regions:
        """Return no regions of *graph* yet."""
        up = [n for n in graph.nodes if n.op == "placeholder" and "tangents" in str(n.target)]
        return cls(_below(up, {}))

    def add(self, found: Aggregation, alone: Program) -> None:
        """Add *found*, with the program *alone* if none shares it."""
        key = identity(found.index.node), found.node in self.backward, checkpoint(found.node)
        region = self._last.get(key)
        if region is not None:
            after = _below([other.node for other in region.found], self._of)
            program = region.program.joined(found, after)
            if program is not None and _has_sizes(found, region, after):
                region.program = program
                region.found.append(found)
                self._of[found.node] = region
                return
        region = self._last[key] = self._of[found.node] = Region(alone, [found])
        self.made.append(region)

    def finished(self, costs: Costs, left: dict[torch.fx.Node, str]) -> list[Region]:
        """Return the regions that pay, to *left* add the nodes of others, and why they do not.

        Each program also computes what alone is made of a sum, such as that with a bias.
        """
        for region in self.made:
            nodes = [found.node for found in region.found]
            if (why := costs.small(nodes, region.program.count)) is not None:
                left.update(dict.fromkeys(nodes, why))
        self._of = {node: region for node, region in self._of.items() if node not in left}
        self.made = [region for region in self.made if region.found[0].node not in left]
        for region in self.made:
            for found in region.found:
                region.ends[found.node] = end = found.node
                while found.reduce == "sum" and (user := self._finished(region, end)):
                    region.ends[found.node] = end = user
        return self.made

    def _finished(self, region: Region, end: torch.fx.Node) -> torch.fx.Node | None:
        """Return what alone uses the result *end*, if the program computes it now."""
        if len(end.users) != 1:
            return None
        (user,) = end.users
        if (user in self.backward) != (end in self.backward) or checkpoint(user) != checkpoint(end):
            return None
        after = _below([found.node for found in region.found], self._of)
        if not region.program.finished(end, user, after):
            return None
        self._of[user] = region  # what it needs, all of the region needs
        return user


def checkpoint(node: torch.fx.Node) -> tuple[Any, Any]:
    """Return what ``torch.utils.checkpoint`` asks for *node*, and in which call.

    The partitioner cannot save the list of results of a program, only each of them. Either all are
    computed again or none.
    """
    return node.meta.get("recompute"), node.meta.get("ac_graph_id")


def _has_sizes(found: Aggregation, region: Region, after: frozenset[torch.fx.Node]) -> bool:
    """Whether the sizes of the result of *found* are known before the program of *region* runs."""
    are_fixed = all(isinstance(size, int) for size in value(found.node).shape)
    return are_fixed or found.node.args[0] not in after or region.like(found) is not None


def _below(
    nodes: list[torch.fx.Node], regions: dict[torch.fx.Node, Region]
) -> frozenset[torch.fx.Node]:
    """Return *nodes* and all that need them, where a region needs all its inputs at once."""
    seen: set[torch.fx.Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        left += node.users
        if node in regions:
            left += [found.node for found in regions[node].found]
    return frozenset(seen)
