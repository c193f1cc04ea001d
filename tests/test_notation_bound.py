"""Kernels of index notation with some arguments bound: what is kept, and what is seen later."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from examples.spmm import csrmm
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
    "every other column": lambda: np.repeat(A, 2, axis=1)[:, ::2],
    "every other row": lambda: np.repeat(A, 2, axis=0)[::2],
    "some columns": lambda: np.hstack([A, A])[:, : A.shape[1]],
    "other byte order": lambda: A.astype(A.dtype.newbyteorder()),
    "misaligned": lambda: misaligned(A),
    "unsorted": lambda: unsorted(csr(A)),
    "Tensor of runs": lambda: spcomp.convert(csr(A), "rle"),
    **{name: lambda name=name: as_format(A, name) for name in ("coo", "bsr", "dia")},
}
PRODUCT = "y[i] = A[i,j] * x[j]"
CONVERTED = {  # a program, its formats, an operand, and what gives the product
    "dense to csr": (PRODUCT, {"A": "csr"}, A.copy),
    "csr to csc": (PRODUCT, {"A": "csc"}, lambda: csr(A)),
    "csr to blocks": (PRODUCT, {"A": "bsr(2)"}, lambda: csr(A)),
    "csr to parts": (PRODUCT, {"A": "hyb"}, lambda: csr(A)),
    "a part of csr": ("y[i] = A[i, j(0, 7)] * x[j]", {}, lambda: csr(A)),
    "columns": ("y[i] = A[i, j(0, 7)] * x[j]", {}, lambda: np.hstack([A, A])),
}


def changed(bound, operand, factor, vector):
    """What *bound* returns for *vector* after the values of *operand* are multiplied."""
    values = operand if isinstance(operand, np.ndarray) else getattr(operand, "values", None)
    values = operand.data if values is None else values
    values *= factor
    return bound(x=vector)


@pytest.mark.parametrize("kind", [*SEEN, *NOT_SEEN])
def test_whether_later_values_are_seen_is_as_documented(kind):
    """The table of docs/calling.md: from ``bind`` on, by calls of any kind."""
    operand = {**SEEN, **NOT_SEEN}[kind]()
    bound, want = spcomp.compile(PRODUCT).bind(A=operand), A @ x
    for vector in (x, x, x.astype(np.float32), x):
        want = 2 * want if kind in SEEN else want
        np.testing.assert_allclose(changed(bound, operand, 2, vector), want, rtol=1e-6)


@pytest.mark.parametrize("kind", CONVERTED)
def test_values_that_a_program_has_converted_are_those_of_the_bind(kind):
    text, formats, make = CONVERTED[kind]
    operand = make()
    bound = spcomp.compile(text, formats=formats).bind(A=operand)
    for vector in (x, x.astype(np.float32)):
        np.testing.assert_allclose(changed(bound, operand, 2, vector), A @ x, rtol=1e-6)


@pytest.mark.parametrize("kind", ["csr", "csc", "tensor", "torch"])
def test_an_operand_that_is_read_in_two_orders_has_one_set_of_values(kind):
    dense = np.array([[0.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 5.0, 2.0]])
    if kind == "torch":
        matrix = pytest.importorskip("torch").tensor(dense).to_sparse_csr()
        values = matrix.values()
    else:
        matrix = (
            spcomp.Tensor.from_scipy(csr(dense)) if kind == "tensor" else as_format(dense, kind)
        )
        values = matrix.values if kind == "tensor" else matrix.data
    bound = spcomp.compile("C[i,j] = A[i,j] + A[j,i] * s").bind(A=matrix)
    for _ in range(4):
        result = bound(s=2.0)
        result = result.to_dense() if kind == "torch" else result.toarray()
        np.testing.assert_allclose(result, dense + 2 * dense.T)
        values *= 10


@pytest.mark.parametrize(
    ("name", "place", "wrong"),
    [("indptr", 2, 10**8), ("indptr", 2, -7), ("indptr", 6, 10**8), ("indices", 3, 10**8)],
)
@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("rows", [6, 60_000])
def test_wrong_index_arrays_are_refused_and_never_followed(name, place, wrong, layout, rows):
    matrix = as_format(np.eye(6), layout)
    if rows > 6:
        matrix = sps.eye_array(rows, format=layout)
    getattr(matrix, name)[place] = wrong
    with pytest.raises(ArgumentError, match="argument A"):
        spcomp.compile(PRODUCT).bind(A=matrix)(x=np.ones(rows))


SCRIPT = {
    "C order": (True, lambda: np.ones((5, 4), np.float32)),
    "Fortran order": (False, lambda: np.ones((5, 4), np.float32, order="F")),
    "every other column": (False, lambda: np.ones((5, 8), np.float32)[:, ::2]),
    "other byte order": (False, lambda: np.ones((5, 4), ">f4")),
}


@pytest.mark.parametrize("kind", SCRIPT)
def test_whether_a_script_sees_later_values_is_as_documented(kind):
    is_seen, make = SCRIPT[kind]
    operand, one = make(), sps.eye_array(5, dtype=np.float32, format="csr")
    bound = spcomp.compile(csrmm).bind(B=operand)
    for factor in (2, 4, 8, 16):
        operand *= 2
        assert bound(A=one)[0, 0] == (factor if is_seen else 1)
