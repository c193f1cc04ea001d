"""The only place where default decisions are made: the trace of an unscheduled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from spcomp.errors import ScheduleError
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import from_zero, variables
from spcomp.ir.analysis.vectors import can_vectorize, lane_bits
from spcomp.ir.arith.simplify import coefficient
from spcomp.ir.axis import AnyBuffer, SparseBuffer
from spcomp.ir.expr import Const, Expr, Select, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Stmt, Store, While
from spcomp.ir.visitor import walk
from spcomp.passes.pack.pack_rows import find_products
from spcomp.schedule.default.scatter import Scatter, as_scatter, outermost
from spcomp.schedule.legality.dependence import conflicts, loop_named, loops_of
from spcomp.schedule.legality.reductions import innermost, is_dot
from spcomp.schedule.nests.nests import chain, reduction_loops, runs_once
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.blocks.blocks import LiftLoop
from spcomp.schedule.steps.blocks.decompose_reduction import DecomposeReduction
from spcomp.schedule.steps.blocks.memory import CacheWrite, one_store
from spcomp.schedule.steps.iterations.mark_fiber import markable
from spcomp.schedule.steps.loops.loops import Parallel, Vectorize
from spcomp.schedule.steps.loops.prefetch import Gather, Prefetch, fibers, gathers
from spcomp.schedule.steps.loops.tiling import LoopPartition, Reorder, Split
from spcomp.schedule.steps.sharing.horizontal import HorizontalFuse, siblings
from spcomp.schedule.steps.sharing.hubs import hub_split
from spcomp.schedule.steps.sharing.partial_results import PartialResults, shared_update, starts
from spcomp.schedule.steps.sharing.segments import runs, segments
from spcomp.schedule.steps.sharing.sorted_rows import sorted_rows
from spcomp.schedule.steps.sharing.split_nnz import SMALL, nnz_chunks
from spcomp.schedule.steps.sharing.workspaces import ShareWorkspace, has_workspace
from spcomp.target import Target

TILE_VECTORS = 8  # vectors of accumulators that stay in registers beside what the loop body needs
STREAM_VECTORS = 16  # the same where the body only adds up rows that follow each other in memory
DISTANCE = 16  # positions from asking for a row to its use
PARTS_AHEAD = 32  # the same in parts, of a row read in passes: more, and they are gone again
GUSTAVSON = 1024  # elements in a chunk of rows that share workspaces
LEAST_ROW = 64  # bytes of a row that is worth asking for: a cache line
MOST_ROWS = 512  # bytes of several rows that are; of more the processor asks for the last itself


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the data.

    *skewed*: parts with equally many rows hold very different numbers of elements; *hubs*: some
    row alone holds more than its share; *runs*: so does some coordinate of a sorted axis.
    """

    hubs: bool = False
    skewed: bool = False
    runs: bool = False


def default_steps(func: PosFunc, target: Target, facts: Facts = Facts()) -> tuple[Step, ...]:
    """Return the default steps for *func*; see default_schedule."""
    return default_schedule(func, target, facts)[1]


def default_schedule(
    func: PosFunc,
    target: Target,
    facts: Facts = Facts(),
) -> tuple[Func, tuple[Step, ...]]:
    """Return *func* with the default steps applied, and the steps.

    Outer loops in parallel; a reduction over sparse positions runs inside a tile of the innermost
    dense axis, whose accumulators are registers; innermost loops over memory in order in vectors.
    """
    plan = _Plan(func, target, facts)
    if target.kind != "cpu" or any(loop.kind != "serial" for loop in loops_of(func.body)):
        return func, ()  # the program comes with decisions of its own
    plan.parts()
    plan.marks()
    for loop in list(outermost(plan.func.body)):
        if loop.kind == "serial":
            plan.attempt(plan.by_keys, loop)
    for loop in list(outermost(plan.func.body)):
        if all(x.kind == "serial" for x in loops_of(loop)):
            plan.attempt(plan.nest, loop)
    for loop in [x for x in loops_of(plan.func.body) if runs_once(x)]:
        plan.attempt(plan.set_aside, loop.var.name)
    for loop in [x for x in loops_of(plan.func.body) if _is_contiguous(x) and not plan.skips(x)]:
        if not plan.attempt(plan.tiles, loop.var.name):
            plan.attempt(plan.take, Vectorize(loop.var.name))
    plan.prefetch()
    return plan.func, tuple(plan.steps)


