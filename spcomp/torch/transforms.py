"""Around a call under ``torch.func``, or in forward mode: gradients, tangents and batches.

Here nothing is kept of the forward pass but the arguments: which gradients are asked for, and at
which of several levels, is known only later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spcomp.errors import ArgumentError
from spcomp.kernels.adjoint.kernel import AdjointKernel
from spcomp.kernels.gradients import Differentiable, Run
from spcomp.torch.derivative import Derivative

Follow = Callable[..., Sequence[torch.Tensor]]  # of autograd.follow's arguments


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """Where the values of a coo tensor of this *shape* are, which ``torch.func`` transforms."""

    indices: torch.Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> dict[str, Coordinates]:
        """Return those of the coo tensors among the arguments *named*, by name.

        PyTorch makes no others of tensors that it transforms.
        """
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001
        return {
            name: cls(unwrapped(name, x.indices()), tuple(x.shape))
            for name, x in named.items()
            if isinstance(x, torch.Tensor) and x.layout == torch.sparse_coo and wrapped(x)
        }

    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        """Return the tensor of these *values*."""
        more = {"is_coalesced": True, "check_invariants": False}
        made: torch.Tensor = torch.sparse_coo_tensor(self.indices, values, self.shape, **more)
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Transformed:
    """A call of *program* on the tensors *names* and the arguments *others*.

    *sizes*: the lengths of results at index vectors. *follow* runs a program on arguments by name.
    *partly*: the program is a derivative, of which some arguments may be unimportant. *sparse*:
    coo tensors among the *names*, which stand for their values. *stored*: such results, once known.
    """

    program: Differentiable
    run: Run
    names: tuple[str, ...]
    others: Mapping[str, Any]
    sizes: Mapping[str, int]
    follow: Follow
    partly: bool = False
    sparse: Mapping[str, Coordinates] = field(default_factory=dict)
    stored: dict[str, Coordinates] = field(default_factory=dict)

    def derivative(self, wrt: tuple[str, ...]) -> Derivative | None:
        """Return the derivative by *wrt*, None if that is 0; raises SpcompError."""
        return (Derivative.where_dependent if self.partly else Derivative.of)(self.program, wrt)

    def results(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the results for these *tensors*."""
        named = {**dict(zip(self.names, tensors, strict=True)), **self.others}
        arguments = self._made(named)
        found = self.follow(self.program, arguments, self.run, self.sizes, partly=self.partly)
        return [self._dense(*each) for each in zip(self.program.results, found, strict=True)]

    def _dense(self, name: str, result: torch.Tensor) -> torch.Tensor:
        """Return *result*; of a sparse one that is a gradient, its values."""
        if result.layout == torch.strided:
            return result
        if not self.partly or not self.sparse:
            raise ArgumentError(
                f"result {name}: is sparse, and torch.func takes dense tensors only",
                hint=f'ask for a dense one, formats={{"{name}": "dense"}}',
            )
        plain = result.to_sparse_coo().coalesce()
        self.stored[name] = Coordinates(unwrapped(name, plain.indices()), tuple(plain.shape))
        return plain.values()

    def _made(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments *named* with sparse tensors in the place of their values."""
        sparse = self.sparse
        return {name: sparse[name].tensor(x) if name in sparse else x for name, x in named.items()}

    def derived(self, kernel: AdjointKernel, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return what *kernel* computes for the arguments *named*, by what it is a gradient of.

        Of sparse tensors these are values.
        """
        taken = {n: arg for n, arg in self._made(named).items() if n in {*kernel.arguments}}
        more = {"sizes": self.sizes} if self.sizes else {}

        def run(arrays: dict[str, Any]) -> Any:
            return kernel.run(None, {**arrays, **more})

        found = self.follow(kernel.differentiable, taken, run, self.sizes, partly=True)
        pairs = zip(kernel.adjoint.wrt, found, strict=True)
        return {
            name: x if x.layout == torch.strided else x.to_sparse_coo().coalesce().values()
            for name, x in pairs
        }


class Function(torch.autograd.Function):  # type: ignore[misc]
    """A call as ``torch.func`` transforms it."""

    @staticmethod
    def forward(call: Transformed, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results of *call*."""
        return tuple(call.results(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep what derivatives need."""
        call, *tensors = inputs
        ctx.mark_non_differentiable(*(x for x in output if not x.is_floating_point()))
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)
        ctx.call = call

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of the tensors."""
        call: Transformed = ctx.call
        named, _ = _kept(ctx)
        needed = zip(call.names, ctx.needs_input_grad[1:], strict=True)
        wrt = tuple(name for name, is_needed in needed if is_needed)
        derivative = call.derivative(wrt)
        if derivative is None:
            return (None,) * (1 + len(named))
        kernel = derivative.kernel
        adjoint = kernel.adjoint
        stored = call.stored
        by_result = {
            name: stored[name].tensor(grad) if name in stored else grad
            for name, grad in zip(call.program.results, grads, strict=True)
        }
        given = {adjoint.names[name]: by_result[name] for name in adjoint.results}
        found = call.derived(kernel, {**call.others, **named, **given})
        return None, *(
            found[name].to(x.dtype) if name in found else None for name, x in named.items()
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Return the tangents of the results.

        The gradient of ``grad_C -> grad_A``, which is linear, takes tangents of A to those of C.
        """
        call: Transformed = ctx.call
        named, results = _kept(ctx)
        by_name = zip(call.names, tangents[1:], strict=True)
        known = {
            name: t for name, t in by_name if t is not None and named[name].is_floating_point()
        }
        derivative = call.derivative(tuple(known)) if known else None
        if derivative is None:
            return (None,) * len(results)
        forward, backward = derivative.tangents(), derivative.kernel.adjoint
        likes = {backward.names[name]: results[name].detach() for name in backward.results}
        names = forward.adjoint.names  # without those of operands that no value is read of
        pairs = ((names.get(backward.names[n]), known[n]) for n in backward.wrt)
        given = {name: t for name, t in pairs if name is not None}
        found = call.derived(forward, {**call.others, **named, **likes, **given})
        grads = {name: backward.names[name] for name in backward.results}
        return tuple(
            found[grads[name]].to(result.dtype) if name in grads else None
            for name, result in results.items()
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], call: Transformed, *tensors: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        """Return the results for each element of a batch, along a first dimension."""
        return batched(lambda *slices: call.results(slices), info, in_dims[1:], tensors)


def batched(
    call: Callable[..., Sequence[torch.Tensor]],
    info: Any,
    in_dims: Sequence[int | None],
    args: Sequence[Any],
) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """Return the results of *call* for each element of a batch, along a first dimension.

    *in_dims*: the dimensions of *args* that are batches; *info*: what ``torch.vmap`` tells.
    """
    rows = []
    for at in range(max(info.batch_size, 1)):
        pairs = zip(args, in_dims, strict=True)
        rows.append(call(*(x if dim is None else _element(x, dim, at) for x, dim in pairs)))
    stacked = (torch.stack(results) for results in zip(*rows, strict=True))
    return tuple(x[: info.batch_size] for x in stacked), (0,) * len(rows[0])


def unwrapped(who: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the argument *who*, whole numbers, as it is outside of ``torch.func``.

    Raises ArgumentError for a batch.
    """
    functorch = torch._C._functorch  # noqa: SLF001
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            raise ArgumentError(
                f"argument {who}: is a batch of torch.vmap, and which elements belong together is"
                " the same for a batch",
                hint="call it once with segments of their own for each element of the batch",
            )
        tensor = functorch.get_unwrapped(tensor)
    return tensor


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An operator called *name* on tensors: *run* returns its results.

    *pull* returns the gradients of the tensors, from them, whether each is needed, and the
    gradients of the results. Without it there are none.
    """

    name: str
    run: Callable[..., Sequence[torch.Tensor]]
    pull: Callable[[Sequence[Any], Sequence[bool], Sequence[Any]], Sequence[Any]] | None = None


class StepFunction(torch.autograd.Function):  # type: ignore[misc]
    """A Step as ``torch.func`` transforms it."""

    @staticmethod
    def forward(step: Step, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results of *step*."""
        return tuple(step.run(*tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep what gradients need."""
        ctx.step, *tensors = inputs
        ctx.mark_non_differentiable(*(x for x in output if not x.is_floating_point()))
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of the tensors; raises ArgumentError if there are none."""
        if ctx.step.pull is None:
            raise _no_derivative(ctx.step, "second derivatives")
        return None, *ctx.step.pull(ctx.saved_tensors, ctx.needs_input_grad[1:], grads)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Raise ArgumentError."""
        raise _no_derivative(ctx.step, "derivatives in forward mode")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], step: Step, *tensors: torch.Tensor) -> Any:
        """Return the results for each element of a batch, along a first dimension."""
        call = lambda *slices: StepFunction.apply(step, *slices)  # noqa: E731
        return batched(call, info, in_dims[1:], tensors)


def _no_derivative(step: Step, what: str) -> ArgumentError:
    return ArgumentError(
        f"{step.name}: an operator has no {what}",
        hint="call the kernel, spcomp.compile(program), which has them",
    )


def _kept(ctx: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the tensors of a call, and its results, by name."""
    call, saved = ctx.call, ctx.saved_tensors
    count = len(call.names)
    results = zip(call.program.results, saved[count:], strict=True)
    return dict(zip(call.names, saved[:count], strict=True)), dict(results)


def _element(tensor: torch.Tensor, dim: int, at: int) -> torch.Tensor:
    """Return the element *at* of a batch along *dim*; zeros if the batch is empty."""
    if tensor.shape[dim]:
        return tensor.select(dim, at)
    return tensor.new_zeros([n for d, n in enumerate(tensor.shape) if d != dim])
