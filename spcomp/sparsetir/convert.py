"""Beside the route: SparseTIR's conversions of index arrays to composable formats, in numpy.

The layouts are those of its C++ library (src/sparse/format.cc). Each conversion takes a few passes
over all elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, expect
from spcomp.sparsetir.nd import NDArray
from spcomp.tensors.checks import in_range, pointers


def column_part_hyb(
    num_rows: int,
    num_cols: int,
    indptr: Any,
    indices: Any,
    num_col_parts: int,
    buckets: Sequence[int],
    values: Any = None,
) -> tuple[list[list[NDArray]], list[list[NDArray]], list[list[NDArray]]]:
    """Return a CSR matrix cut into parts of equally many columns, rows in buckets by their length.

    A row of a part goes to the first bucket that is wide enough; one that is longer than the last
    bucket takes several rows of it. Unused places of a row have column 0 and mask 0.

    Args:
        num_rows: Rows of the matrix.
        num_cols: Columns of the matrix; a part has ``ceil(num_cols / num_col_parts)``.
        indptr: Where rows begin, ``(num_rows + 1,)``, int32 or int64.
        indices: The column of each element, ``(nnz,)``, int32 or int64.
        num_col_parts: How many parts.
        buckets: The widths of the buckets, ascending.
        values: The value of each element, ``(nnz,)``; the masks then hold values.

    Returns:
        ``(row_indices, col_indices, mask)``, each by part and bucket: arrays of the shapes
        ``(rows,)``, ``(rows, width)``, ``(rows, width)``. Without *values*, masks are 1 or 0.

    Raises:
        ArgumentError: for arrays that are not a CSR matrix, and widths that do not ascend from 1.

    Source: SparseTIR (ASPLOS 2023), section 4.2.1, hyb(c, k).
    """
    _at_least(0, num_rows=num_rows, num_cols=num_cols)
    _at_least(1, num_col_parts=num_col_parts)
    starts, columns = _fibers(indptr, indices, num_cols)
    if len(starts) != num_rows + 1:
        raise ArgumentError(f"argument indptr: got {len(starts)} elements, not {num_rows + 1}")
    widths, element_values = _widths("buckets", buckets), _flat_values(values, columns)
    wide = max(1, -(-num_cols // num_col_parts))
    rows = np.repeat(np.arange(num_rows), np.diff(starts))
    part = columns[starts[0] : starts[-1]] // wide
    lists_of_parts: tuple[list[list[NDArray]], ...] = ([], [], [])
    for k in range(num_col_parts):
        mine = np.flatnonzero(part == k) if num_col_parts > 1 else np.arange(len(rows))
        lists = _buckets(rows[mine], columns, element_values, starts[0] + mine, num_rows, widths)
        for out, arrays in zip(lists_of_parts, zip(*lists, strict=True), strict=True):
            out.append([array.view(NDArray) for array in arrays])
    return lists_of_parts[0], lists_of_parts[1], lists_of_parts[2]


def csf_to_ell3d(
    csf_indptr_0: Any,
    csf_indices_0: Any,
    csf_indptr_1: Any,
    csf_indices_1: Any,
    nnz_rows_bkt: Sequence[int],
    nnz_cols_bkt: Sequence[int],
    values: Any = None,
) -> tuple[list[NDArray], list[NDArray], list[NDArray], list[NDArray]]:
    """Return a CSF tensor (relations, rows, columns) with the rows of each relation in buckets.

    Rows go to buckets as in column_part_hyb. In a bucket, each relation has whole groups of
    ``nnz_rows_bkt[b]`` rows; the last group is filled up with its last row, with columns 0 and
    mask 0.

    Args:
        csf_indptr_0: Where relations begin among the rows, ``(relations + 1,)``.
        csf_indices_0: The coordinate of each row, ``(rows,)``.
        csf_indptr_1: Where rows begin among the elements, ``(rows + 1,)``.
        csf_indices_1: The column of each element, ``(nnz,)``.
        nnz_rows_bkt: Rows of a group, by bucket.
        nnz_cols_bkt: Widths of the buckets, ascending.
        values: The value of each element, ``(nnz,)``; the masks then hold values.

    Returns:
        ``(indptr, row_indices, col_indices, mask)``, each by bucket: where relations begin among
        the groups, ``(relations + 1,)``; ``(groups, rows)``; and twice ``(groups, rows, cols)``.

    Raises:
        ArgumentError: for arrays that are not a CSF tensor, and sizes that do not fit.

    Source: SparseTIR (ASPLOS 2023), section 4.4.1, 3-D hyb for RGMS.
    """
    begins, coordinates = _fibers(csf_indptr_0, csf_indices_0, None, "csf", 0)
    starts, columns = _fibers(csf_indptr_1, csf_indices_1, None, "csf", 1)
    widths, element_values = _widths("nnz_cols_bkt", nnz_cols_bkt), _flat_values(values, columns)
    groups = [int(size) for size in nnz_rows_bkt]
    if len(groups) != len(widths) or min(groups) < 1:
        raise ArgumentError(f"argument nnz_rows_bkt: got {groups}, expected {len(widths)} sizes")
    if len(starts) != len(coordinates) + 1:
        raise ArgumentError(
            f"argument csf_indptr_1: got {len(starts)} elements, not {len(coordinates) + 1}"
        )
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    mine = starts[0] + np.arange(len(owners))
    relation = np.searchsorted(begins, np.arange(len(coordinates)), side="right") - 1
    lists = _buckets(owners, columns, element_values, mine, len(coordinates), widths)
    outputs: tuple[list[NDArray], ...] = ([], [], [], [])
    for size, (owner, cols, mask) in zip(groups, lists, strict=True):
        indptr, place = _groups(relation[owner], len(begins) - 1, size)
        count = int(indptr[-1])
        rows = _repeat_forward(coordinates[owner], place, count * size)
        shape = count, size, cols.shape[1]
        filled = (_scatter(array, place, count * size).reshape(shape) for array in (cols, mask))
        arrays = indptr.astype(begins.dtype), rows.reshape(count, size), *filled
        for out, array in zip(outputs, arrays, strict=True):
            out.append(array.view(NDArray))
    return outputs[0], outputs[1], outputs[2], outputs[3]


def condense(
    indptr: Any, indices: Any, t: int, g: int, values: Any = None
) -> tuple[NDArray, NDArray, NDArray]:
    """Return a CSR matrix as tiles of *t* rows and one column, in groups of *g* tiles.

    Of every *t* rows, the columns that have an element are stored, ascending, in groups of *g*;
    unused places of the last group have column 0 and mask 0.

    Args:
        indptr: Where rows begin, ``(rows + 1,)``, int32 or int64.
        indices: The column of each element, ``(nnz,)``, int32 or int64.
        t: Rows of a tile.
        g: Tiles of a group.
        values: The value of each element, ``(nnz,)``; the mask then holds values, those of one
            coordinate added up.

    Returns:
        ``(group_indptr, tile_indices, mask)``: where the groups of each *t* rows begin,
        ``(ceil(rows / t) + 1,)``, the column of each tile, ``(groups, g)``, and ``(groups, t, g)``.

    Raises:
        ArgumentError: for arrays that are not a CSR matrix, and sizes below 1.

    Source: SparseTIR (ASPLOS 2023), section 4.3.2; SR-BCRS of Magicube (SC 2022).
    """
    starts, columns = _fibers(indptr, indices, None)
    _at_least(1, t=t, g=g)
    element_values = _flat_values(values, columns)
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    mine = slice(int(starts[0]), int(starts[-1]))
    cols = columns[mine].astype(np.int64)
    wide = int(cols.max(initial=0)) + 1
    tiles, inverse = np.unique(rows // t * wide + cols, return_inverse=True)
    group_indptr, place = _groups(tiles // wide, -(-(len(starts) - 1) // t), g)
    count = int(group_indptr[-1])
    tile_indices = _scatter((tiles % wide).astype(columns.dtype), place, count * g)
    mask = np.zeros((count, t, g), _mask_dtype(element_values))
    at = place[inverse]
    where = at // g, rows % t, at % g
    if element_values is None:
        mask[where] = 1
    else:
        np.add.at(mask, where, element_values[mine])
    arrays = group_indptr.astype(starts.dtype), tile_indices.reshape(count, g), mask
    first, second, third = (array.view(NDArray) for array in arrays)
    return first, second, third


def _buckets(
    owner: Array, columns: Array, values: Array | None, at: Array, owners: int, widths: list[int]
) -> list[tuple[Array, Array, Array]]:
    """Return, for each bucket, the owner, columns and mask of each of its rows.

    Elements are at the places *at* of *columns* and *values*. They are sorted by *owner*.
    """
    degree = np.bincount(owner, minlength=owners)
    rank = np.arange(len(owner)) - (np.cumsum(degree) - degree)[owner]
    bucket = np.minimum(np.searchsorted(widths, degree), len(widths) - 1)
    lists = []
    for k, width in enumerate(widths):
        owners_of_bucket = np.flatnonzero((bucket == k) & (degree > 0))
        needed = -(-degree[owners_of_bucket] // width)
        begin = np.zeros(owners, np.int64)
        begin[owners_of_bucket] = np.cumsum(needed) - needed
        mine = np.flatnonzero(bucket[owner] == k)
        place = begin[owner[mine]] * width + rank[mine]
        shape = int(needed.sum()), width
        cols = _scatter(columns[at[mine]], place, shape[0] * width)
        mask = np.zeros(shape[0] * width, _mask_dtype(values))
        mask[place] = 1 if values is None else values[at[mine]]
        rows = np.repeat(owners_of_bucket, needed).astype(columns.dtype)
        lists.append((rows, cols.reshape(shape), mask.reshape(shape)))
    return lists


def _groups(owner: Array, owners: int, size: int) -> tuple[Array, Array]:
    """Return where the groups of *size* of each owner begin, and the place of each element."""
    count = np.bincount(owner, minlength=owners)
    indptr = np.zeros(owners + 1, np.int64)
    np.cumsum(-(-count // size), out=indptr[1:])
    rank = np.arange(len(owner)) - (np.cumsum(count) - count)[owner]
    return indptr, indptr[owner] * size + rank


def _scatter(array: Array, place: Array, size: int) -> Array:
    """Return *size* zeros with the elements of *array* at *place*."""
    result = np.zeros((size, *array.shape[1:]), array.dtype)
    result[place] = array
    return result


def _repeat_forward(array: Array, place: Array, size: int) -> Array:
    """Return *size* elements: those of *array* at *place*, each repeated up to the next place."""
    source = np.zeros(size, np.int64)
    source[place] = np.arange(len(place))
    return array[np.maximum.accumulate(source)] if len(array) else np.zeros(size, array.dtype)


def _mask_dtype(values: Array | None) -> Any:
    return np.int32 if values is None else values.dtype


def _at_least(least: int, **sizes: object) -> None:
    """Raise ArgumentError unless the *sizes* are integers of at least *least*."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or int(size) < least:
            raise ArgumentError(f"argument {name}: got {size!r}, expected at least {least}")


