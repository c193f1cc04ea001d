"""In graphs of torch.compile: aggregations along edges become operators of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem, or_
from typing import Any

import torch
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx.node import map_arg

from spcomp.torch.inductor import operators
from spcomp.torch.inductor.cost import Costs
from spcomp.torch.inductor.emit import script
from spcomp.torch.inductor.match import Aggregation, Index, aggregation_of, gathered
from spcomp.torch.inductor.pointwise import compared, roundings_of
from spcomp.torch.inductor.program import Program
from spcomp.torch.inductor.regions import Region, Regions
from spcomp.torch.inductor.shapes import aten, hint, identity, unviewed_node, value


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
    every = {n: found for n in graph.nodes if (found := aggregation_of(n)) is not None}
    apart = frozenset(_apart(graph) if every else ())
    writer, regions, told = _Writer(graph), Regions.of(graph), dict[torch.fx.Node, str]()
    left = {node: found for node, found in every.items() if isinstance(found, str)}
    for node, found in every.items():
        if isinstance(found, str):
            continue
        alone = _program(found, apart)
        count = value(found.index.node).shape[0]
        why = costs.dense(node, count, alone.rows if alone else None)
        if alone is None:
            why = why or costs.small([node], count)
        elif not alone.inputs:
            why = "reduces one number"
        if why is not None:
            left[node] = why
        elif alone is None:
            told[node] = "degrees"
            writer.degree(found)
        else:
            told[node] = f"the {found.reduce} of {_told(found, alone)}"
            regions.add(found, alone)
    for number, region in enumerate(regions.finished(costs, left), start=1):
        writer.region(region)
        for found in region.found:
            told[found.node] = f"program {number}, {told[found.node]}"
    findings = [
        Finding(node.name, str(node.target), None if node in left else told[node], left.get(node))
        for node in every
    ]
    if any(finding.by for finding in findings):
        stable_topological_sort(graph)
        graph.eliminate_dead_code()
    return findings


def _apart(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Yield what is compared with a number made of it, such as its maximum.

    Computed twice, it might be rounded differently, and no longer be the maximum.
    """
    roundings: dict[torch.fx.Node, int] = {}
    sources: dict[torch.fx.Node, int] = {}  # a bit for each node whose bits may differ
    for at, node in enumerate(graph.nodes):
        roundings[node] = roundings_of(node, roundings)
        own = 0 if roundings[node] < 2 else 1 << at
        sources[node] = reduce(or_, (sources[n] for n in node.all_input_nodes), own)
        sides = compared(node)
        if len(sides) == 2 and sources[sides[0]] & sources[sides[1]]:
            yield from (side for side in map(_computed, sides) if roundings[side] > 1)


