"""I to II, sparse outputs: count, scan, fill; the phases, and how writes are lowered in each.

Where the coordinates of a fiber are written in ascending order, only the last one has to be known.
Otherwise they are marked in a workspace, as in Gustavson's algorithm (TOMS 1978); in place of its
dense row of values stands the row of the result itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, TypeAlias

from spcomp.dtypes import handle, int64
from spcomp.errors import LoweringError
from spcomp.ir.access import Load
from spcomp.ir.analysis.copies import Fresh
from spcomp.ir.analysis.exprs import ZERO, variables
from spcomp.ir.analysis.memory import Layout
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, Pos
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer, domain_axes
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast, const
from spcomp.ir.module import HostAlloc, HostOp, Launch, Return, Scan
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter, relink
from spcomp.ir.stmt import Alloc, Fail, For, If, Let, Seq, Stmt, Store, is_empty, seq
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.passes.assembly.marks import Marks, scalar
from spcomp.passes.assembly.short_fibers import AddShort, ShortFiber
from spcomp.passes.assembly.write_order import (
    Value,
    in_order,
    refuse_late_conditions,
    without_inits,
    written_once,
)

Phase: TypeAlias = Literal["none", "count", "fill"]
BEFORE_FIRST = const(-1)
ONE_PASS = "one_pass"  # attribute of a function that uses row sizes only to tell few from many


@dataclass(frozen=True, slots=True)
class Phases:
    """The functions that assemble the outputs of a function, and the host program of them."""

    phases: tuple[tuple[CoordFunc, Assembly], ...]
    host: tuple[HostOp, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """An element of an assembled buffer: under *parent*, at *coord*, with dense axes *trailing*."""

    axis: Axis
    parent: Pos
    coord: Expr
    trailing: tuple[Expr, ...]
    within: Expr | None = None  # whether *coord* lies in the axis, where that is not sure


@dataclass(frozen=True, slots=True)
class _Fiber:
    """The state of the fiber being assembled: its number of elements, its last coordinate."""

    count: Buffer
    last: Buffer


@dataclass(slots=True)
class Assembly:
    """How writes to assembled axes are lowered in one phase; the base class changes nothing."""

    phase: Phase = "none"
    axes: frozenset[Axis] = frozenset()  # written to, their structure not yet known
    marked: frozenset[Axis] = frozenset()  # written to, their fibers put in order by marks
    parents: dict[Axis, Pos] = field(default_factory=dict)  # the parent of each open fiber
    one_pass: tuple[str, str, int] | None = None  # an axis, its count, the limit of few elements

    @property
    def counts_only(self) -> bool:
        """Whether other outputs are left to a later phase."""
        return self.phase == "count"

    @property
    def ascending(self) -> bool:
        """Whether the coordinates of a fiber must be written in ascending order."""
        return True

    def axis_of(self, buffer: AnyBuffer) -> Axis | None:
        """Return the assembled axis of *buffer*, if it has one."""
        if isinstance(buffer, SparseBuffer):
            return next((axis for axis in buffer.axes if axis in self.axes), None)
        return None

    def is_open(self, place: Place, node: Node) -> bool:
        """Whether the fiber of *place* is being assembled; raises if another iteration does it."""
        if place.axis in self.parents and not self.has_open(place):
            raise LoweringError(
                f"{place.axis.name} is assembled by two iterations",
                node.span,
                hint="write it in one sp_iter, over T.union of the operands' axes",
            )
        return self.has_open(place)

    def has_open(self, place: Place) -> bool:
        """Whether the fiber of *place* is open."""
        return self.parents.get(place.axis) is place.parent

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber of *place*; return a function that wraps the statements that fill it."""
        raise NotImplementedError

    def load(self, buffer: AnyBuffer, place: Place, fill: Expr) -> Expr:
        """Return the value of an element: the fill unless it has been created."""
        raise NotImplementedError

    def store(self, stmt: Store, value: Expr, place: Place, aux: Auxiliary) -> Stmt:
        """Return the write, which creates the coordinate if it is new."""
        raise NotImplementedError

    def position(self, axis: Axis, key: Var) -> tuple[Expr, Expr]:
        """Return the position of *key* in the open fiber of *axis*, and whether it is in it."""
        raise NotImplementedError


