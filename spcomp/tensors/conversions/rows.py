"""At a conversion: a matrix by rows or by columns, reusing arrays that are stored so already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import int64
from spcomp.formats.format import Format
from spcomp.tensors import checks as validate
from spcomp.tensors.conversions.blocks import out_of_blocks
from spcomp.tensors.conversions.elements import elements_of, family_of, item_type
from spcomp.tensors.conversions.keys import BITS, Ordered, bits_of, index_type
from spcomp.tensors.conversions.levels import (
    Duplicates,
    build,
    refuse_repeated,
)
from spcomp.tensors.conversions.order import (
    SPARSE,
    majors_of,
    put_in_order,
    rows_in_order,
    sum_repeated,
    transposed,
)
from spcomp.tensors.libraries.foreign import bridge
from spcomp.tensors.libraries.scipy import in_range, scipy_of_arrays
from spcomp.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class How:
    """Options of a conversion: the treatment of repeated elements and the order."""

    duplicates: Duplicates = "sum"
    sort: bool = True
    copies: bool = False  # index arrays may not be shared


DEFAULT = How()


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A matrix by rows, or by columns if *order* is (1, 0); arrays may be longer than needed."""

    shape: tuple[int, ...]
    pointers: Array
    indices: Array
    values: Array
    order: tuple[int, int]


def in_rows(
    x: Any,
    order: tuple[int, int],
    how: How,
    wide: bool = False,  # noqa: FBT001, FBT002
) -> tuple[Ordered, tuple[int, ...]]:
    """Return the matrix *x* compressed along the dimensions *order*, and its shape."""
    if sum(map(bits_of, x.shape)) > BITS:
        return _in_rows_by_comparison(x, order, how)
    stored = _rows_of(x)
    if stored is None:
        elements = elements_of(x)
        values, shape = np.ascontiguousarray(elements.values), elements.shape
        kind = np.dtype(np.int64) if wide else index_type(*shape, len(values))
        axes = [elements.coordinates[dim] for dim in order]
        extents = [shape[dim] for dim in order]
        sort = how.sort or how.duplicates != "keep"
        ordered = put_in_order(axes, values, extents, idtype=kind, sort=sort)
    else:
        values, shape = stored.values, stored.shape
        kind = np.dtype(np.int64) if wide else index_type(*shape, len(values))
        ordered = _from_rows(stored, order, how, kind)
    if ordered.repeated and how.duplicates == "error":
        row = majors_of(ordered.pointers, len(ordered.minors), np.int64)
        same = (row[1:] == row[:-1]) & (ordered.minors[1:] == ordered.minors[:-1])
        at = int(np.flatnonzero(same)[0])
        pair = int(row[at]), int(ordered.minors[at])
        refuse_repeated([pair[order.index(0)], pair[order.index(1)]])
    if how.duplicates == "sum":
        ordered = sum_repeated(ordered, item_type(values))
    return ordered, tuple(shape)


def _in_rows_by_comparison(
    x: Any, order: tuple[int, int], how: How
) -> tuple[Ordered, tuple[int, ...]]:
    """Return the result of :func:`in_rows` for extents that are too large for keys."""
    leaf = "compressed(nonunique)" if how.duplicates == "keep" else "compressed"
    tensor = build(elements_of(x), Format(("dense", leaf), order, int64), how.duplicates)
    level = tensor.levels[1]
    assert level is not None
    assert level.indptr is not None
    assert level.indices is not None
    repeated = 0 if tensor.ascending(1, unique=True) else 1
    return Ordered(level.indptr, level.indices, tensor.values, repeated), tensor.shape


def _from_rows(matrix: Rows, order: tuple[int, int], how: How, kind: Any) -> Ordered:
    values = np.ascontiguousarray(matrix.values)
    if matrix.order != order:
        columns = matrix.shape[order[0]]
        return transposed(matrix.pointers, matrix.indices, values, columns, kind)
    validate.in_range("indices", matrix.indices, 0, matrix.shape[order[1]] - 1)
    as_array = np.array if how.copies else np.ascontiguousarray
    pointers, indices = as_array(matrix.pointers, kind), as_array(matrix.indices, kind)
    if validate.ascends(pointers, indices, 0, strict=True) or (
        how.duplicates == "keep" and not how.sort
    ):
        return Ordered(pointers, indices, values, 0)
    return rows_in_order(pointers, indices, values, matrix.shape[order[1]])


