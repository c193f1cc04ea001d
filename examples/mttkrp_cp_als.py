"""CP decomposition of a sparse tensor by alternating least squares, around three MTTKRPs."""

import numpy as np
import scipy.sparse as sps

import spcomp

RANK = 3


def sample(shape: tuple[int, int, int], rng: np.random.Generator) -> sps.coo_array:
    """Return a sparse tensor that is a sum of RANK products of sparse vectors."""
    masks = [rng.random((n, RANK)) < 0.4 for n in shape]
    factors = [np.where(mask, rng.uniform(0.5, 1, mask.shape), 0) for mask in masks]
    full = np.einsum("ir,jr,kr->ijk", *factors)
    where = np.nonzero(full)
    return sps.coo_array((full[where], where), shape=shape)


def main() -> None:
    """Decompose a tensor of known rank and compare what comes back with it."""
    rng = np.random.default_rng(4)
    tensor = sample((30, 25, 20), rng)
    mttkrp = [
        spcomp.compile("D[i, r] = T[i, j, k] * B[j, r] * C[k, r]"),
        spcomp.compile("D[j, r] = T[i, j, k] * A[i, r] * C[k, r]"),
        spcomp.compile("D[k, r] = T[i, j, k] * A[i, r] * B[j, r]"),
    ]
    residual = spcomp.compile("s = (T[i, j, k] - sum(r, A[i, r] * B[j, r] * C[k, r])) ** 2")
    factors = {name: rng.random((n, RANK)) for name, n in zip("ABC", tensor.shape, strict=True)}
    for _ in range(200):
        for name, product in zip("ABC", mttkrp, strict=True):
            others = {other: factors[other] for other in "ABC" if other != name}
            gram = np.multiply.reduce([f.T @ f for f in others.values()])
            factors[name] = product(T=tensor, **others) @ np.linalg.pinv(gram)
    error = np.sqrt(residual(T=tensor, **factors) / (tensor.data**2).sum())
    check = np.einsum("ir,jr,kr->ijk", *factors.values()) - tensor.toarray()
    print(f"{tensor.nnz} elements in rank {RANK}: max error {np.abs(check).max():.1e}")
    if not error < 1e-3:
        raise SystemExit(f"the relative residual is {error}")


if __name__ == "__main__":
    main()
