"""The tuner for GPUs: space, features and store need none, and a search says what is missing."""

from __future__ import annotations

import random
from math import isfinite
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import BackendError
from spcomp.tune import get_flatten_name, get_itervar_feature, suggest
from spcomp.tune.bound import Bounds
from spcomp.tune.choice import Choice
from spcomp.tune.problem import fingerprint, versions
from spcomp.tune.search import Session
from spcomp.tune.space import Candidate, Space
from spcomp.tune.store import Record
from spcomp.tune.task import Task
from tests.emulated import EMULATED
from tests.layers import source
from tests.tune_helpers import store as store

ROWS, FEAT = 40, 12
GRID = {"ann_0": "blockIdx.x", "ann_3": "threadIdx.x", "ann_4": "threadIdx.y"}


def arguments(name: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    csr = sps.random_array((ROWS, ROWS), density=0.15, format="csr", dtype=np.float32, rng=1)
    kernel = spcomp.compile(source(name))
    named: dict[str, Any] = {}
    for param in kernel.signature.params:
        if param.kind != "in":
            continue
        if any("sparse" in axis for axis in param.layout):
            named[param.name] = csr
        elif param.layout:
            shape = (ROWS,) if len(param.layout) == 1 else (ROWS, FEAT)
            named[param.name] = rng.random(shape, dtype=np.float32)
    return named


def task_of(name: str = "csrmm", target: str = EMULATED) -> Task:
    return Task.of(source(name), arguments(name), target=target)


def candidates(space: Space) -> list[Candidate]:
    """Return the formats of *space*, and each with every value of every decision."""
    chosen: dict[Choice, Candidate] = {}
    for formats in space.formats:
        plain = Candidate(formats)
        for name, values in space.dimensions(formats).items():
            for candidate in (plain.with_decision(name, value) for value in values):
                choice = space.choice(candidate)
                assert choice is not None, candidate
                chosen.setdefault(choice, candidate)
    return list(chosen.values())


def test_gpus_have_decisions_of_their_own():
    space = Space.of(task_of().asked)
    assert {"block", "rows"} <= space.dimensions(()).keys()
    assert "threads" not in space.dimensions(())
    default, wide = (space.choice(Candidate(decisions=d)) for d in ((), (("block", 256),)))
    assert default is not None
    assert wide is not None
    assert wide.trace is not None
    assert "256" not in str(default.trace)
    assert Choice.from_json(wide.to_json()) == wide


def test_features_are_finite_and_have_slots_for_threads():
    task = task_of()
    space = Space.of(task.asked)
    bounds = Bounds(space, dict(task.problem.matrices))
    assert bounds.machine.threads == 108
    rng = random.Random(0)
    drawn = [space.random(rng, formats, 2) for formats in space.formats for _ in range(2)]
    for candidate in drawn:
        assert all(map(isfinite, bounds.features(candidate).values())), candidate
        assert isfinite(bounds.estimate(candidate))
        assert bounds.least(candidate, Candidate(), 1.0) < 1.0
    func = space.scheduled(Candidate())
    assert func is not None
    rows = get_itervar_feature(func)
    found = {name.rpartition(".")[2] for name, value in _flat(rows).items() if value}
    assert set(GRID) <= found


def _flat(rows: Any) -> dict[str, float]:
    flat = spcomp.tune.flatten_itervar_feature(rows)
    return dict(zip(get_flatten_name(rows), flat, strict=True))


def test_a_search_says_what_is_missing():
    with pytest.raises(BackendError, match="an emulator is no GPU"):
        Session(task_of(), budget=1)
    with pytest.raises(BackendError, match=r"cuda:sm_90 cannot be timed here.*\n.*suggest"):
        spcomp.tune(source("csrmm"), arguments=arguments("csrmm"), options={"target": "cuda:sm_90"})


def test_a_stored_winner_is_suggested_for_its_gpu_only(store):
    task = task_of(target="cuda:sm_90")
    space = Space.of(task.asked)
    choice = space.choice(Candidate(decisions=(("block", 64),)))
    assert choice is not None
    problem = task.problem
    store.add([Record(
        "any", problem.program, problem.extents_text, problem.matrices_text, task.asked.machine,
        versions(), choice.to_json(), 1e-6, 1.5, 1.4, 1.6, created=1.0,
    )])  # fmt: skip
    named = arguments("csrmm")
    found = suggest(source("csrmm"), options={"target": "cuda:sm_90"}, **named)
    assert (found.source, found.choice) == ("store", choice)
    other = suggest(source("csrmm"), options={"target": "cuda:sm_80"}, **named)
    assert other.source == "default"
    assert fingerprint() not in (task.asked.machine, task_of().asked.machine)


@pytest.mark.long
@pytest.mark.parametrize("name", ["csrmm", "spmv"])
def test_every_decision_is_right(name):
    task = task_of(name)
    space = Space.of(task.asked)
    listed = candidates(space)
    assert len(listed) >= 8
    want = None
    for candidate in listed:
        choice = space.choice(candidate)
        assert choice is not None
        kernel = choice.kernel(task.func, task.options)
        got = task.run(kernel.bind(**task.matrices))
        want = task.run(task.default.bind(**task.matrices)) if want is None else want
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=str(candidate))
