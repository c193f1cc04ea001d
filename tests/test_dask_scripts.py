"""Scripts over a distributed operand: the same results, row by row, or a refusal that says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError
from tests.test_dask import csr

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask
import dask.array as da

import spcomp.dask as sd

pytestmark = pytest.mark.dask


@pytest.fixture(autouse=True)
def _in_turn():
    with dask.config.set(scheduler="sync"):
        yield


HEAD = """
@T.prim_func
def program(
    a: T.handle, b: T.handle, c: T.handle, d: T.handle, indptr: T.handle, indices: T.handle,
    m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32, alpha: T.float64,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed({n})
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float64")
    B = T.match_sparse_buffer(b, (J_detach, K), "float64")
    C = T.match_sparse_buffer(c, ({c}), "float64")
    D = T.match_sparse_buffer(d, ({d}), "float64")
"""
SPMM = """
    with T.sp_iter([I, J, K], "SRS", "spmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k] * alpha + D[i] * 0.0
"""
SDDMM = """
    with T.sp_iter([T.fuse(I, J), K], "SSR", "sddmm") as [i, j, k]:
        with T.init():
            C[i, j] = 0.0
        C[i, j] = C[i, j] + A[i, j] * D[i, k] * B[j, k] * alpha
"""
SUMS = """
    with T.sp_iter([I, J], "SR", "sums") as [i, j]:
        with T.init():
            D[i] = 0.0
        D[i] = D[i] + A[i, j]
    with T.sp_iter([I, J, K], "SRS", "spmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k] * alpha
"""


def program(body: str, c: str = "I, K", d: str = "I,", n: str = "n") -> Any:
    return spcomp.parse(HEAD.format(c=c, d=d, n=n) + body)


def blocks(array: np.ndarray) -> Any:
    return da.from_array(array, chunks=3)


@pytest.mark.parametrize("chunks", [5, -1, (4, 6), ((0, 20, 0, 3), -1)])
@pytest.mark.parametrize("kind", [np.array, blocks])
def test_a_product_of_blocks_of_rows(chunks, kind):
    A, B, D = csr(), np.random.default_rng(0).random((17, 4)), np.ones(23)
    kernel = spcomp.compile(program(SPMM))
    C = kernel(A=sd.from_scipy(A, chunks), B=kind(B), D=kind(D), alpha=2.0)
    assert isinstance(C, da.Array)
    assert C.chunks[0] == sd.from_scipy(A, chunks).chunks[0]
    np.testing.assert_array_equal(C.compute(), kernel(A=A, B=B, D=D, alpha=2.0))


def test_a_schedule_of_a_script():
    A, B, D = csr(), np.random.default_rng(0).random((17, 4)), np.ones(23)
    schedule = spcomp.Schedule(program(SPMM)).lower_sparse_iter()
    kernel = spcomp.compile(schedule)
    C = kernel(A=sd.from_scipy(A, 5), B=B, D=D, alpha=2.0)
    np.testing.assert_array_equal(C.compute(), kernel(A=A, B=B, D=D, alpha=2.0))


def test_a_sparse_result_and_one_more_operand_that_is_cut():
    A, B = csr(), np.random.default_rng(0).random((17, 4))
    D = np.random.default_rng(1).random((23, 4))
    kernel = spcomp.compile(program(SDDMM, "I, J", "I, K"))
    C = kernel(A=sd.from_scipy(A, 5), B=B, D=blocks(D), alpha=1.0)
    want = kernel(A=A, B=B, D=D, alpha=1.0)
    found = C.compute()
    assert type(found) is type(want)
    np.testing.assert_array_equal(found.toarray(), want.toarray())


def test_several_results():
    A, B = csr(), np.random.default_rng(0).random((17, 4))
    kernel = spcomp.compile(program(SUMS))
    found = kernel(A=sd.from_scipy(A, 5), B=B, alpha=1.0)
    want = kernel(A=A, B=B, alpha=1.0)
    assert type(found).__name__ == type(want).__name__
    np.testing.assert_array_equal(found.C.compute(), want.C)
    np.testing.assert_array_equal(found.D.compute(), want.D)


def test_arrays_of_dask_beside_local_operands_are_computed():
    A, B, D = csr(), np.ones((17, 4)), np.ones(23)
    kernel = spcomp.compile(program(SPMM))
    C = kernel(A=A, B=blocks(B), D=D, alpha=2.0)
    np.testing.assert_array_equal(C, kernel(A=A, B=B, D=D, alpha=2.0))


COUNT = """
    P = T.dense_fixed(n)
    with T.sp_iter([I, K, P, T.attach(J, P)], "SSRR", "count") as [i, k, p, j]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + B[p, k] * D[i]
"""


@pytest.mark.parametrize(
    ("body", "shapes", "message"),
    [
        (SPMM.replace("C[i, k]", "C[k, i]"), {"c": "K, I"}, "C is not read or written at its own"),
        (SPMM.replace("D[i]", "D[i + 1]"), {}, "D is not read or written at its own rows only"),
        (SPMM.replace("alpha", "i"), {}, "uses coordinates of I as numbers"),
        (SPMM.replace("alpha", "m"), {}, "uses the number m"),
        (SPMM.replace("alpha", "nnz"), {}, "uses the number nnz"),
        (SPMM.replace("D[i]", "D[0]"), {}, "D is not read or written at its own rows only"),
        (SPMM, {"n": "m"}, "the axis J_detach has the same size"),
        (COUNT, {"c": "I, K"}, "count runs over elements of other rows"),
        (COUNT.replace("attach(J, P)", "flatten(I, J)"), {}, "count runs over elements of other"),
        (
            SPMM.replace("[I, J, K], \"SRS\"", "[I, J, K], \"RSS\"").replace("C[i, k]", "C[j, k]"),
            {"c": "J_detach, K"},
            "C is written, and its first axis is not I",
        ),
    ],
)  # fmt: skip
def test_programs_that_blocks_would_change_are_refused(body, shapes, message):
    kernel = spcomp.compile(program(body, **shapes))
    with pytest.raises(ArgumentError, match=message):
        kernel(A=sd.from_scipy(csr(), 5), B=np.ones((17, 4)), D=np.ones(23), alpha=1.0)


def test_other_refusals():
    A, B, D = sd.from_scipy(csr(), 5), np.ones((17, 4)), np.ones(23)
    kernel = spcomp.compile(program(SPMM))
    with pytest.raises(ArgumentError, match=r"argument D: got the shape \(22,\), but A has 23"):
        kernel(A=A, B=B, D=D[1:], alpha=1.0)
    with pytest.raises(ArgumentError, match="argument B: it is not cut by rows"):
        kernel(A=A, B=sd.from_scipy(csr(17, 4), 5), D=D, alpha=1.0)
    with pytest.raises(ArgumentError, match="argument C: it is a result"):
        kernel(A=A, B=B, D=D, C=np.zeros((23, 4)), alpha=1.0)
    with pytest.raises(ArgumentError, match="argument out"):
        kernel(A=A, B=B, D=D, alpha=1.0, out=np.zeros((23, 4)))
    with pytest.raises(ArgumentError, match="argument B"):
        kernel(A=A, B=B[1:], D=D, alpha=1.0)
    flat = spcomp.compile(spcomp.Schedule(program(SPMM)).lower_sparse_iter().func)
    with pytest.raises(ArgumentError, match="only programs in coordinate space"):
        flat(A=A, B=B, D=D, alpha=1.0)
    with pytest.raises(ArgumentError, match="missing argument D"):
        kernel(A=A, B=B, alpha=1.0)
