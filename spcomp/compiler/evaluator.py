"""Beside the route: how long calls of a Kernel take."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from spcomp.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Timing:
    """What an Evaluator measured: *results* are seconds per call, one mean per repetition."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean of the results, in seconds."""
        return statistics.fmean(self.results)

    @property
    def median(self) -> float:
        """The median of the results, in seconds."""
        return statistics.median(self.results)

    @property
    def min(self) -> float:
        """The least result, in seconds."""
        return min(self.results)

    @property
    def max(self) -> float:
        """The greatest result, in seconds."""
        return max(self.results)

    @property
    def std(self) -> float:
        """The standard deviation of the results, in seconds."""
        return statistics.pstdev(self.results)


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Times *call*: as many as *repeat* times, the mean of *number* calls."""

    call: Callable[..., Any]
    number: int
    repeat: int

    def __call__(self, *args: Any, **named: Any) -> Timing:
        """Return how long calls with these arguments take, after one that is not timed."""
        self.call(*args, **named)  # it may compile a version of the program
        return Timing(tuple(self._once(args, named) for _ in range(self.repeat)))

    def _once(self, args: tuple[Any, ...], named: dict[str, Any]) -> float:
        begin = perf_counter()
        for _ in range(self.number):
            self.call(*args, **named)
        return (perf_counter() - begin) / self.number


class Timed:
    """What can be called, and timed."""

    def time_evaluator(self, *, number: int = 10, repeat: int = 1) -> Evaluator:
        """Return a function that times calls with the arguments it is given, as TVM's does.

        Its result has ``mean``, ``median``, ``min``, ``max``, ``std`` and ``results``, in seconds:
        *repeat* results, each the mean of *number* calls in a row, and one call before that is not
        counted. To compare, take turns: the machine changes. Raises ArgumentError.
        """
        for name, count in (("number", number), ("repeat", repeat)):
            if not isinstance(count, int) or count < 1:
                raise ArgumentError(f"argument {name}: got {count!r}, expected a positive integer")
        assert callable(self)
        return Evaluator(self, number, repeat)
