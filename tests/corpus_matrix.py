"""Programs of the corpus over one sparse matrix: products, reductions, sampled products."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.corpus_base import ALL, FLOATS, HALVES, NUMBERS, Arrays, Draw, Inputs, Program
from tests.oracle import dense, entries, fibers, gathered, mask


def _csr(d: Draw, rows: int = 6, columns: int = 7) -> Inputs:
    """Draw a matrix: a, indptr, indices, m, n, nnz."""
    m, n = d.size(rows), d.size(columns)
    axis = d.compressed(m, n)
    arrays = {"a": d.values(axis.nnz), "indptr": axis.indptr, "indices": axis.indices}
    return {**arrays, "m": m, "n": n, "nnz": axis.nnz}


def _a(x: SimpleNamespace) -> np.ndarray:
    return dense(x.indptr, x.indices, x.a, (x.m, x.n))


def _product_inputs(d: Draw) -> Inputs:
    p, feat = _csr(d), d.size(3)
    return {**p, "feat": feat, "b": d.values(p["n"], feat), "c": d.output(p["m"], feat)}


def _product(x: SimpleNamespace) -> Arrays:
    return {"c": _a(x) @ x.b.reshape(x.n, x.feat)}


_PRODUCT_HEAD = """
@T.prim_func
def {name}(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
          m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
"""

CSRMM = Program(
    _PRODUCT_HEAD.format(name="csrmm")
    + """
    with T.sp_iter([I, J, K], "SRS", "csrmm") as [i, j, k]:
        with T.init():
            C[i, k] = T.float32(0)
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
""",
    _product_inputs,
    _product,
    dtypes=ALL,
)

CSRMM_DENSE_ITER = Program(
    _PRODUCT_HEAD.format(name="csrmm_dense_iter")
    + """
    with T.iter([I, J_detach, K], "SRS", "csrmm_dense_iter") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] += A[i, j] * B[j, k]
""",
    _product_inputs,
    _product,
)

CSRMM_BRANCH = Program(
    _PRODUCT_HEAD.format(name="csrmm_lower")
    + """
    with T.sp_iter([I, J, K], "SRS", "csrmm_lower") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        if j < i:
            C[i, k] = C[i, k] + A[i, j] * B[j, k]
        else:
            C[i, k] = C[i, k] - A[i, j]
""",
    _product_inputs,
    lambda x: {
        "c": np.tril(_a(x), -1) @ x.b.reshape(x.n, x.feat)
        - np.triu(_a(x)).sum(axis=1, keepdims=True)
    },
    magnitude=lambda x: {
        "c": np.abs(_a(x)) @ np.abs(x.b).reshape(x.n, x.feat)
        + np.abs(_a(x)).sum(axis=1, keepdims=True)
    },
)

CSRMM_T = Program(
    """
@T.prim_func
def csrmm_t(a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
            m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (I, K), "float32")
    Y = T.match_sparse_buffer(y, (J_detach, K), "float32")
    with T.sp_iter([I, J, K], "RSS", "csrmm_t") as [i, j, k]:
        with T.init():
            Y[j, k] = T.float32(0)
        Y[j, k] = Y[j, k] + A[i, j] * X[i, k]
""",
    lambda d: (
        (p := _csr(d))
        | {"feat": (feat := d.size(3)), "x": d.values(p["m"], feat), "y": d.output(p["n"], feat)}
    ),
    lambda x: {"y": _a(x).T @ x.x.reshape(x.m, x.feat)},
    dtypes=NUMBERS,
)

CSR_REDUCE = Program(
    """
@T.prim_func
def csr_reduce(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
               m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I, J], "SR", "csr_reduce") as [i, j]:
        T.sp_iter_attr({"preprocess": False})
        with T.init():
            B[i] = T.float32(0)
        B[i] = B[i] + A[i, j]
""",
    lambda d: (p := _csr(d)) | {"b": d.output(p["m"])},
    lambda x: {"b": _a(x).sum(axis=1)},
    dtypes=ALL,
)


def _segment_inputs(d: Draw) -> Inputs:
    n, longest = d.size(6), d.size(7)
    axis = d.ragged(n, longest)
    arrays = {"a": d.values(axis.nnz), "b": d.output(n), "indptr": axis.indptr}
    return {**arrays, "n": n, "longest": longest, "nnz": axis.nnz}


def _segment_sums(x: SimpleNamespace) -> Arrays:
    sums = np.zeros(x.n, x.a.dtype)
    for row, position, _ in fibers(x.indptr):
        sums[row] += x.a[position]
    return {"b": sums}


SEGMENT_REDUCE = Program(
    """
