"""Around the route: calls of index notation that go straight to the learned calls of its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spcomp.kernels.calls import MAX_PLANS, Calls
from spcomp.kernels.results import Results

if TYPE_CHECKING:
    from spcomp.kernels.notation.call import Call
    from spcomp.kernels.notation.planned import CompiledVersion

_ndarray = np.ndarray


class Way(NamedTuple):
    """The *calls* of the kernel of *version*, which are those of the user."""

    calls: Calls
    version: CompiledVersion


class FastPath:
    """The kernels that take calls as they come, the one used last first.

    A learned call of a kernel compares types, dtypes, extents and levels of its arguments with
    those of the call that it repeats. They decide which version of a program runs, how arguments
    are made for its kernel, and how results are returned. So where a version hands on all of them
    as they are, a call that its kernel repeats needs nothing else. *note* is told which version
    ran. Many threads may use it at once: *ways* is replaced, never changed.
    """

    __slots__ = ("note", "refused", "ways")

    def __init__(self, note: Callable[[CompiledVersion], None]) -> None:
        self.note = note
        self.ways: tuple[Way, ...] = ()
        self.refused: tuple[Calls, ...] = ()

    def run(self, out: Any, named: dict[str, Any]) -> Any:
        """Return what a call with *named* and *out* returns; NotImplemented: in full, please."""
        ways = self.ways
        for way in ways:
            calls, given = way.calls, named
            if out is not None:
                only = calls.only
                if only is None or type(out) is not _ndarray or only in named:
                    continue
                given = {**named, only: out}
            result = calls.repeat(given)
            if result is not NotImplemented:
                if way is not ways[0]:
                    self.ways = (way, *(other for other in ways if other is not way))
                self.note(way.version)
                return result
        return NotImplemented

    def consider(
        self,
        version: CompiledVersion,
        kernel: Any,
        call: Call,
        named: Mapping[str, Any],
        returned: Any,
        result: Any,
    ) -> None:
        """Take this way from now on if the *kernel* of *version* did all that *call* asks for.

        It was called with *named*, and *returned* what the user gets as *result*.
        """
        calls: Calls | None = getattr(kernel, "only_calls", None)
        if calls is None or not calls.repeats or calls in self.refused:
            return
        if any(way.calls is calls for way in self.ways):
            return
        if _hands_on(version, call, named) and _is_result(returned, result):
            self.ways = (Way(calls, version), *self.ways[: MAX_PLANS - 1])
        else:
            self.refused = (calls, *self.refused[: MAX_PLANS - 1])


def _hands_on(version: CompiledVersion, call: Call, named: Mapping[str, Any]) -> bool:
    """Whether the kernel of *version* gets as *named* what the user gives in *call*."""
    bound = call.bound.arguments
    given = {n: argument.value for n, argument in call.arguments.items() if n not in bound}
    given |= call.outputs
    orders = [[*plan.output.layout.order] for plan in version.planned.plans]
    return (
        not (version.planned.unbound or call.bound.has_torch)
        and all(order == sorted(order) for order in orders)
        and named.keys() == given.keys()
        and all(named[name] is arg for name, arg in given.items())
    )


def _is_result(returned: Any, result: Any) -> bool:
    if isinstance(result, Results) and isinstance(returned, Results):
        pairs = zip(returned, result, strict=True)
        return returned._fields == result._fields and all(one is other for one, other in pairs)
    return returned is result
