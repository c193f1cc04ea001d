"""Around a call with torch tensors that require gradients: their adjoint is the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from spcomp.kernels.gradients import Differentiable, Run, is_transformed
from spcomp.kernels.results import Results
from spcomp.tensors.libraries.torch import argument, half_of
from spcomp.tensors.tensor import Tensor
from spcomp.tensors.torch import to_torch
from spcomp.torch.derivative import Derivative
from spcomp.torch.jagged import Jagged, jagged_of
from spcomp.torch.patterns import Pattern, pattern_of
from spcomp.torch.transforms import Coordinates, Transformed
from spcomp.torch.transforms import Function as TransformedFunction


class Operands:
    """The arguments of a call: those that are *tensors*, and *arrays* of all of them by name."""

    def __init__(self, named: Mapping[str, Any], jagged: Mapping[str, Jagged]) -> None:
        self.jagged = jagged
        self.tensors = {n: x for n, x in named.items() if isinstance(x, torch.Tensor)}
        self.patterns: dict[str, Pattern] = {}
        self.half = half_of(named.values())
        self.arrays = {name: self._array(name, x) for name, x in named.items()}

    def _array(self, name: str, arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        if name in self.jagged:
            return self.jagged[name].with_values_of(arg)
        if arg.layout == torch.strided:
            return argument(name, arg)
        pattern = self.patterns[name] = pattern_of(name, arg)
        return pattern.with_values_of(arg)

    def as_torch(self, result: Any) -> torch.Tensor:
        """Return the *result* of a kernel as a tensor, of 16-bit floats if all arguments are.

        One that is stored as a nested argument is its values.
        """
        if self.nesting(result) is not None:
            count = int(result.levels[1].arrays[0][-1])
            tensor = to_torch(result.values).reshape(count, *result.shape[2:])
        elif isinstance(result, Tensor):
            likes = (name for name, pattern in self.patterns.items() if pattern.is_of(result))
            if (name := next(likes, None)) is not None:
                like = self.tensors[name]
                return self.patterns[name].as_torch(result, like, half=self.half)
            tensor = to_torch(result)
        else:
            tensor = to_torch(result if getattr(result, "ndim", 0) else np.asarray(result))
        return tensor.to(self.half) if self.half and tensor.dtype == torch.float32 else tensor

    def nestings(self, results: Mapping[str, Any]) -> dict[str, Jagged]:
        """Return how those of *results* are stored that are so as a nested argument."""
        found = ((name, self.nesting(result), result) for name, result in results.items())
        return {name: Jagged(x, jagged.like) for name, jagged, x in found if jagged is not None}

    def nesting(self, result: Any) -> Jagged | None:
        """Return the nested argument that *result* is stored as, if there is one."""
        return next((jagged for jagged in self.jagged.values() if jagged.is_of(result)), None)


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """A call of *program* on the tensors *names* and the arguments *others*, to be followed.

    *sizes*: the lengths of results at index vectors. *jagged*: those of which the values are given;
    results that are stored like them are added to *nested*, by name.
    """

    program: Differentiable
    derivative: Derivative
    run: Run
    names: tuple[str, ...]
    others: Mapping[str, Any]
    sizes: Mapping[str, int]
    jagged: Mapping[str, Jagged]
    nested: dict[str, Jagged]

    def forward(self, operands: Operands) -> dict[str, Any]:
        """Return the results by name, and what is kept for the way back."""
        names = self.program.results
        if self.derivative.forward is None:
            return dict(zip(names, several(self.run(operands.arrays)), strict=True))
        sizes = {"sizes": self.sizes} if self.sizes else {}
        returned = self.derivative.forward(**operands.arrays, **sizes)
        return dict(zip(returned._fields, returned, strict=True))


class Function(torch.autograd.Function):  # type: ignore[misc]
    """A program as torch follows it. Values that the adjoint does not read are not kept."""

    @staticmethod
    def forward(ctx: Any, call: Followed, *tensors: torch.Tensor) -> Any:
        """Return the results of *call* as tensors."""
        adjoint = call.derivative.kernel.adjoint
        named = {**dict(zip(call.names, tensors, strict=True)), **call.others}
        operands = Operands(named, call.jagged)
        values = call.forward(operands)
        call.nested.update(operands.nestings(values))
        results = {name: operands.as_torch(values[name]) for name in call.program.results}
        stepwise = [t for name, t in results.items() if name not in adjoint.results]
        ctx.mark_non_differentiable(*stepwise)
        ctx.set_materialize_grads(False)
        kept = {
            name: tensor
            for name, tensor in zip(call.names, tensors, strict=True)
            if name in call.derivative.needed or tensor.layout != torch.strided
        }
        saves = call.derivative.saves
        kept |= {name: results[name] for name in saves if name in results}
        ctx.save_for_backward(*kept.values())
        ctx.call, ctx.kept = call, tuple(kept)
        ctx.saves = {n: values[f"saved_{n}"] for n in saves if n not in results}
        ctx.likes = [(tensor.shape, tensor.dtype, tensor.layout) for tensor in tensors]
        ctx.results = [(tensor.shape, tensor.dtype) for tensor in results.values()]
        return tuple(results.values())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Return the gradients of the tensors."""
        call: Followed = ctx.call
        kernel = call.derivative.kernel
        adjoint, again = kernel.adjoint, torch.is_grad_enabled()
        given: dict[str, Any] = {}
        for name, grad, (shape, dtype) in zip(
            call.program.results, grads, ctx.results, strict=True
        ):
            if name in adjoint.results and (again or grad is not None):
                given[adjoint.names[name]] = (
                    torch.zeros(shape, dtype=dtype) if grad is None else grad
                )
        if not any(grad is not None for grad in grads):
            return (None,) * (1 + len(call.names))
        kept = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        named = {**call.others, **given}
        taken = {*kernel.arguments}  # derived again, a program need not read all operands
        named = {name: arg for name, arg in named.items() if name in taken}
        for name, (shape, dtype, _) in zip(call.names, ctx.likes, strict=True):
            if name not in taken:
                continue
            named[name] = kept[name] if name in kept else torch.zeros((), dtype=dtype).expand(shape)
        if not again:  # a value that was kept has no gradient: for those it is computed again
            named |= {n: kept[n] for n in call.derivative.saves if n in kept} | ctx.saves
        sizes = call.sizes

        def run(arrays: dict[str, Any]) -> Any:
            return kernel.run(None, {**arrays, "sizes": sizes} if sizes else arrays)

        like = {adjoint.names[n]: x for n, x in call.nested.items() if n in adjoint.results}
        nested = {**call.jagged, **like}
        results, _ = _follow(kernel.differentiable, named, run, sizes, nested, partly=True)
        results = _with_steps(results, named)
        found = dict(zip(adjoint.wrt, results, strict=True))
        return None, *(
            _stored_as(found[name].to(dtype), layout) if name in found else None
            for name, (_, dtype, layout) in zip(call.names, ctx.likes, strict=True)
        )


