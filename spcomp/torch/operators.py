"""Around torch.compile and torch.export: programs of index notation as operators of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch.utils._python_dispatch import _disable_current_modes

from spcomp.errors import ArgumentError, SpcompError, expect, nearest_or_all
from spcomp.kernels.compile import compile as compile_program
from spcomp.kernels.gradients import Differentiable, is_transformed
from spcomp.kernels.notation.kernel import NotationKernel
from spcomp.notation.nodes import Access, Declared, Program, accesses, walk
from spcomp.notation.prepare import prepare
from spcomp.notation.vectors import Scattered, with_scatters
from spcomp.torch.autograd import follow, several
from spcomp.torch.derivative import Derivative
from spcomp.torch.transforms import Step, StepFunction

_PARTS = ("crow_indices", "col_indices", "values", "columns")  # of a csr matrix
_REGISTERED: dict[str, TransformableOp] = {}
Shape = tuple[Any, ...]  # of ints, which torch.compile may not know yet


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """A program as an operator: its arguments are flat, a csr matrix gives four of them.

    *sparse*: the names of the csr matrices. *sizes*: the lengths of results at index vectors that
    the user gave. *kinds*: for types of arguments, the type of each result, and the csr matrix that
    it has the pattern of, if any.
    """

    kernel: NotationKernel
    sparse: frozenset[str]
    sizes: Mapping[str, int]
    kinds: dict[tuple[Any, ...], list[tuple[torch.dtype, str | None]]] = field(default_factory=dict)

    def is_like(self, other: Operator) -> bool:
        """Whether *other* computes the same of the same arguments."""
        mine, theirs = (
            (_spelled(x.kernel.program), x.kernel.formats, x.sparse, x.sizes) for x in (self, other)
        )
        return mine == theirs

    @property
    def program(self) -> Differentiable:
        """The program as one whose gradients can be followed."""
        return self.kernel.differentiable

    def flat_names(self) -> Iterator[tuple[str, str]]:
        """Yield each flat argument: the operand, and the part of it or nothing."""
        for name in self.kernel.arguments:
            yield from ((name, part) for part in (_PARTS if name in self.sparse else ("",)))

    def schema(self) -> str:
        """Return the arguments as torch writes them."""
        kinds = {"columns": "SymInt"}
        return ", ".join(
            f"{kinds.get(part, 'Tensor')} {name}{'_' if part else ''}{part}"
            for name, part in self.flat_names()
        )

    def named(self, flat: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments by name: tensors, and the parts of csr matrices by their names."""
        found: dict[str, Any] = {}
        for (name, part), arg in zip(self.flat_names(), flat, strict=True):
            if part:
                found.setdefault(name, {})[part] = arg
            else:
                found[name] = arg
        return found

    def call(self, *flat: Any) -> Any:
        """Run the program on *flat* arguments; sparse results are their values."""
        kinds = self.kinds_for(self.named(flat))
        results = self.results(self.tensors(self.named(flat)), self.sizes)
        found = [
            (result.values() if like else result).contiguous()
            for result, (_, like) in zip(results, kinds, strict=True)
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def fake(self, *flat: Any) -> Any:
        """Return results without elements: types and shapes only."""
        named = self.named(flat)
        shapes, kinds = self.shapes(named), self.kinds_for(named)
        first, *others = [arg for arg in flat if isinstance(arg, torch.Tensor)]
        if (away := next((x for x in others if x.device != first.device), None)) is not None:
            message = f"arguments lie on {first.device} and on {away.device}"
            raise ArgumentError(message, hint="move them to the CPU")
        found = [
            first.new_empty(shapes[name] if not like else named[like]["values"].shape, dtype=dtype)
            for name, (dtype, like) in zip(self.program.results, kinds, strict=True)
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def tensors(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments *named* with csr tensors in the place of their parts."""
        return {name: _csr(x) if name in self.sparse else x for name, x in named.items()}

    def results(self, tensors: dict[str, Any], sizes: Mapping[str, int]) -> Sequence[Any]:
        """Return the results of the program in these *sizes*, without gradients."""
        more = {"sizes": sizes} if sizes else {}
        with torch.no_grad():
            found = follow(self.program, tensors, lambda arrays: self.kernel(**arrays, **more))
        return several(found)

    def kinds_for(self, named: Mapping[str, Any]) -> list[tuple[torch.dtype, str | None]]:
        """Return what the results are for arguments like *named*; raises ArgumentError.

        A call with an element along each dimension shows it.
        """
        for name, arg in named.items():
            if arg is None:
                raise ArgumentError(f"argument {name}: got None, expected a tensor")
        types = [x["values"].dtype if n in self.sparse else x.dtype for n, x in named.items()]
        ranks = [x["values"].ndim + 1 if n in self.sparse else x.ndim for n, x in named.items()]
        key = (*types, *ranks)
        if key not in self.kinds:
            with _disable_current_modes():  # real tensors, also where torch traces
                small = zip(named, types, ranks, strict=True)
                self.kinds[key] = self._tried({name: (t, rank) for name, t, rank in small})
        return self.kinds[key]

    def refuse_assembled(self) -> None:
        """Raise ArgumentError if a call with numbers of float32 would assemble a result."""
        vectors, ranks = self._vectors(), prepare(self.kernel.program).ranks
        types = {n: torch.int64 if n in vectors else torch.float32 for n in self.kernel.arguments}
        with _disable_current_modes():
            small = self._small({name: (t, ranks[name]) for name, t in types.items()})
            try:
                results = self.results(small, dict.fromkeys(self.sizes, 1))
            except SpcompError:
                return  # it takes other types
        self._kinds(small, results)

    def _vectors(self) -> set[str]:
        """Return the names of index vectors."""
        return {v.name for access in _everything(self.kernel) for v in access.vectors if v}

    def _tried(
        self, types: Mapping[str, tuple[torch.dtype, int]]
    ) -> list[tuple[torch.dtype, str | None]]:
        small = self._small(types)
        return self._kinds(small, self.results(small, dict.fromkeys(self.sizes, 1)))

    def _small(self, types: Mapping[str, tuple[torch.dtype, int]]) -> dict[str, Any]:
        """Return tensors of these types and ranks, with an element along each dimension."""
        small: dict[str, Any] = {}
        vectors = self._vectors()
        for name, (dtype, rank) in types.items():
            # An index vector has the only coordinate there is.
            small[name] = torch.full((1,) * rank, 0 if name in vectors else 1, dtype=dtype)
            if name in self.sparse:
                at = torch.tensor([0, 1]), torch.tensor([0])
                parts = (*at, torch.ones(1, dtype=dtype), 1)
                small[name] = _csr(dict(zip(_PARTS, parts, strict=True)))
        return small

    def _kinds(
        self, small: Mapping[str, Any], results: Sequence[Any]
    ) -> list[tuple[torch.dtype, str | None]]:
        """Return the types of *results* of a call with *small*, and the matrices they are like."""
        found = []
        for name, result in zip(self.program.results, results, strict=True):
            like = None
            if result.layout != torch.strided:
                is_csr = result.layout == torch.sparse_csr
                place = result.crow_indices().data_ptr() if is_csr else 0
                of = (n for n in self.sparse if small[n].crow_indices().data_ptr() == place)
                like = next(of, None)
                if like is None:
                    raise ArgumentError(
                        f"argument program: the pattern of {name} is that of no operand",
                        hint=f'ask for a dense result, formats={{"{name}": "dense"}}',
                    )
            found.append((result.dtype, like))
        return found

    def shapes(self, named: Mapping[str, Any]) -> dict[str, Shape]:
        """Return the shapes of all tensors of the program for the arguments *named*."""
        shapes: dict[str, Shape] = {}
        for name, arg in named.items():
            if name in self.sparse:
                shapes[name] = arg["crow_indices"].shape[0] - 1, arg["columns"]
            else:
                shapes[name] = tuple(arg.shape)
        rows = _rows(self.kernel)
        for stmt in self.kernel.program.statements:
            extents: dict[Any, Any] = {}
            for access in accesses(stmt.value):
                extents.update(zip(access.subscripts, shapes[access.name], strict=True))
            shapes[stmt.target.name] = tuple(
                extents[s] if isinstance(s, str) else self._length(rows[s.name], shapes)
                for s in stmt.target.subscripts
            )
        return shapes

    def _length(self, scattered: Scattered, shapes: Mapping[str, Shape]) -> Any:
        """Return the length of results at an index vector, as a call of the kernel finds it."""
        given = [self.sizes[name] for name, _ in scattered.places if name in self.sizes]
        like = [shapes[name][dim] for name, dim in (*scattered.known, *scattered.read)]
        return (given + like)[0]

    # -- gradients --------------------------------------------------------------------------------

    def gradients(self, *args: Any) -> list[torch.Tensor]:
        """Return gradients: *args* are the flat arguments, the gradients given, and by what."""
        *flat, grads, wrt = args
        named, kinds = self.named(flat), self.kinds_for(self.named(flat))
        by = tuple(name for at, name in enumerate(named) if at in wrt)
        derivative = Derivative.of(self.program, by)
        adjoint = derivative.kernel.adjoint
        tensors = self.tensors(named)
        for name, grad, (_, like) in zip(self.program.results, grads, kinds, strict=True):
            if name in adjoint.results:
                given = _csr({**named[like], "values": grad}) if like else grad
                tensors[adjoint.names[name]] = given
        with torch.no_grad():
            program, run = derivative.kernel.differentiable, derivative.kernel.run
            more = {"sizes": self.sizes} if self.sizes else {}
            found = follow(program, tensors, lambda arrays: run(None, {**arrays, **more}))
        pairs = zip(by, several(found), strict=True)
        values = [x.values() if n in self.sparse else x for n, x in pairs]
        return [x.to(_leaf(named[n]).dtype).contiguous() for n, x in zip(by, values, strict=True)]

    def fake_gradients(self, *args: Any) -> list[torch.Tensor]:
        """Return gradients without elements."""
        *flat, _, wrt = args
        leaves = [_leaf(arg) for at, arg in enumerate(self.named(flat).values()) if at in wrt]
        return [leaf.new_empty(leaf.shape) for leaf in leaves]

    def backward(self, backward: Any, ctx: Any, grads: Sequence[Any]) -> tuple[Any, ...]:
        """Return the gradients of the flat arguments; *backward* is the operator of gradients."""
        tensors = iter(ctx.saved_tensors)
        flat = [next(tensors) if x is None else x for x in ctx.flat]
        wrt, places = self.wanted(dict(enumerate(ctx.needs_input_grad)))
        given = [torch.zeros(()) if grad is None else grad for grad in grads]  # None: of integers
        found = backward(*flat, given, wrt)
        gradients = dict(zip(places, found, strict=True))
        return tuple(gradients.get(k) for k in range(len(flat)))

    def wanted(self, needed: Mapping[int, bool]) -> tuple[list[int], list[int]]:
        """Return the operands whose gradients are *needed*, and their places among flat arguments.

        They are numbers; *needed* is by place.
        """
        places = [k for k, (_, part) in enumerate(self.flat_names()) if part in ("", "values")]
        wrt = [n for n, where in enumerate(places) if needed.get(where)]
        return wrt, [places[n] for n in wrt]


def op(
    program: Any,
    name: str,
    formats: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Any:
    """Return *program* as an operator of torch called *name*, for torch.compile and torch.export.

    Args:
        program: Index notation, without parts of tensors, that assigns its results.
        name: ``library::name``, or a name in the library ``spcomp``. It is registered once: the
            same program under the same name is the same operator.
        formats: The operands that are ``"csr"``; others are dense. The operator takes a csr matrix
            A as ``A_crow_indices, A_col_indices, A_values, A_columns``, its number of columns;
            arguments come in the order of the program. A result with the pattern of a matrix is
            its values. Results may be asked for as ``"dense"``.
        sizes: The lengths of results at index vectors, by name, where no operand has them.

    Raises:
        ArgumentError: For programs and formats that are no such operator, and names of others.
    """
    expect("name", name, str, "a name", hint='write name="mylib::spmm"')
    if not all(part.isidentifier() for part in name.split("::")) or name.count("::") > 1:
        raise ArgumentError(f"argument name: got {name!r}", hint='write name="mylib::spmm"')
    full = name if "::" in name else f"spcomp::{name}"
    operator = _operator(program, dict(formats or {}), dict(sizes or {}))
    if (known := _REGISTERED.get(full)) is not None:  # compiled models may have it, so it stays
        if known.operator.is_like(operator):
            return known
        hint = "give this program a name of its own"
        raise ArgumentError(f"argument name: {full} is another program already", hint=hint)
    schema, count = operator.schema(), len(operator.program.results)
    results = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    define = partial(torch.library.custom_op, mutates_args=(), device_types="cpu")
    made = define(full, operator.call, schema=f"({schema}) -> {results}")
    made.register_fake(operator.fake)
    schema = f"({schema}, Tensor[] grads, int[] wrt) -> Tensor[]"
    back = define(f"{full}_backward", operator.gradients, schema=schema)
    back.register_fake(operator.fake_gradients)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
        ctx.flat = [None if isinstance(x, torch.Tensor) else x for x in inputs]
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)))

    made.register_autograd(
        lambda ctx, *grads: operator.backward(back, ctx, grads), setup_context=keep
    )
    made.__class__ = TransformableOp
    made.operator, made.gradients = operator, back
    _REGISTERED[full] = made
    return made


class TransformableOp(CustomOpDef):  # type: ignore[misc]
    """An operator whose calls ``torch.func`` transforms, too; torch does not do that by itself."""

    operator: Operator
    gradients: Any  # the operator of gradients

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator; raises ArgumentError for derivatives that it does not have."""
        if torch.compiler.is_compiling() or kwargs or not is_transformed(args):
            return super().__call__(*args, **kwargs)
        at = [k for k, arg in enumerate(args) if isinstance(arg, torch.Tensor)]

        def flat(tensors: Sequence[torch.Tensor]) -> list[Any]:
            known = dict(zip(at, tensors, strict=True))
            return [known.get(k, arg) for k, arg in enumerate(args)]

        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = super(TransformableOp, self).__call__(*flat(tensors))
            return found if isinstance(found, tuple) else (found,)

        def pull(tensors: Sequence[Any], needed: Sequence[bool], grads: Sequence[Any]) -> list[Any]:
            wrt, places = self.operator.wanted(dict(zip(at, needed, strict=True)))
            count = len(tensors)
            back = Step(
                f"{self._qualname}_backward",
                lambda *x: self.gradients(*flat(x[:count]), list(x[count:]), wrt),
            )
            found = dict(zip(places, StepFunction.apply(back, *tensors, *grads), strict=True))
            return [found.get(k) for k in at]

        tensors = [args[k] for k in at]
        found = StepFunction.apply(Step(self._qualname, run, pull), *tensors)
        return found[0] if len(found) == 1 else found


def _operator(program: Any, formats: dict[str, str], sizes: dict[str, int]) -> Operator:
    """Return *program* as an operator; raises ArgumentError."""
    kernel = compile_program(program)
    if not isinstance(kernel, NotationKernel):
        raise ArgumentError("argument program: expected index notation")
    prepared = prepare(kernel.program)
    sparse = frozenset(n for n in kernel.arguments if formats.get(n) == "csr")
    wide = {n: text for n, text in formats.items() if n in prepared.results and text == "dense"}
    for unknown in formats.keys() - wide.keys() - sparse:
        names = [*kernel.arguments, *prepared.results]
        if unknown not in names:
            hint = nearest_or_all(unknown, names)
            raise ArgumentError(f"argument formats: the program has no {unknown}", hint=hint)
        raise ArgumentError(
            f"argument formats: got {formats[unknown]!r} for {unknown}",
            hint='an operand may be "csr", and a result "dense"',
        )
    if prepared.accumulated or any(access.windows for access in _everything(kernel)):
        raise ArgumentError(
            "argument program: adds to a result, or reads or assigns parts of tensors",
            hint="an operator returns new tensors; cut parts out before it",
        )
    _check_sizes(kernel, sizes)
    operator = Operator(compile_program(kernel.program, formats=wide), sparse, sizes)
    flat = [f"{name}_{part}" if part else name for name, part in operator.flat_names()]
    taken = ("grads", "wrt", *(["sizes"] if sizes else []))
    for name in flat:
        if flat.count(name) > 1 or name in taken:
            raise ArgumentError(f"argument program: an operator cannot have an operand {name}")
    operator.refuse_assembled()
    return operator


def _check_sizes(kernel: NotationKernel, sizes: Mapping[str, int]) -> None:
    """Raise ArgumentError unless the results at index vectors have lengths."""
    for name, size in sizes.items():
        if name not in kernel.at_vectors or type(size) is not int or size < 0:
            raise ArgumentError(
                f"argument sizes: got {size!r} for {name}",
                hint=f"it has lengths of results at index vectors: {', '.join(kernel.at_vectors)}",
            )
    for vector, scattered in _rows(kernel).items():
        names = [name for name, _ in scattered.places]
        if not (scattered.known or scattered.read or sizes.keys() & {*names}):
            raise ArgumentError(
                f"argument program: no operand says how long {names[-1]} is, which is written at"
                f" {vector}",
                hint=f'give its length, sizes={{"{names[-1]}": n}}, or multiply it by an operand',
            )


def _rows(kernel: NotationKernel) -> dict[str, Scattered]:
    """Return what is known about results at index vectors, by vector."""
    rows = with_scatters(kernel.program, kernel.semiring)[1]
    return {scattered.vector: scattered for scattered in rows.values()}


def _everything(kernel: NotationKernel) -> Iterator[Access]:
    """Yield all accesses in the program of *kernel*."""
    for stmt in kernel.program.statements:
        yield from (stmt.target, *accesses(stmt.value))


def _spelled(program: Program) -> list[str]:
    """Return the text of *program*, and what the functions in it do."""
    terms = (term for stmt in program.statements for term in walk(stmt.value))
    functions = (f"{x.func}: {x.presence} {x.body}" for x in terms if isinstance(x, Declared))
    return [str(program), *functions]


def _csr(parts: Mapping[str, Any]) -> torch.Tensor:
    """Return the csr matrix of these *parts*; raises ArgumentError where these are no matrix."""
    pointers, columns, values, count = (parts[name] for name in _PARTS)
    for name, part in (("crow_indices", pointers), ("col_indices", columns)):
        if part.dtype not in (torch.int32, torch.int64):
            raise ArgumentError(f"argument {name}: got {part.dtype}, expected int32 or int64")
    if not len(pointers) or {x.dim() for x in (pointers, columns, values)} != {1}:
        shapes = ", ".join(str(tuple(x.shape)) for x in (pointers, columns, values))
        message = f"the parts of a csr matrix: got shapes {shapes}"
        raise ArgumentError(message, hint="m + 1 row pointers, and a column and value per element")
    shape = (len(pointers) - 1, count)
    return torch.sparse_csr_tensor(pointers, columns, values, shape, check_invariants=False)


def _leaf(arg: Any) -> Any:
    """Return the tensor of the values of the argument *arg*."""
    return arg["values"] if isinstance(arg, dict) else arg
