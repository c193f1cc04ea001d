"""Programs of the corpus whose bodies do more: branches, loops, guards, several statements."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from spcomp import script as T
from tests.corpus_base import ALL, HALVES, NUMBERS, Arrays, Draw, Inputs, Program
from tests.oracle import dense, entries, gathered, mask

_VECTOR_CASES = ("random", "one", "zero")


def _vector(d: Draw) -> Inputs:
    n = d.size(9)
    return {"a": d.values(n), "b": d.output(n), "n": n}


def _csr(d: Draw) -> Inputs:
    m, n = d.size(5), d.size(6)
    axis = d.compressed(m, n)
    arrays = {"a": d.values(axis.nnz), "indptr": axis.indptr, "indices": axis.indices}
    return {**arrays, "m": m, "n": n, "nnz": axis.nnz}


def _a(x: SimpleNamespace) -> np.ndarray:
    return dense(x.indptr, x.indices, x.a, (x.m, x.n))


def _stored(x: SimpleNamespace) -> np.ndarray:
    return mask(x.indptr, x.indices, (x.m, x.n))


_MATRIX_HEAD = """
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
"""


def _vector_program(name: str, statement: str, oracle: Any, **options: Any) -> Program:
    source = f"""
@T.prim_func
def {name}(a: T.handle, b: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I,), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I], "S", "{name}") as [i]:
        {statement}
"""
    fixed = {"cases": _VECTOR_CASES, "idtypes": ("int32",)}
    return Program(source, _vector, oracle, **(fixed | options))


INDEX_ARITHMETIC = _vector_program(
    "index_arithmetic",
    'B[i] = A[i] * T.cast(i, "float32") + T.cast(n - i, "float32")',
    lambda x: {"b": x.a * np.arange(x.n) + (x.n - np.arange(x.n))},
    dtypes=ALL,
)


def _shifted(a: np.ndarray, by: int) -> np.ndarray:
    """Return ``a[i + by]``, zero outside."""
    padded = np.concatenate([np.zeros(abs(by), a.dtype), a, np.zeros(abs(by), a.dtype)])
    return padded[abs(by) + by : abs(by) + by + len(a)]


STENCIL = _vector_program(
    "stencil",
    "B[i] = A[i - 1] + T.float32(2) * A[i] - A[i + 1]",
    lambda x: {"b": _shifted(x.a, -1) + 2 * x.a - _shifted(x.a, 1)},
    magnitude=lambda x: {
        "b": np.abs(_shifted(x.a, -1)) + 2 * np.abs(x.a) + np.abs(_shifted(x.a, 1))
    },
    dtypes=ALL,
)

REVERSE = _vector_program(
    "reverse", "B[n - 1 - i] = A[i]", lambda x: {"b": x.a[::-1].copy()}, dtypes=NUMBERS
)


def _calls(a: np.ndarray) -> list[np.ndarray]:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    sigmoid = 1 / (1 + np.exp(-a))
    first = [np.exp(-np.abs(a)), np.log(a * a + 1), np.sqrt(np.abs(a)), sigmoid, np.tanh(a)]
    rounded = [np.floor(3 * a), np.ceil(2 * a)]
    return [*first, erf(a) if a.size else a, np.power(np.abs(a), 1.5), *rounded]


MATH_CALLS = _vector_program(
    "math_calls",
    """B[i] = T.exp(-T.abs(A[i])) + T.log(A[i] * A[i] + 1.0) + T.sqrt(T.abs(A[i]))
        B[i] += T.sigmoid(A[i]) + T.tanh(A[i]) + T.erf(A[i])
        B[i] += T.pow(T.abs(A[i]), 1.5) + T.floor(A[i] * 3.0) + T.ceil(A[i] * 2.0)""",
    lambda x: {"b": np.sum(_calls(x.a), axis=0)},
    magnitude=lambda x: {"b": 2 * np.sum(np.abs(_calls(x.a)), axis=0)},
)

LEAKY = _vector_program(
    "leaky",
    """v = A[i]
        if v > 0.0 and i % 2 == 0:
            B[i] = v
        else:
            B[i] = T.if_then_else(v < -0.5, T.float32(-0.5), v * T.float32(0.25))""",
    lambda x: {
        "b": np.where(
            (x.a > 0) & (np.arange(x.n) % 2 == 0), x.a, np.where(x.a < -0.5, -0.5, x.a * 0.25)
        )
    },
    magnitude=lambda x: {"b": np.abs(x.a) + 1},
    dtypes=HALVES,
)

POWER = Program(
    """
