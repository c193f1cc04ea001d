"""Trains the model that comes with spcomp: measures generated matrices, and writes the weights.

``python -m benchmarks.train [--rows FILE] [--budget 900] [--write FILE]``; needs xgboost. It
measures each plain candidate of ``suggest`` against the default, on matrices of many kinds and
several sizes, and then leaves out one kind after the other. Weights are written only if no case
that the model never saw was slower than 0.95 of the default.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

from benchmarks import machine, programs
from benchmarks.kinds import FAMILIES, KINDS
from benchmarks.tune import arguments_of
from spcomp.cli.timing import geometric_mean
from spcomp.target import Target
from spcomp.tune.model import rank_correlation
from spcomp.tune.weights import Tree, Weights, file_for, of_any_name

if TYPE_CHECKING:
    from spcomp.tune.space import Candidate
    from spcomp.tune.task import Task

Rows = list["Row"]
GUARD = 0.95  # of the default: what no case may be slower than
SURE = (1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 2.0)  # predictions from which one may trust the model
DIFFERENT = 1.3
EACH = 0.4  # seconds, at most, that a candidate is timed
PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "min_child_weight": 3,
    "seed": 0,
    "nthread": 1,
    "verbosity": 0,
}
TREES = 100


SIZES = (10_000, 100_000, 1_500_000)
OPERATORS: dict[str, tuple[str, Callable[[int, int, Any], dict[str, Any]]]] = {
    "spmv": (programs.SPMV, lambda _, n, r: {"X": r.random(n, dtype=np.float32)}),
    "spmm 8": (programs.SPMM, lambda _, n, r: {"B": r.random((n, 8), dtype=np.float32)}),
    "spmm 32": (programs.SPMM, lambda _, n, r: {"B": r.random((n, 32), dtype=np.float32)}),
    "sddmm 32": (
        programs.SDDMM,
        lambda m, n, r: {
            "X": r.random((m, 32), dtype=np.float32),
            "Y": r.random((n, 32), dtype=np.float32),
        },
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A candidate that was measured: how many times as fast as the default, and its features.

    *again*: the same of a second timing, after the first of all others.
    """

    operator: str
    kind: str
    nnz: int
    candidate: str
    speedup: float
    again: float
    conversion: float
    features: dict[str, float]

    @property
    def mean(self) -> float:
        """The mean of both timings."""
        return float(np.sqrt(self.speedup * self.again))

    @property
    def is_plain(self) -> bool:
        """Whether ``suggest`` would choose among such candidates: see ``plain_candidates``."""
        from spcomp.tune.suggestion import has_hub

        found = of_any_name(self.features)
        return not (found["format"] and has_hub(found["matrix.longest"], found["matrix.nnz"]))

    @property
    def case(self) -> tuple[str, str, int]:
        """The operator and matrix."""
        return self.operator, self.kind, self.nnz


def task_of(operator: str, kind: str, size: int) -> Task:
    """Return *operator* on a matrix of *kind* with about *size* elements."""
    from spcomp.tune.task import Task

    source, make = OPERATORS[operator]
    program = programs.parse(source)
    csr = sps.csr_matrix(KINDS[kind](size), dtype=np.float32)
    csr.sum_duplicates()
    return Task.of(program, arguments_of(program, csr, make(*csr.shape, np.random.default_rng(0))))


def measured(operator: str, kind: str, size: int) -> Iterator[Row]:
    """Yield the candidates for *operator* on a matrix of *kind* with about *size* elements."""
    from spcomp.tune.bound import Bounds
    from spcomp.tune.choice import Choice
    from spcomp.tune.measure import Bench, race
    from spcomp.tune.space import Candidate, Space
    from spcomp.tune.suggestion import plain_candidates

    task = task_of(operator, kind, size)
    statistics = dict(task.problem.matrices)
    nnz = max(matrix.nnz for matrix in statistics.values())
    space = Space.of(task.asked)
    bounds, bench = Bounds(space, statistics), Bench(task)
    (default,) = bench.compile([(Candidate(), Choice())])
    bench.prepare(default)
    yield Row(operator, kind, nnz, "default", 1.0, 1.0, 0.0, bounds.features(Candidate()))
    others = [c for c in dict.fromkeys(plain_candidates(space, statistics)) if c != Candidate()]
    chosen: list[tuple[Candidate, Choice]] = [
        (c, choice) for c in others if (choice := space.choice(c)) is not None
    ]
    entries = [entry for entry in bench.compile(chosen) if not entry.error]
    for entry in entries:
        bench.prepare(entry)
    ready = [entry for entry in entries if entry.call is not None]
    timings = [
        [race(e, default, time.perf_counter() + EACH, patient=True).value for e in ready]
        for _ in range(2)
    ]
    for entry, speedup, again in zip(ready, *timings, strict=True):
        features = bounds.features(entry.candidate)
        name, conversion = str(entry.candidate), entry.conversion / max(entry.seconds, 1e-9)
        yield Row(operator, kind, nnz, name, speedup, again, conversion, features)


