"""At the call: checks that index arrays are in range, and ordered where a program relies on it.

Machine code checks large arrays (``runtime.replay.entry``). If it rejects them, and for small
arrays, a few passes of numpy decide and say what is wrong. Scipy is not used here: its routines
trust their input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.ir.axis import EMPTY, HASH
from spcomp.runtime.hugepages import immutable

LARGE = 1 << 14  # elements from which machine code is faster, with its loading
ANY = (1 << 63) - 1  # no limit
TABLES = 3  # an order of Coordinates

T = TypeVar("T")


Names: TypeAlias = Callable[[str], str]  # the name of a parameter's array in messages
Arrays: TypeAlias = Mapping[str, Any]  # by the names of parameters


class Pointers(NamedTuple):
    """A check: *fibers* fibers begin in 0..first, end in low..high, none exceeds *longest*."""

    array: str  # the name of the parameter, as in the other checks
    fibers: int
    first: int
    low: int
    high: int
    longest: int = ANY

    def run(self, arrays: Arrays, names: Names) -> None:
        """Raise ArgumentError unless *arrays* pass."""
        indptr, who = arrays[self.array], names(self.array)
        exact = (self.first, self.low) == (0, self.high)
        pointers(who, indptr, self.fibers, self.high, exact=exact)
        if self.longest != ANY:
            fits(who, indptr, self.longest)


class Coordinates(NamedTuple):
    """A check: all elements are in low..high, and those of each fiber in *order*.

    Order 1 is ascending, 2 strictly ascending, TABLES a hash table of ``formats.levels``. Fibers
    begin at *indptr*, or have the length *width* if that is "".
    """

    array: str
    low: int
    high: int
    order: int = 0
    indptr: str = ""
    width: int = 0

    def run(self, arrays: Arrays, names: Names) -> None:
        """Raise ArgumentError unless *arrays* pass."""
        require_order(names(self.array), self.ascend(arrays, names), self.order == 2)

    def ascend(self, arrays: Arrays, names: Names) -> bool:
        """Whether the elements are in order; raises ArgumentError if one is out of range."""
        array, who, strict = arrays[self.array], names(self.array), self.order == 2
        indptr = arrays[self.indptr] if self.indptr else None
        if indptr is not None and self.order != TABLES:
            return ordered(who, indptr, array, self.high, strict=strict, low=self.low)
        in_range(who, array, self.low, self.high)
        if indptr is None:
            return not self.order or ascends(None, array, self.width, strict=strict)
        tables(who, indptr, array)
        return True


class Distinct(NamedTuple):
    """A check: no value of an array occurs twice."""

    array: str

    def run(self, arrays: Arrays, names: Names) -> None:
        """Raise ArgumentError unless *arrays* pass."""
        values = np.sort(arrays[self.array], axis=None)
        if (values[1:] == values[:-1]).any():
            raise ArgumentError(
                f"argument {names(self.array)}: a value occurs twice, the program expects distinct"
                " ones"
            )


class Apart(NamedTuple):
    """A check: an output array shares no memory with *others*."""

    array: str
    others: tuple[str, ...]

    def run(self, arrays: Arrays, names: Names) -> None:
        """Raise ArgumentError unless *arrays* pass."""
        for other in self.others:
            if np.may_share_memory(arrays[self.array], arrays[other]):  # exact: both contiguous
                raise ArgumentError(
                    f"argument {names(self.array)}: shares memory with {names(other)}, and the"
                    " program writes it",
                    hint="give an array of its own, or leave it out",
                )


class Element(NamedTuple):
    """A condition: the array has *value* at the position *at*."""

    array: str
    at: int
    value: int


Check: TypeAlias = Pointers | Coordinates | Distinct | Apart
Condition: TypeAlias = Check | Element


def plain(who: str, array: Array) -> Array:
    """Return *array* as a plain numpy array, not of a subclass.

    Raises ArgumentError for a masked array, whose masked elements would be used too.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(
            f"argument {who}: got a masked array, expected a plain one",
            hint="fill it with .filled(value)",
        )
    return array if type(array) is np.ndarray else np.asarray(array)


