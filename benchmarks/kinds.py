"""Kinds of matrices, by number of elements: what the model that comes with spcomp learns from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sps

from benchmarks.tune import band, blocks, neighbours, roads, symmetric
from benchmarks.workloads import DENSER, SOCIAL, hub, laplacian, rmat, uniform


def grid(side: int, reach: int = 1, *, corners: bool = False) -> Any:
    """Return a stencil on a square of *side* points: 5 points, or with *corners* all around."""
    line = _line(side, reach)
    if corners:
        return sps.csr_matrix(sps.kron(line, line))
    return sps.csr_matrix(sps.kron(line, sps.eye(side)) + sps.kron(sps.eye(side), line))


def cube(side: int) -> Any:
    """Return the 27-point stencil on a cube of *side* points."""
    line = _line(side, 1)
    return sps.csr_matrix(sps.kron(sps.kron(line, line), line))


def _line(side: int, reach: int) -> Any:
    """Return the stencil on a line of *side* points that goes as far as *reach*."""
    offsets = range(-reach, reach + 1)
    return sps.diags_array([-1.0] * len(offsets), offsets=list(offsets), shape=(side, side))


def mesh(points: int, *, ordered: bool) -> Any:
    """Return the triangulation of random points in the plane, ordered by strips or by chance."""
    from scipy.spatial import Delaunay

    places = np.random.default_rng(23).random((points, 2))
    if ordered:
        strips = np.floor(places[:, 0] * points**0.5 / 4)
        places = places[np.lexsort((places[:, 1], strips))]
    a, b, c = Delaunay(places).simplices.T
    return symmetric(np.concatenate([a, b, c]), np.concatenate([b, c, a]), points)


def small_world(nodes: int, near: int, share: float) -> Any:
    """Return a ring of *nodes* with *near* neighbours before, *share* of them rewired anywhere."""
    rng = np.random.default_rng(24)
    at = np.repeat(np.arange(nodes), near)
    to = (at + np.tile(np.arange(1, near + 1), nodes)) % nodes
    to = np.where(rng.random(len(to)) < share, rng.integers(0, nodes, len(to)), to)
    return symmetric(at, to, nodes)


def communities(nodes: int, size: int, each: int) -> Any:
    """Return *each* elements a row, nine of ten within groups of *size* rows that lie together."""
    rng = np.random.default_rng(25)
    at = np.repeat(np.arange(nodes), each)
    near = at // size * size + rng.integers(0, size, len(at))
    to = np.where(
        rng.random(len(at)) < 0.9, np.minimum(near, nodes - 1), rng.integers(0, nodes, len(at))
    )
    return sps.csr_matrix((np.ones(len(at)), (at, to)), (nodes, nodes))


def lengths(rows: int, mean: int) -> Any:
    """Return a matrix with rows of geometrically distributed length, anywhere."""
    rng = np.random.default_rng(22)
    return _rows(np.minimum(rng.geometric(1 / mean, rows), rows), rows, rng)


def _rows(counts: Any, columns: int, rng: np.random.Generator) -> Any:
    """Return a matrix with so many elements in each row, anywhere."""
    at = np.repeat(np.arange(len(counts)), counts)
    to = rng.integers(0, columns, len(at))
    return sps.csr_matrix((np.ones(len(at)), (at, to)), (len(counts), columns))


def ratings(users: int, things: int, mean: int) -> Any:
    """Return what *users* rated: about *mean* things each, popular ones far more often."""
    rng = np.random.default_rng(26)
    counts = np.minimum(rng.geometric(1 / mean, users), things)
    at = np.repeat(np.arange(users), counts)
    to = (things * rng.random(len(at)) ** 3).astype(np.int64)
    return sps.csr_matrix((np.ones(len(at)), (at, to)), (users, things))


def mostly_empty(rows: int, elements: int) -> Any:
    """Return a matrix with a few short rows among empty ones."""
    rng = np.random.default_rng(27)
    counts = np.where(rng.random(rows) < 0.1, 10 * elements // rows, 0)
    return _rows(counts, rows, rng)


def diagonals(rows: int, count: int, share: float) -> Any:
    """Return *count* diagonals at random distances, each with *share* of its elements."""
    rng = np.random.default_rng(28)
    at = np.tile(np.arange(rows), count)
    to = at + np.repeat(rng.integers(-rows // 4, rows // 4, count), rows)
    kept = (to >= 0) & (to < rows) & (rng.random(len(at)) < share)
    return sps.csr_matrix((np.ones(kept.sum()), (at[kept], to[kept])), (rows, rows))


def thinned(matrix: Any, share: float) -> Any:
    """Return *matrix* with *share* of its elements."""
    coo = sps.coo_matrix(matrix)
    kept = np.random.default_rng(29).random(coo.nnz) < share
    return sps.csr_matrix((coo.data[kept], (coo.row[kept], coo.col[kept])), coo.shape)


def joined(rows: int, size: int) -> Any:
    """Return dense blocks along the diagonal and beside it, as of coupled unknowns on a line."""
    return sps.csr_matrix(sps.kron(band(rows // size, 1), np.ones((size, size))))


def arrow(rows: int, reach: int, full: int) -> Any:
    """Return a band with *full* dense rows and columns at the end."""
    inner = sps.lil_matrix(band(rows, reach))
    inner[-full:, :] = 1.0
    inner[:, -full:] = 1.0
    return sps.csr_matrix(inner)


def triangle(side: int) -> Any:
    """Return the lower half of a dense matrix."""
    return sps.csr_matrix(np.tril(np.ones((side, side), np.float32)))


Make = Callable[[int], Any]
FAMILIES: dict[str, dict[str, Make]] = {  # what are alike, by about how many elements
    "stencils": {
        "laplacian 3-D": lambda n: laplacian(round((n / 7) ** (1 / 3))),
        "laplacian 2-D": lambda n: grid(round((n / 5) ** 0.5)),
        "square 3 x 3": lambda n: grid(round((n / 9) ** 0.5), corners=True),
        "square 5 x 5": lambda n: grid(round((n / 25) ** 0.5), 2, corners=True),
        "cube 3 x 3 x 3": lambda n: cube(round((n / 27) ** (1 / 3))),
        "half a stencil": lambda n: thinned(grid(round((n / 4.5) ** 0.5), corners=True), 0.5),
    },
    "bands": {
        "band": lambda n: band(n // 17, 8),
        "narrow band": lambda n: band(n // 3, 1),
        "wide band": lambda n: band(n // 65, 32),
        "band with gaps": lambda n: thinned(band(n // 12, 12), 0.5),
        "diagonals": lambda n: diagonals(n // 7, 8, 1.0),
        "diagonals with gaps": lambda n: diagonals(n // 6, 12, 0.6),
    },
    "random": {
        "uniform": lambda n: uniform(n // 10, 10, 3),
        "sparser": lambda n: uniform(n // 3, 3, 4),
        "denser": lambda n: uniform(n // 40, 40, 5),
        "geometric": lambda n: lengths(n // 6, 6),
        "mostly empty": lambda n: mostly_empty(n, n),
    },
    "skewed": {
        "power law": lambda n: rmat(n // 12, n // 2, 1, SOCIAL),
        "heavy power law": lambda n: rmat(n // 40, n // 2, 2, DENSER),
        "ratings": lambda n: ratings(n // 30, n // 100, 30),
        "one hub": lambda n: hub(n, n, 6),
        "arrow": lambda n: arrow(n // 13, 4, 2),
    },
    "blocks": {
        "blocks of 2": lambda n: blocks(n // 24 // 2 * 2, 2, 24 / (n // 24)),
        "blocks of 4": lambda n: blocks(n // 32 // 4 * 4, 4, 32 / (n // 32)),
        "blocks of 8": lambda n: blocks(n // 64 // 8 * 8, 8, 64 / (n // 64)),
        "blocks of 16": lambda n: blocks(n // 96 // 16 * 16, 16, min(96 / (n // 96), 1.0)),
        "joined blocks": lambda n: joined(n // 12 // 4 * 4, 4),
    },
    "places": {
        "roads": lambda n: roads(round((n / 2.4) ** 0.5) // 64 * 64 + 64),
        "streets": lambda n: roads(round((n / 3.2) ** 0.5) // 64 * 64 + 64, 0.8, 16),
        "mesh": lambda n: mesh(n // 6, ordered=True),
        "mesh by chance": lambda n: mesh(n // 6, ordered=False),
        "neighbours": lambda n: neighbours(n // 16, 16),
        "small world": lambda n: small_world(n // 8, 4, 0.1),
        "communities": lambda n: communities(n // 12, 64, 12),
    },
    "dense": {
        "half dense": lambda n: sps.random_array((n // 200, 2000), density=0.1, rng=13),
        "triangle": lambda n: triangle(round((2 * n) ** 0.5)),
        "few long rows": lambda n: sps.random_array(
            (max(n // 2000, 4), 20_000), density=0.1, rng=14
        ),
    },
}
KINDS: dict[str, Make] = {name: make for kinds in FAMILIES.values() for name, make in kinds.items()}
