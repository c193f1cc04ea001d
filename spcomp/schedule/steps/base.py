"""Under all steps: their base class, and how they report why they are not legal."""

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
from spcomp.schedule.legality.running_sums import counted_loops

Makes: TypeAlias = Literal["loops", "blocks", "iterations"]


N = TypeVar("N", bound=Node)


STEPS: dict[str, type[Step]] = {}  # the step classes by name


MOST = 2**31 - 1  # no number of a step is larger: products with trip counts stay in 64 bits


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a step cannot be applied: a message, the line of the loop or block at fault, and a hint.

    *span* is None where no part of the program is at fault, as for an unknown name.
    """

    message: str
    span: Span | None = None
    hint: str = ""

    def error(self, span: Span | None = None) -> ScheduleError:
        """Return the problem as an error, at the user's line *span*, else at its own."""
        return ScheduleError(self.message, span or self.span, hint=self.hint)

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One change to a program; its docstring says ``before -> after``.

    A subclass decides in ``plan`` what to do to a program, or raises if the step is not legal; its
    ``rewrite`` does it. *makes*: the kind of names that ``Schedule.made`` lists.
    """

    name: ClassVar[str]
    makes: ClassVar[Makes] = "loops"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super(Step, cls).__init_subclass__(**kwargs)
        if "name" in vars(cls):
            STEPS[cls.name] = cls

    @abstractmethod
    def plan(self, func: Func) -> Any:
        """Return all that ``rewrite`` needs to know to change *func*; that decides nothing itself.

        Raises ScheduleError, with the line at fault, where the step is not legal. The plan is the
        new program itself where only that shows whether the step is legal.
        """

    def rewrite(self, func: Func, plan: Any) -> Func:
        """Return *func* changed according to *plan*; by default the plan is the new program."""
        assert isinstance(plan, type(func))
        return plan

    def result(self, func: Func) -> Func | Problem:
        """Return *func* with the step applied, or the problem; makes the plan only once."""
        plan = self.verdict(func)
        return plan if isinstance(plan, Problem) else self.rewrite(func, plan)

    def problems(self, func: Func) -> tuple[Problem, ...]:
        """Return why the step is not legal on *func*; an empty tuple if it is."""
        plan = self.verdict(func)
        return (plan,) if isinstance(plan, Problem) else ()

    def is_legal(self, func: Func) -> bool:
        """Whether the step can be applied to *func*."""
        return not self.problems(func)

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the step applied; raises ScheduleError, at the user's line *span*."""
        result = self.result(func)
        if isinstance(result, Problem):
            raise result.error(span)
        return result

    def verdict(self, func: Func) -> Any:
        """Return the plan for *func*, or the problem if the step is not legal."""
        try:
            self._check_arguments()
            return self._checked(func, self.plan(func))
        except ScheduleError as error:
            return Problem(error.message, error.span, error.hint)

    def _checked(self, func: Func, plan: Any) -> Any:
        """Return *plan*; raises ScheduleError if running sums would count other iterations."""
        if loops := counted_loops(func):
            after = plan if isinstance(plan, type(func)) else self.rewrite(func, plan)
            if counted_loops(after) != loops:
                raise self.error("the loops around a running sum (T.prefix) must stay", func)
        return plan

    def fits(self, func: Func) -> bool:
        """Whether *func* is at a level where this kind of step applies."""
        return isinstance(func, PosFunc)

    def arguments(self) -> dict[str, Any]:
        """The values of the fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def _check_arguments(self) -> None:
        """Raise ScheduleError for an argument of the wrong type, or a number beyond MOST."""
        for name, value in self.arguments().items():
            if not _is_a(value, _types(type(self))[name]):
                raise ScheduleError(
                    f"{self}: {name} cannot be {value!r}",
                    hint="names are strings, numbers are integers below 2**31",
                )

    def error(self, why: str, at: Node | Func, hint: str = "") -> ScheduleError:
        """Return the error that says *why* the step is not legal; *at*: the node at fault."""
        return ScheduleError(f"{self}: {why}", at.span, hint=hint)

    def __str__(self) -> str:
        parts = [repr(getattr(self, f.name)) for f in fields(self) if not f.kw_only]
        named = (f for f in fields(self) if f.kw_only and getattr(self, f.name) != f.default)
        parts += [f"{f.name}={getattr(self, f.name)!r}" for f in named]
        return f"{self.name}({', '.join(parts)})"


@cache
def _types(step: type[Step]) -> dict[str, Any]:
    return get_type_hints(step)


def _is_a(value: object, kind: Any) -> bool:
    """Whether *value* has the type *kind*, an annotation, and no number in it is beyond MOST."""
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
    """Base of the classes whose methods apply steps: they need ``apply`` only."""

    __slots__ = ()

    @abstractmethod
    def apply(self, step: Step) -> Self:
        """Return the schedule with *step* applied; raises ScheduleError if it is not legal."""


def as_tuple(value: Any) -> Any:
    """Return *value* as a tuple if it is iterable; else unchanged, for the step to refuse."""
    return tuple(value) if isinstance(value, Iterable) else value


def names_hint(names: Iterable[str], what: str) -> str:
    """Return a hint that lists *names*."""
    return f"{what} are {', '.join(names) or 'none'}"


def find_named(
    nodes: Iterable[tuple[str, N]], name: object, none: str, what: str, span: Span | None = None
) -> N:
    """Return the one node called *name* of *nodes*, pairs of a name and a node.

    Raises ScheduleError if there is none, with the message *none*, or if there are several. Its
    hint lists all names, and the lines of similar ones; *what*: what the nodes are, in the plural.
    """
    pairs = list(nodes)
    matches = [node for label, node in pairs if isinstance(name, str) and label == name]
    if len(matches) == 1:
        return matches[0]
    numbered = re.compile(rf"{re.escape(str(name))}(_\d+)?")
    names = [
        f"{label} (line {node.span.line})" if node.span and numbered.fullmatch(label) else label
        for label, node in pairs
    ]
    several = f"{name!r} is the name of {len(matches)} {what}"
    raise ScheduleError(several if matches else none, span, hint=names_hint(names, what))
