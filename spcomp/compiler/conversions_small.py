"""At a conversion of few elements: their order by numpy, for which no program has to be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from spcomp.dtypes import DType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
SMALL = 1 << 12  # elements up to which numpy is as fast


def ordered(
    axes: Sequence[Array], shifts: Sequence[int], bits: int, *, sort: bool
) -> tuple[Array, Array, Array, int]:
    """Return the order of elements, the major and minor of each then, and how many repeat."""
    keys = np.zeros(len(axes[0]), np.int64)
    for own, shift in zip(axes, shifts, strict=True):
        keys |= own.astype(np.int64) << shift
    order = np.argsort(keys if sort else keys >> bits, kind="stable")
    keys = keys[order]
    repeated = int((keys[1:] == keys[:-1]).sum())
    return order, keys >> bits, keys & (1 << bits) - 1, repeated


def pointers_of(majors: Array, count: int, kind: Any) -> Array:
    """Return where the elements of each of *count* majors begin, and the end of the last."""
    found = np.zeros(count + 1, kind)
    np.add.at(found, majors + 1, 1)
    return np.cumsum(found, dtype=kind, out=found)


def majors_of(pointers: Array, kind: Any) -> Array:
    """Return the major of each element."""
    return np.arange(len(pointers) - 1, dtype=kind).repeat(np.diff(pointers))


def changes(axes: Sequence[Array]) -> Array:
    """Return whether each element is the first, or at another place than the one before it."""
    new = np.ones(len(axes[0]), bool)
    new[1:] = np.logical_or.reduce([own[1:] != own[:-1] for own in axes])
    return new


def added(majors: Array, minors: Array, values: Array, item: DType) -> tuple[Array, Array]:
    """Return which elements are the first at their place, and the sums of all at each.

    Elements are added one after the other, floats of 16 bits in float32.
    """
    new = changes((majors, minors))
    first = np.flatnonzero(new)
    number = np.cumsum(new) - 1
    if item.kind == "bool":
        total = np.zeros(len(first), bool)
        np.logical_or.at(total, number, values)
        return first, total
    sums = np.zeros(len(first), np.float32 if item.is_float and item.bits == 16 else values.dtype)
    sums[:] = values[first]
    again = ~new
    np.add.at(sums, number[again], values[again])
    return first, sums.astype(values.dtype)
