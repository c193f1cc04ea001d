"""At a conversion: the levels of a format, built in turn from sorted elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.formats.format import SLOTS, Format
from spcomp.formats.levels import LevelFormat
from spcomp.ir.axis import EMPTY
from spcomp.tensors.checks import homes, strictly_sorted
from spcomp.tensors.conversions.elements import Elements, item_type
from spcomp.tensors.conversions.keys import BITS, Ordered, bits_of, index_type, shifts_of
from spcomp.tensors.conversions.order import (
    are_in_order,
    keys_of,
    minor_bits,
    put_in_order,
    sum_repeated,
)
from spcomp.tensors.conversions.small import changes, running
from spcomp.tensors.levels import MOST_PADDED, Level
from spcomp.tensors.tensor import Tensor, tensor_of_levels

Duplicates: TypeAlias = Literal["sum", "error", "keep"]
LARGEST = 1 << 46  # positions of a tensor
PADDED = ("fixed", "offset")  # levels that are mostly padding if they do not fit the tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Sorted:
    """Sorted elements; *axes*: coordinates by level; *distinct*: none is repeated."""

    axes: Sequence[Array]
    values: Array
    distinct: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """The groups of elements that share a position on a level of *count* positions.

    *first*: the first element of each group, ascending; *position*: that of each group, None for
    0, 1, 2, ...; *coordinate*: that of each group on this level.
    """

    first: Array
    position: Array | None
    coordinate: Array
    count: int


def build(
    elements: Elements, layout: Format, duplicates: Duplicates, *, compiled: bool = True
) -> Tensor:
    """Return *elements* as a Tensor in the format *layout*.

    Index arrays are int64 where int32 is too narrow. *compiled*: many elements are sorted by
    programs, which are compiled at first use. Raises ArgumentError.
    """
    _refuse_kinds(layout, duplicates)
    shape = elements.shape
    extents = [1 if extent is None else extent for extent in layout.extents(shape)]
    if SLOTS in layout.order:
        at = layout.order.index(SLOTS)
        by_dimension = _ordered(elements, elements.coordinates, shape, duplicates)
        elements = Elements(shape, tuple(by_dimension.axes), by_dimension.values)
    axes = _level_coordinates(elements, layout)
    if SLOTS in layout.order:
        axes[at] = _slots(axes, at)
        extents[at] = int(axes[at].max(initial=0)) + 1
    if compiled:
        ordered = _ordered(elements, axes, extents, duplicates, layout)
    else:
        ordered = _by_comparison(elements, axes, duplicates, layout)
    return _tensor_of(ordered, shape, extents, layout)


def from_ascending(
    shape: tuple[int, ...], axes: Sequence[Array], values: Array, layout: Format
) -> Tensor:
    """Return a Tensor in *layout*, with a level per dimension, of distinct elements in its order.

    *axes*: their coordinates by level.
    """
    return _tensor_of(_Sorted(axes, values), shape, [shape[dim] for dim in layout.order], layout)


def _tensor_of(
    ordered: _Sorted, shape: tuple[int, ...], extents: Sequence[int], layout: Format
) -> Tensor:
    levels, groups = _levels(ordered, layout, extents, loose=has_large_blocks(layout, shape))
    values = _values_by_position(ordered, groups[-1])
    kind = index_type_of(layout, *shape, *(group.count for group in groups))
    frozen_levels = tuple(None if level is None else frozen(level, kind) for level in levels)
    return tensor_of_levels(shape, frozen_levels, values, layout.order)


def checked_duplicates(duplicates: Any) -> Duplicates:
    """Return the valid option *duplicates*; ``"refuse"`` is the name of ``"error"`` in 0.6."""
    choices: dict[object, Duplicates] = {choice: choice for choice in get_args(Duplicates)}
    choices["refuse"] = "error"
    if isinstance(duplicates, str) and duplicates in choices:
        return choices[duplicates]
    raise ArgumentError(
        f'argument duplicates: got {duplicates!r}, expected "sum", "error" or "keep"'
    )


def _refuse_kinds(layout: Format, duplicates: Duplicates) -> None:
    kinds = layout.kinds
    if duplicates == "keep" and all(kind.unique for kind in kinds if kind.name != "singleton"):
        raise ArgumentError(
            f"argument duplicates: a format {layout} has no place for repeated elements",
            hint='its innermost sparse level would have to be nonunique: "coo", or'
            ' "dense,compressed(nonunique)"',
        )
    if any(kind.name == "runs" for kind in kinds[:-1]):
        raise ArgumentError(f"argument format: {layout} has a level below runs")


def _level_coordinates(elements: Elements, layout: Format) -> list[Array]:
    """Return the coordinates of elements on each level; 0 if the level stores no dimension."""
    axes = []
    for kind, dim, stride in zip(layout.kinds, layout.order, layout.strides(), strict=True):
        if dim == SLOTS:
            axes.append(np.zeros_like(elements.coordinates[0]))
            continue
        axis = elements.coordinates[dim]
        axis = axis if stride == 1 else axis // stride
        axes.append(axis if kind.size is None else axis % kind.size)
    return [np.ascontiguousarray(axis, axes[0].dtype) for axis in axes]


def _slots(axes: Sequence[Array], at: int) -> Array:
    """Return the number of each element among those that differ in the last level only."""
    n = len(axes[at])
    others = [*axes[:at], *axes[at + 1 : -1]] or [np.zeros(n, bool)]
    in_order = strictly_sorted([*others, axes[-1]])
    order = np.arange(n) if in_order else np.lexsort([axes[-1], *others])
    begins = np.flatnonzero(changes([axis[order] for axis in others]))
    since = np.zeros(n, np.int64)
    since[begins] = begins
    numbers = np.empty_like(axes[at])
    numbers[order] = np.arange(n) - np.maximum.accumulate(since)
    return numbers


def _ordered(
    elements: Elements,
    axes: Sequence[Array],
    extents: Sequence[int],
    duplicates: Duplicates,
    layout: Format | None = None,
) -> _Sorted:
    """Return *elements* sorted by *axes*, with *duplicates* applied.

    *layout*: the format whose levels *axes* belong to; None: they belong to dimensions.
    """
    item, total = item_type(elements.values), sum(map(bits_of, extents))
    if are_in_order(axes, extents):
        return _Sorted([axis.copy() for axis in axes], elements.values.copy())
    if total > BITS:
        return _by_comparison(elements, axes, duplicates, layout)
    bits = minor_bits(len(elements.values), total)
    ordered = put_in_order(axes, np.ascontiguousarray(elements.values), extents, bits=bits)
    if ordered.repeated and duplicates == "error":
        keys = keys_of(ordered, bits)
        twice = keys[:-1][keys[1:] == keys[:-1]][:1]
        refuse_repeated(
            _by_dimension([int(axis[0]) for axis in _coordinates_of(twice, extents)], layout)
        )
    if duplicates == "sum":
        ordered = sum_repeated(ordered, item)
    distinct = duplicates == "sum" or not ordered.repeated
    return _Sorted(_coordinates_of(keys_of(ordered, bits), extents), ordered.values, distinct)


def _by_comparison(
    elements: Elements, axes: Sequence[Array], duplicates: Duplicates, layout: Format | None
) -> _Sorted:
    """Return the result of :func:`_ordered` for coordinates that are too large for keys."""
    order = np.lexsort(list(axes)[::-1])
    axes, values = [axis[order] for axis in axes], elements.values[order]
    new = changes(axes)
    distinct = bool(new.all())
    if distinct or duplicates == "keep":
        return _Sorted(axes, values, distinct)
    if duplicates == "error":
        refuse_repeated(_by_dimension([int(axis[~new][0]) for axis in axes], layout))
    number = np.cumsum(new)
    whole = np.array([0, len(order)])
    added = sum_repeated(Ordered(whole, number, values, 1), item_type(values))
    return _Sorted([axis[new] for axis in axes], added.values)


def _by_dimension(levels: Sequence[int], layout: Format | None) -> list[int]:
    """Return the coordinates of an element by dimension, from those by level."""
    if layout is None:
        return list(levels)
    coordinates = [0] * layout.rank
    for coordinate, dim, stride in zip(levels, layout.order, layout.strides(), strict=True):
        if dim != SLOTS:
            coordinates[dim] += coordinate * stride
    return coordinates


def refuse_repeated(at: Sequence[int]) -> None:
    """Raise the ArgumentError for a repeated element with coordinates *at*."""
    where = ", ".join(map(str, at))
    raise ArgumentError(
        f"argument x: has an element twice, at ({where})", hint='duplicates="sum" adds them up'
    )


def _coordinates_of(keys: Array, extents: Sequence[int]) -> list[Array]:
    fields = zip(shifts_of(extents), extents, strict=True)
    return [keys >> shift & (1 << bits_of(extent)) - 1 for shift, extent in fields]


# -- levels --------------------------------------------------------------------------------------


def has_large_blocks(layout: Format, shape: Sequence[int]) -> bool:
    """Return whether blocks of *layout* are larger than a tensor of *shape*, along a dimension."""
    sizes = zip(layout.kinds, layout.order, strict=True)
    return any(kind.size is not None and kind.size > shape[dim] for kind, dim in sizes)


def _levels(
    ordered: _Sorted, layout: Format, extents: Sequence[int], *, loose: bool
) -> tuple[list[Level | None], list[_Group]]:
    """Return the levels, and the groups of elements on each.

    *loose*: levels of any kind may be mostly padding, which is refused.
    """
    n, last = len(ordered.values), len(layout.order) - 1
    root = np.zeros(min(n, 1), np.int64)
    group, new = _Group(root, None, root, 1), np.zeros(n, bool)
    new[:1], above = True, np.zeros(n, np.int64)
    levels: list[Level | None] = []
    groups: list[_Group] = []
    for at, (kind, axis, extent) in enumerate(
        zip(layout.kinds, ordered.axes, extents, strict=True)
    ):
        if not kind.unique or (ordered.distinct and at == last and kind.name != "runs"):
            first, parent, coordinate = np.arange(n), above, axis
            new[:] = True
        else:
            new[1:] |= _begins_group(kind, axis, ordered.values)
            first = np.flatnonzero(new)
            parent, coordinate = above[first], axis[first]
        above = first if len(first) == n else np.cumsum(new) - 1
        fiber = parent if group.position is None else group.position[parent]
        below = _Below(kind, extent, group, parent, fiber, coordinate)
        if kind.name == "runs":
            below = replace(below, last=axis[np.append(first[1:], n)[: len(first)] - 1])
        level, position, count = _MAKE[kind.name](below)
        checked_count(count, n if loose or kind.name in PADDED else None)
        group = _Group(first, position, coordinate, count)
        levels.append(level)
        groups.append(group)
    return levels, groups


def _begins_group(kind: LevelFormat, axis: Array, values: Array) -> Array:
    """Whether each element but the first begins a group on a level of *kind*."""
    apart: Array = axis[1:] != axis[:-1]
    if kind.name == "runs":
        bits = values.view(f"u{values.itemsize}")
        apart = (axis[1:] != axis[:-1] + 1) | (bits[1:] != bits[:-1])
    return apart


@dataclass(frozen=True, slots=True, eq=False)
class _Below:
    """The coordinates below the groups of a level, ascending for each *parent*."""

    kind: LevelFormat
    extent: int
    above: _Group
    parent: Array
    fiber: Array  # the position of the parent
    coordinate: Array
    last: Array | None = None  # last coordinate of each run

    @property
    def counts(self) -> Array:
        """The number of coordinates of each fiber."""
        return np.bincount(self.fiber, minlength=self.above.count)

    @property
    def within(self) -> Array:
        """The number of each coordinate in its fiber."""
        since = np.searchsorted(self.parent, np.arange(len(self.above.first)))
        numbers: Array = np.arange(len(self.parent)) - since[self.parent]
        return numbers


NewLevel: TypeAlias = tuple[Level | None, Array | None, int]


def _dense(below: _Below) -> NewLevel:
    level = None if below.kind.size is None else Level("dense", size=below.kind.size)
    return level, below.fiber * below.extent + below.coordinate, below.above.count * below.extent


def _bitmap(below: _Below) -> NewLevel:
    _, position, count = _dense(below)
    mask = np.zeros(checked_count(count), bool)
    mask[position] = True
    return Level("bitmap", mask=mask), position, count


def _compressed(below: _Below) -> NewLevel:
    count, fiber, indices = len(below.coordinate), below.fiber, below.coordinate
    position = None
    if (fiber[1:] < fiber[:-1]).any():  # below a hash table
        order = np.argsort(fiber, kind="stable")
        position, indices = np.empty_like(order), indices[order]
        position[order] = np.arange(count)
    return Level("compressed", running(below.counts), indices), position, count


def _runs(below: _Below) -> NewLevel:
    level, position, count = _compressed(below)
    assert level is not None
    assert below.last is not None
    ends = below.last + 1
    if position is not None:
        ends[position] = below.last + 1
    return replace(level, kind="runs", ends=ends), position, count


def _singleton(below: _Below) -> NewLevel:
    fiber = below.fiber
    if len(fiber) and int(below.counts.max()) > 1:
        raise ArgumentError(
            "argument format: a singleton level has place for one coordinate below each of the"
            " level above, the tensor has several",
            hint="the level above has to be nonunique, as in coo, or this one compressed",
        )
    indices = np.full(checked_count(below.above.count), EMPTY, np.int64)
    indices[fiber] = below.coordinate
    return Level("singleton", indices=indices), fiber, below.above.count


def _ragged(below: _Below) -> NewLevel:
    lengths = np.zeros(checked_count(below.above.count), np.int64)
    np.maximum.at(lengths, below.fiber, below.coordinate + 1)
    ends = running(lengths)
    return Level("ragged", ends), ends[below.fiber] + below.coordinate, int(ends[-1])


def _fixed(below: _Below) -> NewLevel:
    within = below.within
    width = int(within.max(initial=-1)) + 1
    indices = np.full(checked_count(below.above.count * width, len(within)), EMPTY, np.int64)
    position = below.fiber * width + within
    indices[position] = below.coordinate
    table: Array = indices.reshape(below.above.count, width)
    return Level("fixed", indices=table), position, indices.size


def _offset(below: _Below) -> NewLevel:
    offsets, which = np.unique(
        below.coordinate - below.above.coordinate[below.parent], return_inverse=True
    )
    count = below.above.count * len(offsets)
    return Level("offset", offsets=offsets), below.fiber * len(offsets) + which, count


def _hashed(below: _Below) -> NewLevel:
    """Hash tables that are at most half full; elements take slots in rounds."""
    sizes = np.ones(checked_count(below.above.count), np.int64)
    counts = below.counts
    filled = counts > 0
    sizes[filled] = 2 << np.ceil(np.log2(counts[filled])).astype(np.int64)
    indptr = running(sizes)
    size, start = sizes[below.fiber], indptr[below.fiber]
    home = homes(below.coordinate, size)
    indices = np.full(checked_count(int(indptr[-1])), EMPTY, np.int64)
    position = np.zeros(len(home), np.int64)
    waiting, step, first = np.arange(len(home)), 0, np.empty_like(indices)
    while len(waiting):
        slot = start[waiting] + (home[waiting] + step & size[waiting] - 1)
        free = indices[slot] == EMPTY
        first[slot[::-1]] = waiting[::-1]  # the first to come to a slot is written last
        takes = free & (first[slot] == waiting)
        slot, taker = slot[takes], waiting[takes]
        indices[slot], position[taker] = below.coordinate[taker], slot
        waiting, step = waiting[~takes], step + 1
    return Level("hashed", indptr, indices), position, int(indptr[-1])


_MAKE: Mapping[str, Callable[[_Below], NewLevel]] = {
    "dense": _dense,
    "bitmap": _bitmap,
    "compressed": _compressed,
    "runs": _runs,
    "singleton": _singleton,
    "ragged": _ragged,
    "fixed": _fixed,
    "offset": _offset,
    "hashed": _hashed,
}


def checked_count(count: int, elements: int | None = None) -> int:
    """Return *count*, a number of positions; raises ArgumentError if it is too large."""
    if count > LARGEST or (elements is not None and count > MOST_PADDED * elements + (1 << 20)):
        raise ArgumentError(
            f"argument format: would have {count} positions",
            hint="the format does not fit this tensor",
        )
    return count


def _values_by_position(ordered: _Sorted, group: _Group) -> Array:
    """Return the values of all positions, 0 where there is no element."""
    whole = len(group.first) == len(ordered.values)
    stored = ordered.values if whole else ordered.values[group.first]
    if group.position is None:
        return stored
    values = np.zeros(group.count, stored.dtype)
    values[group.position] = stored
    return values


def index_type_of(layout: Format, *sizes: int) -> np.dtype[Any]:
    """Return the index type of *layout*: int64 if it says so, or if *sizes* need it."""
    return np.dtype(np.int64) if layout.idtype.bits > 32 else index_type(*sizes)


def frozen(level: Level, kind: Any) -> Level:
    """Return *level* with its arrays as read-only *kind*; nobody else has these arrays."""
    arrays: dict[str, Any] = {}
    for name in ("indptr", "indices", "mask", "offsets", "ends"):
        array = getattr(level, name)
        if array is not None:
            array = np.ascontiguousarray(array, None if name == "mask" else kind)
            array.setflags(write=False)
        arrays[name] = array
    return replace(level, **arrays)
