"""The model of programs over Dask: what it says of graphs is what graphs are like."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sps

from benchmarks.dask_model import Graph, Machine, limit, step
from benchmarks.workloads import rmat

MACHINE = Machine(rate=1e9, bandwidth=1e9, latency=1e-4, turn=1e-3, task=1e-3)


def cut(A: sps.csr_array, parts: int) -> list[int]:
    """How many columns each of *parts* blocks of rows has."""
    edges = np.linspace(0, A.shape[0], parts + 1).astype(int)
    return [np.unique(A[a:b].indices).size for a, b in pairwise(edges)]


@pytest.mark.parametrize("parts", [2, 8, 32])
def test_columns_that_blocks_need(parts):
    rows = 1 << 14
    for kind in ("uniform", "rmat"):
        if kind == "rmat":
            A = rmat(rows, 4 * rows, 3, (0.57, 0.19, 0.19))
            graph = Graph("rmat", rows, 8)  # each edge in both directions
        else:
            A = sps.random_array((rows, rows), density=8 / rows, format="csr", rng=0)
            graph = Graph("uniform", rows, 8)
        found = np.mean(cut(A, parts))
        assert found / 1.06 < graph.needed(1 / parts) < found * 1.06


def test_columns_that_cubes_of_a_mesh_need():
    cube = np.zeros((12, 12, 12), bool)
    cube[4:8, 4:8, 4:8] = True
    halo = sum(np.roll(cube, s, range(3)) for s in np.ndindex(3, 3, 3)) > 0
    assert Graph("mesh", 12**3, 27).needed(1 / 27) == pytest.approx(halo.sum())


def test_what_a_step_takes():
    graph = Graph("mesh", 1e9, 27)
    one, many = (step(graph, MACHINE, n, 1, "rows", sparse_graph=True) for n in (1, 64))
    assert one.received == one.send == 0
    assert one.compute == pytest.approx(64 * many.compute)
    assert many.received == pytest.approx(((1e9 / 64) ** (1 / 3) + 2) ** 3 * 4 - 1e9 / 64 * 4)
    assert many.tasks == 64 * 28
    assert step(graph, MACHINE, 64, 1, "rows").tasks == 64 * 65
    tiles = step(graph, MACHINE, 64, 1, "tiles")
    assert tiles.received == pytest.approx(4 * 1e9 / 8 * 4)


def test_meshes_scale_further_than_graphs_without_places():
    mesh, rest = Graph("mesh", 1e11, 27), Graph("uniform", 1e11, 27)
    far = limit(mesh, MACHINE, 1, "rows", sparse_graph=True)
    assert far > limit(mesh, MACHINE, 1, "rows") > limit(rest, MACHINE, 1, "whole")
