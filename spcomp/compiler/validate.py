"""At the call: index arrays are in range, and in order where a program relies on it.

Large arrays are checked by machine code (``runtime.entry``); where it finds fault, and for small
ones, a few passes of numpy decide and say what is wrong. Nothing here calls into scipy, whose
routines trust their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.ir.axis import EMPTY, HASH
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


def native(who: str, array: Array) -> Array:
    """Return *array* as machine code reads it: plain, aligned, in this machine's byte order.

    All arrays that are read come this way; a copy if need be. Raises ArgumentError as ``plain``.
    """
    if type(array) is np.ndarray and array.dtype.isnative and array.flags.aligned:
        return array
    array = plain(who, array)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.aligned else array.copy()


def index_array(who: str, given: Any) -> Array:
    """Return the index array *given* as machine code reads it, of 32 or 64 bits with a sign.

    Raises ArgumentError for other numbers than integers, and those that 64 bits do not hold.
    """
    array = native(who, given if isinstance(given, np.ndarray) else as_array(who, given))
    if array.dtype in (np.int32, np.int64):
        return array
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"argument {who}: got dtype {array.dtype}, expected integers")
    if array.dtype == np.uint64 and array.size and (most := int(array.max())) > ANY:
        raise ArgumentError(f"argument {who}: got {most}, expected numbers that int64 holds")
    return array.astype(np.int32 if array.dtype.itemsize < 4 else np.int64)


def as_array(who: str, given: Any) -> Array:
    """Return the numpy array that *given*, of another library, is; raises ArgumentError."""
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        kind = type(given).__name__
        raise ArgumentError(
            f"argument {who}: the {kind} gives no numpy array: {error}",
            hint="spcomp.convert makes scipy arrays of sparse tensors",
        ) from None


def private(array: Array) -> Array:
    """Return *array* in memory that nobody can change, an immutable object: a copy if need be."""
    owner: Any = array.base if isinstance(array.base, np.ndarray) else array
    if type(owner.base) is bytes and array.flags.c_contiguous and array.flags.aligned:
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
    if low == 0 and array.dtype.kind == "i" and array.dtype.isnative and high >= 0:
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


def tables(who: str, indptr: Array, indices: Array) -> None:
    """Raise ArgumentError unless each fiber of *indices* is a hash table of ``formats.levels``.

    *indptr* has been checked.
    """
    starts, sizes = indptr[:-1].astype(np.int64), np.diff(indptr).astype(np.int64)
    odd = np.flatnonzero(sizes & (sizes - 1))
    if odd.size:
        raise ArgumentError(
            f"argument {who}: table {odd[0]} has {sizes[odd[0]]} slots, expected a power of two"
        )
    begin, end = int(indptr[0]), int(indptr[-1])
    slots = begin + np.flatnonzero(indices[begin:end] != EMPTY)
    table = np.searchsorted(indptr, slots, side="right") - 1
    found = indices[slots].astype(np.int64)
    start, size = starts[table], sizes[table]
    first = homes(found, size)
    free = np.concatenate(([0], np.cumsum(indices == EMPTY)))
    own = slots - start
    wraps = own < first
    passed = free[start + own] - free[start + first]
    passed += np.where(wraps, free[start + size] - free[start], 0)
    lost = np.flatnonzero(passed)
    if lost.size:
        raise ArgumentError(
            f"argument {who}: got {found[lost[0]]} at position {slots[lost[0]]}, where it would not"
            " be found",
            hint="fill the table by spcomp.formats.levels.home and the next free slot",
        )
    order = np.lexsort((found, table))
    table, found = table[order], found[order]
    twice = np.flatnonzero((table[1:] == table[:-1]) & (found[1:] == found[:-1]))
    if twice.size:
        raise ArgumentError(f"argument {who}: got {found[twice[0]]} twice in a table")


def runs(who: str, indptr: Array, indices: Array, ends: Array, length: int) -> None:
    """Raise ArgumentError unless the runs of each fiber are not empty, disjoint and ascending.

    *indptr* and *indices* have been checked.
    """
    if ends.size != indices.size:
        raise ArgumentError(
            f"argument {who} ends: got {ends.size} elements, expected {indices.size}"
        )
    in_range(f"{who} ends", ends, 1, length)
    empty = np.flatnonzero(ends <= indices)
    if empty.size:
        at = int(empty[0])
        raise ArgumentError(
            f"argument {who} ends: got {ends[at]} at position {at}, expected more than"
            f" {indices[at]}, where the run begins"
        )
    meets = ends[:-1] > indices[1:]
    begins = indptr[(indptr > 0) & (indptr < indices.size)]
    meets[begins - 1] = False
    if meets.any():
        at = int(np.flatnonzero(meets)[0])
        raise ArgumentError(
            f"argument {who} ends: got {ends[at]} at position {at}, but the next run of the fiber"
            f" begins at {indices[at + 1]}"
        )


def homes(coordinates: Array, slots: Array) -> Array:
    """Return ``formats.levels.home`` of each of *coordinates*, in tables of so many *slots*."""
    bits = np.log2(np.maximum(slots, 1)).astype(np.uint64)
    mixed = coordinates.astype(np.uint64) * np.uint64(HASH)
    shifted = mixed >> (np.uint64(64) - np.maximum(bits, np.uint64(1)))
    return np.where(bits == 0, 0, shifted).astype(np.int64)


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


def rise(axes: Sequence[Array]) -> bool:
    """Return whether elements are in the order of their coordinates, and none is there twice."""
    above = np.zeros(max(len(axes[0]) - 1, 0), bool)
    for own in reversed(axes):
        above = (own[1:] > own[:-1]) | ((own[1:] == own[:-1]) & above)
    return bool(above.all())


def ordered(who: str, indptr: Array, indices: Array, high: int, *, strict: bool) -> bool:
    """Whether the coordinates of every fiber ascend, as ``ascends`` says, in one pass if they do.

    Raises ArgumentError unless every one is in ``0..high``.
    """
    flat = indices.reshape(-1)
    if _quickly(flat, 0, high, 2 if strict else 1, indptr):
        return True
    in_range(who, indices, 0, high)
    return ascends(indptr, indices, 0, strict=strict)


def require_order(who: str, ascending: bool, strict: bool) -> None:  # noqa: FBT001
    """Raise ArgumentError unless *ascending*, which ``ascends`` found for the argument *who*."""
    if not ascending:
        how = "strictly ascending" if strict else "ascending"
        raise ArgumentError(
            f"argument {who}: got coordinates out of order within a fiber, expected {how} ones",
            hint="sort the coordinates of each fiber and merge repeated ones",
        )
