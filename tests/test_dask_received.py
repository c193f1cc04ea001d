"""Blocks that came in messages: where their arrays lie, and how often they are copied."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from scipy.sparse import csr_array

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask
import dask.array as da

import spcomp
import spcomp.dask as sd
from spcomp.dask import received
from spcomp.tensors.tensor import Tensor
from tests.test_dask import csr

pytestmark = pytest.mark.dask


def message(array, offset):
    """Return *array* as it lies in a message, *offset* bytes after a cache line."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    found = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("offset", [1, 4, 16, 63])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array_at_any_address_is_copied_once_to_a_cache_line(dtype, offset):
    wanted = np.arange(6000, dtype=dtype).reshape(60, 100)
    block = message(wanted, offset)
    found = received.kept(block)
    assert found.ctypes.data % 64 == 0
    np.testing.assert_array_equal(found, wanted)
    assert received.kept(block) is found
    number = id(block)
    assert number in received._copies
    del block
    gc.collect()
    assert number not in received._copies


def test_arrays_that_lie_well_are_small_or_own_their_memory_are_not_copied():
    own, small = np.ones(10_000), message(np.ones(8), 3)
    well = message(np.ones(10_000), 0)
    for block in (own, small, well, 2.5, np.float32(1), np.zeros(())):
        assert received.kept(block) is block


def test_a_sparse_block_gets_arrays_at_cache_lines():
    matrix = csr(80, 70, density=0.5, dtype=np.float32)
    block = csr_array(matrix.shape, dtype=np.float32)
    block.data, block.indices = message(matrix.data, 5), message(matrix.indices, 22)
    block.indptr = matrix.indptr
    assert not block.data.flags.aligned
    found = received.kept(block)
    assert found.data.ctypes.data % 64 == found.indices.ctypes.data % 64 == 0
    assert (found != matrix).nnz == 0
    assert received.kept(block) is found
    assert received.kept(found) is found
    tensor = Tensor.from_scipy(matrix)
    assert received.kept(tensor) is tensor


def test_a_step_of_a_bound_kernel_is_one_task_for_each_block():
    with dask.config.set(scheduler="sync"):
        matrix = sd.from_scipy(csr(60, 50), (20, 50)).persist()
        dense = da.ones((50, 4), chunks=-1).persist()
        step = spcomp.compile("C[i, k] = alpha * A[i, j] * B[j, k]").bind(A=matrix)
        step(alpha=1.0, B=dense)
        graph = dict(step(alpha=2.0, B=dense).__dask_graph__())
    held = {*dict(matrix.__dask_graph__()), *dict(dense.__dask_graph__())}
    assert len(graph.keys() - held) == 3
