"""PageRank in one line per step: the transposed product of a sparse matrix and a vector.

Each member has a link; the rank of one without any would be lost, and has to be shared out.
"""

import networkx as nx
import numpy as np

import spcomp


def main() -> None:
    """Rank the members of a karate club and compare with networkx."""
    graph = nx.karate_club_graph()
    links = nx.to_scipy_sparse_array(graph, weight=None, dtype=np.float64, format="csr")
    degree = spcomp.compile("d[i] = sum(j, A[i, j])")(A=links)
    step = spcomp.compile("y[j] = damping * A[i, j] * x[i] / d[i] + (1 - damping) * p[j]")
    change = spcomp.compile("s = sum(i, abs(x[i] - y[i]))")
    start = np.full(links.shape[0], 1 / links.shape[0])
    rank, moved, steps = start, 1.0, 0
    while moved > 1e-12:
        after = step(A=links, x=rank, d=degree, p=start, damping=0.85)
        moved, rank, steps = change(x=rank, y=after), after, steps + 1
    expected = nx.pagerank(graph, alpha=0.85, weight=None, tol=1e-13, max_iter=1000)
    error = np.abs(rank - np.array(list(expected.values()))).max()
    best = int(spcomp.compile("b = argmax(i, x[i])")(x=rank))
    print(f"{steps} steps, the first is member {best}: max error {error:.1e}")
    if not error < 1e-9:
        raise SystemExit("the ranks differ from networkx's")


if __name__ == "__main__":
    main()
