"""Flat IR to PTX on NVIDIA GPUs: ``emit`` writes LLVM IR, ``ptx`` makes PTX of it."""

from spcomp.codegen.nvvm.emit import emit
from spcomp.codegen.nvvm.llvm import ptx
from spcomp.codegen.nvvm.machine import ALIGN, resolve

__all__ = ["ALIGN", "emit", "ptx", "resolve"]
