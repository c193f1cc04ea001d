"""Programs of the corpus over sorted coordinates: an axis whose coordinates may repeat."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from tests.corpus_base import ALL, NUMBERS, Arrays, Draw, Inputs, Program


def _coo(d: Draw, rows: int = 6, columns: int = 7) -> Inputs:
    """Draw sorted coordinates: indptr, rows, cols, m, n, nnz; row 2 may hold most of them."""
    m, n = d.size(rows), d.size(columns)
    fibers = [d.fiber(n, row, m) for row in range(m)]
    junk = d.offset() if m else 0  # positions that no fiber uses
    keys = [m - 1] * junk + [row for row, fiber in enumerate(fibers) for _ in fiber]
    cols = [0] * junk + [column for fiber in fibers for column in fiber]
    arrays = {"indptr": d.ids([junk, len(keys)]), "rows": d.ids(keys), "cols": d.ids(cols)}
    return {**arrays, "m": m, "n": n, "nnz": len(keys)}


def _used(x: SimpleNamespace) -> range:
    return range(int(x.indptr[0]), int(x.indptr[1]))


def _segment_inputs(d: Draw) -> Inputs:
    p, feat = _coo(d), d.size(3)
    p.pop("n"), p.pop("cols")
    return {**p, "feat": feat, "x": d.values(p["nnz"], feat), "y": d.output(p["m"], feat)}


def _segment_sums(x: SimpleNamespace) -> Arrays:
    sums, values = np.zeros((x.m, x.feat), x.x.dtype), x.x.reshape(x.nnz, x.feat)
    for e in _used(x):
        sums[x.rows[e]] += values[e]
    return {"y": sums}


_SEGMENT = """
@T.prim_func
def {name}(x: T.handle, y: T.handle, {arrays},
           m: T.int32, feat: T.int32, nnz: T.int32) -> None:
    O = T.dense_fixed(1)
    E = {axis}
    I = T.dense_fixed(m)
    K = T.dense_fixed(feat)
    X = T.match_sparse_buffer(x, (O, E, K), "float32")
    Y = T.match_sparse_buffer(y, (I, K), "float32")
    with T.sp_iter([O, E, K], "SSS", "{name}") as [o, e, k]:
        with T.init():
            Y[e, k] = T.float32(0)
        Y[e, k] = Y[e, k] + X[o, e, k]
"""

COO_SEGMENT = Program(
    _SEGMENT.format(
        name="coo_segment",
        arrays="indptr: T.handle, rows: T.handle",
        axis='T.sparse_variable(O, (m, nnz), (indptr, rows), idtype="int32", unique=False)',
    ),
    _segment_inputs,
    _segment_sums,
    dtypes=ALL,
)


def _keyed_inputs(d: Draw) -> Inputs:
    d.offset = lambda: 0  # type: ignore[method-assign]
    inputs = _segment_inputs(d)
    inputs.pop("indptr")
    return inputs


COO_KEYS = Program(
    _SEGMENT.format(
        name="coo_keys",
        arrays="rows: T.handle",
        axis='T.sparse_fixed(O, (m, nnz), rows, idtype="int32", unique=False)',
    ),
    _keyed_inputs,
    lambda x: _segment_sums(SimpleNamespace(**vars(x), indptr=(0, x.nnz))),
)


def _extreme_inputs(d: Draw) -> Inputs:
    p = _coo(d)
    p.pop("n"), p.pop("cols")
    return {**p, "x": d.values(p["nnz"]), "y": d.values(p["m"])}


def _extremes(x: SimpleNamespace) -> Arrays:
    result = x.y.copy()
    for e in _used(x):
        result[x.rows[e]] = max(result[x.rows[e]], x.x[e])
    return {"y": result}


COO_MAX = Program(
    """
