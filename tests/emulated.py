"""Programs on the emulated GPU: in any order of blocks and threads, and on small blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any

import pytest

from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.knobs import CUDA_GRID, CUDA_KNOBS
from spcomp.runtime.emulator import Emulated
from spcomp.runtime.gpu import EmulatedKernels
from spcomp.runtime.host import run
from spcomp.schedule.default.facts import UNKNOWN, Facts
from spcomp.target import target

EMULATED = "cuda:sm_80,emulate"
TARGET = nvvm.resolve(target("cuda:sm_80"))
ORDERS = (None, -1, 1, 2)  # ascending, descending, and two by chance


@contextmanager
def order(seed: int | None) -> Iterator[None]:
    """Let blocks and threads run in the order of *seed*."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Emulated, "launch", partialmethod(Emulated.launch, seed=seed))
        yield


@contextmanager
def short_pieces(size: int = 8) -> Iterator[None]:
    """Let rows of more than *size* elements be cut, so that short rows fill several pieces."""
    before = CUDA_KNOBS.hub_piece
    try:
        object.__setattr__(CUDA_KNOBS, "hub_piece", size)
        yield
    finally:
        object.__setattr__(CUDA_KNOBS, "hub_piece", before)


@contextmanager
def small_blocks(threads: int = 4, blocks: int = 2) -> Iterator[None]:
    """Let *threads* be a block, so that a few elements fill several of them."""
    before = CUDA_GRID.block_threads, CUDA_GRID.sharing_blocks
    names = "block_threads", "sharing_blocks"
    try:
        for name, value in zip(names, (threads, blocks), strict=True):
            object.__setattr__(CUDA_GRID, name, value)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            object.__setattr__(CUDA_GRID, name, value)


class Kernels:
    """The kernels of *program*, never taken from a cache; they run on flat arrays by name.

    *constants* are compiled in, and the schedule is that for matrices of which *facts* are known.
    """

    def __init__(self, program: Any, constants: Any = None, facts: Facts = UNKNOWN) -> None:
        self.module = lower(program, TARGET, constants, facts=facts).flat
        self.emitted = nvvm.emit(self.module, TARGET)
        self.code = EmulatedKernels(self.emitted)

    def __call__(self, values: dict[str, Any]) -> dict[str, Any]:
        """Run them on the arrays and numbers *values*; return all arrays."""
        values = dict(values)
        funcs = {func.name: func for func in self.module.funcs}
        return {**values, **run(self.module.host, funcs, self, values)}

    def launch(self, func: Any, values: Any) -> int:
        return self.code.launch(func, values)

    def message(self, name: str, status: int) -> str:
        return f"{name} failed with {status}"
