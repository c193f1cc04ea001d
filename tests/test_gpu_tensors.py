"""Tensors whose arrays lie on a GPU: made there, taken by kernels, and results like them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.tensors.conversions import digits
from spcomp.tensors.device_tensor import DeviceTensor
from tests.test_cuda_kernels import TARGET, Torch, both, kinds
from tests.test_gpu_conversions import there as on_gpu


def matrix(seed=0, shape=(40, 30), density=0.15):
    rng = np.random.default_rng(seed)
    return sps.random_array(shape, density=density, format="csr", dtype=np.float32, rng=rng)


@both
@pytest.mark.parametrize("source", ["csr", "csc", "coo"])
def test_rows_of_equal_width_are_those_of_the_host(gpu, kind, source):
    A = matrix()
    made = spcomp.convert(on_gpu(kind(gpu), A.asformat(source)), "ell")
    assert isinstance(made, DeviceTensor)
    assert (made.shape, made.format, str(made.dtype)) == ((40, 30), "dense,fixed", "float32")
    host, expected = made.to_host(), spcomp.convert(A, "ell")
    np.testing.assert_array_equal(host.levels[1].indices, expected.levels[1].indices)
    np.testing.assert_array_equal(host.values, expected.values)


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_rows_without_places_and_without_padding(gpu, density):
    there, A = Torch(gpu), matrix(shape=(5, 7), density=density)
    made = spcomp.convert(there.csr(A), "ell")
    assert not made.padded(1)
    np.testing.assert_array_equal(made.to_host().to_dense(), A.toarray())


@both
def test_kernels_take_them_and_results_are_like_them(gpu, kind):
    there, A = kind(gpu), matrix()
    rng = np.random.default_rng(1)
    B, x = rng.random((30, 8), np.float32), rng.random(40, np.float32)
    E = spcomp.convert(there.csr(A), "ell")
    product = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET)
    C = product(A=E, B=there.put(B))
    np.testing.assert_allclose(there.get(C), A @ B, rtol=1e-5)
    bound, out = product.bind(A=E), there.put(np.zeros((40, 8), np.float32))
    dense = there.put(B)
    bound(B=dense, out=out)
    gpu.log.clear()
    bound(B=dense, out=out)
    assert not gpu.log
    np.testing.assert_allclose(there.get(out), A @ B, rtol=1e-5)
    scaled = spcomp.compile("D[i, j] = x[i] * A[i, j]", target=TARGET)(A=E, x=there.put(x))
    assert isinstance(scaled, DeviceTensor)
    np.testing.assert_allclose(scaled.to_host().to_dense(), A.toarray() * x[:, None], rtol=1e-5)


def test_the_program_has_no_races_and_reads_nothing_outside():
    """In the emulator, which would say so."""
    pointers, minors = np.array([0, 2, 2, 5], np.int32), np.array([1, 6, 0, 3, 7])
    keys = np.repeat(np.arange(3), np.diff(pointers)) << 3 | minors
    values, found = np.arange(5, dtype=np.float32), np.zeros(9, np.float32)
    indices = np.zeros(9, np.int32)
    put = digits.slots("int32", "float32", target="cuda:sm_90,emulate")
    put(keys, values, pointers, indices, found, 5, 3, 3, 9, 3)
    np.testing.assert_array_equal(indices, [1, 6, -1, -1, -1, -1, 0, 3, 7])
    np.testing.assert_array_equal(found, [0, 1, 0, 0, 0, 0, 2, 3, 4])


def test_the_host_reads_where_rows_begin_and_nothing_else(gpu):
    there, A = Torch(gpu), matrix()
    given = there.csr(A)
    gpu.log.clear()
    spcomp.convert(given, "ell")
    assert max(size for _, size, _ in kinds(gpu, "download")) == 4 * 41


def test_what_does_not_fit_is_refused(gpu):
    there = Torch(gpu)
    with pytest.raises(ArgumentError, match="no place for repeated"):
        spcomp.convert(there.csr(matrix()), "ell", duplicates="keep")
    ones, row = np.ones(3000, np.float32), np.arange(3000, dtype=np.int32)
    long = sps.csr_array((ones, row, np.r_[0, np.full(3000, 3000)]), (3000, 3000))
    with pytest.raises(ArgumentError, match="would have 9000000 positions"):
        spcomp.convert(there.csr(long), "ell")
    E = spcomp.convert(there.csr(matrix()), "ell")
    other = spcomp.compile("C[i, k] = A[i, j] * B[j, k]", target=TARGET)
    with pytest.raises(ArgumentError):
        other(A=E, B=there.put(np.ones((31, 8), np.float32)))
