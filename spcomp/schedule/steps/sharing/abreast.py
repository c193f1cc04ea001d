"""In position space, for stage_products: short rows that add up their terms side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.dtypes import DType, int32
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import combine
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast, const
from spcomp.ir.stmt import Alloc, For, If, Stmt, Store, seq
from spcomp.schedule.steps.sharing.split_nnz import ceil_div

if TYPE_CHECKING:
    from spcomp.schedule.steps.sharing.stage_products import Group


@dataclass(frozen=True, slots=True)
class Part:
    """The rows *start* to *end* of a group, and its *count* elements from *first* on."""

    start: Expr
    end: Expr
    first: Var
    count: Var


class Abreast:
    """The rows of *group*, as many as it has lanes, each with its place in *staged*."""

    def __init__(self, group: Group, names: Names, part: Part, staged: Buffer) -> None:
        self.group, self.names, self.part, self.staged = group, names, part, staged
        self.lanes = const(group.size)
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
        return Buffer(name, None, (const(size or self.group.size),), dtype, "local")

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