@dataclass(slots=True)
class Ascending(Assembly):
    """A write creates its coordinate unless it is the last one created in the fiber.

    Coordinates ascend, so it can equal no other; along the axes *fresh* it never equals the last.
    """

    fresh: frozenset[Axis] = frozenset()
    starts: Mapping[AnyBuffer, Value] = field(default_factory=dict)  # of results with an init
    fibers: dict[Axis, _Fiber] = field(default_factory=dict)

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber: declare its number of coordinates, and the last of them."""
        wishes = f"{place.axis.name}_count", f"{place.axis.name}_last"
        count, last = (scalar(names, wish) for wish in wishes)
        self.parents[place.axis] = place.parent
        self.fibers[place.axis] = _Fiber(count, last)

        def wrap(stmt: Stmt) -> Stmt:
            end = close(place, count, aux) if self.counts_only else None
            body = seq(Store(count, (ZERO,), ZERO), stmt, end)
            if place.axis not in self.fresh:
                body = Alloc(last, seq(Store(last, (ZERO,), BEFORE_FIRST), body))
            return Alloc(count, body)

        return wrap

    def load(self, buffer: AnyBuffer, place: Place, fill: Expr) -> Expr:
        """Return the element if it is the last one created, else its initial value."""
        if buffer in self.starts:
            fill = const(self.starts[buffer], buffer.dtype)
        if self.counts_only:
            return fill
        fiber = self.fibers[place.axis]
        is_last = BinOp("==", Load(fiber.last, (ZERO,)), place.coord)
        return Select(is_last, Load(buffer, self._indices(place, fiber)), fill)

    def store(self, stmt: Store, value: Expr, place: Place, aux: Auxiliary) -> Stmt:
        """Return the write, after the creation of the coordinate if that is new."""
        fiber = self.fibers[place.axis]
        count = Load(fiber.count, (ZERO,))
        creation: Stmt = Store(fiber.count, (ZERO,), binary("+", count, 1))
        if not self.counts_only:
            creation = seq(creation, put(place, binary("-", count, 1), place.coord, aux))
        if place.axis not in self.fresh:
            is_new = BinOp("!=", Load(fiber.last, (ZERO,)), place.coord)
            creation = seq(Store(fiber.last, (ZERO,), place.coord), creation)
            creation = If(is_new, creation, span=stmt.span)
        if self.counts_only:
            return creation
        return seq(creation, stmt.replace(indices=self._indices(place, fiber), value=value))

    def _indices(self, place: Place, fiber: _Fiber) -> tuple[Expr | None, ...]:
        position = binary("-", Load(fiber.count, (ZERO,)), 1)
        return (*place.parent.indices(), position, *place.trailing)


@dataclass(slots=True)
class Marked(Assembly):
    """A write marks its coordinate in a workspace, in any order.

    That is all the count phase does. In the fill phase the iteration over a fiber runs twice: it
    marks its coordinates, which are then written in order; then its writes are located by marks.
    """

    knobs: Knobs = field(kw_only=True)
    starts: Mapping[SparseBuffer, Value] = field(default_factory=dict)  # of each result
    marks: dict[Axis, Marks] = field(default_factory=dict)

    @property
    def ascending(self) -> bool:
        """Always false: any order will do."""
        return False

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber: a workspace for its marks."""
        marks = Marks.of(place.axis, names, self.knobs)
        self.parents[place.axis] = place.parent
        self.marks[place.axis] = marks
        count = scalar(names, f"{place.axis.name}_count")
        start = Store(count, (ZERO,), ZERO)

        def wrap(stmt: Stmt) -> Stmt:
            if self.phase == "count":
                end = seq(marks.count_and_clear(count), close(place, count, aux))
                return Alloc(
                    count, marks.around(seq(start, stmt, end), ranked=False, ordered=False)
                )
            first = Fresh(names, "_m", {}).rewrite(MarkOnly(self.marks).rewrite(stmt))
            ordered = place.axis.sorted
            emit = marks.emit(
                count, lambda at: put(place, Load(count, (ZERO,)), at, aux), ordered=ordered
            )
            body = seq(first, emit, stmt, marks.clear())
            if (short := self._short(stmt, place, count, names, aux)) is not None:
                fiber, updates = short
                size = aux.size(place.axis, place.parent)
                few = BinOp("<=", size, const(fiber.limit))
                if len(self.marked) == 1:
                    self.one_pass = place.axis.name, count.name, fiber.limit
                body = fiber.around(If(few, fiber.open(size, updates), body))
            return Alloc(count, marks.around(seq(start, body), ranked=True, ordered=ordered))

        return wrap

    def _short(
        self, stmt: Stmt, place: Place, count: Buffer, names: Names, aux: Auxiliary
    ) -> tuple[ShortFiber, Stmt] | None:
        """Return the state of a fiber of few elements and the statements that compute it, or None.

        None if an update tests for other elements than its own, or has dense axes below.
        """
        results = {b: v for b, v in self.starts.items() if b.axes[-1] is place.axis}
        alone_on_axis = {b for b in self.starts if place.axis in b.axes} == results.keys()
        inside = list(walk(stmt))
        marks = self.marks[place.axis]
        if not alone_on_axis or any(map(marks.is_test, inside)):
            return None
        fiber = ShortFiber.of(place.axis, results, names, self.knobs)
        updates = Fresh(names, "_s", {}).rewrite(AddShort(fiber, count, marks.key).rewrite(stmt))

        def store(buffer: SparseBuffer, position: Expr, value: Expr) -> Stmt:
            return Store(buffer, (*place.parent.indices(), position), value)

        def write(position: Expr, coord: Expr) -> Stmt:
            return put(place, position, coord, aux)

        return fiber, seq(updates, fiber.close(count, write, store))

    def load(self, buffer: AnyBuffer, place: Place, fill: Expr) -> Expr:  # noqa: ARG002
        """Return the fill: this phase needs no values."""
        return fill

    def store(self, stmt: Store, value: Expr, place: Place, aux: Auxiliary) -> Stmt:  # noqa: ARG002
        """Return the mark; a coordinate outside the axis fails the call."""
        add = self.marks[place.axis].add(place.coord)
        if place.within is None:
            return add
        miss = f"write to a coordinate outside of {place.axis.name}"
        return If(place.within, add, Fail(miss, span=stmt.span), span=stmt.span)

    def position(self, axis: Axis, key: Var) -> tuple[Expr, Expr]:
        """Return the position of *key* in the open fiber of *axis*, and whether it is in it."""
        marks = self.marks[axis]
        return marks.position(key), marks.holds(key)


