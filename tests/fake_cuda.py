"""A GPU that is not there: what spcomp uses of numba.cuda and cuda.core, as host code.

Memory is numpy's behind made-up pointers; a launch reads its arguments as the driver does: through
an array of pointers, as many bytes each as the kernel's PTX declares. Everything is logged. A
kernel runs as the function that a test gives for its name, or for the PTX it is in.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spcomp.runtime.cuda import driver
from tests.fake_core import (
    CudaAPIError,
    CudaDriverError,
    CUDAError,
    CudaSupportError,
    Event,
    StridedMemoryView,
    failed,
    with_status,
)

VERSION = "0.30.4"
BASE, SPAN = 0x7F00_0000_0000, 1 << 40  # the first pointer of device 0, and the room of a device
CONTEXT = 0xC0DE00  # the handle of the context of device 0
ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 132, "L2_CACHE_SIZE": 50 << 20, "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10, "MAX_THREADS_PER_BLOCK": 1024, "WARP_SIZE": 32,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10, "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
}  # fmt: skip


class Handle(int):
    """A handle of the driver: an object that is a number."""


@dataclass(frozen=True)
class Launch:
    """A kernel that was started, with the bytes of each argument."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    arguments: tuple[bytes, ...]
    device: int
    code: Any = field(default=None, compare=False, repr=False)  # that runs it


@dataclass
class Kernel:
    """A kernel of a loaded module: the bytes of its parameters, and what it costs."""

    name: str
    sizes: tuple[int, ...]
    handle: int
    attrs: Any
    device: Any
    dynamic_limit: dict[int, int] = field(default_factory=dict)
    code: Any = None


class DeviceNDArray:
    """An array of numba.cuda."""

    __module__ = "numba.cuda.cudadrv.devicearray"
    __cuda_ndarray__, stream = True, 0

    def __init__(self, gpu: FakeGPU, pointer: int, shape: tuple[int, ...], dtype: Any) -> None:
        face = {"shape": shape, "typestr": np.dtype(dtype).str, "data": (pointer, False)}
        self.__cuda_array_interface__ = {**face, "strides": None, "stream": None, "version": 3}
        self.shape, self.dtype, self.gpu = shape, np.dtype(dtype), gpu

    def copy_to_host(self):
        return self.gpu.array(self.pointer, self.shape, self.dtype).copy()

    def copy_to_device(self, array):
        self.gpu.array(self.pointer, self.shape, self.dtype)[:] = array

    @property
    def pointer(self):
        return self.__cuda_array_interface__["data"][0]

    @property
    def device_ctypes_pointer(self):
        return ctypes.c_void_p(self.pointer)

    @property
    def strides(self):
        return np.empty(self.shape, self.dtype).strides

    def __getitem__(self, at):
        if isinstance(at, slice):
            return DeviceNDArray(self.gpu, self.pointer, (at.stop,), self.dtype)
        return self.copy_to_host()[at]


