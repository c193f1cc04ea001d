"""SpMM over condensed tiles (SR-BCRS), SparseTIR's TC-SpMM: a micro-kernel multiplies the tiles.

Four rows share the list of the columns that any of them has, in groups of eight. A group is a dense
tile of the matrix, and eight rows of B gathered for it are another: their product is what a tensor
core does on a GPU, and here an intrinsic that keeps a tile of C in vector registers.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.sparsetir.sparse import condense

TILE, GROUP, FEATURES = 4, 8, 64


@T.prim_func
def tcspmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    mb: T.int32,
    nb: T.int32,
    nnzb: T.int32,
) -> None:
    """C = A @ B, over groups of condensed columns."""
    IO = T.dense_fixed(mb)
    JO = T.dense_variable(IO, (nb, nnzb), indptr, "int32")
    II = T.dense_fixed(TILE)
    JI = T.sparse_fixed(JO, (nb * GROUP, GROUP), indices, "int32", sorted=False, unique=False)
    J = T.dense_fixed(nb * GROUP)
    F = T.dense_fixed(FEATURES)
    A = T.match_sparse_buffer(a, [IO, JO, II, JI], "float32")
    B = T.match_sparse_buffer(b, [J, F], "float32")
    C = T.match_sparse_buffer(c, [IO, II, F], "float32")
    with T.sp_iter([IO, JO, II, JI, F], "SRSRS", "tcspmm") as [io, jo, ii, ji, f]:
        with T.init():
            C[io, ii, f] = 0.0
        C[io, ii, f] = C[io, ii, f] + A[io, jo, ii, ji] * B[ji, f]


@T.prim_func
def multiply(a: T.handle, b: T.handle, c: T.handle) -> None:
    """What the intrinsic computes."""
    A = T.match_buffer(a, (TILE, GROUP), "float32")
    B = T.match_buffer(b, (GROUP, 16), "float32")
    C = T.match_buffer(c, (TILE, 16), "float32")
    for i, k, j in T.grid(TILE, GROUP, 16):
        C[i, j] = C[i, j] + A[i, k] * B[k, j]


@T.prim_func
def multiply_in_registers(a: T.handle, b: T.handle, c: T.handle) -> None:
    """How it does that: outer products of a column and a row, summed up in registers."""
    A = T.match_buffer(a, (TILE, GROUP), "float32")
    B = T.match_buffer(b, (GROUP, 16), "float32")
    C = T.match_buffer(c, (TILE, 16), "float32")
    t = T.alloc_buffer((TILE, 16), "float32", scope="local")
    for i in T.unroll(TILE):
        for j in T.vectorized(16):
            t[i, j] = C[i, j]
    for k in T.unroll(GROUP):
        for i1 in T.unroll(TILE):
            for j1 in T.vectorized(16):
                t[i1, j1] = t[i1, j1] + A[i1, k] * B[k, j1]
    for i2 in T.unroll(TILE):
        for j2 in T.vectorized(16):
            C[i2, j2] = t[i2, j2]


def tensorized() -> spcomp.Schedule:
    """Return the program with rows of B gathered for each group, and the tiles tensorized."""
    spcomp.register_intrinsic("multiply_4x8x16", multiply, multiply_in_registers)
    sch = spcomp.Schedule(tcspmm).lower_sparse_iter()
    outer, inner = sch.get_block("tcspmm0"), sch.get_block("tcspmm1")
    (io,) = sch.get_loops(outer)
    jo, ii, ji, f = sch.get_loops(inner)
    sch = sch.reverse_cache_read(inner, 2, "shared")
    (gather,) = sch.made
    sch = sch.compute_at(gather, jo).vectorize(sch.get_loops(gather)[-1])
    sch = sch.split(f, [None, 16]).reorder(f"{f}_o", ii, ji, f"{f}_i")
    sch = sch.decompose_reduction(inner, jo).tensorize(ii, "multiply_4x8x16")
    return sch.bind(io, "blockIdx.x")


def main() -> None:
    """Multiply a matrix whose neighbouring rows have columns in common; compare with scipy."""
    size, rng = 512, np.random.default_rng(0)
    shared = np.repeat(rng.random((size // TILE, size)) < 0.04, TILE, axis=0)
    pattern = shared & (rng.random((size, size)) < 0.7)
    csr = sps.csr_array(np.where(pattern, rng.random((size, size)), 0).astype(np.float32))
    dense = rng.random((size, FEATURES), dtype=np.float32)

    group_indptr, columns, values = condense(csr.indptr, csr.indices, TILE, GROUP, csr.data)
    kernel = spcomp.compile(tensorized())
    sizes = {"mb": size // TILE, "nb": size // GROUP, "nnzb": len(values)}
    arrays = {"a": values.ravel(), "indptr": group_indptr, "indices": columns.ravel()}
    result = kernel(B=dense, **arrays, **sizes).reshape(size, FEATURES)
    error = np.abs(result - csr @ dense).max()
    filled = csr.nnz / values.size
    print(
        f"SpMM over {len(values)} tiles of {TILE} x {GROUP}, {filled:.0%} filled:"
        f" max error {error:.1e}"
    )
    if not error < 1e-3:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
