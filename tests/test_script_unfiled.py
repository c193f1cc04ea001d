"""Scripts are found where no file has them: in exec, python -c, standard input, notebooks."""

from __future__ import annotations

import linecache
import subprocess
import sys

import numpy as np
import pytest

import spcomp
from spcomp.errors import ScriptError
from tests.conftest import ROOT

SCRIPT = """from spcomp import script as T

def outer(by):
    @T.prim_func
    def scale(x: T.handle, n: T.int32) -> None:
        X = T.match_buffer(x, (n,), "float32")
        for i in T.serial(n):
            X[i] = X[i] * by
    return scale
"""
WRONG = SCRIPT.replace("= X[i] * by", "= Y[i] * by") + "outer(2.0)\n"


def test_a_script_is_found_in_the_text_that_was_executed():
    text, names = SCRIPT, {}
    exec(text, names)
    x = np.ones(3, np.float32)
    spcomp.compile(names["outer"](2.0))(X=x)
    assert x.tolist() == [2, 2, 2]


def test_only_the_text_that_was_executed_counts():
    text, names = SCRIPT, {}
    exec(text, names)
    text = SCRIPT.replace("X[i] * by", "X[i] + by")
    with pytest.raises(ScriptError, match="the source of scale cannot be read"):
        names["outer"](2.0)
    assert "+" in text


def test_an_error_shows_the_line_of_the_text():
    text = WRONG
    with pytest.raises(ScriptError, match="unknown buffer 'Y'") as caught:
        exec(text, {})
    assert "    8 |             X[i] = Y[i] * by" in str(caught.value)


def test_a_cell_of_a_notebook_is_found():
    """IPython puts the text of a cell where linecache finds it, under a name of its own."""
    cell = "/tmp/ipykernel_1/123.py"
    linecache.cache[cell] = (len(SCRIPT), None, SCRIPT.splitlines(keepends=True), cell)
    names = {}
    exec(compile(SCRIPT, cell, "exec"), names)
    assert names["outer"](2.0).name == "scale"
    del linecache.cache[cell]


@pytest.mark.parametrize("way", ["-c", "stdin"])
def test_python_finds_scripts_of_its_argument_and_its_input(way, tmp_path):
    (tmp_path / "wrong.txt").write_text(WRONG)
    with (tmp_path / "wrong.txt").open() as file:
        command = [sys.executable, "-c", WRONG] if way == "-c" else [sys.executable]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, cwd=ROOT)
    assert "unknown buffer 'Y'" in done.stderr
    assert "    8 |             X[i] = Y[i] * by" in done.stderr
