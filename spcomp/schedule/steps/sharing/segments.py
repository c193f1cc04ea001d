"""The step that runs a reduction by sorted keys on all threads, without atomics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, conjuncts, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.axis import Axis, Buffer, SparseBuffer, memory_of
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, While, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.legality.dependence import plain as plain
from spcomp.schedule.nests.nests import find_loop, replaced
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.blocks.memory import accumulator
from spcomp.schedule.steps.sharing.hubs import Piece, RowSum
from spcomp.schedule.steps.sharing.split_nnz import MAX_CHUNKS, ceil_div, named, starts_inside

LONG = 2  # chunks that a run holds before the next begins inside it
FEW, MANY = 64, 4096  # iterations in a chunk: each a fiber, or one operation, or a row


@dataclass(frozen=True, slots=True)
class SplitSorted(Step):
    """``for e in n: W[key[e]] op= x  ->  for c in parallel(chunks): for e in cut(c)..: ...``.

    For a loop over the fiber of a sorted axis, repeated coordinates allowed, in which all that is
    written is at the coordinate. At most 256 chunks of about *size* iterations are cut where the
    coordinate changes, so that each belongs to one chunk: no atomics, no carries, and the order of
    additions stays. The call then checks that the coordinates ascend.

    *long*: if not 0, a chunk may begin inside a run of one coordinate that so many chunks before it
    hold already; what it has of that it adds up in ``P[c]``, which is added afterwards, in order.
    Legal where an iteration does nothing but to update elements by one associative operation.
    """

    name: ClassVar[str] = "split_sorted"
    loop: str
    size: int
    long: int = 0

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop cut between coordinates."""
        loop = find_loop(func, self.loop, self, span)
        if self.size < 1 or self.long < 0:
            why = "the size must be at least 1, and long at least 0"
            raise ScheduleError(f"{self}: {why}", span or loop.span)
        if starts_inside(func, loop):
            raise ScheduleError(
                f"{self}: a reduction goes on outside the loop, and starts there", span or loop.span
            )
        keys = sorted_keys(func, loop)
        if keys is None:
            raise ScheduleError(
                f"{self}: what {self.loop!r} writes is not told apart by a sorted coordinate",
                span or loop.span,
                hint="iterate over a sorted axis, and write at its coordinate",
            )
        needed = tuple(sorted({*func.attr("order_needed", ()), keys.axis.name}))
        chunks = (_Shared if self.long else _Chunks)(self, func, loop, keys)
        return replaced(func, loop, chunks.build()).with_attr("order_needed", needed)


class _Chunks:
    """The parallel loop over chunks of *loop*."""

    def __init__(self, step: SplitSorted, func: Func, loop: For, keys: Keys) -> None:
        self.step, self.loop, self.keys, self.names = step, loop, keys, Names(func)
        name = loop.var.name
        self.chunk, self.chunks, self.share, self.count = (
            self.names.var(f"{name}_{what}") for what in ("c", "chunks", "share", "count")
        )

    def build(self) -> Stmt:
        """Return the loops, and what they need to know."""
        made: Stmt = Let(self.share, ceil_div(self.count, self.chunks), self._nest())
        parts = BinOp("max", ceil_div(self.count, const(self.step.size)), const(1))
        made = Let(self.chunks, BinOp("min", parts, const(MAX_CHUNKS)), made)
        return Let(self.count, self.loop.end, made)

    def _nest(self) -> Stmt:
        return self._over(self.loop.replace(begin=self._cut(0), end=self._cut(1)))

    def _over(self, body: Stmt) -> For:
        grain = (("grain", 1),)
        span = self.loop.span
        return For(self.chunk, ZERO, self.chunks, body, "parallel", attrs=grain, span=span)

    def _cut(self, ahead: int) -> Expr:
        """Where the coordinate that a chunk begins with begins; behind all where there is none."""
        keys, at = self.keys, plus(self.chunk, ahead) * self.share
        last = cast(keys.axis.length, int64)
        key = Select(BinOp("<", at, self.count), self._key(at), last)
        found = Search("lower", keys.buffer, keys.begin, plus(keys.begin, self.count), key)
        return binary("-", found, keys.begin)

    def _key(self, at: Expr) -> Expr:
        """Return the coordinate of iteration *at*."""
        return cast(Load(self.keys.buffer, (*self.keys.outer, at)), int64)


