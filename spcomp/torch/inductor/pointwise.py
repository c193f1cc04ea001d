"""In graphs of torch.compile: functions of single elements, as the script language spells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import torch

from spcomp.torch.inductor.shapes import aten, constant, unviewed_node, value


def _infix(sign: str) -> Callable[..., str]:
    return lambda a, b: f"({a} {sign} {b})"


def _call(name: str) -> Callable[..., str]:
    return lambda *args: f"T.{name}({', '.join(args)})"


_CONVERT = torch.ops.prims.convert_element_type.default  # of a condition, or nothing changes
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_TEXT: dict[Any, Callable[..., str]] = {
    aten.add.Tensor: _infix("+"),
    aten.add.Scalar: _infix("+"),
    aten.sub.Tensor: _infix("-"),
    aten.sub.Scalar: _infix("-"),
    aten.mul.Tensor: _infix("*"),
    aten.mul.Scalar: _infix("*"),
    aten.div.Tensor: _infix("/"),
    aten.div.Scalar: _infix("/"),
    aten.neg.default: lambda a: f"(-{a})",
    aten.reciprocal.default: lambda a: f"(1.0 / {a})",
    aten.relu.default: lambda a: f"T.max({a}, 0.0)",
    aten.clamp_min.default: _call("max"),
    aten.clamp_max.default: _call("min"),
    aten.maximum.default: _call("max"),
    aten.minimum.default: _call("min"),
    aten.where.self: _call("if_then_else"),
    aten.logical_not.default: lambda a: f"(not {a})",
    aten.logical_and.default: _infix("and"),
    aten.logical_or.default: _infix("or"),
    **{
        getattr(aten, name).default: _call(name)
        for name in ("abs", "erf", "exp", "expm1", "log", "log1p", "rsqrt", "sqrt", "tanh")
    },
    aten.sigmoid.default: _call("sigmoid"),
    _CONVERT: lambda a: a,
    **{
        getattr(getattr(aten, name), kind): _infix(sign)
        for name, sign in _SIGNS.items()
        for kind in ("Scalar", "Tensor")
    },
}

# Functions of conditions, and how many of their first arguments are
LOGIC = {
    aten.where.self: 1,
    aten.logical_not.default: 1,
    aten.logical_and.default: 2,
    aten.logical_or.default: 2,
}


def text_of(node: Any) -> Callable[..., str] | None:
    """Return what spells the function *node* of the texts of its arguments, None if nothing."""
    if node.op != "call_function" or node.kwargs.get("alpha", 1) != 1:
        return None
    known = node.kwargs.keys() <= {"alpha"}  # not of other dtypes, nor rounded
    return _TEXT.get(node.target) if known else None


def arguments_of(node: Any) -> tuple[Any, ...]:
    """Return the tensors and numbers that the function *node* takes."""
    return tuple(node.args[:1] if node.target is _CONVERT else node.args)


def as_number(text: str, arg: Any, node: Any, at: int) -> str:
    """Return the *text* of *arg*, argument number *at* of *node*: of a condition 0 or 1."""
    is_condition = value(arg) is not None and value(arg).dtype == torch.bool
    is_asked = at < LOGIC.get(node.target, 0)
    return f"T.if_then_else({text}, 1.0, 0.0)" if is_condition and not is_asked else text


# Functions that do not round; and others that do, in the same way wherever they are computed
_COMPARED = {getattr(getattr(aten, name), kind) for name in _SIGNS for kind in ("Scalar", "Tensor")}
_EXACT = {
    *(aten.neg.default, aten.abs.default, aten.relu.default, *LOGIC, *_COMPARED),
    *(aten.clamp_min.default, aten.clamp_max.default, aten.maximum.default, aten.minimum.default),
    _CONVERT,
}
_ROUNDED = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor}


def is_compared(node: Any) -> bool:
    """Whether *node*, or the same numbers in another shape, is compared with something."""
    own = unviewed_node(node)
    return any(
        user.target in _COMPARED or (unviewed_node(user) is own and is_compared(user))
        for user in node.users
    )


def compared(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the tensors that *node* compares: none if it is no comparison."""
    is_comparison = node.target in _COMPARED
    return [arg for arg in node.args if is_comparison and value(arg) is not None]


def roundings_of(node: torch.fx.Node, inner: Mapping[torch.fx.Node, int]) -> int:
    """Return how often *node* is rounded on its way from what is not a function of elements.

    2: twice or more. Otherwise it is the same to the bit wherever it is computed. *inner*: of what
    it is made of.
    """
    own = unviewed_node(node)
    if own is not node:
        return inner[own]
    before = max((inner[arg] for arg in node.args if value(arg) is not None), default=0)
    if node.target in _EXACT:
        return before
    if node.target in _ROUNDED:
        return min(before + 1, 2)
    return 2 if text_of(node) is not None or node.target is aten.sum.dim_IntList else 0


def literal(arg: Any) -> str | None:
    """Return how the number *arg*, or that of which a tensor is full, is spelled, if it is one."""
    if value(arg) is not None and value(arg).dtype == torch.bool:
        return None
    number = constant(arg) if value(arg) is not None else arg
    if not isinstance(number, (int, float)):
        return None
    if isinstance(number, bool) or not isfinite(number):
        return None
    return f"({float(number)!r})" if number < 0 else repr(float(number))
