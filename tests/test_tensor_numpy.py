"""What numpy's users call on a Tensor: reductions, shapes, and arrays that are asked for."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError

RNG = np.random.default_rng(1)
SIGNED = RNG.integers(-4, 5, (4, 6)) * (RNG.random((4, 6)) < 0.6)
SIGNED[1] = 7  # a row that is full, and one that is empty
SIGNED[2] = 0
SIGNED[3] = -np.abs(SIGNED[3])
TYPES = ("int8", "int64", "uint8", "float32", "float64", "float16", "bool")
LAYOUTS = ("csr", "csc", "dcsr", "coo", "bitmap", "hash", "ell", "bsr(2, 3)", "dia")
AXES = (None, 0, 1, -1, (0,), (1, 0), ())


def tensor(layout: str = "csr", dtype: str = "float64") -> tuple[spcomp.Tensor, np.ndarray]:
    array = (abs(SIGNED) if dtype in ("uint8", "bool") else SIGNED).astype(dtype)
    return spcomp.convert(array, spcomp.Format(layout)), array


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.sample(8, long=3)
def test_reductions_are_those_of_arrays_with_their_types(name, dtype):
    found, array = tensor("csr", dtype)
    for axis in AXES:
        got, want = (getattr(one, name)(axis) for one in (found, array))
        np.testing.assert_allclose(got, want, rtol=1e-3 if dtype == "float16" else 1e-6)
        assert np.asarray(got).dtype == want.dtype


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.sample(8, long=3)
def test_numpys_functions_call_them_in_every_format(name, layout):
    found, array = tensor(layout)
    function = getattr(np, name)
    for axis, keepdims in ((None, False), (0, True), (1, False), (None, True)):
        got = function(found, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(got, function(array, axis=axis, keepdims=keepdims))
        assert np.shape(got) == function(array, axis=axis, keepdims=keepdims).shape
    np.testing.assert_array_equal(np.sum(found, dtype="int32"), np.sum(array, dtype="int32"))


def test_sums_of_narrow_integers_do_not_wrap():
    a = spcomp.convert(np.full(300, 100, np.int8), "sparse")
    assert a.sum() == 30000
    assert a.mean() == 100


def test_not_a_number_and_elements_listed_twice_count():
    a = spcomp.convert(np.array([[np.nan, 0], [1, 0]]), spcomp.Format("csr"))
    np.testing.assert_array_equal(a.max(1), [np.nan, 1])
    twice = spcomp.Tensor((2,), [("compressed", [0, 2], [0, 0])], np.array([-1.0, -2.0]))
    assert (twice.min(), twice.max()) == (-3, 0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_extents_of_zero_are_those_of_arrays(shape):
    array = np.zeros(shape)
    a = spcomp.convert(array, spcomp.Format("csr"))
    for axis in (None, 0, 1):
        try:
            want = array.max(axis)
        except ValueError:
            with pytest.raises(ArgumentError, match="there is no max of no elements"):
                a.max(axis)
        else:
            np.testing.assert_array_equal(a.max(axis), want)
    assert a.reshape(-1, 5).shape == (0, 5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_shape_has_the_same_elements(layout):
    found, array = tensor(layout)
    for shape in ((6, 4), (24,), (2, 2, 6), (-1, 8), (3, -1, 2), (1, 24)):
        made = found.reshape(shape)
        np.testing.assert_array_equal(made.to_dense(), array.reshape(shape))
        np.testing.assert_array_equal(np.reshape(found, shape).to_dense(), array.reshape(shape))
    assert found.reshape(8, 3).shape == (8, 3)
    if layout in ("csr", "csc", "coo", "hash"):
        assert found.reshape(6, 4).format == found.format


def test_shapes_beyond_what_memory_holds():
    wide = spcomp.Tensor.from_coo(([3], [5]), [2.0], (1 << 31, 1 << 31))
    assert wide.size == 1 << 62
    assert wide.reshape(1 << 61, 2).coordinates()[0].tolist() == [(3 * 2**31 + 5) // 2]
    with pytest.raises(ArgumentError, match="argument shape"):
        spcomp.Tensor.from_coo(([3], [5]), [2.0], (1 << 32, 1 << 32)).reshape(-1)


REFUSED = {
    "array": (np.asarray, "not made an array by itself"),
    "product of numpy": (lambda a: np.dot(a, np.ones(6)), "not made an array"),
    "list": (lambda a: np.stack([a, a]), "not made an array"),
    "shape": (lambda a: a.reshape(5, 5), r"got \(5, 5\) for 24 coordinates"),
    "two open": (lambda a: a.reshape(-1, -1), "got"),
    "no shape": (lambda a: a.reshape("x"), "expected integers"),
    "by columns": (lambda a: np.reshape(a, (24,), order="F"), "argument order: got 'F'"),
    "out": (lambda a: np.sum(a, out=np.zeros(())), "argument out"),
    "axis twice": (lambda a: a.mean((0, -2)), "expected each once"),
    "axis": (lambda a: a.max(2), "got 2 for 2 dimensions"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_no_array_is_refused(case):
    call, message = REFUSED[case]
    with pytest.raises(ArgumentError, match=message) as caught:
        call(tensor()[0])
    if case == "array":
        assert "A.to_dense()" in caught.value.hint


def test_a_matrix_of_scipy_leaves_the_product_to_the_tensor():
    found, array = tensor()
    for kind in (sps.csr_array, sps.csc_matrix):
        made = kind(array.T) @ found
        assert sps.issparse(made)
        np.testing.assert_allclose(made.toarray(), array.T @ array)


def test_a_matrix_of_scipy_is_not_made_of_what_it_cannot_read():
    with pytest.raises(ValueError, match="constructor") as caught:
        sps.csr_array(tensor()[0])
    assert isinstance(caught.value.__cause__, ArgumentError)
    assert "A.to_scipy()" in caught.value.__cause__.hint


def test_what_an_array_says_of_itself():
    found, array = tensor()
    assert (found.size, np.size(found), np.ndim(found), np.shape(found)) == (24, 24, 2, (4, 6))
    for made in (found.toarray(), found.todense(), found.to_numpy()):
        np.testing.assert_array_equal(made, array)
    assert "Tensor" in repr(found)
