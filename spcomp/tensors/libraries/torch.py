"""At a call or a conversion: the arrays of PyTorch tensors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import numpy as np
import torch

from spcomp.arrays import Array
from spcomp.dtypes import DType, bfloat16, float16, promote
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError, expect
from spcomp.runtime.cuda.arrays import note_write
from spcomp.tensors import checks as validate
from spcomp.tensors.libraries.scipy import scipy_holds, scipy_of_arrays

_ORDERS = {"sparse_csr": (0, 1), "sparse_csc": (1, 0)}
HALVES = {torch.bfloat16: bfloat16, torch.float16: float16}
BLOCKED = {"sparse_bsr": (0, 1), "sparse_bsc": (1, 0)}


def array_of(tensor: torch.Tensor, who: str = "x") -> Array:
    """Return the numpy array over the memory of a strided *tensor*, the argument *who*.

    Raises ArgumentError, also for bfloat16 where ml_dtypes is not imported.
    """
    try:
        if torch._C._are_functorch_transforms_active():  # noqa: SLF001
            with torch._C._DisableFuncTorch():  # noqa: SLF001 (it wraps what is made under it)
                return _array(tensor)
        return _array(tensor)
    except TypeError as error:
        has_package = "import ml_dtypes first, or " if tensor.dtype == torch.bfloat16 else ""
        raise ArgumentError(
            f"argument {who}: numpy has no {tensor.dtype}: {error}",
            hint=f"{has_package}convert it with .float()",
        ) from None
    except RuntimeError as error:
        if torch._C._functorch.is_legacy_batchedtensor(tensor):  # noqa: SLF001
            raise ArgumentError(
                f"argument {who}: stands for a batch, of is_grads_batched=True or vectorize=True",
                hint="leave that out, or use torch.func.vmap, jacrev or hessian",
            ) from None
        raise ArgumentError(
            f"argument {who}: the tensor gives no array: {error}",
            hint="where torch traces, as torch.export does, take an operator:"
            " spcomp.torch.op(program, name=...)",
        ) from None


def _array(tensor: torch.Tensor) -> Array:
    if tensor.requires_grad or tensor.is_neg() or tensor.is_conj():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(np.dtype("bfloat16"))
    return np.asarray(tensor.numpy())


def compressed(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return shape, pointers, indices, values and order of a csr or csc matrix, else None."""
    order = _ORDERS.get(layout_of(tensor))
    if order is None:
        return None
    pointers, indices = _index_arrays(tensor, order)
    return tuple(tensor.shape), pointers, indices, array_of(tensor.values()), order


def elements(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[Array, ...], Array]:
    """Return the shape, the coordinates by dimension, and the values of the stored elements."""
    kind, shape = layout_of(tensor), tuple(tensor.shape)
    if kind == "strided":
        array = array_of(tensor)
        coordinates = array.nonzero() if array.ndim else ()
        return shape, coordinates, array[coordinates]
    if kind == "sparse_coo":
        at = array_of(tensor._indices())  # noqa: SLF001 (repeated elements stay apart here)
        return shape, tuple(at), array_of(tensor._values())  # noqa: SLF001
    order = {**_ORDERS, **BLOCKED}[kind]
    pointers, indices = _index_arrays(tensor, order)
    values = array_of(tensor.values())
    major = np.repeat(np.arange(len(pointers) - 1), np.diff(pointers))
    pair = [(major, indices)[order.index(dim)].astype(np.int64) for dim in (0, 1)]
    if kind in BLOCKED:
        block = values.shape[1:]
        inner = np.indices(block).reshape(2, 1, -1)
        pair = [
            (p[:, None] * b + i).reshape(-1) for p, b, i in zip(pair, block, inner, strict=True)
        ]
    return shape, tuple(pair), values.reshape(-1)


