"""Sampled dense-dense product: a score for every edge of a graph, from the features of its ends.

Once as it comes, and once with SparseTIR's schedule: one loop over all edges, whose rows are
searched for beforehand, and eight partial sums for each.
"""

import networkx as nx
import numpy as np

import spcomp
from spcomp import script as T


@T.prim_func
def sddmm(
    w: T.handle,
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    feat: T.int32,
    nnz: T.int32,
) -> None:
    """C = W * (A @ B.T): only the elements that W stores are computed."""
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    W = T.match_sparse_buffer(w, (I, J), "float32")
    A = T.match_sparse_buffer(a, (I, K), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, J), "float32")
    with T.sp_iter([I, J, K], "SSR", "sddmm") as [i, j, k]:
        with T.init():
            C[i, j] = 0.0
        C[i, j] = C[i, j] + W[i, j] * A[i, k] * B[j, k]


def fused() -> spcomp.Schedule:
    """Return the program with one loop over all edges, and partial sums."""
    sch = spcomp.Schedule(sddmm).sparse_fuse("sddmm", ["i", "j"])
    sch = sch.lower_sparse_iter(search_blocks=True)
    (edge,) = sch.get_loops("binary_search_block_0_0")
    sch = sch.split(edge, [None, 32]).parallel(f"{edge}_o")
    edge, k = sch.get_loops("sddmm0")
    sch = sch.split(k, [None, 8]).rfactor(f"{k}_i", scope="local").vectorize(f"{k}_i")
    return sch.split(edge, [None, 32]).parallel(f"{edge}_o")


def main() -> None:
    """Score the edges of Zachary's karate club and compare with numpy."""
    graph = nx.to_scipy_sparse_array(nx.karate_club_graph(), dtype=np.float32, format="csr")
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, graph.shape[0], 32), dtype=np.float32)
    expected = graph.toarray() * (left @ right.T)
    scores = [spcomp.compile(sch)(W=graph, A=left, B=right) for sch in (sddmm, fused())]
    error = max(np.abs(score.toarray() - expected).max() for score in scores)
    print(f"SDDMM over {graph.shape[0]} nodes, {graph.nnz} edges: max error {error:.1e}")
    if not error < 1e-3:
        raise SystemExit("the result differs from numpy's")


if __name__ == "__main__":
    main()
