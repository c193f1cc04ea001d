"""Two checkouts on the suite in turns: here the same one twice, on a small line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def against(*given):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.against", *map(str, given), "--quick", "--rounds", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_both_sides_are_timed_as_often(tmp_path):
    file = tmp_path / "samples.json"
    done = against(ROOT, "--only", "spmv", "--matrices", "cora", "--seconds", 0.001, "--json", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("spmv cora")
    (line,) = json.loads(file.read_text())
    assert len(line["base"]) == len(line["new"]) == 2
    assert all(sample["seconds"] > 0 for sample in line["base"] + line["new"])


@pytest.mark.long
def test_several_pairs_end_with_their_median():
    done = against(ROOT, "--only", "spmv", "--matrices", "cora", "--seconds", 0.001, "--pairs", 3)
    assert done.returncode == 0, done.stderr
    *pairs, median = done.stdout.splitlines()
    assert len(pairs) == 3
    assert median.split()[-2:] == ["3", "pairs"]


def test_a_checkout_that_is_none_is_said_to_be_so(tmp_path):
    done = against(tmp_path, "--only", "spmv", "--matrices", "cora")
    assert done.returncode != 0
    assert "has ended" in done.stderr
