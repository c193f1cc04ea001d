"""Printed programs that were edited: each is refused at its line, or is a program that runs."""

from __future__ import annotations

import contextlib
import os
import random
import re
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, ScriptError, SpcompError
from spcomp.ir.module import Module, single
from spcomp.ir.printer.program import print_program
from spcomp.passes.pipelines import legal
from tests.corpus_base import fresh
from tests.layers import STAGES, source, stages
from tests.programs import BY_NAME, PROGRAMS
from tests.random_edits import edited

pytestmark = pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
EDITED = int(os.environ.get("SPCOMP_RANDOM_EDITS", "250"))  # more of them, by hand
GROUPS = 10
LONGEST = 6000  # characters: what is longer takes seconds to compile
ENDLESS = re.compile(r"\bwhile\b|\d{6,}")  # an edit may make a loop that does not end
NOTATION = (
    "C[i, j] = A[i, j] + B[i, j]",
    "C[i, j] = A[i, j] * B[i, j]",
    "C[i, j] = A[i, k] * B[k, j]",
    "y[i] = A[i, j] * B[j, i]",
)


def operand() -> sps.csr_array:
    return sps.random_array((5, 5), density=0.4, format="csr", rng=np.random.default_rng(0))


@cache
def printed() -> tuple[tuple[str, str], ...]:
    """The programs of the corpus and of index notation at every stage, each with its name."""
    found = []
    for program in PROGRAMS:
        made = stages(program.name, program.dtypes[0])
        found += [(program.name, print_program(getattr(made, stage))) for stage in STAGES]
    for text in NOTATION:
        kernel = spcomp.compile(text).specialize(A=operand(), B=operand())
        found += [("", kernel.stage(stage)) for stage in STAGES[1:]] * 4
    return tuple((name, text) for name, text in found if len(text) < LONGEST)


