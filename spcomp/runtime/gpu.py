"""Emitted kernels to running ones: launched on a GPU, or emulated on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from spcomp.arrays import Array
from spcomp.codegen import nvvm
from spcomp.errors import BackendError
from spcomp.ir.analysis.sizes import evaluate
from spcomp.runtime import cache
from spcomp.runtime.cuda import driver, memory
from spcomp.runtime.cuda.arrays import Place
from spcomp.runtime.cuda.occupancy import Occupancy, occupancy
from spcomp.runtime.cuda.ptxas import Usage, assemble, tool
from spcomp.runtime.host import scalar
from spcomp.target import EMULATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.codegen.abi import Emitted, FunctionABI
    from spcomp.dtypes import DType
    from spcomp.ir.func import Func
    from spcomp.target import Target


def load(emitted: Emitted, target: Target) -> EmulatedKernels | LoadedKernels:
    """Return the kernels of *emitted*, ready to run; raises BackendError where none can."""
    if target.emulate:
        return EmulatedKernels(emitted)
    if (reason := driver.missing()) is not None:
        raise BackendError(
            f"this machine cannot run code for {target}: {reason}",
            hint=f"target='{target},emulate', or {EMULATE}=1, runs it on the CPU",
        )
    return LoadedKernels(emitted, target)


class LoadedKernels:
    """Kernels that run on GPUs; the driver takes them at their first launch on each."""

    def __init__(self, emitted: Emitted, target: Target) -> None:
        self.emitted = emitted
        self.timings: dict[str, float] = {}
        self.ptx = self._ptx(target)
        self._functions: dict[tuple[int, str], driver.DeviceFunction] = {}

    def message(self, name: str, status: int) -> str:
        """Return what the *status* of the function *name* means."""
        return self.emitted[name].message(status)

    def _ptx(self, target: Target) -> bytes:
        begin = time.perf_counter()
        name = cache.key(self.emitted.llvm_ir, target, "ptx")
        if (text := cache.get(name)) is None:
            text = nvvm.ptx(self.emitted.llvm_ir, target).encode()
            cache.put(name, text)
        self.timings["codegen"] = time.perf_counter() - begin
        return text

    @property
    def object_bytes(self) -> bytes:
        """The PTX."""
        return self.ptx

    def function(self, abi: FunctionABI, device: int) -> driver.DeviceFunction:
        """Return the kernel of *abi* on *device*; raises BackendError if the driver refuses it."""
        key = device, abi.name
        if (found := self._functions.get(key)) is None:
            types = [_kind(param.dtype) for param in abi.params]
            if abi.grid is not None and abi.grid.may_fail:
                types.append("ptr")
            found = driver.load(self.ptx, device).function(abi.symbol, types)
            self._functions[key] = found
        return found

    def launch(
        self,
        func: Func,
        values: Mapping[str, Any],
        place: Place | None = None,
        word: int | None = None,
    ) -> int:
        """Start *func* at *place* with its parameters from *values*, without waiting.

        Return 0. A kernel that may fail is waited for, and its status is returned, unless there is
        a *word* of the GPU for it, which is -1 or what a kernel before has said.
        """
        abi = self.emitted[func.name]
        assert abi.grid is not None
        if place is None:
            place = Place(driver.current_device(), driver.LEGACY, "host")
        x, y, z = (int(evaluate(extent, values)) for extent in abi.grid.blocks)
        blocks = x, y, z
        if min(blocks) <= 0:
            return 0
        args = self._arguments(func, abi, values)
        function, grid = self.function(abi, place.device), abi.grid
        if not grid.may_fail:
            function.launch(blocks, grid.threads, grid.shared, place.stream, args)
            return 0
        if word is not None:
            function.launch(blocks, grid.threads, grid.shared, place.stream, [*args, word])
            return 0
        status_word = memory.allocate((1,), "int32", place.device)
        pointer = int(status_word.__cuda_array_interface__["data"][0])
        memory.fill(pointer, b"\xff" * 4, 1, place.device, place.stream)
        function.launch(blocks, grid.threads, grid.shared, place.stream, [*args, pointer])
        status = np.empty(1, np.int32)
        memory.download(pointer, status, place.device, place.stream)
        return int(status[0]) + 1

    def prepare(
        self, func: Func, values: Mapping[str, Any], device: int, word: int | None = None
    ) -> driver.Prepared | None:
        """Return the launch of *func* on *device*, which fails to *word*; None without blocks."""
        abi = self.emitted[func.name]
        assert abi.grid is not None
        blocks = tuple(int(evaluate(extent, values)) for extent in abi.grid.blocks)
        if min(blocks) <= 0:
            return None
        args = self._arguments(func, abi, values) + [word] * abi.grid.may_fail
        return self.function(abi, device).prepare(blocks, abi.grid.threads, abi.grid.shared, args)

    def _arguments(self, func: Func, abi: FunctionABI, values: Mapping[str, Any]) -> list[Any]:
        """Return a pointer or a number for each parameter of *func*."""
        result: list[Any] = []
        for param in abi.params:
            if param.dtype.kind != "handle":
                result.append(scalar(func, param.name, values))
                continue
            resident = values.get(param.name)
            result.append(0 if resident is None else resident.array.pointer)
            if resident is not None and param.written:
                resident.copy = None
        return result


@dataclass(frozen=True, slots=True)
class Queue:
    """The *kernels* of a program on the stream of *place*, as a host program starts them.

    *word*: where kernels that may fail say so; None: they are waited for.
    """

    kernels: LoadedKernels
    place: Place
    word: int | None = None

    def launch(self, func: Func, values: Mapping[str, Any]) -> int:
        """Start *func* with its parameters from *values*; return its status."""
        return self.kernels.launch(func, values, self.place, self.word)

    def message(self, name: str, status: int) -> str:
        """Return what the *status* of the function *name* means."""
        return self.kernels.message(name, status)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes of a GPU.

    *registers* of a thread, of which *spilled* bytes do not fit and lie in memory; *shared_bytes*
    of a block of *threads*; *occupancy*: how many warps a multiprocessor holds, None for a GPU
    whose limits are not known. *source*: ``ptxas``, or ``driver`` of the GPU that is there.
    """

    registers: int
    spilled: int
    shared_bytes: int
    threads: int
    occupancy: Occupancy | None
    source: Literal["ptxas", "driver"]


