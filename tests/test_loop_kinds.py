"""Vectorized loops over fibers: what is left of a row is one vector under a mask."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import spcomp
from spcomp.script.parse import parse_source
from spcomp.target import target as parse_target

LENGTHS = (0, 1, 7, 8, 9, 0, 31, 32, 33, 47, 16, 2)
EMPTY = {"sum": "T.float32(0)", "T.max": 'T.min_value("float32")', "prod": "T.float32(1)"}
COMBINED = {"sum": "Y[i] + {x}", "T.max": "T.max(Y[i], {x})", "prod": "Y[i] * {x}"}
ROWS = """
@T.prim_func
def rows(x: T.handle, y: T.handle, indptr: T.handle, m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_variable(I, (n, nnz), indptr, "int32")
    X = T.match_sparse_buffer(x, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            Y[i] = {empty}
        Y[i] = {combined}
"""


def reduction(kind, dtype, x="X[i, j]"):
    text = ROWS.format(empty=EMPTY[kind], combined=COMBINED[kind].format(x=x))
    (func,) = parse_source(text.replace("float32", dtype), "rows.py")
    return func


def fibers(dtype):
    """Rows of all lengths; between them values that would show if they were taken too."""
    indptr = np.cumsum((0, *LENGTHS)).astype("int32")
    x = np.array([1, -1, 2, 0.5])[np.arange(indptr[-1]) % 4].astype(dtype)
    return indptr, x


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16", "int8"])
@pytest.mark.parametrize("kind", EMPTY)
def test_a_reduction_over_a_fiber_takes_its_elements_and_no_others(kind, dtype):
    indptr, x = fibers(dtype)
    y = np.zeros(len(LENGTHS), dtype)
    spcomp.compile(reduction(kind, dtype))(x, y, indptr, len(y), 64, len(x))
    for row, (begin, end) in enumerate(pairwise(indptr)):
        part = x[begin:end].astype("float64" if np.dtype(dtype).kind == "f" else dtype)
        want = {"sum": np.sum, "prod": np.prod, "T.max": _largest}[kind](part)
        np.testing.assert_allclose(y[row], np.asarray(want).astype(dtype), rtol=1e-3)


def _largest(part):
    if len(part):
        return part.max()
    return -np.inf if part.dtype.kind == "f" else np.iinfo(part.dtype).min


def test_neighbours_that_are_not_numbers_stay_outside():
    indptr, x = np.array([0, 3, 20], "int32"), np.arange(20, dtype="float32")
    x[3:] = np.nan
    y = np.zeros(2, "float32")
    spcomp.compile(reduction("sum", "float32"))(x, y, indptr, 2, 20, 20)
    assert y[0] == 3
    assert np.isnan(y[1])


def test_only_targets_that_load_under_a_mask_mask_what_is_left():
    func = reduction("sum", "float32")
    flat = {
        name: spcomp.compile(func, target=parse_target(name)).stage("flat")
        for name in ("cpu:x86-64", "cpu:x86-64-v3", "cpu:x86-64-v4")
    }
    assert "masked_load" not in flat["cpu:x86-64"]
    assert "T.ramp(0, 1, 8)" in flat["cpu:x86-64-v3"]
    assert all("masked_load" in flat[name] for name in ("cpu:x86-64-v3", "cpu:x86-64-v4"))
    narrow = reduction("sum", "int8")
    assert "masked_load" not in spcomp.compile(narrow, target="cpu:x86-64-v3").stage("flat")
