"""Around the route: kernels of index notation, which compile for each new kind of arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError, SpcompError, outside
from spcomp.kernels.elsewhere import door_of
from spcomp.kernels.inspection import Inspection
from spcomp.kernels.notation.bound import BoundNotation
from spcomp.kernels.notation.call import NOTHING_BOUND, with_named_outputs
from spcomp.kernels.notation.explained import explained
from spcomp.kernels.notation.formats import Formats
from spcomp.kernels.notation.planned import Planned, Split
from spcomp.kernels.notation.runner import Runner, SplitVersion
from spcomp.kernels.notation.specialized import SpecializedKernel
from spcomp.kernels.protocol import Bound, InnerCall, Runnable
from spcomp.notation.nodes import Program
from spcomp.notation.semiring import Semiring
from spcomp.tensors.libraries.foreign import arrays_of

if TYPE_CHECKING:
    from spcomp.compiler.interface import Signature
    from spcomp.compiler.options import Options
    from spcomp.kernels.gradients import Differentiable
    from spcomp.kernels.notation.arguments import CallArguments


class NotationKernel(Runnable):
    """A program of index notation; made by ``spcomp.compile("C[i, k] = A[i, j] * B[j, k]")``.

    Call it by name, ``kernel(A=csr, B=array, out=None)``, with numpy arrays, scipy.sparse arrays
    and matrices of any format, ``spcomp.Tensor``, and numbers. Formats and dtypes are those of
    the arguments: the first call with arguments of a new kind compiles. The tensors that are
    assigned and not read later are returned, one as it is, several as a named tuple.
    """

    def __init__(
        self, program: Program, formats: Formats, semiring: Semiring, options: Options
    ) -> None:
        self._runner = Runner(program, formats, semiring, options)

    @property
    def program(self) -> Program:
        """The program as a value."""
        return self._runner.program

    @property
    def semiring(self) -> Semiring:
        """What ``+`` and ``*`` mean in it."""
        return self._runner.planner.semiring

    @property
    def formats(self) -> Formats:
        """The formats that the user asked for, by name."""
        return self._runner.planner.formats

    @property
    def at_vectors(self) -> Mapping[str, int]:
        """The results at index vectors, and the dimension of each that has it."""
        rows = self._runner.planner.rows.values()
        return {name: dim for scattered in rows for name, dim in scattered.places}

    @property
    def options(self) -> Options:
        """What ``compile`` was asked for."""
        return self._runner.options

    @property
    def differentiable(self) -> Differentiable:
        """The program as one whose gradients can be followed."""
        return self._runner.differentiable

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments of a call."""
        return self._runner.arguments

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the text of its first result as an identifier."""
        return self._runner.name

    @property
    def kinds(self) -> int:
        """For how many kinds of arguments it was compiled."""
        return len(self._runner.versions)

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the program; the class says what it takes and returns. Raises ArgumentError."""
        if args:
            raise ArgumentError(
                f"{self.name}: got arguments by position",
                hint=f"give them by name: {', '.join(self.arguments)}",
            )
        try:
            result = self._runner.fast_path.run(out, named)
            if result is not NotImplemented:
                return result
            if (door := door_of(named.values())) is not None:
                return door.call(self, out, named)
            if not self._runner.outputs.isdisjoint(named):
                out, named = with_named_outputs(out, named, self._runner.outputs)
            return self._runner.call(out, named)
        except SpcompError as error:
            raise outside(error)  # noqa: B904 (it is the same error)

    def plan(self, /, **named: Any) -> Any:
        """Return what a call with distributed arguments does, as a value that prints.

        docs/dask.md says what else it takes. Raises ArgumentError if no argument is distributed.
        """
        if (door := door_of(named.values())) is not None:
            return door.plan(self, named)
        raise ArgumentError(
            f"{self.name}: no argument is distributed", hint="explain(...) says what is decided"
        )

    def bind(self, /, **named: Any) -> Bound:
        """Return a callable that takes the rest of the arguments, with these fixed.

        Index arrays are copied now: no call sees later changes of them. The first call with
        arguments of a kind converts them and checks these arrays. With ``calls=1000`` or
        ``inspect=True`` that call takes what is expected to be fastest for these matrices, as
        docs/tuning.md says.
        """
        inspection = Inspection.take(named, self.arguments.__contains__)
        unknown = [name for name in named if name not in self.arguments]
        if unknown:
            at_call = unknown[0] == "sizes" and self.at_vectors
            hint = f"its arguments are {', '.join(self.arguments)}"
            hint = "calls take it: kernel.bind(...)(..., sizes=...)" if at_call else hint
            raise ArgumentError(f"unexpected argument {unknown[0]} of {self.name}", hint=hint)
        for name in named:
            if name in self._runner.assigned_parts:
                raise ArgumentError(f"argument {name}: a part of it is assigned, so calls take it")
        if (door := door_of(named.values())) is not None:
            if inspection is not None:
                raise ArgumentError(
                    f"{self.name}: no format is chosen for distributed arguments",
                    hint="bind them without calls= and inspect=",
                )
            there: Bound = door.bind(self, named)
            return there
        if inspection is not None:
            inspected: Bound = inspection.bound(self, named)
            return inspected
        return BoundNotation(self, self._runner, named)

    def planned(self, named: Mapping[str, Any]) -> Planned | Split:
        """Return the program for arguments like these, or its pieces. Raises SpcompError."""
        return self._runner.planned(self._runner.operands(named))

    def operands(self, named: Mapping[str, Any], sizes: Mapping[str, int]) -> CallArguments:
        """Return the arguments of a call as its program takes them: with rows of index vectors.

        *sizes*: as in the call. Raises ArgumentError.
        """
        return self._runner.operands(named, sizes)

    def specialize(self, /, **named: Any) -> Any:
        """Return the kernel that a call with arguments like these runs; compiled if need be.

        It is a Kernel, or one over formats, and takes these arguments.
        """
        arrays = arrays_of(named)
        arguments = self._runner.operands(arrays)
        version = self._runner.version(arguments)
        if isinstance(version, SplitVersion):
            programs = "; ".join(str(piece.runner.program) for piece in version.pieces)
            raise ArgumentError(
                f"{self.name} runs as {len(version.pieces)} programs, one after the other",
                hint=f"compile and ask each: {programs}",
            )
        kernel = self._runner.chosen(version, arguments)
        plain = all(arrays[name] is arg for name, arg in named.items())  # none of torch
        plain = plain and self._runner.hands_on(version, arguments)
        return kernel if plain else SpecializedKernel(self, kernel)

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of the Kernel that a call with *named* comes down to."""
        rest = dict(named)
        sizes = {} if "sizes" in self.arguments else rest.pop("sizes", {})
        call = self._runner.kernel_call(None, arrays_of(rest), NOTHING_BOUND, sizes)
        if call is None:
            self.specialize(**rest)  # raises for several programs
            raise ArgumentError(f"{self.name} assigns parts of arrays, around its program")
        return call

    def explain(self, /, **named: Any) -> str:
        """Return what was decided, and why: statements, formats, domains, loops.

        For arguments like *named*; without any, for those of the last call.
        """
        if door_of(named.values()) is not None:
            return str(self.plan(**named))
        arguments = self._runner.operands(arrays_of(named))
        version = self._runner.version(arguments) if arguments else self._runner.last
        return explained(self._runner, version, arguments)

    @property
    def signature(self) -> Signature:
        """The parameters of the one program that ran last; raises ArgumentError for several."""
        return self._only_kernel().signature

    def kernels(self) -> tuple[Runnable, ...]:
        """Return the kernels that ran last, in order. Raises ArgumentError if none has."""
        return tuple(self._runner.kernels())

    def __repr__(self) -> str:
        return repr(self._runner)

    def with_options(self, options: Options) -> NotationKernel:
        """Return the kernel of the same program compiled with *options*."""
        return NotationKernel(self.program, dict(self.formats), self.semiring, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return NotationKernel, (self.program, dict(self.formats), self.semiring, self.options)
