"""Programs of the corpus for graph learning: relational layers, attention, gather and scatter."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.corpus_base import HALVES, NUMBERS, Arrays, Draw, Inputs, Program
from tests.oracle import dense, entries, gathered, mask


def _homo_inputs(d: Draw) -> Inputs:
    m, n, rels, fin, fout = d.size(5), d.size(6), d.size(3), d.size(3), d.size(2)
    axis = d.compressed(m, n)
    arrays = {"e": d.integers(axis.nnz, 0, rels), "w": d.values(rels, fout, fin)}
    arrays |= {"x": d.values(n, fin), "y": d.output(m, fout)}
    sizes = {"m": m, "n": n, "rels": rels, "fin": fin, "fout": fout, "nnz": axis.nnz}
    return {**arrays, **sizes, "indptr": axis.indptr, "indices": axis.indices}


def _homo(x: SimpleNamespace) -> Arrays:
    weights, features = x.w.reshape(x.rels, x.fout, x.fin), x.x.reshape(x.n, x.fin)
    y = np.zeros((x.m, x.fout), x.x.dtype)
    for i, p, j in entries(x.indptr, x.indices):
        if x.e[p] < x.rels:  # with no relation at all, every number is out of range: reads as 0
            y[i] += weights[x.e[p]] @ features[j]
    return {"y": y}


RGCN_HOMO = Program(
    """
@T.prim_func
def rgcn_homo_forward(e: T.handle, w: T.handle, x: T.handle, y: T.handle, indptr: T.handle,
                      indices: T.handle, m: T.int32, n: T.int32, rels: T.int32, fin: T.int32,
                      fout: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    J_detach = T.dense_fixed(n)
    R = T.dense_fixed(rels)
    FI = T.dense_fixed(fin)
    FO = T.dense_fixed(fout)
    E = T.match_sparse_buffer(e, (I, J), "int32")
    W = T.match_sparse_buffer(w, (R, FO, FI), "float32")
    X = T.match_sparse_buffer(x, (J_detach, FI), "float32")
    Y = T.match_sparse_buffer(y, (I, FO), "float32")
    with T.sp_iter([I, FO, J, FI], "SSRR", "rgcn_homo_forward") as [i, fo, j, fi]:
        with T.init():
            Y[i, fo] = T.float32(0)
        Y[i, fo] = Y[i, fo] + W[E[i, j], fo, fi] * X[j, fi]
""",
    _homo_inputs,
    _homo,
    dtypes=NUMBERS,
)


def _hetero_inputs(d: Draw) -> Inputs:
    m, n, rels, fin, fout = d.size(5), d.size(6), d.size(3), d.size(3), d.size(2)
    rows = d.compressed(rels, m)
    columns = d.compressed(rows.nnz, n)
    arrays = {"a": d.values(columns.nnz), "w": d.values(rels, fout, fin)}
    arrays |= {"x": d.values(n, fin), "y": d.output(m, fout)}
    index = {"indptr_i": rows.indptr, "indices_i": rows.indices}
    index |= {"indptr_j": columns.indptr, "indices_j": columns.indices}
    sizes = {"m": m, "n": n, "rels": rels, "fin": fin, "fout": fout}
    return {**arrays, **index, **sizes, "nnz_i": rows.nnz, "nnz_j": columns.nnz}


def _hetero(x: SimpleNamespace) -> Arrays:
    weights, features = x.w.reshape(x.rels, x.fout, x.fin), x.x.reshape(x.n, x.fin)
    stored = {p: (r, i) for r, p, i in entries(x.indptr_i, x.indices_i)}
    y = np.zeros((x.m, x.fout), x.x.dtype)
    for p, q, j in entries(x.indptr_j, x.indices_j):
        if p in stored:
            r, i = stored[p]
            y[i] += x.a[q] * (weights[r] @ features[j])
    return {"y": y}


RGCN_HETERO = Program(
    """
@T.prim_func
def rgcn_hetero_forward(a: T.handle, w: T.handle, x: T.handle, y: T.handle, indptr_i: T.handle,
                        indices_i: T.handle, indptr_j: T.handle, indices_j: T.handle,
                        m: T.int32, n: T.int32, rels: T.int32, fin: T.int32, fout: T.int32,
                        nnz_i: T.int32, nnz_j: T.int32) -> None:
    R = T.dense_fixed(rels)
    I = T.sparse_variable(R, (m, nnz_i), (indptr_i, indices_i), idtype="int32")
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), idtype="int32")
    I_detach = T.dense_fixed(m)
    J_detach = T.dense_fixed(n)
    FI = T.dense_fixed(fin)
    FO = T.dense_fixed(fout)
    A = T.match_sparse_buffer(a, (R, I, J), "float32")
    W = T.match_sparse_buffer(w, (R, FO, FI), "float32")
    X = T.match_sparse_buffer(x, (J_detach, FI), "float32")
    Y = T.match_sparse_buffer(y, (I_detach, FO), "float32")
    with T.sp_iter([FO, R, I, J, FI], "SSSRR", "rgcn_hetero_forward") as [fo, r, i, j, fi]:
        with T.init():
            Y[i, fo] = T.float32(0)
        Y[i, fo] = Y[i, fo] + A[r, i, j] * W[r, fo, fi] * X[j, fi]
