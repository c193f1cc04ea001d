"""``spcomp show`` and ``spcomp doctor`` print what can be read, piped and drawn."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spcomp.cli import doctor as doctor_module
from spcomp.cli import highlight
from spcomp.cli.main import main
from spcomp.cli.table import size
from spcomp.errors import BackendError

KERNEL = str(Path(__file__).parents[1] / "examples" / "kernel.py")


def invoke(*args: str) -> Result:
    done = CliRunner().invoke(main, args)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.parametrize("stage", ["coordinate", "position", "flat"])
def test_a_stage_in_a_pipe_is_a_kernel_file(tmp_path, stage):
    done = invoke("show", KERNEL, "csrmm", "--stage", stage)
    assert done.exit_code == 0, done.stderr
    (tmp_path / "again.py").write_text(done.stdout)
    again = invoke("show", str(tmp_path / "again.py"), "--stage", stage)
    assert again.stdout == done.stdout


def test_without_a_stage_all_three_are_shown_under_headings():
    done = invoke("show", KERNEL, "csrmm")
    headings = [line for line in done.stdout.splitlines() if line.startswith("# csrmm: ")]
    assert headings == ["# csrmm: coordinate", "# csrmm: position", "# csrmm: flat"]


def test_llvm_and_assembly_are_shown():
    done = invoke(
        "show", KERNEL, "csrmm", "--stage", "llvm", "--stage", "asm", "--target", "cpu:x86-64"
    )
    assert done.exit_code == 0, done.stderr
    assert "; csrmm: llvm" in done.stdout
    assert "define i32 @csrmm(" in done.stdout
    assert "# csrmm: asm" in done.stdout


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
    done = invoke("show", KERNEL, "csrmm", "--forest")
    assert done.exit_code == 0, done.stderr
    assert "└── J sparse_variable(" in done.stdout
    assert "A(I, J) float32" in done.stdout


def test_the_forest_is_drawn_as_a_picture(tmp_path):
    done = invoke("show", KERNEL, "csrmm", "--svg", str(tmp_path / "forest.svg"))
    assert done.exit_code == 0, done.stderr
    tree = ET.parse(tmp_path / "forest.svg")
    shapes = [element.tag.split("}")[1] for element in tree.iter()]
    assert shapes.count("rect") == 4
    assert shapes.count("path") == 1
    names = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}text") if e.get("class")]
    assert sorted(names) == ["I", "J", "J_detach", "K"]


def test_boxes_of_the_picture_do_not_overlap(tmp_path):
    invoke("show", KERNEL, "csrmm", "--svg", str(tmp_path / "forest.svg"))
    rects = ET.parse(tmp_path / "forest.svg").iter("{http://www.w3.org/2000/svg}rect")
    boxes = [tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in rects]
    for at, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, *_ in boxes[:at]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height


def test_a_picture_is_of_one_program(tmp_path):
    done = invoke("show", KERNEL, "--svg", str(tmp_path / "forest.svg"))
    assert done.exit_code == 2
    assert "--svg draws one program" in done.stderr


def test_the_doctor_says_what_the_machine_is():
    done = invoke("doctor")
    assert done.exit_code == 0, done.stderr
    for what in ("spcomp", "llvmlite", "target", "threads", "cache", "C compiler", "CUDA"):
        assert what in done.stdout
    assert "passed" in done.stdout


def test_the_doctor_fails_when_the_small_program_does(monkeypatch):
    def fail(*_args: object, **_named: object) -> None:
        raise BackendError("no machine code today")

    monkeypatch.setattr("spcomp.compiler.compile.compile", fail)
    done = invoke("doctor")
    assert done.exit_code == 1
    assert "no machine code today" in done.stdout
    assert done.stderr.startswith("error: the self-test failed")


def test_the_doctor_copes_with_what_is_missing(monkeypatch):
    monkeypatch.setenv("CC", "/nowhere/cc")
    monkeypatch.setitem(doctor_module.importlib.import_module("sys").modules, "numba.cuda", None)
    done = invoke("doctor")
    assert "not available" in done.stdout
    assert done.exit_code == 0


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
    for given, flags in (((), "fmul contract"), (("--fast-math",), "fmul reassoc nsz contract")):
        where = ("--stage", "llvm") if command == "show" else ("--emit", "llvm", "-o", tmp_path)
        done = invoke(command, KERNEL, "csrmm", *map(str, where), *given)
        assert done.exit_code == 0, done.stderr
        text = done.stdout if command == "show" else (tmp_path / "csrmm.ll").read_text()
        assert flags in text
