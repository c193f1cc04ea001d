"""The end of the route: a Kernel takes arguments, runs the machine code and returns results."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.compiler.compiled import Compiled
from spcomp.errors import (
    ArgumentError,
    LoweringError,
    SpcompError,
    front_door,
    outside,
    refuse_deep_nests,
)
from spcomp.ir.func import Func
from spcomp.ir.module import Module
from spcomp.kernels.call import CallRecord, in_place, perform
from spcomp.kernels.calls import Calls, EmulatedCalls
from spcomp.kernels.elsewhere import DOORS, door_of
from spcomp.kernels.frame import Frame
from spcomp.kernels.inspection import Inspection
from spcomp.kernels.protocol import Bound, InnerCall, Runnable
from spcomp.kernels.transposed import TransposedOperand, transpose_of
from spcomp.runtime.cuda.arrays import note_write
from spcomp.runtime.cuda.driver import missing
from spcomp.target import on_gpu
from spcomp.tensors.checks import private
from spcomp.tensors.libraries.foreign import is_torch
from spcomp.tensors.libraries.scipy import scipy_of_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from spcomp.codegen.abi import Emitted
    from spcomp.compiler.interface import Interface, Signature
    from spcomp.compiler.launches import KernelLaunch
    from spcomp.compiler.options import Options
    from spcomp.ir.module import HostOp
    from spcomp.kernels.gpu.calls import GpuCalls
    from spcomp.kernels.profile import Profile
    from spcomp.runtime.gpu import Resources
    from spcomp.schedule.step import Trace
    from spcomp.target import Target


class Kernel(Runnable):
    """A compiled program; made by ``spcomp.compile``.

    Call it by name, ``kernel(A=csr, B=array, out=None)``: sparse buffers take scipy.sparse arrays
    and matrices (csr, bsr, coo), ``spcomp.Tensor`` or a 1-D array of the stored values; dense
    ones numpy arrays of their shape. Sizes and index arrays follow from them. Outputs that are
    not given are allocated, and start at their fill value; one output is returned alone, several
    as a named tuple in the order of the parameters.

    Or call it by position with one array or number per parameter of the script: it then writes in
    place and returns None.

    A Kernel for a GPU also takes arrays and sparse matrices that lie there, and ``stream=``: see
    docs/gpu_runtime.md.

    A Kernel may be called from many threads at once and may be pickled. Every call raises
    ArgumentError for arguments that it cannot take.
    """

    def __init__(self, compiled: Compiled, options: Options, program: Any) -> None:
        self._compiled, self._options = compiled, options
        self._program = program  # that of *compiled* may be an equal one from another place
        self._face: Interface = compiled.interface
        self._calls = self._new_calls(None)
        self._in_place = self._new_calls(None, raw=True)

    @classmethod
    def of(cls, program: Any, options: Options, *, may_wait: bool = False) -> Kernel:
        """Return *program*, a Func, a Module or a Schedule, compiled; raises SpcompError.

        *may_wait*: what serves all calls may be compiled when a call needs it.
        """
        with refuse_deep_nests(LoweringError):
            return cls(Compiled.of(program, options, may_wait=may_wait), options, program)

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the program; the class says what it takes and returns."""
        try:
            if DOORS and (door := door_of(named.values())) is not None:
                return door.script(self, out, named)
            if not args and self._options.threads is None:
                return self._calls.run(out, named)
            calls, arguments = self._calls, named
            if args:
                calls, arguments, out = self._in_place, self._positional(args, out, named), None
            with self._threads():
                result = calls.run(out, arguments)
        except SpcompError as error:
            raise outside(error)  # noqa: B904 (it is the same error)
        return None if args else result

    @property
    def only_calls(self) -> Calls | None:
        """The calls by name, if a call is nothing else; None: it does more, or runs elsewhere."""
        own = type(self) is Kernel and self._options.threads is None
        return self._calls if own and type(self._calls) is Calls else None

    def takes(self, name: str) -> bool:
        """Whether a call can give an argument called *name*."""
        return self._face.takes(name)

    @front_door
    def bind(self, /, **named: Any) -> BoundKernel:
        """Return a callable that takes the rest of the arguments, with *named* fixed.

        Their index arrays are copied and checked now, never again. Values are kept by reference:
        later calls see changes in place. Where the program scatters along a matrix of at least
        :data:`~spcomp.kernels.transposed.LEAST` elements, the matrix is transposed now, and calls
        gather. Raises ArgumentError.

        With ``calls=1000`` or ``inspect=True`` the matrices are inspected, as docs/tuning.md says:
        what is expected to be fastest for so many calls, another format maybe, is made now, of the
        values of now.
        """
        if (inspection := Inspection.take(named, self.takes)) is not None:
            inspected: BoundKernel = inspection.bound(self, named)
            return inspected
        verify = self._options.check != "off"
        frame = self._frame(named, keep=True)
        steady: dict[str, Any] = {}
        for name, arg in named.items():
            plan = self._face.by_name.get(name)
            index = plan is None and name in self._face.index_names
            steady[name] = private(arg) if index else frozen(arg)
            frame.take(name, steady[name], verify=verify)
            if plan is not None and plan.handle:
                frame.given[plan.handle] = arg
        frame.resolve_sizes()
        frame.freeze(self._options.check)
        operand = transpose = None
        if not on_gpu(self.target):
            transpose = transpose_of(self.program, self._options, frame, named)
        if transpose is not None:
            matrix = {transpose.matrix: transpose.transposed}
            bound = Kernel.of(transpose.func, self._options).bind(**matrix, **transpose.rest)
            operand = TransposedOperand(bound, transpose)
        return BoundKernel(self, frame, steady, operand)

    def specialize(self, /, **named: Any) -> Kernel:
        """Return the Kernel that a call with arguments like these runs; compiled if need be.

        It has the sizes compiled in that the arguments say, and steps that suit the rows of the
        matrices; where there is no better version, it is this Kernel. Raises ArgumentError.
        """
        return self.version(named)

    def version(self, named: Mapping[str, Any], *, whole: bool = True) -> Kernel:
        """Return what ``specialize`` does; if not *whole*, more arguments than *named* will come.

        Then no size may be compiled in that these say.
        """
        if on_gpu(self.target) and missing():  # all that is asked for is read on the host
            frame = Frame(self._face, self._options.constants)
        else:
            frame = self._frame(named)
        for name, arg in named.items():
            frame.take(name, arg, verify=False)
        frame.resolve_sizes()
        if whole:
            frame.require()
        code = self._compiled.variant(frame.values)
        return self if code is self._compiled else Kernel(code, code.options, self.program)

    @front_door
    def interpret(
        self, stage: str = "coordinate", /, *, compare: bool = False, **named: Any
    ) -> Any:
        """Return what a call with *named* returns, computed by the interpreter of *stage*.

        Stages are ``coordinate``, ``position``, ``flat`` and ``code``, which is the machine code.
        With *compare*, all of them are run, and the Comparison of their results is returned: it
        says which stage is the first to compute something else, and at which element. Interpreters
        are plain Python: some 10^5 operations take a second. Raises ArgumentError.
        """
        from spcomp.kernels.interpretation import Interpretation

        call = Interpretation(self._compiled, self._taken(named))
        return call.comparison() if compare else call.result(stage)

    @front_door
    def profile(self, /, *, repeat: int = 10, **named: Any) -> Profile:
        """Return the time of each phase, and of each nest of loops, of a call with *named*.

        Times are medians of *repeat* calls on copies of the arguments. Raises ArgumentError.
        """
        from spcomp.kernels.profile import profile

        options = replace(self._options, debug=True)  # for the places
        return profile(Compiled.of(self._program, options), self._taken(named), repeat)

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call with *named*."""
        return InnerCall(self, named)

    def _taken(self, named: Mapping[str, Any]) -> Frame:
        """Return a frame with the arguments *named*; raises ArgumentError."""
        frame = Frame(self._face, self._options.constants)
        for name, arg in named.items():
            frame.take(name, arg, verify=True)
        return frame

    def explain(self, /, **named: Any) -> str:
        """Return the signature, the schedule steps by function, and what a GPU launches.

        With arguments *named*, they are those of the version that a call with them runs, and what
        was seen in the data is said first.
        """
        if named:
            return self.specialize(**named).explain()
        parts = self.note, self.known, self.signature, self.trace, self.explain_launches()
        return "\n".join(text for text in map(str, parts) if text).rstrip()

    @property
    def known(self) -> str:
        """What was seen in the data that this version is for, as a line; empty if nothing was."""
        facts = str(self._options.facts or "")
        return f"data: {facts}" if facts else ""

    def kernels(self) -> tuple[Kernel, ...]:
        """Return this Kernel."""
        return (self,)

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the program's."""
        return self._options.name or self._face.name

    @property
    def program(self) -> Any:
        """What was compiled: a function at any stage, a Module or a Schedule."""
        return self._program

    @property
    def schedulable(self) -> Any:
        """What a Schedule takes of the Kernel: its program, that of a Schedule without steps."""
        program = self._program
        return program if isinstance(program, Func | Module) else program.source

    @property
    def options(self) -> Options:
        """What ``compile`` was asked for."""
        return self._options

    @property
    def target(self) -> Target:
        """The machine that the code is for."""
        return self._options.target

    @property
    def signature(self) -> Signature:
        """The parameters in the script's order with their dtypes, shapes and roles."""
        return self._face.signature

    @property
    def trace(self) -> Trace:
        """The schedule steps that were applied, in order; ``compile(..., trace=)`` takes them."""
        return self._compiled.trace

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each step of compilation took."""
        return self._compiled.timings

    @property
    def emitted(self) -> Emitted:
        """The LLVM IR, and how its functions are called."""
        return self._compiled.emitted

    @property
    def object_bytes(self) -> bytes:
        """The machine code as an object file."""
        return self._compiled.object_bytes()

    def stage(self, name: str) -> str:
        """Return the program in the script language at ``coordinate``, ``position`` or ``flat``.

        Raises ArgumentError for another name, or a stage above the one that the program is
        written at.
        """
        return self._compiled.stage(name)

    @property
    def host(self) -> Sequence[HostOp]:
        """What a call does on the host, in order, between the parts that are compiled."""
        return self._compiled.host

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """What a call launches on a GPU, in order; nothing for a CPU."""
        return self._compiled.launches

    def explain_launches(self) -> str:
        """Return what a call launches on a GPU as text, a line for each launch."""
        return "\n".join(f"launch {launch}" for launch in self.launches)

    @property
    def resources(self) -> Mapping[str, Resources]:
        """What each kernel takes of a GPU, by name."""
        return self._compiled.resources

    def source(self, kind: str = "llvm") -> str:
        """Return what was generated: ``llvm`` IR, or ``asm``, for a GPU ``ptx``.

        Raises ArgumentError for another.
        """
        return self._compiled.source(kind)

    def __repr__(self) -> str:
        params = ", ".join(str(param) for param in self.signature.params if param.kind != "index")
        return f"<Kernel {self.name} for {self.target}: {params}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernel.of, (self._program, self._options)

    def _positional(
        self, args: tuple[Any, ...], out: Any, named: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return *args* by the names of their parameters; raises ArgumentError."""
        face = self._face
        if named or out is not None:
            raise ArgumentError(
                f"{self.name}: got arguments by position and by name, expected one or the other"
            )
        if len(args) != len(face.params):
            raise ArgumentError(
                f"{self.name}: got {len(args)} arguments by position, expected {len(face.params)}"
                f" ({', '.join(face.params)})",
                hint="or give buffers by name: " + ", ".join(p.name for p in face.buffers),
            )
        return dict(zip(face.params, args, strict=True))

    def _frame(self, named: Mapping[str, Any], *, keep: bool = False) -> Frame:
        """Return an empty frame for the arguments *named*; *keep*: they are to be bound."""
        if not on_gpu(self.target):
            return Frame(self._face, self._options.constants)
        from spcomp.kernels.gpu.calls import new_frame

        return new_frame(self._compiled, self._options, named.values(), keep=keep)

    def _new_calls(self, bound: BoundKernel | None, *, raw: bool = False) -> Calls | GpuCalls:
        """Return the calls by name, with the arguments of *bound* if there are any.

        *raw*: by the names of parameters, for calls by position.
        """
        if on_gpu(self.target):
            from spcomp.kernels.gpu.calls import GpuCalls

            return GpuCalls(self._compiled, self._options, self.name, bound, raw=raw)
        if raw:
            return Calls(self._face, self.name, self._in_place_call)
        kind = EmulatedCalls if self.target.emulate else Calls
        return kind(self._face, self.name, lambda named: self._call(named, bound))

    def _in_place_call(self, named: dict[str, Any]) -> CallRecord:
        """Run on *named*, which has a number or array for each parameter; return the record."""
        return self._call(in_place(self._face, self.name, named), raw=True)

    def _call(
        self, named: dict[str, Any], bound: BoundKernel | None = None, *, raw: bool = False
    ) -> CallRecord:
        verify = self._options.check == "full"
        empty = Frame(self._face, self._options.constants)
        frame = empty if bound is None else bound.frame(named)
        for name, arg in named.items():
            frame.take(name, arg, verify=verify, raw=raw)
        return perform(self._compiled, frame, named, verify=verify)

    def _threads(self) -> AbstractContextManager[Any]:
        if self._options.threads is None:
            return nullcontext()
        from spcomp.runtime.pool import num_threads

        limited: AbstractContextManager[Any] = num_threads(self._options.threads)
        return limited


