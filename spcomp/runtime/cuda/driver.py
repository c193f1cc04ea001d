"""Under every call on a GPU: loads and launches through numba.cuda, which is imported late.

numba.cuda holds the primary context of a device, as PyTorch and CuPy do, so their pointers and
streams are used as they are. A stream is its handle, a number: 1 is the legacy default stream,
on which the other libraries work unless told otherwise (0 is taken as 1).

A launch goes to ``cuLaunchKernel`` with one 8-byte slot per parameter, written by the types of the
kernel's signature. numba.cuda's own launch takes the size from the Python type of the value, where
a float has 8 bytes, and makes a new array of pointers for every launch.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import operator
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any

from spcomp.errors import ArgumentError, BackendError, OutOfMemoryError
from spcomp.runtime.cuda.ptx import entries
from spcomp.runtime.cuda.slots import TYPES, slot

LEAST = "0.30"  # the first version of numba-cuda on top of cuda.core that was read and tried
LEGACY = 1  # the handle of the legacy default stream
INSTALL = "pip install 'spcomp[cuda]'"
EMULATOR = 'target="cuda:...,emulate" or SPCOMP_CUDA_EMULATE=1 runs it on the CPU, for tests'
STATIC_SHARED = 48 << 10  # bytes of shared memory of a block that need no permission
_loading = threading.Lock()
_contexts: dict[int, int] = {}  # the handle of the primary context of each device, once it is known


@cache
def missing() -> str | None:
    """Return why CUDA cannot be used in this process, or None if it can.

    A driver that is not there is found out before anything calls it: the second call of cuda.core
    after one that failed would wait forever.
    """
    try:
        version = importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        return f"numba-cuda is not installed ({INSTALL})"
    if _numbers(version) < _numbers(LEAST):
        return (
            f"numba-cuda is {version}, and {LEAST} is the oldest that is known to work ({INSTALL})"
        )
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return "numba.cuda is its own simulator, as NUMBA_ENABLE_CUDASIM asks"
    try:
        from numba.cuda.cudadrv import driver as numba
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"numba.cuda cannot be imported: {error}"
    try:  # not cuda.is_available(): that asks for NVVM, too, which nothing here needs
        available = numba.driver.is_available
    except numba.CudaSupportError as error:
        return f"the NVIDIA driver does not start: {error}"
    if not available:
        said = " ".join(str(numba.driver.initialization_error).split())
        return f"there is no NVIDIA driver: {said}"
    return None if numba.driver.get_device_count() else "there is no NVIDIA GPU"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def require() -> Any:
    """Return numba's driver module; raises BackendError, which says what is missing."""
    if (reason := missing()) is not None:
        raise BackendError(f"CUDA cannot be used here: {reason}", hint=EMULATOR)
    return sys.modules["numba.cuda.cudadrv.driver"]


@lru_cache(maxsize=16)
def driver_function(numba: Any, name: str) -> Callable[..., Any]:
    """Return the function *name* of the driver as numba has it, without its log of every call."""
    function, fine = getattr(numba.binding, name), numba.binding.CUresult.CUDA_SUCCESS

    def call(*args: Any) -> Any:
        returned = function(*args)
        if returned[0] != fine:
            status = returned[0]
            raise numba.CudaAPIError(status, f"Call to {name} results in {status.name}")
        return returned[-1]

    return call


@contextmanager
def refusals(what: str) -> Iterator[Any]:
    """Yield numba's driver module; an error of the driver in the ``with`` is a BackendError."""
    numba = require()
    try:
        yield numba
    except errors(numba) as error:
        raise refusal(what, error) from None


def errors(numba: Any) -> tuple[type[Exception], ...]:
    """Return what numba.cuda raises for a driver that refuses, and what cuda.core does in it."""
    core = getattr(sys.modules.get("cuda.core._utils.cuda_utils"), "CUDAError", RuntimeError)
    return numba.CudaDriverError, numba.CudaSupportError, core


def refusal(what: str, error: Exception) -> BackendError | OutOfMemoryError:
    """Return the error of spcomp for *error* of the driver, at *what*."""
    said = str(getattr(error, "msg", error))
    if "OUT_OF_MEMORY" in said:
        return OutOfMemoryError(f"{what}: the GPU is out of memory")
    return BackendError(f"{what}: {said}")


def current_device() -> int:
    """Return the number of the device that is current in this thread."""
    with refusals("the GPU"):
        from numba.cuda import current_context

        return int(current_context().device.id)