def run(name: str, kernel: spcomp.Kernel) -> None:
    """Call *kernel*, made of the program *name*; what it computes is anything."""
    if not name:
        kernel(A=operand(), B=operand())
    elif not BY_NAME[name].assembles:
        program = BY_NAME[name]
        args = fresh(program.inputs("random", program.dtypes[0]))
        params = [param.name for param in source(name, program.dtypes[0]).params]
        kernel(**{key: args[key] for key in params if kernel.takes(key)})


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.sample(8, long=3)
def test_an_edited_program_is_refused_with_a_message_or_runs(group):
    rng = random.Random(group)
    refused = 0
    for _ in range(EDITED // GROUPS):
        name, text = rng.choice(printed())
        text, what = edited(text, rng)
        try:
            program = spcomp.parse(text)
            legal(program if isinstance(program, Module) else single(program))
            kernel = spcomp.compile(program)
            if not ENDLESS.search(text):
                run(name, kernel)
        except SpcompError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{what} of {name}:\n{text}") from error
    assert refused > EDITED // GROUPS // 4


# -- edits that no rule of the language is in the way of -----------------------------------------


def refused(text, before, after, message):
    """Assert that *text* with *after* in the place of *before* is refused, at a line of its own."""
    assert before in text
    with pytest.raises(SpcompError) as caught:
        spcomp.compile(spcomp.parse(text.replace(before, after)))(A=operand(), B=operand())
    assert message in caught.value.message
    return caught.value


@cache
def added(stage):
    return spcomp.compile(NOTATION[0]).specialize(A=operand(), B=operand()).stage(stage)


def test_what_a_host_program_makes_has_the_type_that_its_functions_take():
    text = added("position")
    error = refused(text, '[n_i], "float64")', '[n_i], "float32")', "as float64, it is float32")
    assert "_kernel_fill(" in text.splitlines()[error.span.line - 1]
    small = 'T.host_alloc(n_i + 1, "int8")'
    refused(text, 'T.host_alloc(n_i + 1, "int32")', small, "as int32, it is int8")


def test_a_function_takes_no_more_of_an_array_than_there_is():
    text = added("flat")
    longer = 'T.match_buffer(A_values, (10000 * A_j_nnz,), "float64")'
    before = 'T.match_buffer(A_values, (A_j_nnz,), "float64")'
    error = refused(text, before, longer, "elements of A_values, there are 10")
    assert isinstance(error, ArgumentError)
    kernel = spcomp.compile(spcomp.parse(text.replace(before, longer)))
    for _ in range(5):  # no plan is learnt that does not look
        with pytest.raises(ArgumentError, match="there are 10"):
            kernel(A=operand(), B=operand())
    shorter = "T.host_alloc((A_j_nnz + B_j_nnz) // 2,"
    refused(text, "T.host_alloc(A_j_nnz + B_j_nnz,", shorter, "the host program made 10")


def test_a_result_whose_arrays_do_not_fit_is_not_handed_out():
    text = added("position")
    before = 'T.host_alloc(C_j_indptr[n_i], "int32")'
    refused(text, before, before.replace("C_j_indptr[n_i]", "0"), "the program made no such tensor")


def test_a_host_program_returns_the_arrays_of_its_results():
    text = added("position")
    line = "        T.host_return(C_j_indptr, C_j_indices, C_values)\n"
    refused(text, line, "", "the host does not return C_j_indptr, which is of a result")
    less = line.replace(", C_values", "")
    refused(text, line, less, "the host does not return C_values, which is of a result")
    assert isinstance(
        refused(text, "T.scan(C_j_indptr)", "T.scan(C_values)", "C_values"), ScriptError
    )


def test_a_phase_without_one_of_its_arrays_is_no_pattern_that_a_pass_takes_for_granted():
    lines = added("position").splitlines(keepends=True)
    own = [k for k, line in enumerate(lines) if "T.match_sparse_buffer(C_j_indptr" in line]
    for k in own:
        text = "".join(lines[:k] + lines[k + 1 :])
        with contextlib.suppress(SpcompError):
            made = spcomp.compile(spcomp.parse(text))(A=operand(), B=operand())
            np.testing.assert_array_equal(made.toarray(), 2 * operand().toarray())


def test_a_law_of_a_level_that_is_broken_is_shown_where_it_was_written():
    text = """from spcomp import script as T

@T.prim_func
def f(a: T.handle) -> None:
    T.func_attr({"sparse_tir_level": 0})
    A = T.match_buffer(a, (8,), "float32")
    A[0] = T.vector_reduce("+", T.cast(T.broadcast(T.float32(1.0), 8), "float32x64"))
"""
    with pytest.raises(ScriptError) as caught:
        spcomp.compile(spcomp.parse(text))
    assert caught.value.span.line == 7
    ramp = text.replace("A[0]", "A[T.ramp(0, 1, 8)]").replace('T.vector_reduce("+", ', "(")
    ramp = ramp.replace("float32x64", "float32")
    spcomp.compile(spcomp.parse(ramp))
    with pytest.raises(ScriptError, match="above the flat level") as caught:
        spcomp.compile(spcomp.parse(ramp.replace('"sparse_tir_level": 0', '"sparse_tir_level": 1')))
    assert caught.value.span.line == 7


def test_a_handle_is_no_type_of_values():
    text = BY_NAME["csrmm"].text().replace('(I, K), "float32"', '(I, K), "handle"')
    with pytest.raises(ScriptError, match="a handle is a parameter, and no type of values"):
        spcomp.parse(text)


def test_a_number_that_nothing_tells_is_asked_for():
    text = spcomp.compile(NOTATION[0]).specialize(A=operand(), B=operand()).stage("coordinate")
    error = refused(text, "(n_j, B_j_nnz)", "n_j", "argument B_j_nnz: missing")
    assert isinstance(error, ArgumentError)


def test_checks_of_a_program_that_has_checks_do_not_multiply():
    rng = np.random.default_rng(0)
    A = spcomp.convert(rng.integers(0, 3, 200), spcomp.Format(("bitmap",)))
    B = spcomp.convert(rng.random(200) * (rng.random(200) < 0.5), spcomp.Format(("compressed",)))
    kernel = spcomp.compile("t = sum(k, A[k] if B[k] <= 0.5)").specialize(A=A, B=B)
    text = spcomp.compile(spcomp.parse(kernel.stage("flat"))).stage("flat")
    again = spcomp.compile(spcomp.parse(text)).stage("flat")
    assert len(again) < 4 * len(text)  # it was many thousand times as long
