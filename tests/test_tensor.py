"""Tensor: any rank, any mix of levels, checked when it is made and frozen."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp import Tensor, convert
from spcomp.errors import ArgumentError

CSF = Tensor(
    (2, 3, 4),
    [None, ("compressed", [0, 1, 3], [2, 0, 1]), ("compressed", [0, 2, 2, 3], [0, 3, 1])],
    np.array([1.0, 2.0, 3.0]),
)


def test_a_csf_tensor_knows_its_shape_and_coordinates():
    assert (CSF.shape, CSF.ndim, CSF.nnz, CSF.dtype) == ((2, 3, 4), 3, 3, np.float64)
    assert CSF.format == "dense,compressed,compressed"
    assert [c.tolist() for c in CSF.coordinates()] == [[0, 0, 1], [2, 2, 1], [0, 3, 1]]
    dense = np.zeros((2, 3, 4))
    dense[0, 2, 0], dense[0, 2, 3], dense[1, 1, 1] = 1, 2, 3
    assert (CSF.to_dense() == dense).all()
    assert repr(CSF) == "<Tensor (2, 3, 4) float64, 3 stored, levels dense,compressed,compressed>"


def test_ragged_and_fixed_levels_expand():
    ragged = Tensor((2, 3), [None, ("ragged", [0, 1, 4])], np.arange(1, 5))
    assert ragged.to_dense().tolist() == [[1, 0, 0], [2, 3, 4]]
    ell = Tensor((2, 3), [None, ("fixed", [[0, 2], [1, 2]])], np.arange(1, 5))
    assert ell.to_dense().tolist() == [[1, 0, 2], [0, 3, 4]]


def test_dense_tensors_of_any_rank_work():
    assert Tensor((), [], np.array(3.0)).to_dense() == 3
    assert Tensor((2, 2), [None, None], np.arange(4)).to_dense().tolist() == [[0, 1], [2, 3]]
    assert Tensor((0, 2), [None, None], np.zeros(0)).nnz == 0


def test_repeated_coordinates_add_in_to_dense():
    twice = Tensor((1, 2), [None, ("compressed", [0, 2], [1, 1])], np.array([1, 2]))
    assert twice.to_dense().tolist() == [[0, 3]]
    assert twice.ascending(1, unique=False)
    assert not twice.ascending(1, unique=True)
    assert twice.ascending(0, unique=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_stored_zeros_keep_their_sign(dtype):
    values = np.array([-0.0, -0.0, -0.0, 0.0, 0.0], dtype)
    level = ("compressed", [0, 5], [0, 1, 1, 2, 3])
    tensor = Tensor((1, 5), [None, level], values)
    for dense in (tensor.to_dense(), convert(tensor, "dense")):
        assert np.signbit(dense).tolist() == [[True, True, False, False, False]]


def test_infinities_add_up_to_nan_without_a_warning():
    level = ("compressed", [0, 2], [1, 1])
    tensor = Tensor((1, 2), [None, level], np.array([np.inf, -np.inf]))
    assert np.isnan(tensor.to_dense()[0, 1])
    assert np.isnan(tensor.to("csr").data).all()
    far = Tensor((1, 2), [None, level], np.array([6e4, 6e4], np.float16))
    assert far.to_dense()[0, 1] == far.to("csr").values == np.inf


def test_order_is_known_per_fiber():
    falls = Tensor((2, 3), [None, ("fixed", [[2, 0], [0, 1]])], np.zeros(4))
    assert not falls.ascending(1, unique=False)
    rises = Tensor((2, 3), [None, ("fixed", [[0, 2], [0, 1]])], np.zeros(4))
    assert rises.ascending(1, unique=True)


@pytest.mark.parametrize("make", [sps.csr_array, sps.csr_matrix])
def test_csr_is_taken_with_its_values_shared(make):
    matrix = make(np.array([[0, 1.5], [2.5, 0], [0, 0]]))
    tensor = Tensor.from_scipy(matrix)
    assert tensor.format == "dense,compressed"
    assert np.shares_memory(tensor.values, matrix.data)
    assert (tensor.to_dense() == matrix.toarray()).all()


def test_bsr_is_taken_as_four_levels():
    dense = np.arange(24.0).reshape(4, 6)
    tensor = Tensor.from_scipy(sps.bsr_array(dense, blocksize=(2, 3)))
    assert tensor.shape == (2, 2, 2, 3)
    assert (tensor.to_dense() == dense.reshape(2, 2, 2, 3).swapaxes(1, 2)).all()


def test_other_formats_are_refused():
    with pytest.raises(ArgumentError, match="got csc, expected csr or bsr"):
        Tensor.from_scipy(sps.csc_array((2, 2)))
    with pytest.raises(ArgumentError, match="got list"):
        Tensor.from_scipy([1])


def test_index_arrays_are_private_and_read_only():
    indices = np.array([2, 0, 1])
    tensor = Tensor((1, 3), [None, ("compressed", np.array([0, 3]), indices)], np.zeros(3))
    indices[0] = 99
    assert tensor.levels[1].indices.tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match="read-only"):
        tensor.levels[1].indices[0] = 99


def test_with_values_shares_the_levels():
    other = CSF.with_values(np.array([4.0, 5.0, 6.0]))
    assert other.levels is CSF.levels
    assert other.to_dense().sum() == 15
    with pytest.raises(ArgumentError, match="got 2 elements, expected 3"):
        CSF.with_values(np.zeros(2))


def test_a_tensor_pickles():
    again = pickle.loads(pickle.dumps(CSF))
    assert again.format == CSF.format
    assert (again.to_dense() == CSF.to_dense()).all()


def csr(indptr, indices, count=None, shape=(2, 3)):
    values = np.zeros(len(indices) if count is None else count)
    return Tensor(shape, [None, ("compressed", indptr, indices)], values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: csr([0, 1], [0]), r"level 1 indptr: got 2 elements, expected 3"),
        (lambda: csr([[0, 1, 1]], [0]), r"level 1 indptr: got shape \(1, 3\), expected 3"),
        (lambda: csr([1, 1, 1], [0]), r"level 1 indptr: starts at 1, expected 0"),
        (lambda: csr([0, 1, 0], [0]), r"level 1 indptr: decreases from 1 to 0 at position 2"),
        (lambda: csr([0, 1, 2], [0]), r"level 1 indptr: ends at 2, expected 1"),
        (lambda: csr([0, 0, 1], [3]), r"level 1 indices: got 3 at position 0, expected 0\.\.2"),
        (lambda: csr([0, 0, 1], [-1]), r"level 1 indices: got -1 at position 0"),
        (lambda: csr([0, 0, 1], [0], shape=(2, 0)), r"expected no element \(the extent is 0\)"),
        (lambda: csr([0, 0, 1], [0], 2), r"values: got 2 elements, expected 1"),
        (lambda: csr([0.0, 0, 1], [0]), r"level 1 indptr: got dtype float64, expected integers"),
        (lambda: csr([0, 0, 1], [[0]]), r"level 1 indices: got shape \(1, 1\), expected 1-D"),
        (lambda: Tensor((2,), [None, None], np.zeros(2)), r"got 2 levels for the shape \(2,\)"),
        (lambda: Tensor((-1,), [None], np.zeros(0)), r"got 1 levels for the shape \(-1,\)"),
        (lambda: Tensor((2,), ["dense"], np.zeros(2)), r"entry 0 is not a level"),
        (lambda: Tensor((2,), [("ragged",)], np.zeros(2)), r"entry 0 is not a level"),
        (lambda: Tensor((2,), [None], [1, 2]), r"values: got list, expected an array"),
        (
            lambda: Tensor((1, 2), [None, ("ragged", [0, 3])], np.zeros(3)),
            r"level 1 indptr: a fiber has 3 elements, expected at most 2",
        ),
        (
            lambda: Tensor((2, 3), [None, ("fixed", [0, 1])], np.zeros(2)),
            r"level 1 indices: got shape \(2,\), expected \(2, width\)",
        ),
    ],
)
def test_arrays_that_describe_no_tensor_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
