"""CSR + CSR to CSR: the result's pattern is the union of the operands', and is not known before."""

import networkx as nx
import numpy as np

import spcomp
from spcomp import script as T


@T.prim_func
def spadd(
    a: T.handle,
    a_indptr: T.handle,
    a_indices: T.handle,
    b: T.handle,
    b_indptr: T.handle,
    b_indices: T.handle,
    c: T.handle,
    m: T.int32,
    n: T.int32,
    a_nnz: T.int32,
    b_nnz: T.int32,
) -> None:
    """C = A + B. An axis without arrays is assembled: counted, then filled."""
    I = T.dense_fixed(m)
    JA = T.sparse_variable(I, (n, a_nnz), (a_indptr, a_indices), "int32")
    JB = T.sparse_variable(I, (n, b_nnz), (b_indptr, b_indices), "int32")
    JC = T.sparse_variable(I, (n, None), (None, None), "int32")
    A = T.match_sparse_buffer(a, (I, JA), "float32")
    B = T.match_sparse_buffer(b, (I, JB), "float32")
    C = T.match_sparse_buffer(c, (I, JC), "float32")
    with T.sp_iter([I, T.union(JA, JB)], "SS", "spadd") as [i, j]:
        C[i, j] = A[i, j] + B[i, j]


def main() -> None:
    """Add a graph and its two-hop neighbourhood and compare with scipy."""
    graph = nx.to_scipy_sparse_array(nx.karate_club_graph(), dtype=np.float32, format="csr")
    hops = graph @ graph
    hops.sort_indices()
    total = spcomp.compile(spadd)(A=graph, B=hops)
    expected = graph + hops
    error = np.abs((total - expected).toarray()).max()
    print(f"{graph.nnz} + {hops.nnz} elements give {total.nnz}: max error {error:.1e}")
    if total.nnz != expected.nnz or not error < 1e-4:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
