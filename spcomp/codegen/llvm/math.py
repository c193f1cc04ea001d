"""Flat IR to LLVM IR, arithmetic that needs more than one instruction.

Nothing here traps: divisors of integers are made safe and a zero is reported to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

from spcomp.codegen.llvm.code import Code
from spcomp.codegen.llvm.exp import exp
from spcomp.codegen.llvm.ops import (
    BOOLEAN,
    EXTREME,
    MATH,
    PURE,
    REDUCTIONS,
    float_literal,
    integer_in,
    literal,
    register,
    row,
    splat,
    suffix,
    vector,
)
from spcomp.codegen.llvm.pow import power
from spcomp.dtypes import DType
from spcomp.errors import LoweringError

OnZero = Callable[[str], None]  # is given the i1 (or vector of i1): the divisor is zero


def divide(code: Code, op: str, dtype: DType, lhs: str, rhs: str, on_zero: OnZero) -> str:
    """Return ``lhs // rhs`` or ``lhs % rhs``, rounding towards minus infinity."""
    if dtype.is_float:
        return _divide_floats(code, op, dtype, lhs, rhs)
    divisor = integer_in(rhs)
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        return _by_power_of_two(code, op, dtype, lhs, divisor)
    if divisor is None or divisor in (0, -1):
        rhs = _safe_divisor(code, dtype, lhs, rhs, on_zero)
    kind = register(dtype)
    if dtype.kind != "int":
        return code.value(f"{'udiv' if op == '//' else 'urem'} {kind} {lhs}, {rhs}")
    remainder = code.value(f"srem {kind} {lhs}, {rhs}")
    zero = splat(kind, "0")
    if divisor is not None and divisor > 0:
        off = code.value(f"icmp slt {kind} {remainder}, {zero}")
    else:
        signs = code.value(f"xor {kind} {remainder}, {rhs}")
        differ = code.value(f"icmp slt {kind} {signs}, {zero}")
        off = code.value(f"icmp ne {kind} {remainder}, {zero}")
        off = code.value(f"and {register_of_bool(dtype)} {off}, {differ}")
    if op == "%":
        modulo = code.value(f"add {kind} {remainder}, {rhs}")
        return code.value(
            f"select {register_of_bool(dtype)} {off}, {kind} {modulo}, {kind} {remainder}"
        )
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


def _divide_floats(code: Code, op: str, dtype: DType, lhs: str, rhs: str) -> str:
    """As numpy: the remainder has the divisor's sign and the quotient agrees with it, zeros too."""
    kind, truth = register(dtype), register_of_bool(dtype)
    zero, one = splat(kind, float_literal(0.0)), splat(kind, float_literal(1.0))
    remainder = code.unit.dialect.library(code, dtype, "fmod", lhs, rhs)
    differ = [code.value(f"fcmp olt {kind} {operand}, {zero}") for operand in (remainder, rhs)]
    off = code.value(f"xor {truth} {differ[0]}, {differ[1]}")
    off = code.value(f"and {truth} {off}, {code.value(f'fcmp une {kind} {remainder}, {zero}')}")
    if op == "%":
        modulo = code.value(f"fadd {kind} {remainder}, {rhs}")
        modulo = code.value(f"select {truth} {off}, {kind} {modulo}, {kind} {remainder}")
        return _signed_zero(code, dtype, modulo, rhs)
    exact = code.value(f"fsub {kind} {lhs}, {remainder}")
    quotient = code.value(f"fdiv {kind} {exact}, {rhs}")
    below = code.value(f"fsub {kind} {quotient}, {one}")
    quotient = code.value(f"select {truth} {off}, {kind} {below}, {kind} {quotient}")
    nearest = code.intrinsic("rint", kind, quotient)  # an integer but for rounding
    plain = code.value(f"fdiv {kind} {lhs}, {rhs}")
    nearest = _signed_zero(code, dtype, nearest, plain)
    by_zero = code.value(f"fcmp oeq {kind} {rhs}, {zero}")
    return code.value(f"select {truth} {by_zero}, {kind} {plain}, {kind} {nearest}")


def _signed_zero(code: Code, dtype: DType, value: str, like: str) -> str:
    """Return *value*, with the sign of *like* if it is zero."""
    kind, truth = register(dtype), register_of_bool(dtype)
    zero = splat(kind, float_literal(0.0))
    is_zero = code.value(f"fcmp oeq {kind} {value}, {zero}")
    signed = code.intrinsic("copysign", kind, zero, like)
    return code.value(f"select {truth} {is_zero}, {kind} {signed}, {kind} {value}")


