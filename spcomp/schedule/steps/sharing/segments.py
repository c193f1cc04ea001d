"""In position space: the steps split_sorted and group_runs, for reductions by sorted keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, conjuncts, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, parent_at
from spcomp.ir.analysis.reduction import accumulator, identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.memory import writes_of
from spcomp.ir.axis import Axis, Buffer, SparseBuffer, memory_of
from spcomp.ir.expr import BinOp, Expr, Select, Var, binary, cast, const, plain
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, While, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.nests.places import surely_below
from spcomp.schedule.nests.values import binding_values, ceil_div, starts_inside
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.hubs import Piece, RowSum
from spcomp.schedule.steps.sharing.split_nnz import MAX_CHUNKS


@dataclass(frozen=True, slots=True)
class SplitSorted(Step):
    """``for e in n: W[key[e]] op= x  ->  for c in parallel(chunks): for e in cut(c)..: ...``.

    For a loop over the fiber of a sorted axis, whose coordinates may repeat, that writes only at
    its coordinate. At most *most* chunks of about *size* iterations are cut where the coordinate
    changes, so that each coordinate belongs to one chunk: no atomics, no carries, and the order of
    additions stays. Each call then checks that the coordinates ascend.

    *long*: if not 0, a chunk may begin inside a run of one coordinate that already fills so many
    chunks. It adds up its part of the run in ``P[c]``; these sums are added afterwards, in order.
    Legal where an iteration only updates elements by one associative operation.
    """

    name: ClassVar[str] = "split_sorted"
    loop: str
    size: int
    long: int = 0
    most: int = field(default=MAX_CHUNKS, kw_only=True)

    def plan(self, func: Func) -> _Cut:
        """Return the loop, its coordinates, and how parts of long runs are reduced."""
        loop = find_loop(func, self.loop, self)
        if min(self.size, self.most) < 1 or self.long < 0:
            why = "size and most must be at least 1, and long at least 0"
            raise self.error(why, loop)
        if starts_inside(func, loop):
            raise self.error("a reduction goes on outside the loop, and starts there", loop)
        keys = sorted_keys(func, loop)
        if keys is None:
            why = f"what {self.loop!r} writes is not told apart by a sorted coordinate"
            raise self.error(why, loop, "iterate over a sorted axis, and write at its coordinate")
        return _Cut(loop, keys, self._heads(func, loop) if self.long else None)

    def _heads(self, func: Func, loop: For) -> _Head:
        key = key_load(func, loop)
        if key is None:
            raise self.error(f"{self.loop!r} writes the coordinate", loop)
        same = Names(func).var(f"{self.loop}_key", key.buffer.dtype)
        inner = loop.replace(
            body=UseKey(loop.var, key, same, binding_values(loop.body)).rewrite(loop.body)
        )
        return _Head(self, func, For(same, ZERO, loop.end, inner, span=loop.span), inner)

    def rewrite(self, func: Func, plan: _Cut) -> Func:
        """Return *func* with the loop cut between coordinates."""
        checked = tuple(sorted({*func.attr("order_needed", ()), plan.keys.axis.name}))
        chunks = _Chunks if plan.heads is None else _SharedChunks
        stmt = chunks(self, plan, Names(func)).build()
        return replace_stmt(func, plan.loop, stmt).with_attr("order_needed", checked)


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """A loop that is cut where its *keys* change.

    *heads*: how chunks reduce runs that began before them; None where no chunk begins in a run.
    """

    loop: For
    keys: Keys
    heads: _Head | None


class _Chunks:
    """The parallel loop over the chunks of a loop."""

    def __init__(self, step: SplitSorted, cut: _Cut, names: Names) -> None:
        self.step, self.loop, self.keys, self.names = step, cut.loop, cut.keys, names
        name = cut.loop.var.name
        self.chunk, self.chunks, self.share, self.count = (
            names.var(f"{name}_{what}") for what in ("c", "chunks", "share", "count")
        )

    def build(self) -> Stmt:
        """Return the loops, inside the lets that they need."""
        stmt: Stmt = Let(self.share, ceil_div(self.count, self.chunks), self._nest())
        parts = BinOp("max", ceil_div(self.count, const(self.step.size)), const(1))
        stmt = Let(self.chunks, BinOp("min", parts, const(self.step.most)), stmt)
        return Let(self.count, self.loop.end, stmt)

    def _nest(self) -> Stmt:
        return self._over(self.loop.replace(begin=self._cut(0), end=self._cut(1)))

    def _over(self, body: Stmt) -> For:
        grain = (("grain", 1),)
        span = self.loop.span
        return For(self.chunk, ZERO, self.chunks, body, "parallel", attrs=grain, span=span)

    def _cut(self, ahead: int) -> Expr:
        """Return where the run begins in which the chunk would begin; the end if there is none."""
        keys, at = self.keys, plus(self.chunk, ahead) * self.share
        last = cast(keys.axis.length, int64)
        key = Select(BinOp("<", at, self.count), self._key(at), last)
        position = Search("lower", keys.buffer, keys.begin, plus(keys.begin, self.count), key)
        return binary("-", position, keys.begin)

    def _key(self, at: Expr) -> Expr:
        """Return the coordinate of iteration *at*."""
        return cast(Load(self.keys.buffer, (*self.keys.outer, at)), int64)


class _SharedChunks(_Chunks):
    """The loop over chunks that may begin inside a run, and the loop that adds their heads.

    The head of a chunk is its part of a run that began before it.
    """

    def __init__(self, step: SplitSorted, cut: _Cut, names: Names) -> None:
        super().__init__(step, cut, names)
        assert cut.heads is not None
        self.heads = cut.heads
        names.unique(cut.heads.loop.var.name)

    def _nest(self) -> Stmt:
        names, name, loop, keys = self.names, self.loop.var.name, self.loop, self.keys
        run, first, later, after, key, end = (
            names.var(f"{name}_{what}") for what in ("run", "first", "later", "after", "of", "rest")
        )
        of = Buffer(names.unique(f"{name}_heads"), None, (self.chunks,), int64)
        sums = self.heads.sums(names, self.chunks)
        inside = BinOp("<", run, first)
        where = plus(keys.begin, first), plus(keys.begin, after)
        run_end = binary("-", Search("run", keys.buffer, *where, key), keys.begin)
        head = If(inside, self.heads.add_up(names, (self.chunk, key), (first, end), sums))
        remaining = loop.replace(begin=end, end=after)
        body: Stmt = seq(Store(of, (self.chunk,), key), head, remaining)
        body = Let(end, Select(inside, run_end, first), body)
        body = Let(key, Select(inside, self._key(first), const(-1)), body)
        for place, begin, ahead in ((after, later, 1), (first, run, 0)):
            body = Let(begin, self._cut(ahead), Let(place, self._begin(begin, ahead), body))
        at, other = names.var(f"{name}_c"), names.var(f"{name}_of")
        finish = If(BinOp("<=", ZERO, other), self.heads.finish(names, (at, other), sums))
        each = Let(other, Load(of, (at,)), finish)
        both = seq(self._over(body), For(at, ZERO, self.chunks, each, span=loop.span))
        return Alloc(of, Alloc(sums, annotate_regions(both)))

    def _begin(self, run: Var, ahead: int) -> Expr:
        """Return where a chunk begins: with its *run*, or inside it if that is long."""
        at = BinOp("min", plus(self.chunk, ahead) * self.share, self.count)
        return Select(BinOp("<", run + self.share * self.step.long, at), at, run)


class _Head(RowSum):
    """The heads of chunks: each reduces iterations of one coordinate, apart from earlier ones."""

    def _check_loops(self, func: Func) -> None:
        """Check nothing: the rows are runs of a sorted coordinate."""

    def _start(self) -> Expr:
        if self.init is not None:
            raise self.error("it starts what it updates")
        return super()._start()

    def sums(self, names: Names, chunks: Expr) -> Buffer:
        """Return the buffer for the sums of *chunks* heads."""
        shape = (chunks, *(substitute(loop.end, self.values) for loop in self.spatial))
        wish = f"{self.target.name}_parts"
        return Buffer(names.unique(wish), None, shape, accumulator(self.target.dtype))

    def add_up(
        self, names: Names, of: tuple[Var, Var], span: tuple[Expr, Expr], sums: Buffer
    ) -> Stmt:
        """Return the nest that adds up the iterations of *span*; *of*: the chunk and coordinate."""
        chunk, key = of
        neutral = identity(self.reduction.combiner, sums.dtype)
        clear = self.over_row(names, lambda at: Store(sums, (chunk, *at), neutral))
        piece = Piece(names, self, cast(key, self.loop.var.dtype), chunk, sums, span)
        return seq(clear, piece.rewrite(self.loop.body))

    def finish(self, names: Names, of: tuple[Var, Var], sums: Buffer) -> Stmt:
        """Return the nest that adds the sum of a chunk to the element of its coordinate."""
        chunk, key = of
        return self.over_row(names, lambda at: self.store_total(key, at, Load(sums, (chunk, *at))))


@dataclass(frozen=True, slots=True)
class GroupRuns(Step):
    """``for e in a..b: W[key[e]] op= x  ->  while a < b: r = key[a]; for e in run: W[r] op= x``.

    For a loop over the fiber of an axis, or a part of it. The inner loop runs over consecutive
    iterations of one coordinate, so that the elements it updates can stay in registers. Legal
    where every iteration reads its coordinate, whatever conditions hold.
    """

    name: ClassVar[str] = "group_runs"
    loop: str

    def plan(self, func: Func) -> tuple[For, Load]:
        """Return the loop, and the coordinate of an iteration."""
        loop = find_loop(func, self.loop, self)
        if starts_inside(func, loop):
            raise self.error("a reduction goes on outside the loop, and starts there", loop)
        if _invariant_guards(loop):
            hint = "group the runs before loops are split"
            raise self.error("under a condition the coordinate need not exist", loop, hint)
        key = key_load(func, loop)
        if key is None:
            raise self.error(f"{self.loop!r} reads no coordinate that it does not write", loop)
        if _keys(func, loop, key) is None and not _is_always_read(loop, key):
            raise self.error("a condition or range decides where the coordinate is read", loop)
        return loop, key

    def rewrite(self, func: Func, plan: tuple[For, Load]) -> Func:
        """Return *func* with the loop over runs of equal coordinates."""
        loop, key = plan
        return replace_stmt(func, loop, _runs(Names(func), loop, key))


def _invariant_guards(loop: For) -> list[Expr]:
    """Return the conditions in *loop* that do not depend on it: none or all iterations run."""
    values = binding_values(loop.body)
    conds = [n.cond for n in walk(loop.body, skip=Expr) if isinstance(n, If)]
    conds += [n.where for n in walk(loop.body, skip=Expr) if isinstance(n, Block) and n.where]
    terms = (substitute(term, values) for cond in conds for term in conjuncts(cond))
    return [term for term in terms if loop.var not in variables(term)]


def _is_always_read(loop: For, key: Load) -> bool:
    """Whether every iteration of *loop* reads *key*, except where a loop inside is always empty."""
    values = binding_values(loop.body)
    inside = {n.var for n in walk(loop) if isinstance(n, (For, Let))}

    def occurs(node: Node) -> bool:
        if isinstance(node, Load) and node.buffer is key.buffer:
            return expr_equal(substitute(node, values), key)
        if isinstance(node, For):
            ends = substitute(node.begin, values), substitute(node.end, values)
            steady = not any(variables(e) & inside for e in ends)
            return any(map(occurs, (*ends, node.body) if steady else ends))
        return any(map(occurs, surely_below(node)))

    return occurs(loop.body)


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
    body = UseKey(loop.var, key, same, binding_values(loop.body)).rewrite(loop.body)
    inner = loop.replace(begin=begin, end=run, body=body)
    group: Stmt = Let(run, stop, seq(inner, put(at, run)))
    group = Let(begin, at, Let(same, read(begin), seq(scan, group)))
    groups = While(BinOp("<", at, end), group, span=loop.span)
    return Let(end, loop.end, Alloc(place, seq(put(at, loop.begin), groups)), span=loop.span)


def key_load(func: Func, loop: For) -> Load | None:
    """Return the load of an iteration's coordinate, in terms of loops outside; None: none."""
    values = binding_values(loop.body)
    inside = {n.var for n in walk(loop) if isinstance(n, (For, Let))}
    handles = {axis.indices for axis in func.axes} - {None} - writes_of(loop.body)
    for node in walk(loop.body):
        if isinstance(node, Load) and node.mask is None and node.buffer.data in handles:
            load = substitute(node, values)
            *outer, last = load.indices
            if last is loop.var and not any(i is None or variables(i) & inside for i in outer):
                return load
    return None


