"""How fast memory is, measured in the same run, and the time that it allows an operator."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.cli.timing import Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.problem import Traffic

MEBIBYTE = 2**20
FOOTPRINTS = tuple(MEBIBYTE * size for size in (2, 8, 32, 128, 512))  # bytes
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second that can be read, by the size of what is read over and over.

    *clean*: nobody else used the CPUs meanwhile; otherwise the rates are too low, and shares of
    what memory allows come out too high.
    """

    points: tuple[tuple[int, float], ...]
    clean: bool = True

    def at(self, footprint: int) -> float:
        """Return the bandwidth for *footprint* bytes, interpolated between what was measured."""
        sizes, rates = zip(*self.points, strict=True)
        logs: Any = np.log(sizes)
        return float(np.interp(np.log(max(footprint, 1)), logs, rates))

    def limit(self, traffic: Traffic) -> tuple[float, float]:
        """Return the seconds for the compulsory bytes, and for the gathered ones."""
        gather = traffic.gather / self.at(traffic.footprint) if traffic.gather else 0.0
        return traffic.compulsory / self.at(traffic.compulsory), gather


def measure_bandwidth(threads: int, footprints: Sequence[int] = FOOTPRINTS) -> Bandwidth:
    """Measure how fast *threads* threads read, each its own part (numpy's dot product)."""
    before = Usage.now()
    points = tuple((size, _rate(size, threads)) for size in footprints)
    return Bandwidth(points, clean=not before.was_disturbed(Usage.now()))


def elapsed(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds from the first begin to the last end of the workers' (begin, end)."""
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def _rate(size: int, threads: int) -> float:
    """Return the best bytes per second of several passes over *size* bytes.

    The workers read the clock themselves: whoever opens the gate may get a CPU again only when
    they are done, and would find no time gone.
    """
    parts = np.array_split(np.ones(size // 4, np.float32), threads)
    passes = max(1, 64 * MEBIBYTE // size)
    gate = threading.Barrier(threads)
    spans: list[list[tuple[float, float]]] = [[] for _ in parts]

    def work(part: Any, mine: list[tuple[float, float]]) -> None:
        for _ in range(REPEATS):
            gate.wait()
            begin = perf_counter()
            for _ in range(passes):
                np.dot(part, part)
            mine.append((begin, perf_counter()))

    workers = [threading.Thread(target=work, args=both) for both in zip(parts, spans, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return size * passes / min(elapsed(together) for together in zip(*spans, strict=True))
