"""I to II, sparse outputs: a fiber of few elements is computed in one go, and put in order last.

The coordinates that it meets are listed as they come, a small hash table says where; values are
added up beside them. To order them each is compared with each, so no branch depends on the data.
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
from spcomp.passes.assembly.marks import LANES, lanes, ranks, scalar

ORDERED, UNORDERED = 64, 256  # elements that are few: to compare each with each, or without that
SMALL = 32  # elements with a smaller table
SPARE = 2  # of the slots in use, a 2**SPARE-th at most is taken
NARROW, FACTOR = const((1 << 31) - 1), const(2_654_435_769)  # 2**32 over the golden ratio


@dataclass(frozen=True, slots=True)
class ShortFiber:
    """A fiber of at most *limit* elements: from 1 on, their coordinates and values as they came.

    *table*: by a hash of its coordinate, the place of an element, 0 where there is none; *values*
    has for each result where its elements are, and what they start with; *order*: where they go,
    None: where they are. *bits*: of a slot of the table.
    """

    names: Names
    limit: int
    bits: Var
    table: Buffer
    coords: Buffer
    order: Buffer | None
    values: Mapping[SparseBuffer, tuple[Buffer, Const]]

    @staticmethod
    def of(
        axis: Axis, results: Mapping[SparseBuffer, int | float | bool], names: Names
    ) -> ShortFiber:
        """Return the workspaces of a fiber of *axis*, along which *results* lie, and start."""
        limit = ORDERED if axis.sorted else UNORDERED

        def buffer(wish: str, dtype: DType, size: int = limit + LANES) -> Buffer:
            return Buffer(names.unique(wish), None, (const(size),), dtype, WORKSPACE)

        values = {
            b: (buffer(f"{b.name}_row", b.dtype), const(start, b.dtype))
            for b, start in results.items()
        }
        return ShortFiber(
            names,
            limit,
            names.var("bits"),
            buffer(f"{axis.name}_table", axis.idtype, limit << SPARE),
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
        own = (self.order,) if self.order is not None else ()
        every = (self.table, self.coords, *own, *(row for row, _ in self.values.values()))
        return functools.reduce(lambda inner, buffer: Alloc(buffer, inner), every, stmt)

    def open(self, size: Expr, stmt: Stmt) -> Stmt:
        """Return *stmt*, which computes a fiber of *size* elements, with a table as large."""
        few, many = (const(n.bit_length() - 1 + SPARE) for n in (SMALL, self.limit))
        for row, first in self.values.values():
            stmt = seq(lanes(self.names, size, _clear(row, first, 1)), stmt)
        return Let(self.bits, Select(BinOp("<=", size, const(SMALL)), few, many), stmt)

    def add(self, count: Buffer, key: Var, put: Callable[[Expr], Stmt]) -> Stmt:
        """Return what finds the place of *key*, or makes it, and runs *put* on it.

        *count* is the number of elements.
        """
        slot = scalar(self.names, "slot")
        at = (Load(slot, (ZERO,)),)
        there, fresh = self.names.var("there"), self.names.var("fresh")
        more, place = self.names.var("many"), self.names.var("place")
        known = cast(Load(self.table, at), int64)
        mixed = binary("*", binary("&", key, NARROW), FACTOR)
        mask = binary("-", self.slots, 1)
        start = binary("&", binary(">>", mixed, binary("-", const(32), self.bits)), mask)
        other = BinOp("!=", cast(Load(self.coords, (known,)), int64), key)
        step = Store(slot, (ZERO,), binary("&", binary("+", at[0], 1), mask))
        is_new = BinOp("!=", fresh, ZERO)
        body = seq(
            Store(count, (ZERO,), more),
            Store(self.table, at, cast(place, self.table.dtype)),
            Store(self.coords, (place,), cast(key, self.coords.dtype)),
            put(place),
        )
        body = Let(place, Select(is_new, more, there), body)
        body = Let(more, binary("+", Load(count, (ZERO,)), fresh), body)
        body = Let(fresh, Select(BinOp("==", there, ZERO), const(1), ZERO), body)
        # where there is no element, the key itself is found: one branch, hardly ever taken
        guard = Store(self.coords, (ZERO,), cast(key, self.coords.dtype))
        search = seq(guard, Store(slot, (ZERO,), start), While(other, step))
        return Alloc(slot, seq(search, Let(there, known, body)))

    def close(
        self, count: Buffer, put: Callable[[Expr, Expr], Stmt], store: Callable[..., Stmt]
    ) -> Stmt:
        """Return what writes the elements down, and leaves the table empty.

        ``put(position, coordinate)`` and ``store(result, position, value)`` write one.
        """
        at, position = self.names.var("e"), self.names.var("position")
        many = Load(count, (ZERO,))
        writes = [put(position, self._listed(at)[0])]
        writes += [store(b, position, Load(row, (at + 1,))) for b, (row, _) in self.values.items()]
        rank = at if self.order is None else cast(Load(self.order, (at,)), int64)
        emit = For(at, ZERO, many, Let(position, rank, seq(*writes)))
        clear = lanes(self.names, self.slots, _clear(self.table, const(0, self.table.dtype), 0))
        if self.order is None:
            return seq(emit, clear)
        return seq(ranks(self.names, many, self._listed, self.order), emit, clear)

    def _listed(self, place: Expr) -> tuple[Expr, Expr]:
        """The coordinate of the element number *place*, from 0, which counts as one."""
        return Load(self.coords, (binary("+", place, 1),)), const(1, self.coords.dtype)


def _clear(buffer: Buffer, value: Const, first: int) -> Callable[[Var], Stmt]:
    return lambda lane: Store(buffer, (plus(lane, first),), value)


class AddShort(Rewriter):
    """Turns the updates of an iteration into updates of the fiber's elements as they come."""

    def __init__(self, fiber: ShortFiber, count: Buffer, key: Callable[[Expr], Var | None]) -> None:
        self.fiber, self.count, self.key = fiber, count, key  # of a position: its coordinate

    def visit_Store(self, store: Store) -> Node:
        """Return the update where its coordinate stands."""
        key = self._key(store)
        if key is None:
            return store
        assert isinstance(store.buffer, SparseBuffer)
        row, _ = self.fiber.values[store.buffer]

        def put(place: Expr) -> Stmt:
            value = _Instead(store.buffer, Load(row, (place,))).rewrite(store.value)
            return Store(row, (place,), value, span=store.span)

        return self.fiber.add(self.count, key, put)

    def _key(self, access: Store) -> Var | None:
        keys = (self.key(index) for index in access.indices if index is not None)
        return next((key for key in keys if key is not None), None)


class _Instead(Rewriter):
    """Puts *value* where the element of *buffer* is read."""

    def __init__(self, buffer: AnyBuffer, value: Expr) -> None:
        self.buffer, self.value = buffer, value

    def visit_Load(self, load: Load) -> Node:
        return self.value if load.buffer is self.buffer else self.visit_Node(load)
