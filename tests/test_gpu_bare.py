"""The benchmarks' command on a machine that lacks much: what fails there ends nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.contenders import MissingError
from benchmarks.gpu import checks, report, run, worker
from benchmarks.gpu.devices import Host
from benchmarks.gpu.lines import Line, select

ROOT = Path(__file__).parents[1]
BARE = """
import sys
from importlib.machinery import PathFinder

THERE = set("{there}".split()) | set(sys.stdlib_module_names)

class Bare:
    def find_spec(self, name, path=None, target=None):
        if path is None and name.partition(".")[0] not in THERE:
            spec = PathFinder.find_spec(name)
            if spec is not None and "site-packages" in str(spec.origin or spec.loader):
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Bare())
"""  # a sitecustomize.py
THERE = """numpy scipy llvmlite networkx numba numba_cuda rich click torch triton cupy cupyx cuda
 sympy mpmath filelock fsspec jinja2 markupsafe typing_extensions pygments markdown_it mdurl yaml
 setuptools torchgen functorch packaging _distutils_hack"""


@pytest.fixture
def bare(tmp_path):
    """The environment of a machine that has what THERE says, and no pytest."""
    text = BARE.format(there=" ".join(THERE.split()))
    (tmp_path / "sitecustomize.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPCOMP_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def test_what_the_machine_with_a_gpu_lacks_is_not_imported(bare, tmp_path):
    def python(*args):
        return subprocess.run(
            [sys.executable, *args], cwd=ROOT, capture_output=True, text=True, env=bare, check=False
        )

    assert "No module named 'pytest'" in python("-c", "import pytest").stderr
    names = [str(path.relative_to(ROOT)) for path in checks.marked()]
    assert {"tests/test_gpu_device.py", "tests/test_cuda_kernels_device.py"} <= set(names)
    ended = python("-m", "benchmarks.gpu.plain", "-1", *names)  # all are imported, none is run
    assert ended.stdout.startswith("0 passed, 0 failed, 0 skipped"), ended.stdout
    modules = ", ".join(f"benchmarks.gpu.{name}" for name in worker.MODULES)
    ended = python("-c", f"import {modules}, benchmarks.gpu.run, benchmarks.gpu.worker")
    assert ended.returncode == 0, ended.stderr
    chosen = "--only", "spmv", "--matrices", "cora", "--dry-run", "--minutes", "1"
    ended = python("-m", "benchmarks", "--target", "cuda", *chosen, "--out", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert report.load(tmp_path / "cuda-emulator.json")[2][0].times


def test_tests_end_by_themselves_and_those_with_few_cases_come_first(tmp_path):
    text = """
import time, pytest
pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("a", range(100))
def test_many(a):
    time.sleep(0.05)

def test_single():
    print("single", flush=True)
"""
    (tmp_path / "test_slow.py").write_text(text)
    command = [sys.executable, "-m", "benchmarks.gpu.plain", "0.3", "test_slow.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=env, check=False
    )
    lines = ended.stdout.splitlines()
    assert lines[0] == "single"
    counts = [int(number) for number in re.findall(r"\d+", lines[-1])]
    assert sum(counts) == 101
    assert 1 <= counts[0] < 90


def test_a_rival_that_cannot_be_imported_is_a_contender_that_does_not_take_part(monkeypatch):
    original = worker.import_module

    def broken(name):
        if name.endswith("with_cusparse"):
            raise AttributeError("it is for another CUDA")
        return original(name)

    monkeypatch.setattr(worker, "import_module", broken)
    found = worker.contenders("spmv", SimpleNamespace(is_gpu=True))
    assert {"spcomp", "torch.sparse", "CUDA C++", "with_cusparse"} <= set(found)
    with pytest.raises(MissingError, match="AttributeError: it is for another CUDA"):
        found["with_cusparse"](SimpleNamespace(line=Line("spmv", "cora")))


def test_a_bandwidth_that_cannot_be_measured_ends_nothing():
    class Full(Host):
        def copy_bandwidth(self):
            raise RuntimeError("out of memory")

    assert worker._bandwidth(Full()) == 0.0
    assert worker._bandwidth(Host()) > 0


def test_a_file_that_cannot_be_written_keeps_no_other_from_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "picture", lambda *_: 1 / 0)
    state = run.Run(select(["spmv"], None, None), tmp_path, tmp_path)
    state.close()
    assert "cuda-unknown.svg was not written: ZeroDivisionError" in capsys.readouterr().err
    assert len(report.load(tmp_path / "cuda-unknown.json")[2]) == 6
    assert (tmp_path / "cuda-unknown.md").exists()


def test_tests_and_workers_that_do_not_start_end_nothing(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("no process can be started")

    monkeypatch.setattr(checks, "run", broken)
    monkeypatch.setattr(run, "WORKER", [sys.executable, "-c", "import os; os._exit(7)"])
    found = run.start(select(["spmv"], ["cora"], None), tmp_path, 30.0, logs=tmp_path)
    assert found.tests["summary"] == "they could not be run: OSError: no process can be started"
    assert "no worker could start" in found.rows["spmv cora"].missing["all"]


def test_what_tests_print_may_be_no_text(tmp_path, monkeypatch):
    script = tmp_path / "prints.py"
    script.write_text(r"import sys; sys.stdout.buffer.write(b'FAILED \xff\n3 passed')")
    original = subprocess.run

    def instead(_, **options):
        return original([sys.executable, str(script)], **options)

    monkeypatch.setattr(checks.subprocess, "run", instead)
    found = checks.run(30.0, tmp_path)
    assert found["summary"] == "3 passed"
    assert found["failed"] == ["FAILED \ufffd"]
