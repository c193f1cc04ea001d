"""Index vectors of results on a GPU are sorted there, once, and results are those of the host."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError
from tests.test_cuda_kernels import TARGET, Torch, both, kinds

EDGES, ROWS, FEATURES = 700, 90, 5


def operands(dtype="int32", seed=3, edges=EDGES):
    """Edges that go to rows in no order, many of them to row 7, and their weights."""
    rng = np.random.default_rng(seed)
    dst = rng.integers(0, ROWS - 2, edges).astype(dtype)
    dst[: edges // 3] = 7
    return rng.permutation(dst), rng.standard_normal((edges, FEATURES)).astype(np.float32)


def added(dst, values):
    result = np.zeros((ROWS, *values.shape[1:]))
    np.add.at(result, dst, values)
    return result


@both
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sums_of_unsorted_places_have_the_bits_of_sorted_rows(gpu, kind, dtype):
    there, (dst, values) = kind(gpu), operands(dtype)
    flat = np.ascontiguousarray(values[:, 0])
    kernel = spcomp.compile("Y[dst[e]] = w[e]", target=TARGET)
    host = kernel(dst=dst, w=flat, sizes={"Y": ROWS})
    vector, weights = there.put(dst), there.put(flat)
    first = there.get(kernel(dst=vector, w=weights, sizes={"Y": ROWS})).copy()
    np.testing.assert_allclose(first, added(dst, flat), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(first, host)
    before = len(gpu.launches)
    again = kernel(dst=vector, w=weights, sizes={"Y": ROWS})
    np.testing.assert_array_equal(there.get(again), first)
    assert len(gpu.launches) - before < 4  # what it holds is compared, and nothing sorted
    there.get(vector)[:] = np.flip(dst)
    changed = kernel(dst=vector, w=weights, sizes={"Y": ROWS})
    np.testing.assert_allclose(there.get(changed), added(np.flip(dst), flat), rtol=1e-4, atol=1e-5)


@both
def test_bound_places_are_sorted_at_the_first_call_and_later_ones_wait_for_nothing(gpu, kind):
    there, (dst, values) = kind(gpu), operands()
    kernel = spcomp.compile("Y[dst[e], f] = w[e, f]", target=TARGET)
    vector = there.put(dst)
    bound = kernel.bind(dst=vector)
    there.get(vector)[:] = 0  # it is a copy that was bound
    weights, out = there.put(values), there.put(np.zeros((ROWS, FEATURES), np.float32))
    for _ in range(3):
        assert bound(w=weights, out=out) is out
        np.testing.assert_allclose(there.get(out), added(dst, values), rtol=1e-4, atol=1e-5)
        there.get(out)[:] = -1
    gpu.log.clear()
    before = len(gpu.memory)
    bound(w=weights, out=out)
    assert not gpu.log
    assert len(gpu.memory) == before


@pytest.mark.parametrize("edges", [0, 1])
def test_few_places(gpu, edges):
    there, (dst, values) = Torch(gpu), operands(edges=edges)
    kernel = spcomp.compile("Y[dst[e], f] = w[e, f]", target=TARGET)
    made = kernel(dst=there.put(dst), w=there.put(values), sizes={"Y": ROWS})
    np.testing.assert_array_equal(there.get(made), added(dst, values))


@both
def test_places_that_are_none_are_refused(gpu, kind):
    there, (dst, values) = kind(gpu), operands()
    kernel = spcomp.compile("Y[dst[e], f] = w[e, f]", target=TARGET)
    dst[5] = ROWS
    with pytest.raises(ArgumentError, match=f"dst: got {ROWS} at position 5"):
        kernel(dst=there.put(dst), w=there.put(values), sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match="dst: got dtype float32"):
        kernel(dst=there.put(dst.astype("float32")), w=there.put(values), sizes={"Y": ROWS})
    with pytest.raises(ArgumentError, match="dst: got 2 dimensions"):
        kernel(dst=there.put(dst.reshape(2, -1)), w=there.put(values), sizes={"Y": ROWS})


def test_the_host_reads_no_places(gpu):
    there, (dst, values) = Torch(gpu), operands()
    kernel = spcomp.compile("Y[dst[e], f] = max(e, w[e, f])", target=TARGET)
    kernel(dst=there.put(dst), w=there.put(values), sizes={"Y": ROWS})
    assert max(size for _, size, _ in kinds(gpu, "download")) <= 4 * (ROWS + 1)
