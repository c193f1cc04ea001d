"""Around the route: kernels of index notation, compiled when they meet arguments of a new kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.compiler.convert import is_parts
from spcomp.compiler.evaluator import Timed
from spcomp.compiler.foreign import arrays_of, bridge, has_torch
from spcomp.compiler.notation_args import (
    Argument,
    Direct,
    as_number,
    describe,
    kind_of,
    nothing,
    with_mask,
)
from spcomp.compiler.notation_bound import BoundNotation
from spcomp.compiler.notation_parts import asked_for, in_blocks, in_parts, shown, takes, whole
from spcomp.compiler.notation_places import Places
from spcomp.compiler.notation_results import Delivery, handed_out, stores_as
from spcomp.compiler.notation_steps import Step, Steps
from spcomp.compiler.outputs import Results
from spcomp.dtypes import bool_, float64
from spcomp.errors import ArgumentError, LoweringError, ScriptError, refuse_deep_nests
from spcomp.formats.hyb import composable
from spcomp.notation.algebra import Windowed
from spcomp.notation.asked import refuse_drowned, refuse_negated
from spcomp.notation.direct import is_direct, suits
from spcomp.notation.emit import emit
from spcomp.notation.explain import explain
from spcomp.notation.implied import refuse_dense
from spcomp.notation.inner import with_inner_apart
from spcomp.notation.layout import Layout, is_bitmap, is_located
from spcomp.notation.nodes import Program, accesses
from spcomp.notation.places import with_places
from spcomp.notation.plan import Plan, plan_statement
from spcomp.notation.prepare import Prepared, free_name, prepare
from spcomp.notation.semiring import Semiring
from spcomp.notation.sizes import Sizes, Unbound
from spcomp.notation.split import fits_one, one_by_one
from spcomp.notation.types import Types
from spcomp.notation.windows import Windows

if TYPE_CHECKING:
    from spcomp.compiler.compile import Options
    from spcomp.compiler.formats import Bound, FormatKernel
    from spcomp.compiler.formats_choose import ChoosingKernel
    from spcomp.compiler.kernel import Kernel
    from spcomp.formats.format import Format
    from spcomp.formats.rules import ComposableFormat
    from spcomp.ir.program import CoordFunc

MOST_VERSIONS = 64
MOST_ROUNDS = 4  # in which operands are converted, until no loop needs another order


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """The coordinate program for arguments of one kind, before anything is compiled.

    *unbound*: indices whose length only a given result tells.
    """

    plans: tuple[Plan, ...]
    arguments: Mapping[str, Argument]
    func: CoordFunc
    converted: frozenset[str]
    unbound: tuple[Unbound, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """The program for arguments of one kind, compiled; *stored* are the operands in parts."""

    planned: Planned
    kernel: Kernel | FormatKernel | ChoosingKernel
    stored: Mapping[str, ComposableFormat] = field(default_factory=dict)


Settled: TypeAlias = tuple[dict[str, Argument], tuple[Plan, ...], dict[str, Layout]]
Execute: TypeAlias = Callable[["Planned", "dict[str, Any]"], Any]


class NotationKernel(Timed):
    """A program of index notation; made by ``spcomp.compile("C[i, k] = A[i, j] * B[j, k]")``.

    Call it by name, ``kernel(A=csr, B=array, out=None)``, with numpy arrays, scipy.sparse arrays
    and matrices of any format, ``spcomp.Tensor``, and numbers. Formats and dtypes are those of
    the arguments: the first call with arguments of a new kind compiles. The tensors that are
    assigned and not read later are returned, one as it is, several as a named tuple.
    """

    def __init__(
        self,
        program: Program,
        formats: Mapping[str, str | Format | ComposableFormat],
        semiring: Semiring,
        options: Options,
    ) -> None:
        if any(map(composable, formats.values())):
            program = with_inner_apart(program)
        self.program, self.semiring = program, semiring
        self._formats, self._options = dict(formats), options
        self._inner, parts = with_places(program)
        self._prepared: Prepared = prepare(self._inner)
        self._places = Places.of(parts, self._prepared.results)
        for name in (n for n in parts if self._prepared.ranks[n]):
            self._formats.setdefault(name, "dense")
        self._wanted, self._parts = asked_for(self._formats, self._prepared)
        self._delivery = Delivery(self._prepared, self._formats, self._wanted)
        self._sources: dict[str, str] = {}  # of parameters that an argument has beside its own
        self._versions: dict[object, Version | Steps] = {}
        self._renewals: dict[tuple[Planned, frozenset[str]], Steps] = {}
        self._last: Version | Steps | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what a call takes."""
        return self._places.named(self._prepared.arguments)

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the text of its first result as an identifier."""
        made = self._places.results[0]
        first = next(s for s in self.program.statements if s.target.name == made)
        return self._options.name or first.name

    def __call__(self, *args: Any, out: Any = None, **named_args: Any) -> Any:
        """Run the program; see the class for what it takes and returns. Raises ArgumentError."""
        if args:
            raise ArgumentError(
                f"{self.name}: got arguments by position",
                hint=f"give them by name: {', '.join(self.arguments)}",
            )
        if has_torch(named_args.values(), out):
            run = partial(self.run, bound={}, kernels={})
            return bridge().called(run, named_args, out, self.written)
        return self.run(out, named_args, {}, {})

    def run(
        self,
        out: Any,
        named_args: dict[str, Any],
        bound: Mapping[str, Any],
        kernels: dict[Version, Bound],
        execute: Execute | None = None,
    ) -> Any:
        """Run on *named_args* and the arguments *bound*, which *kernels* have taken in.

        *execute* runs what was planned in the place of machine code, on arguments by name.
        """
        if not self._places.parts:
            return self._pick(self._run(out, named_args, bound, kernels, execute))
        given = self._places.given(self.name, out, named_args)
        made = self._run(given.out, given.named, bound, kernels, execute)
        return self._pick(self._places.written(given, made))

    @property
    def written(self) -> tuple[str, ...]:
        """The names of arguments that a call writes."""
        places = self._places.parts.values()
        return (*self._prepared.accumulated, *(part.name for part in places))

    def _run(
        self,
        out: Any,
        named_args: dict[str, Any],
        bound: Mapping[str, Any],
        kernels: dict[Version, Bound],
        execute: Execute | None,
    ) -> Mapping[str, Any]:
        """Return the results, of parts as such, by name."""
        named = set(named_args)
        given = self._delivery.given(self.name, out, named_args)
        every = {**bound, **named_args}
        found = self.version(every) if execute is None else self.planned(every)
        if not isinstance(found, Steps):
            planned = found.planned if isinstance(found, Version) else found
            found = self._renewed(planned, every, given) or found
        if isinstance(found, Steps):
            return found.run(every, given, given.keys() - named, execute)
        for index in planned.unbound:
            index.check(given)
        self._delivery.check(planned.plans, every, given)
        stored = found.stored if isinstance(found, Version) else {}
        handed = self._handed(planned, named_args, stored)
        for plan in planned.plans:
            if (name := plan.stmt.target.name) in given:
                handed[name] = handed_out(given[name], plan.output.layout)
        if isinstance(found, Planned):
            assert execute is not None
            made = execute(found, self._handed(planned, bound, stored) | handed)
        elif not bound or any(self._source(name) not in bound for name in stored):
            made = found.kernel(**self._handed(planned, bound, stored) | handed)
        else:
            if found not in kernels:
                kernels[found] = found.kernel.bind(**self._handed(planned, bound, stored))
            made = kernels[found](**handed)
        return self._delivery.results(planned.plans, made, every, given)

    def _renewed(
        self, planned: Planned, every: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Steps | None:
        """Return programs that make new results where given ones lack what is added to them."""
        lacks: set[str] = set()
        for plan in (p for p in planned.plans if p.stmt.accumulates):
            name, like = plan.stmt.target.name, plan.output.like
            argument = planned.arguments.get(like.name) if like else None
            if name in given and like is not None and argument is not None:
                pattern = argument.adapt(whole(every[self._source(like.name)]))
                lacks |= set() if stores_as(given[name], pattern) else {name}
        if not lacks:
            return None
        key = frozenset(lacks)
        if (planned, key) not in self._renewals:
            plans = [
                replace(plan, output=replace(plan.output, storage="split"))
                if plan.stmt.target.name in lacks and plan.stmt.accumulates
                else plan
                for plan in planned.plans
            ]
            self._renewals[planned, key] = self._steps(plans)
        return self._renewals[planned, key]

    def _handed(
        self,
        planned: Planned,
        given: Mapping[str, Any],
        stored: Mapping[str, ComposableFormat],
    ) -> dict[str, Any]:
        """The arguments *given* as the kernel takes them that has *stored* some in parts."""
        found: dict[str, Any] = {}
        for name, argument in planned.arguments.items():
            if (source := self._source(name)) in given:
                own = given[source]
                if not is_parts(own):
                    found[name] = argument.adapted(source, own)
                elif not self._windows(name) and takes(stored.get(name), own):
                    found[name] = own
                else:
                    found[name] = argument.adapt(own.whole())
        return found

    def bind(self, **named_args: Any) -> BoundNotation:
        """Return a callable that takes the rest of the arguments, with these fixed.

        They are converted and their index arrays are checked once, by the first call with
        arguments of a kind; later changes of index arrays are not seen.
        """
        unknown = [name for name in named_args if name not in self.arguments]
        if unknown:
            raise ArgumentError(f"unexpected argument {unknown[0]} of {self.name}")
        for name in {part.name for part in self._places.parts.values()} & named_args.keys():
            raise ArgumentError(f"argument {name}: a part of it is assigned, so calls take it")
        return BoundNotation(self, named_args)

    def specialize(self, **named_args: Any) -> Kernel | FormatKernel | ChoosingKernel:
        """Return the Kernel that a call with arguments like these runs; compiled if need be."""
        found = self.version(named_args := arrays_of(named_args))
        if isinstance(found, Steps):
            raise ArgumentError(
                f"{self.name} runs as {len(found.steps)} programs, one after the other",
                hint=f"they are {'; '.join(str(step.kernel.program) for step in found.steps)}",
            )
        return self._chosen(found, named_args)

    def _chosen(
        self, found: Version, given: Mapping[str, Any]
    ) -> Kernel | FormatKernel | ChoosingKernel:
        """The Kernel of a version; where formats are chosen by matrices, that for those *given*."""
        choose = getattr(found.kernel, "choose", None)
        if choose is None or not all(self._source(name) in given for name in found.stored):
            return found.kernel
        handed = self._handed(found.planned, given, found.stored)
        made: FormatKernel = choose(**{name: handed[name] for name in found.stored})
        return made

    def explain(self, **named_args: Any) -> str:
        """Return what was decided, and why: statements, formats, domains, loops.

        For arguments like *named_args*; without any, for those of the last call.
        """
        named_args = arrays_of(named_args)
        found = self.version(named_args) if named_args else self._known()
        if isinstance(found, Steps):
            return found.explain()
        self._chosen(found, named_args)
        made = found.planned
        operands = {name: a.operand for name, a in made.arguments.items()}
        stored = shown(found.kernel, found.stored)
        levels = found.stored.keys() & (self._wanted.keys() - self._parts.keys())
        stored |= {name: str(self._wanted[name]) for name in levels}
        text = explain(made.plans, operands, made.converted, self.semiring, stored)
        return f"floats in any order (fast_math)\n{text}" if self._options.fast_math else text

    def stage(self, name: str) -> str:
        """Return the version that ran last, printed at a stage, as ``Kernel.stage``."""
        return self._text(lambda kernel: kernel.stage(name))

    def source(self, kind: str = "llvm") -> str:
        """Return the code of the version that ran last, as ``Kernel.source``."""
        return self._text(lambda kernel: kernel.source(kind))

    def _text(self, of: Callable[[Any], str]) -> str:
        found = self._known()
        every = found.steps if isinstance(found, Steps) else (found,)
        return "\n".join(of(one.kernel) for one in every)

    def __repr__(self) -> str:
        return f"<NotationKernel {self.name}: {str(self.program)!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return NotationKernel, (self.program, self._formats, self.semiring, self._options)

    def _known(self) -> Version | Steps:
        if self._last is None:
            raise ArgumentError(
                f"{self.name}: formats and dtypes are not known yet",
                hint="call it first, or give the arguments here",
            )
        return self._last

    # -- versions -----------------------------------------------------------------------------

    def version(self, named_args: Mapping[str, Any]) -> Version | Steps:
        """Return what is compiled for arguments of this kind. Raises SpcompError."""
        key = tuple([(name, kind_of(arg)) for name, arg in named_args.items()])
        found = self._versions.get(key)
        if found is None:
            self._check_names(named_args)
            found = self._compile(named_args)
            while len(self._versions) >= MOST_VERSIONS:
                self._versions.pop(next(iter(self._versions)), None)
            self._versions[key] = found
        self._last = found
        return found

    def _check_names(self, named_args: Mapping[str, Any]) -> None:
        for name in named_args:
            if name not in self.arguments:
                raise ArgumentError(
                    f"unexpected argument {name} of {self.name}",
                    hint=f"its arguments are {', '.join(self.arguments)}",
                )
        for name in self.arguments:
            if name not in named_args and name not in self._prepared.accumulated:
                raise ArgumentError(f"missing argument {name} of {self.name}")

    def _windows(self, name: str) -> Windows:
        part = self._prepared.parts.get(name)
        return () if part is None else part.windows

    def _source(self, name: str) -> str:
        name = self._sources.get(name, name)
        part = self._prepared.parts.get(name)
        return name if part is None else part.name

    def _compile(self, named_args: Mapping[str, Any]) -> Version | Steps:
        from spcomp.compiler.compile import kernel_of

        with refuse_deep_nests(ScriptError):
            made = self.planned(named_args)
            if isinstance(made, Steps):
                return made
            asked: dict[str, ComposableFormat] = {}
            given = dict(in_blocks(made, self._wanted, self.semiring))
            for name in made.arguments:
                own = self._source(name)
                if own in self._parts:
                    asked[name] = self._parts[own]
                elif is_parts(named_args.get(own)) and own not in self._wanted:
                    given |= {} if self._windows(name) else {name: named_args[own].format}
            kernel = in_parts(made, asked, given, self._options)
            if kernel is not None:
                return Version(made, kernel, kernel.program.formats)
            return Version(made, kernel_of(made.func, self._options))

    def planned(self, named_args: Mapping[str, Any]) -> Planned | Steps:
        """Return the program for arguments like these, or several. Raises SpcompError."""
        in_formats = {name: arg for name, arg in named_args.items() if is_parts(arg)}
        named_args = {name: whole(arg) for name, arg in named_args.items()}
        arguments, plans, converts = self._direct(named_args) or self._settled(named_args)
        if not fits_one(plans):
            return self._steps(plans)
        operands = {name: argument.operand for name, argument in arguments.items()}
        func, numbers = emit(f"{self.name}_kernel", plans, operands, self.semiring)
        used = {buffer.name for buffer in func.buffers} | {param.name for param in func.params}
        kept = {n: a for n, a in arguments.items() if n in used}
        types = {param.name: param.dtype for param in func.params}
        for name, number in numbers.items():
            self._sources[name] = number
            kept[name] = as_number(number, arguments[number], types[name])
        for name in [n for n in kept if self._source(n) in in_formats]:
            given = str(in_formats[self._source(name)].format)
            kept[name] = replace(kept[name], operand=replace(kept[name].operand, given=given))
        unbound = Sizes(plans, str).unbound(self._prepared.operands)
        return Planned(plans, kept, func, frozenset(converts), tuple(unbound))

    def _steps(self, plans: Sequence[Plan]) -> Steps:
        """Return a program for each statement, or piece of one."""
        if len(plans) == 1 and plans[0].output.storage != "split":
            name, layout = next(iter(plans[0].converts.items()))
            raise LoweringError(f"{name} would have to be stored as {layout}")
        steps: list[Step] = []
        taken = set(self._prepared.ranks)
        for stmt, name, is_piece in one_by_one(self._inner, plans, self.semiring, taken):
            used = {a.name for a in (stmt.target, *accesses(stmt.value))}
            formats = {n: given for n, given in self._formats.items() if n in used}
            rank = len(stmt.target.indices)
            if is_piece and rank:
                formats[name] = ("sparse", "csr", "csf")[min(rank, 3) - 1]
            elif name != stmt.target.name and name in self._formats:
                formats[stmt.target.name] = self._formats[name]
            options = replace(self._options, name=None)
            kernel = NotationKernel(Program((stmt,)), formats, self.semiring, options)
            steps.append(Step(kernel, name))
        return Steps(tuple(plans), tuple(steps))

    def _direct(self, named_args: Mapping[str, Any]) -> Settled | None:
        """Return what is decided with all that is used as it is given, or what is located alone."""
        for direct in (is_direct, is_located):
            try:
                found = self._settled(named_args, direct)
            except LoweringError:
                continue  # there may be a way with other levels
            layouts = {name: argument.operand.layout for name, argument in found[0].items()}
            given = [layout for layout in layouts.values() if is_direct(layout)]
            if given and suits(found[1], layouts, self.semiring):
                return found
            if all(map(is_located, given)):  # the same, or nothing, would be asked again
                return None
        return None

    def _settled(self, named_args: Mapping[str, Any], direct: Direct = nothing) -> Settled:
        """Return arguments, plans, and what is converted for them; *direct*: what is not."""
        converts: dict[str, Layout] = {}
        for _ in range(MOST_ROUNDS):
            arguments = self._describe(named_args, {**self._wanted, **converts}, direct)
            plans = self._plan(arguments)
            again = {n: layout for p in plans for n, layout in p.converts.items()}
            if not again or not again.keys() <= arguments.keys():
                break
            converts |= again
        return arguments, plans, converts

    def _describe(
        self, named_args: Mapping[str, Any], wanted: Mapping[str, Layout], direct: Direct
    ) -> dict[str, Argument]:
        found: dict[str, Argument] = {}
        for name, rank in self._prepared.operands.items():
            part = self._prepared.parts.get(name, Windowed(name, ()))
            if part.name not in named_args:
                continue
            layout = wanted.get(name, wanted.get(part.name))
            if layout is not None and layout.rank != rank:
                layout = None
            arg = named_args[part.name]
            found[name] = describe(part.name, arg, rank, part.windows, layout, direct)
            if is_bitmap(found[name].operand.layout):
                mask = free_name(f"{name}_mask", {*self._prepared.ranks, *self._prepared.operands})
                self._sources[mask] = name
                found[name], found[mask] = with_mask(found[name], mask)
        return found

    def _plan(self, arguments: Mapping[str, Argument]) -> tuple[Plan, ...]:
        layouts = {name: argument.operand.layout for name, argument in arguments.items()}
        weak = frozenset(name for name, a in arguments.items() if a.operand.weak)
        first, *others = {a.operand.dtype for n, a in arguments.items() if n not in weak} or {bool_}
        alike = not others and first.kind != "bool" and (first.bits > 16 or not first.is_float)
        bools = {self._source(n) for n, a in arguments.items() if a.operand.dtype == bool_}
        types = {name: argument.operand.dtype for name, argument in arguments.items()}
        plans: list[Plan] = []
        for at, stmt in enumerate(self._prepared.program.statements):
            sparse = {self._source(n) for n, layout in layouts.items() if not layout.is_dense}
            refuse_negated(self.program.statements[at], sparse, bools)
            refuse_drowned(self.program.statements[at], frozenset(sparse))
            refuse_dense(self.program.statements[at], sparse, self.semiring)
            target = stmt.target.name
            wanted = self._wanted.get(target)
            if stmt.accumulates and target in layouts:
                wanted = layouts[target]
            known = Types(types, self.semiring, weak)
            names = frozenset(arguments if alike and known.result(stmt) == first else ())
            plan = plan_statement(stmt, layouts, wanted, self.semiring, names, known)
            layouts[target] = plan.output.layout
            types[target] = known.result(plan.stmt) or float64
            plans.append(plan)
        return tuple(plans)

    # -- results ------------------------------------------------------------------------------

    def _pick(self, found: Mapping[str, Any]) -> Any:
        names = self._places.results
        values = tuple(found[name] for name in names)
        return values[0] if len(values) == 1 else Results.of(names, values)
