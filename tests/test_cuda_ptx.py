"""PTX: LLVM's back end takes all that we emit, ptxas all of that, and nothing spills."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.errors import SpcompWarning
from spcomp.runtime.cuda.ptxas import assemble, tool
from spcomp.target import target
from tests.layers import source
from tests.programs import PROGRAMS

ROOT = Path(__file__).resolve().parent.parent
REASONS = (  # why an operation does not exist for a type, on any target
    *(r"\S+ needs an? \w+, not a \w+", r"\S+ needs integers, not \w+"),
    *(r"no arithmetic \S+ on bools", r"operator m\w\w on bool", "- has no meaning for bool"),
)
ARCHES = ("sm_80", pytest.param("sm_90", marks=pytest.mark.long))


@pytest.mark.parametrize("arch", ARCHES)
def test_llvm_takes_every_operation_in_every_type(arch):
    """In a process of its own: LLVM ends the process at what its back end does not know."""
    command = [sys.executable, "-m", "tests.ptx_of_everything", arch]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    result = json.loads(ran.stdout)
    assert result["done"] > 900
    for name, reason in result["refused"].items():
        assert any(re.fullmatch(known, reason) for known in REASONS), (name, reason)
    kinds = {re.split("[ ]", name)[0] for name in result["refused"]}
    assert not kinds & {"int8", "uint16", "int32", "uint64"}


def kernels(program, arch):
    goal = nvvm.resolve(target(f"cuda:{arch}"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)
        return nvvm.emit(lower(source(program.name, program.dtypes[0]), goal).flat, goal), goal


PTXAS = "release 13.0"


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ARCHES)
def test_registers_of_the_corpus_are_as_recorded_and_none_spill(arch, golden):
    """Of a thread: registers, bytes of them in memory, and whether it has local memory."""
    lines, spilled = [], {}
    for program in PROGRAMS:
        emitted, goal = kernels(program, arch)
        ptx = nvvm.ptx(emitted.llvm_ir, goal)
        usage = assemble(ptx, arch).usage
        local = {part.split("(")[0] for part in ptx.split(".entry ")[1:] if ".local " in part}
        for abi in emitted.functions:
            took = usage[abi.symbol]
            spilled |= {abi.symbol: took.spilled} if took.spilled else {}
            mark = " local" if abi.symbol in local else ""
            lines.append(f"{abi.symbol} {took.registers} {took.spilled}{mark}")
    assert not spilled
    said = subprocess.run(
        [str(tool("ptxas")), "--version"], capture_output=True, text=True, check=True
    )
    if PTXAS not in said.stdout:
        pytest.skip(f"registers are recorded for ptxas of {PTXAS}")
    golden(f"registers.{arch}.txt", "\n".join(lines) + "\n")
