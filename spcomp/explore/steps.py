"""For the explorer: the steps of a schedule, with the program before and after each."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING

from spcomp.compiler.pipeline import apply_iteration_steps, as_module
from spcomp.errors import SpcompError, without_warnings
from spcomp.ir.analysis.names import distinct
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.ir.printer.program import print_lines
from spcomp.passes.base import Stage, stage_of
from spcomp.passes.pipelines import to_position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spcomp.compiler.compiled import Compiled
    from spcomp.ir.printer.program import Line
    from spcomp.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class Change:
    """What the step *text* made of the lines *before*."""

    text: str
    before: tuple[Line, ...]
    after: tuple[Line, ...]

    def difference(self, context: int | None = None) -> Iterator[tuple[str, Line]]:
        """Yield the lines after the step, those that it removed too, with what happened to each.

        *context*: how many equal lines to keep beside others; None: all.
        """
        old, new = ([text for text, _ in lines] for lines in (self.before, self.after))
        same = _common(old, new)
        end = min(_common(old[::-1], new[::-1]), len(old) - same, len(new) - same)
        middle = old[same : len(old) - end], new[same : len(new) - end]
        yield from _shortened(self.after[:same], context, first=True)
        for kind, a, b, c, d in SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
            if kind == "equal":
                yield from _shortened(self.after[same + c : same + d], context)
            else:
                yield from (("-", line) for line in self.before[same + a : same + b])
                yield from (("+", line) for line in self.after[same + c : same + d])
        yield from _shortened(self.after[len(new) - end :], context, last=True)


def _common(old: list[str], new: list[str]) -> int:
    """Return how many lines both begin with."""
    return sum(1 for _ in takewhile(bool, map(eq, old, new)))


def _shortened(
    lines: Sequence[Line], context: int | None, *, first: bool = False, last: bool = False
) -> Iterator[tuple[str, Line]]:
    """Yield equal *lines*: those within *context* lines of a change, which the *first* follow."""
    if context is None or len(lines) <= 2 * context + 1:
        yield from (("", line) for line in lines)
        return
    above, below = lines[: 0 if first else context], lines[len(lines) if last else -context :]
    yield from (("", line) for line in above)
    yield "", (f"... {len(lines) - len(above) - len(below)} lines as before ...", ())
    yield from (("", line) for line in below)


def changes(compiled: Compiled) -> tuple[Change, ...]:
    """Return each step of the schedule of *compiled*; nothing where they cannot be replayed."""
    try:
        with without_warnings():
            return tuple(_replay(compiled))
    except SpcompError:  # the program was lowered in a way that its trace does not say
        return ()


def _replay(compiled: Compiled) -> Iterator[Change]:
    program, trace = compiled.program, compiled.trace
    start = program if isinstance(program, Func | Module) else program.source
    module = as_module(start, compiled.options.constants)
    if stage_of(module) is Stage.COORDINATE:
        for func in module.funcs:
            yield from _of(func, tuple(takewhile(partial(_fits, func), trace.of(func.name))))
        module, _, trace = apply_iteration_steps(module, trace)
        module = to_position(compiled.target).run(module)
    for func in map(distinct, module.funcs):
        yield from _of(func, trace.of(func.name))


def _fits(func: Func, step: Step) -> bool:
    return step.fits(func)


def _of(func: Func, steps: Iterable[Step]) -> Iterator[Change]:
    """Yield what each of *steps* in turn makes of *func*."""
    lines = tuple(print_lines(func))
    for step in steps:
        func = step.apply(func)
        before, lines = lines, tuple(print_lines(func))
        yield Change(str(step), before, lines)
