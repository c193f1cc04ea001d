"""Programs of the corpus over axes with padding: rows of one width, tables, diagonals."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from spcomp.ir.axis import home
from tests.corpus_base import ALL, NUMBERS, Arrays, Draw, Inputs, Program
from tests.oracle import dense

WIDTH = 4


def _slots(d: Draw, rows: int, columns: int, width: int) -> list[int]:
    """Draw *width* places for each row, with coordinates in some of them, in any order."""
    found = []
    for row in range(rows):
        own = d.fiber(columns, row, rows)[:width]
        found += d.rng.permutation(own + [-1] * (width - len(own))).tolist()
    return found


def _ell(d: Draw) -> Inputs:
    """Draw a matrix: a, indices, m, n, w; what stands at padding is no value."""
    m, n = d.size(5), d.size(6)
    indices = d.ids(_slots(d, m, n, WIDTH))
    return {"a": _marked(d, indices), "indices": indices, "m": m, "n": n, "w": WIDTH}


def _marked(d: Draw, indices: np.ndarray) -> np.ndarray:
    values = d.values(indices.size)
    values[indices < 0] = d.encode(np.array([np.nan]))[0] if d.dtype != "int32" else 99
    return values


def _a(x: SimpleNamespace) -> np.ndarray:
    array, kept = np.zeros((x.m, x.n)), x.indices >= 0
    rows = np.arange(x.m).repeat(x.w)
    array[rows[kept], x.indices[kept]] = x.a[kept]
    return array


_HEAD = """
@T.prim_func
def {name}(a: T.handle, b: T.handle, c: T.handle, indices: T.handle, m: T.int32, n: T.int32,
          w: T.int32, feat: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, w), indices, idtype="int32", sorted=False, padded=True)
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
"""


def _product_inputs(d: Draw) -> Inputs:
    p, feat = _ell(d), d.size(3)
    return {**p, "feat": feat, "b": d.values(p["n"], feat), "c": d.output(p["m"], feat)}


ELL_PRODUCT = Program(
    _HEAD.format(name="ell_product")
    + """    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "ell_product") as [i, j, k]:
        with T.init():
            C[i, k] = T.float32(0)
        C[i, k] = C[i, k] + A[i, j] * B[j, k]
""",
    _product_inputs,
    lambda x: {"c": _a(x) @ x.b.reshape(x.n, x.feat)},
    dtypes=ALL,
)


def _scattered_inputs(d: Draw) -> Inputs:
    p, feat = _ell(d), d.size(3)
    return {**p, "feat": feat, "b": d.values(p["m"], feat), "c": d.output(p["n"], feat)}


ELL_SCATTERED = Program(
    _HEAD.format(name="ell_scattered")
    + """    B = T.match_sparse_buffer(b, (I, K), "float32")
    C = T.match_sparse_buffer(c, (N, K), "float32")
    with T.sp_iter([I, J, K], "RSS", "ell_scattered") as [i, j, k]:
        with T.init():
            C[j, k] = T.float32(0)
        C[j, k] = C[j, k] + A[i, j] * B[i, k]
""",
    _scattered_inputs,
    lambda x: {"c": _a(x).T @ x.b.reshape(x.m, x.feat)},
    dtypes=NUMBERS,
)


def _greatest_inputs(d: Draw) -> Inputs:
    m, n = d.size(5), d.size(6)
    sizes = [2 ** int(d.rng.integers(0, 4)) for _ in range(m)]
    slots = [_slots(d, 1, n, size) for size in sizes]
    indptr, indices = d.ids(np.cumsum([0, *sizes])), d.ids([s for own in slots for s in own])
    arrays = {"a": _marked(d, indices), "indptr": indptr, "indices": indices}
    return {**arrays, "c": d.output(m), "m": m, "n": n, "nnz": int(indptr[-1])}


def _greatest(x: SimpleNamespace) -> Arrays:
    rows = np.arange(x.m).repeat(np.diff(x.indptr))
    made = np.full(x.m, -5.0)
    kept = x.indices >= 0
    np.maximum.at(made, rows[kept], (x.a * (x.indices + 1))[kept])
    return {"c": made}


TABLES_GREATEST = Program(
    """
