"""A pruned layer, C = A @ B: weights left one by one or in blocks, against the dense layer.

Formats: CSR, hyb (rows of CSR in pieces of constant width: the same program, decomposed) and BSR
(whole blocks: the loops over a block have constant bounds). All have their default schedules, and
run on one thread; ratios are of medians of interleaved calls. examples/bsr_tensorize.py has a
faster schedule for blocks.
"""

import os
import statistics
import time
from collections.abc import Callable

os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")  # before numpy is there

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import script as T

OUTPUTS, INPUTS, BATCH, BLOCK = 1024, 1024, 64, 8
Calls = dict[str, Callable[[], np.ndarray]]


@T.prim_func
def layer(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    outputs: T.int32,
    inputs: T.int32,
    batch: T.int32,
    nnz: T.int32,
) -> None:
    """C = A @ B for weights A, one element after the other, and a batch of activations B."""
    I = T.dense_fixed(outputs)
    J = T.sparse_variable(I, (inputs, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(inputs)
    K = T.dense_fixed(batch)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "layer") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]


@T.prim_func
def blocks(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    rows: T.int32,
    cols: T.int32,
    batch: T.int32,
    nnz: T.int32,
) -> None:
    """The same for weights in blocks: rows and columns of blocks, rows and columns in a block."""
    I = T.dense_fixed(rows)
    J = T.sparse_variable(I, (cols, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(cols)
    II = T.dense_fixed(BLOCK)
    JJ = T.dense_fixed(BLOCK)
    K = T.dense_fixed(batch)
    A = T.match_sparse_buffer(a, (I, J, II, JJ), "float32")
    B = T.match_sparse_buffer(b, (J_detach, JJ, K), "float32")
    C = T.match_sparse_buffer(c, (I, II, K), "float32")
    with T.sp_iter([I, J, II, JJ, K], "SRSRS", "blocks") as [i, j, ii, jj, k]:
        with T.init():
            C[i, ii, k] = 0.0
        C[i, ii, k] = C[i, ii, k] + A[i, j, ii, jj] * B[j, jj, k]


def pruned(weights: np.ndarray, keep: float, block: int) -> np.ndarray:
    """Return *weights* with all but the largest blocks set to zero; *keep*: the part that stays."""
    rows, cols = (size // block for size in weights.shape)
    size = np.linalg.norm(weights.reshape(rows, block, cols, block), axis=(1, 3))
    mask = size >= np.quantile(size, 1 - keep)
    return weights * np.repeat(np.repeat(mask, block, axis=0), block, axis=1)


def medians(calls: Calls, turns: int = 21) -> dict[str, float]:
    """Return the median time of each call in seconds; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(taken) for name, taken in times.items()}


def compare(title: str, expected: np.ndarray, calls: Calls) -> None:
    """Check what the calls return, and print how much faster than the first they are."""
    error = max(np.abs(call().reshape(expected.shape) - expected).max() for call in calls.values())
    if not error < 1e-3:
        raise SystemExit(f"a result differs from numpy's: max error {error:.1e}")
    (_, dense), *times = medians(calls).items()
    ratios = ", ".join(f"{name} {dense / taken:.1f}" for name, taken in times)
    print(f"{title}: max error {error:.1e}; times as fast as the dense layer: {ratios}")


def main() -> None:
    """Prune a matrix one by one and in blocks, and compare with numpy."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((OUTPUTS, INPUTS), dtype=np.float32)
    batch = rng.standard_normal((INPUTS, BATCH), dtype=np.float32)
    in_blocks = batch.reshape(-1, BLOCK, BATCH)
    by_csr, by_blocks = spcomp.compile(layer), spcomp.compile(blocks)
    by_hyb = spcomp.compile(spcomp.decompose(layer, A=spcomp.formats.hyb(col_parts=1)))
    for keep in (0.05, 0.2):
        single, block = (pruned(weights, keep, size) for size in (1, BLOCK))
        kept = sps.csr_array(single)
        csr, hyb = by_csr.bind(A=kept), by_hyb.bind(A=kept)  # weights stay: converted once
        calls: Calls = {"dense": lambda w=single: w @ batch}
        calls |= {"CSR": lambda f=csr: f(B=batch), "hyb": lambda f=hyb: f(B=batch)}
        compare(f"{keep:.0%} of the weights", single @ batch, calls)

        kept = sps.csr_array(block)
        csr, bsr = by_csr.bind(A=kept), by_blocks.bind(A=kept.tobsr((BLOCK, BLOCK)))
        calls = {"dense": lambda w=block: w @ batch}
        calls |= {"CSR": lambda f=csr: f(B=batch), "BSR": lambda f=bsr: f(B=in_blocks)}
        compare(f"{keep:.0%} of the blocks of {BLOCK} x {BLOCK}", block @ batch, calls)


if __name__ == "__main__":
    with spcomp.num_threads(1):
        main()
