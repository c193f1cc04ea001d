"""Flat IR to LLVM IR, arithmetic that needs more than one instruction.

Nothing here traps: divisors of integers are made safe and a zero is reported to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from spcomp.codegen.emit import Code
from spcomp.codegen.emit_exp import exp
from spcomp.codegen.ops import (
    BOOLEAN,
    EXTERNAL,
    FAST,
    MATH,
    REDUCTIONS,
    float_literal,
    literal,
    register,
    row,
    splat,
    suffix,
    vector,
)
from spcomp.dtypes import DType
from spcomp.errors import LoweringError

OnZero = Callable[[str], None]  # is given the i1 (or vector of i1): the divisor is zero


def constant(operand: str) -> int | None:
    """Return the integer that *operand* is in every lane, or None."""
    found = re.fullmatch(r"(?:splat \(i\d+ )?(-?\d+)\)?", operand)
    return int(found[1]) if found else None


def divide(code: Code, op: str, dtype: DType, lhs: str, rhs: str, on_zero: OnZero) -> str:
    """Return ``lhs // rhs`` or ``lhs % rhs``, rounding towards minus infinity."""
    if dtype.is_float:
        return _divide_floats(code, op, register(dtype), lhs, rhs)
    known = constant(rhs)
    if known is not None and known > 0 and known & (known - 1) == 0:
        return _by_power_of_two(code, op, dtype, lhs, known)
    if known is None or known in (0, -1):
        rhs = _safe_divisor(code, dtype, lhs, rhs, on_zero)
    kind = register(dtype)
    if dtype.kind != "int":
        return code.value(f"{'udiv' if op == '//' else 'urem'} {kind} {lhs}, {rhs}")
    rest = code.value(f"srem {kind} {lhs}, {rhs}")
    zero = splat(kind, "0")
    if known is not None and known > 0:
        off = code.value(f"icmp slt {kind} {rest}, {zero}")
    else:
        signs = code.value(f"xor {kind} {rest}, {rhs}")
        differ = code.value(f"icmp slt {kind} {signs}, {zero}")
        off = code.value(f"icmp ne {kind} {rest}, {zero}")
        off = code.value(f"and {register_of_bool(dtype)} {off}, {differ}")
    if op == "%":
        moved = code.value(f"add {kind} {rest}, {rhs}")
        return code.value(f"select {register_of_bool(dtype)} {off}, {kind} {moved}, {kind} {rest}")
    quotient = code.value(f"sdiv {kind} {lhs}, {rhs}")
    step = code.value(f"sext {register_of_bool(dtype)} {off} to {kind}")
    return code.value(f"add {kind} {quotient}, {step}")


def register_of_bool(dtype: DType) -> str:
    """Return the type of a comparison of two values of *dtype*."""
    return vector("i1", dtype.lanes)


def _by_power_of_two(code: Code, op: str, dtype: DType, lhs: str, divisor: int) -> str:
    kind = register(dtype)
    if op == "%":
        return code.value(f"and {kind} {lhs}, {splat(kind, str(divisor - 1))}")
    shift = splat(kind, str(divisor.bit_length() - 1))
    return code.value(f"{'ashr' if dtype.kind == 'int' else 'lshr'} {kind} {lhs}, {shift}")


def _safe_divisor(code: Code, dtype: DType, lhs: str, rhs: str, on_zero: OnZero) -> str:
    kind, truth = register(dtype), register_of_bool(dtype)
    unsafe = code.value(f"icmp eq {kind} {rhs}, {splat(kind, '0')}")
    on_zero(unsafe)
    if dtype.kind == "int":  # the least value // -1 overflows, which x86 answers with a signal
        least = splat(kind, literal(1 << (dtype.bits - 1), dtype.element))
        at_least = code.value(f"icmp eq {kind} {lhs}, {least}")
        by_minus_one = code.value(f"icmp eq {kind} {rhs}, {splat(kind, '-1')}")
        overflow = code.value(f"and {truth} {at_least}, {by_minus_one}")
        unsafe = code.value(f"or {truth} {unsafe}, {overflow}")
    return code.value(f"select {truth} {unsafe}, {kind} {splat(kind, '1')}, {kind} {rhs}")


