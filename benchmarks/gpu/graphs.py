"""The matrices and masks of a GPU run, drawn with fixed seeds where they are used.

*xp* is cupy on a GPU and numpy elsewhere. Each draws its own numbers: a workload is the same from
run to run of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Xp = Any  # the module numpy or cupy
SOCIAL, DENSER = (0.57, 0.19, 0.19), (0.48, 0.22, 0.22)
TINY = 40  # rows, about, where kernels are emulated


@dataclass(frozen=True, slots=True)
class Csr:
    """A matrix by rows: index arrays of int32, ascending in each row, values of float32."""

    shape: tuple[int, int]
    indptr: Any
    indices: Any
    values: Any

    @property
    def nnz(self) -> int:
        """How many elements are stored."""
        return len(self.indices)


@dataclass(frozen=True, slots=True)
class Relations:
    """Edges of several relations: relation, row and column of each, sorted, none of them twice.

    The same as compressed levels: the rows of each relation that have an edge, and their edges.
    """

    count: int
    nodes: int
    relation: Any
    row: Any
    column: Any
    values: Any
    levels: tuple[Any, Any, Any, Any]  # indptr and indices of the rows, and of the edges


def rmat(xp: Xp, nodes: int, edges: int, seed: int, corner: tuple[float, float, float]) -> Csr:
    """Return a symmetric power-law graph (Chakrabarti, Zhan, Faloutsos: R-MAT, SDM 2004).

    *edges* are drawn, each in both directions, and duplicates merged. *corner*: the probabilities
    of the quadrants but the last.
    """
    a, b, c = corner
    rng = xp.random.default_rng(seed)
    rows, columns = xp.zeros(edges, xp.int64), xp.zeros(edges, xp.int64)
    levels = int(np.ceil(np.log2(nodes)))
    for _ in range(levels):
        u = rng.random(edges)
        rows = rows * 2 + (u >= a + b)
        columns = columns * 2 + (((u >= a) & (u < a + b)) | (u >= a + b + c))
    shuffle = xp.argsort(rng.random(1 << levels))
    rows, columns = shuffle[rows] % nodes, shuffle[columns] % nodes
    both = xp.concatenate([rows, columns]), xp.concatenate([columns, rows])
    return csr_of(xp, *both, (nodes, nodes), seed)


def uniform(xp: Xp, rows: int, per_row: int, seed: int) -> Csr:
    """Return a square matrix with about *per_row* stored columns in each row, anywhere."""
    columns = _below(xp, xp.random.default_rng(seed), rows, rows * per_row)
    return csr_of(xp, xp.repeat(xp.arange(rows), per_row), columns, (rows, rows), seed)


def laplacian(xp: Xp, side: int) -> Csr:
    """Return the pattern of the 7-point stencil on a cube of *side* points."""
    at = xp.arange(side**3)
    rows, columns = [at], [at]
    for stride in (1, side, side * side):
        inside = at[(at // stride) % side < side - 1]
        rows += [inside, inside + stride]
        columns += [inside + stride, inside]
    return csr_of(xp, xp.concatenate(rows), xp.concatenate(columns), (side**3, side**3), 4)


def power(xp: Xp, rows: int, edges: int, seed: int) -> Csr:
    """Return a matrix whose rows and columns are drawn by a power law, the longest row at 0."""
    rng = xp.random.default_rng(seed)
    at = ((rows * rng.random(edges) ** 3).astype(xp.int64) for _ in range(2))
    columns = xp.argsort(rng.random(rows))
    first, second = at
    return csr_of(xp, first, columns[second], (rows, rows), seed)


def band(xp: Xp, size: int, reach: int) -> Csr:
    """Return the mask in which a query sees the keys up to *reach* before and behind it."""
    rows = xp.repeat(xp.arange(size), 2 * reach + 1)
    columns = rows + xp.tile(xp.arange(-reach, reach + 1), size)
    kept = (columns >= 0) & (columns < size)
    return csr_of(xp, rows[kept], columns[kept], (size, size), 0)


def butterfly(xp: Xp, size: int, block: int) -> Csr:
    """Return the mask in which a block sees itself and those whose number differs in one bit."""
    count = size // block
    at = np.arange(count)
    differ = at[:, None] ^ at
    seen = np.kron((differ & (differ - 1)) == 0, np.ones((block, block), bool))
    rows, columns = seen.nonzero()
    return csr_of(xp, xp.asarray(rows), xp.asarray(columns), (size, size), 0)


def relations(xp: Xp, count: int, nodes: int, edges: int, seed: int) -> Relations:
    """Return *edges* in *count* relations, some with many and some with few, as their rows."""
    rng = xp.random.default_rng(seed)
    kind = (count * rng.random(edges) ** 2).astype(xp.int64)
    row = (nodes * rng.random(edges) ** 2).astype(xp.int64)
    key = distinct(xp, (kind * nodes + row) * nodes + _below(xp, rng, nodes, edges))
    of_row, column = key // nodes, key % nodes
    first = xp.flatnonzero(_begins(xp, of_row))
    fibers = of_row[first]
    ends = xp.asarray([len(key)])
    parts = (
        xp.searchsorted(fibers // nodes, xp.arange(count + 1)),
        fibers % nodes,
        xp.concatenate([first, ends]),
        column,
    )
    levels = tuple(part.astype(xp.int32) for part in parts)
    ints = (x.astype(xp.int32) for x in (of_row // nodes, of_row % nodes, column))
    values = rng.random(len(key)).astype(xp.float32) + xp.float32(0.1)
    return Relations(count, nodes, *ints, values, levels)  # type: ignore[call-arg]


def csr_of(xp: Xp, rows: Any, columns: Any, shape: tuple[int, int], seed: int) -> Csr:
    """Return the matrix with elements at (rows, columns), merged, of values from 0.1 to 1.1."""
    key = distinct(xp, rows.astype(xp.int64) * shape[1] + columns)
    counts = xp.bincount(key // shape[1], minlength=shape[0])
    indptr = xp.zeros(shape[0] + 1, xp.int32)
    indptr[1:] = xp.cumsum(counts)
    rng = xp.random.default_rng(seed + 100)
    values = rng.random(len(key)).astype(xp.float32) + xp.float32(0.1)
    return Csr(shape, indptr, (key % shape[1]).astype(xp.int32), values)


def distinct(xp: Xp, keys: Any) -> Any:
    """Return *keys* sorted, none of them twice; numpy's unique is many times slower."""
    ordered = xp.sort(keys)
    return ordered[_begins(xp, ordered)]