""",
    _hetero_inputs,
    _hetero,
    dtypes=NUMBERS,
    warns="R",
)


def _softmax_inputs(d: Draw) -> Inputs:
    m, n = d.size(5), d.size(6)
    axis = d.compressed(m, n)
    arrays = {"a": d.values(axis.nnz), "b": d.output(axis.nnz)}
    arrays |= {"indptr": axis.indptr, "indices": axis.indices}
    return {**arrays, "m": m, "n": n, "nnz": axis.nnz}


def _softmax(x: SimpleNamespace, *, shifted: bool) -> Arrays:
    shape = (x.m, x.n)
    stored = mask(x.indptr, x.indices, shape)
    full = np.where(stored, dense(x.indptr, x.indices, x.a, shape), -np.inf)
    top = full.max(axis=1, keepdims=True, initial=-1e30)
    total = np.exp(full - top).sum(axis=1, keepdims=True)
    result = np.exp(full - top if shifted else full) / total
    return {"b": gathered(x.indptr, x.indices, result, x.b)}


_SOFTMAX = """
@T.prim_func
def {name}(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
           m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, J), "float32")
    TOP = T.alloc_sparse_buffer((I,), "float32")
    SUM = T.alloc_sparse_buffer((I,), "float32")
    with T.sp_iter([I], "S", "{name}") as [i]:
        with T.sp_iter([J], "R", "compute_max") as [j]:
            with T.init():
                TOP[i] = T.min_value("float32")
            TOP[i] = T.max(TOP[i], A[i, j])
        with T.sp_iter([J], "R", "exp_and_sum") as [j1]:
            with T.init():
                SUM[i] = T.float32(0)
            SUM[i] = SUM[i] + T.exp(A[i, j1] - TOP[i])
        with T.sp_iter([J], "S", "divide") as [j2]:
            B[i, j2] = {numerator} / SUM[i]
"""


def _softmax_program(name: str, numerator: str, *, shifted: bool) -> Program:
    return Program(
        _SOFTMAX.format(name=name, numerator=numerator),
        _softmax_inputs,
        lambda x: _softmax(x, shifted=shifted),
        dtypes=HALVES,
        magnitude=lambda x: {"b": 4 * np.abs(_softmax(x, shifted=shifted)["b"])},
    )


SOFTMAX = _softmax_program("sparse_softmax", "T.exp(A[i, j2] - TOP[i])", shifted=True)
SOFTMAX_PUBLISHED = _softmax_program("sparse_softmax_published", "T.exp(A[i, j2])", shifted=False)


def _attention_inputs(d: Draw) -> Inputs:
    p, feat = _softmax_inputs(d), d.size(3)
    shapes = {"q": p["m"], "k": p["n"], "v": p["n"]}
    arrays = {name: d.values(rows, feat) for name, rows in shapes.items()}
    sizes = {name: p[name] for name in ("m", "n", "nnz", "indptr", "indices")}
    return {**arrays, **sizes, "feat": feat, "scale": 0.5, "y": d.output(p["m"], feat)}


def _attention(x: SimpleNamespace) -> Arrays:
    query, key, value = x.q.reshape(x.m, x.feat), x.k.reshape(x.n, x.feat), x.v.reshape(x.n, x.feat)
    stored = mask(x.indptr, x.indices, (x.m, x.n))
    weights = np.where(stored, np.exp(x.scale * (query @ key.T)), 0)
    total = weights.sum(axis=1, keepdims=True)
    return {"y": weights / np.where(total == 0, 1, total) @ value}


ATTENTION = Program(
    """
