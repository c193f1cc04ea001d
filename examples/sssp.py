"""Shortest paths from one node: Bellman and Ford's steps over the semiring of min and plus."""

import networkx as nx
import numpy as np

import spcomp


def main() -> None:
    """Compare the distances in a random weighted graph with Dijkstra's."""
    rng = np.random.default_rng(0)
    graph = nx.gnp_random_graph(300, 0.02, seed=3, directed=True)
    for _, _, link in graph.edges(data=True):
        link["weight"] = float(rng.uniform(1, 10))
    lengths = nx.to_scipy_sparse_array(graph, dtype=np.float64, format="csr")
    relax = spcomp.compile("y[j] = A[i, j] * x[i] + x[j]", semiring="min_plus")
    distance = np.full(lengths.shape[0], np.inf)
    distance[0] = 0.0
    for _ in range(lengths.shape[0]):
        after = relax(A=lengths, x=distance)
        if np.array_equal(after, distance):
            break
        distance = after
    expected = nx.single_source_dijkstra_path_length(graph, 0)
    known = np.array([expected.get(node, np.inf) for node in range(len(distance))])
    reached = np.isfinite(known)
    error = np.abs(distance[reached] - known[reached]).max()
    print(f"{reached.sum()} of {len(known)} nodes reached: max error {error:.1e}")
    if not error < 1e-9 or np.isfinite(distance[~reached]).any():
        raise SystemExit("the distances differ from networkx's")


if __name__ == "__main__":
    main()
