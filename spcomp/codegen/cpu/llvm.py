"""LLVM IR text to machine code: parsing, a short pass pipeline, objects and assembly.

The vectorisers of LLVM stay off: vectors are explicit in the IR (see DESIGN 7).
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import llvmlite.binding as llvm

from spcomp.codegen.cpu.machine import resolve, triple
from spcomp.codegen.cpu.symbols import check_symbols
from spcomp.errors import InternalError
from spcomp.locks import beside_signals
from spcomp.target import Target

ROOM = 32 << 20  # bytes that LLVM may want at once, at most, and for each character of its text
ROOM_EACH = 256
LLVM_VERSION = ".".join(str(part) for part in llvm.llvm_version_info)


@dataclass(frozen=True, slots=True)
class CompiledObject:
    """Machine code: *object* is a relocatable file; *timings* is seconds by step."""

    object: bytes = field(repr=False)
    timings: dict[str, float]


def require_room(size: int) -> None:
    """Raise MemoryError unless *size* bytes can be had: where LLVM has none, the process ends."""
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    try:
        mmap.mmap(-1, size, *([private] if private else [])).close()
    except (OSError, OverflowError):
        raise MemoryError(f"no memory for machine code: {size >> 20} MiB are wanted") from None


@beside_signals
def compile(llvm_ir: str, target: Target, opt: int = 1) -> CompiledObject:  # noqa: A001
    """Return the machine code of *llvm_ir*, position independent, for JIT and linker alike.

    *opt* is 0 (registers and peepholes) to 3. Raises BackendError for an unknown target, and
    InternalError where the code came to call what *llvm_ir* does not.
    """
    target = resolve(target)
    timings: dict[str, float] = {}
    module, machine = _optimized(llvm_ir, target, opt, timings)
    start = time.perf_counter()
    data = machine.emit_object(module)
    timings["codegen"] = time.perf_counter() - start
    check_symbols(data, llvm_ir)
    return CompiledObject(data, timings)


def object_code(llvm_ir: str, target: Target, opt: int = 1) -> bytes:
    """Return the relocatable object of *llvm_ir*."""
    return compile(llvm_ir, target, opt).object


@beside_signals
def assembly(llvm_ir: str, target: Target, opt: int = 1) -> str:
    """Return the assembly of *llvm_ir*, after the same passes as ``compile``."""
    module, machine = _optimized(llvm_ir, resolve(target), opt, {})
    return str(machine.emit_assembly(module))


@beside_signals
def link(llvm_ir: str, others: Iterable[str]) -> str:
    """Return one LLVM IR text that holds *llvm_ir* and the modules *others*."""
    module = _parse(llvm_ir)
    for other in others:
        module.link_in(_parse(other))
    return str(module)


def _parse(llvm_ir: str) -> llvm.ModuleRef:
    require_room(ROOM + ROOM_EACH * len(llvm_ir))
    _initialize()
    try:
        return llvm.parse_assembly(llvm_ir)  # parsing verifies
    except RuntimeError as error:
        raise InternalError("LLVM IR emission", str(error)) from error


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _optimized(
    llvm_ir: str, target: Target, opt: int, timings: dict[str, float]
) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    start = time.perf_counter()
    module, machine = _parse(llvm_ir), _machine(triple(target), opt)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    timings["llvm parse"] = time.perf_counter() - start
    start = time.perf_counter()
    options = llvm.create_pipeline_tuning_options(speed_level=opt)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False  # unroll only where the IR says
    builder = llvm.create_pass_builder(machine, options)
    passes = _passes(builder, opt)
    passes.run(module, builder)
    llvm.NewPassManager._dispose(passes)  # noqa: SLF001 (which a ModulePassManager leaves out)
    passes.detach()
    timings["optimize"] = time.perf_counter() - start
    return module, machine


def _passes(builder: llvm.PassBuilder, opt: int) -> llvm.ModulePassManager:
    if opt > 0:
        return builder.getModulePassManager()
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    return passes


@cache
def _machine(name: str, opt: int) -> llvm.TargetMachine:
    """Return LLVM's code generator; CPU and features are attributes of the functions."""
    _initialize()
    made = llvm.Target.from_triple(name).create_target_machine(
        opt=max(opt, 1), reloc="pic", codemodel="default"
    )
    made.set_asm_verbosity(verbose=False)
    return made
