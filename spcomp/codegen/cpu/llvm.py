"""LLVM IR text to machine code: parsing, a short pass pipeline, objects and assembly.

The vectorisers of LLVM stay off: vectors are explicit in the IR (see DESIGN 7).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import llvmlite.binding as llvm

from spcomp.codegen.cpu.machine import resolve, triple
from spcomp.codegen.cpu.symbols import check_symbols
from spcomp.codegen.llvm.module import initialize, parse
from spcomp.locks import shield_from_signals
from spcomp.target import Target


@dataclass(frozen=True, slots=True)
class CompiledObject:
    """Machine code: *object* is a relocatable file; *timings* is seconds by step."""

    object: bytes = field(repr=False)
    timings: dict[str, float]


@shield_from_signals
def compile(llvm_ir: str, target: Target, opt: int = 1) -> CompiledObject:  # noqa: A001
    """Return the machine code of *llvm_ir*, position independent, for JIT and linker alike.

    *opt* is 0 (registers and peepholes) to 3. Raises BackendError for an unknown target, and
    InternalError if the machine code calls a function that *llvm_ir* does not.
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


@shield_from_signals
def assembly(llvm_ir: str, target: Target, opt: int = 1) -> str:
    """Return the assembly of *llvm_ir*, after the same passes as ``compile``."""
    module, machine = _optimized(llvm_ir, resolve(target), opt, {})
    return str(machine.emit_assembly(module))


@shield_from_signals
def link(llvm_ir: str, others: Iterable[str]) -> str:
    """Return one LLVM IR text that holds *llvm_ir* and the modules *others*."""
    module = parse(llvm_ir)
    for other in others:
        module.link_in(parse(other))
    return str(module)


def _optimized(
    llvm_ir: str, target: Target, opt: int, timings: dict[str, float]
) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    start = time.perf_counter()
    module, machine = parse(llvm_ir), _machine(triple(target), opt)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    timings["llvm parse"] = time.perf_counter() - start
    start = time.perf_counter()
    options = llvm.create_pipeline_tuning_options(speed_level=opt)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False  # unroll only where the IR says
    builder = llvm.create_pass_builder(machine, options)
    passes = _passes(builder, opt)
    passes.run(module, builder)
    llvm.NewPassManager._dispose(passes)  # noqa: SLF001 (a ModulePassManager does not do it)
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
    initialize()
    machine = llvm.Target.from_triple(name).create_target_machine(
        opt=max(opt, 1), reloc="pic", codemodel="default"
    )
    machine.set_asm_verbosity(verbose=False)
    return machine