@T.prim_func
def tables_greatest(a: T.handle, c: T.handle, indptr: T.handle, indices: T.handle, m: T.int32,
                    n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32", sorted=False, padded=True)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "tables_greatest") as [i, j]:
        with T.init():
            C[i] = -5.0
        C[i] = T.max(C[i], A[i, j] * (j + 1))
""",
    _greatest_inputs,
    _greatest,
)


def table(coordinates: list[int], size: int) -> list[int]:
    """Return the hash table of *coordinates* in *size* slots."""
    made = [-1] * size
    for coordinate in coordinates:
        slot = home(coordinate, size)
        while made[slot] >= 0:
            slot = (slot + 1) % size
        made[slot] = coordinate
    return made


def _probed_inputs(d: Draw) -> Inputs:
    m, n = d.size(5), d.size(6)
    sizes = [2 ** int(d.rng.integers(0, 4)) for _ in range(m)]
    own = [d.fiber(n, row, m) for row in range(m)]
    slots = [table(d.rng.permutation(o).tolist()[:s], s) for o, s in zip(own, sizes, strict=True)]
    hp, hi = d.ids(np.cumsum([0, *sizes])), d.ids([slot for filled in slots for slot in filled])
    rows = d.compressed(m, n)
    arrays = {"a": d.values(rows.nnz), "ap": rows.indptr, "ai": rows.indices}
    arrays |= {"h": _marked(d, hi), "hp": hp, "hi": hi, "c": d.output(m)}
    return {**arrays, "m": m, "n": n, "nnz": rows.nnz, "slots": int(hp[-1])}


def _probed(x: SimpleNamespace) -> Arrays:
    found, kept = np.zeros((x.m, x.n)), x.hi >= 0
    found[np.arange(x.m).repeat(np.diff(x.hp))[kept], x.hi[kept]] = x.h[kept]
    return {"c": (dense(x.ap, x.ai, x.a, (x.m, x.n)) * found).sum(axis=1)}


TABLES_PROBED = Program(
    """
@T.prim_func
def tables_probed(a: T.handle, h: T.handle, c: T.handle, ap: T.handle, ai: T.handle, hp: T.handle,
                  hi: T.handle, m: T.int32, n: T.int32, nnz: T.int32, slots: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (ap, ai), idtype="int32")
    L = T.sparse_variable(I, (n, slots), (hp, hi), idtype="int32", sorted=False, padded=True,
                          hashed=True)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    H = T.match_sparse_buffer(h, (I, L), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "tables_probed") as [i, j]:
        with T.init():
            C[i] = T.float32(0)
        C[i] = C[i] + A[i, j] * H[i, j]
""",
    _probed_inputs,
    _probed,
    dtypes=ALL,
)


def _rows_inputs(d: Draw) -> Inputs:
    p, k = _ell(d), d.size(4)
    below = d.compressed(p["n"], k)
    arrays = {"b": d.values(below.nnz), "bp": below.indptr, "bi": below.indices}
    return {**p, **arrays, "k": k, "nnz": below.nnz, "c": d.output(p["m"], k)}


ELL_TIMES_CSR = Program(
    """
@T.prim_func
def ell_times_csr(a: T.handle, b: T.handle, c: T.handle, indices: T.handle, bp: T.handle,
                  bi: T.handle, m: T.int32, n: T.int32, w: T.int32, k: T.int32, nnz: T.int32
                  ) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, w), indices, idtype="int32", sorted=False, padded=True)
    N = T.dense_fixed(n)
    L = T.sparse_variable(N, (k, nnz), (bp, bi), idtype="int32")
    K = T.dense_fixed(k)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (N, L), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, T.attach(L, J)], "SRS", "ell_times_csr") as [i, j, l]:
        with T.init():
            C[i, l] = 0.0
        C[i, l] = C[i, l] + A[i, j] * B[j, l]
""",
    _rows_inputs,
    lambda x: {"c": _a(x) @ dense(x.bp, x.bi, x.b, (x.n, x.k))},
)


def _diagonals_inputs(d: Draw) -> Inputs:
    m, n = d.size(5), d.size(6)
    count = max(m + n - 1, 0)
    shifts = [] if d.case == "nnz0" or not m else d.sample(count, 4)
    offsets = d.ids([shift - m + 1 for shift in shifts])
    own = {"a": d.values(m, len(offsets)), "offsets": offsets, "b": d.values(n), "c": d.output(m)}
    return {**own, "m": m, "n": n, "w": len(offsets)}


def _diagonals(x: SimpleNamespace) -> Arrays:
    made, a = np.zeros(x.m), x.a.reshape(x.m, x.w)
    for row in range(x.m):
        for at, offset in enumerate(x.offsets):
            if 0 <= row + offset < x.n:
                made[row] += a[row, at] * x.b[row + offset]
    return {"c": made}


DIAGONALS = Program(
    """
@T.prim_func
def diagonals(a: T.handle, b: T.handle, c: T.handle, offsets: T.handle, m: T.int32, n: T.int32,
              w: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, w), offsets, idtype="int32", sorted=False, padded=True, shifted=True)
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (N,), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "diagonals") as [i, j]:
        with T.init():
            C[i] = 0.0
        C[i] = C[i] + A[i, j] * B[j]
""",
    _diagonals_inputs,
    _diagonals,
)

PADDED = (
    *(ELL_PRODUCT, ELL_SCATTERED, ELL_TIMES_CSR),
    *(TABLES_GREATEST, TABLES_PROBED, DIAGONALS),
)
