"""In position space, for stage_products: groups of rows, their products, and the sums of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spcomp.dtypes import DType, int32
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, plus, uncast, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import combine
from spcomp.ir.axis import AnyBuffer, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.values import ceil_div
from spcomp.schedule.steps.sharing.hubs import RowSum, SizedStep

UNEVEN = 32  # halves of a group differ by more than this part of its elements


@dataclass(frozen=True, slots=True)
class Part:
    """The rows *start* to *end* of a group, and its *count* elements from *first* on."""

    start: Expr
    end: Expr
    first: Var
    count: Var


class RowGroup(RowSum):
    """A group of rows: the products of its elements, and their sums."""

    def __init__(self, step: SizedStep, func: Func, loop: For, inner: For) -> None:
        super().__init__(step, func, loop, inner)
        self.rows = step.size
        if self.spatial or len(self.reduction.values) != 1:
            raise self.error("a row updates more than one element")
        start = uncast(self.start)
        if not isinstance(start, Const) or str(start.value) == "-0.0":
            raise self.error("rows do not start from a number that stays when 0 is added")
        if self.target.dtype.itemsize < 4 or not isinstance(self.target, (Buffer, SparseBuffer)):
            raise self.error("short floats are added up in longer ones")
        self.position = Names(func).var(f"{inner.var.name}_p")
        value = substitute(self.reduction.values[0], self.values)
        self.product = _AtPosition(self, inner.var).rewrite(value)
        inside = {n.var for n in walk(loop) if isinstance(n, For)}
        if variables(self.product) & inside or any(isinstance(n, Search) for n in walk(value)):
            raise self.error("what it adds does not depend on stored elements alone")

    def build_groups(self, names: Names, most: int, least: int, abreast: int) -> For:
        """Return the loop over groups of rows; the sizes are those of the step."""
        loop, name, rows = self.loop, self.loop.var.name, const(self.rows)
        group, first, count = (names.var(f"{name}_{what}") for what in ("g", "first", "count"))
        start = binary("*", group, rows)
        after = binary("+", start, rows)
        part = Part(start, BinOp("min", after, loop.end), first, count)
        as_it_was = loop.replace(begin=part.start, end=part.end, kind="serial", attrs=())
        many = BinOp("<=", const(least), loop.end)
        fits = BinOp("<=", count, const(most))
        suits = self._uneven(part)
        if abreast:  # rows that fill vectors, and are alike, are sums that a processor foresees
            suits = BinOp("or", BinOp("<", count, const(self.rows * self.rows)), suits)
            suits = BinOp("and", BinOp("<=", after, loop.end), suits)
        worth = BinOp("and", BinOp("and", many, fits), suits)
        body: Stmt = If(worth, self._staged(names, part, most, abreast), as_it_was)
        body = Let(count, binary("-", self.begin(part.end), first), body)
        body = Let(first, self.begin(start), body)
        return loop.replace(var=group, end=ceil_div(loop.end, rows), body=body)

    def _uneven(self, part: Part) -> Expr:
        """Return whether one half of a group has more elements than the other."""
        middle = BinOp("min", binary("+", part.start, const(self.rows // 2)), self.loop.end)
        half = binary("-", self.begin(middle), part.first)
        more = binary("-", binary("*", half, const(2)), part.count)
        apart = binary("max", more, binary("-", const(0, more.dtype), more))
        return BinOp("<", part.count, binary("*", apart, const(UNEVEN)))

    def _staged(self, names: Names, part: Part, most: int, abreast: int) -> Stmt:
        """Return the products of the elements of a group, and the sums of its rows."""
        what, size = f"{self.target.name}_terms", (const(most),)
        staged = Buffer(names.unique(what), None, size, self.target.dtype, "local")
        if abreast:
            return Alloc(staged, Abreast(self, names, part, staged).sums(abreast))
        at = names.var(self.position.name)
        products = For(at, ZERO, part.count, self.product_at(part, staged, at))
        return Alloc(staged, seq(products, self.sums(names, part, staged)))

    def product_at(self, part: Part, staged: Buffer, at: Expr) -> Stmt:
        """Return the store of the product of the element *at* of a group."""
        value = substitute(self.product, {self.position: binary("+", part.first, at)})
        return Store(staged, (at,), cast(value, staged.dtype), span=self.store.span)

    def sums(self, names: Names, part: Part, staged: Buffer) -> Stmt:
        """Return the loop in which a row after the other adds up its part of *staged*."""
        row, other = (names.var(f"{x.var.name}_s") for x in (self.loop, self.inner))
        place = self.place_at(row, ())
        term = Load(staged, (plus(binary("-", self.begin(row), part.first), other),))
        total = combine(self.reduction.combiner, Load(self.target, place), term)
        length = BinOp("max", self.length(row), ZERO)  # which code then need not ask again
        add = For(other, ZERO, length, Store(self.target, place, total, span=self.store.span))
        begin = Store(self.target, place, cast(self.start, staged.dtype), span=self.store.span)
        return For(row, part.start, part.end, seq(begin, add))


class Abreast:
    """The rows of *group*, as many as it has lanes, each with its place in *staged*."""

    def __init__(self, group: RowGroup, names: Names, part: Part, staged: Buffer) -> None:
        self.group, self.names, self.part, self.staged = group, names, part, staged
        self.lanes = const(group.rows)
        self.at, self.stop = self._array("at", int32), self._array("stop", int32)
        self.total = self._array("sums", staged.dtype)
        self.longest = self._array("longest", int32, 1)

    def sums(self, most: int) -> Stmt:
        """Return the products, and their sums: of rows up to *most* long side by side."""
        names, part = self.names, self.part
        short = BinOp("<=", Load(self.longest, (ZERO,)), const(most, int32))
        one_by_one = self.group.sums(names, part, self.staged)
        body: Stmt = If(short, self._side_by_side(), one_by_one)
        body = seq(self._products(), self._each(self._begin), *self._measure(), body)
        for buffer in (self.longest, self.total, self.stop, self.at):
            body = Alloc(buffer, body)
        return body

    def _array(self, what: str, dtype: DType, size: int | None = None) -> Buffer:
        name = self.names.unique(f"{self.group.target.name}_{what}")
        return Buffer(name, None, (const(size or self.group.rows),), dtype, "local")

    def _each(self, body: Callable[[Var], Stmt], name: str = "r") -> Stmt:
        """Return a loop over the rows of the group."""
        lane = self.names.var(f"{self.group.loop.var.name}_{name}")
        return For(lane, ZERO, self.lanes, body(lane))

    def _products(self) -> Stmt:
        """Return the products, by as many as there are rows; the last time there are fewer."""
        turn = self.names.var(f"{self.group.inner.var.name}_q")
        lane = self.names.var(self.group.position.name)
        at = binary("+", binary("*", turn, self.lanes), lane)
        product = self.group.product_at(self.part, self.staged, at)
        lanes = For(lane, ZERO, self.lanes, If(BinOp("<", at, self.part.count), product))
        return For(turn, ZERO, ceil_div(self.part.count, self.lanes), lanes)

    def _begin(self, lane: Var) -> Stmt:
        """Return where the terms of a row begin and end in *staged*."""
        row = binary("+", self.part.start, lane)
        begin = cast(binary("-", self.group.begin(row), self.part.first), int32)
        length = cast(BinOp("max", self.group.length(row), ZERO), int32)
        return seq(
            Store(self.at, (lane,), begin),
            Store(self.stop, (lane,), binary("+", begin, length)),
            Store(self.total, (lane,), cast(self.group.start, self.staged.dtype)),
        )

    def _measure(self) -> tuple[Stmt, Stmt]:
        """Return how the length of the longest row is found."""
        place = (ZERO,)

        def longer(lane: Var) -> Stmt:
            length = binary("-", Load(self.stop, (lane,)), Load(self.at, (lane,)))
            return Store(self.longest, place, binary("max", Load(self.longest, place), length))

        return Store(self.longest, place, const(0, int32)), self._each(longer, "m")

    def _side_by_side(self) -> Stmt:
        """Return the loop over terms, one of each row at a time, and the stores of all sums."""
        group = self.group

        def add(lane: Var) -> Stmt:
            at, place = Load(self.at, (lane,)), (lane,)
            term = Load(self.staged, (at,))
            before = Load(self.total, place)
            total = combine(group.reduction.combiner, before, term)
            more = BinOp("<", at, Load(self.stop, place))
            return Store(self.total, place, Select(more, total, before))

        def go_on(lane: Var) -> Stmt:
            return Store(self.at, (lane,), binary("+", Load(self.at, (lane,)), const(1, int32)))

        def store(lane: Var) -> Stmt:
            place = group.place_at(binary("+", self.part.start, lane), ())
            return Store(group.target, place, Load(self.total, (lane,)), span=group.store.span)

        turn = self.names.var(f"{group.inner.var.name}_t")
        count = cast(Load(self.longest, (ZERO,)), turn.dtype)
        turns = For(turn, ZERO, count, seq(self._each(add), self._each(go_on)))
        return seq(turns, self._each(store))


class _AtPosition(Rewriter):
    """Reads stored elements of a row at absolute positions."""

    def __init__(self, row: RowGroup, inner: Var) -> None:
        self.row, self.inner = row, inner

    def visit_Load(self, load: Load) -> Node:
        """Use the position instead of the row and the position in it."""
        new = self.visit_Node(load)
        assert isinstance(new, Load)
        buffer: AnyBuffer = new.buffer
        axes = buffer.axes[:2] if isinstance(buffer, SparseBuffer) else ()
        if axes != self.row.axis.path() or new.indices[:2] != (self.row.loop.var, self.inner):
            return new
        return new.replace(indices=(None, self.row.position, *new.indices[2:]))
