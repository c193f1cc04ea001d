"""SpMM, SDDMM and sparse addition on real graphs: right, and the same bits at any thread count."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sps

import spcomp
from tests.layers import source

GRAPHS = ("pubmed", "p2p-Gnutella31", "cora")
FEATURES = (1, 7, 32, 128)
pytestmark = pytest.mark.shared_data


@pytest.fixture(scope="module", params=GRAPHS)
def graph(request, shared_data):
    """A graph with weights in [0, 1), as canonical CSR."""
    matrix = sps.csr_array(scipy.io.mmread(shared_data / f"{request.param}.mtx"))
    matrix.sum_duplicates()
    matrix = matrix.astype(np.float32)
    matrix.data[:] = np.random.default_rng(7).random(matrix.nnz, dtype=np.float32)
    return matrix


@pytest.fixture(autouse=True)
def _restore_threads():
    before = spcomp.get_num_threads()
    yield
    spcomp.set_num_threads(before)


def at_thread_counts(call):
    """Run *call* twice at 1, 2 and 5 threads; every run must give the same bits."""
    results = []
    for threads in (1, 2, 5):
        spcomp.set_num_threads(threads)
        results += [call(), call()]
    for other in results[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), results[0].view(np.uint32))
    return results[0]


@pytest.mark.parametrize("features", FEATURES)
def test_spmm_on_a_real_graph_is_scipy_s(graph, features):
    dense = np.random.default_rng(1).standard_normal((graph.shape[1], features), dtype=np.float32)
    kernel = spcomp.compile(source("csrmm"))
    result = at_thread_counts(lambda: kernel(A=graph, B=dense))
    bound = abs(graph).astype(np.float64) @ np.abs(dense.astype(np.float64))
    limit = 32 * np.finfo(np.float32).eps * bound
    assert np.all(np.abs(result - graph.astype(np.float64) @ dense) <= limit)


@pytest.mark.parametrize("features", FEATURES)
def test_sddmm_on_a_real_graph_is_numpy_s(graph, features):
    rng = np.random.default_rng(2)
    left = rng.standard_normal((graph.shape[0], features), dtype=np.float32)
    right = rng.standard_normal((graph.shape[1], features), dtype=np.float32)
    kernel = spcomp.compile(source("sddmm"))
    pattern = spcomp.Tensor.from_scipy(graph)
    result = at_thread_counts(lambda: kernel(A=left, B=right, J=pattern).values)
    rows = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    terms = left[rows].astype(np.float64) * right[graph.indices]
    limit = 32 * np.finfo(np.float32).eps * np.abs(terms).sum(axis=1)
    assert np.all(np.abs(result - terms.sum(axis=1)) <= limit)


def test_the_sum_of_a_graph_and_its_transpose_is_scipy_s(graph):
    other = sps.csr_array(graph.T)
    result = spcomp.compile(source("csr_add"))(A=graph, B=other)
    expected = sps.csr_array(graph + other)
    expected.sort_indices()
    np.testing.assert_array_equal(result.indptr, expected.indptr)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.data, expected.data)
