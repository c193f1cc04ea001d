"""II to II: rows of assembled results are computed once, a block of rows at a time, then placed.

A count would cost as much as the rows themselves where an element costs little, as in a merge. So
the rows of a block are written one after the other into local memory, large enough for all
elements of the operands there; a running sum over the blocks gives their place in the result. The
results are allocated for as many elements as the operands have; only written pages take memory. In
a result with one fiber, ranges of coordinates take the place of blocks of rows.
Source: decoupled look-back, Merrill and Garland (NVIDIA NVR-2016-002, 2016).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import is_unit
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, cast, const
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Return, Scan, Trim
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.passes.base import Pass, Stage
from spcomp.passes.pack.cut_merge import CutMerge, cut_of, in_parts
from spcomp.passes.pack.pack_rows import Pair, pack_rows, put_in_place
from spcomp.passes.pack.row_bounds import Span, bound_of, sum_of


@dataclass(frozen=True, slots=True)
class PackResults(Pass):
    """``count; scan; for i: row  ->  for block: rows; at = prefix(how many); put in place``.

    Nothing changes if no bound of the length of a row is known before it is computed.
    """

    name: ClassVar[str] = "pack_results"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.POSITION
    knobs: Knobs = field(repr=False)

    def run(self, module: Module[Any]) -> Module[Any]:
        """Return *module* with one function in place of count and fill, where that is possible."""
        if (products := pack_rows(module, self.knobs)) is not None:
            return products
        phases = _phases(module)
        rows = None if phases is None else find_rows(phases)
        if phases is None or rows is None:
            return module
        return _pack(module, phases, rows, self.knobs)


@dataclass(frozen=True, slots=True)
class _Phases:
    """The result of count, scan and fill: an assembled axis, and the values along it."""

    fill: PosFunc
    axis: Axis
    indptr: Buffer
    indices: Buffer
    values: Buffer


@dataclass(frozen=True, slots=True)
class Rows:
    """The *loop* over the fibers of a result.

    *count* counts the elements of a fiber as they are written, at most the sum of *bound*;
    *stored* are the indices and the values. *cut*: the merge that makes the only fiber.
    """

    loop: For
    count: AnyBuffer
    stored: tuple[AnyBuffer, AnyBuffer]
    bound: tuple[Span, ...]
    cut: CutMerge | None = None


def _phases(module: Module[Any]) -> _Phases | None:
    """Return the phases of *module* if it counts, scans and fills one result."""
    match module.host:
        case (
            HostAlloc(buffer=indptr),
            Launch(),
            Scan(),
            HostAlloc(buffer=indices),
            HostAlloc(buffer=values),
            Launch(func=name),
            Return(),
        ):
            fill = module[name]
            index_names = indptr.name, indices.name  # a parsed function has its own handles
            candidates = [
                axis
                for axis in fill.axes
                if axis.indptr
                and axis.indices
                and index_names == (axis.indptr.name, axis.indices.name)
            ]
            handles = {buffer.data for buffer in fill.buffers}
            candidates = [
                axis for axis in candidates if axis.indptr in handles and axis.parent is not None
            ]
            if isinstance(fill, PosFunc) and len(candidates) == 1:
                return _Phases(fill, candidates[0], indptr, indices, values)
    return None


def find_rows(phases: _Phases) -> Rows | None:
    """Return the loop over the rows, if it writes every element by count, index and value."""
    loop, axis = phases.fill.body, phases.axis
    if axis.parent is None or axis.parent.parent is not None:
        return None
    if not isinstance(loop, For) or loop.kind != "parallel" or not from_zero(loop):
        return None
    along = [b for b in phases.fill.buffers if b.data and axis in getattr(b, "axes", ())]
    by_name = {b.data.name: b for b in along if b.data}
    if not {phases.indices.name, phases.values.name} <= by_name.keys():
        return None
    stored = by_name[phases.indices.name], by_name[phases.values.name]
    nodes = list(walk(loop.body))
    stores = [n for n in nodes if isinstance(n, Store) and n.buffer in stored]
    elements = [n for n in nodes if isinstance(n, Seq) and _creates_element(n, stored)]
    read = any(isinstance(n, Load) and n.buffer in stored for n in nodes)
    counts = {_counter(store) for store in stores}
    count = counts.pop() if len(counts) == 1 else None
    if not elements or len(stores) != 2 * len(elements) or read or count is None:
        return None
    rows = _row_variables(loop)
    start = _start(loop.body, count)
    bound = None if start is None else bound_of(start, rows, phases.fill.axes)
    if bound is None or any(store.indices[0] not in rows for store in stores):
        return None
    cut = None if start is None or not is_unit(axis.parent) else cut_of(start, bound)
    return Rows(loop, count, stored, bound, cut)


def _row_variables(loop: For) -> frozenset[Var]:
    """Return the variables equal to that of *loop*: its own, and those of blocks."""
    blocks = [n for n in walk(loop.body) if isinstance(n, Block)]
    iters = (item for block in blocks for item in block.iters)
    return frozenset({loop.var, *(item.var for item in iters if item.value is loop.var)})


def _creates_element(stmt: Seq, arrays: tuple[AnyBuffer, AnyBuffer]) -> bool:
    """Whether *stmt* creates an element: it counts, and stores the index and then the value."""
    targets = [part.buffer for part in stmt.body if isinstance(part, Store)]
    return [b for b in targets if b in arrays] == [*arrays]


def _counter(store: Store) -> AnyBuffer | None:
    """Return the buffer *n* if *store* writes an element of a row at position ``n[0] - 1``."""
    match store.indices:
        case (
            _,
            BinOp(
                op="-",
                lhs=Load(buffer=Buffer(shape=(Const(value=1),)) as count),
                rhs=Const(value=1),
            ),
        ):
            return count
    return None


def _start(stmt: Stmt, count: AnyBuffer) -> Stmt | None:
    """Return the body of the allocation of *count* if each row runs it once."""
    match stmt:
        case Alloc(buffer=buffer, body=body) if buffer is count:
            return body
        case Block(init=None, where=None, body=body) | Let(body=body) | Alloc(body=body):
            return _start(body, count)
        case Seq(body=parts):
            starts = [x for part in parts if (x := _start(part, count)) is not None]
            return starts[0] if starts else None
    return None


class _WriteLocal(Rewriter):
    """Redirects the stores of a row into *local*, after those of the rows before it."""

    def __init__(self, rows: Rows, local: Pair) -> None:
        self.count, self.local = rows.count, dict(zip(rows.stored, local, strict=True))

    def visit_Alloc(self, alloc: Alloc) -> Node:
        new = self.visit_Node(alloc)
        assert isinstance(new, Alloc)
        return new.body if alloc.buffer is self.count else new

    def visit_Store(self, store: Store) -> Node:
        if store.buffer is self.count and isinstance(store.value, Const):
            return Seq(())  # the count continues over the rows
        local = self.local.get(store.buffer)
        return store if local is None else store.replace(buffer=local, indices=store.indices[-1:])

    def visit_Block(self, block: Block) -> Node:
        return block.replace(reads=(), writes=(), body=self.rewrite(block.body))


@dataclass(frozen=True, slots=True)
class _Target:
    """The arrays of the *results*, with room for *most* elements, and the loop over the rows."""

    names: Names
    rows: Rows
    indptr: AnyBuffer
    results: Pair
    most: Expr
    knobs: Knobs

    def blocks(self, fibers: Expr) -> Stmt:
        """Return the loop over blocks of rows, of *fibers* in all."""
        names, loop = self.names, self.rows.loop
        height, block, first, last = (
            names.var(f"{loop.var.name}_{wish}") for wish in ("height", "block", "from", "to")
        )
        body = self._block(first, last, height)
        after = binary("min", binary("+", first, height), fibers)
        body = Let(first, binary("*", block, height), Let(last, after, body))
        trips = binary("//", binary("+", fibers, binary("-", height, 1)), height)
        blocks = For(block, ZERO, trips, body, "parallel", attrs=(("grain", 1),), span=loop.span)
        elements = binary("*", fibers, self.knobs.block_elements)
        share = binary("//", elements, binary("max", self.most, 1))
        return Let(height, binary("max", binary("min", share, self.knobs.block_rows), 1), blocks)

    def _block(self, first: Var, last: Var, height: Var) -> Stmt:
        """Return the statement that computes rows ``first..last-1``, at most *height*."""
        rows, room = self.rows, self.names.var("room")
        local = self._local(self.results[0], room), self._local(self.results[1], room)
        ends = Buffer(self.names.unique("ends"), None, (height,), int64, "local")
        end = Store(ends, (binary("-", rows.loop.var, first),), Load(rows.count, (ZERO,)))
        body = _WriteLocal(rows, local).rewrite(rows.loop.body)
        assert isinstance(body, Stmt)
        row = rows.loop.replace(begin=first, end=last, body=seq(body, end), kind="serial", attrs=())
        pairs = tuple(zip(self.results, local, strict=True))
        placement = put_in_place(self.names, self.indptr, pairs, ends, (first, last), rows.count)
        stmt = seq(Store(rows.count, (ZERO,), ZERO), row, placement)
        for buffer in (*local, rows.count, ends):
            stmt = Alloc(buffer, stmt)
        return Let(room, sum_of([span.between(first, last) for span in rows.bound]), stmt)

    def parts(self, cut: CutMerge) -> Stmt:
        """Return the loop over the parts of the only row; the last part stores where it ends."""
        names, count = self.names, self.rows.count
        ends = Buffer(names.unique("ends"), None, (const(1),), int64, "local")

        def make(merge: Stmt, most: Expr, last: Expr) -> Stmt:
            room = names.var("room")
            local = self._local(self.results[0], room), self._local(self.results[1], room)
            pairs = tuple(zip(self.results, local, strict=True))
            placement = put_in_place(
                names, self.indptr, pairs, ends, (ZERO, cast(last, int64)), count
            )
            body = _WriteLocal(self.rows, local).rewrite(merge)
            stmt: Stmt = seq(body, Store(ends, (ZERO,), Load(count, (ZERO,))), placement)
            for buffer in (*local, ends):
                stmt = Alloc(buffer, stmt)
            return Let(room, most, stmt)

        return in_parts(names, self.rows.loop, cut, make, self.knobs)

    def _local(self, array: Buffer, size: Expr) -> Buffer:
        name = self.names.unique(f"{array.name}_kept")
        return Buffer(name, None, (size,), array.dtype, "local")


def _pack(module: Module[Any], phases: _Phases, rows: Rows, knobs: Knobs) -> Module[Any]:
    fill, axis = phases.fill, phases.axis
    assert axis.parent is not None
    most = sum_of([span.total() for span in rows.bound])
    indices, values = (
        Buffer(stored.name, stored.data, (most,), stored.dtype) for stored in rows.stored
    )
    indptr = next(b for b in fill.buffers if b.data is axis.indptr)
    target = _Target(Names(fill), rows, indptr, (indices, values), most, knobs)
    fibers = cast(axis.parent.length, int64)
    blocks = target.blocks(fibers) if rows.cut is None else target.parts(rows.cut)
    others = [b for b in fill.buffers if not (isinstance(b, SparseBuffer) and axis in b.axes)]
    func = fill.replace(
        name=f"{module.source.name}_pack",
        axes=tuple(a for a in fill.axes if a is not axis),
        buffers=(*others, indices, values),
        body=seq(Store(indptr, (ZERO,), cast(ZERO, indptr.dtype)), blocks),
        domains=tuple(d for d in fill.domains if d.buffer in others),
    )
    return Module(module.source, (func,), _host(phases, func.name, most))


def _host(phases: _Phases, name: str, most: Expr) -> tuple[HostOp, ...]:
    """Return the host program: allocate for the bound, run, and trim to the actual size."""
    total = phases.indices.shape[0]
    arrays = [b.replace(shape=(most,)) for b in (phases.indices, phases.values)]
    return (
        HostAlloc(phases.indptr),
        *(HostAlloc(array, None) for array in arrays),
        Launch(name),
        *(Trim(array, total) for array in arrays),
        Return((phases.indptr, *arrays)),
    )
