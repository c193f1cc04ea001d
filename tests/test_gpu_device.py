"""On a real GPU: index arrays are checked there, and kernels that may fail say so later."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.runtime.cuda.driver import device_properties

pytestmark = pytest.mark.gpu

SPMM = "C[i, k] = A[i, j] * B[j, k]"


def matrix(kind="int32"):
    rng = np.random.default_rng(3)
    A = sps.random_array((3000, 2000), density=0.01, format="csr", dtype=np.float32, rng=rng)
    return A.data, A.indices.astype(kind), A.indptr.astype(kind), A


def target():
    return f"cuda:{device_properties().target}"


def test_index_arrays_of_torch_are_checked_where_they_lie():
    torch = pytest.importorskip("torch")
    kernel = spcomp.compile(SPMM, target=target())
    for kind in ("int32", "int64"):
        data, indices, indptr, A = matrix(kind)
        B = np.random.default_rng(0).random((2000, 32), np.float32)
        there = torch.from_numpy(B).cuda()

        def csr(indptr=indptr, indices=indices, data=data, shape=A.shape):
            parts = (torch.from_numpy(part.copy()).cuda() for part in (indptr, indices, data))
            return torch.sparse_csr_tensor(*parts, shape, check_invariants=False)

        right = A @ B
        made = kernel(A=csr(), B=there).cpu().numpy()
        assert np.allclose(made, right, rtol=1e-4, atol=1e-4)
        bound, out = kernel.bind(A=csr()), torch.empty((3000, 32), device="cuda")
        bound(B=there, out=out)
        assert np.allclose(out.cpu().numpy(), right, rtol=1e-4, atol=1e-4)
        wrong = indices.copy()
        wrong[777] = 2000
        with pytest.raises(ArgumentError, match="got 2000 at position 777"):
            kernel(A=csr(indices=wrong), B=there)
        wrong = indptr.copy()
        wrong[5] = wrong[4] - 1
        with pytest.raises(ArgumentError, match="decreases"):
            kernel.bind(A=csr(indptr=wrong))(B=there)  # the first call checks
        wrong = indices.copy()
        wrong[indptr[9] : indptr[10]] = wrong[indptr[9] : indptr[10]][::-1]
        with pytest.raises(ArgumentError, match="out of order"):
            kernel.bind(A=csr(indices=wrong))(B=there)


def test_a_failure_is_said_by_check_and_by_the_next_call():
    torch = pytest.importorskip("torch")
    a, b = (torch.arange(n, n + 5000, dtype=torch.int32, device="cuda") for n in (0, 1))
    q = torch.zeros_like(a)
    kernel = spcomp.compile("q[i] = a[i] // b[i]", target=target()).bind(a=a)
    kernel(b=b, out=q)
    kernel(b=b, out=q)
    kernel.check()
    assert torch.equal(q, a // b)
    b[4321] = 0
    kernel(b=b, out=q)
    with pytest.raises(ArgumentError, match="division by zero"):
        kernel.check()
    kernel(b=b, out=q)
    torch.cuda.synchronize()
    with pytest.raises(ArgumentError, match="in an earlier call"):
        kernel(b=b, out=q)
    b[4321] = 2
    kernel(b=b, out=q)
    kernel.check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(b=b, out=q)
    b[0] = 0
    graph.replay()
    with pytest.raises(ArgumentError, match="division by zero"):
        kernel.check()


def test_conversions_are_those_of_the_host():
    torch = pytest.importorskip("torch")
    *_, A = matrix()
    rng = np.random.default_rng(8)
    B = A.tocoo()
    order = rng.permutation(B.nnz)
    rows, columns = (torch.from_numpy(part[order].astype("i8")).cuda() for part in (B.row, B.col))
    values = torch.from_numpy(B.data[order]).cuda()
    for twice in (False, True):
        parts = [torch.cat((part, part[:99])) if twice else part for part in (rows, columns)]
        data = torch.cat((values, values[:99])) if twice else values
        coo = torch.sparse_coo_tensor(torch.stack(parts), data, A.shape)
        host = [part.cpu().numpy() for part in (data, *parts)]
        expected = spcomp.convert(sps.coo_array((host[0], tuple(host[1:])), shape=A.shape), "csr")
        made = spcomp.convert(coo, "csr")
        by_columns = spcomp.convert(made, "csc")
        again = spcomp.convert(by_columns, "csr")
        for csr in (made, again):
            assert np.array_equal(csr.crow_indices().cpu(), expected.indptr)
            assert np.array_equal(csr.col_indices().cpu(), expected.indices)
            assert np.array_equal(csr.values().cpu(), expected.data)
        assert np.array_equal(by_columns.row_indices().cpu(), expected.tocsc().indices)
