"""The default schedule on GPUs for scatters in no order, without columns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError, SpcompError
from spcomp.script.parse import parse_source
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, order
from tests.layers import interpreted, source

SCATTER = """
@T.prim_func
def scatter(a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
            m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "{dtype}")
    X = T.match_sparse_buffer(x, (I,), "{dtype}")
    Y = T.match_sparse_buffer(y, (N,), "{dtype}")
    with T.sp_iter([I, J], "RS", "scatter") as [i, j]:
        Y[j] = {value}
"""
VALUES = {"+": "Y[j] + A[i, j] * X[i]", "min": "T.min(Y[j], A[i, j] * X[i])"}

SCATTER_ROWS = """
from spcomp import script as T


@T.prim_func
def rows(a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
         m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(8)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (I, K), "float32")
    Y = T.match_sparse_buffer(y, (N, K), "float32")
    with T.sp_iter([I, J, K], "RRS", "rows") as [i, j, k]:
        Y[j, k] = Y[j, k] + A[i, j] * X[i, k]
"""


def scatter(dtype, op):
    """``y[j] op= a[i, j] * x[i]``, for a matrix by rows: many rows update one element."""
    (func,) = parse_source(SCATTER.format(dtype=dtype, value=VALUES[op]), "scatter.py")
    return func


@pytest.mark.parametrize("op", ["+", "min"])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("rows", [0, 1, 200])
def test_threads_update_integers_in_any_order(op, dtype, rows):
    kernel = spcomp.compile(scatter(dtype, op), target=EMULATED)
    rng = np.random.default_rng(rows)
    pattern = sps.random_array((rows, 9), density=0.3, format="csr", rng=rng)
    values = rng.integers(1, 9, pattern.nnz).astype(dtype)
    x, expected = rng.integers(0, 99, rows).astype(dtype), np.full(9, 50, dtype)
    terms = values * np.repeat(x, np.diff(pattern.indptr))
    (np.add if op == "+" else np.minimum).at(expected, pattern.indices, terms)
    for seed in ORDERS:
        y = np.full(9, 50, dtype)
        index = (pattern.indptr.astype(np.int32), pattern.indices.astype(np.int32))
        with order(seed):
            kernel(values, x, y, *index, rows, 9, len(values))
        np.testing.assert_array_equal(y, expected)
    assert "annotate('scatter1', 'atomic', True)" in kernel.explain()
    (launch,) = kernel.launches
    assert launch.threads == (128, 1, 1)
    assert not launch.atomic


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int16"])
def test_no_default_updates_other_types_atomically(dtype):
    goal = nvvm.resolve(target("cuda:sm_80"))
    lowered = lower(scatter(dtype, "+"), goal)
    assert "atomic" not in str(lowered.trace)
    assert "atomicrmw" not in nvvm.emit(lowered.flat, goal).llvm_ir


@pytest.mark.parametrize("feat", [1, 3, 33])
def test_rows_scattered_to_coordinates_that_may_be_missing_run_by_columns(feat):
    kernel = spcomp.compile(source("scatter_add"), target=EMULATED)
    assert "lift_loop('k')" in kernel.explain()
    rng = np.random.default_rng(feat)
    ends, x = rng.integers(0, 5, (2, 40)).astype(np.int32), rng.random((5, feat), np.float32)
    expected = np.zeros((5, feat), np.float32)
    np.add.at(expected, ends[1], x[ends[0]])
    results = []
    for seed in ORDERS:
        y = np.full((5, feat), np.nan, np.float32)
        with order(seed):
            kernel(*ends, x, y, 5, feat, 40)
        results.append(y)
    np.testing.assert_allclose(results[0], expected, rtol=1e-5)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    ends[1, 7] = 5
    with pytest.raises(SpcompError, match="not stored in Y"):
        kernel(*ends, x, np.zeros((5, feat), np.float32), 5, feat, 40)


LET = """
@T.prim_func
def f(x: T.handle, y: T.handle, n: T.int32) -> None:
    T.func_attr({{"sparse_tir_level": 1}})
    X = T.match_buffer(x, (n, 4), "float32")
    Y = T.match_buffer(y, (n, 4), "float32")
    for i in T.serial(n):
        with T.block("outer"):
            vi = T.axis.spatial(n, i)
            first = {read}[vi, 0]
            for k in T.serial(4):
                with T.block("inner"):
                    vk = T.axis.spatial(4, k)
                    Y[vi, vk] = first + 1.0
"""


def test_a_loop_is_lifted_out_of_lets_unless_it_writes_what_they_read():
    writing, reading = (parse_source(LET.format(read=b), "let.py")[0] for b in "YX")
    with pytest.raises(ScheduleError, match="it writes what is read before it"):
        spcomp.Schedule(writing).lift_loop("k")
    lifted = spcomp.Schedule(reading).lift_loop("k").func
    x = np.arange(3, dtype=np.float32)
    given = {"x": np.repeat(x, 4), "y": np.zeros(12, np.float32), "n": 3}
    np.testing.assert_array_equal(interpreted(lifted, given)["y"], np.repeat(x + 1, 4))


def test_atomic_updates_of_neighbours_are_one_at_a_time():
    func = parse_source(SCATTER_ROWS, "rows.py")[0]
    schedule = spcomp.Schedule(func).lower_sparse_iter().annotate("rows1", "atomic", True)
    kernel = spcomp.compile(schedule.bind("i", "blockIdx.x").vectorize("k"), target=EMULATED)
    A = sps.random_array((9, 7), density=0.5, format="csr", rng=0, dtype=np.float32)
    A.data[:] = np.arange(1, A.nnz + 1)
    X = np.arange(9 * 8, dtype=np.float32).reshape(9, 8)
    pattern = {"indptr": A.indptr.astype(np.int32), "indices": A.indices.astype(np.int32)}
    got = kernel(A=A.data, X=X, Y=np.ones((7, 8), np.float32), **pattern)
    np.testing.assert_array_equal(got, A.T @ X + 1)
