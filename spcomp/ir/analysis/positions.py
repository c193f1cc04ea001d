"""I to II, positions: where an element of an axis stands, and the auxiliary arrays that say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spcomp.dtypes import int64, uint64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, guarded, plus
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.arith.simplify import MAX_TRIPS
from spcomp.ir.axis import (
    EMPTY,
    Axis,
    Buffer,
    BufferDomain,
    Flatten,
    Intersect,
    SparseBuffer,
    Union,
    domain_axes,
    domain_width,
)
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func


@dataclass(eq=False, slots=True)
class Pos:
    """An element of *axis*: its position in the fiber, or its absolute position, or both.

    *guard*: the element exists only where this holds (None: always). *absolute* may be a function
    that finds it: the row of a fused position is searched only if somebody asks.
    """

    axis: Axis
    parent: Pos | None
    relative: Expr | None = None
    absolute: Expr | Callable[[], Expr] | None = None
    guard: Expr | None = None

    def indices(self) -> tuple[Expr | None, ...]:
        """The position-space indices along the path of the axis."""
        if self.relative is None:
            absolute = self.absolute() if callable(self.absolute) else self.absolute
            return (*(None for _ in self.axis.ancestors()), absolute)
        return (*(self.parent.indices() if self.parent else ()), self.relative)


class Auxiliary:
    """The indptr and indices of a function's axes as buffers, and what is read from them."""

    def __init__(self, func: Func) -> None:
        self.buffers: dict[Var, SparseBuffer] = {}
        self.shifts: dict[Var, Buffer] = {}  # indices of axes that are shifted
        self.domains: list[BufferDomain] = []
        for axis in func.axes:
            self._declare(axis)

    def _declare(self, axis: Axis) -> None:
        above = axis.path()[:-1]
        if axis.indptr is not None and axis.indptr not in self.buffers:
            buffer = SparseBuffer(
                f"{axis.name}_indptr", axis.indptr, above, axis.idtype, extra_storage=1
            )
            self.buffers[axis.indptr] = buffer
            if axis.nnz is not None:
                self.domains.append(BufferDomain(buffer, ZERO, axis.nnz))
        if axis.shifted and axis.indices is not None and axis.nnz_cols is not None:
            shape, name = (axis.nnz_cols,), f"{axis.name}_indices"
            self.shifts.setdefault(axis.indices, Buffer(name, axis.indices, shape, axis.idtype))
        elif axis.indices is not None and axis.indices not in self.buffers:
            buffer = SparseBuffer(f"{axis.name}_indices", axis.indices, axis.path(), axis.idtype)
            self.buffers[axis.indices] = buffer
            least = const(EMPTY) if axis.padded else ZERO
            self.domains.append(BufferDomain(buffer, least, axis.length - 1))

    def _read(self, handle: Var | None, axes: tuple[Axis, ...], pos: Pos, shift: int = 0) -> Expr:
        """Load from the array of *handle* at *pos*, or *shift* elements behind it."""
        assert handle is not None
        buffer = self.buffers[handle]
        if isinstance(pos.absolute, Var):  # the short way: paths of merged levels would double
            indices: tuple[Expr | None, ...] = (*(None for _ in buffer.axes[1:]), pos.absolute)
        elif buffer.axes == axes:
            indices = pos.indices()
        else:  # another axis declared the array: only the absolute position means the same there
            indices = (*(None for _ in buffer.axes[1:]), self.absolute(pos))
        *outer, last = indices
        assert last is not None
        return Load(buffer, (*outer, plus(last, shift)))

    def indptr(self, axis: Axis, parent: Pos, shift: int = 0) -> Expr:
        """The start of the fiber of *axis* under *parent*, or of the one *shift* behind it."""
        return self._read(axis.indptr, axis.path()[:-1], parent, shift)

    def begin(self, axis: Axis, parent: Pos | None) -> Expr:
        """The absolute position where the fiber under *parent* begins, as an int64."""
        if parent is None:
            return ZERO
        guard = parent.guard
        if axis.is_variable:
            return cast(guarded(guard, self.indptr(axis, parent)), int64)
        assert axis.nnz_cols is not None
        outer = self.absolute(parent)
        if isinstance(outer, Const) and outer.value == 0:
            return ZERO
        return guarded(guard, binary("*", outer, cast(axis.nnz_cols, int64)))

    def end(self, axis: Axis, parent: Pos | None) -> Expr:
        """The absolute position where the fiber under *parent* ends, as an int64."""
        if parent is not None and axis.is_variable:
            return cast(guarded(parent.guard, self.indptr(axis, parent, 1)), int64)
        return plus(self.begin(axis, parent), self.size(axis, parent))

    def size(self, axis: Axis, parent: Pos | None) -> Expr:
        """The number of elements of the fiber under *parent*, as an int64."""
        if parent is None:
            return cast(axis.length, int64)
        if axis.is_variable:
            size = binary("-", self.indptr(axis, parent, 1), self.indptr(axis, parent))
        else:
            assert axis.nnz_cols is not None
            size = axis.nnz_cols
        return cast(guarded(parent.guard, size), int64)

    def first(self, axes: tuple[Axis, ...], begin: Expr) -> Expr:
        """The absolute position on the last of *axes* where the subtree at *begin* starts.

        *begin* is an absolute position on the parent of the first of them.
        """
        for axis in axes:
            begin = self.begin(
                axis, Pos(axis.parent, None, absolute=begin) if axis.parent else None
            )
        return begin

    def absolute(self, pos: Pos) -> Expr:
        """The absolute position of *pos*, an int64."""
        if pos.absolute is not None:
            return pos.absolute() if callable(pos.absolute) else pos.absolute
        assert pos.relative is not None
        return plus(self.begin(pos.axis, pos.parent), pos.relative)

    def relative(self, pos: Pos) -> Expr:
        """The position of *pos* in its fiber, an int64."""
        if pos.relative is not None:
            return pos.relative
        absolute = self.absolute(pos)
        return absolute if pos.parent is None else absolute - self.begin(pos.axis, pos.parent)

    def present(self, pos: Pos) -> Expr | None:
        """Whether *pos* holds a coordinate; None: it always does."""
        if not pos.axis.padded:
            return None
        coordinate = self.coordinate(pos)
        if pos.axis.shifted:  # as unsigned numbers, those below 0 are the greatest
            return BinOp("<", cast(coordinate, uint64), cast(pos.axis.length, uint64))
        return BinOp("<=", const(0, coordinate.dtype), coordinate)

    def coordinate(self, pos: Pos) -> Expr:
        """The coordinate of *pos*: loaded for a sparse axis, its position for a dense one."""
        if pos.axis.shifted:
            assert pos.axis.indices is not None
            assert pos.parent is not None
            shift = Load(self.shifts[pos.axis.indices], (self.relative(pos),))
            return binary("+", self.relative(pos.parent), cast(shift, int64))
        if pos.axis.is_sparse:
            return self._read(pos.axis.indices, pos.axis.path(), pos)
        return self.relative(pos)


def path_indices(buffer: SparseBuffer, places: dict[Axis, Pos]) -> tuple[Expr | None, ...]:
    """Return one index per axis; ancestors of an absolute position are None."""
    result: dict[Axis, Expr | None] = {}
    for axis in reversed(buffer.axes):  # the deepest axis of a chain speaks for its ancestors
        if axis not in result:
            result.update(zip(axis.path(), places[axis].indices(), strict=True))
    return tuple(result[axis] for axis in buffer.axes)


def is_unit(axis: Axis) -> bool:
    """Return whether *axis* has one coordinate."""
    return isinstance(axis.length, Const) and axis.length.value == 1


def limit(it: SpIter, var: Var) -> Expr:
    """What *var* is less than, as an int64: the length of the axes that it runs over."""
    own = [(d, a) for d in it.domains for a in domain_axes(d)[: domain_width(d)]]
    domain, axis = own[it.vars.index(var)]
    several = isinstance(domain, (Union, Intersect))
    same = not several or all(expr_equal(a.length, axis.length) for a in domain_axes(domain))
    if isinstance(domain, Flatten) or not same:  # positions, or the longest of several axes
        return const(MAX_TRIPS)
    return cast(axis.length, int64)