def _divide_floats(code: Code, op: str, kind: str, lhs: str, rhs: str) -> str:
    """As numpy: the remainder has the divisor's sign and the quotient agrees with it."""
    truth = re.sub("float|double", "i1", kind)
    zero, one = splat(kind, float_literal(0.0)), splat(kind, float_literal(1.0))
    rest = code.value(f"frem {kind} {lhs}, {rhs}")
    differ = [code.value(f"fcmp olt {kind} {operand}, {zero}") for operand in (rest, rhs)]
    off = code.value(f"xor {truth} {differ[0]}, {differ[1]}")
    off = code.value(f"and {truth} {off}, {code.value(f'fcmp une {kind} {rest}, {zero}')}")
    if op == "%":
        moved = code.value(f"fadd {kind} {rest}, {rhs}")
        return code.value(f"select {truth} {off}, {kind} {moved}, {kind} {rest}")
    exact = code.value(f"fsub {kind} {lhs}, {rest}")
    quotient = code.value(f"fdiv {kind} {exact}, {rhs}")
    below = code.value(f"fsub {kind} {quotient}, {one}")
    quotient = code.value(f"select {truth} {off}, {kind} {below}, {kind} {quotient}")
    nearest = code.intrinsic("rint", kind, quotient)  # an integer but for rounding
    plain = code.value(f"fdiv {kind} {lhs}, {rhs}")
    by_zero = code.value(f"fcmp oeq {kind} {rhs}, {zero}")
    return code.value(f"select {truth} {by_zero}, {kind} {plain}, {kind} {nearest}")


def shift(code: Code, op: str, dtype: DType, lhs: str, rhs: str) -> str:
    """Return ``lhs << rhs`` or ``lhs >> rhs``; a shift by the width or more leaves no bit."""
    kind, truth = register(dtype), register_of_bool(dtype)
    known, name = constant(rhs), {"<<": "shl", ">>": "ashr" if dtype.kind == "int" else "lshr"}[op]
    if known is not None and 0 <= known < dtype.bits:
        return code.value(f"{name} {kind} {lhs}, {rhs}")
    fits = code.value(f"icmp ult {kind} {rhs}, {splat(kind, str(dtype.bits))}")
    last = splat(kind, str(dtype.bits - 1))
    count = code.value(f"select {truth} {fits}, {kind} {rhs}, {kind} {last}")
    moved = code.value(f"{name} {kind} {lhs}, {count}")
    if name == "ashr":
        return moved  # only the sign is left, as numpy has it
    return code.value(f"select {truth} {fits}, {kind} {moved}, {kind} {splat(kind, '0')}")


def call(code: Code, func: str, dtype: DType, args: list[str]) -> str:
    """Return the function *func* of *args*, all of *dtype*."""
    if func == "popcount":
        return code.intrinsic("ctpop", register(dtype), *args)
    if not dtype.is_float:
        return _call_of_integers(code, func, dtype, args)
    kind = register(dtype)
    one = splat(kind, float_literal(1.0))
    match func:
        case "isnan":
            return code.value(f"fcmp uno {kind} {args[0]}, {args[0]}")
        case "isinf":
            infinity = splat(kind, float_literal(float("inf")))
            return code.value(f"fcmp oeq {kind} {code.intrinsic('fabs', kind, *args)}, {infinity}")
        case "rsqrt":
            return code.value(f"fdiv {kind} {one}, {code.intrinsic('sqrt', kind, *args)}")
        case "exp" if "float" in kind:
            return exp(code, kind, args[0])
        case "sigmoid":
            power = call(code, "exp", dtype, [code.value(f"fneg {kind} {args[0]}")])
            return code.value(f"fdiv {kind} {one}, {code.value(f'fadd {kind} {one}, {power}')}")
    if func in EXTERNAL:
        return _per_lane(code, func + ("f" if "float" in kind else ""), kind, args, dtype.lanes)
    exact = func in ("sqrt", "fma", "abs", "floor", "ceil", "trunc", "round")
    return code.intrinsic(MATH[func], kind, *args, flags="" if exact else FAST)


