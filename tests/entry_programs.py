"""Programs, and arguments for them, whose calls are learned."""

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.script.parse import parse
from tests.programs import BY_NAME
from tests.test_api import row_stats, scale, scale_blocks, spmm


def csr(rng, shape=(30, 20), density=0.2, dtype="float32"):
    return sps.random_array(shape, density=density, format="csr", dtype=dtype, rng=rng)


def spmm_args(rng):
    args = {"A": csr(rng), "B": rng.random((20, 8)).astype("float32")}
    return args | {"C": np.full((30, 8), 7, "float32")}


def scale_args(rng):
    a = csr(rng)
    return {"A": a, "alpha": 2.5, "B": a.copy()}


def block_args(rng):
    return {"A": sps.bsr_array(rng.random((12, 12)), blocksize=(3, 4))}


def tensor_args(rng):
    return {"A": spcomp.Tensor.from_scipy(csr(rng)), "alpha": 0.5}


def ragged_args(rng):
    values = rng.random(3).astype("float32")
    return {"A": spcomp.Tensor((3, 2), [None, ("ragged", [0, 2, 2, 3])], values)}


def raw_args(rng):
    a = csr(rng)
    args = {"A": a.data, "indptr": a.indptr, "indices": a.indices, "n": 20}
    return args | {"B": rng.random((20, 8)).astype("float32")}


@T.prim_func
def copy_pattern(
    a: T.handle,
    b: T.handle,
    p: T.handle,
    q: T.handle,
    r: T.handle,
    s: T.handle,
    m: T.int32,
    n: T.int32,
    k: T.int32,
    l: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, k), (p, q), "int32")
    L = T.sparse_variable(I, (n, l), (r, s), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I, L), "float32")
    with T.sp_iter([I, J], "SS", "copy_pattern") as [i, j]:
        B[i, j] = A[i, j]


def powers_args(rng):
    return {"A": csr(rng), "Y1": np.full(30, 7, "float32")}


def powers(count):
    """A program whose results are *count* sums of powers of each row."""
    letters = ", ".join(f"y{k}: T.handle" for k in range(count))
    text = f"""
from spcomp import script as T

@T.prim_func
def powers(a: T.handle, p: T.handle, q: T.handle, {letters}, m: T.int32, n: T.int32,
           nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (p, q), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
"""
    for k in range(count):
        text += f"""
    Y{k} = T.match_sparse_buffer(y{k}, (I,), "float32")
    with T.sp_iter([I, J], "SR", "step{k}") as [i, j]:
        with T.init():
            Y{k}[i] = 0.0
        Y{k}[i] = Y{k}[i] + {" * ".join(["A[i, j]"] * (k + 1))}
"""
    return parse(text)


@T.prim_func
def heads(
    a: T.handle,
    x: T.handle,
    y: T.handle,
    p: T.handle,
    q: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
    h: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (p, q), "int32")
    N = T.dense_fixed(n)
    H = T.dense_fixed(h)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (N, H), "float32")
    Y = T.match_sparse_buffer(y, (I, J, H), "float32")
    with T.sp_iter([I, J, H], "SSS", "heads") as [i, j, k]:
        Y[i, j, k] = A[i, j] * X[j, k]


def heads_args(rng):
    a = spcomp.Tensor.from_scipy(csr(rng))
    return {"A": a, "X": rng.random((20, 3)).astype("float32")}


def pair_args(rng):
    return {"A": csr(rng), "B": csr(rng)}


def product_args(rng):
    return {"A": csr(rng), "B": csr(rng, (20, 20))}


CASES = {
    "spmm": (spmm, spmm_args),
    "scale": (scale, scale_args),
    "scale_blocks": (scale_blocks, block_args),
    "tensor": (scale, tensor_args),
    "heads": (heads, heads_args),
    "several": (row_stats, ragged_args),
    "nine": (powers(9), powers_args),
    "raw": (spmm, raw_args),
    "sum": (parse(BY_NAME["csr_add"].source), pair_args),
    "product": (parse(BY_NAME["spgemm"].source), product_args),
}
