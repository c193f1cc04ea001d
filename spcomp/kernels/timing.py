"""Beside the route: the time that calls of a Kernel take."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from spcomp.display.html import heading, table


@dataclass(frozen=True, slots=True)
class Timing:
    """The times that an Evaluator measured: *results* are seconds per call, one per repetition."""

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

    def _repr_html_(self) -> str:
        columns = ("median", "mean", "min", "max", "std")
        row = [f"{1e6 * getattr(self, name):.1f} µs" for name in columns]
        return heading(f"{len(self.results)} results") + table(columns, [row])


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Times *call*: *repeat* results, each the mean of *number* calls."""

    call: Callable[..., Any]
    number: int
    repeat: int

    def __call__(self, /, *args: Any, **named: Any) -> Timing:
        """Return the times of calls with these arguments, after one that is not timed.

        Results that are collections of Dask are computed in each.
        """
        self._run(args, named)  # it may compile a version of the program
        return Timing(tuple(self._mean(args, named) for _ in range(self.repeat)))

    def _mean(self, args: tuple[Any, ...], named: dict[str, Any]) -> float:
        begin = perf_counter()
        for _ in range(self.number):
            self._run(args, named)
        return (perf_counter() - begin) / self.number

    def _run(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        result = self.call(*args, **named)
        for found in result if isinstance(result, tuple) else (result,):
            if hasattr(found, "__dask_graph__"):
                found.compute()
