"""The default schedule on GPUs for scatters in no order, without columns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.script.parse import parse_source
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, order

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
