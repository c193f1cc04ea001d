"""Emitted LLVM IR to callable code: compiled or taken from disk, linked and called."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.codegen import cpu
from spcomp.codegen.abi import RECORDS, TURNS, Emitted, FunctionABI
from spcomp.dtypes import HOLE, DType, filled
from spcomp.log import duration, say
from spcomp.runtime import cache, jit, pool, shared
from spcomp.runtime.host import slots
from spcomp.runtime.replay import entry
from spcomp.target import Target

if TYPE_CHECKING:
    from spcomp.ir.func import Func


class Executable:
    """The machine code of *emitted* in this process, for the resolved *target*.

    The object is *obj*, or comes from the disk cache, or is compiled. *timings* has seconds by
    stage. May be called by many threads at once. Raises BackendError if this machine cannot run
    the code.
    """

    def __init__(self, emitted: Emitted, target: Target, *, obj: bytes | None = None) -> None:
        self.emitted, self.target = emitted, cpu.resolve(target)
        cpu.check_runnable(self.target)
        self.timings: dict[str, float] = {}
        self.object_bytes = self._object() if obj is None else obj
        start = time.perf_counter()
        imports = pool.addresses() if emitted.pooled else {}
        symbols = [abi.packed for abi in emitted.functions]
        symbols += [report.symbol for abi in emitted.functions for report in abi.reports]
        self._loaded = self._in_file(symbols, imports) or jit.load(
            self.object_bytes, symbols, imports
        )
        self._entries = {f.name: self._function(f) for f in emitted.functions}
        self.timings["link"] = time.perf_counter() - start

    def _in_file(self, symbols: list[str], imports: Mapping[str, int]) -> jit.LoadedCode | None:
        """Return the code in a file, if it has places for debuggers and a file can be made."""
        if "!llvm.dbg.cu" not in self.llvm_ir:
            return None
        return shared.load(self.object_bytes, self.emitted.functions[0].symbol, symbols, imports)

    def _function(self, abi: FunctionABI) -> Callable[[int], int]:
        """Return the packed entry of *abi*; a signal may end one that uses the pool."""
        if abi.pooled:
            function = entry.function(self._loaded.addresses[abi.packed])
        else:
            function = self._loaded.function(abi.packed)
        return _after_flush(function) if abi.prints else function

    def message(self, name: str, status: int) -> str:
        """Return what the *status* of the function *name* means, with the numbers of the call."""
        abi = self.emitted[name]
        text, report = abi.message(status), abi.report(status)
        if report is None:
            return text
        turn = status % TURNS
        at = self._loaded.addresses[report.symbol] + 8 * (1 + turn % RECORDS * report.width)
        kinds = [ctypes.c_double if t.is_float else ctypes.c_int64 for t in report.dtypes]
        words = [kind.from_address(at + 8 * k).value for k, kind in enumerate(kinds, 1)]
        if ctypes.c_int64.from_address(at).value != turn:  # of a later failure in another thread
            return text.replace(HOLE, "?")
        return filled(text, zip(report.dtypes, map(_shown, report.dtypes, words), strict=True))

    def _object(self) -> bytes:
        start = time.perf_counter()
        name = cache.key(self.llvm_ir, self.target)
        obj = cache.get(name)
        self.timings["cache"] = time.perf_counter() - start
        found = obj is not None
        if obj is None:
            compiled = cpu.compile(self.llvm_ir, self.target)
            self.timings |= compiled.timings
            obj = compiled.object
            cache.put(name, obj)
        names = ", ".join(f.name for f in self.emitted.functions)
        made = f"made by LLVM in {duration(sum(self.timings.values()))}"
        how = "from the cache on disk" if found else made
        say(names, f"{len(obj)} bytes of machine code, {how}")
        return obj

    def call(self, name: str, packed: ctypes.Array[Any] | np.ndarray[Any, Any]) -> int:
        """Run the function *name* on *packed* (8 bytes per parameter, see ``codegen.abi``).

        Returns the status: 0, or one that ``abi(name).message`` explains. The GIL is released.
        """
        where = packed.ctypes.data if isinstance(packed, np.ndarray) else ctypes.addressof(packed)
        return self._entries[name](where)

    def launch(self, func: Func, values: Mapping[str, Any]) -> int:
        """Run *func* with its parameters from *values*; return its status."""
        packed = slots(func, values)
        return self.call(func.name, (ctypes.c_int64 * len(packed))(*packed))

    def address(self, name: str) -> int:
        """Return the address of the packed entry of the function *name*."""
        return self._loaded.addresses[self.emitted[name].packed]

    @property
    def llvm_ir(self) -> str:
        """The LLVM IR before optimisation."""
        return self.emitted.llvm_ir

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.emitted, self.target, self.object_bytes)


def _shown(dtype: DType, word: float) -> float:
    """Return the number of *dtype* that was stored as *word*."""
    if dtype.kind == "bool":
        return bool(word)
    return int(word) % (1 << 64) if dtype.kind == "uint" else word


def _after_flush(function: Callable[[int], int]) -> Callable[[int], int]:
    """Return *function*, which prints after what Python printed before it."""

    def call(packed: int) -> int:
        print(end="", flush=True)  # noqa: T201 (Python has a buffer of its own)
        return function(packed)

    return call


def _restore(emitted: Emitted, target: Target, obj: bytes) -> Executable:
    return Executable(emitted, target, obj=obj)
