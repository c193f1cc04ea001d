"""The benchmarks on a GPU, as far as they run without one: plans, tables, rivals on a CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sps

from benchmarks.contenders import MissingError
from benchmarks.gpu import (
    checks,
    graphs,
    harness,
    plain,
    report,
    run,
    worker,
)
from benchmarks.gpu.devices import DeviceLostError, Host, Ready
from benchmarks.gpu.harness import Row, Times
from benchmarks.gpu.lines import SHARES, SUITE, Line, allowance, select, weight
from benchmarks.gpu.picture import picture
from benchmarks.gpu.problems import problem, softmax
from benchmarks.problem import WrongResultError

ROOT = Path(__file__).parents[1]


class MadeUp:
    """A timer: calls take what they return, in seconds; nobody waits."""

    def __init__(self):
        self.now, self.order = 0.0, []

    def start(self, call, *, flush, lead, number):
        took = call()
        self.order.append((took, flush))
        self.now += took * number
        return took * (2 if flush else 1)

    def seconds(self, token):
        return token

    def graph(self, call):
        if call() > 5e-5:
            raise RuntimeError("it waits")
        return call


def timed(cold, warm=None, rounds=20):
    return {mode: Times(t, t, t, rounds) for mode, t in (("cold", cold), ("warm", warm or cold))}


def made_up_rows():
    rows = [
        Row(Line("spmm", "arxiv", 128), {"spcomp": timed(1e-4), "cuSPARSE": timed(2e-4)}),
        Row(Line("spmm", "cora", 128), {"spcomp hyb": timed(4e-6), "cuSPARSE": timed(2e-6)}),
        Row(Line("spmv", "arxiv"), {"spcomp": timed(1e-5), "a|b": timed(8e-5)}),
        Row(Line("sddmm", "arxiv", 32), missing={"spcomp": "BackendError: no"}),
    ]
    rows[0].variants["cuSPARSE"], rows[0].cold, rows[0].gather = "CSR 2", 3e8, 6e8
    rows[2].wrong["Triton"] = "3 wrong"
    return rows


# --- lines and time -------------------------------------------------------------------------------


def test_the_suite_has_every_operation_on_known_workloads_once():
    assert {line.operation for line in SUITE} == set(SHARES)
    assert {line.workload for line in SUITE} == set(graphs.WORKLOADS)
    assert len({line.label for line in SUITE}) == len(SUITE)
    assert {line.feat for line in SUITE if line.operation == "spmm"} == {32, 64, 128, 256, 512}
    assert [line.label for line in select(["spmv"], ["cora"], None)] == ["spmv cora"]


def test_shares_of_time_add_up_and_what_is_not_used_goes_to_the_others():
    assert math.isclose(sum(map(weight, SUITE)), 1)
    for operation, share in SHARES.items():
        own = [weight(line) for line in SUITE if line.operation == operation]
        assert math.isclose(sum(own), share)
    assert allowance(SUITE[-1:], 7.0) == pytest.approx(7)
    assert allowance(SUITE, -1.0) == 0.0
    assert allowance(SUITE[1:], 100.0) > allowance(SUITE, 100.0) * 0.5


# --- workloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", graphs.WORKLOADS)
def test_small_workloads_are_well_formed_and_the_same_every_time(name):
    one, again = (graphs.WORKLOADS[name][1](np) for _ in range(2))
    for f in fields(one):
        np.testing.assert_equal(getattr(one, f.name), getattr(again, f.name))
    if isinstance(one, graphs.Relations):
        indptr_i, indices_i, indptr_j, indices_j = one.levels
        assert indptr_i[-1] == len(indices_i)
        assert indptr_j[-1] == len(indices_j) == len(one.values)
        rows = np.repeat(indices_i, np.diff(indptr_j))
        np.testing.assert_array_equal(rows, one.row)
        kinds = np.repeat(np.arange(one.count), np.diff(indptr_i))
        np.testing.assert_array_equal(np.repeat(kinds, np.diff(indptr_j)), one.relation)
        return
    csr = sps.csr_array((one.values, one.indices, one.indptr), shape=one.shape)
    csr.check_format()
    assert csr.has_canonical_format
    assert (one.indptr.dtype, one.indices.dtype, one.values.dtype) == ("i4", "i4", "f4")
    assert one.values.min() > 0


def test_graphs_have_the_shapes_that_they_are_named_after():
    skewed = graphs.rmat(np, 5000, 40_000, 1, graphs.SOCIAL)
    lengths = np.diff(skewed.indptr)
    assert lengths.max() > 20 * lengths.mean()
    matrix = sps.csr_array((skewed.values, skewed.indices, skewed.indptr), shape=skewed.shape)
    assert ((matrix != 0) != (matrix != 0).T).nnz == 0
    assert np.diff(graphs.uniform(np, 5000, 10, 3).indptr).max() == 10
    stencil = graphs.laplacian(np, 5)
    assert stencil.nnz == 7 * 125 - 6 * 25
    assert np.diff(graphs.power(np, 3000, 30_000, 5).indptr).argmax() == 0
    seen = graphs.band(np, 50, 3)
    at = np.arange(50)
    dense = sps.csr_array((seen.values, seen.indices, seen.indptr), shape=seen.shape).toarray()
    np.testing.assert_array_equal(dense != 0, np.abs(at[:, None] - at) <= 3)


# --- the right answer -----------------------------------------------------------------------------


def test_a_wrong_result_is_found_and_rounding_is_not():
    device, line = Host(), Line("spmm", "arxiv", 32)
    csr = device.workload("arxiv")
    work = problem(line, csr, device)
    matrix = sps.csr_array((csr.values, csr.indices, csr.indptr), shape=csr.shape)
    right = (matrix.astype(float) @ work.arrays["B"].astype(float)).astype(np.float32)
    work.check(right, "right")
    rounded = matrix @ work.arrays["B"].astype(np.float16).astype(np.float32)
    work.check(rounded, "rounded", 2.0**-11)
    for changed in (rounded, device.empty(right.shape), right * 1.001):
        with pytest.raises(WrongResultError, match="compared are wrong"):
            work.check(changed, "wrong")
    with pytest.raises(WrongResultError, match="shape"):
        work.check(right.T, "turned")
    longest = int(np.diff(csr.indptr).argmax())
    spoilt = right.copy()
    spoilt[longest, 5] += 0.01
    with pytest.raises(WrongResultError, match=r"1 of \d+ compared"):
        work.check(spoilt, "one element")


def test_the_softmax_of_the_reference():
    weights = softmax(np.array([1.0, 2.0, 1000.0, -5.0]), np.array([0, 2, 2, 4]))
    np.testing.assert_allclose(weights, [1 / (1 + math.e), math.e / (1 + math.e), 1, 0])


# --- times ----------------------------------------------------------------------------------------


def test_contenders_take_turns_and_their_order_alternates():
    timer = MadeUp()
    found = harness.race(timer, {"a": lambda: 1.0, "b": lambda: 2.0}, 30.0, lambda: timer.now)
    assert {n: (m["cold"].median, m["warm"].median) for n, m in found.items()} == {
        "a": (2.0, 1.0),
        "b": (4.0, 2.0),
    }
    raced = timer.order[2:]  # after a call of each that finds out what the host takes
    assert [took for took, flush in raced if flush][:4] == [1.0, 2.0, 2.0, 1.0]
    assert found["a"]["cold"].rounds == found["b"]["warm"].rounds == 10
    slow = harness.race(timer, {"a": lambda: 1.0, "b": lambda: 99.0}, 1e9, lambda: timer.now)
    assert slow["a"]["warm"].rounds == harness.MOST
    assert slow["b"]["warm"].rounds == harness.SLOW_ROUNDS


def test_a_race_has_enough_rounds_but_not_for_ever():
    assert not harness.enough(harness.LEAST - 1, 1.5, 1.0)
    assert harness.enough(harness.LEAST, 1.5, 1.0)
    assert harness.enough(harness.FEWEST, 2.5, 1.0)
    assert not harness.enough(harness.FEWEST - 1, 99.0, 1.0)


def test_medians_and_tenths():
    assert harness.times([3.0, 1.0, 2.0]) == Times(2.0, 1.0, 3.0, 3)
    assert harness.times([float(n) for n in range(20)]) == Times(9.5, 2.0, 17.0, 20)
    assert harness.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert harness.geometric_mean([]) is None


def test_the_fastest_right_variant_takes_part_and_failures_are_noted():
    device = Host()
    work = problem(Line("spmv", "cora"), device.workload("cora"), device)
    csr, x = work.pattern, work.arrays["B"]
    matrix = sps.csr_array((csr.values, csr.indices, csr.indptr), shape=csr.shape)

    def slow():
        time.sleep(0.003)
        return matrix @ x

    def fail():
        raise RuntimeError("out of\nmemory")

    def absent(_):
        raise MissingError("no such library")

    row = Row(work.line)
    variants = {
        "slow": Ready(slow),
        "fast": Ready(lambda: matrix @ x),
        "wrong": Ready(lambda: 2 * x),
        "fails": Ready(fail),
    }
    found = {
        "best": lambda _: variants,
        "wrong": lambda _: variants["wrong"],
        "fails": lambda _: variants["fails"],
        "absent": absent,
        "rough": lambda _: Ready(lambda: matrix @ x, rounding=2.0**-11),
        "blocked": absent,
    }
    row.missing["blocked"] = "it ended the process"
    begun = []
    harness.run_line(work, found, 0.0, row, begun.append)
    assert row.variants == {"best": "fast"}
    assert set(row.times) == {"best", "rough"}
    assert row.rival("cold")[0] == "best"
    assert "compared are wrong" in row.wrong["wrong"]
    assert row.missing["fails"] == "RuntimeError: out of memory"
    assert row.missing["absent"] == "MissingError: no such library"
    assert row.missing["blocked"] == "it ended the process"
    assert "blocked" not in begun
    assert {"graph", "loop"} <= set(row.times["best"])


def test_calls_that_cannot_be_recorded_have_no_graph():
    row = Row(Line("spmv", "cora"))
    assert set(harness.launches(MadeUp(), lambda: 1e-6, row, "quick")) == {"loop", "graph"}
    assert set(harness.launches(MadeUp(), lambda: 1e-4, row, "waits")) == {"loop"}
    assert row.missing == {"waits as a graph": "RuntimeError: it waits"}


# --- workers --------------------------------------------------------------------------------------


class Breaks(Host):
    """A device that is lost as soon as something fails on it."""

    def synchronize(self):
        raise DeviceLostError("illegal address")


def test_when_the_gpu_is_lost_the_process_ends_and_says_why(monkeypatch):
    def prepare(_):
        raise RuntimeError("launch failed")

    monkeypatch.setattr(worker, "contenders", lambda *_: {"spcomp": prepare, "other": prepare})
    events = []
    with pytest.raises(DeviceLostError):
        worker.measure(select(["spmv"], None, None), Breaks(), time.time() + 9, {}, events.append)
    assert [e.get("who") for e in events[:-1]] == ["operands", "spcomp"]
    assert "launch failed; the GPU was lost: illegal address" in events[-1]["lost"]


def test_what_was_measured_before_the_gpu_was_lost_is_kept(monkeypatch):
    def right(work):
        csr = work.pattern
        matrix = sps.csr_array((csr.values, csr.indices, csr.indptr), shape=csr.shape)
        return Ready(lambda: matrix @ work.arrays["B"])

    monkeypatch.setattr(worker, "contenders", lambda *_: {"spcomp": right})
    events = []
    with pytest.raises(DeviceLostError):
        worker.measure(select(["spmv"], None, None), Breaks(), time.time() + 9, {}, events.append)
    assert [next(iter(e)) for e in events[3:]] == ["row", "begin", "row", "lost"]
    assert events[3]["partial"]
    assert events[5]["row"]["missing"] == {"afterwards": "illegal address"}


def test_without_time_there_are_rows_that_say_so():
    events = []
    worker.measure(select(["spmv"], None, None), Host(), 0.0, {}, events.append)
    assert len(events) == 6
    assert all(e["row"]["missing"] == {"all": "no time was left"} for e in events)


def test_a_worker_that_ends_is_followed_by_one_without_what_ran_last(tmp_path):
    first, second = lines = select(["spmv"], ["cora", "arxiv"], None)
    state = run.Run(lines, tmp_path, tmp_path)
    state.take({"begin": first.label, "who": "spcomp"})
    state.gone("status -11")
    assert state.blocked == {first.label: {"spcomp": "status -11"}}
    assert state.left == lines
    state.gone("it did not start")
    assert state.left == lines
    state.take({"begin": first.label, "who": "timing"})
    state.take({"lost": "illegal address"})
    state.gone("status 3")
    assert state.rows[first.label].missing == {"spcomp": "status -11", "timing": "illegal address"}
    assert state.left == [second]
    measured = Row(second, {"spcomp": timed(1e-5)})
    state.take({"row": measured.to_json(), "partial": True})
    state.take({"begin": second.label, "who": "graphs"})
    state.gone("nothing happened for 75 s")
    assert state.rows[second.label].missing == {"graphs": "nothing happened for 75 s"}
    assert state.rows[second.label].times == measured.times


CRASHES = """
import json, os, sys, time
task = json.load(sys.stdin)
label = task["lines"][0]
operation, workload = label.split()
with open(task["events"], "a") as file:
    file.write("\\n" + json.dumps({"about": {"gpu": "NVIDIA H100"}}))
    file.write("\\n" + json.dumps({"begin": label, "who": "spcomp"}))
    file.flush()
    if not task["blocked"].get(label):
        if workload == "arxiv":
            os.abort()
        time.sleep(600)
    row = {"line": {"operation": operation, "workload": workload}, "times": {}}
    row["missing"] = task["blocked"][label]
    file.write("\\n" + json.dumps({"row": row}))
    file.write('\\n{"row": {"li')
