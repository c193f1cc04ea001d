"""Schedule: a program and the steps applied to it; every step returns a new one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from spcomp.display.html import code, folded, heading, numbered
from spcomp.errors import ScheduleError, Span, expect, front_doors
from spcomp.ir.analysis.names import distinct
from spcomp.ir.coordinate import SpIter
from spcomp.ir.func import Func
from spcomp.ir.module import Launch, Module
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.program import CoordFunc, FlatFunc
from spcomp.ir.stmt import For
from spcomp.ir.visitor import below, statements
from spcomp.passes.pipelines import legal, lower_sparse_buffer, lower_sparse_iter
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.claims import without_false_claims
from spcomp.schedule.nests.nests import find_block
from spcomp.schedule.primitives_blocks import BlockPrimitives
from spcomp.schedule.primitives_loops import IterationPrimitives, LoopPrimitives
from spcomp.schedule.queries import Queries
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.base import Problem, Step
from spcomp.schedule.steps.iterations.sparse import find_iteration

_PACKAGE = str(Path(__file__).resolve().parent.parent)


@front_doors
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Schedule(IterationPrimitives, LoopPrimitives, BlockPrimitives, Queries):
    """A program at any level, and the trace of steps applied to it.

    Immutable: each step returns a new Schedule. Iterations, loops and blocks are referred to by
    name; :attr:`made` has the names that the last step gave. Where several loops, or blocks, of a
    program have one name, each gets a number behind it. ``compile`` lowers the levels that remain.

    Args:
        func: A function, a Module with one function, or what has one: a kernel, that of index
            notation once it was called, or what ``decompose`` returns.
        trace: The steps that were applied.
        lowered: Whether the compiler lowered the program; its indices then need no checks.
        source: The function whose parameters a call takes; *func* if not given.
        opened: The number of steps that were applied before the program had loops.
        before: The program before the last step.

    Raises:
        ScheduleError: *func* is a Module of several functions.
        ArgumentError: An argument has the wrong type.
    """

    func: Func
    trace: Trace
    lowered: bool
    source: Func = field(compare=False)
    opened: int = field(compare=False)
    before: Func | None = field(compare=False)

    def __init__(
        self,
        func: Func | Module[Any],
        trace: Trace = Trace(),  # noqa: B008 (a frozen value)
        *,
        lowered: bool = False,
        source: Func | None = None,
        opened: int = 0,
        before: Func | None = None,
    ) -> None:
        func = getattr(func, "schedulable", func)  # of a kernel, or of what decompose returns
        hint = "give a function decorated with @T.prim_func; a Schedule has its own in .func"
        expect("func", func, (Func, Module), "a program", hint=hint)
        expect("trace", trace, Trace, "a Trace")
        default_source = func.source if isinstance(func, Module) else func
        for name, value in (
            ("func", distinct(_only(func) if isinstance(func, Module) else func)),
            ("trace", trace),
            ("lowered", lowered),
            ("source", source or default_source),
            ("opened", opened),
            ("before", before),
        ):
            object.__setattr__(self, name, value)

    @property
    def mod(self) -> Module[Any]:
        """The program as a Module of one function."""
        return Module(self.source, (self.func,), (Launch(self.func.name),))

    @property
    def decided(self) -> bool:
        """Whether some step is about loops: the compiler then adds no steps of its own."""
        return len(self.trace) > self.opened and not isinstance(self.func, CoordFunc)

    def lower_sparse_iter(
        self, *, check_invalid_binary_search: bool = False, search_blocks: bool = False
    ) -> Schedule:
        """Return the schedule with the program lowered to position space, where it has loops.

        A program that is already there comes back unchanged. For the options see
        :func:`spcomp.lower_sparse_iter`. Raises LoweringError, and ScheduleError for a program that
        needs several phases.
        """
        if not isinstance(self.func, CoordFunc):
            return self
        module = lower_sparse_iter(
            self.mod,
            check_invalid_binary_search=check_invalid_binary_search,
            search_blocks=search_blocks,
        )
        opened = len(self.trace)
        return replace(self, func=_only(module), lowered=True, opened=opened, before=None)

    def lower_sparse_buffer(self) -> Schedule:
        """Return the schedule with the program lowered to flat buffers, from any level.

        No further step can be applied. Raises LoweringError, ScheduleError.
        """
        if isinstance(self.func, FlatFunc):
            return self
        low = self.lower_sparse_iter()
        (func,) = lower_sparse_buffer(replace(low, func=low.checked()).mod).funcs
        return replace(low, func=func, before=None)

    def checked(self) -> Func:
        """Return the program, checked unless the compiler lowered it or a step was applied to it.

        Raises ScheduleError for a loop that is marked parallel but is not, and ScriptError for a
        program that breaks a rule of its level.
        """
        if self.trace or self.lowered:
            return self.func
        return without_false_claims(legal(self.mod).funcs[0])

    def apply(self, step: Step) -> Schedule:
        """Return the schedule with *step* applied; raises ScheduleError if it is not legal."""
        base = self.checked()
        func = step.apply(base, _user_line())
        trace = self.trace.extend(self.func.name, (step,))
        source = func if len(func.params) < len(base.params) else self.source
        return replace(self, func=func, trace=trace, source=source, before=base)

    def problems(self, step: Step) -> tuple[Problem, ...]:
        """Return why *step* cannot be applied, with place and hint; an empty tuple if it can."""
        return step.problems(self.checked())

    @property
    def made(self) -> tuple[str, ...]:
        """The names of the loops, blocks or iterations that the last step made, in program order.

        For example the loops of a split, or the block of a cache_read: what TVM's step returns.
        """
        if self.before is None:
            return ()
        (_, step) = self.trace.steps[-1]
        old_names = set(_names(self.before, step.makes))
        return tuple(name for name in _names(self.func, step.makes) if name not in old_names)

    def replay(self, trace: Trace, *, skip: bool = False) -> Schedule:
        """Return the schedule with the steps of *trace* for this function applied.

        The program is lowered before the first step that needs loops. *skip*: leave out steps that
        are not legal, such as those that needed a deleted one; otherwise they raise ScheduleError.
        """
        expect("trace", trace, Trace, "a Trace", hint="Trace.from_json_lines(text) reads one")
        schedule = self
        for step in trace.of(self.func.name):
            if not step.fits(schedule.func):
                schedule = schedule.lower_sparse_iter()
            if not (skip and schedule.problems(step)):
                schedule = schedule.apply(step)
        return schedule

    def get_sparse_iteration(self, name: str) -> str:
        """Return *name* if an iteration has it; else raises ScheduleError, with the names."""
        return find_iteration(self.func, name, _user_line()).name

    def get_sp_iters(self, iteration: str) -> tuple[str, ...]:
        """Return the names of the variables of *iteration*, in its order."""
        return tuple(var.name for var in find_iteration(self.func, iteration, _user_line()).vars)

    def get_block(self, name: str) -> str:
        """Return *name* if a block has it; else raises ScheduleError, with the names of all."""
        return find_block(self.func, name, f"get_block({name!r})", _user_line()).name

    def get_loops(self, block: str) -> tuple[str, ...]:
        """Return the names of the loops around *block*, within the block that encloses it."""
        self.get_block(block)
        for loops, node in _blocks_with_loops(self.func):
            if node.name == block:
                return loops
        return ()

    @property
    def loops(self) -> tuple[str, ...]:
        """The names of all loops, outer ones first."""
        return tuple(loop.var.name for loop in loops_of(self.func.body))

    def show(self) -> None:
        """Print the program."""
        self.func.show()

    def _repr_html_(self) -> str:
        steps = numbered(escape(str(step)) for _, step in self.trace)
        program = folded("the program now", code(self.func.script()))
        return heading(repr(self)[1:-1]) + folded("the steps", steps) + program

    def __repr__(self) -> str:
        level = ("flat", "position", "coordinate")[self.func.LEVEL]
        return f"<Schedule of {self.func.name} at {level} level: {len(self.trace)} steps>"


def _only(module: Module[Any]) -> Func:
    """Return the function of *module*; raises ScheduleError if there are several phases."""
    if not module.is_single:
        raise ScheduleError(
            f"{module.source.name} assembles its output in {len(module.funcs)} phases",
            _user_line(),
            hint="schedule the functions of its Module one by one",
        )
    func: Func = module.funcs[0]
    return func


def _names(func: Func, what: str) -> Iterator[str]:
    for node in statements(func.body):
        match node:
            case For() if what == "loops":
                yield node.var.name
            case Block() if what == "blocks":
                yield node.name
            case SpIter() if what == "iterations":
                yield node.name


def _blocks_with_loops(func: Func) -> list[tuple[tuple[str, ...], Block]]:
    result: list[tuple[tuple[str, ...], Block]] = []
    stack: list[tuple[Node, tuple[str, ...]]] = [(func.body, ())]
    while stack:
        node, loops = stack.pop()
        match node:
            case Block():
                result.append((loops, node))
                stack.append((node.body, ()))
            case For():
                stack.append((node.body, (*loops, node.var.name)))
            case _:
                stack.extend((child, loops) for child in below(node))
    return result


def _user_line() -> Span | None:
    """Return the line of the caller outside the package."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else Span(frame.f_code.co_filename, frame.f_lineno)
