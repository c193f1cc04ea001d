"""In position space: default schedules of loops that reduce into one element, or into one row."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TypeAlias

from spcomp.ir.stmt import MOST_TRIPS, For
from spcomp.knobs import CUDA_GRID
from spcomp.schedule.default.plan import Plan, pieces
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.blocks.decompose_reduction import DecomposeReduction
from spcomp.schedule.steps.blocks.rfactor import RFactor
from spcomp.schedule.steps.loops.annotate import Annotate
from spcomp.schedule.steps.loops.loops import Parallel, Unroll
from spcomp.schedule.steps.loops.tiling import Fuse, LoopPartition, Reorder, Split
from spcomp.schedule.steps.sharing.partial_results import PartialResults, starts

OnThreads: TypeAlias = Callable[[str, int], Iterator[Step]]  # of a loop and a number of threads
Named: TypeAlias = Generator[Step, None, list[str]]  # gives the names of loops at last


def strip_totals(plan: Plan, loop: For, size: int) -> Iterator[Step]:
    """Yield steps by which threads reduce strips of *size* iterations of *loop*.

    Strips have partial results, which are combined in order.
    """
    strips, *_ = yield from _in_strips(plan, loop, size)
    yield PartialResults(strips)
    yield Parallel(strips)


def warp_totals(plan: Plan, loop: For, terms: OnThreads, rows: OnThreads) -> Iterator[Step]:
    """Yield steps by which warps reduce strips of *loop*.

    One warp combines their partial results, another reduces what is left. *terms* lets so many
    threads share a loop, *rows* gives each group of so many an iteration.
    """
    strips, *parts = yield from _in_strips(plan, loop, CUDA_GRID.total_elements)
    parts += yield from _factored(plan, strips)
    yield from rows(strips, CUDA_GRID.warp_threads)
    for part in parts:
        yield from on_warp(plan, part, terms)


def column_totals(
    plan: Plan, row: str, column: str, terms: OnThreads, rows: OnThreads
) -> Iterator[Step]:
    """Yield steps by which threads reduce pieces of columns: those of *column*, along *row*.

    Then a warp combines the partial results of each column.
    """
    outer, inner = pieces(plan.func, row, "oi")
    yield Split(row, CUDA_GRID.column_elements)
    columns, combining = yield from _factored(plan, outer)
    yield Reorder((outer, column, inner))
    before = _names(plan)
    yield Fuse((outer, column))
    yield Parallel(next(name for name in _names(plan) if name not in before))
    yield from on_warp(plan, combining, terms)
    yield from rows(columns, CUDA_GRID.warp_threads)


def matrix_totals(
    plan: Plan, nest: For, row: For, terms: OnThreads, rows: OnThreads
) -> Iterator[Step]:
    """Yield steps by which warps reduce the dense rows of *nest*, each in the loop *row*.

    What they found is reduced as the numbers of one row.
    """
    name = nest.var.name
    yield from _started_before(nest)
    (found,) = yield from _factored(plan, name)
    yield from rows(name, CUDA_GRID.warp_threads)
    yield from on_warp(plan, row.var.name, terms)
    total = plan.loop(found)
    assert total is not None
    yield from warp_totals(plan, total, terms, rows)


def on_warp(plan: Plan, name: str, terms: OnThreads) -> Iterator[Step]:
    """Yield steps by which a warp shares the loop *name*, each thread with several loads."""
    trips, _ = pieces(plan.func, name, "oi")
    yield from terms(name, CUDA_GRID.warp_threads)
    yield Unroll(trips)
    yield Annotate(trips, MOST_TRIPS, CUDA_GRID.element_copies)


def _in_strips(plan: Plan, loop: For, size: int) -> Named:
    """Yield steps that cut *loop* into strips of *size*; gives the loops over and in these.

    After them comes the loop over what is left, if there is one.
    """
    name = loop.var.name
    yield from _started_before(loop)
    before = _names(plan)
    yield LoopPartition(name, size)
    rest = [other for other in _names(plan) if other not in before]
    outer, inner = pieces(plan.func, name, "oi")
    yield Split(name, size)
    return [outer, inner, *rest]


def _started_before(loop: For) -> Iterator[Step]:
    for block in starts(loop):
        yield DecomposeReduction(block.name, loop.var.name)


def _factored(plan: Plan, name: str) -> Named:
    """Yield a step that gives iterations of the loop *name* partial results.

    Gives the loops that combine them, outermost first.
    """
    before = _names(plan)
    yield RFactor(name)
    return [other for other in _names(plan) if other not in before]


def _names(plan: Plan) -> list[str]:
    return [loop.var.name for loop in loops_of(plan.func.body)]
