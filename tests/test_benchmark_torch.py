"""The benchmark of models under torch.compile says how many times as long the others need."""

from __future__ import annotations

from typing import Any

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
