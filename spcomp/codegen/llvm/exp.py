"""Flat IR to LLVM IR, exp of float32: arithmetic on whole vectors instead of a call per lane.

``exp(x) = 2 ** n * exp(r)`` with n the integer nearest to ``x / ln 2``, ``|r| <= ln 2 / 2``, exp(r)
a polynomial; within 1.5 units of the last place. Source: Cody and Waite's reduction, coefficients
of SLEEF (Shibata, Petrogalli, TPDS 2020).
"""

from __future__ import annotations

import struct

from spcomp.codegen.llvm.code import Code
from spcomp.codegen.llvm.ops import float_literal, splat

LEAST, MOST = -105.0, 89.5  # exp is 0 from here down, and infinite from here up
PER_LN2 = 1.442695040888963407359924681001892137426645954152985934135449406931
LN2_HIGH, LN2_LOW = 0.693145751953125, 1.428606765330187045e-06  # n * LN2_HIGH is exact
ROUNDS = 12582912.0  # 1.5 * 2 ** 23: added to a small number, it leaves the nearest integer
BIAS = 127  # of the exponent, in the upper bits of a float
FRACTION = 23  # bits below the exponent
TERMS = (
    0.000198527617612853646278381,
    0.00139304355252534151077271,
    0.00833336077630519866943359,
    0.0416664853692054748535156,
    0.166666671633720397949219,
    0.5,
)


def exp(code: Code, kind: str, x: str) -> str:
    """Return the natural exponential of *x*, of the type *kind*: float, or a vector of it."""
    word, truth = kind.replace("float", "i32"), kind.replace("float", "i1")

    def number(value: float) -> str:
        (single,) = struct.unpack("f", struct.pack("f", value))
        return splat(kind, float_literal(single))

    def integer(value: int) -> str:
        return splat(word, str(value))

    def clamp(operand: str, less: str, bound: float) -> str:  # NaN stays NaN
        outside = code.value(f"fcmp {less} {kind} {operand}, {number(bound)}")
        return code.value(f"select {truth} {outside}, {kind} {number(bound)}, {kind} {operand}")

    def muladd(a: str, b: str, c: str) -> str:
        return code.intrinsic("fmuladd", kind, a, b, c)

    def round_to_integer(factor: float, more: int) -> tuple[str, str]:
        """Return ``x * factor`` rounded: plus *more* in a word's low bits, and as a float."""
        shifted = muladd(x, number(factor), number(ROUNDS + more))
        exact = code.value(f"fsub {kind} {shifted}, {number(ROUNDS + more)}")
        return code.value(f"bitcast {kind} {shifted} to {word}"), exact

    def power_of_two(biased: str) -> str:
        shifted = code.value(f"shl {word} {biased}, {integer(FRACTION)}")
        return code.value(f"bitcast {word} {shifted} to {kind}")

    x = clamp(clamp(x, "olt", LEAST), "ogt", MOST)
    exponent, count = round_to_integer(PER_LN2, 2 * BIAS)
    half, _ = round_to_integer(PER_LN2 / 2, BIAS)  # 2 ** n may be out of range by itself
    remainder = muladd(count, number(-LN2_HIGH), x)
    remainder = muladd(count, number(-LN2_LOW), remainder)
    total = number(TERMS[0])
    for term in TERMS[1:]:
        total = muladd(total, remainder, number(term))
    square = code.value(f"fmul {kind} {remainder}, {remainder}")
    total = code.value(f"fadd {kind} {muladd(square, total, remainder)}, {number(1.0)}")
    for part in (half, code.value(f"sub {word} {exponent}, {half}")):
        total = code.value(f"fmul {kind} {total}, {power_of_two(part)}")
    return total
