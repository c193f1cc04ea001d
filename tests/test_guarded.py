"""No program and no conversion touches memory beside its arguments, on this CPU or a lesser one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spcomp.ir.printer.program import print_program
from tests.layers import stages


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by mprotect")
@pytest.mark.parametrize("name", ["", "x86-64-v2"])
@pytest.mark.parametrize("side", ["begin", "end"])
@pytest.mark.sample(4, long=4)
def test_nothing_beside_an_argument_is_touched(side, name):
    if name and os.uname().machine != "x86_64":
        pytest.skip("that is code for x86")
    done = subprocess.run(
        [sys.executable, "-m", "tests.guarded", side],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "SPCOMP_CPU": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr[-2000:]}"


def test_a_prefetch_reads_where_no_row_before_the_first_begins():
    text = print_program(stages("ell_times_csr").position)
    (hint,) = (line for line in text.splitlines() if "T.prefetch(B, " in line)
    assert "T.max(J_indices[" in hint  # a place that is padding says -1
