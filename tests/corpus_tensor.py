"""Programs of the corpus over deeper trees of axes: CSF, ragged, relational, attached, softmax."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.corpus_base import ALL, NUMBERS, Arrays, Draw, Inputs, Program
from tests.oracle import entries, fibers, mask


def _hyper_inputs(d: Draw) -> Inputs:
    n, m, feat = d.size(5), d.size(4), d.size(3)
    out, back = d.compressed(n, m), d.compressed(m, n)
    arrays = {"x": d.values(n, feat), "y": d.output(n, feat)}
    index = {"indptr": out.indptr, "indices": out.indices}
    index |= {"indptr_t": back.indptr, "indices_t": back.indices}
    sizes = {"n": n, "m": m, "feat": feat, "nnz": out.nnz, "nnz_t": back.nnz}
    return {**arrays, **index, **sizes}


def _hyper(x: SimpleNamespace) -> Arrays:
    out = mask(x.indptr, x.indices, (x.n, x.m)).astype(float)
    back = mask(x.indptr_t, x.indices_t, (x.m, x.n)).astype(float)
    return {"y": out @ back @ x.x.reshape(x.n, x.feat)}


HYPER_GNN = Program(
    """
@T.prim_func
def hyper_gnn(x: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
              indptr_t: T.handle, indices_t: T.handle, n: T.int32, m: T.int32, feat: T.int32,
              nnz: T.int32, nnz_t: T.int32) -> None:
    I = T.dense_fixed(n)
    J = T.sparse_variable(I, (m, nnz), (indptr, indices), idtype="int32")
    J_detach = T.dense_fixed(m)
    IT = T.sparse_variable(J_detach, (n, nnz_t), (indptr_t, indices_t), idtype="int32")
    F = T.dense_fixed(feat)
    X = T.match_sparse_buffer(x, (I, F), "float32")
    Y = T.match_sparse_buffer(y, (I, F), "float32")
    with T.sp_iter([I, F, J, T.attach(IT, J)], "SSRR", "hyper_gnn") as [i, f, j, it]:
        with T.init():
            Y[i, f] = 0.0
        Y[i, f] = Y[i, f] + X[it, f]
""",
    _hyper_inputs,
    _hyper,
)

_BMM = """
@T.prim_func
def bmm(x: T.handle, y: T.handle, z: T.handle, indptr_i: T.handle, indptr_j: T.handle,
        indptr_k: T.handle, indptr_ij: T.handle, indptr_jk: T.handle, indptr_ik: T.handle,
        batch: T.int32, longest: T.int32, nnz_i: T.int32, nnz_j: T.int32, nnz_k: T.int32,
        nnz_ij: T.int32, nnz_jk: T.int32, nnz_ik: T.int32) -> None:
    B = T.dense_fixed(batch)
    I = T.dense_variable(B, (longest, nnz_i), indptr_i, idtype="int32")
    J = T.dense_variable(B, (longest, nnz_j), indptr_j, idtype="int32")
    K = T.dense_variable(B, (longest, nnz_k), indptr_k, idtype="int32")
    IJ = T.dense_variable({ij}, (longest, nnz_ij), indptr_ij, idtype="int32")
    JK = T.dense_variable({jk}, (longest, nnz_jk), indptr_jk, idtype="int32")
    IK = T.dense_variable({ik}, (longest, nnz_ik), indptr_ik, idtype="int32")
    X = T.match_sparse_buffer(x, (B, I, IJ), "float32")
    Y = T.match_sparse_buffer(y, (B, J, JK), "float32")
    Z = T.match_sparse_buffer(z, (B, I, IK), "float32")
    with T.sp_iter([B, I, J, K], "SSRS", "bmm") as [b, i, j, k]:
        with T.init():
            Z[b, i, k] = T.float32(0)
        Z[b, i, k] = Z[b, i, k] + X[b, i, j] * Y[b, j, k]
"""

BMM_PUBLISHED = _BMM.format(ij="B", jk="B", ik="B")


def _bmm_inputs(d: Draw) -> Inputs:
    batch, longest = d.size(3), d.size(4)
    sizes = {s: [len(d.fiber(longest, b, batch)) for b in range(batch)] for s in "ijk"}

    def indptr(name: str) -> np.ndarray:
        """The pointers of axis *name*: of the last letter's sizes, once per row of the first."""
        rows = [1] * batch if len(name) == 1 else sizes[name[0]]
        fibers_of_all = [sizes[name[-1]][b] for b in range(batch) for _ in range(rows[b])]
        return np.cumsum([0, *fibers_of_all])

    pointers = {name: indptr(name) for name in ("i", "j", "k", "ij", "jk", "ik")}
    nnz = {name: int(p[-1]) for name, p in pointers.items()}
    arrays = {"x": d.values(nnz["ij"]), "y": d.values(nnz["jk"]), "z": d.output(nnz["ik"])}
    arrays |= {f"indptr_{name}": d.ids(p) for name, p in pointers.items()}
    counts = {f"nnz_{name}": count for name, count in nnz.items()}
    return {**arrays, **counts, "batch": batch, "longest": longest}


