"""The step online_softmax: what it means, when it is legal, and what it leaves of memory."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ScheduleError
from spcomp.ir.stmt import Alloc
from spcomp.ir.visitor import walk
from spcomp.schedule.steps.sharing.online_softmax import OnlineSoftmax
from spcomp.script.parse import parse_source
from tests.layers import interpreted
from tests.softmax_program import rows, weighted

LENGTHS = (0, 1, 2, 7, 8, 9, 24, 0)
COLUMNS, FEAT = 24, 3


def inputs(change=None):
    rng = np.random.default_rng(1)
    lists = [rng.choice(COLUMNS, n, replace=False) for n in LENGTHS]
    indptr = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(np.int32)
    a = (20 * rng.standard_normal(indptr[-1])).astype(np.float32)
    if change is not None:
        change(a, indptr)
    sizes = {"m": len(LENGTHS), "n": COLUMNS, "feat": FEAT, "nnz": len(a)}
    c = np.full(len(LENGTHS) * FEAT, np.nan, np.float32)
    b = rng.standard_normal(COLUMNS * FEAT).astype(np.float32)
    indices = np.concatenate(lists).astype(np.int32)
    return {"a": a, "b": b, "c": c, "indptr": indptr, "indices": indices, **sizes}


def results(func, change=None):
    with np.errstate(all="ignore"):
        return interpreted(func, inputs(change))["c"]


@pytest.mark.parametrize("size", [1, 4, 8, 100])
def test_it_means_the_same_up_to_rounding(size):
    func = rows().online_softmax("i", size).func
    np.testing.assert_allclose(results(func), results(rows().func), rtol=2e-5, atol=1e-6)


def at(row, values):
    def change(a, indptr):
        a[indptr[row] : indptr[row] + len(values)] = values

    return change


@pytest.mark.parametrize(
    "change",
    [
        at(5, [-np.inf] * 9),  # all of a row
        at(5, [-np.inf] * 8),  # whole turns before the first number
        at(6, [1.0] * 8 + [-np.inf] * 8),  # and behind it
        at(5, [1.0, 2.0, np.inf]),
        at(6, [1.0] * 20 + [np.nan]),
        at(6, [3e38, -3e38] * 12),
        at(6, np.arange(24) * 100.0),  # powers of all but the last underflow
    ],
)
def test_rows_with_infinities_and_nan_are_what_they_are_in_several_passes(change):
    func = rows().online_softmax("i", 4).func
    expected = results(rows().func, change)
    np.testing.assert_allclose(results(func, change), expected, rtol=1e-5, atol=1e-6)


def test_nothing_but_scalars_and_a_turn_has_memory():
    func = rows().online_softmax("i", 8).func
    shapes = [n.buffer.shape for n in walk(func.body) if isinstance(n, Alloc)]
    assert {int(size.value) for (size,) in shapes} == {1, 8}


def test_the_decision_can_be_printed():
    step = OnlineSoftmax("i", 8)
    assert str(step) == "online_softmax('i', 8)"
    expected = "C and SUM in the loop i, with the maximum TOP so far; no memory for TOP, SUM"
    said = str(step.plan(rows().func))
    assert {*said.split()} == {*expected.split()}


@pytest.mark.parametrize(
    ("loop", "size", "why"),
    [("i", 0, "at least 1"), ("j", 4, "no nest in it computes the maximum"), ("x", 4, "x")],
)
def test_what_it_cannot_do_is_refused(loop, size, why):
    with pytest.raises(ScheduleError, match=why):
        rows().online_softmax(loop, size)


def changed(old, new):
    """The rows of the program with *new* in place of *old* in its text."""
    text = weighted.script()
    assert old in text
    func = parse_source(text.replace(old, new), "changed.py")[0]
    schedule = spcomp.Schedule(func).lower_sparse_iter()
    return schedule.reverse_compute_at("total0", "i").reverse_compute_at("mix0", "i")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("T.exp(A[i, j] - TOP[i])\n", "T.exp(2.0 * A[i, j] - TOP[i])\n", "not that of what"),
        ("T.exp(A[i, j] - TOP[i])\n", "T.exp(A[i, j] - TOP[i]) + TOP[i]\n", "TOP is no factor"),
        ("SUM[i] = 0.0", "SUM[i] = 1.0", "SUM is no sum from 0"),
        ("/ SUM[i] *", "* SUM[i] *", "SUM is no factor"),
        ("/ SUM[i] *", "* T.exp(A[i, j] - TOP[i]) *", "is no factor"),
    ],
)
def test_what_is_not_proportional_to_powers_of_the_maximum_is_refused(old, new, why):
    with pytest.raises(ScheduleError, match=why):
        changed(old, new).online_softmax("i", 4)


def test_it_runs_on_a_cpu_too():
    data = inputs()
    kernel = spcomp.compile(rows().online_softmax("i", 8))
    matrix = sps.csr_array((data["a"], data["indices"], data["indptr"]), (len(LENGTHS), COLUMNS))
    result = kernel(A=matrix, B=data["b"].reshape(COLUMNS, FEAT))
    np.testing.assert_allclose(result.ravel(), results(rows().func), rtol=2e-5, atol=1e-6)
