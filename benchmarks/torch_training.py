"""Graph networks are trained: our backend, inductor and eager side by side, a step of each in turn.

``python -m benchmarks.torch_training``: five kinds of layers on Cora (where it is found) and on a
graph of arxiv's size that is drawn; a picture of the loss over time, and a table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sps
import torch
from torch.nn.functional import cross_entropy

from benchmarks.machine import describe
from benchmarks.torch import add_page, publish
from benchmarks.torch_models import Network

Tensor = torch.Tensor
DATA = Path(__file__).parents[2] / "shared" / "data"
TOOLS = {"spcomp": "#2a7f62", "inductor": "#c8553d", "eager": "#555577"}
MOST = 10  # neighbours of a node that a sample has


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph, and what is learned: *edges* (2, count), *x* (nodes, features), and *labels*.

    *seen*: the nodes whose labels are used. *batch*: how many of them a sample begins with.
    """

    name: str
    edges: Tensor
    x: Tensor
    labels: Tensor
    seen: Tensor
    batch: int


def cora() -> Graph:
    """Return Cora with the labels of 1,208 nodes; raises FileNotFoundError without the files."""
    matrix = scipy.io.mmread(DATA / "cora.mtx").tocoo()
    kept = np.load(DATA / "cora_features.npz")
    parts = kept["data"], kept["indices"], kept["indptr"]
    x = sps.csr_array(parts, shape=tuple(kept["shape"])).toarray()
    edges = torch.from_numpy(np.stack([matrix.col, matrix.row]).astype(np.int64))
    labels = torch.from_numpy(kept["labels"].astype(np.int64))
    others = np.setdiff1d(np.arange(len(x)), np.concatenate([kept["val"], kept["test"]]))
    return Graph("Cora", edges, torch.from_numpy(x), labels, torch.from_numpy(others), 256)


def drawn(nodes: int, count: int, classes: int = 40, features: int = 128) -> Graph:
    """Return a graph in which four of five edges stay in a class, which features hint at."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=nodes)
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], np.arange(classes + 1))
    start = rng.integers(nodes, size=count)
    low, high = first[labels[start]], first[labels[start] + 1]
    near = order[rng.integers(low, high)]
    end = np.where(rng.random(count) < 0.8, near, rng.integers(nodes, size=count))
    x = rng.standard_normal((nodes, features), np.float32)
    x[np.arange(nodes), labels] += 1
    edges = torch.from_numpy(np.stack([start, end]))
    every = torch.arange(nodes)
    return Graph(
        "arxiv's size",
        edges,
        torch.from_numpy(x),
        torch.from_numpy(labels),
        every,
        min(4096, nodes // 4),
    )


def whole(graph: Graph, _: Any) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Return the arguments of a network on all of *graph*, where it is asked, and the answers."""
    weight = torch.full((graph.edges.shape[1],), len(graph.x) / graph.edges.shape[1])
    return (graph.x, graph.edges, weight), graph.seen, graph.labels[graph.seen]


def sampled(graph: Graph, rng: np.random.Generator) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Return the same for some nodes: what two layers see of them, :data:`MOST` edges to a node."""
    source, target = graph.edges.numpy()
    order = np.argsort(target, kind="stable")
    first = np.searchsorted(target[order], np.arange(len(graph.x) + 1))
    roots = rng.choice(graph.seen.numpy(), graph.batch, replace=False)
    nodes, found = roots, []
    for _ in range(2):
        degree = first[nodes + 1] - first[nodes]
        draws = (rng.random((len(nodes), MOST)) * degree[:, None]).astype(np.int64)
        has = np.arange(MOST) < degree[:, None]
        at = order[(first[nodes][:, None] + draws)[has]]
        found.append(np.stack([source[at], np.repeat(nodes, has.sum(1))]))
        nodes = np.unique(found[-1][0])
    edges = np.concatenate(found, axis=1)
    every = np.concatenate([roots, np.setdiff1d(edges, roots)])
    number = np.empty(len(graph.x), np.int64)
    number[every] = np.arange(len(every))
    args = graph.x[every], torch.from_numpy(number[edges]), torch.ones(edges.shape[1])
    return args, torch.arange(len(roots)), graph.labels[roots]


Take = Callable[[Graph, np.random.Generator], tuple[tuple[Tensor, ...], Tensor, Tensor]]
KINDS: dict[str, tuple[str, Take]] = {
    "GCN": ("GCN", whole),
    "SAGE, sampled": ("SAGE", sampled),
    "GIN": ("GIN", whole),
    "GAT": ("GAT", whole),
    "RGCN": ("RGCN", whole),
}


@dataclass(slots=True)
class Course:
    """How a training went: the loss before each step, and the seconds that the step took."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def warm(self) -> float:
        """The median of a step after those that compile."""
        return float(np.median(self.seconds[3:]))


