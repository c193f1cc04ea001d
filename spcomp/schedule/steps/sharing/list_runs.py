"""In position space: the step list_runs, by which rows reduce their runs of sorted keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, plus, times
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import combine
from spcomp.ir.arith.linear import same_value
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast, const, plain
from spcomp.ir.func import Func
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import MOST_TRIPS, Alloc, For, If, Let, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.schedule.nests.nests import nest, replace_stmt
from spcomp.schedule.nests.values import ceil_div
from spcomp.schedule.steps.sharing.partial_results import dense_extents
from spcomp.schedule.steps.sharing.segments import Keys
from spcomp.schedule.steps.sharing.split_runs import NO, RunParts, SplitRuns, own_place


@dataclass(frozen=True, slots=True)
class ListRuns(SplitRuns):
    """``for e: W[key[e]] op= x  ->  b = begins; for p: P[p] op= x; for r: W[r] op= x, P``.

    As split_runs, but a nest before lists where the run of each coordinate begins, by binary
    search, and a loop over all coordinates, as the one over parts, reduces its run: to the first
    multiple of *size* in it, whose parts from there on have sums of their own, which are added in
    order. If a nest before sets all elements to one value, the loop over coordinates begins with it
    and replaces that nest. Loads of *at_once* elements are unrolled.
    """

    name: ClassVar[str] = "list_runs"

    def runs_of(self, func: Func, loop: For, keys: Keys) -> _Listed:
        """Return the loop, taken apart."""
        return _Listed(self, func, loop, keys)

    def rewrite(self, func: Func, plan: RunParts) -> Func:
        """Return *func* with the nests over coordinates and parts of long runs."""
        assert isinstance(plan, _Listed)
        new = super(ListRuns, self).rewrite(func, plan)
        return replace_stmt(new, plan.before, seq()) if plan.starts_all else new


class _Listed(RunParts):
    """The loop over elements, whose coordinates are all of an axis."""

    @property
    def length(self) -> Expr:
        """How many coordinates there are."""
        return cast(self.keys.axis.length, int64)

    @property
    def starts_all(self) -> bool:
        """Whether the nest before only sets elements that the coordinates name."""
        key = self.key(self.loop.var)
        extents = zip(self.store.indices, dense_extents(self.store.buffer), strict=True)
        rows = [n for i, n in extents if i and expr_equal(plain(substitute(i, self.values)), key)]
        return self.start is not None and bool(rows[0]) and same_value(rows[0], self.length)

    def build(self, names: Names) -> Stmt:
        """Return the nests that list runs, reduce parts of long ones, and reduce rows."""
        self.names, size = names, const(self.step.size)
        count = substitute(self.loop.end, self.values)
        parts = ceil_div(self.most, size)
        name = self.loop.var.name
        begins = names.unique(f"{name}_begins")
        self.begins = Buffer(begins, None, (plus(self.length, 1),), int64)
        self.parts = self.partial_sums(parts)
        row, first = names.var(f"{name}_row"), substitute(self.keys.begin, self.values)
        span = first, plus(first, count)
        begin = binary("-", Search("lower", self.keys.buffer, *span, row), first)
        store = Store(self.begins, (row,), begin)
        listing = For(row, ZERO, plus(self.length, 1), store, "parallel", span=self.loop.span)
        long = self.grid(ceil_div(count, size), parts, self._part)
        rows = self.grid(self.length, self.length, self._row)
        return Alloc(self.begins, Alloc(self.parts, seq(listing, long, rows)))

    def _part(self, number: Expr, lanes: dict[Var, Expr]) -> Stmt:
        """Return what reduces the part *number*, if its first element goes on with a run."""
        size, first = const(self.step.size), self.names.var(f"{self.loop.var.name}_first")
        row = cast(self.key(first), int64)
        same = BinOp("==", self.key(plus(first, -1)), self.key(first))
        goes_on = Select(BinOp("<=", const(1), first), same, NO)
        end = BinOp("min", self._begin(plus(row, 1)), plus(first, size))
        sums = self.own_sums()
        clear = self.cleared(sums, lanes)
        add = self._add(sums, first, binary("-", end, first), lanes, self.value)
        own, where = self.sums(lanes)
        store = nest(own, Store(self.parts, self.place(number, where), self._sum(sums, own)))
        work = Alloc(sums, seq(clear, add, store))
        return Let(first, times(number, size), If(goes_on, work))

    def _row(self, row: Expr, lanes: dict[Var, Expr]) -> Stmt:
        """Return what reduces the run of *row*, part by part from the first cut in it on."""
        name, size = self.loop.var.name, const(self.step.size)
        begin, end, cut = (self.names.var(f"{name}_{what}") for what in ("begin", "end", "cut"))
        sums = self.own_sums()
        clear = self.cleared(sums, lanes)
        own_end = BinOp("min", end, times(cut, size))
        add = self._add(sums, begin, binary("-", own_end, begin), lanes, self.value)
        parts = BinOp("max", binary("-", ceil_div(end, size), cut), ZERO)
        rest = self._add(sums, cut, parts, lanes, self._partial)
        own, where = self.sums(lanes)
        update = nest(own, self.update(row, self._sum(sums, own), where, first=True))
        stmt: Stmt = Alloc(sums, seq(clear, add, rest, update))
        stmt = Let(cut, plus(binary("//", begin, size), 1), stmt)
        if not self.starts_all:
            stmt = If(BinOp("<", begin, end), stmt)
        return Let(begin, self._begin(row), Let(end, self._begin(plus(row, 1)), stmt))

    def _begin(self, row: Expr) -> Load:
        """Return where the run of *row* begins."""
        return Load(self.begins, (row,))

    def _partial(self, part: Expr, where: dict[Var, Expr]) -> Load:
        """Return the sum of *part*."""
        return Load(self.parts, self.place(part, where))

    def _sum(self, sums: Buffer, own: list[For]) -> Load:
        return Load(sums, own_place(own))

    def _add(
        self,
        sums: Buffer,
        begin: Expr,
        trips: Expr,
        lanes: dict[Var, Expr],
        value: Callable[[Expr, dict[Var, Expr]], Expr],
    ) -> For:
        """Return the loop that adds *value* of the numbers from *begin* on to *sums*."""
        turn = self.names.var(f"{self.loop.var.name}_t")
        own, where = self.sums(lanes)
        new = value(plus(begin, turn), where)
        total = combine(self.reduction.combiner, self._sum(sums, own), new)
        add = nest(own, Store(sums, own_place(own), total))
        return For(turn, ZERO, trips, add, "unroll", attrs=((MOST_TRIPS, self.step.at_once),))
