"""How fast memory is, measured in the same run, and the time that it allows an operator."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.operators import Traffic

MEBIBYTE = 2**20
FOOTPRINTS = tuple(MEBIBYTE * size for size in (2, 8, 32, 128, 512))  # bytes
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second that can be read, by the size of what is read over and over."""

    points: tuple[tuple[int, float], ...]

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
    return Bandwidth(tuple((size, _rate(size, threads)) for size in footprints))


def _rate(size: int, threads: int) -> float:
    """Return the best bytes per second of several passes over *size* bytes."""
    parts = np.array_split(np.ones(size // 4, np.float32), threads)
    passes = max(1, 64 * MEBIBYTE // size)
    gates = threading.Barrier(threads + 1)

    def work(part: Any) -> None:
        for _ in range(REPEATS):
            gates.wait()
            for _ in range(passes):
                np.dot(part, part)
            gates.wait()

    workers = [threading.Thread(target=work, args=(part,), daemon=True) for part in parts]
    for worker in workers:
        worker.start()
    best = float("inf")
    for _ in range(REPEATS):
        gates.wait()
        begin = perf_counter()
        gates.wait()
        best = min(best, perf_counter() - begin)
    for worker in workers:
        worker.join()
    return size * passes / best
