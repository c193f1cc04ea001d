"""The CUDA target: programs become kernels that mean what the programs mean, in order."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, Kernels, order, small_blocks
from tests.layers import as_read, called, interpreted, source
from tests.programs import BY_NAME, PROGRAMS, Draw, fresh, variants

TARGET = nvvm.resolve(target("cuda:sm_80"))
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
every_variant = pytest.mark.parametrize(
    ("program", "dtype", "idtype"),
    [
        pytest.param(p, *variant, marks=[pytest.mark.long] if number else [])
        for p in PROGRAMS
        for number, variant in enumerate(variants(p))
    ],
    ids=lambda x: getattr(x, "name", x),
)


@cache
def kernels(name: str, dtype: str = "float32", idtype: str = "int32") -> Any:
    """Return the program *name* as kernels: a Module at flat level."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if BY_NAME[name].warns else "error")
        return lower(source(name, dtype, idtype), TARGET).flat


@every_program
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.sample(16, long=8)
def test_what_each_pass_leaves_is_legal_and_prints_to_the_same_program(program):
    def check(step, module):
        verify(module, step.name)
        assert structural_equal(as_read(module, program.name), module), step

    lower(source(program.name, program.dtypes[0]), TARGET, after=check)


@every_variant
@pytest.mark.sample(16, long=16)
def test_kernels_mean_what_the_oracle_says(program, dtype, idtype):
    module = kernels(program.name, dtype, idtype)
    for case in program.cases:
        inputs = program.inputs(case, dtype, idtype)
        results = interpreted(module, fresh(inputs))
        program.check(inputs, results, dtype, f"kernels, {case}")


@every_variant
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.sample(16, long=16)
def test_the_emulated_gpu_computes_what_the_oracle_says_in_any_order(program, dtype, idtype):
    kernel = spcomp.compile(source(program.name, dtype, idtype), target=EMULATED)
    for number, case in enumerate(program.cases):
        if program.assembles and case == "indptr_offset":  # scipy takes no such matrix
            continue
        inputs = program.inputs(case, dtype, idtype)
        with order(ORDERS[number % len(ORDERS)]):
            results = called(program.name, fresh(inputs), dtype, idtype, kernel)
        program.check(inputs, results, dtype, f"emulated, {case}")


@every_program
@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
@pytest.mark.sample(8, long=4)
def test_several_blocks_compute_what_one_does(program):
    """No block waits for another: with blocks of 4 threads, the smallest inputs fill several."""
    dtype = program.dtypes[0]
    with small_blocks():
        kernels = Kernels(source(program.name, dtype))
        for number, case in enumerate(program.cases):
            inputs = program.inputs(case, dtype)
            with order(ORDERS[number % len(ORDERS)]):
                results = kernels(fresh(inputs))
            program.check(inputs, results, dtype, f"small blocks, {case}")


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("name", ["csrmm", "spmv", "sddmm", "sparse_softmax", "spgemm"])
def test_any_width_and_rows_of_any_length(name):
    """Inner extents on both sides of a warp, a row with everything, rows with nothing."""
    program = BY_NAME[name]
    kernel = Kernels(source(name))
    for size in (0, 1, 2, 31, 32, 33, 128):
        draw = Draw(np.random.default_rng(size), "full_row")
        draw.size = lambda _, size=size: size  # type: ignore[method-assign]
        inputs = program.make(draw)
        with order(ORDERS[size % len(ORDERS)]):
            program.check(inputs, kernel(fresh(inputs)), "float32", f"width {size}")


@pytest.mark.parametrize("name", ["csrmm", "spmv"])
def test_arrays_at_any_address_are_taken(name):
    kernel, inputs = Kernels(source(name)), BY_NAME[name].inputs("random")
    shifted = {
        k: np.r_[v[:1], v][1:] if isinstance(v, np.ndarray) else v for k, v in inputs.items()
    }
    assert any(v.ctypes.data % 16 for v in shifted.values() if isinstance(v, np.ndarray))
    BY_NAME[name].check(inputs, kernel(shifted), "float32", "shifted")
