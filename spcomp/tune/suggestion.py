"""Beside the tuner: what the model alone expects to be fast, without a measurement."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spcomp.errors import ArgumentError, expect, front_door
from spcomp.tune.bound import Bounds
from spcomp.tune.choice import Choice
from spcomp.tune.model import Model, has_xgboost
from spcomp.tune.problem import versions
from spcomp.tune.space import Candidate, Space
from spcomp.tune.store import Kind, Store, user_store
from spcomp.tune.task import Task
from spcomp.tune.weights import Weights, weights
from spcomp.tune.winners import Asked

if TYPE_CHECKING:
    from spcomp.kernels.protocol import Runnable
    from spcomp.tune.statistics import MatrixStatistics

DRAWN = 48  # candidates that are ranked
PROBLEMS = 5  # matrices that the program was tuned on, at least, for a model to know others
SURE = 1.1  # the model's predictions are no better than that: less is the default
CONVERSION = 200.0  # calls that the conversion of a matrix takes, about
HUB = 8192  # elements, at least, of a very long row
KINDS: tuple[Kind, ...] = ("any", "as_is")  # of winners: the best, and the best without a format


@dataclass(frozen=True, eq=False)
class Suggestion:
    """What ``spcomp.tune.suggest`` returns.

    *candidate*, compiled as *choice* says; *speedup*: what is expected over the default. *source*:
    ``store``, what was measured for near matrices; ``model``, trained on what the store has; or
    ``default``, where neither knows enough. *ranked*: the best candidates with what is expected.
    """

    task: Task
    candidate: Candidate
    choice: Choice
    speedup: float
    source: str
    ranked: tuple[tuple[Candidate, float], ...] = ()

    @property
    def formats(self) -> dict[str, str]:
        """The formats in which matrices are stored, by name; empty if as they come."""
        return dict(self.choice.formats)

    def compile(self) -> Runnable:
        """Return the kernel; it is called like that of the program."""
        return self.task.kernel(self.choice)

    def __str__(self) -> str:
        return f"{self.choice}: {self.speedup:.2f} times as fast as the default ({self.source})"

    __repr__ = __str__


@front_door
def suggest(
    program: Any,
    /,
    *,
    store: Store | None = None,
    options: Mapping[str, Any] | None = None,
    calls: int | None = None,
    **named: Any,
) -> Suggestion:
    """Return how *program* is expected to be fastest on arguments like these; measure nothing.

    That is the stored winner for near matrices, or else the best of a model that is trained on all
    that the store has from this machine, which needs xgboost, and a program that was tuned on
    five matrices here. Otherwise it is the best of the model that comes with spcomp, trained on
    other programs and machines; it is the default where that is not sure.

    Args:
        program: As for ``tune``.
        store: Where measurements are; the user's store if not given.
        options: Options of ``compile``.
        calls: In how many calls a conversion has to pay off; in any number if not given.
        **named: The arguments of the program.

    Raises:
        SpcompError: As ``tune`` does.
    """
    if calls is not None:
        whole = isinstance(calls, (int, np.integer)) and not isinstance(calls, bool)
        if not whole or calls < 1:
            raise ArgumentError(
                f"argument calls: got {calls!r}, expected a whole number of calls, at least 1"
            )
    expect("options", options, (Mapping, type(None)), "options of compile by name")
    task = Task.of(program, named, **(options or {}))
    return Suggestion(task, *advised(task.asked, store or user_store(), calls))


class Advice(NamedTuple):
    """What is expected to be fastest; as in Suggestion."""

    candidate: Candidate
    choice: Choice
    speedup: float
    source: str
    ranked: tuple[tuple[Candidate, float], ...] = ()


def advised(asked: Asked, store: Store, calls: int | None) -> Advice:
    """Return what is expected to be fastest for *calls* calls like *asked*; many if None."""
    for kind in KINDS:
        found = store.winner(asked.problem, asked.machine, versions(), kind)
        if found is None:
            continue
        record = found[0]
        choice = Choice.from_json(record.choice)
        conversion = record.conversion / max(record.seconds, 1e-9)
        if not choice.formats or pays(record.speedup, conversion, calls):
            return Advice(Candidate(choice.formats, own=choice), choice, record.speedup, "store")
    default = Advice(Candidate(), Choice(), 1.0, "default")
    records = store.records(asked.machine, "measured")
    known = {record.matrices for record in records if record.program == asked.problem.program}
    measured = has_xgboost() and len(known) >= PROBLEMS
    shipped = None if measured else weights(asked.kernel.options.target)
    if not measured and shipped is None:
        return default
    statistics = dict(asked.problem.matrices)
    space = Space.of(asked)
    model = Model.of(store, asked.machine) if shipped is None else shipped
    if shipped is None:
        candidates = _drawn(space)
    else:
        plain = plain_candidates(space, statistics)
        candidates = [candidate for candidate in plain if shipped.knows(candidate.formats)]
    sure = SURE if shipped is None else shipped.sure
    return _best(space, Bounds(space, statistics), model, candidates, sure, calls) or default


def pays(speedup: float, conversion: float, calls: int | None) -> bool:
    """Whether *calls* calls, so many times as fast, save more than a conversion takes.

    *conversion* is in calls of the faster kernel.
    """
    return calls is None or calls * (speedup - 1) > conversion


def plain_candidates(
    space: Space, statistics: Mapping[str, MatrixStatistics]
) -> Iterator[Candidate]:
    """Yield the candidates that the shipped weights are for: formats, and shares of rows.

    No format where one row is very long: the default shares it among threads, as formats do not.
    """
    hub = any(has_hub(matrix.longest, matrix.nnz) for matrix in statistics.values())
    yield from [Candidate()] if hub else space.seeds()
    for rows in space.dimensions(()).get("rows", ())[1:]:
        yield Candidate().with_decision("rows", rows)


def has_hub(longest: float, stored: float) -> bool:
    """Whether a row of *longest* elements is very long among *stored* ones."""
    return longest > max(HUB, stored / 32)


def _drawn(space: Space) -> list[Candidate]:
    """Return all formats with default steps, and candidates by chance."""
    rng = random.Random(0)
    drawn = list(space.seeds())
    drawn += [space.random(rng, rng.choice(space.formats), rng.randint(1, 3)) for _ in range(DRAWN)]
    return list(dict.fromkeys(drawn))


def _best(
    space: Space,
    bounds: Bounds,
    model: Model | Weights,
    candidates: Sequence[Candidate],
    sure: float,
    calls: int | None,
) -> Advice | None:
    """Return the candidate that *model* expects to be fastest; None if that is the default."""
    expected = model.predict([bounds.features(candidate) for candidate in candidates])
    base = expected[candidates.index(Candidate())]
    ranked = sorted(
        ((c, value / base) for c, value in zip(candidates, expected, strict=True)),
        key=lambda pair: -pair[1],
    )
    for candidate, speedup in ranked:
        conversion = CONVERSION if candidate.formats else 0.0
        if speedup < sure or not pays(speedup, conversion, calls):
            continue
        if (choice := space.choice(candidate)) is not None:
            return Advice(candidate, choice, speedup, "model", tuple(ranked[:8]))
    return None
