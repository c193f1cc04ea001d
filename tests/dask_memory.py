"""A matrix larger than the memory that this process may use, through SpMV and SpMM: a program.

``python -m tests.dask_memory FOLDER`` writes it to FOLDER, limits its own memory to that of now and
a quarter of the matrix, and computes in waves: blocks of results go to files, four at a time.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
import spcomp.dask as sd
from spcomp.errors import SpcompError

BLOCKS, ROWS, PER_ROW, COLUMNS = 32, 4096, 64, 20000


def block(seed: int) -> sps.csr_array:
    """One block of rows, 3 MiB."""
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, COLUMNS // PER_ROW, (ROWS, PER_ROW), np.int32)
    indices += np.arange(PER_ROW, dtype=np.int32) * (COLUMNS // PER_ROW)
    pointers = np.arange(0, ROWS * PER_ROW + 1, PER_ROW, dtype=np.int32)
    values = rng.random(ROWS * PER_ROW)
    return sps.csr_array((values, indices.reshape(-1), pointers), (ROWS, COLUMNS))


def made(block_id: tuple[int, int]) -> sps.csr_array:
    """The block at a place of the grid."""
    return block(block_id[0])


def used() -> int:
    """The bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def main(folder: Path) -> None:
    """Write, limit, compute and check."""
    dask.config.set(scheduler="sync")
    rows = ((ROWS,) * BLOCKS, (COLUMNS,))
    meta = sps.csr_array((0, 0))
    matrix = da.map_blocks(made, chunks=rows, dtype=float, meta=meta)
    sd.write(folder / "A", sd.from_array(matrix), wave=1)
    x, B = np.random.default_rng(1).random(COLUMNS), np.random.default_rng(2).random((COLUMNS, 4))
    spmv, spmm = (
        spcomp.compile("y[i] = A[i, j] * x[j]"),
        spcomp.compile("C[i, k] = A[i, j] * B[j, k]"),
    )
    first = sd.read(folder / "A")
    spmv(A=first, x=x)[:ROWS].compute(), spmm(A=first, B=B)[:ROWS].compute()  # loads what they need
    size = BLOCKS * (ROWS * PER_ROW * 12)
    limit = used() + size // 4
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    A = sd.read(folder / "A")
    sd.write(folder / "y", spmv(A=A, x=x), wave=4)
    sd.write(folder / "C", spmm(A=A, B=B), wave=4)
    y, C = sd.read(folder / "y"), sd.read(folder / "C")
    for at in (0, BLOCKS // 2, BLOCKS - 1):
        part = block(at)
        np.testing.assert_allclose(y.blocks[at].compute(), part @ x)
        np.testing.assert_allclose(C.blocks[at].compute(), part @ B)
    with pytest.raises((MemoryError, SpcompError)):
        A.compute()  # whole, it does not fit


if __name__ == "__main__":
    main(Path(sys.argv[1]))
