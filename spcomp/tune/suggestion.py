"""Beside the tuner: what the model alone expects to be fast, without a measurement."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spcomp.errors import front_door
from spcomp.runtime.pool import get_num_threads
from spcomp.schedule.default.facts import UNKNOWN
from spcomp.tune.bound import Bounds
from spcomp.tune.choice import Choice
from spcomp.tune.model import Model, has_xgboost
from spcomp.tune.problem import fingerprint, versions
from spcomp.tune.space import Candidate, Space
from spcomp.tune.store import Store, user_store
from spcomp.tune.task import Task

if TYPE_CHECKING:
    from spcomp.kernels.protocol import Runnable

DRAWN = 48  # candidates that are ranked
PROBLEMS = 5  # matrices that the program was tuned on, at least, for a model to know others
SURE = 1.1  # the model's predictions are no better than that: less is the default


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
        return self.choice.kernel(self.task.func, self.task.options)

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
    **named: Any,
) -> Suggestion:
    """Return how *program* is expected to be fastest on arguments like these; measure nothing.

    That is the stored winner for near matrices, or else the best of a model that is trained on all
    that the store has from this machine. The model needs xgboost, and a program that was tuned on
    five other matrices. Without either it is the default: bounds and estimates alone say what
    cannot be fast, not what is.

    Args:
        program: As for ``tune``.
        store: Where measurements are; the user's store if not given.
        options: Options of ``compile``.
        **named: The arguments of the program.

    Raises:
        SpcompError: As ``tune`` does.
    """
    task = Task.of(program, named, **(options or {}))
    store = store or user_store()
    found = store.winner(task.problem, fingerprint(), versions(), "any")
    if found is not None:
        choice = Choice.from_json(found[0].choice)
        candidate = Candidate(choice.formats, own=choice)
        return Suggestion(task, candidate, choice, found[0].speedup, "store")
    default = Suggestion(task, Candidate(), Choice(), 1.0, "default")
    records = store.records(fingerprint(), "measured")
    known = {record.matrices for record in records if record.program == task.problem.program}
    if not has_xgboost() or len(known) < PROBLEMS:
        return default
    model = Model.of(store, fingerprint())
    statistics = dict(task.problem.matrices)
    extents, facts = dict(task.problem.extents), task.version.options.facts or UNKNOWN
    threads = get_num_threads()
    space = Space(task.func, task.options, extents, facts, statistics, threads)
    return _best(task, space, Bounds(space, statistics), model) or default


def _best(task: Task, space: Space, bounds: Bounds, model: Model) -> Suggestion | None:
    """Return the candidate that *model* expects to be fastest; None if that is the default."""
    rng = random.Random(0)
    drawn = list(space.seeds())
    drawn += [space.random(rng, rng.choice(space.formats), rng.randint(1, 3)) for _ in range(DRAWN)]
    candidates = list(dict.fromkeys(drawn))
    expected = model.predict([bounds.features(candidate) for candidate in candidates])
    base = expected[candidates.index(Candidate())]
    ranked = sorted(
        ((c, value / base) for c, value in zip(candidates, expected, strict=True)),
        key=lambda pair: -pair[1],
    )
    for candidate, speedup in ranked:
        if speedup < SURE or (choice := space.choice(candidate)) is None:
            continue
        return Suggestion(task, candidate, choice, speedup, "model", tuple(ranked[:8]))
    return None
