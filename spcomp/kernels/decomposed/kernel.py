"""Around the route: programs over decomposed formats, and Kernels that convert what they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spcomp.compiler.interface import Interface, interface
from spcomp.compiler.options import Options
from spcomp.errors import ArgumentError, FormatError
from spcomp.formats.rules import ComposableFormat, Kept
from spcomp.formats.sliced import SlicedDiagonal
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.program import CoordFunc
from spcomp.kernels.decomposed.beside import Beside, BoundBeside
from spcomp.kernels.decomposed.latest import Latest, identity_of
from spcomp.kernels.inspection import Inspection
from spcomp.kernels.kernel import Kernel
from spcomp.kernels.protocol import Bound, InnerCall, Runnable
from spcomp.locks import cached_property
from spcomp.passes.decompose.decompose_formats import decompose as decompose_func
from spcomp.passes.decompose.decompose_formats import without_unused
from spcomp.passes.decompose.decompose_parts import Part
from spcomp.tensors.arguments import storage_of
from spcomp.tensors.checks import private
from spcomp.tensors.libraries.scipy import is_scipy
from spcomp.tensors.parts.parts import Parts as Parts
from spcomp.tensors.parts.parts import parts_of, sizes_of
from spcomp.tensors.parts.rules import refuse_repeated

if TYPE_CHECKING:
    from spcomp.compiler.interface import Signature
    from spcomp.kernels.calls import Calls
    from spcomp.kernels.kernel import BoundKernel


@dataclass(frozen=True, slots=True, eq=False)
class Decomposed:
    """A program *func* over the parts of new formats, made of *source*; ``compile`` takes it.

    *formats* and *parts* have the names of the buffers that they replace.
    """

    source: CoordFunc
    func: CoordFunc
    formats: Mapping[str, ComposableFormat]
    parts: Mapping[str, tuple[Part, ...]]

    def compile(self, **options: Any) -> FormatKernel:
        """Return the Kernel that converts its arguments; takes the options of ``compile``."""
        return FormatKernel.of(self, Options.of(**options))

    @property
    def is_padded(self) -> bool:
        """Whether some part may hold padding, which the program skips."""
        return any(part.rule.padded for parts in self.parts.values() for part in parts)

    def unpadded(self) -> Decomposed:
        """Return the program for matrices without padding in any part: it skips nothing."""
        return with_parts(self.source, self.formats, padded=False)

    def script(self) -> str:
        """Return the program over the parts as a Python file."""
        return self.func.script()

    def show(self) -> None:
        """Write the program over the parts to stdout."""
        self.func.show()

    @property
    def schedulable(self) -> CoordFunc:
        """What a Schedule takes of it."""
        return self.func

    def __repr__(self) -> str:
        return f"<Decomposed {self.source.name} with {formats_text(self.formats)}>"

    def __str__(self) -> str:
        return self.script()

    def __reduce__(self) -> tuple[Any, ...]:
        return with_parts, (self.source, dict(self.formats))


def formats_text(formats: Mapping[str, ComposableFormat]) -> str:
    """Return how matrices are stored, in a line: ``A in hyb(2)``."""
    return ", ".join(f"{name} in {how}" for name, how in formats.items())


def with_parts(
    func: CoordFunc, formats: Mapping[str, ComposableFormat], *, padded: bool = True
) -> Decomposed:
    """Return *func* over the parts of *formats*, which are all closed.

    *padded*: parts may hold padding where their rules say so. Raises FormatError.
    """
    over_parts = func
    parts: dict[str, tuple[Part, ...]] = {}
    for name, layout in formats.items():
        if isinstance(layout, Kept):
            parts[name] = ()
            continue
        rules = layout.rules(_buffer(func, name))
        if not padded:
            rules = tuple(replace(rule, padded=False) for rule in rules)
        step = decompose_func(over_parts, rules)
        beside = [b.name for b in step.old.beside if b.data is not None]
        assembled = next((axis.name for axis in func.axes if axis.is_assembled), None)
        if beside and assembled is not None:
            raise FormatError(
                f"{beside[0]} lies along {name}, and {assembled} is assembled in the same program",
                hint="split the program in two",
            )
        if beside and isinstance(layout, SlicedDiagonal):
            raise FormatError(
                f"{beside[0]} lies along {name}, and {layout} has no place for other buffers",
                hint="declare it along axes of its own, or choose another format",
            )
        over_parts = without_unused(step.func, over_parts, step.old.buffers.keys())
        parts[name] = step.parts
    return Decomposed(func, over_parts, dict(formats), parts)


def _buffer(func: CoordFunc, name: str) -> SparseBuffer:
    sparse = {b.name: b for b in func.buffers if isinstance(b, SparseBuffer)}
    if name not in sparse:
        raise FormatError(
            f"{func.name} has no sparse buffer {name!r}", hint=f"it has {', '.join(sparse)}"
        )
    return sparse[name]


class FormatKernel(Runnable):
    """A Kernel that stores some arguments in formats; made by ``spcomp.compile``.

    Call it by name, like the Kernel of the program before the decomposition. A matrix is converted
    at every call, unless it is a Parts, or all its arrays are read-only: then its conversion is
    kept for the next call. :meth:`bind` converts once.
    """

    def __init__(self, program: Decomposed, kernel: Kernel) -> None:
        self.program, self.kernel = program, kernel
        self._source: Interface = interface(program.source)
        self._beside = Beside(program.parts, self._source)
        self._keeps = all(isinstance(layout, Kept) for layout in program.formats.values())
        self._latest: Latest[Bound] = Latest()

    @classmethod
    def of(cls, program: Decomposed, options: Options) -> FormatKernel:
        """Return *program* compiled; raises SpcompError."""
        return cls(program, Kernel.of(program.func, options))

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        """Run the program; returns as the Kernel does. Raises ArgumentError."""
        if args:
            raise ArgumentError(
                f"{self.name}: got arguments by position, but formats have other arrays",
                hint="give buffers by name, or call .kernel, which takes the arrays of the parts",
            )
        if self._keeps:
            return self.kernel(out=out, **{name: _as_is(arg) for name, arg in named.items()})
        formatted = {name: named.pop(name) for name in self.program.formats if name in named}
        return self._bound(formatted)(out=out, **named)

    def bind(self, /, **named: Any) -> Bound:
        """Return a callable for the other arguments; matrices are converted, and copied."""
        if (inspection := Inspection.take(named, self.kernel.takes)) is not None:
            inspection.bound(self, named)  # which refuses: formats are decided
        arguments: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        matrices: dict[str, Parts] = {}
        for name in self.program.formats:
            if name not in named:
                hint = "a matrix that is stored in a format is bound, or given at every call"
                raise ArgumentError(f"missing argument {name} of {self.name}", hint=hint)
            matrix = named.pop(name)
            matrices[name] = converted = self.convert(**{name: matrix})
            if isinstance(converted.format, Kept):  # results along it have its type
                arguments[name] = matrix.copy() if is_scipy(matrix) else _as_is(converted)
            for part in self.program.parts[name]:
                rule = part.rule.name
                stored = {**converted.parts[rule], **converted.sizes[rule]}
                arguments |= {part.params[key].name: value for key, value in _named(part, stored)}
            plan = self._source.by_name[name]
            sizes |= sizes_of(name, plan.shape, converted.shape, sizes)
        if self._keeps:
            return self.kernel.bind(**arguments, **named)
        full = all(matrix.full for matrix in matrices.values())
        kernel = self._for_full if full else self.kernel
        scalars = [p.name for p in kernel.signature.params if p.kind == "scalar"]
        sizes = {name: sizes[name] for name in scalars if name in sizes}
        if self._beside.companions:
            used = {name: arg for name, arg in arguments.items() if kernel.takes(name)}
            inner = kernel.bind(**used, **sizes)
            return BoundBeside(self, self._beside, inner, matrices, named)
        bound = kernel.bind(**arguments, **_agree(sizes, named))
        return BoundFormats(self, bound, sizes, {**matrices, **named})

    def specialize(self, /, **named: Any) -> Runnable:
        """Return the Kernel over the parts that a call with arguments like these runs.

        It has the sizes compiled in that the arguments say. Raises ArgumentError.
        """
        matrices = {name: named.pop(name) for name in self.program.formats if name in named}
        return self.bind(**matrices).specialize(**named)

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of the Kernel over the parts that a call with *named* comes down to."""
        if self._keeps:
            return InnerCall(self.kernel, {name: _as_is(arg) for name, arg in named.items()})
        formatted = {name: arg for name, arg in named.items() if name in self.program.formats}
        rest = {name: arg for name, arg in named.items() if name not in formatted}
        return self._bound(formatted).inner_call(rest)

    def explain(self, /, **named: Any) -> str:
        """Return the formats, and the signature and steps of the Kernel over the parts."""
        kernel = self.specialize(**named) if named else self.kernel
        formats = "".join(
            f"{name} is stored as {how}\n" for name, how in self.program.formats.items()
        )
        return formats + kernel.explain()

    @property
    def signature(self) -> Signature:
        """The parameters of the program before the decomposition, by which it is called."""
        return self._source.signature

    def kernels(self) -> tuple[Kernel, ...]:
        """Return the Kernel over the parts."""
        return (self.kernel,)

    @cached_property
    def _for_full(self) -> Kernel:
        """The Kernel for matrices of which no part holds padding, compiled when it is needed."""
        options = self.kernel._options  # noqa: SLF001
        if not self.program.is_padded or options.trace is not None:
            return self.kernel
        return Kernel.of(self.program.unpadded().func, options)

    def convert(self, **matrix: Any) -> Parts:
        """Return one argument, ``A=csr``, converted; a call takes the result in its place.

        The argument is a csr or coo array or matrix, a Tensor, as for the Kernel of the program
        before the decomposition, or a Parts. Raises ArgumentError.
        """
        ((name, arg),) = matrix.items()
        if name not in self.program.formats:
            listed = ", ".join(self.program.formats)
            raise ArgumentError(f"argument {name}: is not in a format", hint=f"these are: {listed}")
        layout, plan = self.program.formats[name], self._source.by_name[name]
        if isinstance(arg, Parts):
            if arg.format == layout and arg.types == (plan.dtype, plan.axes[-1].idtype):
                return arg.with_order() if self._beside.companions else arg
            arg = arg.whole()
        verify = self.kernel._options.check != "off"  # noqa: SLF001
        storage = storage_of(arg, plan, verify=verify)
        refuse_repeated(name, arg, storage)
        rules = [part.rule for part in self.program.parts[name]]
        buffer = _buffer(self.program.source, name)
        noted = bool(self._beside.companions)
        return parts_of(layout, rules, buffer, plan, storage, with_order=noted)

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the program's."""
        return self.kernel.name

    @property
    def only_calls(self) -> Calls | None:
        """The calls of the Kernel over the parts."""
        return self.kernel.only_calls

    def explain_launches(self) -> str:
        """Return what the Kernel over the parts launches on a GPU."""
        return self.kernel.explain_launches()

    def __getattr__(self, name: str) -> Any:
        """Other attributes are those of the Kernel over the parts: target, timings, emitted."""
        if name.startswith("_") or name == "kernel":
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def __repr__(self) -> str:
        return f"<Kernel {self.name} with {formats_text(self.program.formats)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return FormatKernel, (self.program, self.kernel)

    def _bound(self, formatted: dict[str, Any]) -> Bound:
        """Return the kernel with the arguments *formatted* bound."""
        identity = identity_of(self.program.formats, formatted)
        bound = self._latest.find(identity)
        return self._latest.keep(identity, self.bind(**formatted)) if bound is None else bound


