"""Below code for a CPU: where the functions of floats come from."""

from __future__ import annotations

from spcomp.codegen.cpu.machine import has_fma
from spcomp.codegen.functions.define import WHOLE, at_once
from spcomp.codegen.llvm.code import Code, Library
from spcomp.codegen.llvm.math import call_libm
from spcomp.dtypes import DType
from spcomp.target import Target

SHORTER = ("exp", "sigmoid")  # of float32: arithmetic of fewer steps, and not of pairs of floats


def library_of(target: Target) -> Library:
    """Return the functions of the resolved *target*: in whole vectors, if it has fma."""
    return _in_vectors if has_fma(target) else call_libm


def _in_vectors(code: Code, dtype: DType, func: str, *args: str) -> str:
    if func not in WHOLE or (func in SHORTER and dtype.bits < 64):
        return call_libm(code, dtype, func, *args)
    return at_once(code, dtype, func, *args)
