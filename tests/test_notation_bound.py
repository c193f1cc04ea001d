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


def misaligned(array):
    copied = np.ndarray(array.shape, array.dtype, np.zeros(array.nbytes + 1, np.uint8).data, 1)
    copied[...] = array
    return copied


def unsorted(matrix):
    for array in (matrix.indices, matrix.data):
        first = slice(matrix.indptr[0], matrix.indptr[1])
        array[first] = array[first][::-1].copy()
    matrix.has_sorted_indices = False
    return matrix


SEEN = {
    "C order": lambda: A.copy(),
    "Fortran order": lambda: np.asfortranarray(A),
    "csr": lambda: csr(A),
    "csc": lambda: as_format(A, "csc"),
    "Tensor": lambda: spcomp.convert(csr(A), "dcsr"),
}
NOT_SEEN = {
    "strided": lambda: np.repeat(A, 2, axis=1)[:, ::2],
    "other byte order": lambda: A.astype(A.dtype.newbyteorder()),
    "misaligned": lambda: misaligned(A),
    "unsorted": lambda: unsorted(csr(A)),
    **{name: lambda name=name: as_format(A, name) for name in ("coo", "bsr", "dia")},
}


@pytest.mark.parametrize("kind", [*SEEN, *NOT_SEEN])
def test_whether_later_values_are_seen_is_as_documented(kind):
    """The table of docs/calling.md."""
    operand = {**SEEN, **NOT_SEEN}[kind]()
    bound = spcomp.compile("y[i] = A[i,j] * x[j]").bind(A=operand)
    values = operand if isinstance(operand, np.ndarray) else getattr(operand, "values", None)
    values = operand.data if values is None else values
    want = A @ x
    for factor in (2, 3, 4, 5):
        np.testing.assert_allclose(bound(x=x), want)
        values *= factor
        want = factor * want if kind in SEEN else want
