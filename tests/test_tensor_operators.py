"""Arithmetic, products, parts and sums of Tensors, with operands of every library."""

from __future__ import annotations

import operator
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError

D = np.array([[0, 1.0, 0], [2, 0, 3], [0, 0, 0], [4, 0, 5]])
E = np.arange(12.0).reshape(4, 3) - 5
LAYOUTS = ("csr", "csc", "dcsr", "coo", "bitmap", "hash", "ell")
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
KEPT = {  # what is done element by element, where something is stored
    "a / 2": lambda a: a / 2,
    "a ** 2": lambda a: a**2,
    "a // 2": lambda a: a // 2,
    "a % 2": lambda a: a % 2,
    "3 * a": lambda a: 3 * a,
    "-a": operator.neg,
    "abs": lambda a: abs(-a),
    "+a": operator.pos,
    "a > 2": lambda a: a > 2,
    "a >= 2": lambda a: a >= 2,
}
KEYS: list[Any] = [
    *(2, -1, slice(1, 3), slice(None, None, 2), (1, 2), (0, 0), (-1, -1), (..., 1), (1, ...)),
    *((slice(None), 0), (slice(1, 9), slice(0, 3, 2)), (slice(2, 1), slice(None)), ..., ()),
    *((np.int64(1), slice(None)), slice(-2, None)),
]


def tensor(layout: str = "csr", array: Any = D) -> spcomp.Tensor:
    """The array in a format of levels."""
    made: spcomp.Tensor = spcomp.convert(array, spcomp.Format.parse(layout, array.ndim))
    return made


def dense(result: Any) -> Any:
    """What *result* holds."""
    if isinstance(result, spcomp.Tensor):
        return result.to_dense()
    return result.toarray() if sps.issparse(result) else np.asarray(result)


OTHERS = {
    "array": (E, E),
    "row": (E[0], E[0]),
    "column": (E[:, :1], E[:, :1]),
    "scalar array": (np.array(3.0), 3.0),
    "number": (2, 2),
    "numpy's number": (np.float64(2), 2),
    "csr": (sps.csr_array(E * (E > 0)), E * (E > 0)),
    "csc matrix": (sps.csc_matrix(E * (E > 0)), E * (E > 0)),
    "Tensor": (tensor("dcsr", E * (E > 0)), E * (E > 0)),
}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.sample(8, long=3)
def test_arithmetic_is_that_of_arrays_on_both_sides(layout, other, sign):
    given, array = OTHERS[other]
    np.testing.assert_array_equal(dense(SIGNS[sign](tensor(layout), given)), SIGNS[sign](D, array))
    np.testing.assert_array_equal(dense(SIGNS[sign](given, tensor(layout))), SIGNS[sign](array, D))


@pytest.mark.parametrize("op", KEPT)
@pytest.mark.parametrize("layout", ["csr", "csc", "dcsr"])
def test_what_keeps_zero_keeps_the_pattern(layout, op):
    found = KEPT[op](tensor(layout))
    np.testing.assert_array_equal(dense(found), KEPT[op](D))
    assert isinstance(found, spcomp.Tensor)
    assert found.nnz == 5


def test_comparisons_and_powers_are_of_what_is_stored():
    assert (tensor() < 3).nnz == 5
    assert (tensor() <= 3).to_dense().sum() == 3
    assert (2 / tensor()).to_dense().tolist() == np.divide(2, D, where=D != 0, out=0 * D).tolist()
    assert (2 ** tensor()).to_dense()[0].tolist() == [0, 2, 0]
    assert isinstance(tensor() + 1, np.ndarray)  # a number is present everywhere


def test_equality_is_identity():
    a = tensor()
    assert a == a
    assert a != tensor()
    assert {a: 1}[a] == 1
    assert a != "A"
    assert a is not None
    assert a not in (None, "csr")


@pytest.mark.parametrize("other", [0, 1.5, np.float32(0), np.zeros((2, 3)), sps.csr_array((2, 3))])
def test_elements_are_not_compared_by_a_question_about_objects(other):
    for ask in (operator.eq, operator.ne):
        with pytest.raises(ArgumentError, match="whether two Tensors are one object"):
            ask(tensor(), other)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_are_those_of_matrices(layout):
    a = tensor(layout)
    for other in (E.T, E[0], sps.csr_array(E.T), sps.csr_matrix(E.T), tensor("csr", E.T), a.T):
        np.testing.assert_allclose(dense(a @ other), D @ dense(other))
    for other in (E.T, E[:, 0], sps.csr_array(E.T), sps.csc_matrix(E.T), tensor("dcsr", E.T)):
        np.testing.assert_allclose(dense(other @ a), np.asarray(dense(other)) @ D)
    x = tensor("sparse", D[1])
    assert x @ x == 13
    assert sps.issparse(a @ a.T)


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_those_of_arrays(layout, key):
    found, want = tensor(layout)[key], D[key]
    np.testing.assert_array_equal(dense(found), want)
    assert isinstance(found, spcomp.Tensor if np.ndim(want) else np.generic)
    assert found.dtype == want.dtype
    if np.ndim(want) == 2:
        assert found.format == tensor(layout).format