def _bmm(x: SimpleNamespace) -> Arrays:
    parts = [np.zeros(0, x.x.dtype)]
    at = {"x": 0, "y": 0}
    for b in range(x.batch):
        i, j, k = (int(p[b + 1] - p[b]) for p in (x.indptr_i, x.indptr_j, x.indptr_k))
        left = x.x[at["x"] : at["x"] + i * j].reshape(i, j)
        right = x.y[at["y"] : at["y"] + j * k].reshape(j, k)
        parts.append((left @ right).reshape(-1))
        at = {"x": at["x"] + i * j, "y": at["y"] + j * k}
    return {"z": np.concatenate(parts)}


BMM = Program(
    _BMM.format(ij="I", jk="J", ik="I"),
    _bmm_inputs,
    _bmm,
    dtypes=NUMBERS,
    cases=("random", "empty_rows", "full_row", "nnz0", "one", "zero"),
)


def _csf(d: Draw) -> Inputs:
    m, n, depth = d.size(5), d.size(4), d.size(6)
    rows = d.compressed(m, n)
    tubes = d.compressed(rows.nnz, depth)
    index = {"indptr_j": rows.indptr, "indices_j": rows.indices}
    index |= {"indptr_k": tubes.indptr, "indices_k": tubes.indices}
    sizes = {"m": m, "n": n, "depth": depth, "nnz_j": rows.nnz, "nnz_k": tubes.nnz}
    return {**index, **sizes, "a": d.values(tubes.nnz)}


def _csf_dense(x: SimpleNamespace) -> np.ndarray:
    full = np.zeros((x.m, x.n, x.depth), x.a.dtype)
    stored = {p: (i, j) for i, p, j in entries(x.indptr_j, x.indices_j)}
    for p, q, k in entries(x.indptr_k, x.indices_k):
        if p in stored:
            full[(*stored[p], k)] = x.a[q]
    return full


SQUARE_SUM = Program(
    """
@T.prim_func
def square_sum(a: T.handle, b: T.handle, indptr_j: T.handle, indices_j: T.handle,
               indptr_k: T.handle, indices_k: T.handle, m: T.int32, n: T.int32,
               depth: T.int32, nnz_j: T.int32, nnz_k: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), idtype="int32")
    K = T.sparse_variable(J, (depth, nnz_k), (indptr_k, indices_k), idtype="int32")
    A = T.match_sparse_buffer(a, (I, J, K), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I, J, K], "SRR", "square_sum") as [i, j, k]:
        with T.init():
            B[i] = T.float32(0)
        B[i] = B[i] + A[i, j, k]
""",
    lambda d: (p := _csf(d)) | {"b": d.output(p["m"])},
    lambda x: {"b": _csf_dense(x).sum(axis=(1, 2))},
    dtypes=ALL,
)


def _two_k_inputs(d: Draw) -> Inputs:
    p = _csf(d)
    copies = {"indptr_k1": p["indptr_k"].copy(), "indices_k1": p["indices_k"].copy()}
    return {**p, **copies, "b": d.output(p["m"])}


SQUARE_SUM_TWO_K = Program(
    """
@T.prim_func
def square_sum_two_K(a: T.handle, b: T.handle, indptr_j: T.handle, indices_j: T.handle,
                     indptr_k: T.handle, indices_k: T.handle, indptr_k1: T.handle,
                     indices_k1: T.handle, m: T.int32, n: T.int32, depth: T.int32,
                     nnz_j: T.int32, nnz_k: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), idtype="int32")
    K0 = T.sparse_variable(J, (depth, nnz_k), (indptr_k, indices_k), idtype="int32")
    K1 = T.sparse_variable(J, (depth, nnz_k), (indptr_k1, indices_k1), idtype="int32")
    A = T.match_sparse_buffer(a, (I, J, K0), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I, J, K1], "SRR", "square_sum_two_K") as [i, j, k]:
        with T.init():
            B[i] = T.float32(0)
        B[i] = B[i] + A[i, j, k]
""",
    _two_k_inputs,
    lambda x: {"b": _csf_dense(x).sum(axis=(1, 2))},
    dtypes=NUMBERS,
)

