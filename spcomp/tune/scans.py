"""Beside the route: the programs behind statistics.py, compiled by spcomp, on all threads."""

# ruff: noqa: ANN001, ANN201, N803, N806, N812
# mypy: disable-error-code="valid-type, operator, no-untyped-def"
from __future__ import annotations

from typing import Any

from spcomp import script as T
from spcomp.compiler.programs import program

SIZES = (2, 4, 8, 16, 32)  # of blocks; a chunk begins at a multiple of the largest
LANES = 16  # rows of a slice of diagonal segments: 64 bytes of float32
LEAST = LANES // 4  # elements that a segment needs: spcomp.formats.sliced_diagonal's default
WIDEST = 32  # the widest bucket of hyb
RARER = 4  # the first sample, after all columns, is of one in 2**RARER
# what a chunk of rows counts, in this order; then the accesses of each sample
COUNTS = ("longest", "empty", "hyb", "bandwidth", "outside", "segments", "in_segments")
SAMPLES = 33
FOUND = len(COUNTS) + len(SIZES)
RECORD = FOUND + SAMPLES
HASH = -7046029254386353131  # 2**64 / golden ratio, odd; the high half of a product is used
STRIDE = 64  # between the marks of two slices, above any count of lanes


@T.macro
def measure(length, mean, Seen, Sums, Width):
    """Count a row of *length* elements."""
    Seen[0] = T.max(Seen[0], length)
    Seen[1] = Seen[1] + T.cast(length == 0, "int64")
    Width[0] = 1
    while Width[0] < T.min(length, WIDEST):
        Width[0] = Width[0] * 2
    Seen[2] = Seen[2] + (length + Width[0] - 1) // Width[0] * Width[0]
    off = T.cast(length, "float64") - mean
    Sums[0] = Sums[0] + off * off
    Sums[1] = Sums[1] + off * off * off


