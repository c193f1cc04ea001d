"""Below a Tensor: the arrays of each of its levels, checked, and the coordinates they hold.

``formats.levels`` describes the kinds of levels; here their arrays are checked and unfolded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.formats.levels import LEVELS
from spcomp.ir.axis import EMPTY
from spcomp.tensors import checks as validate

MOST_PADDED = 256  # values stored for an element, padding included
_SHAPES = ", ".join(f"({', '.join((repr(k), *v.arrays))})" for k, v in LEVELS.items() if v.arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The storage of one level that is not simply dense: its kind, and the arrays of that kind.

    *size*: the number of coordinates of a dense level that holds part of a split dimension.
    """

    kind: str
    indptr: Array | None = None
    indices: Array | None = None
    mask: Array | None = None
    offsets: Array | None = None
    ends: Array | None = None
    size: int | None = field(default=None, kw_only=True)

    @property
    def spec(self) -> tuple[Any, ...]:
        """The kind and the arrays, as the constructor of a Tensor takes them."""
        arrays = [getattr(self, name) for name in LEVELS[self.kind].arrays]
        return (self.kind, *arrays) if self.size is None else (self.kind, self.size)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The index arrays."""
        attributes = (getattr(self, attribute.name) for attribute in fields(self))
        return tuple(array for array in attributes if isinstance(array, np.ndarray))

    @property
    def text(self) -> str:
        """The kind as it is written in a format."""
        return self.kind if self.size is None else f"{self.kind}({self.size})"


Key: TypeAlias = "int | slice"  # of a dimension: one coordinate, or several
LevelSpec: TypeAlias = Level | tuple[Any, ...] | None


class Paths(NamedTuple):
    """The elements down to a level: for each, its number above, coordinate and position.

    None stands for 0, 1, 2, ..., which needs no array.
    """

    above: Array | None
    coordinates: Array
    positions: Array | None


def level_of(at: int, spec: LevelSpec) -> Level | None:
    """Return the level of *spec*, with private copies of its arrays; raises ArgumentError."""
    if spec is None:
        return None
    if isinstance(spec, Level):
        spec = spec.spec
    kind = str(spec[0]) if isinstance(spec, tuple) and spec else ""
    if kind == "dense" and len(spec) == 2 and isinstance(spec[1], int) and spec[1] > 0:
        return Level("dense", size=spec[1])
    names = LEVELS[kind].arrays if kind in LEVELS else ()
    if not names or len(spec) != 1 + len(names):
        raise ArgumentError(
            f"argument levels: entry {at} is not a level",
            hint=f'a level is None, ("dense", size), {_SHAPES}',
        )
    arrays: dict[str, Any] = {
        name: _frozen(f"level {at} {name}", array, mask=name == "mask")
        for name, array in zip(names, spec[1:], strict=True)
    }
    return Level(kind, **arrays)


def _frozen(who: str, array: Any, *, mask: bool) -> Array:
    """A private, read-only copy of an index array, so that nobody changes it after the check."""
    frozen = array if isinstance(array, np.ndarray) else validate.as_array(who, array)
    if mask and frozen.dtype.kind == "b":
        return validate.private(validate.plain(who, frozen))
    if mask and frozen.dtype.kind not in "iu":
        raise ArgumentError(f"argument {who}: got dtype {frozen.dtype}, expected bool or integers")
    frozen = validate.index_array(who, frozen)
    return validate.private(frozen != 0 if mask else frozen)


# -- checks --------------------------------------------------------------------------------------


def positions(at: int, level: Level | None, extent: int | None, fibers: int, above: int) -> int:
    """Return the number of positions of level *at*, below *fibers*; raises ArgumentError.

    *extent*: its number of coordinates, None if it stores no dimension; *above*: that of the level
    above.
    """
    if level is None:
        return fibers * cast("int", extent)
    if level.kind == "dense":
        return fibers * cast("int", level.size)
    return _CHECKS[level.kind](f"level {at}", level, extent, fibers, above)


def _one_dimensional(who: str, array: Array) -> None:
    if array.ndim != 1:
        raise ArgumentError(f"argument {who}: got shape {array.shape}, expected 1-D")


def _compressed(who: str, level: Level, extent: int, fibers: int, above: int) -> int:  # noqa: ARG001
    indptr, indices = cast("Array", level.indptr), cast("Array", level.indices)
    validate.pointers(f"{who} indptr", indptr, fibers, indices.size, exact=True)
    _one_dimensional(f"{who} indices", indices)
    low = EMPTY if level.kind == "hashed" else 0
    validate.in_range(f"{who} indices", indices, low, extent - 1)
    if level.kind == "hashed":
        validate.tables(f"{who} indices", indptr, indices)
    if level.ends is not None:
        _one_dimensional(f"{who} ends", level.ends)
        validate.runs(who, indptr, indices, level.ends, extent)
    return int(indices.size)


def _ragged(who: str, level: Level, extent: int | None, fibers: int, above: int) -> int:  # noqa: ARG001
    indptr = cast("Array", level.indptr)
    validate.pointers(f"{who} indptr", indptr, fibers, math.inf, exact=True)
    if extent is not None:
        validate.fits(f"{who} indptr", indptr, extent)
    return int(indptr[-1])


def _listed(who: str, level: Level, extent: int, fibers: int, above: int) -> int:  # noqa: ARG001
    indices = cast("Array", level.indices)
    fixed = level.kind == "fixed"
    if indices.ndim != 1 + fixed or indices.shape[0] != fibers:
        raise ArgumentError(
            f"argument {who} indices: got shape {indices.shape},"
            f" expected ({fibers},{' width' if fixed else ''})"
        )
    validate.in_range(f"{who} indices", indices, EMPTY, extent - 1)
    return int(indices.size)


def _bitmap(who: str, level: Level, extent: int, fibers: int, above: int) -> int:  # noqa: ARG001
    mask = cast("Array", level.mask)
    if mask.size != fibers * extent:
        raise ArgumentError(
            f"argument {who} mask: got {mask.size} elements, expected {fibers * extent}"
            f" ({extent} for each of {fibers} fibers)"
        )
    return int(mask.size)


def _offset(who: str, level: Level, extent: int, fibers: int, above: int) -> int:
    offsets = cast("Array", level.offsets)
    _one_dimensional(f"{who} offsets", offsets)
    validate.in_range(f"{who} offsets", offsets, 1 - above, extent - 1)
    validate.require_order(
        f"{who} offsets", validate.ascends(None, offsets, offsets.size, strict=True), strict=True
    )
    return fibers * int(offsets.size)


_CHECKS: dict[str, Callable[..., int]] = {
    "compressed": _compressed,
    "hashed": _compressed,
    "runs": _compressed,
    "ragged": _ragged,
    "fixed": _listed,
    "singleton": _listed,
    "bitmap": _bitmap,
    "offset": _offset,
}


# -- coordinates ---------------------------------------------------------------------------------


def unfold(
    level: Level | None, extent: int | None, fibers: Array | None, count: int, above: Array
) -> Paths:
    """Return the elements of *level* below *count* fibers.

    *fibers*: their positions in the level above, None for all in order; *above*: their coordinates.
    """
    if level is not None and level.mask is not None and fibers is None:
        stored = np.flatnonzero(level.mask)
        return Paths(*np.divmod(stored, cast("int", extent)), stored)
    if level is None or level.kind in ("dense", "bitmap"):
        size = cast("int", extent)
        parent = np.arange(count).repeat(size)
        coordinates = np.tile(np.arange(size), count)
        where = None if fibers is None else fibers[parent] * size + coordinates
        paths = Paths(parent, coordinates, where)
        return paths if level is None or level.mask is None else _kept(paths, level.mask)
    if level.indptr is not None:
        return _delimited(level, level.indptr.astype(np.int64, copy=False), fibers)
    if level.offsets is not None:
        width = level.offsets.size
    else:
        width = cast("Array", level.indices).shape[1] if level.kind == "fixed" else 1
    at: Array | None = None if width == 1 else np.arange(count).repeat(width)
    which = np.tile(np.arange(width), count)
    where = None if fibers is None else take(fibers, at) * width + which
    if level.offsets is not None:
        coordinates = take(above, at) + level.offsets.astype(np.int64)[which]
        inside = (coordinates >= 0) & (coordinates < cast("int", extent))
    else:
        coordinates = take(cast("Array", level.indices).reshape(-1), where).astype(np.int64)
        inside = coordinates != EMPTY
    paths = Paths(at, coordinates, where)
    return paths if inside.all() else _inside(paths, inside)


def rows_are_distinct(indices: Array) -> bool:
    """Return whether no row of *indices* has a coordinate twice; padding may repeat."""
    keys = indices.view(f"u{indices.dtype.itemsize}")  # padding is larger than any coordinate
    free = np.iinfo(keys.dtype).max if indices.dtype.kind == "i" else -1

    def ascend(rows: Array) -> bool:
        return bool(((rows[:, 1:] > rows[:, :-1]) | (rows[:, 1:] == free)).all())

    return ascend(keys) or ascend(np.sort(keys, axis=1))


def take(array: Array, at: Array | None) -> Array:
    """Return the elements of *array* at the places *at*, or all for None."""
    return array if at is None else array[at]


def _inside(paths: Paths, inside: Array) -> Paths:
    kept = np.flatnonzero(inside)
    above, coordinates, where = paths
    above = kept if above is None else above[kept]
    return Paths(above, coordinates[kept], kept if where is None else where[kept])


def _kept(paths: Paths, mask: Array) -> Paths:
    return _inside(paths, take(mask.reshape(-1), paths.positions))


def _delimited(level: Level, indptr: Array, fibers: Array | None) -> Paths:
    where: Array | None = None
    begins = indptr[:-1] if fibers is None else indptr[fibers]
    ends = indptr[1:] if fibers is None else indptr[fibers + 1]
    at, within = _counted(ends - begins, numbers=fibers is not None or level.indices is None)
    if fibers is not None:
        where = begins[at] + within
    if level.indices is None:
        return Paths(at, within, where)
    coordinates = take(level.indices, where).astype(np.int64)
    if level.ends is not None:
        again, within = _counted(take(level.ends, where).astype(np.int64) - coordinates)
        return Paths(
            at[again], coordinates[again] + within, again if where is None else where[again]
        )
    paths = Paths(at, coordinates, where)
    return _kept(paths, level.indices != EMPTY) if level.kind == "hashed" else paths


def _counted(lengths: Array, *, numbers: bool = True) -> tuple[Array, Array]:
    """The fiber of each element, for *lengths* of fibers; with *numbers*, its number there."""
    at = np.arange(len(lengths)).repeat(lengths)
    if not numbers:
        return at, at
    begins = np.cumsum(lengths) - lengths
    return at, np.arange(len(at)) - begins[at]


def elements_inside(
    coordinates: Sequence[Array], shape: Sequence[int], keys: Sequence[Key]
) -> tuple[Array, list[tuple[Array, int]]]:
    """Return which elements at *coordinates* lie in the part of *shape* that *keys* select.

    Also returns their coordinates in the part and its extent, for each key that is a slice.
    """
    inside, kept = np.ones(len(coordinates[0]), bool), []
    for along, extent, key in zip(coordinates, shape, keys, strict=True):
        if not isinstance(key, slice):
            inside &= along == key % extent
            continue
        part = range(*key.indices(extent))
        steps, rest = np.divmod(along.astype(np.int64, copy=False) - part.start, part.step)
        inside &= (rest == 0) & (steps >= 0) & (steps < len(part))
        kept.append((steps, len(part)))
    return inside, [(steps[inside], extent) for steps, extent in kept]


def texts(levels: Sequence[Level | None]) -> tuple[str, ...]:
    """Return the kinds of *levels* as they are written in a format."""
    return tuple("dense" if level is None else level.text for level in levels)
