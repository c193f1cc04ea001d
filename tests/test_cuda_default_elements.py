"""Elements of all rows in equal parts: the step split_positions, and sampled products on GPUs."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError
from spcomp.knobs import CUDA_GRID
from spcomp.runtime.cuda.ptxas import assemble
from spcomp.schedule.default.facts import UNKNOWN, Facts
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.sharing.split_positions import SplitPositions
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, Kernels, order
from tests.layers import interpreted, source
from tests.programs import BY_NAME, fresh

COLUMNS = 70
ROWS = {
    "hub": [0, 3, 65, 1, 0, 2],
    "far apart": [2, *[0] * 50, 3, *[0] * 20],
    "short": [1, 2, 0, 1] * 9,
    "empty": [0] * 5,
    "one element": [0, 1, 0],
    "no rows": [],
    "offset": [2, 60, 0, 9],
}


def csr(kind):
    """indptr and indices of a matrix; those of "offset" begin with elements that are in no row."""
    rng, counts = np.random.default_rng(5), ROWS[kind]
    skipped = 11 if kind == "offset" else 0
    lists = [rng.choice(COLUMNS, skipped), *(rng.permutation(COLUMNS)[:n] for n in counts)]
    indptr = skipped + np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return indptr, np.concatenate(lists).astype(np.int32)


@contextmanager
def few_parts(parts):
    """Let there be so few parts that each has several groups."""
    before = CUDA_GRID.parts, CUDA_GRID.part_turns
    object.__setattr__(CUDA_GRID, "parts", parts)
    object.__setattr__(CUDA_GRID, "part_turns", 3)
    try:
        yield
    finally:
        object.__setattr__(CUDA_GRID, "parts", before[0])
        object.__setattr__(CUDA_GRID, "part_turns", before[1])


@pytest.mark.parametrize("feat", [1, 3, 31, 32, 33, 64, 128, 256, None])
def test_sampled_products_are_right_and_have_the_same_bits_in_any_order(feat):
    rng = np.random.default_rng(1)
    with few_parts(5):
        kernels = Kernels(source("sddmm"), {"feat": feat} if feat else None, UNKNOWN)
    width = feat or 7
    for kind in ROWS:
        indptr, indices = csr(kind)
        rows, results = len(indptr) - 1, []
        x, y = (rng.random((n, width), np.float32) for n in (rows, COLUMNS))
        for seed in ORDERS:
            c = np.full(len(indices), np.nan, np.float32)
            given = {"a": x.ravel(), "b": y.ravel(), "c": c, "indptr": indptr, "indices": indices}
            sizes = {"m": rows, "n": COLUMNS, "nnz": len(indices), "feat": width}
            with order(seed):
                results.append(kernels({**given, **sizes})["c"])
        expected = np.full(len(indices), np.nan, np.float32)
        for row, (begin, end) in enumerate(pairwise(indptr)):
            expected[begin:end] = y[indices[begin:end]] @ x[row]
        np.testing.assert_allclose(results[0], expected, rtol=1e-5, err_msg=kind)
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("idtype", ["int32", "int64"])
@pytest.mark.parametrize("name", ["sddmm", "csr_element_wise"])
def test_the_step_means_the_same_program(name, idtype):
    program = BY_NAME[name]
    func = Schedule(source(name, "float32", idtype)).lower_sparse_iter().func
    for size, turns, parts in ((1, 1, 1), (3, 2, 1), (2, 9, 4), (1, 3, 1000)):
        split = SplitPositions("i", "j", size, turns, parts=parts).apply(func)
        listed = SplitPositions("i", "j", size, turns, parts=parts, listed=turns).apply(func)
        for case in program.cases:
            inputs = program.inputs(case, "float32", idtype)
            for changed in (split, listed):
                results = interpreted(changed, fresh(inputs))
                program.check(inputs, results, "float32", f"{turns} times {size}, {case}")


@pytest.mark.parametrize(
    ("name", "step", "why"),
    [
        ("sddmm", SplitPositions("i", "j", 0, 1), "at least 1"),
        ("sddmm", SplitPositions("i", "j", 1, 0), "size, turns and parts"),
        ("sddmm", SplitPositions("i", "j", 1, 1, listed=-1), "listed at least 0"),
        ("sddmm", SplitPositions("i", "k", 4, 9), "does not run over the fiber"),
        ("sddmm", SplitPositions("j", "k", 4, 9), "no loop over all rows"),
        ("csrmm", SplitPositions("i", "j", 4, 9), "may write the same element"),
        ("spmv", SplitPositions("i", "j", 4, 9), "may write the same element"),
        ("csrmm_t", SplitPositions("i", "j", 4, 9), "may write the same element"),
        ("sparse_softmax", SplitPositions("i", "j", 4, 9), "more than write one element"),
    ],
)
def test_rows_whose_elements_are_not_independent_are_refused(name, step, why):
    func = Schedule(source(name)).lower_sparse_iter().func
    with pytest.raises(ScheduleError, match=why):
        step.apply(func)


def test_the_step_makes_loops_over_parts_groups_and_rows():
    made = Schedule(source("sddmm")).lower_sparse_iter().split_positions("i", "j", 4, 8)
    assert made.made == ("i_c", "i_t", "j_row")
    assert made.loops == ("i_c", "i_t", "j_row", "j", "k")


def test_index_notation_shares_out_elements_too():
    kernel = spcomp.compile("C[i, j] = A[i, j] * X[i, k] * Y[j, k]", target=EMULATED)
    rng = np.random.default_rng(2)
    a = sps.random_array((40, 50), density=0.2, format="lil", dtype=np.float32, rng=1)
    a[3] = 1.0
    a = a.tocsr()
    x, y = rng.random((40, 32), np.float32), rng.random((50, 32), np.float32)
    made = kernel(A=a, X=x, Y=y)
    np.testing.assert_allclose(made.toarray(), a.multiply(x @ y.T).toarray(), rtol=1e-4)
    assert "split_positions('i', 'j', 4, 16, parts=65536, listed=4)" in kernel.explain(
        A=a, X=x, Y=y
    )


@pytest.mark.ptxas
@pytest.mark.parametrize("feat", [32, 64, 128, 256])
def test_sampled_products_keep_what_they_load_in_registers(feat):
    goal = nvvm.resolve(target("cuda:sm_90"))
    emitted = nvvm.emit(
        lower(source("sddmm"), goal, {"feat": feat}, facts=Facts(row=16)).flat, goal
    )
    usages = assemble(nvvm.ptx(emitted.llvm_ir, goal), "sm_90").usage.values()
    assert len(usages) == 2
    assert all(usage.spilled == 0 and usage.registers <= 64 for usage in usages)
