"""``spcomp tune`` searches, prints, draws, exports and imports, and ends with Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sps
from click.testing import CliRunner, Result

from spcomp.cli.main import main
from spcomp.tune import Store

ROOT = Path(__file__).parents[1]
KERNEL = str(ROOT / "examples" / "kernel.py")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(tmp_path / "cache"))
    matrix = sps.random_array((200, 200), density=0.05, rng=0, dtype=np.float32)
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix)
    return tmp_path


def invoke(*args: str) -> Result:
    result = CliRunner().invoke(main, ["tune", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def search(folder: Path, *args: str) -> Result:
    data = f"A={folder / 'a.mtx'}"
    return invoke(KERNEL, "csrmm", "--data", data, "--const", "feat=8", "--budget", "1.5", *args)


def test_the_fastest_are_printed(folder):
    result = search(folder)
    assert result.exit_code == 0, result.stderr
    assert "default" in result.stdout
    assert "times as fast as the default" in result.stdout
    assert "csrmm: parallel('i')" in result.stdout


def test_everything_is_printed_as_json(folder):
    result = search(folder, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["trials"][0]["candidate"] == "default"
    assert document["speedup"]["low"] <= document["speedup"]["value"]
    assert document["stopped"] in ("budget", "exhausted")


def test_the_search_is_drawn(folder):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    assert search(folder, "--plot", str(folder / "a.svg")).exit_code == 0
    assert "<svg" in (folder / "a.svg").read_text()


def test_what_is_known_is_exported_and_imported(folder, monkeypatch):
    lines = folder / "known.jsonl"
    result = search(folder, "--export", str(lines))
    assert result.exit_code == 0, result.stderr
    known = lines.read_text()
    assert f"{len(known.splitlines())} records written to {lines}" in result.stderr
    assert '"kind": "any"' in known
    monkeypatch.setenv("SPCOMP_CACHE_DIR", str(folder / "other"))
    result = invoke("--import", str(lines), "--export", str(folder / "again.jsonl"))
    assert f"{len(known.splitlines())} records read" in result.stderr
    assert (folder / "again.jsonl").read_text() == known


def test_a_line_that_is_no_record_is_an_error(folder):
    (folder / "bad.jsonl").write_text('{"kind": 3}\n')
    result = invoke("--import", str(folder / "bad.jsonl"))
    assert result.exit_code == 1
    assert "bad.jsonl:1: no record of the tuner" in result.stderr


def test_a_file_of_bytes_is_no_file_of_records(folder):
    (folder / "bad.jsonl").write_bytes(b"\xff\xfe\x00")
    result = invoke("--import", str(folder / "bad.jsonl"))
    assert result.exit_code == 1
    assert "bad.jsonl:1: no record of the tuner" in result.stderr


@pytest.mark.parametrize(
    ("path", "why"),
    [("a.txt", "draws no 'a.txt'"), ("a", "draws no 'a'"), ("none/a.svg", "there is no folder")],
)
def test_where_nothing_can_be_drawn_nothing_is_searched(folder, path, why):
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    result = search(folder, "--plot", path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert why in result.stderr


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ([], "give FILE"),
        ([KERNEL, "csrmm"], "give the matrix"),
        ([KERNEL, "--data", "A=a.mtx"], "name one of"),
        ([KERNEL, "csrmm", "--data", "A=a.txt"], "NAME=FILE"),
        ([KERNEL, "csrmm", "--strategy", "luck"], "luck"),
        ([KERNEL, "csrmm", "--data", "A=a.mtx", "--budget", "0"], "'--budget': 0 is not"),
        ([KERNEL, "csrmm", "--data", "A=a.mtx", "--budget", "nan"], "'--budget': nan is not"),
        ([KERNEL, "csrmm", "sddmm"], "[NAME]"),
    ],
)
def test_wrong_usage_is_explained(args, why):
    result = invoke(*args)
    assert result.exit_code == 2
    assert why in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_an_interrupt_prints_what_was_found(folder):
    script = (  # a test that runs in the background would hand on that signals are ignored
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        " runpy.run_module('spcomp', run_name='__main__')"
    )
    command = [sys.executable, "-c", script, "tune", KERNEL, "csrmm", "--json"]
    command += ["--data", f"A={folder / 'a.mtx'}", "--const", "feat=8", "--budget", "200"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        store = Store(folder / "cache" / "tuning.db")
        end = time.monotonic() + 120
        while time.monotonic() < end and not (store.path and store.path.exists()):
            time.sleep(0.2)
        while time.monotonic() < end and not store.records():
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    document = json.loads(out)
    assert document["stopped"] == "interrupted"
    assert len(document["trials"]) > 1
    assert [r.kind for r in store.records()].count("any") == 1
