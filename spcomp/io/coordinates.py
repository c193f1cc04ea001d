"""Last step of reading: coordinates and values to a scipy CSR array or a Tensor in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np

from spcomp.arrays import Array
from spcomp.io.source import require_room

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from spcomp.io.source import Source
    from spcomp.tensors.tensor import Tensor

Duplicates: TypeAlias = Literal["error", "sum"]


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a file: an array of 0-based coordinates per axis, values, and line numbers.

    ``lines`` is None if the file was not read line by line; ``declared`` is the line of the shape.
    """

    shape: tuple[int, ...]
    coords: tuple[Array, ...]
    values: Array
    lines: Array | None = None
    declared: int = 0


def first_repeat(entries: Entries) -> tuple[int, int] | None:
    """Return the first line that repeats coordinates, and the line that has them before."""
    lines = cast("Array", entries.lines)
    order = np.lexsort((lines, *entries.coords[::-1]))
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for coord in entries.coords:
        same &= np.diff(coord[order]) == 0
    if not same.any():
        return None
    ordered = lines[order]
    again = np.flatnonzero(same) + 1
    at = int(again[np.argmin(ordered[again])])
    return int(ordered[at]), int(ordered[at - 1])


def refuse_repeated(source: Source, entries: Entries) -> None:
    """Raise FileError if a line of *entries*, which have line numbers, repeats an earlier one."""
    if lines := first_repeat(entries):
        source.refuse(
            lines[0],
            f"the entry of line {lines[1]} is repeated",
            hint='read it with duplicates="sum" to add them up',
        )


def csr(entries: Entries) -> tuple[csr_array, bool]:
    """Return *entries* as a CSR array in order, repeats added up, and whether there were repeats.

    The caller has checked that coordinates are in range; scipy does not.
    """
    from scipy.sparse import coo_array

    from spcomp.tensors.convert import convert

    rows, columns = entries.coords
    array = convert(coo_array((entries.values, (rows, columns)), shape=entries.shape), "csr")
    return cast("csr_array", array), array.nnz < len(entries.values)


def matrix(source: Source, entries: Entries, duplicates: Duplicates) -> csr_array | None:
    """Return a CSR array, in order and without repeated entries.

    None if an entry is repeated against *duplicates* and *entries* have no line numbers.
    """
    require_room(source, entries.declared, entries.shape, 8 * (entries.shape[0] + 1))
    array, repeats = csr(entries)
    if repeats and duplicates == "error":
        if entries.lines is None:
            return None
        refuse_repeated(source, entries)
    if repeats:
        _refuse_overflow(source, entries)
    return array


def csr_or_tensor(
    source: Source, entries: Entries, duplicates: Duplicates
) -> csr_array | Tensor | None:
    """Return *entries* as a CSR array if they have two axes, else as a Tensor.

    None if an entry is repeated against *duplicates* and *entries* have no line numbers.
    """
    if len(entries.shape) == 2:
        return matrix(source, entries, duplicates)
    require_room(source, 0, entries.shape, 8 * (entries.shape[0] + 1))
    result, repeats = tensor(entries)
    if repeats:
        _refuse_overflow(source, entries)
    return None if repeats and duplicates == "error" else result


def from_archive(source: Source, entries: Entries, duplicates: Duplicates) -> csr_array | Tensor:
    """Return the *entries* of an archive as a CSR array or Tensor; raises FileError for repeats."""
    result = csr_or_tensor(source, entries, duplicates)
    if result is None:
        numbered = replace(entries, lines=np.arange(len(entries.values)))
        again, before = cast("tuple[int, int]", first_repeat(numbered))
        source.refuse(
            0,
            f"the stored value {again} has the coordinates of the stored value {before}",
            hint='read it with duplicates="sum" to add them up',
        )
    return result


def with_mirror_images(entries: Entries, sign: int) -> Entries:
    """Return the *entries* of a triangle and their mirror images, multiplied by *sign*."""
    rows, columns = entries.coords
    off = rows != columns
    coords = (np.concatenate((rows, columns[off])), np.concatenate((columns, rows[off])))
    image = -entries.values[off] if sign < 0 else entries.values[off]
    values = np.concatenate((entries.values, image))
    return replace(entries, coords=coords, values=values, lines=None)


def _refuse_overflow(source: Source, entries: Entries) -> None:
    """Raise FileError if repeated integers may add up to more than their type holds."""
    kind = entries.values.dtype
    if kind.kind in "iu":
        sizes = replace(entries, values=np.abs(entries.values.astype(np.float64)))
        sums = csr(sizes)[0].data if len(entries.shape) == 2 else tensor(sizes)[0].values
        if sums.max(initial=0) > np.iinfo(kind).max * (1 - 1e-9):
            source.refuse(0, f"the sum of repeated entries overflows {kind}")


def tensor(entries: Entries) -> tuple[Tensor, bool]:
    """Return the Tensor of *entries*, repeats added up, and whether there were repeats.

    The first axis is dense, or compressed if it is the only one; every other is compressed.
    """
    from spcomp.formats.format import Format
    from spcomp.tensors.tensor import Tensor

    shape, rank = entries.shape, len(entries.shape)
    levels = Format(("compressed",) if rank == 1 else ("dense", *("compressed",) * (rank - 1)))
    result = Tensor.from_coo(entries.coords, entries.values, shape, levels)
    return result, result.nnz < len(entries.values)
