"""Multi-head attention under a sparse mask, fused in one kernel: scores, softmax and weighted sum.

The mask is stored in blocks of 16 x 16: 0 where a query may see a key, -inf where not. All that is
computed for 16 queries of a head stays in cache; the two products run in register tiles. Times
beside those of torch: ``python -m benchmarks.attention``.
"""

import numpy as np

import spcomp
from spcomp import Schedule
from spcomp import script as T

BLOCK, WIDTH = 16, 64  # as in the program
Array = np.ndarray


@T.prim_func
def attention(
    q: T.handle, k: T.handle, v: T.handle, o: T.handle, mask: T.handle,
    indptr: T.handle, indices: T.handle,
    heads: T.int32, rows: T.int32, cols: T.int32, blocks: T.int32, scale: T.float32,
) -> None:  # fmt: skip
    """O = softmax(scale * Q @ K.T + MASK) @ V, for every head."""
    H = T.dense_fixed(heads)
    I = T.dense_fixed(rows)
    J = T.sparse_variable(I, (cols, blocks), (indptr, indices), "int32")
    II = T.dense_fixed(16)
    JJ = T.dense_fixed(16)
    J_detach = T.dense_fixed(cols)
    F = T.dense_fixed(64)
    FO = T.dense_fixed(4)
    FI = T.dense_fixed(16)
    Q = T.match_sparse_buffer(q, (H, I, II, F), "float32")
    K = T.match_sparse_buffer(k, (H, J_detach, JJ, F), "float32")
    V = T.match_sparse_buffer(v, (H, J_detach, JJ, FO, FI), "float32")
    O = T.match_sparse_buffer(o, (H, I, II, FO, FI), "float32")
    MASK = T.match_sparse_buffer(mask, (I, J, II, JJ), "float32")
    KT = T.alloc_sparse_buffer((H, J_detach, F, JJ), "float32")  # K, turned in its blocks
    VP = T.alloc_sparse_buffer((H, FO, J_detach, JJ, FI), "float32")  # V, 16 columns at a time
    S = T.alloc_sparse_buffer((H, I, J, II, JJ), "float32")
    TOPS = T.alloc_sparse_buffer((H, I, II, JJ), "float32")
    TOP = T.alloc_sparse_buffer((H, I, II), "float32")
    SUMS = T.alloc_sparse_buffer((H, I, II, JJ), "float32")
    SUM = T.alloc_sparse_buffer((H, I, II), "float32")
    with T.sp_iter([H, J_detach, F, JJ], "SSSS", "turn") as [h, j, f, jj]:
        KT[h, j, f, jj] = K[h, j, jj, f]
    with T.sp_iter([H, J_detach, JJ, FO, FI], "SSSSS", "pack") as [h, j, jj, fo, fi]:
        VP[h, fo, j, jj, fi] = V[h, j, jj, fo, fi]
    with T.sp_iter([H, I], "SS", "attention") as [h, i]:
        with T.sp_iter([J, II, JJ, F], "SSSR", "score") as [j, ii, jj, f]:
            with T.init():
                S[h, i, j, ii, jj] = MASK[i, j, ii, jj]
            S[h, i, j, ii, jj] = S[h, i, j, ii, jj] + Q[h, i, ii, f] * KT[h, j, f, jj]
        with T.sp_iter([II, J, JJ], "SRS", "tops") as [ii, j, jj]:
            with T.init():
                TOPS[h, i, ii, jj] = T.float32(-1e30)
            TOPS[h, i, ii, jj] = T.max(TOPS[h, i, ii, jj], S[h, i, j, ii, jj])
        with T.sp_iter([II, JJ], "SR", "top") as [ii, jj]:
            with T.init():
                TOP[h, i, ii] = T.float32(-1e30)
            TOP[h, i, ii] = T.max(TOP[h, i, ii], TOPS[h, i, ii, jj])
        with T.sp_iter([II, J, JJ], "SRS", "weigh") as [ii, j, jj]:
            with T.init():
                SUMS[h, i, ii, jj] = T.float32(0)
            S[h, i, j, ii, jj] = T.exp(scale * (S[h, i, j, ii, jj] - TOP[h, i, ii]))
            SUMS[h, i, ii, jj] = SUMS[h, i, ii, jj] + S[h, i, j, ii, jj]
        with T.sp_iter([II, JJ], "SR", "sum") as [ii, jj]:
            with T.init():
                SUM[h, i, ii] = T.float32(0)
            SUM[h, i, ii] = SUM[h, i, ii] + SUMS[h, i, ii, jj]
        with T.sp_iter([FO, II, J, JJ, FI], "SSRRS", "mix") as [fo, ii, j, jj, fi]:
            with T.init():
                O[h, i, ii, fo, fi] = T.float32(0)
            O[h, i, ii, fo, fi] = O[h, i, ii, fo, fi] + S[h, i, j, ii, jj] * VP[h, fo, j, jj, fi]
        with T.sp_iter([II, FO, FI], "SSS", "norm") as [ii, fo, fi]:
            O[h, i, ii, fo, fi] = O[h, i, ii, fo, fi] / T.max(SUM[h, i, ii], 1e-30)


