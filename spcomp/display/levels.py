"""Below the route: a picture of how a tensor is stored, one box for each level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spcomp.display.picture import Picture, box, drawing, label, line

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT, STEP, MARGIN = 150, 26, 40, 6  # pixels


def levels(kinds: Sequence[str], dimensions: Sequence[object]) -> Picture:
    """Return a picture of levels: each of *kinds* below the one above, with its dimension."""
    shapes = []
    for at, (kind, dimension) in enumerate(zip(kinds, dimensions, strict=True)):
        y = MARGIN + at * STEP
        if at:
            shapes.append(line(MARGIN + WIDTH / 2, y - STEP + HEIGHT, MARGIN + WIDTH / 2, y))
        stored = "#dbeafe" if kind.startswith("dense") else "#fee2e2"
        shapes += [
            box(MARGIN, y, WIDTH, HEIGHT, stored),
            label(MARGIN + WIDTH / 2, y + 17, kind, "on"),
            label(MARGIN + WIDTH + 12, y + 17, f"dimension {dimension}"),
        ]
    y = MARGIN + len(kinds) * STEP
    if kinds:
        shapes.append(line(MARGIN + WIDTH / 2, y - STEP + HEIGHT, MARGIN + WIDTH / 2, y))
    shapes.append(label(MARGIN + WIDTH / 2 - 18, y + 14, "values"))
    return drawing("levels: " + ", ".join(kinds), MARGIN + WIDTH + 120, y + 22, shapes)
