"""Triangles of a graph: a product of a matrix with itself, computed only where the matrix is."""

import networkx as nx
import numpy as np
import scipy.sparse as sps

import spcomp


def main() -> None:
    """Count the triangles of two graphs, and those that each edge is part of."""
    # the pair of two elements is 1: what they hold does not matter
    count = spcomp.compile("n = L[i, k] * L[j, k] * L[i, j]", semiring="plus_pair")
    support = spcomp.compile("S[i, j] = (A[i, k] * A[k, j]) if A[i, j]", semiring="plus_pair")
    for graph in (nx.karate_club_graph(), nx.powerlaw_cluster_graph(500, 8, 0.5, seed=1)):
        links = nx.to_scipy_sparse_array(graph, weight=None, dtype=np.int64, format="csr")
        lower = sps.tril(links, format="csr")
        found = int(count(L=lower))
        each = support(A=links)
        expected = sum(nx.triangles(graph).values()) // 3
        error = abs(found - expected) + abs(int(each.sum()) - 6 * expected)
        print(f"{links.shape[0]} nodes, {found} triangles: max error {error}")
        if error:
            raise SystemExit("the count differs from networkx's")


if __name__ == "__main__":
    main()
