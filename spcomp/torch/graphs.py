"""For graph learning: attention along edges and under sparse masks, relations, sampled products."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch

from spcomp.errors import ArgumentError
from spcomp.kernels.compile import compile as compile_program
from spcomp.kernels.opaque import opaque
from spcomp.torch.composite import scatter_softmax
from spcomp.torch.operations import gather_scatter, scatter
from spcomp.torch.segments import check_numbers, checked_edges, of_edges
from spcomp.torch.shapes import check_shape

_SAMPLED = "C[i, j] = sum(k, X[i, k] * Y[k, j]) if M[i, j]"
# A counts the edges from j to i; no sum of a row with an edge is below 1, and so none is 0.5.
_GAT = """
    z[i, j, h] = q[i, h] + k[j, h] if A[i, j]
    l[i, j, h] = where(z[i, j, h] > 0, z[i, j, h], slope * z[i, j, h])
    m[i, h] = max(j, l[i, j, h])
    p[i, j, h] = A[i, j] * exp(l[i, j, h] - m[i, h])
    s[i, h] = sum(j, p[i, j, h])
    t[i, h, f] = sum(j, p[i, j, h] * X[j, h, f])
    Y[i, h, f] = t[i, h, f] / maximum(s[i, h], 0.5)
"""
_ATTENTION = """
    z[i, j, h] = scale * sum(d, Q[i, h, d] * K[j, h, d]){bias} if M[i, j]
    m[i, h] = max(j, z[i, j, h])
    p[i, j, h] = exp(z[i, j, h] - {most}) if M[i, j]
    s[i, h] = sum(j, p[i, j, h])
    t[i, h, f] = sum(j, p[i, j, h] * V[j, h, f])
    Y[i, h, f] = t[i, h, f] / maximum(s[i, h], 0.5)
