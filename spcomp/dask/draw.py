"""Beside a plan: its estimate as a picture."""

from __future__ import annotations

from spcomp.dask.estimate import Estimate, size
from spcomp.display.picture import PARTS, Picture, box, drawing, label

MARGIN, ROW, BAR = 16, 24, 200  # pixels
CELL, MOST = 84, 16  # the width of a cell, and the workers that are drawn at most
READ, KEPT, SENT = "#bfdbfe", PARTS[0], PARTS[1]


def draw(found: Estimate) -> Picture:
    """Return *found* as a picture.

    Above, for tasks of each kind the bytes that they read of others, and in orange those that are
    sent for it. Below, what each worker sends each, and the memory of each.
    """
    shapes, right, top = _edges(found)
    more, wide, bottom = _workers(found, top + 2 * MARGIN)
    title = f"plan for {found.workers} workers: {size(found.total)} sent"
    return drawing(title, max(right, wide), bottom, [*shapes, *more])


def _edges(found: Estimate) -> tuple[list[str], float, float]:
    """Return a bar for each edge between kinds of tasks, its right end and its bottom."""
    names = [f"{dep} \u2192 {kind}" for dep, kind in found.edges]
    bars = MARGIN + 7 * max(map(len, names), default=0) + 16
    most = max((read for read, _ in found.edges.values()), default=1) or 1
    shapes = [
        label(MARGIN, MARGIN + 12, "read by tasks of others, and sent between workers for it")
    ]
    top = MARGIN + ROW
    for name, (read, sent) in zip(names, found.edges.values(), strict=True):
        shapes += [label(MARGIN, top + 15, name), box(bars, top, BAR * read / most, 20, READ)]
        shapes += [box(bars, top + 5, BAR * sent / most, 10, SENT)] if sent else []
        text = f"{size(read)}, {size(sent)} sent" if sent else size(read)
        shapes.append(label(bars + BAR + 8, top + 15, text))
        top += ROW
    return shapes, bars + BAR + 200, top


def _workers(found: Estimate, top: float) -> tuple[list[str], float, float]:
    """Return a table of what workers send each other, beside bars for the memory of each."""
    shown = min(found.workers, MOST)
    most = max(max(map(max, found.between)), 1)
    peak = max(*found.peak, 1)
    shapes = [label(MARGIN, top, "sent from a worker (row) to others")]
    bars = MARGIN + 30 + shown * CELL + 40
    shapes.append(label(bars, top, "memory: kept, and at most"))
    for row in range(shown):
        y = top + ROW + row * ROW
        shapes += [label(MARGIN, y + 16, str(row), "name")]
        for column in range(shown):
            count, x = found.between[row][column], MARGIN + 30 + column * CELL
            shade = f"rgb(217,119,6,{count / most:.2f})" if count else ""
            shapes.append(box(x, y, CELL - 2, 22, shade))
            shapes.append(label(x + 4, y + 16, size(count)) if count else "")
        shapes.append(box(bars, y, BAR * found.peak[row] / peak, 22, READ))
        shapes.append(box(bars, y, BAR * found.held[row] / peak, 22, KEPT))
        text = f"{size(found.held[row])}, {size(found.peak[row])}"
        shapes.append(label(bars + BAR + 8, y + 16, text))
    end = top + ROW + shown * ROW + MARGIN
    if shown < found.workers:
        shapes.append(label(MARGIN, end, f"and {found.workers - shown} more workers"))
    return shapes, bars + BAR + 8 + 160, end + MARGIN