@T.prim_func
def power(a: T.handle, b: T.handle, n: T.int32, exponent: T.int32) -> None:
    I = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I,), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I], "S", "power") as [i]:
        B[i] = T.float32(1)
        for t in T.serial(exponent):
            B[i] = B[i] * A[i]
""",
    lambda d: _vector(d) | {"exponent": 3},
    lambda x: {"b": x.a**x.exponent},
    dtypes=NUMBERS,
    idtypes=("int32",),
    cases=_VECTOR_CASES,
)

FLOOR_DIVISION = Program(
    """
@T.prim_func
def floor_division(a: T.handle, q: T.handle, r: T.handle, n: T.int32, d: T.int32) -> None:
    I = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I,), "int32")
    Q = T.match_sparse_buffer(q, (I,), "int32")
    R = T.match_sparse_buffer(r, (I,), "int32")
    with T.sp_iter([I], "S", "floor_division") as [i]:
        Q[i] = A[i] // d
        R[i] = A[i] % d
""",
    lambda d: (
        {"n": (n := d.size(9)), "a": d.integers(n, -9, 10), "q": d.integers(n, 7, 8)}
        | {"r": d.integers(n, 7, 8), "d": -3}
    ),
    lambda x: {"q": x.a // x.d, "r": x.a % x.d},
    dtypes=("int32",),
    idtypes=("int32",),
    cases=_VECTOR_CASES,
)

SPARSE_STENCIL = Program(
    f"""
@T.prim_func
def sparse_stencil(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
                   m: T.int32, n: T.int32, nnz: T.int32) -> None:{_MATRIX_HEAD}
    B = T.match_sparse_buffer(b, (I, J), "float32")
    with T.sp_iter([I, J], "SS", "sparse_stencil") as [i, j]:
        B[i, j] = A[i, j] + A[i, j - 1] + A[i - 1, j]
""",
    lambda d: (p := _csr(d)) | {"b": d.output(p["nnz"])},
    lambda x: {"b": gathered(x.indptr, x.indices, _neighbours(_a(x)), x.b)},
    dtypes=NUMBERS,
)


def _neighbours(full: np.ndarray) -> np.ndarray:
    left, up = np.zeros_like(full), np.zeros_like(full)
    left[:, 1:], up[1:] = full[:, :-1], full[:-1]
    return full + left + up


TRIANGLES = Program(
    f"""
@T.prim_func
def triangles(a: T.handle, low: T.handle, high: T.handle, indptr: T.handle, indices: T.handle,
              m: T.int32, n: T.int32, nnz: T.int32) -> None:{_MATRIX_HEAD}
    LOW = T.match_sparse_buffer(low, (I,), "float32")
    HIGH = T.match_sparse_buffer(high, (I,), "float32")
    with T.sp_iter([I, J], "SR", "triangles") as [i, j]:
        with T.init():
            LOW[i] = T.float32(0)
            HIGH[i] = T.float32(0)
        if j < i:
            LOW[i] = LOW[i] + A[i, j]
        else:
            HIGH[i] = HIGH[i] + A[i, j]
""",
    lambda d: (p := _csr(d)) | {"low": d.output(p["m"]), "high": d.output(p["m"])},
    lambda x: {"low": np.tril(_a(x), -1).sum(axis=1), "high": np.triu(_a(x)).sum(axis=1)},
    dtypes=NUMBERS,
)


def _argmax(x: SimpleNamespace) -> Arrays:
    best, at = np.full(x.m, -np.inf), np.full(x.m, -1)
    for i, p, j in entries(x.indptr, x.indices):
        if x.a[p] > best[i]:
            best[i], at[i] = x.a[p], j
    return {"v": best, "p": at}


def _argmax_inputs(d: Draw) -> Inputs:
    p = _csr(d)
    p["a"] = d.encode(d.rng.integers(0, 3, p["nnz"]) / 2)  # ties
    return {**p, "v": d.output(p["m"]), "p": d.integers(p["m"], 7, 8)}


ARGMAX = Program(
    f"""