class FakeGPU:
    """The state of all devices: *kernels* run on launches of their name, if they have one."""

    def __init__(self, devices: int = 1, *, started: bool = True) -> None:
        self.devices, self.has_driver = devices, started
        self.memory: dict[int, np.ndarray] = {}
        self.next = [BASE + SPAN * device for device in range(devices)]
        self.log: list[tuple[Any, ...]] = []
        self.launches: list[Launch] = []
        self.calls: list[str] = []
        self.kernels: dict[str, Any] = {}
        self.costs: dict[str, Any] = {}
        self.objects: dict[int, Any] = {}
        self.handles = count(0x1000, 8)
        self.clock, self.kernel_ms, self.byte_ms = 0.0, 0.25, 1e-8
        self.graphs: dict[int, list[Launch]] = {}  # of streams that are recorded, by handle
        self.threads = threading.local()
        self.free = 1 << 36
        self.contexts = [Context(self, number) for number in range(devices)]
        self.jitted: list[str] = []
        self.programs: dict[str, Any] = {}  # what runs the kernels of PTX, by its text

    def handle(self, thing: Any) -> Handle:
        number = Handle(next(self.handles))
        self.objects[number] = thing
        return number

    @property
    def stack(self) -> list[int]:
        """The devices whose contexts are current in this thread, innermost last."""
        if not hasattr(self.threads, "stack"):
            self.threads.stack = []
        return self.threads.stack

    def allocate(self, size: int, device: int) -> int:
        if not size:
            return 0
        if size > self.free:
            raise failed("cuMemAlloc", "OUT_OF_MEMORY")
        pointer = self.next[device]
        self.next[device] += (size + 511) // 512 * 512
        self.memory[pointer] = np.full(size, 0xAB, np.uint8)
        return pointer

    def at(self, pointer: int, size: int) -> np.ndarray:
        """The bytes at *pointer*; raises as the driver does where there are none."""
        if not size:
            return np.empty(0, np.uint8)
        for base, data in self.memory.items():
            if base <= pointer and pointer + size <= base + len(data):
                return data[pointer - base : pointer - base + size]
        raise failed("memory", "INVALID_VALUE")

    def array(self, pointer: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The memory at *pointer* as an array, for kernels."""
        return self.at(pointer, prod(shape) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)

    def put(self, array: np.ndarray, device: int = 0) -> int:
        """Return the pointer of new memory with the content of *array*."""
        pointer = self.allocate(array.nbytes, device)
        self.at(pointer, array.nbytes)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return pointer

    def clear(self, pointer: int, value: int, count: int, stream: int, dtype: Any) -> None:
        """Write *value* of *dtype* *count* times; the clock goes on."""
        size = count * np.dtype(dtype).itemsize
        self.log.append(("clear", size, int(stream)))
        self.at(pointer, size).view(dtype)[:] = value
        self.clock += size * self.byte_ms

    def start(self, launch: Launch) -> None:
        """Run *launch* now; the clock goes on."""
        self.launches.append(launch)
        self.clock += self.kernel_ms
        if (kernel := self.kernels.get(launch.name)) is not None:
            kernel(self, launch)
        elif launch.code is not None:
            launch.code(self, launch)


class Context:
    """The primary context of a device, as numba.cuda shows it."""

    def __init__(self, gpu: FakeGPU, number: int) -> None:
        self.gpu, self.handle, self.extras = gpu, Handle(CONTEXT + number), {}
        self.device = SimpleNamespace(id=number)

    def create_module_ptx(self, ptx: str) -> Any:
        if ".version" not in ptx:
            raise CUDAError("CUDA_ERROR_INVALID_PTX: a PTX JIT compilation failed")
        self.gpu.jitted.append(ptx)
        return Module(self.gpu, ptx)

    def create_event(self, timing: bool = True) -> Event:
        return Event(self.gpu, timing=timing)


class Module:
    """PTX that is loaded."""

    def __init__(self, gpu: FakeGPU, ptx: str) -> None:
        self.gpu, self.ptx, self.device = gpu, ptx, SimpleNamespace(id=gpu.stack[-1])
        self.get_function = cache(self.new_function)  # a kernel has one handle

    def new_function(self, name: str) -> Any:
        text = re.search(rf"\.entry {name}\s*\((.*?)\)", self.ptx, re.DOTALL)
        assert text
        sizes = tuple(int(bits) // 8 for bits in re.findall(r"\.param \.\w(\d+)", text[1]))
        plain = {"regs": 24, "local": 0, "shared": 0, "maxthreads": 1024}
        attrs = SimpleNamespace(**{**plain, **self.gpu.costs.get(name, {})})
        kernel = Kernel(name, sizes, 0, attrs, self.device, code=self.gpu.programs.get(self.ptx))
        kernel.handle = self.gpu.handle(kernel)
        return kernel


class Driver:
    """numba's driver object: the functions of the driver, which raise what fails."""

    def __init__(self, gpu: FakeGPU) -> None:
        self.gpu = gpu
        self.initialization_error = None if gpu.has_driver else "\nCUDA driver library\nnot found."

    @property
    def is_available(self) -> bool:
        return self.gpu.has_driver

    def get_device_count(self) -> int:
        self._call("cuDeviceGetCount")
        return self.gpu.devices

    def get_version(self) -> tuple[int, int]:
        return 13, 0

    def get_device(self, number: int) -> Any:
        return SimpleNamespace(name="Fake H100", compute_capability=(9, 0), **ATTRIBUTES)

    def _call(self, name: str) -> None:
        assert self.gpu.has_driver, f"{name} without a driver: the real one waits forever"
        self.gpu.calls.append(name)

    def __getattr__(self, name: str) -> Any:
        try:
            function = getattr(Functions, name)
        except AttributeError:
            raise AttributeError(f"the driver has no {name}") from None

        def call(*args: Any) -> Any:
            self._call(name)
            return function(self.gpu, *args)

        setattr(self, name, call)
        return call


class Functions:
    """The functions of the driver that are used, on the state of a FakeGPU."""

    def cuDeviceTotalMem(gpu, device):
        return 80 << 30

    def cuCtxGetCurrent(gpu):
        return Handle(CONTEXT + gpu.stack[-1] if gpu.stack else 0)

    def cuPointerGetAttribute(gpu, attribute, pointer):
        gpu.at(pointer, 1)
        return (pointer - BASE) // SPAN

    def cuKernelSetAttribute(gpu, attribute, value, kernel, device):
        assert attribute == "MAX_DYNAMIC_SHARED_SIZE_BYTES"
        gpu.objects[kernel].dynamic_limit[device] = value

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(gpu, kernel, threads, shared):
        return min(2048 // threads, (228 << 10) // max(1, shared + 1024), 32)

    def cuLaunchKernel(gpu, kernel, *rest):
        *extents, shared, stream, pointers, extra = rest
        kernel, device = gpu.objects[kernel], gpu.stack[-1]
        assert extra == 0
        allowed = kernel.dynamic_limit.get(device, (48 << 10) - kernel.attrs.shared)
        if min(extents) < 1 or prod(extents[3:]) > kernel.attrs.maxthreads or shared > allowed:
            raise failed("cuLaunchKernel", "INVALID_VALUE")
        addresses = (ctypes.c_void_p * len(kernel.sizes)).from_address(pointers)
        arguments = tuple(map(ctypes.string_at, addresses, kernel.sizes))
        grid, block = tuple(extents[:3]), tuple(extents[3:])
        where = int(stream), arguments, device, kernel.code
        launch = Launch(kernel.name, grid, block, shared, *where)
        if int(stream) in gpu.graphs:
            gpu.graphs[int(stream)].append(launch)
        else:
            gpu.start(launch)

    def cuMemcpyHtoDAsync(gpu, pointer, address, size, stream):
        gpu.log.append(("upload", size, int(stream)))
        gpu.at(pointer, size)[:] = np.frombuffer(ctypes.string_at(address, size), np.uint8)

    def cuMemcpyDtoHAsync(gpu, address, pointer, size, stream):
        if int(stream) in gpu.graphs:
            gpu.graphs[int(stream)].append(("download", address, pointer, size))
            return
        gpu.log.append(("download", size, int(stream)))
        ctypes.memmove(address, gpu.at(pointer, size).tobytes(), size)

    def cuMemcpyDtoDAsync(gpu, pointer, source, size, stream):
        gpu.log.append(("copy", size, int(stream)))
        gpu.at(pointer, size)[:] = gpu.at(source, size)

    def cuMemsetD8Async(gpu, pointer, value, count, stream):
        gpu.clear(pointer, value, count, stream, np.uint8)

    def cuMemsetD16Async(gpu, pointer, value, count, stream):
        gpu.clear(pointer, value, count, stream, np.uint16)

    def cuMemsetD32Async(gpu, pointer, value, count, stream):
        gpu.clear(pointer, value, count, stream, np.uint32)

    def cuEventRecord(gpu, event, stream):
        gpu.log.append(("record", int(event), int(stream)))
        gpu.objects[event].time = gpu.clock

    def cuStreamWaitEvent(gpu, stream, event, flags):
        gpu.log.append(("wait", int(event), int(stream)))

    def cuCtxSynchronize(gpu):
        gpu.log.append(("synchronize", 0))

    def cuStreamSynchronize(gpu, stream):
        if int(stream) in gpu.graphs:
            raise failed("cuStreamSynchronize", "STREAM_CAPTURE_UNSUPPORTED")
        gpu.log.append(("synchronize", int(stream)))

    def cuStreamCreate(gpu, flags):
        assert flags == 1
        return gpu.handle("stream")

    def cuStreamDestroy(gpu, stream):
        del gpu.objects[stream]

    def cuStreamBeginCapture(gpu, stream, mode):
        assert mode == "THREAD_LOCAL"
        gpu.graphs[int(stream)] = []

    def cuStreamIsCapturing(gpu, stream):
        return int(int(stream) in gpu.graphs)

    def cuStreamEndCapture(gpu, stream):
        return gpu.handle(tuple(gpu.graphs.pop(int(stream))))

    def cuGraphInstantiate(gpu, graph, flags):
        return gpu.handle(gpu.objects[graph])

    def cuGraphLaunch(gpu, executable, stream):
        for work in gpu.objects[executable]:
            if isinstance(work, Launch):
                gpu.start(Launch(**{**work.__dict__, "stream": int(stream)}))
            else:
                Functions.cuMemcpyDtoHAsync(gpu, *work[1:], stream)

    def cuGraphDestroy(gpu, graph):
        del gpu.objects[graph]

    def cuGraphExecDestroy(gpu, executable):
        del gpu.objects[executable]


def binding(driver: Driver) -> Any:
    """The names of cuda.bindings.driver that are used."""
    shared = "MAX_DYNAMIC_SHARED_SIZE_BYTES"
    ordinal = "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL"
    return SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        **{name: with_status(driver, name) for name in vars(Functions) if name[:2] == "cu"},
        CUfunction=Handle,
        CUfunction_attribute=SimpleNamespace(**{f"CU_FUNC_ATTRIBUTE_{shared}": shared}),
        CUpointer_attribute=SimpleNamespace(**{ordinal: ordinal}),
        CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=SimpleNamespace(value=1)),
        CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL="THREAD_LOCAL"),
    )


