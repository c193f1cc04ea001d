"""Under pictures: a schedule as a list of its steps, each with the lines that it changed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from spcomp.display.html import folded, heading, numbered
from spcomp.display.picture import write_text
from spcomp.errors import ArgumentError, expect, front_door
from spcomp.schedule.schedule import Schedule

if TYPE_CHECKING:
    import os

CHANGED = {"+": "#3f9142", "-": "#c8553d"}  # readable on light and dark pages


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a schedule, in order: each as text, with the program before and after it."""

    name: str
    steps: tuple[tuple[str, str, str], ...]

    @property
    def html(self) -> str:
        """The steps as a list in HTML, which unfolds to the lines that a step changed."""
        items = (folded(step, _difference(before, after)) for step, before, after in self.steps)
        return heading(f"{self.name}: {len(self.steps)} steps") + numbered(items)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the steps to *path* as an HTML document; raises FileError if that fails."""
        head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(self.name)}'
        write_text(path, f"{head}</title><body>{self.html}</body></html>\n")

    def _repr_html_(self) -> str:
        return self.html

    def __str__(self) -> str:
        return "\n".join(
            f"{at}. {step}\n{''.join(_changes(before, after))}"
            for at, (step, before, after) in enumerate(self.steps, 1)
        )

    def __repr__(self) -> str:
        return f"<Steps of {self.name}: {len(self.steps)}>"


@front_door
def schedule(sch: Schedule) -> Steps:
    """Return the steps of *sch* with the lines that each changed, for notebooks or ``print``.

    The steps are applied again. Raises ArgumentError if *sch* is no Schedule, or began with
    another program than it now has: after ``match_to_alloc``, or with options of its lowering.
    """
    expect("sch", sch, Schedule, "a Schedule", hint="Schedule(func) makes one of a program")
    found: list[tuple[str, str, str]] = []
    current = Schedule(sch.source)
    for step in sch.trace.of(sch.func.name):
        if not step.fits(current.func):
            lowered = current.lower_sparse_iter()
            found.append(("lower_sparse_iter()", current.func.script(), lowered.func.script()))
            current = lowered
        applied = current.apply(step)
        found.append((str(step), current.func.script(), applied.func.script()))
        current = applied
    if current.func.script() != sch.func.script():
        raise ArgumentError(
            f"argument sch: the steps of {sch.func.name} cannot be applied again",
            hint="print(sch.trace) lists them",
        )
    return Steps(sch.func.name, tuple(found))


def _changes(before: str, after: str) -> list[str]:
    """Return the lines of *after* with those of *before* that are gone, as a unified difference."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return list(difflib.unified_diff(old, new, n=2))[2:]


def _difference(before: str, after: str) -> str:
    lines = (
        f'<span style="color:{CHANGED[text[0]]}">{escape(text)}</span>'
        if text[0] in CHANGED
        else escape(text)
        for text in _changes(before, after)
    )
    return f"<pre style='line-height:1.35;overflow-x:auto'>{''.join(lines)}</pre>"
