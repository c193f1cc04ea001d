"""What was tuned is called as the user's program is: its options, sizes, outputs and threads."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from tests.test_tune_space import spmm
from tests.tune_helpers import FEAT, ROWS, dense, matrix
from tests.tune_helpers import store as store

SPMV = "y[i] = A[i, j] * x[j]"
TWICE = spcomp.Function(lambda a: a * 2)


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
