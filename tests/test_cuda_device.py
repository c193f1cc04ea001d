"""On a real GPU: kernels of hand-written PTX, libraries' arrays and streams, graphs, time.

``pytest -m gpu tests/test_cuda_device.py`` runs them where there is one.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from spcomp.dtypes import SCALARS, bfloat16, float32
from spcomp.errors import BackendError
from spcomp.runtime.cuda import timing
from spcomp.runtime.cuda.arrays import array_of, empty, full, place_of, to_host, zeros
from spcomp.runtime.cuda.driver import LEGACY, device_properties, load
from spcomp.runtime.cuda.memory import synchronize
from spcomp.runtime.cuda.sparse import sparse_of, with_data
from tests.gpu_kernels import REVERSE, REVERSE_TYPES, SCALED_SUM, SCALED_SUM_TYPES

pytestmark = pytest.mark.gpu
COUNT = 100_003


def vectors():
    rng = np.random.default_rng(1)
    return rng.random((2, COUNT), np.float32)


def summed():
    return load(SCALED_SUM).function("scaled_sum", SCALED_SUM_TYPES)


def blocks():
    return ((COUNT + 255) // 256,), (256,)


def test_a_kernel_computes_on_host_arrays_with_numbers_of_several_types():
    x, y = vectors()
    place = place_of([x, y])
    a, b, c = array_of(x, place), array_of(y, place), empty((COUNT,), float32, place)
    values = [a.pointer, b.pointer, c.pointer, 2.5, np.int64(COUNT)]
    summed().launch(*blocks(), 0, place.stream, values)
    expected = (2.5 * y.astype(np.float64) + x).astype(np.float32)
    np.testing.assert_array_equal(to_host(c, place.stream), expected)


def test_a_kernel_that_takes_most_of_the_shared_memory():
    limit = device_properties().shared_limit
    x = np.arange(256, dtype=np.int32)
    for size in (1024, 48 << 10, (48 << 10) + 4, limit):
        place = place_of([x])
        array = array_of(x, place)
        kernel = load(REVERSE).function("reverse", REVERSE_TYPES)
        kernel.launch((1,), (256,), size, place.stream, [array.pointer, size - 4])
        np.testing.assert_array_equal(to_host(array, place.stream), x[::-1])
    with pytest.raises(BackendError, match="bytes of shared"):
        kernel.launch((1,), (256,), limit + 4, LEGACY, [0, 0])
    assert kernel.occupancy(256) >= 1
    assert kernel.registers >= 4


def test_launches_in_threads_with_changes_and_as_a_graph():
    x, y = vectors()
    place = place_of([x])
    a, b = array_of(x, place), array_of(y, place)
    results = [zeros((COUNT,), float32, place) for _ in range(3)]
    prepared = summed().prepare(*blocks(), 0, [a.pointer, b.pointer, 0, 1.0, COUNT])

    def launch(at: int) -> None:
        prepared.launch(place.stream, {2: results[at].pointer, 3: float(at)})

    threads = [threading.Thread(target=launch, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, result in enumerate(results):
        np.testing.assert_array_equal(to_host(result, place.stream), x + np.float32(at) * y)
    prepared.launch(place.stream, {2: results[0].pointer, 3: 1.0})
    graph = timing.capture(prepared.launch)
    prepared.launch(place.stream, {3: 2.0})
    graph.launch(place.stream)
    synchronize(place.stream, place.device)
    np.testing.assert_array_equal(to_host(results[0], place.stream), x + y)


def test_time_is_at_least_what_memory_takes():
    x = np.zeros(1 << 24, np.float32)
    place = place_of([x])
    a, c = array_of(x, place), empty(x.shape, float32, place)
    values = [a.pointer, a.pointer, c.pointer, 1.0, x.size]
    prepared = summed().prepare((x.size // 256,), (256,), 0, values)
    warm = timing.time_on_device(prepared.launch, repeat=20)
    cold = timing.time_on_device(prepared.launch, repeat=20, flush=True)
    for took in (warm, cold):
        assert 1e-6 < took.median < 1e-2
    assert len(cold.results) == 20


def test_code_for_another_GPU_is_refused_and_the_next_is_not():
    with pytest.raises(BackendError, match="the driver refuses the PTX"):
        load(SCALED_SUM.replace("sm_80", "sm_999")).function("scaled_sum", SCALED_SUM_TYPES)
    assert summed().local_bytes == 0


def test_tensors_of_torch_on_a_stream_of_their_own():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch was built without CUDA")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x, y = (torch.rand(COUNT, device="cuda") for _ in range(2))
        place = place_of([x, y])
        assert place.stream == stream.cuda_stream
        c = empty((COUNT,), float32, place)
        pointers = [array_of(t, place).pointer for t in (x, y)]
        summed().launch(*blocks(), 0, place.stream, [*pointers, c.pointer, 2.0, COUNT])
        torch.testing.assert_close(c.owner, x + 2 * y)
    half = array_of(torch.ones(8, dtype=torch.bfloat16, device="cuda"), place)
    assert half.dtype == bfloat16
    csr = torch.eye(16, device="cuda").to_sparse_csr()
    parts = sparse_of(csr, place)
    again = with_data(parts, array_of(csr.values() * 2, place))
    torch.testing.assert_close(again.to_dense(), 2 * torch.eye(16, device="cuda"))


def test_arrays_of_cupy_on_a_stream_of_their_own():
    cupy = pytest.importorskip("cupy")
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x, y = (cupy.random.rand(COUNT, dtype=cupy.float32) for _ in range(2))
        place = place_of([x, y])
        assert place.stream == stream.ptr
        c = empty((COUNT,), float32, place)
        pointers = [array_of(t, place).pointer for t in (x, y)]
        summed().launch(*blocks(), 0, place.stream, [*pointers, c.pointer, 2.0, COUNT])
        cupy.testing.assert_allclose(c.owner, x + 2 * y, rtol=1e-6)
    matrix = sparse.identity(16, dtype=cupy.float32, format="csr")
    parts = sparse_of(matrix, place)
    again = with_data(parts, array_of(matrix.data * 2, place))
    cupy.testing.assert_array_equal(again.toarray(), 2 * matrix.toarray())


def test_arrays_of_numba_are_read_where_they_are():
    from numba import cuda

    x, y = vectors()
    a, b = cuda.to_device(x), cuda.to_device(y)
    place = place_of([a, b])
    c = empty((COUNT,), float32, place)
    pointers = [array_of(t, place).pointer for t in (a, b)]
    summed().launch(*blocks(), 0, place.stream, [*pointers, c.pointer, 2.0, COUNT])
    np.testing.assert_array_equal(c.owner.copy_to_host(), x + np.float32(2) * y)


@pytest.mark.parametrize("dtype", SCALARS, ids=str)
def test_memory_starts_at_any_value(dtype):
    place = place_of([])
    array = full((1000, 3), dtype, 1, place)
    expected = 0x3F80 if dtype == bfloat16 else 1
    np.testing.assert_array_equal(to_host(array, place.stream), expected)
