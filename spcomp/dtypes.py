"""Below everything: scalar and vector types, with names, sizes, rounding and promotion."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["int", "uint", "float", "bfloat", "bool", "handle"]
DIGITS = {16: 4, 32: 8, 64: 16}  # that messages show of a float, by its bits
HOLE = "{}"  # of a message, in which a number is shown


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type, or a vector of *lanes* of it; ``str()`` is its name (``float32x8``)."""

    kind: Kind
    bits: int
    lanes: int = 1

    def __str__(self) -> str:
        base = self.kind if self.kind in ("bool", "handle") else f"{self.kind}{self.bits}"
        return base if self.lanes == 1 else f"{base}x{self.lanes}"

    @property
    def is_float(self) -> bool:
        """Whether values are floating point, of any width."""
        return self.kind in ("float", "bfloat")

    @property
    def is_integer(self) -> bool:
        """Whether values are signed or unsigned integers (bool is neither)."""
        return self.kind in ("int", "uint")

    @property
    def is_word(self) -> bool:
        """Whether values are integers that processors add up in memory, of 32 or 64 bits."""
        return self.is_integer and self.bits in (32, 64)

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return 1 if self.kind == "bool" else self.bits // 8

    @property
    def element(self) -> DType:
        """The type of one lane."""
        return self if self.lanes == 1 else DType(self.kind, self.bits)

    def with_lanes(self, lanes: int) -> DType:
        """Return the vector of *lanes* elements of this type."""
        return DType(self.kind, self.bits, lanes)

    @property
    def numpy_name(self) -> str:
        """The numpy dtype of the values in memory; for bfloat16 that is ``uint16``, its bits."""
        return "uint16" if self.kind == "bfloat" else str(self.element)


int8, int16, int32, int64 = (DType("int", b) for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DType("uint", b) for b in (8, 16, 32, 64))
float16, float32, float64 = (DType("float", b) for b in (16, 32, 64))
bfloat16 = DType("bfloat", 16)
bool_ = DType("bool", 1)
handle = DType("handle", 64)

SCALARS: tuple[DType, ...] = (
    *(int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *(float16, bfloat16, float32, float64, bool_),
)
_BY_NAME = {str(dtype): dtype for dtype in (*SCALARS, handle)}


@cache
def dtype(name: str | DType) -> DType:
    """Return the type with the name *name*; raises ValueError for an unknown one."""
    if isinstance(name, DType):
        return name
    if (known := _BY_NAME.get(name)) is not None:
        return known
    match = re.fullmatch(r"([a-z]+\d*)x(\d+)", name)
    if match is None or match[1] not in _BY_NAME:
        raise ValueError(f"unknown dtype {name!r}")
    return _BY_NAME[match[1]].with_lanes(int(match[2]))


@cache
def promote(a: DType, b: DType) -> DType:
    """Return the type in which values of *a* and *b* are combined.

    The rule is numpy's, except that an integer of any width with a float gives the float's type.
    Wider types win over narrower ones; float16 with bfloat16 gives float32; signed with unsigned
    gives a signed type that holds both, or float64 if there is none.
    """
    if a.lanes != b.lanes:
        scalar = promote(a.element, b.element)
        return scalar.with_lanes(max(a.lanes, b.lanes))
    lanes = a.lanes
    a, b = a.element, b.element
    if a == b:
        return a.with_lanes(lanes)
    if "handle" in (a.kind, b.kind):
        raise ValueError(f"no arithmetic on {a} and {b}")
    return _promote_scalars(a, b).with_lanes(lanes)


def filled(message: str, numbers: Iterable[tuple[DType, Any]]) -> str:
    """Return *message* with *numbers*, each of a scalar type, in place of its holes in turn."""
    for dtype, value in numbers:
        text = f"{float(value):.{DIGITS[dtype.bits]}g}" if dtype.is_float else str(value)
        message = message.replace(HOLE, text, 1)
    return message


def wrap(value: int, dtype: DType) -> int:
    """Return *value* wrapped to *dtype*: equal modulo two to the number of its bits."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> dtype.bits - 1 else value


def bfloat16_bits(value: float) -> int:
    """Return the 16 bits of *value* rounded to bfloat16."""
    if value != value:
        return 0x7FC0
    word = int.from_bytes(struct.pack("<f", in_range(32, value)), "little")
    return (word + 0x7FFF + ((word >> 16) & 1)) >> 16


def round_to(dtype: DType, value: float) -> float:
    """Return *value* rounded to the float type *dtype*."""
    if dtype.kind == "bfloat":
        code, data = "<f", struct.pack("<I", bfloat16_bits(value) << 16)
    else:
        code = {16: "<e", 32: "<f", 64: "<d"}[dtype.bits]
        data = struct.pack(code, in_range(dtype.bits, value))
    return float(struct.unpack(code, data)[0])


def in_range(bits: int, value: float) -> float:
    """Return *value*, or an infinity where a float of *bits* would be rounded to it."""
    limit = {16: 65520.0, 32: float.fromhex("0x1.ffffffp127"), 64: float("inf")}[bits]
    if abs(value) < limit or value != value:
        return value
    return float("inf") if value > 0 else float("-inf")


def _promote_scalars(a: DType, b: DType) -> DType:
    order = {"bool": 0, "uint": 1, "int": 1, "bfloat": 2, "float": 2}
    if order[a.kind] != order[b.kind]:
        return max(a, b, key=lambda t: order[t.kind])
    if a.kind == b.kind:
        return max(a, b, key=lambda t: t.bits)
    if a.is_float:  # bfloat16 against a float of another format
        return max(float32, a, b, key=lambda t: t.bits)
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    bits = max(signed.bits, 2 * unsigned.bits)
    return float64 if bits > 64 else DType("int", bits)
