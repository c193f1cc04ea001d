"""Around the route: kernels of index notation, compiled when they meet arguments of a new kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.compiler.notation_args import (
    Argument,
    describe,
    kind_of,
    reordered,
    rooted,
    turned,
    unrooted,
)
from spcomp.compiler.outputs import Results
from spcomp.compiler.tensor import Tensor
from spcomp.dtypes import float64, int64, promote
from spcomp.errors import ArgumentError, LoweringError, ScriptError, refuse_deep_nests
from spcomp.notation.algebra import Windowed
from spcomp.notation.emit import emit
from spcomp.notation.explain import explain
from spcomp.notation.layout import Layout, named
from spcomp.notation.nodes import Program
from spcomp.notation.objects import Function, as_program
from spcomp.notation.plan import Plan, plan_statement
from spcomp.notation.prepare import Prepared, prepare
from spcomp.notation.semiring import ORDINARY, Semiring, as_semiring

if TYPE_CHECKING:
    from spcomp.compiler.compile import Options
    from spcomp.compiler.kernel import BoundKernel, Kernel

MOST_VERSIONS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """The program for arguments of one kind."""

    plans: tuple[Plan, ...]
    arguments: Mapping[str, Argument]
    kernel: Kernel
    converted: frozenset[str]  # operands that are stored in another order than the result needs


class NotationKernel:
    """A program of index notation; made by ``spcomp.compile("C[i, k] = A[i, j] * B[j, k]")``.

    Call it by name, ``kernel(A=csr, B=array, out=None)``, with numpy arrays, scipy.sparse arrays
    and matrices of any format, ``spcomp.Tensor``, and numbers. Formats and dtypes are those of
    the arguments: the first call with arguments of a new kind compiles. The tensors that are
    assigned and not read later are returned, one as it is, several as a named tuple.
    """

    def __init__(
        self, program: Program, formats: Mapping[str, str], semiring: Semiring, options: Options
    ) -> None:
        self.program, self.semiring = program, semiring
        self._formats, self._options = dict(formats), options
        self._prepared: Prepared = prepare(program)
        unknown = sorted(set(self._formats) - {*self.arguments, *self._prepared.targets})
        if unknown:
            raise ArgumentError(
                f"argument formats: the program has no {unknown[0]}",
                hint=f"it has {', '.join((*self.arguments, *self._prepared.targets))}",
            )
        self._wanted = {
            name: named(layout, self._prepared.ranks[name])
            for name, layout in self._formats.items()
        }
        self._versions: dict[object, Version] = {}
        self._last: Version | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what a call takes."""
        return self._prepared.arguments

    @property
    def name(self) -> str:
        """The name given to ``compile``, else the first result's."""
        return str(self._options.name or self._prepared.targets[0])

    def __call__(self, *args: Any, out: Any = None, **named_args: Any) -> Any:
        """Run the program; see the class for what it takes and returns. Raises ArgumentError."""
        if args:
            raise ArgumentError(
                f"{self.name}: got arguments by position",
                hint=f"give them by name: {', '.join(self.arguments)}",
            )
        return self.run(out, named_args, {}, {})

    def run(
        self,
        out: Any,
        named_args: dict[str, Any],
        bound: Mapping[str, Any],
        kernels: dict[Version, BoundKernel],
    ) -> Any:
        """Run on *named_args* and the arguments *bound*, which *kernels* have taken in."""
        given = self._outputs(out, named_args)
        version = self.version({**bound, **named_args})
        handed = {
            name: argument.adapt(named_args[source])
            for name, argument in version.arguments.items()
            if (source := self._source(name)) in named_args
        }
        outputs = {p.stmt.target.name: p.output for p in version.plans}
        for name, arg in given.items():
            handed[name] = _handed_out(arg, outputs[name].layout)
        if not bound:
            return self._results(version, version.kernel(**handed), given)
        if version not in kernels:
            fixed = {
                name: argument.adapt(bound[source])
                for name, argument in version.arguments.items()
                if (source := self._source(name)) in bound
            }
            kernels[version] = version.kernel.bind(**fixed)
        return self._results(version, kernels[version](**handed), given)

    def bind(self, **named_args: Any) -> BoundNotation:
        """Return a callable that takes the rest of the arguments, with these fixed.

        They are converted and their index arrays are checked once, by the first call with
        arguments of a kind; later changes of index arrays are not seen.
        """
        unknown = [name for name in named_args if name not in self.arguments]
        if unknown:
            raise ArgumentError(f"unexpected argument {unknown[0]} of {self.name}")
        return BoundNotation(self, named_args)

    def specialize(self, **named_args: Any) -> Kernel:
        """Return the Kernel that a call with arguments like these runs; compiled if need be."""
        return self.version(named_args).kernel

    def explain(self, **named_args: Any) -> str:
        """Return what was decided, and why: statements, formats, domains, loops.

        For arguments like *named_args*; without any, for those of the last call.
        """
        version = self.version(named_args) if named_args else self._known()
        operands = {name: a.operand for name, a in version.arguments.items()}
        return explain(version.plans, operands, version.converted, self.semiring)

    def stage(self, name: str) -> str:
        """Return the version that ran last, printed at a stage, as ``Kernel.stage``."""
        return self._known().kernel.stage(name)

    def source(self, kind: str = "llvm") -> str:
        """Return the code of the version that ran last, as ``Kernel.source``."""
        return self._known().kernel.source(kind)

    def __repr__(self) -> str:
        return f"<NotationKernel {str(self.program)!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return NotationKernel, (self.program, self._formats, self.semiring, self._options)

    def _known(self) -> Version:
        if self._last is None:
            raise ArgumentError(
                f"{self.name}: formats and dtypes are not known yet",
                hint="call it first, or give the arguments here",
            )
        return self._last

    # -- versions -----------------------------------------------------------------------------

    def version(self, named_args: Mapping[str, Any]) -> Version:
        """Return what is compiled for arguments of this kind. Raises SpcompError."""
        key = tuple([(name, kind_of(arg)) for name, arg in named_args.items()])
        found = self._versions.get(key)
        if found is None:
            self._check_names(named_args)
            found = self._compile(named_args)
            while len(self._versions) >= MOST_VERSIONS:
                self._versions.pop(next(iter(self._versions)), None)
            self._versions[key] = found
        self._last = found
        return found

    def _check_names(self, named_args: Mapping[str, Any]) -> None:
        for name in named_args:
            if name not in self.arguments:
                raise ArgumentError(
                    f"unexpected argument {name} of {self.name}",
                    hint=f"its arguments are {', '.join(self.arguments)}",
                )
        for name in self.arguments:
            if name not in named_args and name not in self._prepared.accumulated:
                raise ArgumentError(f"missing argument {name} of {self.name}")

    def _source(self, name: str) -> str:
        part = self._prepared.parts.get(name)
        return name if part is None else part.name

    def _compile(self, named_args: Mapping[str, Any]) -> Version:
        with refuse_deep_nests(ScriptError):
            return self._compiled(named_args)

    def _compiled(self, named_args: Mapping[str, Any]) -> Version:
        from spcomp.compiler.compile import kernel_of

        wanted = dict(self._wanted)
        arguments = self._describe(named_args, wanted)
        plans = self._plan(arguments)
        converts = {n: layout for p in plans for n, layout in p.converts.items()}
        if converts:
            for name, layout in converts.items():
                if name not in arguments:
                    raise LoweringError(f"{name} would have to be converted to {layout}")
            arguments = self._describe(named_args, {**wanted, **converts})
            plans = self._plan(arguments)
            again = [name for p in plans for name in p.converts]
            if again:
                raise LoweringError(f"{again[0]} would have to be stored in two orders")
        operands = {name: argument.operand for name, argument in arguments.items()}
        func = emit(_identifier(self.name), plans, operands, self.semiring)
        kernel: Kernel = kernel_of(func, self._options)
        used = {param.name for param in kernel.signature.params}
        kept = {n: a for n, a in arguments.items() if n in used}
        return Version(plans, kept, kernel, frozenset(converts))

    def _describe(
        self, named_args: Mapping[str, Any], wanted: Mapping[str, Layout]
    ) -> dict[str, Argument]:
        found: dict[str, Argument] = {}
        for name, rank in self._prepared.operands.items():
            part = self._prepared.parts.get(name, Windowed(name, ()))
            if part.name not in named_args:
                continue
            layout = wanted.get(name, wanted.get(part.name))
            if layout is not None and len(layout.order) != rank:
                layout = None
            arg = named_args[part.name]
            found[name] = describe(part.name, arg, rank, part.windows, layout)
        return _settled(found)

    def _plan(self, arguments: Mapping[str, Argument]) -> tuple[Plan, ...]:
        layouts = {name: argument.operand.layout for name, argument in arguments.items()}
        plans: list[Plan] = []
        for stmt in self._prepared.program.statements:
            target = stmt.target.name
            wanted = self._wanted.get(target)
            if stmt.accumulates and target in layouts:
                wanted = layouts[target]
            plan = plan_statement(stmt, layouts, wanted, self.semiring)
            layouts[target] = plan.output.layout
            plans.append(plan)
        return tuple(plans)

    # -- results ------------------------------------------------------------------------------

    def _outputs(self, out: Any, named_args: dict[str, Any]) -> dict[str, Any]:
        names = self._prepared.results
        if out is None:
            given: dict[str, Any] = {}
        elif isinstance(out, dict):
            given = out
        elif isinstance(out, (tuple, list)) and len(out) == len(names):
            given = {n: o for n, o in zip(names, out, strict=True) if o is not None}
        elif len(names) == 1:
            given = {names[0]: out}
        else:
            raise ArgumentError(
                f"argument out: expected {len(names)} outputs ({', '.join(names)})",
                hint="give a dict by name, or a tuple",
            )
        for name in given:
            if name not in self._prepared.targets:
                raise ArgumentError(f"argument out: {name} is no output of {self.name}")
        for name in self._prepared.accumulated:
            if name in given:
                named_args[name] = given[name]
            elif name not in named_args:
                raise ArgumentError(
                    f"missing argument {name} of {self.name}, which adds to it",
                    hint=f"give it by name, {name}=..., or as out",
                )
            given = {**given, name: named_args[name]}
        return given

    def _results(self, version: Version, made: Any, given: Mapping[str, Any]) -> Any:
        targets = self._prepared.targets
        every = dict(zip(targets, made if len(targets) > 1 else (made,), strict=True))
        if len(targets) > 1:
            every = {name: getattr(made, name) for name in targets}
        outputs = {p.stmt.target.name: p.output.layout for p in version.plans}
        names = self._prepared.results
        values = tuple(
            given[n] if n in given else _handed_back(every[n], outputs[n]) for n in names
        )
        return values[0] if len(values) == 1 else Results.of(names, values)


