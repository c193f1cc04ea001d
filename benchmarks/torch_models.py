"""Graph networks under torch.compile, from end to end: our backend beside inductor and eager.

``python -m benchmarks.torch_models``: layers written as torch_geometric has them, two of each; a
call without gradients, and a step of training.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, elu, leaky_relu

from benchmarks.machine import describe
from benchmarks.torch import add_page, graph, measured, publish, table

Tensor = torch.Tensor
TYPES = 3  # of edges, for RGCN
# nodes, edges, features, classes
SIZES = {"cora": (2708, 10556, 1433, 7), "arxiv": (170_000, 1_200_000, 128, 40)}


def scattered(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """Return the sums of *rows* by places, as torch_geometric writes them."""
    at = index.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return rows.new_zeros(count, *rows.shape[1:]).scatter_add_(0, at, rows)


def softmax(score: Tensor, index: Tensor, count: int) -> Tensor:
    """Return the softmax of *score* among the edges of each place."""
    at = index.view(-1, 1).expand_as(score)
    zeros = score.new_zeros(count, score.shape[1])
    most = zeros.scatter_reduce_(0, at, score.detach(), "amax", include_self=False)
    raised = (score - most.index_select(0, index)).exp()
    total = scattered(raised, index, count) + 1e-16
    return raised / total.index_select(0, index)


class GCN(nn.Module):
    """Weighted sums of neighbours, after a product."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.product = nn.Linear(inner, outer, bias=False)
        self.bias = nn.Parameter(torch.zeros(outer))

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        """Return the new features of each node."""
        x = self.product(x)
        rows = weight.view(-1, 1) * x.index_select(0, edges[0])
        return scattered(rows, edges[1], len(x)) + self.bias


class SAGE(nn.Module):
    """The mean of neighbours, times a matrix, and the node itself times another."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.others = nn.Linear(inner, outer)
        self.own = nn.Linear(inner, outer, bias=False)

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        """Return the new features of each node."""
        count = scattered(torch.ones_like(weight), edges[1], len(x)).clamp(min=1)
        mean = scattered(x.index_select(0, edges[0]), edges[1], len(x)) / count.view(-1, 1)
        return self.others(mean) + self.own(x)


class GIN(nn.Module):
    """Two products and a ReLU of each node plus its neighbours."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.products = nn.Sequential(nn.Linear(inner, outer), nn.ReLU(), nn.Linear(outer, outer))

    def forward(self, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        """Return the new features of each node."""
        total = scattered(x.index_select(0, edges[0]), edges[1], len(x))
        made: Tensor = self.products(total + (1 + self.eps) * x)
        return made


class GAT(nn.Module):
    """Attention of four heads among the neighbours."""

    heads = 4

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.width = -(-outer // self.heads)
        self.product = nn.Linear(inner, self.heads * self.width, bias=False)
        self.source = nn.Parameter(torch.randn(1, self.heads, self.width) / 8)
        self.target = nn.Parameter(torch.randn(1, self.heads, self.width) / 8)
        self.bias = nn.Parameter(torch.zeros(self.heads * self.width))

    def forward(self, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        """Return the new features of each node."""
        x = self.product(x).view(-1, self.heads, self.width)
        source, target = (x * self.source).sum(-1), (x * self.target).sum(-1)
        score = source.index_select(0, edges[0]) + target.index_select(0, edges[1])
        share = softmax(leaky_relu(score, 0.2), edges[1], len(x))
        rows = share.unsqueeze(-1) * x.index_select(0, edges[0])
        return scattered(rows, edges[1], len(x)).flatten(1) + self.bias


class RGCN(nn.Module):
    """The mean of neighbours along each type of edge, each times a matrix, and the node itself."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(inner, outer, bias=False) for _ in range(TYPES))
        self.own = nn.Linear(inner, outer)

    def forward(self, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        """Return the new features of each node; types of edges follow each other."""
        total = self.own(x)
        for product, part in zip(self.products, edges.chunk(TYPES, dim=1), strict=True):
            degree = scattered(x.new_ones(part.shape[1]), part[1], len(x)).clamp(min=1)
            rows = scattered(x.index_select(0, part[0]), part[1], len(x))
            total = total + product(rows / degree.view(-1, 1))
        return total


LAYERS = {"GCN": GCN, "SAGE": SAGE, "GIN": GIN, "GAT": GAT, "RGCN": RGCN}


class Network(nn.Module):
    """Two layers of a *kind*."""

    def __init__(self, kind: str, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = LAYERS[kind](features, hidden)
        self.second = LAYERS[kind](hidden, classes)
        self.between = elu if kind == "GAT" else torch.relu

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        """Return a number for each node and class."""
        inner = self.between(self.first(x, edges, weight))
        made: Tensor = self.second(inner, edges, weight)
        return made


def infer(call: Any, args: tuple[Tensor, ...], *_: Any) -> Tensor:
    """Return what the network says."""
    with torch.no_grad():
        made: Tensor = call(*args)
        return made


def train(call: Any, args: tuple[Tensor, ...], labels: Tensor, optimizer: Any) -> Tensor:
    """Perform a step of training, and return the loss."""
    optimizer.zero_grad()
    loss = cross_entropy(call(*args), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


WAYS = {"forward": infer, "training step": train}


def calls(kind: str, size: str, hidden: int, tools: list[str]) -> dict[str, Any]:
    """Return for each of *tools* the network, compiled, and what a step of training takes."""
    nodes, count, features, classes = SIZES[size]
    edges = graph(nodes, count)
    torch.manual_seed(0)
    args = torch.randn(nodes, features), edges, torch.rand(count)
    labels = torch.randint(classes, (nodes,))
    torch.manual_seed(1)
    state = Network(kind, features, hidden, classes).state_dict()
    found = {}
    for tool in tools:
        model = Network(kind, features, hidden, classes)
        model.load_state_dict(state)
        call = model if tool == "eager" else torch.compile(model, backend=tool, dynamic=False)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=True)
        found[tool] = call, args, labels, optimizer
    return found


def main(given: list[str] | None = None) -> int:
    """Measure what the command line says, and write a page of results."""
    import spcomp.torch  # noqa: F401 (it registers the backend)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--only", choices=LAYERS, nargs="*", default=list(LAYERS))
    parser.add_argument("--sizes", choices=SIZES, nargs="*", default=list(SIZES))
    parser.add_argument("--ways", choices=WAYS, nargs="*", default=list(WAYS))
    parser.add_argument("--hidden", type=int, default=64)
    add_page(parser)
    args = parser.parse_args(given)
    torch.set_num_threads(2)
    found = []
    for size in args.sizes:
        for kind in args.only:
            torch.compiler.reset()
            tools = calls(kind, size, args.hidden, ["spcomp", "inductor", "eager"])
            for way in args.ways:
                rounds = {tool: (WAYS[way], took) for tool, took in tools.items()}
                runs = args.runs if size == "arxiv" else 10 * args.runs
                found.append(measured(f"{kind}, {size}", way, rounds, runs))
                sys.stdout.write(f"{found[-1]}\n")
                sys.stdout.flush()
    text = table(found, describe(2), args.note, "python -m benchmarks.torch_models")
    publish(text, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