@T.prim_func
def coo_max(x: T.handle, y: T.handle, indptr: T.handle, rows: T.handle,
            m: T.int32, nnz: T.int32) -> None:
    O = T.dense_fixed(1)
    E = T.sparse_variable(O, (m, nnz), (indptr, rows), idtype="int32", unique=False)
    I = T.dense_fixed(m)
    X = T.match_sparse_buffer(x, (O, E), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([O, E], "SR", "coo_max") as [o, e]:
        Y[e] = T.max(Y[e], X[o, e])
""",
    _extreme_inputs,
    _extremes,
    dtypes=NUMBERS,
)


def _product_inputs(d: Draw) -> Inputs:
    p, feat = _coo(d), d.size(3)
    arrays = {"a": d.values(p["nnz"]), "b": d.values(p["n"], feat), "c": d.output(p["m"], feat)}
    return {**p, "feat": feat, **arrays}


def _product(x: SimpleNamespace) -> Arrays:
    result, b = np.zeros((x.m, x.feat), x.b.dtype), x.b.reshape(x.n, x.feat)
    for e in _used(x):
        result[x.rows[e]] += x.a[e] * b[x.cols[e]]
    return {"c": result}


COO_SPMM = Program(
    """
@T.prim_func
def coo_spmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, rows: T.handle,
             cols: T.handle, m: T.int32, n: T.int32, feat: T.int32, nnz: T.int32) -> None:
    O = T.dense_fixed(1)
    E = T.sparse_variable(O, (m, nnz), (indptr, rows), idtype="int32", unique=False)
    J = T.sparse_fixed(E, (n, 1), cols, idtype="int32")
    I = T.dense_fixed(m)
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (O, E, J), "float32")
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, K], "SS", "clear") as [i, k]:
        C[i, k] = T.float32(0)
    with T.sp_iter([O, E, J, K], "SRRS", "coo_spmm") as [o, e, j, k]:
        C[e, k] = C[e, k] + A[o, e, j] * B[j, k]
""",
    _product_inputs,
    _product,
    dtypes=NUMBERS,
)

_STARTED = """
@T.prim_func
def {name}(x: T.handle, y: T.handle, {arrays}, m: T.int32, nnz: T.int32) -> None:
    O = T.dense_fixed(1)
    E = {axis}
    I = T.dense_fixed(m)
    X = T.match_sparse_buffer(x, (O, E), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I], "S", "clear") as [i]:
        Y[i] = {start}
    with T.sp_iter([O, E], "SR", "{name}") as [o, e]:
        Y[e] = {update}
"""

COO_LARGEST = Program(
    _STARTED.format(
        name="coo_largest",
        arrays="indptr: T.handle, rows: T.handle",
        axis='T.sparse_variable(O, (m, nnz), (indptr, rows), idtype="int32", unique=False)',
        start="T.float32(1)",
        update="T.max(Y[e], X[o, e])",
    ),
    _extreme_inputs,
    lambda x: _extremes(SimpleNamespace(**{**vars(x), "y": np.ones_like(x.y)})),
    dtypes=NUMBERS,
)


def _keyed_extreme_inputs(d: Draw) -> Inputs:
    d.offset = lambda: 0  # type: ignore[method-assign]
    inputs = _extreme_inputs(d)
    inputs.pop("indptr")
    return inputs


def _sums(x: SimpleNamespace) -> Arrays:
    sums = np.zeros(x.m, x.x.dtype)
    np.add.at(sums, x.rows, x.x)
    return {"y": sums}


COO_SUMS = Program(
    _STARTED.format(
        name="coo_sums",
        arrays="rows: T.handle",
        axis='T.sparse_fixed(O, (m, nnz), rows, idtype="int32", unique=False)',
        start="T.float32(0)",
        update="Y[e] + X[o, e]",
    ),
    _keyed_extreme_inputs,
    _sums,
    dtypes=NUMBERS,
)

COO = (COO_SEGMENT, COO_KEYS, COO_MAX, COO_SPMM, COO_LARGEST, COO_SUMS)
