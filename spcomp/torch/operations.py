"""For graph learning: products with sparse matrices, and pytorch_scatter's functions."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import torch

from spcomp.errors import ArgumentError
from spcomp.kernels.compile import compile as compile_program
from spcomp.kernels.opaque import opaque
from spcomp.tensors.tensor import Tensor
from spcomp.torch import segments
from spcomp.torch.segments import (
    Places,
    checked_edges,
    divided,
    known,
    numbers_of,
    of_edges,
    of_pointers,
    reduced,
)
from spcomp.torch.shapes import Rows, checked_dim, leading, length_along, result_into

_compiled = cache(compile_program)
_PRODUCTS = {  # by the rank of what the matrix is multiplied with
    1: "y[i] = A[i, j] * B[j]",
    2: "C[i, k] = A[i, j] * B[j, k]",
    3: "C[b, i, k] = A[i, j] * B[b, j, k]",
}


@opaque
def spmm(A: Any, B: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """Return the product of a sparse matrix (m, n) and a dense one (n, k): shape (m, k).

    B may also be a vector (n,), or have further dimensions in front, (b, n, k), as the result then
    has. Raises SpcompError.
    """
    is_dense = isinstance(A, torch.Tensor) and A.layout == torch.strided
    if is_dense and A.dtype in (torch.int32, torch.int64) and A.dim() == 2 and len(A) == 2:
        raise ArgumentError(
            f"argument A: got a dense tensor of {A.dtype} and shape {tuple(A.shape)}, which looks"
            " like the ends of edges, expected a sparse matrix",
            hint="gather_scatter(x, edge_index) sums along edges;"
            " torch.sparse_coo_tensor(edge_index, weights, (m, n)) is a sparse matrix",
        )
    rank = getattr(B, "ndim", 2)
    if rank == 0:
        raise ArgumentError(
            "argument B: got a number, expected a dense vector or matrix", hint="write A * B"
        )
    if rank < 3:
        return _compiled(_PRODUCTS[rank])(A=A, B=B)
    found = _compiled(_PRODUCTS[3])(A=A, B=B.reshape(prod(B.shape[:-2]), *B.shape[-2:]))
    return found.reshape(*B.shape[:-2], *found.shape[1:])


@opaque
def sddmm(A: Any, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """Return ``A * (X @ Y)`` where the sparse matrix A (m, n) stores elements, in its pattern.

    X has the shape (m, k), Y has (k, n). Raises SpcompError.
    """
    kernel = _compiled("C[i, j] = A[i, j] * X[i, k] * Y[k, j]")
    return kernel(A=A, X=X, Y=Y)


@opaque
def scatter(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """Return *src* reduced along *dim*: its element e goes to place ``index[e]`` of the result.

    Args:
        src: A dense tensor.
        index: Whole numbers of any order, one for each element along *dim*, or of the shape of src,
            or of one that can be expanded to it.
        dim: The dimension that is reduced.
        out: A tensor whose elements are reduced with those of src, in place. For ``mean`` they are
            part of the sum and not counted, as in pytorch_scatter.
        dim_size: The length of the result along *dim*; by default the greatest index plus 1.
        reduce: ``sum``, ``add``, ``mean``, ``mul``, ``min`` or ``max``. Where no element goes, the
            result is 0, and 1 for ``mul``.

    Raises:
        ArgumentError: For an index out of range, and what does not fit.
    """
    return scattered(src, index, dim, out, dim_size, known(reduce), elements=False)[0]


@opaque
def segment_csr(
    src: torch.Tensor,
    indptr: torch.Tensor,
    out: torch.Tensor | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """Return *src* reduced along a dimension: place n is ``src[indptr[n]:indptr[n + 1]]``.

    That dimension is the last one of *indptr*; those before it are src's, or 1. *out* is
    overwritten. *reduce* is that of :func:`scatter`. Raises ArgumentError.
    """
    return segmented(src, indptr, out, known(reduce), elements=False)[0]


@opaque
def segment_coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """Return :func:`scatter` along the last dimension of *index*, which need not be sorted."""
    dim = leading("index", index, src)
    return scatter(src, index, dim, out, dim_size, reduce)


@opaque
def gather_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the rows of *src*, row n ``indptr[n + 1] - indptr[n]`` times; *out* is overwritten.

    Rows are those along the last dimension of *indptr*. Raises ArgumentError.
    """
    rows = Rows.of(src, indptr, leading("indptr", indptr, src))
    size = int(indptr.max()) if indptr.numel() else 0
    pattern = of_pointers(rows.of_index(indptr), size)
    if indptr.shape[-1] != rows.size + 1 or pattern.nnz != size * rows.copies:
        raise ArgumentError(f"argument indptr: expected {rows.size + 1} positions from 0 on")
    found = rows.back(segments.kernel("gather")(X=rows.of_src(src), P=pattern), size)
    return result_into(out, found)


