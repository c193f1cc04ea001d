"""At a conversion: tensors of PyTorch to ours, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.tensors.convert import convert
from spcomp.tensors.libraries.torch import BLOCKED, layout_of
from spcomp.tensors.tensor import Tensor


def from_torch(tensor: Any, format: str | Format | None = None) -> Any:  # noqa: A002
    """Return the torch *tensor*, on the CPU, in *format*, as :func:`spcomp.convert` does.

    None: a :class:`spcomp.Tensor` in the same format, which may share the values; repeated
    elements (coo) are summed. Raises ArgumentError for other devices, batches, dense dimensions
    inside sparse ones, and dtypes that numpy lacks.
    """
    if format is None:
        kind = layout_of(tensor)
        name = {"strided": "dense", **dict.fromkeys(BLOCKED, "bsr")}.get(kind, kind)
        if kind in BLOCKED:
            name = f"bsr({', '.join(map(str, tensor.values().shape[1:]))})"
        format = Format.parse(name.removeprefix("sparse_"), tensor.ndim)  # noqa: A001
    return convert(tensor, format)


def to_torch(x: Any) -> torch.Tensor:
    """Return *x*, anything that :func:`spcomp.convert` takes, as a torch tensor on the CPU.

    Its layout is csr, csc or bsr for such a matrix, strided for a dense array, and coo otherwise.
    Values may be shared. Raises ArgumentError for dtypes and sizes that torch lacks.
    """
    if isinstance(x, torch.Tensor):
        return x
    if (size := math.prod(x.shape)) >= 1 << 63:
        raise ArgumentError(f"argument x: has {size} coordinates, torch counts to 2**63 - 1")
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
    """Return the tensor over *array*, or over a copy where torch needs one."""
    fits = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    array = array if fits else array.copy()
    try:
        if array.dtype.name == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
    except TypeError as error:
        raise ArgumentError(f"argument x: torch has no {array.dtype}: {error}") from None


def _coo(x: Tensor) -> torch.Tensor:
    coordinates, places = x.elements()
    values = _from_array(np.asarray(x.values).reshape(-1)[places])
    at = torch.from_numpy(np.stack(coordinates))
    return torch.sparse_coo_tensor(at, values, x.shape, is_coalesced=True, check_invariants=False)


def _rows(x: Tensor) -> torch.Tensor:
    level = x.levels[1]
    assert level is not None
    assert level.indptr is not None
    assert level.indices is not None
    arrays = [_from_array(array) for array in (level.indptr, level.indices)]
    blocks = tuple(part.size for part in x.levels[2:] if part is not None)
    values = _from_array(np.asarray(x.values).reshape(-1, *blocks))
    if blocks:
        return torch.sparse_bsr_tensor(*arrays, values, x.shape, check_invariants=False)
    make = torch.sparse_csr_tensor if x.is_plain else torch.sparse_csc_tensor
    return make(*arrays, values, x.shape, check_invariants=False)  # the Tensor checked them


_MAKE: Mapping[str, Callable[[Tensor], torch.Tensor]] = {
    "csr": _rows,
    "csc": _rows,
    "bsr": _rows,
    "coo": _coo,
}