def front_door(gpu: FakeGPU) -> dict[str, Any]:
    """The names of numba.cuda that are used."""

    @contextmanager
    def using(number: int) -> Any:
        gpu.stack.append(number)
        yield
        assert gpu.stack.pop() == number

    def current_context() -> Context:
        if not gpu.stack:
            gpu.stack.append(0)
        return gpu.contexts[gpu.stack[-1]]

    def device_array(shape: int | tuple[int, ...], dtype: Any) -> DeviceNDArray:
        extents = (shape,) if isinstance(shape, int) else shape
        size, device = prod(extents) * np.dtype(dtype).itemsize, current_context().device.id
        return DeviceNDArray(gpu, gpu.allocate(size, device), extents, dtype)

    def to_device(array: np.ndarray) -> DeviceNDArray:
        device = current_context().device.id
        return DeviceNDArray(gpu, gpu.put(array, device), array.shape, array.dtype)

    def pinned_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.full(shape, 0xAB, np.uint8).astype(dtype)

    gpus = dict.fromkeys(range(gpu.devices), using)

    class Gpus:
        def __getitem__(self, number: int) -> Any:
            return gpus[number](number)

    arrays = {
        "device_array": device_array,
        "pinned_array": pinned_array,
        "to_device": to_device,
        "as_cuda_array": lambda a: a,
    }
    return {"gpus": Gpus(), "current_context": current_context, **arrays}


