"""Around the route: kernels of adjoints of index notation, one for each kind of call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError, nearest_or_all
from spcomp.formats.format import Format
from spcomp.kernels.adjoint.columns import Columns
from spcomp.kernels.gradients import Differentiable, follow, require_gradients
from spcomp.kernels.inspection import Inspection
from spcomp.kernels.notation.bound import kept_arguments
from spcomp.kernels.notation.formats import Formats
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.kernels.notation.runner import keep
from spcomp.kernels.protocol import Bound, InnerCall, Runnable
from spcomp.kernels.results import Results
from spcomp.notation.adjoint.adjoint import Adjoint, Given
from spcomp.notation.adjoint.columns import by_columns
from spcomp.notation.prepare import prepare
from spcomp.notation.semiring import ORDINARY
from spcomp.runtime.cuda.arrays import is_sparse, lies_there
from spcomp.tensors.convert import to_tensor
from spcomp.tensors.device_tensor import DeviceTensor
from spcomp.tensors.tensor import Tensor

if TYPE_CHECKING:
    from spcomp.compiler.interface import Signature
    from spcomp.compiler.options import Options


class AdjointKernel(Runnable):
    """The gradients of a program; made by ``spcomp.compile(spcomp.adjoint(...))``.

    Call it with the operands of the program and the gradients of its results, by name:
    ``kernel(A=csr, B=array, grad_C=array)``. It returns the gradients of ``wrt`` in their order,
    one as it is, several as a named tuple. Left out may be the gradient of a result that has none,
    and an operand whose values the adjoint does not need; it counts as dense. Values of the forward
    program that were saved are given by their names, ``m=...``, and are then not computed again.
    """

    def __init__(self, adjoint: Adjoint, formats: Formats, options: Options) -> None:
        self.adjoint, self.options = adjoint, options
        self._formats = dict(formats)
        self._columns = Columns()
        self._versions: dict[object, Version] = {}
        self._last: Version | None = None
        known = {*self.arguments, *adjoint.saves, *adjoint.recomputes, *adjoint.names.values()}
        for name in formats:
            if name not in known:
                raise ArgumentError(
                    f"argument formats: {name} is no tensor of {self.name}",
                    hint=nearest_or_all(name, sorted(known)),
                )

    @property
    def formats(self) -> Formats:
        """The formats that were asked for, by tensor."""
        return self._formats

    @property
    def name(self) -> str:
        """The name given to ``compile``, else that of the program with ``grad_`` before it."""
        return self.options.name or f"grad_{self.adjoint.forward.statements[-1].name}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments that a call may need, without saved values."""
        return self.adjoint.arguments

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """Return the gradients; raises ArgumentError."""
        if args:
            raise ArgumentError(
                f"{self.name}: got arguments by position",
                hint=f"give them by name: {', '.join(self.arguments)}",
            )
        if require_gradients(named.values()):
            return follow(self.differentiable, out, named, lambda arrays: self.run(None, arrays))
        return self.run(out, named)

    def run(self, out: Any, named: Mapping[str, Any]) -> Any:
        """Return the gradients for the arguments *named*; raises ArgumentError.

        *named* may have ``sizes``, the lengths of values at index vectors that are computed again.
        """
        call = self.inner_call(named)
        return call.deliver(call.kernel(out=out, **call.arguments))

    @cached_property
    def differentiable(self) -> Differentiable:
        """The gradients as a program whose gradients can be followed, in turn."""
        adjoint = self.adjoint
        results = tuple(adjoint.names[name] for name in adjoint.wrt)
        return Differentiable(self.name, results, self._formats, self.options, adjoint.again)

    def bind(self, /, **named: Any) -> Bound:
        """Return a callable that takes the rest of the arguments, with these fixed.

        Raises ArgumentError, also for ``calls=`` and ``inspect=``.
        """
        if Inspection.take(named, self.arguments.__contains__) is not None:
            raise ArgumentError(
                f"{self.name}: gradients are not inspected",
                hint="leave out calls= and inspect=, which are for programs themselves",
            )
        self._check_names(named)
        return BoundAdjoint(self, named)

    def specialize(self, /, **named: Any) -> Runnable:
        """Return the kernel that a call with arguments like these runs; compiled if need be."""
        version = self.version(named)
        kernel: Runnable = version.kernel.specialize(**version.arguments(named, self._columns))
        return kernel

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of the program of gradients that a call with *named* comes down to."""
        named = dict(named)
        sizes = dict(named.pop("sizes", None) or {})
        version = self.version(named)
        arguments = version.arguments(named, self._columns)
        more = version.lengths(self.adjoint, named, sizes)
        return InnerCall(version.kernel, {**arguments, **more}, version.narrow)

    def explain(self, /, **named: Any) -> str:
        """Return the gradients, what is saved and recomputed; for arguments, also their kernel."""
        if not named:
            return self.adjoint.explain()
        version = self.version(named)
        text = version.kernel.explain(**version.arguments(named, self._columns))
        notes = [f"{new} is {old}, stored by its columns" for new, old in version.columns.items()]
        return "\n".join((*notes, text))

    @property
    def signature(self) -> Signature:
        """The parameters of the one program that ran last; raises ArgumentError for several."""
        return self.last.signature

    def kernels(self) -> tuple[Runnable, ...]:
        """Return the kernels that ran last, in order. Raises ArgumentError if none has."""
        return self.last.kernels()

    @property
    def last(self) -> NotationKernel:
        """The kernel of the call before; raises ArgumentError if there was none."""
        if self._last is None:
            raise ArgumentError(
                f"{self.name}: formats and dtypes are not known yet", hint="call it first"
            )
        return self._last.kernel

    def __repr__(self) -> str:
        return f"<AdjointKernel {self.name}: {str(self.adjoint)!r}>"

    # -- versions -----------------------------------------------------------------------------

    def _check_names(self, named: Mapping[str, Any]) -> None:
        known = {*self.arguments, *self.adjoint.saves}
        for name in named:
            if name not in known:
                hint = f"its arguments are {', '.join(self.arguments)}"
                result = name.removeprefix("grad_")
                if result != name and result in prepare(self.adjoint.forward).results:
                    hint = f"{result} does not depend on {', '.join(self.adjoint.wrt)}; {hint}"
                raise ArgumentError(f"unexpected argument {name} of {self.name}", hint=hint)

    def version(self, named: Mapping[str, Any], bound: Collection[str] = ()) -> Version:
        """Return the version for arguments like *named*; raises ArgumentError.

        Those *bound* are not turned here: a bound kernel does that, if it pays.
        """
        key = frozenset([(name, name in bound, _kind(value)) for name, value in named.items()])
        version = self._versions.get(key)
        if version is None:
            self._check_names(named)
            version = self._planned(named, {*bound, *self._formats})
            version = keep(self._versions, key, version)
        self._last = version
        return version

    def _planned(self, named: Mapping[str, Any], fixed: Collection[str]) -> Version:
        """Return the version for arguments like *named*; those *fixed* stay as they are stored."""
        adjoint = self.adjoint
        grads = frozenset(name for name in adjoint.results if adjoint.names[name] in named)
        if not grads:
            missing = " or ".join(adjoint.names[name] for name in adjoint.results)
            raise ArgumentError(f"missing argument {missing} of {self.name}")
        absent = [name for name in self.arguments if name not in named]
        dense = {name for name, value in named.items() if _is_dense(value)}
        types = self._types(named)
        halves = tuple(types.get(name) == "float16" for name in adjoint.wrt)
        mixed = len({*types.values()}) > 1 and not any(halves)
        given = Given(
            grads,
            frozenset({*dense, *absent} - self._formats.keys()),
            frozenset(named.keys() & {*adjoint.saves}),
            tuple((n, types[n]) for n in adjoint.wrt if n in types) if mixed else (),
            "float16" in types.values(),
        )
        program = adjoint.of(given)
        outer = {
            name: _outer(x) for name, x in named.items() if Columns.takes(x) and name not in fixed
        }
        program, columns = by_columns(program, outer, adjoint.dense_names(given))
        used = {*prepare(program).arguments, *prepare(program).targets}
        ranks = prepare(adjoint.forward).ranks
        wide = {
            adjoint.names[name]: "dense"
            for name in adjoint.wrt
            if name in given.dense and ranks[name]
        }
        formats = {name: text for name, text in {**wide, **self._formats}.items() if name in used}
        kernel = NotationKernel(program, formats, ORDINARY, self.options)
        return Version(kernel, columns, halves)

    def _types(self, named: Mapping[str, Any]) -> dict[str, str]:
        """Return the types of the arrays of floats; raises ArgumentError."""
        found = {name: kind for name, value in named.items() if (kind := _float_type(value))}
        for name in self.adjoint.wrt:
            if found.get(name) == "whole":
                raise ArgumentError(
                    f"argument {name}: has whole numbers, and gradients have none",
                    hint="convert it to floats, or leave it out of wrt",
                )
        return {name: kind for name, kind in found.items() if kind != "whole"}


class Version:
    """What calls with arguments of one kind run.

    *columns*: operands that are read by columns, by name. *halves*: whether each result becomes
    float16, as its operand is, in place of the float32 that the kernel computes.
    """

    def __init__(
        self, kernel: NotationKernel, columns: Mapping[str, str], halves: tuple[bool, ...]
    ) -> None:
        self.kernel, self.columns, self.halves = kernel, columns, halves

    def narrow(self, results: Any) -> Any:
        """Return the *results* of the kernel in the types of the operands."""
        if not any(self.halves):
            return results
        if not isinstance(results, Results):
            return _half(results)
        pairs = zip(results, self.halves, strict=True)
        return Results.of(results._fields, tuple(_half(x) if half else x for x, half in pairs))

    def lengths(
        self, adjoint: Adjoint, named: Mapping[str, Any], sizes: Mapping[str, int]
    ) -> dict[str, dict[str, int]]:
        """Return ``sizes`` for the kernel: of gradients at index vectors, those of operands."""
        at_vectors = self.kernel.at_vectors
        found = {name: size for name, size in sizes.items() if name in at_vectors}
        for name in adjoint.wrt:
            shape, dim = getattr(named.get(name), "shape", ()), at_vectors.get(adjoint.names[name])
            if dim is not None and dim < len(shape):
                found[adjoint.names[name]] = int(shape[dim])
        return {"sizes": found} if found else {}

    def arguments(self, named: Mapping[str, Any], cache: Columns) -> dict[str, Any]:
        """Return those of the arguments *named* that the kernel takes."""
        arguments = {n: named[n] for n in self.kernel.arguments if n in named}
        for new, old in self.columns.items():
            arguments[new] = cache.of(old, named[old])
        return arguments


class BoundAdjoint(Bound):
    """An AdjointKernel with some arguments fixed; call it with the others by name.

    Index arrays are copied when it is made, so no call sees later changes of them.
    """

    def __init__(self, kernel: AdjointKernel, arguments: Mapping[str, Any]) -> None:
        super().__init__(kernel, kept_arguments(kernel.adjoint.forward, arguments))
        self._adjoint = kernel
        self._columns = Columns()
        self._bound: dict[Version, Any] = {}

    def __call__(self, /, *, out: Any = None, **named: Any) -> Any:
        """Return the gradients; raises ArgumentError."""
        sizes = dict(named.pop("sizes", None) or {})
        everything = self._with_bound(named)
        version = self._adjoint.version(everything, self.arguments)
        arguments = version.arguments(everything, self._columns)
        fixed = {n: x for n, x in arguments.items() if n in self.arguments}
        kernel = self._bound.get(version)
        if kernel is None:
            kernel = keep(self._bound, version, version.kernel.bind(**fixed))
        rest = {name: value for name, value in arguments.items() if name not in fixed}
        rest |= version.lengths(self._adjoint.adjoint, everything, sizes)
        return version.narrow(kernel(out=out, **rest))


def _is_dense(value: Any) -> bool:
    """Whether the argument *value* stores every element."""
    if isinstance(value, Tensor):
        return all(level is None for level in value.levels)
    layout = getattr(value, "layout", None)
    if layout is not None and type(value).__module__.partition(".")[0] == "torch":
        return str(layout) == "torch.strided"
    if lies_there(value):
        return not is_sparse(value) and not isinstance(value, DeviceTensor)
    return isinstance(value, (np.ndarray, np.generic, int, float))


def _half(result: Any) -> Any:
    """Return *result* as float16; scipy has no matrices of it."""
    if type(result).__module__.partition(".")[0] == "torch":
        return result.half()
    if isinstance(result, (np.ndarray, np.generic)):
        return result.astype(np.float16)
    tensor = result if isinstance(result, Tensor) else to_tensor(result, Format(result.format))
    return tensor.with_values(tensor.values.astype(np.float16))


def _outer(value: Any) -> int:
    """Return the dimension that has the rows of the matrix *value*."""
    if isinstance(value, Tensor):
        return value.order[0]
    return int(getattr(value, "format", "csr") == "csc")


def _kind(value: Any) -> object:
    dtype = getattr(value, "dtype", None)
    layout = getattr(value, "format", None) or getattr(value, "layout", None)
    return type(value), str(dtype), str(layout), len(getattr(value, "shape", ()))


def _float_type(value: Any) -> str:
    """Return the type of the floats in *value*; "whole" for integers and bools, or ""."""
    text = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if isinstance(value, (int, float)) or not text or text == "bfloat16":
        return ""
    try:
        return text if dtype_of(text).is_float else "whole"
    except ValueError:
        return ""  # refused by the kernel, which names it
