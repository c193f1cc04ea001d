"""Around the route: calls of index notation that go straight to the learned calls of its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from spcomp.kernels.calls import MAX_PLANS, Calls, LearnedCall
from spcomp.kernels.results import Results

if TYPE_CHECKING:
    from spcomp.kernels.notation.planned import CompiledVersion
    from spcomp.kernels.protocol import Runnable

_ndarray = np.ndarray


class Taken(NamedTuple):
    """What the kernel takes as *name*: the argument *source*, of type *kind*; *make* makes it."""

    name: str
    source: str
    kind: type
    make: Callable[[Any], Any] | None


class Way(NamedTuple):
    """The *calls* of the kernel of *version*, which are those of the user.

    *taken*: all that it takes, if that is not just what the user gives. *is_number*: the only
    result is a number, for which the kernel has an array.
    """

    calls: Calls
    version: CompiledVersion
    taken: tuple[Taken, ...] = ()
    is_number: bool = False


class Straight(NamedTuple):
    """The call that was repeated last: how, the name of the only output, and the way."""

    repeat: LearnedCall
    only: Any  # str or None
    version: CompiledVersion
    taken: tuple[Taken, ...]
    is_number: bool


class VersionHolder(Protocol):
    """What knows the version that ran last: a program, or one with arguments bound."""

    latest: Any  # a version of the runner, which stands above


class FastPath:
    """The kernels that take calls as they come, the one used last first.

    A learned call of a kernel compares types, dtypes, extents and levels of its arguments with
    those of the call that it repeats. They decide which version of a program runs, how arguments
    are made for its kernel, and how results are returned. So where a version hands on all of them
    as they are, some perhaps under several names or as numbers of another type, a call that its
    kernel repeats needs nothing else. *places* keep which version ran. Many threads may use it at
    once: *ways* and *straight* are replaced, never changed.
    """

    __slots__ = ("places", "refused", "straight", "ways")

    def __init__(self, *places: VersionHolder) -> None:
        self.places = places
        self.ways: tuple[Way, ...] = ()
        self.straight: Straight | None = None
        self.refused: tuple[Calls, ...] = ()

    def run(self, out: Any, named: dict[str, Any]) -> Any:
        """Return what a call with *named* and *out* returns; NotImplemented: in full, please.

        *named* gets *out* under its name if so.
        """
        if self.straight is None:
            return self._search(out, named)
        repeat, only, version, taken, is_number = self.straight
        if out is not None:
            if is_number or only is None or type(out) is not _ndarray or only in named:
                return self._search(out, named)
            named[only] = out
        given = _as_taken(taken, named) if taken else named
        result = NotImplemented if given is None else repeat.entry(given)
        if result is NotImplemented:
            if out is not None:
                named.pop(only)
            return self._search(out, named)
        if type(result) is int:
            raise repeat.failure(result)
        for place in self.places:
            if place.latest is not version:
                place.latest = version
        return result[0] if is_number else result

    def _search(self, out: Any, named: dict[str, Any]) -> Any:
        """Return what run does by any of the ways, and go straight to it next time."""
        for way in self.ways:
            calls, given = way.calls, named
            taken: dict[str, Any] | None
            if out is not None:
                only = None if way.is_number else calls.only
                if only is None or type(out) is not _ndarray or only in named:
                    continue
                given = {**named, only: out}
            taken = _as_taken(way.taken, given) if way.taken else given
            result = NotImplemented if taken is None else calls.repeat(taken)
            if result is not NotImplemented:
                self.ways = (way, *(other for other in self.ways if other is not way))
                only, repeat = calls.only, calls.repeats[0]
                self.straight = Straight(repeat, only, way.version, way.taken, way.is_number)
                for place in self.places:
                    place.latest = way.version
                return result[0] if way.is_number else result
        return NotImplemented

    def news(self, kernel: Runnable) -> Calls | None:
        """Return the calls of *kernel* if it has learned some and was not considered; else None."""
        calls: Calls | None = kernel.only_calls
        if calls is None or not calls.repeats or calls in self.refused:
            return None
        return None if any(way.calls is calls for way in self.ways) else calls

    def consider(self, way: Way, *, plain: bool) -> None:
        """Go this *way* from now on if calls are *plain*: handed on as they are; else never."""
        if plain:
            self.ways = (way, *self.ways[: MAX_PLANS - 1])
        else:
            self.refused = (way.calls, *self.refused[: MAX_PLANS - 1])


def _as_taken(taken: tuple[Taken, ...], given: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the kernel takes for what is *given*; None if that is of other types or names."""
    result: dict[str, Any] = {}
    sources = 0
    for name, source, kind, make in taken:
        value = given.get(source)
        if type(value) is not kind:
            return None
        result[name] = value if make is None else make(value)
        sources += name == source
    return result if sources == len(given) else None


def tells_all(given: Mapping[str, Any], outputs: Mapping[str, Any]) -> bool:
    """Whether a call with *given*, *outputs* among it, says how all results are returned.

    Dense results are returned as arrays. A sparse one that was given says nothing about one that
    the kernel makes, which may be of another class, unless all that is sparse is scipy's csr.
    """
    if all(isinstance(output, _ndarray) for output in outputs.values()):
        return True
    return all(getattr(value, "format", "csr") == "csr" for value in given.values())


class Handover(NamedTuple):
    """What a user has *given*, a kernel *taken* and *returned*, and the user gets as *result*."""

    given: Mapping[str, Any]
    taken: Mapping[str, Any]
    returned: Any
    result: Any

    def takes(self, version: CompiledVersion) -> tuple[Taken, ...] | None:
        """Return how all that the kernel takes comes from what is given.

        Empty if it is that, None if it is more than other names, and numbers of other types.
        """
        given, taken = self.given, self.taken
        if given.keys() == taken.keys() and all(taken[n] is x for n, x in given.items()):
            return ()
        makers = {name: (source, make) for name, source, make in version.arguments}
        result = []
        for name, value in taken.items():
            source, make = makers.get(name, (name, None))
            arg = given.get(source)
            is_number = type(value) in (int, float) and isinstance(arg, (int, float, np.number))
            if value is not arg and not is_number:
                return None
            result.append(Taken(name, source, type(arg), None if value is arg else make))
        own = [each for each in result if each.name == each.source]
        return tuple(result) if len(own) == len(given) else None

    @property
    def is_plain(self) -> bool:
        """Whether what is returned is handed on as it is."""
        returned, result = self.returned, self.result
        if isinstance(result, Results) and isinstance(returned, Results):
            pairs = zip(returned, result, strict=True)
            return returned._fields == result._fields and all(a is b for a, b in pairs)
        return returned is result
