"""The process that measures: ``python -m benchmarks.gpu.worker`` with a task on standard input.

It writes what happens to a file, a line of JSON each: ``about``, ``begin`` before a contender runs
for the first time, ``row`` with a result. So the parent knows what ran last when the process is
gone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import MissingError
from benchmarks.gpu.devices import DeviceLostError, Gpu, Host
from benchmarks.gpu.harness import Row, message, run_line
from benchmarks.gpu.lines import SUITE, allowance
from benchmarks.gpu.problems import problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from benchmarks.gpu.devices import Device
    from benchmarks.gpu.lines import Line
    from benchmarks.gpu.problems import Problem

MODULES = ("ours", "with_torch", "with_cusparse", "with_triton", "with_cuda")  # ours first
LOST = 3  # the exit status of a process that has lost the GPU
SHARE = 0.5  # of the time of a line for its race; the rest is for compilation and checks


def contenders(operation: str, device: Device) -> dict[str, Callable[[Problem], Any]]:
    """Return who computes *operation* on *device*, by name; rivals need a GPU."""
    found: dict[str, Any] = {}
    for name in MODULES if device.is_gpu else MODULES[:1]:
        try:
            found |= import_module(f"benchmarks.gpu.{name}").CONTENDERS.get(operation, {})
        except Exception as error:  # of a library that is there and does not work
            found[name] = partial(_refuse, message(error))
    return found


def _refuse(why: str, work: Problem) -> None:
    raise MissingError(f"{why}, for {work.line.label}")


def measure(
    lines: Sequence[Line],
    device: Device,
    until: float,
    blocked: Mapping[str, Mapping[str, str]],
    emit: Callable[[dict[str, Any]], None],
) -> None:
    """Measure *lines* until the time *until*, without those that are *blocked* (and why)."""
    for at, line in enumerate(lines):
        left, start = until - time.time(), time.perf_counter()
        row = Row(line, missing=dict(blocked.get(line.label, {})))
        if left <= 0:
            row.missing["all"] = "no time was left"
        else:
            try:
                _measured(line, device, SHARE * allowance(lines[at:], left), row, emit)
            except DeviceLostError as error:
                if row.times:
                    row.missing["afterwards"] = str(error)
                    emit({"row": row.to_json()})
                emit({"lost": str(error)})
                raise
        row.seconds = time.perf_counter() - start
        emit({"row": row.to_json()})


def _measured(
    line: Line, device: Device, seconds: float, row: Row, emit: Callable[[dict[str, Any]], None]
) -> None:
    """Measure *line* into *row*; raises DeviceLostError if the GPU is gone."""

    def begin(who: str) -> None:
        if row.times:
            emit({"row": row.to_json(), "partial": True})
        emit({"begin": line.label, "who": who})

    try:
        begin("operands")
        work = problem(line, device.workload(line.workload), device)
        run_line(work, contenders(line.operation, device), seconds, row, begin)
    except DeviceLostError:
        raise
    except Exception as error:
        row.missing["line"] = message(error)
    device.synchronize()
    device.release()


def _bandwidth(device: Device) -> float:
    """Return the bandwidth of a copy; 0, and limits are not shown, where it cannot be measured."""
    try:
        return device.copy_bandwidth()
    except Exception as error:
        sys.stderr.write(f"the bandwidth of a copy: {message(error)}\n")
        return 0.0


def main() -> int:
    """Do the task on standard input; returns the exit status."""
    task = json.load(sys.stdin)
    by_label = {line.label: line for line in SUITE}
    lines = [by_label[label] for label in task["lines"]]
    with Path(task["events"]).open("a", encoding="utf-8") as file:

        def emit(event: dict[str, Any]) -> None:
            file.write("\n" + json.dumps(event))  # after what another one was cut off in
            file.flush()

        device = Host() if task["dry"] else Gpu()
        emit({"about": device.describe()})
        emit({"about": {"copy_bandwidth": _bandwidth(device)}})
        try:
            measure(lines, device, task["until"], task["blocked"], emit)
        except DeviceLostError as error:
            sys.stderr.write(f"the GPU was lost: {error}\n")
            file.flush()
            os._exit(LOST)  # destructors would ask the GPU
    return 0


def parse(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the events of a file, without lines that are cut off."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
