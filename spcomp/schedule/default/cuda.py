"""In position space: the default schedule on GPUs, the only place of its decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.arith.memory import read_by
from spcomp.ir.expr import Const
from spcomp.ir.position import Block
from spcomp.ir.program import PosFunc
from spcomp.ir.stmt import MOST_TRIPS, WARPS, For, Store
from spcomp.knobs import CUDA_GRID
from spcomp.schedule.default.by_elements import elements_of, stage_weights
from spcomp.schedule.default.by_keys import key_parts
from spcomp.schedule.default.cpu import CpuPlan
from spcomp.schedule.default.facts import MOST_ROW, UNKNOWN, Facts
from spcomp.schedule.default.lists import gathered, gathers
from spcomp.schedule.default.plan import (
    base_name,
    is_contiguous,
    pieces,
    row_of,
    tile_nest,
)
from spcomp.schedule.default.rows import row_fusion, row_loop, softmax_turns
from spcomp.schedule.default.scatter import Scatter, as_scatter, outermost
from spcomp.schedule.default.shares import (
    LANES,
    WARP,
    group_size,
    neighbours,
    parts_of,
    reduces,
    shares,
)
from spcomp.schedule.default.totals import column_totals, matrix_totals, on_warp, warp_totals
from spcomp.schedule.legality.dependence import conflicts, loops_of
from spcomp.schedule.nests.nests import blocks_of, chain, reduction_loops, runs_once
from spcomp.schedule.steps.blocks.blocks import LiftLoop
from spcomp.schedule.steps.blocks.memory import CacheWrite, SetScope
from spcomp.schedule.steps.blocks.rfactor import RFactor
from spcomp.schedule.steps.loops.annotate import Annotate
from spcomp.schedule.steps.loops.bind import Bind
from spcomp.schedule.steps.loops.loops import Parallel, Unroll, Vectorize
from spcomp.schedule.steps.loops.tiling import Fuse, Reorder, Split
from spcomp.schedule.steps.sharing.partial_results import shared_update
from spcomp.schedule.steps.sharing.split_rows import split_rows
from spcomp.schedule.steps.sharing.workspaces import has_workspace

if TYPE_CHECKING:
    from spcomp.ir.func import Func
    from spcomp.knobs import GridKnobs, Knobs
    from spcomp.schedule.steps.base import Step
    from spcomp.target import Target

ATOMIC = ("+", "min", "max", "and", "or")  # updates that the hardware has, for integers


def default_schedule(
    func: PosFunc,
    target: Target,
    facts: Facts = UNKNOWN,
    knobs: Knobs | None = None,
    grid: GridKnobs | None = None,
) -> tuple[Func, tuple[Step, ...]]:
    """Return *func* with the default steps applied, and the steps.

    *knobs*, *grid*: thresholds in place of the target's.

    The rows of a nest run on groups of neighbouring threads. Where its innermost loop runs along
    memory, each thread has some elements of the row in registers, loaded 16 bytes at a time; where
    it reduces, the threads of a group share its iterations, and add up their partial results. If
    there are very long rows, other groups do their pieces. Other nests run one iteration of their
    outermost independent loop on each thread.
    """
    if any(loop.kind != "serial" for loop in loops_of(func.body)):
        return func, ()  # the user has already decided how loops run
    plan = _Plan(func, target, replace(facts, runs=False), knobs)  # parts of equal size suit any
    plan.grid = grid or CUDA_GRID
    if not plan.lists():
        plan.parts()
    plan.attempt(plan.marks())
    plan.fuse()
    for loop in list(outermost(plan.func.body)):
        if loop.kind == "serial":
            plan.attempt(key_parts(plan.func, loop, shares)) or plan.attempt(plan.key_rows(loop))
    if facts.hubs:
        for nest in list(outermost(plan.func.body)):
            plan.attempt(stage_weights(plan.func, nest))
        for nest in list(outermost(plan.func.body)):
            plan.attempt(plan.long_rows(nest))
    for nest in list(outermost(plan.func.body)):
        if all(loop.kind == "serial" for loop in loops_of(nest)):
            plan.decide(nest.var.name)
    return plan.func, plan.steps


class _Plan(CpuPlan):
    """The default schedule being made for a GPU.

    What it decides otherwise than for a CPU is how rows, and what is inside them, run.
    """

    grid: GridKnobs

    @property
    def row_threads(self) -> int:
        """How many threads share the elements of a row: about as many as there are."""
        return min(WARP, max(2, self.facts.row)) if self.facts.row else LANES

    @property
    def term_threads(self) -> int:
        """How many threads share the terms of a row, of which each has several on their way."""
        row, trips = self.facts.row, self.knobs.unrolled_group
        if not row:
            return LANES
        if self.facts.few:
            return WARP
        return min(WARP, max(2, row // trips if not self.facts.hubs else row // 2))

    def long_rows(self, nest: For) -> Iterator[Step]:
        """Yield a step that cuts the long rows of *nest*, whose pieces are then rows, too."""
        row = row_of(nest)
        inside = [x.var.name for x in loops_of(row.body)] if row is not None else ()
        size = self.facts.piece or self.knobs.hub_piece
        if size < self.knobs.hub_piece and row is not None and self._is_dot(nest):
            return  # the threads that share such a row are many enough
        cuts = (split_rows(self.func, row.var.name, name, size) for name in inside if row)
        if (step := next(filter(None, cuts), None)) is not None:
            yield step

    def _is_dot(self, nest: For) -> bool:
        """Whether threads share the terms of the rows of *nest*."""
        return any(reduces(loop) for loop in loops_of(nest))

    def lists(self) -> bool:
        """Let rows gather what lists have for them, if they can; whether any do."""
        found = list(gathers(self.func, self.facts, self.grid, shares))
        attempts = [self.attempt(gathered(self, *each, self.grid)) for each in found]
        return any(attempts)

    def fuse(self) -> None:
        """Let groups of threads run all nests that share rows, if they can."""
        assert isinstance(self.func, PosFunc)
        before = self.func, self.steps
        if self.facts.hubs and not 0 < self.facts.piece < self.knobs.hub_piece:
            return  # several groups should work on a very long row
        fusion = row_fusion(self.func, self.knobs, batched=True)
        self.attempt(fusion.steps)
        for turns in softmax_turns(fusion, self.knobs):
            self.attempt(() if turns.step is None else (turns.step,))
        if not all(self.batch(head) and self.group(head) for head in fusion.heads):
            self.func, self.steps = before

    def decide(self, name: str) -> None:
        """Apply the steps for the nest *name*."""
        nest = self.loop(name)
        assert nest is not None
        before, row = (self.func, self.steps), row_loop(nest).var.name
        if row != name and self.batch(row) and self.rows_of(row):
            return
        self.func, self.steps = before
        if not self.rows_of(name) and not self.attempt(self.nest(nest)):
            self.attempt(self.counts(nest))

    def rows_of(self, name: str) -> bool:
        """Run the rows of the loop *name* on groups of threads; whether that is done."""
        decided = self.attempt(self.tiles(name)) or self.attempt(self.elements(name))
        return decided or self.attempt(self.dots(name)) or self.group(name)

    def batch(self, row: str) -> bool:
        """Run the loops around that of the rows *row* on blocks; whether that is done."""
        nests = (chain(nest)[0] for nest in outermost(self.func.body))
        names = [[x.var.name for x in loops] for loops in nests]
        around = next((x[: x.index(row)] for x in names if row in x), [])
        return not around or self.attempt(self._on_blocks(around))

    def _on_blocks(self, loops: Sequence[str]) -> Iterator[Step]:
        """Yield steps that run *loops*, one directly in the other, on blocks along z."""
        if len(loops) > 1:
            yield Fuse(tuple(loops))
        yield Bind("_".join(loops), "blockIdx.z")

    def nest(self, nest: For) -> Iterator[Step]:
        """Yield steps for a *nest* without rows."""
        on_threads = self._terms, self._rows_on_groups
        loops, _ = chain(nest)
        reducing, dense = reduction_loops(self.func), not any(read_by(*(x.end for x in loops)))
        if reduces(nest):
            yield from warp_totals(self, nest, *on_threads)
        elif dense and [x.var in reducing for x in loops] == [True, False]:
            yield from column_totals(self, nest.var.name, loops[1].var.name, *on_threads)
        elif shared_update(nest) is not None:
            yield from self.total(nest.var.name)
        else:
            yield from super().nest(nest)

    def total(self, name: str) -> Iterator[Step]:
        """Yield steps for the nest *name*, which reduces into one element.

        Warps reduce dense rows, threads equal parts of others; then warps combine the results.
        """
        nest = self.loop(name)
        assert nest is not None
        loops, _ = chain(nest)
        dense = len(loops) == 2 and reduces(loops[1]) and not any(read_by(loops[1].end))
        if not dense:
            before = {x.var.name for x in loops_of(self.func.body)}
            yield from super().total(name)
            combining = [x for x in outermost(self.func.body) if x.var.name not in before]
            for loop in filter(reduces, combining):
                yield from on_warp(self, loop.var.name, self._terms)
            return
        yield from matrix_totals(self, nest, loops[1], self._terms, self._rows_on_groups)

    def counts(self, nest: For) -> Iterator[Step]:
        """Yield steps that let threads update shared integers: the result is that of any order."""
        for block in blocks_of(nest):
            update = as_reduction(block.body) if isinstance(block.body, Store) else None
            if update is not None and update.combiner in ATOMIC and update.buffer.dtype.is_word:
                yield Annotate(block.name, "atomic", value=True)
        yield Parallel(nest.var.name)

    def tiles(self, nest_name: str) -> Iterator[Step]:
        """Yield steps for a nest whose rows are combined from other rows, as in SpMM."""
        nest = self.loop(nest_name)
        assert nest is not None
        row = row_of(nest)
        if row is None:
            return
        inner = [x for x in loops_of(nest) if is_contiguous(x)]
        tiles = [(x, tile_nest(self.func, x.var.name)) for x in inner]
        if len(tiles) != 1 or tiles[0][1] is None or not _is_alone(nest, tiles[0][1].block):
            return
        loop, tile = tiles[0]
        assert tile is not None
        columns = loop.var.name
        width, threads = shares(loop)
        blocks = self._pieces(columns, width)[0]
        yield from self._columns(columns, threads, width)
        if tile.spatial and all(x.thread != "blockIdx.z" for x in loops_of(self.func.body)):
            yield from self._on_blocks(tile.spatial)
        yield Bind(blocks, "blockIdx.y")
        yield from self._rows_on_groups(row.var.name, threads)

    def elements(self, name: str) -> Iterator[Step]:
        """Yield steps for a nest in which each stored element is independent, or a sum (SDDMM)."""
        nest = self.loop(name)
        assert nest is not None
        elements = elements_of(self.func, nest, self.grid)
        inside = [] if elements is None else [x for x in loops_of(nest.body) if not runs_once(x)]
        if elements is not None and [x.var.name for x in inside] == [elements.inner]:
            yield from elements.on_threads(self.knobs.unrolled_group)
        if elements is None or len(inside) != 2 or not reduces(inside[1]):
            return
        dot = inside[1]
        width, threads, loads = parts_of(dot) or (1, LANES, self.grid.thread_loads)
        together = min(self.knobs.unrolled_group, max(1, self.grid.thread_loads // loads))
        nests = {x.var.name for x in outermost(self.func.body)}
        listed = self.knobs.unrolled_group if nest.var.name in nests else 0
        yield from elements.in_groups(1 << together.bit_length() - 1, listed)
        made = [x.var.name for x in outermost(self.func.body) if x.var.name not in nests]
        yield from map(Parallel, made[:-1])  # which lists the rows
        if threads > 1:
            trips = self._pieces(dot.var.name, width)[0]
            yield from self._terms(dot.var.name, threads, width)
            yield Unroll(trips)
            if not isinstance(dot.end, Const):
                yield Annotate(trips, MOST_TRIPS, self.knobs.unrolled_group)
        yield from elements.on_groups(threads)

    def dots(self, name: str) -> Iterator[Step]:
        """Yield steps for a nest whose innermost loop reduces into one element, as in SpMV."""
        nest = self.loop(name)
        assert nest is not None
        row = row_of(nest)
        dots = [x for x in loops_of(nest) if reduces(x)]
        if row is None or len(dots) != 1:
            return
        (dot,) = dots
        block, loop = dot.body, dot.var.name
        if not isinstance(block, Block) or not _is_alone(nest, block) or dot is row:
            return
        width, threads = shares(dot) if is_contiguous(dot) else (1, LANES)
        known = isinstance(dot.end, Const)
        threads = min(threads & -threads, LANES) if known else self.term_threads
        if threads == 1:
            return
        loops = chain(nest)[0]
        around = loops[: loops.index(row)] if row in loops else []
        if around:  # which reduce, too
            yield Reorder((row.var.name, *(x.var.name for x in around)))
        trips = self._pieces(loop, width)[0]
        yield from self._terms(loop, threads, width)
        yield Unroll(trips)
        short = 0 < self.facts.row < MOST_ROW and not self.facts.few
        if not known and short:  # in few registers, so that more threads run
            yield Annotate(trips, MOST_TRIPS, self.knobs.unrolled_group)
        inside = (x for x in loops_of(row.body) if not runs_once(x))
        first = next(inside, dot)
        if first is not dot and _holds(first, dot) and not conflicts(first):
            yield from self._elements_on_groups(row.var.name, first.var.name, threads)
        else:
            yield from self._rows_on_groups(row.var.name, threads)

    def _elements_on_groups(self, row: str, inner: str, threads: int) -> Iterator[Step]:
        """Yield steps that run the iterations of *inner* on groups of *threads*.

        Each has some of a *row*, and a block has all groups of one.
        """
        groups = max(1, self.grid.block_threads // threads)
        yield Bind(row, "blockIdx.x")
        if groups == 1:
            yield Unroll(inner)
            return
        turns, lanes = pieces(self.func, inner, "oi")
        yield Split(inner, groups)
        yield Reorder((lanes, turns))
        yield Unroll(turns)
        yield Bind(lanes, "threadIdx.y")

    def group(self, name: str) -> bool:
        """Run the rows of the nest *name* on groups of threads, and the loops inside on these.

        Returns whether some loop inside does; the others run on every thread of the group.
        """
        nest = self.loop(name)
        assert nest is not None
        row = row_of(nest)
        if row is None or has_workspace(row):
            return False
        before = self.func, self.steps
        inside = [x for x in loops_of(row.body) if not any(True for _ in loops_of(x.body))]
        leaves = [x for x in inside if not runs_once(x)]
        around = {x.body: x.var.name for x in loops_of(row.body) if isinstance(x.body, For)}
        threads = group_size(leaves, WARP if self.facts.few else self.row_threads)
        shared = [self._on_threads(leaf, threads, around.get(leaf)) for leaf in leaves]
        if any(shared) and self.attempt(self._rows_on_groups(row.var.name, threads)):
            return True
        self.func, self.steps = before
        return False

    def _on_threads(self, loop: For, threads: int, around: str | None) -> bool:
        """Run the innermost *loop* on *threads* threads if it is legal; whether it is.

        Of sums, several iterations of the loop *around* load what they need at the same time.
        """
        name = loop.var.name
        for width in dict.fromkeys((neighbours(loop, threads), 1)):
            trips = self._pieces(name, width)[0]
            few = Annotate(trips, MOST_TRIPS, self.knobs.unrolled_group)  # by LLVM, too
            ragged = around is None and any(read_by(loop.end))
            many = (Unroll(trips), few) if ragged else ()
            if self.attempt(self._columns(name, threads, width)):
                return True
            if self.attempt(self._terms(name, threads, width)):
                self.attempt(many if around is None else (Unroll(around),))
                return True
            if self.attempt(self._each(name, threads, width)):
                store = loop.body.body if isinstance(loop.body, Block) else None
                assigns = isinstance(store, Store) and as_reduction(store) is None
                self.attempt(many if assigns else ())
                return True
        return False

    def _columns(self, name: str, threads: int, width: int = 1) -> Iterator[Step]:
        """Yield steps that give each thread *width* neighbours that the loop *name* picks.

        They stay in registers while the loops inside reduce.
        """
        tile = tile_nest(self.func, name)
        if tile is None:
            return
        blocks, lanes, *own = self._pieces(name, width)
        yield Reorder((*tile.spatial, name, *tile.reductions))
        yield Split(name, (None, threads, width) if own else threads)
        yield Reorder((blocks, lanes, *tile.reductions, *own))
        yield CacheWrite(tile.block.name, at=lanes)
        inside = self.loop(lanes)
        for part in loops_of(inside) if own and inside is not None else ():
            if part.kind == "serial" and own[0] in (part.var.name, base_name(part.var.name)):
                yield Vectorize(part.var.name)
        yield Bind(lanes, "threadIdx.x")
        for terms in tile.reductions[-1:]:
            yield Unroll(terms)
            common = self.facts.row // 2 if self.facts.hubs else self.facts.row
            if common == 2 * self.knobs.unrolled_group:  # all of most rows at once
                yield Annotate(terms, MOST_TRIPS, common)

    def _pieces(self, name: str, width: int) -> tuple[str, ...]:
        """Return the names of the loops in which the loop *name* is split for threads.

        They run over blocks or turns, threads, and, where each takes several, *width* neighbours.
        """
        return pieces(self.func, name, "012" if width > 1 else "oi")

    def _terms(self, name: str, threads: int, width: int = 1) -> Iterator[Step]:
        """Yield steps that let threads share the iterations of the loop *name*, which reduces.

        Each takes *width* neighbours at a time.
        """
        loop = self.loop(name)
        if loop is None or not reduces(loop) or threads not in WARPS:
            return
        block = loop.body
        assert isinstance(block, Block)
        trips, lanes, *own = self._pieces(name, width)
        yield Split(name, (None, threads, width) if own else threads)
        yield Reorder((lanes, trips, *own))
        others = {x.var.name for x in loops_of(self.func.body)} - {lanes}
        partial = Names(self.func).unique(f"{block.name}_rf")
        yield RFactor(lanes)
        for piece in own:
            yield RFactor(piece, -1)
            yield SetScope(f"{partial}_rf", 0, "local")
            yield Vectorize(piece)
            yield Unroll(f"{piece}_1")
        yield SetScope(partial, 0, "local")
        for part in list(loops_of(self.func.body)):  # the loop and its copies
            if lanes in (part.var.name, base_name(part.var.name)) and part.var.name not in others:
                yield Bind(part.var.name, "threadIdx.x")

    def _each(self, name: str, threads: int, width: int = 1) -> Iterator[Step]:
        """Yield steps that run the iterations of the loop *name*, which are independent.

        Each thread has *width* neighbours.
        """
        loop = self.loop(name)
        if loop is not None and not conflicts(loop):
            trips, lanes, *own = self._pieces(name, width)
            yield Split(name, (None, threads, width) if own else threads)
            yield Reorder((lanes, trips, *own))
            yield from map(Vectorize, own)
            yield Bind(lanes, "threadIdx.x")

    def scatter(self, nest: For) -> Scatter | None:
        """Return how *nest* scatters rows, if threads can have elements of these."""
        return as_scatter(nest, self.knobs, single=True)

    def by_columns(self, nest: Scatter) -> Iterator[Step]:
        """Yield steps that run a nest that scatters rows with one column on each thread."""
        for depth, loops in enumerate(nest.levels):
            if depth:
                yield LiftLoop(nest.inner)
            if loops:
                yield Reorder((nest.inner, *loops))
        yield Parallel(nest.inner)

    def _rows_on_groups(self, row: str, threads: int) -> Iterator[Step]:
        """Yield steps that run each iteration of the loop *row* on a group of *threads*.

        Where only the data tells how many there are, each group has equally many in a row.
        """
        loop = self.loop(row)
        if loop is not None and any(read_by(loop.end)):
            groups, _ = pieces(self.func, row, "oi")
            yield Split(row, (self.grid.parts, None))
            row = groups
        blocks, groups = pieces(self.func, row, "oi")
        yield Split(row, max(1, self.grid.block_threads // threads))
        yield Bind(blocks, "blockIdx.x")
        yield Bind(groups, "threadIdx.y")


def _holds(loop: For, inner: For) -> bool:
    return any(x is inner for x in loops_of(loop.body))


def _is_alone(nest: For, block: Block) -> bool:
    """Whether the loops of *nest* are nested perfectly, block by block, around *block*."""
    _, inner = chain(nest)
    while inner is not block:
        if not isinstance(inner, Block) or not isinstance(inner.body, For):
            return False
        _, inner = chain(inner.body)
    return True
