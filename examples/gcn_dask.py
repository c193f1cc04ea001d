"""Inference of a graph convolutional network over a whole graph in blocks, on Dask."""

import dask.array as da
import numpy as np
import scipy.sparse as sps

import spcomp
import spcomp.dask

LAYER = "T[i, h] = X[i, f] * W[f, h]; Y[i, h] = maximum(sum(j, A[i, j] * T[j, h]) + b[h], 0)"
LAST = "T[i, h] = X[i, f] * W[f, h]; Z[i, h] = A[i, j] * T[j, h] + b[h]"


def main() -> None:
    """Classify the nodes of a random graph and compare with numpy."""
    rng = np.random.default_rng(0)
    nodes, features, hidden, classes = 500, 32, 16, 5
    graph = sps.random_array((nodes, nodes), density=0.02, format="csr", rng=rng)
    graph = sps.csr_array(graph + graph.T + sps.eye_array(nodes))
    scale = sps.diags_array(1 / np.sqrt(graph.sum(axis=1)))
    normal = sps.csr_array(scale @ graph @ scale)
    X = rng.standard_normal((nodes, features))
    W1, W2 = rng.standard_normal((features, hidden)), rng.standard_normal((hidden, classes))
    b1, b2 = rng.standard_normal(hidden), rng.standard_normal(classes)

    A = spcomp.dask.from_scipy(normal, ("nonzeros", 4))
    x = da.from_array(X, chunks=(A.chunks[0], features))
    layer, last = spcomp.compile(LAYER).bind(A=A), spcomp.compile(LAST).bind(A=A)
    scores = last(X=layer(X=x, W=W1, b=b1), W=W2, b=b2).persist()
    label = spcomp.compile("k[i] = argmax(h, Z[i, h])")(Z=scores).compute()

    expected = normal @ (np.maximum(normal @ (X @ W1) + b1, 0) @ W2) + b2
    error = np.abs(scores.compute() - expected).max()
    print(f"{nodes} nodes in {A.npartitions} blocks, max error {error:.1e}")
    if not error < 1e-9 or not np.array_equal(label, expected.argmax(axis=1)):
        raise SystemExit("the scores differ from numpy's")


if __name__ == "__main__":
    main()
