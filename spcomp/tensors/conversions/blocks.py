"""At a conversion: a matrix by rows as dense blocks, and back, on all threads.

The rows of a block are merged: each has a cursor, and the least column at a cursor says which block
is next. So the blocks of a block row come in order, and no list of all columns is needed.
"""

# ruff: noqa: N806, N812
# mypy: disable-error-code="valid-type, operator, no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np

from spcomp import script as T
from spcomp.arrays import Array
from spcomp.compiler.programs import program
from spcomp.runtime.recycle import empty
from spcomp.tensors import checks as validate
from spcomp.tensors.conversions import small
from spcomp.tensors.conversions.keys import Ordered, as_bits, index_type
from spcomp.tensors.conversions.order import SPARSE, Plan, rows_in_order
from spcomp.tensors.libraries.scipy import Compressed, by_majors, by_minors

TALL = 256  # most rows of a block that are merged; each takes a step


@program
def merge(pointer: str, index: str, height: int, width: int) -> Any:
    """The columns and the number of blocks in each block row, and the block of each element.

    The number of the block is written for every candidate, without a branch: whether an element is
    in a block cannot be predicted.
    """

    @T.prim_func
    def merge(
        rows_of: T.handle, minors: T.handle, which: T.handle, found: T.handle, counts: T.handle,
        n: T.int64, rows: T.int64, majors: T.int64, buckets: T.int64, wide: T.int64,
    ) -> None:  # fmt: skip
        Rows = T.match_buffer(rows_of, (rows + 1,), pointer)
        Minors = T.match_buffer(minors, (n,), index)
        Which = T.match_buffer(which, (n,), index)
        Found = T.match_buffer(found, (n,), index)
        Counts = T.match_buffer(counts, (majors,), "int64")
        for b in T.parallel(buckets):
            At = T.alloc_buffer((height,), "int64", scope="local")
            End = T.alloc_buffer((height,), "int64", scope="local")
            Next = T.alloc_buffer((2,), "int64", scope="local")
            for r in T.serial(b << wide, T.min((b + 1) << wide, majors)):
                begin = T.cast(Rows[r * height], "int64")
                Next[0] = T.max_value("int64")
                Next[1] = 0
                for i in T.serial(height):
                    At[i] = T.cast(Rows[T.min(r * height + i, rows)], "int64")
                    End[i] = T.cast(Rows[T.min(r * height + i + 1, rows)], "int64")
                    if At[i] < End[i]:
                        Next[0] = T.min(Next[0], T.cast(Minors[At[i]], "int64"))
                while Next[0] < T.max_value("int64"):
                    block = Next[0] // width
                    behind = (block + 1) * width
                    Next[0] = T.max_value("int64")
                    Found[begin + Next[1]] = T.cast(block, index)
                    for i in T.serial(height):
                        if At[i] < End[i]:
                            Which[At[i]] = T.cast(Next[1], index)
                            At[i] = At[i] + T.cast(Minors[At[i]] < behind, "int64")
                            while At[i] < End[i] and Minors[T.min(At[i], n - 1)] < behind:
                                Which[At[i]] = T.cast(Next[1], index)
                                At[i] = At[i] + 1
                            Next[0] = T.min(
                                Next[0],
                                T.if_then_else(
                                    At[i] < End[i],
                                    T.cast(Minors[T.min(At[i], n - 1)], "int64"),
                                    T.max_value("int64"),
                                ),
                            )
                    Next[1] = Next[1] + 1
                Counts[r] = Next[1]

    return merge


@program
def fill(pointer: str, index: str, value: str, height: int, width: int) -> Any:
    """The values of the blocks, and their columns."""

    @T.prim_func
    def fill(
        rows_of: T.handle, minors: T.handle, which: T.handle, found: T.handle, starts: T.handle,
        values: T.handle, indices: T.handle, blocks: T.handle, n: T.int64, rows: T.int64,
        majors: T.int64, buckets: T.int64, wide: T.int64, count: T.int64,
    ) -> None:  # fmt: skip
        Rows = T.match_buffer(rows_of, (rows + 1,), pointer)
        Minors = T.match_buffer(minors, (n,), index)
        Which = T.match_buffer(which, (n,), index)
        Found = T.match_buffer(found, (n,), index)
        Starts = T.match_buffer(starts, (majors + 1,), "int64")
        Values = T.match_buffer(values, (n,), value)
        Indices = T.match_buffer(indices, (count,), index)
        Blocks = T.match_buffer(blocks, (count * height * width,), value)
        for b in T.parallel(buckets):
            for r in T.serial(b << wide, T.min((b + 1) << wide, majors)):
                begin = T.cast(Rows[r * height], "int64")
                for k in T.serial(Starts[r], Starts[r + 1]):
                    Indices[k] = Found[begin + k - Starts[r]]
                for k in T.serial(Starts[r] * (height * width), Starts[r + 1] * (height * width)):
                    Blocks[k] = T.cast(0, value)
                for i in T.serial(height):
                    row = T.min(r * height + i, rows)
                    behind = T.min(row + 1, rows)
                    for p in T.serial(T.cast(Rows[row], "int64"), T.cast(Rows[behind], "int64")):
                        number = T.cast(Which[p], "int64")
                        column = T.cast(Found[begin + number], "int64") * width
                        to = ((Starts[r] + number) * height + i) * width - column
                        Blocks[to + T.cast(Minors[p], "int64")] = Values[p]

    return fill


