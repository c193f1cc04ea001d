"""CP decomposition of a sparse tensor in blocks by alternating least squares, on Dask."""

import numpy as np

import spcomp
import spcomp.dask

MTTKRP = {
    "A": "D[i, r] = T[i, j, k] * B[j, r] * C[k, r]",
    "B": "D[j, r] = T[i, j, k] * A[i, r] * C[k, r]",
    "C": "D[k, r] = T[i, j, k] * A[i, r] * B[j, r]",
}


def decompose(
    tensor: spcomp.dask.DistributedTensor, rank: int, sweeps: int
) -> dict[str, np.ndarray]:
    """Return the factors of *tensor*, which stays in blocks; the factors are small, and here."""
    rng = np.random.default_rng(4)
    factors = {name: rng.random((n, rank)) for name, n in zip("ABC", tensor.shape, strict=True)}
    products = {name: spcomp.compile(text).bind(T=tensor) for name, text in MTTKRP.items()}
    for _ in range(sweeps):
        for name, product in products.items():
            others = {other: factors[other] for other in "ABC" if other != name}
            gram = np.multiply.reduce([f.T @ f for f in others.values()])
            factors[name] = product(**others).compute() @ np.linalg.pinv(gram)
    return factors


def main() -> None:
    """Decompose a tensor of known rank."""
    rng = np.random.default_rng(4)
    masks = [rng.random((n, 2)) < 0.4 for n in (30, 25, 20)]
    known = [np.where(mask, rng.uniform(0.5, 1, mask.shape), 0) for mask in masks]
    dense = np.einsum("ir,jr,kr->ijk", *known)
    tensor = spcomp.dask.from_scipy(spcomp.convert(dense, "csf"), (8, 25, 20)).persist()
    factors = decompose(tensor, rank=2, sweeps=40)
    error = np.abs(np.einsum("ir,jr,kr->ijk", *factors.values()) - dense).max()
    print(f"{tensor.nnz} elements in {tensor.npartitions} blocks, max error {error:.1e}")
    if not error < 1e-3:
        raise SystemExit("the factors do not make the tensor")


if __name__ == "__main__":
    main()
