"""The memory of distributed tensors: shared with no matrix of the user's, and with no result."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask.array as da

import spcomp.dask as sd
from tests.test_dask import _in_turn, csr
from tests.test_standard_list import full

__all__ = ["_in_turn"]  # runs for each test here, too
pytestmark = pytest.mark.dask
CHUNKS = [-1, 5, (-1, 4), ("nonzeros", 1)]


@pytest.mark.parametrize("kind", ["csr", "csc", "csf"])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_later_changes_of_a_matrix_are_not_seen(kind, chunks):
    matrix = spcomp.convert(csr(), kind)
    far = sd.from_scipy(matrix, chunks)
    if sps.issparse(matrix):
        matrix.data[:], matrix.indices[:] = 0, 0
    else:
        matrix.values[:] = 0
    np.testing.assert_array_equal(full(far.compute()), csr().toarray())


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("kind", ["csr", "csc", "csf"])
@pytest.mark.parametrize("chunks", CHUNKS)
def test_who_changes_a_result_changes_no_other(kind, chunks, persisted):
    matrix = spcomp.convert(csr(), kind)
    far = sd.from_scipy(matrix, chunks)
    far = far.persist() if persisted else far
    result = far.compute()
    if sps.issparse(result):
        result.data[:], result.indices[:] = 7, 0
    else:
        result.values[:] = 7
    for again in (far.compute(), matrix):
        np.testing.assert_array_equal(full(again), csr().toarray())


def test_a_result_that_is_persisted_stays_as_it_is():
    far = spcomp.compile("C[i, j] = A[i, j] * x[j]")(A=sd.from_scipy(csr()), x=da.ones(17))
    kept = far.persist()
    kept.compute().data[:] = 7
    np.testing.assert_array_equal(kept.compute().toarray(), csr().toarray())


def test_a_block_that_nobody_else_has_is_not_copied(monkeypatch):
    far = spcomp.compile("C[i, j] = A[i, j] * x[j]")(A=sd.from_scipy(csr()), x=da.ones(17))
    monkeypatch.setattr(sps.csr_array, "copy", lambda _: pytest.fail("copied"))
    assert far.compute().nnz == csr().nnz
