"""Under the tuner: a candidate that was tried, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from spcomp.tune.measure import Interval
from spcomp.tune.space import Candidate

Status: TypeAlias = Literal["measured", "slow", "same", "pruned", "refused", "wrong"]


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate and what came of it.

    *status*: ``measured``; ``slow``, so clearly that it was not timed to the end; ``same`` code as
    another one; ``pruned``, since it cannot be faster; ``refused`` by the compiler; ``wrong``.
    *seconds*: of a call; *speedup*: over the default, None unless it was timed; *conversion*:
    seconds, once for each matrix; *note*: why. *expected*: the speed-up that the search expected
    before; 0 if it asked nobody.
    """

    candidate: Candidate
    status: Status
    seconds: float = 0.0
    speedup: Interval | None = None
    conversion: float = 0.0
    note: str = ""
    expected: float = 0.0

    def __str__(self) -> str:
        ratio = f"{self.speedup}" if self.speedup is not None else self.status
        seconds = f"{1e3 * self.seconds:10.4g} ms" if self.seconds else " " * 13
        return f"{seconds}  {ratio:<22}{self.candidate}{f' ({self.note})' if self.note else ''}"
