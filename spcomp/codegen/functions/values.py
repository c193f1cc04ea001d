"""Functions as LLVM text, the base: operands with Python's operators, and pairs of floats.

A pair (high, low) is a number of twice the digits, the unrounded sum of its parts. No instruction
has a flag that lets LLVM change it, and what is to be fused is written as ``fma``: a function has
the same bits on every processor. Sources: Dekker, "A Floating-Point Technique for Extending the
Available Precision" (1971); Muller et al., "Handbook of Floating-Point Arithmetic", 4 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spcomp.codegen.llvm.code import Code
from spcomp.codegen.llvm.ops import float_literal, splat, suffix
from spcomp.dtypes import DType, float32, float64, round_to


@dataclass(frozen=True, slots=True)
class Format:
    """A float of IEEE 754 and the integer of its bits: *fraction* bits below the exponent."""

    dtype: DType
    real: str
    word: str
    bits: int
    fraction: int
    bias: int


FORMATS = {
    "float": Format(float32, "float", "i32", 32, 23, 127),
    "double": Format(float64, "double", "i64", 64, 52, 1023),
}


def scalar(kind: str) -> str:
    """Return the type of the elements of the type *kind*."""
    return kind[1:-1].partition(" x ")[2] if kind.startswith("<") else kind


Operand: TypeAlias = "Value | float"
Pair: TypeAlias = "tuple[Value, Value]"


@dataclass(frozen=True, slots=True)
class Value:
    """The operand *name* of the LLVM type *kind*: float, double, an integer, i1; or vectors."""

    code: Code
    kind: str
    name: str

    @property
    def format(self) -> Format:
        """The format of a float."""
        return FORMATS[scalar(self.kind)]

    @property
    def is_float(self) -> bool:
        """Whether it is a float, and no integer."""
        return scalar(self.kind) in FORMATS

    def like(self, kind: str) -> str:
        """Return the type of as many elements of the type *kind*."""
        return self.kind.replace(scalar(self.kind), scalar(kind))

    def to(self, number: Operand) -> Value:
        """Return *number* as an operand of this type."""
        if isinstance(number, Value):
            return number
        if self.is_float:
            text = float_literal(round_to(self.format.dtype, float(number)))
        else:
            text = str(int(number))
        return Value(self.code, self.kind, splat(self.kind, text))

    def _binary(self, float_name: str, name: str, other: Operand, *, swap: bool = False) -> Value:
        instruction = float_name if self.is_float else name
        sides = (self.to(other), self) if swap else (self, self.to(other))
        text = f"{instruction} {self.kind} {sides[0].name}, {sides[1].name}"
        return Value(self.code, self.kind, self.code.value(text))

    def __add__(self, other: Operand) -> Value:
        return self._binary("fadd", "add", other)

    def __radd__(self, other: Operand) -> Value:
        return self._binary("fadd", "add", other, swap=True)

    def __sub__(self, other: Operand) -> Value:
        return self._binary("fsub", "sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return self._binary("fsub", "sub", other, swap=True)

    def __mul__(self, other: Operand) -> Value:
        return self._binary("fmul", "mul", other)

    def __rmul__(self, other: Operand) -> Value:
        return self._binary("fmul", "mul", other, swap=True)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", "", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", "", other, swap=True)

    def __floordiv__(self, other: Operand) -> Value:  # of unsigned integers
        return self._binary("", "udiv", other)

    def __mod__(self, other: Operand) -> Value:  # of unsigned integers
        return self._binary("", "urem", other)

    def __and__(self, other: Operand) -> Value:
        return self._binary("", "and", other)

    def __or__(self, other: Operand) -> Value:
        return self._binary("", "or", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("", "xor", other)

    def __lshift__(self, other: Operand) -> Value:
        return self._binary("", "shl", other)

    def __rshift__(self, other: Operand) -> Value:  # keeps the sign
        return self._binary("", "ashr", other)

    def shifted(self, other: Operand) -> Value:
        """Return the bits of an integer moved down, with zeros above."""
        return self._binary("", "lshr", other)

    def __neg__(self) -> Value:
        if self.is_float:
            return Value(self.code, self.kind, self.code.value(f"fneg {self.kind} {self.name}"))
        return 0 - self

    def __abs__(self) -> Value:
        return self.call("fabs")

    def __invert__(self) -> Value:  # of an i1
        return self._binary("", "xor", -1)

    def _compare(self, float_name: str, name: str, other: Operand) -> Value:
        instruction = f"fcmp {float_name}" if self.is_float else f"icmp {name}"
        text = f"{instruction} {self.kind} {self.name}, {self.to(other).name}"
        return Value(self.code, self.like("i1"), self.code.value(text))

    def __lt__(self, other: Operand) -> Value:
        return self._compare("olt", "slt", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("ole", "sle", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare("ogt", "sgt", other)

    def __ge__(self, other: Operand) -> Value:
        return self._compare("oge", "sge", other)

    def equals(self, other: Operand) -> Value:
        """Return whether the two are equal; NaN is not."""
        return self._compare("oeq", "eq", other)

    def differs(self, other: Operand) -> Value:
        """Return whether the two are ordered and not equal."""
        return self._compare("one", "ne", other)

    def select(self, then: Value, otherwise: Operand) -> Value:
        """Return *then* where this i1 holds, else *otherwise*."""
        other = then.to(otherwise)
        text = f"select {self.kind} {self.name}, {then.kind} {then.name}, {then.kind} {other.name}"
        return Value(self.code, then.kind, self.code.value(text))

    def call(self, intrinsic: str, *others: Operand) -> Value:
        """Return LLVM's *intrinsic* of this and *others*, all of one type."""
        names = [self.name, *(self.to(other).name for other in others)]
        return Value(self.code, self.kind, self.code.intrinsic(intrinsic, self.kind, *names))

    def convert(self, instruction: str, kind: str) -> Value:
        """Return the result of a conversion: bitcast, sext, fptrunc, sitofp, ..."""
        kind = self.like(kind)
        text = f"{instruction} {self.kind} {self.name} to {kind}"
        return Value(self.code, kind, self.code.value(text))

    def fma(self, factor: Operand, addend: Operand) -> Value:
        """Return ``self * factor + addend``, rounded once."""
        return self.call("fma", factor, addend)

    def bits(self) -> Value:
        """Return the bits of a float."""
        return self.convert("bitcast", self.format.word)

    def real(self) -> Value:
        """Return the float that has these bits."""
        return self.convert("bitcast", {"i32": "float", "i64": "double"}[scalar(self.kind)])

    def clamp(self, least: float, most: float) -> Value:
        """Return the float nearest to this one from *least* to *most*; NaN stays NaN."""
        above = (self < least).select(self.to(least), self)
        return (above > most).select(self.to(most), above)

    def copysign(self, sign: Value) -> Value:
        """Return this float with the sign of *sign*."""
        return self.call("copysign", sign)


