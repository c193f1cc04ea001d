"""A whole run: tests, then workers that measure, watched; results are written after every line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import checks, report
from benchmarks.gpu.harness import Row, message
from benchmarks.gpu.worker import parse
from benchmarks.machine import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.lines import Line

ROOT = Path(__file__).parents[2]
WORKER = [sys.executable, "-m", "benchmarks.gpu.worker"]
SILENT = 80.0  # seconds without an event after which a worker is ended
POLL = 0.2  # seconds
TESTS = 0.15  # of the time, at most, for tests
RESERVE = 10.0  # seconds for the last reports
NOTHING = "no time was left, or no worker could start (worker.log)"
MOST = 3  # contenders that may take workers down on a line


@dataclass(slots=True)
class Run:
    """What is known so far: of the machine, of the tests, rows in the order of the lines."""

    lines: Sequence[Line]
    folder: Path
    logs: Path
    about: dict[str, Any] = field(default_factory=dict)
    tests: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    blocked: dict[str, dict[str, str]] = field(default_factory=dict)
    last: tuple[str, str] | None = None
    lost: str = ""

    def take(self, event: dict[str, Any]) -> None:
        """Take an event of a worker."""
        if "about" in event:
            self.about |= event["about"]
        elif "begin" in event:
            self.last = event["begin"], event["who"]
        elif "lost" in event:
            self.lost = event["lost"]
        else:
            row = Row.from_json(event["row"])
            self.rows[row.line.label] = row
            self.last = None
            if "partial" not in event:
                sys.stderr.write(report.line(row) + "\n")
                self.save()

    @property
    def left(self) -> list[Line]:
        """The lines without a row."""
        return [line for line in self.lines if line.label not in self.rows]

    def gone(self, why: str) -> None:
        """Note that the worker ended early: who ran last does not run again on that line."""
        why, self.lost = self.lost or why, ""
        if self.last is None:
            sys.stderr.write(f"a worker ended early: {why}\n")
            return
        (label, who), self.last = self.last, None
        sys.stderr.write(f"{label}, {who}: {why}\n")
        if label in self.rows:
            self.rows[label].missing[who] = why
            return
        blocked = self.blocked.setdefault(label, {})
        if who in ("operands", "timing") or len(blocked) > MOST:
            line = next(line for line in self.lines if line.label == label)
            self.rows[label] = Row(line, missing={**blocked, who: why})
        blocked[who] = why

    def close(self) -> None:
        """Give every line that has none a row, and write the results."""
        for line in self.left:
            missing = {**self.blocked.get(line.label, {}), "all": NOTHING}
            self.rows[line.label] = Row(line, missing=missing)
        self.save()

    def save(self) -> None:
        """Write the results so far."""
        rows = [self.rows[line.label] for line in self.lines if line.label in self.rows]
        for problem in report.write(self.folder, self.about, self.tests, rows):
            sys.stderr.write(f"{problem}\n")


def start(
    lines: Sequence[Line],
    folder: Path,
    seconds: float,
    *,
    logs: Path | None = None,
    dry: bool = False,
    tests: bool = True,
) -> Run:
    """Run the tests and measure *lines* in *seconds* altogether; returns what was found.

    Results go to *folder*, what workers and tests say to *logs*.
    """
    until = time.time() + seconds
    os.environ.setdefault("SPCOMP_CACHE_DIR", tempfile.mkdtemp(prefix="spcomp-gpu-"))
    logs = logs or Path(tempfile.mkdtemp(prefix="spcomp-gpu-log-"))
    for place in (folder, logs):
        place.mkdir(parents=True, exist_ok=True)
    run = Run(lines, folder, logs, {**describe(0), "dry": dry})
    if tests:
        run.tests = _tested(TESTS * seconds, logs)
        sys.stderr.write(f"tests: {run.tests['summary']}\n")
    idle = 0
    while run.left and time.time() < until - RESERVE / 2 and idle < 3:
        before = len(run.rows) + sum(map(len, run.blocked.values()))
        work(run, until - RESERVE, dry=dry)
        idle = 0 if len(run.rows) + sum(map(len, run.blocked.values())) > before else idle + 1
    run.close()
    return run


def _tested(seconds: float, logs: Path) -> dict[str, Any]:
    """Return what the tests said; what is wrong with running them ends nothing else."""
    try:
        return checks.run(seconds, logs)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"summary": f"they could not be run: {message(error)}", "status": -1, "seconds": 0.0}


def work(run: Run, until: float, *, dry: bool) -> None:
    """Let one worker measure what is left; note who took it down, if somebody did."""
    events = run.logs / "events.jsonl"
    seen = len(_read(events))
    task = {
        "lines": [line.label for line in run.left], "events": str(events), "dry": dry,
        "until": until, "blocked": run.blocked,
    }  # fmt: skip
    with (run.logs / "worker.log").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            WORKER,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_path()])},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: what it is watched for
            process.stdin.write(json.dumps(task))
            process.stdin.close()
        why = _watch(run, process, events, seen, until + RESERVE / 2)
    if why:
        run.gone(why)


def _watch(run: Run, process: Any, events: Path, seen: int, until: float) -> str:
    """Take the events of *process* until it ends; return why it ended early, or nothing."""
    heard = time.time()
    while True:
        ended = process.poll()
        for event in _read(events)[seen:]:
            run.take(event)
            seen, heard = seen + 1, time.time()
        if ended is not None:
            return "" if ended == 0 else f"the process ended with status {ended} (worker.log)"
        if time.time() > until or time.time() - heard > SILENT:
            process.kill()
            process.wait()
            late = time.time() > until
            return "the time was over" if late else f"nothing happened for {SILENT:.0f} s"
        time.sleep(POLL)


def _read(events: Path) -> list[dict[str, Any]]:
    if not events.exists():
        return []
    return parse(events.read_text(encoding="utf-8").splitlines())


def _path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
