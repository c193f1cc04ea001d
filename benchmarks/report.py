"""The end of a run: a table to read, and JSON with every sample."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.ablate import earned
from benchmarks.harness import Row
from benchmarks.suite import GROUP_TARGETS
from spcomp.cli.table import print_table
from spcomp.cli.timing import geometric_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.ablate import Ablation
    from benchmarks.roofline import Bandwidth

COLUMNS = (
    *("operator, workload", ">ours", ">best rival", "rival", ">ratio", "95 %", ">goal"),
    *(">memory", ">of it"),
)


def milliseconds(seconds: float | None) -> str:
    """Return a time to three digits, in ms."""
    return "-" if seconds is None else f"{1e3 * seconds:#.3g}"


def verdict(row: Row) -> str:
    """Return the goal and whether the lower end of the interval reaches it."""
    if row.case.target is None:
        return ""
    reached = row.ratio is not None and row.ratio.low >= row.case.target
    return f"{row.case.target:.2f} {'yes' if reached else 'NO'}"


def line(row: Row) -> tuple[str, ...]:
    """Return the cells of a row under COLUMNS; times in ms."""
    bound = max(row.limit)
    of_limit = f"{bound / row.ours:.0%}" if row.ours and bound else ""
    memory = f"{milliseconds(row.limit[0])} | {milliseconds(row.limit[1])}" if bound else ""
    if row.ratio is None:
        why = next(iter((*row.wrong.items(), *row.missing.items())), ("", "no rival"))
        others = row.medians
        rival = next(iter(others), "")
        cells = (milliseconds(row.ours), milliseconds(others.get(rival)), rival, "-", why[1])
        return (row.case.label, *cells, verdict(row), memory, of_limit)
    r = row.ratio
    mark = "" if r.clean else " *"
    span = f"{r.low:.2f}..{r.high:.2f}{mark}"
    times = milliseconds(row.ours), milliseconds(row.medians[r.rival])
    return (row.case.label, *times, r.rival, f"{r.value:.2f}", span, verdict(row), memory, of_limit)


def groups(rows: Sequence[Row]) -> dict[str, float]:
    """Return the geometric mean of the ratios of each group of lines."""
    names = dict.fromkeys(row.case.group for row in rows if row.case.group and row.ratio)
    return {
        name: geometric_mean([r.ratio.value for r in rows if r.case.group == name and r.ratio])
        for name in names
    }


def show(rows: Sequence[Row], *, steady: bool = True) -> None:
    """Print the results, the geometric means, and what did not take part or was wrong.

    *steady*: the bandwidth behind the shares of memory was measured undisturbed.
    """
    caption = (
        "times in ms; memory: time for compulsory bytes | gathered bytes at the measured bandwidth;"
        " * others used the CPUs"
    )
    if not steady:
        caption += "; so they did when bandwidth was measured: shares of memory are too high"
    by_group = dict.fromkeys(row.case.group for row in rows)
    tables = [[line(row) for row in rows if row.case.group == group] for group in by_group]
    print_table(COLUMNS, tables, caption)
    means = [(name, f"{value:.2f}", _goal(name)) for name, value in groups(rows).items()]
    print_table(("group", ">geometric mean", ">goal"), [means])
    notes = [
        (row.case.label, name, kind, why)
        for row in rows
        for kind, found in (("wrong", row.wrong), ("missing", row.missing))
        for name, why in found.items()
    ]
    if notes:
        print_table(("operator, workload", "contender", "", "why"), [notes])


def show_ablation(ablations: Sequence[Ablation]) -> None:
    """Print what each kind of step earns on each case, and over all."""
    kinds = list(earned(ablations))
    lines = [
        (a.case.label, *(f"{a.ratios[k].value:.2f}" if k in a.ratios else "-" for k in kinds))
        for a in ablations
    ]
    means = [("geometric mean", *(f"{value:.2f}" for value in earned(ablations).values()))]
    columns = ("operator, workload", *(f">{kind}" for kind in kinds))
    print_table(columns, [lines, means], "time without the steps over time with them")
    missing = [(a.case.label, *note) for a in ablations for note in a.missing.items()]
    if missing:
        print_table(("operator, workload", "without", "why there is no time"), [missing])


def document(
    machine: Mapping[str, Any],
    bandwidth: Bandwidth,
    rows: Sequence[Row],
    ablations: Sequence[Ablation] = (),
) -> dict[str, Any]:
    """Return everything about a run, for JSON."""
    return {
        "machine": dict(machine),
        "bandwidth": {"points": [list(p) for p in bandwidth.points], "clean": bandwidth.clean},
        "rows": [row.to_json() for row in rows],
        "geometric_means": groups(rows),
        "ablation": [asdict(ablation) for ablation in ablations],
    }


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write *content* to *path* as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[list[Row], bool]:
    """Return the rows of a file that ``save`` wrote, and whether its bandwidth is undisturbed."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [Row.from_json(row) for row in content["rows"]], content["bandwidth"]["clean"]


def _goal(group: str) -> str:
    return f"{GROUP_TARGETS[group]:.2f}" if group in GROUP_TARGETS else ""