def polynomial(x: Value, terms: Sequence[float]) -> Value:
    """Return the polynomial of *x* with the coefficients *terms*, lowest power first."""
    total = x.to(terms[-1])
    for term in terms[-2::-1]:
        total = total.fma(x, term)
    return total


def either(
    cond: Value,
    then: Callable[[], tuple[Value, ...]],
    otherwise: Callable[[], tuple[Value, ...]],
) -> tuple[Value, ...]:
    """Return the values of *then* or *otherwise*; only one of them runs.

    Of vectors, *otherwise* runs for all lanes, and *then* as well where one of them needs it.
    """
    code = cond.code
    if cond.kind != "i1":
        return _either_lane(cond, then, otherwise)
    yes, no, join = (code.label(hint) for hint in ("then", "else", "join"))
    code.branch(cond.name, yes, no)
    arms: list[tuple[tuple[Value, ...], str]] = []
    for label, arm in ((yes, then), (no, otherwise)):
        code.start(label)
        arms.append((arm(), code.block))
        code.jump(join)
    code.start(join)
    (lefts, left), (rights, right) = arms
    texts = (
        (a.kind, f"phi {a.kind} [ {a.name}, %{left} ], [ {b.name}, %{right} ]")
        for a, b in zip(lefts, rights, strict=True)
    )
    return tuple(Value(code, kind, code.value(text)) for kind, text in texts)


