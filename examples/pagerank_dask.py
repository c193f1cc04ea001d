"""PageRank of a graph in a file that is read in parts; give the file, or none for a small graph."""

import sys
import tempfile
from pathlib import Path

import dask.array as da
import networkx as nx
import numpy as np

import spcomp
import spcomp.dask

DAMPING = 0.85


def pagerank(path: str | Path, rows: int) -> tuple[np.ndarray, int]:
    """Return the ranks of the nodes of the graph in *path*, and the steps that it took.

    Blocks have so many *rows*. With a ``dask.distributed.Client`` they are on its workers.
    """
    links = spcomp.dask.from_mtx(path, chunks=rows).persist()
    count, chunks = links.shape[0], links.chunks[0]
    degree = spcomp.compile("d[i] = sum(j, A[i, j])")(A=links).persist()
    share = spcomp.compile("s[i] = x[i] / d[i] if d[i] > 0")
    step = spcomp.compile("y[j] = damping * A[i, j] * s[i] + rest")
    lost = spcomp.compile("l = sum(i, x[i] if d[i] == 0)")
    change = spcomp.compile("c = sum(i, abs(x[i] - y[i]))")
    rank, moved, steps = da.full(count, 1 / count, chunks=chunks), 1.0, 0
    while moved > 1e-12:
        ends = float(lost(x=rank, d=degree).compute())  # of nodes without links
        rest = (1 - DAMPING + DAMPING * ends) / count
        after = step(A=links, s=share(x=rank, d=degree), damping=DAMPING, rest=rest)
        after = after.rechunk(chunks).persist()
        moved, rank, steps = float(change(x=rank, y=after).compute()), after, steps + 1
    return rank.compute(), steps


def main() -> None:
    """Rank the nodes, and compare with networkx."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder, "graph.mtx")
        if len(sys.argv) < 2:
            graph = nx.gnp_random_graph(300, 0.02, seed=1, directed=True)
            spcomp.write(path, nx.to_scipy_sparse_array(graph, dtype=np.float64))
        ranks, steps = pagerank(path, rows=64 if len(sys.argv) < 2 else 1 << 20)
        print(f"{len(ranks)} nodes, {steps} steps, the first is node {int(ranks.argmax())}")
        if len(sys.argv) < 2:
            expected = nx.pagerank(graph, alpha=DAMPING, tol=1e-13, max_iter=1000)
            error = np.abs(ranks - np.array(list(expected.values()))).max()
            print(f"max error {error:.1e}")
            if not error < 1e-9:
                raise SystemExit("the ranks differ from networkx's")


if __name__ == "__main__":
    main()
