"""Around the route: programs over decomposed formats, and Kernels that convert what they take."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.compiler.convert import convert
from spcomp.compiler.evaluator import Timed
from spcomp.compiler.formats_beside import Beside, BoundBeside
from spcomp.compiler.formats_convert import refuse_repeated
from spcomp.compiler.formats_parts import Parts as Parts
from spcomp.compiler.formats_parts import sizes_of, stored
from spcomp.compiler.signature import Interface, interface
from spcomp.compiler.tensor import Tensor
from spcomp.errors import ArgumentError, FormatError
from spcomp.formats.hyb import composable
from spcomp.formats.rules import ComposableFormat, Composed, FormatRewriteRule, Kept
from spcomp.formats.sliced import SlicedDiagonal
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.program import CoordFunc
from spcomp.locks import cached_property
from spcomp.passes.decompose.decompose_formats import decompose as decompose_func
from spcomp.passes.decompose.decompose_formats import without_unused
from spcomp.passes.decompose.decompose_parts import Part

if TYPE_CHECKING:
    from spcomp.compiler.formats_choose import Undecided
    from spcomp.compiler.kernel import BoundKernel, Kernel

Bound: TypeAlias = "BoundFormats | BoundBeside | BoundKernel"


@dataclass(frozen=True, slots=True, eq=False)
class Decomposed:
    """A program over the parts of new formats: *func*, made of *source*; ``compile`` takes it.

    *formats* and *parts* are by the names of the buffers that they replace.
    """

    source: CoordFunc
    func: CoordFunc
    formats: Mapping[str, ComposableFormat]
    parts: Mapping[str, tuple[Part, ...]]

    def compile(self, **options: Any) -> FormatKernel:
        """Return the Kernel that converts its arguments; takes the options of ``compile``."""
        from spcomp.compiler.compile import compile as compile_program

        kernel: FormatKernel = compile_program(self, **options)
        return kernel

    @property
    def is_padded(self) -> bool:
        """Whether some part may hold padding, which the program leaves out."""
        return any(part.rule.padded for parts in self.parts.values() for part in parts)

    def unpadded(self) -> Decomposed:
        """Return the program for matrices of which no part holds padding: nothing is left out."""
        return settled(self.source, self.formats, padded=False)

    def script(self) -> str:
        """Return the program over the parts as a Python file."""
        return self.func.script()

    def show(self) -> None:
        """Write the program over the parts to stdout."""
        self.func.show()

    def __repr__(self) -> str:
        layouts = ", ".join(f"{name} in {how}" for name, how in self.formats.items())
        return f"<Decomposed {self.source.name} with {layouts}>"

    def __str__(self) -> str:
        return self.script()

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.source, dict(self.formats))


def decompose(
    func: CoordFunc, **formats: ComposableFormat | Sequence[FormatRewriteRule] | str
) -> Decomposed | Undecided:
    """Return *func* with the buffers named in *formats* stored in the formats given.

    A format may be ``"hyb"``, ``"hyb(4)"``, or a list of rules. Every sp_iter over such a buffer
    becomes one per part of its format; its statements must be steps of reductions, or write each
    element once. Compile the result: its Kernel is called as that of *func*, and converts the
    matrices. Where a format is chosen by the matrix (``hyb()``), the result is Undecided until one
    is known.

    Raises:
        ArgumentError: for what is no program in coordinate space, and no format.
        FormatError: for a buffer that has no place in the format, or a program that uses it in a
            way that parts cannot serve.
    """
    if not isinstance(func, CoordFunc):
        raise ArgumentError(
            f"argument func: got {type(func).__name__}, expected a program in coordinate space",
            hint="give a function decorated with @T.prim_func that has sp_iter",
        )
    layouts = {name: _format(name, given) for name, given in formats.items()}
    if any(layout.is_open for layout in layouts.values()):
        from spcomp.compiler.formats_choose import Undecided

        trial = {name: layout.filled() for name, layout in layouts.items()}
        settled(func, trial)  # what does not fit is refused now
        return Undecided(func, layouts)
    return settled(func, layouts)


def settled(
    func: CoordFunc, formats: Mapping[str, ComposableFormat], *, padded: bool = True
) -> Decomposed:
    """Return *func* over the parts of *formats*, none of which is open.

    *padded*: parts may hold padding where their rules say so. Raises FormatError.
    """
    made = func
    parts: dict[str, tuple[Part, ...]] = {}
    for name, layout in formats.items():
        if isinstance(layout, Kept):
            parts[name] = ()
            continue
        rules = layout.rules(_buffer(func, name))
        if not padded:
            rules = tuple(replace(rule, padded=False) for rule in rules)
        done = decompose_func(made, rules)
        others = [b.name for b in done.old.beside if b.data is not None]
        assembled = next((axis.name for axis in func.axes if axis.is_assembled), None)
        if others and assembled is not None:
            raise FormatError(
                f"{others[0]} lies along {name}, and {assembled} is assembled in the same program",
                hint="split the program in two",
            )
        if others and isinstance(layout, SlicedDiagonal):
            raise FormatError(
                f"{others[0]} lies along {name}, and {layout} has no place for other buffers",
                hint="declare it along axes of its own, or choose another format",
            )
        made = without_unused(done.func, made, done.old.buffers.keys())
        parts[name] = done.parts
    return Decomposed(func, made, dict(formats), parts)


def _format(name: str, given: Any) -> ComposableFormat:
    if (found := composable(given)) is not None:
        return found
    rules = tuple(given) if isinstance(given, (list, tuple)) else ()
    if rules and all(isinstance(rule, FormatRewriteRule) for rule in rules):
        return Composed(rules)
    raise ArgumentError(
        f"argument {name}: got {given!r}, expected a format",
        hint='formats are "hyb", those in spcomp.formats, such as spcomp.formats.bsr(4), and lists'
        " of rules",
    )


def _again(func: CoordFunc, formats: dict[str, ComposableFormat]) -> Decomposed:
    return settled(func, formats)


def _buffer(func: CoordFunc, name: str) -> SparseBuffer:
    sparse = {b.name: b for b in func.buffers if isinstance(b, SparseBuffer)}
    if name not in sparse:
        raise FormatError(
            f"{func.name} has no sparse buffer {name!r}", hint=f"it has {', '.join(sparse)}"
        )
    return sparse[name]


class FormatKernel(Timed):
    """A Kernel of which some arguments are stored in formats; made by ``spcomp.compile``.

    Called by name as the Kernel of the program before the decomposition. A matrix is converted at
    every call, unless it is a Parts, or cannot change: all its arrays are read-only. Then what
    was made of it is kept for the next call. :meth:`bind` converts once.
    """

    def __init__(self, program: Decomposed, kernel: Kernel) -> None:
        self.program, self.kernel = program, kernel
        self._source: Interface = interface(program.source)
        self._beside = Beside(program, self._source)
        self._keeps = all(isinstance(layout, Kept) for layout in program.formats.values())
        self._last: tuple[list[weakref.ref[Any]], Bound] | None = None

    def __call__(self, *args: Any, out: Any = None, **named: Any) -> Any:
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

    def bind(self, **named: Any) -> Bound:
        """Return a callable for the rest of the arguments; matrices are converted, and copied."""
        arguments: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        matrices: dict[str, Parts] = {}
        for name in self.program.formats:
            if name not in named:
                hint = "a matrix that is stored in a format is bound, or given at every call"
                raise ArgumentError(f"missing argument {name} of {self.name}", hint=hint)
            matrices[name] = converted = self.convert(**{name: named.pop(name)})
            if isinstance(converted.format, Kept):
                arguments[name] = _as_is(converted)
            for part in self.program.parts[name]:
                at = part.rule.name
                known = {**converted.parts[at], **converted.sizes[at]}
                arguments |= {part.params[key].name: value for key, value in _named(part, known)}
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
            return BoundBeside(self._beside, kernel.bind(**used, **sizes), matrices, named)
        bound = kernel.bind(**arguments, **_agree(sizes, named))
        return BoundFormats(bound, sizes, tuple(named))

    @cached_property
    def _for_full(self) -> Kernel:
        """The Kernel for matrices of which no part holds padding, compiled when it is needed."""
        options = self.kernel._options  # noqa: SLF001
        if not self.program.is_padded or options.trace is not None:
            return self.kernel
        from spcomp.compiler.compile import kernel_of

        return kernel_of(self.program.unpadded().func, options)

    def convert(self, **matrix: Any) -> Parts:
        """Return one argument, ``A=csr``, converted; it can be given in its place.

        It takes what the Kernel of the program before the decomposition takes for it: a csr or
        coo array or matrix, a Tensor; and a Parts. Raises ArgumentError.
        """
        ((name, given),) = matrix.items()
        if name not in self.program.formats:
            listed = ", ".join(self.program.formats)
            raise ArgumentError(f"argument {name}: is not in a format", hint=f"these are: {listed}")
        layout, plan = self.program.formats[name], self._source.by_name[name]
        if isinstance(given, Parts):
            if given.format == layout and given.types == (plan.dtype, plan.axes[-1].idtype):
                return given.with_order() if self._beside.companions else given
            given = given.whole()
        verify = self.kernel._options.check != "off"  # noqa: SLF001
        storage = convert(given, plan, verify=verify)
        refuse_repeated(name, given, storage)
        rules = [part.rule for part in self.program.parts[name]]
        buffer = _buffer(self.program.source, name)
        noted = bool(self._beside.companions)
        return stored(layout, rules, buffer, plan, storage, noted=noted)

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the program's."""
        return self.kernel.name

    def __getattr__(self, name: str) -> Any:
        """Everything else is the Kernel's over the parts: trace, timings, stage, source."""
        if name.startswith("_") or name == "kernel":
            raise AttributeError(name)
        return getattr(self.kernel, name)

    def __repr__(self) -> str:
        layouts = ", ".join(f"{name} in {how}" for name, how in self.program.formats.items())
        return f"<Kernel {self.name} with {layouts}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return FormatKernel, (self.program, self.kernel)

    def _bound(self, formatted: dict[str, Any]) -> Bound:
        """Return the arguments *formatted* bound; the last that cannot change are kept."""
        owners = [fixed(formatted.get(name)) for name in self.program.formats]
        if not all(owners):
            return self.bind(**formatted)
        own = [x for fixed in owners for x in fixed]
        last = self._last
        if last is not None and all(a() is b for a, b in zip(last[0], own, strict=True)):
            return last[1]
        bound = self.bind(**formatted)
        self._last = [weakref.ref(x) for x in own], bound
        return bound


