"""Random choices of a schedule, on record as decisions of its trace."""

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


def generator(seed: int, trace: Trace, about: str) -> random.Random:
    """Return what chooses *about* after *trace*: the same for the same *seed* everywhere."""
    return random.Random(f"{seed}\n{trace.to_json_lines()}\n{about}")


@front_doors
class Sampled(Steps):
    """What a schedule knows of choices by chance."""

    __slots__ = ()
    func: Func
    trace: Trace

    @property
    def sampled(self) -> Any:
        """What the last sampling step chose; None if there was none."""
        samples = (s for _, s in reversed(self.trace.steps) if isinstance(s, Sample))
        return next((sample.value for sample in samples), None)

    def _draw_tile(self, loop: str, n: int, most: int, seed: int) -> tuple[int, ...]:
        """Return factors of the trip count of *loop*; none where the step will be refused."""
        found = next((x for x in loops_of(self.func.body) if x.var.name == loop), None)
        extent = None if found is None else extent_of(found)
        if extent is None or not all(isinstance(x, int) and x >= 1 for x in (n, most)):
            return ()
        return draw_tile(extent, n, most, generator(seed, self.trace, f"{loop} {n} {most}"))

    def _draw_index(self, probs: Sequence[float], seed: int) -> int:
        """Return an index by *probs*; none where the step will be refused."""
        if not are_weights(probs):
            return -1
        return draw_index(probs, generator(seed, self.trace, repr(probs)))