@program
def rows_of_blocks(pointer: str, index: str, number: str, value: str, wider: str) -> Any:
    """The matrix rows of blocks, taken in ``Order``; all values, with zeros."""

    @T.prim_func
    def rows_of_blocks(
        starts: T.handle, found: T.handle, order: T.handle, blocks: T.handle, ends: T.handle,
        minors: T.handle, moved: T.handle, count: T.int64, majors: T.int64, buckets: T.int64,
        wide: T.int64, height: T.int64, width: T.int64,
    ) -> None:  # fmt: skip
        Starts = T.match_buffer(starts, (majors + 1,), pointer)
        Found = T.match_buffer(found, (count,), index)
        Order = T.match_buffer(order, (count,), number)
        Blocks = T.match_buffer(blocks, (count * height * width,), value)
        Ends = T.match_buffer(ends, (majors * height,), wider)
        Minors = T.match_buffer(minors, (count * height * width,), wider)
        Moved = T.match_buffer(moved, (count * height * width,), value)
        for b in T.parallel(buckets):
            for r in T.serial(b << wide, T.min((b + 1) << wide, majors)):
                begin = T.cast(Starts[r], "int64")
                length = T.cast(Starts[r + 1], "int64") - begin
                for i in T.serial(height):
                    to = (begin * height + i * length) * width
                    Ends[r * height + i] = T.cast(to + length * width, wider)
                    for k in T.serial(length):
                        start = (T.cast(Order[begin + k], "int64") * height + i) * width
                        column = T.cast(Found[begin + k], "int64") * width
                        for j in T.serial(width):
                            Minors[to + k * width + j] = T.cast(column + j, wider)
                            Moved[to + k * width + j] = Blocks[start + j]

    return rows_of_blocks


def in_blocks(matrix: Ordered, columns: int, sizes: tuple[int, int]) -> Compressed:
    """Return *matrix*, sorted rows without repeated elements, as ordered blocks of *sizes*.

    Index arrays keep their types. The values have shape (blocks, height, width). Blocks may reach
    over the edge.
    """
    (height, width), n, rows = sizes, len(matrix.minors), matrix.majors
    majors = -(-rows // height)
    if n <= small.MATRIX or height > TALL:
        return _of_few(matrix, majors, -(-columns // width), sizes)
    plan, values = Plan.of(n, majors, 1), as_bits(matrix.values)
    pointer, index = str(matrix.pointers.dtype), str(matrix.minors.dtype)
    kind, starts = matrix.minors.dtype, np.zeros(majors + 1, np.int64)
    arrays = matrix.pointers, matrix.minors, empty(n, kind), empty(n, kind)
    limits = n, rows, majors, plan.buckets, plan.wide
    merge(pointer, index, height, width)(*arrays, starts[1:], *limits)
    np.cumsum(starts, out=starts)
    count = int(starts[-1])
    minors, blocks = empty(count, kind), empty(count * height * width, values.dtype)
    put = fill(pointer, index, str(values.dtype), height, width)
    put(*arrays, starts, values, minors, blocks, *limits, count)
    filled = blocks.reshape(count, height, width).view(matrix.values.dtype)
    return starts.astype(matrix.pointers.dtype), minors, filled


def _of_few(matrix: Ordered, majors: int, across: int, sizes: tuple[int, int]) -> Compressed:
    (height, width), kind, count = sizes, matrix.minors.dtype, len(matrix.minors)
    blocks = matrix.minors // width
    rows = small.majors_of(matrix.pointers, kind)
    within = rows % height * width + matrix.minors - blocks * width
    numbers = as_bits(np.arange(count, dtype=index_type(count)))
    fibers = matrix.pointers[np.minimum(np.arange(majors + 1) * height, matrix.majors)]
    if across > max(SPARSE * count, small.SMALL):
        order = np.lexsort((blocks, rows // height))
        pointers, minors = fibers.astype(kind, copy=False), blocks[order]
    else:
        by_columns = by_minors((fibers, blocks, numbers), across, kind)
        pointers, minors, order = by_minors(by_columns, majors, kind)
    new, number = small.firsts(pointers, minors)  # of the blocks
    bits = as_bits(matrix.values)
    values = np.zeros((int(number[-1]), height, width), bits.dtype)
    at = (number[1:] - 1) * np.int64(height * width) + within[order]
    values.reshape(-1)[at] = bits[order]
    return number[pointers], minors[new], values.view(matrix.values.dtype)


def out_of_blocks(pointers: Array, indices: Array, values: Array, columns: int) -> Compressed:
    """Return blocks, in the form of :func:`in_blocks`, as the rows of a matrix with *columns*.

    All values of the blocks, with zeros, sorted; repeated elements keep their order.
    """
    (count, height, width), majors = values.shape, len(pointers) - 1
    kind = index_type(majors * height, columns, values.size)
    order = np.arange(count, dtype=index_type(count))
    if not validate.ascends(pointers, indices, 0, strict=False):
        ordered = rows_in_order(pointers, indices, order, columns // width)
        indices, order = ordered.minors, ordered.values
    if values.size <= small.MATRIX:
        row = small.majors_of(pointers, kind)[:, None, None] * height + np.arange(height)[:, None]
        column = indices[:, None, None] * width + np.arange(width)
        row, column = (np.broadcast_to(axis, values.shape).reshape(-1) for axis in (row, column))
        bits = as_bits(values[order]).reshape(-1)
        ends, minors, moved = by_majors(row, column, bits, (majors * height, columns), kind)
        return ends, minors, moved.view(values.dtype)
    plan, bits = Plan.of(count, majors, 1), np.ascontiguousarray(as_bits(values)).reshape(-1)
    ends = np.zeros(majors * height + 1, kind)
    minors, moved = empty(values.size, kind), empty(values.size, values.dtype)
    types = (str(array.dtype) for array in (pointers, indices, order, bits, ends))
    arrays = pointers, indices, order, bits, ends[1:], minors, as_bits(moved)
    sizes = count, majors, plan.buckets, plan.wide, height, width
    rows_of_blocks(*types)(*arrays, *sizes)
    return ends, minors, moved
