"""For graph learning: products with sparse matrices, and pytorch_scatter's functions."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import torch

from spcomp.errors import ArgumentError
from spcomp.kernels.compile import compile as compile_program
from spcomp.kernels.opaque import opaque
from spcomp.torch import segments
from spcomp.torch.segments import known, of_edges, of_index, of_pointers, reduced

_compiled = cache(compile_program)


@opaque
def spmm(A: Any, B: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """Return the product of a sparse matrix (m, n) and a dense one (n, k): shape (m, k).

    Raises SpcompError.
    """
    return _compiled("C[i, k] = A[i, j] * B[j, k]")(A=A, B=B)


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
        out: What the reduced values are added to, or multiplied with, in place; for sum and mul.
        dim_size: The length of the result along *dim*; by default the greatest index plus 1.
        reduce: ``sum``, ``add``, ``mean``, ``mul``, ``min`` or ``max``. Where no element goes, the
            result is 0, and 1 for ``mul``.

    Raises:
        ArgumentError: For an index out of range, and what does not fit.
    """
    return _scattered(src, index, dim, out, dim_size, known(reduce))[0]


@opaque
def segment_csr(
    src: torch.Tensor,
    indptr: torch.Tensor,
    out: torch.Tensor | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """Return *src* reduced along its first dimension: place n is ``src[indptr[n]:indptr[n + 1]]``.

    *out* is overwritten. *reduce* is that of :func:`scatter`. Raises ArgumentError.
    """
    return _segmented(src, indptr, out, known(reduce))[0]


@opaque
def segment_coo(
    src: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> torch.Tensor:
    """Return :func:`scatter` along the first dimension; *index* need not be sorted."""
    if index.dim() != 1:
        raise ArgumentError(f"argument index: has {index.dim()} dimensions, expected 1")
    return scatter(src, index, 0, out, dim_size, reduce)


@opaque
def gather_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the rows of *src*, row n ``indptr[n + 1] - indptr[n]`` times; *out* is overwritten.

    Raises ArgumentError.
    """
    size = int(indptr[-1]) if indptr.numel() else 0
    pattern = of_pointers(indptr, size)
    if pattern.shape[0] != len(src) or pattern.nnz != size:
        raise ArgumentError(f"argument indptr: expected {len(src) + 1} positions from 0 on")
    rows = _rows(src)
    found = segments.kernel("gather")(X=rows, P=pattern).reshape(size, *src.shape[1:])
    return found if out is None else out.copy_(found)


@opaque
def scatter_min(
    src: torch.Tensor, index: torch.Tensor, dim: int = -1, dim_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return :func:`scatter` by ``min``, and the element that it was, ``src.size(dim)`` if none."""
    return _scattered(src, index, dim, None, dim_size, "min")


@opaque
def scatter_max(
    src: torch.Tensor, index: torch.Tensor, dim: int = -1, dim_size: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return :func:`scatter` by ``max``, and the element that it was, ``src.size(dim)`` if none."""
    return _scattered(src, index, dim, None, dim_size, "max")


@opaque
def segment_min_csr(src: torch.Tensor, indptr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return :func:`segment_csr` by ``min``, and the element that it was, ``len(src)`` if none."""
    return _segmented(src, indptr, None, "min")


@opaque
def segment_max_csr(src: torch.Tensor, indptr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return :func:`segment_csr` by ``max``, and the element that it was, ``len(src)`` if none."""
    return _segmented(src, indptr, None, "max")


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
    if edge_index.dim() != 2 or len(edge_index) != 2:
        got = tuple(edge_index.shape)
        raise ArgumentError(f"argument edge_index: has the shape {got}, expected (2, edges)")
    name = known(reduce)
    if name == "mul":
        raise ArgumentError("argument reduce: mul is for scatter", hint="gather rows, and scatter")
    pattern = of_edges(edge_index, len(x) if dim_size is None else dim_size, len(x))
    found, _ = reduced(_rows(x), pattern, name, "weighted")
    return found.reshape(len(found), *x.shape[1:])


def _scattered(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int,
    out: torch.Tensor | None,
    dim_size: int | None,
    reduce: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what scatter does, and for min and max the elements; raises ArgumentError."""
    if not -src.dim() <= dim < src.dim():
        raise ArgumentError(f"argument dim: got {dim}, and src has {src.dim()} dimensions")
    dim %= src.dim()
    _check_out(out, reduce)
    if out is not None:
        dim_size = out.shape[dim]
    elif dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() else 0
    moved = src.movedim(dim, 0)
    size, others = len(moved), moved.shape[1:]
    if index.dim() == 1 and len(index) == size:
        found, arg = reduced(_rows(moved), of_index(index, dim_size), reduce)
    else:  # each element goes to a place of its own
        places = _rows(_expanded(index, src, dim).movedim(dim, 0))
        width = places.shape[1]
        of_index(places, dim_size)  # checks them
        pattern = of_index(places * width + torch.arange(width), dim_size * width)
        found, arg = reduced(moved.reshape(size * width, 1), pattern, reduce)
        arg = torch.where(arg < size * width, arg // max(width, 1), size)
    found, arg = (x.reshape(dim_size, *others).movedim(0, dim) for x in (found, arg))
    if out is not None:
        found = out.mul_(found) if reduce == "mul" else out.add_(found)
    return found, arg


def _check_out(out: torch.Tensor | None, reduce: str) -> None:
    if out is not None and reduce not in ("sum", "mul"):
        raise ArgumentError(
            f"argument out: is for sum and mul, not for {reduce}",
            hint="leave it out, and combine the result with it",
        )


def _rows(src: torch.Tensor) -> torch.Tensor:
    """Return *src* as a matrix with a row for each element of its first dimension."""
    return src.reshape(len(src), prod(src.shape[1:]))


def _expanded(index: torch.Tensor, src: torch.Tensor, dim: int) -> torch.Tensor:
    """Return *index* in the shape of *src*, as pytorch_scatter broadcasts it."""
    before = dim if index.dim() == 1 else 0
    shape = (*(1,) * before, *index.shape)
    shape = (*shape, *(1,) * (src.dim() - len(shape)))
    try:
        return index.reshape(shape).expand(src.shape)
    except RuntimeError:
        raise ArgumentError(
            f"argument index: has the shape {tuple(index.shape)}, which does not fit"
            f" {tuple(src.shape)} of src",
            hint=_dim_that_fits(index, src, dim),
        ) from None


def _dim_that_fits(index: torch.Tensor, src: torch.Tensor, dim: int) -> str:
    """Return a hint at the dimension of *src* that *index*, which does not fit *dim*, is for."""
    dims = [d for d, size in enumerate(src.shape) if index.dim() == 1 and size == len(index)]
    if not dims:
        return f"it has one number for each of the {src.shape[dim]} elements along dim={dim}"
    return f"write dim={dims[0]}; by default it is -1, the last one"


def _segmented(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None, reduce: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what segment_csr does, and for min and max the elements; raises ArgumentError."""
    if not src.dim():
        raise ArgumentError("argument src: has no dimensions, expected one or more")
    found, arg = reduced(_rows(src), of_pointers(indptr, len(src)), reduce)
    found, arg = (x.reshape(len(x), *src.shape[1:]) for x in (found, arg))
    return found if out is None else out.copy_(found), arg
