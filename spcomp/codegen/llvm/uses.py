"""Flat IR to LLVM IR, arguments: how a function uses the arrays that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spcomp.dtypes import handle
from spcomp.ir.access import Load, Search
from spcomp.ir.stmt import Prefetch, Store
from spcomp.ir.visitor import walk

if TYPE_CHECKING:
    from spcomp.ir.axis import AnyBuffer
    from spcomp.ir.expr import Var
    from spcomp.ir.program import FlatFunc


@dataclass(frozen=True, slots=True)
class Use:
    """How a function uses a handle: the buffer on it and whether it is stored to."""

    buffer: AnyBuffer | None = None
    written: bool = False


def uses(func: FlatFunc) -> dict[Var, Use]:
    """Return for every handle of *func* how it is used."""
    result = {param: Use() for param in func.params if param.dtype == handle}
    result |= {buffer.data: Use(buffer) for buffer in func.buffers if buffer.data is not None}
    for node in walk(func.body):
        if isinstance(node, Store | Load | Search | Prefetch):
            data = node.buffer.data
            if data is not None:
                written = isinstance(node, Store) or result.get(data, Use()).written
                result[data] = Use(node.buffer, written)
    return result
