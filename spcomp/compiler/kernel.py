"""The end of the route: a Kernel takes arguments, runs the machine code and returns results."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.bind import Frame
from spcomp.compiler.calls import Calls
from spcomp.compiler.convert import put_together
from spcomp.compiler.evaluator import Timed
from spcomp.compiler.outputs import allocate, collect, refuse_overlap
from spcomp.compiler.turned import Turned, turned
from spcomp.errors import ArgumentError, SpcompError, front_door, outside
from spcomp.runtime import host

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from spcomp.codegen.abi import Emitted
    from spcomp.compiler.compile import Compiled, Options
    from spcomp.compiler.signature import BufferPlan, Interface, Signature
    from spcomp.schedule.step import Trace
    from spcomp.target import Target

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Check: TypeAlias = Literal["full", "bind", "off"]
CHECKS: tuple[Check, ...] = get_args(Check)


class Kernel(Timed):
    """A compiled program; made by ``spcomp.compile``.

    Call it by name, ``kernel(A=csr, B=array, out=None)``: sparse buffers take scipy.sparse arrays
    and matrices (csr, bsr, coo), ``spcomp.Tensor`` or a 1-D array of the stored values; dense
    ones numpy arrays of their shape. Sizes and index arrays follow from them. Outputs that are
    not given are allocated, and start at their fill value; one output is returned alone, several
    as a named tuple in the order of the parameters.

    Or call it by position with one array or number per parameter of the script: it then writes in
    place and returns None.

    A Kernel may be called from many threads at once and may be pickled. Every call raises
    ArgumentError for arguments that it cannot take.
    """

    def __init__(self, compiled: Compiled, options: Options) -> None:
        self._compiled, self._options = compiled, options
        self._face: Interface = compiled.interface
        self._calls = self._new_calls(None)
        self._in_place = Calls((), self._with_out, self._fully_in_place)

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the program; see the class for what it takes and returns."""
        try:
            if not args and self._options.threads is None:
                return self._calls.run(out, named)
            calls, given = self._calls, named
            if args:
                calls, given, out = self._in_place, self._positional(args, out, named), None
            with self._threads():
                made = calls.run(out, given)
        except SpcompError as error:
            raise outside(error)  # noqa: B904 (it is the same error)
        return None if args else made

    def takes(self, name: str) -> bool:
        """Whether a call can give an argument called *name*."""
        face = self._face
        return name in face.by_name or name in face.scalars or name in face.index_names

    @front_door
    def bind(self, **named: Any) -> BoundKernel:
        """Return a callable that takes the rest of the arguments, with *named* fixed.

        Their index arrays are copied, checked now and never again; values are kept by reference,
        so changing them in place shows in later calls. Where the program scatters along a matrix of
        :data:`~spcomp.compiler.turned.LEAST` elements or more, the transpose is made now, and calls
        gather. Raises ArgumentError.
        """
        verify = self._options.check != "off"
        frame = Frame(self._face, self._options.constants)
        for name, arg in named.items():
            plan = self._face.by_name.get(name)
            index = plan is None and name in self._face.index_names
            frame.take(name, _private(arg) if index else _frozen(arg), verify=verify)
            if plan is not None and plan.handle:
                frame.given[plan.handle] = arg
        frame.settle()
        frame.freeze()
        return BoundKernel(self, frame, tuple(named), turned(self, frame, named))

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the program's."""
        return self._options.name or self._face.name

    @property
    def program(self) -> Any:
        """What was compiled: a function at any stage, a Module or a Schedule."""
        return self._compiled.program

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

    def source(self, kind: str = "llvm") -> str:
        """Return what was generated: ``llvm`` IR or ``asm``; raises ArgumentError for another."""
        return self._compiled.source(kind)

    def __repr__(self) -> str:
        params = ", ".join(str(param) for param in self.signature.params if param.kind != "index")
        return f"<Kernel {self.name} for {self.target}: {params}>"

    def __reduce__(self) -> tuple[Any, ...]:
        from spcomp.compiler.compile import rebuild

        return rebuild, (self._compiled.program, self._options)

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

    def _fully_in_place(self, given: dict[str, Any]) -> None:
        """Take *given*, a number or array for each parameter, and run."""
        face, frame = self._face, Frame(self._face, self._options.constants)
        for plan in face.buffers:
            if plan.is_assembled:
                raise ArgumentError(
                    f"{self.name}: its result {plan.name} is assembled, so it has no array to"
                    " write in place",
                    hint="call it by name",
                )
        for name in sorted(given, key=lambda name: name not in face.scalars):
            frame.take_raw(name, given[name])  # numbers first: arrays are measured against them
        _, code, made = self._run(frame)
        if given.keys() <= face.known:
            self._in_place.consider(frame, given, made, code, verify=self._verifies)

    def _new_calls(self, bound: BoundKernel | None) -> Calls:
        """Return where calls with the arguments of *bound*, if there are any, are learnt."""
        outputs = tuple(plan.name for plan in self._face.outputs)
        calls = Calls(outputs, self._with_out, lambda named: self._fully(calls, bound, named))
        return calls

    def _fully(self, calls: Calls, base: BoundKernel | None, named: dict[str, Any]) -> Any:
        """Take the arguments *named*, run, and return the results."""
        constants = self._options.constants
        frame = Frame(self._face, constants) if base is None else base.frame(named)
        for name, arg in named.items():
            frame.take(name, arg, verify=self._verifies)
        arrays, code, made = self._run(frame)
        calls.consider(frame, named, made, code, verify=self._verifies)
        return collect(frame, arrays, verify=bool(arrays) and code.is_measured)

    @property
    def _verifies(self) -> bool:
        """Whether a call checks index arrays."""
        return self._options.check == "full"

    def _run(self, frame: Frame) -> tuple[dict[str, Array], Compiled, tuple[BufferPlan, ...]]:
        """Run; return what was assembled, the code that ran, and the outputs that were made."""
        frame.settle()
        frame.require()
        if self._verifies:
            frame.check_arrays()
        if frame.given:
            refuse_overlap(frame)
        made = allocate(frame)
        frame.settle()
        code = self._compiled.variant(frame.values)
        with self._threads():
            return host.run(code.host, code.funcs, code, frame.values), code, made

    def _threads(self) -> AbstractContextManager[Any]:
        if self._options.threads is None:
            return nullcontext()
        from spcomp.runtime.pool import num_threads

        limited: AbstractContextManager[Any] = num_threads(self._options.threads)
        return limited

    def _with_out(self, out: Any, named: Mapping[str, Any]) -> dict[str, Any]:
        return with_outputs(self._face, self.name, out, named)


