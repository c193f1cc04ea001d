"""Draws the axis forest as a picture for ``spcomp show``: one box per axis, parents above."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from spcomp.ir.analysis.forest import Forest, draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.ir.axis import Axis

BOX, ROW, GAP, MARGIN, CHAR = 44, 84, 24, 16, 7  # pixels; CHAR is the width of a letter
FILL = {
    "dense_fixed": "#dbeafe",
    "dense_variable": "#dcfce7",
    "sparse_fixed": "#fef3c7",
    "sparse_variable": "#fee2e2",
}


def forest_svg(axes: Sequence[Axis]) -> str:
    """Return the forest of *axes* as the text of an SVG document."""
    forest = Forest.of(axes)
    labels = _labels(axes)
    width = CHAR * max(map(len, labels.values())) + 24
    columns = _columns(forest)
    centre = {a: MARGIN + width / 2 + column * (width + GAP) for a, column in columns.items()}
    top = {a: MARGIN + forest.depth(a) * ROW for a in columns}
    parts = [
        f'<path d="M{centre[a]:g} {top[a]} V{top[a] - 20} H{centre[a.parent]:g}'
        f' V{top[a.parent] + BOX}"/>'
        for a in columns
        if a.parent is not None
    ]
    parts += [
        f'<rect x="{centre[a] - width / 2:g}" y="{top[a]}" width="{width}" height="{BOX}" rx="6"'
        f' fill="{FILL[a.kind]}"/>'
        f'<text class="name" x="{centre[a]:g}" y="{top[a] + 18}">{escape(a.name)}</text>'
        f'<text x="{centre[a]:g}" y="{top[a] + 35}">{escape(labels[a.name])}</text>'
        for a in columns
    ]
    total = max(centre.values()) + width / 2 + MARGIN
    return _document(total, max(top.values()) + BOX + MARGIN, parts)


def _labels(axes: Sequence[Axis]) -> dict[str, str]:
    """Return the text of the axis drawing for each axis, by name."""
    lines = (line.lstrip("│├└─ ") for line in draw(axes).splitlines())
    return dict(line.split(" ", 1) for line in lines)


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


def _document(width: float, height: float, parts: Sequence[str]) -> str:
    style = (
        "path,rect{stroke:#475569;stroke-width:1.2}path{fill:none}"
        "text{font:12px monospace;text-anchor:middle;fill:#0f172a}.name{font-weight:bold}"
    )
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>\n"])
