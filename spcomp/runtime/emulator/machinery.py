"""Beside the kernels: the emulator's own machine code in this process, and what it is made for."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import cache

from spcomp.codegen import cpu
from spcomp.codegen.cpu.machine import attributes
from spcomp.runtime.emulator import collectives, language, matrices, memory, scheduler
from spcomp.runtime.native import load as native
from spcomp.target import Target

_EXPORTS = (
    *("run", "fail", "check", "check_local"),
    *("copy_async", "commit", "wait_groups", "wait_all"),
)


def host() -> Target:
    """Return the target for this machine; raises BackendError if it is another's."""
    target = cpu.resolve(Target())
    cpu.check_runnable(target)
    return target


def function_attributes() -> str:
    """Return the attributes of the functions of kernels.

    The processor's own roundings to bfloat take subnormal numbers for 0, which a GPU does not.
    """
    return re.sub(r"\+(avx512bf16|avxneconvert)\b", r"-\1", attributes(host()))


@cache
def addresses() -> Mapping[str, int]:
    """Return the addresses of the emulator's own functions, by symbol."""
    modules = (scheduler, memory, collectives, matrices)
    text = language.llvm_ir(modules, _EXPORTS, attributes(host()))
    loaded = native.load([text], [f"emu.{name}" for name in _EXPORTS])
    return {f"emu.{name}": loaded[f"emu.{name}"] for name in _EXPORTS}


def run(words: int, first: int, end: int) -> bool:
    """Run the blocks *first* to *end* of the launch at *words*; return whether one went wrong."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return bool(kind(addresses()["emu.run"])(words, first, end))