"""
# Of numbers that a mask adds, those of a whole row may be -inf: then the row is 0, as torch's.
_PLAIN = {"bias": "", "most": "m[i, h]"}
_BIASED = {"bias": " + M[i, j]", "most": "where(isinf(m[i, h]), 0, m[i, h])"}
_compiled = cache(compile_program)


@opaque
def sampled_matmul(X: torch.Tensor, Y: torch.Tensor, mask: Any) -> torch.Tensor:  # noqa: N803
    """Return ``X @ Y``, of (m, k) and (k, n), only where the sparse *mask* (m, n) stores elements.

    The result has its pattern; its values are not read. Raises SpcompError.
    """
    return _compiled(_SAMPLED)(X=X, Y=Y, M=_pattern(mask))


@opaque
def edge_softmax(
    scores: torch.Tensor, edge_index: torch.Tensor, dim_size: int | None = None
) -> torch.Tensor:
    """Return the softmax of *scores* (edges, ...) over the edges that go to the same node.

    *edge_index* and *dim_size* are those of :func:`gather_scatter`. Raises ArgumentError.
    """
    targets = checked_edges(edge_index)[1]
    check_shape("scores", scores, (len(targets), *scores.shape[1:]))
    return scatter_softmax(scores, targets, 0, dim_size)


@opaque
def gat_attention(
    x: torch.Tensor,
    alpha_src: torch.Tensor,
    alpha_dst: torch.Tensor,
    edge_index: torch.Tensor,
    negative_slope: float = 0.2,
) -> torch.Tensor:
    """Return what each node gets along its edges, weighted by their softmax, as in GAT.

    The score of an edge is the leaky ReLU of ``alpha_src`` where it comes from plus ``alpha_dst``
    where it goes to. Scores, softmax and sums are fused; weights are only kept for gradients.

    Args:
        x: Rows of the nodes that edges come from (sources, heads, features).
        alpha_src: A number for each of these nodes and head (sources, heads).
        alpha_dst: A number for each node that edges go to (targets, heads).
        edge_index: Whole numbers (2, edges): where edges come from, and where they go.
        negative_slope: That of the leaky ReLU.

    Returns:
        A tensor (targets, heads, features); nodes without edges get 0.

    Raises:
        ArgumentError: For nodes that do not exist, and shapes that do not fit.
    """
    _expect("x", x, 3)
    check_shape("alpha_src", alpha_src, x.shape[:2])
    check_shape("alpha_dst", alpha_dst, (None, x.shape[1]))
    pattern = of_edges(checked_edges(edge_index), len(alpha_dst), len(x))
    return _compiled(_GAT)(A=pattern, q=alpha_dst, k=alpha_src, X=x, slope=negative_slope)


@opaque
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    scale: float | None = None,
) -> torch.Tensor:
    """Return ``softmax(scale * query @ key.T) @ value`` over the pairs that a sparse mask stores.

    Args:
        query: Rows (..., queries, width); heads and batches come first, as for
            ``torch.nn.functional.scaled_dot_product_attention``.
        key: Rows (..., keys, width).
        value: Rows (..., keys, features).
        mask: A sparse matrix (queries, keys), for all heads. What it stores takes part, zeros and
            False, too; floats are added to the scores. Or a dense one of booleans.
        scale: By default the width to the power of -0.5.

    Returns:
        A tensor (..., queries, features); a query without keys, or only scores of -inf, gets 0.

    Raises:
        SpcompError: For shapes that do not fit, and dense masks of floats.
    """
    _expect("query", query, 2, at_least=True)
    _expect("key", key, 2, at_least=True)
    if query.shape[:-2] != key.shape[:-2] or query.shape[:-2] != value.shape[:-2]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ArgumentError(f"argument query: batches and heads differ: {shapes}")
    keys, width = key.shape[-2:]
    check_shape("query", query, (*query.shape[:-1], width))
    check_shape("value", value, (*value.shape[:-2], keys, None))
    check_shape("mask", mask, (query.shape[-2], keys))
    scale = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    has_bias = "float" in str(getattr(mask, "dtype", ""))
    if has_bias and isinstance(mask, np.ndarray | torch.Tensor) and _is_dense(mask):
        raise ArgumentError(
            "argument mask: is a dense one of floats, expected a sparse one, or booleans",
            hint="mask.to_sparse_csr() stores what is not 0; give booleans for pairs that take"
            " part, and torch's scaled_dot_product_attention for numbers of all pairs",
        )
    kernel = _compiled(_ATTENTION.format(**(_BIASED if has_bias else _PLAIN)))
    batch = query.shape[:-2]
    Q, K, V = (x.reshape(prod(batch), *x.shape[-2:]).transpose(0, 1) for x in (query, key, value))  # noqa: N806
    found = kernel(Q=Q, K=K, V=V, M=mask if has_bias else _pattern(mask), scale=scale)
    return found.transpose(0, 1).reshape(*query.shape[:-1], value.shape[-1])


@opaque
def rgcn(
    x: torch.Tensor,
    weight: torch.Tensor,
    edge_index: torch.Tensor,
    edge_type: torch.Tensor,
    reduce: str = "mean",
    dim_size: int | None = None,
) -> torch.Tensor:
    """Return what each node gets along typed edges: rows of *x*, reduced by type, times weights.

    Rows of one type that go to one node are reduced first and multiplied once, so neither messages
    nor a row for each node and type are stored.

    Args:
        x: A row for each node (nodes, features).
        weight: A matrix for each type (types, features, results).
        edge_index: Whole numbers (2, edges): where edges come from, and where they go.
        edge_type: The type of each edge.
        reduce: What is done with the rows of one type, ``mean``, ``sum``, ``min`` or ``max``;
            types are added.
        dim_size: The number of nodes that edges go to; by default as many as x has rows.

    Raises:
        ArgumentError: For nodes and types that do not exist.
    """
    _expect("x", x, 2)
    check_shape("weight", weight, (None, x.shape[1], None))
    sources, targets = checked_edges(edge_index)
    count = len(x) if dim_size is None else dim_size
    if edge_type.shape != targets.shape:
        got = tuple(edge_type.shape)
        raise ArgumentError(f"argument edge_type: has the shape {got}, expected ({len(targets)},)")
    check_numbers("edge_index[1]", targets, count)
    check_numbers("edge_type", edge_type, len(weight))
    if not len(weight):
        return x.new_zeros(count, weight.shape[2])
    pairs, place = torch.unique(edge_type.long() * count + targets, return_inverse=True)
    edges = torch.stack([sources.long(), place])
    rows = gather_scatter(x, edges, reduce, len(pairs))
    ends = torch.searchsorted(pairs, count * torch.arange(1, len(weight) + 1)).tolist()
    parts = rows.tensor_split(ends[:-1])
    products = torch.cat([part @ w for part, w in zip(parts, weight, strict=True)])
    return scatter(products, pairs % max(count, 1), 0, dim_size=count)


def _is_dense(mask: Any) -> bool:
    return bool(getattr(mask, "layout", torch.strided) == torch.strided)


def _pattern(mask: Any) -> Any:
    """Return *mask*, whose values are not read, without its gradients."""
    follows = isinstance(mask, torch.Tensor) and mask.requires_grad
    return mask.detach() if follows else mask


def _expect(who: str, tensor: torch.Tensor, dims: int, *, at_least: bool = False) -> None:
    """Raise ArgumentError unless *tensor* has *dims* dimensions, or *at_least* as many."""
    if tensor.dim() != dims and not (at_least and tensor.dim() > dims):
        raise ArgumentError(
            f"argument {who}: has {tensor.dim()} dimensions, expected {dims}"
            f"{' or more' if at_least else ''}"
        )
