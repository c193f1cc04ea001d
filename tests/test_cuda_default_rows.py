"""The default schedule on GPUs for matrices with very long rows: these are done in pieces."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.compiler.variants import facts
from spcomp.errors import ScheduleError
from spcomp.ir.interpret import program as interpret_module
from spcomp.ir.interpret.position import PositionInterpreter
from spcomp.ir.interpret.program import interpret
from spcomp.ir.program import PosFunc
from spcomp.knobs import CUDA_KNOBS
from spcomp.runtime.cuda.ptxas import assemble
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.sharing.split_rows import SplitRows
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, Kernels, order, short_pieces
from tests.layers import interpreted, source
from tests.programs import BY_NAME, fresh

LONG = Facts(hubs=True, row=8)
PIECE = 8
COLUMNS = 70
MATRICES = ("hub", "two hubs", "power law", "at cuts", "empty", "one element", "no rows", "offset")


def lengths(kind):
    """How many elements each row has."""
    rng = np.random.default_rng(3)
    return {
        "hub": [0, 3, 65, 1, 0, 2],
        "two hubs": [64, 0, 41, 70],
        "power law": np.minimum(70, rng.zipf(1.6, 40)),
        "at cuts": [PIECE, 2 * PIECE, 4 * PIECE, PIECE + 1, 2 * PIECE - 1],
        "empty": [0] * 5,
        "one element": [0, 1, 0],
        "no rows": [],
        "offset": [2, 60, 0, 9],
    }[kind]


def csr(kind):
    """The arrays of a matrix; those of "offset" begin with elements that are in no row."""
    rng = np.random.default_rng(5)
    counts = np.asarray(lengths(kind), int)
    skipped = 11 if kind == "offset" else 0
    lists = [rng.choice(COLUMNS, skipped), *(rng.permutation(COLUMNS)[:n] for n in counts)]
    indptr = skipped + np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    indices = np.concatenate(lists).astype(np.int32)
    return rng.random(len(indices), np.float32), indices, indptr


def dense(kind):
    values, indices, indptr = csr(kind)
    result = np.zeros((len(indptr) - 1, COLUMNS), np.float32)
    for row, (begin, end) in enumerate(pairwise(indptr)):
        result[row, indices[begin:end]] = values[begin:end]
    return result


@cache
def kernels(name, feat=None):
    with short_pieces(PIECE):
        return Kernels(source(name), {"feat": feat} if feat else None, LONG)


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("feat", [1, 31, 32, 33, 128, 256])
def test_products_of_long_rows_are_right_and_have_the_same_bits_in_any_order(kind, feat):
    a, (values, indices, indptr) = dense(kind), csr(kind)
    b = np.random.default_rng(1).random((COLUMNS, feat), np.float32)
    results = []
    for seed in ORDERS:
        c = np.full((len(a), feat), np.nan, np.float32)
        given = {"a": values, "b": b.ravel(), "indptr": indptr, "indices": indices}
        sizes = {"m": len(a), "n": COLUMNS, "nnz": len(values), "feat": feat}
        with order(seed):
            results.append(kernels("csrmm", feat)({**given, "c": c.ravel(), **sizes})["c"])
    np.testing.assert_allclose(results[0].reshape(c.shape), a @ b, rtol=1e-5, atol=1e-5)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("name", ["spmv", "spmv_accumulate"])
def test_sums_of_long_rows_are_right_and_have_the_same_bits_in_any_order(kind, name):
    a, (values, indices, indptr) = dense(kind), csr(kind)
    x, results = np.random.default_rng(1).random(COLUMNS, np.float32), []
    for seed in ORDERS:
        given = {"a": values, "x": x, "indptr": indptr, "indices": indices}
        y, sizes = np.ones(len(a), np.float32), {"m": len(a), "n": COLUMNS, "nnz": len(values)}
        with order(seed):
            results.append(kernels(name)({**given, "y": y, **sizes})["y"])
    expected = a @ x + (name == "spmv_accumulate")
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("idtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("spmv", dtype) for dtype in ("float32", "float16", "bfloat16", "int32")),
        *((name, "float32") for name in ("spmv_max", "spmv_min_plus", "spmv_prod", "mttkrp")),
        *(("csrmm", dtype) for dtype in ("float64", "int32")),
    ],
)
def test_the_step_means_the_same_program(name, dtype, idtype):
    program = BY_NAME[name]
    func = Schedule(source(name, dtype, idtype)).lower_sparse_iter().func
    for size in (1, 3):
        cut = SplitRows("i", "j", size).apply(func)
        for case in program.cases:
            inputs = program.inputs(case, dtype, idtype)
            results = interpreted(cut, fresh(inputs))
            program.check(inputs, results, dtype, f"pieces of {size}, {case}")


@pytest.mark.parametrize(
    ("name", "step", "why"),
    [
        ("csrmm", SplitRows("i", "j", 0), "at least 1"),
        ("csrmm", SplitRows("i", "k", 4), "does not run over the fiber"),
        ("csrmm", SplitRows("k", "j", 4), "no loop over all rows"),
        ("csrmm_t", SplitRows("i", "j", 4), "may write the same element"),
        ("sparse_softmax", SplitRows("i", "j", 4), "more than update one element"),
        ("sddmm", SplitRows("i", "j", 4), "not simple"),
    ],
)
def test_what_is_not_a_sum_of_each_row_is_refused(name, step, why):
    func = Schedule(source(name)).lower_sparse_iter().func
    with pytest.raises(ScheduleError, match=why):
        step.apply(func)


class Trips(PositionInterpreter):
    """Notes how often the loops over elements run."""

    def visit_For(self, node):
        if node.var.name in ("j", "j_hub"):
            self.found.append(self.number(node.end) - self.number(node.begin))
        super().visit_For(node)


def test_no_group_of_threads_has_more_elements_than_a_piece():
    """The trip counts of the loops over elements, evaluated for each row and piece."""
    values, indices, indptr = csr("two hubs")
    schedule = Schedule(source("spmv")).lower_sparse_iter().split_rows("i", "j", 16)
    assert schedule.made == ("i_cut", "i_piece", "j_hub", "i_sum", "i_part")
    given = {"a": values, "x": np.ones(COLUMNS, np.float32), "indptr": indptr, "indices": indices}
    given |= {"y": np.empty(len(indptr) - 1, np.float32)}
    sizes = {"m": len(indptr) - 1, "n": COLUMNS, "nnz": len(values)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trips, "found", [], raising=False)
        patch.setitem(interpret_module._LEVELS, PosFunc, Trips)
        interpret(schedule.func, {**given, **sizes})
        assert len(Trips.found) > len(indptr)
        assert max(Trips.found) <= 16
        assert sum(Trips.found) == len(values)


def test_long_rows_are_looked_for_on_gpus_in_all_programs():
    uniform, hub = np.arange(0, 10**7, 600), np.array([0, 10, 3000, 3010])
    for pointers, expected in ((uniform, False), (hub, True)):
        known = facts(("p",), {"p": pointers}, CUDA_KNOBS, hubs=True)
        assert known.hubs is expected
        assert not known.skewed


@pytest.mark.parametrize("columns", [0, 4])
def test_a_matrix_with_a_very_long_row_gets_kernels_for_its_pieces(columns):
    text = "C[i, k] = A[i, j] * B[j, k]" if columns else "C[i] = A[i, j] * B[j]"
    kernel = spcomp.compile(text, target=EMULATED)
    a = sps.random_array((6, 3000), density=0.002, format="lil", dtype=np.float32, rng=1)
    a[3] = 1.0
    a = a.tocsr()
    b = np.random.default_rng(0).random((3000, columns)[: 1 + bool(columns)], np.float32)
    np.testing.assert_allclose(kernel(A=a, B=b), a @ b, rtol=1e-4)


def test_explain_says_that_there_is_a_very_long_row_and_how_it_is_cut():
    indptr, x = np.array([0, 3, 3000, 3010], np.int32), np.ones(3010, np.float32)
    a = sps.csr_array((x, np.arange(3010, dtype=np.int32), indptr), shape=(3, 3010))
    kernel = spcomp.compile(source("spmv"), target=EMULATED)
    text = kernel.explain(A=a, X=x)
    assert text.startswith("data: rows of many elements, a row so long that threads share it, ")
    assert "split_rows('i', 'j', 128)" in text
    assert "launch spmv_2" in text
    even = kernel.explain(A=sps.eye_array(3, 3010, dtype=np.float32, format="csr"), X=x)
    assert even.startswith("data: rows of up to 1 elements on average, few rows\n")
    assert "split_rows" not in even


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_for_pieces_do_not_spill(arch, golden):
    goal, lines = nvvm.resolve(target(f"cuda:{arch}")), []
    for name, feat in (("csrmm", 32), ("csrmm", 128), ("csrmm", None), ("spmv", None)):
        constants = {"feat": feat} if feat else None
        emitted = nvvm.emit(lower(source(name), goal, constants, facts=LONG).flat, goal)
        usage = assemble(nvvm.ptx(emitted.llvm_ir, goal), arch).usage
        for abi in emitted.functions:
            took = usage[abi.symbol]
            assert took.spilled == 0, abi.symbol
            lines.append(f"{abi.symbol} {feat or '-'} {took.registers}")
    golden(f"registers_long_rows.{arch}.txt", "\n".join(lines) + "\n")
