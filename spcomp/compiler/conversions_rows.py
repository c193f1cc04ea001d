"""At a conversion: a matrix by rows or by columns, as it may have been stored already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.conversions_blocks import out_of_blocks
from spcomp.compiler.conversions_build import (
    Duplicates,
    build,
    refuse_repeated,
)
from spcomp.compiler.conversions_sort import (
    BITS,
    SPARSE,
    Ordered,
    added_up,
    bits_of,
    index_type,
    majors_of,
    put_in_order,
    rows_in_order,
    transposed,
)
from spcomp.compiler.conversions_source import (
    elements_of,
    family_of,
    in_range,
    item_type,
)
from spcomp.compiler.foreign import bridge
from spcomp.compiler.tensor import Tensor
from spcomp.dtypes import int64
from spcomp.formats.format import Format

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class How:
    """What a conversion may and must do with the elements."""

    duplicates: Duplicates = "sum"
    sort: bool = True
    copies: bool = False  # index arrays, which nobody else may have


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A matrix by rows, or by columns (*order* is 1, 0): arrays that may be longer than needed."""

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
        return _compared(x, order, how)
    given = _rows_of(x)
    if given is None:
        elements = elements_of(x)
        values, shape = np.ascontiguousarray(elements.values), elements.shape
        kind = np.dtype(np.int64) if wide else index_type(*shape, len(values))
        axes = [elements.coordinates[dim] for dim in order]
        extents = [shape[dim] for dim in order]
        sort = how.sort or how.duplicates != "keep"
        found = put_in_order(axes, values, extents, idtype=kind, sort=sort)
    else:
        values, shape = given.values, given.shape
        kind = np.dtype(np.int64) if wide else index_type(*shape, len(values))
        found = _from_rows(given, order, how, kind)
    if found.repeated and how.duplicates == "error":
        row = majors_of(found.pointers, len(found.minors), np.int64)
        same = (row[1:] == row[:-1]) & (found.minors[1:] == found.minors[:-1])
        at = int(np.flatnonzero(same)[0])
        pair = int(row[at]), int(found.minors[at])
        refuse_repeated([pair[order.index(0)], pair[order.index(1)]])
    if how.duplicates == "sum":
        found = added_up(found, item_type(values))
    return found, tuple(shape)


def _compared(x: Any, order: tuple[int, int], how: How) -> tuple[Ordered, tuple[int, ...]]:
    """Do what :func:`in_rows` does for extents that are too large for keys."""
    leaf = "compressed(nonunique)" if how.duplicates == "keep" else "compressed"
    made = build(elements_of(x), Format(("dense", leaf), order, int64), how.duplicates)
    level = made.levels[1]
    assert level is not None
    assert level.indptr is not None
    assert level.indices is not None
    repeated = 0 if made.ascending(1, unique=True) else 1
    return Ordered(level.indptr, level.indices, made.values, repeated), made.shape


def _from_rows(given: Rows, order: tuple[int, int], how: How, kind: Any) -> Ordered:
    values = np.ascontiguousarray(given.values)
    if given.order != order:
        columns = given.shape[order[0]]
        return transposed(given.pointers, given.indices, values, columns, kind)
    validate.in_range("indices", given.indices, 0, given.shape[order[1]] - 1)
    own = np.array if how.copies else np.ascontiguousarray
    pointers, indices = own(given.pointers, kind), own(given.indices, kind)
    if validate.ascends(pointers, indices, 0, strict=True) or (
        how.duplicates == "keep" and not how.sort
    ):
        return Ordered(pointers, indices, values, 0)
    return rows_in_order(pointers, indices, values, given.shape[order[1]])


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
        return _checked(x.shape, pointers, level.indices, values, x.order)
    if family == "scipy" and x.format in ("csr", "csc") and x.ndim == 2:
        order = (0, 1) if x.format == "csr" else (1, 0)
        indptr, indices = np.asarray(x.indptr), np.asarray(x.indices)
        if indptr.dtype.kind == indices.dtype.kind == "i":  # the others are looked at later
            limit = min(indices.size, len(x.data))
            validate.pointers("indptr", indptr, x.shape[order[0]], limit)
        return _checked(x.shape, x.indptr, x.indices, np.asarray(x.data), order)
    if family == "scipy" and x.format == "bsr":
        pointers = np.asarray(in_range(x).indptr)
        part = slice(int(pointers[-1]))
        return _merged(x.shape, pointers, np.asarray(x.indices)[part], np.asarray(x.data)[part])
    if family == "torch":
        found = bridge().compressed(x)
        return None if found is None else _checked(*found)
    return None


def _rows_of_blocks(x: Tensor) -> Rows | None:
    """Return the matrix *x* by rows if it is one of blocks that do not reach over its edges."""
    level, sizes = x.levels[1], [part.size for part in x.levels[2:] if part and part.size]
    pointers = _pointers(x, -(-x.shape[0] // sizes[0])) if len(sizes) == 2 else None
    if pointers is None or level is None or level.indices is None:
        return None
    return _merged(x.shape, pointers, level.indices, np.asarray(x.values).reshape(-1, *sizes))


def _pointers(x: Tensor, count: int) -> Array | None:
    """Return where each of *count* fibers of the second level of *x* begins, and the end.

    They are dense, or those that are not empty are listed; None: neither, or listed few of many.
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


def _merged(shape: Any, pointers: Array, indices: Array, values: Array) -> Rows | None:
    item_type(values)
    if pointers.dtype not in (np.int32, np.int64) or indices.dtype not in (np.int32, np.int64):
        return None
    if any(n % size for n, size in zip(shape, values.shape[1:], strict=True)):
        return None
    return Rows(tuple(shape), *out_of_blocks(pointers, indices, values, shape[1]), (0, 1))


def _checked(shape: Any, pointers: Any, indices: Any, values: Array, order: Any) -> Rows | None:
    """Return the matrix; None where its arrays are of a kind that programs do not take."""
    item_type(values)
    pointers, indices = np.asarray(pointers), np.asarray(indices)
    if pointers.dtype not in (np.int32, np.int64) or indices.dtype not in (np.int32, np.int64):
        return None
    first, last = int(pointers[0]), int(pointers[-1])
    pointers = np.ascontiguousarray(pointers - first if first else pointers)
    part = slice(first, last)
    return Rows(tuple(shape), pointers, np.ascontiguousarray(indices[part]), values[part], order)
