"""Flat IR to LLVM IR, conversions: between registers and memory, and between dtypes.

16-bit floats are computed as float32. Where the target has no instruction for float16 (nor the JIT
a compiler runtime) the conversions are integer arithmetic: exact, round to nearest even.
"""

from __future__ import annotations

from spcomp.codegen.llvm.code import Code
from spcomp.codegen.llvm.ops import float_literal, memory, register, splat, suffix, vector, zero
from spcomp.dtypes import DType


class Bits:
    """Integer arithmetic on the bits of *lanes* float32 values, as readable steps."""

    def __init__(self, code: Code, lanes: int) -> None:
        self.code = code
        self.i16, self.i32 = vector("i16", lanes), vector("i32", lanes)
        self.f32, self.i1 = vector("float", lanes), vector("i1", lanes)

    def op(self, name: str, lhs: str, rhs: int | str) -> str:
        """Return ``lhs name rhs`` on i32."""
        operand = splat(self.i32, str(rhs)) if isinstance(rhs, int) else rhs
        return self.code.value(f"{name} {self.i32} {lhs}, {operand}")

    def cast(self, name: str, value: str, source: str, target: str) -> str:
        """Return *value* converted by the instruction *name*."""
        return self.code.value(f"{name} {source} {value} to {target}")

    def select(self, cond: str, then: str | int, otherwise: str) -> str:
        """Return *then* where *cond*, on i32."""
        operand = splat(self.i32, str(then)) if isinstance(then, int) else then
        return self.code.value(
            f"select {self.i1} {cond}, {self.i32} {operand}, {self.i32} {otherwise}"
        )


def decode(code: Code, raw: str, dtype: DType) -> str:
    """Return the value of *dtype* whose memory holds *raw*."""
    kind = memory(dtype)
    if dtype.kind == "bool":
        return code.value(f"icmp ne {kind} {raw}, {splat(kind, '0')}")
    if not dtype.is_float or dtype.bits != 16:
        return raw
    bits = Bits(code, dtype.lanes)
    if dtype.kind == "bfloat":
        wide = bits.op("shl", bits.cast("zext", raw, bits.i16, bits.i32), 16)
        return bits.cast("bitcast", wide, bits.i32, bits.f32)
    if code.unit.dialect.has_half:
        half = vector("half", dtype.lanes)
        return bits.cast("fpext", bits.cast("bitcast", raw, bits.i16, half), half, bits.f32)
    return _half_to_float(bits, raw)


def encode(code: Code, value: str, dtype: DType) -> str:
    """Return what memory holds for *value* of *dtype*; 16-bit floats are rounded here."""
    if dtype.kind == "bool":
        return code.value(f"zext {register(dtype)} {value} to {memory(dtype)}")
    if not dtype.is_float or dtype.bits != 16:
        return value
    bits = Bits(code, dtype.lanes)
    if dtype.kind == "bfloat":
        return _float_to_bfloat(bits, value)
    if code.unit.dialect.has_half:
        half = vector("half", dtype.lanes)
        return bits.cast("bitcast", bits.cast("fptrunc", value, bits.f32, half), half, bits.i16)
    return _float_to_half(bits, value)


def _half_to_float(bits: Bits, raw: str) -> str:
    code = bits.code
    wide = bits.cast("zext", raw, bits.i16, bits.i32)
    magnitude = bits.op("and", wide, 0x7FFF)
    subnormal = bits.cast("uitofp", magnitude, bits.i32, bits.f32)
    scale = splat(bits.f32, float_literal(2.0**-24))
    subnormal = code.value(f"fmul {bits.f32} {subnormal}, {scale}")
    subnormal = bits.cast("bitcast", subnormal, bits.f32, bits.i32)
    normal = bits.op("add", bits.op("shl", magnitude, 13), 112 << 23)
    special = bits.op("add", normal, 112 << 23)  # the exponent of infinity and NaN
    is_special = bits.code.value(f"icmp uge {bits.i32} {magnitude}, {splat(bits.i32, '31744')}")
    is_small = bits.code.value(f"icmp ult {bits.i32} {magnitude}, {splat(bits.i32, '1024')}")
    result = bits.select(is_small, subnormal, bits.select(is_special, special, normal))
    sign = bits.op("shl", bits.op("and", wide, 0x8000), 16)
    return bits.cast("bitcast", bits.op("or", result, sign), bits.i32, bits.f32)


