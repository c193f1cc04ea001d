"""Under the tuner: what a candidate cannot be faster than, and its rank before it is measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from spcomp.errors import SpcompError
from spcomp.ir.axis import SparseBuffer
from spcomp.kernels.compile import compile as compiled
from spcomp.locks import cached_property
from spcomp.runtime.pool import get_num_threads
from spcomp.tune.candidates import CandidateFeatures, candidate_features
from spcomp.tune.layouts import stored_per_element
from spcomp.tune.machine import machine_of, this_machine
from spcomp.tune.space import Candidate, Space

if TYPE_CHECKING:
    from spcomp.ir.axis import AnyBuffer
    from spcomp.tune.statistics import MatrixStatistics

FAR = 64 << 20  # bytes, at most, of an array that is read from memory, or from a larger cache
PATIENCE = 0.02  # seconds of readings, of which the best counts: others use the machine, too
CLOCK = 4e9  # operations on vectors in a second, for each thread, at most two at once
SHARE = 1e-6  # seconds that a thread needs to take a share of a parallel loop
MOST_SHARES = 256  # of a loop, where iterations are taken several at once
CACHED = 2.5  # times the bandwidth of its memory that the cache of a GPU has, about
SLACK = 2.0  # the bound assumes so many times the bandwidth that was measured


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes in a second that all threads together read: *near*, from caches, and *far*."""

    near: float
    far: float


def rates() -> Rates:
    """Return the rates of this machine, with the threads that calls now use; measured once."""
    return _rates(get_num_threads())


@cache
def _rates(threads: int) -> Rates:
    machine = this_machine()
    read = compiled("s = x[i]", name="read", fast_math=True, tuned=False)
    near = _rate(read, min(machine.l2 // 2, 1 << 20) * threads)
    return Rates(near, _rate(read, min(4 * machine.l3, FAR)))


def _rate(read: object, size: int) -> float:
    """Return the bytes in a second that *read* gets from an array of *size* bytes."""
    assert callable(read)
    array = np.zeros(max(size // 4, 1), np.float32)
    array[::1024] = 1.0  # the system gives each page memory of its own
    read(x=array)  # it is compiled now
    best, until = inf, perf_counter() + PATIENCE
    while (begin := perf_counter()) < until or best == inf:
        read(x=array)
        best = min(best, perf_counter() - begin)
    return array.nbytes / max(best, 1e-9)


class Bounds:
    """What candidates of *space* need at least, and an estimate of what they take, in seconds.

    *statistics* by buffer. Where the program cannot be walked, nothing is bounded and all are
    alike.
    """

    def __init__(self, space: Space, statistics: Mapping[str, MatrixStatistics]) -> None:
        self.space, self.statistics = space, statistics
        self.machine = machine_of(space.options.target)
        self._matrices = {
            name: statistics[key]
            for buffer in space.func.buffers
            for name, key in _keys(buffer)
            if key in statistics
        }

    @cached_property
    def rates(self) -> Rates:
        """The rates of the machine; of this one they are measured where they are needed first."""
        far = self.machine.bandwidth
        return Rates(CACHED * far, far) if far else rates()

    def features(self, candidate: Candidate) -> dict[str, float]:
        """Return numbers of *candidate* for a cost model; of a format, with those of its storage.

        The loops are those over the matrices as they come, with the candidate's decisions.
        """
        found = self._features(candidate)
        return {
            **(found.numbers if found is not None else {}),
            **candidate.numbers,
            **{f"{k}.{n}": v for k, s in self.statistics.items() for n, v in s.numbers.items()},
            "stored": self.stored(candidate),
            **_format_numbers(candidate, self.stored(candidate)),
        }

    def stored(self, candidate: Candidate) -> float:
        """Return the values that the formats store for each element of the matrices."""
        ratios = [
            stored_per_element(text, self.statistics[name])
            for name, text in candidate.formats
            if name in self.statistics
        ]
        return max(ratios, default=1.0)

    def least(self, candidate: Candidate, best: Candidate, seconds: float) -> float:
        """Return the seconds that all bytes in use take to be read once, padding included.

        *best* takes *seconds*, which shows what rate there is at least.
        """
        size = self._size(candidate)
        rate = self.rates.far if size > self.machine.l3 else max(self.rates.near, self.rates.far)
        return size / max(rate * SLACK, self._size(best) / seconds)

    def _size(self, candidate: Candidate) -> float:
        """Return the bytes that *candidate* has in use; 0 if that is not known."""
        found = self._features(Candidate())
        extra = sum(
            (stored_per_element(text, s) - 1.0) * s.nnz * 4.0
            for name, text in candidate.formats
            if (s := self.statistics.get(name)) is not None
        )
        return 0.0 if found is None else found.working_set + max(extra, 0.0)

    def estimate(self, candidate: Candidate) -> float:
        """Return about how many seconds *candidate* takes; only the order of these means much."""
        found = self._features(candidate)
        if found is None:
            return 0.0
        near = (found.from_l2 + found.from_l3) / self.rates.near
        memory = near + found.from_memory * self.stored(candidate) / self.rates.far
        work = found.operations / found.lanes / (CLOCK * self.machine.threads)
        shares = min(found.chunks, MOST_SHARES) * SHARE / self.machine.threads
        return (max(memory, work) + 0.25 * min(memory, work)) / max(found.balance, 1e-6) + shares

    def _features(self, candidate: Candidate) -> CandidateFeatures | None:
        try:
            func = self.space.scheduled(Candidate((), candidate.decisions))
            if func is None:
                return None
            return candidate_features(func, self._matrices, {}, machine=self.machine)
        except SpcompError:  # a size that no matrix says, or several phases
            return None


def _keys(buffer: AnyBuffer) -> Iterator[tuple[str, str]]:
    """Yield the name of *buffer* with each argument that may say what its pattern is."""
    yield buffer.name, buffer.name
    if isinstance(buffer, SparseBuffer):  # a pattern may be given for an axis
        yield from ((buffer.name, axis.name) for axis in buffer.axes if axis.is_sparse)


def _format_numbers(candidate: Candidate, stored: float) -> dict[str, float]:
    """Return the kind of the first format, its sizes, and the bytes it has for each element."""
    kinds = (
        "",
        "sliced_diagonal",
        "dia",
        "ell",
        "bsr",
        "dbsr",
        "sr_bcrs",
        "hyb",
        "padding",
        "dcsr",
        "sell",
    )
    text = candidate.formats[0][1] if candidate.formats else ""
    name, _, arguments = text.partition("(")
    sizes = [float(size) for size in re.findall(r"\d+", arguments)] or [0.0]
    indices = {"dia": 0.0, "sliced_diagonal": 0.5, "sr_bcrs": 1.0}.get(name, 4.0)
    if name in ("bsr", "dbsr"):
        indices /= max(sizes[0], 1.0) ** 2
    return {
        "format": float(kinds.index(name) if name in kinds else len(kinds)),
        "format_size": sizes[0],
        "format_last": sizes[-1],
        "format_bytes": stored * (4.0 + indices),
    }
