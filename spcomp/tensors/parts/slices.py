"""At the call, formats: a csr matrix in slices of rows sorted by length, and its elements again."""

# ruff: noqa: E741, N806, N812
# mypy: disable-error-code="valid-type, operator, no-untyped-def"
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp import script as T
from spcomp.arrays import Array
from spcomp.compiler.programs import program
from spcomp.tensors.checks import private
from spcomp.tensors.conversions.small import running
from spcomp.tensors.parts.fill import PartData, positions

if TYPE_CHECKING:
    from spcomp.dtypes import DType
    from spcomp.formats.sliced import Slices


@program
def _pack(lanes: int, bits: str, idtype: str) -> Any:
    """The elements of the rows of each slice, step by step; a row is padded with zeros.

    Padding has the last column of its row, or 0 if the row is empty.
    """

    @T.prim_func
    def pack(
        indptr: T.handle, indices: T.handle, values: T.handle, rows: T.handle, starts: T.handle,
        columns: T.handle, packed: T.handle, m: T.int64, nnz: T.int64, slices: T.int64,
        steps: T.int64,
    ) -> None:  # fmt: skip
        Indptr = T.match_buffer(indptr, (m + 1,), idtype)
        Indices = T.match_buffer(indices, (nnz,), idtype)
        Values = T.match_buffer(values, (nnz,), bits)
        Rows = T.match_buffer(rows, (slices * lanes,), idtype)
        Starts = T.match_buffer(starts, (slices + 1,), idtype)
        Columns = T.match_buffer(columns, (steps * lanes,), idtype)
        Packed = T.match_buffer(packed, (steps * lanes,), bits)
        for s in T.parallel(slices):
            for l in T.serial(lanes):
                row = T.cast(Rows[s * lanes + l], "int64")
                begin = T.cast(Indptr[row], "int64")
                count = Indptr[row + 1] - begin
                place = T.cast(Starts[s], "int64") * lanes + l
                for k in T.serial(count):
                    Columns[place + k * lanes] = Indices[begin + k]
                    Packed[place + k * lanes] = Values[begin + k]
                for k in T.serial(count, Starts[s + 1] - Starts[s]):
                    last = T.if_then_else(count > 0, Indices[begin + count - 1], 0)
                    Columns[place + k * lanes] = T.cast(last, idtype)
                    Packed[place + k * lanes] = 0

    return pack


def slices(
    layout: Slices,
    shape: tuple[int, int],
    csr: tuple[Array, Array, Array],
    dtype: DType,
) -> dict[str, PartData]:
    """Return the parts of a matrix: for each rule of *layout*, its arrays and sizes by name.

    *csr* is indptr, indices and values, already checked. Time is linear in the elements, in
    parallel over slices, and rows times their logarithm to sort them.
    """
    lanes, (m, _) = layout.lanes_of(dtype), shape
    idtype = csr[0].dtype
    (indptr, indices, values), zeros = _without_zeros(csr, dtype)
    lengths = np.diff(indptr)
    order = _by_length(lengths, layout.window)
    whole = m - m % lanes
    rows, left = order[:whole].reshape(-1, lanes), np.sort(order[whole:])
    starts = running(lengths[rows].max(axis=1, initial=0))
    steps, count = int(starts[-1]), int(lengths[rows].sum())
    rows = np.ascontiguousarray(rows, idtype)
    bits = np.dtype(f"uint{8 * values.itemsize}")
    columns, packed = np.empty(steps * lanes, idtype), np.empty(steps * lanes, bits)
    starts = starts.astype(idtype)
    sizes = m, len(indices), whole // lanes, steps
    pack = _pack(lanes, str(bits), str(idtype))
    pack(indptr, indices, values.view(bits), rows.reshape(-1), starts, columns, packed, *sizes)
    arrays = {"values": packed.view(values.dtype), "K_indptr": starts, "columns": private(columns)}
    if layout.window != 1:
        arrays["rows"] = private(rows)
    full = steps * lanes == count
    part = PartData(arrays, {"K_count": steps}, full=full)
    return {"slices": part, "rest": _rest(left, (indptr, indices, values), zeros, idtype)}


def _by_length(lengths: Array, window: int | None) -> Array:
    """Return the numbers of the rows, the longest of each *window* first, else in order."""
    if window == 1:
        return np.arange(len(lengths))
    shorter = np.int64(-1) * lengths
    if window is None or window >= len(lengths):
        return np.argsort(shorter, kind="stable")
    return np.lexsort((shorter, np.arange(len(lengths)) // window))


def _without_zeros(
    csr: tuple[Array, Array, Array], dtype: DType
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    """Return the matrix without stored zeros, and these: their rows, columns and values."""
    indptr, indices, values = csr
    begin, end = int(indptr[0]), int(indptr[-1])
    bits = values & 0x7FFF if dtype.kind == "bfloat" else values  # -0.0 is a zero
    stays = bits != 0
    if stays[begin:end].all():
        none = indices[:0]
        return csr, (none, none, values[:0])
    at = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    kept, lost = (np.flatnonzero(some[begin:end]) + begin for some in (stays, ~stays))
    counts = np.bincount(at[kept - begin], minlength=len(indptr) - 1)
    new = running(counts).astype(indptr.dtype), indices[kept], values[kept]
    return new, (at[lost - begin], indices[lost], values[lost])


def _rest(
    left: Array,
    csr: tuple[Array, Array, Array],
    zeros: tuple[Array, Array, Array],
    idtype: np.dtype[Any],
) -> PartData:
    """Return the part ``rest``: the rows *left*, and stored *zeros*."""
    indptr, indices, values = csr
    counts = indptr[left + 1] - indptr[left]
    at = positions(indptr[left], counts)
    row = np.concatenate([np.repeat(left, counts), zeros[0]])
    column = np.concatenate([indices[at], zeros[1]])
    value = np.concatenate([values[at], zeros[2]])
    order = np.lexsort((column, row))
    some, sizes = np.unique(row, return_counts=True)
    arrays = {
        "values": value[order],
        "R_indices": some.astype(idtype),
        "J_indptr": running(sizes).astype(idtype),
        "J_indices": column[order].astype(idtype),
    }
    return PartData(arrays, {"R_width": len(some), "J_count": len(order)})


def coordinates(arrays: dict[str, Array], lanes: int, places: Array) -> list[Array]:
    """Return the rows and columns of the values at *places* of the part ``slices``."""
    step, lane = np.divmod(places, lanes)
    row = (np.searchsorted(arrays["K_indptr"], step, "right") - 1) * lanes + lane
    if "rows" in arrays:
        row = arrays["rows"].reshape(-1)[row]
    return [row.astype(np.int64), arrays["columns"][places].astype(np.int64)]
