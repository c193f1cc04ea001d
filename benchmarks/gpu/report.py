"""The end of a run: JSON with everything, tables in Markdown, and a picture."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.harness import MODES, OURS, Row, geometric_mean, message
from benchmarks.gpu.lines import SHARES
from benchmarks.gpu.picture import picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

COLUMNS = (
    *("line", "ours", "best rival", "who", "ratio", "ratio, warm", "ratio, graph"),
    *("limit, cold", "of it", "limit, gather"),
)
LEGEND = """Times in microseconds, medians, by events on the device, in turns. The ratio is
the fastest rival's time over ours, with the L2 cache flushed before each call unless a column says
otherwise: above 1 we are faster. `graph`: replays of a CUDA graph in a row, for calls below 100 us.
Limits are bytes over the measured copy bandwidth: `cold` if every operand is read once, `gather` if
rows are fetched for every element; `of it` is the cold limit over our time. Every result was
compared with float64 at some rows.
"""


def micro(seconds: float | None) -> str:
    """Return a time in microseconds, to three digits or whole."""
    if seconds is None:
        return "-"
    value = seconds * 1e6
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def quotient(value: float | None) -> str:
    """Return a ratio to two digits after the point."""
    return "-" if value is None else f"{value:.2f}"


def line(row: Row) -> str:
    """Return *row* in one line, for a terminal."""
    ours, rival = row.ours("cold"), row.rival("cold")
    failed = [*row.wrong, *row.missing]
    return (
        f"{row.line.label:32} {micro(ours and ours[1]):>9} us"
        f"  {micro(rival and rival[1]):>9} us {rival[0] if rival else '':28}"
        f" {quotient(row.ratio('cold')):>6} cold {quotient(row.ratio('warm')):>6} warm"
        f"  {row.seconds:5.1f} s" + (f"  failed: {', '.join(failed)}" if failed else "")
    )


def means(rows: Iterable[Row]) -> dict[str, dict[str, float | None]]:
    """Return the geometric mean of the ratios by operation and mode, and over all."""
    rows = list(rows)
    names = [name for name in SHARES if any(row.line.operation == name for row in rows)]
    found = {}
    for name in (*names, "all"):
        own = [row for row in rows if name in ("all", row.line.operation)]
        found[name] = {
            mode: geometric_mean(r for row in own if (r := row.ratio(mode)) is not None)
            for mode in ("cold", "warm", "graph")
        }
    return found


def cells(row: Row, bandwidth: float) -> tuple[str, ...]:
    """Return what the table of an operation says of *row*, under COLUMNS."""
    ours, rival = row.ours("cold"), row.rival("cold")
    form = f" ({ours[0].removeprefix(OURS).strip()})" if ours and ours[0] != OURS else ""
    who = rival[0] if rival else "-"
    variant = row.variants.get(who, "")
    cold, gather = (size / bandwidth if bandwidth else None for size in (row.cold, row.gather))
    share = f"{cold / ours[1]:.0%}" if ours and cold else "-"
    return (
        row.line.label,
        micro(ours[1]) + form if ours else "-",
        micro(rival and rival[1]),
        f"{who}, {variant}" if variant else who,
        *(quotient(row.ratio(mode)) for mode in ("cold", "warm", "graph")),
        micro(cold or None),
        share,
        micro(gather or None),
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    shown = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(_plain(cell) for cell in cells)} |\n" for cells in shown) + "\n"


def markdown(about: Mapping[str, Any], tests: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return the whole report."""
    bandwidth = float(about.get("copy_bandwidth", 0))
    versions = ", ".join(f"{name} {v}" for name, v in about.get("versions", {}).items())
    where = f"{about.get('date', '')}, commit {about.get('commit', '')}; {versions}."
    copy = f"A copy moves {bandwidth / 1e12:.2f} TB/s, bytes read and written."
    tested = f"Tests that need a GPU: {tests.get('summary', 'not run')}."
    gpu = about.get("gpu", "a GPU that was not reached")
    parts = [f"# On {gpu}\n\n", f"{where} {copy} {tested}\n\n"]
    if about.get("dry"):
        parts.append("**Kernels were emulated at tiny sizes: times mean nothing.**\n\n")
    parts += [LEGEND, "\n", "## Geometric means of the ratios\n\n"]
    found = means(rows)
    of = [
        (name, *(quotient(by[m]) for m in ("cold", "warm", "graph"))) for name, by in found.items()
    ]
    parts.append(table(("operation", "cold", "warm", "graph"), of))
    for name in found:
        if own := [row for row in rows if row.line.operation == name]:
            parts += [f"## {name}\n\n", table(COLUMNS, (cells(row, bandwidth) for row in own))]
            parts.append(_all_times(own))
    if notes := [note for row in rows for note in _notes(row)]:
        parts += [
            "## What did not take part, or was wrong\n\n",
            table(("line", "who", "why"), notes),
        ]
    if failed := tests.get("failed"):
        parts += ["## Tests that failed\n\n", *(f"    {text}\n" for text in failed)]
    return "".join(parts)


