"""Programs of the corpus over blocked, padded and doubly compressed storage."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.corpus_base import ALL, HALVES, NUMBERS, Arrays, Draw, Inputs, Program
from tests.oracle import dense, entries

BLOCK = 2


def _columns(d: Draw, length: int) -> int:
    """Return how many of *length* coordinates each fiber of a sparse_fixed axis stores."""
    few = {"nnz0": 0, "full_row": length}
    return min(length, few.get(d.case, 3))


def _dense_operands(d: Draw, nb: int, mb: int) -> Inputs:
    feat = d.size(3)
    arrays = {"b": d.values(mb, BLOCK, feat), "c": d.output(nb, BLOCK, feat)}
    return {**arrays, "nb": nb, "mb": mb, "blk": BLOCK, "feat": feat}


def _bsr_inputs(d: Draw) -> Inputs:
    nb, mb = d.size(4), d.size(5)
    axis = d.compressed(nb, mb)
    arrays = {"a": d.values(axis.nnz, BLOCK, BLOCK), "indptr": axis.indptr}
    return {**_dense_operands(d, nb, mb), **arrays, "indices": axis.indices, "nnzb": axis.nnz}


def _blocks_times_dense(x: SimpleNamespace, indptr: np.ndarray) -> Arrays:
    blocks = dense(indptr, x.indices, x.a.reshape(-1, x.blk, x.blk), (x.nb, x.mb))
    full = blocks.transpose(0, 2, 1, 3).reshape(x.nb * x.blk, x.mb * x.blk)
    return {"c": full @ x.b.reshape(x.mb * x.blk, x.feat)}


def _ell_indptr(x: SimpleNamespace, rows: int) -> np.ndarray:
    return np.arange(rows + 1) * x.cols


BSRMM = Program(
    """
@T.prim_func
def bsrmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
          nb: T.int32, mb: T.int32, nnzb: T.int32, blk: T.int32, feat: T.int32) -> None:
    I = T.dense_fixed(nb)
    J = T.sparse_variable(I, (mb, nnzb), (indptr, indices), idtype="int32")
    J_detach = T.dense_fixed(mb)
    BI = T.dense_fixed(blk)
    BJ = T.dense_fixed(blk)
    F = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J, BI, BJ), "float32")
    B = T.match_sparse_buffer(b, (J_detach, BJ, F), "float32")
    C = T.match_sparse_buffer(c, (I, BI, F), "float32")
    with T.sp_iter([I, BI, BJ, F, J], "SSRSR", "bsrmm") as [i, bi, bj, f, j]:
        with T.init():
            C[i, bi, f] = T.float32(0)
        C[i, bi, f] = C[i, bi, f] + A[i, j, bi, bj] * B[j, bj, f]
""",
    _bsr_inputs,
    lambda x: _blocks_times_dense(x, x.indptr),
    dtypes=ALL,
)


def _ell_blocks_inputs(d: Draw) -> Inputs:
    nb, mb = d.size(4), d.size(5)
    cols = _columns(d, mb)
    arrays = {"a": d.values(nb, cols, BLOCK, BLOCK), "indices": d.fixed(nb, mb, cols)}
    return {**_dense_operands(d, nb, mb), **arrays, "cols": cols}


ELLMM = Program(
    """
@T.prim_func
def ellmm(a: T.handle, b: T.handle, c: T.handle, indices: T.handle,
          nb: T.int32, mb: T.int32, cols: T.int32, blk: T.int32, feat: T.int32) -> None:
    I = T.dense_fixed(nb)
    J = T.sparse_fixed(I, (mb, cols), indices, idtype="int32")
    J_detach = T.dense_fixed(mb)
    BI = T.dense_fixed(blk)
    BJ = T.dense_fixed(blk)
    F = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J, BI, BJ), "float32")
    B = T.match_sparse_buffer(b, (J_detach, BJ, F), "float32")
    C = T.match_sparse_buffer(c, (I, BI, F), "float32")
    with T.sp_iter([I, J, BI, BJ, F], "SRSRS", "ellmm") as [i, j, bi, bj, f]:
        with T.init():
            C[i, bi, f] = T.float32(0)
        C[i, bi, f] = C[i, bi, f] + A[i, j, bi, bj] * B[j, bj, f]
""",
    _ell_blocks_inputs,
    lambda x: _blocks_times_dense(x, _ell_indptr(x, x.nb)),
    dtypes=HALVES,
)


def _ell_spmm_inputs(d: Draw) -> Inputs:
    m, n, feat = d.size(5), d.size(7), d.size(3)
    cols = _columns(d, n)
    arrays = {"a": d.values(m, cols), "b": d.values(n, feat), "c": d.output(m, feat)}
    return {**arrays, "indices": d.fixed(m, n, cols), "m": m, "n": n, "cols": cols, "feat": feat}


ELL_SPMM = Program(
    """
@T.prim_func
def ell_spmm(a: T.handle, b: T.handle, c: T.handle, indices: T.handle,
             m: T.int32, n: T.int32, cols: T.int32, feat: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, cols), indices, idtype="int32", sorted=True)
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "ell_spmm") as [i, j, k]:
        with T.init():
            C[i, k] = T.float32(0)
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
""",
    _ell_spmm_inputs,
    lambda x: {
        "c": dense(_ell_indptr(x, x.m), x.indices, x.a, (x.m, x.n)) @ x.b.reshape(x.n, x.feat)
    },
    dtypes=NUMBERS,
)

ELL_SEARCH = Program(
    """
