"""Around the route: ``tvm.build``, and what it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spcomp.compiler.compile import compile as compile_program
from spcomp.errors import ArgumentError, expect, warn
from spcomp.sparsetir.module import IRModule, as_module

if TYPE_CHECKING:
    from spcomp.compiler.evaluator import Evaluator
    from spcomp.ir.func import Func
    from spcomp.sparsetir.nd import Device

HOST = ("llvm", "c")  # what TVM calls this machine
GPUS = ("cuda", "nvidia")


class Function:
    """A compiled module; called by position, it writes in place. *kernel* is spcomp's."""

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
        """Return what was generated: ``llvm`` IR or ``asm``."""
        return self.kernel.source(fmt)

    @property
    def imported_modules(self) -> list[Function]:
        """What runs on the device: this function, as the grid is emulated on the host."""
        return [self]


def build(mod: IRModule | Func, target: str = "llvm") -> Function:
    """Return *mod*, a module of one function or the function, lowered if need be and compiled.

    *target*: ``llvm`` for this machine, or what ``spcomp.compile`` takes. On the CPU, loops bound
    to blocks and threads of a GPU run as an emulated grid; so they do for ``cuda`` and ``nvidia``
    targets, with a SpcompWarning. Raises BackendError for a target that does not exist.
    """
    expect("target", target, str, "the name of a machine")
    kind = target.split(" ")[0]
    if kind.split("/")[0].split(":")[0] in GPUS:
        warn(
            "spcomp.sparsetir has no code for GPUs yet: what is built for one runs on the CPU,"
            " where the grid is emulated"
        )
        kind = "llvm"
    return Function(as_module(mod), "cpu" if kind in HOST else target)
