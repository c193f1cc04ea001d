"""At a call on a GPU: sparse matrices of CuPy and PyTorch as arrays, and results like them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias, get_args

from spcomp.errors import ArgumentError
from spcomp.runtime.cuda.arrays import DeviceArray, Place, array_of, is_sparse, library_of

Format: TypeAlias = Literal["csr", "csc", "coo", "bsr", "bsc"]


@dataclass(frozen=True, slots=True)
class DeviceSparse:
    """A sparse tensor on a GPU, of the arrays that its library has, with scipy's names.

    *indptr*: of all formats but coo; *indices*: one array, or for coo one per dimension; *data*: of
    shape (nnz,), for bsr and bsc (blocks, rows of a block, columns of one). *unique*: the library
    says that coordinates ascend and none occurs twice; False where it does not know. Nothing else
    says that the index arrays are valid.
    """

    format: Format
    shape: tuple[int, ...]
    indptr: DeviceArray | None
    indices: tuple[DeviceArray, ...]
    data: DeviceArray
    unique: bool
    owner: Any


def sparse_of(arg: Any, place: Place, who: str = "x", *, written: bool = False) -> DeviceSparse:
    """Return the arrays of *arg*, a sparse matrix of cupyx or sparse tensor of PyTorch on a GPU.

    Raises ArgumentError for other things and formats, and as ``array_of`` does.
    """
    if not is_sparse(arg) or library_of(arg) not in ("torch", "cupy"):
        raise ArgumentError(
            f"argument {who}: got {type(arg).__name__}, expected a sparse matrix on a GPU"
        )
    torch, kind = library_of(arg) == "torch", kind_of(arg)
    if kind not in get_args(Format):
        raise ArgumentError(
            f"argument {who}: got the format {kind}", hint="convert it with .tocsr()"
        )
    if torch and arg.requires_grad:
        raise ArgumentError(
            f"argument {who}: requires gradients, which are not followed here",
            hint="give what it holds with .detach()",
        )
    format: Format = kind  # type: ignore[assignment]  # noqa: A001
    indptr, indices, data = (_of_torch if torch else _of_cupy)(arg, kind)
    if data.ndim != (3 if kind in ("bsr", "bsc") else 1):
        raise ArgumentError(
            f"argument {who}: has dense dimensions inside of sparse ones, or batches",
            hint="give its parts one by one",
        )
    unique = (
        bool(arg.is_coalesced() if torch else arg.has_canonical_format) if kind == "coo" else False
    )
    return DeviceSparse(
        format,
        tuple(map(int, arg.shape)),
        None if indptr is None else array_of(indptr, place, f"{who}.indptr"),
        tuple(array_of(part, place, f"{who}.indices") for part in indices),
        array_of(data, place, f"{who}.data", written=written),
        unique,
        arg,
    )


def kind_of(arg: Any) -> str:
    """Return the name of the format of *arg*, a sparse matrix of cupyx or tensor of PyTorch."""
    return str(getattr(arg, "format", None) or arg.layout).removeprefix("torch.sparse_")


def _of_torch(tensor: Any, kind: str) -> tuple[Any, tuple[Any, ...], Any]:
    if kind == "coo":
        at = tensor._indices()  # noqa: SLF001 (repeated elements stay apart here)
        return None, tuple(at[dim].contiguous() for dim in range(at.shape[0])), tensor._values()  # noqa: SLF001
    if kind in ("csr", "bsr"):
        return tensor.crow_indices(), (tensor.col_indices(),), tensor.values()
    return tensor.ccol_indices(), (tensor.row_indices(),), tensor.values()


def _of_cupy(matrix: Any, kind: str) -> tuple[Any, tuple[Any, ...], Any]:
    if kind == "coo":
        return None, (matrix.row, matrix.col), matrix.data
    return matrix.indptr, (matrix.indices,), matrix.data


def with_data(pattern: DeviceSparse, data: DeviceArray) -> Any:
    """Return a sparse matrix of the library of *pattern*, with its index arrays and other *data*.

    *data* has the shape of the pattern's and is an array of the same library.
    """
    if data.shape != pattern.data.shape or data.library != pattern.data.library:
        raise ArgumentError(f"got data {data.shape} of {data.library} for {pattern.data.shape}")
    owner, values = pattern.owner, data.owner
    if data.library == "torch":
        torch = sys.modules["torch"]
        if pattern.indptr is None:
            given = owner._indices(), values, pattern.shape  # noqa: SLF001
            return torch.sparse_coo_tensor(
                *given, is_coalesced=pattern.unique, check_invariants=False
            )
        arrays = pattern.indptr.owner, pattern.indices[0].owner, values
        return torch.sparse_compressed_tensor(
            *arrays, pattern.shape, layout=owner.layout, check_invariants=False
        )
    if pattern.indptr is None:
        return type(owner)((values, tuple(part.owner for part in pattern.indices)), pattern.shape)
    arrays = values, pattern.indices[0].owner, pattern.indptr.owner
    return type(owner)(arrays, shape=pattern.shape)


def sparse_from(
    format: Format,  # noqa: A002
    majors: DeviceArray,
    minors: DeviceArray,
    data: DeviceArray,
    shape: tuple[int, ...],
) -> Any:
    """Return a matrix in csr, csc or coo of the library of *data*, PyTorch or CuPy.

    *majors* are pointers, for coo rows.
    """
    first, second, values = majors.owner, minors.owner, data.owner
    if data.library == "torch":
        torch = sys.modules["torch"]
        if format == "coo":
            at = torch.stack((first, second))
            return torch.sparse_coo_tensor(at, values, shape, check_invariants=False)
        layout = torch.sparse_csr if format == "csr" else torch.sparse_csc
        return torch.sparse_compressed_tensor(
            first, second, values, shape, layout=layout, check_invariants=False
        )
    make = getattr(import_module("cupyx.scipy.sparse"), f"{format}_matrix")
    arrays = (values, (first, second)) if format == "coo" else (values, second, first)
    return make(arrays, shape=shape)