def _widths(name: str, buckets: Sequence[int]) -> list[int]:
    expect(name, buckets, (Sequence, np.ndarray), "a list of widths")
    widths = [int(width) for width in buckets]
    if not widths or widths[0] < 1 or any(np.diff(widths) < 1):
        raise ArgumentError(f"argument {name}: got {widths}, expected widths that ascend from 1")
    return widths


def _flat_values(values: Any, columns: Array) -> Array | None:
    if values is None:
        return None
    flat = np.asarray(values).reshape(-1)
    if len(flat) != len(columns):
        raise ArgumentError(f"argument values: got {len(flat)}, expected {len(columns)}")
    return flat


def _fibers(
    indptr: Any, indices: Any, length: int | None, prefix: str = "", level: int = 0
) -> tuple[Array, Array]:
    """Return indptr and indices as flat arrays; raises ArgumentError if they do not fit."""
    names = ("indptr", "indices")
    if prefix:
        names = f"{prefix}_indptr_{level}", f"{prefix}_indices_{level}"
    starts, columns = np.asarray(indptr), np.asarray(indices)
    for name, array in zip(names, (starts, columns), strict=True):
        if array.dtype not in (np.int32, np.int64):
            raise ArgumentError(f"argument {name}: got {array.dtype}, expected int32 or int64")
    starts, columns = starts.reshape(-1), columns.reshape(-1)
    if not starts.size:
        raise ArgumentError(f"argument {names[0]}: is empty, expected one element more than fibers")
    pointers(names[0], starts, starts.size - 1, columns.size)
    limit = np.iinfo(columns.dtype).max if length is None else length - 1
    in_range(names[1], columns, 0, int(limit))
    return starts, columns