def _call_of_integers(code: Code, func: str, dtype: DType, args: list[str]) -> str:
    kind = register(dtype)
    if func in ("floor", "ceil", "round", "trunc") or (func == "abs" and dtype.kind != "int"):
        return args[0]
    if func in ("isnan", "isinf"):
        return splat(register_of_bool(dtype), "false")
    if func == "abs":
        name = code.unit.declare(f"llvm.abs.{suffix(kind)}", kind, f"{kind}, i1")
        return code.value(f"call {kind} {name}({kind} {args[0]}, i1 false)")
    if func == "fma":
        return code.value(f"add {kind} {code.value(f'mul {kind} {args[0]}, {args[1]}')}, {args[2]}")
    if func == "pow":
        scalar = register(dtype.element)
        name = f"spcomp.pow.{dtype.kind}{dtype.bits}"
        text = integer_power(name, scalar, "slt" if dtype.kind == "int" else "ult")
        code.unit.declarations.setdefault(name, text)
        return _per_lane(code, name, kind, args, dtype.lanes, known=True)
    raise LoweringError(f"{func} of {dtype} values", hint="cast the argument to a float type")


@cache
def integer_power(name: str, kind: str, less: str) -> str:
    """Return the text of a function: *base* to *exponent*, wrapping; a fraction is 0."""
    return f"""define internal {kind} @{name}({kind} %base, {kind} %exponent) nounwind {{
entry:
  %negative = icmp {less} {kind} %exponent, 0
  %next = add {kind} %base, 1
  %unit = and {kind} %next, -3
  %other = icmp ne {kind} %unit, 0
  %fraction = and i1 %negative, %other
  %first = select i1 %fraction, {kind} 0, {kind} 1
  br label %head
head:
  %x = phi {kind} [ %base, %entry ], [ %xx, %body ]
  %e = phi {kind} [ %exponent, %entry ], [ %half, %body ]
  %r = phi {kind} [ %first, %entry ], [ %rr, %body ]
  %done = icmp eq {kind} %e, 0
  br i1 %done, label %exit, label %body
body:
  %bit = trunc {kind} %e to i1
  %product = mul {kind} %r, %x
  %rr = select i1 %bit, {kind} %product, {kind} %r
  %xx = mul {kind} %x, %x
  %half = lshr {kind} %e, 1
  br label %head
exit:
  ret {kind} %r
}}"""


def _per_lane(
    code: Code, name: str, kind: str, args: list[str], lanes: int, *, known: bool = False
) -> str:
    """Return the scalar function *name* applied to each lane of *args*."""
    scalar = kind if lanes == 1 else kind[1:-1].partition(" x ")[2]
    if not known:
        code.unit.declare(name, scalar, ", ".join([scalar] * len(args)))
    if lanes == 1:
        operands = ", ".join(f"{scalar} {arg}" for arg in args)
        return code.value(f"call {scalar} @{name}({operands})")
    result = "poison"
    for lane in range(lanes):
        parts = [code.value(f"extractelement {kind} {arg}, i64 {lane}") for arg in args]
        one = _per_lane(code, name, scalar, parts, 1, known=known)
        result = code.value(f"insertelement {kind} {result}, {scalar} {one}, i64 {lane}")
    return result


def reduce(code: Code, op: str, dtype: DType, operand: str) -> str:
    """Return the lanes of *operand* (a vector of *dtype*) combined by *op*."""
    kind, scalar = register(dtype), register(dtype.element)
    name = BOOLEAN.get(op, op) if dtype.kind == "bool" else REDUCTIONS[op][row(dtype)]
    name = f"llvm.vector.reduce.{name}.{suffix(kind)}"
    if dtype.is_float and op in ("+", "*"):
        start = float_literal(-0.0 if op == "+" else 1.0)
        called = code.unit.declare(name, scalar, f"{scalar}, {kind}")
        return code.value(f"call {FAST} {scalar} {called}({scalar} {start}, {kind} {operand})")
    called = code.unit.declare(name, scalar, kind)
    return code.value(f"call {'nsz ' if dtype.is_float else ''}{scalar} {called}({kind} {operand})")