def shift(code: Code, op: str, dtype: DType, lhs: str, rhs: str) -> str:
    """Return ``lhs << rhs`` or ``lhs >> rhs``; a shift by the width or more leaves no bit."""
    kind, truth = register(dtype), register_of_bool(dtype)
    amount, name = (
        integer_in(rhs),
        {"<<": "shl", ">>": "ashr" if dtype.kind == "int" else "lshr"}[op],
    )
    if amount is not None and 0 <= amount < dtype.bits:
        return code.value(f"{name} {kind} {lhs}, {rhs}")
    fits = code.value(f"icmp ult {kind} {rhs}, {splat(kind, str(dtype.bits))}")
    last = splat(kind, str(dtype.bits - 1))
    count = code.value(f"select {truth} {fits}, {kind} {rhs}, {kind} {last}")
    result = code.value(f"{name} {kind} {lhs}, {count}")
    if name == "ashr":
        return result  # only the sign is left, as numpy has it
    return code.value(f"select {truth} {fits}, {kind} {result}, {kind} {splat(kind, '0')}")


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
        case "pow":
            base, exponent = args
            library = partial(code.unit.dialect.library, code, dtype)
            return power(code, dtype, base, exponent, library)
    if func in MATH:
        return code.intrinsic(MATH[func], kind, *args)
    return code.unit.dialect.library(code, dtype, func, *args)


def call_libm(code: Code, dtype: DType, func: str, *args: str) -> str:
    """Return *func* of *args*: the C library's, lane by lane, ``sin`` or, of float32, ``sinf``.

    The exponential of float32 is arithmetic on whole vectors instead.
    """
    kind, scalar = register(dtype), register(dtype.element)
    match func:
        case "fmod":
            return code.value(f"frem {kind} {args[0]}, {args[1]}")
        case "exp" if scalar == "float":
            return exp(code, kind, args[0])
        case "sigmoid":
            one, zero = (splat(kind, float_literal(x)) for x in (1.0, 0.0))
            least = code.value(f"fneg {kind} {code.intrinsic('fabs', kind, args[0])}")
            part = call_libm(code, dtype, "exp", least)  # of 1 for x > 0, else the numerator, too
            below = code.value(f"fcmp olt {kind} {args[0]}, {zero}")
            truth = register_of_bool(dtype)
            over = code.value(f"select {truth} {below}, {kind} {part}, {kind} {one}")
            return code.value(f"fdiv {kind} {over}, {code.value(f'fadd {kind} {one}, {part}')}")
    name = func + ("f" if scalar == "float" else "")
    code.unit.declare(name, scalar, ", ".join([scalar] * len(args)), PURE)
    return per_lane(code, name, kind, args, dtype.lanes)


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
        return per_lane(code, name, kind, args, dtype.lanes)
    raise LoweringError(f"{func} of {dtype} values", hint="cast the argument to a float type")


@cache
def integer_power(name: str, kind: str, less: str) -> str:
    """Return the text of a function: *base* to the *exponent*, which wraps; a fraction is 0."""
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


def per_lane(code: Code, name: str, kind: str, args: Sequence[str], lanes: int) -> str:
    """Return the scalar function *name* applied to each lane of *args*."""
    scalar = kind if lanes == 1 else kind[1:-1].partition(" x ")[2]
    if lanes == 1:
        operands = ", ".join(f"{scalar} {arg}" for arg in args)
        return code.value(f"call {scalar} @{name}({operands})")
    result = "poison"
    for lane in range(lanes):
        parts = [code.value(f"extractelement {kind} {arg}, i64 {lane}") for arg in args]
        value = per_lane(code, name, scalar, parts, 1)
        result = code.value(f"insertelement {kind} {result}, {scalar} {value}, i64 {lane}")
    return result


def reduce(code: Code, op: str, dtype: DType, operand: str) -> str:
    """Return the lanes of *operand* (a vector of *dtype*) combined by *op*."""
    if dtype.is_float and op in ("+", "*"):
        return _halves(code, op, dtype, operand)
    kind, scalar = register(dtype), register(dtype.element)
    name = BOOLEAN.get(op, op) if dtype.kind == "bool" else REDUCTIONS[op][row(dtype)]
    name = f"llvm.vector.reduce.{name}.{suffix(kind)}"
    intrinsic = code.unit.declare(name, scalar, kind)
    flags = EXTREME if dtype.is_float else ""
    return code.value(f"call {flags} {scalar} {intrinsic}({kind} {operand})")


def _halves(code: Code, op: str, dtype: DType, operand: str) -> str:
    """Return the lanes combined in a fixed order: the first half with the second, and so on.

    Lanes added to reach a power of two hold the neutral element.
    """
    kind, lanes, width = register(dtype), dtype.lanes, 1 << (dtype.lanes - 1).bit_length()
    if lanes < width:
        neutral = splat(kind, float_literal(-0.0 if op == "+" else 1.0))
        order = _order(min(lane, lanes) for lane in range(width))
        operand = code.value(f"shufflevector {kind} {operand}, {kind} {neutral}, {order}")
    while width > 2:
        kind, width = register(dtype.with_lanes(width)), width // 2
        sides = [
            code.value(f"shufflevector {kind} {operand}, {kind} poison, {_order(half)}")
            for half in (range(width), range(width, 2 * width))
        ]
        operand = code.arithmetic(op, dtype.with_lanes(width), *sides)
    kind = register(dtype.with_lanes(width))
    last = [code.value(f"extractelement {kind} {operand}, i64 {lane}") for lane in range(width)]
    return code.arithmetic(op, dtype.element, *last) if width > 1 else operand


def _order(places: Iterable[int]) -> str:
    """Return the mask of a shuffle that takes the lanes at *places*."""
    lanes = [f"i32 {place}" for place in places]
    return f"<{len(lanes)} x i32> <{', '.join(lanes)}>"