@T.prim_func
def argmax(a: T.handle, v: T.handle, p: T.handle, indptr: T.handle, indices: T.handle,
           m: T.int32, n: T.int32, nnz: T.int32) -> None:{_MATRIX_HEAD}
    V = T.match_sparse_buffer(v, (I,), "float32")
    P = T.match_sparse_buffer(p, (I,), "int32")
    with T.sp_iter([I, J], "SR", "argmax") as [i, j]:
        with T.init():
            V[i] = T.min_value("float32")
            P[i] = -1
        if A[i, j] > V[i]:
            V[i] = A[i, j]
            P[i] = T.cast(j, "int32")
""",
    _argmax_inputs,
    _argmax,
    dtypes=HALVES,
)


def _mean(x: SimpleNamespace) -> Arrays:
    count = _stored(x).sum(axis=1)
    return {"b": _a(x).sum(axis=1) / np.maximum(count, 1)}


MEAN = Program(
    f"""
@T.prim_func
def mean(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
         m: T.int32, n: T.int32, nnz: T.int32) -> None:{_MATRIX_HEAD}
    B = T.match_sparse_buffer(b, (I,), "float32")
    COUNT = T.alloc_sparse_buffer((I,), "int32")
    with T.sp_iter([I], "S", "mean") as [i]:
        with T.sp_iter([J], "R", "total") as [j]:
            with T.init():
                B[i] = T.float32(0)
                COUNT[i] = 0
            B[i] += A[i, j]
            COUNT[i] += 1
        B[i] = T.if_then_else(COUNT[i] > 0, B[i] / T.cast(COUNT[i], "float32"), T.float32(0))
""",
    lambda d: (p := _csr(d)) | {"b": d.output(p["m"])},
    _mean,
    dtypes=HALVES,
)

NORMALIZE = Program(
    f"""
@T.prim_func
def normalize(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
              m: T.int32, n: T.int32, nnz: T.int32) -> None:{_MATRIX_HEAD}
    B = T.match_sparse_buffer(b, (I, J), "float32")
    TOTAL = T.alloc_sparse_buffer((I,), "float32")
    with T.sp_iter([I, J], "SR", "total") as [i, j]:
        with T.init():
            TOTAL[i] = T.float32(0)
        TOTAL[i] = TOTAL[i] + T.abs(A[i, j])
    with T.sp_iter([I, J], "SS", "divide") as [i1, j1]:
        B[i1, j1] = A[i1, j1] / (TOTAL[i1] + T.float32(1))
""",
    lambda d: (p := _csr(d)) | {"b": d.output(p["nnz"])},
    lambda x: {
        "b": gathered(
            *(x.indptr, x.indices),
            *(_a(x) / (np.abs(_a(x)).sum(axis=1, keepdims=True) + 1), x.b),
        )
    },
)


def _closed_over(scale: float, bias: int) -> Any:
    """Return a program decorated in a function, over whose Python numbers it closes."""

    @T.prim_func
    def closure(a: T.handle, b: T.handle, n: T.int32) -> None:
        I = T.dense_fixed(n)
        K = T.dense_fixed(bias)
        A = T.match_sparse_buffer(a, (I, K), "float32")
        B = T.match_sparse_buffer(b, (I, K), "float32")
        with T.sp_iter([I, K], "SS", "closure") as [i, k]:
            B[i, k] = A[i, k] * scale + bias

    return closure


CLOSURE = Program(
    "def closure(): ...",
    lambda d: {"n": (n := d.size(4)), "a": d.values(n, 3), "b": d.output(n, 3)},
    lambda x: {"b": x.a * 0.75 + 3},
    dtypes=("float32",),
    idtypes=("int32",),
    cases=_VECTOR_CASES,
    magnitude=lambda x: {"b": np.abs(x.a) + 3},
    function=lambda: _closed_over(0.75, 3),
)

CONTROL = (
    *(INDEX_ARITHMETIC, STENCIL, REVERSE, MATH_CALLS, LEAKY, POWER, FLOOR_DIVISION),
    *(SPARSE_STENCIL, TRIANGLES, ARGMAX, MEAN, NORMALIZE, CLOSURE),
)