"""


def test_workers_that_crash_or_hang_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "WORKER", [sys.executable, "-c", CRASHES])
    monkeypatch.setattr(run, "SILENT", 1.5)
    lines = select(["spmv"], ["arxiv", "cora"], None)
    found = run.start(lines, tmp_path, 60.0, logs=tmp_path, tests=False)
    assert found.rows["spmv arxiv"].missing["spcomp"].startswith("the process ended with status -6")
    assert found.rows["spmv cora"].missing["spcomp"] == "nothing happened for 2 s"
    assert len(report.load(tmp_path / "cuda-h100.json")[2]) == 2


def test_lines_without_a_result_have_a_row_in_the_end(tmp_path):
    state = run.Run(select(["spmv"], None, None), tmp_path, tmp_path)
    state.close()
    rows = report.load(tmp_path / "cuda-unknown.json")[2]
    assert len(rows) == 6
    assert all("no worker could start" in row.missing["all"] for row in rows)


def test_events_are_read_up_to_where_a_process_was_cut_off():
    assert worker.parse(["", '{"begin": "a", "who": "b"}', '{"row": {"li']) == [
        {"begin": "a", "who": "b"}
    ]


def test_a_dry_run_of_the_command(tmp_path):
    options = ["--only", "spmv", "segments", "--matrices", "arxiv", "--feat", "1"]
    command = [sys.executable, "-m", "benchmarks", "--target", "cuda", "--dry-run", *options]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "times mean nothing" in ended.stdout
    about, _, rows = report.load(tmp_path / "cuda-emulator.json")
    assert about["dry"]
    assert [row.line.label for row in rows] == ["spmv arxiv", "segments arxiv"]
    assert all(row.ours("warm") for row in rows)
    ET.parse(tmp_path / "cuda-emulator.svg")
    assert (tmp_path / "cuda-emulator.md").read_text() == ended.stdout
    again = subprocess.run(
        [*command[:3], "--target", "cuda", "--from", str(tmp_path / "cuda-emulator.json")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert again.stdout == ended.stdout


# --- reports --------------------------------------------------------------------------------------


def test_ratios_and_their_means():
    rows = made_up_rows()
    assert [row.ratio("cold") for row in rows] == [2.0, 0.5, 8.0, None]
    means = report.means(rows)
    assert means["spmm"]["cold"] == pytest.approx(1.0)
    assert means["all"]["cold"] == pytest.approx(2.0)
    assert means["sddmm"]["cold"] is None
    assert list(means) == ["spmm", "spmv", "sddmm", "all"]


def test_tables_say_times_limits_and_what_failed():
    rows, about = made_up_rows(), {"gpu": "NVIDIA H100 80GB HBM3", "copy_bandwidth": 3e12}
    text = report.markdown(about, {"summary": "9 passed", "failed": ["FAILED x"]}, rows)
    assert (
        "| spmm arxiv F=128 | 100 | 200 | cuSPARSE, CSR 2 | 2.00 | 2.00 | - | 100 | 100% | 200 |"
        in text
    )
    assert "| spmm cora F=128 | 4 (hyb) | 2 | cuSPARSE | 0.50 |" in text
    assert "| sddmm arxiv F=32 | spcomp | BackendError: no |" in text
    assert "| spmv arxiv | Triton | wrong: 3 wrong |" in text
    assert "a\\|b" in text
    assert "9 passed" in text
    assert report.short_name(about["gpu"]) == "h100"
    assert report.short_name("") == "unknown"
    assert [report.micro(s) for s in (None, 1.234e-6, 0.5)] == ["-", "1.23", "500000"]


def test_rows_survive_json(tmp_path):
    rows = made_up_rows()
    assert not report.write(tmp_path, {"gpu": "NVIDIA H200"}, {}, rows)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["cuda-h200.json", "cuda-h200.md", "cuda-h200.svg"]
    assert [row.to_json() for row in report.load(files[0])[2]] == [r.to_json() for r in rows]
    assert json.loads(files[0].read_text())["geometric_means"]["spmv"]["cold"] == pytest.approx(8)


@pytest.mark.parametrize("bars", [[], [("a", "x < y", 0.01), ("a", "z", 1.0), ("b", "w", 40.0)]])
def test_the_picture_is_svg(bars):
    root = ET.fromstring(picture("t & u", bars))
    shapes = [e for e in root if e.tag.endswith("rect")][1:]
    assert len(shapes) == len(bars)
    assert all(float(e.get("width")) > 0 for e in shapes)


# --- the tests that need a GPU, without pytest ----------------------------------------------------


PLAIN = """
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize(("b", "c"), [(1, 1), (2, 2)])
def test_cases(a, b, c):
    assert b == c and a + b != 4

def test_skipped():
    pytest.importorskip("no_such_module")

def test_raises():
    with pytest.raises(ValueError, match="in.alid"):
        int("x")

def test_with_a_fixture(tmp_path):
    assert tmp_path
"""


def test_tests_run_without_pytest(tmp_path):
    (tmp_path / "test_plain.py").write_text(PLAIN)
    command = [sys.executable, "-m", "benchmarks.gpu.plain", "60", "test_plain.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=env, check=False
    )
    assert ended.stdout.splitlines()[-1] == "4 passed, 1 failed, 1 skipped, 1 not run"
    assert ended.returncode == 1
    assert "FAILED test_plain.py::test_cases {'b': 2, 'c': 2, 'a': 2}" in ended.stdout


def test_the_files_with_tests_for_gpus_are_found():
    assert "test_cuda_device.py" in [path.name for path in checks.marked()]
    assert {"mark", "raises", "skip", "importorskip", "param", "fixture"} <= set(
        vars(plain.stand_in())
    )
