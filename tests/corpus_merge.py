"""Programs of the corpus that run over several sparse structures at once; some assemble one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from tests.corpus_base import FLOATS, NUMBERS, Arrays, Draw, Inputs, Program
from tests.oracle import assembled, dense, gathered, mask


def _two_csr(d: Draw) -> Inputs:
    m, n = d.size(6), d.size(7)
    p: Inputs = {"m": m, "n": n}
    for name in "ab":
        axis = d.compressed(m, n)
        p |= {name: d.values(axis.nnz), f"nnz_{name}": axis.nnz}
        p |= {f"{name}_indptr": axis.indptr, f"{name}_indices": axis.indices}
    return p


def _operands(x: SimpleNamespace) -> tuple[np.ndarray, np.ndarray]:
    shape = (x.m, x.n)
    left = dense(x.a_indptr, x.a_indices, x.a, shape)
    return left, dense(x.b_indptr, x.b_indices, x.b, shape)


def _stored(x: SimpleNamespace) -> tuple[np.ndarray, np.ndarray]:
    shape = (x.m, x.n)
    return mask(x.a_indptr, x.a_indices, shape), mask(x.b_indptr, x.b_indices, shape)


_HEAD = """
@T.prim_func
def {name}(a: T.handle, b: T.handle, c: T.handle, a_indptr: T.handle, a_indices: T.handle,
           b_indptr: T.handle, b_indices: T.handle, m: T.int32, n: T.int32,
           nnz_a: T.int32, nnz_b: T.int32) -> None:
    I = T.dense_fixed(m)
    JA = T.sparse_variable(I, (n, nnz_a), (a_indptr, a_indices), idtype="int32")
    JB = T.sparse_variable(I, (n, nnz_b), (b_indptr, b_indices), idtype="int32")
    A = T.match_sparse_buffer(a, (I, JA), "float32")
    B = T.match_sparse_buffer(b, (I, JB), "float32")
"""

_ASSEMBLED = """
    JC = T.sparse_variable(I, (n, None), (None, None), idtype="int32")
    C = T.match_sparse_buffer(c, (I, JC), "float32")
    with T.sp_iter([I, T.{domain}(JA, JB)], "SS", "{name}") as [i, j]:
        C[i, j] = A[i, j] {op} B[i, j]
"""

_DENSE = """
    N = T.dense_fixed(n)
    C = T.match_sparse_buffer(c, (I, N), "float32")
    with T.sp_iter([I, T.union(JA, JB)], "SS", "{name}") as [i, j]:
        with T.init():
            C[i, j] = T.float32(0)
        C[i, j] = A[i, j] - B[i, j]
"""

_REDUCED = """
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, T.{domain}(JA, JB)], "SR", "{name}") as [i, j]:
        with T.init():
            C[i] = T.float32(0)
        C[i] = C[i] + {term}
"""


def _assembling(name: str, domain: str, op: str, stored: Callable[..., np.ndarray]) -> Program:
    def oracle(x: SimpleNamespace) -> Arrays:
        left, right = _operands(x)
        full = left + right if op == "+" else left * right
        return assembled(stored(*_stored(x)), full, "JC", "c")

    return Program(
        (_HEAD + _ASSEMBLED).format(name=name, domain=domain, op=op),
        _two_csr,
        oracle,
        dtypes=NUMBERS,
        assembles=True,
    )


UNION_ADD = _assembling("csr_add", "union", "+", np.logical_or)
INTERSECT_MUL = _assembling("csr_mul", "intersect", "*", np.logical_and)

UNION_DENSE = Program(
    (_HEAD + _DENSE).format(name="union_dense"),
    lambda d: (p := _two_csr(d)) | {"c": d.output(p["m"], p["n"])},
    lambda x: {"c": _operands(x)[0] - _operands(x)[1]},
    dtypes=NUMBERS,
    magnitude=lambda x: {"c": np.abs(_operands(x)[0]) + np.abs(_operands(x)[1])},
)

INTERSECT_DOT = Program(
    (_HEAD + _REDUCED).format(name="row_dot", domain="intersect", term="A[i, j] * B[i, j]"),
    lambda d: (p := _two_csr(d)) | {"c": d.output(p["m"])},
    lambda x: {"c": (_operands(x)[0] * _operands(x)[1]).sum(axis=1)},
    dtypes=NUMBERS,
)

_MASKED = """
@T.prim_func
def {name}(a: T.handle, b: T.handle, d: T.handle, c: T.handle, a_indptr: T.handle,
           a_indices: T.handle, b_indptr: T.handle, b_indices: T.handle, d_indptr: T.handle,
           d_indices: T.handle, m: T.int32, l: T.int32, n: T.int32, nnz_a: T.int32,
           nnz_b: T.int32, nnz_d: T.int32) -> None:
    I = T.dense_fixed(m)
    K = T.sparse_variable(I, (l, nnz_a), (a_indptr, a_indices), idtype="int32")
    L = T.dense_fixed({rows})
    J = T.sparse_variable(L, ({columns}, nnz_b), (b_indptr, b_indices), idtype="int32")
    JD = T.sparse_variable(I, (n, nnz_d), (d_indptr, d_indices), idtype="int32")
    One = T.dense_fixed(1)
    A = T.match_sparse_buffer(a, (I, K), "float32")
    B = T.match_sparse_buffer(b, (L, J), "float32")
    D = T.match_sparse_buffer(d, (I, JD), "float32")
    C = T.match_sparse_buffer(c, {result}, "float32")
