"""Kernels of index notation with some arguments bound: what is kept, and what is seen later."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError
from tests.test_notation import A, as_format, csr, x


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "dia", "lil"])
def test_bound_index_arrays_are_those_of_the_bind(layout):
    matrix = as_format(A, layout)
    bound = spcomp.compile("y[i] = A[i,j] * x[j]").bind(A=matrix)
    names = {"coo": ("row", "col"), "dia": ("offsets",), "lil": ("rows",)}
    for name in names.get(layout, ("indices", "indptr")):
        array = getattr(matrix, name)
        array[:] = array[::-1].copy()
    np.testing.assert_allclose(bound(x=x), A @ x)
    np.testing.assert_allclose(bound(x=x.astype(np.float32)), A @ x, rtol=1e-6)


def test_a_bound_kernel_explains_its_last_call():
    kernel = spcomp.compile("y[i] = A[i,j] * x[j]")
    bound, other = kernel.bind(A=csr(A)), kernel.bind(A=as_format(A, "csc"))
    for subject in (bound, kernel):
        with pytest.raises(ArgumentError, match="not known yet") as caught:
            subject.explain()
        assert caught.value.hint
    bound(x=x)
    other(x=x)
    assert "A[i, j]: csr, float64" in bound.explain()
    assert "A[i, j]: csc, float64" in other.explain()
    assert bound.explain() == bound.explain(x=x)
    assert kernel.bind(A=csr(A), x=x).explain() == bound.explain()


def test_values_are_bound_by_reference():
    matrix = csr(A)
    bound = spcomp.compile("y[i] = A[i,j] * x[j]").bind(A=matrix)
    for scale in (2, 3):
        matrix.data[:] *= scale
        np.testing.assert_allclose(bound(x=x), matrix @ x)
