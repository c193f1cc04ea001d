"""At the call: index arrays are in range, and in order where a program relies on it.

Large arrays are checked by machine code (``runtime.entry``); where it finds fault, and for small
ones, a few passes of numpy decide and say what is wrong. Nothing here calls into scipy, whose
routines trust their input.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.runtime.hugepages import immutable

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
LARGE = 1 << 14  # elements from which machine code is faster, its loading included
ANY = (1 << 63) - 1  # a limit that is none


def plain(who: str, array: Array) -> Array:
    """Return *array* as numpy's own class, whose methods see every element.

    Raises ArgumentError for a masked array: its masked elements would be used, too.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(
            f"argument {who}: got a masked array, expected a plain one",
            hint="fill it with .filled(value)",
        )
    return array if type(array) is np.ndarray else np.asarray(array)


def private(array: Array) -> Array:
    """Return *array* in memory that nobody can change, an immutable object: a copy if need be."""
    owner: Any = array.base if isinstance(array.base, np.ndarray) else array
    if type(owner.base) is bytes and array.flags.c_contiguous:
        return array
    return np.ndarray(array.shape, array.dtype, immutable(array))


def in_range(who: str, array: Array, low: int, high: int) -> None:
    """Raise ArgumentError unless every element is in ``low..high``, both included."""
    if array.size == 0 or _quickly(array, low, high) or _spans(array, low, high):
        return
    flat = array.reshape(-1)
    at = int(np.flatnonzero((flat < low) | (flat > high))[0])
    expected = f"{low}..{high}" if low <= high else "no element (the extent is 0)"
    raise ArgumentError(f"argument {who}: got {flat[at]} at position {at}, expected {expected}")


def _quickly(
    array: Array, low: int, high: int, order: int = 0, indptr: Array | None = None
) -> bool:
    """Whether machine code finds *array* in range and in order; it may also just not say so."""
    if array.size < LARGE:
        return False
    from spcomp.runtime.entry import indices_ok

    return indices_ok(array, low, high, order, indptr)


def _spans(array: Array, low: int, high: int) -> bool:
    if low == 0 and array.dtype.kind == "i" and high >= 0:
        # negative numbers are large unsigned ones: one pass instead of two
        return int(array.view(f"u{array.dtype.itemsize}").max()) <= high
    return int(array.min()) >= low and int(array.max()) <= high


def pointers(who: str, indptr: Array, fibers: int, limit: float, *, exact: bool = False) -> None:
    """Raise ArgumentError unless *indptr* delimits *fibers* fibers within ``0..limit`` positions.

    *exact*: the fibers must use all positions, from the first to the last.
    """
    if indptr.ndim != 1 or indptr.size != fibers + 1:
        got = f"{indptr.size} elements" if indptr.ndim == 1 else f"shape {indptr.shape}"
        raise ArgumentError(
            f"argument {who}: got {got}, expected {fibers + 1} (one more than fibers)"
        )
    if indptr.size >= LARGE:
        from spcomp.runtime.entry import pointers_ok

        high = ANY if limit == float("inf") else int(limit)
        low = high if exact and high != ANY else 0
        if pointers_ok(indptr, 0 if exact else ANY, low, high, ANY):
            return
    first, last = int(indptr[0]), int(indptr[-1])
    if first < 0 or (exact and first != 0):
        raise ArgumentError(f"argument {who}: starts at {first}, expected {0 if exact else '>= 0'}")
    if not bool((indptr[1:] >= indptr[:-1]).all()):
        at = int(np.flatnonzero(indptr[1:] < indptr[:-1])[0])
        raise ArgumentError(
            f"argument {who}: decreases from {indptr[at]} to {indptr[at + 1]} at position {at + 1},"
            " expected an array that never decreases"
        )
    if last > limit or (exact and limit != last and limit != float("inf")):
        raise ArgumentError(
            f"argument {who}: ends at {last}, expected {'' if exact else 'at most '}{limit}"
            " (the number of stored positions)"
        )


def fits(who: str, indptr: Array, length: int) -> None:
    """Raise ArgumentError if a fiber of *indptr* is longer than *length*, its axis."""
    longest = int(np.diff(indptr).max(initial=0))
    if longest > length:
        raise ArgumentError(
            f"argument {who}: a fiber has {longest} elements, expected at most {length}"
            " (the length of its axis)"
        )


def ascends(indptr: Array | None, indices: Array, width: int, *, strict: bool) -> bool:
    """Whether the coordinates of every fiber ascend, strictly if *strict*.

    Fibers are delimited by *indptr*, or all *width* long where that is None; *indptr* has been
    checked.
    """
    flat = indices.reshape(-1)
    if flat.size < 2:
        return True
    if indptr is not None and _quickly(flat, 0, ANY, 2 if strict else 1, indptr):
        return True
    rises = flat[1:] > flat[:-1] if strict else flat[1:] >= flat[:-1]
    if bool(rises.all()):
        return True
    if indptr is None:
        rises[width - 1 :: width] = True
        return bool(rises.all())
    begins = indptr[(indptr > 0) & (indptr < flat.size)]
    rises[begins - 1] = True
    first, last = int(indptr[0]), int(indptr[-1])
    return bool(rises[first : max(first, last - 1)].all())


def require_order(who: str, ascending: bool, strict: bool) -> None:  # noqa: FBT001
    """Raise ArgumentError unless *ascending*, which ``ascends`` found for the argument *who*."""
    if not ascending:
        how = "strictly ascending" if strict else "ascending"
        raise ArgumentError(
            f"argument {who}: got coordinates out of order within a fiber, expected {how} ones",
            hint="sort the coordinates of each fiber and merge repeated ones",
        )


def span(array: Array) -> tuple[int, int]:
    """Return the addresses of the first byte of a contiguous *array* and of the one after it."""
    begin = int(array.__array_interface__["data"][0])
    return begin, begin + array.nbytes
