"""At the call, formats: a compressed matrix as diagonal segments and the rest, by compiled code."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.dtypes import uint8

if TYPE_CHECKING:
    from spcomp.compiler.kernel import Kernel
    from spcomp.dtypes import DType
    from spcomp.formats.sliced import SlicedDiagonal

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Arrays: TypeAlias = dict[str, Array]  # by the names that the rule of a part gives them

# The rows of a slice are merged by the column in which a diagonal through their next element meets
# the slice's first row: all whose KEY is the least form a segment. A stored zero never does, so
# that a zero in a segment is no element. What is done with a segment, and with elements that are
# in none, is what the two programs differ in.
_MERGE = """from spcomp import script as T


@T.prim_func
def {name}(indptr: T.handle, indices: T.handle, values: T.handle, {outputs}: T.handle,
           m: T.int64, n: T.int64, nnz: T.int64{sizes}) -> None:
    Indptr = T.match_buffer(indptr, (m + 1,), "int32")
    Indices = T.match_buffer(indices, (nnz,), "int32")
    Values = T.match_buffer(values, (nnz,), "float32")
{declare}
    for s in T.parallel(m // LANES):
        Head = T.alloc_buffer((LANES,), "int64", scope="local")
        Key = T.alloc_buffer((LANES,), "int32", scope="local")
        Next = T.alloc_buffer((LANES,), "int64", scope="local")
        Least = T.alloc_buffer((1,), "int32", scope="local")
        Fill = T.alloc_buffer((1,), "int64", scope="local")
        At = T.alloc_buffer((1,), "int64", scope="local")
        At[0] = {start}
        Least[0] = -LANES
        for l in T.serial(LANES):
            Head[l] = Indptr[s * LANES + l] - 1
            Key[l] = -LANES
            Next[l] = {first}
        while Least[0] < NONE:
            for l in T.serial(LANES):
                if Key[l] == Least[0]:
                    Head[l] = Head[l] + 1
                    while Head[l] < Indptr[s * LANES + l + 1] and Values[Head[l]] == 0:
                        {spill}
                        Next[l] = Next[l] + 1
                        Head[l] = Head[l] + 1
                    Key[l] = T.cast(NONE, "int32")
                    if Head[l] < Indptr[s * LANES + l + 1]:
                        Key[l] = T.cast(Indices[Head[l]] - l, "int32")
            Least[0] = T.cast(NONE, "int32")
            for l in T.serial(LANES):
                Least[0] = T.min(Least[0], Key[l])
            Fill[0] = 0
            for l in T.serial(LANES):
                Fill[0] = Fill[0] + T.if_then_else(Key[l] == Least[0], T.int64(1), T.int64(0))
            if Fill[0] >= FEWEST and Least[0] >= 0 and Least[0] <= n - LANES:
                {keep}
                At[0] = At[0] + 1
            else:
                for l in T.serial(LANES):
                    if Key[l] == Least[0] and Least[0] < NONE:
                        {spill}
                        Next[l] = Next[l] + 1
        {finish}
"""

_COUNT = {
    "name": "count_segments",
    "outputs": "segments: T.handle, spilled",
    "sizes": "",
    "declare": """    Segments = T.match_buffer(segments, (m // LANES,), "int64")
    Spilled = T.match_buffer(spilled, (m,), "int64")""",
    "start": "0",
    "first": "0",
    "spill": "pass",
    "keep": "pass",
    "finish": """Segments[s] = At[0]
        for l in T.serial(LANES):
            Spilled[s * LANES + l] = Next[l]""",
}

_FILL = {
    "name": "fill_segments",
    "outputs": "first: T.handle, begin: T.handle, starts: T.handle, lanes: T.handle,"
    " columns: T.handle, rest",
    "sizes": ", count: T.int64, left: T.int64",
    "declare": """    First = T.match_buffer(first, (m // LANES + 1,), "int64")
    Begin = T.match_buffer(begin, (m,), "int64")
    Starts = T.match_buffer(starts, (count,), "int32")
    Lanes = T.match_buffer(lanes, (count * LANES,), "float32")
    Columns = T.match_buffer(columns, (left,), "int32")
    Rest = T.match_buffer(rest, (left,), "float32")""",
    "start": "First[s]",
    "first": "Begin[s * LANES + l]",
    "spill": """Columns[Next[l]] = Indices[Head[l]]
                        Rest[Next[l]] = Values[Head[l]]""",
    "keep": """Starts[At[0]] = Least[0]
                for l in T.serial(LANES):
                    Lanes[At[0] * LANES + l] = 0
                    if Key[l] == Least[0]:
                        Lanes[At[0] * LANES + l] = Values[Head[l]]""",
    "finish": "pass",
}


@lru_cache(maxsize=32)
def _program(which: str, lanes: int, fewest: int, dtype: str, idtype: str) -> Kernel:
    """Return the program that counts, or fills, segments of *lanes* values of *dtype*."""
    from spcomp.compiler.compile import compile as compile_program
    from spcomp.script.parse import parse_source

    source = _MERGE.format(**(_COUNT if which == "count" else _FILL))
    most = (1 << 31) - 1 if idtype == "int32" else 1 << 62
    for word, meaning in (
        *(("LANES", lanes), ("FEWEST", fewest), ("NONE", most)),
        *(('"int32"', f'"{idtype}"'), ('"float32"', f'"{dtype}"')),
    ):
        source = source.replace(word, str(meaning))
    (func,) = parse_source(source, f"{which}_segments.py")
    return compile_program(func, check="off")  # what it relies on has been checked


def sliced_diagonal(
    layout: SlicedDiagonal,
    shape: tuple[int, int],
    csr: tuple[Array, Array, Array],
    dtype: DType,
) -> dict[str, Arrays]:
    """Return the parts of a matrix: for each rule of *layout*, its arrays by their names in it.

    *csr* is indptr, indices and values, checked; rows need not be sorted, but segments are longer
    if they are. Time is linear in elements times lanes, in parallel over slices.
    """
    indptr, indices, values = csr
    if dtype.kind == "bool":  # programs compare values with the literal 0
        found = sliced_diagonal(layout, shape, (indptr, indices, values.view(np.uint8)), uint8)
        return {name: part | {"values": part["values"].view(np.bool_)}
                for name, part in found.items()}  # fmt: skip
    lanes, (m, n) = layout.lanes_of(dtype), shape
    whole = m - m % lanes
    options = lanes, math.ceil(layout.min_fill * lanes), str(dtype), str(indptr.dtype)
    segments, spilled = np.empty(m // lanes, np.int64), np.empty(m, np.int64)
    spilled[whole:] = np.diff(indptr[whole:])
    size = m, n, len(indices)
    _program("count", *options)(indptr, indices, values, segments, spilled, *size)
    first, begin = _running(segments), _running(spilled)
    count, left = int(first[-1]), int(begin[-1])
    starts, packed = np.empty(count, indptr.dtype), np.empty(count * lanes, values.dtype)
    columns, rest = np.empty(left, indptr.dtype), np.empty(left, values.dtype)
    last = slice(int(indptr[whole]), int(indptr[m]))  # rows that do not fill a slice
    columns[begin[whole] :], rest[begin[whole] :] = indices[last], values[last]
    outputs = first, begin[:-1], starts, packed, columns, rest
    _program("fill", *options)(indptr, indices, values, *outputs, *size, count, left)
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
            "J_indptr": np.append(begin[rows], left).astype(indptr.dtype),
            "J_indices": columns,
        },
    }


def _running(counts: Array) -> Array:
    """Return 0 and the running sums of *counts*."""
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums
