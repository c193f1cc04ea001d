"""What was tuned is called as the user's program is: its options, sizes, outputs and threads."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from tests.tune_helpers import ROWS, matrix
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
