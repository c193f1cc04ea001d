"""Before the route: the options of ``compile``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from types import NoneType
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, get_args, runtime_checkable

from spcomp.errors import ArgumentError, expect
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.step import Trace
from spcomp.target import Target
from spcomp.target import target as parse_target

Check: TypeAlias = Literal["full", "bind", "off"]
CHECKS: tuple[Check, ...] = get_args(Check)
_TRACES = "kernel.trace is one, and Trace.from_json_lines makes one of text"


class CompileOptions(TypedDict, total=False):
    """The options of ``compile`` that every kind of program has, for type checkers."""

    target: str | Target
    name: str | None
    constants: Mapping[str, int | float] | None
    threads: int | None
    check: Check | None
    trace: Trace | None
    fast_math: bool
    debug: bool | None
    tuned: bool | str | os.PathLike[str] | Winning | Tuner | None


class Winning(Protocol):
    """Where winners are kept: ``spcomp.tune.Store``."""

    def has(self, program: str) -> bool:
        """Whether there is a winner for the program with this digest."""


@runtime_checkable
class Tuner(Protocol):
    """What knows kernels better than the default ones, by what was measured."""

    def kernel(self, func: Any, options: Options) -> Any:
        """Return a kernel of *func* that does what was found to be fastest for its arguments."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``compile``: all its arguments but the program."""

    target: Target
    name: str | None = None
    constants: dict[str, int | float] = field(default_factory=dict)
    threads: int | None = None
    check: Check = "full"
    trace: Trace | None = None
    fast_math: bool = False
    facts: Facts | None = None  # None: all calls get this version, whatever their data is like
    tuned: Tuner | None = None
    debug: bool = False

    @classmethod
    def of(
        cls,
        target: str | Target = "cpu",
        name: str | None = None,
        constants: Mapping[str, int | float] | None = None,
        threads: int | None = None,
        check: Check | None = None,
        trace: Trace | None = None,
        *,
        fast_math: bool = False,
        debug: bool | None = None,
        **unknown: Any,
    ) -> Options:
        """Return the options for the arguments of ``compile``; raises ArgumentError."""
        for wrong in unknown:
            hint = "for index notation there are formats, semiring and functions besides"
            raise ArgumentError(f"argument {wrong}: is none of compile's", hint=hint)
        expect("name", name, (str, NoneType), "a string")
        if name is not None and (not name.isidentifier() or iskeyword(name)):
            hint = "write an identifier, as spmm_2"
            raise ArgumentError(f"argument name: got {name!r}", hint=hint)
        expect("constants", constants, (Mapping, NoneType), "numbers by the names of parameters")
        expect("trace", trace, (Trace, NoneType), "a Trace", hint=_TRACES)
        expect("fast_math", fast_math, bool, "True or False")
        expect("debug", debug, (bool, NoneType), "True or False")
        if debug is None:
            debug = os.environ.get("SPCOMP_DEBUG", "0") not in ("", "0")
        chosen = parse_target(target), name, dict(constants or {}), _threads(threads)
        return cls(*chosen, _check(check), trace, fast_math, debug=debug)


def _check(given: str | None) -> Check:
    chosen = given if given is not None else os.environ.get("SPCOMP_CHECK") or "full"
    for level in CHECKS:
        if chosen == level:
            return level
    raise ArgumentError(f"argument check: got {chosen!r}", hint=f"levels are {', '.join(CHECKS)}")


def _threads(count: int | None) -> int | None:
    if count is not None and (not isinstance(count, int) or count < 1):
        raise ArgumentError(f"argument threads: got {count!r}, expected a positive integer")
    return count
