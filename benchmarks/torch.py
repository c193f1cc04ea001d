"""Models under torch.compile: our backend beside inductor and eager, in interleaved runs.

``python -m benchmarks.torch``: rows gathered along edges and added up, and whole layers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.machine import describe

if TYPE_CHECKING:
    import torch

    Model = Callable[..., torch.Tensor]

RFC = 10_000, 200_000  # nodes and edges
ARXIV = 170_000, 1_200_000
TOOLS = ("spcomp", "inductor", "eager")


@dataclass(frozen=True, slots=True)
class Line:
    """What was measured: seconds of a call by tool, each the median of interleaved runs."""

    case: str
    way: str
    seconds: dict[str, float]
    error: float

    def ratio(self, tool: str) -> float:
        """Return how many times as long as ours *tool* needs."""
        return self.seconds[tool] / self.seconds["spcomp"]


def scatter_add(x: Any, edges: Any, _: Any) -> Any:
    """Return sums of gathered rows, as graph libraries write them."""
    rows = x.index_select(0, edges[0])
    return x.new_zeros(x.shape).scatter_add_(0, edges[1].view(-1, 1).expand_as(rows), rows)


def weighted(x: Any, edges: Any, weight: Any) -> Any:
    """Return sums of gathered rows times a weight for each edge."""
    rows = weight.view(-1, 1) * x.index_select(0, edges[0])
    return x.new_zeros(x.shape).scatter_add_(0, edges[1].view(-1, 1).expand_as(rows), rows)


def index_add(x: Any, edges: Any, _: Any) -> Any:
    """Return sums of gathered rows, as people write them by hand."""
    return x.new_zeros(x.shape).index_add_(0, edges[1], x[edges[0]])


def greatest(x: Any, edges: Any, _: Any) -> Any:
    """Return the greatest of gathered rows."""
    rows = x.index_select(0, edges[0])
    at = edges[1].view(-1, 1).expand_as(rows)
    return x.new_zeros(x.shape).scatter_reduce(0, at, rows, "amax", include_self=False)


CASES: dict[str, Model] = {
    "scatter_add": scatter_add,
    "weight, scatter_add": weighted,
    "index_add": index_add,
    "scatter_reduce amax": greatest,
}


def graph(nodes: int, count: int) -> Any:
    """Return *count* edges between *nodes*, drawn as the RFC does."""
    import torch

    return torch.from_numpy(np.random.default_rng(0).integers(nodes, size=(2, count)))


def forward(model: Model, args: tuple[Any, ...], _: Any) -> Any:
    """Return the result of *model*, without gradients."""
    import torch

    with torch.no_grad():
        return model(*args)


def step(model: Model, args: tuple[Any, ...], up: Any) -> Any:
    """Return the gradient of *model* by its first argument: forward and backward."""
    import torch

    return torch.autograd.grad(model(*args), args[0], up)[0]


WAYS = {"forward": forward, "forward and backward": step}


def lines(cases: list[str], sizes: tuple[int, int], widths: list[int], runs: int) -> Iterator[Line]:
    """Yield a line for each of *cases*, each of *widths*, and each way, on a graph of *sizes*."""
    import torch

    nodes, count = sizes
    edges = graph(nodes, count)
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(count, generator=generator)
    for case in cases:
        model = CASES[case]
        for width in widths:
            torch.compiler.reset()
            tools = {
                "spcomp": torch.compile(model, backend="spcomp", dynamic=False),
                "inductor": torch.compile(model, dynamic=False),
                "eager": model,
            }
            x = torch.randn(nodes, width, generator=generator)
            up = torch.randn(nodes, width, generator=generator)
            for way, run in WAYS.items():
                args = (x.clone().requires_grad_(way != "forward"), edges, weight)
                name = f"{case}, F={width}, {nodes} nodes, {count} edges"
                yield measured(name, way, {t: (run, (f, args, up)) for t, f in tools.items()}, runs)


def measured(case: str, way: str, calls: dict[str, Any], runs: int) -> Line:
    """Return medians of *runs* rounds; each call follows one of its own that is not timed."""
    found = {tool: run(*args) for tool, (run, args) in calls.items()}
    times: dict[str, list[float]] = {tool: [] for tool in calls}
    for _ in range(runs):
        for tool, (run, args) in calls.items():
            run(*args)
            start = time.perf_counter()
            run(*args)
            times[tool].append(time.perf_counter() - start)
    largest = float(found["eager"].abs().max())
    error = float((found["spcomp"] - found["eager"]).abs().max()) / largest
    return Line(case, way, {tool: float(np.median(t)) for tool, t in times.items()}, error)


def table(
    found: list[Line], where: dict[str, Any], note: str, command: str = "python -m benchmarks.torch"
) -> str:
    """Return what was *found* by *command* as a page of Markdown."""
    rows = [
        f"| {line.case} | {line.way} | "
        + " | ".join(f"{line.seconds[tool] * 1e3:.3g}" for tool in TOOLS)
        + f" | {line.ratio('inductor'):.1f} | {line.ratio('eager'):.1f} | {line.error:.0e} |"
        for line in found
    ]
    means = []
    for way in dict.fromkeys(line.way for line in found):
        ratios = [line.ratio("inductor") for line in found if line.way == way]
        means.append(f"{way} {np.exp(np.mean(np.log(ratios))):.1f}")
    head = (
        "# Under torch.compile\n\n"
        f"`{command}`, {where['date'][:10]}, {where['cpu']}, {where['threads']}"
        f" threads. {note}\n\nMedians of interleaved runs. Inductor is `torch.compile` as it comes."
        " Edges are drawn at random and stay the same, so that they are sorted once, before."
        " *error*: the largest difference from eager, in parts of the largest number.\n\n"
        "| case | | spcomp, ms | inductor, ms | eager, ms | inductor / spcomp | eager / spcomp"
        " | error |\n|---|---|---|---|---|---|---|---|\n"
    )
    body = "".join(f"{row}\n" for row in rows)
    return f"{head}{body}\nGeometric means against inductor: {', '.join(means)}.\n"


def add_page(parser: argparse.ArgumentParser) -> None:
    """Let *parser* take what a page of results says beside figures, and where it goes."""
    parser.add_argument("--note", default="", help="what else ran on the machine")
    parser.add_argument("--out", type=Path, help="the page to write; by default none")


def publish(text: str, path: Path | None) -> None:
    """Print the page *text*, and write it to *path*, if there is one."""
    if path:
        path.write_text(text)
    sys.stdout.write(text)


def main(given: list[str] | None = None) -> int:
    """Measure what the command line says, and write a page of results."""
    import torch

    import spcomp.torch  # noqa: F401 (it registers the backend)

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--widths", type=int, nargs="*", default=[32, 64, 128, 256])
    parser.add_argument("--nodes", type=int, default=RFC[0])
    parser.add_argument("--edges", type=int, default=RFC[1])
    add_page(parser)
    args = parser.parse_args(given)
    torch.set_num_threads(2)
    found = []
    for line in lines(args.only, (args.nodes, args.edges), args.widths, args.runs):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        found.append(line)
    text = table(found, describe(2), args.note)
    publish(text, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
