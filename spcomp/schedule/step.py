"""Traces: the steps of a schedule as a frozen value that prints, serialises and replays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from spcomp.errors import ScheduleError, expect
from spcomp.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a schedule, in order, each with the name of its function."""

    steps: tuple[tuple[str, Step], ...] = field(default=())

    def __iter__(self) -> Iterator[tuple[str, Step]]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def extend(self, func: str, steps: Iterable[Step]) -> Trace:
        """Return the trace with *steps* for *func* added at its end."""
        return Trace((*self.steps, *((func, step) for step in steps)))

    def then(self, other: Trace) -> Trace:
        """Return the trace with the steps of *other* added at its end."""
        return Trace((*self.steps, *other.steps))

    def without(self, kind: str) -> Trace:
        """Return the trace without the steps called *kind*, to measure what these are worth."""
        return Trace(tuple((f, s) for f, s in self.steps if s.name != kind))

    def of(self, func: str) -> tuple[Step, ...]:
        """The steps for the function *func*."""
        return tuple(step for name, step in self.steps if name == func)

    def to_json_lines(self) -> str:
        """Return the trace as text, one JSON object for each line."""
        return "".join(
            json.dumps({"func": func, "step": step.name, **step.arguments()}) + "\n"
            for func, step in self.steps
        )

    @staticmethod
    def from_json_lines(text: str) -> Trace:
        """Return the trace that *text* describes; raises ScheduleError if a line is no step."""
        expect("text", text, str, "lines of JSON")
        return Trace(tuple(_read(line) for line in text.splitlines() if line.strip()))

    def __str__(self) -> str:
        return "\n".join(f"{func}: {step}" for func, step in self.steps)


def _read(line: str) -> tuple[str, Step]:
    from spcomp.schedule.steps.catalog import STEPS  # imports all kinds of steps: only when needed

    try:
        record = json.loads(line)
        func, kind = str(record.pop("func")), record.pop("step")
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        return func, STEPS[kind](**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ScheduleError(
            f"not a step: {line.strip()[:200]!r}", hint=f"steps are {', '.join(sorted(STEPS))}"
        ) from error
