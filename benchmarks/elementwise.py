"""What is computed where the result is sparse: sums and products of two matrices by elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import scipy.sparse as sps

if TYPE_CHECKING:
    from benchmarks.problem import Case

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def companion(csr: Any) -> Any:
    """Return a second operand for *csr*: it with rows and columns in the opposite order.

    Where that has the same pattern, as a stencil does, all columns are moved by one. The result is
    a csr_matrix with sorted int32 indices.
    """
    other = sps.csr_matrix(csr[::-1, ::-1])
    other.sort_indices()
    if np.array_equal(other.indptr, csr.indptr) and np.array_equal(other.indices, csr.indices):
        other.indices = (other.indices + 1) % csr.shape[1]
        other.has_sorted_indices = False
        other.sort_indices()
    arrays = other.data, other.indices.astype(np.int32), other.indptr.astype(np.int32)
    return sps.csr_matrix(arrays, other.shape)


def spelled(result: Any) -> Array:
    """Return *result*, a csr array or matrix, as one array: pointers, sorted indices, values."""
    csr = result if result.has_sorted_indices else result.sorted_indices()
    parts = csr.indptr, csr.indices, csr.data
    return np.concatenate([np.asarray(part, np.float64) for part in parts])


def operands(case: Case, csr: Any) -> tuple[Any, Any, Any]:
    """Return the operands and the result of *case*, an elementwise operator, on *csr*."""
    other = companion(csr)
    want = csr + other if case.operator == "spadd" else csr.multiply(other).tocsr()
    want.sort_indices()
    return csr, other, want
