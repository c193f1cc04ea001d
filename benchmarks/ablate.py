"""What each kind of step of the default schedule earns: a program with that kind left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import OURS, Contender, MissingError, ours
from benchmarks.harness import prepare, time_all
from benchmarks.operators import problem
from spcomp.cli.timing import geometric_mean, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness import Options
    from benchmarks.problem import Case
    from spcomp.cli.timing import Ratio
    from spcomp.schedule.step import Trace

WHOLE = "default"


@dataclass(frozen=True, slots=True)
class Ablation:
    """For one case: by kind of step, time without it over time with it; why some are missing."""

    case: Case
    ratios: dict[str, Ratio]
    missing: dict[str, str]


def ablate(case: Case, options: Options) -> Ablation:
    """Measure *case* with each kind of step left out in turn, interleaved with the whole trace."""
    work = problem(case, quick=options.quick)
    missing: dict[str, str] = {}
    try:
        trace = ours.default_trace(work, ours.known_facts(work))
    except (KeyError, MissingError) as error:
        return Ablation(case, {}, {WHOLE: str(error)})
    kinds = list(dict.fromkeys(step.name for _, step in trace))
    forms = [Contender(WHOLE, OURS, lambda p: ours.bound_call(p, ours.scheduled(p, trace)))]
    forms += [Contender(kind, OURS, _with(trace.without(kind))) for kind in kinds]
    wrong: dict[str, str] = {}
    samples = time_all(prepare(work, forms, missing, wrong), options)
    whole = samples.get(WHOLE, ())
    ratios = {
        kind: ratio({kind: (samples[kind], whole)}) for kind in kinds if whole and kind in samples
    }
    return Ablation(case, ratios, missing | wrong)


def earned(ablations: Sequence[Ablation]) -> dict[str, float]:
    """Return the geometric mean over the cases of what each kind of step earns."""
    kinds = dict.fromkeys(kind for ablation in ablations for kind in ablation.ratios)
    return {
        kind: geometric_mean([a.ratios[kind].value for a in ablations if kind in a.ratios])
        for kind in kinds
    }


def _with(trace: Trace) -> Any:
    return lambda work: ours.bound_call(work, ours.scheduled(work, trace))
