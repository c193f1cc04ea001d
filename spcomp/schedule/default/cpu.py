"""In position space: the default schedule on CPUs, the only place of its decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import from_zero, variables
from spcomp.ir.analysis.vectors import lane_bits
from spcomp.ir.expr import Const, Select, Var
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Print, Stmt, Store
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.passes.pack.pack_rows import find_products
from spcomp.schedule.default.facts import UNKNOWN, Facts
from spcomp.schedule.default.plan import (
    Plan,
    TileNest,
    base_name,
    is_contiguous,
    is_slice,
    loops_down,
    outermost_legal,
    picks,
    tile_nest,
)
from spcomp.schedule.default.rows import row_fusion
from spcomp.schedule.default.scatter import Scatter, as_scatter, outermost
from spcomp.schedule.default.totals import strip_totals
from spcomp.schedule.legality.dependence import conflicts, loops_of
from spcomp.schedule.legality.reductions import innermost, is_dot
from spcomp.schedule.nests.nests import chain, reduction_loops, runs_once
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.blocks.blocks import LiftLoop
from spcomp.schedule.steps.blocks.decompose_reduction import DecomposeReduction
from spcomp.schedule.steps.blocks.memory import CacheWrite, sole_store
from spcomp.schedule.steps.iterations.mark_fiber import markable
from spcomp.schedule.steps.loops.loops import Parallel, Unroll, Vectorize
from spcomp.schedule.steps.loops.prefetch import Gather, Prefetch, fibers, gathers
from spcomp.schedule.steps.loops.tiling import LoopPartition, Reorder, Split
from spcomp.schedule.steps.sharing.horizontal import HorizontalFuse, siblings
from spcomp.schedule.steps.sharing.hubs import hub_split
from spcomp.schedule.steps.sharing.partial_results import PartialResults, shared_update, starts
from spcomp.schedule.steps.sharing.segments import runs, segments
from spcomp.schedule.steps.sharing.sorted_rows import sorted_rows
from spcomp.schedule.steps.sharing.split_nnz import chunk_size, nnz_chunks
from spcomp.schedule.steps.sharing.stage_products import StageProducts
from spcomp.schedule.steps.sharing.workspaces import ShareWorkspace, has_workspace
from spcomp.target import Target


def default_steps(func: PosFunc, target: Target, facts: Facts = UNKNOWN) -> tuple[Step, ...]:
    """Return the default steps for *func*; see default_schedule."""
    return default_schedule(func, target, facts)[1]


def default_schedule(
    func: PosFunc,
    target: Target,
    facts: Facts = UNKNOWN,
    knobs: Knobs | None = None,
) -> tuple[Func, tuple[Step, ...]]:
    """Return *func* with the default steps applied, and the steps.

    *knobs*: thresholds in place of the target's.

    Outer loops run in parallel. A reduction over sparse positions runs inside a tile of the
    innermost dense axis, with its accumulators in registers. Innermost loops that pass through
    memory in order run in vectors.
    """
    prints = any(isinstance(node, Print) for node in walk(func.body))
    if prints or any(loop.kind != "serial" for loop in loops_of(func.body)):
        return func, ()  # lines stay in order; the user has already decided how loops run
    plan = CpuPlan(func, target, facts, knobs)
    plan.parts()
    plan.attempt(plan.shared_rows())
    plan.attempt(plan.marks())
    for loop in list(outermost(plan.func.body)):
        if loop.kind == "serial":
            plan.attempt(plan.key_rows(loop))
    for loop in list(outermost(plan.func.body)):
        if all(x.kind == "serial" for x in loops_of(loop)):
            plan.attempt(plan.nest(loop))
    for loop in [x for x in loops_of(plan.func.body) if runs_once(x)]:
        plan.attempt(plan.hoist_unit(loop.var.name))
    for loop in [x for x in loops_of(plan.func.body) if not plan.skips(x)]:
        any(map(plan.attempt, plan.vectors(loop)))  # the first that is legal
    for loop in list(loops_of(plan.func.body)):
        plan.attempt(plan.prefetch(loop))
    return plan.func, plan.steps


class CpuPlan(Plan):
    """The default schedule being made for a CPU."""

    def vectors(self, loop: For) -> Iterator[Iterable[Step]]:
        """Yield the ways in which *loop* may run in vectors, the fastest first.

        Each is steps: register tiles inside reductions, of several rows or of one, or no tiles.
        """
        name, in_order = loop.var.name, is_contiguous(loop)
        nest = tile_nest(self.func, name) if in_order or is_slice(loop) else None
        tile = None if nest is None else self._tile(nest, name)
        if nest is not None and tile is not None:
            if in_order and (several := self._row_tile(nest, tile, name)) is not None:
                yield self._tiles(name, several)
            yield self._tiles(name, tile)
        if in_order:
            yield [Vectorize(name)]

    def _tiles(self, name: str, tile: _Tile) -> Iterator[Step]:
        if tile.cut is not None:
            yield tile.cut
        yield Reorder((*tile.outside, name, *tile.reductions))
        loop, most = self.loop(name), tile.vectors * tile.lanes
        assert loop is not None
        tail = f"{name}_rest"
        if not isinstance(loop.end, Const):
            yield LoopPartition(name, most)
            yield from self._tile_by(name, tile, most)
            yield from self._tile_by(tail, tile.rest(), tile.lanes)
            return
        extent = int(loop.end.value)
        width = _tile_width(extent, tile)
        if width < extent and extent % width:
            yield LoopPartition(name, width)
            yield from self._tile_by(tail, tile.rest(), _tile_width(extent % width, tile))
        yield from self._tile_by(name, tile, width)

    def hoist_unit(self, name: str) -> Iterator[Step]:
        """Yield a step that moves the loop *name*, which runs once, outside of reducing loops."""
        loops = next(
            loops for loops in map(loops_down, loops_of(self.func.body)) if _named(loops, name)
        )
        block, reducing = chain(loops[0])[1], reduction_loops(self.func)
        if isinstance(block, Block) and self.func.attr("horizontal_fuse"):
            reducing = reducing - picks(block)  # these run over a list of rows, which may repeat
        first = next((k for k, x in enumerate(loops) if x.var in reducing), None)
        names = [x.var.name for x in loops]
        if first is not None and first < names.index(name):
            yield Reorder((name, *names[first : names.index(name)]))

    def _tile_by(self, name: str, tile: _Tile, width: int) -> Iterator[Step]:
        yield Split(name, width)
        yield Reorder((f"{name}_o", *tile.reductions, *tile.rows, f"{name}_i"))
        yield CacheWrite(tile.block, at=f"{name}_o")
        if self._is_outermost(f"{name}_o"):
            yield Parallel(f"{name}_o")
        tiles = self.loop(f"{name}_o")
        for loop in loops_of(tiles) if tiles is not None else ():
            if loop.kind == "serial" and base_name(loop.var.name) == f"{name}_i":
                yield Vectorize(loop.var.name)
            elif loop.kind == "serial" and base_name(loop.var.name) in tile.rows:
                yield Unroll(loop.var.name)

    def _is_outermost(self, name: str) -> bool:
        """Whether no loop is around the loop *name*, whose iterations are independent."""
        loop = next((x for x in outermost(self.func.body) if x.var.name == name), None)
        return loop is not None and not runs_once(loop) and not conflicts(loop)

    def key_rows(self, nest: For) -> Iterator[Step]:
        """Yield a step that runs a reduction by sorted keys row by row, with each row's init."""
        if self.facts.runs:
            return  # each row would be left to one thread
        knobs = self.knobs
        candidates = (sorted_rows(self.func, loop.var.name, knobs) for loop in _below(nest))
        if (step := next(filter(None, candidates), None)) is not None:
            yield step

    def nest(self, nest: For) -> Iterator[Step]:
        """Yield steps that run *nest* in parallel: by sorted keys, by rows, or by columns."""
        knobs, long = self.knobs, self.facts.runs
        candidates = (segments(self.func, loop.var.name, knobs, long=long) for loop in _below(nest))
        if (step := next(filter(None, candidates), None)) is not None:
            yield step
            yield from self.runs(step.loop)
        elif self.is_long_vector(nest):
            if is_dot(*innermost(nest)):
                yield from strip_totals(self, nest, self.knobs.chunk_elements)
            else:
                yield from self.strips(nest.var.name)
        elif (loop := outermost_legal(nest)) is not None:
            yield from self.rows(loop.var.name)
        elif (scatter := self.scatter(nest)) is not None:
            yield from self.by_columns(scatter)
        elif any(True for _ in loops_of(nest.body)) and shared_update(nest) is not None:
            yield from self.total(nest.var.name)

    def is_long_vector(self, loop: For) -> bool:
        """Whether *loop* passes through memory in order, and may be worth several threads."""
        most = self.knobs.chunk_vector
        if not most or (isinstance(loop.end, Const) and loop.end.value <= most):
            return False
        return from_zero(loop) and is_contiguous(loop) and not self.skips(loop)

    def strips(self, name: str) -> Iterator[Step]:
        """Yield steps that run the loop *name* in parallel over strips, each in vectors."""
        yield LoopPartition(name, self.knobs.chunk_vector)
        yield Split(name, self.knobs.chunk_vector)
        yield Parallel(f"{name}_o")
        yield Vectorize(f"{name}_i")
        if self.loop(f"{name}_rest") is not None:
            yield Vectorize(f"{name}_rest")

    def parts(self) -> None:
        """Fuse the parts of a decomposed program into one loop if its attribute asks for it."""
        if self.func.attr("horizontal_fuse"):
            for nests in siblings(self.func.body):
                self.attempt(self.fuse_siblings(nests))

    def shared_rows(self) -> tuple[Step, ...]:
        """Return the steps that run nests which share rows in one loop.

        None if a row is very long: threads share that only where nothing else is in its loop.
        """
        return () if self.facts.hubs else row_fusion(self.func, self.knobs).steps

    def marks(self) -> Iterator[Step]:
        """Yield steps that mark operands which several intersections share."""
        assert isinstance(self.func, PosFunc)
        while (step := next(markable(self.func), None)) is not None:
            yield step

    def fuse_siblings(self, nests: tuple[Stmt, ...]) -> Iterator[Step]:
        """Yield a step that runs *nests*, which follow each other, in one parallel loop."""
        names = tuple(nest.var.name for nest in nests if isinstance(nest, For))
        if len(names) > 1 and len(names) == len(nests):
            yield HorizontalFuse(names, self.knobs.chunk_nested)

    def rows(self, name: str) -> Iterator[Step]:
        """Yield steps that run the loop *name* in parallel.

        If the data needs it, in balanced chunks, and with very long rows done by themselves.
        """
        yield Parallel(name)
        loop = self.loop(name)
        assert loop is not None
        knobs, inside = self.knobs, [x.var.name for x in loops_of(loop.body)]
        hubs = (hub_split(self.func, name, inner, knobs.hub_piece) for inner in inside)
        if self.facts.hubs and (split := next(filter(None, hubs), None)) is not None:
            yield split
        if find_products(self.func) is not None:
            return  # a matrix product: a pass makes its rows in blocks, which share workspaces
        if has_workspace(loop):
            chunks = nnz_chunks(self.func, name, knobs.chunk_workspace)
            yield chunks or Split(name, knobs.chunk_workspace_rows)
            yield ShareWorkspace(self._inner(name))
        elif any(map(is_slice, loops_of(loop.body))):
            chunks = nnz_chunks(self.func, name, knobs.chunk_slices)
            yield from [chunks] if chunks is not None else []
        elif self.facts.skewed:
            size = chunk_size(self.func, name, knobs)
            if (chunks := nnz_chunks(self.func, name, size)) is not None:
                yield chunks
        elif not self.facts.hubs and self.target.vector_bits >= knobs.mask_bits:
            yield from self.staged(name, inside)

    def staged(self, name: str, inside: list[str]) -> Iterator[Step]:
        """Yield steps that add up short rows of the loop *name* several at a time.

        That pays where products gather: otherwise a row is a load or two under a mask.
        """
        knobs = self.knobs
        gathers = knobs.gathers(self.target.vector_bits)
        least, abreast = (0, knobs.staged_abreast) if gathers else (knobs.staged_least, 0)
        sizes = knobs.staged_rows, knobs.staged_elements, least, abreast
        steps = (StageProducts(name, inner, *sizes) for inner in inside if knobs.staged_rows)
        if (step := next((s for s in steps if s.gathers(self.func)), None)) is not None:
            yield step
            lanes = (f"{step.inner}_p", f"{name}_r", f"{name}_m")
            for loop in list(loops_of(self.func.body)):
                if base_name(loop.var.name) in lanes:
                    yield Vectorize(loop.var.name)

    def scatter(self, nest: For) -> Scatter | None:
        """Return how *nest* scatters rows, if threads can have parts of these."""
        return as_scatter(nest, self.knobs)

    def total(self, name: str) -> Iterator[Step]:
        """Yield steps that cut the loop *name* into chunks, each with its own partial sum.

        The loop reduces into one element.
        """
        nest = self.loop(name)
        for block in starts(nest) if nest is not None else ():
            yield DecomposeReduction(block.name, name)
        by_elements = nnz_chunks(self.func, name, self.knobs.chunk_nested)
        yield by_elements or Split(name, self.knobs.chunk_workspace_rows)
        chunks = f"{name}_c" if self._inner(name) == name else f"{name}_o"
        yield PartialResults(chunks)
        yield Parallel(chunks)
        loop = self.loop(self._inner(name))
        if loop is not None and has_workspace(loop):
            yield ShareWorkspace(loop.var.name)

    def _inner(self, name: str) -> str:
        """Return the name that the loop *name* has inside its chunks."""
        return name if self.loop(name) is not None else f"{name}_i"

    def runs(self, name: str) -> Iterator[Step]:
        """Yield a step that keeps the row of a run of equal keys in a register tile, if it fits."""
        nest = self.loop(name)
        assert nest is not None
        *_, inner = loops_of(nest)
        most = self.knobs.tile_vectors * self._lanes(inner.body, inner.var.name)
        fits = isinstance(inner.end, Const) and inner.end.value <= most
        if fits and (step := runs(self.func, name)) is not None:
            yield step

    def by_columns(self, nest: Scatter) -> Iterator[Step]:
        """Yield steps that run a nest that scatters rows in parallel over parts of the rows."""
        outer, inner = f"{nest.inner}_o", f"{nest.inner}_i"
        yield Split(nest.inner, nest.width)
        for depth, loops in enumerate(nest.levels):
            if depth:
                yield LiftLoop(outer)
            yield Reorder((outer, *loops) if depth else (outer, *loops, inner))
        yield Parallel(outer)

    def prefetch(self, loop: For) -> Iterator[Step]:
        """Yield a step that prefetches rows at stored coordinates, which no processor foresees."""
        assert isinstance(self.func, PosFunc)
        knobs = self.knobs
        rows = [g for g in gathers(self.func, loop) if self._is_worth_asking_for(g)]
        if rows or fibers(self.func, loop):
            passes = max((1, *(self._passes(row) * row.rows for row in rows)))
            distance = min(knobs.prefetch_distance, knobs.prefetch_parts // passes)
            distance = max(knobs.prefetch_distance_least, distance)
            yield Prefetch(loop.var.name, distance)

    def skips(self, loop: For) -> bool:
        """Whether *loop* runs over padded fibers of equal width: the processor predicts it well."""
        padded = {a.indices for a in self.func.axes if a.padded and not a.is_variable}
        body, var = innermost(loop)
        conds = (x.cond for x in walk(body) if isinstance(x, Select))
        loads = (n for cond in conds for n in walk(cond) if isinstance(n, Load))
        return any(n.buffer.data in padded and var in variables(n) for n in loads)

    def _is_worth_asking_for(self, row: Gather) -> bool:
        knobs, size = self.knobs, row.rows * row.bytes
        is_dot = row.inner in reduction_loops(self.func)
        least = knobs.prefetch_bytes_dot if is_dot else knobs.prefetch_bytes_least
        if row.rows == 1:
            return size >= least
        in_parts = self._passes(row) > 1  # which do not follow each other in memory
        few = size <= knobs.prefetch_bytes_most or in_parts
        return size >= least and row.bytes >= knobs.line_bytes and few

    def _passes(self, row: Gather) -> int:
        """Return the number of passes over a fiber in which *row* is read, a part in each."""
        last = row.load.indices[-1]
        assert last is not None
        picks = variables(last) - {row.inner}
        parts = (x for x in loops_of(self.func.body) if x.var in picks)
        return prod(int(x.end.value) for x in parts if isinstance(x.end, Const))

    def _tile(self, nest: TileNest, name: str) -> _Tile | None:
        """Return the register tile for the loop *name*; None if it is not worth one."""
        lanes = self._lanes(nest.block, name)
        if lanes < 2:
            return None
        knobs, reducing = self.knobs, reduction_loops(self.func)
        most = knobs.stream_vectors if _streams(nest.block, reducing) else knobs.tile_vectors
        return _Tile(nest.block.name, nest.spatial, nest.reductions, lanes, most)

    def _row_tile(self, nest: TileNest, tile: _Tile, name: str) -> _Tile | None:
        """Return *tile* with several rows that all read the same along the loop *name*, or None.

        As many as divide the rows, so that no tile is smaller than others.
        """
        if not nest.spatial:
            return None
        *outer, last = nest.spatial
        loop, sums = self.loop(last), self.knobs.tile_sums
        if loop is None or not isinstance(loop.end, Const) or not from_zero(loop):
            return None
        extent = int(loop.end.value)
        count = max((n for n in range(2, sums // 2 + 1) if extent % n == 0), default=0)
        if not count or not any(name in x and last not in x for x in _loops_read(nest.block)):
            return None
        vectors = sums // count
        if count == extent:
            return replace(tile, outside=tuple(outer), rows=(last,), vectors=vectors)
        outside, rows = (*outer, f"{last}_o"), (f"{last}_i",)
        return replace(tile, outside=outside, rows=rows, vectors=vectors, cut=Split(last, count))

    def _lanes(self, block: Stmt, name: str) -> int:
        """Return how many elements of *block* are a vector along the loop *name*."""
        iters = block.iters if isinstance(block, Block) else ()
        along = {name, *(i.var.name for i in iters if name in _names(i.value))}
        parts = [n for n in walk(block) if isinstance(n, (Load, Store))]
        inner = {load for n in parts for index in n.indices if index for load in walk(index)}
        bits = [
            lane_bits(n.buffer.dtype)
            for n in parts
            if n not in inner or _names(n) & along  # other coordinates are one number
        ]
        return self.target.vector_bits // max(bits, default=64)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A block whose innermost loop becomes a register tile inside the loops that reduce."""

    block: str
    outside: tuple[str, ...]  # loops between the reductions, to go outside
    reductions: tuple[str, ...]
    lanes: int
    vectors: int  # at most
    rows: tuple[str, ...] = ()  # a loop over rows of the tile
    cut: Split | None = None  # what makes that loop

    def rest(self) -> _Tile:
        """The tile for the remainder that a loop_partition leaves."""
        names = tuple(f"{name}_rest" for name in self.reductions)
        rows = tuple(f"{name}_rest" for name in self.rows)
        return _Tile(f"{self.block}_rest", (), names, self.lanes, self.vectors, rows)


def _below(nest: For) -> Iterator[For]:
    """Yield the loops of *nest*; if all run once, also those in their block."""
    loops, block = chain(nest)
    yield from loops
    if all(map(runs_once, loops)) and isinstance(block, Block) and isinstance(block.body, For):
        yield from _below(block.body)


def _names(node: Node) -> set[str]:
    return {var.name for var in variables(node)}


def _named(loops: list[For], name: str) -> bool:
    return any(loop.var.name == name for loop in loops)


def _loops_read(block: Block) -> Iterator[set[str]]:
    """Yield, for each element that *block* reads beside what it updates, the loops that pick it."""
    store = sole_store(block)
    assert store is not None
    for load in walk(store.value):
        if isinstance(load, Load) and load.buffer is not store.buffer:
            indices = (substitute(i, block.values) for i in load.indices if i is not None)
            yield {name for index in indices for name in _names(index)}


def _tile_width(extent: int, tile: _Tile) -> int:
    """Return the width of the tiles of *extent*: as few equal tiles as fit in registers.

    A part of a register that needs no mask is a tile, too.
    """
    if extent < tile.lanes and extent.bit_count() == 1:
        return extent
    vectors = -(-extent // tile.lanes)
    passes = max(1, -(-vectors // tile.vectors))
    return max(1, -(-vectors // passes)) * tile.lanes


def _streams(block: Block, reducing: set[Var]) -> bool:
    """Whether *block* reads only what it updates and one row that loops of *reducing* run over."""
    store = sole_store(block)
    assert store is not None
    target = store.buffer
    loads = [n for n in walk(store.value) if isinstance(n, Load) and n.buffer is not target]
    indices = [substitute(i, block.values) for n in loads for i in n.indices if i is not None]
    by_value = any(isinstance(n, Load) for i in indices for n in walk(i))
    passed = any(variables(i) & reducing for i in indices)
    return len(loads) == 1 and passed and not by_value
