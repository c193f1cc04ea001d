"""At the call, formats: a csr matrix split into diagonal segments and a rest, by programs."""

# ruff: noqa: ANN001, ANN202, E741, FBT001, N803, N806, N812
# mypy: disable-error-code="valid-type, operator, no-untyped-def"
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp import script as T
from spcomp.arrays import Array
from spcomp.compiler.programs import program
from spcomp.dtypes import uint8
from spcomp.tensors.conversions.small import running

if TYPE_CHECKING:
    from spcomp.dtypes import DType
    from spcomp.formats.sliced import SlicedDiagonal

Arrays: TypeAlias = dict[str, Array]  # by the names that the rule of a part gives them


@program
def _merge(lanes: int, fewest: int, dtype: str, idtype: str, filled: bool) -> Any:
    """The diagonal segments of each slice, and the rest of each row: counted, or *filled* in.

    The rows of a slice are merged by ``Key``, the column in which a diagonal through the next
    element meets the first row of the slice: the elements with the least key form a segment. A
    stored zero is never in a segment, so a zero there is padding. The counts in ``Segments`` and
    ``Rest`` are added to the numbers that are there before.
    """
    none = (1 << 31) - 1 if idtype == "int32" else 1 << 62  # behind all columns

    @T.prim_func
    def merge(
        indptr: T.handle, indices: T.handle, values: T.handle, segments: T.handle, rest: T.handle,
        starts: T.handle, packed: T.handle, columns: T.handle, others: T.handle, m: T.int64,
        n: T.int64, nnz: T.int64, count: T.int64, left: T.int64,
    ) -> None:  # fmt: skip
        Indptr = T.match_buffer(indptr, (m + 1,), idtype)
        Indices = T.match_buffer(indices, (nnz,), idtype)
        Values = T.match_buffer(values, (nnz,), dtype)
        Segments = T.match_buffer(segments, (m // lanes,), "int64")
        Rest = T.match_buffer(rest, (m,), "int64")
        Starts = T.match_buffer(starts, (count,), idtype)
        Packed = T.match_buffer(packed, (count * lanes,), dtype)
        Columns = T.match_buffer(columns, (left,), idtype)
        Others = T.match_buffer(others, (left,), dtype)
        for s in T.parallel(m // lanes):
            Head = T.alloc_buffer((lanes,), "int64", scope="local")
            Key = T.alloc_buffer((lanes,), idtype, scope="local")
            Next = T.alloc_buffer((lanes,), "int64", scope="local")
            Least = T.alloc_buffer((1,), idtype, scope="local")
            Fill = T.alloc_buffer((1,), "int64", scope="local")
            At = T.alloc_buffer((1,), "int64", scope="local")
            At[0] = Segments[s]
            Least[0] = -lanes
            for l in T.serial(lanes):
                Head[l] = Indptr[s * lanes + l] - 1
                Key[l] = -lanes
                Next[l] = Rest[s * lanes + l]
            while Least[0] < none:
                _advance(Indptr, Indices, Values, Head, Key, Next, Least, Fill, Columns, Others,
                         s, lanes, none, idtype, filled)  # fmt: skip
                if Fill[0] >= fewest and Least[0] >= 0 and Least[0] <= n - lanes:
                    if filled:
                        _keep(Starts, Packed, Values, Head, Key, Least, At, lanes)
                    At[0] = At[0] + 1
                elif Least[0] < none:
                    _spill_least(Columns, Others, Next, Indices, Values, Head, Key, Least, lanes,
                                 filled)  # fmt: skip
            if not filled:
                Segments[s] = At[0]
                for l in T.serial(lanes):
                    Rest[s * lanes + l] = Next[l]

    return merge


@T.macro
def _advance(
    Indptr, Indices, Values, Head, Key, Next, Least, Fill, Columns, Others,
    s, lanes, none, idtype, filled,
):  # fmt: skip
    """The next nonzero element of each row that advances, and how many have the least key."""
    for l in T.serial(lanes):
        if Key[l] == Least[0]:
            Head[l] = Head[l] + 1
            while Head[l] < Indptr[s * lanes + l + 1] and Values[Head[l]] == 0:
                _spill(Columns, Others, Next, Indices, Values, Head, l, filled)
                Head[l] = Head[l] + 1
            Key[l] = T.cast(none, idtype)
            if Head[l] < Indptr[s * lanes + l + 1]:
                Key[l] = T.cast(Indices[Head[l]] - l, idtype)
    Least[0] = T.cast(none, idtype)
    for l in T.serial(lanes):
        Least[0] = T.min(Least[0], Key[l])
    Fill[0] = 0
    for l in T.serial(lanes):
        Fill[0] = Fill[0] + T.if_then_else(Key[l] == Least[0], T.int64(1), T.int64(0))


@T.macro
def _keep(Starts, Packed, Values, Head, Key, Least, At, lanes):
    """The elements of a segment, with zeros for padding."""
    Starts[At[0]] = Least[0]
    for l in T.serial(lanes):
        Packed[At[0] * lanes + l] = 0
        if Key[l] == Least[0]:
            Packed[At[0] * lanes + l] = Values[Head[l]]


@T.macro
def _spill_least(Columns, Others, Next, Indices, Values, Head, Key, Least, lanes, filled):
    """The elements with the least key, too few for a segment, moved to the rest."""
    for l in T.serial(lanes):
        if Key[l] == Least[0]:
            _spill(Columns, Others, Next, Indices, Values, Head, l, filled)


@T.macro
def _spill(Columns, Others, Next, Indices, Values, Head, l, filled):
    """An element moved to the rest."""
    if filled:
        Columns[Next[l]] = Indices[Head[l]]
        Others[Next[l]] = Values[Head[l]]
    Next[l] = Next[l] + 1


def sliced_diagonal(
    layout: SlicedDiagonal,
    shape: tuple[int, int],
    csr: tuple[Array, Array, Array],
    dtype: DType,
) -> dict[str, Arrays]:
    """Return the parts of a matrix: for each rule of *layout*, its arrays by name.

    *csr* is indptr, indices and values, already checked. Rows need not be sorted, but sorted ones
    give longer segments. Time is linear in elements times lanes, in parallel over slices.
    """
    indptr, indices, values = csr
    if dtype.kind == "bool":  # programs compare values with the literal 0
        parts = sliced_diagonal(layout, shape, (indptr, indices, values.view(np.uint8)), uint8)
        return {name: part | {"values": part["values"].view(np.bool_)}
                for name, part in parts.items()}  # fmt: skip
    lanes, (m, n) = layout.lanes_of(dtype), shape
    whole = m - m % lanes
    options = lanes, math.ceil(layout.min_fill * lanes), str(dtype), str(indptr.dtype)
    segments, spilled = np.zeros(m // lanes, np.int64), np.zeros(m, np.int64)
    size = m, n, len(indices)
    none = indices[:0], values[:0]
    _merge(*options, False)(*csr, segments, spilled, *none, *none, *size, 0, 0)
    spilled[whole:] = np.diff(indptr[whole:])
    first, begin = running(segments), running(spilled)
    count, remaining = int(first[-1]), int(begin[-1])
    starts, packed = np.empty(count, indptr.dtype), np.empty(count * lanes, values.dtype)
    columns, rest = np.empty(remaining, indptr.dtype), np.empty(remaining, values.dtype)
    last = slice(int(indptr[whole]), int(indptr[m]))  # rows that do not fill a slice
    columns[begin[whole] :], rest[begin[whole] :] = indices[last], values[last]
    outputs = starts, packed, columns, rest
    _merge(*options, True)(*csr, first[:-1], begin[:-1], *outputs, *size, count, remaining)
    rows = np.flatnonzero(spilled).astype(indptr.dtype)
    return {
        "diagonal": {
            "values": packed,
            "P_indptr": first.astype(indptr.dtype),
            "P_indices": starts,
        },
        "rest": {
            "values": rest,
            "R_indices": rows,
            "J_indptr": np.append(begin[rows], remaining).astype(indptr.dtype),
            "J_indices": columns,
        },
    }
