"""Under the tuner: which candidates to measure next, by what was measured so far."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError, BackendError
from spcomp.tune.model import as_log
from spcomp.tune.space import Candidate, Formats, Space

if TYPE_CHECKING:
    from collections.abc import Collection

ELITE = 6  # candidates whose children are tried
POOL = 3  # children made for each that is measured; a rank chooses among them
NEW = 0.2  # share of candidates that come from nowhere
TRIES = 50  # children in a row that are all known: the space is exhausted
CLOSE = 0.7  # formats whose default steps are so many times as fast as the best have children

Rank = Callable[[Sequence[Candidate]], Sequence[float]]  # the larger, the sooner


class Strategy(ABC):
    """Proposes candidates, and is told how fast they are."""

    @abstractmethod
    def propose(self, count: int, known: Collection[Candidate]) -> list[Candidate]:
        """Return up to *count* candidates that are not *known*; none if there are no more."""

    @abstractmethod
    def tell(self, candidate: Candidate, speedup: float) -> None:
        """Take note that *candidate* is so many times as fast as the default; 0: it cannot run."""


class Listed(Strategy):
    """The candidates that a user's space yields, in its order."""

    def __init__(self, candidates: Iterator[Candidate]) -> None:
        self._candidates = candidates

    def propose(self, count: int, known: Collection[Candidate]) -> list[Candidate]:
        """Return the next candidates."""
        found: list[Candidate] = []
        for candidate in self._candidates:
            if candidate not in known and candidate not in found:
                found.append(candidate)
            if len(found) == count:
                break
        return found

    def tell(self, candidate: Candidate, speedup: float) -> None:
        """Nothing changes."""


class Evolution(Strategy):
    """Children of the fastest: with one decision changed, or with decisions of two of them.

    *rank* chooses among more children than are measured; one of each batch is taken by chance.
    """

    def __init__(self, space: Space, rank: Rank, seed: int = 0) -> None:
        self.space, self.rank, self.rng = space, rank, random.Random(seed)
        self._speedups: dict[Candidate, float] = {}

    def propose(self, count: int, known: Collection[Candidate]) -> list[Candidate]:
        """Return the best by rank of a pool of children, and one by chance."""
        pool: list[Candidate] = []
        failures = 0
        while len(pool) < POOL * count and failures < TRIES:
            child = self._child()
            if child in known or child in pool:
                failures += 1
            else:
                pool.append(child)
                failures = 0
        if len(pool) <= count:
            return pool
        ranks = dict(zip(pool, self.rank(pool), strict=True))
        chosen = sorted(pool, key=lambda child: -ranks[child])[: count - 1]
        return [*chosen, self.rng.choice([child for child in pool if child not in chosen])]

    def tell(self, candidate: Candidate, speedup: float) -> None:
        """Take note of a speed-up; what has no decisions to change has no children."""
        if candidate.own is None:
            self._speedups[candidate] = speedup

    def _child(self) -> Candidate:
        rng = self.rng
        elite = sorted(self._speedups, key=lambda c: -self._speedups[c])[:ELITE]
        if not elite or rng.random() < NEW:
            return self.space.random(rng, rng.choice(self._formats()), rng.randint(1, 3))
        parent = elite[min(int(rng.expovariate(0.7)), len(elite) - 1)]
        same = [other for other in elite if other.formats == parent.formats and other != parent]
        if same and rng.random() < 0.4:
            parent = self.space.crossed(rng, parent, rng.choice(same))
        return self.space.mutated(rng, parent)

    def _formats(self) -> list[Formats]:
        """Return the formats that may win: those whose best is not far behind."""
        best = max(self._speedups.values(), default=0.0)
        close = {c.formats for c, speedup in self._speedups.items() if speedup >= CLOSE * best}
        return sorted(close | {()})


class Tpe(Strategy):
    """The tree-structured Parzen estimator of optuna; raises BackendError without it.

    Source: Bergstra et al., Algorithms for hyper-parameter optimization (NIPS 2011).
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        try:
            import optuna
        except ImportError as error:
            raise BackendError(
                f"the strategy tpe needs optuna: {error}", hint="pip install spcomp[tune]"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space = space
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)
        self._study: Any = optuna.create_study(direction="maximize", sampler=sampler)
        self._trials: dict[Candidate, Any] = {}
        self._formats = {str(at): formats for at, formats in enumerate(space.formats)}

    def propose(self, count: int, known: Collection[Candidate]) -> list[Candidate]:
        """Return what the estimator expects to be fast."""
        found: list[Candidate] = []
        failures = 0
        while len(found) < count and failures < TRIES:
            trial = self._study.ask()
            candidate = self._suggested(trial)
            if candidate in known or candidate in found:
                failures += 1
                self._study.tell(trial, self._worst())
                continue
            self._trials[candidate] = trial
            found.append(candidate)
        return found

    def tell(self, candidate: Candidate, speedup: float) -> None:
        """Tell the study; candidates that it did not ask for are left out."""
        if (trial := self._trials.pop(candidate, None)) is not None:
            self._study.tell(trial, as_log(speedup) if speedup else self._worst())

    def _worst(self) -> float:
        values = [t.value for t in self._study.get_trials(deepcopy=False) if t.value is not None]
        return float(min(values, default=-1.0))

    def _suggested(self, trial: Any) -> Candidate:
        at = trial.suggest_categorical("format", list(self._formats))
        candidate = Candidate(self._formats[at])
        for name, values in self.space.dimensions(candidate.formats).items():
            value = trial.suggest_categorical(f"{at}.{name}", values)
            candidate = candidate.with_decision(name, value)
        return candidate


def strategy_of(name: str | None, space: Space, rank: Rank, seed: int) -> Strategy:
    """Return the strategy called *name*, ``evolution`` (by default) or ``tpe``.

    Raises ArgumentError for another name, and BackendError if its package is missing.
    """
    if name in (None, "evolution"):
        return Evolution(space, rank, seed)
    if name == "tpe":
        return Tpe(space, seed)
    raise ArgumentError(
        f"argument strategy: got {name!r}", hint="strategies are evolution and tpe (with optuna)"
    )
