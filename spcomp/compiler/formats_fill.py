"""At the call, formats: the arrays of one part, from the elements that it holds, level by level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.compiler.formats_sort import running
from spcomp.errors import ArgumentError
from spcomp.ir.analysis.sizes import evaluate, solve
from spcomp.ir.arith.bounds import Interval, bounds_of
from spcomp.ir.axis import Axis
from spcomp.ir.expr import Const, Var
from spcomp.ir.func import Func
from spcomp.passes.convert_format import Placement, Types, fill_source, is_own

if TYPE_CHECKING:
    from spcomp.compiler.kernel import Kernel
    from spcomp.dtypes import DType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
PIECE = 4096  # coordinates of a fiber that one iteration puts in place
MOST = 256  # values stored for an element, padding included


@dataclass(frozen=True, slots=True, eq=False)
class PartData:
    """The arrays and the sizes of one part, by the names of the parameters of its rule.

    But for the values, which are called ``values``. *full*: each of them is an element.
    """

    arrays: dict[str, Array]
    sizes: dict[str, int]
    full: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """The stored elements of a tensor: a coordinate array for each axis, and their values.

    *scalars*: the parameters of the program that are known. *carried*: what parts hold instead of
    the values, which still say what is padding.
    """

    coordinates: tuple[Array, ...]
    values: Array
    dtype: DType
    shape: tuple[int, ...]
    scalars: Mapping[str, int]
    carried: Array | None = None

    @property
    def number(self) -> np.dtype[Any]:
        """The type that element numbers have."""
        return np.dtype(np.int32 if len(self.values) < 1 << 31 else np.int64)

    @property
    def types(self) -> Types:
        """The types that programs work with."""
        return Types(str(self.coordinates[0].dtype), str(self.dtype), str(self.number))

    @property
    def arrays(self) -> dict[str, Array]:
        """The coordinates as programs call them."""
        return {f"axis{k}": x for k, x in enumerate(self.coordinates)}

    def named(self, made: Placement) -> dict[str, int]:
        """Return the scalars as the programs for *made* call them."""
        known = {f"z{k}": int(self.scalars[var.name]) for k, var in enumerate(made.scalars)}
        return known | {"total": len(self.values)}


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled function and the names of what it takes, in order."""

    kernel: Kernel
    names: tuple[str, ...]

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, source: str) -> Program:
        """Return the one function in *source*, compiled."""
        from spcomp.compiler.compile import compile as compile_program
        from spcomp.script.parse import parse_source

        (func,) = parse_source(source, "convert_format.py")
        assert isinstance(func, Func)
        names = tuple(param.name for param in func.params)
        return cls(compile_program(func, check="off"), names)  # what is relied on holds

    def run(self, arrays: Mapping[str, Any], scalars: Mapping[str, int]) -> None:
        """Run it on what it takes of *arrays* and *scalars*."""
        every = {**arrays, **scalars}
        self.kernel(*(every[name] for name in self.names))


@dataclass(frozen=True, slots=True, eq=False)
class Fibers:
    """The fibers of the leaf, in order: their keys, and the coordinates that each has.

    *first* and *count*: which of the sorted coordinates. *bounds*: where the elements of each
    coordinate begin, and their number; None where each is of one element. *keys*: of the elements
    in order; *ids*: which these are, None: as they are. *lengths*: of what they are sorted by.
    """

    key: Array
    first: Array
    count: Array
    bounds: Array | None
    keys: Array
    ids: Array | None
    lengths: tuple[int, ...]

    def head(self, taken: Array) -> Fibers:
        """Return as many coordinates of each as *taken* says, the first; fibers of none go."""
        some = slice(None) if taken.all() else np.flatnonzero(taken)
        return self._with(self.key[some], self.first[some], taken[some])

    def tail(self, taken: Array) -> Fibers:
        """Return what :meth:`head` leaves of each."""
        some = np.flatnonzero(self.count > taken)
        return self._with(self.key[some], (self.first + taken)[some], (self.count - taken)[some])

    def _with(self, key: Array, first: Array, count: Array) -> Fibers:
        return Fibers(key, first, count, self.bounds, self.keys, self.ids, self.lengths)

    def elements(self) -> Array:
        """Return the numbers of the elements in the fibers."""
        begin, end = self._ends()
        at = positions(begin, end - begin)
        return at if self.ids is None else self.ids[at]

    def __len__(self) -> int:
        """How many elements the fibers have."""
        begin, end = self._ends()
        return int((end - begin).sum())

    def _ends(self) -> tuple[Array, Array]:
        """The first element of each fiber, in order, and the one behind its last."""
        begin, end = self.first, self.first + self.count
        return (begin, end) if self.bounds is None else (self.bounds[begin], self.bounds[end])


