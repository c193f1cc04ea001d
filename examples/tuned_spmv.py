"""The tuner finds a format for a banded matrix, and the next program that is compiled uses it."""

import argparse
import os
import tempfile

import numpy as np
import scipy.sparse as sps

import spcomp


def band(rows: int, reach: int) -> sps.csr_array:
    """Return a matrix with all diagonals up to *reach* from the main one."""
    offsets = list(range(-reach, reach + 1))
    values = [1.0 / (1 + abs(k)) for k in offsets]
    matrix = sps.diags_array(values, offsets=offsets, shape=(rows, rows), dtype=np.float32)
    return sps.csr_array(matrix.tocsr())


def freeze(matrix: sps.csr_array) -> None:
    """Make the arrays of *matrix* read-only, so that it may be stored in other formats."""
    for name in ("data", "indices", "indptr"):
        array = getattr(matrix, name).copy()  # a view would change with what it is a view of
        array.flags.writeable = False
        setattr(matrix, name, array)


def main() -> None:
    """Tune a product, compare it with scipy's, and show what later kernels do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for the search")
    parser.add_argument("--keep", action="store_true", help="in the user's store, for later")
    asked = parser.parse_args()
    matrix, x = band(20_000, 8), np.random.default_rng(0).random(20_000, dtype=np.float32)
    freeze(matrix)
    program = "y[i] = A[i, j] * x[j]"
    with tempfile.TemporaryDirectory() as folder:
        if not asked.keep:
            os.environ["SPCOMP_CACHE_DIR"] = folder
        found = spcomp.tune(program, A=matrix, x=x, budget=asked.budget)
        print(found)
        print(found.table())
        kernel = spcomp.compile(program, tuned=True)
        error = max(np.abs(k(A=matrix, x=x) - matrix @ x).max() for k in (found.kernel, kernel))
        print(kernel.explain(A=matrix, x=x).splitlines()[0])
    print(f"SpMV over {matrix.shape[0]} rows, {matrix.nnz} elements: max error {error:.1e}")
    if not error < 1e-3:
        raise SystemExit("the result differs from scipy's")


if __name__ == "__main__":
    main()
