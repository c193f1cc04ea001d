"""Programs of several statements over distributed tensors, and tensors without elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask
import dask.array as da

import spcomp.dask as sd
from spcomp.errors import ArgumentError

pytestmark = pytest.mark.dask
MATRIX = sps.random_array((4, 4), density=0.6, format="csr", rng=1)
CUT = [((2, 2), (4,)), ((4,), (2, 2)), ((2, 2), (2, 2)), ((1, 3), (2, 2)), ((1, 0, 3), (3, 1))]


@pytest.fixture(autouse=True)
def _in_turn():
    with dask.config.set(scheduler="sync"):
        yield


def here(result: Any) -> np.ndarray:
    found = result.compute() if dask.is_dask_collection(result) else result
    return found.toarray() if sps.issparse(found) else np.asarray(found)


@pytest.mark.parametrize("chunks", CUT)
@pytest.mark.parametrize(
    "text",
    [
        "d[i] = sum(j, A[i, j])\ns = d[i] * d[j] * A[i, j]",
        "d[i] = sum(j, A[i, j])\ny[i] = A[i, j] * d[j] + d[i]",
        "d[i] = sum(j, A[i, j])\nR[i, j] = d[i] * d[j]",
        "d[i] = sum(j, A[i, j])\nR[i, j] = A[i, j] / (d[i] ** 0.5 * d[j] ** 0.5)",
        "d[i] = sum(j, A[i, j])\nR[i, j] = A[i, j] if d[i] > d[j]",
        "E[i, j] = 2 * A[i, j]\nR[i, j] = E[i, j] + E[j, i]",
        "E[i, j] = 2 * A[i, j]\nR[i, k] = E[i, j] * E[j, k]",
        "E[i, j] = 2 * A[i, j]\ns = E[i, j] * E[j, k] * E[i, k]",
        "X[i, k] = A[i, j] * B[j, k]\nS[i, j] = A[i, j] * X[i, k] * X[j, k]",
    ],
)
def test_a_result_is_read_at_two_places_of_a_later_statement(text, chunks):
    more = {"B": np.arange(12.0).reshape(4, 3)} if "B" in text else {}
    kernel = spcomp.compile(text)
    wanted = kernel(A=MATRIX, **more)
    found = kernel(A=sd.from_scipy(MATRIX, chunks), **more)
    np.testing.assert_allclose(here(found), here(wanted), rtol=1e-12)


def test_a_result_that_is_read_at_two_places_may_have_any_format():
    text = "E[i, j] = 2 * A[i, j]\nR[i, j] = E[i, j] + E[j, i]"
    found = spcomp.compile(text, formats={"E": "csc"})(A=sd.from_scipy(MATRIX, ((1, 3), (2, 2))))
    np.testing.assert_allclose(here(found), here(2 * (MATRIX + MATRIX.T)))


@pytest.mark.parametrize("rows", [(0,), (0, 0)])
@pytest.mark.parametrize("columns", [(3,), (2, 1), (1, 0, 2)])
def test_a_dimension_of_length_0_is_cut_as_any_other(rows, columns):
    matrix = sd.from_scipy(sps.csr_array((0, 3)), (rows, columns))
    add = spcomp.compile("y[i] = A[i, j] * x[j] + z[i]")
    assert here(add(A=matrix, x=np.ones(3), z=np.ones(0))).shape == (0,)
    assert here(add(A=matrix, x=da.ones(3), z=da.ones(0))).shape == (0,)
    flat = sd.from_scipy(sps.csr_array((3, 0)), (columns, rows))
    product = spcomp.compile("C[i, k] = A[i, j] * B[j, k]")(A=flat, B=np.ones((0, 2)))
    np.testing.assert_array_equal(here(product), np.zeros((3, 2)))


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_a_product_in_a_sum_has_the_format_that_it_has_here(form):
    a, b, d = (sps.random_array(shape, density=0.5, rng=1) for shape in ((4, 5), (5, 6), (4, 6)))
    kernel = spcomp.compile("R[k, i] = A[i, j] * B[j, k] + D[i, k]")
    local = {"A": a.asformat(form), "B": b.tocsr(), "D": d.tocsr()}
    wanted = kernel(**local)
    found = kernel(**{**local, "A": sd.from_scipy(local["A"], (2, 3))}).compute()
    assert found.format == wanted.format
    np.testing.assert_allclose(found.toarray(), wanted.toarray())


def test_arrays_whose_chunks_are_not_known_are_not_written(tmp_path):
    array = da.ones(5, chunks=1)
    with pytest.raises(ArgumentError, match="the extents of its chunks are not known"):
        sd.write(tmp_path / "folder", array[array > 0])
