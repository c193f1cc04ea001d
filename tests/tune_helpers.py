"""Programs, matrices and stores for the tests of the tuner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.schedule.step import Trace
from spcomp.tune import Store, Tuned
from spcomp.tune.choice import Choice
from spcomp.tune.problem import fingerprint, versions
from spcomp.tune.store import Record
from spcomp.tune.task import Task
from tests.test_tune_space import spmm

ROWS, FEAT = 400, 64  # rows that all processors prefetch


def matrix(seed: int = 0) -> Any:
    return sps.random_array((ROWS, ROWS), density=0.02, format="csr", dtype=np.float32, rng=seed)


def dense() -> np.ndarray:
    return np.random.default_rng(3).random((ROWS, FEAT), dtype=np.float32)


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path))
    return spcomp.tune.user_store()


def task_of(**changes: Any) -> Task:
    return Task.of(spmm, {"A": matrix(), "B": dense(), **changes})


def tuned(budget: float = 1.5, **options: Any) -> Tuned:
    return spcomp.tune(spmm, A=matrix(), B=dense(), budget=budget, **options)


def keep(store: Store, choice: Choice, kind: str = "any", seed: int = 0) -> None:
    problem = task_of(A=matrix(seed)).problem
    record = Record(
        kind,  # type: ignore[arg-type]
        problem.program, problem.extents_text, problem.matrices_text, fingerprint(), versions(),
        choice.to_json(), 1e-3, 1.5, 1.4, 1.6, created=1.0,
    )  # fmt: skip
    store.add([record])


def prefetching(distance: int) -> Choice:
    trace = spcomp.compile(spmm).specialize(A=matrix(), B=dense()).trace
    steps = tuple(
        (f, replace(s, distance=distance) if s.name == "prefetch" else s) for f, s in trace
    )
    return Choice((), Trace(steps), (("feat", FEAT),))
