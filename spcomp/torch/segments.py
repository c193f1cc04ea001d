"""For graph learning: reductions over segments, named and called as pytorch_scatter's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, expect, nearest_or_all
from spcomp.kernels.compile import compile as compile_program
from spcomp.kernels.gradients import is_transformed
from spcomp.kernels.notation.scatters import rows_of
from spcomp.tensors import checks as validate
from spcomp.tensors.cache import Cache
from spcomp.tensors.conversions.levels import LARGEST
from spcomp.tensors.libraries.torch import array_of, layout_of
from spcomp.tensors.tensor import Tensor
from spcomp.torch.shapes import Rows, broadcast, checked_dim
from spcomp.torch.transforms import unwrapped

if TYPE_CHECKING:
    from spcomp.kernels.notation.kernel import NotationKernel

# The first element that is the extreme M, or NaN. Two passes over a row, in vectors, take a fifth
# of the time of argmax, which looks at one number after the other.
_FIRST = "Y[n, f] = min(e, e if P[n, e] and (X[e, f] == M[n, f] or X[e, f] != X[e, f]))"
# Element e of the rows X belongs to segment n if P stores (n, e).
_LINES = {
    "sum": "Y[n, f] = sum(e, X[e, f] if P[n, e])",
    "mul": "Y[n, f] = prod(e, X[e, f] if P[n, e])",
    "least": "M[n, f] = min(e, X[e, f] if P[n, e]); " + _FIRST,
    "greatest": "M[n, f] = max(e, X[e, f] if P[n, e]); " + _FIRST,
    "weighted": "Y[n, f] = P[n, e] * X[e, f]",
    "counts": "Y[n] = sum(e, P[n, e])",
    "gather": "Y[e, f] = sum(n, X[n, f] if P[n, e])",
    "largest": "Y[n, f] = max(e, X[e, f] if P[n, e])",
    "smallest": "Y[n, f] = min(e, X[e, f] if P[n, e])",
    "pick": "Y[e, f] = X[index[e], f]",
}
_SAME = {"add": "sum", "prod": "mul", "amin": "min", "amax": "max"}
REDUCTIONS = ("sum", "add", "mean", "mul", "min", "max")


@cache
def kernel(reduce: str) -> NotationKernel:
    """Return the kernel that reduces segments by *reduce*."""
    made: NotationKernel = compile_program(_LINES[reduce])
    return made


_SEGMENTS: Cache[Tensor] = Cache()


def _index_array(who: str, index: Any) -> Array:
    if not isinstance(index, torch.Tensor) or layout_of(index, who) != "strided":
        raise ArgumentError(f"argument {who}: expected a strided tensor of integers")
    array = array_of(unwrapped(who, index), who)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"argument {who}: got {index.dtype}, expected integers")
    return array if array.dtype.itemsize >= 4 else array.astype(np.int32)


def of_index(index: torch.Tensor, count: int) -> Tensor:
    """Return the pattern of *count* segments where element e is in segment ``index[e]``.

    Sorted once: a later call with the same index, by its contents, gets the same pattern.
    """
    return rows_of("index", _index_array("index", index).reshape(-1), count)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the elements of a tensor go: row r of *rows* goes to segment ``numbers[r]``.

    *count*: how many segments there are along the dimension that is reduced.
    """

    rows: Rows
    numbers: torch.Tensor
    count: int

    @classmethod
    def of(
        cls, src: torch.Tensor, index: torch.Tensor, dim: int, count: int | None = None
    ) -> Places:
        """Return where *index* says that *src* goes along *dim*; raises ArgumentError.

        *count*: the greatest index plus 1, if it is not given.
        """
        dim = checked_dim(dim, src)
        array = _index_array("index", index)
        if count is None:
            count = int(array.max()) + 1 if array.size else 0
        elif count < 0:
            raise ArgumentError(f"argument dim_size: got {count}, expected a length")
        elif count > LARGEST:
            raise ArgumentError(f"argument dim_size: got {count}, expected {LARGEST} at the most")
        index = broadcast(index, src, dim)
        rows = Rows.of(src, index, dim)
        return cls(rows, numbers_of(rows, index, count), count)

    @property
    def total(self) -> int:
        """The number of all segments."""
        return self.rows.copies * self.count

    def pattern(self) -> Tensor:
        """Return the matrix that has the rows of each segment; raises ArgumentError."""
        return of_index(self.numbers, self.total)


def numbers_of(rows: Rows, index: torch.Tensor, count: int) -> torch.Tensor:
    """Return *index* as a vector, in which each copy of *count* segments has numbers of its own."""
    numbers = rows.of_index(index)
    if rows.copies != 1:
        check_numbers("index", numbers.reshape(-1), count)
        numbers = numbers.long() + count * torch.arange(rows.copies)[:, None]
    return torch.from_numpy(_index_array("index", numbers.reshape(-1)))


def _matrix(rows: Array, columns: Array, shape: tuple[int, int]) -> Tensor:
    """Return the csr matrix that counts how often each row comes with each column."""
    return Tensor.from_coo((rows, columns), np.ones(len(rows), np.int32), shape, "csr")