def native(who: str, array: Array) -> Array:
    """Return *array* as machine code reads it: plain, aligned, in this machine's byte order.

    Every input array passes here; it is copied if necessary. Raises ArgumentError as ``plain``.
    """
    if type(array) is np.ndarray and array.dtype.isnative and array.flags.aligned:
        return array
    array = plain(who, array)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.aligned else array.copy()


def index_array(who: str, arg: Any) -> Array:
    """Return the index array *arg* as machine code reads it, in int32 or int64.

    Raises ArgumentError if it does not hold integers, or one does not fit int64.
    """
    array = native(who, arg if isinstance(arg, np.ndarray) else as_array(who, arg))
    if array.dtype in (np.int32, np.int64):
        return array
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"argument {who}: got dtype {array.dtype}, expected integers")
    if array.dtype == np.uint64 and array.size and (most := int(array.max())) > ANY:
        raise ArgumentError(f"argument {who}: got {most}, expected numbers that int64 holds")
    return array.astype(np.int32 if array.dtype.itemsize < 4 else np.int64)


def as_array(who: str, arg: Any) -> Array:
    """Return *arg*, of another library, as a numpy array; raises ArgumentError."""
    try:
        return np.asarray(arg)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        kind = type(arg).__name__
        raise ArgumentError(
            f"argument {who}: the {kind} gives no numpy array: {error}",
            hint="spcomp.convert makes scipy arrays of sparse tensors",
        ) from None


def private(array: T) -> T:
    """Return *array* in immutable memory, copied if necessary.

    Anything but an array is returned unchanged.
    """
    if not isinstance(array, np.ndarray):
        return array
    if is_private(array):
        return array
    return np.ndarray(array.shape, array.dtype, immutable(array))  # type: ignore[return-value]


def is_private(array: Array) -> bool:
    """Whether *array* lies in memory that nobody can change, as ``private`` returns it."""
    owner: Any = array.base if isinstance(array.base, np.ndarray) else array
    return type(owner.base) is bytes and array.flags.c_contiguous and array.flags.aligned


def in_range(who: str, array: Array, low: int, high: int) -> None:
    """Raise ArgumentError unless every element is in ``low..high``, both included."""
    if array.size == 0 or _passes_machine_code(array, low, high) or _all_between(array, low, high):
        return
    flat = array.reshape(-1)
    at = int(np.flatnonzero((flat < low) | (flat > high))[0])
    expected = f"{low}..{high}" if low <= high else "no element (the extent is 0)"
    raise ArgumentError(f"argument {who}: got {flat[at]} at position {at}, expected {expected}")


def _passes_machine_code(
    array: Array, low: int, high: int, order: int = 0, indptr: Array | None = None
) -> bool:
    """Whether machine code finds *array* in range and in order; False may also mean unknown."""
    if array.size < LARGE:
        return False
    from spcomp.runtime.replay.entry import indices_ok

    return indices_ok(array, low, high, order, indptr)


def _all_between(array: Array, low: int, high: int) -> bool:
    if low == 0 and array.dtype.kind == "i" and array.dtype.isnative and high >= 0:
        # negative numbers are large unsigned ones: one pass instead of two
        return int(array.view(f"u{array.dtype.itemsize}").max()) <= high
    return int(array.min()) >= low and int(array.max()) <= high


