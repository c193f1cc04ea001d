"""One line of the results: check every contender, time them in turns, compare, relate to memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.contenders import MissingError, Prepared, contenders
from benchmarks.operators import problem
from benchmarks.problem import Case, Problem, WrongResultError
from spcomp.cli.timing import Ratio, Sample, measure, median, ratio
from spcomp.errors import SpcompError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.contenders import Contender
    from benchmarks.roofline import Bandwidth

FAILURES = (
    *(MissingError, SpcompError, RuntimeError, ValueError, TypeError, AttributeError),
    *(MemoryError, OSError),
)  # what a library may raise where it cannot do something
BOUND, CALL = "spcomp_bound", "spcomp"


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure: *libraries* whose contenders take part (None: all), seconds per sample."""

    rounds: int = 15
    seconds: float = 0.04
    retakes: int = 3
    quick: bool = False
    libraries: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one case.

    *samples* by contender, *missing* and *wrong* say why a contender has none, *limit* is what
    memory allows in seconds: for the compulsory and for the gathered bytes.
    """

    case: Case
    samples: Mapping[str, tuple[Sample, ...]]
    ratio: Ratio | None
    missing: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)
    limit: tuple[float, float] = (0.0, 0.0)

    @property
    def medians(self) -> dict[str, float]:
        """Seconds per call by contender, fastest first."""
        found = {name: median(samples) for name, samples in self.samples.items()}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def ours(self) -> float | None:
        """Seconds per call of the form of ours that the case is about."""
        names = (CALL, BOUND) if self.case.pairing == "call" else (BOUND, CALL)
        medians = self.medians
        return next((medians[name] for name in names if name in medians), None)

    def to_json(self) -> dict[str, Any]:
        """Return everything that was measured; times in seconds per call."""
        samples = {
            name: [[s.seconds, s.calls, s.dirty] for s in taken]
            for name, taken in self.samples.items()
        }
        return {
            "label": self.case.label,
            "case": asdict(self.case),
            "median": self.medians,
            "ratio": asdict(self.ratio) if self.ratio else None,
            "limit": {"compulsory": self.limit[0], "gather": self.limit[1]},
            "missing": dict(self.missing),
            "wrong": dict(self.wrong),
            "samples": samples,
        }

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Row:
        """Return the row that ``to_json`` wrote."""
        case = {**row["case"], "against": tuple(row["case"]["against"])}
        return Row(
            Case(**case),
            {name: tuple(Sample(*s) for s in taken) for name, taken in row["samples"].items()},
            Ratio(**row["ratio"]) if row["ratio"] else None,
            row["missing"],
            row["wrong"],
            (row["limit"]["compulsory"], row["limit"]["gather"]),
        )


def run_case(case: Case, options: Options, bandwidth: Bandwidth | None = None) -> Row:
    """Measure *case*: every contender is checked first, one that fails is reported, not timed."""
    work = problem(case, quick=options.quick)
    missing: dict[str, str] = {}
    wrong: dict[str, str] = {}
    rivals = [c for c in contenders(case.operator) if _takes_part(c, options)]
    ready = prepare(work, rivals, missing, wrong)
    try:
        samples = time_all(ready, options)
    finally:
        for prepared in ready.values():
            prepared.close()
    pairs = compared(case, samples, rivals)
    limit = bandwidth.limit(work.traffic) if bandwidth else (0.0, 0.0)
    return Row(case, samples, ratio(pairs) if pairs else None, missing, wrong, limit)


def prepare(
    work: Problem,
    rivals: Iterable[Contender],
    missing: dict[str, str],
    wrong: dict[str, str],
) -> dict[str, Prepared]:
    """Return the contenders whose result is right, ready to run; note why others are not."""
    ready: dict[str, Prepared] = {}
    for rival in rivals:
        work.out.fill(np.nan)  # a result that is not written shows
        try:
            prepared = rival.ready(work)
            work.check(prepared.value(prepared.call()), rival.name)
        except WrongResultError as error:
            wrong[rival.name] = str(error)
        except FAILURES as error:
            missing[rival.name] = f"{error}".splitlines()[0] if str(error) else repr(error)
        else:
            ready[rival.name] = prepared
    return ready


def time_all(ready: Mapping[str, Prepared], options: Options) -> dict[str, tuple[Sample, ...]]:
    """Return the samples of all that are *ready*, taken in turns."""
    return measure(
        {name: prepared.call for name, prepared in ready.items()},
        rounds=options.rounds,
        seconds=options.seconds,
        retakes=options.retakes,
    )


def compared(
    case: Case, samples: Mapping[str, Sequence[Sample]], rivals: Iterable[Contender]
) -> dict[str, tuple[Sequence[Sample], Sequence[Sample]]]:
    """Return (rival's samples, ours) by rival, ours in the form that the case's pairing says."""
    pairs = {}
    for rival in rivals:
        if rival.name not in samples or (rival.is_ours and rival.name not in case.against):
            continue
        if case.against and rival.name not in case.against:
            continue
        bound = case.pairing == "bound" or (case.pairing == "paired" and rival.handle)
        names = (BOUND, CALL) if bound else (CALL,)
        if ours := next((samples[name] for name in names if name in samples), None):
            pairs[rival.name] = (samples[rival.name], ours)
    return pairs


def _takes_part(rival: Contender, options: Options) -> bool:
    return rival.is_ours or options.libraries is None or rival.library in options.libraries