class BoundKernel(Bound):
    """A Kernel with some arguments fixed and checked; call it with the others by name."""

    def __init__(
        self,
        kernel: Kernel,
        frame: Frame,
        arguments: Mapping[str, Any],
        transposed: TransposedOperand | None,
    ) -> None:
        super().__init__(kernel, arguments)
        self.kernel: Kernel = kernel
        self._frame, self.transposed = frame, transposed
        self.held: Sequence[Any] = getattr(frame, "held", ())  # an array on the GPU they are on
        self._calls = kernel._new_calls(self)  # noqa: SLF001
        self._threads = kernel._options.threads  # noqa: SLF001
        arrays = {k: v for k, v in frame.values.items() if isinstance(v, np.ndarray)}
        self._sizes = {name: (array, array.shape) for name, array in arrays.items()}
        plans = kernel._face.by_name  # noqa: SLF001
        written = (
            arg for name, arg in arguments.items() if name in plans and plans[name].role != "in"
        )
        self._tensors = tuple(filter(is_torch, written))

    def __call__(self, /, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the Kernel does."""
        for tensor in self._tensors:
            note_write(tensor)
        if self.transposed is not None:
            return self.transposed(out, named)
        if self._threads is None:
            return self._calls.run(out, named)
        with self.kernel._threads():  # noqa: SLF001
            return self._calls.run(out, named)

    @property
    def calls(self) -> Calls | GpuCalls:
        """The calls with the arguments that are bound."""
        return self._calls

    @property
    def only_calls(self) -> Calls | None:
        """The calls by name, if a call is nothing else; None: it does more, or runs elsewhere."""
        own = self.transposed is None and self._threads is None
        return self._calls if own and type(self._calls) is Calls else None

    def check(self) -> None:
        """Wait for calls on a GPU that nothing waited for; raises ArgumentError if one failed."""
        if not isinstance(self._calls, Calls):
            self._calls.check()

    def frame(self, named: Mapping[str, Any]) -> Frame:
        """Return a frame of the bound arguments; raises ArgumentError if *named* repeats one."""
        self.refuse_bound(named)
        plans = self.kernel._face.by_handle  # noqa: SLF001
        for handle, (array, shape) in self._sizes.items():
            if array.shape != shape:
                name = plans[handle].name if handle in plans else handle
                raise ArgumentError(
                    f"argument {name}: has shape {array.shape}, was bound with {shape}"
                )
        return self._frame.copy()


def frozen(arg: Any) -> Any:
    """Return *arg* with private, read-only index arrays; values and dense arrays are shared."""
    sparse = getattr(arg, "format", None) in ("csr", "bsr") and hasattr(arg, "indptr")
    if sparse and isinstance(arg.data, np.ndarray):  # others are refused or corrected later
        indices, indptr = private(arg.indices), private(arg.indptr)
        return scipy_of_arrays(type(arg), arg.shape, arg.data, indices, indptr)
    return arg
