"""At a conversion: elements put in the order of their coordinates, on all threads.

Elements are moved to buckets of adjacent majors, and each bucket is sorted inside a core's own
cache: a radix sort by the most significant digit, then by the least. The result depends on the
elements only; equal ones keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import DType, float32
from spcomp.errors import ArgumentError
from spcomp.runtime.recycle import empty
from spcomp.tensors import checks as validate
from spcomp.tensors.conversions import programs, small
from spcomp.tensors.conversions.keys import (
    BITS,
    INT32,
    Ordered,
    as_bits,
    bits_of,
    index_type,
    shifts_of,
)
from spcomp.tensors.conversions.runs import bounds
from spcomp.tensors.conversions.small import running
from spcomp.tensors.libraries.scipy import Compressed, by_majors, by_minors

CHUNK = 1 << 16  # least number of elements that one iteration counts
MOST = 64  # chunks, each with counts of its own
BUCKET = 1 << 13  # elements of a bucket, about; with the results they fit into a core's cache
BUCKETS = 1 << 8  # cache lines that a core can write to in turn
WINDOW, WINDOWS = 1 << 11, 8  # size and number of samples
NEAR = 32  # most blocks of majors, of 512, in a window on average, if elements are near
SPARSE = 16  # rows per element from which an array of all rows is too large


@dataclass(frozen=True, slots=True)
class Plan:
    """How *n* elements with *majors* of some *bits* each are cut into chunks and buckets."""

    n: int
    majors: int
    bits: int
    chunks: int
    wide: int  # low bits of a major that do not choose the bucket

    @classmethod
    def of(cls, n: int, majors: int, bits: int) -> Plan:
        """Return the plan, which depends on these alone, so that results do too."""
        top = bits_of(majors)
        bucket_bits = min(top, min(BUCKETS, max(n // BUCKET, 1)).bit_length())
        return cls(n, majors, bits, min(MOST, max(-(-n // CHUNK), 1)), top - bucket_bits)

    def spread(self) -> Plan:
        """Return the plan with a bucket for each major, and few chunks."""
        from spcomp.runtime.pool import get_num_threads

        chunks = max(min(get_num_threads(), self.n // self.majors), 1)
        return replace(self, chunks=chunks, wide=0)

    @property
    def buckets(self) -> int:
        """The number of buckets; the last may be past all majors."""
        return 1 << (bits_of(self.majors) - self.wide)

    @property
    def shift(self) -> int:
        """The number of low bits of a key that do not choose the bucket."""
        return self.bits + self.wide

    @property
    def digits(self) -> tuple[int, int]:
        """How many bits one pass sorts by, and how many pairs of passes there are."""
        rounds = -(-self.bits // (2 * programs.DIGIT))
        return -(-self.bits // (2 * rounds)), rounds


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """The source of keys: coordinates, how many bits are below each, and their extents.

    *rows*: pointers of the rows. The row is the lowest *unread* bits of a key, which are not read
    when elements are counted. A list of elements is one row.
    """

    axes: tuple[Array, ...]
    shifts: tuple[int, ...]
    sizes: tuple[int, ...]
    rows: Array
    unread: int = 0

    @classmethod
    def of_axes(cls, axes: Sequence[Array], shape: Sequence[int]) -> _Source:
        """Return the source for a list of elements with coordinates *axes*."""
        whole = np.array([0, len(axes[0])])
        return cls(tuple(axes), shifts_of(shape)[:-1], tuple(shape), whole)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments with which programs read keys."""
        return *self.axes, *self.shifts

    @property
    def kind(self) -> tuple[int, str]:
        """The number of coordinate arrays, and their type."""
        return len(self.axes), str(self.axes[0].dtype)


def are_in_order(axes: Sequence[Array], shape: Sequence[int]) -> bool:
    """Whether elements with coordinates *axes* are sorted, distinct, and inside *shape*.

    False also means unknown, for few elements and for keys of more than 62 bits.
    """
    n, shifts = len(axes[0]), shifts_of(shape)
    if n <= small.SMALL or sum(map(bits_of, shape)) > BITS:
        return False
    if not validate.strictly_sorted([axis[: small.SMALL] for axis in axes]):
        return False
    source = _Source.of_axes(axes, shape)
    _, facts = _count(source, Plan.of(n, shape[0], shifts[0]))
    return bool((facts[::2] >= 0).all()) and not facts[1::2].any()


