"""Flat IR to machine code on CPUs: ``emit`` writes LLVM IR, ``compile`` makes an object of it."""

from spcomp.codegen.cpu.emit import emit
from spcomp.codegen.cpu.llvm import (
    CompiledObject,
    assembly,
    compile,  # noqa: A004
    link,
    object_code,
)
from spcomp.codegen.cpu.machine import check_runnable, resolve

__all__ = [
    "CompiledObject",
    "assembly",
    "check_runnable",
    "compile",
    "emit",
    "link",
    "object_code",
    "resolve",
]
