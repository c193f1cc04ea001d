"""Calls on a GPU that are like an earlier one: only the pointers of a few arrays are new.

They wait for nothing. Kernels that may fail say so later: see ``Replay.failure``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from spcomp.codegen.nvvm import ALIGN
from spcomp.ir.access import Load
from spcomp.ir.module import Launch
from spcomp.ir.visitor import walk
from spcomp.kernels.gpu.frame import DeviceFrame
from spcomp.runtime.cuda.arrays import DeviceArray, array_of, is_sparse, lies_there
from spcomp.runtime.cuda.status import Status, late
from spcomp.runtime.gpu import LoadedKernels
from spcomp.runtime.host import failure
from spcomp.runtime.residents import Resident

if TYPE_CHECKING:
    from spcomp.compiler.compiled import Compiled
    from spcomp.compiler.interface import Interface
    from spcomp.errors import ArgumentError
    from spcomp.runtime.cuda.arrays import Place
    from spcomp.runtime.cuda.driver import Prepared

Taken = dict[str, Any]  # the arguments of a call, arrays of the GPU and numbers, by name
MOST = 16  # kinds of calls that a kernel keeps


class Replay(NamedTuple):
    """The launches of a call, each with the parameters that are arrays of the call, by number.

    *sizes*: the bytes of these arrays, by the name of the argument. *fixed*: where the arrays of
    the bound arguments begin and end. *outputs*: the names of what is written. *status*: that of
    the kernels of *code* that may fail, None if none may.
    """

    launches: tuple[tuple[Prepared, dict[int, str]], ...]
    sizes: Mapping[str, int]
    fixed: tuple[tuple[int, int], ...]
    outputs: tuple[str, ...]
    code: Compiled
    status: Status | None

    def run(self, taken: Taken, stream: int) -> bool:
        """Run the call on *taken* and *stream*; do nothing and return False if it is not alike."""
        begins = {name: taken[name].pointer for name in self.sizes}
        if any(begin % ALIGN for begin in begins.values()) or not self._apart(begins):
            return False
        for prepared, places in self.launches:
            prepared.launch(stream, {at: begins[name] for at, name in places.items()})
        if self.status is not None:
            self.status.follow(stream)
        return True

    def _apart(self, begins: Mapping[str, int]) -> bool:
        """Return whether outputs at *begins* share no memory with anything else."""
        sizes = self.sizes
        for output in self.outputs:
            low, high = begins[output], begins[output] + sizes[output]
            if low == high:
                continue
            for begin, end in self.fixed:
                if begin < high and low < end:
                    return False
            for name, begin in begins.items():
                size = sizes[name]
                if size and begin < high and low < begin + size and name != output:
                    return False
        return True

    def failure(self, stream: int) -> ArgumentError | None:
        """Wait for the GPU; return the error of the first kernel that failed, and forget it."""
        found = None if self.status is None else self.status.take(stream)
        if found is None or self.status is None:
            return None
        number, status = found
        name = self.status.names[number]
        return late(failure(name, self.code.message(name, status)))


def taken(face: Interface, named: Mapping[str, Any], place: Place) -> Taken | None:
    """Return *named* as a Replay takes it; None if something is no dense array there or number."""
    result: Taken = {}
    for name, arg in named.items():
        plan = face.by_name.get(name)
        if name in face.scalars and type(arg) in (int, float, bool):
            result[name] = arg
        elif plan is not None and plan.handle and lies_there(arg) and not is_sparse(arg):
            result[name] = array_of(arg, place, name, written=plan.role != "in")
        else:
            return None
    return result


def kind_of(taken: Taken, device: int) -> tuple[Any, ...]:
    """Return what the calls have in common that a Replay can repeat."""
    return device, *(
        (name, arg.shape, arg.dtype) if isinstance(arg, DeviceArray) else (name, type(arg), arg)
        for name, arg in taken.items()
    )


def record(
    code: Compiled, frame: DeviceFrame, values: Mapping[str, Any], names: Mapping[str, Any]
) -> Replay | None:
    """Return how to repeat the call of *frame* with the arguments called *names*.

    All outputs are among them. None if the bound arguments do not decide everything else, or the
    host does more than to launch kernels.
    """
    face = frame.interface
    if face.domains or code.is_measured or set(code.deciding) - {*frame.bound}:
        return None
    if not all(isinstance(op, Launch) for op in code.host):
        return None
    handles = {face.by_name[name].handle: name for name in names if name not in face.scalars}
    grids = {op.func: code.emitted[op.func].grid for op in code.host if isinstance(op, Launch)}
    for grid in grids.values():
        extents = () if grid is None else grid.blocks
        if any(isinstance(node, Load) for extent in extents for node in walk(extent)):
            return None
    place, launches = frame.memory.place, []
    failing = [name for name, grid in grids.items() if grid is not None and grid.may_fail]
    status = Status(failing, place.device, place.stream) if failing else None
    kernels = code.loaded
    assert isinstance(kernels, LoadedKernels)
    for op in code.host:
        assert isinstance(op, Launch)
        abi = code.emitted[op.func]
        word = status.word(failing.index(abi.name)) if status and abi.name in failing else None
        prepared = kernels.prepare(code.funcs[abi.name], values, place.device, word)
        places = {k: handles[p.name] for k, p in enumerate(abi.params) if p.name in handles}
        if prepared is not None:
            launches.append((prepared, places))
    there = {h: v.array for h, v in values.items() if isinstance(v, Resident)}
    sizes = {name: there[handle].nbytes for handle, name in handles.items()}
    bound = (array for h, array in there.items() if h not in handles and array.size)
    fixed = tuple((array.pointer, array.pointer + array.nbytes) for array in bound)
    outputs = tuple(plan.name for plan in face.outputs)
    return Replay(tuple(launches), sizes, fixed, outputs, code, status)
