"""Emitted LLVM IR to something that can be called: compile, or take from disk; link; call."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from spcomp.codegen import cpu
from spcomp.codegen.abi import Emitted, FunctionABI
from spcomp.runtime import cache, entry, jit, pool
from spcomp.target import Target


class Executable:
    """The machine code of *emitted* in this process, for the resolved *target*.

    Takes the object from *obj*, else from the disk cache, else compiles it. *timings*: seconds by
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
        self._loaded = jit.load(self.object_bytes, symbols, imports)
        self._entries = {f.name: self._function(f) for f in emitted.functions}
        self.timings["link"] = time.perf_counter() - start

    def _function(self, abi: FunctionABI) -> Callable[[int], int]:
        """Return the packed entry of *abi*; what asks the pool, a signal may end."""
        if abi.pooled:
            return entry.function(self._loaded.addresses[abi.packed])
        alone: Callable[[int], int] = self._loaded.function(abi.packed)
        return alone

    def _object(self) -> bytes:
        start = time.perf_counter()
        name = cache.key(self.llvm_ir, self.target)
        obj = cache.get(name)
        self.timings["cache"] = time.perf_counter() - start
        if obj is None:
            compiled = cpu.compile(self.llvm_ir, self.target)
            self.timings |= compiled.timings
            obj = compiled.object
            cache.put(name, obj)
        return obj

    def call(self, name: str, slots: ctypes.Array[Any] | np.ndarray[Any, Any]) -> int:
        """Run the function *name* on *slots* (8 bytes per parameter, see ``codegen.abi``).

        Returns the status: 0, or one that ``abi(name).message`` explains. The GIL is released.
        """
        where = slots.ctypes.data if isinstance(slots, np.ndarray) else ctypes.addressof(slots)
        return self._entries[name](where)

    def address(self, name: str) -> int:
        """Return the address of the packed entry of the function *name*."""
        return self._loaded.addresses[self.emitted[name].packed]

    @property
    def llvm_ir(self) -> str:
        """The LLVM IR before optimisation."""
        return self.emitted.llvm_ir

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.emitted, self.target, self.object_bytes)


def _restore(emitted: Emitted, target: Target, obj: bytes) -> Executable:
    return Executable(emitted, target, obj=obj)
