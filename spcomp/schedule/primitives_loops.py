"""The steps on loops, as methods that return the schedule with the step applied."""

from __future__ import annotations

from typing import Self

from spcomp.schedule.blocks import LiftLoop
from spcomp.schedule.hubs import SplitHubs
from spcomp.schedule.loops import Parallel, Unroll, Vectorize
from spcomp.schedule.prefetch import Prefetch
from spcomp.schedule.segments import GroupRuns, SplitSorted
from spcomp.schedule.split_nnz import SplitNnz
from spcomp.schedule.step import Steps
from spcomp.schedule.tiling import Fuse, LoopPartition, Reorder, Split


class LoopPrimitives(Steps):
    """Steps that change loops; each raises ScheduleError where it would change the meaning."""

    __slots__ = ()

    def split(self, loop: str, factor: int) -> Self:
        """Apply :class:`Split`."""
        return self.apply(Split(loop, factor))

    def loop_partition(self, loop: str, multiple: int) -> Self:
        """Apply :class:`LoopPartition`."""
        return self.apply(LoopPartition(loop, multiple))

    def reorder(self, *loops: str) -> Self:
        """Apply :class:`Reorder`."""
        return self.apply(Reorder(loops))

    def fuse(self, outer: str, inner: str) -> Self:
        """Apply :class:`Fuse`."""
        return self.apply(Fuse(outer, inner))

    def lift_loop(self, loop: str) -> Self:
        """Apply :class:`LiftLoop`."""
        return self.apply(LiftLoop(loop))

    def parallel(self, loop: str) -> Self:
        """Apply :class:`Parallel`."""
        return self.apply(Parallel(loop))

    def vectorize(self, loop: str) -> Self:
        """Apply :class:`Vectorize`."""
        return self.apply(Vectorize(loop))

    def unroll(self, loop: str) -> Self:
        """Apply :class:`Unroll`."""
        return self.apply(Unroll(loop))

    def prefetch(self, loop: str, distance: int) -> Self:
        """Apply :class:`Prefetch`."""
        return self.apply(Prefetch(loop, distance))

    def split_nnz(self, loop: str, size: int) -> Self:
        """Apply :class:`SplitNnz`."""
        return self.apply(SplitNnz(loop, size))

    def split_hubs(self, loop: str, inner: str, size: int) -> Self:
        """Apply :class:`SplitHubs`."""
        return self.apply(SplitHubs(loop, inner, size))

    def split_sorted(self, loop: str, size: int) -> Self:
        """Apply :class:`SplitSorted`."""
        return self.apply(SplitSorted(loop, size))

    def group_runs(self, loop: str) -> Self:
        """Apply :class:`GroupRuns`."""
        return self.apply(GroupRuns(loop))
