"""Formats: slices of rows sorted by length, and index arrays of which no value occurs twice."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import formats
from spcomp import script as T
from spcomp.errors import ArgumentError, FormatError, ScriptError
from spcomp.formats import FormatRewriteRule
from spcomp.script.parse import parse_source


@T.prim_func
def scatter(r: T.handle, x: T.handle, y: T.handle, m: T.int64, n: T.int64) -> None:
    I = T.dense_fixed(m)
    J = T.dense_fixed(n)
    R = T.match_sparse_buffer(r, (I,), "int32", distinct=True)
    X = T.match_sparse_buffer(x, (I,), "float32")
    Y = T.match_sparse_buffer(y, (J,), "float32")
    T.assume_buffer_domain(R, [0, n - 1])
    with T.sp_iter([I], "S", "it") as [i]:
        Y[R[i]] = X[i]


@T.prim_func
def spmv(
    a: T.handle, indptr: T.handle, indices: T.handle, x: T.handle, y: T.handle, m: T.int64,
    n: T.int64, nnz: T.int64,
) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices))
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (N,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "it") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j] * X[j]


def _parsed(source):
    (func,) = parse_source(source, "f.py")
    return func


@pytest.fixture(scope="module")
def graph():
    """A matrix of 203 rows with 0 to 40 elements, stored zeros and negative ones among them."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 41, 203)
    columns = [np.sort(rng.choice(90, count, replace=False)) for count in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    values = rng.integers(-2, 3, indptr[-1]).astype(np.float32)
    return sps.csr_array((values, np.concatenate(columns), indptr), shape=(203, 90))


@pytest.mark.parametrize("window", [None, 1, 16, 50, 1000])
@pytest.mark.parametrize("lanes", [None, 1, 3, 16, 64])
def test_lanes_and_windows_decide_where_rows_are_and_change_no_result(graph, lanes, window):
    layout = formats.sell(lanes, window)
    parts = spcomp.convert(graph, layout)
    count = lanes or 16
    slices = parts.parts["slices"]
    rows = slices["rows"].reshape(-1) if window != 1 else np.arange(203 // count * count)
    held = sps.csr_array((graph.data != 0, graph.indices, graph.indptr), shape=graph.shape)
    lengths = held.sum(axis=1)
    windows = (lengths[begin : begin + (window or 203)] for begin in range(0, 203, window or 203))
    inside = np.concatenate([np.sort(some)[::-1] for some in windows])[: 203 // count * count]
    widths = lengths[rows].reshape(-1, count).max(axis=1)
    np.testing.assert_array_equal(np.diff(slices["K_indptr"]), widths)
    np.testing.assert_array_equal(widths, inside.reshape(-1, count).max(axis=1))
    left = np.setdiff1d(np.arange(203), rows)
    zeros = np.flatnonzero(np.diff(graph.indptr) > lengths)
    assert {*parts.parts["rest"]["R_indices"]} == {*left[np.diff(graph.indptr)[left] > 0], *zeros}
    x = np.arange(90, dtype=np.float32)
    y = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": layout})(A=parts, x=x)
    np.testing.assert_array_equal(y, graph @ x)


def test_sums_of_a_slice_are_a_vector_that_is_written_once():
    kernel = spcomp.decompose(spmv, A=formats.sell(16)).compile(target="cpu:x86-64-v4")
    trace = str(kernel.trace)
    assert "parallel('s')" in trace
    assert "cache_write('it_slices1', 0, 'local', 'lane_o')" in trace
    assert trace.count("vectorize('lane_i") == 2
    flat = str(kernel.stage("flat"))
    assert (
        "Y_local[T.ramp(0, 1, 16)] = T.broadcast(T.float32(0.0), 16)" in flat
    )  # is not read first
    llvm = kernel.emitted.llvm_ir
    assert "llvm.masked.gather" in llvm
    assert "masked.load.v16i32" not in llvm  # the columns do not wait for the values


def test_a_rule_whose_coordinates_are_stored_converts_nothing(graph):
    own = formats.sell(4).rules(next(b for b in spmv.buffers if b.name == "A"))
    assert isinstance(own[0], FormatRewriteRule)
    kernel = spcomp.decompose(spmv, A=list(own)).compile()
    with pytest.raises(FormatError, match="stored coordinates say where elements of A lie"):
        kernel.convert(A=graph)


def test_rows_at_distinct_values_are_written_in_parallel():
    kernel = spcomp.compile(scatter)
    assert "parallel" in str(kernel.trace)
    rows = np.random.default_rng(1).permutation(10_000).astype(np.int32)
    x = np.arange(10_000, dtype=np.float32)
    y = kernel(R=rows, X=x, n=10_000)
    np.testing.assert_array_equal(y[rows], x)
    assert "distinct=True" in scatter.script()
    assert _parsed(scatter.script()).script() == scatter.script()


def test_a_call_checks_that_values_are_distinct():
    kernel = spcomp.compile(scatter)
    x, rows = np.ones(3, np.float32), np.array([2, 0, 2], np.int32)
    with pytest.raises(ArgumentError, match=r"argument R: a value occurs twice"):
        kernel(R=rows, X=x, n=3)
    rows[2] = 1
    bound = kernel.bind(R=rows, n=3)
    for _ in range(3):
        bound(X=x)
    rows[2] = 2  # values that are bound may change: every call looks at them
    with pytest.raises(ArgumentError, match=r"argument R: a value occurs twice"):
        bound(X=x)


def test_values_that_nobody_can_change_are_checked_when_their_limits_are_known():
    kernel = spcomp.compile(scatter)
    rows = np.frombuffer(np.array([2, 0, 2], np.int32).tobytes(), np.int32)
    x = np.ones(3, np.float32)
    bound = kernel.bind(R=rows)
    with pytest.raises(ArgumentError, match=r"argument R: a value occurs twice"):
        bound(X=x, n=3)
    with pytest.raises(ArgumentError, match=r"argument R: a value occurs twice"):
        kernel.bind(R=rows, n=3)
    with pytest.raises(ArgumentError, match=r"argument R: got 2 at position 0, expected 0\.\.1"):
        kernel.bind(R=rows, n=2)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90,emulate"])
def test_promises_are_checked_when_arguments_are_bound_if_calls_do_not(target):
    rows, x = np.array([2, 0, 2], np.int32), np.ones(3, np.float32)
    kernel = spcomp.compile(scatter, target=target, check="bind")
    with pytest.raises(ArgumentError, match=r"argument R: a value occurs twice"):
        kernel.bind(R=rows, n=3)
    rows[2] = 1
    np.testing.assert_array_equal(kernel.bind(R=rows, n=3)(X=x), x)


def test_promises_are_not_checked_if_nothing_is():
    rows = np.array([2, 0, 2], np.int32)
    for array in (rows, np.frombuffer(rows.tobytes(), np.int32)):
        bound = spcomp.compile(scatter, check="off").bind(R=array, n=3)
        assert bound(X=np.ones(3, np.float32))[2] == 1


def test_distinct_values_are_integers_that_nobody_writes():
    source = scatter.script()
    with pytest.raises(ScriptError, match="R is distinct, but of float32"):
        _parsed(source.replace('"int32", distinct', '"float32", distinct'))
    strided = 'T.match_buffer(r, (m, 2), "int32", strides=(0, 1), distinct=True)'
    matched = 'T.match_sparse_buffer(r, (I,), "int32", distinct=True)'
    assert matched in source
    with pytest.raises(ScriptError, match="R is distinct, and has strides"):
        _parsed(source.replace(matched, strided))
    written = _parsed(source.replace("Y[R[i]] = X[i]", "R[i] = 1"))
    with pytest.raises(FormatError, match="R is written, and promised to have distinct values"):
        spcomp.compile(written)
