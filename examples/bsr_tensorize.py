"""Block-sparse times dense on a micro-kernel of one's own: an intrinsic, and tensorize."""

import statistics
import time

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import script as T

BLOCK, FEAT = 8, 64


@T.prim_func
def bsrmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    rows: T.int32,
    cols: T.int32,
    nnz: T.int32,
) -> None:
    """C = A @ B, with rows and columns cut into blocks."""
    I = T.dense_fixed(rows)
    J = T.sparse_variable(I, (cols, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(cols)
    II = T.dense_fixed(BLOCK)
    JJ = T.dense_fixed(BLOCK)
    F = T.dense_fixed(FEAT)
    A = T.match_sparse_buffer(a, (I, J, II, JJ), "float32")
    B = T.match_sparse_buffer(b, (J_detach, JJ, F), "float32")
    C = T.match_sparse_buffer(c, (I, II, F), "float32")
    with T.sp_iter([I, J, II, JJ, F], "SRSRS", "bsrmm") as [i, j, ii, jj, f]:
        with T.init():
            C[i, ii, f] = 0.0
        C[i, ii, f] = C[i, ii, f] + A[i, j, ii, jj] * B[j, jj, f]


@T.prim_func
def update(a: T.handle, b: T.handle, c: T.handle) -> None:
    """What the micro-kernel computes: half a block times a slice of B."""
    A = T.match_buffer(a, (4, BLOCK), "float32")
    B = T.match_buffer(b, (BLOCK, 16), "float32")
    C = T.match_buffer(c, (4, 16), "float32")
    for i, k, j in T.grid(4, BLOCK, 16):
        C[i, j] = C[i, j] + A[i, k] * B[k, j]


@T.prim_func
def update_in_registers(a: T.handle, b: T.handle, c: T.handle) -> None:
    """How it does that: outer products of a column and a row, summed up in registers."""
    A = T.match_buffer(a, (4, BLOCK), "float32")
    B = T.match_buffer(b, (BLOCK, 16), "float32")
    C = T.match_buffer(c, (4, 16), "float32")
    t = T.alloc_buffer((4, 16), "float32", scope="local")
    for i in T.unroll(4):
        for j in T.vectorized(16):
            t[i, j] = C[i, j]
    for k in T.unroll(BLOCK):
        for i1 in T.unroll(4):
            for j1 in T.vectorized(16):
                t[i1, j1] = t[i1, j1] + A[i1, k] * B[k, j1]
    for i2 in T.unroll(4):
        for j2 in T.vectorized(16):
            C[i2, j2] = t[i2, j2]


def tensorized() -> spcomp.Schedule:
    """Return the program with the micro-kernel in the place of its inner loops."""
    spcomp.register_intrinsic("update_4x8x16", update, update_in_registers)
    sch = spcomp.Schedule(bsrmm).lower_sparse_iter()
    block = sch.get_block("bsrmm1")
    j, ii, jj, f = sch.get_loops(block)
    sch = sch.split(ii, [None, 4]).split(f, [None, 16])
    sch = sch.reorder("f_o", "ii_o", j, "ii_i", jj, "f_i").decompose_reduction(block, "f_o")
    return sch.tensorize("ii_i", "update_4x8x16").parallel("i")


def seconds(kernels, *args, repeat=11):
    """Return the median time of each kernel, run in turns."""
    times = [[] for _ in kernels]
    for _ in range(repeat):
        for kernel, taken in zip(kernels, times, strict=True):
            start = time.perf_counter()
            kernel(*args)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def main() -> None:
    """Multiply a random block-sparse matrix, compare with scipy and with the default schedule."""
    rng = np.random.default_rng(0)
    rows = cols = 512
    pattern = sps.random_array((rows, cols), density=0.05, rng=rng).tocsr()
    data = rng.standard_normal((pattern.nnz, BLOCK, BLOCK), dtype=np.float32)
    shape = (rows * BLOCK, cols * BLOCK)
    weights = sps.bsr_array((data, pattern.indices, pattern.indptr), shape=shape)
    inputs = rng.standard_normal((cols, BLOCK, FEAT), dtype=np.float32)
    kernel, default = spcomp.compile(tensorized()), spcomp.compile(bsrmm)
    result = kernel(A=weights, B=inputs).reshape(-1, FEAT)
    error = np.abs(result - weights @ inputs.reshape(-1, FEAT)).max()
    calls = [lambda run=run: run(A=weights, B=inputs) for run in (kernel, default)]
    with spcomp.num_threads(1):
        own, usual = seconds(calls)
    print(
        f"BSR SpMM over {pattern.nnz} blocks of {BLOCK} x {BLOCK}: max error {error:.1e},"
        f" {usual / own:.2f} times as fast as the default schedule, on one thread"
    )
    if not error < 1e-3:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
