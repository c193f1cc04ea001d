"""Kernels with distributed arguments fixed: what depends on these alone is computed once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from tests.test_dask import PROGRAMS_OF_ALL_KINDS, SPMM, csr, full

pytest.importorskip("distributed", reason="needs Dask and distributed")
import dask
import dask.array as da

import spcomp.dask as sd
from spcomp.dask import blocks
from tests.test_dask import _small  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.dask, pytest.mark.usefixtures("_small")]


@pytest.fixture(autouse=True)
def _in_turn():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def runs(monkeypatch):
    """How often tasks did what, by the name of the function."""
    found: dict[str, int] = {}

    def counted(name: str, work: Any, *args: Any) -> Any:
        found[name] = found.get(name, 0) + 1
        return work(*args)

    for name in ("given", "needed", "section", "compact", "take"):
        monkeypatch.setattr(blocks, name, partial(counted, name, getattr(blocks, name)))
    return found


def test_blocks_and_their_coordinates_are_computed_once(runs):
    A, rng = sd.from_scipy(csr(), 8), np.random.default_rng(0)
    spmm = spcomp.compile(SPMM)
    step = spmm.bind(A=A)
    for _ in range(4):
        B = rng.random((17, 4))
        np.testing.assert_allclose(step(B=da.from_array(B, chunks=(6, 4))).compute(), csr() @ B)
    assert runs == {"given": 6, "needed": 6, "compact": 3, "section": 9, "take": 36}
    other = step(B=da.ones((17, 2), chunks=(9, 2)))  # in other blocks: other sections
    np.testing.assert_allclose(other.compute(), csr() @ np.ones((17, 2)))
    assert (runs["compact"], runs["section"]) == (3, 15)


def test_there_are_no_tasks_for_what_blocks_do_not_need(runs):
    B = np.random.default_rng(0).random((24, 4))
    A = sps.csr_array(np.diag([*range(1, 20), 0, 0, 0, 0, 0]).astype(float))
    step = spcomp.compile(SPMM).bind(A=sd.from_scipy(A, 4))
    for chunks in ((4, 4), ((5, 0, 7, 12), 4)):
        found = step(B=da.from_array(B, chunks=chunks))
        np.testing.assert_array_equal(found.compute(), A @ B)
    assert runs["take"] == 6 + 7  # one piece for each block; then those that overlap


def test_statements_of_fixed_arguments_are_computed_once(runs):
    A = sd.from_scipy(csr(13, 13), (5, 4))
    step = spcomp.compile(
        "d[i] = sum(j, A[i, j]); y[j] = alpha * A[i, j] * x[i] / d[i] if d[i] > 0"
    )
    bound = step.bind(A=A)
    for alpha in (1.0, 2.0, 2.0):
        x = np.full(13, alpha)
        found, want = bound(alpha=alpha, x=x), step(A=csr(13, 13), alpha=alpha, x=x)
        np.testing.assert_allclose(found.compute(), want)
    assert runs == {"given": 12}
    assert "sum" in bound.explain(alpha=1.0, x=np.ones(13))


def test_a_number_that_changes_changes_results():
    scale = spcomp.compile("C[i, j] = alpha * A[i, j]").bind(A=sd.from_scipy(csr(), 5))
    for alpha in (1.0, 3.0, 1.0):
        np.testing.assert_array_equal(
            scale(alpha=alpha).compute().toarray(), alpha * csr().toarray()
        )


@pytest.mark.parametrize(("text", "semiring"), PROGRAMS_OF_ALL_KINDS)
def test_all_programs_with_their_matrix_fixed(text, semiring):
    rng = np.random.default_rng(1)
    local = {"A": csr(13, 13, density=0.3), "x": rng.random(13), "alpha": 2, "b": rng.random(6)}
    local |= {"X": rng.random((13, 6)), "X_old": rng.random((13, 6))}
    kernel = spcomp.compile(text, **({"semiring": semiring} if semiring else {}))
    bound = kernel.bind(A=sd.from_scipy(local["A"], (5, 4)))
    for _ in range(2):
        mine = {name: local[name] for name in kernel.arguments if name != "A"}
        far = {n: da.from_array(x, chunks=3) if np.ndim(x) == 2 else x for n, x in mine.items()}
        found = bound(**far)
        want = kernel(A=local["A"], **{n: np.array(x) for n, x in mine.items()})
        several = isinstance(want, tuple)
        for a, b in zip(found, want, strict=True) if several else [(found, want)]:
            np.testing.assert_allclose(full(a.compute()), full(b), rtol=1e-12)
        local["x"], local["alpha"] = local["x"] + 1, 5
