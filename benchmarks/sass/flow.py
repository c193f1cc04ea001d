"""Basic blocks of a listing, natural loops, and the way round them that does the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import networkx as nx

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.sass.listing import Instruction, Listing

Work: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: its header and all its blocks, by their first addresses."""

    header: int
    blocks: frozenset[int]


@dataclass(frozen=True, slots=True)
class Flow:
    """The graph of blocks that can be reached. Nodes are addresses with their ``code``.

    Copies of code for warps whose lanes have parted are left out: the way there is for shuffles
    whose lanes are not together, which does not happen where the code is right.
    """

    graph: Any
    entry: int
    loops: tuple[Loop, ...]

    @property
    def innermost(self) -> tuple[Loop, ...]:
        """The loops that have no loop inside."""
        return tuple(
            loop for loop in self.loops if not any(o.blocks < loop.blocks for o in self.loops)
        )

    def code(self, block: int) -> tuple[Instruction, ...]:
        """Return the instructions of a block."""
        return tuple(self.graph.nodes[block]["code"])

    def way(self, loop: Loop | None) -> tuple[Instruction, ...]:
        """Return the trip round *loop*, or through the kernel, that does most work.

        That is multiply-adds, or where there are none, other operations on floats. Of trips with as
        much work it is the one with the fewest instructions: without the code for what is left
        over, for instance.
        """
        inside = loop.blocks if loop else frozenset(self.graph)
        start = loop.header if loop else self.entry
        part = nx.DiGraph(self.graph.subgraph(inside))
        exits = [n for n in part if not self.graph.out_degree(n)]
        ends = [n for n in part if part.has_edge(n, start)] if loop else exits
        part.remove_edges_from([(n, o.header) for o in self.loops for n in o.blocks])
        best: dict[int, tuple[tuple[Work, int], tuple[int, ...]]] = {}
        for node in nx.topological_sort(part):
            before = [best[p] for p in part.predecessors(node) if p in best]
            if node != start and not before:
                continue
            nothing: tuple[tuple[Work, int], tuple[int, ...]] = (((0, 0), 0), ())
            ((products, floats), cost), path = max(before, default=nothing, key=_rank)
            code = self.code(node)
            more = work(code)
            done = products + more[0], floats + more[1]
            best[node] = ((done, cost - len(code)), (*path, node))
        found = [best[n] for n in ends if n in best]
        path = max(found, key=_rank)[1] if found else ()
        return tuple(instruction for block in path for instruction in self.code(block))


def _rank(way: tuple[tuple[Work, int], tuple[int, ...]]) -> tuple[int, int, int]:
    """Return what a *way* is compared by: more is better."""
    ((products, floats), cost), _ = way
    return products, 0 if products else floats, cost


def work(code: Iterable[Instruction]) -> Work:
    """Return the multiply-adds and the other operations on floats in *code*."""
    found = tuple(code)
    return sum(i.multiply_adds for i in found), sum(i.kind == "float" for i in found)


def flow(listing: Listing) -> Flow:
    """Return the blocks and loops of *listing*."""
    entry = listing.instructions[0].address
    graph = _graph(listing)
    graph = graph.subgraph({entry} | nx.descendants(graph, entry)).copy()
    return Flow(graph, entry, _loops(graph, entry))


def _graph(listing: Listing) -> Any:
    code = listing.instructions
    leaders = {code[0].address}
    for at, instruction in enumerate(code):
        leaders.update(listing.targets(instruction))
        if instruction.ends_block and at + 1 < len(code):
            leaders.add(code[at + 1].address)
    blocks: dict[int, list[Instruction]] = {}
    for instruction in code:
        if instruction.address in leaders:
            own = blocks[instruction.address] = []
        own.append(instruction)
    graph = nx.DiGraph()
    for address, own in blocks.items():
        graph.add_node(address, code=tuple(own))
    firsts = list(blocks)
    for at, (address, own) in enumerate(blocks.items()):
        last = own[-1]
        if last.falls_through and at + 1 < len(firsts):
            graph.add_edge(address, firsts[at + 1])
        if not last.is_divergence:
            graph.add_edges_from((address, to) for to in listing.targets(last) if to in blocks)
    return graph


def _loops(graph: Any, entry: int) -> tuple[Loop, ...]:
    """Back edges go to blocks that dominate their sources; a loop is what reaches the source."""
    above = {n: d for n, d in nx.immediate_dominators(graph, entry).items() if n != d}
    found: dict[int, set[int]] = {}
    for source, header in graph.edges:
        dominator: int | None = source
        while dominator is not None and dominator != header:
            dominator = above.get(dominator)
        if dominator == header:
            rest = graph.subgraph(set(graph) - {header})
            body = {source} | (nx.ancestors(rest, source) if source != header else set())
            found.setdefault(header, {header}).update(body)
    return tuple(Loop(header, frozenset(blocks)) for header, blocks in sorted(found.items()))
