"""Two-layer GCN inference: aggregation, bias and activation of a layer are one sparse program.

``python examples/gcn_layer.py`` runs on Zachary's karate club, ``python examples/gcn_layer.py
graph.mtx`` on any square Matrix Market file.
"""

import sys
import time
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import script as T

HIDDEN, CLASSES = 64, 16


@T.prim_func
def layer(
    a: T.handle,
    x: T.handle,
    bias: T.handle,
    y: T.handle,
    indptr: T.handle,
    indices: T.handle,
    n: T.int32,
    feat: T.int32,
    nnz: T.int32,
) -> None:
    """Y = relu(A @ X + bias)."""
    I = T.dense_fixed(n)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (J_detach, K), "float32")
    Bias = T.match_sparse_buffer(bias, (K,), "float32")
    Y = T.match_sparse_buffer(y, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "aggregate") as [i, j, k]:
        with T.init():
            Y[i, k] = Bias[k]
        Y[i, k] = Y[i, k] + A[i, j] * X[j, k]
    with T.sp_iter([I, K], "SS", "relu") as [i, k]:
        Y[i, k] = T.max(Y[i, k], T.float32(0))


def normalized(graph: sps.sparray) -> sps.csr_array:
    """Return D^-1/2 (A + I) D^-1/2 of Kipf and Welling, for the undirected pattern of *graph*."""
    pattern = sps.csr_array(graph + graph.T + sps.eye_array(graph.shape[0])).astype(bool)
    scale = 1 / np.sqrt(pattern.sum(axis=1).astype(np.float32))
    scaled = sps.csr_array(
        sps.diags_array(scale) @ pattern.astype(np.float32) @ sps.diags_array(scale)
    )
    scaled.sort_indices()
    return scaled.astype(np.float32)


def main() -> None:
    """Run both layers, compare with scipy, and say how long each takes."""
    if len(sys.argv) > 1:
        graph: Any = abs(sps.csr_array(spcomp.read(sys.argv[1])))
    else:
        graph = nx.to_scipy_sparse_array(nx.karate_club_graph(), format="csr")
    adjacency = normalized(graph)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((adjacency.shape[0], HIDDEN), dtype=np.float32)
    w1, w2 = (rng.standard_normal((HIDDEN, d), dtype=np.float32) / 8 for d in (HIDDEN, CLASSES))
    b1, b2 = (rng.standard_normal(d, dtype=np.float32) for d in (HIDDEN, CLASSES))

    gcn = spcomp.compile(layer).bind(A=adjacency)
    start = time.perf_counter()
    hidden = gcn(X=x @ w1, Bias=b1)
    result = gcn(X=hidden @ w2, Bias=b2)
    elapsed = time.perf_counter() - start

    expected = np.maximum(adjacency @ (x @ w1) + b1, 0)
    expected = np.maximum(adjacency @ (expected @ w2) + b2, 0)
    error = np.abs(result - expected).max()
    print(
        f"GCN over {adjacency.shape[0]} nodes, {adjacency.nnz} edges: {result.shape[1]} classes"
        f" in {elapsed * 1e3:.2f} ms, max error {error:.1e}"
    )
    if not error < 1e-3:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