def courses(kind: str, graph: Graph, hidden: int, steps: int) -> dict[str, Course]:
    """Return for each tool how a network of a *kind* is trained."""
    layer, take = KINDS[kind]
    torch.compiler.reset()
    torch.manual_seed(1)
    sizes = graph.x.shape[1], hidden, int(graph.labels.max()) + 1
    state = Network(layer, *sizes).state_dict()
    tools, rng, found = {}, np.random.default_rng(0), {tool: Course() for tool in TOOLS}
    for tool in TOOLS:
        model = Network(layer, *sizes)
        model.load_state_dict(state)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=True)
        tools[tool] = model if tool == "eager" else torch.compile(model, backend=tool), optimizer
    for _ in range(steps):
        args, at, wanted = take(graph, rng)
        for tool, (call, optimizer) in tools.items():
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = cross_entropy(call(*args)[at], wanted)
            loss.backward()
            optimizer.step()
            found[tool].seconds.append(time.perf_counter() - begin)
            found[tool].losses.append(float(loss.detach()))
    return found


Found = dict[tuple[str, str], dict[str, Course]]  # by graph and kind


def draw(found: Found, path: Path) -> None:
    """Write a picture to *path*: for each training the loss over the seconds of warm steps."""
    from matplotlib.figure import Figure

    graphs, kinds = ([*dict.fromkeys(key[n] for key in found)] for n in (0, 1))
    figure = Figure(figsize=(3 * len(kinds), 2.7 * len(graphs)), layout="constrained")
    grid = figure.subplots(len(graphs), len(kinds), squeeze=False)
    for (graph, kind), trained in found.items():
        axes = grid[graphs.index(graph)][kinds.index(kind)]
        for tool, course in trained.items():
            at = course.warm * np.arange(len(course.losses))
            axes.plot(at, course.losses, color=TOOLS[tool], label=tool)
        axes.set_title(f"{kind}, {graph}", fontsize=9)
        axes.set_xlabel("seconds", fontsize=8)
        axes.set_ylabel("cross entropy", fontsize=8)
        axes.tick_params(labelsize=7)
    grid[0][0].legend(fontsize=8)
    figure.savefig(path)


def table(found: Found, steps: int, hidden: int, note: str) -> str:
    """Return what was *found* as a page of Markdown."""
    where = describe(2)
    head = (
        "# Training graph networks\n\n"
        f"`python -m benchmarks.torch_training`, {where['date'][:10]}, {where['cpu']},"
        f" {where['threads']} threads. {note}\n\n"
        f"{steps} steps of Adam in turns, {hidden} inner features, float32. Times are medians of a"
        " step after the first three, which compile. *apart*: the largest difference between our"
        " losses and eager's, in parts of the first.\n\n"
        "| network | spcomp, ms | inductor, ms | eager, ms | inductor / spcomp | eager / spcomp"
        " | loss, first and last | apart |\n|---|---|---|---|---|---|---|---|\n"
    )
    rows = []
    for (graph, kind), trained in found.items():
        ours, theirs, eager = (trained[tool] for tool in TOOLS)
        apart = np.abs(np.subtract(ours.losses, eager.losses)).max() / eager.losses[0]
        times = " | ".join(f"{course.warm * 1e3:.3g}" for course in (ours, theirs, eager))
        ratios = f"{theirs.warm / ours.warm:.1f} | {eager.warm / ours.warm:.1f}"
        losses = f"{ours.losses[0]:.2f}, {ours.losses[-1]:.2f}"
        rows.append(f"| {kind}, {graph} | {times} | {ratios} | {losses} | {apart:.0e} |\n")
    return head + "".join(rows)


def graphs(*, quick: bool) -> Iterator[Graph]:
    """Yield the graphs that there are."""
    try:
        yield cora()
    except FileNotFoundError as error:
        sys.stdout.write(f"without Cora: {error}\n")
    yield drawn(1000, 8000) if quick else drawn(170_000, 1_200_000)


def main(given: list[str] | None = None) -> int:
    """Train what the command line says, and write a page and a picture of it."""
    import spcomp.torch  # noqa: F401 (it registers the backend)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", choices=KINDS, nargs="*", default=list(KINDS))
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="a small graph instead of a large one")
    add_page(parser)
    parser.add_argument("--picture", type=Path, help="the picture to write; by default none")
    args = parser.parse_args(given)
    torch.set_num_threads(2)
    found: Found = {}
    for graph in graphs(quick=args.quick):
        for kind in args.only:
            trained = found[graph.name, kind] = courses(kind, graph, args.hidden, args.steps)
            times = {tool: round(course.warm * 1e3, 2) for tool, course in trained.items()}
            sys.stdout.write(f"{kind}, {graph.name}: {times} ms, {trained['spcomp'].losses[-1]}\n")
            sys.stdout.flush()
    text = table(found, args.steps, args.hidden, args.note)
    if args.picture:
        draw(found, args.picture)
    publish(text, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
