"""How near a search comes to the best of all candidates, with which share of the measurements.

``python -m benchmarks.tune_exhaustive --record FILE [--table FILE]`` times all candidates of spaces
of some hundreds, for six pairs of a program and a matrix. Pairs that are in FILE are not timed
again; ``--compile`` only fills the cache of compiled programs. The search then runs as
``spcomp.tune`` does, but looks the times up, and is stopped after 15 % of the measurements. What it
found, and the fastest of all, are then timed once more, several times.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from math import inf, sqrt
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.train import task_of
from spcomp.tune.measure import Bench, Entry, Interval, race
from spcomp.tune.model import has_xgboost, rank_correlation
from spcomp.tune.search import Session
from spcomp.tune.space import Candidate, Space
from spcomp.tune.store import Store
from spcomp.tune.templates import DEFAULT, TEMPLATES

if TYPE_CHECKING:
    from spcomp.tune.choice import Choice
    from spcomp.tune.task import Task
    from spcomp.tune.templates import Value

SIZE = 200_000  # elements, about: a call takes a fraction of a millisecond
PART = 0.15  # of the measurements that a search may make
ROUNDS = 24  # of a timing
FINALISTS = 20  # the fastest by both timings, which are timed with what searches found,
SWEEPS = 20  # so many times in turns
SEEDS = range(6)  # of searches
Values = Mapping[str, tuple["Value", ...]]
FEW: Values = {  # for spaces of formats and tiles: of all values there would be too many
    **TEMPLATES["cpu"].values,
    "tile": (DEFAULT, 1, 2, 4, 16),
    "prefetch": (DEFAULT, 0, 8, 32),
    "rows": (DEFAULT, "balanced"),
    "chunk": (DEFAULT, 1024),
    "hub": (DEFAULT,),
}
CHUNKS = (1 << k for k in range(8, 17)), (3 << k for k in range(8, 15))
FINE: Values = {  # for spaces of shares
    **TEMPLATES["cpu"].values,
    "tile": (DEFAULT,),
    "prefetch": (DEFAULT,),
    "chunk": (DEFAULT, *chain(*CHUNKS)),
    "hub": (DEFAULT, 8192),
}
PAIRS: dict[tuple[str, str], Values] = {
    ("spmv", "laplacian 3-D"): FINE,
    ("spmv", "power law"): FINE,
    ("spmm 8", "blocks of 8"): FEW,
    ("spmm 32", "uniform"): FEW,
    ("spmm 32", "one hub"): FEW,
    ("sddmm 32", "neighbours"): {**FINE, "prefetch": (DEFAULT, 64), "hub": (DEFAULT, 512, 8192)},
}


@dataclass(slots=True)
class Times:
    """What was measured of one machine code: times as fast as the default, in two timings.

    *seconds*: of a call; *conversion*: of the matrix. *finals*: the ratio in each sweep, if any.
    """

    first: Interval
    second: Interval
    seconds: float
    conversion: float
    finals: list[float] = field(default_factory=list)

    @property
    def both(self) -> float:
        """The mean of the two timings."""
        return sqrt(self.first.value * self.second.value)


@dataclass(slots=True)
class Record:
    """What was measured of a pair: the code of each candidate, and the times of each code."""

    codes: dict[str, str]
    times: dict[str, Times]

    @property
    def finals(self) -> dict[str, float]:
        """The codes that were timed in the end, times as fast as the default."""
        return {code: median(t.finals) for code, t in self.times.items() if t.finals}

    @staticmethod
    def from_json(read: Any) -> Record:
        """Return the record that ``asdict`` made *read* of."""
        times = {
            code: Times(
                Interval(**found["first"]),
                Interval(**found["second"]),
                found["seconds"],
                found["conversion"],
                found.get("finals", []),
            )
            for code, found in read["times"].items()
        }
        return Record(read["codes"], times)


def compiled(space: Space, bench: Bench) -> list[Entry]:
    """Return all candidates of *space* that can be compiled, the default first."""
    chosen: dict[Choice, Candidate] = {}
    every = [c for formats in space.formats for c in space.everything(formats)]
    for candidate in every:
        if (choice := space.choice(candidate)) is not None:
            chosen.setdefault(choice, candidate)
    entries = bench.compile((candidate, choice) for choice, candidate in chosen.items())
    return [entry for entry in entries if not entry.error]


def prepared(space: Space, bench: Bench) -> tuple[dict[str, str], dict[str, Entry]]:
    """Return the code of each candidate of *space*, and one of those with each code, ready."""
    entries = compiled(space, bench)
    distinct = {entry.code: entry for entry in reversed(entries)}
    codes = {str(entry.candidate): entry.code for entry in entries}
    return codes, distinct


def recorded(space: Space, bench: Bench) -> Record:
    """Return the times of all candidates of *space*, each timed twice, in different orders."""
    codes, distinct = prepared(space, bench)
    default, order = distinct[codes["default"]], random.Random(0)
    for entry in distinct.values():
        bench.prepare(entry)
    ready = [code for code, entry in distinct.items() if entry.call is not None]
    timings: list[dict[str, Interval]] = []
    for _ in range(2):
        order.shuffle(ready)
        timings.append({code: _raced(distinct[code], default) for code in ready})
    first, second = timings
    about = {code: (distinct[code].seconds, distinct[code].conversion) for code in ready}
    return Record(codes, {code: Times(first[code], second[code], *about[code]) for code in ready})


def _raced(entry: Entry, default: Entry) -> Interval:
    return race(entry, default, inf, most=ROUNDS, patient=True)


def add_finals(record: Record, space: Space, bench: Bench, found: set[str]) -> None:
    """Time the fastest codes, and those *found* by searches, in turns: noise comes and goes."""
    _, distinct = prepared(space, bench)
    default = distinct[record.codes["default"]]
    fastest = sorted(record.times, key=lambda code: -record.times[code].both)[:FINALISTS]
    finalists = list(dict.fromkeys((*fastest, *sorted(found), record.codes["default"])))
    for code in finalists:
        bench.prepare(distinct[code])
    for _ in range(SWEEPS):
        for code in finalists:
            record.times[code].finals.append(_raced(distinct[code], default).value)


class Replay(Bench):
    """Looks up the times of a record: the first race of a code is the first timing."""

    def __init__(self, record: Record) -> None:
        self.record, self.raced, self.measured = record, Counter[str](), 0

    def compile(self, candidates: Iterable[tuple[Candidate, Choice]]) -> list[Entry]:
        """Return the candidates with their codes; what is not in the record is refused."""
        entries = [Entry(candidate, choice) for candidate, choice in candidates]
        for entry in entries:
            entry.code = self.record.codes.get(str(entry.candidate), "")
            entry.error = "" if entry.code in self.record.times else "not in the record"
        return entries

    def prepare(self, entry: Entry) -> None:
        """Look up what is known before races."""
        times = self.record.times[entry.code]
        self.measured += 1
        entry.seconds, entry.conversion, entry.call = times.seconds, times.conversion, int

    def race(self, ours: Entry, other: Entry, *_: Any, **__: Any) -> Interval:
        """Return the ratio of the times as the first or second timing knows ours."""
        times = self.record.times[ours.code]
        self.raced[ours.code] += 1
        self.measured += self.raced[ours.code] > 1
        timing = times.first if self.raced[ours.code] == 1 else times.second
        return timing.times(1 / self.record.times[other.code].first.value)

    def release(self, keep: Iterable[Entry]) -> None:
        """Do nothing: there are no matrices."""


def found(task: Task, space: Space, record: Record, seed: int) -> str:
    """Return the code that a search finds with its share of the measurements."""
    replay, most = Replay(record), PART * len(record.times)
    session = Session(
        task, budget=1e6, space=space, seed=seed, store=Store(None), bench=replay, most=most
    )
    session.run()
    assert replay.measured <= most
    return record.codes[str(session.result().candidate)]


@dataclass(frozen=True, slots=True)
class Line:
    """What came of a pair. *reached*: of the best, the speed that each search's winner has.

    *codes*: different machine codes, which are all measured; *measured*: by a search. *agreement*:
    the rank correlation of the two timings.
    """

    operator: str
    kind: str
    candidates: int
    codes: int
    measured: int
    best: str
    speedup: float
    reached: list[float]
    agreement: float

    def __str__(self) -> str:
        share = f"{self.measured} ({self.measured / self.codes:.0%})"
        reached = f"{mean(self.reached):.3f} | {min(self.reached):.3f}"
        return (
            f"| {self.operator} | {self.kind} | {self.codes} | {share} | {self.best} |"
            f" {self.speedup:.2f} | {reached} | {self.agreement:.2f} |"
        )


def reached(record: Record, winners: list[str]) -> list[float]:
    """Return the speed of each of *winners*, as a part of that of the best.

    Every other sweep says which one is the best, and the sweeps between how fast the two are, and
    the other way round: one that is chosen for its times looks faster in these than it is.
    """
    finals = {code: times.finals for code, times in record.times.items() if times.finals}
    halves = slice(0, None, 2), slice(1, None, 2)
    ratios: dict[str, list[float]] = {winner: [] for winner in winners}
    for choosing, judging in (halves, halves[::-1]):
        best = max(finals, key=lambda code: median(finals[code][choosing]))
        speed = median(finals[best][judging])
        for winner, found in ratios.items():
            found.append(median(finals[winner][judging]) / speed)
    return [mean(ratios[winner]) for winner in winners]


def line_of(pair: tuple[str, str], record: Record, winners: list[str]) -> Line:
    """Return how near searches that found *winners* come to the best of *record*."""
    finals, timed = record.finals, record.times.values()
    best = max(finals, key=lambda code: finals[code])
    return Line(
        *pair,
        candidates=len(record.codes),
        codes=len(timed),
        measured=int(PART * len(timed)),
        best=next(name for name, code in record.codes.items() if code == best),
        speedup=finals[best],
        reached=reached(record, winners),
        agreement=rank_correlation([t.first.value for t in timed], [t.second.value for t in timed]),
    )


def table(lines: list[Line], note: str) -> str:
    """Return the results as Markdown."""
    where = machine.describe(2)
    return (
        "## Against all candidates\n\n`python -m benchmarks.tune_exhaustive`,"
        f" {where['date'][:10]}, {where['cpu']}, {where['threads']} threads. {note}\n\n"
        "| program | matrix | codes | measured | best | of the default | reached, mean | least |"
        " agreement |\n|---|---|---|---|---|---|---|---|---|\n"
        + "".join(f"{line}\n" for line in lines)
    )


def lines(asked: argparse.Namespace) -> Iterator[Line]:
    """Yield what comes of each pair, measured if need be."""
    path: Path = asked.record
    known = json.loads(path.read_text()) if path.exists() else {}
    for pair, values in PAIRS.items():
        name = ", ".join(pair)
        if pair[0] not in asked.only or (asked.compile and name in known):
            continue
        task = task_of(*pair, SIZE)
        space = Space.of(task.asked, values)
        if asked.compile:
            entries = compiled(space, Bench(task))
            codes = {entry.code for entry in entries}
            sys.stderr.write(f"{name}: {len(entries)} candidates, {len(codes)} codes\n")
            continue
        if name not in known:
            known[name] = asdict(recorded(space, Bench(task)))
            path.write_text(json.dumps(known))
        record = Record.from_json(known[name])
        winners = [found(task, space, record, seed) for seed in SEEDS]
        if not set(winners) <= record.finals.keys():
            for times in record.times.values():
                times.finals.clear()
            add_finals(record, space, Bench(task), set(winners))
            known[name] = asdict(record)
            path.write_text(json.dumps(known))
        yield line_of(pair, record, winners)


def main(given: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser("python -m benchmarks.tune_exhaustive", description=__doc__)
    add = parser.add_argument
    operators = sorted({operator for operator, _ in PAIRS})
    add("--record", type=Path, default=Path("exhaustive.json"), help="times, which are added to")
    add("--only", nargs="+", choices=operators, default=operators, metavar="OP")
    add("--compile", action="store_true", help="compile only")
    add("--note", default="", help="what else is to be said about the run")
    add("--table", type=Path, metavar="FILE", help="write the table")
    asked = parser.parse_args(given)
    from spcomp.runtime.pool import set_num_threads

    set_num_threads(2)
    done: list[Line] = []
    for line in lines(asked):
        done.append(line)
        sys.stderr.write(f"{line}\n")
    if done:
        note = f"{asked.note} xgboost {'took' if has_xgboost() else 'did not take'} part."
        text = table(done, note.strip())
        sys.stdout.write(text)
        if asked.table:
            asked.table.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
