"""Products of a sparse matrix with itself: the problem, its right answer, its traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

from benchmarks.problem import Case, Problem, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.problem import Array

ENTRY = 8  # bytes of an element: a column and a value, both of 32 bits
BLOCK = 2**25  # products of a reference that are computed at once


def _square(case: Case, csr: Any) -> Problem:
    want = _sorted(csr @ csr)
    scale = want if csr.data.min(initial=0) >= 0 else _sorted(abs(csr) @ abs(csr))
    return _problem(case, csr, want.data, scale.data, ENTRY * (2 * csr.nnz + want.nnz), want)


def _masked(case: Case, csr: Any) -> Problem:
    want = _kept(csr, csr)
    scale = want if csr.data.min(initial=0) >= 0 else _kept(csr, abs(csr))
    return _problem(case, csr, want, scale, ENTRY * 4 * csr.nnz, csr)


def _triangles(case: Case, csr: Any) -> Problem:
    """Return the problem of counting the triangles of *csr* as an undirected graph."""
    lower = sps.csr_matrix(sps.tril(csr + csr.T, -1), dtype=csr.dtype)
    lower.data[:] = 1
    count = _kept(lower, lower.astype(float)).sum(keepdims=True)
    return _problem(case, lower, count, np.zeros_like(count), ENTRY * 3 * lower.nnz, None)


def _kept(mask: Any, csr: Any) -> Array:
    """Return the elements of *csr* squared where *mask* stores one, some rows at a time."""
    rows = max(1, csr.shape[0] * BLOCK // (1 + int(np.diff(csr.indptr)[csr.indices].sum())))
    parts = (slice(at, at + rows) for at in range(0, csr.shape[0], rows))
    return np.concatenate([_gathered(mask[part], csr[part] @ csr) for part in parts])


def _problem(
    case: Case, csr: Any, want: Array, scale: Array, compulsory: int, pattern: Any
) -> Problem:
    csr.sort_indices()
    work = int(np.diff(csr.indptr)[csr.indices].sum())
    dense = {} if pattern is None else {"indptr": pattern.indptr, "indices": pattern.indices}
    traffic = Traffic(compulsory, ENTRY * work, ENTRY * csr.nnz)
    terms = int(np.diff(csr.indptr).max(initial=1))
    out = np.zeros(0, want.dtype)
    return Problem(case, csr, dense, out, want, scale.astype(float), terms, traffic)


def _sorted(product: Any) -> Any:
    product.sort_indices()
    return product


def _gathered(mask: Any, product: Any) -> Array:
    """The elements of *product* where *mask* stores one, in its order; 0 where there is none."""
    found = _sorted(sps.csr_matrix(product))
    columns = product.shape[1]

    def keys(of: Any) -> Array:
        rows = np.repeat(np.arange(of.shape[0], dtype=np.int64), np.diff(of.indptr))
        return rows * columns + of.indices

    asked, known = keys(mask), keys(found)
    at = np.minimum(np.searchsorted(known, asked), max(found.nnz - 1, 0))
    return np.where(known[at] == asked, found.data[at], 0) if found.nnz else np.zeros(mask.nnz)


def values_of(problem: Problem, result: Any) -> Array:
    """Return the values of a sparse *result* in the order of the reference; NaN if it differs.

    Under a mask, it may leave out elements that are 0.
    """
    if problem.case.operator == "spgemm_masked":
        return _gathered(problem.sparse, result)
    made = _sorted(sps.csr_matrix(result))
    indptr, indices = problem.dense["indptr"], problem.dense["indices"]
    same = np.array_equal(made.indptr, indptr) and np.array_equal(made.indices, indices)
    return made.data if same else np.full(problem.want.shape, np.nan)


PRODUCTS: dict[str, tuple[Callable[[Case, Any], Problem], str]] = {
    "spgemm": (_square, "C[i, j] = sum_k A[i, k] A[k, j], sorted"),
    "spgemm_unordered": (_square, "the same, the elements of a row in any order"),
    "spgemm_masked": (_masked, "C[i, j] = sum_k A[i, k] A[k, j] where A[i, j] is stored"),
    "triangles": (_triangles, "n = sum_ijk L[i, k] L[k, j] L[i, j], of a lower triangle, counted"),
}
