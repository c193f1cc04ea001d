"""Machine code, its undefined symbols: the names in an object that others have to define.

The code generator adds some by itself, and an optimisation may turn one call into another. Linking
would find most of them, but not a function whose parameters differ from those of the call.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from spcomp.errors import InternalError

_ROUNDING = ("floor", "ceil", "trunc", "rint", "nearbyint", "roundeven", "fma", "fmod")
ADDED = frozenset(  # what the code generator may call for instructions that a target lacks
    (
        *("memcpy", "memmove", "memset", "memcmp", "bcmp", "bzero", "memset_pattern16"),
        *(name + tail for name in _ROUNDING for tail in ("", "f")),
        *("_GLOBAL_OFFSET_TABLE_", "__chkstk", "_fltused"),
    )
)
_UNDEFINED_MACHO, _MACHO_MASK = 0x01, 0xEF  # external, of no section, not for a debugger


def check_symbols(obj: bytes, llvm_ir: str) -> None:
    """Raise InternalError if *obj* needs a symbol that its source *llvm_ir* does not declare."""
    declared = set(re.findall(r"^declare [^@\n]*@([\w.]+)\(", llvm_ir, re.MULTILINE))
    strange = undefined(obj) - declared - ADDED
    if strange:
        names = ", ".join(sorted(strange))
        raise InternalError("optimization", f"the machine code calls {names}, the program does not")


def undefined(obj: bytes) -> frozenset[str]:
    """Return the undefined symbols of the object file *obj* (ELF, Mach-O or COFF)."""
    if obj.startswith(b"\x7fELF"):
        return frozenset(_elf(obj))
    if obj.startswith(b"\xcf\xfa\xed\xfe"):
        return frozenset(_macho(obj))
    return frozenset(_coff(obj))


def _text(obj: bytes, at: int) -> str:
    return obj[at : obj.index(b"\0", at)].decode()


def _elf(obj: bytes) -> Iterator[str]:
    (at,) = struct.unpack_from("<Q", obj, 0x28)
    size, count = struct.unpack_from("<HH", obj, 0x3A)
    headers = [struct.unpack_from("<4xI16xQQI", obj, at + size * k) for k in range(count)]
    for kind, begin, length, names in headers:
        if kind != 2:  # a table of symbols
            continue
        strings = headers[names][1]
        for name, section in struct.iter_unpack("<I2xH16x", obj[begin : begin + length]):
            if name and section == 0:
                yield _text(obj, strings + name)


def _macho(obj: bytes) -> Iterator[str]:
    (commands,) = struct.unpack_from("<16xI", obj)
    at = 32
    for _ in range(commands):
        command, size, begin, count, strings = struct.unpack_from("<5I", obj, at)
        at += size
        if command != 2:  # the table of symbols
            continue
        for name, kind in struct.iter_unpack("<IB11x", obj[begin : begin + 16 * count]):
            if kind & _MACHO_MASK == _UNDEFINED_MACHO:
                yield _text(obj, strings + name).removeprefix("_")


def _coff(obj: bytes) -> Iterator[str]:
    begin, count = struct.unpack_from("<8xII", obj)
    strings = begin + 18 * count
    at = 0
    while at < count:
        short, value, section, kind, more = struct.unpack_from("<8sIh2xBB", obj, begin + 18 * at)
        if section == 0 and kind == 2 and value == 0:  # external, of no section, not common
            long = struct.unpack("<II", short)
            yield short.rstrip(b"\0").decode() if long[0] else _text(obj, strings + long[1])
        at += 1 + more
