"""Around the route: a program of index notation is compiled for its arguments, and run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from spcomp.compiler.options import Options
from spcomp.errors import ArgumentError, ScriptError, refuse_deep_nests
from spcomp.formats.rules import ComposableFormat
from spcomp.kernels.gradients import Differentiable, follow, require_gradients
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.notation.arguments import (
    CallArgument,
    CallArguments,
    arguments_there,
    call_arguments,
)
from spcomp.kernels.notation.call import NOTHING_BOUND, BoundArguments, Call, Intake
from spcomp.kernels.notation.crossed import crossings, uncrossed
from spcomp.kernels.notation.fast_path import FastPath, Handover, Way, tells_all
from spcomp.kernels.notation.formats import Formats
from spcomp.kernels.notation.parts import block_formats, kernel_in_parts
from spcomp.kernels.notation.places import Places
from spcomp.kernels.notation.planned import (
    CompiledVersion,
    NoPlan,
    Planned,
    Split,
)
from spcomp.kernels.notation.planner import Planner
from spcomp.kernels.notation.results import Delivery, as_kernel_argument, stores_as
from spcomp.kernels.notation.scatters import Scatters, Sizes
from spcomp.kernels.protocol import InnerCall, Runnable
from spcomp.kernels.results import Results
from spcomp.log import say
from spcomp.notation.adjoint.adjoint import Adjoint, adjoint_of
from spcomp.notation.nodes import Program
from spcomp.notation.semiring import ORDINARY, Semiring
from spcomp.runtime.cuda.arrays import lies_there
from spcomp.runtime.cuda.streams import STREAM, chosen_stream
from spcomp.target import on_gpu
from spcomp.tensors.libraries.foreign import has_torch, outputs

MOST_VERSIONS = 64
_NONE: Sizes = {}
K = TypeVar("K")
V = TypeVar("V")


def keep(kept: dict[K, V], key: K, value: V) -> V:
    """Return what is *kept* for *key*: *value*, if no other thread was first.

    It takes the place of the oldest of :data:`MOST_VERSIONS` values.
    """
    while len(kept) >= MOST_VERSIONS:
        kept.pop(next(iter([*kept])), None)  # a list, as other threads may add to it meanwhile
    return kept.setdefault(key, value)


class Runner:
    """Runs a program on arguments by name; keeps a compiled version for each kind of them.

    The steps of a call: arguments are taken in; the version for their kinds is found, or planned
    and compiled; its kernel runs; results are delivered in the formats that the user wants.
    """

    def __init__(
        self, program: Program, formats: Formats, semiring: Semiring, options: Options
    ) -> None:
        self.options = options
        self._on_gpu = on_gpu(options.target)
        self.planner = planner = Planner.of(program, formats, semiring, options)
        prepared = planner.prepared
        self._places = places = Places.of(planner.parts, prepared.results)
        self._operands = places.named(prepared.arguments)
        self.scatters = Scatters(planner.rows, self._operands, self._on_gpu)
        self.arguments = self.scatters.named(self._operands)
        self.outputs = frozenset(places.results).difference(self.arguments)
        first = next(s for s in self.program.statements if s.target.name == places.results[0])
        self.name = options.name or first.name
        self._intake = Intake(self.name, prepared, places, self.scatters)
        self._delivery = Delivery(prepared, planner.formats, planner.wanted)
        self.versions: dict[object, CompiledVersion | SplitVersion] = {}
        self._renewals: dict[tuple[Planned, frozenset[str]], SplitVersion] = {}
        self.latest: CompiledVersion | SplitVersion | None = None
        self.fast_path = FastPath(self)
        self._crossings = () if self._on_gpu else crossings(program)
        self._takes_wholes = not (places.parts or prepared.accumulated or self.scatters.rows)

    @property
    def program(self) -> Program:
        """The program as the user wrote it."""
        return self.planner.written

    @property
    def assigned_parts(self) -> frozenset[str]:
        """The names of arguments of which parts are assigned."""
        return frozenset(part.name for part in self._places.parts.values())

    def call(self, out: Any, named: dict[str, Any], bound: BoundArguments = NOTHING_BOUND) -> Any:
        """Run on the arguments *named* and those *bound*; returns as a NotationKernel does."""
        sizes = _NONE if "sizes" in self.arguments else named.pop("sizes", _NONE)
        for_gpu = self.options.target.kind == "cuda" and STREAM not in self.arguments
        stream = named.pop(STREAM, None) if for_gpu else None  # the emulator has none
        if self._on_gpu:
            there = any(map(lies_there, (*named.values(), *outputs(out), *bound.given.values())))
            with chosen_stream(stream):
                if there:
                    return self.run(out, arguments_there(named), bound, sizes=sizes)
                return self._call(out, named, bound, sizes)
        return self._call(out, named, bound, sizes)

    def _call(self, out: Any, named: dict[str, Any], bound: BoundArguments, sizes: Sizes) -> Any:
        """Run on the arguments, which lie on the host."""
        if not bound.has_torch and not has_torch(named.values(), out):
            return self.run(out, call_arguments(named), bound, sizes=sizes)
        written = {*self.planner.prepared.accumulated, *self.assigned_parts}
        if require_gradients(named.values()):
            return self._followed(out, named, bound, written, sizes)
        from spcomp.kernels.notation.torch_calls import TorchCall  # torch is optional

        call = TorchCall(named, out, written, bound.given.values())
        path = self.fast_path if bound is NOTHING_BOUND else bound.fast_path
        result = NotImplemented
        if path is not None and not sizes:
            result = path.run(call.out, call.arguments)
        if result is NotImplemented:
            arguments = call_arguments(call.arguments)
            result = self.run(call.out, arguments, bound, sizes=sizes)
        return call.results(result)

    def _followed(
        self,
        out: Any,
        named: dict[str, Any],
        bound: BoundArguments,
        written: Collection[str],
        sizes: Sizes,
    ) -> Any:
        """Run on torch tensors that require gradients; the results know them."""
        for name in written:
            if name in named:
                raise ArgumentError(
                    f"argument {name}: is written to, so gradients cannot be followed",
                    hint="assign a result of its own, or call the kernel under torch.no_grad()",
                )

        def run(arrays: dict[str, Any]) -> Any:
            rest = {name: x for name, x in arrays.items() if name not in bound.given}
            return self.run(None, call_arguments(rest), bound, sizes=sizes)

        return follow(self.differentiable, out, {**bound.given, **named}, run, sizes)

    @cached_property
    def differentiable(self) -> Differentiable:
        """The program as one whose gradients can be followed."""
        results = self.planner.prepared.results
        return Differentiable(
            self.name, results, self.planner.formats, self.options, self._adjoint, saves=True
        )

    def _adjoint(self, wrt: tuple[str, ...]) -> Adjoint:
        if self.planner.semiring != ORDINARY:
            raise ArgumentError(
                f"argument {wrt[0]}: requires gradients, and a program over a semiring has none",
                hint="give what it holds with .detach()",
            )
        return adjoint_of(self.program, wrt)

    def run(
        self,
        out: Any,
        arguments: CallArguments,
        bound: BoundArguments = NOTHING_BOUND,
        sizes: Sizes = _NONE,
    ) -> Any:
        """Run on *arguments*, none of torch, and those *bound*; returns as a NotationKernel does.

        *sizes*: the lengths of results at index vectors, by name.
        """
        call = self._intake.call(out, arguments, bound, sizes)
        if self._crossings:
            fixed = {*bound.arguments, *call.outputs}
            call = call._replace(arguments=uncrossed(call.arguments, self._crossings, fixed))
        results = self._run(call)
        if call.wholes:
            self._places.put_back(call.outputs, call.wholes)
            results = {**results, **call.wholes}
        return self._named(results)

    def _named(self, results: Mapping[str, Any]) -> Any:
        """Return the only one of the *results*, or all as a named tuple."""
        names = self._places.results
        if len(names) == 1:
            return results[names[0]]
        return Results.of(names, tuple(results[name] for name in names))

    def _run(self, call: Call) -> Mapping[str, Any]:
        """Return the results by name; assigned parts have names of their own."""
        version = self._version(call)
        self.note(version, call.bound)
        if isinstance(version, SplitVersion):
            return version.run(call)
        planned, arguments = version.planned, call.arguments
        for index in planned.unbound:
            index.check(call.outputs)
        self._delivery.check(planned.plans, arguments, call.outputs)
        kernel, named = self._kernel_call(version, call)
        returned = kernel(**named)
        results = self._delivery.results(planned, returned, arguments, call.outputs)
        path = self.fast_path if call.bound is NOTHING_BOUND else call.bound.fast_path
        calls = None if path is None else path.news(kernel)
        if path is not None and calls is not None and tells_all(call.given, call.outputs):
            handover = Handover(call.given, named, returned, self._named(results))
            taken, number = handover.takes(version), self._delivery.is_number(planned)
            plain = number or (self._delivery.is_plain(planned) and handover.is_plain)
            plain = plain and self._takes_wholes and taken is not None
            path.consider(Way(calls, version, taken or (), number), plain=plain)
        return results

    def kernel_call(
        self, out: Any, named: Mapping[str, Any], bound: BoundArguments, sizes: Sizes = _NONE
    ) -> InnerCall | None:
        """Return the call of a kernel that a call with *named* and *out* comes down to.

        None if it is not one kernel, or it works on parts of what is given.
        """
        call = self._intake.call(out, arguments_there(named), bound, sizes)
        version = self._version(call)
        if isinstance(version, SplitVersion) or call.wholes:
            return None

        def deliver(returned: Any) -> Any:
            results = self._delivery.results(version.planned, returned, call.arguments, {})
            return self._named(results)

        kernel, arguments = self._kernel_call(version, call)
        return InnerCall(kernel, arguments, deliver)

    def note(
        self, version: CompiledVersion | SplitVersion, bound: BoundArguments = NOTHING_BOUND
    ) -> None:
        """Note that *version* ran last, with the arguments *bound*."""
        self.latest = version
        if bound is not NOTHING_BOUND:
            bound.latest = version

    def _version(self, call: Call) -> CompiledVersion | SplitVersion:
        asked = frozenset(call.outputs).difference(self.planner.prepared.results)
        version = self.version(call.arguments, asked)
        if isinstance(version, CompiledVersion) and self.planner.prepared.accumulated:
            version = self._renewal(version.planned, call) or version
        return version

    def _kernel_call(self, version: CompiledVersion, call: Call) -> tuple[Runnable, dict[str, Any]]:
        """Return the kernel of *version*, and its arguments in *call*."""
        kernel, bound = self._kernel(version, call)
        named = {
            name: make(call.arguments[source].value)
            for name, source, make in version.arguments
            if source not in bound
        }
        if call.outputs:
            for plan in version.planned.plans:
                if (name := plan.stmt.target.name) in call.outputs:
                    named[name] = as_kernel_argument(call.outputs[name], plan.output.layout)
        return kernel, named

    def _kernel(self, version: CompiledVersion, call: Call) -> tuple[Runnable, Collection[str]]:
        """Return the kernel of *version*, and the arguments that it has bound.

        It has none bound if a matrix that is stored in parts comes with the call. On a GPU, rows of
        bound index vectors are bound, too: they stay there.
        """
        bound, fixed = call.bound, call.bound.arguments
        if not fixed:
            return version.kernel, ()
        key: object = version
        if self._on_gpu and bound.rows:
            rows = {name: call.arguments[name] for name in bound.rows}
            fixed = {**fixed, **rows}
            key = version, tuple(argument.value.shape[0] for argument in rows.values())
        kernel = bound.kernels.get(key)
        if kernel is None:
            sources = {argument.name: argument.source for argument in version.arguments}
            if any(sources[name] not in fixed for name in version.stored):
                return version.kernel, ()
            kernel = version.kernel.bind(**version.bound_arguments(fixed))
            kernel = keep(bound.kernels, key, kernel)
        return kernel, fixed

    def _renewal(self, planned: Planned, call: Call) -> SplitVersion | None:
        """Return a version that makes new results where given ones lack elements to add to."""
        lacks: set[str] = set()
        for plan in (p for p in planned.plans if p.stmt.accumulates):
            name, like = plan.stmt.target.name, plan.output.like
            argument = planned.arguments.get(like.name) if like else None
            if name in call.outputs and argument is not None:
                pattern = argument.adapt(call.arguments[argument.source].whole)
                lacks |= set() if stores_as(call.outputs[name], pattern) else {name}
        if not lacks:
            return None
        key = planned, frozenset(lacks)
        renewal = self._renewals.get(key)
        if renewal is None:
            plans = [
                replace(plan, output=replace(plan.output, storage="split"))
                if plan.stmt.target.name in lacks and plan.stmt.accumulates
                else plan
                for plan in planned.plans
            ]
            renewal = keep(self._renewals, key, self._split_version(self.planner.split(plans)))
        return renewal

    def operands(self, named: Mapping[str, Any], sizes: Sizes | None = None) -> CallArguments:
        """Return the arguments of a call, whose kinds say what runs.

        Without *sizes*, also as one of *named*, results at index vectors have any length. Raises
        ArgumentError.
        """
        named = dict(named)
        if "sizes" not in self.arguments:
            sizes = named.pop("sizes", sizes)
        arguments = call_arguments(named)
        if sizes is not None:
            return self.scatters.with_rows(arguments, {}, sizes)
        return self.scatters.like(arguments) if arguments else {}

    @property
    def _specialized(self) -> str:
        return f"kernel.specialize({', '.join(f'{name}=...' for name in self.arguments)})"

    # -- versions -----------------------------------------------------------------------------

    @property
    def last(self) -> CompiledVersion | SplitVersion:
        """The version that ran last; raises ArgumentError if none has."""
        if self.latest is None:
            raise ArgumentError(
                f"{self.name}: formats and dtypes are not known yet",
                hint=f"call it first, or take {self._specialized}",
            )
        return self.latest

    def version(
        self, arguments: CallArguments, asked: frozenset[str] = frozenset()
    ) -> CompiledVersion | SplitVersion:
        """Return the version for *arguments*, compiled if need be. Raises SpcompError.

        *asked*: the tensors that the call wants beside the results.
        """
        key = (asked, *[(name, kind) for name, kind, _ in arguments.values()])
        version = self.versions.get(key)
        if version is None:
            say(self.name, f"is planned for {', '.join(map(str, arguments.values()))}")
            version = keep(self.versions, key, self._compile(arguments, asked))
        self.latest = version
        return version

    def _check_names(self, arguments: CallArguments) -> None:
        for name in arguments:
            if name not in self._operands:
                results = ", ".join(self._places.results)
                hint = f"its arguments are {', '.join(self.arguments)}; out= is for {results}"
                if name in self.planner.prepared.targets:
                    hint = f'for what the program has in between, give out={{"{name}": ...}}'
                raise ArgumentError(f"unexpected argument {name} of {self.name}", hint=hint)
        for name in self._operands:
            if name not in arguments and name not in self.planner.prepared.accumulated:
                raise ArgumentError(f"missing argument {name} of {self.name}")

    def planned(
        self, arguments: CallArguments, asked: frozenset[str] = frozenset()
    ) -> Planned | Split:
        """Return the program for arguments like these, or its pieces. Raises SpcompError."""
        self._check_names(arguments)
        decision = self.planner.decide(self.name, arguments, asked)
        if isinstance(decision, NoPlan):
            raise decision.error
        return decision

    def _compile(
        self, arguments: CallArguments, asked: frozenset[str]
    ) -> CompiledVersion | SplitVersion:
        planner = self.planner
        with refuse_deep_nests(ScriptError):
            planned = self.planned(arguments, asked)
            if isinstance(planned, Split):
                return self._split_version(planned)
            requested: dict[str, ComposableFormat] = {}
            offered = dict(block_formats(planned, planner.wanted, planner.semiring))
            for name, argument in planned.arguments.items():
                layout = arguments[argument.source].format
                if argument.source in planner.stored:
                    requested[name] = planner.stored[argument.source]
                elif layout is not None and argument.source not in planner.wanted:
                    offered |= {} if argument.windowed else {name: layout}
            kernel = kernel_in_parts(planned, requested, offered, self.options)
            if kernel is not None:
                return CompiledVersion.of(planned, kernel, arguments, kernel.program.formats)
            if (tuner := self.options.tuned) is not None:
                plain: Kernel = tuner.kernel(planned.func, self.options)
            else:
                plain = Kernel.of(planned.func, self.options, may_wait=True)
            return CompiledVersion.of(planned, plain, arguments, {})

    def _split_version(self, split: Split) -> SplitVersion:
        options, semiring = replace(self.options, name=None), self.planner.semiring
        return SplitVersion(
            tuple(
                PieceRunner(Runner(piece.program, piece.formats, semiring, options), piece.result)
                for piece in split.pieces
            )
        )

    # -- questions about versions -----------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<NotationKernel {self.name}: {str(self.program)!r}>"

    def kernels(self) -> Iterator[Any]:
        """Yield the Kernels that ran last."""
        version = self.last
        if isinstance(version, CompiledVersion):
            yield from version.kernel.kernels()
        else:
            for piece in version.pieces:
                yield from piece.runner.kernels()

    def hands_on(self, version: CompiledVersion, arguments: CallArguments) -> bool:
        """Whether the kernel of *version* takes and returns what a call with *arguments* does."""
        plain = self._takes_wholes and self._delivery.is_plain(version.planned)
        return plain and version.takes(arguments)

    def chosen(self, version: CompiledVersion, arguments: CallArguments) -> Runnable:
        """Return the Kernel of *version*; where arguments decide it, that for *arguments*.

        The matrix decides its format, and all of them what a tuner knows. Raises ArgumentError.
        """
        kernel, stored = version.kernel, version.stored
        deciding = [a for a in version.arguments if a.name in stored or not stored]
        known = all(a.source in arguments for a in deciding)
        if not kernel.chooses or not known or (self.scatters.rows and not stored):
            return kernel
        made = {name: make(arguments[source].value) for name, source, make in deciding}
        return kernel.choose(**made)


@dataclass(frozen=True, slots=True)
class PieceRunner:
    """The runner of a piece; *result*: the name of its result in later pieces."""

    runner: Runner
    result: str

    @property
    def target(self) -> str:
        """The name that its statement assigns."""
        return self.runner.program.statements[0].target.name

    def run(self, known: Mapping[str, CallArgument], call: Call) -> Any:
        """Return the result for the values *known* so far in *call*, in place if it is given."""
        if self.target != self.result and self.result in call.in_place:
            raise ArgumentError(
                f"argument out: {self.result} gets another pattern, so it has no array to write",
                hint=f"give it by name, {self.result}=...: what is returned is new",
            )
        arguments = {name: known[name] for name in self.runner.arguments if name in known}
        out = None
        if self.target in call.outputs and self.target not in arguments:
            out = {self.target: call.outputs[self.target]}
        return self.runner.run(out, arguments)


@dataclass(frozen=True, slots=True, eq=False)
class SplitVersion:
    """A program split for arguments of one kind: its *pieces* run one after the other."""

    pieces: tuple[PieceRunner, ...]

    def run(self, call: Call) -> dict[str, Any]:
        """Return all results by name, in place where *call* gives arrays."""
        known = {**call.arguments, **call_arguments(call.outputs)}
        for piece in self.pieces:
            known |= call_arguments({piece.result: piece.run(known, call)})
        return {name: argument.value for name, argument in known.items()}
