"""The whole route: a program at any level, through every level below it, to flat IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.errors import FormatError
from spcomp.ir.analysis.names import distinct
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.expr import Const, Var
from spcomp.ir.func import Func
from spcomp.ir.module import MEASURED, Module, single
from spcomp.ir.specialize import specialize, specialize_module
from spcomp.passes.base import Hook, Pipeline, Stage, stage_of
from spcomp.passes.flat.bind_threads import BindThreads
from spcomp.passes.flat.cleanup import Cleanup
from spcomp.passes.flat.guard_accesses import GuardAccesses
from spcomp.passes.flat.loop_kinds import LoopKinds
from spcomp.passes.pipelines import TO_FLAT, TO_POSITION, legal
from spcomp.schedule.default.cpu import Facts, default_schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.claims import without_false_claims, without_permissions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.schedule.schedule import Schedule
    from spcomp.target import Target

GUARDS = Pipeline((GuardAccesses(),))


def finish(target: Target) -> Pipeline:
    """Return the passes over flat IR that *target* asks for."""
    return Pipeline((BindThreads(), LoopKinds(target.vector_bits), Cleanup()))


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
        """The names of the axes whose coordinates must be in order, or tables, as they claim."""
        names: set[str] = set()
        for func in self.flat.funcs:
            names.update(func.attr("order_needed", ()))
        return frozenset(names)


Program: TypeAlias = "Func | Module[Any] | Schedule"  # which most programs are not, nor load


def as_module(program: Program, constants: Mapping[str, int | float]) -> Module[Any]:
    """Return *program* as a Module, with *constants* in place of the parameters they name."""
    if not isinstance(program, (Func, Module)):
        program = program.mod
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
    default schedule may know of the data. Raises FormatError, LoweringError, ScheduleError.
    """
    schedule = None if isinstance(program, (Func, Module)) else program
    done = Trace() if schedule is None else schedule.trace
    if schedule is not None and schedule.decided and trace is None:
        trace = Trace()  # the user has decided; what the steps made is in the program
    module = as_module(program, constants or {})
    _refuse_negative_extents(module.source)
    written_at = stage_of(module)
    if schedule is None and written_at is not Stage.COORDINATE and module.funcs != (module.source,):
        module = module.with_funcs(*(func.with_attr(MEASURED, True) for func in module.funcs))
    if not done and not (schedule is not None and schedule.lowered):
        module = legal(module)
    stages: dict[Stage, Module[Any]] = {written_at: module}
    timings: dict[str, float] = {}
    start = perf_counter()

    def lap(name: str) -> None:
        nonlocal start
        now = perf_counter()
        timings[name], start = now - start, now

    if stage_of(module) is Stage.COORDINATE:
        if trace is not None:
            module, first, trace = opened(module, trace)
            stages[Stage.COORDINATE], done = module, done.then(first)
        stages[Stage.POSITION] = module = TO_POSITION.run(module, after)
        lap("position")
    trusted = trusted or (schedule is not None and schedule.lowered)
    if not trusted and not done and written_at is not Stage.COORDINATE:
        module = module.with_funcs(*map(without_false_claims, module.funcs))
    used = Trace()
    if stage_of(module) is Stage.POSITION:
        module, used = scheduled(module, target, trace, facts)
        stages[Stage.POSITION] = module
        lap("schedule")
        module = TO_FLAT.run(module.with_funcs(*map(without_permissions, module.funcs)), after)
        lap("flat")
    if written_at is not Stage.COORDINATE and not trusted:
        module = GUARDS.run(module, after)
    module = finish(target).run(module.with_funcs(*map(without_permissions, module.funcs)), after)
    lap("finish")
    used = done.then(used)
    return Stages(stages.get(Stage.COORDINATE), stages.get(Stage.POSITION), module, used, timings)


def _refuse_negative_extents(func: Func) -> None:
    """Raise FormatError for an axis or buffer of *func* that no argument fits: it is too short."""
    for owner in (*func.axes, *func.buffers):
        if isinstance(owner, SparseBuffer):
            continue  # as long as its axes say
        sizes = (
            (owner.length, owner.nnz, owner.nnz_cols) if isinstance(owner, Axis) else owner.shape
        )
        for size in sizes:
            known = None if size is None else simplify(size)
            if isinstance(known, Const) and known.value < 0:
                raise FormatError(
                    f"{owner.name} has the extent {known.value}",
                    owner.span,
                    hint="an extent is 0 or more, also where constants are compiled in",
                )


def opened(module: Module[Any], trace: Trace) -> tuple[Module[Any], Trace, Trace]:
    """Return *module*, in coordinate space, with the first steps of *trace* applied.

    Those are the ones for this level; they, and the others, are returned, too.
    """
    funcs: list[Func] = []
    first, rest = Trace(), Trace()
    for func in module.funcs:
        new, steps = func, trace.of(func.name)
        here = tuple(takewhile(partial(_fits, func), steps))
        for step in here:
            new = step.apply(new)
        first, rest = first.extend(func.name, here), rest.extend(func.name, steps[len(here) :])
        funcs.append(new)
    return module.with_funcs(*funcs), first, rest


def _fits(func: Func, step: Step) -> bool:
    return step.fits(func)


def scheduled(
    module: Module[Any], target: Target, trace: Trace | None, facts: Facts
) -> tuple[Module[Any], Trace]:
    """Return *module* with *trace*, or the default steps, applied, and the trace."""
    funcs: list[Func] = []
    used = Trace()
    for func in module.with_funcs(*map(distinct, module.funcs)).funcs:
        if trace is None:
            new, steps = default_schedule(func, target, facts)
        else:
            new, steps = func, trace.of(func.name)
            for step in steps:
                new = step.apply(new)
        used = used.extend(func.name, steps)
        funcs.append(new)
    return module.with_funcs(*funcs), used
