"""For graph learning: tensors of any rank as rows of a matrix, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from spcomp.errors import ArgumentError

WIDE = 8  # numbers in a row that is worth a copy


@dataclass(frozen=True, slots=True)
class Rows:
    """How a tensor of this *shape*, reduced along *dim*, is a matrix whose rows are reduced.

    *apart*: the dimensions along which segments differ. Coordinates along them number segments, and
    those along dimensions that are neither are columns.
    """

    shape: tuple[int, ...]
    dim: int
    apart: tuple[int, ...]

    @classmethod
    def of(cls, src: torch.Tensor, at: torch.Tensor, dim: int) -> Rows:
        """Return the rows of *src* where *at*, which its dimensions begin with, says segments.

        Where *at* has one coordinate, or was expanded, segments are the same.
        """
        sizes = enumerate(zip(at.shape, at.stride(), strict=True))
        apart = (d for d, (n, step) in sizes if d != dim and n != 1 and (step or not n))
        return cls(tuple(src.shape), dim, tuple(apart))

    @property
    def size(self) -> int:
        """The number of elements along the dimension that is reduced."""
        return self.shape[self.dim]

    @property
    def copies(self) -> int:
        """How often segments are numbered anew."""
        return prod(self.shape[d] for d in self.apart)

    @property
    def width(self) -> int:
        """The number of columns."""
        return prod(n for d, n in enumerate(self.shape) if d != self.dim and d not in self.apart)

    def of_src(self, src: torch.Tensor) -> torch.Tensor:
        """Return the rows of *src*, or of a tensor of another length along *dim*."""
        moved = src.permute(self._order())
        return moved.reshape(self.copies * src.shape[self.dim], self.width)

    def adjacent(self, src: torch.Tensor) -> torch.Tensor:
        """Return :meth:`of_src` in the order of memory, for rows that are read in any order.

        Numbers far apart are copied together first; of few in a row that takes longer.
        """
        rows = self.of_src(src)
        return rows if self.width < WIDE or rows.stride(1) == 1 else rows.contiguous()

    def of_index(self, at: torch.Tensor) -> torch.Tensor:
        """Return *at*, of which :meth:`of` made this, with a row for each copy of the segments."""
        kept = {*self.apart, self.dim}
        at = at[tuple(slice(None) if d in kept else 0 for d in range(at.dim()))]
        moved = at.movedim(sum(d < self.dim for d in self.apart), -1)
        return moved.reshape(self.copies, moved.shape[-1])

    def back(self, rows: torch.Tensor, length: int) -> torch.Tensor:
        """Return *rows* as the tensor with this *length* along *dim*."""
        order = self._order()
        sizes = [length if d == self.dim else self.shape[d] for d in order]
        back = sorted(range(len(order)), key=order.__getitem__)
        return rows.reshape(sizes).permute(back)

    def _order(self) -> tuple[int, ...]:
        first = (*self.apart, self.dim)
        return (*first, *(d for d in range(len(self.shape)) if d not in first))


def checked_dim(dim: int, src: torch.Tensor, who: str = "dim") -> int:
    """Return *dim*, counted from the first dimension of *src*; raises ArgumentError."""
    check_dense("src", src)
    if not -src.dim() <= dim < src.dim():
        raise ArgumentError(f"argument {who}: got {dim}, and src has {src.dim()} dimensions")
    return dim % len(src.shape)


def check_dense(who: str, tensor: torch.Tensor) -> None:
    """Raise ArgumentError unless *tensor* is a dense tensor."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        got = getattr(tensor, "layout", type(tensor).__name__)
        raise ArgumentError(f"argument {who}: got {got}, expected a dense tensor")


def check_shape(who: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> None:
    """Raise ArgumentError unless *tensor* has this *shape*; None: of any length."""
    got = tuple(tensor.shape)
    same = len(got) == len(shape) and all(n in (None, m) for n, m in zip(shape, got, strict=True))
    if not same:
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        expected += "," * (len(shape) == 1)
        raise ArgumentError(f"argument {who}: has the shape {got}, expected ({expected})")


def broadcast(index: torch.Tensor, src: torch.Tensor, dim: int) -> torch.Tensor:
    """Return *index* with the dimensions of *src*, as pytorch_scatter broadcasts it."""
    before = dim if index.dim() == 1 else 0
    shape = (*(1,) * before, *index.shape)
    shape = (*shape, *(1,) * (src.dim() - len(shape)))
    made = index.reshape(shape)
    if not _fits(made.shape, src.shape):
        raise ArgumentError(
            f"argument index: has the shape {tuple(index.shape)}, which does not fit"
            f" {tuple(src.shape)} of src",
            hint=_dim_that_fits(index, src, dim),
        )
    return made.expand([n if d == dim else -1 for d, n in enumerate(src.shape)])


def leading(who: str, at: torch.Tensor, src: torch.Tensor) -> int:
    """Return the dimension of *src* whose segments the last one of *at* says.

    The dimensions before it are those of *src*, or have one coordinate. Raises ArgumentError.
    """
    check_dense("src", src)
    dim = len(at.shape) - 1
    if dim < 0 or at.dim() > src.dim() or not _fits(at.shape[:dim], src.shape[:dim]):
        raise ArgumentError(
            f"argument {who}: has the shape {tuple(at.shape)}, which does not fit"
            f" {tuple(src.shape)} of src",
            hint="its last dimension stands for one of src, and those before it are src's, or 1",
        )
    return dim


def result_into(out: torch.Tensor | None, found: torch.Tensor) -> torch.Tensor:
    """Return *found*, in the memory of *out* if there is one; raises ArgumentError."""
    if out is None:
        return found
    check_out(out, found.shape, found.dtype)
    return out.copy_(found)


def length_along(
    dim: int, out: torch.Tensor | None, src: torch.Tensor, size: int | None
) -> int | None:
    """Return how long a result made of *src* is along *dim*; None if its indices say that.

    *size*: the length that was asked for. Raises ArgumentError if *out* does not fit.
    """
    if out is None:
        return size
    dim = checked_dim(dim, src)
    length: int = out.shape[dim] if out.dim() == src.dim() else src.shape[dim]
    check_out(out, (*src.shape[:dim], length, *src.shape[dim + 1 :]), src.dtype)
    if size not in (None, length):
        raise ArgumentError(f"argument dim_size: got {size}, and out has {length} elements")
    return length


def check_out(out: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise ArgumentError unless *out* has this *shape*, and a type that *dtype* converts to."""
    if tuple(out.shape) != tuple(shape):
        got, expected = tuple(out.shape), tuple(shape)
        raise ArgumentError(f"argument out: has the shape {got}, expected {expected}")
    if not torch.can_cast(dtype, out.dtype):
        raise ArgumentError(f"argument out: has the type {out.dtype}, expected {dtype}")


def _fits(shape: Sequence[int], of: Sequence[int]) -> bool:
    """Whether a tensor of this *shape* can be expanded to the shape *of*."""
    return len(shape) == len(of) and all(n in (1, size) for n, size in zip(shape, of, strict=True))


def _dim_that_fits(index: torch.Tensor, src: torch.Tensor, dim: int) -> str:
    """Return a hint at the dimension of *src* that *index*, which does not fit *dim*, is for."""
    dims = [d for d, size in enumerate(src.shape) if index.dim() == 1 and size == len(index)]
    if not dims:
        return f"it has one number for each of the {src.shape[dim]} elements along dim={dim}"
    return f"write dim={dims[0]}; by default it is -1, the last one"
