"""What was tuned is called as the user's program is: its options, sizes, outputs and threads."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ArgumentError
from spcomp.schedule.step import Trace
from spcomp.tune.choice import Choice
from spcomp.tune.decisions import NONE, Decision, Decisions
from spcomp.tune.problem import digest
from spcomp.tune.space import Space
from spcomp.tune.task import Task
from tests.test_tune_space import spmm
from tests.tune_helpers import FEAT, ROWS, dense, keep, matrix, prefetching, task_of
from tests.tune_helpers import store as store

SPMV = "y[i] = A[i, j] * x[j]"
TWICE = spcomp.Function(lambda a: a * 2)


@T.prim_func
def repeated(
    a: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    feat: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "sums") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j]


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (SPMV, {"semiring": "min_plus"}),
        ("y[i] = c * A[i, j] * x[j]", {"constants": {"c": 3.0}}),
        ("y[i] = A[i, j] * exp(x[j])", {"functions": {"exp": TWICE}}),
        ("y[i] = A[i, j] * f(x[j])", {"functions": {"f": TWICE}}),
        ("y[i, j] = A[i, j] * x[j]", {"formats": {"y": "dense"}}),
    ],
)
def test_index_notation_keeps_its_options(store, program, options):
    given = {"A": matrix(), "x": np.random.default_rng(1).random(ROWS, dtype=np.float32)}
    want = spcomp.compile(program, **options)(**given)
    found = spcomp.tune(program, **given, budget=0.1, options=options)
    suggested = spcomp.tune.suggest(program, **given, options=options)
    for kernel in (found.kernel, suggested.compile()):
        got = kernel(**given)
        assert type(got) is type(want)
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_an_output_may_be_given_by_name(store):
    given = {"A": matrix(), "B": dense(), "C": np.zeros((ROWS, FEAT), np.float32)}
    found = spcomp.tune(spmm, **given, budget=0.5)
    assert found.seconds > 0
    assert not given["C"].any()


def test_what_is_added_to_may_be_given(store):
    x, y = np.ones(ROWS, np.float32), np.ones(ROWS, np.float32)
    found = spcomp.tune("y[i] += A[i, j] * x[j]", A=matrix(), x=x, y=y, budget=0.5)
    assert (y == 1).all()
    found.kernel(A=matrix(), x=x, y=y)
    np.testing.assert_allclose(y, 1 + matrix() @ x, rtol=1e-4)


def test_a_winner_takes_no_more_threads_than_the_user_allows():
    for threads, limit, least in ((8, 1, 1), (1, 8, 1), (2, None, 2)):
        with spcomp.num_threads(4):
            options = replace(task_of().options, threads=limit)
            assert Choice(threads=threads).kernel(spmm, options).options.threads == least
    with spcomp.num_threads(1):
        assert Choice(threads=2).kernel(spmm, task_of().options).options.threads == 1
        assert Choice().kernel(spmm, task_of().options).options.threads is None


def test_a_kernel_decides_again_with_other_threads(store):
    with spcomp.num_threads(4):
        keep(store, Choice(threads=2), "as_is")
        kernel = spcomp.compile(spmm, tuned=True)
        kernel(A=matrix(), B=dense())
        assert kernel.latest.options.threads == 2
    with spcomp.num_threads(1):
        kernel(A=matrix(), B=dense())
        assert kernel.latest.options.threads is None
        assert "only on another machine or with other threads" in kernel.explain()


def test_what_was_tuned_with_fewer_threads_is_for_these():
    free, one = task_of().options, replace(task_of().options, threads=1)
    assert digest(spmm, free) != digest(spmm, one)
    with spcomp.num_threads(8):
        assert "threads" in Space.of(task_of().asked).dimensions(())
        limited = Task.of(spmm, {"A": matrix(), "B": dense()}, threads=1)
        assert "threads" not in Space.of(limited.asked).dimensions(())


def test_sizes_are_told_apart_by_value_whatever_their_type(store):
    seen = []
    decisions = Decisions(lambda named: Decision(None, str(seen.append(named))), NONE)
    sizes = 16, np.int64(16), np.int64(32), np.array(16), np.array(32), np.array(32)
    for size in sizes:
        decisions.of({"feat": size})
    assert [int(named["feat"]) for named in seen] == [16, 16, 32, 16, 32]
    for number in (0.5, np.float32(0.5), np.float32(0.25), np.array(0.5), np.array(0.25)):
        decisions.of({"alpha": number})
    assert len(seen) == 5 + 3  # numbers that are no sizes decide nothing


def stepping(program, **given):
    """A choice of the steps that a call gets, with its sizes compiled in."""
    task = Task.of(program, given)
    return Choice((), task.version.trace, task.problem.extents)


def test_sizes_that_a_winner_has_compiled_in_may_be_stated(store):
    keep(store, prefetching(4), "as_is")
    given, want = {"A": matrix(), "B": dense()}, matrix() @ dense()
    kernel = spcomp.compile(spmm, tuned=True)
    for size in (FEAT, np.int64(FEAT), np.array(FEAT)):
        np.testing.assert_allclose(kernel(**given, feat=size), want, rtol=1e-4)
        assert "1.50 (1.40 to 1.60) times as fast" in kernel.note
        assert "prefetch('j', 4)" in kernel.explain(**given, feat=size)
    np.testing.assert_allclose(kernel.interpret("code", **given, feat=FEAT), want, rtol=1e-4)
    with pytest.raises(ArgumentError, match="feat: got 63, expected 64 as B says"):
        kernel(**given, feat=FEAT - 1)
    for bound, rest in (
        (kernel.bind(A=matrix()), {"B": dense(), "feat": FEAT}),
        (kernel.bind(A=matrix(), feat=FEAT), {"B": dense()}),
    ):
        np.testing.assert_allclose(bound(**rest), want, rtol=1e-4)
        assert "1.50 (1.40 to 1.60) times as fast" in bound.note
        assert "prefetch('j', 4)" in bound.explain(**rest)
        assert "prefetch('j', 4)" in bound.specialize(**rest).explain()
        np.testing.assert_allclose(bound.interpret("code", **rest), want, rtol=1e-4)


def test_sizes_that_only_the_call_says_are_tuned(store):
    want = spcomp.compile(repeated)(A=matrix(), feat=16)
    steps = stepping(repeated, A=matrix(), feat=16).trace
    space = lambda *_, **__: iter([(None, Trace(steps.steps[:-1]))])  # noqa: E731
    found = spcomp.tune(repeated, A=matrix(), feat=16, budget=20, space=space)
    assert found.trials[1].status in ("measured", "slow"), found.trials[1]
    choice = stepping(repeated, A=matrix(), feat=16)
    won = replace(found, choice=choice)
    suggested = replace(spcomp.tune.suggest(repeated, A=matrix(), feat=16), choice=choice)
    for result in (
        won.kernel(A=matrix(), feat=16),
        won.bound(feat=16),
        pickle.loads(pickle.dumps(won.bound))(feat=16),
        suggested.compile()(A=matrix(), feat=16),
    ):
        np.testing.assert_array_equal(result, want)
    assert won.trace
    with pytest.raises(ArgumentError, match="argument feat: got 8, expected 16"):
        won.bound(feat=8)
