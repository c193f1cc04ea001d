"""What we measure of our own: programs without a schedule, one per operator."""

from __future__ import annotations

from typing import Any

from spcomp.script.parse import parse_source

_MATRIX = """
from spcomp import script as T

@T.prim_func
def {name}(a: T.handle, {handles}, indptr: T.handle, indices: T.handle,
           m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
"""

_PRODUCT = (
    _MATRIX
    + """
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
"""
)

SPMM = (
    _PRODUCT.format(name="spmm", handles="b: T.handle, c: T.handle")
    + """
    with T.sp_iter([I, J, K], "SRS", "spmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
"""
)

SPMM_MAX = (
    _PRODUCT.format(name="spmm_max", handles="b: T.handle, c: T.handle")
    + """
    with T.sp_iter([I, J, K], "SRS", "spmm_max") as [i, j, k]:
        with T.init():
            C[i, k] = T.min_value("float32")
        C[i, k] = T.max(C[i, k], A[i, j] * B[j, k])
"""
)

SPMM_MEAN = (
    _PRODUCT.format(name="spmm_mean", handles="b: T.handle, c: T.handle, w: T.handle")
    + """
    W = T.match_sparse_buffer(w, (I,), "float32")
    with T.sp_iter([I, J, K], "SRS", "spmm_mean") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + W[i] * A[i, j] * B[j, k]
"""
)

CSRMM_T = (
    _MATRIX.format(name="csrmm_t", handles="x: T.handle, y: T.handle")
    + """
    X = T.match_sparse_buffer(x, (I, K), "float32")
    Y = T.match_sparse_buffer(y, (N, K), "float32")
    with T.sp_iter([I, J, K], "RSS", "csrmm_t") as [i, j, k]:
        with T.init():
            Y[j, k] = 0.0
        Y[j, k] = Y[j, k] + A[i, j] * X[i, k]
"""
)

SPMV = """
from spcomp import script as T

@T.prim_func
def spmv(a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
         m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (N,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "spmv") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j] * X[j]
"""

SDDMM = """
from spcomp import script as T

@T.prim_func
def sddmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
          m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, K), "float32")
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, J), "float32")
    with T.sp_iter([I, J, K], "SSR", "sddmm") as [i, j, k]:
        with T.init():
            C[i, j] = 0.0
        C[i, j] = C[i, j] + A[i, k] * B[j, k]
"""

MTTKRP = """
from spcomp import script as T

@T.prim_func
def mttkrp(a: T.handle, b: T.handle, c: T.handle, y: T.handle, indptr_j: T.handle,
           indices_j: T.handle, indptr_k: T.handle, indices_k: T.handle, m: T.int32, n: T.int32,
           depth: T.int32, rank: T.int32, nnz_j: T.int32, nnz_k: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), "int32")
    K = T.sparse_variable(J, (depth, nnz_k), (indptr_k, indices_k), "int32")
    N = T.dense_fixed(n)
    D = T.dense_fixed(depth)
    R = T.dense_fixed(rank)
    A = T.match_sparse_buffer(a, (I, J, K), "float32")
    B = T.match_sparse_buffer(b, (N, R), "float32")
    C = T.match_sparse_buffer(c, (D, R), "float32")
    Y = T.match_sparse_buffer(y, (I, R), "float32")
    with T.sp_iter([I, J, K, R], "SRRS", "mttkrp") as [i, j, k, r]:
        with T.init():
            Y[i, r] = 0.0
        Y[i, r] = Y[i, r] + A[i, j, k] * B[j, r] * C[k, r]
"""

SEGMENT_RAGGED = """
from spcomp import script as T

@T.prim_func
def segment_ragged(x: T.handle, y: T.handle, indptr: T.handle,
                   m: T.int32, longest: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_variable(I, (longest, nnz), indptr, "int32")
    K = T.dense_fixed(feat)
    X = T.match_sparse_buffer(x, (I, J, K), "float32")
    Y = T.match_sparse_buffer(y, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "segment_ragged") as [i, j, k]:
        with T.init():
            Y[i, k] = 0.0
        Y[i, k] = Y[i, k] + X[i, j, k]
"""

SEGMENT_CSR = """
from spcomp import script as T

@T.prim_func
def segment_csr(x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
                m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    K = T.dense_fixed(feat)
    X = T.match_sparse_buffer(x, (I, J, K), "float32")
    Y = T.match_sparse_buffer(y, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "segment_csr") as [i, j, k]:
        with T.init():
            Y[i, k] = 0.0
        Y[i, k] = Y[i, k] + X[i, j, k]
"""

SEGMENT_COO = """
from spcomp import script as T

@T.prim_func
def segment_coo(x: T.handle, y: T.handle, rows: T.handle,
                m: T.int32, feat: T.int32, nnz: T.int32) -> None:
    O = T.dense_fixed(1)
    E = T.sparse_fixed(O, (m, nnz), rows, "int32", unique=False)
    I = T.dense_fixed(m)
    K = T.dense_fixed(feat)
    X = T.match_sparse_buffer(x, (O, E, K), "float32")
    Y = T.match_sparse_buffer(y, (I, K), "float32")
    with T.sp_iter([O, E, K], "SSS", "segment_coo") as [o, e, k]:
        with T.init():
            Y[e, k] = 0.0
        Y[e, k] = Y[e, k] + X[o, e, k]
"""


_ELEMENTWISE = """
from spcomp import script as T

@T.prim_func
def {name}(a: T.handle, b: T.handle, c: T.handle, a_indptr: T.handle, a_indices: T.handle,
           b_indptr: T.handle, b_indices: T.handle, m: T.int32, n: T.int32,
           nnz_a: T.int32, nnz_b: T.int32) -> None:
    I = T.dense_fixed(m)
    JA = T.sparse_variable(I, (n, nnz_a), (a_indptr, a_indices))
    JB = T.sparse_variable(I, (n, nnz_b), (b_indptr, b_indices))
    JC = T.sparse_variable(I, (n, None), (None, None))
    A = T.match_sparse_buffer(a, (I, JA), "float32")
    B = T.match_sparse_buffer(b, (I, JB), "float32")
    C = T.match_sparse_buffer(c, (I, JC), "float32")
    with T.sp_iter([I, T.{domain}(JA, JB)], "SS", "{name}") as [i, j]:
        C[i, j] = A[i, j] {op} B[i, j]
"""

SPADD = _ELEMENTWISE.format(name="spadd", domain="union", op="+")
HADAMARD = _ELEMENTWISE.format(name="hadamard", domain="intersect", op="*")


def parse(source: str, dtype: str = "float32") -> Any:
    """Return the program in *source* with values of *dtype*."""
    (program,) = parse_source(source.strip().replace("float32", dtype) + "\n", "programs.py")
    return program