class _Shared(_Chunks):
    """The same, and behind it the loop that adds up what chunks have of runs begun before them."""

    def __init__(self, step: SplitSorted, func: Func, loop: For, keys: Keys) -> None:
        super().__init__(step, func, loop, keys)
        key = key_load(func, loop)
        if key is None:
            raise ScheduleError(f"{step}: {step.loop!r} writes the coordinate", loop.span)
        same = self.names.var(f"{step.loop}_key", key.buffer.dtype)
        inner = loop.replace(body=UseKey(loop.var, key, same, named(loop.body)).rewrite(loop.body))
        self.heads = _Head(step, func, For(same, ZERO, loop.end, inner), inner, loop.span)

    def _nest(self) -> Stmt:
        names, name, loop, keys = self.names, self.loop.var.name, self.loop, self.keys
        run, first, later, after, key, end = (
            names.var(f"{name}_{what}") for what in ("run", "first", "later", "after", "of", "rest")
        )
        of = Buffer(names.unique(f"{name}_heads"), None, (self.chunks,), int64)
        sums = self.heads.sums(names, self.chunks)
        inside = BinOp("<", run, first)
        where = plus(keys.begin, first), plus(keys.begin, after)
        found = binary("-", Search("run", keys.buffer, *where, key), keys.begin)
        head = If(inside, self.heads.add_up(names, (self.chunk, key), (first, end), sums))
        rest = loop.replace(begin=end, end=after)
        body: Stmt = seq(Store(of, (self.chunk,), key), head, rest)
        body = Let(end, Select(inside, found, first), body)
        body = Let(key, Select(inside, self._key(first), const(-1)), body)
        for place, begin, ahead in ((after, later, 1), (first, run, 0)):
            body = Let(begin, self._cut(ahead), Let(place, self._begin(begin, ahead), body))
        at, other = names.var(f"{name}_c"), names.var(f"{name}_of")
        done = If(BinOp("<=", ZERO, other), self.heads.finish(names, (at, other), sums))
        each = Let(other, Load(of, (at,)), done)
        both = seq(self._over(body), For(at, ZERO, self.chunks, each, span=loop.span))
        return Alloc(of, Alloc(sums, annotate_regions(both)))

    def _begin(self, run: Var, ahead: int) -> Expr:
        """Return where a chunk begins: with its *run*, or inside if that is long."""
        at = BinOp("min", plus(self.chunk, ahead) * self.share, self.count)
        return Select(BinOp("<", run + self.share * self.step.long, at), at, run)


class _Head(RowSum):
    """What iterations with one coordinate add up, apart from those before them."""

    def _check_loops(self, func: Func) -> None:
        """The rows are runs of a sorted coordinate."""

    def _start(self) -> Expr:
        if self.init is not None:
            raise self._error("it starts what it updates")
        return super()._start()

    def sums(self, names: Names, chunks: Expr) -> Buffer:
        """Return the buffer for what each of *chunks* adds up."""
        shape = (chunks, *(substitute(loop.end, self.values) for loop in self.spatial))
        wish = f"{self.target.name}_parts"
        return Buffer(names.unique(wish), None, shape, accumulator(self.target.dtype))

    def add_up(
        self, names: Names, of: tuple[Var, Var], span: tuple[Expr, Expr], sums: Buffer
    ) -> Stmt:
        """Return what adds up the iterations of *span*; *of*: for which chunk and coordinate."""
        chunk, key = of
        neutral = identity(self.reduction.combiner, sums.dtype)
        clear = self.each(names, lambda at: Store(sums, (chunk, *at), neutral))
        piece = Piece(names, self, cast(key, self.loop.var.dtype), chunk, sums, span)
        return seq(clear, piece.rewrite(self.loop.body))

    def finish(self, names: Names, of: tuple[Var, Var], sums: Buffer) -> Stmt:
        """Return what adds the sum of a chunk to the element of its coordinate."""
        chunk, key = of
        return self.each(names, lambda at: self.done(key, at, Load(sums, (chunk, *at))))


