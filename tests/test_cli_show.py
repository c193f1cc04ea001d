"""``spcomp show`` and ``spcomp doctor`` print what can be read, piped and drawn."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path

import pytest
import scipy.sparse as sps
from click.testing import CliRunner, Result
from scipy.io import mmwrite

from spcomp.cli import highlight
from spcomp.cli.main import main
from spcomp.cli.table import size
from spcomp.errors import BackendError
from spcomp.knobs import CPU_KNOBS
from tests import fake_cuda

KERNEL = str(Path(__file__).parents[1] / "examples" / "kernel.py")


def invoke(*args: str) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize("stage", ["coordinate", "position", "flat"])
def test_a_stage_in_a_pipe_is_a_kernel_file(tmp_path, stage):
    result = invoke("show", KERNEL, "csrmm", "--stage", stage)
    assert result.exit_code == 0, result.stderr
    (tmp_path / "again.py").write_text(result.stdout)
    again = invoke("show", str(tmp_path / "again.py"), "--stage", stage)
    assert again.stdout == result.stdout


def test_without_a_stage_all_three_are_shown_under_headings():
    result = invoke("show", KERNEL, "csrmm")
    headings = [line for line in result.stdout.splitlines() if line.startswith("# csrmm: ")]
    assert headings == ["# csrmm: coordinate", "# csrmm: position", "# csrmm: flat"]


def test_llvm_and_assembly_are_shown():
    result = invoke(
        "show", KERNEL, "csrmm", "--stage", "llvm", "--stage", "asm", "--target", "cpu:x86-64"
    )
    assert result.exit_code == 0, result.stderr
    assert "; csrmm: llvm" in result.stdout
    assert "define i32 @csrmm(" in result.stdout
    assert "# csrmm: asm" in result.stdout


def test_a_terminal_gets_colour(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    highlight.emit("for i in range(3):\n    pass\n", "flat")
    assert "\x1b[" in terminal.getvalue()
    assert "range" in terminal.getvalue()


def test_names_have_the_colour_of_the_terminals_text(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    highlight.emit("for i in range(3):\n    x = y  # z\n", "flat")
    shown = terminal.getvalue()
    assert "    x = y  \x1b[" in shown  # the comment is the first that has a colour again
    assert "\x1b[97m" not in shown  # bright white, which cannot be read on white
    assert "\x1b[40m" not in shown


def test_the_forest_is_drawn_as_text():
    result = invoke("show", KERNEL, "csrmm", "--forest")
    assert result.exit_code == 0, result.stderr
    assert "└── J sparse_variable(" in result.stdout
    assert "A(I, J) float32" in result.stdout


def test_the_forest_is_drawn_as_a_picture(tmp_path):
    result = invoke("show", KERNEL, "csrmm", "--svg", str(tmp_path / "forest.svg"))
    assert result.exit_code == 0, result.stderr
    tree = ET.parse(tmp_path / "forest.svg")
    shapes = [element.tag.split("}")[1] for element in tree.iter()]
    assert shapes.count("rect") == 4
    assert shapes.count("path") == 1
    names = [
        e.text for e in tree.iter("{http://www.w3.org/2000/svg}text") if "name" in e.get("class")
    ]
    assert sorted(names) == ["I", "J", "J_detach", "K"]


def test_boxes_of_the_picture_do_not_overlap(tmp_path):
    invoke("show", KERNEL, "csrmm", "--svg", str(tmp_path / "forest.svg"))
    rects = ET.parse(tmp_path / "forest.svg").iter("{http://www.w3.org/2000/svg}rect")
    boxes = [tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in rects]
    for at, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, *_ in boxes[:at]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height


def test_a_picture_is_of_one_program(tmp_path):
    result = invoke("show", KERNEL, "--svg", str(tmp_path / "forest.svg"))
    assert result.exit_code == 2
    assert "--svg draws one program" in result.stderr


def test_the_doctor_says_what_the_machine_is():
    result = invoke("doctor")
    assert result.exit_code == 0, result.stderr
    for what in ("spcomp", "llvmlite", "target", "threads", "cache", "C compiler", "CUDA"):
        assert what in result.stdout
    assert "passed" in result.stdout


def test_the_doctor_prints_all_thresholds_for_programs():
    result = invoke("doctor", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["knobs"] == asdict(CPU_KNOBS)
    assert document["self-test"] == "passed"


def test_the_doctor_fails_when_the_small_program_does(monkeypatch):
    def fail(*_args: object, **_named: object) -> None:
        raise BackendError("no machine code today")

    monkeypatch.setattr("spcomp.kernels.compile.compile", fail)
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "no machine code today" in result.stdout
    assert result.stderr.startswith("error: the self-test failed")


def test_the_doctor_copes_with_what_is_missing(monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/cc")
    monkeypatch.setattr("spcomp.runtime.cuda.driver.missing", lambda: "there is no NVIDIA GPU")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    result = invoke("doctor")
    assert "not available: there is no NVIDIA GPU" in result.stdout
    assert "not found" in result.stdout
    assert result.exit_code == 0
    assert json.loads(invoke("doctor", "--json").stdout)["gpus"] == []


def test_the_doctor_says_what_the_GPUs_are():
    with fake_cuda.installed(devices=2):
        shown, document = invoke("doctor"), json.loads(invoke("doctor", "--json").stdout)
    assert "GPU 1" in shown.stdout
    assert "Fake H100" in shown.stdout
    assert document["CUDA"] == "available"
    assert document["GPU 0"].startswith("Fake H100 (sm_90, 132 multiprocessors, 80.0 GiB, L2 50.0")
    assert document["gpus"][1]["shared_limit"] == 227 << 10
    assert document["numba-cuda"] == fake_cuda.VERSION


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2048, "2.0 KiB"),
        (5 << 30, "5.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes_have_units(count, text):
    assert size(count) == text


@pytest.mark.parametrize("command", ["show", "build"])
def test_fast_math_is_asked_for_on_the_command_line(tmp_path, command):
    for arguments, flags in (
        ((), "fmul contract"),
        (("--fast-math",), "fmul reassoc nsz contract"),
    ):
        where = ("--stage", "llvm") if command == "show" else ("--emit", "llvm", "-o", tmp_path)
        result = invoke(command, KERNEL, "csrmm", *map(str, where), *arguments)
        assert result.exit_code == 0, result.stderr
        text = result.stdout if command == "show" else (tmp_path / "csrmm.ll").read_text()
        assert flags in text


def test_a_call_is_profiled_and_interpreted(tmp_path):
    matrix = sps.random(20, 30, 0.2, "csr", dtype="float32", random_state=1)
    mmwrite(tmp_path / "a.mtx", matrix)
    call = (KERNEL, "csrmm", "--data", f"A={tmp_path}/a.mtx", "--const", "feat=4")
    found = invoke("profile", *call, "--repeat", "2", "--json")
    assert found.exit_code == 0, found.stderr
    (phase,) = json.loads(found.stdout)["phases"]
    assert phase["what"] == "loop i"
    assert phase["place"]["file"] == KERNEL
    assert "GB/s" in invoke("profile", *call).stdout
    compared = invoke("interpret", *call)
    assert compared.exit_code == 0
    assert compared.stdout.splitlines()[1:] == [
        f"{s}: the same" for s in ("position", "flat", "code")
    ]
    assert invoke("interpret", *call, "--stage", "flat").stdout.startswith("[[")
    assert "name one of" in invoke("profile", KERNEL, *call[2:]).stderr


def test_a_page_shows_what_a_call_took(tmp_path):
    mmwrite(tmp_path / "a.mtx", sps.random(20, 30, 0.2, "csr", dtype="float32", random_state=1))
    call = (KERNEL, "csrmm", "--data", f"A={tmp_path}/a.mtx", "--const", "feat=4")
    assert invoke("show", *call, "--html", str(tmp_path / "page.html")).exit_code == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert '"time": "' in page
    assert "FLOP per byte" in page
    assert "--data is for --html" in invoke("show", *call).stderr
