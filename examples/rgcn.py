"""A layer of a relational graph network, gather, multiply, scatter: rows of relations in buckets.

``Y[i] += W[r] @ X[j]`` for every edge of relation r from j to i. The graph is a tensor of
relations; ``spcomp.formats.ell3d`` (SparseTIR's 3-D hyb) stores the rows of each relation in
buckets by their length, so that a group of rows shares the weights of its relation. The knowledge
graph WN18RR is read from a directory ``shared/data`` beside the repository, or one like it is made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import spcomp
from spcomp import script as T

FEATURES = 16
WN18RR = Path(__file__).parents[2] / "shared" / "data" / "wn18rr.tns"


@T.prim_func
def rgcn(
    a: T.handle,
    w: T.handle,
    x: T.handle,
    y: T.handle,
    indptr_i: T.handle,
    indices_i: T.handle,
    indptr_j: T.handle,
    indices_j: T.handle,
    m: T.int32,
    n: T.int32,
    relations: T.int32,
    nnz_i: T.int32,
    nnz_j: T.int32,
) -> None:
    """Y[i] = the sum over r and j of A[r, i, j] * W[r] @ X[j]."""
    R = T.dense_fixed(relations)
    I = T.sparse_variable(R, (m, nnz_i), (indptr_i, indices_i), "int32")
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), "int32")
    I_detach = T.dense_fixed(m)
    J_detach = T.dense_fixed(n)
    F_in = T.dense_fixed(FEATURES)
    F_out = T.dense_fixed(FEATURES)
    A = T.match_sparse_buffer(a, (R, I, J), "float32")
    W = T.match_sparse_buffer(w, (R, F_in, F_out), "float32")
    X = T.match_sparse_buffer(x, (J_detach, F_in), "float32")
    Y = T.match_sparse_buffer(y, (I_detach, F_out), "float32")
    with T.sp_iter([R, I, J, F_in, F_out], "RSRRS", "rgcn") as [r, i, j, fi, fo]:
        with T.init():
            Y[i, fo] = 0.0
        Y[i, fo] = Y[i, fo] + A[r, i, j] * W[r, fi, fo] * X[j, fi]


def graph() -> np.ndarray:
    """Return edges (relation, head, tail), sorted, none of them twice."""
    if WN18RR.is_file():
        triples = np.loadtxt(WN18RR, dtype=np.int64, usecols=(0, 1, 2)) - 1
    else:
        rng, nodes = np.random.default_rng(0), 20_000
        heads = (nodes * rng.random(60_000) ** 3).astype(np.int64)  # some have many edges
        triples = np.stack([rng.integers(0, 11, 60_000), heads, rng.integers(0, nodes, 60_000)], 1)
    return np.unique(triples, axis=0)


def stored(edges: np.ndarray) -> spcomp.Tensor:
    """Return the tensor of *edges*: relations, their rows that have an edge, and their edges."""
    relations, nodes = int(edges[:, 0].max()) + 1, int(edges[:, 1:].max()) + 1
    rows, first = np.unique(edges[:, :2], axis=0, return_index=True)
    levels = (
        None,
        ("compressed", np.searchsorted(rows[:, 0], np.arange(relations + 1)), rows[:, 1]),
        ("compressed", np.append(first, len(edges)), edges[:, 2]),
    )
    return spcomp.Tensor((relations, nodes, nodes), levels, np.ones(len(edges), np.float32))


def main() -> None:
    """Run the layer over buckets, and compare with numpy."""
    edges, rng = graph(), np.random.default_rng(1)
    tensor = stored(edges)
    relations, nodes, _ = tensor.shape
    weights = rng.standard_normal((relations, FEATURES, FEATURES), dtype=np.float32)
    features = rng.standard_normal((nodes, FEATURES), dtype=np.float32)

    layout = spcomp.formats.ell3d([(8, 1), (4, 2), (2, 4), (1, 8)])
    layer = spcomp.decompose(rgcn, A=layout).compile()
    expected = np.zeros((nodes, FEATURES), np.float32)
    for relation in range(relations):
        _, heads, tails = edges[edges[:, 0] == relation].T
        np.add.at(expected, heads, (features @ weights[relation])[tails])
    buckets = layer.convert(A=tensor)
    error = np.abs(layer(A=buckets, W=weights, X=features) - expected).max()
    error /= np.abs(expected).max()
    print(
        f"RGCN over {len(edges)} edges of {relations} relations: max error {error:.1e} of the"
        f" largest value; {buckets}"
    )
    if not error < 1e-5:
        raise SystemExit("the result differs from numpy's")


if __name__ == "__main__":
    main()