def test_parts_of_three_dimensions():
    cube = np.where(np.random.default_rng(1).random((3, 4, 5)) < 0.4, 2.0, 0)
    a = tensor("csf", cube)
    for key in (1, (..., 2), (slice(None), 3), (1, 2, 3), (slice(0, 2), slice(1, 4, 2), -1)):
        np.testing.assert_array_equal(dense(a[key]), cube[key])
    np.testing.assert_array_equal(a.transpose((1, 2, 0)).to_dense(), cube.transpose(1, 2, 0))
    np.testing.assert_array_equal(a.sum((0, -1)), cube.sum((0, 2)))
    np.testing.assert_array_equal(dense(a * np.arange(5.0)), cube * np.arange(5.0))
    assert a.T.shape == (5, 4, 3)


def test_repeated_elements_are_added_up_in_parts():
    a = spcomp.Tensor((3,), [("compressed", [0, 3], [1, 1, 2])], np.array([1.0, 2, 4]))
    assert a[1] == 3
    assert a[0] == 0
    assert a[1:].to_dense().tolist() == [3, 4]


@pytest.mark.parametrize("layout", [*LAYOUTS, "bsr(2, 3)", "dia"])
def test_the_transpose_shares_all_that_there_is(layout):
    a = tensor(layout)
    np.testing.assert_array_equal(a.T.to_dense(), D.T)
    assert a.T.values is a.values
    assert a.T.T.format == a.format
    np.testing.assert_array_equal(dense(a.T @ E), D.T @ E)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0,), (0, 1), (-1, 0)])
def test_sums_are_those_of_arrays(axis):
    for layout in LAYOUTS:
        np.testing.assert_array_equal(tensor(layout).sum(axis), D.sum(axis))


@pytest.mark.parametrize("extents", [(0, 3), (3, 0), (0, 0), (1, 1), (1, 3)])
def test_extents_of_none_and_one_are_no_exception(extents):
    array = np.ones(extents)
    a = tensor("csr", array)
    np.testing.assert_array_equal(dense(a + a), 2 * array)
    np.testing.assert_array_equal(dense(a @ a.T), array @ array.T)
    np.testing.assert_array_equal(a.sum(0), array.sum(0))
    np.testing.assert_array_equal(dense(a[:, 1:]), array[:, 1:])
    np.testing.assert_array_equal(dense(a + np.ones(extents)), array + 1)


def test_values_of_another_type_stay_where_they_are():
    a = tensor().astype("float32")
    assert a.dtype == np.float32
    assert a.levels is tensor().levels or a.nnz == 5
    np.testing.assert_array_equal(a.to_dense(), D)


REFUSED = {
    "no product": (lambda a: a @ a, r"shapes \(4, 3\) and \(4, 3\) have no matrix product"),
    "product of a number": (lambda a: a @ 2, "have no matrix product"),
    "no broadcast": (lambda a: a + E.T, r"shapes \(4, 3\) and \(3, 4\) do not go together"),
    "coordinate": (lambda a: a[4], "got 4, dimension 0 is 4"),
    "many keys": (lambda a: a[1, 1, 1], "got 3 for 2 dimensions"),
    "two ellipses": (lambda a: a[..., ...], "got 2 for 2 dimensions"),
    "step": (lambda a: a[::-1], "got the step -1, expected 1 or more"),
    "text": (lambda a: a["x"], "got str, expected integers and slices"),
    "list": (lambda a: a[[0, 1]], "got list, expected integers and slices"),
    "text in a slice": (lambda a: a["x":], "expected integers and slices"),
    "axis": (lambda a: a.sum(2), "got 2 for 2 dimensions"),
    "no axis": (lambda a: a.sum("x"), "got 'x', expected integers"),
    "axes": (lambda a: a.transpose((0, 0)), "expected each of 2 once"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused(case):
    call, message = REFUSED[case]
    with pytest.raises(ArgumentError, match=message):
        call(tensor())


def test_what_is_no_operand_is_left_to_python():
    for wrong in ([1, 2, 3], "x", None, object()):
        with pytest.raises(TypeError):
            tensor() + wrong
    with pytest.raises(TypeError):
        iter(tensor())


def test_torch_tensors_give_torch_tensors():
    torch = pytest.importorskip("torch")
    found = tensor() @ torch.ones(3, dtype=torch.float64)
    assert found.tolist() == D.sum(1).tolist()


def test_a_tensor_loads_no_compiler_until_it_computes():
    code = "import sys, spcomp, numpy; spcomp.Tensor((2,), [None], numpy.ones(2)).T; "
    code += "sys.exit('spcomp.kernels.compile' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_tensor_with_operators_can_be_pickled():
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(tensor().T)).to_dense(), D.T)


@pytest.mark.parametrize("dtype", ["float99", "int7"])
def test_types_that_numpy_lacks_are_refused(dtype):
    tensor = spcomp.convert(np.eye(2), "csf")
    with pytest.raises(ArgumentError, match=f"argument dtype: numpy does not know {dtype}"):
        tensor.astype(dtype)
