"""In position space: the default schedule on GPUs for rows whose elements need nothing of others.

Threads share the elements of all rows in equal parts, whatever the rows' lengths: a row that holds
a tenth of all elements takes no longer than as many short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from spcomp.ir.func import Func
from spcomp.ir.stmt import For
from spcomp.knobs import GridKnobs
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.loops.bind import Bind
from spcomp.schedule.steps.loops.loops import Parallel, Unroll
from spcomp.schedule.steps.loops.tiling import Split
from spcomp.schedule.steps.sharing.split_positions import SplitPositions
from spcomp.schedule.steps.sharing.stage_weights import StageWeights


@dataclass(frozen=True, slots=True)
class Elements:
    """The rows of the loop *row*, whose elements are those of the loop *inner*."""

    row: str
    inner: str
    knobs: GridKnobs

    def in_groups(self, size: int, listed: int) -> Iterator[Step]:
        """Yield the step that gives each part groups of *size* elements, whose rows are listed."""
        turns, parts = self.knobs.part_turns, self.knobs.parts
        yield SplitPositions(self.row, self.inner, size, turns, parts=parts, listed=listed)

    def on_threads(self, size: int) -> Iterator[Step]:
        """Yield the steps that give each thread *size* elements, which follow each other."""
        yield SplitPositions(self.row, self.inner, size, 1)
        yield Unroll(self.inner)
        yield Parallel(f"{self.row}_c")

    def on_groups(self, threads: int) -> Iterator[Step]:
        """Yield the steps that run each part on a group of *threads*."""
        parts = f"{self.row}_c"
        yield Unroll(self.inner)
        yield Split(parts, max(1, self.knobs.block_threads // threads))
        yield Bind(f"{parts}_o", "blockIdx.x")
        yield Bind(f"{parts}_i", "threadIdx.y")


def elements_of(func: Func, nest: For, knobs: GridKnobs) -> Elements | None:
    """Return the rows and elements of *nest*, None if threads cannot share these in any order."""
    for loop in loops_of(nest.body):
        step = SplitPositions(nest.var.name, loop.var.name, 1, 1)
        if step.is_legal(func):
            return Elements(nest.var.name, loop.var.name, knobs)
    return None


def stage_weights(func: Func, nest: For) -> Iterator[Step]:
    """Yield the step by which each element of *nest* is weighed once, and not for each column."""
    steps = (StageWeights(nest.var.name, x.var.name) for x in loops_of(nest.body))
    yield from islice((step for step in steps if step.is_legal(func)), 1)
