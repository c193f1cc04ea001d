"""Before repeated calls on a GPU: what depends on bound index arrays alone is computed once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.ir.module import HostAlloc, Launch
from spcomp.runtime.cuda import memory
from spcomp.runtime.cuda.streams import is_recorded

if TYPE_CHECKING:
    from spcomp.codegen.abi import Emitted
    from spcomp.compiler.compiled import Compiled
    from spcomp.kernels.gpu.frame import DeviceFrame

Op: TypeAlias = Launch | HostAlloc
MOST_BYTES = 64 << 20  # that a kind of calls keeps, if index arrays have not more


def divide(
    ops: Sequence[Op], emitted: Emitted, fixed: Collection[str]
) -> tuple[list[Op], list[Op]]:
    """Return those of *ops* whose results depend on the arrays *fixed* alone, and the others.

    These are launches that cannot fail and use only such arrays, and temporaries that only such
    launches write.
    """
    launches = {op: _uses(op, emitted) for op in ops if isinstance(op, Launch)}
    constant = {*fixed} | {op.buffer.name for op in ops if isinstance(op, HostAlloc)}
    while True:
        others = [op for op, uses in launches.items() if not uses.keys() <= constant]
        changed = constant & {name for op in others for name in launches[op] if launches[op][name]}
        if not changed:
            break
        constant -= changed
    used = {name for op, uses in launches.items() if op not in others for name in uses}

    def is_once(op: Op) -> bool:
        return op.buffer.name in used if isinstance(op, HostAlloc) else op not in others

    return [op for op in ops if is_once(op)], [op for op in ops if not is_once(op)]


def _uses(op: Launch, emitted: Emitted) -> dict[str, bool]:
    """Return the names of the arrays that *op* uses, and whether it writes them."""
    abi = emitted[op.func]
    uses = {p.name: p.written for p in abi.params if p.element is not None}
    return uses | {"status": True} if abi.grid is None or abi.grid.may_fail else uses


def needed(
    code: Compiled, frame: DeviceFrame, values: Mapping[str, Any]
) -> tuple[list[Op], tuple[Any, ...]]:
    """Return what a call like that of *frame*, which has run, needs of the host program of *code*.

    And the arrays in *values* that the rest of it has left, as it would again, for calls on any
    stream. The program only allocates and launches.
    """
    ops = [op for op in code.host if isinstance(op, Launch | HostAlloc)]
    index_of = frame.interface.index_of
    fixed = {name for name in frame.bound if name in index_of}
    once, each = divide(ops, code.emitted, fixed)
    kept = [op.buffer.name for op in once if isinstance(op, HostAlloc)]
    room, place = max(MOST_BYTES, _bytes(values, fixed)), frame.memory.place
    if _bytes(values, kept) > room or is_recorded(place.stream):
        return ops, ()
    if once:
        memory.synchronize(place.stream, place.device)
    return each, tuple(values[name] for name in kept)


def _bytes(values: Mapping[str, Any], names: Iterable[str]) -> int:
    return sum(values[name].array.nbytes for name in names)