@opaque
def gather_coo(
    src: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the rows ``src[index]``, along the last dimension of *index*; *out* is overwritten.

    Raises ArgumentError.
    """
    rows = Rows.of(src, index, leading("index", index, src))
    numbers = numbers_of(rows, index, rows.size)
    picked = segments.kernel("pick")(X=rows.of_src(src), index=numbers)
    return result_into(out, rows.back(picked, index.shape[-1]))


@opaque
def segment_reduce(
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> torch.Tensor:
    """Return what ``torch.segment_reduce`` does, for data of any rank: segments of *data* reduced.

    Args:
        data: A dense tensor of floats.
        reduce: ``sum``, ``mean``, ``prod``, ``min`` or ``max``.
        lengths: The lengths of segments along *axis*, which is their last dimension; those before
            it are the dimensions of data, or 1.
        offsets: Where segments begin and end, in the place of *lengths*.
        axis: The dimension that is reduced.
        unsafe: Whether *lengths* may add up to less than the extent; segments are always checked.
        initial: What a segment starts with. Without it, an empty one is 0, NaN for ``mean``, 1 for
            ``prod``, and infinite for ``min`` and ``max``.

    Raises:
        ArgumentError: For segments that do not fit.
    """
    given = offsets if lengths is None else lengths
    if given is None or (lengths is not None and offsets is not None):
        raise ArgumentError("argument lengths: give either lengths or offsets")
    name, axis = known(reduce), checked_dim(axis, data, "axis")
    who = "offsets" if lengths is None else "lengths"
    if leading(who, given, data) != axis:
        raise ArgumentError(
            f"argument {who}: has {given.dim()} dimensions, expected {axis + 1} for axis={axis}"
        )
    if lengths is not None:
        extent = data.shape[axis]
        if (lengths < 0).any() or (not unsafe and (lengths.sum(-1) != extent).any()):
            raise ArgumentError(f"argument lengths: they do not add up to {extent}, the extent")
        zeros = lengths.new_zeros((*lengths.shape[:-1], 1))
        offsets = torch.cat([zeros, lengths.cumsum(-1)], -1)
    assert offsets is not None
    rows, count = Rows.of(data, offsets, axis), offsets.shape[axis] - 1
    pattern = of_pointers(rows.of_index(offsets), rows.size)
    line = {"min": "smallest", "max": "largest", "mean": "sum"}.get(name, name)
    found = segments.kernel(line)(X=rows.adjacent(data), P=pattern)
    if initial is not None:
        found = _started(found, torch.as_tensor(initial, dtype=found.dtype), name)
    if name == "mean":
        sizes = segments.counts(pattern)[:, None]
        found = found / (sizes if initial is None else sizes.clamp(min=1))
    return rows.back(found, count)


def _started(found: torch.Tensor, initial: torch.Tensor, reduce: str) -> torch.Tensor:
    """Return *found*, segments reduced, where they start with *initial*; it gets no gradients."""
    if reduce in ("sum", "mean"):
        return found + initial
    if reduce == "mul":
        return found * initial
    beats = initial < found if reduce == "min" else initial > found
    return torch.where(beats | initial.isnan(), initial, found)


@opaque
def gather_scatter(
    x: torch.Tensor,
    edge_index: torch.Tensor,
    reduce: str = "sum",
    dim_size: int | None = None,
) -> torch.Tensor:
    """Return what each node gets along the edges: rows of *x* (nodes, features), reduced.

    Args:
        x: A row for each node.
        edge_index: Whole numbers (2, edges): the nodes from which edges come, and to which they go.
        reduce: ``sum``, ``add``, ``mean``, ``min`` or ``max``.
        dim_size: The number of nodes that edges go to; by default as many as x has rows.

    Raises:
        ArgumentError: For nodes that do not exist.
    """
    checked_edges(edge_index)
    name = known(reduce)
    if name == "mul":
        raise ArgumentError("argument reduce: mul is for scatter", hint="gather rows, and scatter")
    pattern = of_edges(edge_index, len(x) if dim_size is None else dim_size, len(x))
    found, _ = reduced(_rows(x), pattern, name, "weighted", elements=False)
    return found.reshape(len(found), *x.shape[1:])


@opaque
def scattered(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
    *,
    elements: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what scatter does, and for min and max the elements; raises ArgumentError.

    *elements*: whether anybody asks for these.
    """
    dim = checked_dim(dim, src)
    places = Places.of(src, index, dim, length_along(dim, out, src, dim_size))
    rows, pattern, count = places.rows, places.pattern(), places.count
    if out is None:
        return _reduced(rows.adjacent(src), rows, pattern, reduce, count, elements=elements)
    if reduce == "mean":  # what is there already takes part in the sum
        found, arg = _reduced(rows.adjacent(src), rows, pattern, "sum", count)
        sizes = segments.counts(pattern)[:, None].expand(-1, rows.width)
        return out.copy_(divided(out + found, rows.back(sizes, count))), arg
    found, arg = _reduced(rows.adjacent(src), rows, pattern, reduce, count)
    if reduce in ("min", "max"):
        beats = (found < out if reduce == "min" else found > out) | (found.isnan() & ~out.isnan())
        beats &= arg < rows.size
        return out.copy_(torch.where(beats, found, out)), torch.where(beats, arg, rows.size)
    return (out.mul_ if reduce == "mul" else out.add_)(found), arg


@opaque
def segmented(
    src: torch.Tensor,
    indptr: torch.Tensor,
    out: torch.Tensor | None = None,
    reduce: str = "sum",
    *,
    elements: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what segment_csr does, and for min and max the elements; raises ArgumentError.

    *elements*: whether anybody asks for these.
    """
    rows = Rows.of(src, indptr, leading("indptr", indptr, src))
    pattern = of_pointers(rows.of_index(indptr), rows.size)
    count = indptr.shape[-1] - 1
    found, arg = _reduced(rows.adjacent(src), rows, pattern, reduce, count, elements=elements)
    return result_into(out, found), arg


def _reduced(
    src: torch.Tensor,
    rows: Rows,
    pattern: Tensor,
    reduce: str,
    count: int,
    *,
    elements: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows *src* reduced, and the elements that are the least or greatest.

    *count*: how many segments there are along the dimension that is reduced.
    """
    found, arg = reduced(src, pattern, reduce, elements=elements)
    if found is not arg:
        size, copies = rows.size, rows.copies
        if copies > 1:
            arg = torch.where(arg < size * copies, arg % max(size, 1), size)
        arg = rows.back(arg, count)
    found = rows.back(found, count)
    return found, arg


def _rows(src: torch.Tensor) -> torch.Tensor:
    """Return *src* as a matrix with a row for each element of its first dimension."""
    return src.reshape(len(src), prod(src.shape[1:]))
