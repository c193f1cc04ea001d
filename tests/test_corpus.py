"""The law of the project: every stage of every program means what the dense oracle says."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import FormatError, SpcompWarning
from spcomp.ir.interpret import stmt as interpret_stmt
from spcomp.ir.printer.program import print_program
from spcomp.ir.program import CoordFunc
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.schedule.step import Trace
from spcomp.script.parse import parse_source
from tests.layers import (
    STAGES,
    TARGET,
    WIDTHS,
    as_read,
    called,
    interpreted,
    kernel,
    reparsed,
    source,
    stages,
)
from tests.programs import BY_NAME, PROGRAMS, PUBLISHED_BMM, Program, fresh, variants
from tests.strategies import DrawnByHypothesis

VARIANTS = [(program, *v) for program in PROGRAMS for v in variants(program)]
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
every_stage = pytest.mark.parametrize("stage", STAGES)
every_variant = pytest.mark.parametrize(
    ("program", "dtype", "idtype"), VARIANTS, ids=lambda v: v if isinstance(v, str) else v.name
)


def _cases(program: Program, *, assembled_calls: bool = False) -> tuple[str, ...]:
    """The cases of *program*; scipy does not take an ``indptr[0]`` other than 0."""
    skipped = "indptr_offset" if assembled_calls and program.assembles else ""
    return tuple(case for case in program.cases if case != skipped)


@every_variant
def test_a_program_parses_to_a_legal_function_of_its_name(program, dtype, idtype):
    func = source(program.name, dtype, idtype)
    assert isinstance(func, CoordFunc)
    assert func.name == program.name
    verify(func, "parse")


@every_variant
def test_what_is_printed_parses_to_the_same_program(program, dtype, idtype):
    func = source(program.name, dtype, idtype)
    assert structural_equal(reparsed(func, program.name), func)


@every_variant
def test_the_source_means_what_the_oracle_says(program, dtype, idtype):
    func = source(program.name, dtype, idtype)
    for case in program.cases:
        inputs = program.inputs(case, dtype, idtype)
        results = interpreted(func, fresh(inputs))
        program.check(inputs, results, dtype, f"interpreted, {case}")


@every_stage
@every_program
@pytest.mark.sample(8, long=3)
def test_a_stage_is_legal_and_prints_to_the_same_program(program, stage):
    module = getattr(stages(program.name, program.dtypes[0]), stage)
    verify(module, stage)
    assert structural_equal(as_read(module, program.name), module)


@every_program
@pytest.mark.parametrize("target", WIDTHS, ids=lambda target: target.cpu)
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.sample(16, long=4)
def test_what_each_pass_leaves_is_legal_and_prints_to_the_same_program(program, target):
    def check(step, module):
        verify(module, step.name)
        assert structural_equal(as_read(module, program.name), module), step

    lower(source(program.name, program.dtypes[0]), target, after=check)


@every_stage
@every_variant
@pytest.mark.sample(16, long=4)
def test_a_stage_means_what_the_oracle_says(program, stage, dtype, idtype):
    module = getattr(stages(program.name, dtype, idtype), stage)
    for case in program.cases:
        inputs = program.inputs(case, dtype, idtype)
        results = interpreted(module, fresh(inputs))
        program.check(inputs, results, dtype, f"{stage}, {case}")


@every_program
def test_what_a_prefetch_reads_on_its_way_is_there(program, monkeypatch):
    module = stages(program.name).flat
    if "T.prefetch(" not in print_program(module):
        return
    monkeypatch.setattr(interpret_stmt, "suppress", lambda _: nullcontext())
    for case in program.cases:
        interpreted(module, fresh(program.inputs(case, program.dtypes[0])))


@every_variant
@pytest.mark.sample(16, long=3)
def test_machine_code_computes_what_the_oracle_says(program, dtype, idtype):
    for case in _cases(program, assembled_calls=True):
        inputs = program.inputs(case, dtype, idtype)
        results = called(program.name, fresh(inputs), dtype, idtype)
        program.check(inputs, results, dtype, f"compiled, {case}")


@every_program
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.parametrize("trace", [None, Trace()], ids=["default", "none"])
@pytest.mark.sample(16, long=6)
def test_a_stage_that_was_printed_is_compiled_again_and_computes_the_same(program, trace):
    dtype = program.dtypes[0]
    first = spcomp.compile(source(program.name, dtype), trace=trace)
    for stage, check in (("position", "full"), ("position", "off"), ("flat", "full")):
        again = spcomp.compile(spcomp.parse(first.stage(stage)), check=check)
        inputs = program.inputs("random", dtype)
        results = called(program.name, fresh(inputs), dtype, compiled=again)
        program.check(inputs, results, dtype, f"{stage}, check={check}")


@every_program
@settings(max_examples=10)
@given(data=st.data())
@pytest.mark.sample(8, long=3)
def test_source_and_machine_code_agree_on_any_structure(program, data):
    dtype = program.dtypes[0]
    kernel(program.name, dtype)  # a program that does not compile needs no structure to show it
    draw = DrawnByHypothesis(data, dtype)
    if program.assembles:
        draw.case, draw.offset = "random", lambda: 0
    inputs = program.make(draw)
    program.check(inputs, interpreted(source(program.name, dtype), fresh(inputs)), dtype)
    program.check(inputs, called(program.name, fresh(inputs), dtype), dtype)


@pytest.mark.parametrize("name", [p.name for p in PROGRAMS if p.warns])
def test_a_false_claim_of_a_spatial_axis_is_warned_about_by_name(name):
    with pytest.warns(SpcompWarning, match=rf"\b{BY_NAME[name].warns}\b"):
        lower(source(name), TARGET)


def test_two_variable_siblings_in_one_buffer_are_refused():
    with pytest.raises(FormatError) as caught:
        spcomp.compile(parse_source(PUBLISHED_BMM, "bmm.py")[0])
    assert re.search(r"\bI\b.*\bIJ\b|\bIJ\b.*\bI\b", caught.value.message)
    assert caught.value.hint
    assert caught.value.span is not None
    line = PUBLISHED_BMM.splitlines()[caught.value.span.line - 1]
    assert "match_sparse_buffer(x" in line
