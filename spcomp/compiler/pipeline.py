"""The whole route: a program at any level, through every level below it, to flat IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.compiler.backends import Backend, backend_of
from spcomp.compiler.roles import unset
from spcomp.errors import FormatError, warn
from spcomp.ir.analysis.names import distinct
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.expr import Const, Var
from spcomp.ir.func import Func
from spcomp.ir.module import MEASURED, Module, single
from spcomp.ir.specialize import specialize, specialize_module
from spcomp.passes.base import Hook, Pipeline, Stage, stage_of
from spcomp.passes.flat.guard_accesses import GuardAccesses
from spcomp.passes.pipelines import legal, to_flat, to_position
from spcomp.schedule.default.facts import UNKNOWN, Facts
from spcomp.schedule.nests.claims import without_false_claims, without_permissions
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.base import Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.schedule.schedule import Schedule
    from spcomp.target import Target

GUARDS = Pipeline((GuardAccesses(),))


@dataclass(frozen=True, slots=True)
class Stages:
    """A program at its own level and each level below, and the seconds that each step took."""

    coordinate: Module[Any] | None
    position: Module[Any] | None
    flat: Module[Any]
    trace: Trace = field(default_factory=Trace)
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def order_needed(self) -> frozenset[str]:
        """The names of the axes whose coordinates (or hash tables) each call has to check."""
        names: set[str] = set()
        for func in self.flat.funcs:
            names.update(func.attr("order_needed", ()))
        return frozenset(names)


Program: TypeAlias = "Func | Module[Any] | Schedule"  # a string: most programs load no Schedule


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
    facts: Facts = UNKNOWN,
) -> Stages:
    """Return *program* at its own level and every level below.

    *trace* replaces the default schedule. *after* is called with the module after every pass.
    *target* is resolved (``vector_bits`` is known). *trusted*: do not check the parallel loops and
    the indices of a program that was written below coordinate space. *facts*: what the default
    schedule may know of the data. Raises FormatError, LoweringError, ScheduleError.
    """
    backend, source = backend_of(target.kind), _Source.of(program, constants or {})
    module, applied, laps = source.module, source.applied, _Laps()
    if source.decided and trace is None:
        trace = Trace()  # its steps are already applied to the program
    written_at = stage_of(module)
    stages: dict[Stage, Module[Any]] = {written_at: module}
    if written_at is Stage.COORDINATE:
        if trace is not None:
            module, first, trace = apply_iteration_steps(module, trace)
            stages[Stage.COORDINATE], applied = module, applied.then(first)
        stages[Stage.POSITION] = module = to_position(target).run(module, after)
        laps.end("position")
    trusted = trusted or source.lowered
    if not trusted and not applied and written_at is not Stage.COORDINATE:
        module = module.with_funcs(*map(without_false_claims, module.funcs))
    used = Trace()
    if stage_of(module) is Stage.POSITION:
        module, used = apply_schedule(module, backend, target, trace, facts)
        stages[Stage.POSITION] = module
        laps.end("schedule")
        if not backend.atomics:
            module = module.with_funcs(*map(without_permissions, module.funcs))
        module = to_flat(target).run(module, after)
        laps.end("flat")
    if written_at is not Stage.COORDINATE and not trusted:
        module = GUARDS.run(module, after)
    if not backend.atomics:
        module = module.with_funcs(*map(without_permissions, module.funcs))
    module = backend.finish(target).run(module, after)
    laps.end("finish")
    above = stages.get(Stage.COORDINATE), stages.get(Stage.POSITION)
    return Stages(*above, module, applied.then(used), laps.seconds)


@dataclass(frozen=True, slots=True)
class _Source:
    """A program as the user gives it, with the steps already *applied* to it.

    *lowered*: the compiler lowered it. *decided*: the user has chosen its schedule.
    """

    module: Module[Any]
    applied: Trace
    decided: bool
    lowered: bool

    @classmethod
    def of(cls, program: Program, constants: Mapping[str, int | float]) -> _Source:
        """Return *program*, checked, with *constants* compiled in; raises FormatError."""
        module = as_module(program, constants)
        _refuse_negative_extents(module.source)
        if not isinstance(program, (Func, Module)):
            applied, lowered = program.trace, program.lowered
            return cls(
                module if applied or lowered else legal(module), applied, program.decided, lowered
            )
        for buffer, store in (found for func in module.funcs for found in unset(func)):
            where = f"{store.span}: " if store.span is not None else ""
            warn(f"{where}{buffer.name} has no first value: use T.init(), or store one before")
        if stage_of(module) is not Stage.COORDINATE and module.funcs != (module.source,):
            module = module.with_funcs(*(func.with_attr(MEASURED, True) for func in module.funcs))
        return cls(legal(module), Trace(), decided=False, lowered=False)


class _Laps:
    """A stopwatch: the seconds that each step took, by its name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begin = perf_counter()

    def end(self, name: str) -> None:
        """Note that the step *name* ends now, and the next begins."""
        now = perf_counter()
        self.seconds[name], self._begin = now - self._begin, now


def _refuse_negative_extents(func: Func) -> None:
    """Raise FormatError if an axis or buffer of *func* has a negative extent."""
    for owner in (*func.axes, *func.buffers):
        if isinstance(owner, SparseBuffer):
            continue  # as long as its axes say
        sizes = (
            (owner.length, owner.nnz, owner.nnz_cols) if isinstance(owner, Axis) else owner.shape
        )
        for size in sizes:
            extent = None if size is None else simplify(size)
            if isinstance(extent, Const) and extent.value < 0:
                raise FormatError(
                    f"{owner.name} has the extent {extent.value}",
                    owner.span,
                    hint="an extent is 0 or more, also where constants are compiled in",
                )


def apply_iteration_steps(module: Module[Any], trace: Trace) -> tuple[Module[Any], Trace, Trace]:
    """Return *module* after the steps of *trace* for coordinate space, these steps, and the others.

    *module* is in coordinate space, and these steps come first in the trace.
    """
    funcs: list[Func] = []
    first, later = Trace(), Trace()
    for func in module.funcs:
        new, steps = func, trace.of(func.name)
        matching = tuple(takewhile(partial(_fits, func), steps))
        for step in matching:
            new = step.apply(new)
        first = first.extend(func.name, matching)
        later = later.extend(func.name, steps[len(matching) :])
        funcs.append(new)
    return module.with_funcs(*funcs), first, later


def _fits(func: Func, step: Step) -> bool:
    return step.fits(func)


def apply_schedule(
    module: Module[Any], backend: Backend, target: Target, trace: Trace | None, facts: Facts
) -> tuple[Module[Any], Trace]:
    """Return *module* after the steps of *trace*, or the default steps, and the steps applied."""
    funcs: list[Func] = []
    used = Trace()
    for func in module.with_funcs(*map(distinct, module.funcs)).funcs:
        if trace is None:
            new, steps = backend.schedule(func, target, facts)
        else:
            new, steps = func, trace.of(func.name)
            for step in steps:
                new = step.apply(new)
        used = used.extend(func.name, steps)
        funcs.append(new)
    return module.with_funcs(*funcs), used
