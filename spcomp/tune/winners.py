"""Around the route: kernels that do what was found to be fastest for matrices like theirs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.compiler.compiled import Compiled
from spcomp.compiler.variants import inner_extents
from spcomp.errors import (
    ArgumentError,
    FormatError,
    LoweringError,
    ScheduleError,
    SpcompError,
    outside,
    refuse_deep_nests,
)
from spcomp.kernels.calls import Calls
from spcomp.kernels.decomposed.choose import ChoosingKernel
from spcomp.kernels.inspection import Inspection
from spcomp.kernels.kernel import BoundKernel, Kernel, frozen
from spcomp.kernels.protocol import Bound, InnerCall, Runnable
from spcomp.locks import cached_property
from spcomp.tune.choice import Choice
from spcomp.tune.decisions import NONE, Decision, Decisions, is_kept, is_matrix
from spcomp.tune.problem import NEAR, Problem, digests, fingerprint, statistics_of, versions
from spcomp.tune.store import Store, user_store

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.formats.rules import ComposableFormat
    from spcomp.ir.func import Func
    from spcomp.schedule.step import Trace

Extents: TypeAlias = tuple[tuple[str, int], ...]

UNDECIDED = "tuned: calls decide; none has yet"


@dataclass(frozen=True, slots=True)
class Winner:
    """A *choice*, and a *note* that says where it comes from."""

    choice: Choice
    note: str


@dataclass(frozen=True, eq=False)
class Asked:
    """A call of *kernel*, the default one, with arguments *named*, for which a winner is wanted.

    *whole*: whether these are all arguments, or those that say which version it gets.
    """

    kernel: Kernel
    func: Func
    named: Mapping[str, Any]
    whole: bool = True

    @cached_property
    def matrices(self) -> dict[str, Any]:
        """The arguments that store some elements only."""
        return {name: arg for name, arg in self.named.items() if is_matrix(arg)}

    @cached_property
    def version(self) -> Kernel:
        """The version of the default kernel that the call gets; raises ArgumentError."""
        return self.kernel.version(self.named, whole=self.whole)

    @cached_property
    def extents(self) -> Extents:
        """The sizes of dense operands that this version has compiled in, constants among them."""
        others = self.kernel.options.constants.keys() - {*inner_extents(self.func)}
        found = self.version.options.constants.items()
        return tuple(sorted((name, int(value)) for name, value in found if name not in others))

    @property
    def machine(self) -> str:
        """What times of the call depend on beside the program and its data."""
        return fingerprint(self.kernel.options.target)

    @cached_property
    def problem(self) -> Problem:
        """The key of the call in a store."""
        own, known = self.kernel.options.constants, statistics_of(self.matrices)
        program, *older = digests(self.func, self.kernel.options)
        rest = tuple((name, size) for name, size in self.extents if name not in own)
        earlier = tuple(Problem(text, rest, known) for text in older)
        return Problem(program, self.extents, known, earlier)


class Winners(ABC):
    """What won: the tuner of ``compile(..., tuned=)``."""

    def kernel(self, func: Func, options: Options) -> TunedKernel:
        """Return the kernel of *func* that does what won for its arguments."""
        with refuse_deep_nests(LoweringError):
            return TunedKernel(func, options, self)

    @abstractmethod
    def knows(self, program: str) -> bool:
        """Whether anything won for the program with this digest."""

    @abstractmethod
    def find(self, asked: Asked) -> Winner | None:
        """Return what won for the call *asked*.

        A choice that stores a matrix in another format is for matrices that cannot change.
        """

    def missing(self, asked: Asked) -> str:  # noqa: ARG002
        """Return what is said where nothing won for the call *asked*."""
        return NONE


@dataclass(frozen=True, slots=True)
class StoredWinners(Winners):
    """The winners in a store, by default the user's."""

    store: Store | None = None

    @property
    def _store(self) -> Store:
        return self.store or user_store()

    def knows(self, program: str) -> bool:
        """Whether the store has a winner for the program."""
        return self._store.has(program)

    def find(self, asked: Asked) -> Winner | None:
        """Return the stored winner for the same matrices or near ones, on such a machine."""
        key = asked.problem, asked.machine, versions()
        best, kept = self._store.winner(*key, "any"), all(map(is_kept, asked.matrices.values()))
        waits = "" if kept or best is None else best[0].waiting
        found = (best if kept else None) or self._store.winner(*key, "as_is")
        if found is not None:
            record, distance = found
            return Winner(Choice.from_json(record.choice), f"tuned: {record.told(distance)}{waits}")
        return Winner(Choice(), f"tuned: {Choice()}{waits}") if waits else None

    def missing(self, asked: Asked) -> str:
        """Return for which sizes, where or by which versions something was found, else that not."""
        problem = asked.problem
        near = [
            record
            for record in self._store.winners(problem.program)
            if problem.distance(json.loads(record.matrices)) <= NEAR
        ]
        here = [record for record in near if record.machine == asked.machine]
        now = [record for record in here if record.versions == versions()]
        if now:
            sizes = " and for ".join(dict.fromkeys(_sizes_in(r.extents) for r in now))
            mine = _sizes_in(problem.extents_text)
            return (
                f"tuned: nothing was found for {mine}, only for {sizes}, with matrices like these"
            )
        if not near:
            return NONE
        where = f"by {here[-1].versions}" if here else "on another machine or with other threads"
        return f"tuned: nothing was found here for such matrices, only {where}: tune it again"


