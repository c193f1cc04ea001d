"""The tuner finds a format for each of three graphs, and what is compiled next uses it."""

import argparse
import os
import tempfile

import numpy as np
import scipy.sparse as sps

import spcomp

PROGRAM = "y[i] = A[i, j] * x[j]"


def ring(nodes: int, reach: int) -> sps.csr_array:
    """Return a graph whose nodes are tied to their nearest neighbours on a line."""
    offsets = [k for k in range(-reach, reach + 1) if k]
    return sps.csr_array(sps.diags_array([1.0] * len(offsets), offsets=offsets, shape=(nodes,) * 2))


def communities(nodes: int, size: int) -> sps.csr_array:
    """Return a graph of groups of *size* nodes that are all tied to each other."""
    rng = np.random.default_rng(1)
    among = sps.random_array((nodes // size,) * 2, density=4 * size / nodes, rng=rng)
    return sps.csr_array(sps.kron(among, np.ones((size, size))))


def web(nodes: int) -> sps.csr_array:
    """Return a graph with many small nodes and few large ones."""
    rng = np.random.default_rng(2)
    counts = np.minimum(rng.zipf(1.8, nodes), nodes // 10)
    columns = (nodes * rng.random(counts.sum()) ** 2).astype(int)
    rows = np.repeat(np.arange(nodes), counts)
    return sps.csr_array((np.ones(len(rows)), (rows, columns)), (nodes, nodes))


def tuned(name: str, matrix: sps.csr_array, budget: float) -> float:
    """Tune a product with *matrix*, show what later kernels do, and return the largest error."""
    x = np.random.default_rng(0).random(matrix.shape[1], dtype=np.float32)
    found = spcomp.tune(PROGRAM, A=matrix, x=x, budget=budget)
    print(f"{name}, {matrix.shape[0]} nodes, {matrix.nnz} edges: {found}")
    kernel = spcomp.compile(PROGRAM, tuned=True)
    expected = matrix @ x
    largest = max(np.abs(k(A=matrix, x=x) - expected).max() for k in (found.kernel, kernel))
    print(f"  {kernel.explain(A=matrix, x=x).splitlines()[0]}")
    return float(largest / np.abs(expected).max())


def main() -> None:
    """Tune a product with three graphs, and compare it with scipy's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each search")
    parser.add_argument("--keep", action="store_true", help="in the user's store, for later")
    asked = parser.parse_args()
    graphs = {"ring": ring(20_000, 8), "communities": communities(8_000, 8), "web": web(20_000)}
    with tempfile.TemporaryDirectory() as folder:
        if not asked.keep:
            os.environ["SPCOMP_CACHE_DIR"] = folder
        errors = []
        for name, graph in graphs.items():
            matrix = graph.astype(np.float32)
            matrix.sum_duplicates()
            steady = spcomp.tune.frozen(matrix)  # it may be stored in other formats
            errors.append(tuned(name, steady, asked.budget))
    print(f"SpMV over three graphs: max error {max(errors):.1e}")
    if not max(errors) < 1e-4:
        raise SystemExit("a result differs from scipy's")


if __name__ == "__main__":
    main()