MTTKRP = Program(
    """
@T.prim_func
def mttkrp(a: T.handle, b: T.handle, c: T.handle, y: T.handle, indptr_j: T.handle,
           indices_j: T.handle, indptr_k: T.handle, indices_k: T.handle, m: T.int32, n: T.int32,
           depth: T.int32, rank: T.int32, nnz_j: T.int32, nnz_k: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), idtype="int32")
    K = T.sparse_variable(J, (depth, nnz_k), (indptr_k, indices_k), idtype="int32")
    J_detach = T.dense_fixed(n)
    K_detach = T.dense_fixed(depth)
    R = T.dense_fixed(rank)
    A = T.match_sparse_buffer(a, (I, J, K), "float32")
    B = T.match_sparse_buffer(b, (J_detach, R), "float32")
    C = T.match_sparse_buffer(c, (K_detach, R), "float32")
    Y = T.match_sparse_buffer(y, (I, R), "float32")
    with T.sp_iter([I, J, K, R], "SRRS", "mttkrp") as [i, j, k, r]:
        with T.init():
            Y[i, r] = T.float32(0)
        Y[i, r] = Y[i, r] + A[i, j, k] * B[j, r] * C[k, r]
""",
    lambda d: (
        (p := _csf(d))
        | {
            "rank": (rank := d.size(3)),
            "b": d.values(p["n"], rank),
            "c": d.values(p["depth"], rank),
        }
        | {"y": d.output(p["m"], rank)}
    ),
    lambda x: {
        "y": np.einsum(
            *("ijk,jr,kr->ir", _csf_dense(x)),
            *(x.b.reshape(x.n, x.rank), x.c.reshape(x.depth, x.rank)),
        )
    },
    dtypes=NUMBERS,
)


def _ragged_inputs(d: Draw, output: str) -> Inputs:
    n, longest = d.size(4), d.size(4)
    p: Inputs = {"n": n, "longest": longest}
    rows = n
    for level in "jkl":
        axis = d.ragged(rows, longest)
        rows = axis.nnz
        p |= {f"indptr_{level}": axis.indptr, f"nnz_{level}": rows}
    return {**p, "x": d.values(p["nnz_l"]), "y": d.output(p[f"nnz_{output}"])}


def _ragged_sums(x: SimpleNamespace, output: str) -> Arrays:
    """Sum X over the levels below *output*; positions outside every fiber keep what they had."""
    sums = np.zeros(x.nnz_k, x.x.dtype)
    for p, q, _ in fibers(x.indptr_l):
        sums[p] += x.x[q]
    live_j = [q for _, q, _ in fibers(x.indptr_j)]
    live_k = [(p, q) for p, q, _ in fibers(x.indptr_k) if p in set(live_j)]
    y = x.y.copy()
    if output == "j":
        y[live_j] = 0
    for p, q in live_k:
        y[p if output == "j" else q] = sums[q] + (y[p] if output == "j" else 0)
    return {"y": y}


_RAGGED = """
@T.prim_func
def fused_reduction_4d_{name}(x: T.handle, y: T.handle, indptr_j: T.handle, indptr_k: T.handle,
                         indptr_l: T.handle, n: T.int32, longest: T.int32, nnz_j: T.int32,
                         nnz_k: T.int32, nnz_l: T.int32) -> None:
    I = T.dense_fixed(n)
    J = T.dense_variable(I, (longest, nnz_j), indptr_j, idtype="int32")
    K = T.dense_variable(J, (longest, nnz_k), indptr_k, idtype="int32")
    L = T.dense_variable(K, (longest, nnz_l), indptr_l, idtype="int32")
    X = T.match_sparse_buffer(x, (I, J, K, L), "float32")
    Y = T.match_sparse_buffer(y, ({axes}), "float32")
    with T.sp_iter([{domains}], "{kinds}", "fused_reduction_4d_{name}") as [i, j, k, l]:
        with T.init():
            Y[{index}] = T.float32(0)
        Y[{index}] = Y[{index}] + X[i, j, k, l]
"""

REDUCTION_4D_2D = Program(
    _RAGGED.format(
        name="2d", axes="I, J", domains="T.fuse(I, J), K, L", kinds="SSRR", index="i, j"
    ),
    lambda d: _ragged_inputs(d, "j"),
    lambda x: _ragged_sums(x, "j"),
    dtypes=NUMBERS,
)
REDUCTION_4D_3D = Program(
    _RAGGED.format(
        name="3d", axes="I, J, K", domains="T.fuse(I, J, K), L", kinds="SSSR", index="i, j, k"
    ),
    lambda d: _ragged_inputs(d, "k"),
    lambda x: _ragged_sums(x, "k"),
    dtypes=NUMBERS,
)

TENSOR = (
    *(HYPER_GNN, BMM, SQUARE_SUM, SQUARE_SUM_TWO_K, MTTKRP),
    *(REDUCTION_4D_2D, REDUCTION_4D_3D),
)
