"""Flat IR to LLVM IR, powers: products where the exponent is a small whole number, else a call.

A product of n factors is within n units of the last place, of their reciprocals within 2 n; pow is
within one, and takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable

from spcomp.codegen.llvm.code import Code
from spcomp.codegen.llvm.ops import float_in, float_literal, register, splat
from spcomp.dtypes import DType

MOST = 16  # the largest exponent that is written out
Library = Callable[..., str]  # of a function's name and operands


def power(code: Code, dtype: DType, base: str, exponent: str, library: Library) -> str:
    """Return *base* to the *exponent*, both of the float *dtype*; *library* calls the C library."""
    kind, count = register(dtype), float_in(exponent)
    if float_in(base) == 2.0:
        return library("exp2", exponent)
    if count == 0.5:  # as numpy has it; pow would have 0 of -0, and infinity of minus infinity
        return code.intrinsic("sqrt", kind, base)
    if count is None or not count.is_integer() or not 0 < abs(count) <= MOST:
        return library("pow", base, exponent)
    if count < 0:  # the reciprocal first: its powers overflow where they should
        base = code.value(f"fdiv {kind} {splat(kind, float_literal(1.0))}, {base}")
    return _product(code, dtype, base, int(abs(count)))


def _product(code: Code, dtype: DType, base: str, count: int) -> str:
    """Return *base* to the power *count*, at least 1, by repeated squaring."""
    result = ""
    while True:
        if count & 1:
            result = code.arithmetic("*", dtype, result, base) if result else base
        count >>= 1
        if not count:
            return result
        base = code.arithmetic("*", dtype, base, base)
