"""Block-sparse times dense: a scipy BSR matrix is an array of small dense blocks."""

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import script as T


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
    block: T.int32,
    feat: T.int32,
) -> None:
    """C = A @ B, with rows and columns cut into blocks."""
    I = T.dense_fixed(rows)
    J = T.sparse_variable(I, (cols, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(cols)
    II = T.dense_fixed(block)
    JJ = T.dense_fixed(block)
    F = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J, II, JJ), "float32")
    B = T.match_sparse_buffer(b, (J_detach, JJ, F), "float32")
    C = T.match_sparse_buffer(c, (I, II, F), "float32")
    with T.sp_iter([I, J, II, JJ, F], "SRSRS", "bsrmm") as [i, j, ii, jj, f]:
        with T.init():
            C[i, ii, f] = 0.0
        C[i, ii, f] = C[i, ii, f] + A[i, j, ii, jj] * B[j, jj, f]


def main() -> None:
    """Multiply a random block-sparse matrix, as a pruned layer has, and compare with scipy."""
    rng = np.random.default_rng(0)
    rows, cols, block, feat = 24, 16, 8, 32
    pattern = sps.random_array((rows, cols), density=0.2, rng=rng).toarray() != 0
    dense = np.kron(pattern, np.ones((block, block))) * rng.standard_normal(
        (rows * block, cols * block)
    )
    weights = sps.bsr_array(dense.astype(np.float32), blocksize=(block, block))
    inputs = rng.standard_normal((cols * block, feat), dtype=np.float32)
    kernel = spcomp.compile(bsrmm)
    result = kernel(A=weights, B=inputs.reshape(cols, block, feat)).reshape(rows * block, feat)
    error = np.abs(result - weights @ inputs).max()
    print(f"BSR SpMM over {pattern.sum()} blocks of {block} x {block}: max error {error:.1e}")
    if not error < 1e-3:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
