"""How benchmarks.train reads xgboost's trees and judges a model on kinds that it never saw."""

from __future__ import annotations

import pytest

from benchmarks.kinds import KINDS
from benchmarks.train import Left, Row, _tree, report
from spcomp.tune.weights import Weights

SAVED = {
    "left_children": [1, -1, 3, -1, -1],
    "right_children": [2, -1, 4, -1, -1],
    "split_indices": [1, 0, 0, 0, 0],
    "split_conditions": [2.5, 0.5, 1.0, -1.0, 2.0],
    "default_left": [0, 0, 1, 0, 0],
}


def test_a_tree_of_xgboost_is_read_with_its_way_for_what_is_missing():
    tree = _tree(SAVED)
    nan = float("nan")
    rows = {(0.0, 2.0): 0.5, (0.0, 2.5): -1.0, (1.0, 3.0): 2.0, (nan, nan): -1.0}
    for row, value in rows.items():
        assert tree.value(row) == value
    weights = Weights(("a", "b"), (tree,), 0.0, 1.1)
    assert Weights.from_json(weights.to_json()) == weights


def test_a_model_is_judged_by_what_its_choices_were_measured_at():
    case = ("spmv", "band", 100)
    expected, speedups = {"default": 1.0, "a": 1.3, "b": 1.2}, {"default": 1.0, "a": 0.5, "b": 2.0}
    left = Left(case, expected, speedups, 0.9)
    assert left.gained(1.1) == 0.5
    assert left.gained(1.4) == 1.0
    text = report([left])
    assert "from 1.05 on: 0.500 of the default" in text
    assert "from 1.40 on: 1.000 of the default" in text
    assert "the best candidate each time: 2.000" in text
    assert Row("spmv", "band", 100, "a", 0.5, 0.4, 0.0, {}).case == case


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_have_about_as_many_elements_as_asked_for(kind):
    matrix = KINDS[kind](30_000)
    assert 10_000 < matrix.nnz < 60_000