class BoundNotation:
    """A NotationKernel with some arguments fixed; call it with the others by name."""

    def __init__(self, kernel: NotationKernel, bound: Mapping[str, Any]) -> None:
        self.kernel, self.bound = kernel, dict(bound)
        self._kernels: dict[Version, BoundKernel] = {}

    def __call__(self, *, out: Any = None, **named_args: Any) -> Any:
        """Run the program on the bound arguments and *named_args*; returns as the kernel does."""
        for name in named_args:
            if name in self.bound:
                raise ArgumentError(f"argument {name}: is bound already")
        return self.kernel.run(out, named_args, self.bound, self._kernels)

    def __repr__(self) -> str:
        return f"<{self.kernel!r} with {', '.join(self.bound)} bound>"


def compile_notation(
    program: Any,
    options: Options,
    *,
    formats: Mapping[str, str] | None = None,
    semiring: Semiring | str = ORDINARY,
    functions: Mapping[str, Function] | None = None,
) -> NotationKernel:
    """Return the kernel of a string of index notation, of assigned symbols, or of a Program."""
    with refuse_deep_nests(ScriptError):
        notation = as_program(program, dict(functions or {}))
        return NotationKernel(notation, formats or {}, as_semiring(semiring), options)


def einsum(
    subscripts: str,
    *operands: Any,
    out: Any = None,
    format: str | None = None,  # noqa: A002
    semiring: Semiring | str = ORDINARY,
) -> Any:
    """Return the sum of products that *subscripts* say, as ``numpy.einsum`` does.

    Args:
        subscripts: ``"ij,jk->ik"``; without ``->``, the result has the letters that occur once,
            in alphabetical order.
        *operands: Dense or sparse arrays of as many dimensions.
        out: An array for the result.
        format: The format of the result, such as ``"csr"``; see the notation's rule for what it
            is otherwise.
        semiring: What is meant by sum and product.

    Raises:
        SpcompError: as a NotationKernel does, and for subscripts that are none.
    """
    terms = subscripts.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(operands):
        raise ArgumentError(
            f"argument subscripts: {len(terms)} operands are named, {len(operands)} given"
        )
    formats = () if format is None else (("out", format),)
    kernel = _einsum(subscripts.replace(" ", ""), formats, as_semiring(semiring))
    return kernel(**{f"operand{at}": x for at, x in enumerate(operands)}, out=out)


