"""The runtime's own machine code: LLVM IR that belongs to no program, compiled once per machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spcomp.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def load(
    llvm_ir: Iterable[str], symbols: Iterable[str], imports: Mapping[str, int] | None = None
) -> Mapping[str, int]:
    """Return the addresses of *symbols* in the modules *llvm_ir*, which stay loaded forever.

    *imports* are the addresses of symbols that they need. Raises BackendError if one is missing.
    """
    from spcomp.codegen import cpu
    from spcomp.runtime import cache, jit

    first, *others = llvm_ir
    target = cpu.resolve(Target())
    name = cache.key("\0".join([first, *others]), target)
    obj = cache.get(name)
    if obj is None:
        obj = cpu.object_code(cpu.link(first, others) if others else first, target)
        cache.put(name, obj)
    return jit.load(obj, symbols, imports, forever=True).addresses
