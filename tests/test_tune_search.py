"""The tuner: searches, budgets, spaces of the user, strategies, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import spcomp
from spcomp import formats as F
from spcomp.errors import ArgumentError, BackendError
from spcomp.tune import Store, Tuned, search
from spcomp.tune.choice import Choice
from spcomp.tune.model import Model, rank_correlation
from spcomp.tune.problem import fingerprint, versions
from spcomp.tune.search import Session
from spcomp.tune.space import Candidate
from spcomp.tune.strategy import Evolution, Listed, strategy_of
from spcomp.tune.winners import NONE
from tests.test_tune_space import spmm
from tests.tune_helpers import (
    FEAT,
    ROWS,
    dense,
    matrix,
    prefetching,
    task_of,
    tuned,
)
from tests.tune_helpers import store as store


def test_a_search_returns_what_it_found_and_keeps_it(store):
    found = tuned(budget=6)
    assert isinstance(found, Tuned)
    assert found.trials[0].candidate == Candidate()
    assert len({t.candidate for t in found.trials}) == len(found.trials)
    assert len(found.trials) > 1
    assert found.elapsed < 6 + 30  # of what runs when the time is up, beside other tests
    assert found.speedup.low > 1 or found.candidate == Candidate()
    want = matrix() @ dense()
    for result in (found.kernel(A=matrix(), B=dense()), found.bound(B=dense())):
        np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)
    assert str(found.candidate) in str(found)
    assert len(found.table().splitlines()) == len(found.trials)
    assert set(found.to_json()) >= {"candidate", "formats", "trace", "speedup", "trials"}
    kinds = [record.kind for record in store.records()]
    timed = [t for t in found.trials if t.speedup is not None]
    assert kinds.count("measured") >= len(timed) - 1
    assert {"any", "as_is"} <= set(kinds)
    winner = store.winner(found.task.problem, fingerprint(), versions(), "any")
    assert winner is not None
    assert Choice.from_json(winner[0].choice) == found.choice
    assert winner[1] == 0


@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        ("y[i] = A[i, j] * x[j]", {"x": (ROWS,)}),
        ("C[i, j] = A[i, j] * X[i, k] * Y[j, k]", {"X": (ROWS, 8), "Y": (ROWS, 8)}),
        ("m[i] = max(j, A[i, j] * x[j])", {"x": (ROWS,)}),
        ("s = A[i, j] * x[j]", {"x": (ROWS,)}),
    ],
)
@pytest.mark.sample(3)
def test_index_notation_is_tuned(store, program, shapes):
    rng = np.random.default_rng(1)
    arguments = {name: rng.random(shape, dtype=np.float32) for name, shape in shapes.items()}
    found = spcomp.tune(program, A=matrix(), **arguments, budget=2)
    want = spcomp.compile(program)(A=matrix(), **arguments)
    got = found.kernel(A=matrix(), **arguments)
    assert type(got) is type(want)
    difference = abs(got - want)
    assert float(difference.max()) < 1e-3
    kernel = spcomp.compile(program, tuned=True)
    kernel(A=matrix(), **arguments)
    assert "tuned: " in kernel.explain(A=matrix(), **arguments)
    if sum(t.speedup is not None for t in found.trials) > 1:  # the default alone is not kept
        assert NONE not in kernel.explain(A=matrix(), **arguments)


def test_arguments_may_have_the_names_of_options(store):
    found = spcomp.tune(
        "y[i] = A[i, j] * budget[j]",
        arguments={"A": matrix(), "budget": np.ones(ROWS, np.float32)},
        budget=0.5,
    )
    assert found.trials


def test_a_space_of_the_users_own(store):
    seen = []

    def space(program, A, B):
        seen.append((program, A.shape, B.shape))
        yield {"A": F.bsr(2)}, None
        yield None, prefetching(8).trace
        low = spcomp.Schedule(program).lower_sparse_iter()
        yield low.parallel("i").vectorize("k")
        yield low.parallel("i").vectorize("k")

    found = tuned(budget=20, space=space)
    assert seen == [(spmm, (ROWS, ROWS), (ROWS, FEAT))]
    assert found.stopped == "exhausted"
    assert [t.status for t in found.trials[:1]] == ["measured"]
    assert {str(t.candidate) for t in found.trials} == {
        "default",
        "A in bsr((2, 2)), default steps",
        "as it comes, 8 steps",
        "as it comes, 2 steps",
    }
    assert all(t.status in ("measured", "slow") for t in found.trials)


def test_a_format_that_the_matrix_decides_is_measured(store):
    space = lambda *_, **__: iter([({"A": F.hyb(1)}, None)])  # noqa: E731
    found = tuned(budget=15, space=space)
    assert found.trials[1].status in ("measured", "slow"), found.trials[1]


def test_rules_of_the_users_are_measured_and_not_kept(store):
    rules = F.ell().rules(next(b for b in spmm.buffers if b.name == "A"))
    composed = spcomp.decompose(spmm, A=list(rules)).formats["A"]
    found = tuned(budget=10, space=lambda *_, **__: iter([({"A": composed}, None)]))
    assert found.trials[1].status in ("measured", "slow")
    assert all("ell" not in record.choice for record in store.records())


@pytest.mark.parametrize(
    ("item", "why"),
    [(3, "yielded int"), (("ell", None), "by the names"), (({"A": 3}, None), "format of A")],
)
def test_what_is_no_candidate_is_refused(store, item, why):
    with pytest.raises(ArgumentError, match=why):
        tuned(budget=5, space=lambda *_, **__: iter([item]))


@pytest.mark.parametrize("budget", [0, -1, "much", float("nan"), float("inf")])
def test_a_wrong_budget_is_refused(store, budget):
    with pytest.raises(ArgumentError, match="budget"):
        tuned(budget=budget)


@pytest.mark.parametrize(
    "wrong",
    [{"options": 5}, {"arguments": 5}, {"store": 5}, {"space": 5}, {"space": lambda *_, **__: 5}],
)
def test_options_of_a_wrong_kind_are_refused(store, wrong):
    (name,) = wrong
    with pytest.raises(ArgumentError, match=f"argument {name}: got int"):
        spcomp.tune(spmm, A=matrix(), B=dense(), budget=1, **{"store": store, **wrong})


def test_a_program_with_a_schedule_is_refused(store):
    schedule = spcomp.Schedule(spmm).lower_sparse_iter().parallel("i")
    with pytest.raises(ArgumentError, match="decided already"):
        spcomp.tune(schedule, A=matrix(), B=dense())
    with pytest.raises(ArgumentError, match="decided already"):
        spcomp.tune(spcomp.decompose(spmm, A=F.ell()), A=matrix(), B=dense())


@pytest.mark.parametrize("how", [spcomp.tune, spcomp.tune.suggest])
def test_an_adjoint_of_notation_is_refused_in_true_words(store, how):
    adjoint = spcomp.adjoint("C[i, k] = A[i, j] * B[j, k]", wrt="B")
    with pytest.raises(ArgumentError, match="adjoints of index notation are not tuned") as caught:
        how(adjoint, A=matrix(), grad_C=dense())
    assert "print(adjoint)" in caught.value.hint


@pytest.mark.parametrize("calls", [0, -1])
def test_a_conversion_pays_off_in_one_call_at_least(store, calls):
    with pytest.raises(ArgumentError, match=f"argument calls: got {calls}, expected at least 1"):
        tuned(budget=1, calls=calls)


def test_wrong_arguments_are_refused_as_in_a_call(store):
    with pytest.raises(ArgumentError, match="missing argument B"):
        spcomp.tune(spmm, A=matrix(), budget=1)
    with pytest.raises(ArgumentError, match="B"):
        spcomp.tune(spmm, A=matrix(), B=dense()[:-1], budget=1)


def test_a_program_with_loops_is_tuned_as_it_comes(store):
    low = spcomp.Schedule(spmm).lower_sparse_iter().func
    found = spcomp.tune(low, A=matrix(), B=dense(), budget=2)
    assert found.formats == {}
    np.testing.assert_allclose(
        found.kernel(A=matrix(), B=dense()), matrix() @ dense(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("program", ["C[i, j] = A[i, k] * B[k, j]", "C[i, j] = A[i, j] + B[i, j]"])
def test_results_that_are_assembled_are_compared(store, program):
    found = spcomp.tune(program, A=matrix(), B=matrix(1), budget=2)
    want = spcomp.compile(program)(A=matrix(), B=matrix(1))
    got = found.kernel(A=matrix(), B=matrix(1))
    assert type(got) is type(want)
    assert not any(t.status == "wrong" for t in found.trials)
    assert abs(got - want).max() < 1e-5


def test_a_program_of_dense_operands_has_candidates_too(store):
    found = spcomp.tune("y[i] = 2 * x[i]", x=np.ones(100, np.float32), budget=1)
    assert len(found.trials) > 1


def test_a_tiny_budget_still_gives_the_default(store):
    found = tuned(budget=1e-3)
    assert found.candidate == Candidate()
    assert found.choice == Choice()
    assert found.elapsed < 5


def test_a_conversion_that_does_not_pay_off_in_so_many_calls_does_not_win(store):
    """One call saves less than a call takes, and a conversion takes many."""

    def space(program, **arguments):
        yield {"A": F.bsr(2)}, None

    found = tuned(budget=20, space=space, calls=1)
    default, blocks = found.trials
    assert default.status == "measured"
    assert blocks.status in ("measured", "slow")
    assert blocks.conversion > blocks.seconds
    assert found.choice == Choice()
    with pytest.raises(ArgumentError, match="calls"):
        tuned(budget=20, calls="many")


def test_a_search_is_drawn_with_what_was_expected(store, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    found = tuned(budget=2)
    assert all(t.expected > 0 for t in found.trials if t.speedup is not None)
    figure = found.plot(tmp_path / "a.html")
    assert [axes.get_ylabel() for axes in figure.axes[:2]] == [
        "times as fast as the default",
        "measured",
    ]
    assert "default steps" in [label.get_text() for label in figure.axes[2].get_xticklabels()]
    assert "<svg" in (tmp_path / "a.html").read_text()


def test_an_interrupt_keeps_what_was_found(store, monkeypatch):
    count = 0

    def stop(progress):
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(budget=20, progress=stop)
    assert [r.kind for r in store.records()].count("any") == 1


def test_a_session_can_be_asked_at_any_time(store):
    session = Session(task_of(), budget=5)
    assert session.result("interrupted").candidate == Candidate()
    session.run()
    assert session.result().trials


def test_progress_is_reported(store):
    seen: list[search.Progress] = []
    tuned(budget=2, progress=seen.append)
    assert seen
    assert all(p.budget == 2 for p in seen)
    assert [p.tried for p in seen] == sorted(p.tried for p in seen)


def test_evolution_finds_the_best_of_a_known_landscape():
    """Times are a formula: of 448 candidates it finds the best after measuring a quarter."""
    session = Session(task_of(), budget=60, store=Store(None))
    space = session.space
    space.formats = ((),)
    best = Candidate(decisions=(("prefetch", 8), ("tile", 2), ("unroll", "sparse")))
    wanted = dict(best.decisions)

    def speed(candidate: Candidate) -> float:
        mine = dict(candidate.decisions)
        names = mine.keys() | wanted.keys()
        return 2.0 ** -sum(mine.get(name) != wanted.get(name) for name in names)

    evolution = Evolution(space, lambda candidates: [0.0] * len(candidates), seed=4)
    known: set[Candidate] = set()
    while best not in known and len(known) < 200:
        for candidate in evolution.propose(4, known):
            known.add(candidate)
            evolution.tell(candidate, speed(candidate))
    assert best in known


def test_evolution_ends_where_everything_is_known():
    session = Session(task_of(), budget=60, store=Store(None))
    session.space.formats = ((),)
    session.space._dimensions[()] = {"unroll": ("default", "sparse")}
    evolution = Evolution(session.space, lambda candidates: [0.0] * len(candidates))
    everything = set(session.space.everything(()))
    assert evolution.propose(4, everything) == []
    assert set(evolution.propose(4, set())) <= everything


def test_a_listed_space_keeps_its_order():
    candidates = [Candidate(decisions=(("tile", k),)) for k in (1, 2, 2, 4)]
    listed = Listed(iter(candidates))
    assert listed.propose(2, set()) == candidates[:2]
    assert listed.propose(2, {candidates[1]}) == candidates[3:]
    assert listed.propose(2, set()) == []


def test_a_model_ranks_what_it_was_trained_on(store):
    pytest.importorskip("xgboost", reason="the model needs xgboost")
    rng = np.random.default_rng(0)
    rows = [{"a": float(a), "b": float(b)} for a, b in rng.random((64, 2))]
    model = Model([(row, 1 + row["a"]) for row in rows])
    assert model.is_ready
    others = [{"a": float(a), "b": 0.5} for a in np.linspace(0.05, 0.95, 10)]
    assert rank_correlation(model.predict(others), [row["a"] for row in others]) > 0.9
    model.add({"a": 0.5, "c": 1.0}, 1.5)
    assert model.predict([{"b": 0.5}])[0] > 0


def test_ranks_are_compared():
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2], [2, 1]) == 0


def test_an_unknown_strategy_is_refused(store):
    with pytest.raises(ArgumentError, match="strategies are"):
        tuned(strategy="luck")


def test_tpe_needs_optuna_and_then_proposes(store):
    session = Session(task_of(), budget=60, store=Store(None))
    try:
        strategy = strategy_of("tpe", session.space, lambda c: [0.0] * len(c), 0)
    except BackendError as error:
        assert error.hint == "pip install spcomp[tune]"  # noqa: PT017
        pytest.skip("optuna is not installed")
    known: set[Candidate] = set()
    for _ in range(4):
        found = strategy.propose(3, known)
        known |= set(found)
        for candidate in found:
            strategy.tell(candidate, 1.0 if candidate.formats else 2.0)
    assert len(known) == 12


@pytest.mark.parametrize("how", [spcomp.tune, spcomp.tune.suggest])
def test_an_argument_of_notation_that_is_missing_is_named(how):
    with pytest.raises(ArgumentError, match="missing argument x"):
        how("y[i] = A[i, j] * x[j]", A=matrix())
    with pytest.raises(ArgumentError, match="missing argument dst"):
        how("Y[dst[e]] = w[e]", w=np.ones(3))


def test_scatters_are_tuned_in_the_size_that_is_given(store):
    text = "Y[dst[e], f] = w[e] * X[src[e], f]"
    dst, src = np.array([0, 1, 2, 1]), np.array([2, 0, 1, 1])
    given = {"w": np.ones(4), "X": np.ones((3, 8)), "dst": dst, "src": src}
    found = spcomp.tune(text, **given, sizes={"Y": 5}, budget=0.5)
    want = spcomp.compile(text)(**given, sizes={"Y": 5})
    np.testing.assert_array_equal(found.kernel(**given, sizes={"Y": 5}), want)
    assert dict(found.task.problem.extents)
    assert spcomp.tune.suggest(text, **given, sizes={"Y": 5}).task.problem == found.task.problem
    for how in (spcomp.tune, spcomp.tune.suggest):
        with pytest.raises(ArgumentError, match=r"(?s)how long Y is.*sizes="):
            how(text, **given)
        with pytest.raises(ArgumentError, match="Z is no result"):
            how(text, **given, sizes={"Z": 5})


def test_a_search_that_timed_few_candidates_says_that_more_seconds_would_try_more(store):
    found = tuned(budget=0.5)
    more = "more seconds would try more"
    few = replace(found, trials=found.trials[:1] * 2, stopped="budget")
    assert str(few).endswith(f"(budget: {more})")
    assert more not in str(replace(few, stopped="exhausted"))
    assert more not in str(replace(few, trials=found.trials[:1] * 6))


def test_a_search_may_be_limited_by_measurements(store):
    session = Session(task_of(), budget=60, store=store, most=12)
    session.run()
    timed = [t for t in session.result().trials if t.speedup is not None]
    assert 1 < len(timed) <= 12 - 6  # the default among them; the rest is for the end