def _either_lane(
    cond: Value,
    then: Callable[[], tuple[Value, ...]],
    otherwise: Callable[[], tuple[Value, ...]],
) -> tuple[Value, ...]:
    code, plain = cond.code, otherwise()
    name = f"llvm.vector.reduce.or.{suffix(cond.kind)}"
    code.unit.declare(name, "i1", cond.kind)
    some = Value(code, "i1", code.value(f"call i1 @{name}({cond.kind} {cond.name})"))

    def both() -> tuple[Value, ...]:
        pairs = zip(then(), plain, strict=True)
        return tuple(cond.select(one, other) for one, other in pairs)

    return either(some, both, lambda: plain)


def repeat(
    start: Sequence[Value],
    more: Callable[..., Value],
    step: Callable[..., tuple[Value, ...]],
) -> tuple[Value, ...]:
    """Return the values after as many steps from *start* as *more* holds before."""
    code = start[0].code
    head, body, end = (code.label(hint) for hint in ("head", "body", "end"))
    before = code.block
    code.jump(head)
    code.start(head)
    values = tuple(Value(code, value.kind, code.name()) for value in start)
    place = len(code.lines)
    code.branch(more(*values).name, body, end)
    code.start(body)
    after = step(*values)
    code.lines[place:place] = [
        f"  {v.name} = phi {v.kind} [ {a.name}, %{before} ], [ {b.name}, %{code.block} ]"
        for v, a, b in zip(values, start, after, strict=True)
    ]
    code.jump(head)
    code.start(end)
    return values


def two_sum(a: Value, b: Operand) -> Pair:
    """Return ``a + b`` exactly."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def quick_sum(a: Operand, b: Value) -> Pair:
    """Return ``a + b`` exactly, where a is 0 or its exponent is not below that of b."""
    total = a + b
    return total, b - (total - a)


def product(a: Value, b: Operand) -> Pair:
    """Return ``a * b`` exactly."""
    total = a * b
    return total, a.fma(b, -total)


def multiply(a: Pair, b: tuple[Operand, Operand]) -> Pair:
    """Return the product of two pairs, but for a few units of its last place."""
    high, low = product(a[0], b[0])
    return quick_sum(high, a[0].fma(b[1], a[1].fma(b[0], low)))


def divide(a: tuple[Operand, Operand], b: Pair) -> Pair:
    """Return the quotient of two pairs; its error is less than that of its low part."""
    reciprocal = 1.0 / b[0]
    high = reciprocal * a[0]
    remainder = (-high).fma(b[0], a[0]) + (-high).fma(b[1], a[1])
    return quick_sum(high, remainder * reciprocal)


def power_of_two(exponent: Value, real: str) -> Value:
    """Return the float 2 ** exponent, which must be a normal number (or 0: the least minus 1)."""
    layout = FORMATS[scalar(real)]
    return ((exponent + layout.bias) << layout.fraction).real()


def times_power_of_two(x: Value, exponent: Value) -> Value:
    """Return ``x * 2 ** exponent`` for a normal x, rounded to a subnormal number if it is one."""
    half = exponent >> 1
    return x * power_of_two(half, x.kind) * power_of_two(exponent - half, x.kind)


def round_to_integer(x: Value, factor: float) -> tuple[Value, Value]:
    """Return ``x * factor`` rounded, as a float and as an integer; any integer of NaN."""
    magic = 1.5 * 2.0**x.format.fraction  # added to a small number, it leaves the nearest integer
    shifted = x.fma(factor, magic)
    return shifted - magic, shifted.bits() - x.to(magic).bits()


def split(number: tuple[float, float], x: Value) -> tuple[float, float, float]:
    """Return the constant *number*, a pair of doubles, as three parts in the format of *x*."""
    if x.format.bits == 64:
        return number[0], number[1], 0.0
    first = round_to(float32, number[0])
    second = round_to(float32, number[0] - first)
    return first, second, round_to(float32, (number[0] - first) - second + number[1])