def store_of(tuned: Any) -> Store | None:
    """Return the store that *tuned* is, or whose path it is; None for other things.

    Raises ArgumentError where there is no such file.
    """
    if isinstance(tuned, (str, PathLike)):
        if not Path(tuned).is_file():
            raise ArgumentError(
                f"argument tuned: there is no file {str(tuned)!r}",
                hint="spcomp.tune(..., store=spcomp.tune.Store(path)) makes it",
            )
        return Store(tuned)
    return tuned if isinstance(tuned, Store) else None


@dataclass(frozen=True, slots=True)
class FixedWinner(Winners):
    """One *choice* for all matrices; it is taken wherever its extents are those of the call."""

    choice: Choice

    def knows(self, program: str) -> bool:  # noqa: ARG002
        """Whether anything won: it did."""
        return True

    def find(self, asked: Asked) -> Winner | None:
        """Return the choice, if it is for these extents."""
        if self.choice.extents and self.choice.extents != asked.extents:
            return None
        return Winner(self.choice, f"tuned: {self.choice}")


class TunedKernel(Kernel):
    """A Kernel that does for its arguments what won for them, and otherwise what Kernels do.

    It decides at the first call with arguments of these shapes. A winner that stores a matrix in
    another format is for matrices whose arrays are all read-only, since others may change between
    calls. ``explain``, ``trace``, ``stage`` and ``source`` say what was decided last.
    """

    chooses = True
    undecided = UNDECIDED  # what is said before anything is decided

    def __init__(self, func: Func, options: Options, winners: Winners) -> None:
        super().__init__(Compiled.of(func, options), options, func)
        self._func, self._winners = func, winners
        self._decisions = Decisions(self.decision, self.undecided)

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the program as Kernels do; calls by position run the default steps."""
        if args:
            return super().__call__(*args, out=out, **named)
        try:
            decision = self.decide(named)
            taken = decision.taken(named)
        except SpcompError as error:
            raise outside(error)  # noqa: B904 (it is the same error)
        if decision.kernel is None:
            return super().__call__(out=out, **named)
        return decision.kernel(out=out, **taken)

    def decide(self, named: Mapping[str, Any]) -> Decision:
        """Return what is decided for the arguments *named*."""
        return self._decisions.of(named)

    @property
    def last(self) -> Decision:
        """What was decided last."""
        return self._decisions.last

    def bind(self, **named: Any) -> BoundKernel | TunedBound:  # type: ignore[override]
        """Return a callable for the other arguments, as Kernels do; it decides at its first call.

        Where a winner stores a matrix in a format, its values are copied, too.
        """
        if (inspection := Inspection.take(named, self.takes)) is not None:
            inspected: TunedBound = inspection.bound(self, named)
            return inspected
        bound = super().bind(**named)  # what is wrong is refused now
        steady = {name: frozen(arg) for name, arg in named.items()}
        if not all(_is_steady(arg) for arg in steady.values()):
            return bound
        return TunedBound(self, bound, steady)

    @property
    def extents(self) -> tuple[str, ...]:
        """The names of the sizes that a version may have compiled in."""
        return inner_extents(self._func)

    @cached_property
    def default(self) -> Kernel:
        """The kernel that runs where nothing better is known."""
        return Kernel(self._compiled, self._options, self._func)

    @property
    def latest(self) -> Runnable:
        """The kernel that was decided for last."""
        return self.default if self.last.kernel is None else self.last.kernel

    @property
    def last_chosen(self) -> Mapping[str, ComposableFormat]:
        """The formats in which that kernel stores matrices, by name."""
        return self.last.formats

    def choose(self, **named: Any) -> Runnable:
        """Return the kernel that a call with *named* runs, for any sizes that it can have."""
        return self._chosen(self.decide(named), named)

    def _chosen(self, decision: Decision, named: Mapping[str, Any]) -> Runnable:
        kernel = decision.kernel
        if kernel is None:
            return self.default
        chooses = isinstance(kernel, ChoosingKernel)
        return kernel.choose(**decision.taken(named)) if chooses else kernel

    def specialize(self, **named: Any) -> Runnable:  # type: ignore[override]
        """Return the kernel that a call with arguments like these runs; compiled if need be."""
        decision = self.decide(named)
        return self._chosen(decision, named).specialize(**decision.taken(named))

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call with *named* of the kernel that is decided for."""
        decision = self.decide(named)
        return self._chosen(decision, named).inner_call(decision.taken(named))

    interpret, profile = Runnable.interpret, Runnable.profile  # of what is decided for

    def explain(self, **named: Any) -> str:
        """Return what won and where, the signature and the steps."""
        kernel = self.specialize(**named) if named else self.latest
        return "\n".join(text for text in (self.note, kernel.explain()) if text)

    @property
    def note(self) -> str:
        """What won for the arguments of the last call, and when that was measured."""
        return self.last.note

    @property
    def trace(self) -> Trace:
        """The schedule steps of the kernel that was decided for last."""
        return self.latest.trace

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each step of compilation took, of the kernel that was decided for last."""
        return self.latest.timings

    def stage(self, name: str) -> str:
        """Return the program at *name* of the kernel that was decided for last."""
        return self.latest.stage(name)

    def source(self, kind: str = "llvm") -> str:
        """Return what was generated for the kernel that was decided for last."""
        return self.latest.source(kind)

    def kernels(self) -> tuple[Runnable, ...]:  # type: ignore[override]
        """Return those of the kernel that was decided for last."""
        return self.latest.kernels()

    def decision(
        self,
        named: Mapping[str, Any],
        bound: Mapping[str, Any] | None = None,
        *,
        whole: bool = True,
    ) -> Decision:
        """Return what is decided for *named*.

        *bound*: those of the arguments that the kernel has bound, if it is to be bound. *whole*: as
        in Asked.
        """
        if not any(map(self._winners.knows, digests(self._func, self._options))):
            return Decision(None, NONE)
        asked = Asked(self, self._func, named, whole=whole)
        winner = self._winners.find(asked)
        if winner is None:
            return Decision(None, self._winners.missing(asked))
        if winner.choice == Choice():
            return Decision(None, winner.note)
        try:
            kernel: Runnable = winner.choice.kernel(self._func, self._options)
            if bound is not None:
                kernel = kernel.bind(**winner.choice.taken(bound))
            elif winner.choice.formats:
                kernel.bind(**asked.matrices)  # whether the format suits the matrix
        except (ScheduleError, ArgumentError, LoweringError, FormatError) as error:
            why = f"it does not fit, so the default is used: {error.message}"
            return Decision(None, f"{winner.note}\n{why}")
        return Decision(kernel, winner.note, winner.choice.taken)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._func, self._options, self._winners)


class TunedBound(Bound):
    """A TunedKernel with arguments bound: decides once for each kind of the others.

    It decides now if these say nothing that matters, and otherwise at the first call.
    """

    chooses = True

    def __init__(
        self,
        kernel: TunedKernel,
        default: BoundKernel,
        arguments: Mapping[str, Any],
        *,
        at_once: bool = False,
    ) -> None:
        super().__init__(kernel, arguments)
        self.kernel: TunedKernel = kernel
        self._default = default
        self._decisions = Decisions(self._decision, kernel.undecided)
        self._only: Decision | None = None  # what serves calls of all kinds
        self._straight: Calls | None = None  # of the only kernel, if a call is nothing else
        if at_once and not kernel.extents:
            self._only = kernel.decision(self.arguments, self.arguments, whole=False)
            self._straight = self.only_calls

    def __call__(self, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the Kernel does."""
        if self._straight is not None:
            result = self._straight.learned(out, named)
            if result is not NotImplemented:
                return result
        kernel, _, taken = self.decide(named)
        return (self._default if kernel is None else kernel)(out=out, **taken(named))

    @property
    def only_calls(self) -> Calls | None:
        """The calls of the kernel that served all calls so far; None: there were more."""
        only = self._only or self._decisions.only
        if only is None:
            return None
        kernel: Runnable = self._default if only.kernel is None else only.kernel
        calls: Calls | None = kernel.only_calls
        return calls

    def decide(self, named: Mapping[str, Any]) -> Decision:
        """Return what is decided for calls with arguments like *named*."""
        if self._only is not None:
            return self._only
        self.refuse_bound(named)
        return self._decisions.of(named)

    def _decision(self, named: Mapping[str, Any]) -> Decision:
        return self.kernel.decision({**self.arguments, **named}, self.arguments)

    @property
    def last(self) -> Decision:
        """What was decided last."""
        return self._only or self._decisions.last

    @property
    def note(self) -> str:
        """What was decided last, and why."""
        return self.last.note

    @property
    def latest(self) -> Runnable:
        """The kernel that was decided for last: the default one, or one with arguments bound."""
        return self.kernel.default if self.last.kernel is None else self.last.kernel

    @property
    def last_chosen(self) -> Mapping[str, ComposableFormat]:
        """The formats in which that kernel stores matrices, by name."""
        return self.last.formats

    def choose(self, **named: Any) -> Runnable:
        """Return the kernel that a call with *named* runs, with nothing bound."""
        kernel = self.decide(named).kernel
        return kernel.kernel if isinstance(kernel, Bound) else self.kernel.default

    def specialize(self, **named: Any) -> Runnable:
        """Return the kernel that a call with arguments like these runs; compiled if need be."""
        kernel, _, taken = self.decide(named)
        if kernel is None:
            return self.kernel.default.specialize(**self._with_bound(named))
        return kernel.specialize(**taken(named))

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of the kernel that a call with *named* comes down to."""
        kernel, _, taken = self.decide(named)
        if kernel is None:
            return self.kernel.default.inner_call(self._with_bound(named))
        return kernel.inner_call(taken(named))

    def kernels(self) -> tuple[Runnable, ...]:
        """Return those of the kernel that was decided for last."""
        return self.latest.kernels()

    def explain(self, **named: Any) -> str:
        """Return what was decided for arguments like *named*, or last, then the steps of that."""
        if named:
            kernel, taken = self.choose(**named), self.decide(named).taken
            return f"{self.note}\n{kernel.explain(**taken(self._with_bound(named)))}"
        latest = self.latest
        return f"{self.note}\n{(latest.kernel if isinstance(latest, Bound) else latest).explain()}"

    def __getattr__(self, name: str) -> Any:
        """Other attributes are those of the default kernel with these arguments bound."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._default, name)


def _sizes_in(extents: str) -> str:
    """Return the sizes of a record as they are told."""
    sizes = json.loads(extents)
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "no sizes"


def _is_steady(arg: Any) -> bool:
    """Whether later changes of *arg* by its owner are none of index arrays."""
    return not is_matrix(arg) or getattr(arg, "format", "") in ("csr", "bsr") or is_kept(arg)
