"""Around the route: kernels of index notation, compiled when they meet arguments of a new kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.compiler.conversions_source import in_kind
from spcomp.compiler.evaluator import Timed
from spcomp.compiler.notation_args import Argument, describe, kind_of, with_mask
from spcomp.compiler.notation_blocks import in_blocks
from spcomp.compiler.notation_results import Delivery, handed_out, stores_as
from spcomp.compiler.notation_steps import Step, Steps
from spcomp.compiler.outputs import Results
from spcomp.dtypes import bool_, float64, int64, promote
from spcomp.errors import ArgumentError, LoweringError, ScriptError, expect, refuse_deep_nests
from spcomp.notation.algebra import Windowed
from spcomp.notation.direct import suits
from spcomp.notation.emit import emit
from spcomp.notation.explain import explain
from spcomp.notation.layout import Layout, has_slots, is_bitmap, lists, named
from spcomp.notation.nodes import Program, accesses
from spcomp.notation.objects import Function, as_program, with_numbers
from spcomp.notation.plan import Plan, plan_statement
from spcomp.notation.prepare import Prepared, free_name, prepare
from spcomp.notation.semiring import ORDINARY, Semiring, as_semiring
from spcomp.notation.split import fits_one, one_by_one

if TYPE_CHECKING:
    from spcomp.compiler.compile import Options
    from spcomp.compiler.formats import Bound, FormatKernel
    from spcomp.compiler.kernel import Kernel
    from spcomp.formats.format import Format
    from spcomp.ir.coordinate import CoordFunc

MOST_VERSIONS = 64
MOST_ROUNDS = 4  # in which operands are converted, until no loop needs another order


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """The coordinate program for arguments of one kind, before anything is compiled."""

    plans: tuple[Plan, ...]
    arguments: Mapping[str, Argument]
    func: CoordFunc
    converted: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """The program for arguments of one kind, compiled; *blocked* are those it stores in blocks."""

    planned: Planned
    kernel: Kernel | FormatKernel
    blocked: tuple[str, ...] = ()


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
        formats: Mapping[str, str | Format],
        semiring: Semiring,
        options: Options,
    ) -> None:
        self.program, self.semiring = program, semiring
        self._formats, self._options = dict(formats), options
        self._prepared: Prepared = prepare(program)
        unknown = sorted(set(self._formats) - {*self.arguments, *self._prepared.targets})
        if unknown:
            raise ArgumentError(
                f"argument formats: the program has no {unknown[0]}",
                hint=f"it has {', '.join((*self.arguments, *self._prepared.targets))}",
            )
        self._wanted = {
            name: named(layout, self._prepared.ranks[name])
            for name, layout in self._formats.items()
        }
        self._delivery = Delivery(self._prepared, self._formats, self._wanted)
        self._masks: dict[str, str] = {}  # what is beside a bitmap's values, and whose it is
        self._versions: dict[object, Version | Steps] = {}
        self._renewals: dict[tuple[Planned, frozenset[str]], Steps] = {}
        self._last: Version | Steps | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what a call takes."""
        return self._prepared.arguments

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the first result's."""
        return str(self._options.name or self._prepared.targets[0])

    def __call__(self, *args: Any, out: Any = None, **named_args: Any) -> Any:
        """Run the program; see the class for what it takes and returns. Raises ArgumentError."""
        if args:
            raise ArgumentError(
                f"{self.name}: got arguments by position",
                hint=f"give them by name: {', '.join(self.arguments)}",
            )
        given = tuple(named_args.values())
        return in_kind(self.run(out, named_args, {}, {}), given, out)

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
        named = set(named_args)
        given = self._delivery.given(self.name, out, named_args)
        every = {**bound, **named_args}
        found = self.version(every) if execute is None else self.planned(every)
        if not isinstance(found, Steps):
            planned = found.planned if isinstance(found, Version) else found
            found = self._renewed(planned, every, given) or found
        if isinstance(found, Steps):
            return self._pick(found.run(every, given, given.keys() - named, execute))
        self._delivery.check(planned.plans, every, given)
        handed = self._handed(planned, named_args)
        for plan in planned.plans:
            if (name := plan.stmt.target.name) in given:
                handed[name] = handed_out(given[name], plan.output.layout)
        if isinstance(found, Planned):
            assert execute is not None
            made = execute(found, self._handed(planned, every) | handed)
        elif not bound or any(self._source(name) not in bound for name in found.blocked):
            made = found.kernel(**self._handed(planned, every) | handed)
        else:
            if found not in kernels:
                kernels[found] = found.kernel.bind(**self._handed(planned, bound))
            made = kernels[found](**handed)
        return self._pick(self._delivery.results(planned.plans, made, every, given))

    def _renewed(
        self, planned: Planned, every: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Steps | None:
        """Return programs that make new results where given ones lack what is added to them."""
        lacks: set[str] = set()
        for plan in (p for p in planned.plans if p.stmt.accumulates):
            name, like = plan.stmt.target.name, plan.output.like
            argument = planned.arguments.get(like.name) if like else None
            if name in given and like is not None and argument is not None:
                pattern = argument.adapt(every[self._source(like.name)])
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
            self._renewals[planned, key] = self._steps(plans, planned.arguments)
        return self._renewals[planned, key]

    def _handed(self, planned: Planned, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments *given* as the kernel takes them."""
        return {
            name: argument.adapt(given[source])
            for name, argument in planned.arguments.items()
            if (source := self._source(name)) in given
        }

    def bind(self, **named_args: Any) -> BoundNotation:
        """Return a callable that takes the rest of the arguments, with these fixed.

        They are converted and their index arrays are checked once, by the first call with
        arguments of a kind; later changes of index arrays are not seen.
        """
        unknown = [name for name in named_args if name not in self.arguments]
        if unknown:
            raise ArgumentError(f"unexpected argument {unknown[0]} of {self.name}")
        return BoundNotation(self, named_args)

    def specialize(self, **named_args: Any) -> Kernel | FormatKernel:
        """Return the Kernel that a call with arguments like these runs; compiled if need be."""
        found = self.version(named_args)
        if isinstance(found, Steps):
            raise ArgumentError(
                f"{self.name} runs as {len(found.steps)} programs, one after the other",
                hint=f"they are {'; '.join(str(step.kernel.program) for step in found.steps)}",
            )
        return found.kernel

    def explain(self, **named_args: Any) -> str:
        """Return what was decided, and why: statements, formats, domains, loops.

        For arguments like *named_args*; without any, for those of the last call.
        """
        found = self.version(named_args) if named_args else self._known()
        if isinstance(found, Steps):
            return found.explain()
        made = found.planned
        operands = {name: a.operand for name, a in made.arguments.items()}
        for name in found.blocked:
            operands[name] = replace(operands[name], layout=self._wanted[name], given="")
        return explain(made.plans, operands, made.converted, self.semiring)

    def stage(self, name: str) -> str:
        """Return the version that ran last, printed at a stage, as ``Kernel.stage``."""
        return self._text(lambda kernel: kernel.stage(name))

    def source(self, kind: str = "llvm") -> str:
        """Return the code of the version that ran last, as ``Kernel.source``."""
        return self._text(lambda kernel: kernel.source(kind))

    def _text(self, of: Callable[[Any], str]) -> str:
        found = self._known()
        if isinstance(found, Steps):
            return "\n".join(of(step.kernel) for step in found.steps)
        return of(found.kernel)

    def __repr__(self) -> str:
        return f"<NotationKernel {str(self.program)!r}>"

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

    def _source(self, name: str) -> str:
        name = self._masks.get(name, name)
        part = self._prepared.parts.get(name)
        return name if part is None else part.name

    def _compile(self, named_args: Mapping[str, Any]) -> Version | Steps:
        from spcomp.compiler.compile import kernel_of

        with refuse_deep_nests(ScriptError):
            made = self.planned(named_args)
            if isinstance(made, Steps):
                return made
            blocks = in_blocks(made, self._wanted, self.semiring, self._options)
            if blocks is not None:
                return Version(made, blocks, tuple(blocks.program.formats))
            return Version(made, kernel_of(made.func, self._options))

    def planned(self, named_args: Mapping[str, Any]) -> Planned | Steps:
        """Return the program for arguments like these, or several. Raises SpcompError."""
        direct = self._direct(named_args)
        converts: dict[str, Layout] = {}
        for _ in range(MOST_ROUNDS):
            arguments = direct or self._describe(named_args, {**self._wanted, **converts})
            plans, direct = self._plan(arguments), None
            again = {n: layout for p in plans for n, layout in p.converts.items()}
            if not again or not again.keys() <= arguments.keys():
                break
            converts |= again
        if not fits_one(plans):
            return self._steps(plans, arguments)
        operands = {name: argument.operand for name, argument in arguments.items()}
        func = emit(_identifier(self.name), plans, operands, self.semiring)
        used = {buffer.name for buffer in func.buffers} | {param.name for param in func.params}
        kept = {n: a for n, a in arguments.items() if n in used}
        return Planned(plans, kept, func, frozenset(converts))

    def _steps(self, plans: Sequence[Plan], arguments: Mapping[str, Argument]) -> Steps:
        """Return a program for each statement, or piece of one."""
        if len(plans) == 1 and plans[0].output.storage != "split":
            name, layout = next(iter(plans[0].converts.items()))
            raise LoweringError(f"{name} would have to be stored as {layout}")
        steps: list[Step] = []
        taken = set(self._prepared.ranks)
        for stmt, name, is_piece in one_by_one(self.program, plans, self.semiring, taken):
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
        weak = {n: a.operand.dtype for n, a in arguments.items() if a.operand.weak}
        return Steps(tuple(plans), tuple(steps), weak)

    def _direct(self, named_args: Mapping[str, Any]) -> dict[str, Argument] | None:
        """Return the arguments with lists and bitmaps as they are given, if they can be used so."""
        arguments = self._describe(named_args, self._wanted, direct=True)
        layouts = {name: argument.operand.layout for name, argument in arguments.items()}
        known = (lists, is_bitmap, has_slots)
        if not any(is_kind(layout) for is_kind in known for layout in layouts.values()):
            return None
        try:
            plans = self._plan(arguments)
        except LoweringError:
            return None  # there may be a way with other levels
        return arguments if suits(plans, layouts, self.semiring) else None

    def _describe(
        self, named_args: Mapping[str, Any], wanted: Mapping[str, Layout], *, direct: bool = False
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
            found[name] = describe(part.name, arg, rank, part.windows, layout, direct=direct)
            if is_bitmap(found[name].operand.layout):
                mask = free_name(f"{name}_mask", {*self._prepared.ranks, *self._prepared.operands})
                self._masks[mask] = name
                found[name], found[mask] = with_mask(found[name], mask)
        return _settled(found)

    def _plan(self, arguments: Mapping[str, Argument]) -> tuple[Plan, ...]:
        layouts = {name: argument.operand.layout for name, argument in arguments.items()}
        first, *others = {argument.operand.dtype for argument in arguments.values()} or {bool_}
        alike = not others and first.kind != "bool" and (first.bits > 16 or not first.is_float)
        names = frozenset(arguments if alike else ())
        plans: list[Plan] = []
        for stmt in self._prepared.program.statements:
            target = stmt.target.name
            wanted = self._wanted.get(target)
            if stmt.accumulates and target in layouts:
                wanted = layouts[target]
            plan = plan_statement(stmt, layouts, wanted, self.semiring, names)
            layouts[target] = plan.output.layout
            plans.append(plan)
        return tuple(plans)

    # -- results ------------------------------------------------------------------------------

    def _pick(self, found: Mapping[str, Any]) -> Any:
        names = self._prepared.results
        values = tuple(found[name] for name in names)
        return values[0] if len(values) == 1 else Results.of(names, values)


class BoundNotation(Timed):
    """A NotationKernel with some arguments fixed; call it with the others by name."""

    def __init__(self, kernel: NotationKernel, bound: Mapping[str, Any]) -> None:
        self.kernel, self.bound = kernel, dict(bound)
        self._kernels: dict[Version, Bound] = {}

    def __call__(self, *, out: Any = None, **named_args: Any) -> Any:
        """Run the program on the bound arguments and *named_args*; returns as the kernel does."""
        for name in named_args:
            if name in self.bound:
                raise ArgumentError(f"argument {name}: is bound already")
        given = (*self.bound.values(), *named_args.values())
        return in_kind(self.kernel.run(out, named_args, self.bound, self._kernels), given, out)

    def __repr__(self) -> str:
        return f"<{self.kernel!r} with {', '.join(self.bound)} bound>"


def compile_notation(
    program: Any,
    options: Options,
    *,
    formats: Mapping[str, str | Format] | None = None,
    semiring: Semiring | str = ORDINARY,
    functions: Mapping[str, Function] | None = None,
    **unknown: Any,
) -> NotationKernel:
    """Return the kernel of a string of index notation, of assigned symbols, or of a Program."""
    if unknown:
        raise ArgumentError(
            f"argument {next(iter(unknown))}: is none of compile's",
            hint="for index notation there are formats, semiring and functions besides",
        )
    expect("formats", formats, (Mapping, NoneType), "formats by the names of tensors")
    expect("functions", functions, (Mapping, NoneType), "functions by their names")
    with refuse_deep_nests(ScriptError):
        notation, rest = with_numbers(as_program(program, dict(functions or {})), options.constants)
        options = replace(options, constants=rest)
        return NotationKernel(notation, formats or {}, as_semiring(semiring), options)


def _settled(arguments: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return *arguments* where Python numbers have the dtype of what they meet."""
    strong = [a.operand.dtype for a in arguments.values() if not a.operand.weak]
    common = reduce(promote, strong) if strong else None
    found = dict(arguments)
    for name, argument in arguments.items():
        operand = argument.operand
        if not operand.weak or operand.dtype.kind == "bool":
            continue
        own = operand.dtype
        if common is not None and (common.is_float or not own.is_float) and common.kind != "bool":
            own = common
        else:
            own = float64 if own.is_float else int64
        found[name] = replace(argument, operand=replace(operand, dtype=own))
    return found


def _identifier(name: str) -> str:
    return f"{name}_kernel"
