"""The steps on blocks and memory, as methods that return the schedule with the step applied."""

from __future__ import annotations

from typing import Self

from spcomp.schedule.blocks import DecomposeReduction
from spcomp.schedule.memory import CacheWrite
from spcomp.schedule.step import Steps


class BlockPrimitives(Steps):
    """Steps that change blocks; each raises ScheduleError where it would change the meaning."""

    __slots__ = ()

    def decompose_reduction(self, block: str, loop: str) -> Self:
        """Apply :class:`DecomposeReduction`."""
        return self.apply(DecomposeReduction(block, loop))

    def cache_write(self, block: str, loop: str) -> Self:
        """Apply :class:`CacheWrite`."""
        return self.apply(CacheWrite(block, loop))
