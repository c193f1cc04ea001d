"""What differs on the route between kinds of target, as one frozen value for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from spcomp.errors import BackendError

if TYPE_CHECKING:
    from spcomp.codegen.abi import Emitted
    from spcomp.ir.func import Func
    from spcomp.ir.module import Module
    from spcomp.ir.program import PosFunc
    from spcomp.passes.base import Pipeline
    from spcomp.schedule.default.facts import Facts
    from spcomp.schedule.steps.base import Step
    from spcomp.target import Target, TargetKind


class Emit(Protocol):
    """A code generator: turns flat IR into LLVM IR, with how to call each function."""

    def __call__(
        self, module: Module[Any], target: Target, *, fast_math: bool, debug: bool
    ) -> Emitted:
        """Return the code of *module*; *fast_math*: floats may be computed in another order.

        *debug*: instructions say from which line of the source they come.
        """


class Loaded(Protocol):
    """Code in this process, ready to run."""

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each step of loading took."""

    @property
    def object_bytes(self) -> bytes:
        """The code as a file."""

    def launch(self, func: Func, values: Mapping[str, Any]) -> int:
        """Run *func* with its parameters from *values*; return its status."""

    def message(self, name: str, status: int) -> str:
        """Return what the *status* of the function *name* means."""


@dataclass(frozen=True, slots=True)
class Backend:
    """How a program becomes code for one kind of target."""

    resolve: Callable[[Target], Target]  # the target with the features of its machine
    schedule: Callable[[PosFunc, Target, Facts], tuple[Func, tuple[Step, ...]]]  # by default
    finish: Callable[[Target], Pipeline]  # the passes over flat IR
    atomics: bool  # whether loops whose iterations may share updates run at once
    emit: Emit
    load: Callable[[Emitted, Target], Loaded]  # raises BackendError where it cannot run
    assembly: Callable[[str, Target], str]  # of the text of LLVM IR
    object: Callable[[str, Target], bytes]  # the same as machine code


def _cpu() -> Backend:
    from spcomp.codegen import cpu
    from spcomp.knobs import knobs_of
    from spcomp.passes.base import Pipeline
    from spcomp.passes.flat.bind_threads import BindThreads
    from spcomp.passes.flat.cleanup import Cleanup
    from spcomp.passes.flat.loop_kinds import LoopKinds
    from spcomp.runtime.executable import Executable
    from spcomp.schedule.default.cpu import default_schedule

    def finish(target: Target) -> Pipeline:
        return Pipeline((BindThreads(), LoopKinds(knobs_of(target), target.vector_bits), Cleanup()))

    def machine_code(llvm_ir: str, target: Target) -> bytes:
        return cpu.compile(llvm_ir, target).object

    return Backend(
        resolve=cpu.resolve,
        schedule=default_schedule,
        finish=finish,
        atomics=False,  # results have the same bits at any number of threads
        emit=cpu.emit,
        load=Executable,
        assembly=cpu.assembly,
        object=machine_code,
    )


def _cuda() -> Backend:
    from spcomp.codegen import nvvm
    from spcomp.knobs import CUDA_GRID, knobs_of
    from spcomp.passes.base import Pipeline
    from spcomp.passes.flat.cleanup import Cleanup
    from spcomp.passes.flat.loop_kinds import LoopKinds
    from spcomp.passes.grid.accumulate import Accumulate
    from spcomp.passes.grid.bind_parallel import BindParallel
    from spcomp.passes.grid.compact_buffers import CompactBuffers
    from spcomp.passes.grid.exact_trips import ExactTrips, GatherGuards
    from spcomp.passes.grid.fuse_kernels import FuseKernels
    from spcomp.passes.grid.independent_blocks import IndependentBlocks
    from spcomp.passes.grid.reduce_threads import ReduceThreads
    from spcomp.passes.grid.scan_kernels import ScanKernels
    from spcomp.passes.grid.split_kernels import SplitKernels
    from spcomp.passes.grid.spread_fills import SpreadFills
    from spcomp.passes.grid.synchronize import Synchronize
    from spcomp.runtime import gpu
    from spcomp.schedule.default.cuda import default_schedule

    def finish(target: Target) -> Pipeline:
        vectors = LoopKinds(knobs_of(target), target.vector_bits)
        scans = ScanKernels(CUDA_GRID)
        nests = CompactBuffers(), FuseKernels(), Accumulate(), SpreadFills(), SplitKernels()
        threads = GatherGuards(), ReduceThreads(CUDA_GRID), BindParallel(CUDA_GRID)
        alike = IndependentBlocks(), Synchronize()
        return Pipeline((scans, *nests, *threads, *alike, ExactTrips(), vectors, Cleanup()))

    def machine_code(llvm_ir: str, target: Target) -> bytes:
        return nvvm.ptx(llvm_ir, target).encode()

    return Backend(
        resolve=nvvm.resolve,
        schedule=default_schedule,
        finish=finish,
        atomics=True,
        emit=nvvm.emit,
        load=gpu.load,
        assembly=nvvm.ptx,
        object=machine_code,
    )


BACKENDS: Mapping[TargetKind, Callable[[], Backend]] = {
    "cpu": _cpu,
    "cuda": _cuda,
}  # each is made at first use


@cache
def backend_of(kind: TargetKind) -> Backend:
    """Return the back end for targets of *kind*; raises BackendError if there is none."""
    if kind not in BACKENDS:
        raise BackendError(
            f"target {kind} has no code generator yet", hint=f"targets are {', '.join(BACKENDS)}"
        )
    return BACKENDS[kind]()