class Steps(torch.autograd.Function):  # type: ignore[misc]
    """A result that changes with tensors only in steps, if at all: its gradients are 0."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        """Return *result*."""
        ctx.likes = [(tensor.shape, tensor.dtype) for tensor in tensors]
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        """Return the gradients of the tensors."""
        return None, *(torch.zeros((), dtype=dtype).expand(shape) for shape, dtype in ctx.likes)


def _with_steps(results: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
    """Return *results* of an adjoint on the arguments *named*; all have gradients, or zeros."""
    tensors = (x for x in named.values() if isinstance(x, torch.Tensor) and x.requires_grad)
    dense = [x for x in tensors if x.layout == torch.strided]
    if not torch.is_grad_enabled() or not dense:
        return results
    steps = (x.layout == torch.strided and not x.requires_grad for x in results)
    pairs = zip(results, steps, strict=True)
    return [Steps.apply(x, *dense) if is_stepwise else x for x, is_stepwise in pairs]


def follow(
    program: Differentiable,
    named: Mapping[str, Any],
    run: Run,
    sizes: Mapping[str, int] = MappingProxyType({}),
    *,
    partly: bool = False,
) -> Any:
    """Return the results of *program* on the arguments *named* as tensors with their gradients.

    *run* computes them from arrays, in these *sizes*. *partly*: nothing may depend on some
    arguments, whose gradients are 0. Raises SpcompError.
    """
    jagged = jagged_of(dict(named))
    values = {name: named[name].values() for name in jagged}
    results, nested = _follow(program, {**named, **values}, run, sizes, jagged, partly=partly)
    pairs = zip(program.results, results, strict=True)
    made = tuple(nested[name].nested(x) if name in nested else x for name, x in pairs)
    return Results.of(program.results, made) if len(made) > 1 else made[0]


def _follow(
    program: Differentiable,
    named: Mapping[str, Any],
    run: Run,
    sizes: Mapping[str, int],
    jagged: Mapping[str, Jagged],
    *,
    partly: bool = False,
) -> tuple[Sequence[Any], Mapping[str, Jagged]]:
    """Return the results of *program*, and how those are stored that are as nested arguments.

    Of *jagged* arguments, and of such results, *named* has the values.
    """
    named = {name: _coalesced(x) for name, x in named.items()}
    tensors = {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}
    wrt = tuple(name for name, tensor in tensors.items() if tensor.requires_grad)
    if is_transformed(tensors.values()):
        sparse = Coordinates.of(named)
        tensors |= {name: tensors[name].values() for name in sparse}
        tensors = {name: x for name, x in tensors.items() if x.layout == torch.strided}
        others = {name: x for name, x in named.items() if name not in tensors}
        inner = Transformed(program, run, tuple(tensors), others, sizes, _followed, partly, sparse)
        return TransformedFunction.apply(inner, *tensors.values()), {}
    find = Derivative.where_dependent if partly else Derivative.of
    derivative = find(program, wrt) if wrt and torch.is_grad_enabled() else None
    if derivative is not None:
        others = {name: x for name, x in named.items() if name not in tensors}
        call = Followed(program, derivative, run, tuple(tensors), others, sizes, jagged, {})
        return Function.apply(call, *tensors.values()), call.nested
    with torch.no_grad():  # nothing depends on what requires gradients
        operands = Operands(named, jagged)
        found = dict(zip(program.results, several(run(operands.arrays)), strict=True))
        return [operands.as_torch(x) for x in found.values()], operands.nestings(found)


def _followed(*args: Any, partly: bool) -> Sequence[Any]:
    return several(follow(*args, partly=partly))


def several(results: Any) -> Sequence[Any]:
    """Return the results of a call as a sequence, also if it has one only."""
    return results if isinstance(results, Results) else (results,)


def _stored_as(grad: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    """Return *grad* in the *layout* of its tensor: formats and operands may ask for another."""
    plain = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc
    differs = grad.layout != layout and {grad.layout, layout} <= {*plain}
    return grad.to_sparse(layout=layout) if differs else grad


def _coalesced(arg: Any) -> Any:
    """Return *arg*; elements of a coo tensor that are repeated are summed."""
    is_coo = isinstance(arg, torch.Tensor) and arg.layout == torch.sparse_coo
    return arg.coalesce() if is_coo else arg