def put_in_order(
    axes: Sequence[Array],
    values: Array,
    shape: Sequence[int],
    *,
    bits: int | None = None,
    idtype: Any = None,
    sort: bool = True,
) -> Ordered:
    """Return the elements with coordinates *axes*, arrays of one type, in order.

    The lowest *bits* of a key (see :func:`shifts_of`) are its minor; None: all but those of the
    first coordinate. *idtype*: the type of minors and pointers; None: int32 if it is wide enough.
    Keys have at most 62 bits.

    Raises:
        ArgumentError: If a coordinate is outside *shape*.
    """
    shifts = shifts_of(shape)
    if bits is None:
        bits, majors = shifts[0], shape[0]
    else:
        last = sum(max(extent - 1, 0) << by for extent, by in zip(shape, shifts, strict=True))
        majors = (last >> bits) + 1
    n = len(values)
    minor = index_type((1 << bits) - 1) if idtype is None or bits > 31 else np.dtype(idtype)
    pointer = index_type(n) if idtype is None else np.dtype(idtype)
    is_matrix = bits == shifts[0] and len(axes) == 2 and max(shape) <= SPARSE * n
    if n <= (small.MATRIX if is_matrix else small.SMALL):
        if not all(map(small.inside, axes, shape)):
            refuse_outside(axes, shape)
        if is_matrix:
            return _in_order_by_scipy(axes, values, (shape[0], shape[1]), minor, sort=sort)
        order, major, low, repeated = small.ordered(axes, shifts, bits, sort=sort)
        pointers = small.pointers_of(major, majors, pointer)
        return Ordered(pointers, low.astype(minor), values[order], repeated)
    source, plan = _Source.of_axes(axes, shape), Plan.of(n, majors, bits)
    if is_matrix and _ascends(axes[1]):
        sort = False  # those of a major keep their order
    if near := is_matrix and not sort and _is_near(axes[0], majors):
        plan = plan.spread()
    counts, facts = _count(source, plan, index_type(n) if near else np.int64)
    if (facts[::2] < 0).any():
        refuse_outside(axes, shape)
    result = _empty_result(plan, values, minor, pointer)
    if not facts[1::2].any():
        _ascending(source, plan, as_bits(values), result)
        return result
    if near:
        return _spread(source, plan, counts, values, result)
    return _by_buckets(source, plan, counts, values, result, sort=sort)


def _ascends(coordinates: Array) -> bool:
    """Whether *coordinates* never decrease; the first few show it for most that do."""
    if (coordinates[1 : small.SMALL] < coordinates[: small.SMALL][:-1]).any():
        return False
    count = len(coordinates)
    whole = np.array([0, count], np.promote_types(coordinates.dtype, index_type(count)))
    return validate.ascends(whole, coordinates, 0, strict=False)


def _in_order_by_scipy(
    axes: Sequence[Array], values: Array, shape: tuple[int, int], kind: Any, *, sort: bool
) -> Ordered:
    """Return the elements of a matrix by rows, with columns in order if *sort*."""
    rows, columns = axes
    moved = as_bits(values)
    if sort:
        by_columns = by_majors(columns, rows, moved, shape[::-1], kind)
        by_rows = by_minors(by_columns, shape[0], kind)
    else:
        by_rows = by_majors(rows, columns, moved, shape, kind)
    return _ordered_of(by_rows, values)


def _ordered_of(arrays: Compressed, values: Array) -> Ordered:
    pointers, minors, bits = arrays
    repeated = small.repeated(pointers, minors)
    return Ordered(pointers, minors, bits.view(values.dtype), repeated)


def transposed(
    pointers: Array, indices: Array, values: Array, columns: int, idtype: Any
) -> Ordered:
    """Return compressed rows as compressed columns with ascending rows.

    Raises ArgumentError for a column out of range.
    """
    rows = len(pointers) - 1
    if len(values) <= small.MATRIX:
        if not small.inside(indices, columns):
            refuse_outside([indices], [columns])
        arrays = pointers, indices, as_bits(values)
        return _ordered_of(by_minors(arrays, columns, idtype), values)
    bits = bits_of(rows)
    source = _Source((indices,), (), (columns,), pointers, unread=bits)
    plan = Plan.of(len(values), columns, bits)
    distinct = validate.ordered("indices", pointers, indices, columns - 1, strict=True)
    if near := distinct and _is_near(indices, columns):
        plan = plan.spread()
    counts, _ = _count(source, plan, index_type(plan.n) if near else np.int64)
    result = _empty_result(plan, values, idtype, idtype)
    if near:
        return _spread(source, plan, counts, values, result, distinct=True)
    return _by_buckets(source, plan, counts, values, result, sort=False, distinct=distinct)


def _is_near(indices: Array, columns: int) -> bool:
    """Whether, in a sample, elements that are near each other have columns near each other."""
    if not max(columns, WINDOW) <= len(indices) or columns > INT32:
        return False
    starts = np.linspace(0, len(indices) - WINDOW, WINDOWS, dtype=np.int64)
    blocks = indices[starts[:, None] + np.arange(WINDOW)] >> max(bits_of(columns) - 9, 0) & 511
    seen = np.zeros((WINDOWS, 512), bool)
    seen[np.arange(WINDOWS)[:, None], blocks] = True
    return int(seen.sum()) <= NEAR * WINDOWS


