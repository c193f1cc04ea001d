"""In position space: default schedules of a single loop that reduces into one element."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from spcomp.ir.stmt import MOST_TRIPS, For
from spcomp.knobs import CUDA_GRID
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.blocks.decompose_reduction import DecomposeReduction
from spcomp.schedule.steps.blocks.rfactor import RFactor
from spcomp.schedule.steps.loops.annotate import Annotate
from spcomp.schedule.steps.loops.loops import Parallel, Unroll
from spcomp.schedule.steps.loops.tiling import Fuse, LoopPartition, Reorder, Split
from spcomp.schedule.steps.sharing.partial_results import PartialResults, starts

OnThreads: TypeAlias = Callable[[str, int], Iterator[Step]]  # of a loop and a number of threads


def strip_totals(loop: For, size: int) -> Iterator[Step]:
    """Yield steps by which threads reduce strips of *size* iterations of *loop*.

    Strips have partial results, which are combined in order.
    """
    name = loop.var.name
    yield from _in_strips(loop, size)
    yield PartialResults(f"{name}_o")
    yield Parallel(f"{name}_o")


def warp_totals(loop: For, terms: OnThreads, rows: OnThreads) -> Iterator[Step]:
    """Yield steps by which warps reduce strips of *loop*.

    One warp combines their partial results, another reduces what is left. *terms* lets so many
    threads share a loop, *rows* gives each group of so many an iteration.
    """
    name = loop.var.name
    yield from _in_strips(loop, CUDA_GRID.total_elements)
    yield RFactor(f"{name}_o")
    yield from rows(f"{name}_o", CUDA_GRID.warp_threads)
    for part in (f"{name}_i", f"{name}_o_1", f"{name}_rest"):
        yield from on_warp(part, terms)


def column_totals(row: str, column: str, terms: OnThreads, rows: OnThreads) -> Iterator[Step]:
    """Yield steps by which threads reduce pieces of columns: those of *column*, along *row*.

    Then a warp combines the partial results of each column.
    """
    yield Split(row, CUDA_GRID.column_elements)
    yield RFactor(f"{row}_o")
    yield Reorder((f"{row}_o", column, f"{row}_i"))
    yield Fuse((f"{row}_o", column))
    yield Parallel(f"{row}_o_{column}")
    yield from on_warp(f"{row}_o_1", terms)
    yield from rows(f"{column}_1", CUDA_GRID.warp_threads)


def on_warp(name: str, terms: OnThreads) -> Iterator[Step]:
    """Yield steps by which a warp shares the loop *name*, each thread with several loads."""
    yield from terms(name, CUDA_GRID.warp_threads)
    yield Unroll(f"{name}_o")
    yield Annotate(f"{name}_o", MOST_TRIPS, CUDA_GRID.element_copies)


def _in_strips(loop: For, size: int) -> Iterator[Step]:
    name = loop.var.name
    for block in starts(loop):
        yield DecomposeReduction(block.name, name)
    yield LoopPartition(name, size)
    yield Split(name, size)
