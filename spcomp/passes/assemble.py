"""I to II, sparse outputs: count, scan, fill; the phases, and what a write becomes in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from spcomp.dtypes import handle, int64
from spcomp.errors import LoweringError
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer, domain_axes
from spcomp.ir.coordinate import CoordFunc, SpIter
from spcomp.ir.expr import BinOp, Expr, Load, Select, Var, binary, cast, const
from spcomp.ir.module import HostAlloc, HostOp, Launch, Return, Scan
from spcomp.ir.node import Node
from spcomp.ir.relink import relink
from spcomp.ir.stmt import Alloc, If, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.passes.positions import ZERO, Auxiliary, Pos

Phase: TypeAlias = Literal["none", "count", "fill"]
NONE_YET = const(-1)


@dataclass(frozen=True, slots=True)
class Phases:
    """The functions that assemble the outputs of one, each with its part, and how to run them."""

    phases: tuple[tuple[CoordFunc, Assembly], ...]
    host: tuple[HostOp, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """An element of an assembled buffer: under *parent*, at *coord*, with dense axes *trailing*."""

    axis: Axis
    parent: Pos
    coord: Expr
    trailing: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class _Fiber:
    """What is known of the fiber being assembled: how many elements, the last coordinate."""

    parent: Pos
    count: Buffer
    last: Buffer


@dataclass(slots=True)
class Assembly:
    """How writes to assembled axes are lowered in one phase.

    A write creates its coordinate unless it is the last one created in the fiber: coordinates
    ascend, so that is the only one it can be.
    """

    phase: Phase = "none"
    axes: frozenset[Axis] = frozenset()
    fibers: dict[Axis, _Fiber] = field(default_factory=dict)

    @property
    def counts_only(self) -> bool:
        """Whether other outputs are left to a later phase."""
        return self.phase == "count"

    def axis_of(self, buffer: AnyBuffer) -> Axis | None:
        """Return the assembled axis of *buffer*, if it has one."""
        if isinstance(buffer, SparseBuffer):
            return next((axis for axis in buffer.axes if axis in self.axes), None)
        return None

    def fiber(self, place: Place, node: Node) -> _Fiber | None:
        """Return the open fiber of *place*; None if it is to be opened."""
        known = self.fibers.get(place.axis)
        if known is not None and known.parent is not place.parent:
            raise LoweringError(
                f"{place.axis.name} is assembled by two iterations",
                node.span,
                hint="write it in one sp_iter, over T.union of the operands' axes",
            )
        return known

    def open(self, place: Place, names: tuple[str, str], aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber of *place*; return what is put around the statements that fill it."""
        count, last = (Buffer(n, None, (const(1),), int64, "local") for n in names)
        self.fibers[place.axis] = _Fiber(place.parent, count, last)

        def wrap(stmt: Stmt) -> Stmt:
            start = seq(Store(count, (ZERO,), ZERO), Store(last, (ZERO,), NONE_YET))
            end = self._close(place, count, aux) if self.counts_only else None
            return Alloc(count, Alloc(last, seq(start, stmt, end)))

        return wrap

    def _close(self, place: Place, count: Buffer, aux: Auxiliary) -> Stmt:
        target = aux.indptr(place.axis, place.parent, 1)
        assert isinstance(target, Load)
        return Store(target.buffer, target.indices, cast(Load(count, (ZERO,)), target.dtype))

    def load(self, buffer: AnyBuffer, place: Place, fill: Expr, node: Node) -> Expr:
        """Return what an element reads as: the fill unless it has been created."""
        fiber = self.fiber(place, node)
        if fiber is None or self.counts_only:
            return fill
        here = BinOp("==", Load(fiber.last, (ZERO,)), place.coord)
        return Select(here, Load(buffer, self._indices(place, fiber)), fill)

    def store(self, stmt: Store, value: Expr, place: Place, aux: Auxiliary) -> Stmt:
        """Return the write, creating the coordinate if need be."""
        fiber = self.fibers[place.axis]
        create: list[Stmt] = [
            Store(fiber.last, (ZERO,), place.coord),
            Store(fiber.count, (ZERO,), binary("+", Load(fiber.count, (ZERO,)), 1)),
        ]
        if not self.counts_only:
            assert place.axis.indices is not None
            indices = aux.buffers[place.axis.indices]
            at = self._indices(place, fiber)[: len(indices.axes)]
            create.append(Store(indices, at, cast(place.coord, indices.dtype)))
        is_new = BinOp("!=", Load(fiber.last, (ZERO,)), place.coord)
        created = If(is_new, Seq(tuple(create)), span=stmt.span)
        if self.counts_only:
            return created
        return seq(created, stmt.replace(indices=self._indices(place, fiber), value=value))

    def _indices(self, place: Place, fiber: _Fiber) -> tuple[Expr | None, ...]:
        position = binary("-", Load(fiber.count, (ZERO,)), 1)
        return (*place.parent.indices(), position, *place.trailing)