@T.prim_func
def segment_reduce(a: T.handle, b: T.handle, indptr: T.handle,
                   n: T.int32, longest: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(n)
    J = T.dense_variable(I, (longest, nnz), indptr, idtype="int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I, J], "SR", "segment_reduce") as [i, j]:
        with T.init():
            B[i] = T.float32(0)
        B[i] = B[i] + A[i, j]
""",
    _segment_inputs,
    _segment_sums,
    dtypes=ALL,
)

SEGMENT_REDUCE_SHORT = Program(
    """
@T.prim_func
def segment_reduce_short(a: T.handle, b: T.handle, indptr: T.handle,
                         n: T.int64, longest: T.int64) -> None:
    I = T.dense_fixed(n)
    J = T.dense_variable(I, longest, indptr, idtype="int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I, J], "SR", "segment_reduce_short") as [i, j]:
        with T.init():
            B[i] = 0.0
        B[i] += A[i, j]
""",
    lambda d: {name: v for name, v in _segment_inputs(d).items() if name != "nnz"},
    _segment_sums,
)

CSR_ELEMENT_WISE = Program(
    """
@T.prim_func
def csr_element_wise(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
                     m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "csr_element_wise") as [i, j]:
        B[i, j] = A[i, j] * T.float32(2.5)
""",
    lambda d: (p := _csr(d)) | {"b": d.output(p["nnz"])},
    lambda x: {"b": gathered(x.indptr, x.indices, 2.5 * _a(x), x.b)},
    dtypes=HALVES,
)


def _sddmm_inputs(d: Draw) -> Inputs:
    p, feat = _csr(d), d.size(3)
    p.pop("a")
    arrays = {"a": d.values(p["m"], feat), "b": d.values(p["n"], feat), "c": d.output(p["nnz"])}
    return {**p, **arrays, "feat": feat}


def _sddmm(x: SimpleNamespace) -> Arrays:
    full = x.a.reshape(x.m, x.feat) @ x.b.reshape(x.n, x.feat).T
    return {"c": gathered(x.indptr, x.indices, full, x.c)}


_SDDMM = """
@T.prim_func
def {name}(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
          m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, K), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, J), "float32")
    with T.sp_iter([{domains}, K], "SSR", "{name}") as [i, j, k]:
        with T.init():
            C[i, j] = T.float32(0)
        C[i, j] = C[i, j] + A[i, k] * B[j, k]
"""

SDDMM = Program(_SDDMM.format(name="sddmm", domains="I, J"), _sddmm_inputs, _sddmm, dtypes=ALL)
FUSED_SDDMM = Program(
    _SDDMM.format(name="fused_sddmm", domains="T.fuse(I, J)"), _sddmm_inputs, _sddmm, dtypes=NUMBERS
)


def _spmv_inputs(d: Draw) -> Inputs:
    p = _csr(d)
    return {**p, "x": d.values(p["n"]), "y": d.values(p["m"])}


_SPMV_HEAD = """
@T.prim_func
def {name}(a: T.handle, x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
           m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (J_detach,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
"""

SPMV = Program(
    _SPMV_HEAD.format(name="spmv")
    + """
    with T.sp_iter([I, J], "SR", "spmv") as [i, j]:
        with T.init():
            Y[i] = T.float32(0)
        Y[i] = Y[i] + A[i, j] * X[j]
""",
    _spmv_inputs,
    lambda x: {"y": _a(x) @ x.x},
    dtypes=ALL,
)

FUSED_SPMV = Program(
    _SPMV_HEAD.format(name="fused_spmv")
    + """
    with T.sp_iter([T.fuse(I, J)], "SR", "fused_spmv") as [i, j]:
        with T.init():
            Y[i] = T.float32(0)
        Y[i] = Y[i] + A[i, j] * X[j]
""",
    _spmv_inputs,
    lambda x: {"y": _a(x) @ x.x},
    dtypes=NUMBERS,
)

SPMV_ACCUMULATE = Program(
    _SPMV_HEAD.format(name="spmv_accumulate")
    + """
    with T.sp_iter([I, J], "SR", "spmv_accumulate") as [i, j]:
        Y[i] += A[i, j] * X[j]
""",
    _spmv_inputs,
    lambda x: {"y": x.y + _a(x) @ x.x},
    dtypes=NUMBERS,
)


def _extreme(x: SimpleNamespace, terms: np.ndarray, start: float, pick: np.ufunc) -> Arrays:
    stored = mask(x.indptr, x.indices, (x.m, x.n))
    return {"y": pick.reduce(np.where(stored, terms, start), axis=1, initial=start)}


SPMV_MAX = Program(
    _SPMV_HEAD.format(name="spmv_max")
    + """
    with T.sp_iter([I, J], "SR", "spmv_max") as [i, j]:
        with T.init():
            Y[i] = T.min_value("float32")
        Y[i] = T.max(Y[i], A[i, j] * X[j])
""",
    _spmv_inputs,
    lambda x: _extreme(x, _a(x) * x.x, -np.inf, np.maximum),
    dtypes=HALVES,
)

SPMV_MIN_PLUS = Program(
    _SPMV_HEAD.format(name="spmv_min_plus")
    + """
    with T.sp_iter([I, J], "SR", "spmv_min_plus") as [i, j]:
        with T.init():
            Y[i] = T.max_value("float32")
        Y[i] = T.min(Y[i], A[i, j] + X[j])
""",
    _spmv_inputs,
    lambda x: _extreme(x, _a(x) + x.x, np.inf, np.minimum),
    magnitude=lambda x: _extreme(x, np.abs(_a(x)) + np.abs(x.x), 0, np.maximum),
)

SPMV_PROD = Program(
    _SPMV_HEAD.format(name="spmv_prod")
    + """
    with T.sp_iter([I, J], "SR", "spmv_prod") as [i, j]:
        with T.init():
            Y[i] = T.float32(1)
        Y[i] = Y[i] * (A[i, j] + X[j])
""",
    _spmv_inputs,
    lambda x: {"y": np.where(mask(x.indptr, x.indices, (x.m, x.n)), _a(x) + x.x, 1).prod(axis=1)},
    magnitude=lambda x: {"y": np.prod(1 + np.abs(_a(x)) + np.abs(x.x), axis=1)},
    dtypes=NUMBERS,
)

SPMV_T_AXPBY = Program(
    """
@T.prim_func
def spmv_t_axpby(a: T.handle, x: T.handle, z: T.handle, y: T.handle, indptr: T.handle,
                 indices: T.handle, m: T.int32, n: T.int32, nnz: T.int32,
                 alpha: T.float32, beta: T.float32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (I,), "float32")
    Z = T.match_sparse_buffer(z, (N,), "float32")
    Y = T.match_sparse_buffer(y, (N,), "float32")
    with T.sp_iter([N], "S", "scale") as [v]:
        Y[v] = beta * Z[v]
    with T.sp_iter([I, J], "RS", "scatter") as [i, j]:
        Y[j] = Y[j] + alpha * A[i, j] * X[i]
""",
    lambda d: (
        (p := _csr(d))
        | {"x": d.values(p["m"]), "z": d.values(p["n"]), "y": d.output(p["n"])}
        | {"alpha": 1.5, "beta": -0.25}
    ),
    lambda x: {"y": x.alpha * (_a(x).T @ x.x) + x.beta * x.z},
    dtypes=FLOATS,
)

FLATTEN_SCALE = Program(
    """
@T.prim_func
def flatten_scale(w: T.handle, e: T.handle, indptr: T.handle, indices: T.handle,
                  m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    P = T.dense_fixed(nnz)
    W = T.match_sparse_buffer(w, (P,), "float32")
    E = T.match_sparse_buffer(e, (P,), "float32")
    with T.sp_iter([T.flatten(I, J)], "S", "flatten_scale") as [p]:
        E[p] = W[p] * T.float32(3)
""",
    lambda d: (p := _csr(d)) | {"w": p.pop("a"), "e": d.output(p["nnz"])},
    lambda x: {"e": _flat_scaled(x)},
    dtypes=NUMBERS,
)


def _flat_scaled(x: SimpleNamespace) -> np.ndarray:
    result = x.e.copy()
    for _, position, _ in entries(x.indptr, x.indices):
        result[position] = 3 * x.w[position]
    return result


MATRIX = (
    *(CSRMM, CSRMM_DENSE_ITER, CSRMM_BRANCH, CSRMM_T, CSR_REDUCE),
    *(SEGMENT_REDUCE, SEGMENT_REDUCE_SHORT, CSR_ELEMENT_WISE, SDDMM, FUSED_SDDMM),
    *(
        SPMV,
        FUSED_SPMV,
        SPMV_ACCUMULATE,
        SPMV_MAX,
        SPMV_MIN_PLUS,
        SPMV_PROD,
        SPMV_T_AXPBY,
        FLATTEN_SCALE,
    ),
)
