"""A picture of a run: one bar per line, our speed over the best rival's, with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.harness import Row

AHEAD, BEHIND, GOAL = "#2a7f62", "#c8553d", "#333333"


def draw(rows: Sequence[Row], path: Path, title: str = "") -> None:
    """Write a bar chart of the ratios to *path* (its suffix says the format).

    Raises ImportError if matplotlib (extra ``viz`` or ``bench``) is not installed.
    """
    from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]

    shown = [(row, row.ratio) for row in rows if row.ratio is not None]
    figure = Figure(figsize=(8, 1.2 + 0.26 * max(1, len(shown))), layout="constrained")
    axes = figure.add_subplot()
    at = range(len(shown))
    values = [r.value for _, r in shown]
    errors = [
        [max(0.0, r.value - r.low) for _, r in shown],
        [max(0.0, r.high - r.value) for _, r in shown],
    ]
    axes.barh(
        at, values, xerr=errors, color=[AHEAD if v >= 1 else BEHIND for v in values],
        error_kw={"elinewidth": 1, "ecolor": "#555555"},
    )  # fmt: skip
    for place, (row, _) in enumerate(shown):
        if row.case.target is not None:
            axes.plot([row.case.target] * 2, [place - 0.4, place + 0.4], color=GOAL, linewidth=1.5)
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_yticks(list(at), [f"{row.case.label}  (vs {r.rival})" for row, r in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("best rival's time / ours, 95 % interval; dark marks: goals")
    axes.set_title(title, fontsize=9)
    figure.savefig(path, dpi=150)