def _begins(xp: Xp, ordered: Any) -> Any:
    """Return whether each element differs from the one before it."""
    first = xp.ones(len(ordered), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


def _below(xp: Xp, rng: Any, end: int, count: int) -> Any:
    return xp.minimum((end * rng.random(count)).astype(xp.int64), end - 1)


WORKLOADS: dict[str, tuple[Callable[[Xp], Any], Callable[[Xp], Any]]] = {
    "arxiv": (
        lambda xp: rmat(xp, 169_343, 1_166_243, 1, SOCIAL),
        lambda xp: rmat(xp, TINY, 2 * TINY, 1, SOCIAL),
    ),
    "proteins": (
        lambda xp: rmat(xp, 132_534, 39_561_252, 2, DENSER),
        lambda xp: rmat(xp, TINY, 8 * TINY, 2, DENSER),
    ),
    "uniform": (lambda xp: uniform(xp, 1_000_000, 10, 3), lambda xp: uniform(xp, TINY, 4, 3)),
    "laplacian": (lambda xp: laplacian(xp, 100), lambda xp: laplacian(xp, 3)),
    "power": (lambda xp: power(xp, 500_000, 8_000_000, 5), lambda xp: power(xp, TINY, 150, 5)),
    "cora": (
        lambda xp: rmat(xp, 2_708, 5_429, 6, SOCIAL),
        lambda xp: rmat(xp, TINY, 60, 6, SOCIAL),
    ),
    "sparser": (lambda xp: uniform(xp, 200_000, 5, 7), lambda xp: uniform(xp, TINY, 2, 7)),
    "band": (lambda xp: band(xp, 4096, 256), lambda xp: band(xp, 32, 4)),
    "butterfly": (lambda xp: butterfly(xp, 4096, 64), lambda xp: butterfly(xp, 32, 8)),
    "few_relations": (
        lambda xp: relations(xp, 11, 41_000, 150_000, 8),
        lambda xp: relations(xp, 3, TINY, 100, 8),
    ),
    "many_relations": (
        lambda xp: relations(xp, 96, 200_000, 2_000_000, 9),
        lambda xp: relations(xp, 5, TINY, 120, 9),
    ),
}  # at full size, and for the emulator
