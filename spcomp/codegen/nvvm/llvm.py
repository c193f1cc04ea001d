"""LLVM IR text to PTX: parsing, LLVM's pass pipeline, and its code generator for GPUs."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm

from spcomp.codegen.llvm.module import parse
from spcomp.codegen.nvvm.machine import TRIPLE, resolve
from spcomp.locks import shield_from_signals
from spcomp.target import Target


@shield_from_signals
def ptx(llvm_ir: str, target: Target) -> str:
    """Return the PTX of *llvm_ir*; raises BackendError for an unknown target."""
    target = resolve(target)
    module, machine = parse(llvm_ir), _machine(target.cpu, target.features)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    passes: Any = builder.getModulePassManager()
    passes.run(module, builder)
    llvm.NewPassManager._dispose(passes)  # noqa: SLF001 (a ModulePassManager does not do it)
    passes.detach()
    return str(machine.emit_assembly(module))


@cache
def _machine(cpu: str, features: str) -> llvm.TargetMachine:
    target = llvm.Target.from_triple(TRIPLE)
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3)
    machine.set_asm_verbosity(verbose=False)
    return machine