def scheduled() -> Schedule:
    """Return the program in one parallel loop, its products in tiles of 4 rows and 16 columns."""
    sch = Schedule(attention).lower_sparse_iter()
    for buffer in ("S", "TOPS", "TOP", "SUMS", "SUM"):
        sch = sch.compact(buffer, "i")
    for block in ("turn0", "pack0"):
        h, j, *_ = sch.get_loops(block)
        sch = sch.fuse(h, j).parallel(f"{h}_{j}")
    h = sch.get_loops("attention0")[0]
    sch = sch.fuse(h, "i").parallel(f"{h}_i")
    j, ii, jj, f = sch.get_loops("score0")
    sch = sch.split(ii, 4).reorder(f"{ii}_o", f, f"{ii}_i", jj)
    sch = sch.cache_write("score0", at=f"{ii}_o")
    sch = sch.cache_write("tops0", at=sch.get_loops("tops0")[0])
    fo, ii, j, jj, fi = sch.get_loops("mix0")
    sch = sch.split(ii, 4).reorder(fo, f"{ii}_o", j, jj, f"{ii}_i", fi)
    sch = sch.cache_write("mix0", at=f"{ii}_o").unroll(jj)
    for block in ("score0", "score0_store", "mix0", "mix0_store"):
        sch = sch.unroll(sch.get_loops(block)[-2])
    stores = ("score0_store", "tops0_store", "mix0_store")
    steps = ("score0", "tops0", "top0", "weigh0", "sum0", "mix0", "norm0")
    for block in ("turn0", "pack0", *steps, *stores):
        sch = sch.vectorize(sch.get_loops(block)[-1])
    return sch


def band(size: int, reach: int) -> Array:
    """Return the mask in which a query sees the keys up to *reach* before and behind it."""
    at = np.arange(size)
    return np.abs(at[:, None] - at) <= reach


def butterfly(size: int) -> Array:
    """Return the mask in which a block sees itself and those whose number differs in one bit."""
    at = np.arange(size) // BLOCK
    differ = at[:, None] ^ at
    return (differ & (differ - 1)) == 0


def in_blocks(mask: Array) -> dict[str, Array]:
    """Return *mask* as the program takes it: the blocks in which something is seen."""
    rows, cols = (size // BLOCK for size in mask.shape)
    blocks = mask.reshape(rows, BLOCK, cols, BLOCK).swapaxes(1, 2)
    kept = blocks.any(axis=(2, 3))
    values = np.where(blocks[kept], 0, -np.inf).astype(np.float32)
    indptr = np.append(0, kept.sum(axis=1).cumsum()).astype(np.int32)
    return {"MASK": values, "indptr": indptr, "indices": kept.nonzero()[1].astype(np.int32)}


def blocked(x: Array) -> Array:
    """Return *x*, one row for each query or key of a head, in blocks of rows."""
    return x.reshape(len(x), -1, BLOCK, WIDTH)


def striped(x: Array) -> Array:
    """Return *x* in blocks of rows, these in stripes of 16 columns."""
    return x.reshape(len(x), -1, BLOCK, WIDTH // 16, 16)


def dense(q: Array, k: Array, v: Array, mask: Array, scale: float) -> Array:
    """Return what numpy computes, head by head."""
    made = []
    for head in range(len(q)):
        scores = np.where(mask, scale * (q[head] @ k[head].T), -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        made.append(weights / weights.sum(axis=1, keepdims=True) @ v[head])
    return np.stack(made)


def main() -> None:
    """Compare small masks with numpy."""
    rng = np.random.default_rng(0)
    heads, size, scale = 2, 256, WIDTH**-0.5
    q, k, v = (rng.standard_normal((heads, size, WIDTH), dtype=np.float32) for _ in range(3))
    kernel = spcomp.compile(scheduled())
    for name, mask in (("band", band(size, 24)), ("butterfly", butterfly(size))):
        result = kernel(Q=blocked(q), K=blocked(k), V=striped(v), **in_blocks(mask), scale=scale)
        error = np.abs(result.reshape(q.shape) - dense(q, k, v, mask, scale)).max()
        print(f"attention under a {name} mask of {mask.sum()} pairs: max error {error:.1e}")
        if not error < 1e-5:
            raise SystemExit("the result differs from numpy's")


if __name__ == "__main__":
    main()
