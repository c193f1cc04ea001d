"""Calls of a kernel on a GPU: arguments to the device, kernels on its stream, results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from spcomp.compiler.variants import MAX_KEPT
from spcomp.kernels.call import in_place, prepare
from spcomp.kernels.gpu.frame import DeviceFrame, is_overwritten
from spcomp.kernels.gpu.replay import MOST, Replay, record
from spcomp.kernels.gpu.results import deliver, library_of_result
from spcomp.kernels.results import as_results, with_outputs
from spcomp.runtime import host
from spcomp.runtime.cuda.arrays import Place, note_write, place_of, wait_for
from spcomp.runtime.cuda.glance import Key, glance
from spcomp.runtime.cuda.streams import STREAM
from spcomp.runtime.gpu import LoadedKernels, Queue
from spcomp.runtime.residents import Resident, Residents

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spcomp.compiler.compiled import Compiled
    from spcomp.compiler.interface import BufferPlan
    from spcomp.compiler.options import Options
    from spcomp.kernels.frame import Frame


class Fixed(Protocol):
    """A kernel with some arguments fixed, by name; *held*: an array on the GPU they are on."""

    held: Sequence[Any]

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The fixed arguments."""

    def frame(self, named: Mapping[str, Any]) -> Frame:
        """Return a frame of the fixed arguments; raises ArgumentError if *named* repeats one."""


