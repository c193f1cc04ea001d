"""At the call of an index notation kernel: the call as a value, which arguments make."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from spcomp.errors import ArgumentError
from spcomp.kernels.notation.arguments import CallArguments, call_arguments
from spcomp.kernels.notation.fast_path import FastPath
from spcomp.kernels.notation.places import Places
from spcomp.kernels.notation.scatters import Rows, Scatters, Sizes
from spcomp.kernels.protocol import Bound
from spcomp.kernels.results import by_name
from spcomp.notation.prepare import Prepared
from spcomp.tensors.libraries.foreign import arrays_of
from spcomp.tensors.libraries.scipy import narrowed

_NONE: Mapping[str, Any] = {}
Outputs: TypeAlias = tuple[dict[str, Any], dict[str, Any]]


@dataclass(slots=True, eq=False)
class BoundArguments:
    """Arguments that are fixed, and the *kernels* that have them bound, by version.

    *rows*: those of index vectors among them, by operand. *given*: as the user
    gave them; *arguments*: the same with arrays for tensors of torch. *latest*: the version that
    ran last with them. *fast_path*: how calls on a CPU are repeated.
    """

    given: Mapping[str, Any]
    arguments: CallArguments
    kernels: dict[object, Bound]
    rows: dict[str, Rows]
    has_torch: bool = False
    latest: Any = None  # a version of the runner, which stands above
    fast_path: FastPath | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> BoundArguments:
        """Return the bound arguments *given*."""
        arrays = arrays_of(given)
        ours = {n: x if x is given[n] else narrowed(x) for n, x in arrays.items()}  # of torch
        return cls(given, call_arguments(ours), {}, {}, arrays is not given)


NOTHING_BOUND = BoundArguments({}, {}, {}, {})


def with_named_outputs(out: Any, named: dict[str, Any], names: Collection[str]) -> Outputs:
    """Return *out* with the outputs called *names* that are among the arguments *named*, and these.

    Raises ArgumentError for an output that is given twice.
    """
    arrays = {name: named[name] for name in names if name in named}
    if out is not None and not isinstance(out, dict):
        raise ArgumentError(
            f"argument {next(iter(arrays))}: is an output, and out= is given besides",
            hint="give outputs either way: by name, or as out=",
        )
    for name in arrays.keys() & (out or {}).keys():
        raise ArgumentError(f"argument {name}: is an output that out= has, too")
    rest = {name: arg for name, arg in named.items() if name not in arrays}
    return {**(out or {}), **arrays}, rest


class Call(NamedTuple):
    """A call: its *arguments*, which include the *bound* ones, and its arrays for results.

    *outputs*: these arrays by result. *in_place*: the results given by ``out``, not by name.
    *wholes*: the arrays of which parts are assigned.
    """

    arguments: CallArguments
    bound: BoundArguments
    outputs: Mapping[str, Any]
    in_place: Collection[str]
    wholes: Mapping[str, Any]

    @property
    def given(self) -> dict[str, Any]:
        """What comes with the call: arguments that are not bound, and arrays for results."""
        bound = self.bound.arguments
        unbound = {n: argument.value for n, argument in self.arguments.items() if n not in bound}
        return unbound | {**self.outputs}


@dataclass(frozen=True, slots=True)
class Intake:
    """Makes a Call of what is given to the program called *kernel*."""

    kernel: str
    prepared: Prepared
    places: Places
    scatters: Scatters

    def call(
        self, out: Any, arguments: CallArguments, bound: BoundArguments, sizes: Sizes = _NONE
    ) -> Call:
        """Return the call with *arguments*, those *bound*, and *out* for results.

        *sizes*: the lengths of results at index vectors.

        Raises ArgumentError if *out* does not fit, or an array is missing that is written to.
        """
        outputs = wholes = _NONE
        in_place: Collection[str] = ()
        if self.places.parts:
            out, arguments, wholes = self.places.with_parts_cut(self.kernel, out, arguments)
        if out is not None:
            outputs = by_name(self.prepared.results, out)
            for name in outputs:
                if name not in self.prepared.targets:
                    raise ArgumentError(f"argument out: {name} is no output of {self.kernel}")
            in_place = outputs.keys() - arguments.keys()
        for name in self.prepared.accumulated:
            if name in outputs:
                arguments = {**arguments, **call_arguments({name: outputs[name]})}
            elif name in arguments:
                outputs = {**outputs, name: arguments[name].value}
            else:
                raise ArgumentError(
                    f"missing argument {name} of {self.kernel}, which adds to it",
                    hint=f"give it by name, {name}=..., or as out",
                )
        if bound.arguments:
            arguments = {**bound.arguments, **arguments}
        if self.scatters.rows or sizes is not _NONE:
            arguments = self.scatters.with_rows(
                arguments, outputs, sizes, bound.arguments, bound.rows
            )
        return Call(arguments, bound, outputs, in_place, wholes)
