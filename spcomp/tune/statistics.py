"""Beside the route: what a matrix looks like, in numbers that a schedule or a format depends on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import ceil, log2
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError, OutOfMemoryError, front_door
from spcomp.tensors import checks as validate
from spcomp.tensors.convert import convert
from spcomp.tensors.tensor import Tensor
from spcomp.tune.scans import (
    COUNTS,
    FOUND,
    LANES,
    RARER,
    RECORD,
    SIZES,
    gather_sample,
    scan,
    stack_distances,
)

CHUNKS = 64  # pieces of the matrix that threads take, at most
SAMPLE = 1 << 16  # accesses whose reuse is measured, at most
SORTED = 512  # rows that are sorted together: with more, threads write rows on one cache line
WINDOWS = 8  # runs of consecutive accesses in a large matrix
WINDOW = 1 << 14  # accesses of each; reuse is measured in the second half
NEAR = 12  # log2 of the distances that such a run can tell


@dataclass(frozen=True, slots=True)
class MatrixStatistics:
    """What :func:`matrix_statistics` returns. Lengths are those of rows, in elements.

    *skew*: the third standardised moment of the lengths. *bandwidth*, *offset*: the largest and the
    mean distance of an element from the diagonal. *block_fill*: the share of elements in the blocks
    of 2, 4, 8, 16 and 32 rows and columns that have some.

    *ell*, *hyb*, *sliced*, *dia*, *sell*, *windows*, *slices*: values that the format stores for
    each element of the matrix: ``spcomp.formats.ell()``, ``hyb(1, [1, 2, ..., 32], padded=True)``,
    ``sliced_diagonal(16)``, ``dia()``, ``sell(16)``, ``sell(16, 512)`` and ``sell(16, 1)``, the
    part for the remaining elements included. *loose*: the share of elements that
    ``sliced_diagonal(16)`` leaves to that part.

    *reuse*: for k = 0, 1, ..., the share of elements in whose column there was another with fewer
    than ``2**k`` other columns in between, in the order of storage: how often a cache for ``2**k``
    rows of a dense operand has the one that is gathered. Measured exactly up to 65536 elements;
    beyond, it is an estimate from a sample of columns and of runs of elements.
    """

    rows: int
    columns: int
    nnz: int
    mean: float
    spread: float
    longest: int
    skew: float
    empty: int
    bandwidth: int
    offset: float
    diagonals: int
    block_fill: tuple[float, ...]
    ell: float
    hyb: float
    sliced: float
    loose: float
    dia: float
    sell: float
    windows: float
    slices: float
    reuse: tuple[float, ...]

    @property
    def bsr(self) -> tuple[float, ...]:
        """Values that blocks of 2, 4, 8, 16 and 32 store for each element."""
        return tuple(1 / fill for fill in self.block_fill)

    @property
    def numbers(self) -> dict[str, float]:
        """All statistics by name, as a cost model takes them; those of many parts numbered."""
        result: dict[str, float] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                result |= {f"{field.name}_{k}": part for k, part in enumerate(value)}
            else:
                result[field.name] = value
        return result

    def hits(self, rows: float) -> float:
        """Return the share of gathered rows that a cache for *rows* of them has; see *reuse*."""
        if rows < 1 or not self.reuse:
            return 0.0
        return float(np.interp(log2(rows), range(len(self.reuse)), self.reuse))

    def __str__(self) -> str:
        lines = []
        for field in fields(self):
            value = getattr(self, field.name)
            parts = value if isinstance(value, tuple) else (value,)
            text = " ".join(
                f"{part:.4g}" if isinstance(part, float) else str(part) for part in parts
            )
            lines.append(f"{field.name:<12}{text}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A matrix by rows, cut into chunks of rows that hold about equally many elements."""

    pointers: Array
    indices: Array
    rows: int
    columns: int
    cuts: Array

    @property
    def nnz(self) -> int:
        return int(self.pointers[-1]) - int(self.pointers[0])

    @property
    def chunks(self) -> int:
        return len(self.cuts) - 1

    @property
    def types(self) -> tuple[str, str]:
        return str(self.pointers.dtype), str(self.indices.dtype)


