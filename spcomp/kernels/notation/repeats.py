"""Around the route: calls of bound index notation on a GPU that are like an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from spcomp.kernels.gpu.calls import GpuCalls
from spcomp.kernels.gpu.replay import MOST, Replay
from spcomp.kernels.kernel import BoundKernel
from spcomp.kernels.notation.call import with_named_outputs
from spcomp.kernels.results import Results
from spcomp.runtime.cuda.arrays import note_write
from spcomp.runtime.cuda.glance import Key, glance
from spcomp.runtime.cuda.streams import STREAM

if TYPE_CHECKING:
    from spcomp.kernels.notation.call import BoundArguments
    from spcomp.kernels.notation.runner import Runner


class Repeat(NamedTuple):
    """A way to repeat a call: by *replay* of *calls*, whose arrays are those of the call.

    *order*: the numbers of the arguments of the kernel among what the call is given; *result*:
    that of what is returned, or several, with their names. *version*: what of the runner runs.
    """

    calls: GpuCalls
    replay: Replay
    order: tuple[int, ...]
    result: int | tuple[int, ...]
    fields: tuple[str, ...]
    version: Any


class Repeats:
    """The calls of *runner* with arguments *bound*: by a Repeat where there is one, or in full."""

    def __init__(self, runner: Runner, bound: BoundArguments) -> None:
        self._runner, self._bound = runner, bound
        self._known: dict[Key, Repeat | None] = {}
        self._stream = STREAM not in runner.arguments

    def run(
        self, out: Any, named: dict[str, Any], refuse: Callable[[Mapping[str, Any]], None]
    ) -> Any:
        """Run the call with *named* and *out*; *refuse*: raises for arguments that are bound."""
        given: dict[Any, Any] = named
        stream = None
        if self._stream and STREAM in named:
            given = {**named}
            stream = given.pop(STREAM)
        if out is not None:
            given = {**given, **_outputs(out)}
        seen = glance(given)
        known = None if seen is None else self._known.get(seen.key)
        if seen is not None and known is not None:
            begins = [seen.begins[number] for number in known.order]
            if known.calls.repeat(known.replay, begins, stream):
                self._runner.note(known.version, self._bound)
                return _result(known, list(given.values()))
        refuse(named)
        if not self._runner.outputs.isdisjoint(named):
            out, named = with_named_outputs(out, named, self._runner.outputs)
            return self._runner.call(out, named, self._bound)
        result = self._runner.call(out, {**named}, self._bound)
        apart = len({*map(id, given.values())}) == len(given)  # else it is not clear which is which
        if seen is not None and apart and seen.key not in self._known and len(self._known) < MOST:
            rest = {name: arg for name, arg in named.items() if name != STREAM or not self._stream}
            self._known[seen.key] = self._learn(out, rest, list(given.values()), result)
        return result

    def _learn(
        self, out: Any, named: Mapping[str, Any], given: list[Any], result: Any
    ) -> Repeat | None:
        """Return how to repeat the call with *named* and *out*, which are *given*, and *result*.

        None if it runs more than one kernel, or does anything beside.
        """
        found = self._runner.kernel_call(out, named, self._bound)
        if found is None or not isinstance(found.kernel, BoundKernel):
            return None
        calls = found.kernel.calls
        replay = calls.replay(found.arguments) if isinstance(calls, GpuCalls) else None
        numbers = {id(arg): number for number, arg in enumerate(given)}
        several = isinstance(result, Results)
        wanted = [*found.arguments.values(), *(result if several else (result,))]
        if replay is None or not all(id(arg) in numbers for arg in wanted):
            return None
        order = tuple(numbers[id(arg)] for arg in found.arguments.values())
        results = tuple(numbers[id(part)] for part in wanted[len(order) :])
        assert isinstance(calls, GpuCalls)
        fields = result._fields if several else ()
        returned = results if several else results[0]
        return Repeat(calls, replay, order, returned, fields, self._bound.latest)


def _outputs(out: Any) -> dict[Any, Any]:
    """Return what *out* says, with names that no argument has."""
    if isinstance(out, (tuple, list)):
        return {("out", number): array for number, array in enumerate(out)}
    if isinstance(out, dict):
        return {("out", name): array for name, array in out.items()}
    return {("out",): out}


def _result(known: Repeat, given: list[Any]) -> Any:
    if isinstance(known.result, int):
        note_write(given[known.result])
        return given[known.result]
    results = tuple(given[number] for number in known.result)
    for result in results:
        note_write(result)
    return Results.of(known.fields, results)
