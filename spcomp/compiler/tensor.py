"""What a call takes for formats that scipy lacks: a Tensor of levels, checked once and frozen."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast

import numpy as np

from spcomp.compiler import validate
from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
LevelKind: TypeAlias = Literal["ragged", "fixed", "compressed"]
_FIELDS: dict[str, tuple[str, ...]] = {
    "ragged": ("indptr",),
    "fixed": ("indices",),
    "compressed": ("indptr", "indices"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The storage of one axis that is not dense.

    ``ragged``: fiber p holds coordinates ``0 .. indptr[p+1] - indptr[p] - 1``; ``compressed``: it
    holds ``indices[indptr[p] : indptr[p+1]]``; ``fixed``: it holds row p of *indices*, an array
    of shape (fibers, width). A level has one fiber for each position of the levels before it.
    """

    kind: LevelKind
    indptr: Array | None = None
    indices: Array | None = None


LevelSpec: TypeAlias = Level | tuple[Any, ...] | None


class Tensor:
    """A sparse tensor of any rank: one level per axis, and the values of the stored positions.

    Args:
        shape: The number of coordinates per axis.
        levels: One entry per axis, outermost first: ``None`` (dense), ``("ragged", indptr)``,
            ``("fixed", indices)`` or ``("compressed", indptr, indices)``.
        values: One element per position of the last level, in any shape of that size; kept, not
            copied. A program that is given the tensor as an output writes here.

    Index arrays are copied, checked and made read-only, so calls need not check them again; the
    coordinates of a fiber may come in any order, and a program that relies on their order says
    so when it is called.

    Raises:
        ArgumentError: for arrays that do not describe a tensor of this shape.
    """

    __slots__ = ("_ascending", "_levels", "_shape", "values")

    _shape: tuple[int, ...]  # as checked: these two cannot be replaced
    _levels: tuple[Level | None, ...]
    values: Array

    def __init__(self, shape: Sequence[int], levels: Sequence[LevelSpec], values: Array) -> None:
        self._shape = _extents(shape)
        listed = isinstance(levels, (tuple, list))
        fits = listed and len(self.shape) == len(levels)
        if not fits or any(extent < 0 for extent in self.shape):
            got = f"{len(levels)} levels" if listed else type(levels).__name__
            raise ArgumentError(
                f"argument levels: got {got} for the shape {self.shape}",
                hint="give one non-negative extent and one level per axis",
            )
        self._levels = tuple(_level(at, spec) for at, spec in enumerate(levels))
        positions = 1
        for at, level in enumerate(self.levels):
            positions = _positions(at, level, self.shape[at], positions)
        _check_values(values, positions)
        self.values = values
        self._ascending: dict[tuple[int, bool], bool] = {}

    @classmethod
    def from_scipy(cls, matrix: Any) -> Self:
        """Return the tensor that a ``csr`` (two levels) or ``bsr`` (four) array or matrix holds.

        Values are shared. Raises ArgumentError for another format.
        """
        kind = getattr(matrix, "format", None)
        if kind not in ("csr", "bsr"):
            raise ArgumentError(
                f"argument matrix: got {kind or type(matrix).__name__}, expected csr or bsr",
                hint="convert it with .tocsr()",
            )
        count = int(matrix.indptr[-1])
        level = ("compressed", matrix.indptr, matrix.indices[:count])
        values = matrix.data[:count]
        if kind == "csr":
            return cls(matrix.shape, (None, level), values)
        block = matrix.blocksize
        outer = tuple(n // b for n, b in zip(matrix.shape, block, strict=True))
        return cls((*outer, *block), (None, level, None, None), values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of coordinates per axis."""
        return self._shape

    @property
    def levels(self) -> tuple[Level | None, ...]:
        """How each axis is stored; None is dense."""
        return self._levels

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """The number of stored values, explicit zeros included."""
        return int(self.values.size)

    @property
    def format(self) -> str:
        """The kinds of the levels: ``dense,compressed`` is CSR."""
        return ",".join("dense" if level is None else level.kind for level in self.levels)

    def ascending(self, axis: int, *, unique: bool) -> bool:
        """Whether the coordinates of each fiber of *axis* ascend (strictly, if *unique*)."""
        level = self.levels[axis]
        if level is None or level.indices is None:
            return True
        key = (axis, unique)
        if key not in self._ascending:
            width = level.indices.shape[-1] if level.kind == "fixed" else 0
            self._ascending[key] = validate.ascends(
                level.indptr, level.indices, width, strict=unique
            )
        return self._ascending[key]

    def coordinates(self) -> tuple[Array, ...]:
        """Return one int64 array per axis: the coordinate of each stored value along it."""
        found: list[Array] = []
        count = 1
        for extent, level in zip(self.shape, self.levels, strict=True):
            parent, own = _expand(level, extent, count)
            found = [array[parent] for array in found]
            found.append(own)
            count = len(own)
        return tuple(found)

    def to_dense(self) -> Array:
        """Return a new array of the tensor's shape; absent coordinates are 0, repeated ones add."""
        dense = np.zeros(self.shape, self.dtype)
        np.add.at(dense, self.coordinates(), self.values.reshape(-1 if self.shape else ()))
        return dense

    def with_values(self, values: Array) -> Tensor:
        """Return a tensor with the same levels, shared, and other *values*."""
        made = Tensor.__new__(Tensor)
        _check_values(values, self.values.size)
        made._shape, made._levels, made.values = self.shape, self.levels, values  # noqa: SLF001
        made._ascending = self._ascending  # noqa: SLF001
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        specs = [None if v is None else _spec(v) for v in self.levels]
        return Tensor, (self.shape, specs, self.values)

    def __repr__(self) -> str:
        return f"<Tensor {self.shape} {self.dtype}, {self.nnz} stored, levels {self.format}>"


def _extents(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(extent) for extent in shape)
    except TypeError:
        raise ArgumentError(f"argument shape: got {shape!r}, expected integers") from None


def _check_values(values: Array, count: int) -> None:
    if not isinstance(values, np.ndarray):
        raise ArgumentError(f"argument values: got {type(values).__name__}, expected an array")
    if values.size != count:
        raise ArgumentError(
            f"argument values: got {values.size} elements, expected {count}"
            " (the positions of the last level)"
        )


def _spec(level: Level) -> tuple[Any, ...]:
    return (level.kind, *(getattr(level, name) for name in _FIELDS[level.kind]))


def _level(at: int, spec: LevelSpec) -> Level | None:
    if spec is None:
        return None
    if isinstance(spec, Level):
        spec = _spec(spec)
    kind = spec[0] if isinstance(spec, tuple) and spec else spec
    if kind not in _FIELDS or len(spec) != 1 + len(_FIELDS[kind]):
        raise ArgumentError(
            f"argument levels: entry {at} is not a level",
            hint='a level is None, ("ragged", indptr), ("fixed", indices) or'
            ' ("compressed", indptr, indices)',
        )
    arrays = {
        name: _frozen(f"level {at} {name}", array)
        for name, array in zip(_FIELDS[kind], spec[1:], strict=True)
    }
    return Level(kind, **arrays)


def _frozen(who: str, array: Any) -> Array:
    """A private, read-only copy of an index array: nobody can change it after the check."""
    array = np.asarray(validate.plain(who, array))
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"argument {who}: got dtype {array.dtype}, expected integers")
    return validate.private(array)


def _positions(at: int, level: Level | None, extent: int, fibers: int) -> int:
    """Check *level* and return how many positions it has."""
    if level is None:
        return fibers * extent
    who = f"level {at}"
    if level.kind == "fixed" and level.indices is not None:
        if level.indices.ndim != 2 or level.indices.shape[0] != fibers:
            raise ArgumentError(
                f"argument {who} indices: got shape {level.indices.shape},"
                f" expected ({fibers}, width)"
            )
        validate.in_range(f"{who} indices", level.indices, 0, extent - 1)
        return int(level.indices.size)
    indptr = cast("Array", level.indptr)
    count = math.inf if level.indices is None else level.indices.size
    validate.pointers(f"{who} indptr", indptr, fibers, count, exact=True)
    if level.indices is None:
        validate.fits(f"{who} indptr", indptr, extent)
        return int(indptr[-1])
    if level.indices.ndim != 1:
        raise ArgumentError(
            f"argument {who} indices: got shape {level.indices.shape}, expected 1-D"
        )
    validate.in_range(f"{who} indices", level.indices, 0, extent - 1)
    return int(level.indices.size)


def _expand(level: Level | None, extent: int, fibers: int) -> tuple[Array, Array]:
    """The fiber and the coordinate of every position of *level*."""
    if level is None:
        at = np.arange(fibers * extent)
        return at // max(extent, 1), at % max(extent, 1)
    if level.kind == "fixed" and level.indices is not None:
        width = level.indices.shape[1]
        return np.arange(fibers).repeat(width), level.indices.reshape(-1).astype(np.int64)
    indptr = cast("Array", level.indptr).astype(np.int64)
    fiber = np.arange(fibers).repeat(np.diff(indptr))
    if level.indices is not None:
        return fiber, level.indices.reshape(-1).astype(np.int64)
    return fiber, np.arange(len(fiber)) - (indptr[:-1][fiber] - indptr[0])