@front_door
def matrix_statistics(matrix: Any) -> MatrixStatistics:
    """Return statistics of a sparse matrix, from one or two passes over its indices.

    They run on all threads, and do not depend on how many there are. A second pass samples columns
    of a matrix with more than 65536 elements.

    Args:
        matrix: Whatever ``spcomp.convert`` takes; other formats than CSR are converted to it.

    Raises:
        ArgumentError: *matrix* is no matrix, or its index arrays are not valid.
        OutOfMemoryError: There is not enough memory for marks, up to 18 bytes an element, and 9 a
            column.

    Sources: the sampling of columns by their hash is SHARDS (Waldspurger et al., FAST 2015); the
    distances are those of Mattson et al. (Evaluation techniques for storage hierarchies, 1970).
    """
    rows = _rows_of(matrix)
    m, n, nnz = rows.rows, rows.columns, rows.nnz
    if not nnz:
        return _of_nothing(m, n)
    counts, moments, diagonals = _scan(rows)
    total = dict(zip(COUNTS, counts.sum(axis=0).tolist(), strict=False))
    longest, bandwidth = (int(counts[:, COUNTS.index(k)].max()) for k in ("longest", "bandwidth"))
    if total["outside"]:
        raise ArgumentError(
            f"argument matrix: {total['outside']} column indices are not in 0..{n - 1}"
        )
    squares, cubes, offsets = moments.sum(axis=0).tolist()
    spread = (squares / m) ** 0.5
    lengths = np.diff(rows.pointers)
    blocks = counts[:, len(COUNTS) : FOUND].sum(axis=0).tolist()
    return MatrixStatistics(
        rows=m,
        columns=n,
        nnz=nnz,
        mean=nnz / m,
        spread=spread,
        longest=longest,
        skew=cubes / m / spread**3 if spread else 0.0,
        empty=total["empty"],
        bandwidth=bandwidth,
        offset=offsets / nnz,
        diagonals=diagonals,
        block_fill=tuple(
            nnz / (count * size * size) for count, size in zip(blocks, SIZES, strict=True)
        ),
        ell=(m - total["empty"]) * longest / nnz,
        hyb=total["hyb"] / nnz,
        sliced=(total["segments"] * LANES + nnz - total["in_segments"]) / nnz,
        loose=1 - total["in_segments"] / nnz,
        dia=diagonals * m / nnz,
        sell=_in_slices(lengths, m) / nnz,
        windows=_in_slices(lengths, SORTED) / nnz,
        slices=_in_slices(lengths, 1) / nnz,
        reuse=_reuse(rows, counts[:, FOUND:]),
    )


def _of_nothing(m: int, n: int) -> MatrixStatistics:
    """Return the statistics of a matrix of *m* x *n* without elements."""
    ones = (1.0,) * len(SIZES)
    return MatrixStatistics(
        *(m, n, 0, 0.0, 0.0, 0, 0.0, m, 0, 0.0, 0, ones),
        *(1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, ()),
    )


def _in_slices(lengths: Array, window: int) -> int:
    """Return the values that slices of rows sorted within each *window* store, with their rest."""
    if window > 1:
        whole = len(lengths) - len(lengths) % window
        parts = -np.sort(-lengths[:whole].reshape(-1, window), axis=1).reshape(-1)
        lengths = np.concatenate([parts, -np.sort(-lengths[whole:])])
    sliced = len(lengths) - len(lengths) % LANES
    longest = lengths[:sliced].reshape(-1, LANES).max(axis=1, initial=0)
    return int(longest.sum()) * LANES + int(lengths[sliced:].sum())


def _rows_of(matrix: Any) -> _Rows:
    """Return the arrays of *matrix* in CSR, with valid pointers; indices are not yet checked."""
    if getattr(matrix, "ndim", 2) != 2:
        raise ArgumentError(f"argument matrix: got {matrix.ndim} dimensions, expected 2")
    level = matrix.levels[-1] if isinstance(matrix, Tensor) else None
    if level is not None and matrix.format == "dense,compressed" and level.ends is None:
        pointers, indices = level.indptr, level.indices
    elif getattr(matrix, "format", "") == "csr" and hasattr(matrix, "indptr"):
        pointers = validate.index_array("matrix.indptr", np.asarray(matrix.indptr))
        indices = validate.index_array("matrix.indices", np.asarray(matrix.indices))
    else:
        halves = str(getattr(matrix, "dtype", "")).endswith("float16")  # in Tensors, once each
        return _rows_of(convert(matrix, "csr", duplicates="sum" if halves else "keep"))
    assert pointers is not None
    assert indices is not None
    m, n = map(int, matrix.shape)
    if indices.ndim != 1:
        raise ArgumentError(f"argument matrix.indices: got shape {indices.shape}, expected 1-D")
    validate.pointers("matrix.indptr", pointers, m, indices.size)
    if not n and pointers[0] != pointers[-1]:
        raise ArgumentError("argument matrix: it has elements, but no columns")
    return _Rows(pointers, indices, m, n, _cuts(pointers, m, n))


