"""The step stage_weights: what an element is weighed with is computed once, before the sums."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from spcomp.errors import ScheduleError
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.sharing.stage_weights import StageWeights
from spcomp.script.parse import parse_source
from tests.emulated import ORDERS, Kernels, order, short_pieces
from tests.layers import interpreted, source

COUNTS = [0, 3, 65, 1, 0, 2]
COLUMNS = 70
WEIGHT = "T.exp(A[i, j] - S[i]) / (S[i] + 2.0)"


def program(weight=WEIGHT):
    """SpMM with a function of the row and the element in place of the element."""
    text = source("csrmm").script().replace("A[i, j] *", f"{weight} *")
    text = text.replace("c: T.handle,", "c: T.handle, s: T.handle,")
    at = text.index("    C = T.match")
    text = f'{text[:at]}    S = T.match_sparse_buffer(s, (I,), "float32")\n{text[at:]}'
    return parse_source(text, "weighted.py")[0]


def operands(feat):
    rng = np.random.default_rng(4)
    indptr = np.concatenate([[0], np.cumsum(COUNTS)]).astype(np.int32)
    indices = np.concatenate([rng.permutation(COLUMNS)[:n] for n in COUNTS]).astype(np.int32)
    a, s = rng.random(len(indices), np.float32), rng.random(len(COUNTS), np.float32)
    b = rng.random((COLUMNS, feat), np.float32)
    c = np.full((len(COUNTS), feat), np.nan, np.float32)
    expected = np.zeros((len(COUNTS), feat))
    for row, (begin, end) in enumerate(pairwise(indptr)):
        weights = np.exp(a[begin:end] - s[row]) / (s[row] + 2)
        expected[row] = weights @ b[indices[begin:end]]
    given = {"a": a, "b": b.ravel(), "c": c.ravel(), "s": s, "indptr": indptr, "indices": indices}
    sizes = {"m": len(COUNTS), "n": COLUMNS, "nnz": len(indices), "feat": feat}
    return {**given, **sizes}, expected


def test_the_step_means_the_same_program():
    func = Schedule(program()).lower_sparse_iter().func
    staged = StageWeights("i", "j").apply(func)
    inputs, expected = operands(3)
    made = interpreted(staged, inputs)["c"].reshape(expected.shape)
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    assert "C[vi, vk] + i_weights[vi, vj] * B" in staged.script()


@pytest.mark.parametrize(
    ("weight", "step", "why"),
    [
        ("A[i, j] * S[i]", StageWeights("i", "j"), "no function or quotient"),
        ("T.exp(B[j, k])", StageWeights("i", "j"), "no function or quotient"),
        ("T.exp(S[i])", StageWeights("i", "j"), "no function or quotient"),
        ("T.exp(A[i, j]) * C[i, k]", StageWeights("i", "k"), "does not run over the fiber"),
        (WEIGHT, StageWeights("j", "k"), "no loop over all rows"),
    ],
)
def test_what_is_not_a_weight_of_elements_is_refused(weight, step, why):
    func = Schedule(program(weight)).lower_sparse_iter().func
    with pytest.raises(ScheduleError, match=why):
        step.apply(func)


def test_a_weight_that_the_loop_changes_is_refused():
    func = Schedule(program("T.exp(A[i, j] + C[i, 0])")).lower_sparse_iter().func
    assert not StageWeights("i", "j").is_legal(func)


@pytest.mark.parametrize("feat", [1, 32, 33])
def test_sums_over_long_rows_have_their_weights_computed_before(feat):
    with short_pieces(8):
        kernels = Kernels(program(), {"feat": feat}, Facts(hubs=True, row=8))
    assert any("i_weights" in func.script() for func in kernels.module.funcs)
    inputs, expected = operands(feat)
    results = []
    for seed in ORDERS:
        with order(seed):
            results.append(kernels({**inputs, "c": inputs["c"].copy()})["c"])
    np.testing.assert_allclose(results[0].reshape(expected.shape), expected, rtol=1e-5)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