def assemble(func: CoordFunc) -> Phases:
    """Return the phases of *func*: count the elements of each fiber, scan, fill."""
    outer = next((a for a in func.axes if a.is_assembled and _above(a)), None)
    if outer is not None:
        raise LoweringError(f"{outer.name} is assembled below another assembled axis", func.span)
    _refuse_iteration(func)
    handles: dict[Axis, tuple[Var, Var]] = {
        axis: (Var(f"{axis.name}_indptr", handle), Var(f"{axis.name}_indices", handle))
        for axis in func.axes
        if axis.is_assembled
    }
    made = {
        axis: axis.replace(indptr=indptr, indices=indices)
        for axis, (indptr, indices) in handles.items()
    }
    full = relink(func, vars={}, axes=made, buffers={})
    axes = frozenset(made.values())
    results = [b for b in full.buffers if isinstance(b, SparseBuffer) and axes & {*b.axes}]
    data = {b.data for b in results}
    indptrs = tuple(pair[0] for pair in handles.values())
    others = tuple(p for p in full.params if p not in data)
    count = full.replace(name=f"{func.name}_count", params=(*others, *indptrs))
    every = tuple(v for pair in handles.values() for v in pair)
    fill = full.replace(name=f"{func.name}_fill", params=(*full.params, *every))
    phases = ((count, Assembly("count", axes)), (fill, Assembly("fill", axes)))
    return Phases(phases, tuple(_host(count.name, fill.name, tuple(axes), results)))


def _refuse_iteration(func: CoordFunc) -> None:
    for it in walk(func.body):
        if isinstance(it, SpIter):
            axes = [a for domain in it.domains for a in domain_axes(domain) if a.is_assembled]
            if axes:
                raise LoweringError(
                    f"{it.name!r} runs over {axes[0].name}, whose coordinates are its result",
                    it.span,
                    hint="iterate over the axes of the operands",
                )


def _above(axis: Axis) -> bool:
    return any(a.is_assembled for a in axis.ancestors())


def _host(
    count: str, fill: str, axes: tuple[Axis, ...], results: list[SparseBuffer]
) -> list[HostOp]:
    """Allocate, count, scan, allocate, fill."""
    before: list[HostOp] = []
    scans: list[HostOp] = []
    after: list[HostOp] = []
    arrays: list[Buffer] = []
    for axis in axes:
        assert axis.parent is not None
        assert axis.indptr is not None
        assert axis.indices is not None
        fibers = axis.parent.nnz if axis.parent.nnz is not None else axis.parent.length
        indptr = _array(axis.indptr, cast(fibers, int64) + 1, axis)
        total = cast(Load(indptr, (cast(fibers, int64),)), int64)
        indices = _array(axis.indices, total, axis)
        before.append(HostAlloc(indptr))
        scans.append(Scan(indptr))
        after.append(HostAlloc(indices))
        arrays += [indptr, indices]
        for buffer in results:
            if axis in buffer.axes:
                assert buffer.data is not None
                size = total
                for dense in buffer.axes[buffer.axes.index(axis) + 1 :]:
                    size = binary("*", size, cast(dense.length, int64))
                array = Buffer(buffer.data.name, buffer.data, (size,), buffer.dtype)
                after.append(HostAlloc(array, buffer.fill))
                arrays.append(array)
    return [*before, Launch(count), *scans, *after, Launch(fill), Return(tuple(arrays))]


def _array(data: Var, size: Expr, axis: Axis) -> Buffer:
    return Buffer(data.name, data, (size,), axis.idtype)
