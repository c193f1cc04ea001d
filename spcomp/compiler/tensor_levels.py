"""Below a Tensor: the arrays of each of its levels, checked, and the coordinates they hold.

What each kind of level holds is said in ``formats.levels``; here it is checked and unfolded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from spcomp.compiler import validate
from spcomp.errors import ArgumentError
from spcomp.formats.levels import LEVELS
from spcomp.ir.axis import EMPTY

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_SHAPES = ", ".join(f"({', '.join((repr(k), *v.arrays))})" for k, v in LEVELS.items() if v.arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The storage of one level that is not just dense: its kind, and the arrays of that kind.

    *size*: of a dense level that holds a part of a split dimension, how many coordinates.
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
        """What a Tensor is made of: the kind and the arrays."""
        own = [getattr(self, name) for name in LEVELS[self.kind].arrays]
        return (self.kind, *own) if self.size is None else (self.kind, self.size)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The index arrays."""
        every = (getattr(self, own.name) for own in fields(self))
        return tuple(array for array in every if isinstance(array, np.ndarray))

    @property
    def text(self) -> str:
        """The kind, as it stands in a format."""
        return self.kind if self.size is None else f"{self.kind}({self.size})"


Key: TypeAlias = "int | slice"  # of a dimension: a coordinate of it, or some
LevelSpec: TypeAlias = Level | tuple[Any, ...] | None


class Paths(NamedTuple):
    """The elements down to a level: for each its place in the level above, and where it is here.

    None for 0, 1, 2, ...: what is there once and in order, which needs no array.
    """

    above: Array | None
    coordinates: Array
    positions: Array | None


def level_of(at: int, spec: LevelSpec) -> Level | None:
    """Return the level that *spec* describes, of private arrays; raises ArgumentError."""
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
    own: dict[str, Any] = {
        name: _frozen(f"level {at} {name}", array, mask=name == "mask")
        for name, array in zip(names, spec[1:], strict=True)
    }
    return Level(kind, **own)


def _frozen(who: str, array: Any, *, mask: bool) -> Array:
    """A private, read-only copy of an index array: nobody can change it after the check."""
    own = array if isinstance(array, np.ndarray) else validate.as_array(who, array)
    if mask and own.dtype.kind == "b":
        return validate.private(validate.plain(who, own))
    own = validate.index_array(who, own)
    return validate.private(own != 0 if mask else own)


# -- checks --------------------------------------------------------------------------------------


def positions(at: int, level: Level | None, extent: int | None, fibers: int, above: int) -> int:
    """Check the level number *at* and return how many positions it has.

    *extent*: its coordinates, None if it has none of its own; *above*: those of the level above.
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
    """Return the elements below *count* *fibers*, positions of the level above.

    *fibers* may be None, for all of them in order. *above*: their coordinates.
    """
    if level is None or level.kind in ("dense", "bitmap"):
        size = cast("int", extent)
        parent = np.arange(count).repeat(size)
        own = np.tile(np.arange(size), count)
        paths = Paths(parent, own, None if fibers is None else fibers[parent] * size + own)
        return paths if level is None or level.mask is None else _kept(paths, level.mask)
    if level.indptr is not None:
        return _delimited(level, level.indptr.astype(np.int64, copy=False), fibers)
    if level.offsets is not None:
        width = level.offsets.size
    else:
        width = cast("Array", level.indices).shape[1] if level.kind == "fixed" else 1
    at: Array | None = None if width == 1 else np.arange(count).repeat(width)
    which = np.tile(np.arange(width), count)
    where = None if fibers is None else taken(fibers, at) * width + which
    if level.offsets is not None:
        own = taken(above, at) + level.offsets.astype(np.int64)[which]
        inside = (own >= 0) & (own < cast("int", extent))
    else:
        own = taken(cast("Array", level.indices).reshape(-1), where).astype(np.int64)
        inside = own != EMPTY
    paths = Paths(at, own, where)
    return paths if inside.all() else _inside(paths, inside)


def differ(indices: Array) -> bool:
    """Return whether no row of *indices* has a coordinate twice; padding may be there often."""
    keys = indices.view(f"u{indices.dtype.itemsize}")  # padding is more than any coordinate
    free = np.iinfo(keys.dtype).max if indices.dtype.kind == "i" else -1

    def ascend(rows: Array) -> bool:
        return bool(((rows[:, 1:] > rows[:, :-1]) | (rows[:, 1:] == free)).all())

    return ascend(keys) or ascend(np.sort(keys, axis=1))


def taken(array: Array, at: Array | None) -> Array:
    """Return the elements of *array* *at* these places; None: all of them."""
    return array if at is None else array[at]


def _inside(paths: Paths, inside: Array) -> Paths:
    every = np.flatnonzero(inside)
    above, own, where = paths
    above = every if above is None else above[every]
    return Paths(above, own[every], every if where is None else where[every])


def _kept(paths: Paths, mask: Array) -> Paths:
    return _inside(paths, taken(mask.reshape(-1), paths.positions))


def _delimited(level: Level, indptr: Array, fibers: Array | None) -> Paths:
    where: Array | None = None
    begins = indptr[:-1] if fibers is None else indptr[fibers]
    ends = indptr[1:] if fibers is None else indptr[fibers + 1]
    at, within = _counted(ends - begins, numbers=fibers is not None or level.indices is None)
    if fibers is not None:
        where = begins[at] + within
    if level.indices is None:
        return Paths(at, within, where)
    own = taken(level.indices, where).astype(np.int64)
    if level.ends is not None:
        again, within = _counted(taken(level.ends, where).astype(np.int64) - own)
        return Paths(at[again], own[again] + within, again if where is None else where[again])
    paths = Paths(at, own, where)
    return _kept(paths, level.indices != EMPTY) if level.kind == "hashed" else paths


def _counted(lengths: Array, *, numbers: bool = True) -> tuple[Array, Array]:
    """For fibers of these *lengths*, the fiber of each element and, if asked, its number there."""
    at = np.arange(len(lengths)).repeat(lengths)
    if not numbers:
        return at, at
    begins = np.cumsum(lengths) - lengths
    return at, np.arange(len(at)) - begins[at]


def cut(
    coordinates: Sequence[Array], shape: Sequence[int], keys: Sequence[Key]
) -> tuple[Array, list[tuple[Array, int]]]:
    """Return which elements at *coordinates* lie in the part of *shape* that *keys* say.

    And for each dimension that stays, a slice: their coordinates in the part, and its extent.
    """
    inside, left = np.ones(len(coordinates[0]), bool), []
    for own, extent, key in zip(coordinates, shape, keys, strict=True):
        if not isinstance(key, slice):
            inside &= own == key % extent
            continue
        part = range(*key.indices(extent))
        steps, rest = np.divmod(own.astype(np.int64, copy=False) - part.start, part.step)
        inside &= (rest == 0) & (steps >= 0) & (steps < len(part))
        left.append((steps, len(part)))
    return inside, [(steps[inside], extent) for steps, extent in left]


def texts(levels: Sequence[Level | None]) -> tuple[str, ...]:
    """Return the kinds of *levels*, as they stand in a format."""
    return tuple("dense" if level is None else level.text for level in levels)