@T.prim_func
def ell_search(a: T.handle, c: T.handle, indices: T.handle,
               m: T.int32, n: T.int32, cols: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, cols), indices, idtype="int32", sorted=False)
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32", fill=-1)
    C = T.match_sparse_buffer(c, (I, N), "float32")
    with T.sp_iter([I, N], "SS", "ell_search") as [i, v]:
        C[i, v] = A[i, v]
""",
    lambda d: _unsorted_ell_inputs(d),
    lambda x: {"c": _unsorted_dense(x)},
    dtypes=NUMBERS,
)


def _unsorted_ell_inputs(d: Draw) -> Inputs:
    m, n = d.size(5), d.size(7)
    cols = _columns(d, n)
    indices = d.ids([j for _ in range(m) for j in d.sample(n, cols)[::-1]])
    arrays = {"a": d.values(m, cols), "c": d.output(m, n), "indices": indices}
    return {**arrays, "m": m, "n": n, "cols": cols}


def _unsorted_dense(x: SimpleNamespace) -> np.ndarray:
    full = np.full((x.m, x.n), -1, x.a.dtype)
    for row, position, column in entries(_ell_indptr(x, x.m), x.indices):
        full[row, column] = x.a[position]
    return full


def _dcsr_inputs(d: Draw) -> Inputs:
    m, n, feat = d.size(6), d.size(7), d.size(3)
    rows = d.compressed(1, m)
    columns = d.compressed(rows.nnz, n)
    arrays = {"a": d.values(columns.nnz), "b": d.values(n, feat), "c": d.output(m, feat)}
    index = {"row_indptr": rows.indptr, "row_indices": rows.indices}
    index |= {"indptr": columns.indptr, "indices": columns.indices}
    sizes = {"m": m, "n": n, "feat": feat, "rows": rows.nnz, "nnz": columns.nnz}
    return {**arrays, **index, **sizes}


def _dcsr_product(x: SimpleNamespace) -> Arrays:
    full = np.zeros((x.m, x.n), x.a.dtype)
    stored = {p: i for _, p, i in entries(x.row_indptr, x.row_indices)}
    for row, position, column in entries(x.indptr, x.indices):
        if row in stored:
            full[stored[row], column] = x.a[position]
    return {"c": full @ x.b.reshape(x.n, x.feat)}


DCSR_SPMM = Program(
    """
@T.prim_func
def dcsr_spmm(a: T.handle, b: T.handle, c: T.handle, row_indptr: T.handle, row_indices: T.handle,
              indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32, feat: T.int32,
              rows: T.int32, nnz: T.int32) -> None:
    O = T.dense_fixed(1)
    I = T.sparse_variable(O, (m, rows), (row_indptr, row_indices), idtype="int32")
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    I_detach = T.dense_fixed(m)
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (O, I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I_detach, K), "float32")
    with T.sp_iter([O, I, J, K], "SSRS", "dcsr_spmm") as [o, i, j, k]:
        with T.init():
            C[i, k] = T.float32(0)
        C[i, k] = C[i, k] + A[o, i, j] * B[j, k]
""",
    _dcsr_inputs,
    _dcsr_product,
    dtypes=NUMBERS,
)


def _csr2bsr_inputs(d: Draw) -> Inputs:
    nb, mb = d.size(3), d.size(4)
    m, n = nb * BLOCK, mb * BLOCK
    axis = d.compressed(m, n)
    touched = {(i // BLOCK, j // BLOCK) for i, _, j in entries(axis.indptr, axis.indices)}
    extra = {(bi, mb - 1) for bi in range(nb) if mb}  # a block that nothing is written to
    blocks = sorted(touched | extra)
    b_indptr = np.searchsorted([bi for bi, _ in blocks], np.arange(nb + 1))
    arrays = {"a": d.values(axis.nnz), "b": d.output(len(blocks), BLOCK, BLOCK)}
    arrays |= {"indptr": axis.indptr, "indices": axis.indices}
    arrays |= {"b_indptr": d.ids(b_indptr), "b_indices": d.ids([bj for _, bj in blocks])}
    sizes = {"m": m, "n": n, "nb": nb, "mb": mb, "blk": BLOCK}
    return {**arrays, **sizes, "nnz": axis.nnz, "nnzb": len(blocks)}


def _csr2bsr(x: SimpleNamespace) -> Arrays:
    blocks = x.b.reshape(-1, x.blk, x.blk).copy()
    where = {(bi, bj): p for bi, p, bj in entries(x.b_indptr, x.b_indices)}
    for i, p, j in entries(x.indptr, x.indices):
        blocks[where[i // x.blk, j // x.blk], i % x.blk, j % x.blk] = x.a[p]
    return {"b": blocks}


CSR2BSR = Program(
    """
@T.prim_func
def csr2bsr(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
            b_indptr: T.handle, b_indices: T.handle, m: T.int32, n: T.int32, nb: T.int32,
            mb: T.int32, nnz: T.int32, nnzb: T.int32, blk: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    IO = T.dense_fixed(nb)
    JO = T.sparse_variable(IO, (mb, nnzb), (b_indptr, b_indices), idtype="int32")
    II = T.dense_fixed(blk)
    JI = T.dense_fixed(blk)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (IO, JO, II, JI), "float32")
    with T.sp_iter([I, J], "SS", "csr2bsr") as [i, j]:
        B[i // blk, j // blk, i % blk, j % blk] = A[i, j]
""",
    _csr2bsr_inputs,
    _csr2bsr,
    dtypes=ALL,
)

BLOCKS = (BSRMM, ELLMM, ELL_SPMM, ELL_SEARCH, DCSR_SPMM, CSR2BSR)
