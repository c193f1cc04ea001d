"""Calls on a GPU that are like an earlier one: only the pointers of a few arrays are new.

They wait for nothing. Kernels that may fail say so later: see ``Replay.failure``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spcomp.codegen.nvvm import ALIGN
from spcomp.ir.access import Load
from spcomp.ir.analysis.sizes import array_name
from spcomp.ir.module import HostAlloc, Launch
from spcomp.ir.visitor import walk
from spcomp.kernels.gpu.frame import DeviceFrame
from spcomp.kernels.gpu.kept import Op, needed
from spcomp.kernels.gpu.temporaries import Temporaries, temporaries_of
from spcomp.runtime.cuda import memory
from spcomp.runtime.cuda.arrays import producers_of
from spcomp.runtime.cuda.driver import LEGACY, Launches
from spcomp.runtime.cuda.status import Status, late
from spcomp.runtime.cuda.streams import CHOSEN, handle_of
from spcomp.runtime.gpu import LoadedKernels
from spcomp.runtime.host import failure
from spcomp.runtime.residents import Resident

if TYPE_CHECKING:
    from spcomp.compiler.compiled import Compiled
    from spcomp.errors import ArgumentError
    from spcomp.ir.expr import Expr

MOST = 16  # kinds of calls that a kernel keeps


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The launches of a call, whose arrays are those of a new one, by their number.

    *sizes*: the bytes of each argument, 0 for a number. *fixed*: where the arrays of the bound
    arguments begin and end. *outputs*: the numbers of what is written. *producers*: each returns a
    stream on which what an array holds may still be computed. *status*: that of the kernels of
    *code* that may fail, None if none may. *temporaries*: what only its kernels use, whose numbers
    follow those of the arguments. *kept*: the arrays that they read of kernels that ran once.
    """

    launches: Launches
    sizes: tuple[int, ...]
    fixed: tuple[tuple[int, int], ...]
    outputs: tuple[int, ...]
    producers: tuple[Callable[[], int], ...]
    code: Compiled
    status: Status | None
    temporaries: Temporaries | None
    kept: tuple[Any, ...]

    def run(self, begins: Sequence[int], stream: Any) -> bool:
        """Run the call on arrays that begin at *begins*; do nothing and return False if it cannot.

        It runs on *stream* of any library, or where a full call would.
        """
        if not self._fits(begins):
            return False
        handle = self._stream(stream)
        if self.temporaries is None:
            self.launches.start(handle, begins)
        elif not self._start(self.temporaries, handle, begins):
            return False
        if self.status is not None:
            self.status.follow(handle)
        return True

    def _start(self, temporaries: Temporaries, stream: int, begins: Sequence[int]) -> bool:
        """Start the kernels with the *temporaries* of *stream*; return False if it has none."""
        with temporaries.lock:  # no call of another thread comes between them
            own = temporaries.on(stream)
            if own is not None:
                temporaries.clear(own, stream)
                self.launches.start(stream, (*begins, *own))
        return own is not None

    def _fits(self, begins: Sequence[int]) -> bool:
        """Return whether arrays are aligned, and outputs share no memory with anything else."""
        for begin in begins:
            if begin % ALIGN:
                return False
        sizes = self.sizes
        for output in self.outputs:
            low = begins[output]
            high = low + sizes[output]
            if low == high:
                continue
            for begin, end in self.fixed:
                if begin < high and low < end:
                    return False
            for number, size in enumerate(sizes):
                begin = begins[number]
                if begin < high and low < begin + size and size and number != output:
                    return False
        return True

    def _stream(self, given: Any) -> int:
        """Return the stream to run on, which then waits for all *producers*."""
        chosen = CHOSEN.get() if given is None else given
        if chosen is None and len(self.producers) < 2:
            return self.producers[0]() if self.producers else LEGACY
        streams = [producer() for producer in self.producers]
        handle = streams[0] if chosen is None else handle_of(chosen)
        for stream in streams:
            if stream != handle:
                memory.wait(handle, stream, self.launches.device)
        return handle

    def failure(self) -> ArgumentError | None:
        """Wait for the GPU; return the error of the first kernel that failed, and forget it."""
        found = None if self.status is None else self.status.take(LEGACY)
        if found is None or self.status is None:
            return None
        number, status = found
        name = self.status.names[number]
        return late(failure(name, self.code.message(name, status)))