def _rows_of(x: Any) -> Rows | None:
    """Return the matrix *x* if it is stored by rows or columns, its index arrays checked."""
    family = family_of(x)
    if family == "tensor":
        if x.order == (0, 1, 0, 1):
            return _rows_of_blocks(x)
        level = x.levels[-1] if len(x.levels) == 2 == x.ndim else None
        pointers = None if level is None else _pointers(x, x.shape[x.order[0]])
        if level is None or pointers is None:
            return None
        values = np.asarray(x.values).reshape(-1)
        return _rows_of_arrays(x.shape, pointers, level.indices, values, x.order)
    if family == "scipy" and x.format in ("csr", "csc") and x.ndim == 2:
        order = (0, 1) if x.format == "csr" else (1, 0)
        indptr, indices = np.asarray(x.indptr), np.asarray(x.indices)
        if indptr.dtype.kind == indices.dtype.kind == "i":  # other types are checked later
            limit = min(indices.size, len(x.data))
            validate.pointers("indptr", indptr, x.shape[order[0]], limit)
        return _rows_of_arrays(x.shape, x.indptr, x.indices, np.asarray(x.data), order)
    if family == "scipy" and x.format == "bsr":
        pointers = np.asarray(in_range(x).indptr)
        part = slice(int(pointers[-1]))
        return _rows_out_of_blocks(
            x.shape, pointers, np.asarray(x.indices)[part], np.asarray(x.data)[part]
        )
    if family == "torch":
        arrays = bridge().compressed(x)
        return None if arrays is None else _rows_of_arrays(*arrays)
    return None


def _rows_of_blocks(x: Tensor) -> Rows | None:
    """Return the block matrix *x* by rows, or None if blocks reach over its edges."""
    level, sizes = x.levels[1], [part.size for part in x.levels[2:] if part and part.size]
    pointers = _pointers(x, -(-x.shape[0] // sizes[0])) if len(sizes) == 2 else None
    if pointers is None or level is None or level.indices is None:
        return None
    return _rows_out_of_blocks(
        x.shape, pointers, level.indices, np.asarray(x.values).reshape(-1, *sizes)
    )


def _pointers(x: Tensor, count: int) -> Array | None:
    """Return the pointers of the *count* fibers of the second level of *x*.

    The first level is dense, or lists the nonempty fibers. Returns None for another level, or if
    only few of many fibers are listed.
    """
    outer, level = x.levels[:2]
    if level is None or level.indptr is None or level.kind != "compressed":
        return None
    if outer is None:
        return level.indptr
    listed = outer.kind == "compressed" and x.ascending(0, unique=True)
    if not listed or count > SPARSE * len(level.indptr):
        return None
    pointers = np.zeros(count + 1, level.indptr.dtype)
    pointers[1:][outer.indices] = np.diff(level.indptr)
    return np.cumsum(pointers, out=pointers)


def _rows_out_of_blocks(shape: Any, pointers: Array, indices: Array, values: Array) -> Rows | None:
    item_type(values)
    if pointers.dtype not in (np.int32, np.int64) or indices.dtype not in (np.int32, np.int64):
        return None
    if any(n % size for n, size in zip(shape, values.shape[1:], strict=True)):
        return None
    return Rows(tuple(shape), *out_of_blocks(pointers, indices, values, shape[1]), (0, 1))


def _rows_of_arrays(
    shape: Any, pointers: Any, indices: Any, values: Array, order: Any
) -> Rows | None:
    """Return the matrix, or None if programs do not take the types of its index arrays."""
    item_type(values)
    pointers, indices = np.asarray(pointers), np.asarray(indices)
    if pointers.dtype not in (np.int32, np.int64) or indices.dtype not in (np.int32, np.int64):
        return None
    first, last = int(pointers[0]), int(pointers[-1])
    pointers = np.ascontiguousarray(pointers - first if first else pointers)
    part = slice(first, last)
    return Rows(tuple(shape), pointers, np.ascontiguousarray(indices[part]), values[part], order)


def compressed(x: Any, make: Any, order: tuple[int, int], how: How = DEFAULT) -> Any:
    """Return *x* as a scipy csr or csc object of class *make*, with values of any dtype."""
    ordered, shape = in_rows(x, order, how)
    matrix = scipy_of_arrays(make, shape, ordered.values, ordered.minors, ordered.pointers)
    if how.sort or how.duplicates != "keep":
        matrix.has_sorted_indices = True
        matrix.has_canonical_format = not ordered.repeated
    return matrix