@dataclass(frozen=True, slots=True)
class GroupRuns(Step):
    """``for e in a..b: W[key[e]] op= x  ->  while a < b: r = key[a]; for e in run: W[r] op= x``.

    For a loop over the fiber of an axis, or a part of it: the inner loop runs over iterations of
    one coordinate that follow each other, so that what it updates can live in registers. Legal
    where every iteration reads its coordinate, whatever conditions say.
    """

    name: ClassVar[str] = "group_runs"
    loop: str

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the loop over runs of equal coordinates."""
        loop = find_loop(func, self.loop, self, span)
        if starts_inside(func, loop):
            raise ScheduleError(
                f"{self}: a reduction goes on outside the loop, and starts there", span or loop.span
            )
        if _guards(loop):
            raise ScheduleError(
                f"{self}: under a condition the coordinate need not exist",
                span or loop.span,
                hint="group the runs before loops are split",
            )
        key = key_load(func, loop)
        if key is None:
            raise ScheduleError(
                f"{self}: {self.loop!r} reads no coordinate that it does not write",
                span or loop.span,
            )
        return replaced(func, loop, _runs(Names(func), loop, key))


def _guards(loop: For) -> list[Expr]:
    """Return the conditions, the same for all iterations, that decide if any of them runs."""
    values = named(loop.body)
    conds = [n.cond for n in walk(loop.body, skip=Expr) if isinstance(n, If)]
    conds += [n.where for n in walk(loop.body, skip=Expr) if isinstance(n, Block) and n.where]
    terms = (substitute(term, values) for cond in conds for term in conjuncts(cond))
    return [term for term in terms if loop.var not in variables(term)]


def _runs(names: Names, loop: For, key: Load) -> Stmt:
    name = loop.var.name
    begin, end, run = (names.var(f"{name}_{what}") for what in ("begin", "end", "last"))
    same = names.var(f"{name}_key", key.buffer.dtype)
    place = Buffer(names.unique(f"{name}_at"), None, (const(2),), int64, "local")
    at, stop = (Load(place, (const(k),)) for k in (0, 1))

    def put(where: Load, value: Expr) -> Stmt:
        return Store(place, where.indices, value)

    def read(position: Expr) -> Load:
        return key.replace(indices=(*key.indices[:-1], position))

    goes_on = BinOp("and", BinOp("<", stop, end), BinOp("==", read(stop), same))
    scan = seq(put(stop, plus(begin, 1)), While(goes_on, put(stop, plus(stop, 1))))
    body = UseKey(loop.var, key, same, named(loop.body)).rewrite(loop.body)
    inner = loop.replace(begin=begin, end=run, body=body)
    group: Stmt = Let(run, stop, seq(inner, put(at, run)))
    group = Let(begin, at, Let(same, read(begin), seq(scan, group)))
    every = While(BinOp("<", at, end), group, span=loop.span)
    return Let(end, loop.end, Alloc(place, seq(put(at, loop.begin), every)), span=loop.span)


def key_load(func: Func, loop: For) -> Load | None:
    """Return the load of the coordinate of the iteration, in terms of loops outside."""
    values = named(loop.body)
    inside = {n.var for n in walk(loop) if isinstance(n, (For, Let))}
    handles = {axis.indices for axis in func.axes} - {None}
    handles -= {n.buffer.data for n in walk(loop.body) if isinstance(n, Store)}
    for node in walk(loop.body):
        if isinstance(node, Load) and node.mask is None and node.buffer.data in handles:
            load = substitute(node, values)
            *outer, last = load.indices
            if last is loop.var and not any(i is None or variables(i) & inside for i in outer):
                return load
    return None


class UseKey(Rewriter):
    """Puts the coordinate of the run where an iteration loads its own; the loop then reduces."""

    def __init__(self, var: Var, key: Load, same: Var, values: dict[Var, Expr]) -> None:
        self.var, self.key, self.same, self.values = var, key, same, values

    def visit_Block(self, block: Block) -> Node:
        """What the loop drives is reduced now."""
        new = self.visit_Node(block)
        assert isinstance(new, Block)
        if block.init is not None:
            return new
        iters = (i.replace(kind="R") if i.value is self.var else i for i in new.iters)
        return new.replace(iters=tuple(iters))

    def visit_Load(self, load: Load) -> Node:
        """Return the run's coordinate where this is the iteration's."""
        if load.buffer is self.key.buffer and expr_equal(substitute(load, self.values), self.key):
            return self.same
        return self.visit_Node(load)


@dataclass(frozen=True, slots=True)
class Keys:
    """The sorted coordinates *buffer* of *axis* that a loop runs over.

    The loop is over the fiber at *outer*, from the absolute position *begin* on.
    """

    axis: Axis
    buffer: SparseBuffer
    outer: tuple[Expr | None, ...]
    begin: Expr


def sorted_keys(func: Func, loop: For) -> Keys | None:
    """Return the coordinates that tell apart all that *loop* writes; None if none do."""
    values = named(loop.body)
    private = {n.buffer for n in walk(loop.body) if isinstance(n, Alloc)}
    accesses = [n for n in walk(loop.body) if isinstance(n, (Load, Store))]
    written = {memory_of(n.buffer) for n in accesses if isinstance(n, Store)} - private
    touched = [n for n in accesses if memory_of(n.buffer) in written]
    if any(isinstance(n, Search) and memory_of(n.buffer) in written for n in walk(loop.body)):
        return None
    if not touched or not from_zero(loop) or loop.kind != "serial":
        return None
    for place, index in enumerate(touched[0].indices):
        if index is None:
            continue
        load = plain(substitute(index, values))
        if isinstance(load, Load) and all(_at(n, place, load, values) for n in touched):
            found = _keys(func, loop, load)
            return None if found is None or _may_be_none(found, loop) else found
    return None


def _may_be_none(keys: Keys, loop: For) -> bool:
    """Whether *loop* asks if there is such a fiber: a split may reach behind the last."""
    rows = (keys.begin, *(index for index in keys.outer if index is not None))
    outside = {var for index in rows for var in variables(index)}
    return any(not outside.isdisjoint(variables(term)) for term in _guards(loop))


def _keys(func: Func, loop: For, load: Load) -> Keys | None:
    """Return the keys of which *load* reads the one of the iteration, if they are sorted."""
    buffer = load.buffer
    axis = next((a for a in func.axes if a.indices is not None and a.indices is buffer.data), None)
    *outer, last = load.indices
    if axis is None or not axis.sorted or last is not loop.var or load.mask is not None:
        return None
    assert isinstance(buffer, SparseBuffer)
    inside = {n.var for n in walk(loop) if isinstance(n, (For, Let))}
    if axis.parent is None or axis.parent.parent is not None or buffer.axes != axis.path():
        return None
    (row,) = outer
    if row is None or variables(row) & inside or (fiber := _fiber(func, axis, row)) is None:
        return None
    begin, size = fiber
    return Keys(axis, buffer, (row,), begin) if expr_equal(loop.end, size) else None


def _fiber(func: Func, axis: Axis, row: Expr) -> tuple[Expr, Expr] | None:
    """Return the absolute position where the fiber of *row* begins, and its size, if it is read."""
    if axis.nnz_cols is not None:
        size = cast(axis.nnz_cols, int64)
        return binary("*", row, size), size
    indptr = next((buffer for buffer in func.buffers if buffer.data is axis.indptr), None)
    if indptr is None:
        return None
    begin, end = (Load(indptr, (plus(row, k),)) for k in (0, 1))
    return cast(begin, int64), cast(binary("-", end, begin), int64)


def _at(access: Load | Store, place: int, key: Load, values: dict[Var, Expr]) -> bool:
    """Whether *access* is to a dense buffer, at *key* on its axis number *place*."""
    buffer = access.buffer
    if isinstance(buffer, SparseBuffer):
        dense = all(axis.kind == "dense_fixed" for axis in buffer.axes)
    else:
        dense = buffer.strides is None
    index = access.indices[place] if place < len(access.indices) else None
    return dense and index is not None and expr_equal(plain(substitute(index, values)), key)


def segments(func: Func, loop: str, *, long: bool = False) -> SplitSorted | None:
    """Return the step that cuts *loop* between sorted coordinates, or None where not legal.

    Chunks are small where an iteration is a loop whose length the data decides. *long*: some
    coordinate has so many iterations that they are to be shared, if that is legal.
    """
    bodies = (x.body for x in loops_of(func.body) if x.var.name == loop)
    inner = [x.end for body in bodies for x in loops_of(body)]
    rows = any(isinstance(n, Load) for end in inner for n in walk(end))
    size = FEW if rows else MANY
    steps = (SplitSorted(loop, size, most) for most in ((LONG, 0) if long else (0,)))
    return next((step for step in steps if step.is_legal(func)), None)


def runs(func: Func, loop: str) -> GroupRuns | None:
    """Return the step that groups *loop* by equal coordinates, or None where not legal."""
    step = GroupRuns(loop)
    return step if step.is_legal(func) else None
