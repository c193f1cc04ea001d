"""What is multiplied: matrices and a tensor with fixed seeds, and any MatrixMarket file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.io
import scipy.sparse as sps
from platformdirs import user_cache_path

if TYPE_CHECKING:
    from collections.abc import Callable

SHRINK = 16  # how much smaller the inputs of a quick run are
Csr = Any  # scipy.sparse.csr_matrix of float32 with int32 index arrays


def rmat(nodes: int, edges: int, seed: int, corner: tuple[float, float, float]) -> Csr:
    """Return a symmetric power-law graph (Chakrabarti, Zhan, Faloutsos: R-MAT, SDM 2004).

    *edges* are drawn, each in both directions, and duplicates merged. *corner*: the probabilities
    of the quadrants but the last.
    """
    a, b, c = corner
    rng = np.random.default_rng(seed)
    rows, columns = np.zeros(edges, np.int64), np.zeros(edges, np.int64)
    levels = int(np.ceil(np.log2(nodes)))
    for _ in range(levels):
        u = rng.random(edges)
        rows = rows * 2 + (u >= a + b)
        columns = columns * 2 + (((u >= a) & (u < a + b)) | (u >= a + b + c))
    shuffle = rng.permutation(1 << levels)
    rows, columns = shuffle[rows] % nodes, shuffle[columns] % nodes
    both = np.concatenate([rows, columns]), np.concatenate([columns, rows])
    return _filled(_pattern(both, (nodes, nodes)), rng)


def one_way(graph: Csr) -> Csr:
    """Return *graph*, symmetric, with each edge in one direction, drawn by chance."""
    upper = sps.coo_matrix(sps.triu(graph))
    turned = np.random.default_rng(9).random(upper.nnz) < 0.5
    rows, columns = np.where(turned, (upper.col, upper.row), (upper.row, upper.col))
    return sps.csr_matrix((upper.data, (rows, columns)), graph.shape)


def uniform(rows: int, per_row: int, seed: int) -> Csr:
    """Return a square matrix with about *per_row* stored columns in each row, anywhere."""
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, rows, rows * per_row)
    return _filled(_pattern((np.repeat(np.arange(rows), per_row), columns), (rows, rows)), rng)


def laplacian(side: int) -> Csr:
    """Return the 7-point stencil on a cube of *side* points: 6 on the diagonal, -1 beside it."""
    ones = np.ones(side)
    line: Any = sps.diags_array((-ones[1:], 2 * ones, -ones[1:]), offsets=(-1, 0, 1))
    eye = sps.eye(side)
    planes = sps.kron(sps.kron(line, eye), eye) + sps.kron(sps.kron(eye, line), eye)
    return sps.csr_matrix(planes + sps.kron(sps.kron(eye, eye), line))


def hub(rows: int, nnz: int, seed: int) -> Csr:
    """Return a square matrix in which the row in the middle holds 80 % of the *nnz* elements."""
    rng = np.random.default_rng(seed)
    many = min(rows, nnz * 4 // 5)
    few = nnz - many
    at = np.concatenate([np.full(many, rows // 2), rng.integers(0, rows, few)])
    columns = np.concatenate([rng.permutation(rows)[:many], rng.integers(0, rows, few)])
    return _filled(_pattern((at, columns), (rows, rows)), rng)


SOCIAL, DENSER = (0.57, 0.19, 0.19), (0.5, 0.22, 0.22)
MATRICES: dict[str, Callable[[int], Csr]] = {
    "rmat": lambda by: rmat(169_343 // by, 1_166_243 // by, 1, SOCIAL),
    "heavy": lambda by: rmat(132_534 // by, 5_600_000 // by, 2, DENSER),
    "uniform": lambda by: uniform(1_000_000 // by, 10, 3),
    "laplacian": lambda by: laplacian(round(100 / by ** (1 / 3))),
    "cora": lambda _: rmat(2_708, 5_429, 5, SOCIAL),
    "directed": lambda by: one_way(rmat(169_343 // by, 1_166_243 // by, 1, SOCIAL)),
    "sparser": lambda by: uniform(200_000 // by, 5, 4),
    "hub": lambda by: hub(1_000_000 // by, 1_000_000 // by, 6),
}  # by how much smaller


@lru_cache(maxsize=1)
def matrix(name: str, *, quick: bool = False) -> Csr:
    """Return the matrix called *name*, or in the MatrixMarket file *name*.

    It is a csr_matrix of float32 with sorted int32 indices. Raises KeyError, OSError.
    """
    by = SHRINK if quick else 1
    if name not in MATRICES:
        if not Path(name).exists():
            raise KeyError(f"no matrix {name!r}: {', '.join(MATRICES)}, or a .mtx file")
        return _tidy(sps.csr_matrix(scipy.io.mmread(name)))
    kept = _cache(f"{name}-{by}.npz")
    if not kept.exists():
        _save(kept, lambda file: sps.save_npz(file, _tidy(MATRICES[name](by)), compressed=False))
    return _tidy(sps.load_npz(kept))


@dataclass(frozen=True, slots=True)
class Csf:
    """A tensor (i, j, k) as compressed fibers: all i dense, j under i, k under (i, j)."""

    shape: tuple[int, int, int]
    indptr_j: Any
    indices_j: Any
    indptr_k: Any
    indices_k: Any
    values: Any

    @property
    def coordinates(self) -> tuple[Any, Any, Any]:
        """The coordinates of every stored element, in order."""
        pair = np.repeat(np.arange(len(self.indices_j)), np.diff(self.indptr_k))
        row = np.repeat(np.arange(self.shape[0]), np.diff(self.indptr_j))
        return row[pair], self.indices_j[pair], self.indices_k


@lru_cache(maxsize=1)
def tensor(*, quick: bool = False) -> Csf:
    """Return a power-law tensor of 12k x 9k x 28k with about 4 million elements."""
    by = SHRINK if quick else 1
    shape = (12_000 // by, 9_000 // by, 28_000 // by)
    drawn, exponents = 4_500_000 // by, (4.0, 4.0, 2.0)
    kept = _cache(f"tensor-{by}.npz")
    if not kept.exists():
        _save(kept, lambda file: np.savez(file, **_tensor(shape, drawn, exponents)))
    with np.load(kept) as arrays:
        return Csf(shape, **arrays)


def _tensor(
    shape: tuple[int, int, int], drawn: int, exponents: tuple[float, ...]
) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    i, j, k = (
        rng.permutation(d)[np.minimum((d * rng.random(drawn) ** e).astype(np.int64), d - 1)]
        for d, e in zip(shape, exponents, strict=True)
    )
    key = np.unique((i * shape[1] + j) * shape[2] + k)
    pair, k = np.divmod(key, shape[2])
    begins = np.flatnonzero(np.diff(pair, prepend=-1))
    i, j = np.divmod(pair[begins], shape[1])
    return {
        "indptr_j": np.searchsorted(i, np.arange(shape[0] + 1)).astype(np.int32),
        "indices_j": j.astype(np.int32),
        "indptr_k": np.append(begins, len(k)).astype(np.int32),
        "indices_k": k.astype(np.int32),
        "values": rng.random(len(k)).astype(np.float32) + np.float32(0.1),
    }


def _pattern(at: tuple[Any, Any], shape: tuple[int, int]) -> Csr:
    merged = sps.csr_matrix((np.ones(len(at[0]), np.float32), at), shape)
    merged.sum_duplicates()
    return merged


def _filled(pattern: Csr, rng: np.random.Generator) -> Csr:
    pattern.data = rng.random(pattern.nnz).astype(np.float32) + np.float32(0.1)
    return pattern


def _tidy(found: Csr) -> Csr:
    found.sum_duplicates()
    arrays = (
        found.data.astype(np.float32),
        *(array.astype(np.int32) for array in (found.indices, found.indptr)),
    )
    return sps.csr_matrix(arrays, found.shape)


def _cache(name: str) -> Path:
    return user_cache_path("spcomp-benchmarks", ensure_exists=True) / name


def _save(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file so that another process sees all of it or nothing."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    with draft.open("wb") as file:
        write(file)
    draft.replace(path)
