"""At the call, formats: the arrays of one part, built from its elements level by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.ir.analysis.sizes import evaluate, solve
from spcomp.ir.arith.bounds import Interval, bounds_of
from spcomp.ir.axis import Axis
from spcomp.ir.expr import Const, Var
from spcomp.tensors.conversions.elements import Elements
from spcomp.tensors.conversions.small import running
from spcomp.tensors.levels import MOST_PADDED
from spcomp.tensors.parts.placement import Placement, Types, fill, is_own

if TYPE_CHECKING:
    from spcomp.dtypes import DType

PIECE = 4096  # coordinates of a fiber that one iteration writes


@dataclass(frozen=True, slots=True, eq=False)
class PartData:
    """The arrays and sizes of one part, by the names of the parameters of its rule.

    The values are called ``values``. *full*: each of them is an element.
    """

    arrays: dict[str, Array]
    sizes: dict[str, int]
    full: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class ProgramElements(Elements):
    """Elements for programs, with coordinates of the index type of the program.

    *dtype*: that of the values, which may be passed as bits. *scalars*: the known parameters of the
    program. *carried*: stored in the parts instead of the values; the values still say what is
    padding.
    """

    dtype: DType
    scalars: Mapping[str, int]
    carried: Array | None = None

    @property
    def number(self) -> np.dtype[Any]:
        """The type of element numbers."""
        return np.dtype(np.int32 if len(self.values) < 1 << 31 else np.int64)

    @property
    def types(self) -> Types:
        """The types that programs use."""
        return Types(str(self.coordinates[0].dtype), str(self.dtype), str(self.number))

    @property
    def arrays(self) -> dict[str, Array]:
        """The coordinates by their names in programs."""
        return {f"axis{k}": x for k, x in enumerate(self.coordinates)}

    def named(self, placement: Placement) -> dict[str, int]:
        """Return the scalars by their names in the programs for *placement*."""
        scalars = {f"z{k}": int(self.scalars[var.name]) for k, var in enumerate(placement.scalars)}
        return scalars | {"total": len(self.values)}


@dataclass(frozen=True, slots=True, eq=False)
class Fibers:
    """The fibers of the leaf, in order: the *key* of each, and its coordinates.

    *first* and *count*: its range of the sorted coordinates. *bounds*: where the elements of each
    coordinate begin, and where the last end; None if each coordinate has one element. *keys*: those
    of the sorted elements; *ids*: their numbers, None for 0, 1, .... *lengths*: those of the axes
    that elements are sorted by.
    """

    key: Array
    first: Array
    count: Array
    bounds: Array | None
    keys: Array
    ids: Array | None
    lengths: tuple[int, ...]

    def head(self, taken: Array) -> Fibers:
        """Return the first *taken* coordinates of each fiber, without empty fibers."""
        kept = slice(None) if taken.all() else np.flatnonzero(taken)
        return self._with(self.key[kept], self.first[kept], taken[kept])

    def tail(self, taken: Array) -> Fibers:
        """Return the coordinates that :meth:`head` leaves out."""
        kept = np.flatnonzero(self.count > taken)
        return self._with(self.key[kept], (self.first + taken)[kept], (self.count - taken)[kept])

    def _with(self, key: Array, first: Array, count: Array) -> Fibers:
        return Fibers(key, first, count, self.bounds, self.keys, self.ids, self.lengths)

    def elements(self) -> Array:
        """Return the numbers of the elements in the fibers."""
        begin, end = self._ends()
        at = positions(begin, end - begin)
        return at if self.ids is None else self.ids[at]

    def __len__(self) -> int:
        """The number of elements of the fibers."""
        begin, end = self._ends()
        return int((end - begin).sum())

    def _ends(self) -> tuple[Array, Array]:
        """Where the elements of each fiber begin and end."""
        begin, end = self.first, self.first + self.count
        return (begin, end) if self.bounds is None else (self.bounds[begin], self.bounds[end])


def positions(begin: Array, count: Array) -> Array:
    """Return ``begin[0], begin[0] + 1, ..., begin[1], ...``: *count* numbers from each begin."""
    before = running(count)
    return np.repeat(begin - before[:-1], count) + np.arange(int(before[-1]))


def lengths_of(placement: Placement, elements: ProgramElements) -> tuple[int, ...]:
    """Return the lengths of the axes that elements are sorted by."""
    return tuple(length_of(placement, axis, elements) for axis in placement.sorts_by)


def length_of(placement: Placement, axis: Axis, elements: ProgramElements) -> int:
    """Return the length of *axis*: declared, or else the bound of the map over the shape."""
    if not is_own(placement.rule, axis.length):
        return max(int(evaluate(axis.length, elements.scalars)), 0)
    if not all(elements.shape):
        return 0
    extents = zip(placement.inputs, elements.shape, strict=True)
    domain = {var: Interval(0, n - 1) for var, n in extents}
    for var, name in zip(placement.named, placement.scalars, strict=True):
        scalar = int(elements.scalars[name.name])
        domain[var] = Interval(scalar, scalar)
    high = bounds_of(placement.results[axis], domain).high
    return 0 if high is None else high + 1


class Builder:
    """Builds the arrays of one part, from the root of its chain to the leaf.

    On each level, *position* lists the positions that have elements below them, ascending, and
    *total* counts all positions. A long fiber is cut into *pieces*: that many positions of one
    coordinate follow each other above it.
    """

    def __init__(self, placement: Placement, elements: ProgramElements, fibers: Fibers) -> None:
        self.placement, self.elements, self.fibers = placement, elements, fibers
        self.arrays: dict[str, Array] = {}
        self.sizes: dict[str, int] = {}
        self.positions: dict[Axis, int] = {}
        self.idtype = np.dtype(placement.leaf.idtype.numpy_name)
        self.coordinates = self._coordinates()
        self.starts = self._starts()
        self.pieces = self._pieces()

    def build(self) -> PartData:
        """Return the arrays, and the sizes that are parameters of the rule."""
        chain = self.placement.chain
        position, total = np.zeros(len(self.fibers.key), np.int64), 1
        if len(chain) > 1:
            position = self.coordinates[chain[0]][self.starts[0]]
            total = self._length(chain[0])
            self.positions[chain[0]] = total
        for level in range(1, len(chain) - 1):
            position, total = self._level(level, position, total)
            self.positions[chain[level]] = total
        self._leaf(position, total)
        for axis in self.placement.buffer.axes:
            self._solve(axis)
        full = not self.placement.rule.padded or self.arrays["values"].size == len(self.fibers)
        return PartData(self.arrays, self.sizes, full)

    def _length(self, axis: Axis) -> int:
        return length_of(self.placement, axis, self.elements)

    def _coordinates(self) -> dict[Axis, Array]:
        """The coordinates of the fibers on the axes above the leaf."""
        rest, coordinates = self.fibers.key, {}
        above = [axis for axis in self.placement.sorts_by if axis is not self.placement.leaf]
        for axis, length in zip(reversed(above), reversed(self.fibers.lengths[: len(above)]),
                                strict=True):  # fmt: skip
            rest, coordinates[axis] = np.divmod(rest, max(length, 1))
        return coordinates

    def _starts(self) -> list[Array]:
        """For each level above the leaf, the first fiber below each of its positions."""
        new = np.zeros(len(self.fibers.key), bool)
        new[:1] = True
        levels = []
        for axis in self.placement.chain[:-1]:
            if axis in self.coordinates:
                coordinates = self.coordinates[axis]
                new[1:] |= coordinates[1:] != coordinates[:-1]
            levels.append(np.flatnonzero(new))
        return levels

    def _level(self, level: int, position: Array, total: int) -> tuple[Array, int]:
        """Return the positions with elements of an axis above the leaf, and the number of all."""
        axis, starts, below = self.placement.chain[level], self.starts[level], self.pieces[level]
        first = np.searchsorted(starts, self.starts[level - 1])
        behind = np.append(first, len(starts))[1:]
        before = running(below)
        sizes, free = before[behind] - before[first], axis.name in self.placement.rule.free
        if axis.kind == "dense_variable" and not free:
            at = self.coordinates[axis][starts]
            base, total = self._pointers(axis, position, at[behind - 1] + 1, total)
            return np.repeat(base, behind - first) + at, total
        if axis.kind != "sparse_fixed":
            total = self._pointers(axis, position, sizes, total)[1]
            if not free:
                self._indices(axis, np.repeat(self.coordinates[axis][starts], below))
            return before[:-1], total
        room = self.pieces[level - 1]
        width = self._width(axis, sizes, room)
        place = np.repeat(position * width - before[first], behind - first) + before[:-1]
        indices = np.zeros(total * width, self.idtype)
        indices[positions(place, below)] = np.repeat(self.coordinates[axis][starts], below)
        end, space = position * width + sizes, room * width - sizes
        self._may_pad(axis, space)
        indices[positions(end, space)] = np.repeat(indices[end - 1], space)
        self._indices(axis, indices)
        return place, total * width

    def _pieces(self) -> list[Array]:
        """For each level above the leaf, how many positions each coordinate takes; from below."""
        chain, counts = self.placement.chain, self.fibers.count
        pieces: list[Array] = []
        for level in range(len(chain) - 2, -1, -1):
            starts, below = self.starts[level], np.ones(len(self.starts[level]), np.int64)
            if self.placement.cuts(chain[level]):
                below = np.maximum(-(-counts // self._width(chain[level + 1], counts)), 1)
            pieces.insert(0, below)
            if level:
                first = np.searchsorted(starts, self.starts[level - 1])
                counts = np.add.reduceat(below, first) if len(first) else below[:0]
        return pieces

    def _width(self, axis: Axis, sizes: Array, room: Array | int | None = None) -> int:
        """The number of positions of a fiber of a sparse_fixed *axis*: declared, or the longest."""
        if isinstance(axis.nnz_cols, Const):
            width = int(axis.nnz_cols.value)
        elif isinstance(axis.nnz_cols, Var) and axis.nnz_cols.name in self.sizes:
            width = self.sizes[axis.nnz_cols.name]
        else:
            width = int(sizes.max(initial=0))
        if room is not None and (sizes > width * room).any():
            raise ArgumentError(
                f"argument {self.placement.buffer.name}: a fiber of {axis.name} has"
                f" {int(sizes.max())} coordinates, the rule {self.placement.rule.name!r}"
                f" holds {width}"
            )
        self._record(axis.nnz_cols, width)
        return width

    def _may_pad(self, axis: Axis, space: Array) -> None:
        if space.any() and not self.placement.rule.padded:
            raise ArgumentError(
                f"argument {self.placement.buffer.name}: the fibers of {axis.name} differ in"
                f" length, the rule {self.placement.rule.name!r} is not padded",
                hint="give the rule padded=True, or the axis another kind",
            )

    def _pointers(self, axis: Axis, position: Array, sizes: Array, total: int) -> tuple[Array, int]:
        """Store the indptr of *axis*; return where fibers of *position* begin, and the total."""
        assert axis.indptr is not None
        counts = np.zeros(total, np.int64)
        counts[position] = sizes
        sums = running(counts)
        self.arrays[axis.indptr.name] = self._checked(axis, sums)
        return sums[position], int(sums[-1])

    def _checked(self, axis: Axis, sums: Array) -> Array:
        if len(sums) and int(sums[-1]) > np.iinfo(self.idtype).max:
            raise ArgumentError(
                f"argument {self.placement.buffer.name}: {axis.name} has {int(sums[-1])} positions,"
                f" too many for {self.idtype}",
                hint="declare its axes with idtype int64",
            )
        return sums.astype(self.idtype)

    def _indices(self, axis: Axis, indices: Array) -> None:
        assert axis.indices is not None
        self.arrays[axis.indices.name] = indices.astype(self.idtype, copy=False)

    def _leaf(self, position: Array, total: int) -> None:
        """Fill the coordinates of the leaf, and the values."""
        leaf, counts = self.placement.leaf, self.fibers.count
        room = counts
        if leaf.kind == "sparse_fixed":
            above = self.pieces[-1]
            width = self._width(leaf, counts, above)
            base, room, places = position * width, above * width, total * width
            self._may_pad(leaf, room - counts)
        elif leaf.kind == "dense_fixed":
            base, places = position, self._length(leaf)
        else:
            sizes = counts if leaf.is_sparse else self._last_coordinates() + 1
            base, places = self._pointers(leaf, position, sizes, total)
        self.positions[leaf] = places
        self._fill(base, room, places)

    def _last_coordinates(self) -> Array:
        last = self.fibers.first + self.fibers.count - 1
        if self.fibers.bounds is not None:
            last = self.fibers.bounds[last]
        coordinates: Array = self.fibers.keys[last] % max(self.fibers.lengths[-1], 1)
        return coordinates

    def _fill(self, base: Array, room: Array, places: int) -> None:
        placement, fibers, elements = self.placement, self.fibers, self.elements
        sizes = {name: self._size(axis, places) for axis, name in placement.sizes.items()}
        stored = int(np.prod(list(sizes.values()), dtype=object))
        count = len(fibers)
        if stored > MOST_PADDED * count + (1 << 20):
            raise ArgumentError(
                f"argument {placement.buffer.name}: the rule {placement.rule.name!r} would store"
                f" {stored} values for {count} elements, or more",
                hint="the format does not fit this matrix",
            )
        source = elements.values if elements.carried is None else elements.carried
        bits = np.dtype(f"uint{8 * source.itemsize}")
        values = np.zeros(stored, bits)
        typed = values.view(source.dtype)
        dense = all(axis.kind == "dense_fixed" for axis in placement.buffer.axes)
        shape = tuple(map(self._length, placement.buffer.axes)) if dense else (stored,)
        self.arrays["values"] = typed.reshape(shape)
        indices = np.zeros(places if placement.leaf.is_sparse else 0, self.idtype)
        if placement.leaf.is_sparse:
            self._indices(placement.leaf, indices)
        if not len(fibers.count):
            return
        types = Types(str(self.idtype), str(bits), str(elements.number))
        program = fill(placement, types, fibers.ids is not None)
        arrays = _in_pieces(fibers.first, fibers.count, base, room, shift=placement.leaf.is_sparse)
        more = {"keys": fibers.keys, "starts": fibers.bounds, "ids": fibers.ids}
        more |= {"source": source.view(bits), "indices": indices, "values": values}
        scalars = {"fibers": len(arrays["first"]), "count": len(fibers.keys), "places": places}
        scalars |= {"last": max(fibers.lengths[-1], 1), "stored": stored, **sizes}
        scalars["entries"] = 0 if fibers.bounds is None else len(fibers.bounds) - 1
        program.run({**elements.arrays, **arrays, **more, **elements.named(placement), **scalars})

    def _size(self, axis: Axis, places: int) -> int:
        """The number of positions of *axis*, the last of a chain that orders memory."""
        if axis in self.placement.beside:
            return self._length(axis)
        if not self.placement.is_alone:
            return places
        width = places // max(self.positions[self.placement.chain[-2]], 1)
        return width if axis is self.placement.leaf else self.positions[axis]

    def _solve(self, axis: Axis) -> None:
        """Record the parameters of the rule that the sizes of *axis* determine."""
        if axis.nnz is not None:
            self._record(axis.nnz, self.positions[axis])
        if axis.name not in self.placement.rule.free and is_own(self.placement.rule, axis.length):
            self._record(axis.length, self._length(axis))

    def _record(self, size: Any, value: int) -> None:
        solution = None if size is None else solve(size, value, self.sizes)
        if solution is not None and solution[0] in self.placement.rule.new_format_desc.params:
            self.sizes[solution[0].name] = solution[1]


def _in_pieces(
    first: Array, count: Array, base: Array, room: Array, *, shift: bool
) -> dict[str, Array]:
    """Return the fibers with long ones cut, so that several threads can fill them."""
    if int(count.max(initial=0)) > PIECE:
        pieces = -(-count // PIECE)
        behind = positions(np.zeros(len(count), np.int64), pieces) * PIECE
        longer = [np.repeat(array, pieces) for array in (first, count, base, room)]
        first, rest = longer[0] + behind, longer[1] - behind
        base = longer[2] + behind if shift else longer[2]
        count = np.minimum(rest, PIECE)
        room = np.where(rest <= PIECE, longer[3] - behind, count)
    named = {"first": first, "counts": count, "base": base, "room": room}
    return {name: np.ascontiguousarray(array, np.int64) for name, array in named.items()}
