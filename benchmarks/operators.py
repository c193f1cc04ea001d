"""What is computed: the problem of an operator on a workload, its right answer, its traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sps

from benchmarks import elementwise, workloads
from benchmarks.conversions import CONVERSIONS
from benchmarks.problem import Array, Case, Problem, Traffic
from benchmarks.products import PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 16  # columns of a reference that are computed at once


def problem(case: Case, *, quick: bool = False) -> Problem:
    """Return the operands and the right answer of *case*."""
    make, _ = OPERATORS[case.operator]
    if case.workload == "tensor":
        return make(case, workloads.tensor(quick=quick))
    csr = workloads.matrix(case.workload, quick=quick)
    return make(case, csr.astype(case.dtype))


def _draw(case: Case, *shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(11)
    return [(rng.random(shape, np.float32) * 2 - 1).astype(case.dtype) for shape in shapes]


def _assemble(
    shape: tuple[int, ...], dtype: str, block: Callable[[slice], Array], width: int = BLOCK
) -> Array:
    """Return an array of *shape* computed in float64, a few columns at a time."""
    want = np.empty(shape, dtype)
    for at in range(0, shape[1], width):
        part = slice(at, at + width)
        want[:, part] = block(part)
    return want


def _fibers(ufunc: np.ufunc, terms: Array, indptr: Array, empty: float) -> Array:
    """Reduce the rows of *terms* over the fibers of *indptr*; *empty* where there are none."""
    result = np.full((len(indptr) - 1, *terms.shape[1:]), empty)
    filled = np.flatnonzero(np.diff(indptr))
    if len(filled):
        result[filled] = ufunc.reduceat(terms, indptr[filled], axis=0)
    return result


def _longest(indptr: Array) -> int:
    return int(np.diff(indptr).max(initial=1))


def _matrix_traffic(csr: Any, feat: int, *, values: bool = True) -> Traffic:
    size = csr.data.itemsize
    used = len(np.unique(csr.indices))
    pattern = 4 * csr.nnz + csr.indptr.nbytes + size * csr.nnz * values
    rows = size * feat
    return Traffic(pattern + rows * (used + csr.shape[0]), rows * csr.nnz, rows * csr.shape[1])


def _product(case: Case, csr: Any, *, mean: bool = False) -> Problem:
    (m, n), vector = csr.shape, case.operator.startswith("spmv")
    (b,) = _draw(case, (n, case.feat))
    wide = csr.astype(np.float64)
    if mean:
        weights = 1 / np.maximum(np.diff(csr.indptr), 1)
        wide = sps.diags(weights).dot(wide).tocsr()
    want = _assemble((m, case.feat), case.dtype, lambda part: wide @ b[:, part].astype(float))
    scale = np.asarray(abs(wide).sum(axis=1)).reshape(m, 1)
    dense = {"B": b[:, 0].copy() if vector else b}
    if mean:
        dense["W"] = weights.astype(case.dtype)
    out = np.zeros(m if vector else (m, case.feat), case.dtype)
    traffic = _matrix_traffic(csr, case.feat)
    return Problem(case, csr, dense, out, want, scale, _longest(csr.indptr), traffic)


def _mean(case: Case, csr: Any) -> Problem:
    return _product(case, csr, mean=True)


def _max(case: Case, csr: Any) -> Problem:
    (m, n) = csr.shape
    (b,) = _draw(case, (n, case.feat))
    values = csr.data.astype(float)[:, None]

    def block(part: slice) -> Array:
        return _fibers(np.maximum, values * b[csr.indices, part], csr.indptr, np.nan)

    want = _assemble((m, case.feat), case.dtype, block, 8)
    scale = _fibers(np.maximum, np.abs(values), csr.indptr, 0)
    out = np.zeros((m, case.feat), case.dtype)
    return Problem(case, csr, {"B": b}, out, want, scale, 1, _matrix_traffic(csr, case.feat))


def _transposed(case: Case, csr: Any) -> Problem:
    m, n = csr.shape
    (x,) = _draw(case, (m, case.feat))
    wide = csr.T.tocsr().astype(np.float64)
    want = _assemble((n, case.feat), case.dtype, lambda part: wide @ x[:, part].astype(float))
    scale = np.asarray(abs(wide).sum(axis=1)).reshape(n, 1)
    out = np.zeros((n, case.feat), case.dtype)
    traffic = _matrix_traffic(csr, case.feat)
    return Problem(case, csr, {"X": x}, out, want, scale, _longest(wide.indptr), traffic)


def _sampled(case: Case, csr: Any) -> Problem:
    m, n = csr.shape
    x, y = _draw(case, (m, case.feat), (n, case.feat))
    rows = np.repeat(np.arange(m), np.diff(csr.indptr))
    want = np.empty(csr.nnz, case.dtype)
    for at in range(0, csr.nnz, 2**17):
        part = slice(at, at + 2**17)
        pairs = x[rows[part]].astype(float), y[csr.indices[part]].astype(float)
        want[part] = np.einsum("pk,pk->p", *pairs)
    traffic = _matrix_traffic(csr, case.feat)  # the values are written instead of read
    out, scale = np.zeros(csr.nnz, case.dtype), np.full(csr.nnz, float(case.feat))
    return Problem(case, csr, {"X": x, "Y": y}, out, want, scale, case.feat, traffic)


def _mttkrp(case: Case, csf: workloads.Csf) -> Problem:
    b, c = _draw(case, (csf.shape[1], case.feat), (csf.shape[2], case.feat))
    _, j, k = csf.coordinates
    rows = csf.indptr_k[csf.indptr_j]
    values = csf.values.astype(float)[:, None]
    want = _assemble(
        (csf.shape[0], case.feat),
        case.dtype,
        lambda part: _fibers(np.add, values * b[j, part] * c[k, part], rows, 0.0),
        4,
    )
    scale = _fibers(np.add, values, rows, 0.0)
    size = b.itemsize * case.feat
    index = csf.indptr_j.nbytes + csf.indices_j.nbytes + csf.indptr_k.nbytes + csf.indices_k.nbytes
    once = index + csf.values.nbytes + size * sum(csf.shape)
    traffic = Traffic(once, size * (len(k) + len(csf.indices_j)), size * csf.shape[2])
    out = np.zeros((csf.shape[0], case.feat), case.dtype)
    return Problem(case, csf, {"B": b, "C": c}, out, want, scale, _longest(rows), traffic)


def _segments(case: Case, csr: Any) -> Problem:
    m = csr.shape[0]
    (x,) = _draw(case, (csr.nnz, case.feat))
    dense = {"X": x}
    if case.operator == "segment_coo":
        dense["S"] = np.repeat(np.arange(m, dtype=np.int32), np.diff(csr.indptr))
    want = _assemble(
        (m, case.feat),
        case.dtype,
        lambda part: _fibers(np.add, x[:, part].astype(float), csr.indptr, 0.0),
    )
    keys = 4 * csr.nnz if case.operator == "segment_coo" else csr.indptr.nbytes
    out = np.zeros((m, case.feat), case.dtype)
    traffic = Traffic(x.nbytes + out.nbytes + keys)
    scale = np.diff(csr.indptr).reshape(m, 1).astype(float)
    return Problem(case, csr, dense, out, want, scale, _longest(csr.indptr), traffic)


def _elementwise(case: Case, csr: Any) -> Problem:
    """The result is compared as ``elementwise.spelled`` writes it: its pattern exactly."""
    a, b, found = elementwise.operands(case, csr)
    want = elementwise.spelled(found)
    scale = np.abs(want) * (np.finfo(case.dtype).eps / np.finfo(np.float64).eps)
    scale[: found.indptr.size + found.nnz] = 0
    size = sum(part.nbytes for m in (a, b, found) for part in (m.indptr, m.indices, m.data))
    return Problem(case, a, {"B": b}, np.zeros(0, case.dtype), want, scale, 1, Traffic(size))


OPERATORS: dict[str, tuple[Callable[[Case, Any], Problem], str]] = {
    "spmm": (_product, "C[i, k] = sum_j A[i, j] B[j, k], A in CSR"),
    "spmm_max": (_max, "C[i, k] = max_j A[i, j] B[j, k]"),
    "spmm_mean": (_mean, "C[i, k] = mean_j A[i, j] B[j, k]"),
    "spmm_hub": (_product, "SpMM where one row holds 80 % of A"),
    "spmv": (_product, "y[i] = sum_j A[i, j] x[j]"),
    "spmv_compressed": (_product, "SpMV, A in a sliced format with compressed indices"),
    "sddmm": (_sampled, "E[i, j] = sum_k X[i, k] Y[j, k] where A[i, j] is stored"),
    "mttkrp": (_mttkrp, "Y[i, r] = sum_jk A[i, j, k] B[j, r] C[k, r], A in CSF"),
    "segment_ragged": (_segments, "Y[i, k] = sum of rows of X, fibers by indptr"),
    "segment_csr": (_segments, "the same, X along the stored elements of a CSR matrix"),
    "segment_coo": (_segments, "Y[S[p], k] = sum_p X[p, k], S ascending"),
    "spadd": (_elementwise, "C[i, j] = A[i, j] + B[i, j], all in CSR"),
    "hadamard": (_elementwise, "C[i, j] = A[i, j] * B[i, j], all in CSR"),
    "csrmm_t": (_transposed, "Y[j, k] = sum_i A[i, j] X[i, k], A in CSR by rows"),
    **PRODUCTS,
    **CONVERSIONS,
}  # how to make its problem, and what it is
