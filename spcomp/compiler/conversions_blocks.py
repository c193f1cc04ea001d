"""At a conversion: a matrix by rows as one of dense blocks, and back, on all threads.

The rows of a block are merged: each has a cursor, and the least column under one says which block
is next. So blocks of a row of them come in order, and no list of all columns is needed.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from spcomp.compiler import conversions_small as small
from spcomp.compiler import validate
from spcomp.compiler.conversions_sort import (
    Ordered,
    Plan,
    index_type,
    moved_as,
    rows_in_order,
    run,
)
from spcomp.compiler.conversions_text import HEAD
from spcomp.runtime.recycle import empty

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
TALL = 256  # rows of a block up to which they are merged, which takes a step for each
Compressed: TypeAlias = tuple[Array, Array, Array]  # pointers, indices, values

_MERGE = (
    HEAD
    + """def merge(rows_of: T.handle, minors: T.handle, which: T.handle, found: T.handle,
          counts: T.handle, n: T.int64, rows: T.int64, majors: T.int64, buckets: T.int64,
          wide: T.int64) -> None:
    Rows = T.match_buffer(rows_of, (rows + 1,), "POINTER")
    Minors = T.match_buffer(minors, (n,), "INDEX")
    Which = T.match_buffer(which, (n,), "INDEX")
    Found = T.match_buffer(found, (n,), "INDEX")
    Counts = T.match_buffer(counts, (majors,), "int64")
    for b in T.parallel(buckets):
        At = T.alloc_buffer((HEIGHT,), "int64", scope="local")
        End = T.alloc_buffer((HEIGHT,), "int64", scope="local")
        Next = T.alloc_buffer((2,), "int64", scope="local")
        for r in T.serial(b << wide, T.min((b + 1) << wide, majors)):
            begin = T.cast(Rows[r * HEIGHT], "int64")
            Next[0] = T.max_value("int64")
            Next[1] = 0
            for i in T.serial(HEIGHT):
                At[i] = T.cast(Rows[T.min(r * HEIGHT + i, rows)], "int64")
                End[i] = T.cast(Rows[T.min(r * HEIGHT + i + 1, rows)], "int64")
                if At[i] < End[i]:
                    Next[0] = T.min(Next[0], T.cast(Minors[At[i]], "int64"))
            while Next[0] < T.max_value("int64"):
                block = Next[0] // WIDTH
                behind = (block + 1) * WIDTH
                Next[0] = T.max_value("int64")
                Found[begin + Next[1]] = T.cast(block, "INDEX")
                for i in T.serial(HEIGHT):
                    if At[i] < End[i]:
                        Which[At[i]] = T.cast(Next[1], "INDEX")
                        At[i] = At[i] + T.cast(Minors[At[i]] < behind, "int64")
                        while At[i] < End[i] and Minors[T.min(At[i], n - 1)] < behind:
                            Which[At[i]] = T.cast(Next[1], "INDEX")
                            At[i] = At[i] + 1
                        Next[0] = T.min(Next[0], T.if_then_else(
                            At[i] < End[i], T.cast(Minors[T.min(At[i], n - 1)], "int64"),
                            T.max_value("int64")))
                Next[1] = Next[1] + 1
            Counts[r] = Next[1]
"""
)
"""The columns of the blocks in each row of them, where its elements begin, and how many they are;
for each element which of them it is in. Its number is written until it is right: whether an element
is in a block is a matter of chance, and a branch on it would cost more."""

_FILL = (
    HEAD
    + """def fill(rows_of: T.handle, minors: T.handle, which: T.handle, found: T.handle,
         starts: T.handle, values: T.handle, indices: T.handle, blocks: T.handle, n: T.int64,
         rows: T.int64, majors: T.int64, buckets: T.int64, wide: T.int64, count: T.int64) -> None:
    Rows = T.match_buffer(rows_of, (rows + 1,), "POINTER")
    Minors = T.match_buffer(minors, (n,), "INDEX")
    Which = T.match_buffer(which, (n,), "INDEX")
    Found = T.match_buffer(found, (n,), "INDEX")
    Starts = T.match_buffer(starts, (majors + 1,), "int64")
    Values = T.match_buffer(values, (n,), "VALUE")
    Indices = T.match_buffer(indices, (count,), "INDEX")
    Blocks = T.match_buffer(blocks, (count * HEIGHT * WIDTH,), "VALUE")
    for b in T.parallel(buckets):
        for r in T.serial(b << wide, T.min((b + 1) << wide, majors)):
            begin = T.cast(Rows[r * HEIGHT], "int64")
            for k in T.serial(Starts[r], Starts[r + 1]):
                Indices[k] = Found[begin + k - Starts[r]]
            for k in T.serial(Starts[r] * (HEIGHT * WIDTH), Starts[r + 1] * (HEIGHT * WIDTH)):
                Blocks[k] = T.cast(0, "VALUE")
            for i in T.serial(HEIGHT):
                for p in T.serial(T.cast(Rows[T.min(r * HEIGHT + i, rows)], "int64"),
                                  T.cast(Rows[T.min(r * HEIGHT + i + 1, rows)], "int64")):
                    own = T.cast(Which[p], "int64")
                    left = T.cast(Found[begin + own], "int64") * WIDTH
                    to = ((Starts[r] + own) * HEIGHT + i) * WIDTH - left
                    Blocks[to + T.cast(Minors[p], "int64")] = Values[p]
