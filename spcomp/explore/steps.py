"""For the explorer: the steps of a schedule, with the program before and after each."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
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
    from collections.abc import Iterator

    from spcomp.compiler.compiled import Compiled
    from spcomp.ir.printer.program import Line


@dataclass(frozen=True, slots=True)
class Change:
    """What the step *text* made of the lines *before*."""

    text: str
    before: tuple[Line, ...]
    after: tuple[Line, ...]

    def difference(self) -> Iterator[tuple[str, Line]]:
        """Yield the lines after the step, those that it removed too, with what happened to each."""
        old, new = ([text for text, _ in lines] for lines in (self.before, self.after))
        for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if kind == "equal":
                yield from (("", line) for line in self.after[c:d])
            else:
                yield from (("-", line) for line in self.before[a:b])
                yield from (("+", line) for line in self.after[c:d])


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
            for step in trace.of(func.name):
                if not step.fits(func):
                    break
                before, func = func, step.apply(func)
                yield _change(step, before, func)
        module, _, trace = apply_iteration_steps(module, trace)
        module = to_position(compiled.target).run(module)
    for func in map(distinct, module.funcs):
        for step in trace.of(func.name):
            before, func = func, step.apply(func)
            yield _change(step, before, func)


def _change(step: object, before: Func, after: Func) -> Change:
    return Change(str(step), tuple(print_lines(before)), tuple(print_lines(after)))