"""
_START = """
    with T.sp_iter([One], "S", "start") as [o]:
        C[o] = T.float32(0)
"""
_BY_ROWS = """
    with T.sp_iter([I, K, T.intersect(T.attach(J, K), JD)], "{kinds}", "{name}") as [i, k, j]:
        {place} = {place} + {term}
"""
_BY_DOTS = """
    with T.sp_iter([I, JD, T.intersect(K, T.attach(J, JD))], "RRR", "{name}") as [i, j, k]:
        C[0] = C[0] + A[i, k] * B[j, k] * D[i, j]
"""


def _three_csr(d: Draw, *, transposed: bool = False) -> Inputs:
    m, n, inner = d.size(6), d.size(7), d.size(5)
    p: Inputs = {"m": m, "n": n, "l": inner}
    shapes = {"a": (m, inner), "b": (n, inner) if transposed else (inner, n), "d": (m, n)}
    for name, shape in shapes.items():
        axis = d.compressed(*shape)
        p |= {name: d.values(axis.nnz), f"nnz_{name}": axis.nnz}
        p |= {f"{name}_indptr": axis.indptr, f"{name}_indices": axis.indices}
    return p


def _masked(x: SimpleNamespace, *, transposed: bool = False) -> Arrays:
    """The product and the mask, dense."""
    left = dense(x.a_indptr, x.a_indices, x.a, (x.m, x.l))
    shape = (x.n, x.l) if transposed else (x.l, x.n)
    right = dense(x.b_indptr, x.b_indices, x.b, shape)
    product = left @ (right.T if transposed else right)
    return {"product": product, "mask": dense(x.d_indptr, x.d_indices, x.d, (x.m, x.n))}


def _kept(x: SimpleNamespace) -> np.ndarray:
    return gathered(x.d_indptr, x.d_indices, _masked(x)["product"], x.c)


def _total(x: SimpleNamespace, *, transposed: bool = False) -> np.ndarray:
    found = _masked(x, transposed=transposed)
    return (found["product"] * found["mask"]).sum().reshape(1)


MASKED_PRODUCT = Program(
    _MASKED.format(name="masked_product", rows="l", columns="n", result="(I, JD)")
    + """
    with T.sp_iter([I, JD], "SS", "start") as [i, j]:
        C[i, j] = T.float32(0)
"""
    + _BY_ROWS.format(
        name="masked_product", kinds="SRS", place="C[i, j]", term="A[i, k] * B[k, j]"
    ),
    lambda d: (p := _three_csr(d)) | {"c": d.output(p["nnz_d"])},
    lambda x: {"c": _kept(x)},
    dtypes=NUMBERS,
)
_TOTAL = {"rows": "l", "columns": "n", "result": "(One,)"}
MASKED_TOTAL = Program(
    _MASKED.format(name="masked_total", **_TOTAL)
    + _START
    + _BY_ROWS.format(
        name="masked_total", kinds="RRR", place="C[0]", term="A[i, k] * B[k, j] * D[i, j]"
    ),
    lambda d: _three_csr(d) | {"c": d.output(1)},
    lambda x: {"c": _total(x)},
    dtypes=NUMBERS,
)
MASKED_DOTS = Program(
    _MASKED.format(name="masked_dots", rows="n", columns="l", result="(One,)")
    + _START
    + _BY_DOTS.format(name="masked_dots"),
    lambda d: _three_csr(d, transposed=True) | {"c": d.output(1)},
    lambda x: {"c": _total(x, transposed=True)},
    dtypes=NUMBERS,
)

UNION_DISTANCE = Program(
    (_HEAD + _REDUCED).format(name="row_distance", domain="union", term="T.abs(A[i, j] - B[i, j])"),
    lambda d: (p := _two_csr(d)) | {"c": d.output(p["m"])},
    lambda x: {"c": np.abs(_operands(x)[0] - _operands(x)[1]).sum(axis=1)},
    dtypes=NUMBERS,
    magnitude=lambda x: {"c": (abs(_operands(x)[0]) + abs(_operands(x)[1])).sum(axis=1)},
)

UNION_WITH_DENSE = Program(
    """
