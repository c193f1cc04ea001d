"""At a conversion: keys, the coordinates of an element packed into the bits of one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spcomp.arrays import Array

BITS = 62  # of a key
INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """Elements grouped by major, and sorted by minor in each group if that was asked for.

    ``pointers[r] : pointers[r + 1]`` are those of major r. *repeated*: how many elements have the
    major and minor of their predecessor.
    """

    pointers: Array
    minors: Array
    values: Array
    repeated: int

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """The pointers, minors and values."""
        return self.pointers, self.minors, self.values

    @property
    def majors(self) -> int:
        """The number of majors, with empty ones."""
        return len(self.pointers) - 1


def bits_of(extent: int) -> int:
    """Return how many bits a coordinate below *extent* needs, at least 1."""
    return max(extent - 1, 1).bit_length()


def shifts_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return for each coordinate how many bits of a key are below it."""
    bits = [bits_of(extent) for extent in shape]
    return tuple(sum(bits[at + 1 :]) for at in range(len(bits)))


def index_type(*most: int) -> np.dtype[Any]:
    """Return the type of index arrays that hold numbers up to each of *most*."""
    return np.dtype(np.int32 if max(most, default=0) <= INT32 else np.int64)


def as_bits(values: Array) -> Array:
    """Return *values* viewed as unsigned integers, as programs move them."""
    return values.view(f"uint{8 * values.itemsize}")
