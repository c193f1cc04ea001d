"""Under the tuner: pictures of a search, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.errors import BackendError

if TYPE_CHECKING:
    from spcomp.tune.space import Candidate
    from spcomp.tune.trial import Trial

AS_IT_COMES = "as it comes"
MOST = 14  # decisions in the map: those of the fastest


def drawn(title: str, trials: Sequence[Trial], path: str | Path | None) -> Any:
    """Return the figure of *trials*, saved as *path*; raises BackendError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendError(
            f"plots need matplotlib: {error}", hint="pip install spcomp[viz]"
        ) from error
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(title, fontsize=10)
    rows = figure.subplot_mosaic([["trials", "expected"], ["map", "map"]])
    timed = [t for t in trials if t.speedup is not None]
    _trials(rows["trials"], trials)
    _expected(rows["expected"], timed)
    _map(rows["map"], timed)
    if path is not None and Path(path).suffix == ".html":
        text = io.StringIO()
        figure.savefig(text, format="svg")
        head = f"<!doctype html><meta charset=utf-8><title>{title}</title>"
        svg = text.getvalue()
        Path(path).write_text(f"{head}\n{svg[svg.index('<svg') :]}", encoding="utf-8")
    elif path is not None:
        figure.savefig(path)
    return figure


def _trials(axes: Any, trials: Sequence[Trial]) -> None:
    """Draw the speed-ups in the order of the trials, with their intervals, and the best so far."""
    timed = [(at, t.speedup) for at, t in enumerate(trials) if t.speedup is not None]
    places, values = [at for at, _ in timed], [ratio.value for _, ratio in timed]
    below = [ratio.value - ratio.low for _, ratio in timed]
    above = [ratio.high - ratio.value for _, ratio in timed]
    axes.errorbar(places, values, yerr=[below, above], fmt="o", label="candidates")
    axes.step(places, np.maximum.accumulate(values), where="post", label="best so far")
    axes.axhline(1.0, linestyle=":", color="gray", label="default")
    axes.set(xlabel="trial", ylabel="times as fast as the default")
    axes.legend()


def _expected(axes: Any, timed: Sequence[Trial]) -> None:
    """Draw what was measured over what had been expected."""
    pairs = [(t.expected, t.speedup.value) for t in timed if t.expected and t.speedup]
    if pairs:
        axes.loglog(*zip(*pairs, strict=True), "o")
        axes.axline((1, 1), (2, 2), linestyle=":", color="gray")
    axes.set(xlabel="expected before", ylabel="measured")


def _map(axes: Any, timed: Sequence[Trial]) -> None:
    """Draw the best speed-up of each format with each decision."""
    best: dict[tuple[str, str], float] = {}
    for trial in sorted(timed, key=lambda t: t.speedup.value if t.speedup else 0.0):
        for decision in _decisions(trial.candidate):
            best[_format(trial.candidate), decision] = trial.speedup.value if trial.speedup else 0.0
    order = sorted(best, key=lambda key: -best[key])
    formats = list(dict.fromkeys(name for name, _ in order))
    decisions = list(dict.fromkeys(decision for _, decision in order))[:MOST]
    table = np.array([[best.get((f, d), np.nan) for d in decisions] for f in formats])
    axes.imshow(table, aspect="auto", cmap="viridis")
    for (row, column), value in np.ndenumerate(table):
        if value == value:
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="w", fontsize=8)
    axes.set_xticks(range(len(decisions)), decisions, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(formats)), formats, fontsize=8)
    axes.set_title("the best of each format with each decision", fontsize=9)


def _format(candidate: Candidate) -> str:
    return ", ".join(text for _, text in candidate.formats) or AS_IT_COMES


def _decisions(candidate: Candidate) -> list[str]:
    return [f"{name}={value}" for name, value in candidate.decisions] or ["default steps"]
