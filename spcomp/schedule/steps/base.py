"""What every step of a schedule is, and what a step is applied to."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from spcomp.errors import ScheduleError, Span
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.program import PosFunc
from spcomp.ir.stmt import For

Makes: TypeAlias = Literal["loops", "blocks", "iterations"]


N = TypeVar("N", bound=Node)


STEPS: dict[str, type[Step]] = {}  # every step class by name


MOST = 2**31 - 1  # no number of a step is larger: products with trip counts stay in 64 bits


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One change to a program; its docstring says ``before -> after``. *span*: the user's line.

    *makes* says what is new in the program afterwards, for ``Schedule.made``.
    """

    name: ClassVar[str]
    makes: ClassVar[Makes] = "loops"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super(Step, cls).__init_subclass__(**kwargs)
        if "name" in vars(cls):
            STEPS[cls.name] = cls

    @abstractmethod
    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* changed; raises ScheduleError where that would change its meaning."""

    def fits(self, func: Func) -> bool:
        """Whether *func* is at a level where this kind of step applies."""
        return isinstance(func, PosFunc)

    def is_legal(self, func: Func) -> bool:
        """Whether apply would return."""
        try:
            self.apply(func)
        except ScheduleError:
            return False
        return True

    def arguments(self) -> dict[str, Any]:
        """The fields, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self, span: Span | None = None) -> None:
        """Raise ScheduleError for an argument of another type, or a number beyond MOST."""
        for name, value in self.arguments().items():
            if not _is_a(value, _types(type(self))[name]):
                raise ScheduleError(
                    f"{self}: {name} cannot be {value!r}",
                    span,
                    hint="names are strings, numbers are integers below 2**31",
                )

    def _error(self, why: str, loop: For, span: Span | None, hint: str = "") -> ScheduleError:
        """The error that says *why* the step cannot be taken: at the user's line, else the loop."""
        return ScheduleError(f"{self}: {why}", span or loop.span, hint=hint)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments().values()))})"


@cache
def _types(step: type[Step]) -> dict[str, Any]:
    return get_type_hints(step)


def _is_a(value: object, kind: Any) -> bool:
    """Whether *value* is what the annotation *kind* says, and no number in it beyond MOST."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(_is_a(value, part) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple) or (parts[-1] is not ... and len(value) != len(parts)):
            return False
        each = parts[:1] * len(value) if parts[-1] is ... else parts
        return all(map(_is_a, value, each))
    if kind is int:
        return type(value) is int and abs(value) <= MOST
    return isinstance(value, (int, float) if kind is float else kind)


class Steps(ABC):
    """What a step can be applied to."""

    __slots__ = ()

    @abstractmethod
    def apply(self, step: Step) -> Self:
        """Return this with *step* applied; raises ScheduleError if it is not legal."""


def listed(value: Any) -> Any:
    """Return *value* as a tuple if it is a list of things, else as it is: check refuses it."""
    return tuple(value) if isinstance(value, Iterable) else value


def known(names: Iterable[str], what: str) -> str:
    """Return a hint that lists *names*."""
    return f"{what} are {', '.join(names) or 'none'}"


def the_one(
    nodes: Iterable[tuple[str, N]], name: object, none: str, what: str, span: Span | None
) -> N:
    """Return which of *nodes*, each given with its name, is called *name*; *what* they all are.

    Raises ScheduleError unless one is, saying *none* if none is; its hint lists the names, those
    that could be meant with their lines.
    """
    every = list(nodes)
    found = [node for own, node in every if isinstance(name, str) and own == name]
    if len(found) == 1:
        return found[0]
    numbered = re.compile(rf"{re.escape(str(name))}(_\d+)?")
    names = [
        f"{own} (line {node.span.line})" if node.span and numbered.fullmatch(own) else own
        for own, node in every
    ]
    several = f"{name!r} is the name of {len(found)} {what}"
    raise ScheduleError(several if found else none, span, hint=known(names, what))
