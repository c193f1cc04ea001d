"""Around the route: index notation is planned for arguments, over candidates of formats.

A program is planned for one candidate after the other, a way to use the arguments; the first that
does is the decision. Candidates differ in operands that loops cannot go through in order: lists of
elements, bitmaps, tables. All of them are used directly, or only the located ones, or none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spcomp.compiler.backends import backend_of
from spcomp.compiler.options import Options
from spcomp.dtypes import bool_
from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.formats.hyb import composable
from spcomp.formats.rules import ComposableFormat
from spcomp.kernels.notation.arguments import (
    Argument,
    CallArguments,
    Source,
    as_number,
    with_mask,
)
from spcomp.kernels.notation.formats import Formats, requested_layouts
from spcomp.kernels.notation.planned import (
    Candidate,
    Decision,
    NoPlan,
    Piece,
    Planned,
    Refusal,
    Split,
)
from spcomp.knobs import knobs_of
from spcomp.notation.algebra import Windowed
from spcomp.notation.asked import refuse_lost_answers, refuse_negated
from spcomp.notation.direct import is_direct, misfit
from spcomp.notation.emit import emit
from spcomp.notation.gathers import ordering, searched, transposes
from spcomp.notation.implied import refuse_dense
from spcomp.notation.inner import with_inner_hoisted
from spcomp.notation.layout import Layout, is_bitmap, is_located
from spcomp.notation.nodes import Assignment, Program, Reduce, accesses, free
from spcomp.notation.places import with_assigned_parts
from spcomp.notation.plan import Plan, plan_statement
from spcomp.notation.prepare import Prepared, free_name, prepare
from spcomp.notation.reason import Reason
from spcomp.notation.semiring import Semiring
from spcomp.notation.sizes import Sizes
from spcomp.notation.split import fits_one, split_statements
from spcomp.notation.temporaries import owned
from spcomp.notation.types import Types
from spcomp.notation.vectors import Scattered, check_vectors, only_vectors, with_scatters
from spcomp.target import on_gpu
from spcomp.tensors.device_tensor import DeviceTensor

MOST_ROUNDS = 4  # in which operands are converted, until no loop needs another order


def candidates(arguments: Mapping[str, Argument]) -> tuple[Candidate, ...]:
    """Return the ways to use *arguments*; the first converts least."""
    layouts = {name: argument.operand.layout for name, argument in arguments.items()}
    direct = frozenset(name for name, layout in layouts.items() if is_direct(layout))
    located = frozenset(name for name in direct if is_located(layouts[name]))
    ways = (
        Candidate("as it is given", direct),
        Candidate("where it is located", located),
        Candidate("converted"),
    )
    return tuple({way.direct: way for way in ways}.values())


@dataclass(frozen=True, slots=True)
class _Operands:
    """Makes the Arguments of a program for a call; each once for each layout."""

    prepared: Prepared
    wanted: Mapping[str, Layout]
    from_call: CallArguments
    sources: dict[str, Source] = field(default_factory=dict)
    cache: dict[tuple[str, Layout | None, bool], Argument] = field(default_factory=dict)

    def arguments(
        self, converts: Mapping[str, Layout], direct: Collection[str]
    ) -> dict[str, Argument]:
        """Return the Arguments by operand, in the layouts that *converts* has, else those wanted.

        *direct*: the operands to use as they are given. Raises ArgumentError.
        """
        arguments: dict[str, Argument] = {}
        for name, rank in self.prepared.operands.items():
            part = self.prepared.parts.get(name, Windowed(name, ()))
            if part.name not in self.from_call:
                continue
            if name not in self.sources:
                whole = self.from_call[part.name].whole
                self.sources[name] = Source.of(part.name, whole, rank, part.windows)
            layout = converts.get(name, self.wanted.get(name, self.wanted.get(part.name)))
            if layout is not None and layout.rank != rank:
                layout = None
            argument = self._argument(name, layout, direct=name in direct)
            if is_bitmap(argument.operand.layout):
                mask = free_name(f"{name}_mask", {*self.prepared.ranks, *self.prepared.operands})
                argument, arguments[mask] = with_mask(argument, mask)
            arguments[name] = argument
        return arguments

    def _argument(self, name: str, wanted: Layout | None, *, direct: bool) -> Argument:
        key = name, wanted, direct
        if key not in self.cache:
            argument = self.sources[name].argument(wanted, direct=direct)
            self.cache[key] = argument
            if direct and not is_direct(argument.operand.layout):  # the same in any candidate
                self.cache[name, wanted, False] = argument
        return self.cache[key]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The result of planning a candidate; *converts*: the layouts that the plans asked for."""

    arguments: Mapping[str, Argument]
    plans: tuple[Plan, ...]
    converts: Mapping[str, Layout]

    @property
    def layouts(self) -> dict[str, Layout]:
        """The layouts of the operands."""
        return {name: argument.operand.layout for name, argument in self.arguments.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Planner:
    """Decides how one program is computed, for the arguments of each call.

    *written*: the program as the user wrote it; *inner*: the same, in which assigned *parts* are
    results of their own, and *rows* of index vectors are operands; *prepared*: *inner* with its
    names resolved. *wanted*: the requested layouts; *stored*: the requested formats of several
    parts. *owns_temporaries*: the program allocates what no caller gets. *gathers*: matrices are
    transposed where results would be scattered. *exact*: floats are computed as they are written.
    *loads_apart*: vectors at coordinates are loaded one element after the other.
    """

    written: Program
    inner: Program
    parts: Mapping[str, Windowed]
    rows: Mapping[str, Scattered]
    prepared: Prepared
    semiring: Semiring
    formats: Formats
    wanted: Mapping[str, Layout]
    stored: Mapping[str, ComposableFormat]
    owns_temporaries: bool
    gathers: bool
    exact: bool
    loads_apart: bool

    @classmethod
    def of(
        cls, program: Program, formats: Formats, semiring: Semiring, options: Options
    ) -> Planner:
        """Return the planner of *program*; raises SpcompError if it is wrong for all arguments."""
        if any(map(composable, formats.values())):
            program = with_inner_hoisted(program)
        inner, rows = with_scatters(program, semiring)
        formats = _without_scattered(formats, program)
        inner, parts = with_assigned_parts(inner)
        prepared = prepare(inner)
        assigned = (name for name in parts if prepared.ranks[name] and name not in formats)
        formats = {**formats, **dict.fromkeys(assigned, "dense")}
        wanted, stored = requested_layouts(formats, prepared)
        target = backend_of(options.target.kind).resolve(options.target)
        knobs = knobs_of(target)
        return cls(
            program,
            inner,
            parts,
            rows,
            prepared,
            semiring,
            formats,
            wanted,
            stored,
            owns_temporaries=knobs.owns_temporaries,
            gathers=knobs.gathers_results,
            exact=not options.fast_math,
            loads_apart=not on_gpu(target) and not knobs.gathers(target.vector_bits),
        )

    def decide(
        self, name: str, from_call: CallArguments, asked: frozenset[str] = frozenset()
    ) -> Decision:
        """Return the program *name* for arguments like those *from_call*, its pieces, or no plan.

        *asked*: the tensors that the call wants beside the results. Raises ScriptError if the
        program is wrong over these, ArgumentError if an argument is.
        """
        operands = _Operands(self.prepared, self.wanted, from_call)
        refusals: list[Refusal] = []
        tried: frozenset[str] | None = None  # the direct operands of the last candidate
        for candidate in candidates(operands.arguments({}, self.prepared.operands)):
            if tried is not None and candidate.direct and tried <= candidate.direct:
                continue  # the attempt would be the same
            attempt = self._attempt(candidate, operands)
            if isinstance(attempt, Reason):
                refusals.append(Refusal(candidate, attempt))
                continue
            reason = None
            if candidate.direct:
                reason = misfit(attempt.plans, attempt.layouts, self.semiring)
            if reason is None and not fits_one(attempt.plans):
                reason = _no_pieces(attempt.plans)
                if reason is None:
                    return self.split(attempt.plans, refusals)
            if reason is None and self._reads_both_ways(attempt, operands):
                return self.split(attempt.plans, refusals)
            if reason is None and (apart := self._apart(attempt, operands, refusals)) is not None:
                return apart
            if reason is None:
                return self._program(name, from_call, attempt, refusals, asked)
            tried = frozenset(n for n, layout in attempt.layouts.items() if is_direct(layout))
            refusals.append(Refusal(candidate, reason))
        return NoPlan(tuple(refusals))

    def split(self, plans: Sequence[Plan], refusals: Sequence[Refusal] = ()) -> Split:
        """Return the statements, or pieces of them, as programs of their own."""
        pieces: list[Piece] = []
        taken = set(self.prepared.ranks)
        for stmt, result, is_piece in split_statements(self.inner, plans, self.semiring, taken):
            formats = self._formats_of(stmt)
            rank = len(stmt.target.indices)
            if is_piece and rank:
                formats[result] = ("sparse", "csr", "csf")[min(rank, 3) - 1]
            elif result != stmt.target.name and result in self.formats:
                formats[stmt.target.name] = self.formats[result]
            pieces.append(Piece(Program((stmt,)), formats, result))
        return Split(tuple(plans), tuple(pieces), tuple(refusals))

    def _formats_of(self, stmt: Assignment) -> dict[str, str | Format | ComposableFormat]:
        """Return the formats that were asked for of the tensors in *stmt*."""
        used = {a.name for a in (stmt.target, *accesses(stmt.value))}
        return {name: text for name, text in self.formats.items() if name in used}

    def _apart(
        self, attempt: _Attempt, operands: _Operands, refusals: Sequence[Refusal]
    ) -> Split | None:
        """Return reductions that search operands as programs of their own; None if none does."""
        names = {operands.sources[n].name for n in searched(attempt.plans, attempt.layouts)}
        if not names or self.parts or self.prepared.accumulated:
            return None

        def searches(term: Reduce, _: Assignment) -> bool:
            return bool(free(term)) and any(access.name in names for access in accesses(term))

        program = with_inner_hoisted(self.inner, searches)
        if len(program.statements) == len(self.inner.statements):
            return None
        pieces = tuple(
            Piece(Program((stmt,)), self._formats_of(stmt), stmt.target.name)
            for stmt in program.statements
        )
        return Split(attempt.plans, pieces, tuple(refusals))

    def _attempt(self, candidate: Candidate, operands: _Operands) -> _Attempt | Reason:
        """Return the plans of *candidate*; operands are converted until loops fit."""
        converts: dict[str, Layout] = {}
        for _ in range(MOST_ROUNDS):
            arguments = operands.arguments(converts, candidate.direct)
            plans = self._plans(arguments)
            if isinstance(plans, Reason):
                return plans
            attempt = _Attempt(arguments, plans, converts)
            further = {n: layout for p in plans for n, layout in p.converts.items()}
            if not further or not further.keys() <= arguments.keys():
                break
            converts = {**converts, **further}
        return self._gathering(attempt, candidate, operands)

    def _gathering(self, attempt: _Attempt, candidate: Candidate, operands: _Operands) -> _Attempt:
        """Return *attempt* over matrices by columns where that gathers all that it scatters."""
        further = self._transposes(attempt, operands)
        if not further or not ordering(attempt.plans).isdisjoint(further):
            return attempt
        converts = {**attempt.converts, **further}
        arguments = operands.arguments(converts, candidate.direct)
        plans = self._plans(arguments)
        if isinstance(plans, Reason) or any(plan.converts for plan in plans):
            return attempt
        gathering = _Attempt(arguments, plans, converts)
        return attempt if transposes(plans, gathering.layouts) else gathering

    def _reads_both_ways(self, attempt: _Attempt, operands: _Operands) -> bool:
        """Whether statements need a matrix by rows and others by columns; each has its own then."""
        several = len(attempt.plans) > 1 and not self.parts and not self.prepared.accumulated
        return several and bool(self._transposes(attempt, operands))

    def _transposes(self, attempt: _Attempt, operands: _Operands) -> dict[str, Layout]:
        """Return the matrices to transpose for *attempt*; none if one of them stays as it is."""
        further = transposes(attempt.plans, attempt.layouts) if self.gathers else {}
        fixed = {*self.wanted, *attempt.converts, *self.rows}
        for name, argument in operands.from_call.items():
            if argument.format is not None or isinstance(argument.value, DeviceTensor):
                fixed.add(name)
        return further if fixed.isdisjoint(operands.sources[n].name for n in further) else {}

    def _plans(self, arguments: Mapping[str, Argument]) -> tuple[Plan, ...] | Reason:
        """Return the plan of each statement over *arguments*, or why there is none."""
        operands = {name: argument.operand for name, argument in arguments.items()}
        sources = {name: argument.source for name, argument in arguments.items()}
        layouts = {name: operand.layout for name, operand in operands.items()}
        types = {name: operand.dtype for name, operand in operands.items()}
        weak = frozenset(name for name, operand in operands.items() if operand.weak)
        no_factors = weak | only_vectors(self.prepared.program)
        first, *others = {t for name, t in types.items() if name not in no_factors} or {bool_}
        alike = not others and first.kind != "bool" and (first.bits > 16 or not first.is_float)
        bools = {sources[name] for name, dtype in types.items() if dtype == bool_}
        plans: list[Plan] = []
        for stmt, written in zip(
            self.prepared.program.statements, self.written.statements, strict=True
        ):
            sparse = frozenset(sources.get(n, n) for n, lay in layouts.items() if not lay.is_dense)
            refuse_negated(written, sparse, bools)
            refuse_lost_answers(written, sparse)
            refuse_dense(written, sparse, self.semiring)
            target = stmt.target.name
            wanted = self.wanted.get(target)
            if stmt.accumulates and target in layouts:
                wanted = layouts[target]
            types_of_terms = Types(types, self.semiring, weak)
            names = frozenset(arguments if alike and types_of_terms.result(stmt) == first else ())
            check_vectors(stmt, layouts, types)
            plan = plan_statement(stmt, layouts, wanted, self.semiring, names, types_of_terms)
            if isinstance(plan, Reason):
                return plan
            layouts[target] = plan.output.layout
            types[target] = plan.dtype
            plans.append(plan)
        return tuple(plans)

    def _program(
        self,
        name: str,
        from_call: CallArguments,
        attempt: _Attempt,
        refusals: Sequence[Refusal],
        asked: frozenset[str],
    ) -> Planned:
        """Return the program that *attempt* has planned; raises ScriptError if types do not fit."""
        plans, arguments = attempt.plans, attempt.arguments
        operands = {name: argument.operand for name, argument in arguments.items()}
        seen = {*self.prepared.results, *self.prepared.accumulated, *asked}
        in_parts = self.stored or any(given.format is not None for given in from_call.values())
        unseen = [name for name in self.prepared.targets if name not in seen and not in_parts]
        func, numbers, temporaries = emit(
            f"{name}_kernel",
            plans,
            operands,
            self.semiring,
            unseen,
            exact=self.exact,
            loads_apart=self.loads_apart,
        )
        if self.owns_temporaries:
            func, temporaries = owned(func, temporaries)
        used = {buffer.name for buffer in func.buffers} | {param.name for param in func.params}
        needed = {name: argument for name, argument in arguments.items() if name in used}
        types = {param.name: param.dtype for param in func.params}
        for param, number in numbers.items():
            needed[param] = as_number(number, arguments[number], types[param])
        for operand, argument in needed.items():
            if (form := from_call[argument.source].format) is not None:
                shown = replace(argument.operand, given=str(form))
                needed[operand] = replace(argument, operand=shown)
        unbound = tuple(Sizes([plan.stmt for plan in plans], str).unbound(self.prepared.operands))
        converted = frozenset(attempt.converts)
        return Planned(plans, needed, func, converted, unbound, tuple(refusals), temporaries)


def _without_scattered(formats: Formats, program: Program) -> Formats:
    """Return *formats* without results at index vectors, which are dense; raises ArgumentError."""
    names = {stmt.target.name for stmt in program.statements if stmt.target.vectors}
    for name in names & formats.keys():
        if str(formats[name]) != "dense":
            raise ArgumentError(
                f"argument formats: {name} is dense, as it is written at an index vector",
                hint="convert it with spcomp.convert",
            )
    return {name: format_ for name, format_ in formats.items() if name not in names}


def _no_pieces(plans: Sequence[Plan]) -> Reason | None:
    """Return why *plans* cannot be split in pieces; None if they can."""
    if len(plans) > 1 or plans[0].output.storage == "split":
        return None
    return plans[0].needs_other_layouts
