"""Beside the kernels: GPU kernels that run on the CPU, from the LLVM IR that goes to PTX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from spcomp.codegen import cpu
from spcomp.codegen.llvm.module import parse
from spcomp.errors import ArgumentError, InternalError, expect, nearest_or_all
from spcomp.locks import Lock
from spcomp.runtime import jit
from spcomp.runtime.emulator import machinery
from spcomp.runtime.emulator.arguments import arguments, check_extents
from spcomp.runtime.emulator.faults import Extent
from spcomp.runtime.emulator.launch import Code, Launch
from spcomp.runtime.emulator.translate import Program, translate

SEED = "SPCOMP_CUDA_EMULATE_SEED"  # of the environment: the order in which threads run


class Emulated:
    """The kernels of one module of LLVM IR for NVPTX, which run on the CPU.

    The threads of a block take turns: each runs until it waits for others. With *check*, every
    access of global and shared memory is watched for races, bounds and alignment, at the price of
    a cell of 64 bytes for each 4 bytes of the arrays; without, a wrong access is as wrong as in C.
    Raises ArgumentError if *ir* is not LLVM IR, and EmulationError if the emulator does not know
    what it needs.
    """

    def __init__(self, ir: str, *, check: bool = True) -> None:
        program, obj = _compiled(ir, check)
        symbols = [kernel.symbol for kernel in program.kernels.values()]
        symbols += ["emu.launch", "emu.arena", "emu.resume"]
        self._loaded = jit.load(obj, symbols, machinery.addresses())
        self._code = Code(program, self._loaded.addresses, check)
        self._lock = Lock()  # the code has one place for the launch and one for shared memory

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(self._code.program.kernels)

    def launch(
        self,
        name: str,
        grid: Extent,
        block: Extent,
        shared_bytes: int,
        args: Sequence[np.ndarray[Any, Any] | np.generic],
        *,
        names: Sequence[str] = (),
        seed: int | None = None,
    ) -> None:
        """Run the kernel *name*; arrays among *args* are its buffers, numpy numbers its scalars.

        *grid* and *block* are extents (x, y, z), *shared_bytes* is the dynamic shared memory, and
        *names* are what errors call the arguments. Threads and blocks run in ascending order, or
        in descending order if *seed* is -1, or in a random order of that *seed*; None: the number
        in ``SPCOMP_CUDA_EMULATE_SEED``, if there is one. Raises ArgumentError for wrong arguments
        and EmulationError for what the kernel does wrong; the arrays are then in the state of that
        moment.
        """
        seed = _seed_of_environment() if seed is None else seed
        program = self._code.program
        if (kernel := program.kernels.get(name)) is None:
            raise ArgumentError(f"no kernel {name!r}", hint=nearest_or_all(name, self.kernels))
        check_extents(kernel, grid, block)
        if prod(grid) == 0:
            return
        if not 0 <= shared_bytes <= program.dynamic_bytes:
            raise ArgumentError(
                f"shared_bytes is {shared_bytes}, the module can have {program.dynamic_bytes}"
            )
        values = arguments(kernel, args, names, check=self._code.check)
        with self._lock:
            Launch(self._code, kernel, grid, block, shared_bytes, values).run(seed)


def _seed_of_environment() -> int | None:
    """Return the order that the environment asks for; raises ArgumentError if it is no number."""
    text = os.environ.get(SEED, "")
    try:
        return int(text) if text else None
    except ValueError:
        raise ArgumentError(f"{SEED} is {text!r}, expected -1 or more") from None


@lru_cache(maxsize=256)
def _compiled(ir: str, check: bool) -> tuple[Program, bytes]:  # noqa: FBT001
    """Return the translated module *ir* and its object."""
    expect("ir", ir, str, "the text of a module in LLVM IR")
    try:
        parse(ir)
    except InternalError as error:
        hint = 'a kernel for a GPU gives such text: kernel.source("llvm")'
        message = f"argument ir: is not LLVM IR (PTX is not read): {error.message}"
        raise ArgumentError(message, hint=hint) from None
    program = translate(ir, machinery.function_attributes(), check=check)
    return program, cpu.object_code(program.text, machinery.host())
