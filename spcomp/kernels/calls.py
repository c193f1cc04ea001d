"""Calls by name: the first of a kind takes the full way, later ones repeat it by a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.errors import SpcompError
from spcomp.ir.module import HostAlloc, returned
from spcomp.kernels.learn import learn
from spcomp.kernels.results import as_results, assembled_pattern, with_outputs
from spcomp.log import say
from spcomp.runtime.cuda.streams import STREAM
from spcomp.runtime.host import failure
from spcomp.runtime.native.entry_ir import STATUS
from spcomp.runtime.replay.entry import make
from spcomp.runtime.replay.plan import Plan

if TYPE_CHECKING:
    from spcomp.compiler.compiled import Compiled
    from spcomp.compiler.interface import Interface
    from spcomp.kernels.call import CallRecord
    from spcomp.kernels.results import Wrap

_ndarray = np.ndarray
MAX_PLANS = 8  # per kernel; the least recently used is forgotten
MAX_KINDS = 32  # of calls that are counted, to tell a second one from a first
Kind: TypeAlias = tuple[Any, ...]
Entry: TypeAlias = Callable[[dict[str, Any]], Any]  # made by runtime.replay.entry


@dataclass(frozen=True, slots=True, eq=False)
class LearnedCall:
    """A way to repeat a call: *entry* runs *code* as *plan* says."""

    entry: Entry
    plan: Plan
    code: Compiled

    def failure(self, status: int) -> SpcompError:
        """Return the error that *status* stands for, an int that *entry* returned."""
        number = (status + STATUS // 2) // STATUS  # a status may be negative
        function, status = self.plan.functions[number], status - number * STATUS
        return failure(function, self.code.message(function, status))


class Calls:
    """The calls of one kernel by name: the full way, and *repeats*, the one used last first.

    *name* is that of the program; *full* runs the full way. Many threads may use it at once:
    *repeats* is replaced, never changed.
    """

    __slots__ = ("counts", "face", "full", "name", "only", "repeats")

    def __init__(
        self, face: Interface, name: str, full: Callable[[dict[str, Any]], CallRecord]
    ) -> None:
        self.only = face.outputs[0].name if len(face.outputs) == 1 else None
        self.face, self.name, self.full = face, name, full
        self.repeats: tuple[LearnedCall, ...] = ()
        self.counts: dict[Kind, int] = {}

    def run(self, out: Any, named: dict[str, Any]) -> Any:
        """Run the call by one of the plans, or the full way if no plan takes it."""
        if out is not None:
            only = self.only
            if only is not None and type(out) is _ndarray and only not in named:
                named[only] = out
            else:
                named = with_outputs(self.face, self.name, out, named)
        result = self.repeat(named)
        if result is not NotImplemented:
            return result
        record = self.full(named)
        self.consider(record)
        return record.result

    def learned(self, out: Any, named: dict[str, Any]) -> Any:
        """Return what ``repeat`` does, for a call with *out*; *named* stays as it is."""
        if out is None:
            return self.repeat(named)
        if self.only is None or type(out) is not _ndarray or self.only in named:
            return NotImplemented
        return self.repeat({**named, self.only: out})

    def repeat(self, named: dict[str, Any]) -> Any:
        """Return what the call returns by one of the plans, NotImplemented if no plan takes it."""
        repeats = self.repeats
        for repeat in repeats:
            result = repeat.entry(named)
            if result is not NotImplemented:
                if repeat is not repeats[0]:
                    self._prefer(repeat)
                if type(result) is int:
                    raise repeat.failure(result)
                return result
        return NotImplemented

    def consider(self, record: CallRecord) -> None:
        """Learn to repeat a call from its *record* if it is the second of its kind.

        Try again at the fourth, the eighth and so on: then it may be possible.
        """
        kind = _kind(record)
        if len(self.counts) >= MAX_KINDS and kind not in self.counts:
            self.counts = {}
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        if count == 1 or count & (count - 1):
            return
        plan = learn(record)
        if not isinstance(plan, Plan):
            say(self.name, f"call {count} of a kind takes the full way, as others will: {plan}")
        elif (entry := make(plan, record.code)) is not None:
            say(self.name, f"call {count} of a kind is learned: the next goes straight to its code")
            self._prefer(LearnedCall(_wrapped(entry, record), plan, record.code))

    def _prefer(self, repeat: LearnedCall) -> None:
        others = tuple(other for other in self.repeats if other is not repeat)
        self.repeats = (repeat, *others[: MAX_PLANS - 1])


class EmulatedCalls(Calls):
    """The calls of a kernel for a GPU that runs on the CPU: in order, so streams mean nothing."""

    __slots__ = ()

    def run(self, out: Any, named: dict[str, Any]) -> Any:
        """Run the call as on a CPU, whatever its argument ``stream`` is."""
        if STREAM in named and not self.face.takes(STREAM):
            named = {name: value for name, value in named.items() if name != STREAM}
        return super().run(out, named)


def _wrapped(entry: Entry, record: CallRecord) -> Entry:
    """Return *entry*, with its arrays wrapped as the call of *record* wrapped its own."""
    face = record.frame.interface
    if names := [buffer.name for buffer in returned(record.code.host)]:
        wraps = [wrap._replace(pattern=None) for wrap in record.wraps if wrap is not None]
        return _assembling(entry, face, names, wraps)
    makers = [_maker(record, wrap) for wrap in record.wraps]
    if len(makers) == 1:
        make, name, pattern = makers[0]
        if make is None:
            return entry

        def single(named: dict[str, Any]) -> Any:
            array = entry(named)
            if array is NotImplemented or type(array) is int:
                return array
            return make(array, pattern if name is None else named[name])

        return single

    def several(named: dict[str, Any]) -> Any:
        arrays = entry(named)
        if arrays is NotImplemented or type(arrays) is int:
            return arrays
        results = [
            array if make is None else make(array, pattern if name is None else named[name])
            for array, (make, name, pattern) in zip(arrays, makers, strict=True)
        ]
        return as_results(face, results)

    return several if makers else entry


def _assembling(
    entry: Entry, face: Interface, names: Sequence[str], wraps: Sequence[Wrap]
) -> Entry:
    """Return *entry*, with results made as *wraps* say of its arrays, which have *names*."""
    pairs = tuple(zip(face.outputs, wraps, strict=True))

    def results(named: dict[str, Any]) -> Any:
        made = entry(named)
        if made is NotImplemented or type(made) is int:
            return made
        arrays = dict(zip(names, made, strict=True))
        wrapped = [w.of(arrays[p.handle], assembled_pattern(p, w, arrays)) for p, w in pairs]
        return as_results(face, wrapped)

    return results


def _maker(
    record: CallRecord, wrap: Wrap | None
) -> tuple[Callable[..., Any] | None, str | None, Any]:
    """Return a function of an array and a pattern, and the argument with the pattern, or it."""
    if wrap is None:
        return None, None, None
    names = [name for name, arg in record.named.items() if arg is wrap.owner]
    find = wrap.found()
    if not names or find is None:
        return wrap.of, None, wrap.pattern  # of a bound argument
    of = wrap._replace(pattern=None, owner=None).of  # not kept alive
    return lambda values, owner: of(values, find(owner)), names[0], None


def _kind(record: CallRecord) -> Kind:
    """Return what a plan would fix: types and sizes, not the values of floats."""
    fresh = {op.buffer.name for op in record.code.host if isinstance(op, HostAlloc)}
    sizes = tuple(
        value.shape if isinstance(value, np.ndarray) else type(value) if type(value) is float
        else value for name, value in record.frame.values.items() if name not in fresh
    )  # fmt: skip
    return (*record.named, *map(type, record.named.values()), sizes)
