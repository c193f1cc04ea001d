"""Short rows that are added up in groups: the step stage_products, and gathers that are loads."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen.cpu.machine import resolve
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError
from spcomp.knobs import CPU_KNOBS, ZEN_KNOBS, knobs_of
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.loops.loops import Parallel, Vectorize
from spcomp.schedule.steps.sharing.stage_products import StageProducts
from spcomp.target import Target
from tests.layers import source
from tests.test_schedule_nnz import SINGLE, check, compiled, draw, fibers_of, position

STEPS = (
    Parallel("i"),
    StageProducts("i", "j", 16, 256),
    Vectorize("j_p"),
    Vectorize("j_s"),
    Vectorize("j"),
)
ABREAST = (
    Parallel("i"),
    StageProducts("i", "j", 16, 256, 0, 12),
    *(Vectorize(name) for name in ("j_p", "i_r", "i_r_1", "i_r_2", "i_r_3", "i_m", "j_s", "j")),
)
CPUS = ("native", "x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4")


def rows_of(kind: str, rows: int = 150, columns: int = 60) -> sps.csr_array:
    """A matrix of whole numbers in float32, whose rows have such lengths."""
    rng = np.random.default_rng(8)
    lengths = {
        "one length": np.full(rows, 7),
        "sixteen each": np.full(rows, 16),
        "many lengths": rng.integers(0, 20, rows),
        "a long row": np.where(np.arange(rows) == 70, columns, rng.integers(0, 4, rows)),
        "no elements": np.zeros(rows, int),
    }[kind]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    lists = [np.sort(rng.permutation(columns)[:n]) for n in lengths]
    data = rng.integers(-9, 9, indptr[-1]).astype(np.float32)
    return sps.csr_array((data, np.concatenate(lists).astype(int), indptr), (rows, columns))


@pytest.mark.parametrize("program", SINGLE, ids=lambda p: p.name)
def test_where_products_may_be_staged_the_program_means_the_same(program):
    func = position(program.name)
    for pair in fibers_of(func):
        sizes = (2, 64), (3, 5), (2, 64, 0, 3), (3, 9, 4, 2)
        for step in (StageProducts(*pair, *size) for size in sizes):
            if step.is_legal(func):
                check(program.name, step.apply(func))


def test_sums_of_rows_that_gather_are_staged_and_others_are_not():
    def trace(name: str, cpu: str = "x86-64-v3") -> str:
        return str(lower(source(name), resolve(Target("cpu", cpu))).trace)

    assert "stage_products('i', 'j', 16, 256, 20000, 0)" in trace("spmv")
    assert "stage_products('i', 'j', 16, 256, 20000, 0)" in trace("spmv", "znver4")
    assert "stage_products('i', 'j', 16, 256, 9000, 0)" in trace("spmv", "znver5")
    assert "stage_products('i', 'j', 16, 256, 0, 12)" in trace("spmv", "sapphirerapids")
    assert "stage_products" not in trace("csr_reduce")
    assert "stage_products" not in trace("csrmm")


@pytest.mark.parametrize(
    "kind", ["one length", "sixteen each", "many lengths", "a long row", "no elements"]
)
@pytest.mark.parametrize("rows", [1, 16, 150])
@pytest.mark.parametrize("steps", [STEPS, ABREAST], ids=["one by one", "abreast"])
def test_results_are_exact_and_have_the_same_bits_at_any_number_of_threads(kind, rows, steps):
    a = rows_of(kind)[:rows]
    x = np.random.default_rng(9).integers(-9, 9, 60).astype(np.float32)
    for threads in (1, 2, 5):
        np.testing.assert_array_equal(compiled("spmv", steps, threads=threads)(A=a, X=x), a @ x)
    a.data, x = np.sin(a.data + 1), np.cos(x)
    results = [compiled("spmv", steps, threads=t)(A=a, X=x) for t in (1, 2, 5)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("idtype", ["int32", "int64"])
@pytest.mark.parametrize("name", ["spmv", "spmv_max", "spmv_min_plus", "spmv_prod"])
@pytest.mark.parametrize("steps", [STEPS, ABREAST], ids=["one by one", "abreast"])
def test_reductions_over_short_rows_are_those_of_the_program_as_it_is(name, idtype, steps):
    a = rows_of("many lengths")
    x = np.random.default_rng(9).integers(1, 9, 60).astype(np.float32)
    plain = compiled(name, (Parallel("i"),), idtype=idtype)
    np.testing.assert_allclose(
        compiled(name, steps, idtype=idtype)(A=a, X=x), plain(A=a, X=x), rtol=1e-5
    )


def test_rows_that_are_alike_and_fill_vectors_run_row_by_row():
    x = np.random.default_rng(3).standard_normal(60).astype(np.float32)
    staged, plain = compiled("spmv", ABREAST), compiled("spmv", (Vectorize("j"),))
    for kind, same in (("sixteen each", True), ("one length", False)):
        a = rows_of(kind)
        assert np.array_equal(staged(A=a, X=x), plain(A=a, X=x)) == same


def test_few_rows_run_row_by_row():
    """Of which nothing can be seen in exact results, but in sums of floats in another order."""
    a = draw("several", rows=64)
    x = np.random.default_rng(3).standard_normal(90).astype(np.float32)
    staged, least = (
        compiled("spmv", (StageProducts("i", "j", 16, 256, n), Vectorize("j"), Vectorize("j_s")))
        for n in (0, 65)
    )
    plain = compiled("spmv", (Vectorize("j"),))(A=a, X=x)
    np.testing.assert_array_equal(least(A=a, X=x), plain)
    assert (staged(A=a, X=x) != plain).any()


@pytest.mark.parametrize(
    ("name", "step", "reason"),
    [
        ("spmv", StageProducts("i", "j", 0, 4), "at least 1"),
        ("spmv", StageProducts("i", "j", 4, 0), "most must lie between"),
        ("spmv", StageProducts("i", "j", 4, 1 << 20), "most must lie between"),
        ("spmv", StageProducts("i", "j", 4, 4, 0, -1), "abreast must not be negative"),
        ("spmv", StageProducts("j", "i", 4, 4), "no loop over all rows"),
        ("csrmm", StageProducts("i", "j", 4, 4), "more than one element"),
        ("csrmm_t", StageProducts("i", "j", 4, 4), "may write the same element"),
        ("spmv_accumulate", StageProducts("i", "j", 4, 4), "start from a number"),
        ("sddmm", StageProducts("i", "j", 4, 4), "not simple"),
    ],
)
def test_what_would_change_the_meaning_is_refused(name, step, reason):
    with pytest.raises(ScheduleError, match=reason):
        step.apply(position(name))


def test_what_is_added_may_not_depend_on_the_row_otherwise():
    with pytest.raises(ScheduleError, match="depend on stored elements alone"):
        StageProducts("i", "j", 4, 64).apply(scaled())


def scaled():
    """A program whose rows have a factor each."""
    kernel = spcomp.compile("y[i] = sum(j, d[i] * A[i, j] * x[j])")
    a = rows_of("many lengths")
    kernel(A=a, d=np.ones(150, np.float32), x=np.ones(60, np.float32))
    (program,) = kernel.kernels()
    return Schedule(program.program).lower_sparse_iter().func


@pytest.mark.parametrize("cpu", CPUS)
def test_code_for_any_processor_gathers_what_it_should(cpu):
    try:
        kernel = spcomp.compile(source("spmv"), target=f"cpu:{cpu}")
        a, x = rows_of("many lengths"), np.arange(60, dtype=np.float32)
        np.testing.assert_array_equal(kernel(A=a, X=x), a @ x)
    except spcomp.errors.BackendError as error:
        pytest.skip(str(error))


def test_processors_that_gather_slowly_load_indices_one_by_one():
    zen, intel = (
        spcomp.compile(source("spmv"), target=f"cpu:{cpu}").source("asm")
        for cpu in ("znver5", "sapphirerapids")
    )
    assert "gather" not in zen
    assert "vinsertps" in zen
    assert "vpextrq" not in zen  # of a vector of indices
    assert "vgatherdps" in intel
    assert knobs_of(Target("cpu", "znver3")) == ZEN_KNOBS != CPU_KNOBS


def test_the_loop_over_products_is_named_after_the_fiber():
    func = StageProducts("i", "j", 4, 64).apply(position("spmv"))
    assert [x.var.name for x in loops_of(func.body)] == ["i_g", "j_p", "i_s", "j_s", "i", "j"]
