"""A pruned layer: its weights in CSR, in blocks and in tiles, against the dense layer.

The program is one and the same, C = A @ B over the rows of A; spcomp.decompose stores A in another
format, and the default schedule is made for that. Ratios are of medians of interleaved calls.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp import formats
from spcomp import script as T

OUTPUTS, INPUTS, BATCH, BLOCK = 1024, 1024, 64, 8


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
    """C = A @ B for weights A and activations B, one column for each input of the batch."""
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


def pruned(weights: np.ndarray, keep: float, block: int) -> np.ndarray:
    """Return *weights* with all but the largest blocks set to zero; *keep*: the part that stays."""
    rows, cols = (size // block for size in weights.shape)
    size = np.linalg.norm(weights.reshape(rows, block, cols, block), axis=(1, 3))
    mask = size >= np.quantile(size, 1 - keep)
    return weights * np.repeat(np.repeat(mask, block, axis=0), block, axis=1)


def medians(calls: dict[str, Callable[[], object]], turns: int = 15) -> dict[str, float]:
    """Return the median time of each call in seconds; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(taken) for name, taken in times.items()}


def compare(title: str, weights: np.ndarray, stored: dict[str, formats.Format | None]) -> None:
    """Run the layer with *weights* in each format; None is what the program says, CSR."""
    matrix = sps.csr_array(weights)
    batch = np.random.default_rng(1).standard_normal((INPUTS, BATCH), dtype=np.float32)
    calls: dict[str, Callable[[], object]] = {"numpy": lambda: weights @ batch}
    print(f"{title}, {matrix.nnz / weights.size:.0%} of the weights")
    for name, form in stored.items():
        program = layer if form is None else spcomp.decompose(layer, A=form)
        kernel = spcomp.compile(program).bind(A=matrix)  # converted once, as weights stay
        error = np.abs(kernel(B=batch) - weights @ batch).max()
        if not error < 1e-3:
            raise SystemExit(f"{name}: the result differs from numpy's, max error {error:.1e}")
        calls[name] = lambda kernel=kernel: kernel(B=batch)
    times = medians(calls)
    for name in stored:
        print(f"  {name:12} {times['numpy'] / times[name]:5.1f} times as fast as the dense layer")
    print(f"  {'':12} max error below 1e-03 in all of them")


def main() -> None:
    """Prune in blocks and one by one, and compare formats."""
    weights = np.random.default_rng(0).standard_normal((OUTPUTS, INPUTS), dtype=np.float32)
    weights[: OUTPUTS // 2] *= 0.2  # rows that matter little: few of their blocks stay
    blocks = {"CSR": None, "BSR": formats.bsr(BLOCK), "DBSR": formats.dbsr(BLOCK)}
    compare(f"blocks of {BLOCK} x {BLOCK}", pruned(weights, 0.05, BLOCK), blocks)
    single = {"CSR": None, "hyb": formats.hyb(), "SR-BCRS": formats.sr_bcrs(4, 8)}
    compare("one by one", pruned(weights, 0.05, 1), single)


if __name__ == "__main__":
    main()