def _float_to_half(bits: Bits, value: str) -> str:
    code = bits.code
    wide = bits.cast("bitcast", value, bits.f32, bits.i32)
    magnitude = bits.op("and", wide, 0x7FFFFFFF)
    odd = bits.op("and", bits.op("lshr", magnitude, 13), 1)
    normal = bits.op("add", bits.op("add", magnitude, 0xFFF - (112 << 23)), odd)
    normal = bits.op("lshr", normal, 13)
    # Adding 0.5 moves the last place of a subnormal to bit 0 of the sum, and rounds.
    shifted = bits.cast("bitcast", magnitude, bits.i32, bits.f32)
    shifted = code.value(f"fadd {bits.f32} {shifted}, {splat(bits.f32, float_literal(0.5))}")
    small = bits.op("sub", bits.cast("bitcast", shifted, bits.f32, bits.i32), 126 << 23)
    is_small = code.value(f"icmp ult {bits.i32} {magnitude}, {splat(bits.i32, str(113 << 23))}")
    is_huge = code.value(f"icmp uge {bits.i32} {magnitude}, {splat(bits.i32, str(143 << 23))}")
    is_nan = code.value(f"icmp ugt {bits.i32} {magnitude}, {splat(bits.i32, str(255 << 23))}")
    huge = bits.select(is_nan, 0x7E00, splat(bits.i32, str(0x7C00)))
    result = bits.select(is_huge, huge, bits.select(is_small, small, normal))
    sign = bits.op("and", bits.op("lshr", wide, 16), 0x8000)
    return bits.cast("trunc", bits.op("or", result, sign), bits.i32, bits.i16)


def _float_to_bfloat(bits: Bits, value: str) -> str:
    wide = bits.cast("bitcast", value, bits.f32, bits.i32)
    upper = bits.op("lshr", wide, 16)
    rounded = bits.op("add", bits.op("add", wide, 0x7FFF), bits.op("and", upper, 1))
    is_nan = bits.code.value(f"fcmp uno {bits.f32} {value}, {value}")
    result = bits.select(is_nan, bits.op("or", upper, 0x40), bits.op("lshr", rounded, 16))
    return bits.cast("trunc", result, bits.i32, bits.i16)


def convert(code: Code, value: str, source: DType, target: DType) -> str:
    """Return *value* of dtype *source* as *target* (of as many lanes)."""
    old, new = register(source), register(target)
    if source == target:
        return value
    if target.kind == "bool":
        test = "fcmp une" if source.is_float else "icmp ne"
        zeros = splat(old, float_literal(0.0)) if source.is_float else zero(source)
        return code.value(f"{test} {old} {value}, {zeros}")
    if source.is_float and target.is_float:
        return _float_to_float(code, value, source, target)
    if source.is_float:
        name = f"llvm.fpto{'si' if target.kind == 'int' else 'ui'}.sat.{suffix(new)}.{suffix(old)}"
        return code.value(f"call {new} {code.unit.declare(name, new, old)}({old} {value})")
    if target.is_float:
        step = "sitofp" if source.kind == "int" else "uitofp"
        wide = code.value(f"{step} {old} {value} to {new}")
        return decode(code, encode(code, wide, target), target) if target.bits == 16 else wide
    if source.bits == target.bits:
        return value
    narrow = source.bits > target.bits
    step = "trunc" if narrow else "sext" if source.kind == "int" else "zext"
    return code.value(f"{step} {old} {value} to {new}")


def _float_to_float(code: Code, value: str, source: DType, target: DType) -> str:
    lanes = target.lanes
    single, double = vector("float", lanes), vector("double", lanes)
    if target.bits == 64:
        return code.value(f"fpext {single} {value} to {double}")
    if source.bits == 64 and target.bits == 32:
        return code.value(f"fptrunc {double} {value} to {single}")
    if source.bits == 64:
        value = _round_to_odd(Bits(code, lanes), value, double)
    if target.bits == 32:
        return value
    return decode(code, encode(code, value, target), target)


def _round_to_odd(bits: Bits, value: str, double: str) -> str:
    """Return the double as a float that rounds to the same 16 bits as the double itself."""
    code = bits.code
    narrow = bits.cast("fptrunc", value, double, bits.f32)
    back = bits.cast("fpext", narrow, bits.f32, double)
    exact = code.value(f"fcmp ueq {double} {back}, {value}")
    above = code.value(
        f"fcmp ogt {double} {code.intrinsic('fabs', double, back)},"
        f" {code.intrinsic('fabs', double, value)}"
    )
    word = bits.cast("bitcast", narrow, bits.f32, bits.i32)
    toward_zero = bits.op("sub", word, bits.cast("zext", above, bits.i1, bits.i32))
    odd = bits.select(exact, word, bits.op("or", toward_zero, 1))
    return bits.cast("bitcast", odd, bits.i32, bits.f32)
