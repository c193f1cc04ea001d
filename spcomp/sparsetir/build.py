"""Around the route: ``tvm.build``, and what it returns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError, expect, warn
from spcomp.kernels.compile import compile as compile_program
from spcomp.runtime.cuda.driver import missing
from spcomp.sparsetir.module import IRModule, as_module
from spcomp.target import EMULATE
from spcomp.target import target as as_target

if TYPE_CHECKING:
    from spcomp.ir.func import Func
    from spcomp.kernels.timing import Evaluator
    from spcomp.sparsetir.nd import Device

HOST = ("llvm", "c")  # what TVM calls this machine
GPUS = ("cuda", "nvidia")
MODELS = {"a100": "sm_80", "rtx-30": "sm_86", "rtx-40": "sm_89", "h100": "sm_90"}


class Function:
    """A compiled module, called by position, that writes in place; *kernel* is spcomp's Kernel."""

    def __init__(self, mod: IRModule, target: str) -> None:
        if len(mod) != 1:
            raise ArgumentError(f"argument mod: got {len(mod)} functions, expected one")
        ((self.entry_name, schedule),) = mod.schedules.items()
        self.kernel = compile_program(schedule, target=target)

    def __call__(self, *args: Any) -> None:
        """Run the function on an array or number per parameter. Raises ArgumentError."""
        self.kernel(*args)

    def time_evaluator(
        self, func_name: str, dev: Device | None = None, number: int = 10, repeat: int = 1
    ) -> Evaluator:
        """Return a function that times calls; see :meth:`spcomp.Kernel.time_evaluator`."""
        del dev
        if func_name != self.entry_name:
            raise ArgumentError(f"no function {func_name!r}", hint=f"there is {self.entry_name}")
        return self.kernel.time_evaluator(number=number, repeat=repeat)

    def get_source(self, fmt: str = "llvm") -> str:
        """Return the generated ``llvm`` IR or ``asm``."""
        return self.kernel.source(fmt)

    @property
    def imported_modules(self) -> list[Function]:
        """The modules of the device: this function, as the grid is emulated on the host."""
        return [self]


def build(mod: IRModule | Func, target: str = "llvm") -> Function:
    """Compile *mod*, a function or a module of one function, and lower it if necessary.

    *target* is ``llvm`` for this machine, or a target of ``spcomp.compile``, or of TVM: ``cuda``,
    ``cuda -arch=sm_90``, ``nvidia/nvidia-h100``. On a machine without a GPU, and without
    ``SPCOMP_CUDA_EMULATE=1``, code for one is code for the CPU, where loops bound to blocks and
    threads run in order, and a SpcompWarning says so. Raises BackendError for a target that does
    not exist.
    """
    expect("target", target, str, "the name of a machine")
    if target.split(" ")[0].split("/")[0].split(":")[0] in GPUS:
        return Function(as_module(mod), _gpu(target))
    return Function(as_module(mod), "cpu" if target.split(" ")[0] in HOST else target)


def _gpu(name: str) -> str:
    """Return spcomp's name of the GPU that TVM calls *name*, or ``cpu`` where none can run."""
    machine = name if name.startswith("cuda:") else "cuda"
    known = re.search(r"-arch=(\w+)", name)
    if known is not None:
        machine = f"cuda:{known[1]}"
    elif name.startswith("nvidia/"):
        machine = next((f"cuda:{sm}" for gpu, sm in MODELS.items() if gpu in name), "cuda")
    if as_target(machine).emulate or missing() is None:
        return machine
    warn(
        f"there is no GPU: what is built for {name} runs on the CPU, where the grid is emulated;"
        f" {EMULATE}=1 emulates the code for the GPU instead"
    )
    return "cpu"
