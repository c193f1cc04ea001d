"""A sparse tensor times a sparse matrix in each mode, one after the other: every step is sparse."""

import numpy as np
import scipy.sparse as sps

import spcomp

SHAPE, RANK = (30, 40, 50), 12


def groups(extent: int, count: int) -> sps.csr_array:
    """A matrix that puts each of *extent* coordinates into one of *count* groups."""
    rows = np.arange(extent)
    return sps.csr_array((np.ones(extent), (rows, rows * count // extent)), shape=(extent, count))


def main() -> None:
    """Coarsen a tensor mode by mode; compare with numpy, and with all of it in one statement."""
    rng = np.random.default_rng(0)
    where = tuple(rng.integers(0, extent, 400) for extent in SHAPE)
    tensor = sps.coo_array((rng.random(400), where), shape=SHAPE)
    A, B, C = (groups(extent, RANK) for extent in SHAPE)
    last = spcomp.compile("Y[i, j, c] = T[i, j, k] * C[k, c]")
    middle = spcomp.compile("Y[i, b, c] = T[i, j, c] * B[j, b]")
    first = spcomp.compile("Y[a, b, c] = T[i, b, c] * A[i, a]")
    sparse = [last(T=tensor, C=C)]
    sparse.append(middle(T=sparse[-1], B=B))
    sparse.append(first(T=sparse[-1], A=A))
    expected = np.einsum("ijk,ia,jb,kc", tensor.toarray(), *(m.toarray() for m in (A, B, C)))
    error = np.abs(sparse[-1].to_dense() - expected).max()
    whole = spcomp.compile("Y[a, b, c] = T[i, j, k] * A[i, a] * B[j, b] * C[k, c]")
    error = max(error, np.abs(whole(T=tensor, A=A, B=B, C=C).to_dense() - expected).max())
    sizes = " -> ".join(f"{result.nnz}" for result in sparse)
    print(f"{tensor.nnz} elements -> {sizes} of {RANK**3}: max error {error:.1e}")
    if not error < 1e-12:
        raise SystemExit("the coarse tensor differs from numpy's")


if __name__ == "__main__":
    main()
