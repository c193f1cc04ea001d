"""A graph network is trained as PyTorch users write it, under ``torch.compile(backend="spcomp")``.

``python examples/gcn_training.py`` trains on a graph that it draws, ``python
examples/gcn_training.py graph.mtx`` on any square Matrix Market file. Add ``--eager`` to see what
PyTorch needs without the compiler, and ``--inductor`` for its own.
"""

import argparse
import shutil
import time
import warnings
from pathlib import Path

import torch

import spcomp
import spcomp.torch

FEATURES, HIDDEN, CLASSES = 64, 32, 7
warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch, about parts of itself


class Convolution(torch.nn.Module):
    """``A (x W) + b`` of Kipf and Welling, by a gather and a scatter along the edges."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, out, bias=False)
        self.bias = torch.nn.Parameter(torch.zeros(out))

    def forward(self, x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return what each node gets along its edges."""
        h = self.linear(x)
        messages = weight.view(-1, 1) * h.index_select(0, edges[0])
        return torch.zeros_like(h).index_add(0, edges[1], messages) + self.bias


class Network(torch.nn.Module):
    """Two convolutions with a ReLU in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Convolution(FEATURES, HIDDEN)
        self.second = Convolution(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return a score of each class for each node."""
        return self.second(torch.relu(self.first(x, edges, weight)), edges, weight)


def drawn(nodes: int, degree: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges of a graph, most of them inside of a class, and the classes of its nodes."""
    classes = torch.arange(nodes) % CLASSES
    start = torch.randint(nodes, (nodes * degree,))
    near = (start + CLASSES * torch.randint(nodes, start.shape)) % (nodes - nodes % CLASSES)
    end = torch.where(torch.rand(start.shape) < 0.8, near, torch.randint(nodes, start.shape))
    return torch.stack([start, end]), classes


def read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges of the matrix at *path*, and classes by rounds of neighbours' majority."""
    matrix = spcomp.convert(spcomp.read(path), spcomp.Format("coo"))
    edges = matrix.to_torch().coalesce().indices()
    classes = torch.randint(CLASSES, (max(matrix.shape),))
    for _ in range(5):
        votes = torch.zeros(len(classes), CLASSES)
        votes.index_put_((edges[1], classes[edges[0]]), torch.ones(edges.shape[1]), accumulate=True)
        classes = torch.where(votes.amax(1) > 0, votes.argmax(1), classes)
    return edges, classes


def normalized(edges: torch.Tensor, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges both ways, with loops, and ``1 / sqrt(d_i d_j)`` for each of them."""
    loops = torch.arange(nodes).expand(2, nodes)
    both = torch.unique(torch.cat([edges, edges.flip(0), loops], dim=1), dim=1)
    scale = torch.bincount(both[1], minlength=nodes).rsqrt()
    return both, scale[both[0]] * scale[both[1]]


def main() -> None:
    """Train, and say what the compiler replaced, the loss, and the time of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--inductor", action="store_true")
    asked = parser.parse_args()
    torch.manual_seed(0)
    edges, classes = drawn(2000, 8) if asked.graph is None else read(asked.graph)
    edges, weight = normalized(edges, len(classes))
    x = torch.nn.functional.one_hot(classes, FEATURES).float() + torch.randn(len(classes), FEATURES)
    known = torch.rand(len(classes)) < 0.3  # the others are predicted

    network = Network()
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    backend = "spcomp" if compiler else "spcomp_eager"  # which generates no C++
    backend = "inductor" if asked.inductor else backend
    print(spcomp.torch.explain(network, x, edges, weight))
    model = network if asked.eager else torch.compile(network, backend=backend)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    times, losses = [], []
    for _ in range(asked.steps):
        start = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(x, edges, weight)[known], classes[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    found, wanted = model(x, edges, weight), network(x, edges, weight)
    right = (found.argmax(1) == classes)[~known].float().mean().item()
    print(
        f"{len(classes)} nodes, {edges.shape[1]} edges: loss {losses[0]:.3f} to {losses[-1]:.3f},"
    )
    print(f"{right:.0%} of the others right, {sorted(times)[len(times) // 2] * 1e3:.2f} ms a step,")
    error = ((found - wanted).abs().max() / wanted.abs().max()).item()
    print(f"max error {error:.1e} of the largest score, beside eager")
    assert error < 1e-4
    assert losses[-1] < losses[0] / 2


if __name__ == "__main__":
    main()