def of_pointers(pointers: torch.Tensor, size: int) -> Tensor:
    """Return the pattern of segments that follow one another in *size* elements.

    *pointers*: where they begin and end (copies, segments + 1). Copies follow one another.
    """
    array = _index_array("indptr", pointers)

    def make() -> Tensor:
        first, last = array[:, :1], array[:, -1:]
        lengths = np.diff(array)
        none = not array.shape[1] and len(array)
        if none or first.min(initial=0) < 0 or np.any(lengths < 0):
            raise ArgumentError("argument indptr: expected ascending positions from 0 on")
        end = last.max(initial=0)
        if end > size:
            raise ArgumentError(f"argument indptr: ends at {end}, and src has {size} elements")
        at = np.arange(size)
        places = np.flatnonzero((first <= at) & (at < last))
        level = ("compressed", np.append(0, np.cumsum(lengths)), places)
        shape = (lengths.size, len(array) * size)
        return Tensor(shape, [None, level], np.ones(len(places), np.int32))

    return _SEGMENTS.get(("pointers", size), (np.ascontiguousarray(array),), make)


def check_numbers(who: str, index: torch.Tensor, count: int) -> None:
    """Raise ArgumentError unless the vector *index* has numbers from 0 to *count* - 1."""
    validate.in_range(who, _index_array(who, index), 0, count - 1)


def checked_edges(edge_index: torch.Tensor) -> torch.Tensor:
    """Return *edge_index*; raises ArgumentError unless it has two rows."""
    pair = "torch.stack([source, target])"
    expect("edge_index", edge_index, torch.Tensor, "a tensor (2, edges)", hint=f"give {pair}")
    if edge_index.dim() != 2 or len(edge_index) != 2:
        got = tuple(edge_index.shape)
        raise ArgumentError(f"argument edge_index: has the shape {got}, expected (2, edges)")
    return edge_index


def of_edges(edge_index: torch.Tensor, targets: int, sources: int) -> Tensor:
    """Return a matrix of how many edges go to each of *targets* nodes from each of *sources*."""
    array = np.ascontiguousarray(_index_array("edge_index", edge_index))

    def make() -> Tensor:
        for row, (at, count) in enumerate(zip(array, (sources, targets), strict=True)):
            validate.in_range(f"edge_index[{row}]", at, 0, count - 1)
        return _matrix(array[1], array[0], (targets, sources))

    return _SEGMENTS.get(("edges", targets, sources), (array,), make)


def counts(pattern: Tensor, *, weighted: bool = False) -> torch.Tensor:
    """Return how many elements each segment of *pattern* has; *weighted*: its values say it."""
    if weighted:
        return torch.from_numpy(kernel("counts")(P=pattern))
    level = pattern.levels[1]
    assert level is not None
    assert level.indptr is not None
    return torch.from_numpy(np.diff(level.indptr.astype(np.int64)))


_EXTREMES = {"min": ("least", "smallest"), "max": ("greatest", "largest")}


def reduced(
    rows: torch.Tensor,
    pattern: Tensor,
    reduce: str,
    add: str = "sum",
    *,
    elements: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the *rows* reduced by segments, and for min and max which element it was.

    Empty segments are 0, of a product 1; their element is the number of rows. A least or greatest
    -0.0 is 0.0. *add* names the
    kernel that adds: ``weighted`` counts elements as often as *pattern* says. Without *elements*
    nobody asks which they are, and the result stands in their place.
    """
    if reduce in _EXTREMES:
        if len(rows) and rows.dtype != torch.bool and not is_followed(rows):
            return _extremes(rows, pattern, reduce, elements=elements)
        first, _ = _EXTREMES[reduce]
        arg = kernel(first)(X=rows.detach(), P=pattern)
        if not len(rows):  # a sum of nothing, of which gradients can be asked
            return rows.sum(dtype=rows.dtype).expand(arg.shape), torch.zeros_like(arg)
        empty, arg = arg >= len(rows), arg.clamp(max=len(rows))
        found = rows.gather(0, arg.clamp(max=len(rows) - 1)).masked_fill(empty, 0)
        return (found + 0.0 if found.is_floating_point() else found), arg
    found = kernel("mul" if reduce == "mul" else add)(X=rows, P=pattern)
    if reduce == "mean":
        found = divided(found, counts(pattern, weighted=add == "weighted")[:, None])
    return found, found


def _extremes(
    rows: torch.Tensor, pattern: Tensor, reduce: str, *, elements: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what ``reduced`` does by min or max, where torch follows nothing."""
    first, extreme = _EXTREMES[reduce]
    if elements:
        found = rows.new_empty(pattern.shape[0], rows.shape[1])
        arg = kernel(first)(X=rows, P=pattern, out={"M": found})
        empty = arg >= len(rows)
        arg.clamp_(max=len(rows))
    else:
        found = arg = kernel(extreme)(X=rows, P=pattern)
        empty = (counts(pattern) == 0)[:, None]
    found.masked_fill_(empty, 0)
    if found.is_floating_point():
        found += 0.0  # of 0.0 and -0.0 the vectors find any
    return found, arg


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether torch follows what becomes of *tensor*, for gradients or another transformation."""
    return (tensor.requires_grad and torch.is_grad_enabled()) or is_transformed((tensor,))


def divided(sums: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return *sums* divided by *count*, that of nothing by 1; whole numbers are rounded down."""
    mode = None if sums.is_floating_point() else "floor"
    return torch.div(sums, count.clamp(min=1).to(sums.dtype), rounding_mode=mode)


def known(reduce: str) -> str:
    """Return the reduction called *reduce*; raises ArgumentError."""
    name = _SAME.get(reduce, reduce)
    if name not in ("sum", "mean", "mul", "min", "max"):
        hint = nearest_or_all(str(reduce), REDUCTIONS)
        raise ArgumentError(f"argument reduce: got {reduce!r}", hint=hint)
    return name
