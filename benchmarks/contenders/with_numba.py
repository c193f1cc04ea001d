"""Rival: what a user writes with numba: parallel loops over rows, fast maths."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

from benchmarks.contenders import MissingError, Prepared, contender, need
from benchmarks.elementwise import spelled

if TYPE_CHECKING:
    from benchmarks.problem import Array, Problem

CHUNKS = 128  # parts of a sorted list of keys


def set_threads(count: int) -> None:
    """Let numba use *count* threads."""
    numba = need("numba")
    if count > numba.config.NUMBA_NUM_THREADS:
        raise MissingError(f"numba was started with {numba.config.NUMBA_NUM_THREADS} threads")
    numba.set_num_threads(count)


@cache
def _jit(function: Callable[..., None]) -> Any:
    return need("numba").njit(parallel=True, fastmath=True)(function)


prange: Any = range  # numba's own, once it is loaded: importing this module does not load it


def _spmm(indptr: Array, indices: Array, values: Array, b: Array, out: Array) -> None:
    for i in prange(len(indptr) - 1):
        for k in range(b.shape[1]):
            out[i, k] = 0
        for p in range(indptr[i], indptr[i + 1]):
            j, value = indices[p], values[p]
            for k in range(b.shape[1]):
                out[i, k] += value * b[j, k]


def _spmm_max(indptr: Array, indices: Array, values: Array, b: Array, out: Array) -> None:
    for i in prange(len(indptr) - 1):
        for k in range(b.shape[1]):
            out[i, k] = -np.inf
        for p in range(indptr[i], indptr[i + 1]):
            j, value = indices[p], values[p]
            for k in range(b.shape[1]):
                out[i, k] = max(out[i, k], value * b[j, k])


def _spmm_mean(indptr: Array, indices: Array, values: Array, b: Array, out: Array) -> None:
    for i in prange(len(indptr) - 1):
        for k in range(b.shape[1]):
            out[i, k] = 0
        count = np.float32(max(indptr[i + 1] - indptr[i], 1))
        for p in range(indptr[i], indptr[i + 1]):
            j, value = indices[p], values[p] / count
            for k in range(b.shape[1]):
                out[i, k] += value * b[j, k]


def _spmv(indptr: Array, indices: Array, values: Array, x: Array, out: Array) -> None:
    for i in prange(len(indptr) - 1):
        total = values.dtype.type(0)
        for p in range(indptr[i], indptr[i + 1]):
            total += values[p] * x[indices[p]]
        out[i] = total


def _sddmm(indptr: Array, indices: Array, x: Array, y: Array, out: Array) -> None:
    for i in prange(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            j, total = indices[p], x.dtype.type(0)
            for k in range(x.shape[1]):
                total += x[i, k] * y[j, k]
            out[p] = total


def _csrmm_t(indptr: Array, indices: Array, values: Array, x: Array, out: Array) -> None:
    width = 16
    for block in prange((x.shape[1] + width - 1) // width):
        begin, end = block * width, min((block + 1) * width, x.shape[1])
        out[:, begin:end] = 0
        for i in range(len(indptr) - 1):
            for p in range(indptr[i], indptr[i + 1]):
                j, value = indices[p], values[p]
                for k in range(begin, end):
                    out[j, k] += value * x[i, k]


def _mttkrp(
    ptr_j: Array, idx_j: Array, ptr_k: Array, idx_k: Array, values: Array, b: Array, c: Array,
    out: Array,
) -> None:  # fmt: skip
    rank = b.shape[1]
    for i in prange(len(ptr_j) - 1):
        fiber = np.empty(rank, values.dtype)
        for r in range(rank):
            out[i, r] = 0
        for q in range(ptr_j[i], ptr_j[i + 1]):
            for r in range(rank):
                fiber[r] = 0
            for p in range(ptr_k[q], ptr_k[q + 1]):
                k, value = idx_k[p], values[p]
                for r in range(rank):
                    fiber[r] += value * c[k, r]
            j = idx_j[q]
            for r in range(rank):
                out[i, r] += fiber[r] * b[j, r]


def _segment(indptr: Array, x: Array, out: Array) -> None:
    for i in prange(len(indptr) - 1):
        for k in range(x.shape[1]):
            out[i, k] = 0
        for p in range(indptr[i], indptr[i + 1]):
            for k in range(x.shape[1]):
                out[i, k] += x[p, k]


def _segment_keys(keys: Array, x: Array, out: Array) -> None:
    count = len(keys)
    for i in prange(len(out)):
        for k in range(x.shape[1]):
            out[i, k] = 0
    for chunk in prange(CHUNKS):
        p, end = count * chunk // CHUNKS, count * (chunk + 1) // CHUNKS
        while 0 < p < count and keys[p] == keys[p - 1]:  # a key belongs to the chunk it starts in
            p += 1
        while 0 < end < count and keys[end] == keys[end - 1]:
            end += 1
        while p < end:
            i = keys[p]
            for k in range(x.shape[1]):
                out[i, k] += x[p, k]
            p += 1


_MATRIX: dict[str, Callable[..., None]] = {
    "spmm": _spmm,
    "spmm_hub": _spmm,
    "spmm_max": _spmm_max,
    "spmm_mean": _spmm_mean,
    "spmv": _spmv,
    "csrmm_t": _csrmm_t,
}


@contender("numba", *_MATRIX)
def _product(problem: Problem) -> Callable[[], object]:
    dense = problem.dense["X" if problem.case.operator == "csrmm_t" else "B"]
    return _call(problem, _MATRIX[problem.case.operator], *_arrays(problem.sparse), dense)


@contender("numba", "sddmm")
def _sampled(problem: Problem) -> Callable[[], object]:
    pattern = _arrays(problem.sparse)[:2]
    return _call(problem, _sddmm, *pattern, problem.dense["X"], problem.dense["Y"])


@contender("numba", "mttkrp")
def _tensor(problem: Problem) -> Callable[[], object]:
    t, dense = problem.sparse, problem.dense
    index = (t.indptr_j, t.indices_j, t.indptr_k, t.indices_k)
    return _call(problem, _mttkrp, *index, t.values, dense["B"], dense["C"])


@contender("numba", "segment_ragged", "segment_csr")
def _fibers(problem: Problem) -> Callable[[], object]:
    return _call(problem, _segment, problem.sparse.indptr, problem.dense["X"])


@contender("numba", "segment_coo")
def _keys(problem: Problem) -> Callable[[], object]:
    return _call(problem, _segment_keys, problem.dense["S"], problem.dense["X"])


def _arrays(csr: Any) -> tuple[Array, Array, Array]:
    return csr.indptr, csr.indices, csr.data


def _call(problem: Problem, loops: Callable[..., None], *arrays: Array) -> Callable[[], object]:
    globals()["prange"] = need("numba").prange
    run = partial(_jit(loops), *arrays, problem.out)

    def call() -> Array:
        run()
        return problem.out

    return call


def _add_count(ap: Array, ai: Array, bp: Array, bi: Array, counts: Array) -> None:
    for i in prange(len(ap) - 1):
        p, q, count = ap[i], bp[i], 0
        while p < ap[i + 1] and q < bp[i + 1]:
            j, k = ai[p], bi[q]
            p, q, count = p + (j <= k), q + (k <= j), count + 1
        counts[i + 1] = count + ap[i + 1] - p + bp[i + 1] - q


def _add_fill(
    ap: Array,
    ai: Array,
    a: Array,
    bp: Array,
    bi: Array,
    b: Array,
    indptr: Array,
    indices: Array,
    values: Array,
) -> None:
    for i in prange(len(ap) - 1):
        p, q, at = ap[i], bp[i], indptr[i]
        while p < ap[i + 1] or q < bp[i + 1]:
            if q == bp[i + 1] or (p < ap[i + 1] and ai[p] < bi[q]):
                indices[at], values[at] = ai[p], a[p]
                p += 1
            elif p == ap[i + 1] or bi[q] < ai[p]:
                indices[at], values[at] = bi[q], b[q]
                q += 1
            else:
                indices[at], values[at] = ai[p], a[p] + b[q]
                p, q = p + 1, q + 1
            at += 1


def _multiply_count(ap: Array, ai: Array, bp: Array, bi: Array, counts: Array) -> None:
    for i in prange(len(ap) - 1):
        p, q, count = ap[i], bp[i], 0
        while p < ap[i + 1] and q < bp[i + 1]:
            j, k = ai[p], bi[q]
            p, q, count = p + (j <= k), q + (k <= j), count + (j == k)
        counts[i + 1] = count


def _multiply_fill(
    ap: Array,
    ai: Array,
    a: Array,
    bp: Array,
    bi: Array,
    b: Array,
    indptr: Array,
    indices: Array,
    values: Array,
) -> None:
    for i in prange(len(ap) - 1):
        p, q, at = ap[i], bp[i], indptr[i]
        while p < ap[i + 1] and q < bp[i + 1]:
            j, k = ai[p], bi[q]
            if j == k:
                indices[at], values[at] = j, a[p] * b[q]
                at += 1
            p, q = p + (j <= k), q + (k <= j)


@contender("numba", "spadd", "hadamard")
def _elementwise(problem: Problem) -> Prepared:
    """Counted, then filled, rows in parallel."""
    a, b = problem.sparse, problem.dense["B"]
    adds = problem.case.operator == "spadd"
    phases = (_add_count, _add_fill) if adds else (_multiply_count, _multiply_fill)
    globals()["prange"] = need("numba").prange
    count, fill = map(_jit, phases)

    def call() -> Any:
        indptr = np.zeros(a.shape[0] + 1, np.int32)
        count(a.indptr, a.indices, b.indptr, b.indices, indptr)
        np.cumsum(indptr, out=indptr)
        indices, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], a.dtype)
        arrays = a.indptr, a.indices, a.data, b.indptr, b.indices, b.data
        fill(*arrays, indptr, indices, values)
        return values, indices, indptr

    return Prepared(call, lambda parts: spelled(sps.csr_matrix(parts, a.shape)))
