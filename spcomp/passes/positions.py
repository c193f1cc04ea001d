"""I to II, positions: where an element of an axis stands, and the auxiliary arrays that say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spcomp.dtypes import int64, uint64
from spcomp.formats.levels import EMPTY
from spcomp.ir.access import Load
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, BufferDomain, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.stmt import For

ZERO = const(0)


def from_zero(loop: For) -> bool:
    """Whether *loop* begins at 0."""
    return isinstance(loop.begin, Const) and loop.begin.value == 0


def plus(a: Expr, b: Expr | int) -> Expr:
    """Return ``a + b``, leaving out zeros."""
    if isinstance(a, Const) and a.value == 0 and isinstance(b, Expr):
        return b
    if b == 0 or (isinstance(b, Const) and b.value == 0):
        return a
    return binary("+", a, b)


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """Return the conjunction of two guards, where None always holds."""
    if a is None or b is None:
        return b if a is None else a
    return BinOp("and", a, b)


def conjuncts(guard: Expr | None) -> list[Expr]:
    """Return the terms of which *guard* is the conjunction; none of None."""
    match guard:
        case None:
            return []
        case BinOp(op="and", lhs=lhs, rhs=rhs):
            return conjuncts(lhs) + conjuncts(rhs)
    return [guard]


def absolute(buffer: AnyBuffer, pos: Expr) -> tuple[Expr | None, ...]:
    """Return the indices that mean the absolute position *pos* in *buffer*."""
    above = buffer.axes[1:] if isinstance(buffer, SparseBuffer) else ()
    return (*(None for _ in above), pos)


def guarded(guard: Expr | None, value: Expr, otherwise: Expr = ZERO) -> Expr:
    """Return *value* where *guard* holds, else *otherwise*; *value* is then not evaluated."""
    return value if guard is None else Select(guard, value, cast(otherwise, value.dtype))


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
