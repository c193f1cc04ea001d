"""I to II, sparse outputs: a fiber of few elements is computed in one pass, and sorted at the end.

Its coordinates are listed in order of first use, with a small hash table to find them; values are
added up beside them. The sort compares each with each, so no branch depends on the data.
Source: hash SpGEMM (Nagasaka et al., ICPP Workshops 2018), here for short rows only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spcomp.dtypes import DType, int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, plus
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import WORKSPACE, AnyBuffer, Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, Let, Stmt, Store, While, seq
from spcomp.knobs import Knobs
from spcomp.passes.assembly.marks import lanes, ranks, scalar

NARROW, FACTOR = const((1 << 31) - 1), const(2_654_435_769)  # 2**32 over the golden ratio


@dataclass(frozen=True, slots=True)
class ShortFiber:
    """A fiber of at most *limit* elements, listed from place 1 on in order of first use.

    *coords*: their coordinates. *table*: by a hash of the coordinate, the place of an element, 0
    for an empty slot. *values*: for each result the buffer of its elements, and their initial
    value. *order*: the position of each in the result; None: that of the list. *bits*: of the
    number of a slot.
    """

    names: Names
    knobs: Knobs
    limit: int
    bits: Var
    table: Buffer
    coords: Buffer
    order: Buffer | None
    values: Mapping[SparseBuffer, tuple[Buffer, Const]]

    @staticmethod
    def of(
        axis: Axis,
        results: Mapping[SparseBuffer, int | float | bool],
        names: Names,
        knobs: Knobs,
    ) -> ShortFiber:
        """Return the workspaces of a fiber of *axis*; *results* along it, with initial values."""
        limit = knobs.fiber_ordered if axis.sorted else knobs.fiber_unordered

        def buffer(wish: str, dtype: DType, size: int = limit + knobs.rank_lanes) -> Buffer:
            return Buffer(names.unique(wish), None, (const(size),), dtype, WORKSPACE)

        values = {
            b: (buffer(f"{b.name}_row", b.dtype), const(start, b.dtype))
            for b, start in results.items()
        }
        return ShortFiber(
            names,
            knobs,
            limit,
            names.var("bits"),
            buffer(f"{axis.name}_table", axis.idtype, limit << knobs.table_spare),
            buffer(f"{axis.name}_coords", axis.idtype),
            buffer(f"{axis.name}_order", axis.idtype) if axis.sorted else None,
            values,
        )

    @property
    def slots(self) -> Expr:
        """The number of slots in use."""
        return binary("<<", const(1), self.bits)

    def around(self, stmt: Stmt) -> Stmt:
        """Return *stmt* with the workspaces."""
        order = (self.order,) if self.order is not None else ()
        buffers = (self.table, self.coords, *order, *(row for row, _ in self.values.values()))
        return functools.reduce(lambda inner, buffer: Alloc(buffer, inner), buffers, stmt)

    def open(self, size: Expr, stmt: Stmt) -> Stmt:
        """Return *stmt*, which computes a fiber of *size* elements, with a table for so many."""
        small, spare = self.knobs.table_small, self.knobs.table_spare
        small_bits, large_bits = (const(n.bit_length() - 1 + spare) for n in (small, self.limit))
        for row, first in self.values.values():
            stmt = seq(lanes(self.names, size, _clear(row, first, 1)), stmt)
        return Let(self.bits, Select(BinOp("<=", size, const(small)), small_bits, large_bits), stmt)

    def add(self, count: Buffer, key: Var, put: Callable[[Expr], Stmt]) -> Stmt:
        """Return the statement that finds or adds the place of *key*, and runs *put* on it.

        *count* is the number of elements.
        """
        slot = scalar(self.names, "slot")
        at = (Load(slot, (ZERO,)),)
        entry, fresh = self.names.var("there"), self.names.var("fresh")
        more, place = self.names.var("many"), self.names.var("place")
        candidate = cast(Load(self.table, at), int64)
        product = binary("*", binary("&", key, NARROW), FACTOR)
        mask = binary("-", self.slots, 1)
        start = binary("&", binary(">>", product, binary("-", const(32), self.bits)), mask)
        differs = BinOp("!=", cast(Load(self.coords, (candidate,)), int64), key)
        step = Store(slot, (ZERO,), binary("&", binary("+", at[0], 1), mask))
        is_new = BinOp("!=", fresh, ZERO)
        body = seq(
            Store(count, (ZERO,), more),
            Store(self.table, at, cast(place, self.table.dtype)),
            Store(self.coords, (place,), cast(key, self.coords.dtype)),
            put(place),
        )
        body = Let(place, Select(is_new, more, entry), body)
        body = Let(more, binary("+", Load(count, (ZERO,)), fresh), body)
        body = Let(fresh, Select(BinOp("==", entry, ZERO), const(1), ZERO), body)
        # an empty slot refers to place 0, which holds the key itself: one branch, rarely taken
        guard = Store(self.coords, (ZERO,), cast(key, self.coords.dtype))
        search = seq(guard, Store(slot, (ZERO,), start), While(differs, step))
        return Alloc(slot, seq(search, Let(entry, candidate, body)))

    def close(
        self, count: Buffer, put: Callable[[Expr, Expr], Stmt], store: Callable[..., Stmt]
    ) -> Stmt:
        """Return the statement that stores the elements, and leaves the table empty.

        ``put(position, coordinate)`` and ``store(result, position, value)`` store one element.
        """
        at, position = self.names.var("e"), self.names.var("position")
        length = Load(count, (ZERO,))
        writes = [put(position, self._coord_and_one(at)[0])]
        writes += [store(b, position, Load(row, (at + 1,))) for b, (row, _) in self.values.items()]
        rank = at if self.order is None else cast(Load(self.order, (at,)), int64)
        emit = For(at, ZERO, length, Let(position, rank, seq(*writes)))
        clear = lanes(self.names, self.slots, _clear(self.table, const(0, self.table.dtype), 0))
        if self.order is None:
            return seq(emit, clear)
        width = self.knobs.rank_lanes
        return seq(ranks(self.names, length, self._coord_and_one, self.order, width), emit, clear)

    def _coord_and_one(self, place: Expr) -> tuple[Expr, Expr]:
        """Return the coordinate of the element number *place*, from 0, and 1: its size."""
        return Load(self.coords, (binary("+", place, 1),)), const(1, self.coords.dtype)


def _clear(buffer: Buffer, value: Const, first: int) -> Callable[[Var], Stmt]:
    return lambda lane: Store(buffer, (plus(lane, first),), value)


class AddShort(Rewriter):
    """Turns the updates of an iteration into updates of the short fiber's elements."""

    def __init__(self, fiber: ShortFiber, count: Buffer, key: Callable[[Expr], Var | None]) -> None:
        self.fiber, self.count, self.key = fiber, count, key  # of a position: its coordinate

    def visit_Store(self, store: Store) -> Node:
        """Return the update at the place of its coordinate."""
        key = self._key(store)
        if key is None:
            return store
        assert isinstance(store.buffer, SparseBuffer)
        row, _ = self.fiber.values[store.buffer]

        def put(place: Expr) -> Stmt:
            value = _ReplaceLoad(store.buffer, Load(row, (place,))).rewrite(store.value)
            return Store(row, (place,), value, span=store.span)

        return self.fiber.add(self.count, key, put)

    def _key(self, access: Store) -> Var | None:
        keys = (self.key(index) for index in access.indices if index is not None)
        return next((key for key in keys if key is not None), None)


class _ReplaceLoad(Rewriter):
    """Replaces reads of *buffer* by *value*."""

    def __init__(self, buffer: AnyBuffer, value: Expr) -> None:
        self.buffer, self.value = buffer, value

    def visit_Load(self, load: Load) -> Node:
        return self.value if load.buffer is self.buffer else self.visit_Node(load)