class UseKey(Rewriter):
    """Replaces the load of an iteration's coordinate by that of its run; the loop then reduces."""

    def __init__(self, var: Var, key: Load, same: Var, values: dict[Var, Expr]) -> None:
        self.var, self.key, self.same, self.values = var, key, same, values

    def visit_Block(self, block: Block) -> Node:
        """Make the iters that the loop drives reduction iters."""
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
    """The sorted coordinates that a loop runs over: those of *axis*, in *buffer*.

    The loop is over the fiber at the indices *outer*, from the absolute position *begin* on.
    """

    axis: Axis
    buffer: SparseBuffer
    outer: tuple[Expr | None, ...]
    begin: Expr


def sorted_keys(func: Func, loop: For) -> Keys | None:
    """Return the sorted coordinates at which *loop* does all its writes; None if there are none."""
    values = binding_values(loop.body)
    private = {n.buffer for n in walk(loop.body) if isinstance(n, Alloc)}
    written = writes_of(loop.body) - private
    accesses = (n for n in walk(loop.body) if isinstance(n, (Load, Store)))
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
            keys = _keys(func, loop, load)
            return None if keys is None or _may_be_none(keys, loop) else keys
    return None


def _may_be_none(keys: Keys, loop: For) -> bool:
    """Whether a condition in *loop* guards the fiber: after a split it may not exist."""
    rows = (keys.begin, *(index for index in keys.outer if index is not None))
    outside = {var for index in rows for var in variables(index)}
    return any(not outside.isdisjoint(variables(term)) for term in _invariant_guards(loop))


