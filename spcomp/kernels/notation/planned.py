"""Around the route: the decisions about a program of index notation for arguments of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from spcomp.errors import LoweringError
from spcomp.formats.rules import ComposableFormat
from spcomp.kernels.notation.arguments import Adapt, Argument, CallArgument, CallArguments
from spcomp.kernels.notation.formats import Formats
from spcomp.kernels.notation.stored import copied
from spcomp.kernels.protocol import as_it_is
from spcomp.notation.nodes import Program
from spcomp.notation.plan import Plan
from spcomp.notation.reason import Reason
from spcomp.notation.sizes import Unbound
from spcomp.notation.temporaries import Temporary

if TYPE_CHECKING:
    from spcomp.ir.program import CoordFunc
    from spcomp.kernels.decomposed.choose import ChoosingKernel
    from spcomp.kernels.decomposed.kernel import FormatKernel
    from spcomp.kernels.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to use arguments: the operands *direct* as they are given, the others converted.

    Only operands whose levels loops cannot go through in order are converted.
    """

    name: str
    direct: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(sorted(self.direct))}" if self.direct else self.name


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why *candidate* does not do."""

    candidate: Candidate
    reason: Reason

    def __str__(self) -> str:
        return f"{self.candidate}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """The coordinate program for arguments of one kind, before anything is compiled.

    *arguments*: how each of its operands and numbers is made of those of a call. *converted*: the
    operands converted to a layout that the plans asked for. *unbound*: indices whose length only a
    given result tells. *refusals*: why the candidates before this one do not do. *temporaries*: the
    memory of tensors that the call does not return.
    """

    plans: tuple[Plan, ...]
    arguments: Mapping[str, Argument]
    func: CoordFunc
    converted: frozenset[str]
    unbound: tuple[Unbound, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    temporaries: tuple[Temporary, ...] = ()

    @property
    def returned(self) -> tuple[str, ...]:
        """The assigned tensors that the program has arrays for, in order."""
        gone = {
            temporary.name for temporary in self.temporaries if temporary.place or temporary.owned
        }
        targets = dict.fromkeys(plan.stmt.target.name for plan in self.plans)
        return tuple(name for name in targets if name not in gone)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A program of one statement; *result*: the name of its result in later pieces."""

    program: Program
    formats: Formats
    result: str


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The pieces that a program is split in; *plans*: the decisions about its statements."""

    plans: tuple[Plan, ...]
    pieces: tuple[Piece, ...]
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class NoPlan:
    """The reasons why no candidate does, in the order in which they were planned."""

    refusals: tuple[Refusal, ...]

    @property
    def error(self) -> LoweringError:
        """The error for the user: that of the last candidate, which may convert everything."""
        return self.refusals[-1].reason.error

    def __str__(self) -> str:
        return "\n".join(map(str, self.refusals))


Decision: TypeAlias = Planned | Split | NoPlan


class KernelArgument(NamedTuple):
    """The argument *name* of a kernel; *make* makes it of the argument *source* of a call."""

    name: str
    source: str
    make: Adapt


@dataclass(frozen=True, slots=True, eq=False)
class CompiledVersion:
    """A program compiled for arguments of one kind; *stored*: its operands in parts, by name."""

    planned: Planned
    kernel: Kernel | FormatKernel | ChoosingKernel
    arguments: tuple[KernelArgument, ...]
    stored: Mapping[str, ComposableFormat]

    @classmethod
    def of(
        cls,
        planned: Planned,
        kernel: Kernel | FormatKernel | ChoosingKernel,
        arguments: CallArguments,
        stored: Mapping[str, ComposableFormat],
    ) -> CompiledVersion:
        """Return the version for the arguments of a call, and others like them."""
        kernel_arguments: list[KernelArgument] = []
        for name, argument in planned.arguments.items():
            make = _maker(argument, arguments[argument.source], stored.get(name))
            kernel_arguments.append(KernelArgument(name, argument.source, make))
        return cls(planned, kernel, tuple(kernel_arguments), stored)

    def bound_arguments(self, fixed: CallArguments) -> dict[str, Any]:
        """Return the arguments of the kernel that are made of the *fixed* ones, by name.

        One that is read as it is and converted, too, is copied: both have the same values then.
        """
        ways = {
            (argument.source, argument.converts) for argument in self.planned.arguments.values()
        }
        values = {
            name: copied(argument.value)
            if {(name, True), (name, False)} <= ways
            else argument.value
            for name, argument in fixed.items()
        }
        return {
            name: make(values[source]) for name, source, make in self.arguments if source in values
        }

    def takes(self, arguments: CallArguments) -> bool:
        """Whether the kernel takes *arguments* of a call as they are."""
        return all(
            name == source and make(arguments[source].value) is arguments[source].value
            for name, source, make in self.arguments
            if source in arguments
        )


def _maker(
    argument: Argument, call_argument: CallArgument, stored: ComposableFormat | None
) -> Adapt:
    """Return the function that makes a kernel argument, *stored* in parts if it is, at a call."""
    if call_argument.format is None:
        return argument.adapted
    if not argument.windowed and _takes(stored, call_argument.format):
        return as_it_is
    return lambda parts: argument.adapt(parts.whole())


def _takes(stored: ComposableFormat | None, layout: ComposableFormat) -> bool:
    """Whether a kernel that stores a matrix as *stored* takes one in *layout* as it is."""
    if stored is None:
        return False
    return layout == stored or (stored.is_open and type(layout) is type(stored))
