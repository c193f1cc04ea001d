"""Schedule: a program and the steps that made it; every step returns a new one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from spcomp.errors import ScheduleError, Span
from spcomp.ir.coordinate import SpIter
from spcomp.ir.module import single
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, Func
from spcomp.ir.visitor import walk
from spcomp.passes.lower_iterations import LowerIterations
from spcomp.schedule.claims import without_false_claims
from spcomp.schedule.dependence import loops_of
from spcomp.schedule.primitives_blocks import BlockPrimitives
from spcomp.schedule.primitives_loops import LoopPrimitives
from spcomp.schedule.step import Step, Trace, known

_PACKAGE = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True, slots=True)
class Schedule(LoopPrimitives, BlockPrimitives):
    """A program at any level, and the trace of steps applied to it.

    Immutable: each step returns a new Schedule. Loops and blocks are called by name; :attr:`made`
    has the names that the last step gave. *lowered*: the compiler made the position-space program,
    so that its indices need no checks.
    """

    func: Func
    trace: Trace = field(default_factory=Trace)
    lowered: bool = False
    before: Func | None = field(default=None, repr=False, compare=False)

    def lower_sparse_iter(self) -> Schedule:
        """Return the schedule of the program in position space, where it has loops.

        Raises LoweringError, and ScheduleError for a program that needs several phases.
        """
        module = LowerIterations().run(single(self.func))
        if not module.is_single:
            raise ScheduleError(
                f"{self.func.name} assembles its output in {len(module.funcs)} phases",
                _user_line(),
                hint="schedule the functions of its Module one by one",
            )
        return Schedule(module.funcs[0], self.trace, lowered=True)

    def apply(self, step: Step) -> Schedule:
        """Return the schedule with *step* applied; raises ScheduleError if it is not legal."""
        base = self.func if self.trace or self.lowered else without_false_claims(self.func)
        func = step.apply(base, _user_line())
        trace = self.trace.extend(self.func.name, (step,))
        return replace(self, func=func, trace=trace, before=base)

    @property
    def made(self) -> tuple[str, ...]:
        """The names of the loops, blocks or iterations that the last step made, in their order.

        Loops of a split, the block of a cache_read: what the step of TVM returns.
        """
        if self.before is None:
            return ()
        (_, step) = self.trace.steps[-1]
        known = set(_names(self.before, step.makes))
        return tuple(name for name in _names(self.func, step.makes) if name not in known)

    def replay(self, trace: Trace, *, skip: bool = False) -> Schedule:
        """Return the schedule with the steps of *trace* for this function applied.

        *skip*: leave out steps that are not legal, as those that followed from a deleted one are;
        else they raise ScheduleError.
        """
        schedule = self
        for step in trace.of(self.func.name):
            try:
                schedule = schedule.apply(step)
            except ScheduleError:
                if not skip:
                    raise
        return schedule

    def get_block(self, name: str) -> str:
        """Return *name* if a block is called so; raises ScheduleError that lists the blocks."""
        blocks = [n.name for n in walk(self.func.body) if isinstance(n, Block)]
        if name not in blocks:
            raise ScheduleError(
                f"no block {name!r} in {self.func.name}", _user_line(), hint=known(blocks, "blocks")
            )
        return name

    def get_loops(self, block: str) -> tuple[str, ...]:
        """Return the names of the loops around *block*, within the block that encloses it."""
        self.get_block(block)
        for loops, found in _blocks_with_loops(self.func):
            if found.name == block:
                return loops
        return ()

    @property
    def loops(self) -> tuple[str, ...]:
        """The names of all loops, outer ones first."""
        return tuple(loop.var.name for loop in loops_of(self.func.body))

    def show(self) -> None:
        """Print the program."""
        self.func.show()


def _names(func: Func, what: str) -> Iterator[str]:
    for node in walk(func.body):
        match node:
            case For() if what == "loops":
                yield node.var.name
            case Block() if what == "blocks":
                yield node.name
            case SpIter() if what == "iterations":
                yield node.name


def _blocks_with_loops(func: Func) -> list[tuple[tuple[str, ...], Block]]:
    found: list[tuple[tuple[str, ...], Block]] = []
    stack: list[tuple[object, tuple[str, ...]]] = [(func.body, ())]
    while stack:
        node, loops = stack.pop()
        match node:
            case Block():
                found.append((loops, node))
                stack.append((node.body, ()))
            case For():
                stack.append((node.body, (*loops, node.var.name)))
            case tuple():
                stack.extend((item, loops) for item in node if item is not None)
            case _ if hasattr(node, "CHILDREN"):
                children = (getattr(node, name) for name in node.CHILDREN)
                stack.extend((child, loops) for child in children if child is not None)
    return found


def _user_line() -> Span | None:
    """Return where the caller outside the package stands."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else Span(frame.f_code.co_filename, frame.f_lineno)