def pointers(who: str, indptr: Array, fibers: int, limit: float, *, exact: bool = False) -> None:
    """Raise ArgumentError unless *indptr* delimits *fibers* fibers within ``0..limit`` positions.

    *exact*: the fibers must use all positions.
    """
    if indptr.ndim != 1 or indptr.size != fibers + 1:
        got = f"{indptr.size} elements" if indptr.ndim == 1 else f"shape {indptr.shape}"
        raise ArgumentError(
            f"argument {who}: got {got}, expected {fibers + 1} (one more than fibers)"
        )
    if indptr.size >= LARGE:
        from spcomp.runtime.replay.entry import pointers_ok

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
    stored = indices[slots].astype(np.int64)
    start, size = starts[table], sizes[table]
    first = homes(stored, size)
    free = np.concatenate(([0], np.cumsum(indices == EMPTY)))
    places = slots - start
    wraps = places < first
    passed = free[start + places] - free[start + first]
    passed += np.where(wraps, free[start + size] - free[start], 0)
    lost = np.flatnonzero(passed)
    if lost.size:
        raise ArgumentError(
            f"argument {who}: got {stored[lost[0]]} at position {slots[lost[0]]}, where it would"
            " not be found",
            hint="fill the table by spcomp.formats.levels.home and the next free slot",
        )
    order = np.lexsort((stored, table))
    table, stored = table[order], stored[order]
    twice = np.flatnonzero((table[1:] == table[:-1]) & (stored[1:] == stored[:-1]))
    if twice.size:
        raise ArgumentError(f"argument {who}: got {stored[twice[0]]} twice in a table")


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
    """Return ``formats.levels.home`` of each of *coordinates*, in tables of *slots* slots."""
    bits = np.log2(np.maximum(slots, 1)).astype(np.uint64)
    mixed = coordinates.astype(np.uint64) * np.uint64(HASH)
    shifted = mixed >> (np.uint64(64) - np.maximum(bits, np.uint64(1)))
    return np.where(bits == 0, 0, shifted).astype(np.int64)


def ascends(indptr: Array | None, indices: Array, width: int, *, strict: bool) -> bool:
    """Whether the coordinates of every fiber ascend, strictly if *strict*.

    *indptr*, already checked, delimits the fibers; if it is None, each has the length *width*.
    """
    flat = indices.reshape(-1)
    if flat.size < 2:
        return True
    if indptr is not None and _passes_machine_code(flat, 0, ANY, 2 if strict else 1, indptr):
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


def strictly_sorted(axes: Sequence[Array]) -> bool:
    """Return whether elements are in the order of their coordinates, without repetition."""
    above = np.zeros(max(len(axes[0]) - 1, 0), bool)
    for axis in reversed(axes):
        above = (axis[1:] > axis[:-1]) | ((axis[1:] == axis[:-1]) & above)
    return bool(above.all())


def ordered(
    who: str, indptr: Array, indices: Array, high: int, *, strict: bool, low: int = 0
) -> bool:
    """Whether the coordinates of every fiber ascend (see ``ascends``); one pass if they do.

    Raises ArgumentError unless all are in ``low..high``.
    """
    flat = indices.reshape(-1)
    if _passes_machine_code(flat, low, high, 2 if strict else 1, indptr):
        return True
    in_range(who, indices, low, high)
    return ascends(indptr, indices, 0, strict=strict)


def require_order(who: str, ascending: bool, strict: bool) -> None:  # noqa: FBT001
    """Raise ArgumentError unless *ascending*, the result of ``ascends`` for the argument *who*."""
    if not ascending:
        how = "strictly ascending" if strict else "ascending"
        raise ArgumentError(
            f"argument {who}: got coordinates out of order within a fiber, expected {how} ones",
            hint="sort the coordinates of each fiber and merge repeated ones",
        )


def as_index(who: str, array: Array, idtype: np.dtype[np.generic]) -> Array:
    """Return *array* as contiguous *idtype*; raises ArgumentError if a value does not fit."""
    if array.dtype != idtype:
        limit = np.iinfo(idtype)  # type: ignore[type-var]
        if array.size and not limit.min <= int(array.min()) <= int(array.max()) <= limit.max:
            raise ArgumentError(
                f"argument {who}: got {array.max()}, expected values that {idtype} holds",
                hint='declare the axis with idtype="int64"',
            )
        return array.astype(idtype)
    whole = not isinstance(array, np.ndarray) or array.flags.c_contiguous  # others are on a GPU
    return array if whole else np.ascontiguousarray(array)