def positions(begin: Array, count: Array) -> Array:
    """Return ``begin[0], begin[0] + 1, ...``, *count* of each."""
    before = running(count)
    return np.repeat(begin - before[:-1], count) + np.arange(int(before[-1]))


def lengths_of(made: Placement, elements: Elements) -> tuple[int, ...]:
    """Return how long the axes are that elements are sorted by."""
    return tuple(length_of(made, axis, elements) for axis in made.sorts_by)


def length_of(made: Placement, axis: Axis, elements: Elements) -> int:
    """Return the length of *axis*: what it says, else what the map reaches from the shape."""
    if not is_own(made.rule, axis.length):
        return max(int(evaluate(axis.length, elements.scalars)), 0)
    if not all(elements.shape):
        return 0
    domain = {var: Interval(0, n - 1) for var, n in zip(made.given, elements.shape, strict=True)}
    for var, name in zip(made.named, made.scalars, strict=True):
        known = int(elements.scalars[name.name])
        domain[var] = Interval(known, known)
    high = bounds_of(made.results[axis], domain).high
    return 0 if high is None else high + 1


class Builder:
    """Makes the arrays of one part, from the root of its chain to the leaf.

    On each level some positions have elements below them: *position* says which, ascending, and
    *total* how many there are. One with a long fiber below is followed by others of its
    coordinate, *pieces* in all.
    """

    def __init__(self, made: Placement, elements: Elements, fibers: Fibers) -> None:
        self.made, self.elements, self.fibers = made, elements, fibers
        self.arrays: dict[str, Array] = {}
        self.sizes: dict[str, int] = {}
        self.positions: dict[Axis, int] = {}
        self.idtype = np.dtype(made.leaf.idtype.numpy_name)
        self.coordinates = self._coordinates()
        self.starts = self._starts()
        self.pieces = self._pieces()

    def build(self) -> PartData:
        """Return the arrays, and the sizes that are parameters of the rule."""
        chain = self.made.chain
        position, total = np.zeros(len(self.fibers.key), np.int64), 1
        if len(chain) > 1:
            position = self.coordinates[chain[0]][self.starts[0]]
            total = self._length(chain[0])
            self.positions[chain[0]] = total
        for level in range(1, len(chain) - 1):
            position, total = self._level(level, position, total)
            self.positions[chain[level]] = total
        self._leaf(position, total)
        for axis in self.made.buffer.axes:
            self._solve(axis)
        full = not self.made.rule.padded or self.arrays["values"].size == len(self.fibers)
        return PartData(self.arrays, self.sizes, full)

    def _length(self, axis: Axis) -> int:
        return length_of(self.made, axis, self.elements)

    def _coordinates(self) -> dict[Axis, Array]:
        """The coordinates of the fibers on the axes above the leaf."""
        rest, found = self.fibers.key, {}
        above = [axis for axis in self.made.sorts_by if axis is not self.made.leaf]
        for axis, length in zip(reversed(above), reversed(self.fibers.lengths[: len(above)]),
                                strict=True):  # fmt: skip
            rest, found[axis] = np.divmod(rest, max(length, 1))
        return found

    def _starts(self) -> list[Array]:
        """For each level above the leaf, the first fiber below each of its positions."""
        new = np.zeros(len(self.fibers.key), bool)
        new[:1] = True
        levels = []
        for axis in self.made.chain[:-1]:
            if axis in self.coordinates:
                own = self.coordinates[axis]
                new[1:] |= own[1:] != own[:-1]
            levels.append(np.flatnonzero(new))
        return levels

    def _level(self, level: int, position: Array, total: int) -> tuple[Array, int]:
        """Return the positions on an axis above the leaf that have elements, and the total."""
        axis, own, below = self.made.chain[level], self.starts[level], self.pieces[level]
        first = np.searchsorted(own, self.starts[level - 1])
        behind = np.append(first, len(own))[1:]
        before = running(below)
        sizes, free = before[behind] - before[first], axis.name in self.made.rule.free
        if axis.kind == "dense_variable" and not free:
            at = self.coordinates[axis][own]
            base, total = self._pointers(axis, position, at[behind - 1] + 1, total)
            return np.repeat(base, behind - first) + at, total
        if axis.kind != "sparse_fixed":
            total = self._pointers(axis, position, sizes, total)[1]
            if not free:
                self._indices(axis, np.repeat(self.coordinates[axis][own], below))
            return before[:-1], total
        room = self.pieces[level - 1]
        width = self._width(axis, sizes, room)
        made = np.repeat(position * width - before[first], behind - first) + before[:-1]
        indices = np.zeros(total * width, self.idtype)
        indices[positions(made, below)] = np.repeat(self.coordinates[axis][own], below)
        end, space = position * width + sizes, room * width - sizes
        self._may_pad(axis, space)
        indices[positions(end, space)] = np.repeat(indices[end - 1], space)
        self._indices(axis, indices)
        return made, total * width

    def _pieces(self) -> list[Array]:
        """For each level above the leaf, how many positions each one stands for, from below."""
        chain, held = self.made.chain, self.fibers.count
        pieces: list[Array] = []
        for level in range(len(chain) - 2, -1, -1):
            own, below = self.starts[level], np.ones(len(self.starts[level]), np.int64)
            if self.made.cuts(chain[level]):
                below = np.maximum(-(-held // self._width(chain[level + 1], held)), 1)
            pieces.insert(0, below)
            if level:
                first = np.searchsorted(own, self.starts[level - 1])
                held = np.add.reduceat(below, first) if len(first) else below[:0]
        return pieces

    def _width(self, axis: Axis, sizes: Array, room: Array | int | None = None) -> int:
        """How many positions each fiber of a sparse_fixed *axis* has: as many as the longest."""
        if isinstance(axis.nnz_cols, Const):
            width = int(axis.nnz_cols.value)
        elif isinstance(axis.nnz_cols, Var) and axis.nnz_cols.name in self.sizes:
            width = self.sizes[axis.nnz_cols.name]
        else:
            width = int(sizes.max(initial=0))
        if room is not None and (sizes > width * room).any():
            raise ArgumentError(
                f"argument {self.made.buffer.name}: a fiber of {axis.name} has"
                f" {int(sizes.max())} coordinates, the rule {self.made.rule.name!r} holds {width}"
            )
        self._know(axis.nnz_cols, width)
        return width

    def _may_pad(self, axis: Axis, space: Array) -> None:
        if space.any() and not self.made.rule.padded:
            raise ArgumentError(
                f"argument {self.made.buffer.name}: the fibers of {axis.name} differ in length, the"
                f" rule {self.made.rule.name!r} is not padded",
                hint="give the rule padded=True, or the axis another kind",
            )

    def _pointers(self, axis: Axis, position: Array, sizes: Array, total: int) -> tuple[Array, int]:
        """Make the indptr of *axis*; return where the fiber of each *position* begins."""
        assert axis.indptr is not None
        counts = np.zeros(total, np.int64)
        counts[position] = sizes
        sums = running(counts)
        self.arrays[axis.indptr.name] = self._checked(axis, sums)
        return sums[position], int(sums[-1])

    def _checked(self, axis: Axis, sums: Array) -> Array:
        if len(sums) and int(sums[-1]) > np.iinfo(self.idtype).max:
            raise ArgumentError(
                f"argument {self.made.buffer.name}: {axis.name} has {int(sums[-1])} positions,"
                f" too many for {self.idtype}",
                hint="declare its axes with idtype int64",
            )
        return sums.astype(self.idtype)

    def _indices(self, axis: Axis, indices: Array) -> None:
        assert axis.indices is not None
        self.arrays[axis.indices.name] = indices.astype(self.idtype, copy=False)

    def _leaf(self, position: Array, total: int) -> None:
        """Fill the coordinates of the leaf, and the values."""
        leaf, held = self.made.leaf, self.fibers.count
        room = held
        if leaf.kind == "sparse_fixed":
            above = self.pieces[-1]
            width = self._width(leaf, held, above)
            base, room, places = position * width, above * width, total * width
            self._may_pad(leaf, room - held)
        elif leaf.kind == "dense_fixed":
            base, places = position, self._length(leaf)
        else:
            sizes = held if leaf.is_sparse else self._last_coordinates() + 1
            base, places = self._pointers(leaf, position, sizes, total)
        self.positions[leaf] = places
        self._fill(base, room, places)

    def _last_coordinates(self) -> Array:
        last = self.fibers.first + self.fibers.count - 1
        if self.fibers.bounds is not None:
            last = self.fibers.bounds[last]
        found: Array = self.fibers.keys[last] % max(self.fibers.lengths[-1], 1)
        return found

    def _fill(self, base: Array, room: Array, places: int) -> None:
        made, fibers, elements = self.made, self.fibers, self.elements
        sizes = {name: self._size(axis, places) for axis, name in made.sizes.items()}
        stored = int(np.prod(list(sizes.values()), dtype=object))
        held = len(fibers)
        if stored > MOST * held + (1 << 20):
            raise ArgumentError(
                f"argument {made.buffer.name}: the rule {made.rule.name!r} would store {stored}"
                f" values for {held} elements, or more",
                hint="the format does not fit this matrix",
            )
        source = elements.values if elements.carried is None else elements.carried
        bits = np.dtype(f"uint{8 * source.itemsize}")
        values = np.zeros(stored, bits)
        own = values.view(source.dtype)
        dense = all(axis.kind == "dense_fixed" for axis in made.buffer.axes)
        shape = tuple(map(self._length, made.buffer.axes)) if dense else (stored,)
        self.arrays["values"] = own.reshape(shape)
        indices = np.zeros(places if made.leaf.is_sparse else 0, self.idtype)
        if made.leaf.is_sparse:
            self._indices(made.leaf, indices)
        if not len(fibers.count):
            return
        types = Types(str(self.idtype), str(bits), str(elements.number))
        program = Program.of(fill_source(made, types, some=fibers.ids is not None))
        arrays = _in_pieces(fibers.first, fibers.count, base, room, shift=made.leaf.is_sparse)
        more = {"keys": fibers.keys, "starts": fibers.bounds, "ids": fibers.ids}
        more |= {"source": source.view(bits), "indices": indices, "values": values}
        scalars = {"fibers": len(arrays["first"]), "count": len(fibers.keys), "places": places}
        scalars |= {"last": max(fibers.lengths[-1], 1), "stored": stored, **sizes}
        scalars["entries"] = 0 if fibers.bounds is None else len(fibers.bounds) - 1
        program.run({**elements.arrays, **arrays, **more}, elements.named(made) | scalars)

    def _size(self, axis: Axis, places: int) -> int:
        """How many positions *axis*, the last of a chain that orders memory, has."""
        if axis in self.made.beside:
            return self._length(axis)
        if not self.made.is_alone:
            return places
        width = places // max(self.positions[self.made.chain[-2]], 1)
        return width if axis is self.made.leaf else self.positions[axis]

    def _solve(self, axis: Axis) -> None:
        """Find the parameters of the rule among the sizes of *axis*."""
        if axis.nnz is not None:
            self._know(axis.nnz, self.positions[axis])
        if axis.name not in self.made.rule.free and is_own(self.made.rule, axis.length):
            self._know(axis.length, self._length(axis))

    def _know(self, size: Any, value: int) -> None:
        found = None if size is None else solve(size, value, self.sizes)
        if found is not None and found[0] in self.made.rule.new_format_desc.params:
            self.sizes[found[0].name] = found[1]


def _in_pieces(
    first: Array, count: Array, base: Array, room: Array, *, shift: bool
) -> dict[str, Array]:
    """Return the fibers with long ones in pieces, so that several threads can fill them."""
    if int(count.max(initial=0)) > PIECE:
        pieces = -(-count // PIECE)
        behind = positions(np.zeros(len(count), np.int64), pieces) * PIECE
        every = [np.repeat(array, pieces) for array in (first, count, base, room)]
        first, left = every[0] + behind, every[1] - behind
        base = every[2] + behind if shift else every[2]
        count = np.minimum(left, PIECE)
        room = np.where(left <= PIECE, every[3] - behind, count)
    named = {"first": first, "held": count, "base": base, "room": room}
    return {name: np.ascontiguousarray(array, np.int64) for name, array in named.items()}
