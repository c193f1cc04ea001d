"""Sparse times dense: every node of a graph sums the features of its neighbours."""

import networkx as nx
import numpy as np

import spcomp
from spcomp import script as T


@T.prim_func
def csrmm(
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
    """C = A @ B for a CSR matrix A."""
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "csrmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]


def main() -> None:
    """Multiply on Zachary's karate club and compare with scipy."""
    graph = nx.to_scipy_sparse_array(nx.karate_club_graph(), dtype=np.float32, format="csr")
    features = np.random.default_rng(0).standard_normal((graph.shape[1], 32), dtype=np.float32)
    spmm = spcomp.compile(csrmm)
    error = np.abs(spmm(A=graph, B=features) - graph @ features).max()
    print(f"SpMM over {graph.shape[0]} nodes, {graph.nnz} edges: max error {error:.1e}")
    if not error < 1e-4:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
