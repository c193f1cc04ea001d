"""A later search times what earlier ones found first, and replaces it only where it is beaten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import spcomp
from spcomp import formats as F
from spcomp.tune import Store, suggestion
from spcomp.tune.choice import Choice
from spcomp.tune.measure import Bench, Entry, Interval
from spcomp.tune.search import Session
from spcomp.tune.space import Candidate
from spcomp.tune.strategy import Evolution
from tests.test_tune_space import spmm
from tests.tune_helpers import dense, keep, matrix, prefetching, task_of
from tests.tune_helpers import store as store

BLOCKS = Choice((("A", "bsr((2, 2))"),))
ELL = Choice((("A", "ell()"),))


class Clock(Bench):
    """Takes times from *speeds*, by text of the candidate; each race has so many *rounds*.

    *refused*: texts of candidates that cannot be compiled. *noise*: how wide intervals are.
    """

    def __init__(
        self, speeds: dict[str, float], rounds: int = 12, refused: str = "", noise: float = 0.01
    ) -> None:
        self.speeds, self.rounds, self.refused, self.noise = speeds, rounds, refused, noise
        self.prepared: list[str] = []

    def compile(self, candidates: Any) -> list[Entry]:
        entries = [Entry(candidate, choice) for candidate, choice in candidates]
        for entry in entries:
            entry.code = repr(entry.choice)
            entry.error = "refused" if str(entry.choice) == self.refused else ""
        return entries

    def prepare(self, entry: Entry) -> None:
        self.prepared.append(str(entry.choice))
        entry.seconds, entry.call = 1e-6 / self._speed(entry), int

    def race(self, ours: Entry, other: Entry, *_: Any, **__: Any) -> Interval:
        ratio = self._speed(ours) / self._speed(other)
        low = 1 - (self.noise if ours.choice != Choice() else 0.0)
        return Interval(ratio, ratio * low, ratio / low, self.rounds)

    def release(self, keep: Any) -> None:
        pass

    def _speed(self, entry: Entry) -> float:
        return self.speeds.get(str(entry.choice), 1.0)


def search(store: Store, clock: Clock, *, budget: float = 1e6) -> Any:
    """Return what a search among two other formats finds by *clock*."""

    def space(*_: object, **__: object) -> Iterator[Any]:
        yield {"A": F.ell()}, None
        yield {"A": F.hyb(1)}, None

    session = Session(task_of(), budget=budget, store=store, bench=clock, space=space)
    session.run()
    return session.result()


def stored(store: Store, kind: str = "any") -> Any:
    """Return the choice that *store* has for the matrix of the tests."""
    (record,) = [record for record in store.records() if record.kind == kind]
    return Choice.from_json(record.choice)


@pytest.mark.parametrize("choice", [BLOCKS, prefetching(4)])
def test_the_stored_winner_is_timed_first(choice):
    store = Store(None)
    keep(store, choice)
    clock = Clock({str(choice): 3.0})
    found = search(store, clock)
    assert clock.prepared[:2] == [str(Choice()), str(choice)]
    assert found.choice == choice
    assert found.speedup.value == 3.0
    assert stored(store) == choice


def test_a_search_without_time_for_a_second_candidate_leaves_the_winner_and_says_so():
    store = Store(None)
    keep(store, BLOCKS)
    found = search(store, Clock({}), budget=1e-9)
    assert len(found.trials) == 1
    assert found.choice == Choice()
    assert stored(store) == BLOCKS
    stays = "A in bsr((2, 2)), default steps, 1.50 times as fast"
    assert str(found).endswith(f"; {stays}, stays stored")
    assert found.to_json()["stays"] == stays
    assert not [record for record in store.records() if record.kind == "as_is"]


def test_a_search_that_timed_nothing_but_the_default_keeps_no_winner():
    store = Store(None)
    found = search(store, Clock({}), budget=1e-9)
    assert {record.kind for record in store.records()} <= {"measured"}
    assert found.to_json()["stays"] == ""


@pytest.mark.parametrize("clock", [Clock({}), Clock({str(BLOCKS): 0.1})])
def test_a_winner_that_is_timed_and_is_not_faster_is_replaced(clock):
    store = Store(None)
    keep(store, BLOCKS)
    found = search(store, clock)
    assert found.choice == Choice()
    assert stored(store) == Choice()
    assert "stays" not in str(found)


def test_a_winner_that_cannot_be_compiled_any_more_is_replaced():
    store = Store(None)
    keep(store, BLOCKS)
    search(store, Clock({}, refused=str(BLOCKS)))
    assert stored(store) == Choice()


def test_few_rounds_and_wide_intervals_are_no_reason_to_replace_a_winner():
    for clock in (Clock({}, rounds=2), Clock({str(BLOCKS): 1.4}, noise=0.5)):
        store = Store(None)
        keep(store, BLOCKS)
        found = search(store, clock)
        assert found.choice == Choice()
        assert stored(store) == BLOCKS


def test_what_is_faster_than_the_winner_replaces_it():
    store = Store(None)
    keep(store, BLOCKS)
    found = search(store, Clock({str(BLOCKS): 1.5, str(ELL): 4.0}))
    assert found.choice == ELL
    assert stored(store) == ELL
    assert stored(store, "as_is").formats == ()


def test_the_winner_for_near_matrices_is_timed_and_stays_too():
    store = Store(None)
    keep(store, BLOCKS, seed=7)
    found = search(store, Clock({}), budget=1e-9)
    assert "stays stored" in str(found)
    assert stored(store) == BLOCKS
    clock = Clock({str(BLOCKS): 2.0})
    assert search(store, clock).choice == BLOCKS
    assert clock.prepared[1] == str(BLOCKS)
    assert sum(record.kind == "any" for record in store.records()) == 2


def test_a_winner_without_a_format_is_timed_beside_one_with():
    store = Store(None)
    keep(store, BLOCKS)
    keep(store, prefetching(4), "as_is")
    clock = Clock({str(BLOCKS): 2.0})
    search(store, clock)
    assert clock.prepared[1:3] == [str(BLOCKS), str(prefetching(4))]


def test_a_winner_is_found_again_by_its_decisions_and_has_children():
    """So a later search goes on from it; a trace of which nothing is known is only timed."""
    session = Session(task_of(), budget=1e6, store=Store(None), bench=Clock({}))
    candidate = Candidate((), (("prefetch", 4),))
    choice = session.space.choice(candidate)
    assert choice is not None
    assert session.space.candidate(choice, candidate.numbers) == candidate
    assert session.space.candidate(choice, {}) == Candidate((), own=choice)
    evolution = Evolution(session.space, lambda candidates: [0.0] * len(candidates))
    evolution.tell(Candidate((), own=choice), 9.0)
    assert all(child.own is None for child in evolution.propose(4, set()))


def test_an_interrupt_at_once_leaves_the_winner():
    store = Store(None)
    keep(store, BLOCKS)

    def stop(_progress: object) -> None:
        raise KeyboardInterrupt

    session = Session(task_of(), budget=60, store=store, bench=Clock({}), progress=stop)
    with pytest.raises(KeyboardInterrupt):
        session.run()
    assert session.result("interrupted").choice == Choice()
    assert stored(store) == BLOCKS


def test_a_search_of_the_built_in_space_begins_with_the_winner():
    store = Store(None)
    keep(store, BLOCKS)
    clock = Clock({str(BLOCKS): 2.0})
    session = Session(task_of(), budget=60, store=store, bench=clock, most=10)
    session.run()
    assert clock.prepared[1] == str(BLOCKS)
    assert session.result().choice == BLOCKS


def test_a_search_with_no_time_leaves_the_users_winner(store):
    keep(store, BLOCKS)
    found = spcomp.tune(spmm, A=matrix(), B=dense(), budget=1e-6)
    assert "stays stored" in str(found)
    assert spcomp.suggest(spmm, A=matrix(), B=dense()).choice == BLOCKS


def test_a_bind_and_a_suggestion_take_the_same_where_the_default_won(store, monkeypatch):
    """The default needs no conversion that would have to pay off."""
    keep(store, Choice())
    (record,) = store.records()
    store.add([replace(record, kind="as_is", speedup=1.0), replace(record, speedup=1.0)])
    monkeypatch.setattr(suggestion, "weights", lambda _kind: pytest.fail("a model was asked"))
    for calls in (None, 1, 1000):
        found = spcomp.suggest(spmm, A=matrix(), B=dense(), calls=calls)
        assert (found.choice, found.source) == (Choice(), "store")
    bound = spcomp.compile(spmm).bind(A=matrix(), calls=1000)
    bound(B=dense())
    first = "inspected for 1000 calls: the default is kept, as measured with such matrices"
    assert bound.explain().splitlines()[0] == first


def test_a_slower_winner_as_it_comes_still_counts_for_few_calls(store):
    keep(store, BLOCKS)
    (record,) = store.records()
    store.add([replace(record, conversion=1e3), replace(record, kind="as_is")])
    keep(store, prefetching(4), "as_is")
    assert spcomp.suggest(spmm, A=matrix(), B=dense(), calls=10).choice == prefetching(4)
    assert spcomp.suggest(spmm, A=matrix(), B=dense()).choice == BLOCKS