@lru_cache(maxsize=256)
def _einsum(
    subscripts: str, formats: tuple[tuple[str, str], ...], semiring: Semiring
) -> NotationKernel:
    from spcomp.compiler.compile import compile as compile_program

    left, arrow, right = subscripts.partition("->")
    terms = left.split(",")
    letters = left.replace(",", "")
    if not re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)*", left) or not re.fullmatch("[A-Za-z]*", right):
        raise ArgumentError(
            f"argument subscripts: got {subscripts!r}", hint='write letters, as "ij,jk->ik"'
        )
    target = right if arrow else "".join(sorted(c for c in letters if letters.count(c) == 1))
    if len(set(target)) < len(target) or not set(target) <= set(letters):
        raise ArgumentError(f"argument subscripts: {target!r} cannot be the result of {left!r}")
    shown = " * ".join(_bracketed(f"operand{at}", term) for at, term in enumerate(terms))
    text = f"{_bracketed('out', target)} = {shown}"
    return compile_program(text, formats=dict(formats), semiring=semiring)


def _bracketed(name: str, letters: str) -> str:
    return f"{name}[{', '.join(letters)}]" if letters else name


def _settled(arguments: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return *arguments* where Python numbers have the dtype of what they meet."""
    strong = [a.operand.dtype for a in arguments.values() if not a.operand.weak]
    common = reduce(promote, strong) if strong else None
    found = dict(arguments)
    for name, argument in arguments.items():
        operand = argument.operand
        if not operand.weak or operand.dtype.kind == "bool":
            continue
        own = operand.dtype
        if common is not None and (common.is_float or not own.is_float) and common.kind != "bool":
            own = common
        else:
            own = float64 if own.is_float else int64
        found[name] = replace(argument, operand=replace(operand, dtype=own))
    return found


def _identifier(name: str) -> str:
    return f"{name}_kernel"


def _handed_out(arg: Any, layout: Layout) -> Any:
    """Return an output that was given as the kernel knows it; the kernel checks it."""
    if not layout.order and isinstance(arg, np.ndarray) and arg.ndim == 0:
        return arg.reshape(1)
    if getattr(arg, "format", None) == "csc" and layout.order == (1, 0):
        return turned(arg)
    return rooted(arg) if isinstance(arg, Tensor) and not layout.is_rooted else arg


def _handed_back(made: Any, layout: Layout) -> Any:
    """Return a result of the kernel as the user knows it."""
    if not layout.order:
        return made[0]
    if getattr(made, "format", None) == "bsr":
        made = Tensor.from_scipy(made)
    if isinstance(made, Tensor):
        plain = made if layout.is_rooted else unrooted(made)
        in_order = layout.order == tuple(range(len(layout.order)))
        return plain if in_order else reordered(plain, layout)
    if not layout.is_dense and layout.order == (1, 0):
        return made.T
    return made
