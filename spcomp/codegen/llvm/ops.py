"""Flat IR to LLVM IR, tables: the names of types, constants and operators in LLVM's text."""

from __future__ import annotations

import re
import struct
from functools import cache

from spcomp.dtypes import DType, round_to
from spcomp.errors import LoweringError

EXACT = "contract"  # a product and a sum may be rounded once, as fma; nothing else is moved
FAST = "reassoc nsz contract afn"  # never nnan or ninf: NaN and infinity mean what they mean
EXTREME = "nsz"  # of min and max: either of two zeros; telling them apart takes a fifth longer

MOST_LANES = 1 << 7  # gathers of more take LLVM minutes, thousands end the process
_FLOATS = {16: "float", 32: "float", 64: "double"}
_LETTERS = {"float": "f32", "double": "f64"}

ARITHMETIC: dict[str, tuple[str, str, str]] = {  # op -> for floats, signed, unsigned and bool
    "+": ("fadd", "add", "add"),
    "-": ("fsub", "sub", "sub"),
    "*": ("fmul", "mul", "mul"),
    "/": ("fdiv", "", ""),
    "&": ("", "and", "and"),
    "|": ("", "or", "or"),
    "^": ("", "xor", "xor"),
    "<": ("fcmp olt", "icmp slt", "icmp ult"),
    "<=": ("fcmp ole", "icmp sle", "icmp ule"),
    ">": ("fcmp ogt", "icmp sgt", "icmp ugt"),
    ">=": ("fcmp oge", "icmp sge", "icmp uge"),
    "==": ("fcmp oeq", "icmp eq", "icmp eq"),
    "!=": ("fcmp une", "icmp ne", "icmp ne"),
}
BOOLEAN = {
    **dict.fromkeys(("+", "max", "or", "|"), "or"),
    **dict.fromkeys(("*", "min", "and", "&"), "and"),
    **dict.fromkeys(("-", "^"), "xor"),
}  # what operators mean for bool, as in numpy; comparisons as for unsigned
INTRINSICS: dict[str, tuple[str, str, str]] = {
    "min": ("minimum", "smin", "umin"),
    "max": ("maximum", "smax", "umax"),
}
REDUCTIONS: dict[str, tuple[str, str, str]] = {
    "+": ("", "add", "add"),
    "*": ("", "mul", "mul"),
    "min": ("fminimum", "smin", "umin"),
    "max": ("fmaximum", "smax", "umax"),
}
# Functions of floats that are instructions; rint rounds to even, and is in every C library.
MATH = {
    **{name: name for name in ("sqrt", "fma", "floor", "ceil", "trunc")},
    "abs": "fabs",
    "round": "rint",
}
# What a declaration says of a function of the C library: it may be moved and merged, and LLVM must
# not take it for a builtin: it would turn sin(x) / cos(x) into tan, and call that with vectors.
PURE = "nocallback nofree nosync nounwind speculatable willreturn memory(none) nobuiltin"


def row(dtype: DType) -> int:
    """Return the column of the tables above for operands of *dtype*."""
    if dtype.is_float:
        return 0
    return 1 if dtype.kind == "int" else 2


def vector(scalar: str, lanes: int) -> str:
    """Return the type of *lanes* values of the LLVM type *scalar*; LoweringError for too many."""
    if lanes > MOST_LANES:
        raise LoweringError(f"a vector of {lanes} lanes", hint=f"{MOST_LANES} are possible")
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def register(dtype: DType) -> str:
    """Return the LLVM type in which a value of *dtype* is computed: 16-bit floats as float."""
    if dtype.kind == "handle":
        return "ptr"
    return vector(_FLOATS[dtype.bits] if dtype.is_float else f"i{dtype.bits}", dtype.lanes)


@cache
def memory(dtype: DType) -> str:
    """Return the LLVM type in which a value of *dtype* is stored and passed."""
    if dtype.kind == "bool":
        return vector("i8", dtype.lanes)
    if dtype.is_float and dtype.bits == 16:
        return vector("i16", dtype.lanes)
    return register(dtype)


@cache
def suffix(llvm_type: str) -> str:
    """Return how the names of intrinsics spell *llvm_type*: ``<8 x float>`` is ``v8f32``."""
    if llvm_type.startswith("<"):
        lanes, _, scalar = llvm_type[1:-1].partition(" x ")
        return f"v{lanes}{suffix(scalar)}"
    return "p0" if llvm_type == "ptr" else _LETTERS.get(llvm_type, llvm_type)


def splat(llvm_type: str, literal: str) -> str:
    """Return the constant of *llvm_type* whose every lane is *literal*."""
    if not llvm_type.startswith("<"):
        return literal
    scalar = llvm_type[1:-1].partition(" x ")[2]
    return f"splat ({scalar} {literal})"


def literal(value: float, dtype: DType) -> str:
    """Return *value* as an operand of the scalar type *dtype*."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_float:
        return float_literal(round_to(dtype, float(value)))
    bits = int(value) & ((1 << dtype.bits) - 1)
    return str(bits - (1 << dtype.bits) if bits >> (dtype.bits - 1) else bits)


def float_literal(value: float) -> str:
    """Return *value* (exact in its type) as LLVM spells it: the bits of the double."""
    return "0x" + struct.pack(">d", value).hex().upper()


def is_literal(operand: str) -> bool:
    """Whether *operand* is a number in LLVM's text, and no register."""
    return not operand.startswith("%")


def integer_in(operand: str) -> int | None:
    """Return the integer that *operand* is in every lane, or None.

    It need not be a literal in the program: trips that are written out have numbers, too.
    """
    match = re.fullmatch(r"(?:splat \(i\d+ )?(-?\d+)\)?", operand)
    return int(match[1]) if match else None


def float_in(operand: str) -> float | None:
    """Return the float that *operand* is in every lane, or None."""
    match = re.fullmatch(r"(?:splat \((?:float|double) )?0x([0-9A-F]{16})\)?", operand)
    return struct.unpack(">d", bytes.fromhex(match[1]))[0] if match else None


def zero(dtype: DType) -> str:
    """Return the zero of *dtype*, scalar or vector."""
    return "zeroinitializer" if dtype.lanes > 1 else literal(0, dtype)
