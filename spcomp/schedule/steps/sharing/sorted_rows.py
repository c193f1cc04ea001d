"""The step that turns a reduction by sorted keys into a loop over all keys, each with its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.axis import Buffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, SearchKind, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, For, Let, Seq, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import Replace, chain, find_loop
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.segments import UseKey, key_load, plain, sorted_keys
from spcomp.schedule.steps.sharing.split_nnz import MAX_CHUNKS, ceil_div, named


@dataclass(frozen=True, slots=True)
class SortedRows(Step):
    """``for r: W[r] = 0; for e: W[key[e]] op= x  ->  for r: W[r] = 0; for e in r: W[r] op= x``.

    For a loop over the fiber of a sorted axis, repeated coordinates allowed, behind a nest over
    *rows* that starts what it updates. The new loop over all coordinates, which keeps the name of
    *rows*, runs in at most 256 parallel chunks, in which it has about *size* elements and rows;
    the elements of a coordinate follow each other, so that they can be counted on the way. The
    call then checks that the coordinates ascend. Source: merge path (Merrill and Garland, SC 2016).
    """

    name: ClassVar[str] = "sorted_rows"
    loop: str
    rows: str
    size: int

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the two nests as one."""
        loop, rows = (find_loop(func, name, self, span) for name in (self.loop, self.rows))
        if self.size < 1:
            raise ScheduleError(f"{self}: the size must be at least 1", span or loop.span)
        runs = _Runs(self, func, loop, rows, span)
        needed = tuple(sorted({*func.attr("order_needed", ()), runs.keys.axis.name}))
        return runs.build(func, Names(func)).with_attr("order_needed", needed)