class _Plan:
    """Steps in the making: each is chosen by looking at the program that those before it made."""

    def __init__(self, func: Func, target: Target, facts: Facts) -> None:
        self.func, self.target, self.facts = func, target, facts
        self.steps: list[Step] = []

    def take(self, step: Step) -> None:
        """Append *step*."""
        self.func = step.apply(self.func)
        self.steps.append(step)

    def attempt(self, decide: Callable[[Any], None], about: Any) -> bool:
        """Let *decide* take its steps, or none of them if one is not legal; say which."""
        before = self.func, list(self.steps)
        try:
            decide(about)
        except ScheduleError:
            self.func, self.steps = before
        return self.func is not before[0]

    def loop(self, name: str) -> For | None:
        """Return the loop called *name*, if it still exists."""
        return loop_named(self.func.body, name)

    def tiles(self, name: str) -> None:
        """Run the loop *name* in register tiles, in vectors, if loops around it reduce."""
        tile = self._tile(name)
        if tile is None:
            return
        self.take(Reorder((*tile.spatial, name, *tile.reductions)))
        loop, most = self.loop(name), tile.vectors * tile.lanes
        assert loop is not None
        rest = f"{name}_rest"
        if not isinstance(loop.end, Const):
            self.take(LoopPartition(name, most))
            self._tile_by(name, tile, most)
            self._tile_by(rest, tile.rest(), tile.lanes)
            return
        extent = int(loop.end.value)
        width = _tile_width(extent, tile)
        if width < extent and extent % width:
            self.take(LoopPartition(name, width))
            self._tile_by(rest, tile.rest(), _tile_width(extent % width, tile))
        self._tile_by(name, tile, width)

    def set_aside(self, name: str) -> None:
        """Move the loop *name*, which runs once, out of the way of those around it."""
        loops = next(
            loops for loops in map(_chain, loops_of(self.func.body)) if _named(loops, name)
        )
        block, reducing = chain(loops[0])[1], reduction_loops(self.func)
        if isinstance(block, Block) and self.func.attr("horizontal_fuse"):
            reducing = reducing - _picks(block)  # rows in a list, which may repeat
        first = next((k for k, x in enumerate(loops) if x.var in reducing), None)
        names = [x.var.name for x in loops]
        if first is not None and first < names.index(name):
            self.take(Reorder((name, *names[first : names.index(name)])))

    def _tile_by(self, name: str, tile: _Tile, width: int) -> None:
        self.take(Split(name, width))
        self.take(Reorder((f"{name}_o", *tile.reductions, f"{name}_i")))
        self.take(CacheWrite(tile.block, at=f"{name}_o"))
        tiles = self.loop(f"{name}_o")
        for loop in loops_of(tiles) if tiles is not None else ():
            if loop.kind == "serial" and _base(loop.var.name) == f"{name}_i":
                self.take(Vectorize(loop.var.name))

    def by_keys(self, nest: For) -> None:
        """Run a reduction by sorted keys row by row, each started when it is reached."""
        if self.facts.runs:
            return  # a row would be one thread's
        found = (sorted_rows(self.func, loop.var.name) for loop in _below(nest))
        if (step := next(filter(None, found), None)) is not None:
            self.take(step)

    def nest(self, nest: For) -> None:
        """Run the nest in parallel: by sorted keys, by rows, or by columns."""
        long = self.facts.runs
        sorted_ = (segments(self.func, loop.var.name, long=long) for loop in _below(nest))
        if (step := next(filter(None, sorted_), None)) is not None:
            self.take(step)
            self.runs(step.loop)
        elif (loop := _outermost_legal(nest)) is not None:
            self.rows(loop.var.name)
        elif (scatter := as_scatter(nest)) is not None:
            self.by_columns(scatter)
        elif any(True for _ in loops_of(nest.body)) and shared_update(nest) is not None:
            self.total(nest.var.name)

    def parts(self) -> None:
        """Run the parts of a decomposed program side by side, as its attribute asks for."""
        if self.func.attr("horizontal_fuse"):
            for nests in siblings(self.func.body):
                self.attempt(self.side_by_side, nests)

    def marks(self) -> None:
        """Look operands of intersections up that stay the same from one to the next."""
        assert isinstance(self.func, PosFunc)
        while (step := next(markable(self.func), None)) is not None:
            self.take(step)

    def side_by_side(self, nests: tuple[Stmt, ...]) -> None:
        """Run nests that follow each other in one parallel loop."""
        names = tuple(nest.var.name for nest in nests if isinstance(nest, For))
        if len(names) > 1 and len(names) == len(nests):
            self.take(HorizontalFuse(names, SMALL))

    def rows(self, name: str) -> None:
        """Run the loop *name* in parallel; as the data is, in balanced chunks, hub rows apart."""
        self.take(Parallel(name))
        loop = self.loop(name)
        assert loop is not None
        hubs = (hub_split(self.func, name, inner.var.name) for inner in list(loops_of(loop.body)))
        if self.facts.hubs and (split := next(filter(None, hubs), None)) is not None:
            self.take(split)
        if find_products(self.func) is not None:
            return  # to be made in blocks, which share workspaces
        if has_workspace(loop):
            self.take(nnz_chunks(self.func, name, GUSTAVSON) or Split(name, GUSTAVSON // 16))
            self.take(ShareWorkspace(self._inner(name)))
        elif self.facts.skewed and (chunks := nnz_chunks(self.func, name)) is not None:
            self.take(chunks)

    def total(self, name: str) -> None:
        """Run the loop *name*, which reduces into one element, in chunks that each do."""
        nest = self.loop(name)
        for block in starts(nest) if nest is not None else ():
            self.take(DecomposeReduction(block.name, name))
        self.take(nnz_chunks(self.func, name, SMALL) or Split(name, GUSTAVSON // 16))
        chunks = f"{name}_c" if self._inner(name) == name else f"{name}_o"
        self.take(PartialResults(chunks))
        self.take(Parallel(chunks))
        loop = self.loop(self._inner(name))
        if loop is not None and has_workspace(loop):
            self.take(ShareWorkspace(loop.var.name))

    def _inner(self, name: str) -> str:
        """Return what the loop *name*, which has been cut into chunks, is called in each."""
        return name if self.loop(name) is not None else f"{name}_i"

    def runs(self, name: str) -> None:
        """Let iterations of one key share a register tile, if their row fits in one."""
        nest = self.loop(name)
        assert nest is not None
        *_, inner = loops_of(nest)
        most = TILE_VECTORS * self._lanes(inner.body)
        fits = isinstance(inner.end, Const) and inner.end.value <= most
        if fits and (step := runs(self.func, name)) is not None:
            self.take(step)

    def by_columns(self, nest: Scatter) -> None:
        """Run a nest that scatters rows in parallel over parts of the rows."""
        outer, inner = f"{nest.inner}_o", f"{nest.inner}_i"
        self.take(Split(nest.inner, nest.width))
        for depth, loops in enumerate(nest.levels):
            if depth:
                self.take(LiftLoop(outer))
            self.take(Reorder((outer, *loops) if depth else (outer, *loops, inner)))
        self.take(Parallel(outer))

    def prefetch(self) -> None:
        """Ask for rows that are read at stored coordinates, which no processor can foresee."""
        for loop in list(loops_of(self.func.body)):
            assert isinstance(self.func, PosFunc)
            rows = [g for g in gathers(self.func, loop) if _is_worth_asking_for(g)]
            if rows or fibers(self.func, loop):
                passes = max((1, *(self._passes(row) * row.rows for row in rows)))
                distance = max(DISTANCE // 4, min(DISTANCE, PARTS_AHEAD // passes))
                self.take(Prefetch(loop.var.name, distance))

    def skips(self, loop: For) -> bool:
        """Whether *loop* runs over fibers of one width with padding: branches foresee its place."""
        padded = {a.indices for a in self.func.axes if a.padded and not a.is_variable}
        body, var = innermost(loop)
        asked = (x.cond for x in walk(body) if isinstance(x, Select))
        loads = (n for cond in asked for n in walk(cond) if isinstance(n, Load))
        return any(n.buffer.data in padded and var in variables(n) for n in loads)

    def _passes(self, row: Gather) -> int:
        """Return in how many passes, over elements of the same fiber, *row* is read in parts."""
        last = row.load.indices[-1]
        assert last is not None
        picks = variables(last) - {row.inner}
        parts = (x for x in loops_of(self.func.body) if x.var in picks)
        return prod(int(x.end.value) for x in parts if isinstance(x.end, Const))

    def _tile(self, name: str) -> _Tile | None:
        """Return what is around the loop *name* if it is worth a register tile."""
        loop = self.loop(name)
        reducing = reduction_loops(self.func)
        if loop is None or loop.var in reducing or not from_zero(loop):
            return None
        if not isinstance(loop.body, Block):
            return None
        loops = next(loops for loops in map(_chain, loops_of(self.func.body)) if loop in loops)
        picking = _picks(loop.body) & reducing  # each iteration of these updates another element
        begin = max((k + 1 for k, x in enumerate(loops) if x.var in picking), default=0)
        first = next((k for k in range(begin, len(loops)) if loops[k].var in reducing), len(loops))
        inside = loops[first:-1]
        lanes = self._lanes(loop.body)
        if loops[-1] is not loop or not inside or lanes < 2:
            return None
        if one_store(loop.body) is None:
            return None
        return _Tile(
            loop.body.name,
            tuple(x.var.name for x in inside if x.var not in reducing),
            tuple(x.var.name for x in inside if x.var in reducing),
            lanes,
            STREAM_VECTORS if _streams(loop.body, reducing) else TILE_VECTORS,
        )

    def _lanes(self, block: Node) -> int:
        bits = [lane_bits(n.buffer.dtype) for n in walk(block) if isinstance(n, (Load, Store))]
        return self.target.vector_bits // max(bits, default=64)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A block whose innermost loop becomes a register tile inside the loops that reduce."""

    block: str
    spatial: tuple[str, ...]  # loops between the reductions, to go outside
    reductions: tuple[str, ...]
    lanes: int
    vectors: int  # at most

    def rest(self) -> _Tile:
        """The same for the part that a loop_partition left over."""
        names = tuple(f"{name}_rest" for name in self.reductions)
        return _Tile(f"{self.block}_rest", (), names, self.lanes, self.vectors)


def _is_worth_asking_for(row: Gather) -> bool:
    few = row.rows == 1 or row.rows * row.bytes <= MOST_ROWS
    return row.bytes >= LEAST_ROW and few


def _picks(block: Block) -> set[Var]:
    """The loops that pick the element that *block* stores."""
    stores = [n for n in walk(block.body) if isinstance(n, Store)]
    indices = [i for store in stores for i in store.indices if i is not None]
    return {var for index in indices for var in variables(substitute(index, block.values))}


def _chain(loop: For) -> list[For]:
    return chain(loop)[0]


def _below(nest: For) -> Iterator[For]:
    """Yield the loops of *nest*, and where they run once, those in their block."""
    loops, block = chain(nest)
    yield from loops
    if all(map(runs_once, loops)) and isinstance(block, Block) and isinstance(block.body, For):
        yield from _below(block.body)


def _named(loops: list[For], name: str) -> bool:
    return any(loop.var.name == name for loop in loops)


def _tile_width(extent: int, tile: _Tile) -> int:
    """Return the width of the tiles of *extent*: as few as fit in registers, all alike."""
    vectors = -(-extent // tile.lanes)
    passes = max(1, -(-vectors // tile.vectors))
    return max(1, -(-vectors // passes)) * tile.lanes


def _streams(block: Block, reducing: set[Var]) -> bool:
    """Whether *block* reads nothing but what it updates and rows that loops of *reducing* pass."""
    store = one_store(block)
    assert store is not None
    target = store.buffer
    loads = [n for n in walk(store.value) if isinstance(n, Load) and n.buffer is not target]
    indices = [substitute(i, block.values) for n in loads for i in n.indices if i is not None]
    by_value = any(isinstance(n, Load) for i in indices for n in walk(i))
    passed = any(variables(i) & reducing for i in indices)
    return len(loads) == 1 and passed and not by_value


def _base(name: str) -> str:
    head, _, tail = name.rpartition("_")
    return head if tail.isdigit() and head else name


def _outermost_legal(nest: For) -> For | None:
    """Return the outermost loop of *nest* that may run in parallel.

    A loop inside a loop over data-dependent fibers is too short to be worth a launch, and so is an
    innermost loop inside another.
    """
    loops = _chain(nest)
    for inside, loop in zip(reversed(range(len(loops))), loops, strict=True):
        if not conflicts(loop):
            return loop
        if inside < 2 and not runs_once(loop):
            return None
    return None


def _is_contiguous(loop: For) -> bool:
    """Whether *loop* is innermost, legal to vectorize, and reads and writes memory in order."""
    if runs_once(loop) or any(isinstance(n, (For, While, Merge)) for n in walk(loop.body)):
        return False
    body, var = innermost(loop)
    accesses = _accesses(body)
    if not can_vectorize(body, var) or not any(var in variables(n) for n in accesses):
        return False
    if is_dot(body, var):
        return all(_in_order(n, var) or _is_gather(n, var) for n in accesses)
    return all(_in_order(n, var) for n in accesses) and not conflicts(loop)


def _accesses(body: Node) -> list[Load | Store]:
    return [n for n in walk(body) if isinstance(n, (Load, Store))]


def _in_order(access: Load | Store, var: Var) -> bool:
    """Whether *access* moves by one element, or not at all, when *var* moves by one."""
    places = [k for k, i in enumerate(access.indices) if i is not None and var in variables(i)]
    if not places:
        return True
    index = access.indices[places[-1]]
    assert index is not None
    if len(places) > 1 or not _is_last(access.buffer, places[-1]):
        return False
    return _unit(access.buffer, index, var)


def _is_last(buffer: AnyBuffer, place: int) -> bool:
    """Whether elements that differ by one in the index at *place* are neighbours in memory."""
    if not isinstance(buffer, SparseBuffer):
        return place == len(buffer.shape) - 1
    behind = [axis.length for axis in buffer.axes[place + 1 :] if not axis.is_sparse]
    return len(behind) == len(buffer.axes) - place - 1 and all(
        isinstance(length, Const) and length.value == 1 for length in behind
    )


def _is_gather(access: Load | Store, var: Var) -> bool:
    """Whether *access* moves with *var* only as the values of an array do, read in order."""
    moving = [i for i in access.indices if i is not None and var in variables(i)]
    return all(isinstance(i, Load) and _in_order(i, var) for i in moving)


def _unit(buffer: AnyBuffer, index: Expr, var: Var) -> bool:
    if isinstance(buffer, SparseBuffer) or buffer.strides is None:
        return coefficient(index, var) == 1
    return False
