"""What a call takes for formats that scipy lacks: a Tensor of levels, checked once and frozen."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.tensor_levels import Level as Level
from spcomp.compiler.tensor_levels import LevelSpec as LevelSpec
from spcomp.compiler.tensor_levels import differ, level_of, positions, taken, texts, unfold
from spcomp.compiler.tensor_operators import Operators
from spcomp.dtypes import int32, int64
from spcomp.errors import ArgumentError, FormatError
from spcomp.formats.format import SLOTS, Format, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class Tensor(Operators):
    """A sparse tensor of any rank: levels, and the values of the positions of the last.

    Args:
        shape: The number of coordinates per dimension.
        levels: One entry per level, outermost first: ``None`` (dense), or its kind and arrays,
            ``("compressed", indptr, indices)``, ``("singleton", indices)``, ``("ragged", indptr)``,
            ``("fixed", indices)``, ``("bitmap", mask)``, ``("hashed", indptr, indices)``,
            ``("offset", offsets)``, ``("runs", indptr, indices, ends)``, as ``formats.levels``
            says; ``("dense", size)`` for a level that holds a part of a dimension.
        values: One element per position of the last level, in any shape of that size; kept, not
            copied, unless they are misaligned or in the other byte order. A program that is given
            the tensor as an output writes here.
        order: The dimension that each level stores, as ``spcomp.Format`` takes it; None: one level
            per dimension, in order.

    Index arrays are copied, checked and made read-only, so calls need not check them again; the
    coordinates of a compressed or fixed fiber may come in any order, and a program that relies on
    their order says so when it is called.

    Raises:
        ArgumentError: for arrays that do not describe a tensor of this shape.
    """

    __slots__ = ("_known", "_layout", "_levels", "_order", "_shape", "as_axes", "values")

    _shape: tuple[int, ...]  # as checked: these three cannot be replaced
    _levels: tuple[Level | None, ...]
    _order: tuple[int, ...]
    values: Array
    as_axes: Tensor | None  # the same elements, as a program takes them that has axes for levels

    def __init__(
        self,
        shape: Sequence[int],
        levels: Sequence[LevelSpec],
        values: Array,
        order: Sequence[int] | None = None,
    ) -> None:
        self._shape = _extents(shape)
        listed = isinstance(levels, (tuple, list))
        fits = listed and (order is not None or len(self.shape) == len(levels))
        if not fits or any(extent < 0 for extent in self.shape):
            got = f"{len(levels)} levels" if listed else type(levels).__name__
            raise ArgumentError(
                f"argument levels: got {got} for the shape {self.shape}",
                hint="give one non-negative extent and one level per axis",
            )
        self._levels = tuple(level_of(at, spec) for at, spec in enumerate(levels))
        self._order = _order(self._levels, order, len(self.shape))
        count = above = 1
        for at, (level, extent) in enumerate(zip(self._levels, self._sizes(), strict=True)):
            count = positions(at, level, extent, count, above)
            above = extent or 0
        self.values = _checked_values(values, count)
        self._known: dict[tuple[int, str], bool] = {}
        self._layout: Format | None = None
        self.as_axes = None

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

    @classmethod
    def from_coo(
        cls,
        coordinates: Sequence[Any],
        values: Any,
        shape: Sequence[int] | None = None,
        format: Any = "coo",  # noqa: A002
        *,
        duplicates: Any = "sum",
    ) -> Tensor:
        """Return the tensor of *values* at *coordinates*, an array of integers per dimension.

        *shape*: None is the least that holds them; *format*, *duplicates*: as
        :func:`spcomp.convert` takes them. Raises ArgumentError.
        """
        from spcomp.compiler.conversions import from_coordinates

        return from_coordinates(coordinates, values, shape, format, duplicates)

    @classmethod
    def from_torch(cls, tensor: Any) -> Tensor:
        """Return a torch tensor on the CPU, strided or sparse, in the format it has."""
        from spcomp.compiler.foreign import bridge

        made: Tensor = bridge().from_torch(tensor)
        return made

    @classmethod
    def from_pydata(cls, array: Any) -> Tensor:
        """Return the array of the library ``sparse``, whose fill value is 0, in coo format."""
        from spcomp.compiler.conversions import to_coo

        return to_coo(array)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of coordinates per dimension."""
        return self._shape

    @property
    def levels(self) -> tuple[Level | None, ...]:
        """How each level is stored; None is dense."""
        return self._levels

    @property
    def order(self) -> tuple[int, ...]:
        """The dimension that each level stores."""
        return self._order

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """The number of stored elements, explicit zeros included and padding not."""
        return int(self.values.size) if self.is_compact else len(self.elements()[1])

    @property
    def format(self) -> str:
        """The kinds of the levels: ``dense,compressed`` is CSR; and their order, if not plain."""
        return text_of(texts(self.levels), self.order)

    @property
    def layout(self) -> Format:
        """The format, as a value: also what order the coordinates turned out to be in."""
        if self._layout is None:
            self._layout = self._found()
        return self._layout

    def _found(self) -> Format:
        kinds = list(texts(self.levels))
        for at, level in enumerate(self.levels):
            if level is None or level.kind not in ("compressed", "fixed") or self.padded(at):
                continue
            notes = [] if self.ascending(at, unique=True) else ["nonunique"]
            if notes and not self.ascending(at, unique=False):
                notes.append("unordered")
            elif kinds[at + 1 : at + 2] == ["singleton"]:
                notes = ["nonunique"]
            kinds[at] += f"({', '.join(notes)})" if notes else ""
        arrays = [array for level in self.levels if level for array in level.arrays]
        wide = any(array.dtype.itemsize > 4 for array in arrays)
        return Format(kinds, self.order, int64 if wide else int32)

    @property
    def is_plain(self) -> bool:
        """Whether each level stores the dimension of its number."""
        return self._order == tuple(range(len(self._order)))

    @property
    def is_compact(self) -> bool:
        """Whether the values are the elements, one for one: no level pads, or has runs."""
        loose = ("bitmap", "hashed", "offset", "runs")
        if any(level is not None and level.kind in loose for level in self.levels):
            return False
        if len(self.order) > self.ndim and not self._fills(self._split()):
            return False
        return not any(self.padded(at) for at in range(len(self.levels)))

    def _fills(self, kinds: Format) -> bool:
        """Whether the parts of the dimensions that are split have no coordinates left over."""
        steps = zip(kinds.order, kinds.strides(), strict=True)
        return all(dim == SLOTS or self.shape[dim] % step == 0 for dim, step in steps)

    def padded(self, at: int) -> bool:
        """Whether level *at*, a fixed or singleton one, has positions without a coordinate."""
        level = self.levels[at]
        if level is None or level.kind not in ("fixed", "singleton") or level.indices is None:
            return False
        if (at, "padded") not in self._known:
            self._known[at, "padded"] = int(level.indices.min(initial=0)) < 0
        return self._known[at, "padded"]

    def distinct(self, at: int) -> bool:
        """Whether no fiber of level *at*, a fixed one, has a coordinate twice."""
        level = self.levels[at]
        if level is None or level.indices is None or level.kind != "fixed":
            return True
        if (at, "distinct") not in self._known:
            self._known[at, "distinct"] = differ(level.indices)
        return self._known[at, "distinct"]

    def ascending(self, axis: int, *, unique: bool) -> bool:
        """Whether the coordinates of each fiber of level *axis* ascend (strictly, if *unique*)."""
        level = self.levels[axis]
        if level is None or level.indices is None or level.kind in ("singleton", "runs"):
            return True
        key = (axis, "strictly" if unique else "ascending")
        if key not in self._known:
            width = level.indices.shape[-1] if level.kind == "fixed" else 0
            self._known[key] = validate.ascends(level.indptr, level.indices, width, strict=unique)
        return self._known[key]

    @property
    def ascends(self) -> bool:
        """Whether the elements of a list, as ``coo`` is, ascend: none is there twice."""
        if (0, "listed") not in self._known:
            columns = [level.indices for level in self.levels if level is not None]
            axes = [own for own in columns if own is not None]
            if len(axes) < len(columns):
                return False
            self._known[0, "listed"] = validate.rise(axes)
        return self._known[0, "listed"]

    def elements(self) -> tuple[tuple[Array, ...], Array]:
        """Return the coordinates of each stored element, and where in the values it lies.

        One int64 array per dimension, and one more, in the order in which they are stored. Padding
        is no element; the coordinates of a run are, with one value.
        """
        found: dict[int, Array] = {}
        places, above, count = None, np.zeros(1, np.int64), 1
        strides = (1,) * self.ndim if self.is_plain else self._split().strides()
        for level, extent, dim, stride in zip(
            self.levels, self._sizes(), self._order, strides, strict=True
        ):
            parent, above, places = unfold(level, extent, places, count, above)
            count = len(above)
            found = {own: taken(array, parent) for own, array in found.items()}
            if dim != SLOTS:
                found[dim] = found[dim] + above * stride if dim in found else above * stride
        where = np.arange(count) if places is None else places
        if len(self._order) > self.ndim:
            inside = np.ones(count, bool)
            for dim, array in found.items():
                inside &= array < self.shape[dim]
            found = {dim: array[inside] for dim, array in found.items()}
            where = where[inside]
        return tuple(found[dim] for dim in range(self.ndim)), where

    def coordinates(self) -> tuple[Array, ...]:
        """Return one int64 array per dimension: the coordinate of each stored element along it."""
        return self.elements()[0]

    def to_dense(self) -> Array:
        """Return a new array of the tensor's shape; absent coordinates are 0, repeated ones add."""
        dense = np.zeros(self.shape, self.dtype)
        coordinates, places = self.elements()
        values = self.values.reshape(-1)[places]
        np.add.at(dense, coordinates, values if self.shape else values.sum())
        return dense

    def to(self, format: Any, *, duplicates: Any = "sum", sort: bool = True) -> Any:  # noqa: A002
        """Return it in another format; takes, returns and raises as :func:`spcomp.convert`."""
        from spcomp.compiler.conversions import convert

        return convert(self, format, duplicates=duplicates, sort=sort)

    def to_numpy(self) -> Array:
        """Return what :meth:`to_dense` does."""
        return self.to_dense()

    def to_scipy(self) -> Any:
        """Return a scipy.sparse array in the format it has, if that is one of scipy's, else csr.

        Of another number of dimensions than two it is a coo array. Raises ArgumentError.
        """
        from spcomp.compiler.conversions import to_scipy

        return to_scipy(self)

    def to_torch(self) -> Any:
        """Return a torch tensor: csr, csc, bsr and strided as they are, others coo."""
        from spcomp.compiler.foreign import bridge

        return bridge().to_torch(self)

    def with_values(self, values: Array) -> Tensor:
        """Return a tensor with the same levels, shared, and other *values*."""
        values = _checked_values(values, self.values.size)
        made = put_together(self.shape, self.levels, values, self._order)
        made._known, made._layout = self._known, self._layout  # noqa: SLF001
        return made

    def with_dimensions(self, axes: Sequence[int]) -> Tensor:
        """Return the tensor whose dimensions are *axes* of this one; all else is shared."""
        shape = tuple(self.shape[axis] for axis in axes)
        order = tuple(dim if dim == SLOTS else axes.index(dim) for dim in self._order)
        return put_together(shape, self.levels, self.values, order)

    def _split(self) -> Format:
        return Format(texts(self.levels), self._order)

    def _sizes(self) -> tuple[int | None, ...]:
        """The number of coordinates of each level."""
        return self.shape if self.is_plain else self._split().extents(self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        specs = [None if level is None else level.spec for level in self.levels]
        return Tensor, (self.shape, specs, self.values, self._order)

    def __repr__(self) -> str:
        return f"<Tensor {self.shape} {self.dtype}, {self.nnz} stored, levels {self.format}>"


def put_together(
    shape: tuple[int, ...],
    levels: tuple[Level | None, ...],
    values: Array,
    order: tuple[int, ...] | None = None,
) -> Tensor:
    """Return the Tensor of exactly these levels, which were checked before, and *values*."""
    made = Tensor.__new__(Tensor)
    made._shape, made._levels, made.values = shape, levels, values  # noqa: SLF001
    made._order = tuple(range(len(levels))) if order is None else order  # noqa: SLF001
    made._known, made._layout, made.as_axes = {}, None, None  # noqa: SLF001
    return made


def _extents(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(extent) for extent in shape)
    except TypeError:
        raise ArgumentError(f"argument shape: got {shape!r}, expected integers") from None


def _order(
    levels: tuple[Level | None, ...], order: Sequence[int] | None, rank: int
) -> tuple[int, ...]:
    plain = tuple(range(len(levels)))
    loose = any(level is not None and level.kind in ("dense", "offset") for level in levels)
    if order is None and not loose:
        return plain
    try:
        found = Format(texts(levels), order)
    except FormatError as error:
        raise ArgumentError(f"argument levels: {error.message}", hint=error.hint) from None
    if found.rank != rank:
        raise ArgumentError(f"argument order: got {found.order} for {rank} dimensions")
    return found.order


def _checked_values(values: Array, count: int) -> Array:
    if not isinstance(values, np.ndarray):
        raise ArgumentError(f"argument values: got {type(values).__name__}, expected an array")
    if values.dtype.kind not in "biufc" and values.dtype.name != "bfloat16":
        raise ArgumentError(f"argument values: got dtype {values.dtype}, expected numbers")
    if values.size != count:
        raise ArgumentError(
            f"argument values: got {values.size} elements, expected {count}"
            " (the positions of the last level)"
        )
    return validate.native("values", values)
