"""At a call: tensors of PyTorch that require gradients, and what follows their gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from spcomp.compiler.options import Options
    from spcomp.notation.adjoint.adjoint import Adjoint

_NONE: Mapping[str, int] = {}
Run = Callable[[dict[str, Any]], Any]  # a kernel, on arrays by name


@dataclass(frozen=True, slots=True, eq=False)
class Differentiable:
    """A program of index notation whose gradients can be followed.

    *results*: their names, in order. *formats*: of its tensors, where the user asked for some.
    *derive* returns the adjoint by operands. *saves*: whether its forward pass may keep values.
    *derivatives*: what was derived, by operands; *dependent*: which of them results depend on.
    """

    name: str
    results: tuple[str, ...]
    formats: Mapping[str, Any]
    options: Options
    derive: Callable[[tuple[str, ...]], Adjoint]
    saves: bool = False
    derivatives: dict[tuple[str, ...], Any] = field(default_factory=dict)
    dependent: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)


def require_gradients(args: Iterable[Any]) -> bool:
    """Whether torch follows one of the tensors in *args* now: its gradients, or in torch.func.

    Nested tensors take the same way.
    """
    args = tuple(args)
    if any(map(is_jagged, args)):
        return True
    required = any(getattr(arg, "requires_grad", False) is True for arg in args)
    return (required and bool(sys.modules["torch"].is_grad_enabled())) or is_transformed(args)


def is_jagged(arg: Any) -> bool:
    """Whether *arg* is a nested tensor of torch."""
    return getattr(arg, "is_nested", False) is True


def is_transformed(args: Iterable[Any]) -> bool:
    """Whether ``torch.func`` transforms one of *args*, or one is followed in forward mode."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    forward = torch.autograd.forward_ad
    is_dual, in_func = forward._current_level >= 0, torch._C._are_functorch_transforms_active()  # noqa: SLF001
    if not is_dual and not in_func:
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001
    return any(
        wrapped(arg)
        or (
            is_dual and arg.layout == torch.strided and forward.unpack_dual(arg).tangent is not None
        )
        for arg in args
        if isinstance(arg, torch.Tensor)
    )


def follow(
    program: Differentiable,
    out: Any,
    named: Mapping[str, Any],
    run: Run,
    sizes: Mapping[str, int] = _NONE,
) -> Any:
    """Return the results of *program* as tensors that know their gradients.

    *run* computes them from the arrays of the arguments *named*; *sizes*: what the user gave for
    results at index vectors. Raises ArgumentError.
    """
    if out is not None:
        raise ArgumentError(
            "argument out: gradients cannot be followed through an array that is overwritten",
            hint="leave it out, or call the kernel under torch.no_grad()",
        )
    autograd = import_module("spcomp.torch.autograd")  # above; it needs torch
    return autograd.follow(program, named, run, sizes)
