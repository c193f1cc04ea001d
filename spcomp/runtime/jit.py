"""Machine code to addresses: objects linked into this process by LLVM's ORC JIT."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from spcomp.codegen.llvm.module import ROOM, require_room
from spcomp.errors import BackendError
from spcomp.locks import shield_from_signals

OBJECTS_PER_LINKER = 32  # a linker keeps some kilobytes of each object as long as it lives
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """Code in memory: the addresses of exported symbols, valid as long as this object lives."""

    addresses: Mapping[str, int]
    _keep: Any = field(repr=False)

    def function(self, symbol: str) -> Any:
        """Return ``int32 symbol(void *)`` as a callable that keeps the code alive."""
        callable_ = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self.addresses[symbol])
        callable_.loaded = self  # type: ignore[attr-defined]
        return callable_


@shield_from_signals
def load(
    obj: bytes,
    symbols: Iterable[str],
    imports: Mapping[str, int] | None = None,
    *,
    forever: bool = False,
) -> LoadedCode:
    """Link the relocatable *obj* and return the addresses of *symbols*.

    *imports* are addresses of symbols that the object needs besides those of the process (libc,
    libm). *forever* keeps the code even when nothing refers to it. Raises BackendError if a symbol
    is missing.
    """
    symbols = tuple(symbols)
    builder = llvm.JITLibraryBuilder().add_object_img(obj).add_current_process()
    for name, address in (imports or {}).items():
        builder.import_symbol(name, address)
    for name in symbols:
        builder.export_symbol(name)
    number = next(_NUMBERS)
    require_room(ROOM + 4 * len(obj))
    try:
        tracker = builder.link(_linker(number // OBJECTS_PER_LINKER), f"spcomp{number}")
    except RuntimeError as error:
        raise BackendError(f"machine code does not link: {error}") from error
    if forever:
        _keep_forever(tracker)
    return LoadedCode({name: tracker[name] for name in symbols}, tracker)


@lru_cache(maxsize=1)
def _linker(group: int) -> llvm.LLJIT:  # noqa: ARG001
    """Return the linker of *group*; after the next group begins, it lives as long as its objects.

    JITLink keeps an object's sections together. The older linker, RuntimeDyld, spreads them, and
    crashes on 64-bit ARM if they are too far apart.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=sys.platform != "win32", suppress_errors=True)


def _keep_forever(tracker: object) -> None:
    """Never dispose *tracker*: other threads may still run its code when the process exits."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tracker))
