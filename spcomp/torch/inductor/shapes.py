"""In graphs of torch.compile: what a node's tensor is, and whether sizes are known to be equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten


def value(node: Any) -> Any:
    """Return the fake tensor of *node*, or None: it is a number, or several tensors."""
    found = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return found if isinstance(found, torch.Tensor) else None


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(one) == len(other) and all(
        statically_known_true(a == b) for a, b in zip(one, other, strict=True)
    )


def is_column(shape: Sequence[Any]) -> bool:
    """Whether all dimensions of *shape* but the first are 1."""
    return len(shape) > 0 and same(shape[1:], (1,) * (len(shape) - 1))


def hint(size: Any) -> int | None:
    """Return *size* as it was in the call that is compiled, None if that is not known."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return int(found) if isinstance(found, int) else None


_RESHAPES = (
    aten.view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
)
_CONSTANTS = (aten.full.default, aten.scalar_tensor.default)
_COPIES = (aten.alias.default, aten.clone.default, aten.slice.Tensor)


def unchanged(node: Any) -> Any:
    """Return the node whose tensor *node* is, after steps that change nothing."""
    while value(node) is not None and node.target in (*_COPIES, *_RESHAPES, aten.expand.default):
        inner = value(node.args[0])
        if inner is None or not same(inner.shape, value(node).shape):
            return node
        node = node.args[0]
    return node


def column(node: Any) -> Any:
    """Return the node of rank 1, if there is one, that *node*, a column, was made of."""
    node = unchanged(node)
    while value(node).dim() > 1 and node.target in _RESHAPES:
        inner = value(node.args[0])
        if inner is None or not same(inner.shape[:1], value(node).shape[:1]):
            return node
        if not is_column(inner.shape):
            return node
        node = unchanged(node.args[0])
    return node


def unexpanded(node: Any) -> Any:
    """Return *node*, or what it repeats along dimensions of size 1, of the same rank."""
    node = unchanged(node)
    while value(node) is not None and node.target is aten.expand.default:
        inner = value(node.args[0])
        if inner is None or inner.dim() != value(node).dim():
            return node
        node = unchanged(node.args[0])
    return node


def constant(node: Any) -> float | None:
    """Return the number that all elements of *node* are, as its type has it; None: not known."""
    node = unexpanded(node)
    if value(node) is None:
        return None
    number = node.args[-1] if node.target in _CONSTANTS else None
    if not isinstance(number, (int, float)):
        return None
    with _disable_current_modes():  # a real tensor
        return float(torch.tensor(number, dtype=value(node).dtype))


def identity(node: Any) -> Any:
    """Return what is equal for the nodes of one vector, such as a row of ``edge_index``."""
    node = column(node)
    if node.target is aten.select.int:
        inner, dim, at = node.args
        rank = value(inner).dim()
        return identity(inner) if rank == 1 else (inner, dim % rank, at)
    return node


def broadcast(of: Sequence[Any], shape: Sequence[Any], subs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the indices of a tensor of the shape *of* where *subs* are those of *shape*."""
    own = subs[len(shape) - len(of) :]
    return tuple(None if same((n,), (1,)) else s for n, s in zip(of, own, strict=True))


def unviewed(node: Any, subs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the node whose rows *node* shows in another shape, and the indices in these rows.

    *subs*: an index for each dimension of *node* but the first, None for those of length 1.
    """
    while value(node) is not None and node.target in (*_COPIES, *_RESHAPES, aten.expand.default):
        inner, outer = value(node.args[0]), value(node)
        if inner is None or not inner.dim() or not same(inner.shape[:1], outer.shape[:1]):
            break
        of, shape = inner.shape[1:], outer.shape[1:]
        long = [not same((n,), (1,)) for n in of]
        sizes = [n for n, is_long in zip(of, long, strict=True) if is_long]
        if node.target is aten.expand.default and inner.dim() == outer.dim():
            subs = broadcast(of, shape, subs)
        elif same(sizes, [n for n in shape if not same((n,), (1,))]):
            kept = iter([s for s in subs if s is not None])
            subs = tuple(next(kept) if is_long else None for is_long in long)
        else:
            break
        node = node.args[0]
    return node, subs


def unviewed_node(node: Any) -> Any:
    """Return the node whose rows *node* shows in another shape; a number as it is."""
    return node if value(node) is None else unviewed(node, ("",) * (value(node).dim() - 1))[0]