def _cuts(pointers: Array, m: int, n: int) -> Array:
    """Return the rows at which chunks begin, and *m*: multiples of the largest size of blocks.

    The marks of all chunks take no more time to clear than the elements take to read.
    """
    first, last = int(pointers[0]), int(pointers[-1])
    chunks = min(max(2 * (last - first) // max(m + n, 1), 1), CHUNKS)
    targets = first + (last - first) * np.arange(chunks + 1) // chunks
    cuts = np.searchsorted(pointers, targets) // SIZES[-1] * SIZES[-1]
    cuts[0], cuts[-1] = 0, m
    return np.minimum(cuts, m).astype(np.int64)


def _scan(rows: _Rows) -> tuple[Array, Array, int]:
    """Return the counts and the moments of each chunk, and the number of diagonals in use."""
    m, n, chunks = rows.rows, rows.columns, rows.chunks
    mark = np.dtype(np.int32 if m < 1 << 28 else np.int64)
    marked = n + sum(n // size + 1 for size in SIZES)
    try:
        marks = np.zeros(chunks * marked, mark)
        used = np.zeros((chunks, m + n), np.uint8)
    except MemoryError as error:
        raise OutOfMemoryError(f"statistics of a matrix of {m} x {n}: {error}") from None
    counts, moments = np.zeros((chunks, RECORD), np.int64), np.zeros((chunks, 3))
    arrays = rows.pointers, rows.indices, rows.cuts, marks, used.reshape(-1), counts.reshape(-1)
    limits = m, n, rows.indices.size, chunks, marked, rows.nnz / m
    scan(*rows.types, str(mark))(*arrays, moments.reshape(-1), *limits)
    found = used[0] if chunks == 1 else np.bitwise_or.reduce(used, axis=0)
    return counts, moments, int(np.count_nonzero(found))


def _reuse(rows: _Rows, samples: Array) -> tuple[float, ...]:
    """Return MatrixStatistics.reuse; *samples* counts, by chunk, the accesses of each sample."""
    nnz, start = rows.nnz, int(rows.pointers[0])
    points = ceil(log2(rows.columns)) + 1
    if nnz <= SAMPLE:
        return _shares(_distances(rows.indices[None, start : start + nnz])[0], 0, points)
    sizes = samples[:, ::-1].cumsum(axis=1)[:, ::-1]  # a sample has the rarer ones in it
    rarity = next((k for k in range(RARER, 33) if sizes[:, k].sum() <= SAMPLE), 32)
    columns = _sampled(rows, sizes[:, rarity], rarity)
    far = _shares(_distances(columns[None])[0], rarity, points)
    begins = start + (nnz - WINDOW) * np.arange(WINDOWS) // (WINDOWS - 1)
    windows = rows.indices[begins[:, None] + np.arange(WINDOW)]
    near = _shares(_distances(windows)[:, WINDOW // 2 :].reshape(-1), 0, points)
    known = near[: NEAR + 1]
    return known + tuple(max(share, known[-1]) for share in far[NEAR + 1 :])


def _sampled(rows: _Rows, sizes: Array, rarity: int) -> Array:
    """Return the accessed columns of the sample, in order; *sizes*: how many in each chunk."""
    firsts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=firsts[1:])
    sample = np.zeros(int(firsts[-1]), rows.indices.dtype)
    limits = rows.rows, rows.indices.size, rows.chunks, sample.size
    arrays = rows.pointers, rows.indices, rows.cuts, firsts, sample
    gather_sample(*rows.types)(*arrays, *limits, (1 << rarity) - 1)
    return sample


def _distances(windows: Array) -> Array:
    """Return how many other items of its row each item's last use is away, or -1."""
    count, size = windows.shape
    order = np.argsort(windows, axis=1, kind="stable")
    ordered = np.take_along_axis(windows, order, axis=1)
    earlier = np.full(windows.shape, -1)
    earlier[:, 1:] = np.where(ordered[:, 1:] == ordered[:, :-1], order[:, :-1], -1)
    before, distances = np.empty_like(earlier), np.empty_like(earlier)
    np.put_along_axis(before, order, earlier, axis=1)
    sums = np.zeros(count * (size + 1), np.int64)
    stack_distances()(before.reshape(-1), sums, distances.reshape(-1), count, size)
    return distances


def _shares(distances: Array, rarity: int, points: int) -> tuple[float, ...]:
    """Return, for each power of two, the share of *distances* below it, misses in the whole.

    The distances are between items of a sample of one in ``2**rarity``.
    """
    limits = 1 << np.arange(points) >> rarity
    reached = np.sort(distances[distances >= 0])
    below = np.searchsorted(reached, limits, side="left")
    return tuple((below / max(distances.size, 1)).tolist())