class BoundFormats(Bound):
    """A FormatKernel with its matrices converted; call it with the other arguments by name."""

    def __init__(
        self,
        kernel: FormatKernel,
        inner: BoundKernel,
        sizes: dict[str, int],
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__(kernel, arguments)
        self.inner, self._sizes = inner, sizes
        self._straight = inner.only_calls

    def __call__(self, /, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the Kernel does."""
        if self._straight is not None:
            result = self._straight.learned(out, named)
            if result is not NotImplemented:
                return result
        self.refuse_bound(named)
        if not self._sizes.keys().isdisjoint(named):
            named = _agree(self._sizes, named, add=False)
        return self.inner(out=out, **named)

    @property
    def only_calls(self) -> Calls | None:
        """The calls by name, without sizes, if a call is nothing else."""
        return self.inner.only_calls

    def check(self) -> None:
        """Wait for calls on a GPU that nothing waited for; raises ArgumentError if one failed."""
        self.inner.check()

    def kernels(self) -> tuple[Runnable, ...]:
        """Return the Kernel over the parts that calls run."""
        return (self.inner.kernel,)

    def specialize(self, /, **named: Any) -> Runnable:
        """Return the Kernel over the parts that a call with arguments like these runs."""
        self.refuse_bound(named)
        return self.inner.specialize(**_agree(self._sizes, named, add=False))

    def inner_call(self, named: Mapping[str, Any]) -> InnerCall:
        """Return the call of the Kernel over the parts that a call with *named* comes down to."""
        self.refuse_bound(named)
        return InnerCall(self.inner, _agree(self._sizes, dict(named), add=False))


def _as_is(arg: Any) -> Any:
    """Return *arg*; if it is a Parts that keeps the matrix as it is, that matrix."""
    if not isinstance(arg, Parts) or not isinstance(arg.format, Kept):
        return arg
    return arg.kept


def _named(part: Part, stored: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arrays and sizes *stored* of *part* by the names of its rule's parameters."""
    (name,), described = part.rule.buffers_to_rewrite, part.rule.new_format_desc.buffers
    buffer = next(buffer for buffer in described if buffer.name == name)
    assert buffer.data is not None
    for key, value in stored.items():
        if key == "values":
            yield buffer.data.name, value
        else:  # what says where elements lie is checked once, when it is bound
            yield key, private(value)


def _agree(sizes: dict[str, int], named: dict[str, Any], *, add: bool = True) -> dict[str, Any]:
    """Return *named* with *sizes*, or without them; raises ArgumentError where they differ."""
    for name in sizes.keys() & named.keys():
        if named[name] != sizes[name]:
            raise ArgumentError(
                f"argument {name}: got {named[name]}, expected {sizes[name]} as the matrix says"
            )
    if add:
        return {**named, **sizes}
    return {name: arg for name, arg in named.items() if name not in sizes}
