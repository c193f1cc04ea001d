"""The tuner: searches formats and schedules for a program and its matrices, within a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError, BackendError, expect, front_door
from spcomp.runtime.cuda.driver import missing
from spcomp.runtime.pool import get_num_threads
from spcomp.target import on_gpu
from spcomp.tune.bound import Bounds
from spcomp.tune.choice import Choice
from spcomp.tune.earlier import earlier_winners, is_beaten
from spcomp.tune.measure import LEAST, Bench, Entry, Interval
from spcomp.tune.model import Model, has_xgboost
from spcomp.tune.problem import versions
from spcomp.tune.space import Candidate, Space
from spcomp.tune.store import Kind, Record, Store, user_store
from spcomp.tune.strategy import Listed, Strategy, strategy_of
from spcomp.tune.suggestion import pays
from spcomp.tune.task import Task
from spcomp.tune.trial import Status, Trial
from spcomp.tune.tuned import Tuned
from spcomp.tune.user_space import UserSpace, user_candidates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.target import Target

SHARE = 0.15  # of the budget that is kept to time the winner against the default once more
MOST_SHARE = 0.4
FINALISTS = 4  # candidates that are timed once more
FINAL = 25  # rounds of that
CONVERSION = 30.0  # calls, and LEAST_LEFT seconds: what must be left to try another format
LEAST_LEFT = 1.0
SLOWER = 4.0  # a first call so many times slower than the best is enough to know
NO_GAIN = Interval(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Progress:
    """How a search stands: seconds, candidates that were tried, and the *best* so far."""

    elapsed: float
    budget: float
    tried: int
    best: Candidate
    speedup: Interval


@front_door
def tune(
    program: Any,
    /,
    *,
    budget: float = 60.0,
    space: UserSpace | None = None,
    strategy: str | None = None,
    seed: int = 0,
    store: Store | None = None,
    progress: Callable[[Progress], None] | None = None,
    calls: int | None = None,
    options: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    **named: Any,
) -> Tuned:
    """Return the fastest way to run *program* on arguments like these that is found in *budget*.

    Candidates are timed in turns with the fastest so far, if their results are the default's. What
    is measured is kept in a store, where ``compile(..., tuned=True)`` finds the winner.

    Args:
        program: A function without a schedule, or a line of index notation.
        budget: Seconds, all in all.
        space: A function that yields candidates in place of the built-in ones, called with the
            program and the arguments: Schedules, or pairs of formats by buffer (or None) and a
            Trace (or None).
        strategy: ``evolution``, the default, or ``tpe``, which needs optuna.
        seed: Of random choices. What is found also depends on the times that are measured.
        store: Where measurements go; the user's store if not given.
        progress: Called after each candidate.
        calls: In how many calls a conversion has to pay off to win; in any number if not given.
        options: Options of ``compile``, such as ``{"fast_math": True}``.
        arguments: Arguments of the program by name, as an alternative to *named*.
        **named: The arguments of the program. Sparse ones are bound; arrays that the program
            changes are copied first.

    Raises:
        SpcompError: The program cannot be compiled, or an argument is wrong. KeyboardInterrupt
            leaves what was found in the store.
    """
    begin = perf_counter()
    _check_kinds(options, arguments, store, space)
    task = Task.of(program, {**(arguments or {}), **named}, **(options or {}))
    session = Session(
        task,
        begin=begin,
        budget=budget,
        space=space,
        strategy=strategy,
        seed=seed,
        store=store,
        progress=progress,
        calls=calls,
    )
    try:
        session.run()
    except KeyboardInterrupt:
        session.result("interrupted")
        raise
    return session.result()


def _check_kinds(options: Any, arguments: Any, store: Any, space: Any) -> None:
    """Raise ArgumentError for arguments of ``tune`` of a wrong kind."""
    none = type(None)
    expect("options", options, (Mapping, none), "options of compile by name")
    expect("arguments", arguments, (Mapping, none), "arguments of the program by name")
    expect("store", store, (Store, none), "a Store")
    expect("space", space, (Callable, none), "a function that yields candidates")  # type: ignore[arg-type]


class Session:
    """A search, from the default to a winner; *result* can be asked for at any time.

    *calls*: in which a conversion has to pay off. *most*: races, at most. *bench*: compiles and
    times; by default on this machine.
    """

    def __init__(
        self,
        task: Task,
        *,
        budget: float,
        space: UserSpace | Space | None = None,
        strategy: str | None = None,
        seed: int = 0,
        store: Store | None = None,
        progress: Callable[[Progress], None] | None = None,
        calls: int | None = None,
        begin: float | None = None,
        bench: Bench | None = None,
        most: float = inf,
    ) -> None:
        self._begin = perf_counter() if begin is None else begin
        expect("budget", budget, (int, float), "seconds")
        if not 0 < budget < inf:
            raise ArgumentError(f"argument budget: got {budget!r}, expected positive seconds")
        if calls is not None:
            expect("calls", calls, int, "a number of calls")
            if calls < 1:
                raise ArgumentError(f"argument calls: got {calls}, expected at least 1")
        _require_device(task.options.target)
        self.task, self.budget, self.progress = task, float(budget), progress
        self.store = store or user_store()
        self.trials: list[Trial] = []
        self._records: list[Record] = []  # that are not in the store yet
        self.known: dict[Candidate, Status] = {}
        self._codes: dict[str, Candidate] = {}
        steps = Choice((), task.version.trace, tuple(sorted(task.problem.extents)))
        self._compiled = {Choice(): Candidate(), steps: Candidate()}
        self._stopped = "budget"
        self.default = self.best = self.as_is = Entry(Candidate(), Choice())
        self._speedups = {Candidate(): NO_GAIN}
        self._guesses: dict[Candidate, float] = {}  # of the model, before it was told
        self._last = Candidate(), Choice(), NO_GAIN
        self._finalists: list[Entry] = []  # the fastest
        self._built_in = space is None or isinstance(space, Space)
        self.space = space if isinstance(space, Space) else Space.of(task.asked)
        self.bounds = Bounds(self.space, dict(task.problem.matrices))
        self.model = Model.of(self.store, task.asked.machine) if has_xgboost() else None
        self.strategy: Strategy = (
            strategy_of(strategy, self.space, self._rank, seed)
            if space is None or isinstance(space, Space)
            else Listed(user_candidates(space, task))
        )
        self._earlier = earlier_winners(self.store, task.asked, self.space)
        self._stays = ""  # the stored winner, if it was not beaten
        self._bench, self._most, self._calls = bench, most, calls

    @property
    def elapsed(self) -> float:
        """Seconds since the search began."""
        return perf_counter() - self._begin

    def run(self) -> None:
        """Search until the budget is used up, or nothing is left to try."""
        self.bench = self._bench or Bench(self.task)
        (default,) = self.bench.compile([(Candidate(), Choice())])
        self.bench.prepare(default)
        if default.call is None:
            raise ArgumentError(f"the default kernel fails: {default.error}")
        self.default = self.best = self.as_is = default
        self._codes[default.code] = default.candidate
        self._note(default, "measured", NO_GAIN)
        self._try(list(self._earlier))
        seeds = [seed for seed in self.space.seeds() if seed.formats] if self._built_in else []
        seeds.sort(key=self.bounds.estimate)  # those alike stay in the order of the library
        while self._has_time():
            batch = self.strategy.propose(self._batch(), self.known)
            if not batch and not seeds:
                self._stopped = "exhausted"
                break
            self._try(batch)
            if seeds:  # a format with its default steps; if it is fast, it will have children
                self._try([seeds.pop(0)])
        self._last = self._validated()

    def result(self, stopped: str | None = None) -> Tuned:
        """Return what was found, after keeping it in the store."""
        if stopped is not None:
            self._stopped = stopped
            best = self.best
            if best.call is not None and self._last[1] == Choice():
                self._last = best.candidate, best.choice, self._speedups[best.candidate]
                self._keep("any", best, self._last[2])
                self._keep("as_is", self.as_is, self._speedups[self.as_is.candidate])
        candidate, choice, speedup = self._last
        latest = {e.candidate: e.seconds for e in (self.default, self.best, self.as_is)}
        return Tuned(
            self.task,
            candidate,
            choice,
            speedup,
            tuple(replace(t, seconds=latest.get(t.candidate, t.seconds)) for t in self.trials),
            self.elapsed,
            self._stopped,
            self.space.refused,
            self._stays,
        )

    # -- candidates -------------------------------------------------------------------------------

    def _batch(self) -> int:
        return 2 * get_num_threads() if self._left() > 2 * LEAST_LEFT else 1

    def _left(self) -> float:
        """Return the seconds that are left for the search."""
        each = sum(entry.seconds * entry.calls for entry in (self.default, self.best))
        final = min(FINALISTS * FINAL * each, MOST_SHARE * self.budget)
        return self.budget - self.elapsed - max(SHARE * self.budget, final)

    @property
    def _is_full(self) -> bool:
        """Whether only as many measurements are left as the end needs."""
        return len(self._codes) + FINALISTS + 3 > self._most

    def _has_time(self) -> bool:
        return self._left() > 2 * self.best.seconds and not self._is_full

    def _try(self, candidates: Sequence[Candidate]) -> None:
        """Compile and measure *candidates*, in batches while there is time."""
        waiting = [c for c in candidates if self._is_worth(c)]
        while waiting and self._has_time():
            count = self._batch()
            batch, waiting = waiting[:count], waiting[count:]
            entries = self.bench.compile(self._choices(batch))
            try:
                for entry in entries:
                    self._measure(entry)
            finally:  # also after Ctrl-C
                self.store.add(self._records)
                self._records = []
            self.bench.release((self.best, self.as_is, *self._finalists))

    def _choices(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Choice]]:
        """Yield how *candidates* are compiled, those that differ from all others so far."""
        for candidate in candidates:
            choice = self.space.choice(candidate)
            if choice is None:
                self._dismiss(candidate, "refused", "its steps do not apply")
            elif (other := self._compiled.setdefault(choice, candidate)) != candidate:
                self._dismiss(candidate, "same", f"as {other}")
            else:
                yield candidate, choice

    def _is_worth(self, candidate: Candidate) -> bool:
        if candidate in self._earlier:
            return True  # it was measured
        best = self.best
        least = self.bounds.least(candidate, best.candidate, best.seconds)
        if self._built_in and least > best.seconds:
            self._dismiss(candidate, "pruned", f"reading all takes {1e3 * least:.3g} ms")
            return False
        return candidate not in self.known

    def _measure(self, entry: Entry) -> None:
        """Measure a compiled candidate, unless there is a reason not to."""
        candidate = entry.candidate
        if entry.error:
            self._dismiss(candidate, "refused", entry.error)
            return
        if entry.code in self._codes:
            self._dismiss(candidate, "same", f"as {self._codes[entry.code]}")
            return
        if self._left() < self._needs(entry) or self._is_full:
            return  # it stays unknown
        self._codes[entry.code] = candidate
        self.bench.prepare(entry)
        if entry.call is None:
            wrong = entry.error.startswith("wrong")
            self._dismiss(candidate, "wrong" if wrong else "refused", entry.error)
            return
        base = self._speedups[self.best.candidate]
        if entry.seconds > SLOWER * self.best.seconds:
            guess = self.best.seconds / entry.seconds
            self._note(entry, "slow", Interval(guess, 0.0, guess).times(base.value))
            return
        ratio = self.bench.race(entry, self.best, perf_counter() + max(self._left(), 0.0))
        speedup = ratio.times(base.value)
        self._speedups[candidate] = speedup
        self._note(entry, "measured", speedup)
        if not entry.choice.layouts and (
            ratio.is_faster or speedup.value > self._speedups[self.as_is.candidate].value
        ):
            self.as_is = entry
        if not pays(speedup.value, entry.conversion / max(entry.seconds, 1e-9), self._calls):
            return
        if ratio.is_faster:
            self.best = entry
        self._finalists.append(entry)
        self._finalists.sort(key=lambda entry: -self._speedups[entry.candidate].value)
        del self._finalists[FINALISTS:]

    def _needs(self, entry: Entry) -> float:
        """Return the seconds that must be left to try *entry*."""
        conversion = 0.0
        if entry.choice.layouts:
            known = self._earlier.get(entry.candidate)
            conversion = CONVERSION * self.default.seconds + LEAST_LEFT
            if known is not None:  # twice, and what compiles it
                conversion = min(conversion, 3 * known.conversion)
        return max(conversion, 4 * self.best.seconds)

    def _dismiss(self, candidate: Candidate, status: Status, note: str) -> None:
        self.trials.append(Trial(candidate, status, note=note))
        self.known[candidate] = status
        self.strategy.tell(candidate, 0.0)

    def _note(self, entry: Entry, status: Status, speedup: Interval) -> None:
        """Take note of a measurement."""
        candidate = entry.candidate
        self.known[candidate] = status
        expected = self._expected(candidate)
        trial = Trial(candidate, status, entry.seconds, speedup, entry.conversion, "", expected)
        self.trials.append(trial)
        self.strategy.tell(candidate, speedup.value)
        walked = self._built_in and candidate.own is None
        features = self.bounds.features(candidate) if walked else {}
        if self.model is not None and features:
            self.model.add(features, speedup.value)
        if entry.choice.is_stored:
            self._records.append(self._record("measured", entry, speedup, features))
        if self.progress is not None:
            best = self._speedups[self.best.candidate]
            self.progress(
                Progress(self.elapsed, self.budget, len(self.trials), self.best.candidate, best)
            )

    def _rank(self, candidates: Sequence[Candidate]) -> list[float]:
        if self.model is not None and self.model.is_ready:
            values = self.model.predict([self.bounds.features(c) for c in candidates])
            self._guesses |= zip(candidates, values, strict=True)
            return values
        return [-self.bounds.estimate(candidate) for candidate in candidates]

    def _expected(self, candidate: Candidate) -> float:
        """Return how many times as fast as the default *candidate* was thought; 0: unknown."""
        if candidate in self._guesses or not self._built_in or candidate.own is not None:
            return self._guesses.get(candidate, 0.0)
        seconds = self.bounds.estimate(candidate)
        return self.bounds.estimate(Candidate()) / seconds if seconds else 0.0

    # -- the end ----------------------------------------------------------------------------------

    def _validated(self) -> tuple[Candidate, Choice, Interval]:
        """Time the fastest against the default once more, and then the fastest of these.

        The best of many is the one that was lucky, too: only a new measurement counts.
        """
        entries = {entry.candidate: entry for entry in (*self._finalists, self.as_is)}
        entries.pop(Candidate(), None)
        found = {Candidate(): (self.default, NO_GAIN)}
        for count, entry in enumerate(entries.values()):
            speedup = self._confirmed(entry, 1 / (len(entries) + 1 - count))
            if speedup.is_faster:
                found[entry.candidate] = entry, speedup
        as_it_comes = [pair for pair in found.values() if not pair[0].choice.layouts]
        self._keep("as_is", *max(as_it_comes, key=lambda pair: pair[1].value))
        winner, speedup = max(found.values(), key=lambda pair: pair[1].value)
        if len(entries) > 1 and winner is not self.default:
            speedup = self._confirmed(winner, 1.0)
        if not speedup.is_faster:
            winner, speedup = self.default, NO_GAIN
        self._keep("any", winner, speedup)
        return winner.candidate, winner.choice, speedup

    def _confirmed(self, entry: Entry, share: float) -> Interval:
        """Return the speed-up of *entry*, timed for a *share* of the budget that is left."""
        until = perf_counter() + share * max(self.budget - self.elapsed, 0.0)
        found = self.bench.race(entry, self.default, until, most=FINAL, patient=True)
        if found.rounds >= LEAST:
            self._speedups[entry.candidate] = found
        return found

    def _keep(self, kind: Kind, entry: Entry, speedup: Interval) -> None:
        """Keep a winner, unless it was the only one timed, or the stored one was not beaten."""
        if not entry.choice.is_stored:
            return
        stored = self.store.winner(self.task.problem, self.task.asked.machine, versions(), kind)
        stays = ""
        if stored is None:
            alone = entry is self.default and len(self._codes) < 2
            if alone and self._stopped != "exhausted":
                return
        else:
            choice = Choice.from_json(stored[0].choice)
            timed = self._compiled.get(choice, Candidate(own=choice))
            status, latest = self.known.get(timed), self._speedups.get(timed)
            if choice != entry.choice and not is_beaten(stored[0], status, latest, speedup):
                stays = f"{choice}, {stored[0].speedup:.2f} times as fast"
        if kind == "any":
            self._stays = stays
        if not stays:
            self.store.add([self._record(kind, entry, speedup, entry.candidate.numbers)])

    def _record(
        self,
        kind: Kind,
        entry: Entry,
        speedup: Interval,
        features: Mapping[str, float],
    ) -> Record:
        problem = self.task.problem
        return Record(
            kind=kind,
            program=problem.program,
            extents=problem.extents_text,
            matrices=problem.matrices_text,
            machine=self.task.asked.machine,
            versions=versions(),
            choice=entry.choice.to_json(),
            seconds=entry.seconds,
            speedup=speedup.value,
            low=speedup.low,
            high=speedup.high,
            conversion=entry.conversion,
            features=json.dumps(features),
            created=time.time(),
        )


def _require_device(target: Target) -> None:
    """Raise BackendError where calls for *target* cannot be timed."""
    reason = "an emulator is no GPU" if target.emulate else None
    if on_gpu(target):
        reason = missing()
    if reason is not None:
        raise BackendError(
            f"calls for {target} cannot be timed here: {reason}",
            hint="spcomp.tune.suggest, the features and space need no GPU; copy the store of a"
            " machine with one by spcomp tune --export and --import",
        )
