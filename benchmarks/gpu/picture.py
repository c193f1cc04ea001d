"""A bar chart as SVG, written without a library: ratios on a logarithmic scale."""

from __future__ import annotations

import math
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

AHEAD, BEHIND, GREY = "#2a7f62", "#c8553d", "#888888"
LEFT, WIDTH, ROW, TOP = 230, 480, 15, 46  # pixels: of names, of the scale, of a bar, of the title
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def picture(title: str, bars: Sequence[tuple[str, str, float]]) -> str:
    """Return the chart of *bars*: group, name, ratio; to the right of 1 we are faster."""
    low = min([0.5, *(value for *_, value in bars)])
    high = max([2.0, *(value for *_, value in bars)])
    span = math.log(high / low)

    def x(value: float) -> float:
        return LEFT + WIDTH * math.log(value / low) / span

    groups = [(name, list(own)) for name, own in groupby(bars, key=lambda bar: bar[0])]
    height = TOP + ROW * (len(bars) + len(groups)) + 12
    size = f'width="{LEFT + WIDTH + 60}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(10, 16, title, "start", size=12),
    ]
    for tick in TICKS:
        if low <= tick <= high:
            at, colour = x(tick), "#333333" if tick == 1 else "#dddddd"
            parts.append(
                f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{height - 8}"'
                f' stroke="{colour}"/>'
            )
            parts.append(_text(at, TOP - 12, f"{tick:g}", "middle"))
    y = TOP
    for _, own in groups:
        for _, name, value in own:
            begin, end = sorted((x(1.0), x(value)))
            parts.append(_text(LEFT - 6, y + 10, name, "end"))
            parts.append(
                f'<rect x="{begin:.1f}" y="{y + 2}" width="{max(end - begin, 0.5):.1f}"'
                f' height="{ROW - 4}" fill="{AHEAD if value >= 1 else BEHIND}"/>'
            )
            parts.append(_text(end + 4, y + 10, f"{value:.2f}", "start", colour=GREY))
            y += ROW
        y += ROW
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(
    x: float, y: float, text: str, anchor: str, *, size: int = 10, colour: str = "#222222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
