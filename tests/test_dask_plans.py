"""Plans of distributed programs: what they count, as pictures, and partitions that send less."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from tests.level_tensors import full
from tests.test_dask import SPMM, csr

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask
import dask.array as da

import spcomp.dask as sd
from tests.test_dask import _small  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.dask, pytest.mark.usefixtures("_small")]


@pytest.fixture(autouse=True)
def _in_turn():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.parametrize("chunks", [5, (8, 6)])
def test_edges_have_the_bytes_that_are_sent(chunks):
    B = da.ones((17, 4), chunks=4)
    found = spcomp.compile(SPMM).plan(A=sd.from_scipy(csr(), chunks), B=B, workers=3).estimate
    assert sum(map(sum, found.between)) == found.total > 0
    assert sum(sent for _, sent in found.edges.values()) == found.total
    assert all(found.between[worker][worker] == 0 for worker in range(3))
    assert all(sent <= read for read, sent in found.edges.values())


@pytest.mark.parametrize("chunks", [125, -1])
def test_what_all_tasks_read_is_sent_to_each_worker_not_all_blocks_to_one(chunks):
    A = sd.from_scipy(csr(2000, 2000, density=5e-3), 125)  # a block is smaller than x
    x = da.ones(2000, chunks=chunks)
    plan = spcomp.compile("y[i] = A[i, j] * x[j]").plan(A=A, x=x, workers=4)
    owners = [worker for key, worker in plan.estimate.owners.items() if key[0].startswith("y-")]
    assert sorted(owners) == sorted([0, 1, 2, 3] * 4)
    assert plan.estimate.balance < 1.1
    assert plan.estimate.total < 8 * x.nbytes  # all blocks but those of a worker: 20


def test_plans_are_drawn():
    kernel, A, B = spcomp.compile(SPMM), sd.from_scipy(csr(), 5), da.ones((17, 4), chunks=4)
    plan = kernel.plan(A=A, B=B, workers=20)
    picture = plan.picture()
    texts = [node.text for node in ET.fromstring(picture.svg).iter() if node.text]
    assert "rows that blocks need \u2192 C" in texts
    assert "and 4 more workers" in texts
    one = replace(
        plan.estimate, between=((0,),), peak=(0,), held=(0,), workers=1, edges={}, sent={}
    )
    assert ET.fromstring(replace(plan, estimate=one).picture().svg) is not None
    with pytest.raises(ArgumentError, match="no estimate to draw"):
        kernel.plan(A=A, B=B).picture()


def test_parts_of_a_maximum_have_the_type_of_the_result():
    """The least uint16 is 0, which is more than what is negative."""
    a = np.zeros((3, 2, 2), "uint16")
    a[0, 1, 0] = 1
    B = sps.csr_array([[-1.5, -2.5], [0, -3.5]])
    kernel = spcomp.compile("C[i, j] = A[l, i, j] + B[i, j]", semiring="max_min")
    C = kernel(A=sd.from_scipy(spcomp.convert(a, "csf"), (2, 2, 2)), B=B).compute()
    np.testing.assert_array_equal(full(C), [[-1.5, -2.5], [1, -3.5]])


def mixed_mesh() -> sps.csr_array:
    """A mesh of 20 x 20 points whose rows are in a random order."""
    mesh = sps.diags_array([1.0] * 5, offsets=[-20, -1, 0, 1, 20], shape=(400, 400)).tocsr()
    p = np.random.default_rng(0).permutation(400)
    return sps.csr_array(mesh[p][:, p])


@pytest.mark.parametrize("method", ["rcm", "metis"])
def test_partitions_cut_what_is_sent(method):
    if method == "metis":
        pytest.importorskip("pymetis", reason="needs pymetis")
    A = mixed_mesh()
    p = sd.partition(A, 4, method)
    assert sorted(p.order) == list(range(400))
    assert (sum(p.rows), len(p.rows), p.method) == (400, 4, method)
    kernel, sent = spcomp.compile(SPMM), []
    for matrix, rows in ((A, (100,) * 4), (A[p.order][:, p.order], p.rows)):
        B = da.ones((400, 16), chunks=(rows, 16))
        plan = kernel.plan(A=sd.from_scipy(matrix, (rows, -1)), B=B, workers=4)
        sent.append(plan.estimate.total)
    assert 0 < sent[1] * 3 < sent[0]
    ends = np.cumsum(p.rows)
    elements = np.diff(A[p.order].indptr[np.concatenate([[0], ends])])
    assert max(elements) < 1.2 * A.nnz / 4


def test_partitions_of_small_matrices_and_refusals():
    for size, parts in ((0, 2), (1, 3), (5, 1)):
        p = sd.partition(sps.csr_array((size, size)), parts)
        assert (len(p.order), sum(p.rows), len(p.rows)) == (size, size, parts)
    with pytest.raises(ArgumentError, match="argument parts"):
        sd.partition(mixed_mesh(), 0)
    with pytest.raises(ArgumentError, match="argument method"):
        sd.partition(mixed_mesh(), 2, "spectral")
    with pytest.raises(ArgumentError, match="expected a square"):
        sd.partition(csr(), 2)
