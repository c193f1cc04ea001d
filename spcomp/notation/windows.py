"""Beside the route of index notation: windows, the parts of dimensions that an access reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from spcomp.errors import ArgumentError, Span


@dataclass(frozen=True, slots=True)
class Window:
    """``i(start, stop, step)`` or ``start:stop:step``: a range of a dimension.

    *counts*: the ends are coordinates, as in ``range``; those of a slice may count from the end.
    """

    start: int | None
    stop: int | None
    step: int = 1
    counts: bool = False
    at: Span | None = field(default=None, compare=False)

    def spelled(self, index: str) -> str:
        """Return its text over *index*."""
        if self.counts:
            return f"{index}({self.start}, {self.stop}, {self.step})"
        return ":".join(["" if n is None else str(n) for n in (self.start, self.stop, self.step)])

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole of any dimension, in order."""
        return (self.start, self.stop, self.step) == (None, None, 1)

    def of(self, extent: int) -> range | None:
        """Return the coordinates in a dimension of *extent*; None if it goes beyond it."""
        back = self.step < 0
        start, stop = (extent - 1, -1) if back else (0, extent)
        start = start if self.start is None else self._coordinate(self.start, extent)
        stop = stop if self.stop is None else self._coordinate(self.stop, extent)
        low, high = (stop + 1, start + 1) if back else (start, stop)
        return range(start, stop, self.step) if 0 <= low <= high <= extent else None

    def _coordinate(self, end: int, extent: int) -> int:
        if end >= 0 or self.counts:
            return end
        return end + extent if end >= -extent else -2  # which is in no dimension


@dataclass(frozen=True, slots=True)
class IndexSet:
    """``i([1, 3, 5])``: some coordinates of a dimension, in this order."""

    coordinates: tuple[int, ...]
    at: Span | None = field(default=None, compare=False)

    is_whole = False

    def spelled(self, index: str) -> str:
        """Return its text over *index*."""
        return f"{index}({list(self.coordinates)})"

    def of(self, extent: int) -> tuple[int, ...] | None:
        """Return the coordinates in a dimension of *extent*; None if one is not in it."""
        return self.coordinates if all(0 <= c < extent for c in self.coordinates) else None


Part: TypeAlias = Window | IndexSet | int | None  # a number: one coordinate; None: all
Windows: TypeAlias = tuple[Part, ...]


def coordinates(who: str, windows: Windows, shape: Sequence[int]) -> list[Sequence[int] | int]:
    """Return the coordinates of *windows* of a tensor of this *shape*, by dimension.

    A number stands for a dimension that is left out. Raises ArgumentError, about the argument
    *who*, where a window is not inside its dimension.
    """
    if len(windows) != len(shape):
        raise ArgumentError(f"argument {who}: got {len(shape)} dimensions, expected {len(windows)}")
    coords_by_dim: list[Sequence[int] | int] = []
    for dim, (window, extent) in enumerate(zip(windows, shape, strict=True)):
        if window is None:
            coords_by_dim.append(range(extent))
        elif not isinstance(window, int):
            coords = window.of(extent)
            if coords is None:
                raise ArgumentError(
                    f"argument {who}: {window.spelled('i')} is no part of dimension {dim}, which is"
                    f" {extent}",
                    window.at,
                    hint="a part lies inside of its dimension; the ends of a slice, :-1, may count"
                    " from the end",
                )
            coords_by_dim.append(coords)
        elif -extent <= window < extent:
            coords_by_dim.append(window % extent)
        else:
            raise ArgumentError(
                f"argument {who}: has no coordinate {window}, dimension {dim} is {extent}"
            )
    return coords_by_dim