def _index_arrays(tensor: torch.Tensor, order: tuple[int, int]) -> tuple[Array, Array]:
    arrays = _unchecked_arrays(tensor, order)
    blocks = tensor.values().shape[1:] or (1, 1)
    rows, columns = (tensor.shape[dim] // blocks[dim] for dim in order)
    validate.pointers("x", arrays[0], rows, len(arrays[1]), exact=True)
    validate.in_range("x", arrays[1], 0, columns - 1)
    return arrays


def _unchecked_arrays(
    tensor: torch.Tensor, order: tuple[int, int], who: str = "x"
) -> tuple[Array, Array]:
    """Return the pointers and indices of a compressed *tensor*, whatever they hold."""
    pointers, indices = _index_tensors(tensor, order)
    return array_of(pointers, who), array_of(indices, who)


def _index_tensors(
    tensor: torch.Tensor, order: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    if order == (0, 1):
        return tensor.crow_indices(), tensor.col_indices()
    return tensor.ccol_indices(), tensor.row_indices()


def layout_of(tensor: torch.Tensor, who: str = "x") -> str:
    """Return the name of the layout of *tensor*; raises ArgumentError for unsupported tensors."""
    expect("tensor", tensor, torch.Tensor, "a tensor of torch")
    followed = tensor.requires_grad and torch.is_grad_enabled()
    if tensor.layout is torch.strided and tensor.is_cpu and not followed:
        return "strided"
    kind = str(tensor.layout).removeprefix("torch.")
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f"argument {who}: lies on {tensor.device}, expected the CPU", hint="move it with .cpu()"
        )
    if followed:
        raise ArgumentError(
            f"argument {who}: requires gradients, which are not followed here",
            hint="give what it holds with .detach()",
        )
    layouts = {"strided", "sparse_coo", *_ORDERS, *BLOCKED}
    if kind not in layouts:
        raise ArgumentError(
            f"argument {who}: got the layout {kind}, expected {', '.join(sorted(layouts))}"
        )
    plain = (
        tensor.dense_dim() == 0 if kind == "sparse_coo" else kind == "strided" or tensor.ndim == 2
    )
    if not plain:
        raise ArgumentError(
            f"argument {who}: has dense dimensions inside of sparse ones, or batches",
            hint="give its parts one by one",
        )
    return kind


def array_for(who: str, tensor: torch.Tensor, dtype: DType, *, written: bool) -> Array:
    """Return the array over the memory of a strided *tensor*, for a buffer of type *dtype*.

    bfloat16 travels as its bits. *written*: the memory itself is needed. Raises ArgumentError.
    """
    if written:
        require_memory(who, tensor)
    _require_strided(who, tensor)
    if written:
        note_write(tensor)
    return bits_of(tensor) if dtype == bfloat16 and is_bfloat16(tensor) else array_of(tensor, who)


def number(who: str, tensor: torch.Tensor) -> Any:
    """Return a *tensor* without dimensions as a Python number; raises ArgumentError."""
    _require_strided(who, tensor)
    if tensor.ndim:
        raise ArgumentError(f"argument {who}: got {tensor.ndim} dimensions, expected a number")
    return array_of(tensor.float() if is_bfloat16(tensor) else tensor, who).item()


def argument(who: str, tensor: torch.Tensor) -> Any:
    """Return what index notation takes for *tensor*: an array over the memory of a strided one.

    That is a matrix of scipy for csr and csc. 16-bit floats become a copy in float32, which holds
    the same numbers, and sums of them. Raises ArgumentError.
    """
    kind = layout_of(tensor, who)
    if tensor.dtype in HALVES:
        tensor = tensor.float()
    if kind == "strided":
        return array_of(tensor, who)
    return _matrix(who, tensor, kind) if kind in _ORDERS else tensor


def _matrix(who: str, tensor: torch.Tensor, kind: str) -> Any:
    """Return the scipy array over the memory of a csr or csc *tensor*; the call checks indices."""
    import scipy.sparse as sps

    values = array_of(tensor.values(), who)
    if not scipy_holds(values.dtype):
        return tensor
    pointers, indices = _unchecked_arrays(tensor, _ORDERS[kind], who)
    make = sps.csr_array if kind == "sparse_csr" else sps.csc_array
    return scipy_of_arrays(make, tuple(tensor.shape), values, indices, pointers)


def with_private_indices(tensor: torch.Tensor) -> torch.Tensor:
    """Return *tensor* with index arrays of its own; a csr or csc matrix shares its values."""
    kind = str(tensor.layout).removeprefix("torch.")
    if kind not in _ORDERS:
        return tensor if kind == "strided" else tensor.clone()
    arrays = *(a.clone() for a in _index_tensors(tensor, _ORDERS[kind])), tensor.values()
    make = torch.sparse_csr_tensor if kind == "sparse_csr" else torch.sparse_csc_tensor
    return make(*arrays, tuple(tensor.shape), check_invariants=False)


def is_bfloat16(tensor: torch.Tensor) -> bool:
    """Return whether *tensor* is a strided one of bfloat16."""
    return bool(tensor.dtype == torch.bfloat16 and tensor.layout == torch.strided)


def is_half(tensor: torch.Tensor) -> bool:
    """Return whether *tensor* is a strided one of 16-bit floats."""
    return bool(tensor.dtype in HALVES and tensor.layout == torch.strided)


def bits_of(tensor: torch.Tensor) -> Array:
    """The numpy array over the memory of a strided *tensor* of 16-bit floats, of its bits."""
    return array_of(tensor.detach().view(torch.int16)).view(np.uint16)


def half_of(args: Iterable[Any]) -> torch.dtype | None:
    """The type of 16-bit floats to which the types of *args* promote, if a tensor has it."""
    types = [arg.dtype for arg in args if hasattr(arg, "dtype")]
    if all(kind not in HALVES for kind in types):
        return None
    names = (str(kind).removeprefix("torch.") for kind in types)
    try:
        common = reduce(promote, map(dtype_of, names))
    except ValueError:  # a type that the kernel refuses
        return None
    return next((half for half, ours in HALVES.items() if ours == common), None)


def _require_strided(who: str, tensor: torch.Tensor) -> None:
    kind = layout_of(tensor, who)
    if kind != "strided":
        raise ArgumentError(
            f"argument {who}: got a tensor of layout {kind}, expected a strided one",
            hint=f'spcomp.convert({who}, "csr") makes a scipy array of it',
        )


def require_memory(who: str, tensor: torch.Tensor) -> None:
    """Raise ArgumentError unless the elements of *tensor* lie in its memory, in order."""
    strided = layout_of(tensor, who) == "strided"
    if not strided or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        raise ArgumentError(
            f"argument {who}: is {'not contiguous' if strided else 'sparse'},"
            " and the program writes it",
            hint="give a tensor made by torch.empty, or leave it out",
        )
