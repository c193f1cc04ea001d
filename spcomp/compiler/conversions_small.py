"""At a conversion of few elements: numpy and scipy, for which no program has to be made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from spcomp.dtypes import DType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Compressed: TypeAlias = tuple[Array, Array, Array]  # pointers, minors, values
SMALL = 1 << 12  # elements up to which numpy is as fast
MATRIX = 1 << 17  # elements up to which scipy's routines are, on one thread


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
    np.cumsum(np.bincount(majors, minlength=count), out=found[1:])
    return found


def inside(own: Array, extent: int) -> bool:
    """Whether all coordinates *own*, signed integers, are from 0 to *extent*, excluded."""
    return not own.size or int(own.view(f"u{own.itemsize}").max()) < extent


def by_majors(
    majors: Array, minors: Array, values: Array, shape: tuple[int, int], kind: Any
) -> Compressed:
    """Return the elements of a matrix by their majors, in each as they were.

    *values* are unsigned integers; *shape*: how many majors and minors there are, all are in range.
    """
    from scipy.sparse._sparsetools import coo_tocsr  # without what public conversions add to it

    made = np.empty(shape[0] + 1, kind), np.empty(len(values), kind), np.empty_like(values)
    run: Any = coo_tocsr
    run(*shape, len(values), _plain(majors, kind), _plain(minors, kind), _plain(values), *made)
    return made


def turned(given: Compressed, columns: int, kind: Any) -> Compressed:
    """Return *given* by their minors, which are below *columns*; the majors of each ascend."""
    from scipy.sparse._sparsetools import csr_tocsc

    pointers, minors, values = given
    made = np.empty(columns + 1, kind), np.empty(len(values), kind), np.empty_like(values)
    run: Any = csr_tocsc
    given = _plain(pointers, kind), _plain(minors, kind), _plain(values)
    run(len(pointers) - 1, columns, *given, *made)
    return made


def _plain(array: Array, kind: Any = None) -> Array:
    """Return *array*, of type *kind*, as scipy's routines take for granted that it lies."""
    own = array.astype(kind or array.dtype, copy=False)
    return own if own.flags.aligned and own.flags.c_contiguous else own.copy()


def firsts(pointers: Array, minors: Array) -> tuple[Array, Array]:
    """Return whether each element is the first at its place, in order of these, and running sums.

    The sums, of the type of *pointers*, begin with 0.
    """
    new = np.ones(len(minors) + 1, bool)
    new[1:-1] = minors[1:] != minors[:-1]
    new[pointers] = True
    number = np.zeros(len(new), pointers.dtype)
    np.cumsum(new[:-1], out=number[1:])
    return new[:-1], number


def repeated(pointers: Array, minors: Array) -> int:
    """Return how many elements have the major and minor of the one before."""
    some = bool((minors[1:] == minors[:-1]).any())
    return len(minors) - int(firsts(pointers, minors)[1][-1]) if some else 0


def majors_of(pointers: Array, kind: Any) -> Array:
    """Return the major of each element."""
    return np.arange(len(pointers) - 1, dtype=kind).repeat(np.diff(pointers))


def changes(axes: Sequence[Array]) -> Array:
    """Return whether each element is the first, or at another place than the one before it."""
    new = np.ones(len(axes[0]), bool)
    new[1:] = np.logical_or.reduce([own[1:] != own[:-1] for own in axes])
    return new


def split(keys: Array, length: int, kind: Any) -> tuple[Array, Array, Array]:
    """Return the last digits of *keys*, where what is left of them begins and ends, and that."""
    left = keys // length
    first = np.flatnonzero(changes([left]))
    starts = np.append(first, len(keys)).astype(kind)
    return (keys - left * length).astype(kind), starts, left[first]


def added(given: Compressed, item: DType) -> Compressed:
    """Return sorted elements of type *item* with those at one place added up.

    They are added one after the other, floats of 16 bits in float32.
    """
    pointers, minors, values = given
    new, number = firsts(pointers, minors)
    ends, left, at = number[pointers], minors[new], number[1:] - 1
    if item.kind == "bool":
        total = np.zeros(len(left), bool)
        np.logical_or.at(total, at, values)
        return ends, left, total
    wide = np.float32 if item.is_float and item.bits == 16 else values.dtype
    sums = values[new].astype(wide)
    np.add.at(sums, at[~new], values[~new].astype(wide))
    return ends, left, sums.astype(values.dtype, copy=False)
