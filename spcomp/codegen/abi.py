"""Between code generation and the runtime: what a compiled function is called with and returns.

A function is two symbols. ``i32 symbol(parameters in order)`` has C types: a pointer per handle,
the bits of a 16-bit float as ``uint16_t``, a bool as ``uint8_t``. ``i32 packed(ptr slots)`` takes
an array of 8-byte slots in the same order. Both return the status: 0, the number of the message
plus one, or ``DIVISION`` for an integer divided by zero.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from spcomp.dtypes import DType
from spcomp.ir.expr import CALLS

OK, DIVISION = 0, -1
OUT_OF_MEMORY = "out of memory"
PARALLEL_FOR = "spcomp_parallel_for"  # void (ptr fn, ptr ctx, i64 n, i64 grain): see runtime.pool
_LIBC = (  # what is called by name, or by LLVM on its own account
    *("main", "malloc", "calloc", "free", "abort", "exit", "sched_yield"),
    *("memcpy", "memmove", "memset", "memcmp", "bcmp", "bzero", "sincos", "exp10"),
    *("fmod", "modf", "frexp", "ldexp", "copysign", "fmin", "fmax", "fminimum"),
    *("fmaximum", "rint", "nearbyint", "roundeven", "lrint", "llrint", "lround", "llround"),
)
_TAKEN = frozenset(name + tail for name in (*CALLS, *_LIBC) for tail in ("", "f"))


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: a scalar of *dtype*, or a pointer to *element* values (None: never accessed)."""

    name: str
    dtype: DType
    element: DType | None = None
    written: bool = False


@dataclass(frozen=True, slots=True)
class FunctionABI:
    """How to call one compiled function; status k > 0 means ``messages[k - 1]``."""

    name: str
    symbol: str
    packed: str
    params: tuple[Param, ...]
    messages: tuple[str, ...] = ()
    parallel: bool = False

    def message(self, status: int) -> str:
        """Return what a *status* other than 0 says to the user."""
        return "integer division by zero" if status == DIVISION else self.messages[status - 1]


@dataclass(frozen=True, slots=True)
class Emitted:
    """LLVM IR text and the functions in it."""

    llvm_ir: str
    functions: tuple[FunctionABI, ...]

    def __getitem__(self, name: str) -> FunctionABI:
        """Return the function called *name*; raises KeyError."""
        for function in self.functions:
            if function.name == name:
                return function
        raise KeyError(name)

    @property
    def parallel(self) -> bool:
        """Whether the code calls the worker pool."""
        return any(function.parallel for function in self.functions)


def symbols(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return for each of *names* its C symbol and packed symbol: ASCII, distinct, not of libc."""
    taken: set[str] = set(_TAKEN)
    result = []
    for name in names:
        symbol = re.sub(r"[^A-Za-z0-9_]", lambda m: f"_u{ord(m[0]):x}", name)
        while symbol in taken or f"{symbol}__packed" in taken or symbol.startswith("spcomp_"):
            symbol = f"k_{symbol}"
        taken |= {symbol, f"{symbol}__packed"}
        result.append((symbol, f"{symbol}__packed"))
    return result


def pack(dtype: DType, value: float) -> int:
    """Return the slot, as a signed 64-bit integer, for a scalar argument of *dtype*.

    float16 and bfloat16 are rounded to nearest, ties to even; integers must be in range.
    """
    if dtype.kind == "bfloat":
        return bfloat16_bits(float(value))
    if dtype.is_float:
        code = {16: "<e6x", 32: "<f4x", 64: "<d"}[dtype.bits]
        data = struct.pack(code, _in_range(dtype.bits, float(value)))
    else:
        data = int(value).to_bytes(8, "little", signed=value < 0)
    return int.from_bytes(data, "little", signed=True)


def bfloat16_bits(value: float) -> int:
    """Return the 16 bits of *value* rounded to bfloat16."""
    if value != value:
        return 0x7FC0
    word = int.from_bytes(struct.pack("<f", _in_range(32, value)), "little")
    return (word + 0x7FFF + ((word >> 16) & 1)) >> 16


def rounded(dtype: DType, value: float) -> float:
    """Return *value* rounded to the float type *dtype*."""
    if dtype.kind == "bfloat":
        code, data = "<f", struct.pack("<I", bfloat16_bits(value) << 16)
    else:
        code = {16: "<e", 32: "<f", 64: "<d"}[dtype.bits]
        data = struct.pack(code, _in_range(dtype.bits, value))
    return float(struct.unpack(code, data)[0])


def _in_range(bits: int, value: float) -> float:
    limit = {16: 65520.0, 32: float.fromhex("0x1.ffffffp127"), 64: float("inf")}[bits]
    if abs(value) < limit or value != value:
        return value
    return float("inf") if value > 0 else float("-inf")
