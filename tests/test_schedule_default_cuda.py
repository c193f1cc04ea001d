"""The default schedule on GPUs: which rows, columns and sums run on which threads."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.compiler.variants import facts
from spcomp.ir.analysis.grid import grid_of
from spcomp.ir.analysis.sizes import text
from spcomp.ir.specialize import specialize
from spcomp.knobs import CUDA_GRID, CUDA_KNOBS, knobs_of
from spcomp.schedule.default.cuda import default_schedule
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.schedule import Schedule
from spcomp.target import target
from tests.layers import source
from tests.programs import BY_NAME, fresh

TARGET = nvvm.resolve(target("cuda:sm_80"))


def trace(name, constants=None, known=None):
    """The steps of the program *name*, as text."""
    lowered = lower(source(name), TARGET, constants, facts=known or Facts())
    return str(lowered.trace)


def grids(name, constants=None, known=None):
    """Blocks, as text, and threads of each kernel of the program *name*."""
    flat = lower(source(name), TARGET, constants, facts=known or Facts()).flat
    found = [grid_of(func) for func in flat.funcs]
    return [(" x ".join(text(n) for n in grid.blocks[:2]), grid.threads) for grid in found]


@pytest.mark.parametrize(
    ("feat", "width", "lanes"), [(128, 4, 32), (32, 4, 8), (64, 4, 16), (6, 2, 3), (7, 1, 7)]
)
def test_a_thread_has_neighbouring_columns_of_a_row_and_loads_16_bytes_where_it_can(
    feat, width, lanes
):
    steps = trace("csrmm", {"feat": feat})
    factors = f"(None, {lanes}, {width})" if width > 1 else lanes
    assert f"split('k', {factors})" in steps
    assert ("vectorize" in steps) == (width > 1)
    assert grids("csrmm", {"feat": feat})[0][1] == (lanes, 128 // lanes, 1)


def test_more_columns_than_a_warp_holds_are_blocks_of_their_own():
    assert grids("csrmm", {"feat": 256}) == [("(m + 3) // 4 x 2", (32, 4, 1))]
    assert grids("csrmm") == [("(m + 3) // 4 x (feat + 31) // 32", (32, 4, 1))]


@pytest.mark.parametrize(("row", "threads"), [(0, 8), (1, 2), (8, 2), (32, 8), (128, 32)])
def test_a_quarter_as_many_threads_share_a_row_as_it_has_elements(row, threads):
    rows = 128 // threads
    found = grids("spmv", known=Facts(row=row))
    assert found == [(f"(m + {rows - 1}) // {rows} x 1", (threads, rows, 1))]


def test_the_length_of_rows_is_asked_for_on_gpus_only():
    indptr = np.arange(0, 101, 10)
    asked = facts(("p",), {"p": indptr}, CUDA_KNOBS, hubs=False)
    assert asked.row == 16
    assert facts(("p",), {"p": indptr}, knobs_of(target("cpu")), hubs=False).row == 0
    assert facts(("p",), {"p": np.zeros(5, int)}, CUDA_KNOBS, hubs=False).row == 0
    assert facts(("p",), {"p": np.array([0, 10**6])}, CUDA_KNOBS, hubs=False).row == 128


def test_elements_of_all_rows_of_a_sampled_product_are_shared_out_in_equal_parts():
    listing, (grid, threads) = grids("sddmm", {"feat": 128})
    assert "nnz" in listing[0]
    assert "nnz" in grid
    assert threads == (8, 16, 1)
    steps = trace("sddmm", {"feat": 128})
    assert "split_positions('i', 'j', 2, 16, parts=65536, listed=4)" in steps
    assert "rfactor('k_1'" in steps
    assert "rfactor('k_2'" in steps
    assert "bind('i_c_i', 'threadIdx.y')" in steps


@pytest.mark.parametrize("name", ["sparse_softmax", "mttkrp", "bsrmm", "gather_rows"])
def test_several_loops_of_a_row_run_on_the_threads_of_its_group(name):
    ((_, threads),) = grids(name)
    assert threads == (8, 16, 1)
    assert trace(name).count("'threadIdx.x'") >= 1


def test_rows_that_are_scattered_run_by_columns():
    assert "parallel('k')" in trace("csrmm_t")


@pytest.mark.parametrize("name", ["csrmm", "spmv", "sddmm", "sparse_softmax"])
def test_the_trace_replays_to_the_same_program(name):
    lowered = lower(source(name), TARGET, {"feat": 32} if name in ("csrmm", "sddmm") else None)
    again = lower(
        source(name),
        TARGET,
        {"feat": 32} if name in ("csrmm", "sddmm") else None,
        trace=lowered.trace,
    )
    assert again.flat.funcs[0].script() == lowered.flat.funcs[0].script()


def test_a_loop_that_the_user_binds_is_left_as_it_is():
    schedule = Schedule(source("csrmm")).lower_sparse_iter().bind("i", "blockIdx.x")
    kernel = spcomp.compile(schedule, target="cuda:sm_80,emulate")
    inputs = BY_NAME["csrmm"].inputs("random")
    arguments = fresh(inputs)
    kernel(*(arguments[param.name] for param in source("csrmm").params))
    BY_NAME["csrmm"].check(inputs, arguments)
    assert "blocks m" in kernel.explain()


def test_a_matrix_with_long_rows_gets_another_kernel_than_one_with_short_rows():
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]", target="cuda:sm_80,emulate")
    rng = np.random.default_rng(0)
    x = rng.random(100, np.float32)
    for density in (0.01, 0.04, 0.9):
        A = sps.random_array((64, 100), density=density, format="csr", rng=rng, dtype=np.float32)
        np.testing.assert_allclose(kernel(A=A, x=x), A @ x, rtol=1e-4, atol=1e-5)


def test_thresholds_of_a_grid_decide():
    program = specialize(source("csrmm"), {"feat": 128})
    func = Schedule(program).lower_sparse_iter().func
    for threads in (64, 128):
        grid = dataclasses.replace(CUDA_GRID, block_threads=threads)
        _, steps = default_schedule(func, TARGET, grid=grid)
        assert f"split('i', {threads // 32})" in map(str, steps)


def test_bounds_of_shared_iterations_are_ends_of_loops_not_conditions_inside():
    text_ = lower(source("sddmm"), TARGET, {"feat": 128}).flat.funcs[-1].script()
    (bound,) = re.findall(r"for j in T.unroll\((.*)\)", text_)
    assert bound.startswith('T.min(2, (J_indptr[T.cast(m, "int64")] - ')
    assert "if " not in text_[text_.index("for j in") :]
