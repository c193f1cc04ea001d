"""Last step of reading: coordinates and values to a scipy CSR array or a Tensor in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from spcomp.io.source import require_room

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from spcomp.compiler.tensor import Tensor
    from spcomp.io.source import Source

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Duplicates: TypeAlias = Literal["error", "sum"]


@dataclass(frozen=True, slots=True)
class Entries:
    """What a file lists: an array of 0-based coordinates per axis, the values, the line of each.

    ``lines`` is None if they were not looked at one by one; ``declared`` is the line of the shape.
    """

    shape: tuple[int, ...]
    coords: tuple[Array, ...]
    values: Array
    lines: Array | None = None
    declared: int = 0


def repeated(entries: Entries) -> tuple[int, int] | None:
    """Return the first line that lists coordinates again, and the line that has them before."""
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
    """Raise FileError if a line of *entries*, which know their lines, repeats an earlier one."""
    if found := repeated(entries):
        source.refuse(
            found[0],
            f"the entry of line {found[1]} is repeated",
            hint='read it with duplicates="sum" to add them up',
        )


def csr(entries: Entries) -> tuple[csr_array, bool]:
    """Return *entries* as a CSR array, in order and repeated ones added up; whether there were any.

    The coordinates are in range: scipy does not check them.
    """
    from scipy.sparse import coo_array

    from spcomp.compiler.conversions import convert

    rows, columns = entries.coords
    made = convert(coo_array((entries.values, (rows, columns)), shape=entries.shape), "csr")
    return cast("csr_array", made), made.nnz < len(entries.values)


def matrix(source: Source, entries: Entries, duplicates: Duplicates) -> csr_array | None:
    """Return a CSR array, ordered and without repeated entries.

    None where an entry repeats, that is not allowed, and *entries* do not know their lines.
    """
    require_room(source, entries.declared, entries.shape, 8 * (entries.shape[0] + 1))
    made, repeats = csr(entries)
    if repeats and duplicates == "error":
        if entries.lines is None:
            return None
        refuse_repeated(source, entries)
    if repeats:
        _refuse_overflow(source, entries)
    return made


def collected(
    source: Source, entries: Entries, duplicates: Duplicates
) -> csr_array | Tensor | None:
    """Return what *entries* describe: a CSR array if they have two axes, else a Tensor.

    None where an entry repeats, that is not allowed, and they do not know their lines.
    """
    if len(entries.shape) == 2:
        return matrix(source, entries, duplicates)
    require_room(source, 0, entries.shape, 8 * (entries.shape[0] + 1))
    made, repeats = tensor(entries)
    if repeats:
        _refuse_overflow(source, entries)
    return None if repeats and duplicates == "error" else made


def in_order(source: Source, entries: Entries, duplicates: Duplicates) -> csr_array | Tensor:
    """Return what the *entries* of an archive describe; FileError says which one repeats."""
    made = collected(source, entries, duplicates)
    if made is None:
        numbered = replace(entries, lines=np.arange(len(entries.values)))
        again, before = cast("tuple[int, int]", repeated(numbered))
        source.refuse(
            0,
            f"the stored value {again} has the coordinates of the stored value {before}",
            hint='read it with duplicates="sum" to add them up',
        )
    return made


def mirrored(entries: Entries, sign: int) -> Entries:
    """Return the *entries* of a triangle and their mirror images, multiplied by *sign*."""
    rows, columns = entries.coords
    off = rows != columns
    coords = (np.concatenate((rows, columns[off])), np.concatenate((columns, rows[off])))
    image = -entries.values[off] if sign < 0 else entries.values[off]
    values = np.concatenate((entries.values, image))
    return replace(entries, coords=coords, values=values, lines=None)


def _refuse_overflow(source: Source, entries: Entries) -> None:
    """Raise FileError if integers that repeat may add up to more than their type holds."""
    kind = entries.values.dtype
    if kind.kind in "iu":
        sizes = replace(entries, values=np.abs(entries.values.astype(np.float64)))
        sums = csr(sizes)[0].data if len(entries.shape) == 2 else tensor(sizes)[0].values
        if sums.max(initial=0) > np.iinfo(kind).max * (1 - 1e-9):
            source.refuse(0, f"the sum of repeated entries overflows {kind}")


def tensor(entries: Entries) -> tuple[Tensor, bool]:
    """Return the Tensor of *entries*, repeated ones added up, and whether there were any.

    The first axis is dense, or compressed if it is the only one; every other is compressed.
    """
    from spcomp.compiler.tensor import Tensor
    from spcomp.formats.format import Format

    shape, rank = entries.shape, len(entries.shape)
    levels = Format(("compressed",) if rank == 1 else ("dense", *("compressed",) * (rank - 1)))
    made = Tensor.from_coo(entries.coords, entries.values, shape, levels)
    return made, made.nnz < len(entries.values)
