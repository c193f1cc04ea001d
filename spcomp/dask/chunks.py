"""Below distributed tensors: the pieces of a dimension, as Dask writes them, and their overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError

Chunks: TypeAlias = tuple[int, ...]  # the extents of the pieces of a dimension, in order
Grid: TypeAlias = tuple[Chunks, ...]  # those of each dimension


class Piece(NamedTuple):
    """The coordinates from *begin* to *end*, counted inside of the block number *block*."""

    block: int
    begin: int
    end: int


def offsets(chunks: Chunks) -> tuple[int, ...]:
    """Return where each piece begins, and the extent of the dimension."""
    return tuple(accumulate(chunks, initial=0))


def overlaps(old: Chunks, new: Chunks) -> list[list[Piece]]:
    """Return for each piece of *new* the pieces of *old* that it is made of; one at least."""
    starts = offsets(old)
    found = []
    for begin, end in pairwise(offsets(new)):
        pieces = [
            Piece(block, max(begin, first) - first, min(end, last) - first)
            for block, (first, last) in enumerate(pairwise(starts))
            if first < end and begin < last
        ]
        found.append(pieces or [Piece(_holds(starts, begin), 0, 0)])
    return found


def _holds(starts: Sequence[int], at: int) -> int:
    """Return the number of a block that begins at or before *at*, which may be the end."""
    return min(int(np.searchsorted(starts, at, "right")) - 1, len(starts) - 2)


def grid_of(chunks: Any, shape: Sequence[int]) -> Grid:
    """Return *chunks* as extents of pieces.

    Args:
        chunks: For each dimension the extents of its pieces, or the extent of all but the last, or
            -1 or None for the whole. A number alone is that of the first dimension; the others are
            whole.
        shape: The extents.

    Raises:
        ArgumentError: If they do not add up to *shape*.
    """
    if chunks is None or isinstance(chunks, (int, np.integer)):
        chunks = (chunks, *(-1 for _ in shape[1:])) if shape else ()
    if not isinstance(chunks, (tuple, list)) or len(chunks) != len(shape):
        raise ArgumentError(
            f"argument chunks: got {chunks!r} for {len(shape)} dimensions",
            hint="give rows, or for each dimension an extent, -1 or a tuple of extents",
        )
    return tuple(_cut(cut, extent) for cut, extent in zip(chunks, shape, strict=True))


def _cut(cut: Any, extent: int) -> Chunks:
    if cut is None or (isinstance(cut, (int, np.integer)) and cut == -1):
        return (int(extent),)
    if isinstance(cut, (int, np.integer)) and cut > 0:
        return tuple(min(int(cut), extent - at) for at in range(0, extent, int(cut))) or (0,)
    if isinstance(cut, (tuple, list)) and cut:
        sizes = tuple(cut)
        if all(isinstance(n, (int, np.integer)) and n >= 0 for n in sizes) and sum(sizes) == extent:
            return tuple(int(n) for n in sizes)
    hint = "give an extent above 0, -1, or extents that add up"
    if isinstance(cut, str):
        taken = cut == "nonzeros"
        hint = "from_scipy and from_binsparse cut so" if taken else 'write ("nonzeros", parts)'
    raise ArgumentError(
        f"argument chunks: {cut!r} does not cut a dimension of {extent} coordinates", hint=hint
    )


def even(extent: int, parts: int) -> Chunks:
    """Return *extent* cut into *parts* pieces whose extents differ by 1 at most."""
    return tuple(extent // parts + (at < extent % parts) for at in range(parts))


def by_elements(indptr: Array, parts: int) -> Chunks:
    """Return the rows cut into *parts* pieces of about as many stored elements.

    *indptr*: the pointers of the rows. A row is never cut; a piece may have no rows.
    """
    total = int(indptr[-1]) - int(indptr[0])
    wanted = int(indptr[0]) + np.arange(1, parts) * (total / parts)
    ends = np.searchsorted(indptr[1:], wanted, "left") + 1 if total else np.zeros(parts - 1, int)
    rows = len(indptr) - 1
    cuts = [0, *(int(min(end, rows)) for end in ends), rows]
    return tuple(end - begin for begin, end in pairwise(cuts))
