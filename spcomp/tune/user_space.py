"""Under the tuner: candidates that a user's function yields, in place of the built-in ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.errors import ArgumentError, ScheduleError, expect
from spcomp.formats.rules import ComposableFormat
from spcomp.ir.program import CoordFunc
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.tune.choice import Choice, layouts_of
from spcomp.tune.layouts import format_text
from spcomp.tune.space import Candidate

if TYPE_CHECKING:
    from spcomp.tune.task import Task

UserSpace: TypeAlias = Callable[..., Iterator[Any]]


def user_candidates(space: UserSpace, task: Task) -> Iterator[Candidate]:
    """Yield the candidates of a user's space; raises ArgumentError for what is none."""
    extents = task.problem.extents
    yielded = space(task.program, **task.arguments)
    expect("space", yielded, Iterable, "a function that yields candidates")
    for item in yielded:
        formats, trace = (None, item.trace) if isinstance(item, Schedule) else _pair(item)
        texts: list[tuple[str, str]] = []
        rules: list[tuple[str, ComposableFormat]] = []
        for name, layout in layouts_of(formats).items():
            expect(f"format of {name}", layout, ComposableFormat, "one of spcomp.formats")
            if text := format_text(layout):
                texts.append((name, text))
            else:
                rules.append((name, layout))
        fixed = extents if trace is not None and _fits(task, trace, not formats) else ()
        choice = Choice(tuple(texts), trace, fixed, rules=tuple(rules))
        yield Candidate(choice.formats, own=choice)


def _pair(item: Any) -> tuple[Any, Trace | None]:
    if isinstance(item, tuple) and len(item) == 2:
        expect("trace", item[1], (Trace, type(None)), "a Trace, or None")
        return item
    raise ArgumentError(
        f"a space yielded {type(item).__name__}", hint="yield Schedules, or (formats, trace)"
    )


def _fits(task: Task, trace: Trace, as_it_comes: bool) -> bool:  # noqa: FBT001
    """Whether *trace* applies to the program with its sizes compiled in."""
    if not isinstance(task.func, CoordFunc) or not as_it_comes or not task.problem.extents:
        return not as_it_comes
    try:
        Schedule(task.func.specialize(dict(task.problem.extents))).replay(trace)
    except ScheduleError:
        return False
    return True
