"""Zen 4: nests that gather are compiled twice, for arrays near a core and for those far away."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

import spcomp
from spcomp import knobs
from spcomp.codegen.cpu.machine import resolve
from spcomp.compiler.pipeline import lower
from spcomp.ir.printer.program import print_program
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.target import Target
from tests.layers import as_read, called, interpreted, source
from tests.programs import PROGRAMS, fresh

FAR = 48  # bytes: some of the small inputs are near, some far
ZEN4 = resolve(Target("cpu", "znver4"))


def lowered(name, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lower(source(name, dtype), ZEN4).flat


@pytest.mark.sample(8, long=3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_programs_mean_the_same_near_and_far(program, monkeypatch):
    dtype = program.dtypes[0]
    before = lowered(program.name, dtype)
    monkeypatch.setitem(knobs.ZENS, "znver4", replace(knobs.ZEN4_KNOBS, far_bytes=FAR))
    flat = lowered(program.name, dtype)
    if structural_equal(before, flat):
        assert f"{FAR} <= " not in print_program(flat)
        return
    verify(flat, "flat")
    assert structural_equal(as_read(flat, program.name), flat)
    kernel = spcomp.compile(spcomp.parse(print_program(flat)))
    for case in program.cases:
        inputs = program.inputs(case, dtype)
        program.check(inputs, interpreted(flat, fresh(inputs)), dtype, f"interpreted, {case}")
        if not program.assembles:
            results = called(program.name, fresh(inputs), dtype, compiled=kernel)
            program.check(inputs, results, dtype, f"compiled, {case}")


def test_several_programs_gather_from_what_may_be_far():
    both = [p.name for p in PROGRAMS if "524288 <= " in print_program(lowered(p.name, p.dtypes[0]))]
    assert "spmv" in both
    assert len(both) >= 3
