"""Beside the route: where elements lie in memory, and how much of it buffers take."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from math import prod

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, plus, times
from spcomp.ir.analysis.positions import positions
from spcomp.ir.axis import AnyBuffer, Axis, Buffer
from spcomp.ir.expr import Const, Expr, Var, binary, cast, const

MOST = 1 << 62  # elements, which no memory has


def _product(sizes: list[Expr]) -> Expr:
    """Return the product of *sizes*; if constants would wrap around, more than memory can hold."""
    constants = [int(size.value) for size in sizes if isinstance(size, Const)]
    if prod(constants) >= MOST:
        sizes = [size for size in sizes if not isinstance(size, Const)] + [const(MOST)]
    one: Expr = const(1)
    return reduce(times, sizes, one)


def _reach(shape: list[Expr], strides: tuple[Expr, ...]) -> Expr:
    """Return how many elements of memory a view spans, up to its last element."""
    size: Expr = const(1)
    for extent, stride in zip(shape, strides, strict=True):
        size = binary("+", size, times(binary("-", extent, 1), cast(stride, int64)))
    return size


@dataclass(slots=True)
class Layout:
    """Where the elements of buffers lie in memory.

    *matched* has the buffers by their handles; *indptrs* are new buffers, of indptrs without one.
    """

    matched: dict[Var, AnyBuffer] = field(default_factory=dict)
    indptrs: list[Buffer] = field(default_factory=list)
    _flat: dict[AnyBuffer, Buffer] = field(default_factory=dict)

    def flat(self, buffer: AnyBuffer) -> Buffer:
        """Return the one-dimensional buffer that stands for *buffer*: itself, if it is one."""
        if buffer not in self._flat:
            shape = (self._size(buffer),)
            flat = Buffer(
                *(buffer.name, buffer.data, shape, buffer.dtype, buffer.scope),
                distinct=buffer.distinct,
                span=buffer.span,
            )
            if isinstance(buffer, Buffer) and buffer.strides is None and buffer.shape == shape:
                flat = buffer  # keep it: sizes of other buffers may read its elements
            self._flat[buffer] = flat
        return self._flat[buffer]

    def _size(self, buffer: AnyBuffer) -> Expr:
        if isinstance(buffer, Buffer):
            shape = [cast(extent, int64) for extent in buffer.shape]
            return _product(shape) if buffer.strides is None else _reach(shape, buffer.strides)
        inner = {axis.parent for axis in buffer.axes}
        sizes = [self.total(axis) for axis in buffer.axes if axis not in inner]
        return plus(_product(sizes), buffer.extra_storage)

    def total(self, axis: Axis) -> Expr:
        """The number of positions on *axis* over all fibers, an int64."""
        count = positions(axis)
        if count is not None:
            return count
        assert axis.parent is not None
        return self.first(axis, self.total(axis.parent))

    def first(self, axis: Axis, parent: Expr) -> Expr:
        """Where the fiber of *axis* under absolute position *parent* begins."""
        if axis.is_variable:
            return cast(Load(self._indptr(axis), (parent,)), int64)
        assert axis.nnz_cols is not None
        return times(parent, cast(axis.nnz_cols, int64))

    def _indptr(self, axis: Axis) -> Buffer:
        assert axis.indptr is not None
        assert axis.parent is not None
        if axis.indptr not in self.matched:
            size = plus(self.total(axis.parent), 1)
            indptr = Buffer(axis.indptr.name, axis.indptr, (size,), axis.idtype, span=axis.span)
            self.indptrs.append(indptr)
            self.matched[axis.indptr] = self.indptrs[-1]
        return self.flat(self.matched[axis.indptr])

    def offset(self, buffer: AnyBuffer, indices: tuple[Expr | None, ...]) -> Expr:
        """Return the offset of the element at *indices*, an int64."""
        if isinstance(buffer, Buffer):
            return _dense_offset(buffer, indices)
        index = dict(zip(buffer.axes, indices, strict=True))
        groups = _groups(buffer.axes)
        offset: Expr = ZERO
        for k, group in enumerate(groups):
            part = self._before(group, groups[k + 1 :], index)
            fixed = {axis for earlier in groups[: k + 1] for axis in earlier}
            for later in groups[k + 1 :]:
                leaf = later[-1]  # it stands for its chain
                inner = any(_descends(axis, leaf) for axis in buffer.axes)
                if not inner and not _descends(leaf, group[-1]):
                    part = times(part, self._extent(leaf, fixed, index))
            offset = plus(offset, part)
        return offset

    def _absolute(self, axis: Axis, index: dict[Axis, Expr | None]) -> Expr:
        position = index[axis]
        assert position is not None
        if axis.parent is None or index[axis.parent] is None:
            return cast(position, int64)
        return plus(self.first(axis, self._absolute(axis.parent, index)), cast(position, int64))

    def _before(
        self, group: list[Axis], later: list[list[Axis]], index: dict[Axis, Expr | None]
    ) -> Expr:
        """How many elements of the chain through *group* lie before the one at *index*."""
        below = [a for chain in later for a in chain if _descends(chain[0], group[-1])]
        end = self._absolute(group[-1], index)
        parent = group[0].parent
        for axis in below:
            end = self.first(axis, end)
        if parent is None:
            return end
        start = self._absolute(parent, index)
        for axis in (*group, *below):
            start = self.first(axis, start)
        return binary("-", end, start)

    def _extent(self, leaf: Axis, fixed: set[Axis], index: dict[Axis, Expr | None]) -> Expr:
        """How many positions *leaf* has, given the axes of its chain that are *fixed*."""
        path: list[Axis] = []
        above: Axis | None = leaf
        while above is not None and above not in fixed:
            path.append(above)
            above = above.parent
        if above is None:
            return self.total(leaf)
        start = self._absolute(above, index)
        end = plus(start, 1)
        for axis in reversed(path):
            start, end = self.first(axis, start), self.first(axis, end)
        return binary("-", end, start)


def _groups(axes: tuple[Axis, ...]) -> list[list[Axis]]:
    """Return *axes* cut into runs in which each is the parent of the next."""
    groups: list[list[Axis]] = []
    for axis in axes:
        if groups and axis.parent is groups[-1][-1]:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _descends(axis: Axis, from_: Axis) -> bool:
    return from_ in axis.ancestors()


def _dense_offset(buffer: Buffer, indices: tuple[Expr | None, ...]) -> Expr:
    offset: Expr = ZERO
    for k, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
        assert index is not None
        if buffer.strides is not None:
            offset = plus(offset, times(cast(index, int64), cast(buffer.strides[k], int64)))
        else:
            offset = plus(times(offset, cast(extent, int64)), cast(index, int64))
    return offset
