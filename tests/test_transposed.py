"""Bound matrices that a program scatters along: gathered from the transpose, made once."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.kernels import transposed
from spcomp.passes.decompose.transpose_scatter import transpose_scatter
from spcomp.script.parse import parse_source

HEAD = """from spcomp import script as T

@T.prim_func
def scatter(a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
            m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
"""
ROWS = """    X = T.match_sparse_buffer(x, (I, K), "float32")
    Y = T.match_sparse_buffer(y, (N, K), "float32")
    with T.sp_iter([I, J, K], "RSS", "scatter") as [i, j, k]:
        with T.init():
            Y[j, k] = 0.0
        Y[j, k] = Y[j, k] + A[i, j] * X[i, k]
"""
NUMBERS = """    X = T.match_sparse_buffer(x, (I,), "float32")
    Y = T.match_sparse_buffer(y, (N,), "float32")
    with T.sp_iter([I, J], "RS", "scatter") as [i, j]:
        with T.init():
            Y[j] = 1.0
        Y[j] = T.max(Y[j], A[i, j] * X[i])
"""
GATHERS = """    X = T.match_sparse_buffer(x, (N, K), "float32")
    Y = T.match_sparse_buffer(y, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "gather") as [i, j, k]:
        Y[i, k] = Y[i, k] + A[i, j] * X[j, k]
"""
ALONG = """    X = T.match_sparse_buffer(x, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (N,), "float32")
    with T.sp_iter([I, J], "RS", "along") as [i, j]:
        Y[j] = Y[j] + A[i, j] * X[i, j]
"""
BETWEEN = ROWS.replace('[I, J, K], "RSS"', '[I, K, J], "RSS"').replace("[i, j, k]:", "[i, k, j]:")
ASSIGNS = ROWS.replace("Y[j, k] + A[i, j]", "A[i, j]")


def program(body):
    (func,) = parse_source(HEAD + body, "scatter.py")
    return func


def matrix(rows=60, columns=50, seed=0):
    made = sps.random(rows, columns, 0.2, format="csr", dtype=np.float32, random_state=seed)
    made.sort_indices()
    return made


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(transposed, "LEAST", 1)


@pytest.mark.parametrize("feat", [2, 3, 8, 33, 128])
def test_a_bound_matrix_is_gathered_from_with_the_bits_of_the_scatter(feat, monkeypatch):
    kernel, a = spcomp.compile(program(ROWS)), matrix()
    x = np.random.default_rng(feat).standard_normal((60, feat), dtype=np.float32)
    results = {kernel(A=a, X=x).tobytes()}
    bound = kernel.bind(A=a)
    assert bound.transposed is not None
    for count in (1, 2, 5):
        monkeypatch.setenv("SPCOMP_NUM_THREADS", str(count))
        results.add(bound(X=x).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("body", [ROWS, NUMBERS])
def test_the_transposed_program_means_the_same(body):
    func, a = program(body), matrix(7, 5)
    other, t = transpose_scatter(func).func, a.T.tocsr()
    x = np.arange(14, dtype=np.float32)[: 14 if body is ROWS else 7] - 3
    results = []
    for made, form in ((func, a), (other, t)):
        y = np.full(10 if body is ROWS else 5, 9, np.float32)
        arrays = {"a": form.data, "indptr": form.indptr, "indices": form.indices}
        sizes = {"m": 7, "n": 5, "feat": 2, "nnz": a.nnz}
        interpret(single(made), {**arrays, "x": x, "y": y, **sizes})
        results.append(y.tolist())
    assert results[0] == results[1]


def test_values_changed_in_place_show_in_the_next_call():
    kernel, a = spcomp.compile(program(ROWS)), matrix()
    x, bound = np.ones((60, 4), np.float32), kernel.bind(A=a)
    first = bound(X=x)
    a.data[3] = np.nan
    for _ in range(2):
        np.testing.assert_array_equal(bound(X=x), kernel(A=a, X=x))
    a.data[3] = 0
    assert np.isfinite(bound(X=x)).all()
    assert not np.array_equal(bound(X=x), first)


def test_raw_index_arrays_and_outputs_work_as_without_the_transpose():
    kernel, a = spcomp.compile(program(ROWS)), matrix()
    x, out = np.ones((60, 4), np.float32), np.empty((50, 4), np.float32)
    bound = kernel.bind(A=a.data, indptr=a.indptr, indices=a.indices, m=60, n=50)
    assert bound.transposed is not None
    assert bound(X=x, out=out) is out
    np.testing.assert_array_equal(out, kernel(A=a, X=x))


def test_where_a_size_is_not_known_yet_or_elements_are_there_twice_nothing_is_transposed():
    kernel, a = spcomp.compile(program(ROWS)), matrix()
    x = np.ones((60, 4), np.float32)
    indices = a.indices.copy()
    indices[1] = indices[0]
    for arrays, sizes in (
        ((a.data, a.indptr, a.indices), {}),
        ((a.data, a.indptr, indices), {"n": 50}),
    ):
        data, indptr, columns = arrays
        bound = kernel.bind(A=data, indptr=indptr, indices=columns, **sizes)
        assert bound.transposed is None
        out = np.empty((50, 4), np.float32)
        expected = sps.csr_array((data, columns, indptr), a.shape).toarray().T @ x
        np.testing.assert_allclose(bound(X=x, out=out), expected, rtol=1e-4, atol=1e-5)


def test_operands_bound_beside_the_matrix_are_seen_as_they_are():
    kernel, a = spcomp.compile(program(ROWS)), matrix()
    x, y = np.ones((60, 4), np.float32), np.empty((50, 4), np.float32)
    bound = kernel.bind(A=a, X=x, Y=y)
    assert bound.transposed is not None
    x *= 2
    bound()
    np.testing.assert_array_equal(y, kernel(A=a, X=x))


def test_errors_are_those_of_the_program_as_written():
    bound = spcomp.compile(program(ROWS)).bind(A=matrix())
    with pytest.raises(ArgumentError, match=r"argument X: dimension 0 \(m\) is 5, expected 60"):
        bound(X=np.ones((5, 4), np.float32))
    with pytest.raises(ArgumentError, match="argument A: is bound already"):
        bound(A=matrix(), X=np.ones((60, 4), np.float32))
    with pytest.raises(ArgumentError, match="missing argument X of scatter"):
        bound()


@pytest.mark.parametrize("body", [GATHERS, ALONG, BETWEEN, ASSIGNS])
def test_what_does_not_only_scatter_along_the_matrix_stays(body):
    assert transpose_scatter(program(body)) is None


def test_small_matrices_and_hub_columns_stay(monkeypatch):
    kernel, a = spcomp.compile(program(ROWS)), matrix()
    x = np.ones((60, 4), np.float32)
    monkeypatch.setattr(transposed, "longest_row", lambda *_: 3)
    hub = kernel.bind(A=a)
    monkeypatch.undo()
    for bound in (hub, kernel.bind(A=a), kernel.bind(X=x)):
        assert bound.transposed is None
    np.testing.assert_array_equal(hub(X=x), kernel(A=a, X=x))


def test_a_matrix_whose_arrays_are_wrong_is_refused_as_ever():
    kernel, a = spcomp.compile(program(ROWS)), matrix()
    indices = a.indices.copy()
    indices[0] = 50
    with pytest.raises(ArgumentError, match="indices"):
        kernel.bind(A=a.data, indptr=a.indptr, indices=indices, m=60, n=50)(
            X=np.ones((60, 4), np.float32)
        )
