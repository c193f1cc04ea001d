"""The example of fused attention: one kernel, right for any mask, the same bits at any threads."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import spcomp
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.stmt import Alloc
from spcomp.ir.visitor import walk

EXAMPLE = Path(__file__).parents[1] / "examples" / "sparse_attention.py"
SIZE = 64


@cache
def example():
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def kernel():
    return spcomp.compile(example().scheduled())


@cache
def inputs():
    rng = np.random.default_rng(0)
    shape = (3, SIZE, example().WIDTH)
    return tuple(rng.standard_normal(shape).astype(np.float32) for _ in range(3))


def run(compiled, mask):
    made = example()
    q, k, v = inputs()
    ours = {"Q": made.blocked(q), "K": made.blocked(k), "V": made.striped(v)}
    return compiled(**ours, **made.in_blocks(mask), scale=0.25).reshape(3, SIZE, -1)


MASKS = {
    "band": lambda: example().band(SIZE, 20),
    "butterfly": lambda: example().butterfly(SIZE),
    "everything": lambda: np.ones((SIZE, SIZE), bool),
    "a diagonal": lambda: np.eye(SIZE, dtype=bool),
    "random": lambda: (
        np.eye(SIZE, dtype=bool) | (np.random.default_rng(1).random((SIZE,) * 2) < 0.1)
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_attention_under_a_mask_is_what_numpy_computes(name):
    mask = MASKS[name]()
    expected = example().dense(*inputs(), mask, 0.25)
    np.testing.assert_allclose(run(kernel(), mask), expected, rtol=1e-4, atol=1e-5)


def test_a_query_that_sees_nothing_gets_nothing():
    mask = MASKS["band"]()
    mask[5], mask[16:32] = False, False  # a row of a block, and all the rows of one
    result = run(kernel(), mask)
    assert not result[:, 5].any()
    assert not result[:, 16:32].any()
    assert np.isfinite(result).all()


def test_the_schedule_only_changes_how_it_runs():
    mask = MASKS["random"]()
    plain = run(spcomp.compile(example().attention), mask)
    np.testing.assert_allclose(run(kernel(), mask), plain, rtol=1e-4, atol=1e-5)


def test_bits_are_the_same_at_any_number_of_threads(monkeypatch):
    results = set()
    for count in (1, 2, 5):
        monkeypatch.setenv("SPCOMP_NUM_THREADS", str(count))
        results.add(run(kernel(), MASKS["band"]()).tobytes())
    assert len(results) == 1


def test_scores_are_never_stored_for_more_than_a_block_of_queries():
    func = example().scheduled().func
    large = [n.buffer for n in walk(func.body) if isinstance(n, Alloc)]
    assert {b.name for b in large if isinstance(b, SparseBuffer)} == {"KT", "VP"}
