"""Beside the route, under the interpreters: arrays, fibers of axes, and where an element lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import DType
from spcomp.errors import ArgumentError, FormatError, InternalError
from spcomp.ir.axis import WORKSPACE, AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import Expr, Var

Find: TypeAlias = Callable[[int, Axis, int], Iterable[int]]


@cache
def number_type(dtype: DType) -> Any:
    """Return the numpy type in which values of *dtype* are computed: float32 for 16-bit floats."""
    short = dtype.is_float and dtype.bits == 16
    return np.dtype("float32" if short else dtype.numpy_name).type


def decode(raw: Any, dtype: DType) -> Any:
    """Return the value, in its number_type, of what memory holds (a scalar or lanes)."""
    if dtype.kind == "bfloat":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.astype(np.float32) if dtype.is_float and dtype.bits == 16 else raw


def encode(value: Any, dtype: DType) -> Any:
    """Return *value* as memory holds it, rounded to nearest even; bfloat16 as its bits."""
    if dtype.kind != "bfloat":
        return value.astype(dtype.numpy_name)
    bits = value.astype(np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), 0x7FC0, rounded).astype(np.uint16)[()]


@dataclass(frozen=True, slots=True)
class Layout:
    """How axes order the elements of a buffer: lexicographically, by independent chains.

    *parents*: for each axis the place of its parent, -1 for a root. *chains*: places of axes, from
    a root down. A sparse_fixed axis without children counts as a chain of its own, of nnz_cols
    elements. *interleaved*: an axis of one chain lies between axes of another.
    """

    parents: tuple[int, ...]
    chains: tuple[tuple[int, ...], ...]
    chain_of: tuple[int, ...]
    interleaved: bool


@lru_cache(maxsize=1 << 10)  # bounded, as every program has axes of its own
def layout(axes: tuple[Axis, ...]) -> Layout:
    """Return the layout of *axes*; FormatError if a parent is missing or siblings vary."""
    places = {axis: k for k, axis in enumerate(axes)}
    with_children = {axis.parent for axis in axes}
    parents, chain_of = [], []
    chains: list[list[int]] = []
    for k, axis in enumerate(axes):
        parent = -1 if axis.parent is None else places.get(axis.parent, k)
        if parent >= k:
            raise FormatError(f"axis {axis.name} stands in a buffer without its parent before it")
        is_leaf = axis.kind == "sparse_fixed" and axis not in with_children
        if parent < 0 or is_leaf:
            chains.append([])
            chain_of.append(len(chains) - 1)
        elif chains[chain_of[parent]][-1] == parent:
            chain_of.append(chain_of[parent])
        else:
            raise FormatError(f"axis {axis.name} and a sibling of it cannot lie in one buffer")
        chains[chain_of[k]].append(k)
        parents.append(parent)
    split = any(chain[-1] - chain[0] >= len(chain) for chain in chains)
    return Layout(tuple(parents), tuple(map(tuple, chains)), tuple(chain_of), split)


def locate(axes: tuple[Axis, ...], find: Find) -> list[int] | None:
    """Return the absolute position on each axis of the first element that *find* leads to.

    ``find(place, axis, parent)`` gives the candidates on an axis under an absolute parent position
    (several where coordinates repeat). None if there is no such element.
    """
    parents = layout(axes).parents
    candidates: list[list[int]] = [[]]
    for k, axis in enumerate(axes):
        candidates = [
            [*above, position]
            for above in candidates
            for position in find(k, axis, above[parents[k]] if parents[k] >= 0 else 0)
        ]
    return candidates[0] if candidates else None


class Storage:
    """The arrays of one run. *size* evaluates an extent that depends on parameters only."""

    def __init__(self, arrays: Mapping[str, Array], size: Callable[[Expr], int]) -> None:
        self.arrays = arrays
        self.assembled: dict[Axis, tuple[Array, Array]] = {}  # arrays of assembled axes
        self._allocated: dict[AnyBuffer, Array] = {}
        self._size = size
        self._counts: dict[Axis | Expr, int] = {}

    def handle(self, var: Var | None, owner: str) -> Array:
        """Return the array passed for *var*, a handle of *owner*."""
        if var is None or var.name not in self.arrays:
            raise InternalError("interpretation", f"{owner} has no array")
        return self.arrays[var.name]

    def array(self, buffer: AnyBuffer) -> Array:
        """Return the memory of *buffer*; raises InternalError if it is not allocated."""
        if buffer.data is not None:
            return self.handle(buffer.data, buffer.name)
        if buffer not in self._allocated:
            raise InternalError("interpretation", f"buffer {buffer.name} is not allocated")
        return self._allocated[buffer]

    def check_dtypes(self, buffers: Iterable[AnyBuffer], axes: Iterable[Axis]) -> None:
        """Raise ArgumentError for an array without the dtype of its buffer or axis."""
        dtypes = [(b.data, b.dtype) for b in buffers]
        dtypes += [(var, axis.idtype) for axis in axes for var in (axis.indptr, axis.indices)]
        for var, dtype in dtypes:
            if var is None or var.name not in self.arrays:
                continue
            if (got := self.arrays[var.name].dtype.name) != dtype.numpy_name:
                raise ArgumentError(f"{var.name} has dtype {got}, expected {dtype.numpy_name}")

    def allocate(self, buffer: AnyBuffer) -> None:
        """Allocate *buffer*, filled with junk that no program may rely on; a workspace, zeros."""
        dtype = np.dtype(buffer.dtype.numpy_name)
        junk = np.nan if dtype.kind == "f" else True if dtype.kind == "b" else 0x7F
        junk = 0 if buffer.scope == WORKSPACE else junk
        self._allocated[buffer] = np.full(self.elements(buffer), junk, dtype)

    def release(self, buffer: AnyBuffer) -> None:
        """Free the memory of *buffer*."""
        del self._allocated[buffer]

    def size(self, extent: Expr) -> int:
        """Return the value of *extent*, evaluated once."""
        if extent not in self._counts:
            self._counts[extent] = self._size(extent)
        return self._counts[extent]

    def elements(self, buffer: AnyBuffer) -> int:
        """Return how many elements *buffer* has in memory."""
        if isinstance(buffer, Buffer):
            shape = list(map(self._size, buffer.shape))
            if buffer.strides is None or 0 in shape:
                return prod(shape)
            pairs = zip(shape, map(self._size, buffer.strides), strict=True)
            return 1 + sum((extent - 1) * stride for extent, stride in pairs)
        chains = layout(buffer.axes).chains
        return prod(self._chain_size(buffer.axes, c) for c in chains) + buffer.extra_storage

    def indptr(self, axis: Axis) -> Array:
        """Return where the fibers of *axis* begin."""
        arrays = self.assembled.get(axis)
        return arrays[0] if arrays else self.handle(axis.indptr, axis.name)

    def indices(self, axis: Axis) -> Array:
        """Return the coordinates stored on *axis*."""
        arrays = self.assembled.get(axis)
        return arrays[1] if arrays else self.handle(axis.indices, axis.name)

    def count(self, axis: Axis) -> int:
        """Return how many absolute positions *axis* has over all its fibers."""
        if axis not in self._counts:
            self._counts[axis] = self._count(axis)
        return self._counts[axis]

    def _count(self, axis: Axis) -> int:
        if axis.parent is None:
            return self.size(axis.length)
        if axis.is_variable and axis.nnz is not None:
            return self.size(axis.nnz)
        return self._first(axis, self.count(axis.parent))

    def width(self, axis: Axis) -> int:
        """Return the length of the fibers of an axis whose fibers are all of one length."""
        return self.size(axis.width)

    def fiber(self, axis: Axis, parent: int) -> range:
        """Return the absolute positions of *axis* under the absolute position *parent*."""
        if axis.parent is None:
            return range(self.size(axis.length))
        return range(self._first(axis, parent), self._first(axis, parent + 1))

    def _first(self, axis: Axis, parent: int) -> int:
        """Return the first position of *axis* under *parent* or after it."""
        if not axis.is_variable:
            return parent * self.width(axis)
        indptr = self.indptr(axis)
        if not 0 <= parent < len(indptr):
            raise InternalError("interpretation", f"{axis.name} has no fiber at {parent}")
        return int(indptr[parent])

    def coordinate(self, axis: Axis, fiber: range, position: int) -> int:
        """Return the coordinate of an absolute *position* in *fiber*."""
        if not axis.is_sparse:
            return position - fiber.start
        indices, row = self.indices(axis), 0
        if axis.shifted:
            row, position = divmod(position, self.width(axis))
        _check(f"{axis.name}_indices", position, len(indices))
        return row + int(indices[position])

    def find(self, axis: Axis, parent: int, coordinate: int) -> list[int]:
        """Return the absolute positions under *parent* that have *coordinate*."""
        fiber = self.fiber(axis, parent)
        if axis.is_sparse:
            indices = self.indices(axis)
            indices = indices + parent if axis.shifted else indices[fiber.start : fiber.stop]
            inside = 0 <= coordinate < self.size(axis.length)
            places = np.flatnonzero(indices == coordinate) if inside else ()
            return [fiber.start + int(k) for k in places]
        return [fiber.start + coordinate] if 0 <= coordinate < len(fiber) else []

    def absolute(self, buffer: SparseBuffer, positions: Sequence[int | None]) -> list[int | None]:
        """Return the absolute position on each axis; below an index None they are absolute already.

        Raises InternalError for a position outside its fiber.
        """
        places = layout(buffer.axes)
        result: list[int | None] = []
        for axis, position, parent in zip(buffer.axes, positions, places.parents, strict=True):
            above = result[parent] if parent >= 0 else 0
            if position is None or above is None:
                result.append(position)
                continue
            fiber = self.fiber(axis, above)
            if not 0 <= position < len(fiber) + buffer.extra_storage:
                message = f"{position} is no position of {axis.name}, indexing {buffer.name}"
                raise InternalError("interpretation", message)
            result.append(fiber.start + position)
        for k in reversed(range(len(result))):
            self._find_parent(buffer.axes, places, result, k)
        return result

    def _find_parent(
        self, axes: tuple[Axis, ...], places: Layout, positions: list[int | None], k: int
    ) -> None:
        """Fill in the parent of the absolute position *k* where the offset depends on it."""
        position, parent = positions[k], places.parents[k]
        if position is None or parent < 0 or positions[parent] is not None:
            return
        if not axes[k].is_variable:
            positions[parent] = position // max(1, self.width(axes[k]))
        elif places.interleaved:
            positions[parent] = int(np.searchsorted(self.indptr(axes[k]), position, "right")) - 1

    def offset(self, axes: tuple[Axis, ...], absolute: Sequence[int | None]) -> int:
        """Return how many elements lie before the one at *absolute*, in lexicographic order.

        Each chain has a span of positions of its deepest axis. An axis narrows the span of its
        chain; the elements skipped are those cut off in front, times the spans of all other
        chains. Positions in front of ``indptr[0]`` count.
        """
        places = layout(axes)
        lows = [0] * len(places.chains)
        sizes = [self._chain_size(axes, chain) for chain in places.chains]
        offset = 0
        for k, position in enumerate(absolute):
            if position is None:
                continue
            c = places.chain_of[k]
            chain = places.chains[c]
            if chain[0] == k and axes[k].parent is not None:
                width, parent = max(1, self.width(axes[k])), places.parents[k]
                above = absolute[parent] if parent >= 0 else None
                position = position % width if above is None else position - above * width
            low = high = position
            high += 1
            for deeper in chain[chain.index(k) + 1 :]:
                low, high = self._first(axes[deeper], low), self._first(axes[deeper], high)
            others = prod(size for other, size in enumerate(sizes) if other != c)
            offset += (low - lows[c]) * others
            lows[c], sizes[c] = low, high - low
        return offset

    def _chain_size(self, axes: tuple[Axis, ...], chain: tuple[int, ...]) -> int:
        deepest = axes[chain[-1]]
        is_leaf = len(chain) == 1 and deepest.parent is not None
        return self.width(deepest) if is_leaf else self.count(deepest)

    def dense_offset(self, buffer: Buffer, indices: Sequence[int]) -> int | None:
        """Return the offset of an element of a dense array, None if it is outside."""
        shape = list(map(self._size, buffer.shape))
        if not all(0 <= i < extent for i, extent in zip(indices, shape, strict=True)):
            return None
        if buffer.strides is not None:
            strides = map(self._size, buffer.strides)
            return sum(i * s for i, s in zip(indices, strides, strict=True))
        offset = 0
        for i, extent in zip(indices, shape, strict=True):
            offset = offset * extent + i
        return offset

    def read(self, buffer: AnyBuffer, offset: int) -> Any:
        """Return the value at *offset*; raises InternalError outside the array."""
        array = self.array(buffer)
        _check(buffer.name, offset, len(array))
        return decode(array[offset], buffer.dtype)

    def write(self, buffer: AnyBuffer, offset: int, value: Any) -> None:
        """Set the value at *offset*; raises InternalError outside the array."""
        array = self.array(buffer)
        _check(buffer.name, offset, len(array))
        array[offset] = encode(value, buffer.dtype)


def _check(name: str, offset: int, length: int) -> None:
    if not 0 <= offset < length:
        raise InternalError("interpretation", f"element {offset} of {name}, which has {length}")
