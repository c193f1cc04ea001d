"""The benchmark harness on tiny problems: timing, ratios, checks, reports; scipy the only rival."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sps
from click.testing import CliRunner

import spcomp
from benchmarks import (
    ablate,
    attention,
    contenders,
    harness,
    operators,
    report,
    roofline,
    suite,
    workloads,
)
from benchmarks.__main__ import main as benchmarks_main
from benchmarks.contenders import Contender, MissingError, ours
from benchmarks.problem import Case, WrongResultError
from spcomp.cli import timing
from spcomp.cli.main import main as spcomp_main
from spcomp.cli.peers import product_of
from spcomp.cli.timing import Ratio, Sample

ROOT = Path(__file__).parents[1]
FAST = harness.Options(rounds=2, seconds=1e-4, retakes=0, quick=True, libraries=("scipy",))
KERNELS = str(ROOT / "examples" / "kernel.py")


def samples(*seconds: float, dirty: tuple[int, ...] = ()) -> tuple[Sample, ...]:
    return tuple(Sample(s, 1, at in dirty) for at, s in enumerate(seconds))


@pytest.fixture(autouse=True)
def private_settings(tmp_path, monkeypatch):
    for name, value in {"COLUMNS": "150", "OPENBLAS_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NUMBA_NUM_THREADS", str(os.cpu_count()))
    monkeypatch.setattr(workloads, "_cache", lambda name: tmp_path / name)
    workloads.matrix.cache_clear()
    workloads.tensor.cache_clear()
    small = {"rmat": lambda _: workloads.rmat(60, 200, 1, workloads.SOCIAL)}
    small["laplacian"] = lambda _: workloads.laplacian(4)
    small["hub"] = lambda _: workloads.hub(50, 50, 6)
    monkeypatch.setattr(workloads, "MATRICES", workloads.MATRICES | small)
    monkeypatch.setattr(timing, "PAUSE", 0)
    with spcomp.num_threads(spcomp.get_num_threads()):
        yield


@pytest.fixture
def mtx(tmp_path) -> str:
    path = tmp_path / "small.mtx"
    scipy.io.mmwrite(path, sps.random(30, 20, 0.2, "csr", dtype="float32", random_state=0))
    return str(path)


def test_a_ratio_of_constant_times_is_exact():
    found = timing.ratio({"rival": (samples(2, 2, 2, 2), samples(1, 1, 1, 1))})
    assert found == Ratio(2.0, 2.0, 2.0, "rival", clean=True)


def test_the_interval_of_a_ratio_holds_the_spread_of_the_rounds():
    rng = np.random.default_rng(0)
    ours_, theirs = rng.normal(1, 0.05, 31), rng.normal(1.5, 0.05, 31)
    found = timing.ratio({"rival": (samples(*theirs), samples(*ours_))})
    assert found.low < found.value < found.high
    assert found.low < 1.5 < found.high
    assert found.high - found.low < 0.2


def test_rounds_that_slow_everybody_leave_the_ratio_alone():
    slow = np.array([1, 1, 5, 1, 5, 1, 1.0])
    found = timing.ratio({"rival": (samples(*(2 * slow)), samples(*slow))})
    assert found.value == 2.0


def test_the_ratio_is_that_of_the_best_rival():
    one = samples(1, 1, 1)
    found = timing.ratio({"far": (samples(9, 9, 9), one), "near": (samples(2, 2, 2), one)})
    assert (found.rival, found.value) == ("near", 2.0)


def test_a_rival_that_left_the_race_does_not_count():
    one = samples(1, 1, 1, 1)
    found = timing.ratio({"far": (samples(0.5), one), "near": (samples(2, 2, 2, 2), one)})
    assert (found.rival, found.value) == ("near", 2.0)


def test_disturbed_samples_are_left_out_of_the_ratio():
    theirs = samples(2, 2, 50, 2, 2, 2, dirty=(2,))
    found = timing.ratio({"rival": (theirs, samples(1, 1, 1, 1, 1, 1))})
    assert (found.value, found.high, found.clean) == (2.0, 2.0, True)


def test_a_ratio_without_undisturbed_samples_says_so():
    found = timing.ratio({"rival": (samples(2, 2, dirty=(0, 1)), samples(1, 1))})
    assert (found.value, found.clean) == (2.0, False)


def test_the_median_is_over_undisturbed_samples():
    assert timing.median(samples(1, 9, 9, dirty=(1, 2))) == 1
    assert timing.median(samples(1, 2, 3, dirty=(0, 1, 2))) == 2


def test_contenders_take_turns_and_the_slowest_leaves_early(monkeypatch):
    turns: list[str] = []
    passed = [0.0]  # seconds: only the calls let time pass, whatever else the machine does

    def call(name: str, seconds: float) -> None:
        turns.append(name)
        passed[0] += seconds

    clock = {"perf_counter": lambda: passed[0], "process_time": float, "sleep": lambda _: None}
    monkeypatch.setattr(timing, "time", SimpleNamespace(**clock))
    times = {"a": 1e-6, "b": 2e-6, "slow": 1e-2}
    calls = {name: partial(call, name, seconds) for name, seconds in times.items()}
    taken = timing.measure(calls, rounds=5, seconds=1e-4, retakes=0)
    assert {name: len(found) for name, found in taken.items()} == {"a": 5, "b": 5, "slow": 1}
    order = [name for at, name in enumerate(turns) if at == 0 or turns[at - 1] != name]
    assert order == ["a", "b", "slow"] * 2 + ["a", "b"] * 4  # the first turn calibrates


def test_usage_by_others_disturbs_a_sample():
    before = timing.Usage(wall=0, own=0, waited=0, busy=0)
    assert not before.was_disturbed(timing.Usage(wall=1, own=2, waited=0.01, busy=2.1))
    assert before.was_disturbed(timing.Usage(wall=1, own=2, waited=0.05, busy=2))
    assert before.was_disturbed(timing.Usage(wall=1, own=1, waited=0, busy=1.5))


def test_a_geometric_mean():
    assert timing.geometric_mean([1, 4]) == pytest.approx(2)
    assert np.isnan(timing.geometric_mean([]))


def small(operator: str, feat: int = 5, **options) -> Case:
    workload = "tensor" if operator == "mttkrp" else "rmat"
    return Case(operator, workload, 1 if operator.startswith("spmv") else feat, **options)


@pytest.mark.parametrize("operator", operators.OPERATORS)
def test_every_operator_gives_the_right_answer_in_all_our_forms(operator):
    row = harness.run_case(small(operator), FAST)
    assert not row.wrong
    if operator in ours.FORMS | ours.ASSEMBLED:
        assert {"spcomp", "spcomp_bound"} <= set(row.samples), row.missing
    assert "spcomp" in row.samples or operator == "spmv_compressed"  # a format that is to come
    assert set(row.missing) <= {"spcomp_rows", "spcomp_bound"}


def test_double_precision_is_checked_in_double_precision():
    work = operators.problem(small("spmv", dtype="float64"), quick=True)
    work.check(work.sparse @ work.dense["B"], "scipy")
    with pytest.raises(WrongResultError, match=r"sloppy: .* wrong, the first at"):
        work.check((work.sparse @ work.dense["B"]).astype("float32"), "sloppy")


def test_the_bound_kernel_meets_rivals_as_the_case_says():
    who = contenders.contenders("spmm")
    handle = Contender("inspector", "mkl", lambda p: lambda: None, handle=True)
    found = {"spcomp": samples(3), "spcomp_bound": samples(1), "scipy": samples(4)}
    found["inspector"] = samples(5)

    def met(**options: object) -> dict[str, float]:
        pairs = harness.compared(Case("spmm", "rmat", 8, **options), found, (*who, handle))
        return {name: pair[1][0].seconds for name, pair in pairs.items()}

    assert met() == {"scipy": 1, "inspector": 1}
    assert met(pairing="call") == {"scipy": 3, "inspector": 3}
    assert met(pairing="paired") == {"scipy": 3, "inspector": 1}
    assert met(against=("inspector",)) == {"inspector": 1}


@pytest.fixture
def with_rivals(monkeypatch):
    def add(operator: str, *rivals: Contender) -> None:
        entries = contenders._registry[operator] | {rival.name: rival for rival in rivals}
        monkeypatch.setitem(contenders._registry, operator, entries)

    contenders.modules()
    return add


def test_a_wrong_result_is_reported_and_not_timed(with_rivals):
    liar = Contender("liar", "scipy", lambda p: lambda: np.zeros_like(p.out))
    idle = Contender("idle", "scipy", lambda p: lambda: p.out)
    with_rivals("spmm", liar, idle)
    row = harness.run_case(small("spmm"), FAST)
    assert set(row.wrong) == {"liar", "idle"}
    assert not {"liar", "idle"} & set(row.samples)
    assert row.ratio is not None
    assert row.ratio.rival == "scipy"


def test_a_contender_that_cannot_run_is_reported(with_rivals):
    def refuse(problem):
        raise MissingError("nothing of the kind is installed")

    with_rivals("spmm", Contender("absent", "scipy", refuse))
    row = harness.run_case(small("spmm"), FAST)
    assert row.missing == {"absent": "nothing of the kind is installed"}


def test_a_row_survives_json_and_the_report_shows_it(tmp_path, capsys):
    bandwidth = roofline.Bandwidth(((1000, 1e9), (10_000, 1e9)))
    row = harness.run_case(small("spmm", target=0.0, group="spmm"), FAST, bandwidth)
    content = report.document({"cpu": "some"}, bandwidth, [row])
    report.save(tmp_path / "deep" / "run.json", content)
    assert report.load(tmp_path / "deep" / "run.json") == ([row], True)
    assert json.loads((tmp_path / "deep" / "run.json").read_text())["machine"] == {"cpu": "some"}
    report.show([row])
    shown = capsys.readouterr().out
    assert "spmm rmat F=5" in shown
    assert "0.00 yes" in report.line(row)
    assert content["geometric_means"] == {"spmm": pytest.approx(row.ratio.value)}


def test_a_bandwidth_that_others_disturbed_is_marked_in_the_report(capsys):
    row = harness.run_case(small("spmm"), FAST)
    report.show([row])
    assert "shares of memory are too high" not in " ".join(capsys.readouterr().out.split())
    report.show([row], steady=False)
    assert "shares of memory are too high" in " ".join(capsys.readouterr().out.split())


def test_the_roofline_interpolates_between_footprints():
    bandwidth = roofline.Bandwidth(((2**10, 4e9), (2**20, 2e9)))
    assert bandwidth.at(2**15) == pytest.approx(3e9)
    assert bandwidth.at(1) == 4e9
    assert bandwidth.at(2**30) == 2e9
    traffic = operators.Traffic(2**20, gather=3 * 2**20, footprint=2**15)
    assert bandwidth.limit(traffic) == pytest.approx((2**20 / 2e9, 3 * 2**20 / 3e9))


def test_the_time_of_several_workers_is_from_the_first_begin_to_the_last_end():
    assert roofline.elapsed([(1.0, 3.0), (2.5, 4.0)]) == 3.0


def test_bandwidth_is_no_faster_than_the_clock_around_it_allows():
    begin = time.perf_counter()
    ((size, rate),) = roofline.measure_bandwidth(2, (2**24,)).points
    passes = roofline.REPEATS * (64 * roofline.MEBIBYTE // size)
    assert rate >= size * passes / (time.perf_counter() - begin)  # the best pass beats the mean
    assert rate < 1e12


def test_bandwidth_is_measured():
    ((size, rate),) = roofline.measure_bandwidth(1, (2**20,)).points
    assert size == 2**20
    assert 1e8 < rate < 1e13


def test_traffic_counts_each_operand_once_and_each_fetched_row():
    csr = sps.csr_matrix(np.array([[1, 1, 0], [0, 1, 0]], "float32"))
    found = operators._matrix_traffic(csr, 8)
    pattern, row = 3 * 4 + 3 * 4, 8 * 4
    assert found == operators.Traffic(pattern + 3 * 4 + row * (2 + 2), 3 * row, 3 * row)


def test_workloads_are_the_same_every_time():
    first = workloads.matrix("rmat", quick=True).copy()
    workloads.matrix.cache_clear()
    again = workloads.matrix("rmat", quick=True)
    assert (first != again).nnz == 0
    assert again.has_sorted_indices
    assert (again.indices.dtype, again.data.dtype) == (np.int32, np.float32)


def test_the_hub_holds_most_of_its_matrix():
    hub = workloads.hub(1000, 1000, 6)
    assert np.diff(hub.indptr).max() >= 0.79 * hub.nnz


def test_the_suite_has_every_line_that_we_promise():
    groups = {case.group for case in suite.SUITE}
    promised = {"spmm", "spmm_max", "spmm_mean", "spmv", "spmv compressed", "sddmm", "mttkrp"}
    assert promised | {"segment reduce", "csrmm_t", "cora", "hub", "spadd", "hadamard"} <= groups
    assert len({case.label for case in suite.SUITE}) == len(suite.SUITE)


def test_a_file_gets_a_line_for_each_operator_on_matrices(mtx):
    cases = suite.select(["spmm", "mttkrp"], [mtx])
    assert [(case.workload, case.feat) for case in cases] == [(mtx, 32), (mtx, 128), (mtx, 512)]
    assert all(case.target is None for case in cases)


def test_a_matrix_that_does_not_exist_is_named():
    with pytest.raises(KeyError, match="no matrix 'nothing': rmat"):
        workloads.matrix("nothing")


def test_leaving_out_steps_is_measured_against_the_whole_trace(monkeypatch, capsys):
    monkeypatch.setattr(ours, "scheduled", lambda problem, trace: ours.compiled(problem))
    found = ablate.ablate(small("spmm"), FAST)
    assert "parallel" in found.ratios
    assert not found.missing
    assert set(ablate.earned([found])) == set(found.ratios)
    report.show_ablation([found])
    assert "geometric mean" in capsys.readouterr().out


def test_the_command_measures_and_writes_json(tmp_path, mtx):
    out = tmp_path / "run.json"
    code = benchmarks_main(
        [*("--only", "spmv", "--matrices", mtx, "--vs", "scipy", "--quick"), "--json", str(out)]
    )
    content = json.loads(out.read_text())
    assert code == 0
    assert [row["case"]["workload"] for row in content["rows"]] == [mtx, mtx]
    assert content["machine"]["versions"]["scipy"]
    assert len(content["bandwidth"]["points"]) == 3
    assert max(len(taken) for taken in content["rows"][0]["samples"].values()) == 3


def test_the_command_lists_its_lines(capsys):
    assert benchmarks_main(["--list", "--only", "csrmm_t"]) == 0
    assert capsys.readouterr().out == "csrmm_t rmat F=32\ncsrmm_t rmat F=128\n"
    assert benchmarks_main(["--only", "nothing"]) == 2


def test_the_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.plot import draw

    row = harness.run_case(small("spmm", target=1.0), FAST)
    draw([row], tmp_path / "run.svg", "a run")
    assert (tmp_path / "run.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("operator", "product"),
    [("spmm", "A @ B"), ("spmv", "A @ X"), ("csrmm_t", "A.T @ X"), ("sddmm", "None")],
)
def test_products_are_recognised_by_what_they_compute(operator, product):
    work = operators.problem(small(operator), quick=True)
    assert str(product_of(ours._program(work))) == product


@pytest.mark.parametrize("operator", ["spmm_max", "spmm_mean", "segment_coo"])
def test_what_no_library_computes_is_no_product(operator):
    work = operators.problem(small(operator), quick=True)
    assert product_of(ours._program(work)) is None


def bench(*arguments: str):
    return CliRunner().invoke(spcomp_main, ["bench", KERNELS, *arguments])


def test_a_users_kernel_is_timed_against_scipy(mtx):
    run = bench(
        *("csrmm", "--data", f"A={mtx}", "--const", "feat=4", "--vs", "scipy"),
        *("--rounds", "2", "--json"),
    )
    assert run.exit_code == 0, run.output
    content = json.loads(run.stdout)
    assert set(content["samples"]) == {"spcomp", "spcomp bound", "scipy"}
    ratio = content["ratios"]["scipy"]
    assert ratio["low"] <= ratio["value"] <= ratio["high"]


@pytest.mark.parametrize(
    "program",
    [
        "spcomp.Schedule(csrmm)",
        "spcomp.Schedule(csrmm).lower_sparse_iter().parallel('i').vectorize('k')",
        "spcomp.Schedule(csrmm).lower_sparse_buffer()",
        "spcomp.compile(spcomp.Schedule(csrmm).lower_sparse_iter().parallel('i'))",
    ],
)
def test_a_schedule_is_the_product_that_its_program_is(mtx, tmp_path, program):
    file = tmp_path / "own.py"
    file.write_text(
        f"import runpy, spcomp\ncsrmm = runpy.run_path({KERNELS!r})['csrmm']\nown = {program}\n"
    )
    arguments = ("--data", f"A={mtx}", "--const", "feat=4", "--vs", "scipy", "--rounds", "2")
    run = CliRunner().invoke(spcomp_main, ["bench", str(file), "own", *arguments])
    assert run.exit_code == 0, run.output
    assert "own: A @ B" in run.stdout
    assert "no library" not in run.stderr


def test_a_program_below_coordinates_is_not_said_to_be_no_product(mtx, tmp_path):
    file = tmp_path / "position.py"
    stage = CliRunner().invoke(spcomp_main, ["show", KERNELS, "csrmm", "--stage", "position"])
    file.write_text(stage.stdout)
    arguments = ("--data", f"A={mtx}", "--const", "feat=4", "--vs", "scipy", "--rounds", "2")
    run = CliRunner().invoke(spcomp_main, ["bench", str(file), *arguments])
    assert run.exit_code == 0, run.output
    assert "csrmm is written below the coordinate level" in run.stderr


def test_a_pattern_is_given_by_its_axis(mtx):
    run = bench(
        "sddmm", "--data", f"J={mtx}", "--const", "feat=4", "--rounds", "2", "--vs", "scipy"
    )
    assert run.exit_code == 0, run.output
    assert "spcomp bound" in run.stdout
    assert "no library computes sddmm" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["csrmm", "--data", "A={mtx}"], "feat, a size of B, is not known"),
        (["csrmm", "--data", "Q={mtx}"], "has no input 'Q'; there is A, B"),
        (["csrmm", "--data", "A=thing.txt"], "is not NAME=FILE.mtx"),
        (["csrmm", "--data", "A={mtx}", "--vs", "nobody"], "is not one of scipy"),
        (["--data", "A={mtx}"], "name one of"),
        (["sddmm", "--data", "B=x.npy"], "cannot be read"),
        (["csrmm", "--data", "A={words}", "--const", "feat=4"], "it holds <U1, no numbers"),
        (["csrmm", "--data", "A=no.mtx"], "argument A: no.mtx: there is no such file"),
        (["csrmm", "--data", "A={mtx}", "--const", "feat=-3"], "K has the extent -3"),
        (["csrmm", "--data", "A={mtx}", "--const", "feat=2000000000"], "smaller sizes"),
    ],
)
def test_a_wrong_command_line_is_explained(arguments, message, mtx, tmp_path):
    words = tmp_path / "words.npy"
    np.save(words, np.array(["a", "b"]))
    run = bench(*(argument.format(mtx=mtx, words=words) for argument in arguments))
    assert run.exit_code in (1, 2)
    assert message in run.output


def test_attention_says_what_it_takes(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attention", "--help"])
    with pytest.raises(SystemExit) as done:
        attention.main()
    assert done.value.code == 0
    assert "python -m benchmarks.attention [-h] [runs]" in capsys.readouterr().out


def test_a_rival_that_disagrees_is_refused(mtx, monkeypatch):
    from spcomp.cli import peers

    monkeypatch.setitem(peers.RIVALS, "scipy", lambda a, b, threads: lambda: 2 * (a @ b))
    run = bench("csrmm", "--data", f"A={mtx}", "--const", "feat=4", "--vs", "scipy")
    assert run.exit_code == 1
    assert "scipy computes A @ B and gets another result" in run.output


def test_rivals_agree_on_nan_and_infinity(tmp_path):
    matrix = sps.csr_array(([np.nan, np.inf, 1.0, 2.0], ([0, 1, 2, 3], [0, 1, 2, 1])), shape=(5, 3))
    scipy.io.mmwrite(tmp_path / "nan.mtx", matrix)
    data = f"A={tmp_path / 'nan.mtx'}"
    run = bench("csrmm", "--data", data, "--const", "feat=4", "--vs", "scipy")
    assert run.exit_code == 0, run.output


def test_a_library_that_is_missing_is_left_out(mtx, monkeypatch):
    from spcomp.cli import peers

    def missing(*_):
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setitem(peers.RIVALS, "torch", missing)
    arguments = ("csrmm", "--data", f"A={mtx}", "--const", "feat=4", "--rounds", "2", "--json")
    run = bench(*arguments, "--vs", "scipy,torch")
    assert run.exit_code == 0, run.output
    assert "torch is left out, it is not installed: No module named 'torch'" in run.stderr
    assert list(json.loads(run.stdout)["ratios"]) == ["scipy"]


def test_a_ratio_of_disturbed_samples_says_so(mtx, monkeypatch):
    from spcomp.cli import timing

    monkeypatch.setattr(timing, "PAUSE", 0)
    monkeypatch.setattr(timing.Usage, "was_disturbed", lambda *_: True)
    arguments = ("csrmm", "--data", f"A={mtx}", "--const", "feat=4", "--rounds", "2")
    run = bench(*arguments, "--vs", "scipy", "--json")
    assert json.loads(run.stdout)["ratios"]["scipy"]["clean"] is False
    run = bench(*arguments, "--vs", "scipy")
    assert "~ " in run.stdout
    assert "~: of disturbed samples" in " ".join(run.stdout.split())
