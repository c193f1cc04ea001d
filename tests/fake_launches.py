"""Launches on a GPU that is not there: kernels run in the emulator, on its memory."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from spcomp.compiler import compiled
from spcomp.runtime.emulator import Emulated
from spcomp.runtime.gpu import LoadedKernels
from spcomp.tensors import verdict as checks
from spcomp.tensors.conversions import digits
from tests.fake_cuda import FakeGPU, Launch


def emulate(gpu: FakeGPU, patch: Any) -> None:
    """Let launches of programs that are compiled from now on run in the emulator."""
    original = LoadedKernels._ptx

    def recorded(kernels: LoadedKernels, target: Any) -> bytes:
        ptx = original(kernels, target)
        gpu.programs[ptx.decode()] = InEmulator(kernels.emitted.llvm_ir)
        return ptx

    patch.setattr(LoadedKernels, "_ptx", recorded)
    patch.setattr(compiled, "_cache", type(compiled._cache)())  # not what knows another GPU
    for program in (*vars(checks).values(), *vars(digits).values()):
        getattr(program, "cache_clear", bool)()


class InEmulator:
    """Runs the kernels of LLVM IR in the emulator, on the memory of a FakeGPU."""

    KINDS: ClassVar = {
        "float": "f4", "double": "f8", "half": "f2", "i64": "i8", "i32": "i4", "i16": "i2",
    }  # fmt: skip

    def __init__(self, llvm_ir: str) -> None:
        self.llvm_ir = llvm_ir

    @cached_property
    def emulated(self) -> Emulated:
        return Emulated(self.llvm_ir)

    def __call__(self, gpu: FakeGPU, launch: Launch) -> None:
        kinds = self.kinds(launch.name)
        pairs = zip(kinds, launch.arguments, strict=True)
        args = [self.argument(gpu, kind, data) for kind, data in pairs]
        self.emulated.launch(launch.name, launch.grid, launch.block, launch.shared, args)

    def kinds(self, name: str) -> list[str]:
        """Return the type of each parameter of the kernel *name*, as LLVM IR writes it."""
        params = re.search(
            rf"^define ptx_kernel void @{name}\((.*)\) #", self.llvm_ir, re.MULTILINE
        )
        assert params
        return [param.split()[0] for param in params[1].split(", ") if param]

    def argument(self, gpu: FakeGPU, kind: str, data: bytes) -> Any:
        if not kind.startswith("ptr"):
            return np.frombuffer(data, self.KINDS.get(kind, "i1"))[0]
        pointer = int.from_bytes(data, "little")
        for base, memory in gpu.memory.items():
            if base <= pointer < base + len(memory):
                return memory[pointer - base :]
        return np.empty(0, np.uint8)  # nothing may be read there
