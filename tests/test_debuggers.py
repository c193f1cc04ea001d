"""Code for debuggers: the same code, in a file in which they find the lines of the script."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen.functions.define import OF_TWO, WHOLE
from spcomp.runtime import shared
from tests.programs import BY_NAME
from tests.test_places import TEN

A = sps.random(300, 200, 0.1, "csr", dtype="float32", rng=np.random.default_rng(1))
B = np.ones((200, 8), "float32")
CALL = """
import numpy as np, scipy.sparse as sps, spcomp
from examples.spmm import csrmm
A = sps.random(300, 200, 0.1, "csr", dtype="float32", random_state=1)
kernel = spcomp.compile(csrmm, debug=True)
assert np.allclose(kernel(A=A, B=np.ones((200, 8), "float32")), A.sum(axis=1)[:, None])
"""
in_files = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None,
    reason="libraries for debuggers are made on Linux, with a C compiler",
)


def long(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.long)


def machine_code(name: str, *, debug: bool) -> dict[bytes, bytes]:
    """What the machine runs and reads of a program's object file, by section."""
    kernel = spcomp.compile(BY_NAME[name].build(), check="off", debug=debug)
    sections = llvm.ObjectFileRef.from_data(kernel.object_bytes).sections()
    named = ((section.name() or b"", section.data()) for section in sections)
    return {name: data for name, data in named if name.startswith((b".text", b".rodata"))}


@pytest.mark.parametrize(
    "name", [TEN[0], *(pytest.param(n, marks=pytest.mark.long) for n in TEN[1:])]
)
def test_machine_code_is_the_same_with_and_without_places(name):
    plain = machine_code(name, debug=False)
    assert len(plain[b".text"]) > 100  # bytes
    assert machine_code(name, debug=True) == plain


@pytest.mark.parametrize("func", sorted(WHOLE))
def test_functions_have_places_where_they_are_called(func):
    arguments = "x[i], x[i]" if func in OF_TWO else "x[i]"
    x = np.full(20, 0.5)
    for where in ("cpu", "cuda:sm_90,emulate"):
        plain, marked = (
            spcomp.compile(f"y[i] = {func}({arguments})", target=where, debug=debug)
            for debug in (False, True)
        )
        for dtype in ("float32", "float64"):
            y = marked(x=x.astype(dtype))
            np.testing.assert_array_equal(y, plain(x=x.astype(dtype)))
    assert plain.explore() is not None


@in_files
def test_code_with_places_runs_from_a_file_and_computes_the_same():
    plain, marked = (spcomp.compile(BY_NAME["csrmm"].build(), debug=d) for d in (False, True))
    for _ in range(3):  # the third is repeated by a plan
        np.testing.assert_array_equal(marked(A=A, B=B), plain(A=A, B=B))
    libraries = [path.name for path in shared._folder().iterdir()]
    assert any(name.startswith("csrmm") and name.endswith(".so") for name in libraries)
    assert "spcomp-debug-" in Path("/proc/self/maps").read_text()


def test_without_a_linker_code_with_places_runs_in_memory(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert shared.load(b"", "f", [], {}) is None


@in_files
@pytest.mark.long
@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
def test_gdb_stops_at_a_line_of_the_script(tmp_path):
    (tmp_path / "call.py").write_text(CALL)
    root = Path(__file__).parents[1]
    text = (root / "examples/spmm.py").read_text().splitlines()
    (line,) = [k for k, row in enumerate(text, 1) if "A[i, j] * B[j, k]" in row]
    orders = ("set breakpoint pending on", f"break spmm.py:{line}", "run", "backtrace 2", "kill")
    asked = [part for order in orders for part in ("-ex", order)]
    command = ["gdb", "-q", "-batch", "-nx", *asked, "--args", sys.executable, "call.py"]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "DEBUGINFOD_URLS": ""}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment
    )
    if "ptrace" in run.stderr:
        pytest.skip("this system does not let gdb run a program")
    assert f"at {root}/examples/spmm.py:{line}" in run.stdout or f"at spmm.py:{line}" in run.stdout
    assert text[line - 1].strip() in run.stdout