def _spread(
    source: _Source,
    plan: Plan,
    counts: Array,
    values: Array,
    result: Ordered,
    *,
    distinct: bool = False,
) -> Ordered:
    """Return the result of :func:`_by_buckets` in one pass, which writes to few cache lines."""
    sums = programs.sums(str(counts.dtype), str(result.pointers.dtype))
    sums(counts, result.pointers[1:], plan.chunks, plan.buckets, plan.majors)
    _move(source, plan, values, counts, (result.minors, as_bits(result.values)), paired=False)
    if distinct or validate.ascends(result.pointers, result.minors, 0, strict=True):
        return result
    return replace(result, repeated=small.repeated(result.pointers, result.minors))


def _count(source: _Source, plan: Plan, kind: Any = np.int64) -> tuple[Array, Array]:
    counts = empty(plan.chunks * plan.buckets, kind)
    facts = np.zeros(plan.chunks * 2, np.int64)
    shift = plan.shift - source.unread
    watched = not source.unread
    count = programs.count(*source.kind, str(counts.dtype), watched)
    sizes = plan.n, plan.chunks, plan.buckets, shift
    count(counts, facts, *sizes, *source.arguments, *source.sizes * watched)
    return counts, facts


def _move(
    source: _Source,
    plan: Plan,
    values: Array,
    to: Array,
    outs: tuple[Array, ...],
    *,
    paired: bool,
) -> None:
    sizes = plan.n, plan.chunks, plan.buckets, plan.shift, source.unread, len(source.rows) - 1
    inputs = source.rows, as_bits(values), to
    types = (str(array.dtype) for array in (*inputs, outs[0]))
    move = programs.move(*source.kind, *types, paired)
    move(*inputs, *outs, *sizes, *source.arguments)


def _empty_result(plan: Plan, values: Array, minor: Any, pointer: Any) -> Ordered:
    pointers = np.empty(plan.majors + 1, pointer)
    pointers[0] = 0
    return Ordered(pointers, empty(plan.n, minor), empty(plan.n, values.dtype), 0)


def _types(result: Ordered) -> tuple[str, str, str]:
    """The types of pointers, of minors, and of what values are moved as."""
    pointers, minors, values = result.arrays
    return str(pointers.dtype), str(minors.dtype), str(as_bits(values).dtype)


def _ascending(source: _Source, plan: Plan, values: Array, result: Ordered) -> None:
    arrays = values, result.pointers[1:], result.minors, as_bits(result.values)
    sizes = plan.n, plan.chunks, plan.majors, plan.bits
    ascending = programs.ascending(*source.kind, *_types(result))
    ascending(*arrays, *sizes, *source.arguments)


def _by_buckets(
    source: _Source,
    plan: Plan,
    counts: Array,
    values: Array,
    result: Ordered,
    *,
    sort: bool,
    distinct: bool = False,
) -> Ordered:
    chunks, buckets = plan.chunks, plan.buckets
    to = running(counts.reshape(chunks, buckets).T.reshape(-1))
    starts = np.append(to[:-1:chunks], plan.n)
    to = np.ascontiguousarray(to[:-1].reshape(buckets, chunks).T).reshape(-1)
    repeated, bits = np.zeros(buckets, np.int64), as_bits(result.values)
    word = np.dtype(np.uint32 if max(8 * bits.itemsize, plan.shift) <= 32 else np.uint64)
    pairs = empty(2 * plan.n, word)
    _move(source, plan, values, to, (pairs,), paired=True)
    arrays = starts, pairs, result.pointers[1:], result.minors, bits, repeated
    sort_buckets = programs.sort_buckets(str(word), *_types(result), sort, distinct)
    sort_buckets(*arrays, plan.n, buckets, plan.majors, plan.wide, plan.bits, *plan.digits)
    return Ordered(result.pointers, result.minors, result.values, int(repeated.sum()))


def rows_in_order(pointers: Array, indices: Array, values: Array, columns: int) -> Ordered:
    """Return compressed rows, whose columns are in range, with sorted columns."""
    if len(values) <= small.MATRIX:
        axes = small.majors_of(pointers, indices.dtype), indices
        return put_in_order(axes, values, (len(pointers) - 1, columns), idtype=indices.dtype)
    rows = Ordered(pointers, indices.copy(), values.copy(), 0)
    return replace(rows, repeated=_sort_rows(rows, columns))