@T.prim_func
def union_with_dense(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
                     m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, N), "float32")
    C = T.match_sparse_buffer(c, (I, N), "float32")
    with T.sp_iter([I, T.union(J, N)], "SS", "union_with_dense") as [i, j]:
        C[i, j] = A[i, j] + B[i, j]
""",
    lambda d: _csr_and_dense(d),
    lambda x: {"c": dense(x.indptr, x.indices, x.a, (x.m, x.n)) + x.b.reshape(x.m, x.n)},
    dtypes=NUMBERS,
)


def _csr_and_dense(d: Draw) -> Inputs:
    m, n = d.size(6), d.size(7)
    axis = d.compressed(m, n)
    arrays = {"a": d.values(axis.nnz), "b": d.values(m, n), "c": d.output(m, n)}
    arrays |= {"indptr": axis.indptr, "indices": axis.indices}
    return {**arrays, "m": m, "n": n, "nnz": axis.nnz}


def _product_inputs(d: Draw) -> Inputs:
    m, n = d.size(6), d.size(7)
    p: Inputs = {"m": m, "n": n}
    for name, rows in (("a", m), ("b", n)):
        axis = d.compressed(rows, n)
        p |= {name: d.values(axis.nnz), f"nnz_{name}": axis.nnz}
        p |= {f"{name}_indptr": axis.indptr, f"{name}_indices": axis.indices}
    return p


def _product(name: str, start: str, update: str, combine: Callable[..., Arrays]) -> Program:
    return Program(
        f"""
@T.prim_func
def {name}(a: T.handle, b: T.handle, c: T.handle, a_indptr: T.handle, a_indices: T.handle,
           b_indptr: T.handle, b_indices: T.handle, m: T.int32, n: T.int32,
           nnz_a: T.int32, nnz_b: T.int32) -> None:
    I = T.dense_fixed(m)
    K = T.sparse_variable(I, (n, nnz_a), (a_indptr, a_indices), idtype="int32")
    L = T.dense_fixed(n)
    J = T.sparse_variable(L, (n, nnz_b), (b_indptr, b_indices), idtype="int32")
    JC = T.sparse_variable(I, (n, None), (None, None), idtype="int32")
    A = T.match_sparse_buffer(a, (I, K), "float32")
    B = T.match_sparse_buffer(b, (L, J), "float32")
    C = T.match_sparse_buffer(c, (I, JC), "float32")
    with T.sp_iter([I, K, T.attach(J, K)], "SRS", "{name}") as [i, k, j]:
        with T.init():
            C[i, j] = T.float32({start})
        C[i, j] = {update}
""",
        _product_inputs,
        combine,
        dtypes=NUMBERS if start == "0" else FLOATS,
        assembles=True,
    )


def _factors(x: SimpleNamespace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The factors dense, and where their product stores something."""
    left, right = (x.m, x.n), (x.n, x.n)
    has = mask(x.a_indptr, x.a_indices, left).astype(int) @ mask(x.b_indptr, x.b_indices, right)
    a, b = dense(x.a_indptr, x.a_indices, x.a, left), dense(x.b_indptr, x.b_indices, x.b, right)
    return a, b, has > 0


def _times(x: SimpleNamespace) -> Arrays:
    a, b, stored = _factors(x)
    return assembled(stored, a @ b, "JC", "c")


def _shortest(x: SimpleNamespace) -> Arrays:
    a, b, stored = _factors(x)
    a[~mask(x.a_indptr, x.a_indices, a.shape)] = np.inf
    b[~mask(x.b_indptr, x.b_indices, b.shape)] = np.inf
    full = (a[:, :, None] + b[None]).min(axis=1, initial=np.inf)
    return assembled(stored, full, "JC", "c")


SPGEMM = _product("spgemm", "0", "C[i, j] + A[i, k] * B[k, j]", _times)
SPGEMM_MIN_PLUS = _product(
    "spgemm_min_plus", '"inf"', "T.min(C[i, j], A[i, k] + B[k, j])", _shortest
)

MERGE = (
    *(SPGEMM, SPGEMM_MIN_PLUS),
    *(UNION_ADD, INTERSECT_MUL, UNION_DENSE, INTERSECT_DOT),
    *(UNION_DISTANCE, UNION_WITH_DENSE, MASKED_PRODUCT, MASKED_TOTAL, MASKED_DOTS),
)
