"""Under pictures: the axis forest of a program, one box per axis, parents above."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from spcomp.display.picture import Picture, box, drawing, label
from spcomp.errors import ArgumentError, expect, front_door
from spcomp.ir.analysis.forest import Forest, draw
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.schedule.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.ir.axis import Axis

BOX, ROW, GAP, MARGIN, CHAR = 61, 101, 24, 16, 7  # pixels; CHAR is the width of a letter
FILL = {
    "dense_fixed": "#dbeafe",
    "dense_variable": "#dcfce7",
    "sparse_fixed": "#fef3c7",
    "sparse_variable": "#fee2e2",
}


@front_door
def forest(program: Func | Module[Any] | Schedule) -> Picture:
    """Return a picture of the axes of *program*: each below its parent, coloured by kind.

    Raises ArgumentError for what is no program, or has no axes.
    """
    hint = "give a function decorated with @T.prim_func, or its Schedule"
    expect("program", program, (Func, Module, Schedule), "a program", hint=hint)
    func = program.func if isinstance(program, Schedule) else program
    source = func.source if isinstance(func, Module) else func
    if not source.axes:
        raise ArgumentError(f"{source.name} has no axes to draw", hint="draw its coordinate stage")
    return draw_forest(source.axes, f"axes of {source.name}")


def draw_forest(axes: Sequence[Axis], title: str = "axes") -> Picture:
    """Return a picture of the forest of *axes*."""
    trees = Forest.of(axes)
    labels = _labels(axes)
    width = CHAR * max(len(line) for lines in labels.values() for line in lines) + 24
    columns = _columns(trees)
    centre = {a: MARGIN + width / 2 + column * (width + GAP) for a, column in columns.items()}
    top = {a: MARGIN + trees.depth(a) * ROW for a in columns}
    parts = [
        f'<path d="M{centre[a]:g} {top[a]} V{top[a] - 20} H{centre[a.parent]:g}'
        f' V{top[a.parent] + BOX}"/>'
        for a in columns
        if a.parent is not None
    ]
    parts += [
        box(centre[a] - width / 2, top[a], width, BOX, FILL[a.kind])
        + label(centre[a], top[a] + 18, a.name, "name on")
        + "".join(
            label(centre[a], top[a] + 35 + 17 * at, line, "on")
            for at, line in enumerate(labels[a.name])
        )
        for a in columns
    ]
    total = max(centre.values()) + width / 2 + MARGIN
    return drawing(title, total, max(top.values()) + BOX + MARGIN, parts)


def _labels(axes: Sequence[Axis]) -> dict[str, list[str]]:
    """Return the text of the axis drawing for each axis, by name: sizes, then index arrays."""
    lines = (line.lstrip("│├└─ ") for line in draw(axes).splitlines())
    return {
        name: re.split(r"(?<=,) (?=ind)", text, maxsplit=1)
        for name, text in (line.split(" ", 1) for line in lines)
    }


def _columns(forest: Forest) -> dict[Axis, float]:
    """Return the column of each axis: leaves side by side, parents centred above their children."""
    columns: dict[Axis, float] = {}
    leaves = 0

    def place(axis: Axis) -> float:
        nonlocal leaves
        below = [place(child) for child in forest.children(axis)]
        if not below:
            below = [float(leaves)]
            leaves += 1
        columns[axis] = (below[0] + below[-1]) / 2
        return columns[axis]

    for root in forest.roots:
        place(root)
    return columns
