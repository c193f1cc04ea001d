"""At a conversion: the levels of a format, one after the other, from elements in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from spcomp.compiler.conversions_small import changes
from spcomp.compiler.conversions_sort import (
    BITS,
    Ordered,
    added_up,
    are_in_order,
    bits_of,
    index_type,
    keys_of,
    put_in_order,
    shifts_of,
)
from spcomp.compiler.conversions_source import Elements, item_type
from spcomp.compiler.formats_fill import MOST
from spcomp.compiler.formats_sort import running
from spcomp.compiler.tensor import Tensor, put_together
from spcomp.compiler.tensor_levels import Level
from spcomp.compiler.validate import homes, rise
from spcomp.errors import ArgumentError
from spcomp.formats.format import SLOTS, Format
from spcomp.formats.levels import LevelFormat
from spcomp.ir.axis import EMPTY

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Duplicates: TypeAlias = Literal["sum", "error", "keep"]
LARGEST = 1 << 46  # positions of a tensor
PADDED = ("fixed", "offset")  # levels whose positions are mostly padding where they do not fit


@dataclass(frozen=True, slots=True, eq=False)
class _Sorted:
    """Elements in order; *axes*: coordinates, by level; *distinct*: none is there twice."""

    axes: Sequence[Array]
    values: Array
    distinct: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """The elements that share a place on a level, and those it has: *count*.

    *first*: the first element of each group, ascending; *position*: its place, None: that of the
    group among the groups; *coordinate*: what it has at this level.
    """

    first: Array
    position: Array | None
    coordinate: Array
    count: int


def build(
    elements: Elements, layout: Format, duplicates: Duplicates, *, compiled: bool = True
) -> Tensor:
    """Return a Tensor in the format *layout* of *elements*.

    Index arrays are int64 where 32 bits do not hold them. *compiled*: many elements are sorted by
    programs, which are made when they are first needed. Raises ArgumentError.
    """
    _refuse_kinds(layout, duplicates)
    shape = elements.shape
    extents = [1 if extent is None else extent for extent in layout.extents(shape)]
    if SLOTS in layout.order:
        at = layout.order.index(SLOTS)
        one = _ordered(elements, elements.coordinates, shape, duplicates)
        elements = Elements(shape, tuple(one.axes), one.values)
    axes = _level_coordinates(elements, layout)
    if SLOTS in layout.order:
        axes[at] = _slots(axes, at)
        extents[at] = int(axes[at].max(initial=0)) + 1
    if compiled:
        ordered = _ordered(elements, axes, extents, duplicates, layout)
    else:
        ordered = _by_comparison(elements, axes, duplicates, layout)
    return _made(ordered, shape, extents, layout)


def from_ascending(
    shape: tuple[int, ...], axes: Sequence[Array], values: Array, layout: Format
) -> Tensor:
    """Return a Tensor in *layout*, a level for each dimension, of elements in its order.

    *axes*: their coordinates by level. None is there twice.
    """
    return _made(_Sorted(axes, values), shape, [shape[dim] for dim in layout.order], layout)


def _made(
    ordered: _Sorted, shape: tuple[int, ...], extents: Sequence[int], layout: Format
) -> Tensor:
    levels, groups = _levels(ordered, layout, extents)
    values = _placed(ordered, groups[-1])
    kind = index_type_of(layout, *shape, *(group.count for group in groups))
    made = tuple(None if level is None else frozen(level, kind) for level in levels)
    return put_together(shape, made, values, layout.order)


def how_of(duplicates: Any) -> Duplicates:
    """Return what is asked for repeated elements; ``"refuse"`` is what 0.6 called ``"error"``."""
    known: dict[object, Duplicates] = {one: one for one in get_args(Duplicates)}
    known["refuse"] = "error"
    if isinstance(duplicates, str) and duplicates in known:
        return known[duplicates]
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
    """Return the coordinates of elements on each level; 0 where that stores no dimension."""
    found = []
    for kind, dim, stride in zip(layout.kinds, layout.order, layout.strides(), strict=True):
        if dim == SLOTS:
            found.append(np.zeros_like(elements.coordinates[0]))
            continue
        own = elements.coordinates[dim]
        own = own if stride == 1 else own // stride
        found.append(own if kind.size is None else own % kind.size)
    return [np.ascontiguousarray(own, found[0].dtype) for own in found]


def _slots(axes: Sequence[Array], at: int) -> Array:
    """Return the number of each element among those that differ in the last level only."""
    n = len(axes[at])
    others = [*axes[:at], *axes[at + 1 : -1]] or [np.zeros(n, bool)]
    in_order = rise([*others, axes[-1]])
    order = np.arange(n) if in_order else np.lexsort([axes[-1], *others])
    begins = np.flatnonzero(changes([own[order] for own in others]))
    since = np.zeros(n, np.int64)
    since[begins] = begins
    found = np.empty_like(axes[at])
    found[order] = np.arange(n) - np.maximum.accumulate(since)
    return found


def _ordered(
    elements: Elements,
    axes: Sequence[Array],
    extents: Sequence[int],
    duplicates: Duplicates,
    layout: Format | None = None,
) -> _Sorted:
    """Return *elements* sorted by *axes*, repeated ones treated as asked.

    *layout*: the format of whose levels they are the coordinates; None: of the dimensions.
    """
    item, total = item_type(elements.values), sum(map(bits_of, extents))
    if are_in_order(axes, extents):
        return _Sorted([own.copy() for own in axes], elements.values.copy())
    if total > BITS:
        return _by_comparison(elements, axes, duplicates, layout)
    bits = min(max(total - bits_of(max(len(elements.values), 2)) + 3, 1), total)
    found = put_in_order(axes, np.ascontiguousarray(elements.values), extents, bits=bits)
    if found.repeated and duplicates == "error":
        keys = keys_of(found, bits)
        twice = keys[:-1][keys[1:] == keys[:-1]][:1]
        refuse_repeated(_where([int(own[0]) for own in _unpacked(twice, extents)], layout))
    if duplicates == "sum":
        found = added_up(found, item)
    distinct = duplicates == "sum" or not found.repeated
    return _Sorted(_unpacked(keys_of(found, bits), extents), found.values, distinct)


def _by_comparison(
    elements: Elements, axes: Sequence[Array], duplicates: Duplicates, layout: Format | None
) -> _Sorted:
    """Do the same for coordinates that are too large for keys."""
    order = np.lexsort(list(axes)[::-1])
    axes, values = [own[order] for own in axes], elements.values[order]
    new = changes(axes)
    distinct = bool(new.all())
    if distinct or duplicates == "keep":
        return _Sorted(axes, values, distinct)
    if duplicates == "error":
        refuse_repeated(_where([int(own[~new][0]) for own in axes], layout))
    number = np.cumsum(new)
    whole = np.array([0, len(order)])
    added = added_up(Ordered(whole, number, values, 1), item_type(values))
    return _Sorted([own[new] for own in axes], added.values)


def _where(levels: Sequence[int], layout: Format | None) -> list[int]:
    """Return the coordinates of an element by dimension, from those on its *levels*."""
    if layout is None:
        return list(levels)
    found = [0] * layout.rank
    for own, dim, stride in zip(levels, layout.order, layout.strides(), strict=True):
        if dim != SLOTS:
            found[dim] += own * stride
    return found


def refuse_repeated(at: Sequence[int]) -> None:
    """Raise the ArgumentError for an element that is there twice, *at* these coordinates."""
    where = ", ".join(map(str, at))
    raise ArgumentError(
        f"argument x: has an element twice, at ({where})", hint='duplicates="sum" adds them up'
    )


def _unpacked(keys: Array, extents: Sequence[int]) -> list[Array]:
    every = zip(shifts_of(extents), extents, strict=True)
    return [keys >> shift & (1 << bits_of(extent)) - 1 for shift, extent in every]


# -- levels --------------------------------------------------------------------------------------


def _levels(
    ordered: _Sorted, layout: Format, extents: Sequence[int]
) -> tuple[list[Level | None], list[_Group]]:
    """Return the levels, and what lies on each."""
    n, last = len(ordered.values), len(layout.order) - 1
    root = np.zeros(min(n, 1), np.int64)
    group, new = _Group(root, None, root, 1), np.zeros(n, bool)
    new[:1], above = True, np.zeros(n, np.int64)
    levels: list[Level | None] = []
    groups: list[_Group] = []
    for at, (kind, own, extent) in enumerate(zip(layout.kinds, ordered.axes, extents, strict=True)):
        if not kind.unique or (ordered.distinct and at == last and kind.name != "runs"):
            first, parent, coordinate = np.arange(n), above, own
            new[:] = True
        else:
            new[1:] |= _differs(kind, own, ordered.values)
            first = np.flatnonzero(new)
            parent, coordinate = above[first], own[first]
        above = first if len(first) == n else np.cumsum(new) - 1
        fiber = parent if group.position is None else group.position[parent]
        below = _Below(kind, extent, group, parent, fiber, coordinate)
        if kind.name == "runs":
            below = replace(below, last=own[np.append(first[1:], n)[: len(first)] - 1])
        level, position, count = _MAKE[kind.name](below)
        _room(count, n if kind.name in PADDED else None)
        group = _Group(first, position, coordinate, count)
        levels.append(level)
        groups.append(group)
    return levels, groups


def _differs(kind: LevelFormat, own: Array, values: Array) -> Array:
    """Whether each element but the first is apart from the one before it on a level."""
    apart: Array = own[1:] != own[:-1]
    if kind.name == "runs":
        bits = values.view(f"u{values.itemsize}")
        apart = (own[1:] != own[:-1] + 1) | (bits[1:] != bits[:-1])
    return apart


@dataclass(frozen=True, slots=True, eq=False)
class _Below:
    """What lies below the groups of a level: coordinates, ascending for each *parent*."""

    kind: LevelFormat
    extent: int
    above: _Group
    parent: Array
    fiber: Array  # that each lies in: the position of the parent
    coordinate: Array
    last: Array | None = None  # coordinate of each run

    @property
    def counts(self) -> Array:
        """How many each fiber has."""
        return np.bincount(self.fiber, minlength=self.above.count)

    @property
    def within(self) -> Array:
        """The number of each in its fiber."""
        since = np.searchsorted(self.parent, np.arange(len(self.above.first)))
        found: Array = np.arange(len(self.parent)) - since[self.parent]
        return found


Made: TypeAlias = tuple[Level | None, Array | None, int]


def _dense(below: _Below) -> Made:
    level = None if below.kind.size is None else Level("dense", size=below.kind.size)
    return level, below.fiber * below.extent + below.coordinate, below.above.count * below.extent


def _bitmap(below: _Below) -> Made:
    _, position, count = _dense(below)
    mask = np.zeros(_room(count), bool)
    mask[position] = True
    return Level("bitmap", mask=mask), position, count


def _compressed(below: _Below) -> Made:
    count, fiber, own = len(below.coordinate), below.fiber, below.coordinate
    position = None
    if (fiber[1:] < fiber[:-1]).any():  # below a hash table
        order = np.argsort(fiber, kind="stable")
        position, own = np.empty_like(order), own[order]
        position[order] = np.arange(count)
    return Level("compressed", running(below.counts), own), position, count


def _runs(below: _Below) -> Made:
    made, position, count = _compressed(below)
    assert made is not None
    assert below.last is not None
    ends = below.last + 1
    if position is not None:
        ends[position] = below.last + 1
    return replace(made, kind="runs", ends=ends), position, count


def _singleton(below: _Below) -> Made:
    fiber = below.fiber
    if len(fiber) and int(below.counts.max()) > 1:
        raise ArgumentError(
            "argument format: a singleton level has place for one coordinate below each of the"
            " level above, the tensor has several",
            hint="the level above has to be nonunique, as in coo, or this one compressed",
        )
    indices = np.full(_room(below.above.count), EMPTY, np.int64)
    indices[fiber] = below.coordinate
    return Level("singleton", indices=indices), fiber, below.above.count


def _ragged(below: _Below) -> Made:
    lengths = np.zeros(_room(below.above.count), np.int64)
    np.maximum.at(lengths, below.fiber, below.coordinate + 1)
    ends = running(lengths)
    return Level("ragged", ends), ends[below.fiber] + below.coordinate, int(ends[-1])


def _fixed(below: _Below) -> Made:
    within = below.within
    width = int(within.max(initial=-1)) + 1
    indices = np.full(_room(below.above.count * width, len(within)), EMPTY, np.int64)
    position = below.fiber * width + within
    indices[position] = below.coordinate
    table: Array = indices.reshape(below.above.count, width)
    return Level("fixed", indices=table), position, indices.size


def _offset(below: _Below) -> Made:
    offsets, which = np.unique(
        below.coordinate - below.above.coordinate[below.parent], return_inverse=True
    )
    count = below.above.count * len(offsets)
    return Level("offset", offsets=offsets), below.fiber * len(offsets) + which, count


def _hashed(below: _Below) -> Made:
    """Tables that are at most half full; the slots of each are taken in rounds."""
    sizes = np.ones(_room(below.above.count), np.int64)
    counts = below.counts
    some = counts > 0
    sizes[some] = 2 << np.ceil(np.log2(counts[some])).astype(np.int64)
    indptr = running(sizes)
    size, start = sizes[below.fiber], indptr[below.fiber]
    home = homes(below.coordinate, size)
    indices = np.full(_room(int(indptr[-1])), EMPTY, np.int64)
    position = np.zeros(len(home), np.int64)
    left, step, first = np.arange(len(home)), 0, np.empty_like(indices)
    while len(left):
        slot = start[left] + (home[left] + step & size[left] - 1)
        free = indices[slot] == EMPTY
        first[slot[::-1]] = left[::-1]  # of those that come to a slot: the last one written
        takes = free & (first[slot] == left)
        slot, taker = slot[takes], left[takes]
        indices[slot], position[taker] = below.coordinate[taker], slot
        left, step = left[~takes], step + 1
    return Level("hashed", indptr, indices), position, int(indptr[-1])


_MAKE: Mapping[str, Callable[[_Below], Made]] = {
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


def _room(count: int, held: int | None = None) -> int:
    """Return *count*, of positions; raises ArgumentError if it is out of proportion."""
    if count > LARGEST or (held is not None and count > MOST * held + (1 << 20)):
        raise ArgumentError(
            f"argument format: would have {count} positions",
            hint="the format does not fit this tensor",
        )
    return count


def _placed(ordered: _Sorted, group: _Group) -> Array:
    """Return the values of all positions, 0 where no element is."""
    whole = len(group.first) == len(ordered.values)
    own = ordered.values if whole else ordered.values[group.first]
    if group.position is None:
        return own
    values = np.zeros(group.count, own.dtype)
    values[group.position] = own
    return values


def index_type_of(layout: Format, *sizes: int) -> np.dtype[Any]:
    """Return the type of index arrays in *layout*: int64 if it asks so, or *sizes* need it."""
    return np.dtype(np.int64) if layout.idtype.bits > 32 else index_type(*sizes)


def frozen(level: Level, kind: Any) -> Level:
    """Return *level* with its arrays as *kind*, read-only: nobody else has them."""
    arrays: dict[str, Any] = {}
    for name in ("indptr", "indices", "mask", "offsets", "ends"):
        array = getattr(level, name)
        if array is not None:
            array = np.ascontiguousarray(array, None if name == "mask" else kind)
            array.setflags(write=False)
        arrays[name] = array
    return replace(level, **arrays)
