"""CP decomposition of sparse tensors by alternating least squares, around three MTTKRPs.

A tensor of known rank comes back; then the knowledge graph WN18RR is decomposed, which is read from
a directory ``shared/data`` beside the repository, or given: ``mttkrp_cp_als.py --tensor T.tns``.
``--plot fit.svg`` draws how the fits grow (with matplotlib).
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sps

import spcomp

WN18RR = Path(__file__).parents[2] / "shared" / "data" / "wn18rr.tns"
MTTKRP = {
    "A": spcomp.compile("D[i, r] = T[i, j, k] * B[j, r] * C[k, r]"),
    "B": spcomp.compile("D[j, r] = T[i, j, k] * A[i, r] * C[k, r]"),
    "C": spcomp.compile("D[k, r] = T[i, j, k] * A[i, r] * B[j, r]"),
}
INNER = spcomp.compile("s = T[i, j, k] * A[i, r] * B[j, r] * C[k, r]")
NORM = spcomp.compile("s = T[i, j, k] * T[i, j, k]")


def sample(shape: tuple[int, int, int], rank: int, rng: np.random.Generator) -> sps.coo_array:
    """Return a sparse tensor that is a sum of *rank* products of sparse vectors."""
    masks = [rng.random((n, rank)) < 0.4 for n in shape]
    factors = [np.where(mask, rng.uniform(0.5, 1, mask.shape), 0) for mask in masks]
    full = np.einsum("ir,jr,kr->ijk", *factors)
    where = np.nonzero(full)
    return sps.coo_array((full[where], where), shape=shape)


def decompose(tensor: Any, rank: int, sweeps: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """Return the factors of *tensor*, and behind each sweep the fit: 1 - |T - model| / |T|."""
    rng = np.random.default_rng(4)
    factors = {name: rng.random((n, rank)) for name, n in zip("ABC", tensor.shape, strict=True)}
    square, fits = float(NORM(T=tensor)), []
    for _ in range(sweeps):
        for name, product in MTTKRP.items():
            others = {other: factors[other] for other in "ABC" if other != name}
            gram = np.multiply.reduce([f.T @ f for f in others.values()])
            factors[name] = product(T=tensor, **others) @ np.linalg.pinv(gram)
        model = np.multiply.reduce([f.T @ f for f in factors.values()]).sum()
        left = square - 2 * float(INNER(T=tensor, **factors)) + model
        fits.append(1 - np.sqrt(max(left, 0) / square))
    return factors, fits


def plot(path: str, fits: dict[str, list[float]]) -> None:
    """Draw the fits, one curve for each tensor."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for name, values in fits.items():
        axes.plot(range(1, len(values) + 1), values, label=name)
    axes.set(xlabel="sweep", ylabel="fit", xscale="log", ylim=(0, 1.02))
    axes.legend(loc="center right")
    figure.savefig(path)


def main() -> None:
    """Decompose a tensor of known rank, and a real one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor", type=Path, default=WN18RR if WN18RR.exists() else None)
    parser.add_argument("--plot", metavar="FILE")
    options = parser.parse_args()

    known = sample((30, 25, 20), 3, np.random.default_rng(4))
    factors, fits = decompose(known, 3, 200)
    drawn = {"of rank 3": fits}
    check = np.einsum("ir,jr,kr->ijk", *factors.values()) - known.toarray()
    print(f"{known.nnz} elements in rank 3: max error {np.abs(check).max():.1e}")
    if not fits[-1] > 1 - 1e-3:
        raise SystemExit(f"the fit is only {fits[-1]}")
    if options.tensor is not None:
        tensor = spcomp.read(options.tensor, duplicates="sum")
        _, fits = decompose(tensor, 8, 10)
        drawn[options.tensor.stem] = fits
        print(f"{options.tensor.name}, {tensor.nnz} elements in rank 8: fit {fits[-1]:.4f}")
        # the fit is a root: rounding of 1e-16 is 1e-8 in it
        if any(after < before - 1e-6 for before, after in pairwise(fits)):
            raise SystemExit("a sweep made the fit worse")
    if options.plot:
        plot(options.plot, drawn)


if __name__ == "__main__":
    main()
