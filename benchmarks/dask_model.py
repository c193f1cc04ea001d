"""A model of one step of a program over Dask: its time, and the bytes that workers send.

The step is ``C[i, k] = A[i, j] * B[j, k]`` with blocks in place: SpMV with one column, SpMM with
more. Graphs are described by few numbers, so that they may be larger than any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, comb, exp, log1p, log2, sqrt
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["uniform", "rmat", "mesh"]
Layout: TypeAlias = Literal["rows", "whole", "tiles"]
ZERO = 0.76  # the chance of a bit of a coordinate of R-MAT to be 0, with corners 0.57, 0.19, 0.19


@dataclass(frozen=True)
class Graph:
    """A square matrix of *rows*, each with *degree* elements on average.

    ``mesh``: points in three dimensions with 27 neighbours each, cut into cubes (as METIS does);
    others are cut into rows with equally many elements.
    """

    kind: Kind
    rows: float
    degree: float

    @property
    def elements(self) -> float:
        """The number of stored elements."""
        return self.rows * self.degree

    def needed(self, share: float) -> float:
        """Return how many columns a block has that holds this *share* of the elements."""
        if self.kind == "mesh":
            side = (self.rows * share) ** (1 / 3)
            return min((side + 2) ** 3, self.rows)
        draws = self.elements * share
        if self.kind == "uniform":
            return self.rows * -_expm1(-draws / self.rows)
        bits = log2(self.rows)
        whole = round(bits)
        return sum(
            comb(whole, ones)
            * -_expm1(draws * log1p(-(ZERO ** (whole - ones)) * (1 - ZERO) ** ones))
            for ones in range(whole + 1)
        )

    def sources(self, workers: int) -> int:
        """Return from how many workers a block gets columns, itself included."""
        return min(27, workers) if self.kind == "mesh" else workers


def _expm1(x: float) -> float:
    """Return exp(x) - 1, exactly enough near 0."""
    return x + x * x / 2 if abs(x) < 1e-8 else exp(x) - 1


@dataclass(frozen=True)
class Machine:
    """What was measured, or is assumed.

    *rate*: elements in a second of a kernel, on one worker. *bandwidth*: bytes in a second that a
    worker gets from others, and sends, at once. *latency*: seconds until a transfer begins; those
    of different workers begin together. *turn*: seconds from asking for a step to hearing that it
    is done, if it does nothing. *task*: seconds of the scheduler for each task. *cores*: that all
    workers share, None: each has its own.
    """

    rate: float
    bandwidth: float
    latency: float
    turn: float
    task: float
    cores: int | None = None


@dataclass(frozen=True)
class Step:
    """What a step takes: seconds by what they are for, and bytes that a worker gets and holds."""

    compute: float
    send: float
    schedule: float
    received: float
    held: float
    tasks: float

    @property
    def seconds(self) -> float:
        """All of it, one after the other: nothing overlaps."""
        return self.compute + self.send + self.schedule


def step(
    graph: Graph, machine: Machine, workers: int, columns: int, layout: Layout,
    *, value: int = 4, index: int = 8, sparse_graph: bool = False,
) -> Step:  # fmt: skip
    """Return what one step takes on so many *workers*, each with one block.

    *columns*: of B. *value*, *index*: bytes of a value and a coordinate. *layout*: blocks of rows
    that get the rows of B that they need, or all of B; or square tiles with partial results.
    *sparse_graph*: there are no tasks for pairs of blocks of which one needs nothing of the other.
    """
    row = columns * value
    own = graph.rows / workers
    held = graph.elements / workers * (value + index) + 2 * own * row
    compute = graph.elements / machine.rate
    compute /= workers if machine.cores is None else min(workers, machine.cores)
    if layout == "rows":
        got = (
            max(graph.needed(1 / workers) - own, 0)
            if graph.kind == "mesh"
            else (graph.needed(1 / workers) * (1 - 1 / workers))
        )
        sources = graph.sources(workers) if sparse_graph else workers
        received, tasks, messages = got * row, workers * (1 + sources), 1
        held += got * row
    elif layout == "whole":
        rounds = ceil(log2(workers)) if workers > 1 else 0
        received, tasks, messages = graph.rows * row * (1 - 1 / workers), workers + 1, 1 + rounds
        held += graph.rows * row
    else:
        side = max(int(sqrt(workers)), 1)
        part = graph.rows / side * row
        levels = ceil(log2(side)) if side > 1 else 0
        received, messages = (1 + levels) * part if side > 1 else 0.0, levels + 1
        tasks = side * side + side * (side - 1) + workers
        held += 3 * part
    send = received / machine.bandwidth + messages * machine.latency if workers > 1 else 0.0
    if machine.cores is not None and workers > 1:  # one memory, and processors that copy
        send *= workers / min(workers, machine.cores)
    return Step(compute, send, machine.turn + tasks * machine.task, received, held, tasks)


def limit(
    graph: Graph, machine: Machine, columns: int, layout: Layout, most: int = 1 << 20,
    *, sparse_graph: bool = False,
) -> int:  # fmt: skip
    """Return the most workers, a power of 2, of which half of the time is still computing."""
    workers = 1
    while workers < most:
        found = step(graph, machine, 2 * workers, columns, layout, sparse_graph=sparse_graph)
        if found.compute < found.seconds / 2:
            break
        workers *= 2
    return workers