def _sort_rows(rows: Ordered, columns: int, *, keyed: bool = False) -> int:
    """Sort each row of *rows* in place; return how many elements repeat.

    *keyed*: minors are keys; those of a row lie in one interval of length *columns* that begins at
    a multiple of it. Repeated ones are not counted.
    """
    plan = Plan.of(len(rows.values), rows.majors, bits_of(columns))
    repeated = np.zeros(plan.buckets, np.int64)
    arrays = rows.pointers[1:], rows.minors, as_bits(rows.values), repeated
    sizes = plan.n, plan.buckets, plan.majors, plan.wide, columns, *plan.digits
    programs.sort_rows(*_types(rows), keyed)(*arrays, *sizes)
    return int(repeated.sum())


def keys_in_order(keys: Array, ids: Array | None, within: int = 0) -> tuple[Array, Array | None]:
    """Return nonnegative int64 *keys* in ascending order, and *ids* (None: 0, 1, ...) likewise.

    Equal keys keep their order; *ids* stay None if nothing moves. *within*: if ``keys // within``
    ascend already, each group of equal ones is sorted by itself.
    """
    if not len(keys) or not (keys[1:] < keys[:-1]).any():
        return keys, ids
    numbers = np.arange(len(keys), dtype=index_type(len(keys))) if ids is None else ids
    if len(keys) <= small.SMALL:
        order = np.argsort(keys, kind="stable")
        return keys[order], numbers[order]
    if within > 1:
        begin = bounds(keys, within)
        groups = keys[begin[:-1]] // within
        if len(groups) > MOST and (groups[1:] > groups[:-1]).all():
            rows = Ordered(begin, keys.copy(), numbers if ids is None else ids.copy(), 0)
            _sort_rows(rows, within, keyed=True)
            return rows.minors, rows.values
    total = bits_of(int(keys.max()) + 1)
    bits = minor_bits(len(keys), total)
    ordered = put_in_order([keys], numbers, (1 << total,), bits=bits)
    return keys_of(ordered, bits), ordered.values


def minor_bits(count: int, total: int) -> int:
    """Return how many of *total* bits the minor has, so that each major has a few of *count*."""
    return min(max(total - bits_of(max(count, 2)) + 3, 1), total)


def sum_repeated(elements: Ordered, item: DType) -> Ordered:
    """Return *elements*, sorted and of type *item*, with repeated ones summed.

    Floats of 16 bits are added in float32; booleans by "or".
    """
    if not elements.repeated:
        return elements
    if len(elements.minors) <= small.MATRIX and item.kind != "bfloat":
        return Ordered(*small.sum_repeated(elements.arrays, item), 0)
    plan = Plan.of(len(elements.minors), elements.majors, 1)
    lengths = np.empty(elements.majors, elements.pointers.dtype)
    size = plan.buckets, plan.majors, plan.wide
    pointer, minor, _ = _types(elements)
    unique = programs.unique(pointer, minor)
    unique(elements.pointers[1:], elements.minors, lengths, plan.n, *size)
    ends = running(lengths).astype(elements.pointers.dtype)
    count = int(ends[-1])
    minors, sums = (np.empty(count, array.dtype) for array in (elements.minors, elements.values))
    result = Ordered(ends, minors, sums, 0)
    kind = np.uint8 if item.kind == "bool" else item.numpy_name
    values = [x.view(kind) for x in (elements.values, result.values)]
    wider = float32 if item.is_float and item.bits == 16 else item
    arrays = elements.minors, values[0], ends[1:], result.minors, values[1]
    add = programs.add(pointer, minor, str(item), str(wider))
    add(elements.pointers[1:], *arrays, plan.n, count, *size)
    return result


def majors_of(pointers: Array, count: int, kind: Any) -> Array:
    """Return the major of each of *count* elements, as *kind*."""
    if count <= small.MATRIX:
        return small.majors_of(pointers, kind)
    majors = empty(count, kind)
    plan = Plan.of(count, len(pointers) - 1, 1)
    expand = programs.expand(str(pointers.dtype), str(majors.dtype))
    expand(pointers[1:], majors, count, plan.buckets, plan.majors, plan.wide)
    return majors


def keys_of(elements: Ordered, bits: int) -> Array:
    """Return the keys of elements whose minors have *bits*, as int64."""
    keys = majors_of(elements.pointers, len(elements.minors), np.int64)
    keys <<= bits
    keys |= elements.minors
    return keys


def refuse_outside(axes: Sequence[Array], shape: Sequence[int]) -> None:
    """Raise ArgumentError for the first coordinate of *axes* that is not inside of *shape*."""
    for dim, (coordinates, extent) in enumerate(zip(axes, shape, strict=True)):
        wrong = np.flatnonzero((coordinates < 0) | (coordinates >= extent))
        if len(wrong):
            at = int(wrong[0])
            expected = f"0..{extent - 1}" if extent else "none (the extent is 0)"
            raise ArgumentError(
                f"coordinates of axis {dim}: got {coordinates[at]} at position {at},"
                f" expected {expected}"
            )
