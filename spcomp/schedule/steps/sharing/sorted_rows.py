"""In position space: the step sorted_rows, which turns a reduction by sorted keys into rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.arith.memory import read_by
from spcomp.ir.axis import Buffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, SearchKind, Var, binary, cast, const, plain
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Replace, substitute
from spcomp.ir.stmt import Alloc, For, Let, Seq, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import chain, find_loop
from spcomp.schedule.nests.values import binding_values, ceil_div
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.segments import UseKey, key_load, sorted_keys
from spcomp.schedule.steps.sharing.split_nnz import MAX_CHUNKS


@dataclass(frozen=True, slots=True)
class SortedRows(Step):
    """``for r: W[r] = 0; for e: W[key[e]] op= x  ->  for r: W[r] = 0; for e in r: W[r] op= x``.

    For a loop over the fiber of a sorted axis, whose coordinates may repeat, after a nest over
    *rows* that initialises what it updates. The new loop runs over all coordinates and keeps the
    name of *rows*. It has at most *most* parallel chunks, each with about *size* elements and rows
    together. The elements of a coordinate are consecutive, so a row finds its end on the way. Each
    call then checks that the coordinates ascend. Source: merge path (Merrill and Garland, SC 2016).
    """

    name: ClassVar[str] = "sorted_rows"
    loop: str
    rows: str
    size: int
    most: int = field(default=MAX_CHUNKS, kw_only=True)

    def plan(self, func: Func) -> _Runs:
        """Return the two nests, and the initial value of an element."""
        loop, rows = (find_loop(func, name, self) for name in (self.loop, self.rows))
        if min(self.size, self.most) < 1:
            raise self.error("size and most must be at least 1", loop)
        return _Runs(self, func, loop, rows)

    def rewrite(self, func: Func, plan: _Runs) -> Func:
        """Return *func* with the two nests as one."""
        checked = tuple(sorted({*func.attr("order_needed", ()), plan.keys.axis.name}))
        return plan.build(func, Names(func)).with_attr("order_needed", checked)


class _Runs:
    """The nest that initialises and the nest that reduces, and the one that replaces both."""

    def __init__(self, step: SortedRows, func: Func, loop: For, rows: For) -> None:
        self.step, self.loop, self.rows = step, loop, rows
        keys, key = sorted_keys(func, loop), key_load(func, loop)
        if keys is None or key is None:
            raise self.error(
                f"what {step.loop!r} writes is not told apart by a sorted coordinate",
                "iterate over a sorted axis, and write at its coordinate",
            )
        self.keys, self.key = keys, key
        self.both, self.behind = self._neighbours(func)
        self.inner, block = chain(loop)
        starts, start = chain(rows)
        if not isinstance(block, Block) or not isinstance(start, Block):
            raise self.error("the loops are not nested perfectly around a block each")
        self.block, self.start, self.starts = block, start, starts
        self.init = self._init()

    def error(self, why: str, hint: str = "") -> ScheduleError:
        return ScheduleError(f"{self.step}: {why}", self.loop.span, hint=hint)

    def _neighbours(self, func: Func) -> tuple[Seq, Stmt]:
        """Return the list of statements with both nests, and the nest that reduces."""
        lists = (n for n in walk(func.body, skip=Expr) if isinstance(n, Seq))
        pairs = ((n, k) for n in lists for k, part in enumerate(n.body) if part is self.rows)
        both, at = next(pairs, (None, 0))
        behind = both.body[at + 1] if both is not None and at + 1 < len(both.body) else None
        around = behind
        while around is not self.loop:
            once = isinstance(around, For) and from_zero(around) and _is_one(around.end)
            plain_block = isinstance(around, Block) and not (around.init or around.where)
            if not (once or plain_block or isinstance(around, Let)):
                raise self.error(f"{self.step.loop!r} does not follow {self.step.rows!r} at once")
            assert isinstance(around, (For, Block, Let))
            if isinstance(around, Let) and any(isinstance(n, Load) for n in walk(around.value)):
                raise self.error("something is read between the loops")
            around = around.body
        assert both is not None
        assert behind is not None
        return both, behind

    def _init(self) -> Expr:
        """Return the initial value of an element, in the iters of the block that updates."""
        store, update, block, start = self.start.body, self.block.body, self.block, self.start
        unguarded = not start.where and not start.init and not block.where and not block.init
        inner = {x.var for x in self.inner}
        if any(i.kind == "R" and not variables(i.value) <= inner for i in block.iters):
            raise self.error("a loop further out reduces, too")
        if not unguarded or not isinstance(store, Store) or not isinstance(update, Store):
            raise self.error("a block does more than store one element")
        target = memory_of(update.buffer)
        if store.buffer is not update.buffer or as_reduction(update) is None:
            raise self.error(f"{self.step.rows!r} does not start what {self.step.loop!r} updates")
        if sum(memory_of(buffer) is target for buffer in read_by(self.loop)) != 1:
            raise self.error(f"{update.buffer.name} is read elsewhere too")
        meaning = self._meaning(store, update)
        value = substitute(store.value, start.values)
        if any(read_by(value)) or self.rows.var in variables(value):
            raise self.error("what an element starts from is not the same for all rows")
        return substitute(value, meaning)

    def _meaning(self, store: Store, update: Store) -> dict[Var, Expr]:
        """Return, for each loop of the nest that initialises, the iter that stands for it."""
        loops = {x.var: x for x in (*self.starts, *self.inner)}
        iters = {i.value: i.var for i in self.block.iters if isinstance(i.value, Var)}
        values, meaning = binding_values(self.loop.body), dict[Var, Expr]()
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
                same = same and _same_range(loops[first], loops[second])
            else:
                same = False
        spatial = [i for i in self.block.iters if i.kind == "S"]
        among = reduced - {self.loop.var}
        same = same and not any(variables(i.value) & among for i in spatial)
        if not same or row != 1 or len(meaning) + 1 != len(self.starts) or not self._covers():
            raise self.error(f"{self.step.rows!r} does not start what {self.step.loop!r} updates")
        return meaning

    def _covers(self) -> bool:
        """Whether *rows* runs over all coordinates, and each fits in the type of the keys."""
        length = self.keys.axis.length
        bits = self.keys.buffer.dtype.bits
        short = isinstance(length, Const) and int(length.value) < 1 << (bits - 1)
        fits = length.dtype.bits <= bits or short
        return from_zero(self.rows) and expr_equal(self.rows.end, cast(length, int64)) and fits

    def build(self, func: Func, names: Names) -> Func:
        """Return *func* with one nest in place of the two: it reduces row by row."""
        name, keys = self.step.loop, self.keys
        chunk, chunks, share, count = (
            names.var(f"{name}_{what}") for what in ("c", "chunks", "share", "count")
        )
        first, after = (names.var(f"{name}_{what}") for what in ("first", "after"))
        length = cast(keys.axis.length, int64)

        def row(which: Expr) -> Expr:
            """Return the row at which the merge path of rows and elements ends *which* shares."""
            at = which * share
            path = plus(at, keys.begin), keys.begin, plus(keys.begin, count)
            position = Search("lower", keys.buffer, path[1], path[2], path[0], 1)
            return BinOp("min", at - binary("-", position, keys.begin), length)

        rows = self._rows(names, (first, after), count)
        body = Let(first, row(chunk), Let(after, row(plus(chunk, 1)), rows))
        grain = (("grain", 1),)
        stmt: Stmt = For(chunk, ZERO, chunks, body, "parallel", attrs=grain, span=self.loop.span)
        stmt = Let(share, ceil_div(count + length, chunks), stmt)
        several = BinOp("max", ceil_div(count + length, const(self.step.size)), const(1))
        stmt = Let(chunks, BinOp("min", several, const(self.step.most)), stmt)
        nest = Replace(self.loop, Let(count, self.loop.end, stmt)).rewrite(self.behind)
        parts = [nest if x is self.behind else x for x in self.both.body if x is not self.rows]
        return func.replace(body=Replace(self.both, seq(*parts)).rewrite(func.body))

    def _rows(self, names: Names, span: tuple[Var, Var], count: Var) -> Stmt:
        """Return the loop over the rows of *span*, each with its run of elements.

        *count*: the number of all elements.
        """
        name, keys = self.step.loop, self.keys
        begin, last, end = (names.var(f"{name}_{what}") for what in ("begin", "last", "end"))
        same = names.var(f"{name}_key", keys.buffer.dtype)
        place = Buffer(names.unique(f"{name}_at"), None, (const(1),), int64, "local")
        at = Load(place, (ZERO,))

        def find(kind: SearchKind, start: Expr, stop: Expr, key: Expr) -> Expr:
            where = plus(keys.begin, start), plus(keys.begin, stop)
            return binary("-", Search(kind, keys.buffer, *where, key), keys.begin)

        run = self.loop.replace(begin=begin, end=last, body=self._body(same))
        row_stmt: Stmt = Let(
            last, find("run", begin, end, same), seq(run, Store(place, (ZERO,), last))
        )
        row_stmt = Let(begin, at, Let(same, cast(self.rows.var, same.dtype), row_stmt))
        row_loop = For(self.rows.var, span[0], span[1], row_stmt, span=self.rows.span)
        fill = Store(place, (ZERO,), find("lower", ZERO, count, span[0]))
        return Let(end, find("lower", ZERO, count, span[1]), Alloc(place, seq(fill, row_loop)))

    def _body(self, same: Var) -> Stmt:
        """Return the body of the loop for the row *same*, with the init in its block."""
        body = UseKey(self.loop.var, self.key, same, binding_values(self.loop.body)).rewrite(
            self.loop.body
        )
        block = next(n for n in walk(body, skip=Expr) if isinstance(n, Block))
        store = block.body
        assert isinstance(store, Store)
        init = store.replace(value=self.init)
        return Replace(block, block.replace(init=init)).rewrite(body)


def _same_range(first: For, second: For) -> bool:
    """Whether both loops begin at 0 and have the same end, and *second* is serial."""
    serial = second.kind == "serial" and from_zero(first) and from_zero(second)
    return serial and expr_equal(first.end, second.end)


def sorted_rows(func: Func, loop: str, knobs: Knobs) -> SortedRows | None:
    """Return the step that turns *loop* into a loop over rows; None where it is not legal."""
    loops = tuple(loops_of(func.body))
    if all(sorted_keys(func, x) is None for x in loops if x.var.name == loop):
        return None
    nests = [x.var.name for x in loops if from_zero(x) and x.var.name != loop]
    size, most = knobs.chunk_sorted, knobs.most_chunks
    steps = (SortedRows(loop, rows, size, most=most) for rows in nests)
    return next((step for step in steps if step.is_legal(func)), None)


def _is_one(extent: Expr) -> bool:
    return isinstance(extent, Const) and extent.value == 1