class _Runs:
    """The two nests, and what becomes of them."""

    def __init__(
        self, step: SortedRows, func: Func, loop: For, rows: For, span: Span | None
    ) -> None:
        self.step, self.loop, self.rows, self.span = step, loop, rows, span
        keys, key = sorted_keys(func, loop), key_load(func, loop)
        if keys is None or key is None:
            raise self._error(
                f"what {step.loop!r} writes is not told apart by a sorted coordinate",
                "iterate over a sorted axis, and write at its coordinate",
            )
        self.keys, self.key = keys, key
        self.both, self.behind = self._neighbours(func)
        self.inner, block = chain(loop)
        starts, start = chain(rows)
        if not isinstance(block, Block) or not isinstance(start, Block):
            raise self._error("the loops are not nested perfectly around a block each")
        self.block, self.start, self.starts = block, start, starts
        self.init = self._init()

    def _error(self, why: str, hint: str = "") -> ScheduleError:
        return ScheduleError(f"{self.step}: {why}", self.span or self.loop.span, hint=hint)

    def _neighbours(self, func: Func) -> tuple[Seq, Stmt]:
        """Return the list in which the nest that reduces, returned too, follows *rows*."""
        lists = (n for n in walk(func.body, skip=Expr) if isinstance(n, Seq))
        pairs = ((n, k) for n in lists for k, part in enumerate(n.body) if part is self.rows)
        both, at = next(pairs, (None, 0))
        behind = both.body[at + 1] if both is not None and at + 1 < len(both.body) else None
        around = behind
        while around is not self.loop:
            once = isinstance(around, For) and from_zero(around) and _is_one(around.end)
            plain_block = isinstance(around, Block) and not (around.init or around.where)
            if not (once or plain_block or isinstance(around, Let)):
                raise self._error(f"{self.step.loop!r} does not follow {self.step.rows!r} at once")
            assert isinstance(around, (For, Block, Let))
            if isinstance(around, Let) and any(isinstance(n, Load) for n in walk(around.value)):
                raise self._error("something is read between the loops")
            around = around.body
        assert both is not None
        assert behind is not None
        return both, behind

    def _init(self) -> Expr:
        """Return what an element starts from, in terms of the iters of the block that updates."""
        store, update, block, start = self.start.body, self.block.body, self.block, self.start
        whole = not start.where and not start.init and not block.where and not block.init
        inner = {x.var for x in self.inner}
        if any(i.kind == "R" and not variables(i.value) <= inner for i in block.iters):
            raise self._error("a loop further out reduces, too")
        if not whole or not isinstance(store, Store) or not isinstance(update, Store):
            raise self._error("a block does more than store one element")
        target = memory_of(update.buffer)
        reads = [n for n in walk(self.loop) if isinstance(n, (Load, Search))]
        if store.buffer is not update.buffer or as_reduction(update) is None:
            raise self._error(f"{self.step.rows!r} does not start what {self.step.loop!r} updates")
        if sum(memory_of(n.buffer) is target for n in reads) != 1:
            raise self._error(f"{update.buffer.name} is read elsewhere too")
        meaning = self._meaning(store, update)
        value = substitute(store.value, start.values)
        reads_any = any(isinstance(n, (Load, Search)) for n in walk(value))
        if reads_any or self.rows.var in variables(value):
            raise self._error("what an element starts from is not the same for all rows")
        return substitute(value, meaning)

    def _meaning(self, store: Store, update: Store) -> dict[Var, Expr]:
        """Return which iter of the block stands for which loop of the nest that starts."""
        loops = {x.var: x for x in (*self.starts, *self.inner)}
        iters = {i.value: i.var for i in self.block.iters if isinstance(i.value, Var)}
        values, meaning = named(self.loop.body), dict[Var, Expr]()
        same, row, reduced = True, 0, {x.var for x in self.inner}
        for mine, other in zip(store.indices, update.indices, strict=True):
            if mine is None or other is None:
                same = False
                continue
            first, second = substitute(mine, self.start.values), substitute(other, values)
            if first is self.rows.var and expr_equal(plain(second), self.key):
                row += 1
            elif first in loops and second in loops and second in iters and first not in meaning:
                meaning[first] = iters[second]
                reduced.discard(second)
                same = same and _alike(loops[first], loops[second])
            else:
                same = False
        spatial = [i for i in self.block.iters if i.kind == "S"]
        among = reduced - {self.loop.var}
        same = same and not any(variables(i.value) & among for i in spatial)
        if not same or row != 1 or len(meaning) + 1 != len(self.starts) or not self._covers():
            raise self._error(f"{self.step.rows!r} does not start what {self.step.loop!r} updates")
        return meaning

    def _covers(self) -> bool:
        """Whether *rows* runs over all coordinates, which fit in the type that they are kept in."""
        length = self.keys.axis.length
        bits = self.keys.buffer.dtype.bits
        known = isinstance(length, Const) and int(length.value) < 1 << (bits - 1)
        fits = length.dtype.bits <= bits or known
        return from_zero(self.rows) and expr_equal(self.rows.end, cast(length, int64)) and fits

    def build(self, func: Func, names: Names) -> Func:
        """Return *func* with the nest that reduces row by row, and without the one that starts."""
        name, keys = self.step.loop, self.keys
        chunk, chunks, share, count = (
            names.var(f"{name}_{what}") for what in ("c", "chunks", "share", "count")
        )
        first, after = (names.var(f"{name}_{what}") for what in ("first", "after"))
        length = cast(keys.axis.length, int64)

        def row(which: Expr) -> Expr:
            """Where the path that weighs rows and elements alike passes *which* shares of it."""
            at = which * share
            path = plus(at, keys.begin), keys.begin, plus(keys.begin, count)
            found = Search("lower", keys.buffer, path[1], path[2], path[0], 1)
            return BinOp("min", at - binary("-", found, keys.begin), length)

        rows = self._rows(names, (first, after), count)
        body = Let(first, row(chunk), Let(after, row(plus(chunk, 1)), rows))
        grain = (("grain", 1),)
        made: Stmt = For(chunk, ZERO, chunks, body, "parallel", attrs=grain, span=self.loop.span)
        made = Let(share, ceil_div(count + length, chunks), made)
        several = BinOp("max", ceil_div(count + length, const(self.step.size)), const(1))
        made = Let(chunks, BinOp("min", several, const(MAX_CHUNKS)), made)
        nest = Replace(self.loop, Let(count, self.loop.end, made)).rewrite(self.behind)
        parts = [nest if x is self.behind else x for x in self.both.body if x is not self.rows]
        return func.replace(body=Replace(self.both, seq(*parts)).rewrite(func.body))

    def _rows(self, names: Names, span: tuple[Var, Var], count: Var) -> Stmt:
        """Return the loop over the rows of *span*, each with its run of the *count* elements."""
        name, keys = self.step.loop, self.keys
        begin, last, end = (names.var(f"{name}_{what}") for what in ("begin", "last", "end"))
        same = names.var(f"{name}_key", keys.buffer.dtype)
        place = Buffer(names.unique(f"{name}_at"), None, (const(1),), int64, "local")
        at = Load(place, (ZERO,))

        def find(kind: SearchKind, start: Expr, stop: Expr, key: Expr) -> Expr:
            where = plus(keys.begin, start), plus(keys.begin, stop)
            return binary("-", Search(kind, keys.buffer, *where, key), keys.begin)

        run = self.loop.replace(begin=begin, end=last, body=self._body(same))
        one: Stmt = Let(last, find("run", begin, end, same), seq(run, Store(place, (ZERO,), last)))
        one = Let(begin, at, Let(same, cast(self.rows.var, same.dtype), one))
        every = For(self.rows.var, span[0], span[1], one, span=self.rows.span)
        fill = Store(place, (ZERO,), find("lower", ZERO, count, span[0]))
        return Let(end, find("lower", ZERO, count, span[1]), Alloc(place, seq(fill, every)))

    def _body(self, same: Var) -> Stmt:
        """Return the body of the loop for one row: its coordinate is *same*, and it starts it."""
        body = UseKey(self.loop.var, self.key, same, named(self.loop.body)).rewrite(self.loop.body)
        block = next(n for n in walk(body, skip=Expr) if isinstance(n, Block))
        store = block.body
        assert isinstance(store, Store)
        init = store.replace(value=self.init)
        return Replace(block, block.replace(init=init)).rewrite(body)


def _alike(first: For, second: For) -> bool:
    """Whether the loops have the same range, which is the same throughout."""
    serial = second.kind == "serial" and from_zero(first) and from_zero(second)
    return serial and expr_equal(first.end, second.end)


def sorted_rows(func: Func, loop: str, size: int = 4096) -> SortedRows | None:
    """Return the step that makes *loop* one over rows, or None where that is not legal."""
    every = tuple(loops_of(func.body))
    if all(sorted_keys(func, x) is None for x in every if x.var.name == loop):
        return None
    nests = [x.var.name for x in every if from_zero(x) and x.var.name != loop]
    steps = (SortedRows(loop, rows, size) for rows in nests)
    return next((step for step in steps if step.is_legal(func)), None)


def _is_one(extent: Expr) -> bool:
    return isinstance(extent, Const) and extent.value == 1