@T.macro
def mark_segment(Marks, Seen, at, i, mark):
    """Count an element of row *i* in the diagonal segment whose mark is at *at*."""
    behind = (i // LANES + 1) * STRIDE
    count = T.max(T.cast(Marks[at], "int64") - behind, 0) + 1
    Marks[at] = T.cast(behind + T.min(count, STRIDE - 1), mark)
    Seen[5] = Seen[5] + T.cast(count == LEAST, "int64")
    reached = T.cast(count == LEAST, "int64") * LEAST
    Seen[6] = Seen[6] + reached + T.cast(count > LEAST, "int64")


@T.macro
def mark_blocks(Marks, Seen, begin, i, j, n, mark, k):
    """Mark the blocks of ``2**k`` and more around ``(i, j)``, up to the first that is marked."""
    at = begin + (j >> k)
    block = T.cast((i >> k) + 1, mark)
    if Marks[at] != block:
        Marks[at] = block
        Seen[k + 6] = Seen[k + 6] + 1
        if k < 5:
            mark_blocks(Marks, Seen, begin + (n >> k) + 1, i, j, n, mark, k + 1)


@T.macro
def count_sample(Counts, begin, j):
    """Count an access of column *j* in the rarest sample that it belongs to, from *begin* on."""
    hashed = (j + 1) * HASH >> 32 & 0xFFFFFFFF
    if hashed & (1 << RARER) - 1 == 0:
        ended = hashed | 1 << 32
        at = begin + T.cast(T.popcount((ended & -ended) - 1), "int64")
        Counts[at] = Counts[at] + 1


@program
def scan(pointer: str, index: str, mark: str) -> Any:
    """Everything that the elements of a chunk of rows tell, in one pass.

    ``Marks`` holds zeros, for each chunk: the elements of each diagonal segment of a slice, see
    STRIDE, then for each size the last block row that has a block in each block column. A block
    that is marked is marked in all larger sizes. ``Diagonals``: whether each has an element.
    ``Moments``: of the row lengths around *mean*, and the sum of all distances from the diagonal.
    """

    @T.prim_func
    def scan(
        rows_of: T.handle, columns: T.handle, cuts: T.handle, marks: T.handle, used: T.handle,
        counts: T.handle, moments: T.handle, m: T.int64, n: T.int64, nnz: T.int64,
        chunks: T.int64, marked: T.int64, mean: T.float64,
    ) -> None:  # fmt: skip
        Rows = T.match_buffer(rows_of, (m + 1,), pointer)
        Columns = T.match_buffer(columns, (nnz,), index)
        Cuts = T.match_buffer(cuts, (chunks + 1,), "int64")
        Marks = T.match_buffer(marks, (chunks * marked,), mark)
        Diagonals = T.match_buffer(used, (chunks * (m + n),), "uint8")
        Counts = T.match_buffer(counts, (chunks * RECORD,), "int64")
        Moments = T.match_buffer(moments, (chunks * 3,), "float64")
        for c in T.parallel(chunks):
            Seen = T.alloc_buffer((FOUND,), "int64", scope="local")
            Sums = T.alloc_buffer((3,), "float64", scope="local")
            Width = T.alloc_buffer((1,), "int64", scope="local")
            for k in T.unroll(FOUND):
                Seen[k] = 0
            for k in T.unroll(3):
                Sums[k] = 0.0
            for i in T.serial(Cuts[c], Cuts[c + 1]):
                begin = T.cast(Rows[i], "int64")
                measure(T.cast(Rows[i + 1], "int64") - begin, mean, Seen, Sums, Width)
                whole = (i // LANES + 1) * LANES <= m
                for p in T.serial(begin, T.cast(Rows[i + 1], "int64")):
                    raw = T.cast(Columns[p], "int64")
                    j = T.min(T.max(raw, 0), n - 1)
                    Seen[3] = T.max(Seen[3], T.max(i - j, j - i))
                    Seen[4] = Seen[4] + T.cast(raw != j, "int64")
                    Sums[2] = Sums[2] + T.cast(T.max(i - j, j - i), "float64")
                    Diagonals[c * (m + n) + j - i + m] = T.cast(1, "uint8")
                    start = j - i % LANES
                    if whole and start >= 0 and start <= n - LANES:
                        mark_segment(Marks, Seen, c * marked + start, i, mark)
                    mark_blocks(Marks, Seen, c * marked + n, i, j, n, mark, 1)
                    count_sample(Counts, c * RECORD + FOUND, j)
            for k in T.unroll(FOUND):
                Counts[c * RECORD + k] = Seen[k]
            for k in T.unroll(3):
                Moments[c * 3 + k] = Sums[k]

    return scan


@program
def gather_sample(pointer: str, index: str) -> Any:
    """The columns whose hash ends in zeros where *mask* has ones, in order of access."""

    @T.prim_func
    def gather_sample(
        rows_of: T.handle, columns: T.handle, cuts: T.handle, firsts: T.handle, sample: T.handle,
        m: T.int64, nnz: T.int64, chunks: T.int64, found: T.int64, mask: T.int64,
    ) -> None:  # fmt: skip
        Rows = T.match_buffer(rows_of, (m + 1,), pointer)
        Columns = T.match_buffer(columns, (nnz,), index)
        Cuts = T.match_buffer(cuts, (chunks + 1,), "int64")
        Firsts = T.match_buffer(firsts, (chunks + 1,), "int64")
        Sample = T.match_buffer(sample, (found,), index)
        for c in T.parallel(chunks):
            At = T.alloc_buffer((1,), "int64", scope="local")
            At[0] = Firsts[c]
            for p in T.serial(T.cast(Rows[Cuts[c]], "int64"), T.cast(Rows[Cuts[c + 1]], "int64")):
                hashed = (T.cast(Columns[p], "int64") + 1) * HASH >> 32
                if hashed & mask == 0 and At[0] < Firsts[c + 1]:
                    Sample[At[0]] = Columns[p]
                    At[0] = At[0] + 1

    return gather_sample


@program
def stack_distances() -> Any:
    """How many different items were used since each access's last use; -1 if there was none.

    ``Before``: the place of that last use, or -1, in each of *windows* of one size. A tree of sums
    (Fenwick, 1994) over places has a one where an item was used last.
    """

    @T.prim_func
    def stack_distances(
        before: T.handle, sums: T.handle, distances: T.handle, windows: T.int64, size: T.int64,
    ) -> None:  # fmt: skip
        Before = T.match_buffer(before, (windows * size,), "int64")
        Sums = T.match_buffer(sums, (windows * (size + 1),), "int64")
        Distances = T.match_buffer(distances, (windows * size,), "int64")
        for w in T.parallel(windows):
            At = T.alloc_buffer((2,), "int64", scope="local")
            for t in T.serial(size):
                last = Before[w * size + t]
                At[1] = -1
                if last >= 0:
                    At[1] = 0
                    At[0] = t
                    while At[0] > 0:
                        At[1] = At[1] + Sums[w * (size + 1) + At[0]]
                        At[0] = At[0] & At[0] - 1
                    At[0] = last + 1
                    while At[0] > 0:
                        At[1] = At[1] - Sums[w * (size + 1) + At[0]]
                        At[0] = At[0] & At[0] - 1
                    At[0] = last + 1
                    while At[0] <= size:
                        Sums[w * (size + 1) + At[0]] = Sums[w * (size + 1) + At[0]] - 1
                        At[0] = At[0] + (At[0] & -At[0])
                Distances[w * size + t] = At[1]
                At[0] = t + 1
                while At[0] <= size:
                    Sums[w * (size + 1) + At[0]] = Sums[w * (size + 1) + At[0]] + 1
                    At[0] = At[0] + (At[0] & -At[0])

    return stack_distances