def _computed(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node of which *node* gathers rows, or shows them in another shape."""
    while True:
        inner = unviewed_node(node)
        found = gathered(inner)
        if found is None:
            return inner
        node = found[0]


def _program(found: Aggregation, apart: frozenset[torch.fx.Node]) -> Program | None:
    return None if found.reduce == "degree" else Program.of(found, apart)


def _told(found: Aggregation, program: Program) -> str:
    """Return what rows *program*, of *found* alone, reduces."""
    if program.source is None:
        return "rows"
    return "gathered rows" if gathered(found.message) else "rows computed of gathered ones"


@dataclass(slots=True)
class _Writer:
    """Writes nodes to *graph*. *vectors*: each vector and its key, by identity."""

    graph: torch.fx.Graph
    vectors: dict[Any, tuple[torch.fx.Node, torch.fx.Node]] = field(default_factory=dict)
    _new: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)  # by the old one

    def degree(self, found: Aggregation) -> None:
        """Replace *found*, which counts."""
        with self.graph.inserting_before(found.node):
            steps = _Steps(self.graph, found.node)
            size, *widths = self._sizes(found, steps)
            self._replace(found.node, self._counted(found, size, widths, steps), steps)

    def region(self, region: Region) -> None:
        """Replace the aggregations of *region*."""
        program, last = region.program, region.found[-1].node
        with self.graph.inserting_before(last):
            steps = _Steps(self.graph, last)
            shapes = [self._sizes(region.like(found) or found, steps) for found in region.found]
            widths = [shape[1:] for shape in shapes]
            widths += [list(buffer.sizes) for buffer in program.stored.values()]
            source = None, None, 0, False
            if program.source is not None:
                rows = program.rows
                if not isinstance(rows, int):
                    at = next(node for lead, node in program.inputs if lead == "N")
                    rows = steps.size(self._new.get(at, at), 0)
                source = (*self._vector(program.source, steps), rows, program.source.wraps)
            made = steps.add(
                operators.AGGREGATE,
                [self._new.get(node, node) for _, node in program.inputs],
                *self._vector(program.index, steps),
                shapes[0][0],
                program.index.wraps,
                *source,
                [n for width in widths for n in width],
                [len(width) for width in widths],
                "".join("01"[program.results[region.ends[f.node]].filled] for f in region.found),
                script(program),
            )
            for at, (found, shape) in enumerate(zip(region.found, shapes, strict=True)):
                one = _Steps(self.graph, found.node)
                result = self._finished(found, one.add(getitem, made, at), shape[0], one)
                self._replace(region.ends[found.node], result, one)

    def _replace(self, old: torch.fx.Node, new: torch.fx.Node, steps: _Steps) -> None:
        """Replace *old* by *new*, in the order in memory that views of *old* rely on."""
        wanted, strides = ([hint(n) or 0 for n in value(x).stride()] for x in (old, new))
        if strides != wanted:
            order = sorted(range(len(wanted)), key=lambda dim: -wanted[dim])
            outer = steps.add(aten.permute.default, new, order)
            copied = steps.add(aten.clone.default, outer, memory_format=torch.contiguous_format)
            new = steps.add(aten.permute.default, copied, [order.index(d) for d in sorted(order)])
        old.replace_all_uses_with(new)
        self._new[old] = new

    def _finished(
        self, found: Aggregation, made: torch.fx.Node, size: Any, steps: _Steps
    ) -> torch.fx.Node:
        """Return the result of *found*, where *made* reduces the rows alone."""
        base, adds = found.base, found.reduce in ("sum", "mean")
        if found.includes and adds and base is not None:
            made = steps.add(aten.add.Tensor, base, made)
        elif found.includes and not adds:
            both = aten.maximum if found.reduce == "max" else aten.minimum
            clamp = aten.clamp_min if found.reduce == "max" else aten.clamp_max
            step = (clamp.default, made, 0) if base is None else (both.default, base, made)
            made = steps.add(*step)
        if found.reduce == "mean":
            made = self._divided(found, made, size, steps)
        if base is None or (found.includes and adds):
            return made
        count = self._broadcast(found, self._degree(found, size, steps), steps)
        has_rows = steps.add(aten.gt.Scalar, count, 0)
        return steps.add(aten.where.self, has_rows, made, base)

    def _counted(
        self, found: Aggregation, size: Any, widths: list[Any], steps: _Steps
    ) -> torch.fx.Node:
        """Return how many elements each place has, in the type and shape of the result."""
        wanted = value(found.node)
        made = self._broadcast(found, self._degree(found, size, steps), steps)
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
        return steps.add(aten.div.Tensor, made, self._broadcast(found, count, steps))

    def _broadcast(self, found: Aggregation, count: torch.fx.Node, steps: _Steps) -> torch.fx.Node:
        """Return *count*, a number for each place, with a dimension for each of the result."""
        for dim in range(1, value(found.node).dim()):
            count = steps.add(aten.unsqueeze.default, count, dim)
        return count

    def _degree(self, found: Aggregation, size: Any, steps: _Steps) -> torch.fx.Node:
        vector, key = self._vector(found.index, steps)
        count = steps.add(operators.DEGREE, vector, key, size, found.index.wraps)
        dtype = value(found.node).dtype
        return steps.add(torch.ops.prims.convert_element_type.default, count, dtype)

    def _vector(self, index: Index, steps: _Steps) -> tuple[torch.fx.Node, torch.fx.Node]:
        """Return the vector that *index* is a column of, and its key."""
        name = identity(index.node)
        known = self.vectors.get(name)
        if known is None:
            vector = index.node
            while value(vector).dim() > 1:
                vector = steps.add(aten.select.int, vector, 1, 0)
            key = steps.add(operators.INDEX_KEY, vector)
            key.meta.pop("recompute", None)  # torch.utils.checkpoint may keep one number
            known = self.vectors[name] = vector, key
        return known

    def _sizes(self, found: Aggregation, steps: _Steps) -> list[Any]:
        """Return the sizes of the result: numbers, or nodes where they are not known yet."""
        base, shape = found.node.args[0], value(found.node).shape
        if base.target is aten.full.default:
            return list(base.args[0])
        return [
            size if isinstance(size, int) else steps.size(base, dim)
            for dim, size in enumerate(shape)
        ]


@dataclass(frozen=True, slots=True)
class _Steps:
    """Adds nodes to *graph* in the place of the node *old*."""

    graph: torch.fx.Graph
    old: torch.fx.Node

    def add(self, target: Any, *args: Any, **named: Any) -> torch.fx.Node:
        """Return a new node that calls *target*; none of the arguments *named* is a node."""
        made = self.graph.call_function(target, args, named)
        made.meta = {name: x for name, x in self.old.meta.items() if name != "tensor_meta"}
        with value(self.old).fake_mode:
            made.meta["val"] = target(*map_arg(args, lambda node: node.meta["val"]), **named)
        return made

    def size(self, of: torch.fx.Node, dim: int) -> Any:
        """Return how long *of* is along *dim*: a node, or the number, once that is known."""
        made = self.add(aten.sym_size.int, of, dim)
        return made.meta["val"] if isinstance(made.meta["val"], int) else made
