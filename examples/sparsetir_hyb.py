"""SpMM over hyb, SparseTIR's published schedule: rows in buckets by length, each kernel a grid.

The matrix is cut into column parts, the rows of a part into buckets of one width (ELL). Each
bucket gets an iteration of its own and a schedule for a grid of blocks and threads, which a CPU
runs by loops. ``spcomp.sparsetir`` has the names of TVM, to run the original program as it is.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.sparsetir.sparse import column_part_hyb

FEATURES, COARSENING = 64, 2


@T.prim_func
def csrmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    num_tiles: T.int32,
    nnz: T.int32,
    cwm: T.int32,
) -> None:
    """C = A @ B, the columns of B in tiles of cwm times 32."""
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K1 = T.dense_fixed(num_tiles)
    K2 = T.dense_fixed(cwm)
    K3 = T.dense_fixed(32)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K1, K2, K3), "float32")
    C = T.match_sparse_buffer(c, (I, K1, K2, K3), "float32")
    with T.sp_iter([I, J, K1, K2, K3], "SRSSS", "csrmm") as [i, j, k1, k2, k3]:
        with T.init():
            C[i, k1, k2, k3] = 0.0
        C[i, k1, k2, k3] = C[i, k1, k2, k3] + A[i, j] * B[j, k1, k2, k3]


@T.prim_func
def ell(
    a: T.handle,
    indptr_i: T.handle,
    indices_i: T.handle,
    indices_j: T.handle,
    m: T.int32,
    n: T.int32,
    num_rows: T.int32,
    nnz_cols: T.int32,
) -> None:
    """Some rows of a matrix, nnz_cols elements in each."""
    O = T.dense_fixed(1)
    I = T.sparse_variable(O, (m, num_rows), (indptr_i, indices_i))
    J = T.sparse_fixed(I, (n, nnz_cols), indices_j)
    A = T.match_sparse_buffer(a, (O, I, J), "float32")  # noqa: F841
    T.evaluate(0)


def decomposed(size: int, parts: int, buckets: list[int]) -> spcomp.Schedule:
    """The program with one iteration per part and bucket, called csrmm_PART_BUCKET."""
    rules = [
        spcomp.FormatRewriteRule(
            f"{part}_{bucket}",
            ell.specialize({"nnz_cols": width}),
            ["A"],
            ["I", "J"],
            ["O", "I", "J"],
            {"I": ["O", "I"], "J": ["J"]},
            lambda i, j: (0, i, j),
            lambda _, i, j: (i, j),
        )
        for part in range(parts)
        for bucket, width in enumerate(buckets)
    ]
    func = spcomp.format_decompose(csrmm, rules, include_format_rewrite_blks=False)
    func = spcomp.remove_unused_args(func)
    sizes = {p.name: size for p in func.params if p.name[:2] in ("m", "m_", "n", "n_")}
    tiles = {"num_tiles": FEATURES // COARSENING // 32, "cwm": COARSENING}
    return spcomp.Schedule(func.specialize(sizes | tiles))


def scheduled(sch: spcomp.Schedule, parts: int, buckets: list[int]) -> spcomp.Schedule:
    """The schedule of the paper: rows and features on a grid, what rows share is atomic."""
    kernels = [(p, b) for p in range(parts) for b in range(len(buckets))]
    for p, b in kernels:
        o, i, *_ = sch.get_sp_iters(f"csrmm_{p}_{b}")
        sch = sch.sparse_fuse(f"csrmm_{p}_{b}", [o, i])
    sch = sch.lower_sparse_iter()
    for p, b in kernels:
        block = f"csrmm_{p}_{b}0"
        i, j, foo, foi, fi = sch.get_loops(block)
        sch = sch.reorder(foo, fi, j, foi)
        if parts > 1 or b + 1 == len(buckets):  # rows may occur twice: in parts, or cut in pieces
            sch = sch.annotate(block, "atomic", True).reverse_cache_write(block, 0, "local")
            (write,) = sch.made
            sch = sch.reverse_compute_at(write, fi, True)
        sch = sch.bind(fi, "threadIdx.x").bind(foo, "blockIdx.y").unroll(foi).unroll(j)
        sch = sch.split(i, [None, buckets[-1] // buckets[b], 8])
        io, _, ii = sch.made
        sch = sch.bind(io, "blockIdx.x").bind(ii, "threadIdx.y")
    return sch


def main() -> None:
    """Multiply a matrix with a few long rows, and compare with scipy."""
    parts, buckets, size = 2, [1, 2, 4, 8], 600
    rng = np.random.default_rng(0)
    pattern = rng.random((size, size)) < np.where(rng.random((size, 1)) < 0.02, 0.5, 0.005)
    csr = sps.csr_array(np.where(pattern, rng.random((size, size)), 0).astype(np.float32))
    dense = rng.random((size, FEATURES), dtype=np.float32)

    kernel = spcomp.compile(scheduled(decomposed(size, parts, buckets), parts, buckets))
    rows, cols, values = column_part_hyb(
        size, size, csr.indptr, csr.indices, parts, buckets, csr.data
    )
    arguments = {"B": dense.reshape(size, -1, COARSENING, 32)}
    for p in range(parts):
        for b in range(len(buckets)):
            rule = f"{p}_{b}"
            arguments[f"a_{rule}"] = values[p][b].ravel()
            arguments[f"indptr_i_{rule}"] = np.array([0, len(rows[p][b])], np.int32)
            arguments[f"indices_i_{rule}"] = rows[p][b]
            arguments[f"indices_j_{rule}"] = cols[p][b].ravel()
    error = np.abs(kernel(**arguments).reshape(size, -1) - csr @ dense).max()
    counts = ", ".join(f"{len(rows[0][b])} of {width}" for b, width in enumerate(buckets))
    print(f"hyb SpMM, {csr.nnz} elements, rows of part 0: {counts}; max error {error:.1e}")
    if not error < 1e-3:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
