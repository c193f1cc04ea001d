"""Stores of the user's own: ``compile(..., tuned=store)``, or the path of one."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError
from spcomp.schedule.step import Trace
from spcomp.tune import Store
from spcomp.tune.choice import Choice
from spcomp.tune.decisions import NONE
from tests.test_tune_space import spmm
from tests.tune_helpers import dense, keep, matrix, prefetching
from tests.tune_helpers import store as store

LINE = "C[i, k] = A[i, j] * B[j, k]"


@pytest.fixture
def own(tmp_path, store) -> Store:
    """A store that is not the user's, which is empty, and has a winner."""
    found = Store(tmp_path / "own.db")
    keep(found, prefetching(4), "as_is")
    return found


@pytest.mark.parametrize("kind", [lambda own: own, lambda own: own.path, lambda own: str(own.path)])
def test_winners_of_a_store_of_ones_own_are_applied(own, kind):
    kernel = spcomp.compile(spmm, tuned=kind(own))
    want = spcomp.compile(spmm)(A=matrix(), B=dense())
    np.testing.assert_array_equal(kernel(A=matrix(), B=dense()), want)
    assert "1.50 (1.40 to 1.60) times as fast" in kernel.explain()
    other = spcomp.compile(spmm, tuned=True)
    other(A=matrix(), B=dense())
    assert other.explain().startswith(NONE)
    again = pickle.loads(pickle.dumps(kernel))
    np.testing.assert_array_equal(again(A=matrix(), B=dense()), want)
    assert "1.50 (1.40 to 1.60) times as fast" in again.explain()


def test_so_are_those_of_index_notation(own):
    kernel = spcomp.compile(LINE, tuned=own)
    assert NONE in kernel.explain(A=matrix(), B=dense())
    spcomp.tune(LINE, A=matrix(), B=dense(), budget=1, store=own)
    kinds = {record.kind for record in own.records()}
    kernel = spcomp.compile(LINE, tuned=own)
    np.testing.assert_allclose(kernel(A=matrix(), B=dense()), matrix() @ dense(), rtol=1e-4)
    assert "any" in kinds or NONE in kernel.explain(A=matrix(), B=dense())


@pytest.mark.parametrize("program", [spmm, LINE])
def test_a_bind_for_many_calls_asks_the_same_store(own, program, monkeypatch):
    asked = []

    def winner(store, *key):
        asked.append(store.path)

    monkeypatch.setattr(Store, "winner", winner)
    bound = spcomp.compile(program, tuned=own).bind(A=matrix(), calls=1000)
    np.testing.assert_allclose(bound(B=dense()), matrix() @ dense(), rtol=1e-4)
    assert set(asked) == {own.path}


def test_a_store_in_memory_serves_kernels_and_is_empty_elsewhere():
    own = Store(None)
    keep(own, Choice(), "as_is")
    kernel = spcomp.compile(spmm, tuned=own)
    kernel(A=matrix(), B=dense())
    assert "1.50" in kernel.explain()
    assert pickle.loads(pickle.dumps(own)).records() == []


def test_a_path_may_be_text(tmp_path):
    assert Store(str(tmp_path / "a.db")).path == tmp_path / "a.db"
    with pytest.raises(ArgumentError, match="argument path: got int"):
        Store(3)


@pytest.mark.parametrize("wrong", ["", "none.db", Path("none.db")])
def test_a_path_without_a_store_is_refused(wrong):
    with pytest.raises(
        ArgumentError, match=f"argument tuned: there is no file '{wrong}'"
    ) as caught:
        spcomp.compile(spmm, tuned=wrong)
    assert "store=spcomp.tune.Store(path)" in caught.value.hint


def test_other_kinds_and_decided_programs_are_refused_as_with_true(own):
    with pytest.raises(ArgumentError, match="argument tuned: got int, expected True or False, a S"):
        spcomp.compile(spmm, tuned=3)
    with pytest.raises(ArgumentError, match="given already"):
        spcomp.compile(spmm, trace=Trace(), tuned=own)
    with pytest.raises(ArgumentError, match="on CPUs only"):
        spcomp.compile(spmm, target="cuda:sm_90", tuned=own)