class MarkOnly(Rewriter):
    """Reduces an iteration to the marks of the coordinates that it writes."""

    def __init__(self, marks: Mapping[Axis, Marks]) -> None:
        self.marks = marks
        self.local: set[AnyBuffer] = set()

    def visit_Store(self, store: Store) -> Node:
        """Return the mark; keep a store to a local buffer, which may decide what is marked."""
        for index, marks in product(store.indices, self.marks.values()):
            if index is not None and (key := marks.key(index)) is not None:
                return marks.add(key)
        return store if store.buffer in self.local else NOTHING

    def visit_Alloc(self, alloc: Alloc) -> Node:
        """Keep it if it is used."""
        self.local.add(alloc.buffer)
        new = self.visit_Node(alloc)
        is_used = any(getattr(n, "buffer", None) is alloc.buffer for n in walk(new.body))  # type: ignore[attr-defined]
        return new if is_used else new.body  # type: ignore[attr-defined]

    def visit_Let(self, let: Let) -> Node:
        """Keep it if it is used."""
        body = self.rewrite(let.body)
        return let.replace(body=body) if let.var in variables(body) else body

    def visit_Seq(self, stmt: Seq) -> Node:
        """Keep the statements that are not empty."""
        return seq(*(self.rewrite(s) for s in stmt.body))

    def visit_For(self, loop: For) -> Node:
        """Keep it if anything is left in it."""
        body = self.rewrite(loop.body)
        return NOTHING if is_empty(body) else loop.replace(body=body)

    def visit_If(self, stmt: If) -> Node:
        """Keep it if anything is left in it."""
        then = self.rewrite(stmt.then)
        otherwise = None if stmt.otherwise is None else self.rewrite(stmt.otherwise)
        if is_empty(then) and (otherwise is None or is_empty(otherwise)):
            return NOTHING
        return stmt.replace(then=then, otherwise=otherwise)

    def visit_Block(self, block: Block) -> Node:
        """Keep it if anything is left in it."""
        body = self.rewrite(block.body)
        return NOTHING if is_empty(body) else block.replace(init=None, body=body)


