"""Breadth-first search, shortest paths and conjugate gradients on a matrix in blocks, on Dask."""

import dask.array as da
import numpy as np
import scipy.sparse as sps
from scipy.sparse.csgraph import dijkstra

import spcomp
import spcomp.dask

ROWS, SIZE = 100, 400


def levels(graph: spcomp.dask.DistributedTensor, source: int) -> np.ndarray:
    """Return how many edges lead from *source* to each node, -1 if none do."""
    step = spcomp.compile("y[j] = A[i, j] * x[i]", semiring="or_and").bind(A=graph)
    reached = np.arange(graph.shape[0]) == source
    front, level, depth = reached, np.where(reached, 0, -1), 0
    while front.any():
        front = step(x=da.from_array(front, chunks=ROWS)).compute() & (level < 0)
        depth += 1
        level[front] = depth
    return level


def distances(graph: spcomp.dask.DistributedTensor, source: int) -> np.ndarray:
    """Return the lengths of the shortest paths from *source* (Bellman and Ford)."""
    step = spcomp.compile("y[j] = A[i, j] * x[i]", semiring="min_plus").bind(A=graph)
    known = np.where(np.arange(graph.shape[0]) == source, 0.0, np.inf)
    while True:
        shorter = np.minimum(known, step(x=da.from_array(known, chunks=ROWS)).compute())
        if np.array_equal(shorter, known):
            return known
        known = shorter


def solve(matrix: spcomp.dask.DistributedTensor, b: da.Array) -> tuple[np.ndarray, int]:
    """Return x with ``matrix @ x = b``, by conjugate gradients, and the steps that it took.

    The matrix is bound: which elements of p each of its blocks needs is found once. Vectors stay
    on the workers; only numbers come here.
    """
    product = spcomp.compile("q[i] = A[i, j] * p[j]").bind(A=matrix)
    dot = spcomp.compile("s = x[i] * y[i]")
    add = spcomp.compile("z[i] = x[i] + alpha * y[i]")
    x, r, p = da.zeros_like(b), b, b
    old, steps = float(dot(x=r, y=r).compute()), 0
    while old > 1e-20:
        q = product(p=p).persist()
        alpha = old / float(dot(x=p, y=q).compute())
        x, r = add(x=x, y=p, alpha=alpha).persist(), add(x=r, y=q, alpha=-alpha).persist()
        new = float(dot(x=r, y=r).compute())
        p, old, steps = add(x=r, y=p, alpha=new / old).persist(), new, steps + 1
    return x.compute(), steps


def main() -> None:
    """Run each and compare with scipy."""
    rng = np.random.default_rng(0)
    graph = sps.random_array((SIZE, SIZE), density=0.01, format="csr", rng=rng)
    edges = spcomp.dask.from_scipy(graph, ROWS).persist()
    pattern = spcomp.dask.from_scipy(graph.astype(bool), ROWS).persist()
    found, depths = distances(edges, 0), levels(pattern, 0)
    want, hops = dijkstra(graph, indices=0), dijkstra(graph, indices=0, unweighted=True)
    error = np.abs(found[hops < np.inf] - want[hops < np.inf]).max()
    if not np.array_equal(np.isfinite(found), np.isfinite(want)):
        raise SystemExit("other nodes are reached than by scipy")
    if not np.array_equal(depths, np.where(np.isfinite(hops), hops, -1)):
        raise SystemExit("the levels differ from scipy's")
    print(
        f"{SIZE} nodes, {depths.max()} levels, the farthest is {found[depths > 0].max():.3f} away"
    )

    mesh = sps.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(SIZE, SIZE)).tocsr()
    b = rng.random(SIZE)
    x, steps = solve(spcomp.dask.from_scipy(mesh, ROWS), da.from_array(b, chunks=ROWS))
    error = max(error, np.abs(mesh @ x - b).max())
    print(f"{SIZE} unknowns, {steps} steps; max error {error:.1e}")
    if not error < 1e-9:
        raise SystemExit("the results differ from scipy's")


if __name__ == "__main__":
    main()