def collect(path: Path, budget: float) -> Rows:
    """Return what *path* has, and what is measured and added to it within *budget* seconds."""
    rows = (
        [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    )
    known = {(row.operator, row.kind, _scale(row.nnz)) for row in rows}
    until = time.perf_counter() + budget
    for size in SIZES:
        for kind in KINDS:
            for operator in OPERATORS:
                if time.perf_counter() > until or (operator, kind, _scale(size)) in known:
                    continue
                new = list(measured(operator, kind, size))
                rows += new
                with path.open("a") as file:
                    file.writelines(json.dumps(asdict(row)) + "\n" for row in new)
                best = max(new, key=lambda row: row.speedup)
                sys.stderr.write(
                    f"{operator}, {kind}, {size}: {best.candidate} {best.speedup:.2f}\n"
                )
    return rows


def _scale(nnz: int) -> int:
    """Return which of SIZES is nearest."""
    return int(np.argmin([abs(np.log(max(nnz, 1) / size)) for size in SIZES]))


def trained(rows: Iterable[Row], sure: float = SURE[0], note: str = "") -> Weights:
    """Return the weights that xgboost finds for *rows*."""
    import xgboost

    listed = list(rows)
    features = [of_any_name(row.features) for row in listed]
    names = tuple(sorted({name for found in features for name in found}))
    table = [[found.get(name, np.nan) for name in names] for found in features]
    speedups = np.log([row.mean for row in listed])
    matrix = xgboost.DMatrix(np.array(table), label=np.clip(speedups, -1.5, 1.5))
    booster = xgboost.train({**PARAMETERS, "base_score": 0.0}, matrix, num_boost_round=TREES)
    saved = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    trees = tuple(map(_tree, saved))
    return Weights(names, trees, 0.0, sure, note)


def _tree(saved: dict[str, Any]) -> Tree:
    """Return the tree that a file of xgboost describes; at a leaf the condition is the value."""
    yes, no = saved["left_children"], saved["right_children"]
    features = [-1 if at < 0 else k for k, at in zip(saved["split_indices"], yes, strict=True)]
    ways = zip(yes, no, saved["default_left"], strict=True)
    missing = [left if to_left else right for left, right, to_left in ways]
    exact = np.array(saved["split_conditions"], np.float32).tolist()  # as xgboost compares them
    columns = features, exact, yes, no, missing
    return Tree(*map(tuple, columns))


@dataclass(frozen=True, slots=True)
class Left:
    """What a model that never saw *case*'s kind expects of its candidates, and what they have.

    *agreement*: the rank correlation of the two timings, which no model can pass by much.
    """

    case: tuple[str, str, int]
    expected: dict[str, float]
    speedups: dict[str, float]
    agreement: float

    @property
    def ranks(self) -> float:
        """The rank correlation of what is expected with what was measured."""
        measured = [self.speedups[name] for name in self.expected]
        return rank_correlation(list(self.expected.values()), measured)

    @property
    def differs(self) -> bool:
        """Whether the candidates differ by more than the noise of timings."""
        return max(self.speedups.values()) > DIFFERENT * min(self.speedups.values())

    def gained(self, sure: float) -> float:
        """Return the measured speed-up of what is chosen from a prediction of *sure* on."""
        best = max(self.expected, key=lambda name: self.expected[name])
        return self.speedups[best if self.expected[best] >= sure else "default"]


def left_out(rows: Rows, groups: Mapping[str, str]) -> list[Left]:
    """Return, for each case, what the model expects that is trained on all other groups of kinds.

    *groups*: the group of each kind.
    """
    found: list[Left] = []
    for group in dict.fromkeys(groups[row.kind] for row in rows):
        model = trained(row for row in rows if groups[row.kind] != group)
        held = [row for row in rows if groups[row.kind] == group]
        for case in dict.fromkeys(row.case for row in held):
            these = [row for row in held if row.case == case]
            values = model.predict([row.features for row in these])
            base = values[0]
            expected = {r.candidate: v / base for r, v in zip(these, values, strict=True)}
            found.append(
                Left(
                    case,
                    expected,
                    {r.candidate: r.mean for r in these},
                    rank_correlation([r.speedup for r in these], [r.again for r in these]),
                )
            )
    return found


def report(cases: list[Left]) -> str:
    """Return what the cases gain for each threshold, and how well they are ranked, as text."""
    lines = []
    for sure in SURE:
        gains = {left.case: left.gained(sure) for left in cases}
        worst = min(gains, key=lambda case: gains[case])
        changed = sum(gain != 1.0 for gain in gains.values())
        lines.append(
            f"from {sure:.2f} on: {geometric_mean(list(gains.values())):.3f} of the default in"
            f" geometric mean over {len(gains)} cases, {changed} changed, least"
            f" {gains[worst]:.2f} ({', '.join(map(str, worst))})"
        )
    pairs = [
        (expected, left.speedups[name])
        for left in cases
        for name, expected in left.expected.items()
        if name != "default"  # its speed-up is 1
    ]
    everywhere = rank_correlation([x for x, _ in pairs], [x for _, x in pairs])
    lines.append(f"rank correlation over all {len(pairs)} candidates: {everywhere:.2f}")
    best = geometric_mean([max(left.speedups.values()) for left in cases])
    lines.append(f"the best candidate each time: {best:.3f}")
    some = [left for left in cases if len(left.expected) > 2]
    apart = [left for left in some if left.differs]
    for of, which in ((some, "all"), (apart, f"those with candidates {DIFFERENT} times apart")):
        lines.append(
            f"mean rank correlation in a case, {len(of)} ({which}):"
            f" {np.mean([left.ranks for left in of]):.2f}, of two timings with each other"
            f" {np.mean([left.agreement for left in of]):.2f}"
        )
    return "\n".join(lines)


def main(given: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.train", description=__doc__)
    add = parser.add_argument
    add("--rows", type=Path, default=Path("train.jsonl"), help="measurements, which are added to")
    add("--budget", type=float, default=900.0, help="seconds for measurements (900)")
    add("--threads", type=int, default=2, help="default: 2")
    add("--note", default="", help="what else is to be said about the run")
    add(
        "--write",
        type=Path,
        nargs="?",
        const=file_for(Target()),
        metavar="FILE",
        help="write the weights",
    )
    asked = parser.parse_args(given)
    from spcomp.runtime.pool import set_num_threads

    set_num_threads(asked.threads)
    rows = [row for row in collect(asked.rows, asked.budget) if row.is_plain]
    families = {kind: family for family, kinds in FAMILIES.items() for kind in kinds}
    sys.stdout.write(f"leaving out a family of kinds:\n{report(left_out(rows, families))}\n")
    cases = left_out(rows, {kind: kind for kind in KINDS})
    sys.stdout.write(f"leaving out a kind:\n{report(cases)}\n")
    safe = [s for s in SURE if min(left.gained(s) for left in cases) >= GUARD]
    if not safe:
        sys.stdout.write("no threshold is safe: nothing is written\n")
        return 1
    where = machine.describe(asked.threads)
    note = (
        f"{len(rows)} measurements of {len(cases)} cases on {where['cpu']}, {where['threads']}"
        f" threads, {where['date'][:10]}. {asked.note}"
    )
    text = trained(rows, safe[0], note.strip()).to_json()
    sys.stdout.write(f"from {safe[0]} on no case is below {GUARD}; {len(text)} bytes\n")
    if asked.write:
        asked.write.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
