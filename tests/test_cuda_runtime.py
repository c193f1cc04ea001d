"""Running on a GPU: code is loaded once, arguments are packed by type; or it says why not."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from spcomp.dtypes import bfloat16_bits
from spcomp.errors import ArgumentError, BackendError, OutOfMemoryError
from spcomp.runtime.cuda import driver, timing
from spcomp.runtime.cuda.driver import LEGACY, device_properties, load, missing
from spcomp.runtime.cuda.ptx import entries
from spcomp.runtime.cuda.slots import TYPES, slot
from tests import fake_cuda
from tests.fake_core import failed
from tests.gpu_kernels import (
    REVERSE,
    REVERSE_TYPES,
    SCALED_SUM,
    SCALED_SUM_TYPES,
    scaled_sum,
)


@pytest.fixture
def install():
    """Install a fake GPU, until the end of the test."""
    with ExitStack() as stack:
        yield lambda *args, **named: stack.enter_context(fake_cuda.installed(*args, **named))


@pytest.fixture
def gpu(install):
    return install()


@pytest.fixture
def vectors(gpu):
    """x, y and room for z, of 300 elements, in the memory of the GPU."""
    gpu.kernels["scaled_sum"] = scaled_sum
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 300), np.float32)
    return x, y, [gpu.put(a) for a in (x, y, np.zeros(300, np.float32))]


def summed():
    return load(SCALED_SUM).function("scaled_sum", SCALED_SUM_TYPES)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"version": None}, "numba-cuda is not installed (pip install 'spcomp[cuda]')"),
        ({"version": "0.28.2"}, "numba-cuda is 0.28.2, and 0.30 is the oldest"),
        ({"started": False}, "there is no NVIDIA driver: CUDA driver library not found."),
        ({"devices": 0}, "there is no NVIDIA GPU"),
    ],
)
def test_what_is_missing_is_said_before_the_driver_is_called(install, given, says):
    gpu = install(**given)
    assert missing().startswith(says)
    assert missing() == missing()
    with pytest.raises(BackendError, match="CUDA cannot be used here: ") as caught:
        load(SCALED_SUM)
    assert says in str(caught.value)
    assert "SPCOMP_CUDA_EMULATE=1" in caught.value.hint
    assert gpu.calls in ([], ["cuDeviceGetCount"])


def test_a_driver_that_does_not_start_and_a_broken_numba_are_told(install, monkeypatch):
    install()
    numba = sys.modules["numba.cuda.cudadrv.driver"]

    class Failing:
        @property
        def is_available(self):
            raise numba.CudaSupportError("Error at driver init: 802")

    monkeypatch.setattr(numba, "driver", Failing())
    assert missing() == "the NVIDIA driver does not start: Error at driver init: 802"
    fake_cuda.forget()
    monkeypatch.setitem(sys.modules, "numba.cuda.cudadrv", None)
    assert missing().startswith("numba.cuda cannot be imported: ")
    fake_cuda.forget()
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert "simulator" in missing()


def test_nothing_is_missing_where_there_is_a_gpu(install):
    install(version="1.0rc1")
    assert missing() is None
    gpu = device_properties()
    assert gpu.target == "sm_90"
    assert gpu.shared_limit == 227 << 10
    assert gpu.driver == (13, 0)
    with pytest.raises(BackendError, match="there is no GPU 1"):
        device_properties(1)


def test_code_is_loaded_once_per_device(install):
    gpu = install(devices=2)
    assert load(SCALED_SUM) is load(SCALED_SUM.encode())
    assert load(SCALED_SUM, 1) is not load(SCALED_SUM, 0)
    assert (load(SCALED_SUM).device, load(SCALED_SUM, 1).device) == (0, 1)
    assert gpu.jitted == [SCALED_SUM, SCALED_SUM]
    for number in (-1, 2):
        with pytest.raises(BackendError, match=f"there is no GPU {number}"):
            load(SCALED_SUM, number)


def test_code_that_the_driver_refuses_is_an_error(gpu):
    with pytest.raises(BackendError, match="refuses the PTX: CUDA_ERROR_INVALID_PTX"):
        load("nonsense")
    with pytest.raises(BackendError) as caught:
        load(".target sm_100a")
    assert caught.value.hint.startswith("the PTX is for sm_100a, the GPU is sm_90")


def test_kernels_and_the_sizes_of_their_parameters_are_read_from_the_text():
    assert entries(SCALED_SUM) == {"scaled_sum": (8, 8, 8, 4, 4)}
    assert entries(REVERSE) == {"reverse": (8, 4)}
    llvm = ".visible .entry k(\n .param .u64 .ptr .global .align 16 k_param_0, // one\n"
    assert entries(llvm + " .param .align 8 .b8 k_param_1[24],\n .param .b16 h\n)") == {
        "k": (8, 24, 2)
    }
    assert entries(".entry none()\n{}\n.entry bare\n{}") == {"none": (), "bare": ()}


def test_a_signature_must_fit_the_kernel(gpu):
    module = load(SCALED_SUM)
    with pytest.raises(BackendError, match="no kernel sum") as caught:
        module.function("sum", ())
    assert caught.value.hint == "its kernels are scaled_sum"
    for types in (("ptr", "ptr", "ptr", "f64", "u32"), SCALED_SUM_TYPES[:-1]):
        with pytest.raises(BackendError, match="parameters of "):
            module.function("scaled_sum", types)
    with pytest.raises(ArgumentError, match="got 'float' as the type"):
        module.function("scaled_sum", ("ptr", "ptr", "ptr", "float", "u32"))


def test_a_launch_gives_the_bytes_that_the_kernel_declares(gpu, vectors):
    x, y, pointers = vectors
    summed().launch((2,), (256,), 0, 7, [*pointers, 2.5, 300])
    (launch,) = gpu.launches
    assert (launch.name, launch.grid, launch.block) == ("scaled_sum", (2, 1, 1), (256, 1, 1))
    assert (launch.shared, launch.stream, launch.device) == (0, 7, 0)
    expected = [p.to_bytes(8, "little") for p in pointers]
    assert launch.arguments == (*expected, struct.pack("<f", 2.5), struct.pack("<I", 300))
    np.testing.assert_array_equal(
        gpu.array(pointers[2], (300,), np.float32), x + np.float32(2.5) * y
    )


@pytest.mark.parametrize(
    ("kind", "value", "raw"),
    [
        ("f32", 2.5, struct.pack("<f", 2.5)),
        ("f32", 3, struct.pack("<f", 3.0)),
        ("f32", np.float64(0.1), struct.pack("<f", 0.1)),
        ("f64", 0.1, struct.pack("<d", 0.1)),
        ("f16", 0.1, struct.pack("<e", 0.1)),
        ("bf16", 0.1, struct.pack("<H", bfloat16_bits(0.1))),
        ("i32", -5, struct.pack("<i", -5)),
        ("i32", np.int64(7), struct.pack("<i", 7)),
        ("i64", ctypes.c_int32(-9), struct.pack("<q", -9)),
        ("i8", -128, b"\x80"),
        ("u64", 2**64 - 1, b"\xff" * 8),
        ("bool", True, b"\1"),
        ("bool", np.bool_(False), b"\0"),
        ("ptr", None, bytes(8)),
        ("ptr", 2**63 + 1, struct.pack("<Q", 2**63 + 1)),
        ("ptr", ctypes.c_void_p(64), struct.pack("<Q", 64)),
    ],
)
def test_a_value_is_packed_by_the_type_of_the_parameter(kind, value, raw):
    bits = slot(kind, value).to_bytes(8, "little", signed=True)
    assert bits[: len(raw)] == raw
    assert len(raw) == TYPES[kind].itemsize


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("i32", 2**31), ("u32", -1), ("i32", 1.0), ("i64", True), ("bool", 1), ("f32", "x")),
        *(("ptr", -1), ("ptr", 1.5), ("u8", 256), ("f32", None), ("f64", 10**400), ("f32", "1.5")),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind, value):
    with pytest.raises(ArgumentError, match=f"for a parameter of type {kind}"):
        slot(kind, value)


def test_a_prepared_launch_writes_only_what_changes(gpu, vectors):
    x, y, pointers = vectors
    prepared = summed().prepare((2,), (256,), 0, [*pointers, 1.0, 300])
    prepared.launch()
    other = gpu.put(np.zeros(300, np.float32))
    prepared.launch(9, {2: other, 3: 4.0})
    prepared.launch(9, {4: 10})
    first, second, third = (launch.arguments for launch in gpu.launches)
    assert [launch.stream for launch in gpu.launches] == [LEGACY, 9, 9]
    assert second == (*first[:2], other.to_bytes(8, "little"), struct.pack("<f", 4.0), first[4])
    assert third == (*second[:4], struct.pack("<I", 10))
    np.testing.assert_array_equal(gpu.array(other, (300,), np.float32), x + np.float32(4) * y)
    with pytest.raises(ArgumentError, match="type u32"):
        prepared.launch(changes={3: 0.0, 4: 1.5})
    for number in (-1, 5):
        with pytest.raises(ArgumentError, match=f"got a value number {number}"):
            prepared.launch(changes={number: 1})
    prepared.launch()
    assert gpu.launches[-1].arguments == third


def test_a_prepared_launch_costs_the_host_microseconds_and_one_start(gpu, vectors, monkeypatch):
    prepared = summed().prepare((2,), (256,), 0, [*vectors[2], 1.0, 300])
    prepared.launch()
    gpu.calls.clear()
    prepared.launch(5, {0: vectors[2][1]})
    assert gpu.calls == ["cuCtxGetCurrent", "cuLaunchKernel"]
    numba = sys.modules["numba.cuda.cudadrv.driver"]
    monkeypatch.setattr(numba.driver, "cuLaunchKernel", lambda *_: None)
    monkeypatch.setattr(numba.driver, "cuCtxGetCurrent", lambda: fake_cuda.CONTEXT)
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for pointer in range(4096, 4096 + 100):
            prepared.launch(5, {0: pointer, 2: pointer})
        best = min(best, (time.perf_counter() - begin) / 100)
    assert best < 10e-6


def test_limits_of_the_device_are_told_before_the_launch(gpu, vectors):
    values = [*vectors[2], 1.0, 300]
    gpu.costs["scaled_sum"] = {"regs": 128, "maxthreads": 512, "shared": 4096}
    function = summed()
    assert (function.registers, function.local_bytes, function.shared_bytes) == (128, 0, 4096)
    for grid, block, shared, says in [
        ((1, 65536), (32,), 0, "grid"),
        ((1,), (16, 1, 65), 0, "block"),
        ((1,), (-1,), 0, "block"),
        ((1,), (513,), 0, "a block of 513 threads, and it can have 512 with 128 registers"),
        ((1,), (0,), 0, "a block of 0 threads"),
        ((1,), (32,), 224 << 10, "233472 bytes of shared memory"),
    ]:
        with pytest.raises(BackendError, match=says):
            function.launch(grid, block, shared, LEGACY, values)
    for grid in ((1, 1, 1, 1), 1, (1.5,)):
        with pytest.raises(ArgumentError, match="for a grid or block, expected 1 to 3"):
            function.launch(grid, (32,), 0, LEGACY, values)
    with pytest.raises(ArgumentError, match="got 4 values, expected 5"):
        function.prepare((1,), (32,), 0, values[:4])
    function.launch((0, 3), (32,), 0, LEGACY, values)
    assert not gpu.launches


def test_more_than_48_KiB_of_shared_memory_is_asked_for_and_stays_allowed(gpu):
    function = load(REVERSE).function("reverse", REVERSE_TYPES)
    large = function.prepare((1,), (32,), 200 << 10, [gpu.put(np.zeros(32, np.int32)), 0])
    function.launch((1,), (32,), 100 << 10, LEGACY, [0, 0])
    other = load(REVERSE).function("reverse", ("i64", "i32"))
    assert other is not function
    assert load(REVERSE).function("reverse", REVERSE_TYPES) is function
    other.launch((1,), (32,), 60 << 10, LEGACY, [0, 0])
    large.launch()
    assert [launch.shared for launch in gpu.launches] == [100 << 10, 60 << 10, 200 << 10]
    assert gpu.calls.count("cuKernelSetAttribute") == 1


def test_what_the_driver_refuses_names_the_kernel(gpu, vectors, monkeypatch):
    numba = sys.modules["numba.cuda.cudadrv.driver"]
    prepared = summed().prepare((2,), (256,), 0, [*vectors[2], 1.0, 300])

    def refuse(*_: object) -> None:
        raise failed("cuLaunchKernel", "ILLEGAL_ADDRESS")

    monkeypatch.setattr(numba.driver, "cuLaunchKernel", refuse)
    with pytest.raises(BackendError, match=r"kernel scaled_sum: .*ILLEGAL_ADDRESS"):
        prepared.launch()


def test_a_launch_runs_on_its_device_in_any_thread(install):
    gpu = install(devices=2)
    function = load(SCALED_SUM, 1).function("scaled_sum", SCALED_SUM_TYPES)
    prepared = function.prepare((1,), (32,), 0, [0, 0, 0, 1.0, 0])
    threads = [threading.Thread(target=prepared.launch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.current_device() == 0
    prepared.launch()
    assert [launch.device for launch in gpu.launches] == [1, 1, 1, 1]
    assert driver.current_device() == 0


def test_a_device_that_cannot_be_used_is_told(gpu, monkeypatch):
    class Busy:
        def __getitem__(self, number):
            raise fake_cuda.CUDAError("CUDA_ERROR_DEVICE_UNAVAILABLE")

    driver._contexts.clear()
    monkeypatch.setattr(sys.modules["numba.cuda"], "gpus", Busy())
    with pytest.raises(BackendError, match="loading a module: CUDA_ERROR_DEVICE_UNAVAILABLE"):
        load(SCALED_SUM)


def test_blocks_at_once_are_asked_of_the_driver(gpu):
    function = load(REVERSE).function("reverse", REVERSE_TYPES)
    assert function.occupancy(256) == 8
    assert function.occupancy(256, 100 << 10) == 2


def test_time_is_that_of_the_device_and_omits_the_flush(gpu, vectors):
    prepared = summed().prepare((2,), (256,), 0, [*vectors[2], 1.0, 300])
    for flush in (False, True):
        gpu.log.clear()
        gpu.launches.clear()
        took = timing.time_on_device(prepared.launch, stream=6, repeat=5, warm_ups=2, flush=flush)
        assert took.flushed is flush
        assert took.results == pytest.approx([0.25e-3] * 5)
        assert (took.median, took.min) == pytest.approx((0.25e-3, 0.25e-3))
        assert len(gpu.launches) == 7
        cleared = [entry for entry in gpu.log if entry[0] == "clear"]
        assert cleared == [("clear", 100 << 20, 6)] * (5 * flush)
    assert timing.time_on_device(prepared.launch, number=4, repeat=1).min == pytest.approx(0.25e-3)
    with pytest.raises(ArgumentError, match="counts are positive"):
        timing.time_on_device(prepared.launch, repeat=0)


def test_a_graph_starts_what_was_recorded(gpu, vectors):
    _, _, pointers = vectors
    prepared = summed().prepare((2,), (256,), 0, [*pointers, 1.0, 300])

    def twice(stream):
        prepared.launch(stream)
        prepared.launch(stream, {3: 2.0})

    graph = timing.capture(twice)
    assert not gpu.launches
    graph.launch(8)
    graph.launch()
    assert [launch.stream for launch in gpu.launches] == [8, 8, LEGACY, LEGACY]
    assert gpu.launches[1].arguments[3] == struct.pack("<f", 2.0)
    before = len(gpu.objects)
    del graph
    assert len(gpu.objects) == before - 1
    assert "stream" not in gpu.objects.values()


def test_work_that_waits_cannot_be_recorded(gpu):
    numba = sys.modules["numba.cuda.cudadrv.driver"]
    with pytest.raises(BackendError, match=r"recording a graph: .*CAPTURE_UNSUPPORTED"):
        timing.capture(numba.driver.cuStreamSynchronize)
    assert not gpu.graphs


def test_memory_that_is_not_there_is_an_error_of_ours(gpu):
    from spcomp.runtime.cuda import memory

    gpu.free = 1000
    with pytest.raises(OutOfMemoryError, match=r"shape .1001.*: the GPU is out of memory"):
        memory.allocate((1001,), "int8", 0)


@pytest.mark.ptxas
@pytest.mark.parametrize("text", [SCALED_SUM, REVERSE], ids=["scaled_sum", "reverse"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_kernels_of_these_tests_are_valid(text, arch, tmp_path):
    (tmp_path / "kernel.ptx").write_text(text)
    command = [shutil.which("ptxas"), "-arch", arch, tmp_path / "kernel.ptx", "-o", tmp_path / "o"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
