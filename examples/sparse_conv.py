"""3-D sparse convolution on voxels: gather, multiply, scatter, one matrix for each offset.

A surface fills few voxels of a grid. A submanifold convolution computes features for just these
sites. Its kernel of 3 x 3 x 3 offsets is a tensor of relations: offset r relates the site i to the
site j that lies r away from it, if that one is filled; each relation has a matrix of weights.
"""

import statistics
import time

import numpy as np

import spcomp
from spcomp import script as T

CHANNELS, REACH = 32, 1
OFFSETS = [np.array(r) - REACH for r in np.ndindex(3, 3, 3)]


@T.prim_func
def conv(
    x: T.handle,
    w: T.handle,
    y: T.handle,
    indptr: T.handle,
    outputs: T.handle,
    inputs: T.handle,
    sites: T.int32,
    offsets: T.int32,
    pairs: T.int32,
) -> None:
    """Y[i] = sum of X[j] @ W[r] over the offsets r and the site j that is r away from i."""
    R = T.dense_fixed(offsets)
    I = T.sparse_variable(R, (sites, pairs), (indptr, outputs))
    J = T.sparse_fixed(I, (sites, 1), inputs)  # one site is r away from i, or none
    S = T.dense_fixed(sites)
    CI = T.dense_fixed(CHANNELS)
    CO = T.dense_fixed(CHANNELS)
    X = T.match_sparse_buffer(x, (S, CI), "float32")
    W = T.match_sparse_buffer(w, (R, CI, CO), "float32")
    Y = T.match_sparse_buffer(y, (S, CO), "float32")
    P = T.alloc_sparse_buffer((R, I, CO), "float32")
    with T.sp_iter([R, I, CO, J, CI], "SSSRR", "multiply") as [r, i, co, j, ci]:
        with T.init():
            P[r, i, co] = 0.0
        P[r, i, co] = P[r, i, co] + X[j, ci] * W[r, ci, co]
    with T.sp_iter([R, I, CO], "RSS", "scatter") as [r, i, co]:
        with T.init():
            Y[i, co] = 0.0
        Y[i, co] = Y[i, co] + P[r, i, co]


def scheduled() -> spcomp.Schedule:
    """Return the program with products in tiles of 4 sites and 16 channels, held in registers."""
    sch = spcomp.Schedule(conv).lower_sparse_iter()
    i, co, j, ci = sch.get_loops("multiply1")
    sch = sch.loop_partition(i, 4)  # whole tiles, then up to 3 sites one by one
    i_rest, co_rest, j_rest, ci_rest = sch.made
    sch = sch.split(i, 4).split(co, 16).reorder("i_o", "co_o", j, ci, "i_i", "co_i")
    sch = sch.cache_write("multiply1", 0, "local", at="co_o").parallel("i_o")
    for block in ("multiply1", "multiply1_store"):
        rows, lanes = sch.get_loops(block)[-2:]
        sch = sch.unroll(rows).vectorize(lanes)
    sch = sch.reorder(j_rest, ci_rest, co_rest).parallel(i_rest).vectorize(co_rest)

    rows, lanes = sch.get_loops("scatter_init0")
    sch = sch.parallel(rows).vectorize(lanes)
    (r,), (i, co) = sch.get_loops("scatter0"), sch.get_loops("scatter1")
    sch = sch.split(co, 16)  # sites meet in an element of Y, channels do not
    outer, lanes = sch.made
    sch = sch.reorder(outer, i).lift_loop(outer).reorder(outer, r)
    return sch.parallel(outer).vectorize(lanes)


def shell(size: int) -> np.ndarray:
    """Return the voxels of a sphere's surface in a grid of *size* along each side, in order."""
    radius = np.linalg.norm(np.indices((size,) * 3) - (size - 1) / 2, axis=0)
    return np.argwhere(np.abs(radius - size / 3) < 1)


def relations(voxels: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """Return the pairs of sites for each offset: rows of CSR, with one element in each."""
    number = np.full((size + 2 * REACH,) * 3, -1)
    number[tuple((voxels + REACH).T)] = np.arange(len(voxels))
    found = [number[tuple((voxels + REACH + offset).T)] for offset in OFFSETS]
    outputs = [np.flatnonzero(site >= 0) for site in found]
    counts = [len(site) for site in outputs]
    return {
        "indptr": np.append(0, np.cumsum(counts)).astype(np.int32),
        "outputs": np.concatenate(outputs).astype(np.int32),
        "inputs": np.concatenate([site[site >= 0] for site in found]).astype(np.int32),
    }


def on_grid(x: np.ndarray, w: np.ndarray, voxels: np.ndarray, size: int) -> np.ndarray:
    """Return what a convolution over the whole grid, most of it zero, has at the voxels."""
    grid = np.zeros((*(size + 2 * REACH,) * 3, CHANNELS), np.float32)
    grid[tuple((voxels + REACH).T)] = x
    shifted = (grid[tuple((voxels + REACH + offset).T)] for offset in OFFSETS)
    return sum(features @ matrix for features, matrix in zip(shifted, w, strict=True))


def by_numpy(x: np.ndarray, w: np.ndarray, pairs: dict[str, np.ndarray]) -> np.ndarray:
    """Gather, multiply and scatter, offset by offset."""
    y = np.zeros_like(x)
    for r, (begin, end) in enumerate(zip(pairs["indptr"], pairs["indptr"][1:], strict=False)):
        y[pairs["outputs"][begin:end]] += x[pairs["inputs"][begin:end]] @ w[r]
    return y


def main() -> None:
    """Convolve features on a sphere, and compare with numpy on the grid."""
    size, rng = 40, np.random.default_rng(0)
    voxels = shell(size)
    pairs = relations(voxels, size)
    x = rng.standard_normal((len(voxels), CHANNELS), dtype=np.float32)
    w = rng.standard_normal((len(OFFSETS), CHANNELS, CHANNELS), dtype=np.float32)
    layer = spcomp.compile(scheduled()).bind(W=w, **pairs)
    error = np.abs(layer(X=x) - on_grid(x, w, voxels, size)).max()

    ways = [lambda: layer(X=x), lambda: by_numpy(x, w, pairs)]
    times = [[], []]
    for turn in range(14):
        begin = time.perf_counter()
        ways[turn % 2]()
        times[turn % 2].append(time.perf_counter() - begin)
    ours, numpys = map(statistics.median, times)
    print(
        f"{len(voxels)} of {size**3} voxels, {len(pairs['inputs'])} pairs: max error {error:.1e},"
        f" {numpys / ours:.1f} times as fast as numpy"
    )
    if not error < 1e-3:
        raise SystemExit("the result differs from numpy's")


if __name__ == "__main__":
    main()
