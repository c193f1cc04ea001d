"""Under the tuner: what it found, with everything that it tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spcomp.locks import cached_property
from spcomp.tune.choice import Choice
from spcomp.tune.measure import Interval
from spcomp.tune.picture import drawn
from spcomp.tune.space import Candidate
from spcomp.tune.trial import Trial

if TYPE_CHECKING:
    from spcomp.kernels.protocol import Runnable
    from spcomp.schedule.step import Trace
    from spcomp.tune.task import Task

FEW = 6  # timed candidates, the default among them: with fewer, hardly any decision was varied


@dataclass(frozen=True, eq=False)
class Tuned:
    """What ``spcomp.tune`` returns.

    *candidate* won, compiled as *choice* says; it is *speedup* times as fast as the default, which
    is 1 if none was shown to be faster. *trials*: everything that was tried, in order; *elapsed*:
    seconds; *stopped*: why the search ended: ``budget``, ``exhausted`` or ``interrupted``. *stays*:
    what an earlier search stored, if this one did not show that it is not the fastest.
    """

    task: Task
    candidate: Candidate
    choice: Choice
    speedup: Interval
    trials: tuple[Trial, ...]
    elapsed: float
    stopped: str
    refused: Mapping[str, str] = field(default_factory=dict)
    stays: str = ""

    @cached_property
    def kernel(self) -> Runnable:
        """The kernel that does what won; called like that of the program.

        One that stores a matrix in another format converts it at every call, unless its arrays are
        read-only: bind it, or use :attr:`bound`.
        """
        return self.task.fixed(self.choice)

    @cached_property
    def bound(self) -> Runnable:
        """The kernel with the matrices bound that it was tuned on: what was measured.

        It takes the arguments of the program, or of what index notation made of it.
        """
        return self.task.bind(
            self.choice.kernel(self.task.func, self.task.options), self.choice, {}
        )

    @property
    def formats(self) -> dict[str, str]:
        """The formats in which matrices are stored, by name; empty if as they come."""
        return dict(self.choice.formats) | {name: str(rule) for name, rule in self.choice.rules}

    @property
    def trace(self) -> Trace:
        """The steps of what won."""
        return self.bound.specialize(**self.task.rest).trace

    @property
    def seconds(self) -> float:
        """The median of the seconds of a call of what won."""
        return next(t.seconds for t in self.trials if t.candidate == self.candidate)

    def table(self) -> str:
        """Return all trials as text, the fastest first, then those that were not timed."""
        timed = [t for t in self.trials if t.speedup is not None]
        ordered = sorted(timed, key=lambda t: -(t.speedup.value if t.speedup else 0.0))
        return "\n".join(map(str, [*ordered, *(t for t in self.trials if t.speedup is None)]))

    def to_json(self) -> dict[str, Any]:
        """Return all that was found as values of JSON."""
        return {
            "candidate": str(self.candidate),
            "formats": self.formats,
            "trace": self.trace.to_json_lines(),
            "speedup": asdict(self.speedup),
            "seconds": self.seconds,
            "elapsed": self.elapsed,
            "stopped": self.stopped,
            "refused": dict(self.refused),
            "stays": self.stays,
            "trials": [
                {
                    "candidate": str(t.candidate),
                    "status": t.status,
                    "seconds": t.seconds,
                    "speedup": None if t.speedup is None else asdict(t.speedup),
                    "conversion": t.conversion,
                    "expected": t.expected,
                    "note": t.note,
                }
                for t in self.trials
            ],
        }

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw what was tried, and return the figure of matplotlib.

        That is the speed-ups in the order of the trials, what was expected of them, and the best of
        each format with each decision. *path*: where to save it; html, too. Raises BackendError
        without matplotlib.
        """
        return drawn(f"{self.task.name}: {self.candidate}", self.trials, path)

    def __str__(self) -> str:
        few = self.stopped == "budget" and sum(t.speedup is not None for t in self.trials) < FEW
        return (
            f"{self.task.name}: {self.candidate}, {self.speedup} times as fast as the"
            f" default; {len(self.trials)} candidates in {self.elapsed:.1f} s ({self.stopped}"
            f"{': more seconds would try more' if few else ''})"
            f"{f'; {self.stays}, stays stored' if self.stays else ''}"
        )

    __repr__ = __str__