"""
)
"""The blocks."""

_ROWS = (
    HEAD
    + """def rows_of_blocks(starts: T.handle, found: T.handle, order: T.handle, blocks: T.handle,
                   ends: T.handle, minors: T.handle, moved: T.handle, count: T.int64,
                   majors: T.int64, buckets: T.int64, wide: T.int64, height: T.int64,
                   width: T.int64) -> None:
    Starts = T.match_buffer(starts, (majors + 1,), "POINTER")
    Found = T.match_buffer(found, (count,), "INDEX")
    Order = T.match_buffer(order, (count,), "NUMBER")
    Blocks = T.match_buffer(blocks, (count * height * width,), "VALUE")
    Ends = T.match_buffer(ends, (majors * height,), "WIDER")
    Minors = T.match_buffer(minors, (count * height * width,), "WIDER")
    Moved = T.match_buffer(moved, (count * height * width,), "VALUE")
    for b in T.parallel(buckets):
        for r in T.serial(b << wide, T.min((b + 1) << wide, majors)):
            begin = T.cast(Starts[r], "int64")
            some = T.cast(Starts[r + 1], "int64") - begin
            for i in T.serial(height):
                to = (begin * height + i * some) * width
                Ends[r * height + i] = T.cast(to + some * width, "WIDER")
                for k in T.serial(some):
                    own = (T.cast(Order[begin + k], "int64") * height + i) * width
                    for j in T.serial(width):
                        Minors[to + k * width + j] = T.cast(
                            T.cast(Found[begin + k], "int64") * width + j, "WIDER")
                        Moved[to + k * width + j] = Blocks[own + j]
"""
)
"""The rows of blocks that are in some order: all that these hold, zeros too."""


def in_blocks(given: Ordered, columns: int, sizes: tuple[int, int]) -> Compressed:
    """Return a matrix by rows, sorted, no element twice, in blocks of *sizes*, which are in order.

    Index arrays are of the types of those of *given*; the values have an axis for blocks, and two
    for what is in each. Blocks may reach over the edge.
    """
    (height, width), n, rows = sizes, len(given.minors), given.majors
    majors = -(-rows // height)
    if n <= small.MATRIX or height > TALL:
        return _of_few(given, majors, -(-columns // width), sizes)
    plan, values = Plan.of(n, majors, 1), moved_as(given.values)
    types = _types(given.pointers, given.minors, values)
    types |= {"HEIGHT": str(height), "WIDTH": str(width)}
    kind, starts = given.minors.dtype, np.zeros(majors + 1, np.int64)
    arrays = given.pointers, given.minors, empty(n, kind), empty(n, kind)
    limits = n, rows, majors, plan.buckets, plan.wide
    run(_MERGE, types, *arrays, starts[1:], *limits)
    np.cumsum(starts, out=starts)
    count = int(starts[-1])
    found, blocks = empty(count, kind), empty(count * height * width, values.dtype)
    run(_FILL, types, *arrays, starts, values, found, blocks, *limits, count)
    made = blocks.reshape(count, height, width).view(given.values.dtype)
    return starts.astype(given.pointers.dtype), found, made


def _of_few(given: Ordered, majors: int, across: int, sizes: tuple[int, int]) -> Compressed:
    (height, width), kind, count = sizes, given.minors.dtype, len(given.minors)
    blocks = given.minors // width
    within = small.majors_of(given.pointers, kind) % height * width + given.minors - blocks * width
    numbers = moved_as(np.arange(count, dtype=index_type(count)))
    fibers = given.pointers[np.minimum(np.arange(majors + 1) * height, given.majors)]
    by_columns = small.turned((fibers, blocks, numbers), across, kind)
    pointers, minors, order = small.turned(by_columns, majors, kind)
    new, number = small.firsts(pointers, minors)  # of the blocks
    bits = moved_as(given.values)
    values = np.zeros((int(number[-1]), height, width), bits.dtype)
    at = (number[1:] - 1) * np.int64(height * width) + within[order]
    values.reshape(-1)[at] = bits[order]
    return number[pointers], minors[new], values.view(given.values.dtype)


def out_of_blocks(pointers: Array, indices: Array, values: Array, columns: int) -> Compressed:
    """Return rows of blocks, as :func:`in_blocks` does, as the rows of a matrix with *columns*.

    They hold all that the blocks do, zeros too, sorted; equal ones stay in the order they had.
    """
    (count, height, width), majors = values.shape, len(pointers) - 1
    kind = index_type(majors * height, columns, values.size)
    order = np.arange(count, dtype=index_type(count))
    if not validate.ascends(pointers, indices, 0, strict=False):
        made = rows_in_order(pointers, indices, order, columns // width)
        indices, order = made.minors, made.values
    if values.size <= small.MATRIX:
        row = small.majors_of(pointers, kind)[:, None, None] * height + np.arange(height)[:, None]
        column = indices[:, None, None] * width + np.arange(width)
        row, column = (np.broadcast_to(own, values.shape).reshape(-1) for own in (row, column))
        bits = moved_as(values[order]).reshape(-1)
        ends, minors, moved = small.by_majors(row, column, bits, (majors * height, columns), kind)
        return ends, minors, moved.view(values.dtype)
    plan, bits = Plan.of(count, majors, 1), np.ascontiguousarray(moved_as(values)).reshape(-1)
    ends = np.zeros(majors * height + 1, kind)
    minors, moved = empty(values.size, kind), empty(values.size, values.dtype)
    words = _types(pointers, indices, bits) | {"WIDER": str(kind), "NUMBER": str(order.dtype)}
    arrays = pointers, indices, order, bits, ends[1:], minors, moved_as(moved)
    run(_ROWS, words, *arrays, count, majors, plan.buckets, plan.wide, height, width)
    return ends, minors, moved


def _types(pointers: Array, indices: Array, values: Array) -> dict[str, str]:
    return {"POINTER": str(pointers.dtype), "INDEX": str(indices.dtype), "VALUE": str(values.dtype)}
