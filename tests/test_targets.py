"""Every program of the corpus for every target: right, and the same at any number of threads."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest

import spcomp
from spcomp.errors import BackendError, SpcompWarning
from tests.layers import _matrix, source
from tests.programs import BY_NAME, PROGRAMS, fresh

THREADS = (1, 2, 5)
every_program = pytest.mark.parametrize("name", [program.name for program in PROGRAMS])


@cache
def _kernel(name, target):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)
        return spcomp.compile(source(name, BY_NAME[name].dtypes[0]), target=target)


def _run(name, kernel, inputs):
    """Every array by name after a call."""
    if BY_NAME[name].assembles:
        result = kernel(A=_matrix(inputs, "a"), B=_matrix(inputs, "b"))
        parts = {"JC_indptr": result.indptr, "JC_indices": result.indices, "c": result.data}
        return {**inputs, **parts}
    kernel(*(inputs[param.name] for param in source(name, BY_NAME[name].dtypes[0]).params))
    return inputs


def _bits(arrays):
    return {k: v.tobytes() for k, v in arrays.items() if isinstance(v, np.ndarray)}


@every_program
@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64", "cpu:x86-64-v3", "cpu:x86-64-v4"])
@pytest.mark.sample(16, long=4)
def test_a_program_is_right_for_a_target_at_any_number_of_threads(name, target):
    program, kernel = BY_NAME[name], _kernel(name, target)
    assert kernel.source("asm")
    for case in program.cases:
        if case == "indptr_offset" and program.assembles:
            continue  # scipy does not take it
        inputs, seen = program.inputs(case, program.dtypes[0]), []
        for threads in THREADS:
            with spcomp.num_threads(threads):
                try:
                    results = _run(name, kernel, fresh(inputs))
                except BackendError as error:
                    pytest.skip(f"this machine cannot run {target}: {error.message}")
            program.check(inputs, results, program.dtypes[0], f"{target}, {threads} threads")
            seen.append(_bits(results))
        assert all(bits == seen[0] for bits in seen)


@every_program
@pytest.mark.sample(8, long=2)
def test_assembly_for_another_architecture_is_written(name):
    assert ".text" in _kernel(name, "cpu:aarch64").source("asm")