class GpuCalls:
    """The calls of one kernel whose code runs on a GPU, as ``Calls`` has those of others.

    *name* is the kernel's; *bound*: the same with some arguments fixed. *raw*: arguments are those
    of parameters, by name.
    """

    def __init__(
        self,
        compiled: Compiled,
        options: Options,
        name: str,
        bound: Fixed | None = None,
        *,
        raw: bool = False,
    ) -> None:
        self.compiled, self.options, self.name = compiled, options, name
        self.face, self.bound, self.raw = compiled.interface, bound, raw
        self._outputs = [plan.name for plan in self.face.outputs]
        self._has_stream = self.face.takes(STREAM)
        self._codes: dict[frozenset[tuple[str, int]], Compiled] = {}  # of bound matrices, by sizes
        self._replays: dict[Key, Replay] = {}
        self._watched: tuple[Replay, ...] = ()  # those whose kernels may fail

    def run(self, out: Any, named: dict[str, Any]) -> Any:
        """Run the call on the stream of its argument ``stream``, else on the library's current one.

        It waits only for what it reads or returns on the host.
        """
        stream = None if self._has_stream else named.pop(STREAM, None)
        if out is not None:
            named = with_outputs(self.face, self.name, out, named)
        if self.raw:
            named = in_place(self.face, self.name, named)
        seen = None if self.bound is None else glance(named)
        known = None if seen is None else self._replays.get(seen.key)
        if seen is None or known is None or not self.repeat(known, seen.begins, stream):
            return self._run(named, stream, None if seen is None else seen.key)
        outputs = self._outputs
        if len(outputs) == 1:
            only = named[outputs[0]]
            note_write(only)
            return only
        given = [named[name] for name in outputs]
        for output in given:
            note_write(output)
        return as_results(self.face, given)

    def repeat(self, known: Replay, begins: Sequence[int], stream: Any) -> bool:
        """Return what ``Replay.run`` does; raises ArgumentError if an earlier call has failed."""
        if self._watched:
            self._raise_known()
        return known.run(begins, stream)

    def replay(self, named: Mapping[str, Any]) -> Replay | None:
        """Return how calls like one with *named* are repeated, None if that is not known."""
        seen = glance(named)
        return None if seen is None else self._replays.get(seen.key)

    def _run(self, named: dict[str, Any], stream: Any, key: Key | None) -> Any:
        """Run the call, and learn to repeat it if it has a *key*."""
        place = self._place(named, stream)
        self._raise_known()
        frame = self._frame(named, place)
        verify = self.options.check == "full"
        for name, arg in named.items():
            frame.take(name, arg, verify=verify, raw=self.raw)
        prepare(frame, verify=verify, make=lambda shape, plan: _output(frame, shape, plan))
        code = self._code(frame)
        values = frame.on_device()
        kernels = code.loaded
        assert isinstance(kernels, LoadedKernels)
        queue = Queue(kernels, frame.memory.place)
        arrays = host.run(code.host, code.funcs, queue, values, frame.memory)
        if key is not None and len(self._replays) < MOST:
            self._learn(key, code, frame, values, named)
        return deliver(frame, values, arrays, verify=bool(arrays) and code.is_measured)

    def _learn(
        self,
        key: Key,
        code: Compiled,
        frame: DeviceFrame,
        values: Mapping[str, Any],
        named: Mapping[str, Any],
    ) -> None:
        """Learn to repeat the call, whose arguments *named* are of a kind with this *key*."""
        if key in self._replays or not all(name in named for name in self._outputs):
            return
        replay = record(code, frame, values, named, self._fixed)
        if replay is not None:
            self._replays = {**self._replays, key: replay}  # other threads may go through the old
            self._watched = tuple(r for r in self._replays.values() if r.status is not None)

    def check(self) -> None:
        """Wait for the calls so far; raises ArgumentError if a kernel failed in one of them."""
        for replay in self._watched:
            if (error := replay.failure()) is not None:
                raise error

    def _raise_known(self) -> None:
        """Raise ArgumentError if an earlier call is known to have failed, without waiting."""
        for replay in self._watched:
            known = replay.status is not None and replay.status.failed
            if known and (error := replay.failure()) is not None:
                raise error

    @property
    def _fixed(self) -> tuple[Any, ...]:
        """The bound arguments, and before them an array on the GPU that they are on."""
        bound = self.bound
        return () if bound is None else (*bound.held, *bound.arguments.values())

    def _place(self, named: Mapping[str, Any], stream: Any) -> Place:
        """Return where a call with *named* runs: where the bound arguments are, if there are any.

        Its stream then waits for those whose values are used in place.
        """
        fixed = self._fixed
        place = place_of((*fixed, *named.values()), stream)
        wait_for(fixed, place)
        return place

    def _frame(self, named: Mapping[str, Any], place: Place) -> DeviceFrame:
        """Return a frame with the bound arguments, in the memory of a call with *named*."""
        if self.bound is None:
            return DeviceFrame(self.face, self.options, Residents(place))
        frame = self.bound.frame(named)
        assert isinstance(frame, DeviceFrame)
        frame.at(Residents(place, frame.memory.known))
        return frame

    def _code(self, frame: DeviceFrame) -> Compiled:
        """Return the version of the program for the values of *frame*.

        That for matrices that are bound depends on integers only.
        """
        fixed = set(self.compiled.deciding) <= set(frame.bound)
        key = frozenset((name, v) for name, v in frame.values.items() if isinstance(v, int))
        code = self._codes.get(key) if fixed else None
        if code is None:
            code = self.compiled.variant(frame.values)
            needed = code.order_needed
            frame.check_order(needed, verify=self.options.check == "full")
            checked = needed <= self.face.order_needed or {*self.face.index_of} <= {*frame.bound}
            if fixed and checked:
                newest = list(self._codes.items())[1 - MAX_KEPT :]
                self._codes = {**dict(newest), key: code}
        return code


def _output(frame: DeviceFrame, shape: tuple[int, ...], plan: BufferPlan) -> Resident:
    """Return a new array for the output of *plan*."""
    fill = None if is_overwritten(plan) else plan.fill
    return frame.memory.output(shape, plan.dtype, fill, library_of_result(frame, plan))


def new_frame(
    compiled: Compiled, options: Options, args: Iterable[Any], *, keep: bool = False
) -> DeviceFrame:
    """Return an empty frame for *args*; *keep*: they are to be bound."""
    memory = Residents(place_of(args))
    return DeviceFrame(compiled.interface, options, memory, keep=keep)