class BoundKernel(Timed):
    """A Kernel with some arguments fixed and checked; call it with the others by name."""

    def __init__(
        self, kernel: Kernel, frame: Frame, bound: tuple[str, ...], turned: Turned | None
    ) -> None:
        self.kernel, self._frame, self.bound, self.turned = kernel, frame, bound, turned
        self._calls = kernel._new_calls(self)  # noqa: SLF001
        self._threads = kernel._options.threads  # noqa: SLF001
        arrays = {k: v for k, v in frame.values.items() if isinstance(v, np.ndarray)}
        self._sizes = {name: (array, array.shape) for name, array in arrays.items()}

    def __call__(self, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the Kernel does."""
        if self.turned is not None:
            return self.turned(out, named)
        if self._threads is None:
            return self._calls.run(out, named)
        with self.kernel._threads():  # noqa: SLF001
            return self._calls.run(out, named)

    def frame(self, named: Mapping[str, Any]) -> Frame:
        """Return what is known before the arguments *named* are; raises ArgumentError."""
        for name in named:
            if name in self.bound:
                raise ArgumentError(f"argument {name}: is bound already")
        plans = self.kernel._face.by_handle  # noqa: SLF001
        for handle, (array, shape) in self._sizes.items():
            if array.shape != shape:
                name = plans[handle].name if handle in plans else handle
                raise ArgumentError(
                    f"argument {name}: has shape {array.shape}, was bound with {shape}"
                )
        return self._frame.copy()

    def __repr__(self) -> str:
        return f"<{self.kernel.name} with {', '.join(self.bound)} bound>"


def with_outputs(face: Interface, name: str, out: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return *named* with the outputs that *out* gives: one, a tuple in order, or a dict.

    *face* is that of the program *name*. Raises ArgumentError.
    """
    names = [plan.name for plan in face.outputs]
    if isinstance(out, dict):
        given = out
    elif isinstance(out, (tuple, list)):
        if len(out) != len(names):
            raise ArgumentError(
                f"argument out: got {len(out)} outputs, expected {len(names)} ({', '.join(names)})"
            )
        given = {n: o for n, o in zip(names, out, strict=True) if o is not None}
    elif len(names) == 1:
        given = {names[0]: out}
    else:
        raise ArgumentError(
            f"argument out: got one {type(out).__name__}, expected {len(names)} outputs"
            f" ({', '.join(names)})",
            hint="give a dict by name, or a tuple",
        )
    for one in given:
        if one not in names:
            raise ArgumentError(
                f"argument out: {one} is no output of {name}",
                hint=f"its outputs are {', '.join(names) or 'none'}",
            )
        if one in named:
            raise ArgumentError(f"argument {one}: given twice, by name and in out")
    return {**named, **given}


def _frozen(arg: Any) -> Any:
    """Return *arg* with private, read-only index arrays; values and dense arrays are shared."""
    sparse = getattr(arg, "format", None) in ("csr", "bsr") and hasattr(arg, "indptr")
    if sparse and isinstance(arg.data, np.ndarray):  # else it is refused, or put right
        pattern = _private(arg.indices), _private(arg.indptr)
        return put_together(type(arg), arg.shape, arg.data, *pattern)
    return arg


def _private(array: Any) -> Any:
    """Return a read-only copy of an index array, which nobody can change after the check."""
    if isinstance(array, np.ndarray):
        return validate.private(array)
    return array
