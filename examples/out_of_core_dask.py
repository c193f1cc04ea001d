"""A matrix on disk through SpMM, SpMV and a sum with itself, a few blocks at a time, with Dask.

``out_of_core_dask.py ROWS`` makes a square matrix of so many rows, with 64 elements in each: the
memory does not grow with it. A bar shows the progress, and the last line what the disk gives.
"""

import sys
import tempfile
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import scipy.sparse as sps

import spcomp
import spcomp.dask

BLOCKS, PER_ROW = 8, 64


def block(rows: int, size: int, block_id: tuple[int, int] = (0, 0)) -> sps.csr_array:
    """Return the rows of the matrix that are at this place of its blocks."""
    rng, step = np.random.default_rng(block_id[0]), size // PER_ROW
    columns = rng.integers(0, step, (rows, PER_ROW)) + np.arange(PER_ROW) * step
    pointers = np.arange(0, rows * PER_ROW + 1, PER_ROW)
    return sps.csr_array((rng.random(rows * PER_ROW), columns.reshape(-1), pointers), (rows, size))


def main() -> None:
    """Write the matrix, compute from its files, and compare a block with scipy."""
    rows = (int(sys.argv[1]) if len(sys.argv) > 1 else 4096) // BLOCKS
    size, empty = rows * BLOCKS, sps.csr_array((0, 0))
    grid = ((rows,) * BLOCKS, (size,))
    lazy = da.map_blocks(block, rows, size, chunks=grid, dtype=float, meta=empty)
    rng = np.random.default_rng(0)
    x, B = rng.random(size), rng.random((size, 8))
    dask.config.set(scheduler="synchronous")  # one block after the other
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spcomp.dask.write(folder / "A", spcomp.dask.from_array(lazy), wave=1, progress=True)
        A = spcomp.dask.read(folder / "A")
        results = {
            "y": spcomp.compile("y[i] = A[i, j] * x[j]")(A=A, x=x),
            "C": spcomp.compile("C[i, k] = A[i, j] * B[j, k]")(A=A, B=B),
            "S": spcomp.compile("S[i, j] = A[i, j] + A[i, j]")(A=A),
        }
        for result, collection in results.items():
            spcomp.dask.write(folder / result, collection, wave=1, progress=True)

        start, files = time.perf_counter(), list((folder / "A").iterdir())
        count = sum(len(file.read_bytes()) for file in files) / 2**20
        print(f"the disk: {count:.1f} MiB at {count / (time.perf_counter() - start):.0f} MiB/s")
        part = block(rows, size, (BLOCKS - 1, 0))
        y, C, S = (spcomp.dask.read(folder / result) for result in results)
        error = max(
            np.abs(y[-rows:].compute() - part @ x).max(),
            np.abs(C[-rows:].compute() - part @ B).max(),
            np.abs(S.compute()[-rows:] - 2 * part).max(),
        )
    print(f"{size} rows in {BLOCKS} blocks, max error {error:.1e}")
    if not error < 1e-9:
        raise SystemExit("the results differ from scipy's")


if __name__ == "__main__":
    main()