@contextmanager
def on(device: int, what: str) -> Iterator[Any]:
    """Yield numba's driver module, with *device* current in this thread.

    Errors of the driver in the ``with`` become those of spcomp, and say *what* failed.
    """
    with refusals(what) as numba:
        if int(numba.driver.cuCtxGetCurrent()) == _contexts.get(device, -1):
            yield numba
            return
        from numba.cuda import gpus

        with gpus[device]:
            _contexts[device] = int(numba.driver.cuCtxGetCurrent())
            yield numba


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """A GPU: what decisions and limits depend on. Sizes are bytes.

    *shared_bytes*: of a block without permission; *shared_limit*: with it; *shared_total*: of a
    multiprocessor.
    """

    number: int
    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    shared_bytes: int
    shared_limit: int
    shared_total: int
    registers: int
    max_threads: int
    max_resident_threads: int
    warp: int
    driver: tuple[int, int]

    @property
    def target(self) -> str:
        """The architecture, ``sm_90``."""
        return "sm_{}{}".format(*self.compute_capability)


def device_count() -> int:
    """Return how many GPUs there are; raises BackendError if CUDA cannot be used."""
    return int(require().driver.get_device_count())


@cache
def device_properties(device: int | None = None) -> DeviceProperties:
    """Return what *device* is, by default the first; raises BackendError."""
    number = device or 0
    with refusals(f"device {number}") as numba:
        count = device_count()
        if not 0 <= number < count:
            raise BackendError(f"there is no GPU {number}", hint=f"there are {count}, from 0")
        gpu, driver = numba.driver.get_device(number), numba.driver
        major, minor = gpu.compute_capability
        return DeviceProperties(
            number,
            str(gpu.name),
            (int(major), int(minor)),
            multiprocessors=int(gpu.MULTIPROCESSOR_COUNT),
            l2_bytes=int(gpu.L2_CACHE_SIZE),
            memory_bytes=int(driver.cuDeviceTotalMem(number)),
            shared_bytes=int(gpu.MAX_SHARED_MEMORY_PER_BLOCK),
            shared_limit=int(gpu.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            shared_total=int(gpu.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
            registers=int(gpu.MAX_REGISTERS_PER_MULTIPROCESSOR),
            max_threads=int(gpu.MAX_THREADS_PER_BLOCK),
            max_resident_threads=int(gpu.MAX_THREADS_PER_MULTIPROCESSOR),
            warp=int(gpu.WARP_SIZE),
            driver=driver.get_version(),
        )


def load(ptx: str | bytes, device: int | None = None) -> LoadedModule:
    """Return the module of *ptx* on *device*, by default the current one; loaded once per context.

    Raises BackendError if CUDA cannot be used, or the driver refuses the code.
    """
    number = current_device() if device is None else device_properties(device).number
    text = ptx if isinstance(ptx, str) else ptx.decode()
    key = f"spcomp {hashlib.sha256(text.encode()).hexdigest()}"
    with on(number, "loading a module") as numba, _loading:
        from numba.cuda import current_context

        context = current_context()
        found: LoadedModule | None = context.extras.get(key)
        if found is None:
            with _refused(text, number):
                module = context.create_module_ptx(text)
            found = LoadedModule(module, numba, context, text)
            context.extras[key] = found
        return found


@contextmanager
def _refused(text: str, device: int) -> Iterator[None]:
    """Say what the PTX *text* is for, where the driver refuses it: at once, or when it is used."""
    try:
        yield
    except errors(require()) as error:
        gpu, wanted = device_properties(device), re.search(r"\.target\s+(\w+)", text)
        runs = f"the PTX is for {wanted[1]}, " if wanted else ""
        raise BackendError(
            f"the driver refuses the PTX: {error}",
            hint=f"{runs}the GPU is {gpu.target}; ptxas shows what is wrong in it",
        ) from error


class LoadedModule:
    """Code that is loaded on a device."""

    def __init__(self, module: Any, numba: Any, context: Any, text: str) -> None:
        self.device = int(context.device.id)
        self._module, self._numba, self._context = module, numba, int(context.handle)
        self._text, self._entries, self._allowed = text, entries(text), dict[str, int]()
        self._functions: dict[tuple[str, tuple[str, ...]], DeviceFunction] = {}

    def function(self, name: str, types: Sequence[str]) -> DeviceFunction:
        """Return the kernel *name*, whose parameters are of *types*: keys of ``TYPES``.

        Raises BackendError if there is none with parameters of these sizes.
        """
        key = name, tuple(types)
        if (known := self._functions.get(key)) is not None:
            return known
        if unknown := [kind for kind in types if kind not in TYPES]:
            why = f"kernel {name}: got {unknown[0]!r} as the type of a parameter"
            raise ArgumentError(why, hint=f"types are {', '.join(TYPES)}")
        sizes = tuple(TYPES[kind].itemsize for kind in types)
        if name not in self._entries:
            there = ", ".join(self._entries) or "none"
            raise BackendError(f"the module has no kernel {name}", hint=f"its kernels are {there}")
        if sizes != self._entries[name]:
            raise BackendError(
                f"kernel {name} takes parameters of {self._entries[name]} bytes,"
                f" and its signature is {', '.join(types) or 'empty'}"
            )
        with on(self.device, f"kernel {name}"):
            with _refused(self._text, self.device):  # where some versions load it
                found = self._module.get_function(name)
            function = DeviceFunction(found, key[1], self._numba, self._allowed, self._context)
        return self._functions.setdefault(key, function)


class DeviceFunction:
    """A kernel of a module: *registers* and *local_bytes* of a thread, *shared_bytes* of a block.

    *local_bytes* other than 0 means that registers are spilled. *max_threads* is what its registers
    allow to a block.
    """

    def __init__(
        self,
        function: Any,
        types: tuple[str, ...],
        numba: Any,
        allowed: dict[str, int],
        context: int,
    ) -> None:
        attrs = function.attrs
        self.name, self.types, self.device = str(function.name), types, int(function.device.id)
        self.registers, self.local_bytes = int(attrs.regs), int(attrs.local)
        self.shared_bytes, self.max_threads = int(attrs.shared), int(attrs.maxthreads)
        self._function, self.numba, self.context = function, numba, context  # keeps it loaded
        self.handle = numba.binding.CUfunction(int(function.handle))
        self._checked: tuple[int, ...] = ()  # the last launch that is within all limits
        self._allowed = allowed  # bytes of dynamic shared memory that were asked for, by kernel

    def prepare(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        values: Sequence[Any],
    ) -> Prepared:
        """Return the launch with *values*, one for each parameter; see ``slot``.

        *grid* and *block* are up to three extents, x first; *shared_bytes* is dynamic shared
        memory. Raises BackendError beyond a limit of the device, ArgumentError for a wrong value.
        """
        whole = *extents(grid), *extents(block)
        if (checked := (*whole, shared_bytes)) != self._checked:
            self._check(grid, block, shared_bytes)
            self._checked = checked
        if shared_bytes + self.shared_bytes > STATIC_SHARED:
            self._allow(shared_bytes)
        return Prepared(self, whole, shared_bytes, values)

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        stream: int,
        values: Sequence[Any],
    ) -> None:
        """Launch it once on *stream*, without waiting; arguments and errors as of ``prepare``."""
        self.prepare(grid, block, shared_bytes, values).launch(stream)

    def occupancy(self, threads: int, shared_bytes: int = 0) -> int:
        """Return how many blocks of *threads* threads a multiprocessor runs at once."""
        with on(self.device, f"kernel {self.name}") as numba:
            blocks = numba.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
            return int(blocks(self.handle, threads, shared_bytes))

    def _check(self, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> None:
        """Raise BackendError for a launch beyond the limits of the device or the kernel."""
        gpu = device_properties(self.device)
        limits = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
        for what, got, limit in zip(("grid", "block"), (grid, block), limits, strict=True):
            if any(not 0 <= n <= most for n, most in zip(extents(got), limit, strict=True)):
                raise BackendError(f"kernel {self.name}: {what} {tuple(got)} is beyond {limit}")
        if not 1 <= (threads := prod(extents(block))) <= self.max_threads:
            raise BackendError(
                f"kernel {self.name}: a block of {threads} threads, and it can have"
                f" {self.max_threads} with {self.registers} registers each"
            )
        if not 0 <= shared_bytes <= gpu.shared_limit - self.shared_bytes:
            raise BackendError(
                f"kernel {self.name}: needs {shared_bytes + self.shared_bytes} bytes of shared"
                f" memory a block, and {gpu.name} has {gpu.shared_limit}"
            )

    def _allow(self, shared_bytes: int) -> None:
        """Permit *shared_bytes* of dynamic shared memory, more than every kernel may use."""
        attribute = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
        with on(self.device, f"kernel {self.name}") as numba, _loading:
            if shared_bytes > self._allowed.get(self.name, 0):
                code = getattr(numba.binding.CUfunction_attribute, attribute)
                numba.driver.cuKernelSetAttribute(
                    code, shared_bytes, self._function.handle, self.device
                )
                self._allowed[self.name] = shared_bytes


class Prepared:
    """A launch whose arguments are packed: only slots that change are written again.

    A launch allocates nothing and waits for nothing. Threads may share it: each launch writes its
    changes and starts the kernel before another one does. The caller keeps the arrays.
    """

    def __init__(
        self,
        function: DeviceFunction,
        extents: tuple[int, ...],
        shared_bytes: int,
        values: Sequence[Any],
    ) -> None:
        kinds = function.types
        if len(values) != len(kinds):
            raise ArgumentError(
                f"kernel {function.name}: got {len(values)} values, expected {len(kinds)}"
            )
        self.function, self._kinds, self._count = function, kinds, prod(extents)
        self._head = function.handle, *extents, shared_bytes
        self._slots = (ctypes.c_int64 * len(kinds))(*map(slot, kinds, values))
        first = ctypes.addressof(self._slots)
        self._pointers = (ctypes.c_void_p * len(kinds))(*range(first, first + 8 * len(kinds), 8))
        self._parameters = ctypes.addressof(self._pointers)
        self._lock = threading.Lock()
        self._what = f"kernel {function.name}"

    def launch(self, stream: int = LEGACY, changes: Mapping[int, Any] | None = None) -> None:
        """Start the kernel on *stream*, with *changes* of values by their number, which stay.

        A grid without blocks starts nothing. Raises BackendError if the driver refuses it.
        """
        with self._lock:
            if changes:
                packed = [(at, slot(self._kind(at), value)) for at, value in changes.items()]
                for at, word in packed:
                    self._slots[at] = word
            if self._count:
                function = self.function
                call = driver_function(function.numba, "cuLaunchKernel")
                where = function.numba, function.context, function.device, self._what
                start(*where, call, *self._head, stream or LEGACY, self._parameters, 0)

    def _kind(self, number: int) -> str:
        """Return the type of the value *number*; raises ArgumentError if there is none."""
        if not 0 <= number < len(self._kinds):
            why = f"{self._what}: got a value number {number}"
            raise ArgumentError(why, hint=f"it has {len(self._kinds)} values, from 0")
        return self._kinds[number]

    def restart(self, stream: int, slots: Sequence[tuple[int, int]], words: Sequence[int]) -> None:
        """Start the kernel in the current context, with *words* by number in some *slots*."""
        numba, own = self.function.numba, self._slots
        with self._lock:
            for at, number in slots:
                own[at] = words[number]
            try:
                driver_function(numba, "cuLaunchKernel")(*self._head, stream, self._parameters, 0)
            except errors(numba) as error:
                raise refusal(self._what, error) from None


class Launches:
    """Launches in a row on *device*, each with the slots that change and their numbers.

    They start in the context of the device, without allocations or waiting.
    """

    def __init__(
        self, launches: Sequence[tuple[Prepared, tuple[tuple[int, int], ...]]], device: int
    ) -> None:
        self.launches, self.device = tuple(launches), device

    def start(self, stream: int, words: Sequence[int]) -> None:
        """Start them on *stream*, with *words* by number; raises BackendError."""
        if self.launches:
            function = self.launches[0][0].function
            numba, what = function.numba, "kernels"
            start(numba, function.context, self.device, what, self._start, stream, words)

    def _start(self, stream: int, words: Sequence[int]) -> None:
        for prepared, slots in self.launches:
            prepared.restart(stream, slots, words)


def start(numba: Any, context: int, device: int, what: str, call: Any, *args: Any) -> None:
    """Call the driver in *context*, which is that of *device*; at once if it is current.

    It is not in a thread that used no GPU yet, or another one. Raises BackendError.
    """
    try:
        if int(driver_function(numba, "cuCtxGetCurrent")()) == context:
            call(*args)
            return
    except errors(numba) as error:
        raise refusal(what, error) from None
    with on(device, what):
        call(*args)


def extents(given: Sequence[int]) -> tuple[int, int, int]:
    """Return one to three extents as three; raises ArgumentError if they are something else."""
    try:
        x, y, z = (*map(operator.index, given), *(1,) * (3 - len(given)))
    except (TypeError, ValueError):
        raise ArgumentError(
            f"got {given!r} for a grid or block, expected 1 to 3 integers"
        ) from None
    return x, y, z
