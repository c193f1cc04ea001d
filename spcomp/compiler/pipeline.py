"""The whole route: a program at any level, through every level below it, to flat IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from spcomp.ir.expr import Var
from spcomp.ir.module import Module, single
from spcomp.ir.relink import specialize, specialize_module
from spcomp.ir.stmt import Func
from spcomp.passes.base import Hook, Pipeline, Stage, stage_of
from spcomp.passes.cleanup import Cleanup
from spcomp.passes.flatten_buffers import FlattenBuffers
from spcomp.passes.guard_accesses import GuardAccesses
from spcomp.passes.loop_kinds import LoopKinds
from spcomp.passes.lower_blocks import LowerBlocks
from spcomp.passes.lower_iterations import LowerIterations
from spcomp.passes.lower_merge import LowerMerge
from spcomp.schedule.claims import without_false_claims
from spcomp.schedule.default_trace import Facts, default_schedule
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.target import Target

TO_POSITION = Pipeline((LowerIterations(),))
TO_FLAT = Pipeline((LowerMerge(), LowerBlocks(), FlattenBuffers()))
GUARDS = Pipeline((GuardAccesses(),))


def finish(target: Target) -> Pipeline:
    """Return the passes over flat IR that *target* asks for."""
    return Pipeline((LoopKinds(target.vector_bits), Cleanup()))


@dataclass(frozen=True, slots=True)
class Stages:
    """A program at every level from the one it was given at, and how long each step took (s)."""

    coordinate: Module[Any] | None
    position: Module[Any] | None
    flat: Module[Any]
    trace: Trace = field(default_factory=Trace)
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def order_needed(self) -> frozenset[str]:
        """The names of the axes whose coordinates must ascend for the code to be right."""
        names: set[str] = set()
        for func in self.flat.funcs:
            names.update(func.attr("order_needed", ()))
        return frozenset(names)


Program = Func | Module[Any] | Schedule


def as_module(program: Program, constants: Mapping[str, int | float]) -> Module[Any]:
    """Return *program* as a Module, with *constants* in place of the parameters they name."""
    if isinstance(program, Schedule):
        program = program.func
    values: dict[Var | str, int | float] = {name: constants[name] for name in constants}
    if isinstance(program, Module):
        return specialize_module(program, values) if values else program
    return single(specialize(program, values) if values else program)


def lower(
    program: Program,
    target: Target,
    constants: Mapping[str, int | float] | None = None,
    *,
    trace: Trace | None = None,
    after: Hook | None = None,
    trusted: bool = False,
    facts: Facts = Facts(),  # noqa: B008 (a frozen value)
) -> Stages:
    """Return *program* at every level below its own.

    *trace* replaces the default schedule; *after* sees the module behind every pass. *target* is
    resolved (``vector_bits`` known). *trusted*: a program that was written below coordinate space
    is believed in its parallel loops and its indices, which are else checked. *facts*: what the
    default schedule may know of the data. Raises LoweringError, ScheduleError.
    """
    if isinstance(program, Schedule) and program.trace and trace is None:
        trace = Trace()  # the user has decided; what the steps made is in the program
    module = as_module(program, constants or {})
    written_at = stage_of(module)
    stages: dict[Stage, Module[Any]] = {written_at: module}
    timings: dict[str, float] = {}
    start = perf_counter()

    def lap(name: str) -> None:
        nonlocal start
        now = perf_counter()
        timings[name], start = now - start, now

    if stage_of(module) is Stage.COORDINATE:
        stages[Stage.POSITION] = module = TO_POSITION.run(module, after)
        lap("position")
    if isinstance(program, Schedule):  # its steps have been checked, and what they started from
        trusted = trusted or program.lowered
    elif not trusted and written_at is not Stage.COORDINATE:
        module = module.with_funcs(*map(without_false_claims, module.funcs))
    used = Trace()
    if stage_of(module) is Stage.POSITION:
        module, used = scheduled(module, target, trace, facts)
        stages[Stage.POSITION] = module
        lap("schedule")
        module = TO_FLAT.run(module, after)
        lap("flat")
    if written_at is not Stage.COORDINATE and not trusted:
        module = GUARDS.run(module, after)
    module = finish(target).run(module, after)
    lap("finish")
    return Stages(stages.get(Stage.COORDINATE), stages.get(Stage.POSITION), module, used, timings)


def scheduled(
    module: Module[Any], target: Target, trace: Trace | None, facts: Facts
) -> tuple[Module[Any], Trace]:
    """Return *module* with *trace*, or the default steps, applied, and the trace."""
    funcs: list[Func] = []
    used = Trace()
    for func in module.funcs:
        if trace is None:
            new, steps = default_schedule(func, target, facts)
        else:
            new, steps = func, trace.of(func.name)
            for step in steps:
                new = step.apply(new)
        used = used.extend(func.name, steps)
        funcs.append(new)
    return module.with_funcs(*funcs), used
