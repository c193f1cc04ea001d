"""GraphSAGE, GIN, GAT and RGCN are trained with the operations of ``spcomp.torch``.

Each is two layers and a few lines. GraphSAGE sees a sample of neighbours in each step, the others
the whole graph. ``python examples/graph_networks.py --nodes 170000 --steps 100 gat`` is larger, and
``--plot loss.svg`` draws the losses.
"""

import argparse
import time

import torch
from torch.nn import Linear, Module, Parameter, ReLU, Sequential

from spcomp.torch import gat_attention, gather_scatter, rgcn

FEATURES, HIDDEN, CLASSES, TYPES = 16, 32, 4, 3
Tensor = torch.Tensor


class Sage(Module):
    """The mean of neighbours, and the node itself."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.others, self.own = Linear(width, out), Linear(width, out)

    def forward(self, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        """Return the new features of each node."""
        return self.others(gather_scatter(x, edges, "mean")) + self.own(x)


class Gin(Module):
    """The sum of neighbours and the node, through two products."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.products = Sequential(Linear(width, out), ReLU(), Linear(out, out))

    def forward(self, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        """Return the new features of each node."""
        return self.products(x + gather_scatter(x, edges)) / 10


class Gat(Module):
    """Attention of four heads among the neighbours."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.product = Linear(width, 4 * out)
        self.source, self.target = (Parameter(torch.randn(4, out) / 8) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
        """Return the new features of each node."""
        x = self.product(x).unflatten(1, (4, -1))
        scores = ((x * end).sum(2) for end in (self.source, self.target))
        return gat_attention(x, *scores, edges).mean(1)


class Rgcn(Module):
    """A matrix for each type of edge."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = Parameter(torch.randn(TYPES, width, out) / width**0.5)
        self.own = Linear(width, out)

    def forward(self, x: Tensor, edges: Tensor, types: Tensor) -> Tensor:
        """Return the new features of each node."""
        return rgcn(x, self.weight, edges, types) + self.own(x)


LAYERS = {"sage": Sage, "gin": Gin, "gat": Gat, "rgcn": Rgcn}


class Network(Module):
    """Two layers with a ReLU in between."""

    def __init__(self, layer: type[Module]) -> None:
        super().__init__()
        self.first, self.second = layer(FEATURES, HIDDEN), layer(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edges: Tensor, types: Tensor) -> Tensor:
        """Return a number for each node and class."""
        return self.second(torch.relu(self.first(x, edges, types)), edges, types)


def drawn(nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features, edges, most of them inside of a class, their types, and classes."""
    classes = torch.arange(nodes) % CLASSES
    start = torch.arange(nodes).repeat(8)
    near = (start + CLASSES * torch.randint(nodes, start.shape)) % (nodes - nodes % CLASSES)
    end = torch.where(torch.rand(start.shape) < 0.9, near, torch.randint(nodes, start.shape))
    x = torch.nn.functional.one_hot(classes, FEATURES) + torch.randn(nodes, FEATURES)
    return x, torch.stack([start, end]), torch.randint(TYPES, start.shape), classes


def sampled(edges: Tensor, roots: Tensor, nodes: int, most: int = 4) -> tuple[Tensor, Tensor]:
    """Return nodes that two layers of *roots* see, roots first, and edges between them.

    Of the edges to a node, *most* at random take part.
    """
    shuffled = edges[:, torch.randperm(edges.shape[1])]
    by_end = shuffled[:, shuffled[1].argsort(stable=True)]
    first = torch.searchsorted(by_end[1].contiguous(), torch.arange(nodes))
    few = by_end[:, torch.arange(by_end.shape[1]) - first[by_end[1]] < most]
    seen = torch.zeros(nodes, dtype=torch.bool).index_fill(0, roots, value=True)
    for _ in range(2):
        seen[few[0][seen[few[1]]]] = True
    own = torch.zeros_like(seen).index_fill(0, roots, value=True)
    every = torch.cat([roots, (seen & ~own).nonzero()[:, 0]])
    number = torch.full((nodes,), -1).scatter(0, every, torch.arange(len(every)))
    return every, number[few[:, seen[few].all(0)]]


def train(kind: str, nodes: int, steps: int) -> list[float]:
    """Train a network of a *kind*, and return its losses."""
    x, edges, types, classes = drawn(nodes)
    model = Network(LAYERS[kind])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses, begin = [], time.perf_counter()
    for _ in range(steps):
        if kind == "sage":
            roots = torch.randperm(nodes)[: nodes // 4]
            seen, near = sampled(edges, roots, nodes)
            found, wanted = model(x[seen], near, types)[: len(roots)], classes[roots]
        else:
            found, wanted = model(x, edges, types), classes
        loss = torch.nn.functional.cross_entropy(found, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    took = (time.perf_counter() - begin) / steps * 1e3
    print(f"{kind}: loss {losses[0]:.3f} to {losses[-1]:.3f}, {took:.1f} ms a step")
    assert losses[-1] < losses[0] / 2
    return losses


def main() -> None:
    """Train what is asked for, and compare an aggregation with that of plain PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(LAYERS)}; by default all")
    parser.add_argument("--nodes", type=int, default=400)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plot", help="a picture of the losses, drawn by matplotlib")
    asked = parser.parse_args()
    torch.manual_seed(0)
    losses = {kind: train(kind, asked.nodes, asked.steps) for kind in asked.models or LAYERS}
    x, edges, *_ = drawn(asked.nodes)
    wanted = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
    error = (gather_scatter(x, edges) - wanted).abs().max().item()
    print(f"max error {error:.1e} of sums of neighbours")
    assert error < 1e-4
    if asked.plot:
        from matplotlib import pyplot as plt

        for kind, line in losses.items():
            plt.plot(line, label=kind)
        plt.xlabel("step")
        plt.ylabel("cross entropy")
        plt.legend()
        plt.savefig(asked.plot)


if __name__ == "__main__":
    main()