def record(
    code: Compiled,
    frame: DeviceFrame,
    values: Mapping[str, Any],
    named: Mapping[str, Any],
    fixed: Iterable[Any],
) -> Replay | None:
    """Return how to repeat the call of *frame* with arguments like *named*, after those *fixed*.

    All outputs are among them. None if calls may differ in more than arrays, or need much memory.
    """
    if not _may_repeat(code, frame, values, named):
        return None
    face, device = frame.interface, frame.memory.place.device
    ops, kept = needed(code, frame, values)
    names = [op.buffer.name for op in ops if isinstance(op, HostAlloc)]
    temporaries = temporaries_of(ops, values, device) if names else None
    if names and temporaries is None:
        return None
    numbers = {
        face.by_name[name].handle: number
        for number, name in enumerate(named)
        if name not in face.scalars
    }
    own = {name: len(named) + k for k, name in enumerate(names)}
    launches, status = _launches(ops, code, frame, values, numbers | own)
    there = {h: v.array for h, v in values.items() if isinstance(v, Resident)}
    sizes = [0] * len(named)
    for handle, number in numbers.items():
        sizes[number] = there[handle].nbytes
    bound = (array for h, array in there.items() if h not in numbers | own and array.size)
    places = tuple((array.pointer, array.pointer + array.nbytes) for array in bound)
    outputs = tuple(numbers[plan.handle] for plan in face.outputs)
    producers = producers_of((*fixed, *named.values()), device)
    return Replay(
        launches, tuple(sizes), places, outputs, producers, code, status, temporaries, kept
    )


def _may_repeat(
    code: Compiled, frame: DeviceFrame, values: Mapping[str, Any], named: Mapping[str, Any]
) -> bool:
    """Return whether bound arguments decide all but the arrays that calls like this one work on.

    Not where arguments are checked in each call for what they hold, or the host does more than to
    allocate memory and to launch kernels.
    """
    face = frame.interface
    indexed = any(name in face.index_names and name not in face.by_name for name in named)
    if face.domains or indexed or code.is_measured or set(code.deciding) - {*frame.bound}:
        return False
    if not all(isinstance(op, Launch | HostAlloc) for op in code.host):
        return False
    grids = (code.emitted[op.func].grid for op in code.host if isinstance(op, Launch))
    extents = [extent for grid in grids if grid is not None for extent in grid.blocks]
    extents += [op.buffer.shape[0] for op in code.host if isinstance(op, HostAlloc)]
    return _are_fixed(extents, frame, values)


def _are_fixed(sizes: Iterable[Expr], frame: DeviceFrame, values: Mapping[str, Any]) -> bool:
    """Return whether *sizes* are those of all calls: they read bound index arrays at most."""
    index_of = frame.interface.index_of
    read = (n.buffer for size in sizes for n in walk(size) if isinstance(n, Load))
    names = {array_name(buffer, values) for buffer in read}
    return names <= {name for name in frame.bound if name in index_of}


def _launches(
    ops: Sequence[Op],
    code: Compiled,
    frame: DeviceFrame,
    values: Mapping[str, Any],
    numbers: Mapping[str, int],
) -> tuple[Launches, Status | None]:
    """Return the launches of *ops*, whose handles of the call have *numbers*, and their status."""
    place, kernels = frame.memory.place, code.loaded
    assert isinstance(kernels, LoadedKernels)
    abis = [code.emitted[op.func] for op in ops if isinstance(op, Launch)]
    may_fail = (abi.name for abi in abis if abi.grid is not None and abi.grid.may_fail)
    failing = list(dict.fromkeys(may_fail))
    status = Status(failing, place.device, place.stream) if failing else None
    launches = []
    for abi in abis:
        word = status.word(failing.index(abi.name)) if status and abi.name in failing else None
        prepared = kernels.prepare(code.funcs[abi.name], values, place.device, word)
        slots = [(k, numbers[p.name]) for k, p in enumerate(abi.params) if p.name in numbers]
        if prepared is not None:
            launches.append((prepared, tuple(slots)))
    return Launches(launches, place.device), status
