"""I to II, positions: where an element of an axis lies, and the auxiliary arrays that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from spcomp.dtypes import int64, uint64
from spcomp.errors import ScheduleError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, absolute, guarded, plus, times, uncast
from spcomp.ir.arith.simplify import MAX_TRIPS
from spcomp.ir.axis import (
    EMPTY,
    AnyBuffer,
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
from spcomp.ir.structural import expr_equal

Indices: TypeAlias = tuple[Expr | None, ...]  # None: an ancestor of an absolute position


@dataclass(eq=False, slots=True)
class Pos:
    """An element of *axis*: its position in the fiber, or its absolute position, or both.

    *guard*: the element exists only where this holds (None: always). *absolute* may be a function
    that computes it: the row of a fused position is searched only if it is needed.
    """

    axis: Axis
    parent: Pos | None
    relative: Expr | None = None
    absolute: Expr | Callable[[], Expr] | None = None
    guard: Expr | None = None

    def indices(self) -> Indices:
        """The position-space indices along the path of the axis."""
        if self.relative is None:
            absolute = self.absolute() if callable(self.absolute) else self.absolute
            return (*(None for _ in self.axis.ancestors()), absolute)
        return (*(self.parent.indices() if self.parent else ()), self.relative)


def parent_at(axis: Axis, outer: Indices) -> Pos | None:
    """Return the element under which a fiber of *axis* lies; None for the fiber of a root.

    *outer* are the position-space indices along the axes above; see Pos.indices.
    """
    if axis.parent is None:
        return None
    *further, last = outer
    if further and further[-1] is None:
        return Pos(axis.parent, None, absolute=last)
    return Pos(axis.parent, parent_at(axis.parent, tuple(further)), last)


class Auxiliary:
    """The indptr and indices of axes as buffers, and the fibers that they describe.

    All arithmetic of fibers in position space is here: where one begins and ends, its size, which
    one holds a position. The interpreter does the same with numbers, the layout of flat memory
    with one-dimensional buffers.
    """

    def __init__(self, axes: Iterable[Axis] = ()) -> None:
        """Declare the buffers of *axes*, as lowering does."""
        self.buffers: dict[Var, SparseBuffer] = {}
        self.shifts: dict[Var, Buffer] = {}  # indices of axes that are shifted
        self.domains: list[BufferDomain] = []
        for axis in axes:
            self._declare(axis)

    @classmethod
    def of(cls, func: Func) -> Auxiliary:
        """Return the arrays for which *func*, in position space, has buffers."""
        auxiliary = cls()
        sparse = (b for b in func.buffers if isinstance(b, SparseBuffer))
        auxiliary.buffers = {b.data: b for b in sparse if b.data is not None}
        return auxiliary

    def knows_fibers(self, axis: Axis) -> bool:
        """Whether the buffers say where the fibers of *axis* begin."""
        return axis.indptr is None or axis.indptr in self.buffers

    def _declare(self, axis: Axis) -> None:
        above, at = axis.path()[:-1], axis.span
        if axis.indptr is not None and axis.indptr not in self.buffers:
            buffer = SparseBuffer(
                f"{axis.name}_indptr", axis.indptr, above, axis.idtype, extra_storage=1, span=at
            )
            self.buffers[axis.indptr] = buffer
            if axis.nnz is not None:
                self.domains.append(BufferDomain(buffer, ZERO, axis.nnz))
        if axis.shifted and axis.indices is not None and axis.nnz_cols is not None:
            shape, name = (axis.nnz_cols,), f"{axis.name}_indices"
            shift = Buffer(name, axis.indices, shape, axis.idtype, span=at)
            self.shifts.setdefault(axis.indices, shift)
        elif axis.indices is not None and axis.indices not in self.buffers:
            name, over = f"{axis.name}_indices", axis.path()
            buffer = SparseBuffer(name, axis.indices, over, axis.idtype, span=at)
            self.buffers[axis.indices] = buffer
            least = const(EMPTY) if axis.padded else ZERO
            self.domains.append(BufferDomain(buffer, least, axis.length - 1))

    def _read(self, handle: Var | None, axes: tuple[Axis, ...], pos: Pos, shift: int = 0) -> Expr:
        """Load from the array of *handle* at *pos*, or *shift* elements behind it."""
        assert handle is not None
        buffer = self.buffers.get(handle)
        if buffer is None:
            raise ScheduleError(
                f"the program has no buffer of {handle.name}, which says where fibers begin",
                handle.span,
                hint=f"match it: T.match_sparse_buffer({handle.name}, ...)",
            )
        if isinstance(pos.absolute, Var):  # short: the path of a merged level doubles its size
            indices: Indices = absolute(buffer, pos.absolute)
        elif buffer.axes == axes:
            indices = pos.indices()
        else:  # another axis declared the array: only the absolute position means the same there
            indices = absolute(buffer, self.absolute(pos))
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
            size = axis.width
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

    def holder(self, axis: Axis, position: Expr, begin: Expr, end: Expr) -> Expr:
        """The absolute position, in ``begin..end``, whose fiber of *axis* holds *position*."""
        if axis.indptr is not None:
            return Search("upper", self.buffers[axis.indptr], begin, end, position) - 1
        assert axis.nnz_cols is not None
        return binary("//", position, cast(axis.nnz_cols, int64))

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
        if pos.axis.shifted:  # as unsigned numbers, negative ones are the largest
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


def begin_at(indptr: AnyBuffer, position: Expr) -> Expr:
    """Return where the fiber under the absolute *position* begins, by *indptr*, an int64."""
    return cast(Load(indptr, absolute(indptr, position)), int64)


def fiber_of(begin: Expr, end: Expr) -> tuple[AnyBuffer, Indices, Indices] | None:
    """Return ``indptr, (.., row), (.., same)`` for ``indptr[.., row], indptr[.., same + 1]``.

    *row* and *same* are variables. None: *begin* and *end* do not have this form.
    """
    match uncast(begin), uncast(end):
        case (
            Load(buffer=indptr, indices=(*above, Var() as row)),
            Load(
                buffer=other,
                indices=(*again, BinOp(op="+", lhs=Var() as same, rhs=Const(value=1))),
            ),
        ) if indptr is other:
            return indptr, (*above, row), (*again, same)
    return None


def positions(axis: Axis) -> Expr | None:
    """Return how many positions *axis* has over all fibers, from parameters; None: unknown."""
    if axis.parent is None:
        return cast(axis.length, int64)
    if axis.nnz is not None:
        return cast(axis.nnz, int64)
    above = positions(axis.parent)
    if above is None or axis.nnz_cols is None:
        return None
    return times(above, cast(axis.nnz_cols, int64))


def longest_fiber(axis: Axis) -> Expr | None:
    """Return a bound of the length of a fiber of *axis*, from parameters; None: unknown.

    All fibers together have nnz elements. Coordinates that are checked to ascend strictly are no
    more than the axis has.
    """
    if not axis.is_variable:
        return cast(axis.width, int64)
    total = None if axis.nnz is None else cast(axis.nnz, int64)
    if not (axis.is_sparse and axis.sorted and axis.unique):
        return total
    length = cast(axis.length, int64)
    return length if total is None or isinstance(length, Const) else binary("min", length, total)


def path_indices(buffer: SparseBuffer, places: dict[Axis, Pos]) -> Indices:
    """Return one index per axis; ancestors of an absolute position are None."""
    result: dict[Axis, Expr | None] = {}
    for axis in reversed(buffer.axes):  # the deepest axis of a chain stands for its ancestors
        if axis not in result:
            result.update(zip(axis.path(), places[axis].indices(), strict=True))
    return tuple(result[axis] for axis in buffer.axes)


def is_unit(axis: Axis) -> bool:
    """Return whether *axis* has one coordinate."""
    return isinstance(axis.length, Const) and axis.length.value == 1


def upper_bound(it: SpIter, var: Var) -> Expr:
    """Return an exclusive upper bound of *var*, an int64: the length of the axes it runs over."""
    pairs = [(d, a) for d in it.domains for a in domain_axes(d)[: domain_width(d)]]
    domain, axis = pairs[it.vars.index(var)]
    several = isinstance(domain, (Union, Intersect))
    same = not several or all(expr_equal(a.length, axis.length) for a in domain_axes(domain))
    if isinstance(domain, Flatten) or not same:  # positions, or the longest of several axes
        return const(MAX_TRIPS)
    return cast(axis.length, int64)