def resources(emitted: Emitted, target: Target) -> dict[str, Resources]:
    """Return what each kernel of *emitted* takes, by name, as ptxas says, or else the driver.

    Raises BackendError if there is neither.
    """
    ptx, arch = nvvm.ptx(emitted.llvm_ir, target), target.cpu
    source: Literal["ptxas", "driver"] = "ptxas"
    if tool("ptxas") is not None:
        usage = assemble(ptx, arch).usage
    elif (reason := driver.missing()) is None:
        usage, source = _driver_usage(LoadedKernels(emitted, target)), "driver"
        arch = driver.device_properties(driver.current_device()).target
    else:
        raise BackendError(
            f"there is no ptxas to say what the kernels take, and no GPU: {reason}",
            hint="pip install nvidia-cuda-nvcc, or set CUDA_HOME to a CUDA toolkit",
        )
    result = {}
    for abi in emitted.functions:
        assert abi.grid is not None
        took, threads = usage[abi.symbol], prod(abi.grid.threads)
        shared = took.shared_bytes + abi.grid.shared
        held = occupancy(arch, threads, took.registers, shared)
        result[abi.name] = Resources(took.registers, took.spilled, shared, threads, held, source)
    return result


def _driver_usage(kernels: LoadedKernels) -> dict[str, Usage]:
    usage, device = {}, driver.current_device()
    for abi in kernels.emitted.functions:
        found = kernels.function(abi, device)
        usage[abi.symbol] = Usage(found.registers, found.local_bytes, found.shared_bytes)
    return usage


def _kind(dtype: DType) -> str:
    """Return what the driver calls a parameter of *dtype*."""
    names = {"handle": "ptr", "bool": "bool", "bfloat": "bf16"}
    return names.get(dtype.kind) or f"{dtype.kind[0]}{dtype.bits}"


class EmulatedKernels:
    """Kernels that run on the CPU, as a GPU would run them."""

    def __init__(self, emitted: Emitted) -> None:
        from spcomp.runtime.emulator import Emulated

        self.emitted = emitted
        self.timings: dict[str, float] = {}
        self._code = Emulated(emitted.llvm_ir)

    def message(self, name: str, status: int) -> str:
        """Return what the *status* of the function *name* means."""
        return self.emitted[name].message(status)

    @property
    def object_bytes(self) -> bytes:
        """The LLVM IR that is emulated."""
        return self.emitted.llvm_ir.encode()

    def launch(self, func: Func, values: Mapping[str, Any]) -> int:
        """Run *func* with its parameters from *values*; return its status."""
        abi = self.emitted[func.name]
        assert abi.grid is not None
        x, y, z = (int(evaluate(extent, values)) for extent in abi.grid.blocks)
        blocks = x, y, z
        if min(blocks) <= 0:
            return 0
        args, names = _arguments(func, abi, values), [param.name for param in func.params]
        status = np.full(1, -1, np.int32)
        if abi.grid.may_fail:
            args, names = [*args, status], [*names, "status"]
        grid, placed = abi.grid, _Placed(args)
        self._code.launch(abi.symbol, blocks, grid.threads, grid.shared, placed.args, names=names)
        placed.give_back()
        return int(status[0]) + 1


class _Placed:
    """The arguments *args* of a launch, with arrays where a GPU would have them: see ALIGN."""

    def __init__(self, args: list[Any]) -> None:
        self._copies: dict[tuple[int, int], tuple[Array, Array]] = {}  # those of arrays elsewhere
        self.args = [self._place(arg) if isinstance(arg, np.ndarray) else arg for arg in args]

    def _place(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if array.ctypes.data % nvvm.ALIGN == 0:
            return array
        key = array.ctypes.data, array.nbytes
        if key not in self._copies:
            memory = np.empty(array.nbytes + nvvm.ALIGN, np.uint8)
            skip = -memory.ctypes.data % nvvm.ALIGN
            copy = memory[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
            copy[...] = array
            copy.flags.writeable = array.flags.writeable
            self._copies[key] = array, copy
        return self._copies[key][1]

    def give_back(self) -> None:
        """Copy back what the kernel may have written."""
        for array, copy in self._copies.values():
            if array.flags.writeable:
                array[...] = copy


def _arguments(func: Func, abi: FunctionABI, values: Mapping[str, Any]) -> list[Any]:
    """Return an array or a number of the right type for each parameter of *func*."""
    result = []
    for param in abi.params:
        if param.dtype.kind != "handle":
            number = scalar(func, param.name, values)
            result.append(np.dtype(param.dtype.numpy_name).type(number))
        else:
            array = values.get(param.name)
            result.append(np.empty(0, np.uint8) if array is None else array)
    return result
