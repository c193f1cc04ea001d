"""Above the compiler: what a tensor of PyTorch holds, and the one that a tensor of ours becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from spcomp.compiler import validate
from spcomp.compiler.conversions import convert
from spcomp.compiler.tensor import Tensor
from spcomp.errors import ArgumentError, expect
from spcomp.formats.format import Format

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_ORDERS = {"sparse_csr": (0, 1), "sparse_csc": (1, 0)}
_BLOCKED = {"sparse_bsr": (0, 1), "sparse_bsc": (1, 0)}


def from_torch(tensor: Any, format: str | Format | None = None) -> Any:  # noqa: A002
    """Return the torch *tensor*, on the CPU, in *format*, as :func:`spcomp.convert` does.

    None: a :class:`spcomp.Tensor` in the format that it has, whose values it may share, and its
    repeated elements (coo) added up. Raises ArgumentError for another device, batches, dense
    dimensions inside of sparse ones, and types of values that numpy has not.
    """
    if format is None:
        kind = _layout(tensor)
        name = {"strided": "dense", **dict.fromkeys(_BLOCKED, "bsr")}.get(kind, kind)
        if kind in _BLOCKED:
            name = f"bsr({', '.join(map(str, tensor.values().shape[1:]))})"
        format = Format.parse(name.removeprefix("sparse_"), tensor.ndim)  # noqa: A001
    return convert(tensor, format)


def to_torch(x: Any) -> torch.Tensor:
    """Return *x*, anything that :func:`spcomp.convert` takes, as a torch tensor on the CPU.

    A matrix by rows, columns or blocks has that layout, a dense array is strided, all else is coo.
    Values may be shared. Raises ArgumentError for types of values that torch has not.
    """
    if isinstance(x, torch.Tensor):
        return x
    kind = str(getattr(x, "format", ""))
    if isinstance(x, np.ndarray):
        return _from_array(x)
    if not isinstance(x, Tensor):
        name = {"bsr": f"bsr{getattr(x, 'blocksize', '')}"}.get(kind, kind)
        x = convert(x, Format.parse(name if kind in ("csr", "csc", "bsr") else "coo", x.ndim))
    kind = x.layout.name.partition("(")[0]
    if kind == "dense":
        return _from_array(np.asarray(x.values).reshape(x.shape))
    if kind not in _MAKE or not x.is_compact:
        kind, x = "coo", convert(x, Format.parse("coo", x.ndim))
    return _MAKE[kind](x)


def _from_array(array: Array) -> torch.Tensor:
    """Return the tensor over *array*, over a copy where torch cannot have it as it is."""
    fits = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    try:
        return torch.from_numpy(array if fits else array.copy())
    except TypeError as error:
        raise ArgumentError(f"argument x: torch has no {array.dtype}: {error}") from None


def _coo(x: Tensor) -> torch.Tensor:
    coordinates, places = x.elements()
    values = _from_array(np.asarray(x.values).reshape(-1)[places])
    at = torch.from_numpy(np.stack(coordinates))
    return torch.sparse_coo_tensor(at, values, x.shape, is_coalesced=True)


def _rows(x: Tensor) -> torch.Tensor:
    level = x.levels[1]
    assert level is not None
    assert level.indptr is not None
    assert level.indices is not None
    arrays = [_from_array(array) for array in (level.indptr, level.indices)]
    blocks = tuple(part.size for part in x.levels[2:] if part is not None)
    values = _from_array(np.asarray(x.values).reshape(-1, *blocks))
    if blocks:
        return torch.sparse_bsr_tensor(*arrays, values, x.shape)
    make = torch.sparse_csr_tensor if x.is_plain else torch.sparse_csc_tensor
    return make(*arrays, values, x.shape)


_MAKE: Mapping[str, Callable[[Tensor], torch.Tensor]] = {
    "csr": _rows,
    "csc": _rows,
    "bsr": _rows,
    "coo": _coo,
}


# -- for spcomp.convert --------------------------------------------------------------------------


def array_of(tensor: torch.Tensor) -> Array:
    """Return the numpy array over the memory of a strided *tensor*."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    try:
        return np.asarray(plain.numpy())
    except TypeError as error:
        raise ArgumentError(
            f"argument x: numpy has no {tensor.dtype}: {error}", hint="convert it with .float()"
        ) from None


def compressed(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return shape, pointers, indices, values and order of a matrix by rows or columns, or None."""
    order = _ORDERS.get(_layout(tensor))
    if order is None:
        return None
    pointers, indices = _index_arrays(tensor, order)
    return tuple(tensor.shape), pointers, indices, array_of(tensor.values()), order


def elements(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[Array, ...], Array]:
    """Return the shape, the coordinates by dimension, and the values of the stored elements."""
    kind, shape = _layout(tensor), tuple(tensor.shape)
    if kind == "strided":
        array = array_of(tensor)
        found = array.nonzero() if array.ndim else ()
        return shape, found, array[found]
    if kind == "sparse_coo":
        at = array_of(tensor._indices())  # noqa: SLF001 (what is repeated is not added up here)
        return shape, tuple(at), array_of(tensor._values())  # noqa: SLF001
    order = {**_ORDERS, **_BLOCKED}[kind]
    pointers, indices = _index_arrays(tensor, order)
    values = array_of(tensor.values())
    major = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    pair = [(major, indices)[order.index(dim)].astype(np.int64) for dim in (0, 1)]
    if kind in _BLOCKED:
        block = values.shape[1:]
        inner = np.indices(block).reshape(2, 1, -1)
        pair = [
            (p[:, None] * b + i).reshape(-1) for p, b, i in zip(pair, block, inner, strict=True)
        ]
    return shape, tuple(pair), values.reshape(-1)


def _index_arrays(tensor: torch.Tensor, order: tuple[int, int]) -> tuple[Array, Array]:
    by_rows = order == (0, 1)
    pointers = tensor.crow_indices() if by_rows else tensor.ccol_indices()
    indices = tensor.col_indices() if by_rows else tensor.row_indices()
    found = array_of(pointers), array_of(indices)
    blocks = tensor.values().shape[1:] or (1, 1)
    rows, columns = (tensor.shape[dim] // blocks[dim] for dim in order)
    validate.pointers("x", found[0], rows, len(found[1]), exact=True)
    validate.in_range("x", found[1], 0, columns - 1)
    return found


def _layout(tensor: torch.Tensor) -> str:
    """Return the name of the layout; raises ArgumentError for tensors that we have no use for."""
    expect("tensor", tensor, torch.Tensor, "a tensor of torch")
    kind = str(tensor.layout).removeprefix("torch.")
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f"argument x: lies on {tensor.device}, expected the CPU", hint="move it with .cpu()"
        )
    if tensor.requires_grad:
        raise ArgumentError(
            "argument x: requires gradients, which are not followed here",
            hint="give what it holds with .detach()",
        )
    known = {"strided", "sparse_coo", *_ORDERS, *_BLOCKED}
    if kind not in known:
        raise ArgumentError(
            f"argument x: got the layout {kind}, expected {', '.join(sorted(known))}"
        )
    plain = (
        tensor.dense_dim() == 0 if kind == "sparse_coo" else kind == "strided" or tensor.ndim == 2
    )
    if not plain:
        raise ArgumentError(
            "argument x: has dense dimensions inside of sparse ones, or batches",
            hint="give its parts one by one",
        )
    return kind