@T.prim_func
def sampled_attention(q: T.handle, k: T.handle, v: T.handle, y: T.handle, indptr: T.handle,
                      indices: T.handle, m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32,
                      scale: T.float32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    J_detach = T.dense_fixed(n)
    F = T.dense_fixed(feat)
    Q = T.match_sparse_buffer(q, (I, F), "float32")
    K = T.match_sparse_buffer(k, (J_detach, F), "float32")
    V = T.match_sparse_buffer(v, (J_detach, F), "float32")
    Y = T.match_sparse_buffer(y, (I, F), "float32")
    S = T.alloc_sparse_buffer((I, J), "float32")
    TOTAL = T.alloc_sparse_buffer((I,), "float32")
    with T.sp_iter([I, J, F], "SSR", "score") as [i, j, f]:
        with T.init():
            S[i, j] = T.float32(0)
        S[i, j] = S[i, j] + scale * Q[i, f] * K[j, f]
    with T.sp_iter([I, J], "SR", "total") as [i1, j1]:
        with T.init():
            TOTAL[i1] = T.float32(0)
        TOTAL[i1] = TOTAL[i1] + T.exp(S[i1, j1])
    with T.sp_iter([I, J, F], "SRS", "mix") as [i2, j2, f2]:
        with T.init():
            Y[i2, f2] = T.float32(0)
        Y[i2, f2] = Y[i2, f2] + T.exp(S[i2, j2]) / TOTAL[i2] * V[j2, f2]
""",
    _attention_inputs,
    _attention,
    magnitude=lambda x: {"y": np.full((x.m, x.feat), 4.0)},
)


def _edges_inputs(d: Draw) -> Inputs:
    n, feat = d.size(5), d.size(3)
    edges = 0 if d.case == "nnz0" or n == 0 else d.size(12)
    arrays = {"src": d.integers(edges, 0, n), "x": d.values(n, feat)}
    sizes = {"n": n, "feat": feat, "edges": edges}
    return {**arrays, **sizes, "to": d.integers(edges, 0, n)}


def _gather(x: SimpleNamespace) -> Arrays:
    """Rows of X by number; a number that is no row gives zeros."""
    table = dict(enumerate(x.x.reshape(x.n, x.feat)))
    rows = [table.get(int(v), np.zeros(x.feat, x.x.dtype)) for v in x.src]
    return {"y": np.array(rows, x.x.dtype).reshape(x.edges, x.feat)}


def _gather_inputs(d: Draw) -> Inputs:
    p = _edges_inputs(d)
    p.pop("to")
    p["src"] += np.int32(d.case == "random")  # the last row number is now out of range
    return {**p, "y": d.output(p["edges"], p["feat"])}


GATHER = Program(
    """
@T.prim_func
def gather_rows(src: T.handle, x: T.handle, y: T.handle,
                n: T.int32, feat: T.int32, edges: T.int32) -> None:
    N = T.dense_fixed(n)
    E = T.dense_fixed(edges)
    K = T.dense_fixed(feat)
    SRC = T.match_sparse_buffer(src, (E,), "int32")
    X = T.match_sparse_buffer(x, (N, K), "float32")
    Y = T.match_sparse_buffer(y, (E, K), "float32")
    with T.sp_iter([E, K], "SS", "gather_rows") as [e, k]:
        Y[e, k] = X[SRC[e], k]
""",
    _gather_inputs,
    _gather,
    dtypes=NUMBERS,
    idtypes=("int32",),
)


def _scatter(x: SimpleNamespace) -> Arrays:
    y = np.zeros((x.n, x.feat), x.x.dtype)
    np.add.at(y, x.to, x.x.reshape(x.n, x.feat)[x.src])
    return {"y": y}


_SCATTER = """
@T.prim_func
def {name}(src: T.handle, to: T.handle, x: T.handle, y: T.handle,
                n: T.int32, feat: T.int32, edges: T.int32) -> None:
    N = T.dense_fixed(n)
    E = T.dense_fixed(edges)
    K = T.dense_fixed(feat)
    SRC = T.match_sparse_buffer(src, (E,), "int32")
    TO = T.match_sparse_buffer(to, (E,), "int32")
    X = T.match_sparse_buffer(x, (N, K), "float32")
    Y = T.match_sparse_buffer(y, (N, K), "float32")
    with T.sp_iter([N, K], "SS", "clear") as [v, k0]:
        Y[v, k0] = T.float32(0)
    with T.sp_iter([E, K], "{kinds}", "{name}") as [e, k]:
        Y[TO[e], k] = Y[TO[e], k] + X[SRC[e], k]
"""


def _scatter_program(name: str, kinds: str, warns: str) -> Program:
    return Program(
        _SCATTER.format(name=name, kinds=kinds),
        lambda d: (p := _edges_inputs(d)) | {"y": d.output(p["n"], p["feat"])},
        _scatter,
        dtypes=NUMBERS,
        idtypes=("int32",),
        warns=warns,
    )


SCATTER = _scatter_program("scatter_add", "RS", "")
SCATTER_CLAIMED = _scatter_program("scatter_claimed", "SS", "E")

RELATIONAL = (
    *(RGCN_HOMO, RGCN_HETERO, SOFTMAX, SOFTMAX_PUBLISHED, ATTENTION),
    *(GATHER, SCATTER, SCATTER_CLAIMED),
)