@contextmanager
def installed(*args: Any, **named: Any) -> Iterator[FakeGPU]:
    """Yield what ``install`` returns; after the ``with``, spcomp looks for a GPU again."""
    with pytest.MonkeyPatch.context() as patch:
        forget()
        yield install(patch, *args, **named)
    forget()


def forget() -> None:
    """Let spcomp look for a GPU again."""
    driver.missing.cache_clear()
    driver.device_properties.cache_clear()


def install(
    patch: Any, devices: int = 1, *, started: bool = True, version: str | None = VERSION
) -> FakeGPU:
    """Put a FakeGPU where spcomp looks for numba.cuda, with *patch* of pytest; return it."""
    gpu = FakeGPU(devices, started=started)

    driver = Driver(gpu)
    numba = {
        "driver": driver,
        "binding": binding(driver),
        "CudaAPIError": CudaAPIError,
        "CudaDriverError": CudaDriverError,
        "CudaSupportError": CudaSupportError,
    }
    names = {
        "numba.cuda": front_door(gpu),
        "numba.cuda.cudadrv": {},
        "numba.cuda.cudadrv.driver": numba,
        "cuda": {},
        "cuda.core": {},
        "cuda.core.utils": {"StridedMemoryView": StridedMemoryView},
        "cuda.core._utils": {},
        "cuda.core._utils.cuda_utils": {"CUDAError": CUDAError},
    }
    for name, members in names.items():
        module = ModuleType(name)
        vars(module).update(members)
        patch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent in names:
            setattr(sys.modules[parent], child, module)
    installed = importlib.metadata.version

    def version_of(name: str) -> str:
        if name != "numba-cuda":
            return installed(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    patch.setattr(importlib.metadata, "version", version_of)
    return gpu
