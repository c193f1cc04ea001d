"""The benchmark of the tuner finds something for each operator, and writes what it found."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sps

from benchmarks import tune


def test_all_kinds_of_matrices_are_made_and_differ():
    shapes = set()
    for kind, make in tune.KINDS.items():
        matrix = sps.csr_matrix(make(64 if kind not in ("power law", "stencil") else 16))
        assert matrix.nnz > 0, kind
        shapes.add((matrix.shape, matrix.nnz))
    assert len(shapes) == len(tune.KINDS) >= 8


@pytest.mark.parametrize("operator", tune.OPERATORS)
def test_a_line_says_what_was_found(tmp_path, monkeypatch, operator):
    monkeypatch.setitem(tune.KINDS, "band", lambda _: tune.band(500, 2))
    found = tmp_path / "tune.json"
    given = ["--budget", "1", "--only", operator, "--kinds", "band", "--json", str(found)]
    assert tune.main([*given, "--table", str(tmp_path / "tune.md"), "--note", "A test."]) == 0
    (line,) = json.loads(found.read_text())["lines"]
    assert (line["operator"], line["kind"], line["rows"]) == (operator, "band", 500)
    assert line["low"] <= line["speedup"] <= line["high"]
    text = (tmp_path / "tune.md").read_text()
    assert "A test." in text
    assert f"| {operator} | band | 2494 |" in text


def test_the_pattern_of_a_result_is_given_for_its_axis():
    csr = tune.band(20, 1)
    program = tune.programs.parse(tune.programs.SDDMM)
    dense = {"X": np.ones((20, 4)), "Y": np.ones((20, 4))}
    assert set(tune.arguments_of(program, csr, dense)) == {"A", "B", "J"}