class BoundFormats(Timed):
    """A FormatKernel with its matrices converted; call it with the other arguments by name."""

    def __init__(self, bound: BoundKernel, sizes: dict[str, int], names: tuple[str, ...]) -> None:
        self.bound, self._sizes, self._names = bound, sizes, names

    def __call__(self, *, out: Any = None, **named: Any) -> Any:
        """Run the program on the bound arguments and *named*; returns as the Kernel does."""
        if not self._sizes.keys().isdisjoint(named):
            named = _agree(self._sizes, named, add=False)
        return self.bound(out=out, **named)

    def __repr__(self) -> str:
        return f"<{self.bound.kernel.name} with matrices in formats bound>"


def _as_is(given: Any) -> Any:
    """Return *given*; if it is a Parts in which the matrix is kept, as a Tensor."""
    if not isinstance(given, Parts) or not isinstance(given.format, Kept):
        return given
    return given.kept


def _named(part: Part, known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is *known* of *part* by the names of the parameters of its rule."""
    (buffer,) = part.rule.new_format_desc.buffers
    assert buffer.data is not None
    for key, value in known.items():
        yield (buffer.data.name if key == "values" else key), value


def _agree(sizes: dict[str, int], named: dict[str, Any], *, add: bool = True) -> dict[str, Any]:
    """Return *named* with *sizes*, or without; raises ArgumentError where they differ."""
    for name in sizes.keys() & named.keys():
        if named[name] != sizes[name]:
            raise ArgumentError(
                f"argument {name}: got {named[name]}, expected {sizes[name]} as the matrix says"
            )
    if add:
        return {**named, **sizes}
    return {name: arg for name, arg in named.items() if name not in sizes}


def fixed(given: Any) -> tuple[Any, ...]:
    """Return the three objects that *given* is made of; empty if they can change."""
    if isinstance(given, Parts):
        return (given, given, given)
    if isinstance(given, Tensor):
        level = given.levels[-1]
        arrays: tuple[Any, ...] = (getattr(level, "indptr", None), given.values)
        arrays = (*arrays, getattr(level, "indices", None))
    else:
        arrays = tuple(getattr(given, name, None) for name in ("indptr", "data", "indices"))
    return arrays if all(map(_is_frozen, arrays)) else ()


def _is_frozen(array: Any) -> bool:
    """Whether neither *array* nor what it is a view of can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        if array.base is None:
            return True
        array = array.base
    return False
