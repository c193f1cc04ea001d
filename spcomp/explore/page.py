"""The explorer's data: the stages of programs as rows of text, with links between them.

It is a plain value that prints as JSON; what shows it decides nothing but how it looks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from spcomp.explore.machine import assembly_lines, llvm_lines
from spcomp.explore.merges import merge_lines
from spcomp.explore.source import Source
from spcomp.explore.steps import Change, changes
from spcomp.ir.analysis.forest import draw
from spcomp.ir.printer.program import print_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.compiler.compiled import Compiled
    from spcomp.errors import Span
    from spcomp.ir.printer.program import Line

MOST_ROWS = 5000  # in all steps of a schedule; of more, a page only has what changes
CONTEXT = 6  # lines beside those
TITLES = {
    "source": "Source",
    "coordinate": "Coordinate space",
    "position": "Position space",
    "flat": "Flat buffers",
    "merges": "Merges",
    "llvm": "LLVM IR",
    "asm": "Assembly",
    "ptx": "PTX",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a pane; *places* are the numbers of the source's rows that it comes from.

    *label* is the number of the line in its file, *mark* ``+`` or ``-`` in a program that changes,
    *time* what was measured of the loops that the line became.
    """

    text: str
    places: tuple[int, ...] = ()
    label: str = ""
    mark: str = ""
    time: str = ""


@dataclass(frozen=True, slots=True)
class Pane:
    """One stage of a program."""

    name: str
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A schedule step, and the program after it with what it removed and added."""

    text: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class View:
    """One program: its panes, the steps of its schedule, and its axes."""

    name: str
    target: str
    panes: tuple[Pane, ...]
    steps: tuple[Step, ...]
    forest: str
    note: str = ""
    pictures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a call: *times* of loops by their place, and *pictures*.

    A picture has a title and the text of an SVG document. *note*: what else there is to say.
    """

    times: tuple[tuple[Span, str], ...] = ()
    pictures: tuple[tuple[str, str], ...] = ()
    note: str = ""


NOTHING = Measured()


@dataclass(frozen=True, slots=True)
class Page:
    """What a page of the explorer shows."""

    title: str
    views: tuple[View, ...]

    def to_json(self) -> str:
        """Return the page as JSON, without fields that say nothing."""
        return json.dumps(asdict(self, dict_factory=_filled), ensure_ascii=False)


def _filled(pairs: list[tuple[str, object]]) -> dict[str, object]:
    return {name: value for name, value in pairs if value not in ("", (), [])}


def view(compiled: Compiled, name: str, measured: Measured = NOTHING) -> View:
    """Return what there is to see of *compiled*, which was compiled with ``debug``."""
    stages = compiled.stages
    levels = {level: getattr(stages, level) for level in ("coordinate", "position", "flat")}
    lines = {level: print_lines(module) for level, module in levels.items() if module is not None}
    if stages.position is not None and (merges := list(merge_lines(stages.position))):
        lines["merges"] = merges
    lines["llvm"] = llvm_lines(compiled.source("llvm"))
    code = "asm" if compiled.target.kind == "cpu" else "ptx"
    lines[code] = assembly_lines(compiled.source(code))
    done = changes(compiled)
    everything = [*lines.values(), *(change.before for change in done), *(c.after for c in done)]
    source = Source.of(span for part in everything for _, spans in part for span in spans)
    panes = [Pane("source", TITLES["source"], _source_rows(source, measured))]
    panes += [Pane(kind, TITLES[kind], _rows(part, source)) for kind, part in lines.items()]
    whole = sum(len(change.after) for change in done) <= MOST_ROWS
    context = None if whole else CONTEXT
    func = (stages.coordinate or stages.position or stages.flat).source
    return View(
        name,
        str(compiled.target).partition(",")[0],
        tuple(panes),
        tuple(Step(change.text, _changed(change, source, context)) for change in done),
        draw(func.axes, func.buffers) if func.axes else "",
        measured.note,
        measured.pictures,
    )


def _source_rows(source: Source, measured: Measured) -> tuple[Row, ...]:
    times: dict[int, list[str]] = {}
    for place, text in measured.times:
        for number in source.numbers([place]):
            times.setdefault(number, []).append(text)
    return tuple(
        Row(text, (k,), label, time="; ".join(times.get(k, ())))
        for k, (label, text) in enumerate(source.rows)
    )


def _rows(lines: Sequence[Line], source: Source) -> tuple[Row, ...]:
    return tuple(Row(text, source.numbers(spans)) for text, spans in lines)


def _changed(change: Change, source: Source, context: int | None) -> tuple[Row, ...]:
    return tuple(
        Row(text, source.numbers(spans), mark=mark)
        for mark, (text, spans) in change.difference(context)
    )
