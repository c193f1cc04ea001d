"""What came of one program, as data that a child process can print."""

from __future__ import annotations

import re
from typing import Any

from tests.second import shrink, trials
from tests.second.trials import Failure, Trial

PLACE = re.compile(r"^(<notation \w+>|[\w./]+):\d+:\d+: ")


def outcome(seed: int, seconds: float) -> dict[str, Any]:
    """Run the program of *seed*; a failure is made smaller for *seconds* at most."""
    case = trials.trial(seed)
    try:
        refused = trials.run(case)
    except Failure as failure:
        small, again = shrink.shrunk(case, failure.kind, seconds)
        text = "\n".join([_told(case, failure), "smaller:", _told(small, again or failure)])
        return {"kind": failure.kind, "failure": text, **case.counts}
    return {"refused": normal(refused), **case.counts}


def normal(refusal: str) -> str:
    """Return the first line of a refusal, without what differs from program to program."""
    line = PLACE.sub("", refusal.partition("\n")[0])
    return re.sub(r"\b[A-Zt]\d*(\[.*?\])?|\b[ijkl]\b|\d+", "_", line)[:100]


def _told(case: Trial, failure: Failure) -> str:
    """Return a failure as text: the program, what it was given, and the command that repeats it."""
    program = case.program
    lines = [f"{failure}", f"  python -m tests.second --seed {case.seed} --count 1"]
    lines += [f"    {line}" for line in program.text().splitlines()]
    if program.formats or program.semiring != "plus_times":
        lines.append(f"  formats {program.formats}, semiring {program.semiring}")
    for name, value in failure.arguments.items():
        stored = "; ".join(dict.fromkeys(variant[name].name for variant in case.storages))
        try:
            numbers = trials.opened(value)[0]
        except Exception:  # what cannot be opened is shown as it is
            lines.append(f"  {name} = {value!r}")
            continue
        shown = repr(numbers.tolist()) if numbers.size <= 40 else f"array of {numbers.shape}"
        lines.append(f"  {name} = {shown}, {numbers.dtype}, stored as {stored}")
    return "\n".join(lines)
