"""What came of one program, as data that a child process can print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.second import calls, scripts, shrink, stages, trials
from tests.second.comparison import Failure, opened
from tests.second.stages import ScriptTrial
from tests.second.trials import Trial

PLACE = re.compile(r"^(<\w+ \w+>|[\w./]+):\d+:\d+: ")


def outcome(seed: int, seconds: float) -> dict[str, Any]:
    """Run the program of *seed*, every fourth in the script language.

    A failure of the others is made smaller, for *seconds* at most.
    """
    case: Trial | ScriptTrial = stages.trial(seed) if seed % 4 == 3 else trials.trial(seed)
    try:
        refused = stages.run(case) if isinstance(case, ScriptTrial) else calls.run(case)
    except Failure as failure:
        told = _told(case, failure)
        if isinstance(case, Trial):
            small, again = shrink.shrunk(case, failure.kind, seconds)
            told += ["smaller:", *_told(small, again or failure)]
        return {"kind": failure.kind, "failure": "\n".join(told), **case.counts}
    return {"refused": normal(refused), **case.counts}


def normal(refusal: str) -> str:
    """Return the first line of a refusal, without what differs from program to program."""
    line = PLACE.sub("", refusal.partition("\n")[0])
    return re.sub(r"\b[A-Zt]\d*(\[.*?\])|\b[A-Z]\b|\b[ijkl]\b|\d+", "_", line)[:100]


def _told(case: Trial | ScriptTrial, failure: Failure) -> list[str]:
    """Return a failure as text: the program, what it was given, and the command that repeats it."""
    lines = [
        f"{failure.kind}: {failure.text}",
        f"  python -m tests.second --seed {case.seed} --count 1",
    ]
    if isinstance(case, ScriptTrial):
        lines += [f"    {line}" for line in scripts.text(case.script).splitlines()]
    else:
        lines += [f"    {line}" for line in case.program.text().splitlines()]
        if case.program.formats or case.program.semiring != "plus_times":
            lines.append(f"  formats {case.program.formats}, semiring {case.program.semiring}")
    return [*lines, *_arguments(case, failure)]


def _arguments(case: Trial | ScriptTrial, failure: Failure) -> Iterator[str]:
    for name, value in failure.arguments.items():
        stored = ""
        if isinstance(case, Trial):
            names = dict.fromkeys(variant[name].name for variant in case.storages)
            stored = f", stored as {'; '.join(names)}"
        try:
            numbers = opened(value)[0]
        except Exception:  # what cannot be opened is shown as it is
            yield f"  {name} = {value!r}"
            continue
        shown = repr(numbers.tolist()) if numbers.size <= 40 else f"array of {numbers.shape}"
        yield f"  {name} = {shown}, {numbers.dtype}{stored}"