def _keys(func: Func, loop: For, load: Load) -> Keys | None:
    """Return the keys that *load* reads, one in each iteration, if they are sorted; else None."""
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
    arrays = Auxiliary.of(func)
    if row is None or variables(row) & inside or not arrays.knows_fibers(axis):
        return None
    parent = parent_at(axis, (row,))
    if not expr_equal(loop.end, arrays.size(axis, parent)):
        return None
    return Keys(axis, buffer, (row,), arrays.begin(axis, parent))


def _at(access: Load | Store, place: int, key: Load, values: dict[Var, Expr]) -> bool:
    """Whether *access* is to a dense buffer, at *key* on its axis number *place*."""
    buffer = access.buffer
    if isinstance(buffer, SparseBuffer):
        dense = all(axis.kind == "dense_fixed" for axis in buffer.axes)
    else:
        dense = buffer.strides is None
    index = access.indices[place] if place < len(access.indices) else None
    return dense and index is not None and expr_equal(plain(substitute(index, values)), key)


def segments(func: Func, loop: str, knobs: Knobs, *, long: bool = False) -> SplitSorted | None:
    """Return the step that cuts *loop* between sorted coordinates; None where it is not legal.

    Chunks are small where an iteration is a loop over data-dependent fibers. *long*: also cut
    inside long runs, if that is legal; the sums of their parts are then added one by one.
    """
    bodies = (x.body for x in loops_of(func.body) if x.var.name == loop)
    inner = [x.end for body in bodies for x in loops_of(body)]
    rows = any(isinstance(n, Load) for end in inner for n in walk(end))
    size = knobs.chunk_fibers if rows else knobs.chunk_sorted
    steps = [SplitSorted(loop, size, most=knobs.most_chunks)]
    if long:
        steps.insert(0, SplitSorted(loop, size, knobs.run_chunks, most=knobs.most_parts))
    return next((step for step in steps if step.is_legal(func)), None)


def runs(func: Func, loop: str) -> GroupRuns | None:
    """Return the step that groups *loop* by equal coordinates; None where it is not legal."""
    step = GroupRuns(loop)
    return step if step.is_legal(func) else None
