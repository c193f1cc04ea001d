"""Every example is a program that checks its own result; each runs as a user would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "kernel.py")
MATRIX = """%%MatrixMarket matrix coordinate pattern symmetric
4 4 4
1 1
2 1
3 2
4 3
"""


def run(path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(path), *args]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.sample(16, long=2)
def test_an_example_runs_and_its_result_is_right(path):
    if "import torch" in path.read_text():
        pytest.importorskip("torch", reason="needs the torch extra")
    if "import dask" in path.read_text():
        pytest.importorskip("distributed", reason="needs the dask extra")
    done = run(path)
    assert done.returncode == 0, done.stderr
    assert "max error" in done.stdout


def test_the_graph_network_runs_on_a_matrix_market_file(tmp_path):
    (tmp_path / "path.mtx").write_text(MATRIX)
    done = run(ROOT / "examples" / "gcn_layer.py", str(tmp_path / "path.mtx"))
    assert done.returncode == 0, done.stderr
    assert "GCN over 4 nodes" in done.stdout


def test_the_example_of_the_readme_runs(tmp_path):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "readme.py").write_text(block[1] + "\nprint(C.shape, C.sum())\n")
    done = run(tmp_path / "readme.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(34, 64) ")


def test_the_fit_of_a_decomposition_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    (tmp_path / "small.tns").write_text("1 1 1 2\n2 1 2 1\n2 2 2 3\n")
    picture = tmp_path / "fit.svg"
    done = run(
        ROOT / "examples" / "mttkrp_cp_als.py",
        *("--tensor", str(tmp_path / "small.tns"), "--plot", str(picture)),
    )
    assert done.returncode == 0, done.stderr
    assert "small.tns, 3 elements in rank 8" in done.stdout
    assert "<svg" in picture.read_text()
