"""``python -m benchmarks.against BASE``: two checkouts of spcomp on the suite, in turns.

Each checkout has a process of its own, with its own suite and its own cache, and does nothing while
the other one is timed; who begins changes from round to round. Ratios are BASE's time over ours.
Where the operands come to lie in memory differs by process and is worth 10 % at times: ``--pairs``
takes several pairs of processes, and a line is then the median of theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.problem import Case

HERE = Path(__file__).resolve().parents[1]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Return the command line, parsed; exits for a wrong one."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.against", description="spcomp against another checkout of spcomp"
    )
    add = parser.add_argument
    add("base", type=Path, metavar="BASE", help="the other checkout")
    add("--only", nargs="+", metavar="OP", help="operators, such as spmm sddmm")
    add("--matrices", nargs="+", metavar="M", help="workloads by name, or .mtx files")
    add("--feat", nargs="+", type=int, metavar="F", help="feature sizes of the suite to keep")
    add("--pairs", type=int, default=1, help="pairs of processes (default: 1)")
    add("--rounds", type=int, default=21, help="samples of each checkout (default: 21)")
    add("--seconds", type=float, default=0.04, help="length of a sample (default: 0.04)")
    add("--threads", type=int, default=2, help="threads for both (default: 2)")
    add("--quick", action="store_true", help="small inputs: does it all run?")
    add("--json", type=Path, metavar="FILE", help="write every sample")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    from benchmarks.suite import select

    asked = arguments(given)
    cases = select(asked.only, asked.matrices, asked.feat)
    with tempfile.TemporaryDirectory() as scratch:
        pairs = [_pair(cases, Path(scratch), asked) for _ in range(asked.pairs)]
    lines = [line for pair in pairs for line in pair]
    if asked.pairs > 1:
        for several in zip(*pairs, strict=True):
            _say_median(several)
    if asked.json:
        asked.json.write_text(json.dumps(lines, indent=1), encoding="utf-8")
    return 0 if lines and not any("missing" in line for line in lines) else 1


def _pair(cases: list[Case], scratch: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the samples of *cases* in a new pair of processes."""
    roots = (("base", asked.base), ("new", HERE))
    sides = [Side(root.resolve(), asked, scratch / name) for name, root in roots]
    try:
        return [_compared(case, sides, asked) for case in cases]
    finally:
        for side in sides:
            side.close()


def _say_median(pairs: tuple[dict[str, Any], ...]) -> None:
    """Print the median of what several pairs of processes say of a line."""
    ratios = sorted(pair["ratio"] for pair in pairs if "ratio" in pair)
    if ratios:
        _say(
            f"{pairs[0]['label']:32} {statistics.median(ratios):6.3f}"
            f"  {ratios[0]:.3f} to {ratios[-1]:.3f}   {len(ratios)} pairs"
        )


class Side:
    """A process that runs the suite of the checkout at *root*, on request."""

    def __init__(self, root: Path, asked: argparse.Namespace, cache: Path) -> None:
        own = {"PYTHONPATH": str(root), "SPCOMP_CACHE_DIR": str(cache)}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(asked.threads), str(int(asked.quick))],
            cwd=root,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **what: Any) -> dict[str, Any]:
        """Return the answer of the process; raises RuntimeError if it has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(what) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError("one of the two processes has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _compared(case: Case, sides: list[Side], asked: argparse.Namespace) -> dict[str, Any]:
    """Return the samples of *case* on both sides, printed as a line."""
    from spcomp.cli.timing import Sample, ratio

    answers = [side.ask(label=case.label) for side in sides]
    for answer in answers:
        if "missing" in answer:
            _say(f"{case.label:32} {answer['missing']}")
            return {"label": case.label, **answer}
    taken: tuple[list[Sample], list[Sample]] = ([], [])
    for at in range(asked.rounds):
        for side in (0, 1) if at % 2 else (1, 0):
            taken[side].append(Sample(**sides[side].ask(seconds=asked.seconds)))
    base, new = taken
    found = ratio({"base": (base, new)})
    fastest = min(s.seconds for s in base) / min(s.seconds for s in new)
    _say(
        f"{case.label:32} {found.value:6.3f}  {found.low:.3f} to {found.high:.3f}"
        f"   fastest samples {fastest:.3f}   {min(s.seconds for s in new) * 1e3:9.4f} ms"
        f"{'' if found.clean else '   disturbed'}"
    )
    samples = {"base": [*map(asdict, base)], "new": [*map(asdict, new)]}
    return {"label": case.label, "ratio": found.value, **samples}


def serve(threads: int, *, quick: bool) -> None:
    """Answer requests on standard input: a line of the suite is made ready, or timed once."""
    from benchmarks import contenders
    from spcomp.cli import timing

    contenders.set_threads(threads)
    call: Any = None
    for line in sys.stdin:
        what = json.loads(line)
        if "label" in what:
            call, answer = _ready(what["label"], quick=quick)
        else:
            taken = timing.measure({"": call}, rounds=1, seconds=what["seconds"], retakes=0)
            answer = asdict(taken[""][0])
        _say(json.dumps(answer))


def _ready(label: str, *, quick: bool) -> tuple[Any, dict[str, Any]]:
    """Return the call that the line *label* is about, checked, or None and why not."""
    from benchmarks import harness
    from benchmarks.contenders import contenders
    from benchmarks.operators import problem
    from benchmarks.suite import SUITE

    case = next((case for case in SUITE if case.label == label), None)
    if case is None:
        return None, {"missing": "is no line of both suites"}
    wrong: dict[str, str] = {}
    rivals = [c for c in contenders(case.operator) if c.is_ours]
    ready = harness.prepare(problem(case, quick=quick), rivals, wrong, wrong)
    names = (harness.CALL, harness.BOUND)
    for name in names if case.pairing == "call" else reversed(names):
        if name in ready:
            return ready[name].call, {}
    return None, {"missing": "; ".join(wrong.values())}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if __package__:
        sys.exit(main())
    serve(int(sys.argv[1]), quick=sys.argv[2] == "1")
