"""At a call that follows gradients: patterns of sparse torch tensors, made into Tensors once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.tensors.cache import Cache
from spcomp.tensors.conversions.rows import How
from spcomp.tensors.convert import to_tensor
from spcomp.tensors.libraries.torch import argument, array_of, layout_of
from spcomp.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The pattern of a sparse torch tensor: a Tensor of it.

    *places*: where each value of the Tensor lies among those of the torch tensor; None: they have
    the same order.
    """

    tensor: Tensor
    places: Array | None

    def with_values_of(self, tensor: torch.Tensor) -> Tensor:
        """Return the Tensor with the values of *tensor*; 16-bit floats become float32."""
        values = argument("values", values_of(tensor)).reshape(-1)
        return self.tensor.with_values(values if self.places is None else values[self.places])

    def is_of(self, other: Tensor) -> bool:
        """Whether *other* has this very pattern."""
        mine = [array for level in self.tensor.levels if level for array in level.arrays]
        its = [array for level in other.levels if level for array in level.arrays]
        same = len(mine) == len(its) and all(a is b for a, b in zip(mine, its, strict=True))
        return same and other.shape == self.tensor.shape and other.order == self.tensor.order

    def as_torch(
        self, other: Tensor, like: torch.Tensor, *, half: torch.dtype | None
    ) -> torch.Tensor:
        """Return *other*, which has this pattern, as a tensor with the index tensors of *like*.

        *half*: what float32 becomes.
        """
        values = np.asarray(other.values).reshape(-1)
        if self.places is not None:
            ordered = np.empty_like(values)
            ordered[self.places] = values
            values = ordered
        made = torch.from_numpy(values).reshape(values_of(like).shape)
        made = made.to(half) if half and made.dtype == torch.float32 else made
        if like.layout == torch.sparse_coo:
            at = like._indices()  # noqa: SLF001
            more = {"is_coalesced": True, "check_invariants": False}
            return torch.sparse_coo_tensor(at, made, like.shape, **more)
        return torch.sparse_compressed_tensor(
            *indices_of(like), made, like.shape, layout=like.layout, check_invariants=False
        )


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of the sparse *tensor*, apart from its gradients."""
    is_coo = tensor.layout == torch.sparse_coo
    return (tensor._values() if is_coo else tensor.values()).detach()  # noqa: SLF001


def indices_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the index tensors of the sparse *tensor*."""
    if tensor.layout == torch.sparse_coo:
        return (tensor._indices(),)  # noqa: SLF001
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices()
    return tensor.ccol_indices(), tensor.row_indices()


_PATTERNS: Cache[Pattern] = Cache()


def pattern_of(who: str, tensor: torch.Tensor) -> Pattern:
    """Return the pattern of the sparse *tensor*, the argument *who*; raises ArgumentError."""
    layout = layout_of(tensor, who)
    arrays = tuple(array_of(index, who) for index in indices_of(tensor))
    kind = layout, tuple(tensor.shape), tuple(values_of(tensor).shape)
    return _PATTERNS.get(kind, arrays, lambda: _pattern(who, layout, tensor))


def _pattern(who: str, layout: str, tensor: torch.Tensor) -> Pattern:
    values = values_of(tensor)
    numbers = torch.arange(values.numel()).reshape(values.shape)
    if layout == "sparse_coo":
        at, more = indices_of(tensor)[0], {"is_coalesced": True, "check_invariants": False}
        numbered = torch.sparse_coo_tensor(at, numbers, tensor.shape, **more)
    else:
        numbered = torch.sparse_compressed_tensor(
            *indices_of(tensor), numbers, tensor.shape, layout=tensor.layout, check_invariants=False
        )
    name = {"sparse_csc": "csc", "sparse_bsc": "csc"}.get(layout, "csr")
    format_ = Format.parse(name if tensor.ndim == 2 else "csf", tensor.ndim)
    try:
        made = to_tensor(numbered, format_, How(duplicates="error"))
    except ArgumentError as error:
        what = error.message.removeprefix("argument x: ")  # as conversions call their operand
        raise ArgumentError(f"argument {who}: {what}", hint=error.hint) from None
    places = made.values.reshape(-1)
    in_order = np.array_equal(places, np.arange(len(places)))
    return Pattern(made, None if in_order else places)