def write(
    folder: Path, about: Mapping[str, Any], tests: Mapping[str, Any], rows: Sequence[Row]
) -> list[str]:
    """Write the three files of the run to *folder*, each whole or not at all.

    Returns what went wrong with one of them, which keeps none of the others from being written.
    """
    content = {
        "about": dict(about),
        "tests": dict(tests),
        "geometric_means": means(rows),
        "rows": [row.to_json() for row in rows],
    }
    title = f"fastest rival's time / ours, L2 flushed: {about.get('gpu', '')}"
    texts: dict[str, Callable[[], str]] = {
        ".json": lambda: json.dumps(content, indent=1) + "\n",
        ".md": lambda: markdown(about, tests, rows),
        ".svg": lambda: picture(title, bars(rows)),
    }
    stem, problems = f"cuda-{short_name(about.get('gpu', ''))}", []
    for suffix, text in texts.items():
        draft = folder / f"{stem}{suffix}.tmp"
        try:
            draft.write_text(text(), encoding="utf-8")
            draft.replace(folder / f"{stem}{suffix}")
        except Exception as error:
            problems.append(f"{stem}{suffix} was not written: {message(error)}")
    return problems


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any], list[Row]]:
    """Return what ``write`` wrote to the JSON file *path*: the machine, the tests, the rows."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return content["about"], content["tests"], [Row.from_json(row) for row in content["rows"]]


def bars(rows: Sequence[Row]) -> list[tuple[str, str, float]]:
    """Return the group, the name and the ratio of each bar."""
    return [
        (row.line.operation, row.line.label, ratio)
        for row in rows
        if (ratio := row.ratio("cold")) is not None
    ]


def short_name(gpu: str) -> str:
    """Return the model of a GPU in small letters, h100 for ``NVIDIA H100 80GB HBM3``."""
    words = re.findall(r"[a-z0-9]+", gpu.lower().replace("nvidia", ""))
    return words[0] if words else "unknown"


def _all_times(rows: Sequence[Row]) -> str:
    """Return all contenders' times of some lines, cold and warm."""
    names = list(dict.fromkeys(name for row in rows for name in row.times))
    if not names:
        return ""
    lines = []
    for row in rows:
        both = ({mode: t.median for mode, t in row.times.get(n, {}).items()} for n in names)
        shown = (
            " / ".join(micro(by.get(mode)) for mode in MODES[:2]) if by else "-" for by in both
        )
        lines.append((row.line.label, *shown))
    return table(("cold / warm", *names), lines)


def _notes(row: Row) -> Iterable[tuple[str, str, str]]:
    kinds = ("wrong: ", row.wrong), ("", row.missing), ("", row.notes)
    for text, found in kinds:
        for who, why in found.items():
            yield row.line.label, who, text + why


def _plain(cell: str) -> str:
    return " ".join(cell.replace("|", "\\|").split())
