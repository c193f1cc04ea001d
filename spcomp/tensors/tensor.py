"""What a call takes for formats that scipy lacks: a Tensor of levels, checked once, then fixed."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from spcomp.arrays import Array
from spcomp.display.density import density
from spcomp.display.html import heading, table
from spcomp.display.levels import levels as levels_picture
from spcomp.dtypes import int32, int64
from spcomp.errors import ArgumentError, FormatError, OutOfMemoryError
from spcomp.formats.format import SLOTS, Format, text_of
from spcomp.tensors import checks as validate
from spcomp.tensors.levels import Level as Level
from spcomp.tensors.levels import LevelSpec as LevelSpec
from spcomp.tensors.levels import level_of, positions, rows_are_distinct, take, texts, unfold
from spcomp.tensors.operators import Operators

if TYPE_CHECKING:
    from collections.abc import Sequence


DRAWN = 1 << 22  # stored values at most of a tensor that notebooks draw
SMALL = 128  # cells, and pixels, of that drawing


class Tensor(Operators):
    """A sparse tensor of any rank: levels, and the values of the positions of the last.

    Args:
        shape: The number of coordinates per dimension.
        levels: One entry per level, outermost first: ``None`` (dense), or the kind and its arrays,
            ``("compressed", indptr, indices)``, ``("singleton", indices)``, ``("ragged", indptr)``,
            ``("fixed", indices)``, ``("bitmap", mask)``, ``("hashed", indptr, indices)``,
            ``("offset", offsets)``, ``("runs", indptr, indices, ends)``, see
            ``formats.levels``; ``("dense", size)`` for a level that holds part of a dimension.
        values: One element per position of the last level, in any shape of that size. They are
            copied only if they are misaligned or in the other byte order. A program that takes
            the tensor as an output writes here.
        order: The dimension that each level stores, as ``spcomp.Format`` takes it; None: one level
            per dimension, in order.

    Index arrays are copied, checked and made read-only, so calls need not check them again. The
    coordinates of a compressed or fixed fiber may come in any order; a program that relies on an
    order checks it when it is called.

    Raises:
        ArgumentError: If the arrays do not describe a tensor of this shape.
    """

    __slots__ = ("_facts", "_layout", "_levels", "_order", "_shape", "as_axes", "values")

    _shape: tuple[int, ...]  # checked: these three cannot be replaced
    _levels: tuple[Level | None, ...]
    _order: tuple[int, ...]
    values: Array
    as_axes: Tensor | None  # the same elements for a program with an axis per level

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
        self._facts: dict[tuple[int, str], bool] = {}
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

        *shape*: None is the smallest that holds them. *format* and *duplicates* are those of
        :func:`spcomp.convert`. Raises ArgumentError.
        """
        from spcomp.tensors.convert import from_coordinates

        return from_coordinates(coordinates, values, shape, format, duplicates)

    @classmethod
    def from_torch(cls, tensor: Any) -> Tensor:
        """Return a strided or sparse torch tensor on the CPU as a Tensor in the same format."""
        from spcomp.tensors.torch import from_torch

        result: Tensor = from_torch(tensor)
        return result

    @classmethod
    def from_pydata(cls, array: Any) -> Tensor:
        """Return an array of the library ``sparse``, with fill value 0, in coo format."""
        from spcomp.tensors.convert import to_coo

        return to_coo(array)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of coordinates per dimension."""
        return self._shape

    @property
    def levels(self) -> tuple[Level | None, ...]:
        """The storage of each level; None is dense."""
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
        """The number of stored elements, with explicit zeros and without padding."""
        return int(self.values.size) if self.is_compact else len(self.elements()[1])

    @property
    def format(self) -> str:
        """The kinds of the levels, such as ``dense,compressed`` for CSR; the order if not plain."""
        return text_of(texts(self.levels), self.order)

    @property
    def layout(self) -> Format:
        """The format as a value; it also says whether coordinates are ordered and unique."""
        if self._layout is None:
            self._layout = self._layout_of_levels()
        return self._layout

    def _layout_of_levels(self) -> Format:
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
        """Whether level k stores dimension k."""
        return self._order == tuple(range(len(self._order)))

    @property
    def is_compact(self) -> bool:
        """Whether each value is exactly one element: no level has padding or runs."""
        loose = ("bitmap", "hashed", "offset", "runs")
        if any(level is not None and level.kind in loose for level in self.levels):
            return False
        if len(self.order) > self.ndim and not self._fills(self._split()):
            return False
        return not any(self.padded(at) for at in range(len(self.levels)))

    def _fills(self, kinds: Format) -> bool:
        """Whether the blocks of split dimensions divide the shape evenly."""
        steps = zip(kinds.order, kinds.strides(), strict=True)
        return all(dim == SLOTS or self.shape[dim] % step == 0 for dim, step in steps)

    def padded(self, at: int) -> bool:
        """Whether level *at*, fixed or singleton, has padding: positions without a coordinate."""
        level = self.levels[at]
        if level is None or level.kind not in ("fixed", "singleton") or level.indices is None:
            return False
        if (at, "padded") not in self._facts:
            self._facts[at, "padded"] = int(level.indices.min(initial=0)) < 0
        return self._facts[at, "padded"]

    def distinct(self, at: int) -> bool:
        """Whether no fiber of the fixed level *at* has a coordinate twice."""
        level = self.levels[at]
        if level is None or level.indices is None or level.kind != "fixed":
            return True
        if (at, "distinct") not in self._facts:
            self._facts[at, "distinct"] = rows_are_distinct(level.indices)
        return self._facts[at, "distinct"]

    def ascending(self, axis: int, *, unique: bool) -> bool:
        """Whether the coordinates of each fiber of level *axis* ascend (strictly, if *unique*)."""
        level = self.levels[axis]
        if level is None or level.indices is None or level.kind in ("singleton", "runs"):
            return True
        key = (axis, "strictly" if unique else "ascending")
        if key not in self._facts:
            width = level.indices.shape[-1] if level.kind == "fixed" else 0
            self._facts[key] = validate.ascends(level.indptr, level.indices, width, strict=unique)
        return self._facts[key]

    @property
    def ascends(self) -> bool:
        """Whether the elements of a list, such as ``coo``, ascend without repetition."""
        if (0, "listed") not in self._facts:
            columns = [level.indices for level in self.levels if level is not None]
            axes = [column for column in columns if column is not None]
            if len(axes) < len(columns):
                return False
            self._facts[0, "listed"] = validate.strictly_sorted(axes)
        return self._facts[0, "listed"]

    def elements(self) -> tuple[tuple[Array, ...], Array]:
        """Return the coordinates of each stored element, and where in the values it lies.

        One int64 array per dimension, and one of places, in storage order. Padding is left out;
        each coordinate of a run is an element, and they share one value. Raises OutOfMemoryError.
        """
        try:
            return self._elements()
        except MemoryError as error:
            raise OutOfMemoryError(
                f"the coordinates of {self.values.size} positions take too much memory: {error}"
            ) from None

    def _elements(self) -> tuple[tuple[Array, ...], Array]:
        coordinates: dict[int, Array] = {}
        places, above, count = None, np.zeros(1, np.int64), 1
        strides = (1,) * self.ndim if self.is_plain else self._split().strides()
        for level, extent, dim, stride in zip(
            self.levels, self._sizes(), self._order, strides, strict=True
        ):
            parent, above, places = unfold(level, extent, places, count, above)
            count = len(above)
            coordinates = {at: take(array, parent) for at, array in coordinates.items()}
            if dim != SLOTS:
                outer = coordinates.get(dim, 0)  # the part of the coordinate stored above
                coordinates[dim] = outer + above * stride
        where = np.arange(count) if places is None else places
        if len(self._order) > self.ndim:
            inside = np.ones(count, bool)
            for dim, array in coordinates.items():
                inside &= array < self.shape[dim]
            coordinates = {dim: array[inside] for dim, array in coordinates.items()}
            where = where[inside]
        return tuple(coordinates[dim] for dim in range(self.ndim)), where

    def coordinates(self) -> tuple[Array, ...]:
        """Return the coordinates of the stored elements: one int64 array per dimension."""
        return self.elements()[0]

    def to_dense(self) -> Array:
        """Return a new array of the tensor's shape; absent elements are 0, repeated ones add.

        Raises OutOfMemoryError.
        """
        try:
            dense = np.zeros(self.shape, self.dtype)
        except (MemoryError, ValueError):  # numpy has no array of so many bytes
            raise OutOfMemoryError(
                f"an array of the shape {self.shape} takes too much memory"
            ) from None
        coordinates, places = self.elements()
        values = self.values.reshape(-1)[places]
        dense[coordinates] = self.dtype.type(-0.0)  # so that a sum of -0.0 remains one
        with np.errstate(invalid="ignore", over="ignore"):
            np.add.at(dense, coordinates, values if self.shape else values.sum())
        return dense

    def to(self, format: Any, *, duplicates: Any = "sum", sort: bool = True) -> Any:  # noqa: A002
        """Return the tensor in another *format*; see :func:`spcomp.convert`."""
        from spcomp.tensors.convert import convert

        return convert(self, format, duplicates=duplicates, sort=sort)

    def to_numpy(self) -> Array:
        """Return :meth:`to_dense`."""
        return self.to_dense()

    def to_scipy(self) -> Any:
        """Return a scipy.sparse array, in the same format if scipy has it, else csr.

        It is a coo array unless there are two dimensions. Raises ArgumentError.
        """
        from spcomp.tensors.convert import to_scipy

        return to_scipy(self)

    def to_torch(self) -> Any:
        """Return a torch tensor: csr, csc, bsr and strided keep their layout, others become coo."""
        from spcomp.tensors.torch import to_torch

        return to_torch(self)

    def with_values(self, values: Array) -> Tensor:
        """Return a tensor with other *values* that shares these levels."""
        values = _checked_values(values, self.values.size)
        tensor = tensor_of_levels(self.shape, self.levels, values, self._order)
        tensor._facts, tensor._layout = self._facts, self._layout  # noqa: SLF001
        return tensor

    def with_dimensions(self, axes: Sequence[int]) -> Tensor:
        """Return the tensor with dimensions permuted by *axes*; levels and values are shared."""
        shape = tuple(self.shape[axis] for axis in axes)
        order = tuple(dim if dim == SLOTS else axes.index(dim) for dim in self._order)
        return tensor_of_levels(shape, self.levels, self.values, order)

    def _split(self) -> Format:
        return Format(texts(self.levels), self._order)

    def _sizes(self) -> tuple[int | None, ...]:
        """The number of coordinates of each level."""
        return self.shape if self.is_plain else self._split().extents(self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        specs = [None if level is None else level.spec for level in self.levels]
        return Tensor, (self.shape, specs, self.values, self._order)

    def _repr_html_(self) -> str:
        rows = (
            (at, text, dim, ", ".join(map(_brief, level.arrays if level else ())))
            for at, (text, dim, level) in enumerate(
                zip(texts(self.levels), self._order, self.levels, strict=True)
            )
        )
        stored = heading(repr(self)[1:-1]) + table(("level", "kind", "dimension", "arrays"), rows)
        stored += levels_picture(texts(self.levels), self._order).svg
        if self.ndim < 2 or self.values.size > DRAWN:
            return stored
        grid = density([self.coordinates()[:2]], (self.shape[0], self.shape[1]), SMALL)
        return stored + grid.picture(side=SMALL).svg

    def __repr__(self) -> str:
        return f"<Tensor {self.shape} {self.dtype}, {self.nnz} stored, levels {self.format}>"


def tensor_of_levels(
    shape: tuple[int, ...],
    levels: tuple[Level | None, ...],
    values: Array,
    order: tuple[int, ...] | None = None,
) -> Tensor:
    """Return the Tensor of these *levels*, which were checked before, and *values*."""
    tensor = Tensor.__new__(Tensor)
    tensor._shape, tensor._levels, tensor.values = shape, levels, values  # noqa: SLF001
    tensor._order = tuple(range(len(levels))) if order is None else order  # noqa: SLF001
    tensor._facts, tensor._layout, tensor.as_axes = {}, None, None  # noqa: SLF001
    return tensor


def _brief(array: Array) -> str:
    return f"{array.dtype}[{array.size}]"


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
        layout = Format(texts(levels), order)
    except FormatError as error:
        raise ArgumentError(f"argument levels: {error.message}", hint=error.hint) from None
    if layout.rank != rank:
        raise ArgumentError(f"argument order: got {layout.order} for {rank} dimensions")
    return layout.order


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
