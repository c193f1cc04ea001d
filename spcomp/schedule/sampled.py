"""Random choices of a schedule; its trace records them as decisions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from spcomp.errors import front_doors
from spcomp.ir.func import Func
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.base import Steps
from spcomp.schedule.steps.loops.sampling import (
    Sample,
    are_weights,
    draw_index,
    draw_tile,
    extent_of,
)


def make_generator(seed: int, trace: Trace, about: str) -> random.Random:
    """Return the random generator for the choice *about* that comes after *trace*.

    Seeded with all three arguments, so it is the same on every machine.
    """
    return random.Random(f"{seed}\n{trace.to_json_lines()}\n{about}")


@front_doors
class Sampling(Steps):
    """The part of a schedule that draws at random."""

    __slots__ = ()
    func: Func
    trace: Trace

    @property
    def sampled(self) -> Any:
        """The choice of the last sampling step; None if there was none."""
        samples = (s for _, s in reversed(self.trace.steps) if isinstance(s, Sample))
        return next((sample.value for sample in samples), None)

    def _draw_tile(self, loop: str, n: int, most: int, seed: int) -> tuple[int, ...]:
        """Return factors of the trip count of *loop*; () where the step is not legal anyway."""
        node = next((x for x in loops_of(self.func.body) if x.var.name == loop), None)
        extent = None if node is None else extent_of(node)
        if extent is None or not all(isinstance(x, int) and x >= 1 for x in (n, most)):
            return ()
        return draw_tile(extent, n, most, make_generator(seed, self.trace, f"{loop} {n} {most}"))

    def _draw_index(self, probs: Sequence[float], seed: int) -> int:
        """Return an index drawn with *probs*; -1 where the step is not legal anyway."""
        if not are_weights(probs):
            return -1
        return draw_index(probs, make_generator(seed, self.trace, repr(probs)))
