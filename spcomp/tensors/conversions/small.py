"""At a conversion of few elements: numpy and scipy, which need no program to be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import DType
from spcomp.tensors.libraries.scipy import Compressed

SMALL = 1 << 12  # elements up to which numpy is as fast
MATRIX = 1 << 17  # elements up to which scipy's routines are as fast, on one thread


def ordered(
    axes: Sequence[Array], shifts: Sequence[int], bits: int, *, sort: bool
) -> tuple[Array, Array, Array, int]:
    """Return the order of elements, their majors and minors in that order, and how many repeat."""
    keys = np.zeros(len(axes[0]), np.int64)
    for axis, shift in zip(axes, shifts, strict=True):
        keys |= axis.astype(np.int64) << shift
    order = np.argsort(keys if sort else keys >> bits, kind="stable")
    keys = keys[order]
    repeated = int((keys[1:] == keys[:-1]).sum())
    return order, keys >> bits, keys & (1 << bits) - 1, repeated


def pointers_of(majors: Array, count: int, kind: Any) -> Array:
    """Return where the elements of each of *count* majors begin, and the end of the last."""
    pointers = np.zeros(count + 1, kind)
    np.cumsum(np.bincount(majors, minlength=count), out=pointers[1:])
    return pointers


def inside(coordinates: Array, extent: int) -> bool:
    """Whether all *coordinates*, signed integers, are at least 0 and below *extent*."""
    return not coordinates.size or int(coordinates.view(f"u{coordinates.itemsize}").max()) < extent


def firsts(pointers: Array, minors: Array) -> tuple[Array, Array]:
    """Return whether each sorted element is the first at its place, and the running sums of that.

    The sums have the type of *pointers* and begin with 0.
    """
    new = np.ones(len(minors) + 1, bool)
    new[1:-1] = minors[1:] != minors[:-1]
    new[pointers] = True
    number = np.zeros(len(new), pointers.dtype)
    np.cumsum(new[:-1], out=number[1:])
    return new[:-1], number


def repeated(pointers: Array, minors: Array) -> int:
    """Return how many elements have the major and minor of their predecessor."""
    any_equal = bool((minors[1:] == minors[:-1]).any())
    return len(minors) - int(firsts(pointers, minors)[1][-1]) if any_equal else 0


def majors_of(pointers: Array, kind: Any) -> Array:
    """Return the major of each element."""
    return np.arange(len(pointers) - 1, dtype=kind).repeat(np.diff(pointers))


def running(counts: Array) -> Array:
    """Return 0, followed by the running sums of *counts*."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


def changes(axes: Sequence[Array]) -> Array:
    """Return whether each element differs from its predecessor on *axes*; the first does."""
    new = np.ones(len(axes[0]), bool)
    new[1:] = np.logical_or.reduce([axis[1:] != axis[:-1] for axis in axes])
    return new


def split(keys: Array, length: int, kind: Any) -> tuple[Array, Array, Array]:
    """Return digits, starts and rests of *keys*, as ``runs.split``."""
    rest = keys // length
    first = np.flatnonzero(changes([rest]))
    starts = np.append(first, len(keys)).astype(kind)
    return (keys - rest * length).astype(kind), starts, rest[first]


def sum_repeated(elements: Compressed, item: DType) -> Compressed:
    """Return sorted elements of type *item* with repeated ones summed.

    They are added in order, floats of 16 bits in float32.
    """
    pointers, minors, values = elements
    new, number = firsts(pointers, minors)
    ends, kept, at = number[pointers], minors[new], number[1:] - 1
    if item.kind == "bool":
        total = np.zeros(len(kept), bool)
        np.logical_or.at(total, at, values)
        return ends, kept, total
    wide = np.float32 if item.is_float and item.bits == 16 else values.dtype
    sums = values[new].astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(sums, at[~new], values[~new].astype(wide))
        return ends, kept, sums.astype(values.dtype, copy=False)
