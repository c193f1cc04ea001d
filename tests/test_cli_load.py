"""Kernel files that are wrong: a message at the user's line and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import spcomp
from spcomp.cli.load import load, select
from spcomp.cli.main import main
from spcomp.errors import ScriptError

ROOT = Path(__file__).parents[1]
PROGRAM = """
@T.prim_func
def {name}(a: T.handle, n: T.int32) -> None:
    I = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I,), "float32")
    with T.sp_iter([I], "S", "{name}") as [i]:
        A[i] = A[i] * 2.0
"""
IMPORT = "from spcomp import script as T\n"


def program(*names: str) -> str:
    return IMPORT + "\n".join(PROGRAM.format(name=name) for name in names)


@pytest.fixture
def kernel_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str | bytes, name: str = "kernel.py") -> str:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    return write


def invoke(*args: str) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


WRONG = {
    "a syntax error": ("x = 1\ny = (\n", 2, 5, "the file is not Python: '(' was never closed"),
    "an import error": ("\nimport no_such_module\n", 2, 1, "No module named 'no_such_module'"),
    "a name error": ("def f():\n    return y\n\nf()\n", 2, 12, "NameError: name 'y' is not"),
    "an exception of its own": ("raise KeyError(3)\n", 1, 1, "the file does not run: KeyError: 3"),
    "an exit": ("import sys\nsys.exit(0)\n", 2, 1, "the file ends the process while it is loaded"),
    "two programs of one name": (
        program("twice", "other", "twice"), 20, 1, "two programs are called 'twice'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_gets_a_message_at_its_line(kernel_file, what):
    text, line, column, message = WRONG[what]
    result = invoke("build", kernel_file(text))
    assert result.exit_code == 1
    assert result.stdout == ""
    first, source, caret = result.stderr.splitlines()[:3]
    assert first.startswith(f"kernel.py:{line}:{column}: ")
    assert message in first
    assert source.endswith(text.splitlines()[line - 1])
    assert caret.index("^") == len("    1 | ") + column - 1
    assert "Traceback" not in result.stderr


def test_an_error_in_a_neighbour_is_shown_where_the_file_imports_it(kernel_file):
    kernel_file("1 / 0\n", "neighbour.py")
    result = invoke("build", kernel_file("\n\nimport neighbour\n"))
    assert result.stderr.startswith("kernel.py:3:1: the file does not run: ZeroDivisionError")
    sys.modules.pop("neighbour", None)


def test_a_syntax_error_in_a_neighbour_is_shown_there(kernel_file):
    kernel_file("x = = 1\n", "crooked.py")
    result = invoke("build", kernel_file("import crooked\n"))
    assert "crooked.py:1:5: the file is not Python: invalid syntax" in result.stderr


def test_a_file_that_is_not_text_gets_a_message(kernel_file):
    for content in (b"\xff\xfe\x00", b"x = '\x00'\n", b"# coding: klingon\n"):
        result = invoke("build", kernel_file(content))
        assert result.exit_code == 1
        assert result.stderr.startswith("kernel.py:1:")


def test_a_wrong_script_is_shown_as_the_parser_says_it(kernel_file):
    result = invoke(
        "build", kernel_file(program("f").replace("T.dense_fixed(n)", "T.dense_fixed(nn)"))
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("kernel.py:5:23: ") or "kernel.py:5:" in result.stderr
    assert "    5 |     I = T.dense_fixed(nn)" in result.stderr


def test_a_file_without_a_program_is_refused(kernel_file):
    result = invoke("build", kernel_file("x = 1\n"))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no program in kernel.py\nhint: ")


def test_a_file_that_does_not_exist_is_a_usage_error(kernel_file):
    result = invoke("build", "nowhere.py")
    assert result.exit_code == 2
    assert "'nowhere.py' does not exist" in result.stderr


def test_an_unknown_program_is_a_usage_error_with_the_nearest_name(kernel_file):
    result = invoke("show", kernel_file(program("csrmm", "sddmm")), "csrm", "--forest")
    assert result.exit_code == 2
    assert "there is no program 'csrm'; did you mean 'csrmm'?" in result.stderr
    result = invoke("show", "kernel.py", "zzz", "--forest")
    assert "there is csrmm, sddmm" in result.stderr


@pytest.mark.parametrize("given", ["feat", "=3", "feat=x", "feat="])
def test_a_constant_that_is_no_number_is_a_usage_error(kernel_file, given):
    result = invoke("build", kernel_file(program("f")), "--const", given)
    assert result.exit_code == 2
    assert "is not NAME=NUMBER" in result.stderr


def test_a_constant_that_no_program_has_is_a_usage_error(kernel_file):
    result = invoke("build", kernel_file(program("f")), "--const", "m=3")
    assert result.exit_code == 2
    assert "no program has a scalar parameter 'm'; there is n" in result.stderr


def test_an_unknown_artefact_is_a_usage_error(kernel_file):
    result = invoke("build", kernel_file(program("f")), "--emit", "llvm,jpeg")
    assert result.exit_code == 2
    assert "'jpeg' is not one of coordinate, position, flat" in result.stderr


def test_programs_are_called_by_their_variables_in_order(kernel_file):
    text = program("second", "first") + "again = second\nimport math\n"
    programs = load(kernel_file(text))
    assert list(programs) == ["second", "first", "again"]
    assert programs["again"] is programs["second"]
    assert list(select(programs, ())) == ["second", "first"]  # each once
    assert list(select(programs, ("again",))) == ["again"]


def test_a_definition_may_replace_what_is_no_program(kernel_file):
    text = IMPORT + "def f():\n    return 1\n\nf = None\n" + PROGRAM.format(name="g")
    assert list(load(kernel_file(text))) == ["g"]


def test_loading_leaves_the_process_as_it_was(kernel_file, capsys):
    before = list(sys.path)
    load(kernel_file("print('hello')\n" + program("f")))
    assert sys.path == before
    assert "spcomp.kernel_file" not in sys.modules
    assert capsys.readouterr() == ("", "hello\n")


def test_a_file_that_leaves_its_folder_is_found_again(kernel_file):
    path = kernel_file(program("f") + "import os\nos.chdir('/')\n")
    before = Path.cwd()
    assert list(load(Path(path).name)) == ["f"]
    assert Path.cwd() == before


def test_a_file_may_import_its_neighbours(kernel_file):
    kernel_file(program("shared"), "kernels_of_mine.py")
    assert list(load(kernel_file("from kernels_of_mine import shared\n"))) == ["shared"]
    sys.modules.pop("kernels_of_mine", None)


def test_an_error_without_a_line_has_no_span(kernel_file):
    with pytest.raises(ScriptError) as error:
        load(kernel_file("x = 1\n"))
    assert error.value.span is None


def test_the_command_line_runs_as_a_module(kernel_file):
    kernel_file("y = (\n")
    command = [sys.executable, "-m", "spcomp", "build", "kernel.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, env=env)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("kernel.py:1:5: the file is not Python")
    version = subprocess.run(
        [*command[:3], "--version"], capture_output=True, text=True, env=env, check=True
    )
    assert version.stdout == f"spcomp {spcomp.__version__}\n"


def test_no_command_prints_what_there_is():
    result = invoke("--help")
    assert result.exit_code == 0
    for name in ("build", "show", "doctor"):
        assert name in result.stdout


KINDS = """import numpy as np
import scipy.sparse as sps
import spcomp
a = sps.csr_array(np.eye(3, dtype="float32"))
kernel = spcomp.compile(one)
notation = spcomp.compile("y[i] = A[i, j] * x[j]").specialize(A=a, x=np.ones(3, "float32"))
later = spcomp.compile("y[i] = A[i, j] * x[j]")
"""


def test_kernels_stand_for_their_programs(kernel_file, capsys):
    kernel_file(program("one") + KINDS)
    programs = load("kernel.py")
    assert list(programs) == ["one", "kernel", "notation"]
    assert list(select(programs, ())) == ["one", "notation"]
    assert "later is skipped: it is compiled when it is called" in capsys.readouterr().err
    result = invoke("show", "kernel.py", "later")
    assert result.exit_code == 2
    assert "skipped" not in result.output
    assert "later.specialize(A=..., x=...)" in " ".join(result.output.split())
    shown = invoke("show", "kernel.py", "notation", "--stage", "coordinate").output
    assert "A[i, j] * x[j]" in shown


NOTATION = """import numpy as np
import scipy.sparse as sps
import spcomp
a, x = sps.csr_array(np.eye(3)), np.ones(3)
spmv = spcomp.compile("y[i] = A[i, j] * x[j]")
"""
DOUBLE = "k64 = spmv.specialize(A=a, x=x)\n"
SINGLE = "k32 = spmv.specialize(A=a.astype('f4'), x=x.astype('f4'))\n"


def test_a_kernel_of_notation_is_found_by_the_name_of_its_variable(kernel_file):
    kernel_file(NOTATION + DOUBLE)
    programs = load("kernel.py")
    assert set(programs) == {"spmv", "k64"}
    assert list(select(programs, ())) == ["k64"]
    assert "float64" in invoke("show", "kernel.py", "k64", "--stage", "coordinate").output
    assert invoke("show", "kernel.py", "spmv", "--stage", "coordinate").exit_code == 0


@pytest.mark.parametrize("bound", ["", "spmv = spmv.bind(A=a)\n"])
def test_notation_compiled_for_several_kinds_stands_for_no_program(kernel_file, bound):
    kernel_file(NOTATION + DOUBLE + SINGLE + bound)
    for name, dtype in (("k64", "float64"), ("k32", "float32")):
        shown = invoke("show", "kernel.py", name, "--stage", "coordinate")
        assert shown.exit_code == 0, shown.output
        assert dtype in shown.output
    result = invoke("show", "kernel.py", "spmv")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "spmv is no program by itself: it was compiled for 2 kinds of arguments" in said
    assert "= spmv.specialize(" in said
    everything = invoke("show", "kernel.py", "--stage", "coordinate")
    assert "# k64: coordinate" in everything.stdout
    assert "# k32: coordinate" in everything.stdout
    assert "spmv is skipped: it was compiled for 2 kinds" in everything.stderr


def test_decomposed_programs_are_programs_once_their_format_is_known(kernel_file, capsys):
    text = (Path(__file__).parents[1] / "examples" / "spmm.py").read_text().split("def main")[0]
    decomposed = "import spcomp\nknown = spcomp.decompose(spmm, A=spcomp.formats.bsr(2))\n"
    name = text.partition("def ")[2].partition("(")[0]
    decomposed += 'unknown = spcomp.decompose(spmm, A="hyb")\n'
    kernel_file(text + decomposed.replace("(spmm", f"({name}"))
    assert list(load("kernel.py")) == [name, "known"]
    assert "unknown is skipped: its format depends" in capsys.readouterr().err
