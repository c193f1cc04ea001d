"""The benchmark of models under torch.compile says how many times as long the others need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")
benchmark: Any = pytest.importorskip("benchmarks.torch")

pytestmark = pytest.mark.torch


def test_a_page_has_a_line_for_each_case_and_way(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    out = tmp_path / "torch.md"
    sizes = ["--nodes", "30", "--edges", "90", "--widths", "4", "--runs", "1"]
    assert benchmark.main([*sizes, "--out", str(out), "--note", "A test."]) == 0
    text = out.read_text()
    assert "A test." in text
    for case in benchmark.CASES:
        for way in benchmark.WAYS:
            assert f"| {case}, F=4, 30 nodes, 90 edges | {way} | " in text
    line = benchmark.Line("x", "forward", {"spcomp": 2.0, "inductor": 5.0, "eager": 1.0}, 0.0)
    assert line.ratio("inductor") == 2.5


def test_networks_are_trained_side_by_side(tmp_path: Any, monkeypatch: Any) -> None:
    training: Any = pytest.importorskip("benchmarks.torch_training")
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    small = training.drawn(60, 400, classes=3, features=5)
    monkeypatch.setattr(training, "graphs", lambda *, quick: iter([small]))
    out, picture = tmp_path / "training.md", tmp_path / "training.svg"
    written = ["--out", str(out), "--picture", str(picture)]
    assert training.main(["--steps", "5", "--hidden", "4", "--quick", *written]) == 0
    text = out.read_text()
    for kind in training.KINDS:
        assert f"| {kind}, arxiv's size | " in text
    assert text.count("0e+00 |\n") == len(training.KINDS)  # all are the same network here
    assert "<svg" in picture.read_text()


def test_a_sample_is_a_part_of_the_graph() -> None:
    training: Any = pytest.importorskip("benchmarks.torch_training")
    graph = training.drawn(80, 500, classes=3, features=5)
    rng = np.random.default_rng(1)
    known = set(map(tuple, graph.edges.T.tolist()))
    for _ in range(5):
        (x, edges, _), at, labels = training.sampled(graph, rng)
        assert len(at) == len(labels) == 20
        rows = [int((graph.x == row).all(1).nonzero()[0, 0]) for row in x]  # nodes by their rows
        assert graph.labels[rows][at].tolist() == labels.tolist()
        assert {(rows[a], rows[b]) for a, b in edges.T.tolist()} <= known
        counts = np.bincount(edges[1].numpy())
        assert counts.max() <= 2 * training.MOST