NOTHING = Seq(())


def close(place: Place, count: Buffer, aux: Auxiliary) -> Stmt:
    """Return the statement that stores the number of elements in the fiber of *place*."""
    target = aux.indptr(place.axis, place.parent, 1)
    assert isinstance(target, Load)
    return Store(target.buffer, target.indices, cast(Load(count, (ZERO,)), target.dtype))


def put(place: Place, position: Expr, coord: Expr, aux: Auxiliary) -> Stmt:
    """Return the statement that stores *coord* at *position* of the fiber of *place*."""
    assert place.axis.indices is not None
    indices = aux.buffers[place.axis.indices]
    at = (*place.parent.indices(), position)
    return Store(indices, at, cast(coord, indices.dtype))


def _refuse_names(func: CoordFunc, results: Mapping[str, Axis]) -> None:
    """Raise LoweringError if a parameter has the name of an index array in *results*."""
    for param in func.params:
        if (axis := results.get(param.name)) is not None:
            array = f"an index array of {axis.name}"
            raise LoweringError(
                f"the parameter {param.name} has the name of a result, {array}",
                axis.span,
                hint=f"rename the parameter, or the axis {axis.name}",
            )


def assemble(func: CoordFunc, knobs: Knobs) -> Phases:
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
    _refuse_names(func, {var.name: axis for axis, pair in handles.items() for var in pair})
    axis_of = {
        axis: axis.replace(indptr=indptr, indices=indices)
        for axis, (indptr, indices) in handles.items()
    }
    full = relink(func, vars={}, axes=axis_of, buffers={})
    axes = frozenset(axis_of.values())
    results = [b for b in full.buffers if isinstance(b, SparseBuffer) and axes & {*b.axes}]
    data = {b.data for b in results}
    others = tuple(p for p in full.params if p not in data)
    indptrs = tuple(pair[0] for pair in handles.values())
    arrays = tuple(v for pair in handles.values() for v in pair)
    refuse_late_conditions(full, axes)
    full, starts = without_inits(full, axes)
    ascending = in_order(full, axes)
    fresh = written_once(full, axes)
    count = full.replace(name=f"{func.name}_count", params=(*others, *indptrs))
    fill = full.replace(name=f"{func.name}_fill", params=(*full.params, *arrays))
    first = {b: starts.get(b, b.fill) for b in results}
    assemblies: tuple[Assembly, Assembly] = (
        (Ascending("count", axes, fresh=fresh), Ascending("fill", axes, fresh=fresh, starts=starts))
        if ascending
        else (
            Marked("count", axes, knobs=knobs),
            Marked("fill", marked=axes, knobs=knobs, starts=first),
        )
    )
    phases = ((count, assemblies[0]), (fill, assemblies[1]))
    return Phases(phases, tuple(_host(count.name, fill.name, tuple(axes), results, starts)))


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
    count: str,
    fill: str,
    axes: tuple[Axis, ...],
    results: list[SparseBuffer],
    starts: Mapping[AnyBuffer, Value],
) -> list[HostOp]:
    """Return the host program: allocate, count, scan, allocate, fill."""
    before: list[HostOp] = []
    scans: list[HostOp] = []
    after: list[HostOp] = []
    arrays: list[Buffer] = []
    for axis in axes:
        assert axis.parent is not None
        assert axis.indptr is not None
        assert axis.indices is not None
        fibers = Layout().total(axis.parent)
        indptr = _array(axis.indptr, fibers + 1, axis)
        total = cast(Load(indptr, (fibers,)), int64)
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
                after.append(HostAlloc(array, starts.get(buffer, buffer.fill)))
                arrays.append(array)
    return [*before, Launch(count), *scans, *after, Launch(fill), Return(tuple(arrays))]


def _array(data: Var, size: Expr, axis: Axis) -> Buffer:
    return Buffer(data.name, data, (size,), axis.idtype)
