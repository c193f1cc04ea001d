"""Between code generation and the runtime: what a compiled function is called with and returns.

A function is two symbols. ``i32 symbol(parameters in order)`` has C types: a pointer per handle,
the bits of a 16-bit float as ``uint16_t``, a bool as ``uint8_t``. ``i32 packed(ptr slots)`` takes
an array of 8-byte slots in the same order. Both return the status: 0, the number of the message
plus one, ``DIVISION`` for an integer divided by zero, or ``INTERRUPTED``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from spcomp.dtypes import DType, bfloat16_bits, in_range
from spcomp.ir.analysis.grid import Grid
from spcomp.ir.expr import CALLS

OK, DIVISION = 0, -1
INTERRUPTED = -2  # a signal wants the call to end: see runtime.native.pool_ir
OUT_OF_MEMORY = "out of memory"
# i32 (ptr fn, ptr ctx, i64 n, i64 grain): see runtime.pool. Objects of version 0.6, which may be
# linked into the same program, call a function of another name that returns nothing.
PARALLEL_FOR = "spcomp_parallel_for2"
PAUSE = "spcomp_pause"  # i64 (ptr ctx): work until the next pause, or -1 to end: see pool_watch
RECORDS = 1024  # failures with numbers that are kept for calls to read
TURNS = 1 << 16  # failures that are told apart
BUDGET = 1 << 16  # trips of innermost loops from one pause to the next
_LIBC = (  # functions that code calls by name, or that LLVM calls by itself
    *("main", "malloc", "calloc", "free", "abort", "exit", "sched_yield"),
    *("memcpy", "memmove", "memset", "memcmp", "bcmp", "bzero", "sincos", "exp10"),
    *("fmod", "modf", "frexp", "ldexp", "copysign", "fmin", "fmax", "fminimum"),
    *("fmaximum", "rint", "nearbyint", "roundeven", "lrint", "llrint", "lround", "llround"),
)
_C_WORDS = (
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class co_await"
    " co_return co_yield compl concept const const_cast consteval constexpr constinit continue"
    " decltype default delete do double dynamic_cast else enum explicit export extern false float"
    " for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator"
    " or or_eq private protected public register reinterpret_cast requires restrict return short"
    " signed sizeof static static_assert static_cast struct switch template this thread_local throw"
    " true try typedef typeid typename typeof typeof_unqual union unsigned using virtual void"
    " volatile wchar_t while xor xor_eq linux unix"
)  # keywords of C and C++, and names that compilers define: no declaration can have them
_KEYWORDS = frozenset(_C_WORDS.split())
_RESERVED = _KEYWORDS.union(name + tail for name in (*CALLS, *_LIBC) for tail in ("", "f"))


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: a scalar of *dtype*, or a pointer to *element* values (None: never accessed)."""

    name: str
    dtype: DType
    element: DType | None = None
    written: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Where message *number*, from 1 on, has its numbers, of these *dtypes*.

    Its statuses begin at *number* times TURNS; the rest of a status is the turn of the failure.
    After a word that counts turns, the array *symbol* has RECORDS records: the turn, then the
    numbers as int64 or float64. A later turn may have taken the record of an earlier one.
    """

    number: int
    symbol: str
    dtypes: tuple[DType, ...]

    @property
    def width(self) -> int:
        """The words of a record."""
        return 1 + len(self.dtypes)


@dataclass(frozen=True, slots=True)
class FunctionABI:
    """How to call one compiled function; status k > 0 means ``messages[k - 1]``.

    From TURNS on it is k // TURNS that says the message. *reports*: of messages that have numbers.
    *prints*: to the standard output of C. *grid*: of a kernel for a GPU.
    """

    name: str
    symbol: str
    packed: str
    params: tuple[Param, ...]
    messages: tuple[str, ...] = ()
    parallel: bool = False
    pauses: bool = False  # it asks the pool, now and then, whether to end early
    grid: Grid | None = None
    reports: tuple[Report, ...] = ()
    prints: bool = False

    @property
    def pooled(self) -> bool:
        """Whether the function calls the worker pool."""
        return self.parallel or self.pauses

    def message(self, status: int) -> str:
        """Return what a *status* other than 0 says to the user."""
        texts = {DIVISION: "integer division by zero", INTERRUPTED: "interrupted"}
        number = status // TURNS if status >= TURNS else status
        return texts.get(status) or self.messages[number - 1]

    def report(self, status: int) -> Report | None:
        """Return where the numbers of the message of *status* are, if it has some."""
        found = (report for report in self.reports if report.number == status // TURNS)
        return next(found, None)


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
        """Whether the code has parallel loops."""
        return any(function.parallel for function in self.functions)

    @property
    def pooled(self) -> bool:
        """Whether the code calls the worker pool."""
        return any(function.pooled for function in self.functions)


def symbols(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return for each of *names* its C symbol and packed symbol: ASCII, distinct, not of libc."""
    reserved: set[str] = set(_RESERVED)
    result = []
    for name in names:
        symbol = _ascii(name)
        while symbol in reserved or f"{symbol}__packed" in reserved or symbol.startswith("spcomp_"):
            symbol = f"k_{symbol}"
        reserved |= {symbol, f"{symbol}__packed"}
        result.append((symbol, f"{symbol}__packed"))
    return result


def c_parameters(names: Iterable[str]) -> list[str]:
    """Return what a C declaration calls the parameters *names*: ASCII, distinct, no keywords."""
    result: list[str] = []
    for name in names:
        word = _ascii(name)
        while word in _KEYWORDS or word in result:
            word += "_"
        result.append(word)
    return result


def _ascii(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", lambda m: f"_u{ord(m[0]):x}", name)


def pack(dtype: DType, value: float) -> int:
    """Return the slot, as a signed 64-bit integer, for a scalar argument of *dtype*.

    float16 and bfloat16 are rounded to nearest, ties to even; integers must be in range.
    """
    if dtype.kind == "bfloat":
        return bfloat16_bits(float(value))
    if dtype.is_float:
        code = {16: "<e6x", 32: "<f4x", 64: "<d"}[dtype.bits]
        data = struct.pack(code, in_range(dtype.bits, float(value)))
    else:
        data = int(value).to_bytes(8, "little", signed=value < 0)
    return int.from_bytes(data, "little", signed=True)
