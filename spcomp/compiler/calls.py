"""Calls by name: the first of a kind takes the full way, the next ones a plan learnt from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.compiler.learn import learn
from spcomp.runtime.entry import make
from spcomp.runtime.host import failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.compiler.bind import Frame
    from spcomp.compiler.compile import Compiled
    from spcomp.compiler.learn import Finish
    from spcomp.compiler.signature import BufferPlan
    from spcomp.errors import ArgumentError
    from spcomp.runtime.plan import Plan

_ndarray = np.ndarray
MAX_PLANS = 8  # per kernel; the least recently used is forgotten
MAX_SEEN = 32  # kinds of calls that are remembered, to tell a second one from a first
Kind: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """A call that can be repeated: *entry* does it, as *plan* says, with *code*."""

    entry: Callable[[dict[str, Any]], Any]  # made by runtime.entry
    plan: Plan
    code: Compiled

    def failure(self, status: int) -> ArgumentError:
        """Return the error that a *status* other than 0 stands for."""
        name = self.plan.function
        return failure(name, self.code.message(name, status))


class Calls:
    """How one kernel is called by name: what was *learnt*, the call used last first.

    *outputs*: their names; *merge* puts ``out=`` among the other arguments; *full* is the full way.
    May be used by many threads at once: *learnt* is replaced, never changed.
    """

    __slots__ = ("full", "learnt", "merge", "only", "seen")

    def __init__(
        self,
        outputs: tuple[str, ...],
        merge: Callable[[Any, dict[str, Any]], dict[str, Any]],
        full: Callable[[dict[str, Any]], Any],
    ) -> None:
        self.only = outputs[0] if len(outputs) == 1 else None
        self.merge, self.full = merge, full
        self.learnt: tuple[Learnt, ...] = ()
        self.seen: dict[Kind, int] = {}

    def run(self, out: Any, named: dict[str, Any]) -> Any:
        """Run the call as one of the plans says, or the full way if none is for it."""
        if out is not None:
            only = self.only
            if only is not None and type(out) is _ndarray and only not in named:
                named[only] = out
            else:
                named = self.merge(out, named)
        learnt = self.learnt
        for call in learnt:
            result = call.entry(named)
            if result is not NotImplemented:
                if call is not learnt[0]:
                    self._prefer(call)
                if type(result) is int:
                    raise call.failure(result)
                return result
        return self.full(named)

    def consider(
        self,
        frame: Frame,
        named: Mapping[str, Any],
        fresh: tuple[BufferPlan, ...],
        code: Compiled,
        *,
        verify: bool,
    ) -> None:
        """Learn a call that *frame* accepted and *code* ran, if it is the second of its kind.

        And the fourth, the eighth: what could not be repeated may be by then.
        """
        kind = _kind(frame, named)
        if len(self.seen) >= MAX_SEEN and kind not in self.seen:
            self.seen = {}
        count = self.seen[kind] = self.seen.get(kind, 0) + 1
        if count == 1 or count & (count - 1):
            return
        found = learn(frame, named, fresh, code, verify=verify)
        if found is None:
            return
        plan, finish = found
        entry = make(plan, code)
        if entry is not None:
            self._prefer(Learnt(entry if finish is None else _finished(entry, finish), plan, code))

    def _prefer(self, call: Learnt) -> None:
        others = tuple(other for other in self.learnt if other is not call)
        self.learnt = (call, *others[: MAX_PLANS - 1])


def _finished(
    entry: Callable[[dict[str, Any]], Any], finish: Finish
) -> Callable[[dict[str, Any]], Any]:
    """Return *entry* followed by *finish*, unless it fails."""

    def both(named: dict[str, Any]) -> Any:
        result = entry(named)
        if result is NotImplemented or type(result) is int:
            return result
        return finish(named, result)

    return both


def _kind(frame: Frame, named: Mapping[str, Any]) -> Kind:
    """What a plan would fix: types and sizes, not the values of floats."""
    sizes = tuple(
        value.shape if isinstance(value, np.ndarray) else type(value) if type(value) is float
        else value for value in frame.values.values()
    )  # fmt: skip
    return (*named, *map(type, named.values()), sizes)
