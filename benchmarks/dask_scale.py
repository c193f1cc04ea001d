"""Programs over Dask on 1, 2 and 4 processes here, against the model; then the model at scale.

``python -m benchmarks.dask_scale [--elements 2e6] [--columns 64] [--rounds 5] [--paper]`` writes
Markdown. ``--paper`` measures nothing, and shows 1,000 workers with the parameters of options.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from statistics import median
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

import spcomp
import spcomp.dask as sd
from benchmarks.dask_model import Graph, Layout, Machine, limit, step
from benchmarks.workloads import SOCIAL, rmat
from spcomp.dask.estimate import size

WORKERS = (1, 2, 4)
PROGRAM = "C[i, k] = alpha * A[i, j] * B[j, k]"
SETTINGS = {
    "distributed.scheduler.work-stealing": False,
    "distributed.comm.timeouts.connect": "60s",
}


def tell(*lines: str) -> None:
    """Write *lines* of the report."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def seconds(work: Callable[[], Any]) -> float:
    """Return the time that *work* takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def described(machine: Machine) -> str:
    """Return the parameters of *machine* as text."""
    return (
        f"{machine.rate:.3g} elements/s on a worker, {size(machine.bandwidth)}/s,"
        f" {1e3 * machine.latency:.2g} ms for a transfer, {1e3 * machine.turn:.2g} ms for a turn,"
        f" {1e3 * machine.task:.2g} ms for a task"
    )


# -- what runs here -------------------------------------------------------------------------------


class Steps:
    """Steps of a program on the workers of *client*, operands in place.

    *layout* ``rows``: B lies in pieces, as A does; ``whole``: each worker has all of it.
    """

    def __init__(self, client: Any, matrix: Any, columns: int, layout: Layout, blocks: int) -> None:
        self.client, self.alphas = client, count(1)
        cut = sd.from_scipy(matrix, ("nonzeros", blocks))
        dense = np.random.default_rng(0).random((matrix.shape[1], columns), np.float32)
        chunks = (cut.chunks[0], columns) if layout == "rows" else -1
        with client.as_current():
            self.dense = sd.place(da.from_array(dense, chunks=chunks), client)
            self.step = spcomp.compile(PROGRAM).bind(A=sd.place(cut, client))
        self.run()  # finds what blocks need, and brings B to where it is read

    def run(self) -> None:
        """Run one step, until it is done."""
        with self.client.as_current():
            result = self.client.persist(self.step(alpha=float(next(self.alphas)), B=self.dense))
            distributed.wait(result)


def rate(client: Any, matrix: Any, columns: int) -> float:
    """Return the elements in a second of the kernel, on a worker."""
    return float(client.submit(_rate, matrix, columns, pure=False).result())


def _rate(matrix: Any, columns: int) -> float:
    kernel = spcomp.compile(PROGRAM)
    dense = np.random.default_rng(0).random((matrix.shape[1], columns), np.float32)
    times = [seconds(lambda: kernel(A=matrix, B=dense, alpha=2.0)) for _ in range(6)]
    return float(matrix.nnz / median(times[1:]))


def transfers(client: Any) -> tuple[float, float, float]:
    """Return the bytes in a second between workers, and the seconds of a transfer and a turn."""
    first, second, *_ = client.scheduler_info()["workers"]
    found = {}

    def turn() -> None:
        distributed.wait(client.submit(_nothing, 0, workers=[second], pure=False))

    for length in (1, 1 << 24):
        times = []
        for _ in range(7):
            data = client.submit(np.ones, length, workers=[first], pure=False)
            distributed.wait(data)
            moved = lambda data=data: client.submit(len, data, workers=[second], pure=False)  # noqa: E731
            times.append(seconds(lambda moved=moved: distributed.wait(moved())))
        found[length] = median(times)
    idle = median([seconds(turn) for _ in range(9)])
    return 8 * (1 << 24) / max(found[1 << 24] - found[1], 1e-9), max(found[1] - idle, 0), idle


def each_task(client: Any, tasks: int = 1000) -> float:
    """Return the seconds for each of many tasks that do nothing."""

    def all_of_them() -> None:
        distributed.wait(client.map(_nothing, range(tasks), pure=False))

    return median([seconds(all_of_them) for _ in range(3)]) / tasks


def _nothing(number: int) -> int:
    return number


def clusters(stack: ExitStack) -> Iterator[Any]:
    """Yield a client for each number of worker processes, which stay."""
    for workers in WORKERS:
        cluster = distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        )
        yield stack.enter_context(distributed.Client(stack.enter_context(cluster)))


def measure(elements: int, columns: int, rounds: int) -> None:
    """Measure steps on 1, 2 and 4 workers in turns, and compare with the model."""
    degree = 76
    rows = elements // degree
    matrix = rmat(rows, elements // 2, 1, SOCIAL)
    graph = Graph("rmat", rows, matrix.nnz / rows)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({**SETTINGS, "scheduler": "distributed"}))
        clients = list(clusters(stack))
        tell(
            f"R-MAT, {rows} rows, {matrix.nnz} elements, float32, load {os.getloadavg()[0]:.0f}", ""
        )
        network = *transfers(clients[1]), each_task(clients[1])
        for number in dict.fromkeys((1, columns)):
            machine = Machine(rate(clients[0], matrix, number), *network, os.cpu_count())
            _steps(clients, matrix, graph, machine, number, rounds)
            _ceiling(clients[1], matrix, number)
        _overhead(clients[1], rounds)


def _steps(
    clients: list[Any], matrix: Any, graph: Graph, machine: Machine, columns: int, rounds: int
) -> None:
    tell(
        f"{columns} columns: {described(machine)}",
        "",
        "| B | workers | measured, ms | model, ms | measured / model | of one worker |",
        "|---|---|---|---|---|---|",
    )
    layouts: tuple[Layout, ...] = ("rows", "whole")
    for layout in layouts:
        runs = [
            Steps(client, matrix, columns, layout, workers)
            for client, workers in zip(clients, WORKERS, strict=True)
        ]
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(rounds):
            for each, found in zip(runs, times, strict=True):
                found.append(seconds(each.run))
        one = median(times[0])
        for workers, found in zip(WORKERS, times, strict=True):
            expected = step(graph, machine, workers, columns, layout, index=4)
            model = expected.seconds if layout == "rows" else expected.compute + expected.schedule
            now = median(found)
            numbers = f"{1e3 * now:.1f} | {1e3 * model:.1f} | {now / model:.2f} | {one / now:.2f}"
            tell(f"| {layout} | {workers} | {numbers} |")
    tell("")


def _ceiling(client: Any, matrix: Any, columns: int) -> None:
    """Tell how much faster two processes are than one that share nothing but this machine."""
    here = client.scheduler_info()["workers"]
    alone, both = [], []
    for _ in range(3):
        for names, found in (([*here][:1], alone), ([*here], both)):
            runs = [
                client.submit(_rate, matrix, columns, workers=[name], pure=False) for name in names
            ]
            found.append(sum(client.gather(runs)))
    gain = median(both) / median(alone)
    tell(f"The kernel alone, in two processes at once, has {gain:.2f} times the rate of one.", "")


def _overhead(client: Any, rounds: int) -> None:
    """Tell what a block costs beside its kernel: 64 small ones on two workers."""
    blocks = 64
    matrix = rmat(64 * blocks, 256 * blocks, 2, SOCIAL)
    steps = Steps(client, matrix, 1, "whole", blocks)
    times = [seconds(steps.run) for _ in range(2 * rounds)]
    tell(f"Each of {blocks} small blocks takes {1e3 * median(times) / blocks:.2f} ms of a step.")


# -- on paper -------------------------------------------------------------------------------------

PAPER = {
    "R-MAT": Graph("rmat", 2.0**34, 58.2),
    "uniform": Graph("uniform", 2.0**34, 58.2),
    "mesh": Graph("mesh", 1e12 / 27, 27),
}


def paper(machines: dict[int, Machine]) -> None:
    """Tell what 10^12 elements take on up to 1,000 workers; *machines* by columns of B."""
    for columns, machine in machines.items():
        tell(
            f"{columns} columns, 10^12 elements: {described(machine)}",
            "",
            "| graph | B | workers | compute, s | send, s | scheduler, s | sent to each |"
            " held by each | of ideal |",
            "|---|---|---|---|---|---|---|---|---|",
        )
        for name, graph in PAPER.items():
            ways: list[tuple[str, Layout, bool]] = [
                ("needed rows", "rows", False),
                ("whole", "whole", False),
                ("tiles", "tiles", False),
            ]
            if graph.kind == "mesh":
                ways.insert(1, ("needed rows, neighbours only", "rows", True))
            for what, layout, sparse in ways:
                for workers in (16, 100, 1000):
                    found = step(graph, machine, workers, columns, layout, sparse_graph=sparse)
                    tell(
                        f"| {name} | {what} | {workers} | {found.compute:.3g} | {found.send:.3g} |"
                        f" {found.schedule:.3g} | {size(found.received)} | {size(found.held)} |"
                        f" {found.compute / found.seconds:.2f} |"
                    )
        tell("", "At least half of the time is computing up to so many workers:", "")
        for name, graph in PAPER.items():
            layouts: tuple[Layout, ...] = ("rows", "whole", "tiles")
            ends = [f"{way} {limit(graph, machine, columns, way)}" for way in layouts]
            near = limit(graph, machine, columns, "rows", sparse_graph=True)
            tell(f"- {name}: {', '.join(ends)}; rows with neighbours only {near}")
        tell("")


def main() -> None:
    """Measure, or show the model at scale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=float, default=2e6)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--rates", type=float, nargs=2, default=(1e9, 1.5e8), help="SpMV, SpMM")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes in a second")
    parser.add_argument("--latency", type=float, default=2e-4, help="seconds")
    parser.add_argument("--turn", type=float, default=1e-2, help="seconds of a step of nothing")
    parser.add_argument("--task", type=float, default=5e-4, help="seconds of the scheduler")
    options = parser.parse_args()
    if not options.paper:
        measure(int(options.elements), options.columns, options.rounds)
        return
    network = options.bandwidth, options.latency, options.turn, options.task
    columns = (1, options.columns)
    paper({n: Machine(rate, *network) for n, rate in zip(columns, options.rates, strict=True)})


if __name__ == "__main__":
    main()
