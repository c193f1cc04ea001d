"""Operators of distributed tensors, and the times of calls that take them."""

from __future__ import annotations

import time

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
MATRIX = csr(12, 12, seed=1)
DENSE = np.random.default_rng(0).random((12, 3))


@pytest.fixture(autouse=True)
def _in_turn():
    with dask.config.set(scheduler="sync"):
        yield


def here(result):
    result = result.compute() if hasattr(result, "compute") else result
    result = result.to_dense() if hasattr(result, "to_dense") else result
    return result.toarray() if hasattr(result, "toarray") else np.asarray(result)


@pytest.mark.parametrize(
    "expression",
    [
        *("A @ B", "A @ B[:, 0]", "B.T @ A", "A @ A", "A @ da.from_array(B, chunks=4)"),
        *("da.from_array(B, chunks=4).T @ A", "A + A", "A - 2 * A", "-A", "abs(A)", "A / 2"),
        *("A ** 2", "A * M", "da.ones((12, 12), chunks=5) + A"),
    ],
)
def test_operators_are_those_of_matrices(expression):
    found = eval(expression, {"A": sd.from_scipy(MATRIX, 5), "B": DENSE, "M": MATRIX, "da": da})
    full = MATRIX.toarray()
    wanted = eval(expression, {"A": full, "B": DENSE, "M": full, "da": da})
    np.testing.assert_allclose(here(found), np.asarray(wanted), atol=1e-12)


def test_shapes_that_do_not_go_together_are_refused():
    with pytest.raises(ArgumentError, match=r"shapes \(12, 12\) and \(5,\) have no matrix product"):
        sd.from_scipy(MATRIX, 5) @ np.ones(5)
    with pytest.raises(ArgumentError, match=r"'nonzero' does not cut") as caught:
        sd.from_scipy(MATRIX, ("nonzero", 4))
    assert caught.value.hint == 'write ("nonzeros", parts)'
    with pytest.raises(ArgumentError, match=r"'nonzeros' does not cut") as caught:
        sd.from_scipy(MATRIX, 5).rechunk(("nonzeros", 4))
    assert caught.value.hint == "from_scipy and from_binsparse cut so"


def test_what_distributed_tensors_lack_is_refused_with_a_way_out():
    matrix = sd.from_scipy(MATRIX, 5)
    for wrong in (lambda: matrix.T, lambda: matrix[:5]):
        with pytest.raises(ArgumentError) as caught:
            wrong()
        assert caught.value.hint
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    for more in ({"calls": 100}, {"inspect": True}):
        with pytest.raises(ArgumentError, match="no format is chosen for distributed arguments"):
            kernel.bind(A=matrix, **more)
    with pytest.raises(ArgumentError, match="unexpected argument B"):
        kernel.bind(A=matrix, B=DENSE)


def test_an_evaluator_computes_collections():
    def slow(block):
        time.sleep(0.01)
        return block

    kernel = spcomp.compile("C[i, k] = A[i, j] * B[j, k]")
    dense = da.from_array(DENSE, chunks=-1).map_blocks(slow, dtype=DENSE.dtype, meta=DENSE[:0])
    times = kernel.time_evaluator(number=2, repeat=2)(A=sd.from_scipy(MATRIX, 5), B=dense)
    assert min(times.results) > 0.01
