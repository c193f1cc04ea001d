"""Weights pruned in whole rows: DBSR, doubly compressed rows of blocks, on a micro-kernel.

Where most rows of blocks are empty, BSR spends an entry of indptr and a turn of the loop on each.
DBSR lists the rows that hold something. The list is data, and rows of C are found through it:
that it ascends without repetitions, which makes its iterations independent, a call checks.
"""

import statistics
import time

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import script as T

BLOCK, FEAT = 8, 64


@T.prim_func
def dbsrmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    kept: T.handle,
    indptr: T.handle,
    indices: T.handle,
    rows: T.int32,
    cols: T.int32,
    count: T.int32,
    nnz: T.int32,
) -> None:
    """C = A @ B; rows of A that are not in the list are zero, and so are those of C."""
    O = T.dense_fixed(1)
    I = T.sparse_fixed(O, (rows, count), kept)
    J = T.sparse_variable(I, (cols, nnz), (indptr, indices), "int32")
    R = T.dense_fixed(rows)
    J_detach = T.dense_fixed(cols)
    II = T.dense_fixed(BLOCK)
    JJ = T.dense_fixed(BLOCK)
    F = T.dense_fixed(FEAT)
    A = T.match_sparse_buffer(a, (O, I, J, II, JJ), "float32")
    B = T.match_sparse_buffer(b, (J_detach, JJ, F), "float32")
    C = T.match_sparse_buffer(c, (R, II, F), "float32")
    with T.sp_iter([O, I, J, II, JJ, F], "SSRSRS", "dbsrmm") as [o, i, j, ii, jj, f]:
        with T.init():
            C[i, ii, f] = 0.0
        C[i, ii, f] = C[i, ii, f] + A[o, i, j, ii, jj] * B[j, jj, f]


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
    """Return the program on the micro-kernel, the listed rows in parallel chunks of 16."""
    spcomp.register_intrinsic("update_half_block", update, update_in_registers)
    sch = spcomp.Schedule(dbsrmm).lower_sparse_iter()
    j, ii, jj, f = sch.get_loops("dbsrmm1")
    sch = sch.split(ii, [None, 4]).split(f, [None, 16])
    sch = sch.reorder("f_o", "ii_o", j, "ii_i", jj, "f_i").tensorize("ii_i", "update_half_block")
    i, *_, lanes = sch.get_loops("dbsrmm_init0")
    return sch.parallel(i).vectorize(lanes).split_sorted("i", 16)


def pruned(rows: int, cols: int, rng: np.random.Generator) -> sps.bsr_array:
    """Return random weights in blocks: one row of blocks in eight holds any."""
    pattern = rng.random((rows, cols)) < 0.1
    pattern[rng.permutation(rows)[rows // 8 :]] = False
    indptr = np.append(0, pattern.sum(axis=1).cumsum())
    data = rng.standard_normal((indptr[-1], BLOCK, BLOCK), dtype=np.float32)
    shape = (rows * BLOCK, cols * BLOCK)
    return sps.bsr_array((data, pattern.nonzero()[1], indptr), shape=shape)


def compressed(bsr: sps.bsr_array) -> dict[str, np.ndarray]:
    """Return the blocks as the program takes them: rows without blocks are left out."""
    counts = np.diff(bsr.indptr)
    kept = counts.nonzero()[0].astype(np.int32)
    indptr = np.append(0, counts[kept].cumsum()).astype(np.int32)
    return {
        "A": bsr.data.reshape(-1),
        "kept": kept,
        "indptr": indptr,
        "indices": bsr.indices.astype(np.int32),
    }


def main() -> None:
    """Multiply, compare with scipy and with the default schedule."""
    rng, rows, cols = np.random.default_rng(0), 2048, 256
    weights = pruned(rows, cols, rng)
    inputs = rng.standard_normal((cols, BLOCK, FEAT), dtype=np.float32)
    expected = weights @ inputs.reshape(-1, FEAT)
    stored = compressed(weights)
    layers = [spcomp.compile(p).bind(**stored, rows=rows) for p in (tensorized(), dbsrmm)]
    error = max(np.abs(f(B=inputs).reshape(-1, FEAT) - expected).max() for f in layers)
    times, out = [[], []], np.empty((rows, BLOCK, FEAT), np.float32)
    with spcomp.num_threads(1):
        for turn in range(62):
            begin = time.perf_counter()
            layers[turn % 2](B=inputs, out=out)
            times[turn % 2].append(time.perf_counter() - begin)
    own, usual = map(statistics.median, times)
    print(
        f"DBSR SpMM over {len(stored['kept'])} of {rows} rows of blocks: max error {error:.1e},"
        f" {usual / own:.2f} times as fast as the default schedule, on one thread"
    )
    if not error < 1e-3:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
