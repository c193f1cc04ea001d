"""In graphs of torch.compile: aggregations along edges become operators of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.node import map_arg

from spcomp.torch.inductor import operators
from spcomp.torch.inductor.cost import Costs
from spcomp.torch.inductor.match import Aggregation, Index, aggregation_of
from spcomp.torch.inductor.shapes import aten, value


@dataclass(frozen=True, slots=True)
class Finding:
    """A *node* of a graph that aggregates: by what it was replaced, or *why* it was not."""

    node: str
    target: str
    by: str | None
    why: str | None

    def __str__(self) -> str:
        what = f"{self.node} ({self.target})"
        return f"{what}: {self.by}" if self.by else f"{what} stays: it {self.why}"


def rewrite(graph: torch.fx.Graph, costs: Costs) -> list[Finding]:
    """Replace the aggregations in *graph*, in place, and return what was found."""
    findings, writer = [], _Writer(graph)
    for node in list(graph.nodes):
        found = aggregation_of(node) if node.op == "call_function" else None
        if found is None:
            continue
        why = found if isinstance(found, str) else costs.decline(found)
        by = None
        if why is None and isinstance(found, Aggregation):
            node.replace_all_uses_with(writer.write(found))
            by = _told(found)
        findings.append(Finding(node.name, str(node.target), by, why))
    if any(finding.by for finding in findings):
        graph.eliminate_dead_code()
    return findings


def _told(found: Aggregation) -> str:
    if found.reduce == "degree":
        return "spcomp_inductor::degree"
    kinds = ("weighted", found.weight), ("gathered", found.source)
    rows = "".join(f"{kind} " for kind, there in kinds if there is not None)
    return f"spcomp_inductor::aggregate, the {found.reduce} of {rows}rows"


@dataclass(slots=True)
class _Writer:
    """Writes nodes to *graph*. *columns*: for a column its vector, and the key of that."""

    graph: torch.fx.Graph
    columns: dict[torch.fx.Node, tuple[torch.fx.Node, torch.fx.Node]] = field(default_factory=dict)

    def write(self, found: Aggregation) -> torch.fx.Node:
        """Return a new node that has the result of the aggregation *found*."""
        with self.graph.inserting_before(found.node):
            steps = _Steps(self.graph, found.node)
            size, *widths = self._sizes(found, steps)
            if found.reduce == "degree":
                return self._counted(found, size, widths, steps)
            vector, key = self._vector(found.index, steps)
            source = (None, None, False)
            if found.source is not None:
                source = (*self._vector(found.source, steps), found.source.wraps)
            adds = "sum" if found.reduce == "mean" else found.reduce
            index = vector, key, size, found.index.wraps
            made = steps.add(operators.aggregate, found.x, found.weight, *index, *source, adds)
            if found.reduce in ("max", "min") and found.includes:  # of zeros: base is None
                made = steps.add(
                    aten.clamp_min.default if adds == "max" else aten.clamp_max.default, made, 0
                )
            if found.base is not None:
                made = steps.add(aten.add.Tensor, found.base, made)
            if found.reduce == "mean":
                made = self._divided(found, made, size, steps)
            return made

    def _counted(
        self, found: Aggregation, size: Any, widths: list[Any], steps: _Steps
    ) -> torch.fx.Node:
        """Return how many elements each place has, in the type and shape of the result."""
        wanted = value(found.node)
        made = self._degree(found, size, steps)
        for dim in range(1, wanted.dim()):
            made = steps.add(aten.unsqueeze.default, made, dim)
        if wanted.dim() > 1:
            made = steps.add(aten.expand.default, made, [size, *widths])
        return made if found.base is None else steps.add(aten.add.Tensor, found.base, made)

    def _divided(
        self, found: Aggregation, made: torch.fx.Node, size: Any, steps: _Steps
    ) -> torch.fx.Node:
        count = self._degree(found, size, steps)
        if found.includes:
            count = steps.add(aten.add.Tensor, count, 1)
        else:
            count = steps.add(aten.clamp_min.default, count, 1)
        for dim in range(1, value(found.node).dim()):
            count = steps.add(aten.unsqueeze.default, count, dim)
        return steps.add(aten.div.Tensor, made, count)

    def _degree(self, found: Aggregation, size: Any, steps: _Steps) -> torch.fx.Node:
        vector, key = self._vector(found.index, steps)
        count = steps.add(operators.degree, vector, key, size, found.index.wraps)
        dtype = value(found.node).dtype
        return steps.add(torch.ops.prims.convert_element_type.default, count, dtype)

    def _vector(self, index: Index, steps: _Steps) -> tuple[torch.fx.Node, torch.fx.Node]:
        """Return the vector that *index* is a column of, and its key."""
        known = self.columns.get(index.node)
        if known is None:
            vector = index.node
            while value(vector).dim() > 1:
                vector = steps.add(aten.select.int, vector, 1, 0)
            known = self.columns[index.node] = vector, steps.add(operators.index_key, vector)
        return known

    def _sizes(self, found: Aggregation, steps: _Steps) -> list[Any]:
        """Return the sizes of the result: numbers, or nodes where they are not known yet."""
        base, shape = found.node.args[0], value(found.node).shape
        if base.target is aten.full.default:
            return list(base.args[0])
        return [
            size if isinstance(size, int) else steps.add(aten.sym_size.int, base, dim)
            for dim, size in enumerate(shape)
        ]


@dataclass(frozen=True, slots=True)
class _Steps:
    """Adds nodes to *graph* in the place of the node *old*."""

    graph: torch.fx.Graph
    old: torch.fx.Node

    def add(self, target: Any, *args: Any) -> torch.fx.Node:
        """Return a new node that calls *target*."""
        made = self.graph.call_function(target, args)
        made.meta = {name: x for name, x in self.old.meta.items() if name != "tensor_meta"}
        with value(self.old).fake_mode:
            made.meta["val"] = target(*map_arg(args, lambda node: node.meta["val"]))
        return made
