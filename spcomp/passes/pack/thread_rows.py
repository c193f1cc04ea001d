"""II to II, on GPUs: a row of few products is made by one thread, in memory that its block has.

A small hash table finds the coordinates, which are listed in order of first use, with their values;
at the end each is compared with each. See ``short_fibers``, and for the source, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from spcomp.dtypes import int64, uint8
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, plus
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.stmt import Alloc, Fail, For, If, Let, Stmt, Store, seq
from spcomp.knobs import Knobs
from spcomp.passes.assembly.assemble import Assembly, Place, close, put
from spcomp.passes.assembly.marks import lanes, scalar
from spcomp.passes.assembly.short_fibers import ShortFiber
from spcomp.passes.assembly.write_order import Value


@dataclass(frozen=True, slots=True)
class _Row:
    """The row that a thread makes: its elements are in *fiber*, *count* of them so far.

    *spot*: the place in it of the element that a write is to.
    """

    fiber: ShortFiber
    count: Buffer
    spot: Buffer

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The memory that a thread has in its block."""
        values = (row for row, _ in self.fiber.values.values())
        return self.fiber.table, self.fiber.coords, *values


@dataclass(slots=True)
class ThreadRows(Assembly):
    """Makes rows of up to *limit* products, each on one thread, with memory that the block has.

    *work*: how many products each row has. *starts*: what the elements of each result begin as.
    """

    knobs: Knobs = field(kw_only=True)
    limit: int = field(kw_only=True)
    work: Buffer = field(kw_only=True)
    starts: Mapping[SparseBuffer, Value] = field(default_factory=dict)
    opened: _Row | None = None  # once the fiber is open

    @property
    def row(self) -> _Row:
        """The row whose fiber is open."""
        assert self.opened is not None
        return self.opened

    @property
    def ascending(self) -> bool:
        """Always false: any order will do."""
        return False

    @property
    def bytes(self) -> int:
        """How much memory of its block a thread needs."""
        sizes = [(b, b.shape[0]) for b in self.row.buffers]
        return sum(int(n.value) * b.dtype.itemsize for b, n in sizes if isinstance(n, Const))

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber: an empty table."""
        axis = place.axis
        self.parents[axis] = place.parent
        fiber = self._fiber(axis, names)
        count, spot = (scalar(names, f"{axis.name}_{wish}") for wish in ("count", "spot"))
        self.opened = row = _Row(fiber, count, spot)
        is_short = BinOp("<=", _products(self.work, place), const(self.limit))

        def wrap(stmt: Stmt) -> Stmt:
            size = fiber.table.shape[0]
            empty = lanes(
                names, size, lambda lane: Store(fiber.table, (lane,), const(0, fiber.table.dtype))
            )
            end = close(place, count, aux) if self.counts_only else self._emit(place, names, aux)
            body = seq(Store(count, (ZERO,), ZERO), empty, stmt, end)
            for buffer in (spot, count, *row.buffers):
                body = Alloc(buffer, body)
            bits = const((2 * self.limit).bit_length() - 1)
            return If(is_short, Let(fiber.bits, bits, body))

        return wrap

    def _fiber(self, axis: Axis, names: Names) -> ShortFiber:
        """Return the table: sizes are odd, in words, lest threads meet in one bank."""
        starts = {} if self.counts_only else self.starts
        fiber = ShortFiber.of(axis, starts, names, self.knobs)

        def sized(buffer: Buffer, size: int) -> Buffer:
            return buffer.replace(shape=(const(size),), scope="shared")

        values = {b: (sized(row, self.limit + 1), v) for b, (row, v) in fiber.values.items()}
        table = sized(fiber.table, 2 * self.limit + 4).replace(dtype=uint8)
        coords = sized(fiber.coords, self.limit + self.knobs.rank_lanes + 1)
        return replace(
            fiber, limit=self.limit, table=table, coords=coords, order=None, values=values
        )

    def load(self, buffer: AnyBuffer, place: Place, fill: Expr) -> Expr:  # noqa: ARG002
        """Return the element that the next write is to."""
        if self.counts_only:
            return fill
        values, _ = self.row.fiber.values[buffer]  # type: ignore[index]
        return Load(values, (Load(self.row.spot, (ZERO,)),))

    def store(self, stmt: Store, value: Expr, place: Place, aux: Auxiliary) -> Stmt:  # noqa: ARG002
        """Return the write, after the search for the coordinate, which adds it if it is new."""
        fiber, count, spot = self.row.fiber, self.row.count, self.row.spot
        key, before = fiber.names.var("key"), fiber.names.var("before")
        rows = fiber.values.values()

        def note(at: Expr) -> Stmt:
            fresh = BinOp("<", before, Load(count, (ZERO,)))
            start = seq(*(Store(row, (at,), first) for row, first in rows))
            return seq(Store(spot, (ZERO,), at), If(fresh, start) if rows else None)

        find = Let(before, Load(count, (ZERO,)), fiber.add(count, key, note))
        write: Stmt | None = None
        if not self.counts_only:
            row, _ = fiber.values[stmt.buffer]  # type: ignore[index]
            write = Store(row, (Load(spot, (ZERO,)),), value, span=stmt.span)
        new = seq(Let(key, place.coord, find), write)
        return _inside(place, new, stmt)

    def _emit(self, place: Place, names: Names, aux: Auxiliary) -> Stmt:
        """Return the statement that stores each element behind the lesser ones."""
        fiber, width = self.row.fiber, self.knobs.rank_lanes
        length = Load(self.row.count, (ZERO,))
        block, other = names.var("block"), names.var("other")
        coord = names.var("coord", fiber.coords.dtype)
        rank = Buffer(names.unique("rank"), None, (const(width),), coord.dtype, "local")
        one, none = const(1, coord.dtype), const(0, coord.dtype)

        def at(lane: Var) -> Expr:
            return plus(plus(binary("*", block, width), lane), 1)

        def compare(lane: Var) -> Stmt:
            less = Select(BinOp("<", coord, Load(fiber.coords, (at(lane),))), one, none)
            return Store(rank, (lane,), binary("+", Load(rank, (lane,)), less))

        def write(lane: Var) -> Stmt:
            position = cast(Load(rank, (lane,)), int64) if place.axis.sorted else plus(at(lane), -1)
            where = (*place.parent.indices(), position)
            stores: list[Stmt] = [put(place, position, Load(fiber.coords, (at(lane),)), aux)]
            stores += [
                Store(b, where, Load(row, (at(lane),))) for b, (row, _) in fiber.values.items()
            ]
            return If(BinOp("<=", at(lane), length), seq(*stores))

        each = functools.partial(_unrolled, names, const(width))
        listed = Load(fiber.coords, (plus(other, 1),))
        ranked = For(other, ZERO, length, Let(coord, listed, each(compare)))
        clear = each(lambda lane: Store(rank, (lane,), none))
        blocks = binary(">>", plus(length, width - 1), width.bit_length() - 1)
        parts = (clear, ranked, each(write)) if place.axis.sorted else (each(write),)
        return For(block, ZERO, blocks, Alloc(rank, seq(*parts)))


def _products(work: Buffer, place: Place) -> Expr:
    """Return how many products the row of *place* has."""
    return Load(work, (plus(place.parent.indices()[-1], 1),))  # type: ignore[arg-type]


def _inside(place: Place, stmt: Stmt, store: Store) -> Stmt:
    """Return *stmt* where the coordinate of *place* is in its axis; elsewhere the call fails."""
    if place.within is None:
        return stmt
    miss = f"write to a coordinate outside of {place.axis.name}"
    return If(place.within, stmt, Fail(miss, span=store.span), span=store.span)


def _unrolled(names: Names, count: Expr, body: Callable[[Var], Stmt]) -> Stmt:
    """Return the loop of *body* over *count* lanes, written out."""
    lane = names.var("lane")
    return For(lane, ZERO, count, body(lane), "unroll")
