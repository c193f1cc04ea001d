"""What the default schedule decides: tiles with tails, prefetches, scatters by columns."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError, without_warnings
from spcomp.ir import stmt as st
from spcomp.ir.specialize import specialize
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.knobs import CPU_KNOBS
from spcomp.schedule.default.cpu import CpuPlan, default_schedule
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.default.scatter import Scatter, as_scatter, outermost
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.loops.loops import Parallel
from spcomp.schedule.steps.loops.prefetch import Prefetch, gathers
from spcomp.script.parse import parse_source
from spcomp.target import Target
from tests.layers import source
from tests.programs import BY_NAME, PROGRAMS
from tests.test_schedule_steps import check, names, scheduled

CPU = Target(vector_bits=256)


def fixed(name, **extents):
    """The program *name* in position space with extents fixed, nothing decided."""
    return Schedule(specialize(source(name), extents)).lower_sparse_iter()


def operands(feat, rows=37, columns=29, seed=3):
    rng = np.random.default_rng(seed)
    a = sps.random_array((rows, columns), density=0.2, format="csr", rng=rng, dtype=np.float32)
    return a, rng.standard_normal((columns, feat)).astype(np.float32)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64", "cpu:x86-64-v3"])
def test_every_width_of_the_features_is_computed_right(target):
    kernel = spcomp.compile(source("csrmm"), target=target)
    for feat in (*range(1, 26), 31, 32, 33, 64, 65, 96, 97, 100, 128, 130, 200, 257):
        a, b = operands(feat)
        np.testing.assert_allclose(kernel(A=a, B=b), a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("feat", [1, 3, 4, 7, 8, 12, 20, 31, 100, 104])
def test_a_known_width_needs_no_masked_stores_and_writes_nothing_else(feat):
    kernel = spcomp.compile(source("csrmm"), target="cpu:x86-64-v3", constants={"feat": feat})
    assert "llvm.masked.store" not in kernel.source("llvm")
    a, b = operands(feat)
    memory = np.full(37 * feat + 64, 7.0, np.float32)
    kernel(A=a, B=b, out=memory[: 37 * feat].reshape(37, feat))
    assert (memory[37 * feat :] == 7.0).all()


def test_the_features_of_a_known_width_are_one_tile_without_a_rest():
    trace = spcomp.compile(source("csrmm"), target="cpu:x86-64-v3", constants={"feat": 20}).trace
    assert [str(step) for _, step in trace] == [
        "parallel('i')",
        "reorder(('k', 'j'))",
        "split('k', 24)",
        "reorder(('k_o', 'j', 'k_i'))",
        "cache_write('csrmm1', 0, 'local', 'k_o')",
        "vectorize('k_i')",
        "vectorize('k_i_1')",
        "prefetch('j', 16)",
    ]


@pytest.mark.parametrize(("feat", "distance"), [(64, 16), (128, 16), (256, 8), (512, 4), (1024, 4)])
def test_a_row_that_is_read_in_many_passes_is_asked_for_less_far_ahead(feat, distance):
    trace = spcomp.compile(source("csrmm"), target="cpu:x86-64-v3", constants={"feat": feat}).trace
    assert str(trace.steps[-1][1]) == f"prefetch('j', {distance})"


def test_a_loop_that_runs_once_does_not_keep_the_fibers_from_vectors():
    kernel = spcomp.compile(source("csrmm"), target="cpu:x86-64-v3", constants={"feat": 1})
    assert "vectorize('j')" in str(kernel.trace)


def test_the_same_trace_gives_the_same_object_code():
    first = spcomp.compile(source("csrmm"), constants={"feat": 48})
    trace = Trace.from_json_lines(first.trace.to_json_lines())
    again = spcomp.compile(source("csrmm"), constants={"feat": 48}, trace=trace)
    assert again.object_bytes == first.object_bytes


# -- prefetch --------------------------------------------------------------------------------


def test_prefetch_asks_for_rows_a_distance_ahead_within_what_is_stored():
    schedule = fixed("csrmm", feat=20).prefetch("j", 3)
    (hint,) = [n for n in walk(schedule.func.body) if isinstance(n, st.Prefetch)]
    assert hint.buffer.name == "B"
    assert "T.prefetch(B, J_indices[_, T.min(J_indptr[vi] + (j + 3), nnz - T.int64(1))]" in (
        schedule.func.script()
    )


def test_what_a_loop_allocates_itself_is_not_prefetched():
    own = (
        Schedule(BY_NAME["ell_times_csr"].build("float32"))
        .sparse_reorder("ell_times_csr", ("i", "j", "l"))
        .lower_sparse_iter()
        .cache_read("ell_times_csr1", 1)
        .prefetch("j", 2)
    )
    verify(own.func, "prefetch")
    hints = [node for node in walk(own.func.body) if isinstance(node, st.Prefetch)]
    assert {hint.buffer.name for hint in hints} == {"B", "L_indptr"}


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64", "cpu:x86-64-v3"])
@pytest.mark.parametrize("width", [8, 9, 16])
def test_what_a_loop_inside_the_block_tells_apart_is_not_prefetched(target, width):
    """The rows of A are met by the loop over j, which runs inside."""
    text = "C[l, k] = sum(j, A[j, l, k]) * B[l] * D[k, l]"
    a = np.arange(32.0 * width).reshape(4, 8, width)
    b, d = np.array([0.0, 1, 0, 2, 3, 0, 0, 4]), np.arange(8.0 * width).reshape(width, 8)
    found = spcomp.compile(text, target=target)(A=a, B=spcomp.convert(b, "sparse"), D=d)
    np.testing.assert_array_equal(found.to_dense(), a.sum(0) * b[:, None] * d.T)


@pytest.mark.parametrize("distance", [1, 16, 1000])
def test_prefetch_changes_no_result(distance):
    steps = scheduled("csrmm").reorder("k", "j").split("k", 4).reorder("k_o", "j", "k_i")
    check(steps.prefetch("j", distance), "csrmm")


def test_a_row_read_twice_is_asked_for_once():
    schedule = fixed("csrmm", feat=20)
    loop = next(x for x in loops_of(schedule.func.body) if x.var.name == "j")
    (gather,) = gathers(schedule.func, loop)
    assert (gather.load.buffer.name, gather.bytes) == ("B", 80)


def blocks(rows, feat):
    """CSR SpMM with the matrix in dense blocks, in position space, nothing decided."""
    program = spcomp.decompose(source("csrmm"), A=spcomp.formats.bsr(rows))
    return Schedule(specialize(program.func, {"feat": feat})).lower_sparse_iter()


def full_blocks(size):
    """The program of CSR SpMM for a matrix that fills its blocks."""
    return spcomp.decompose(source("csrmm"), A=spcomp.formats.bsr(size)).unpadded().func


@pytest.mark.parametrize(
    ("bits", "size", "tile"),
    [
        (512, 8, [8, 32]),
        (512, 6, [6, 32]),
        (512, 12, [6, 32]),
        (512, 3, [3, 64]),
        (512, 11, [64]),  # no number of rows that a tile may have divides them
        (256, 8, [4, 16]),
        (256, 3, [3, 16]),
        (256, 1, [64]),
    ],
)
def test_rows_of_a_block_share_a_tile(bits, size, tile):
    schedule = Schedule(specialize(full_blocks(size), {"feat": 64})).lower_sparse_iter()
    func, _ = default_schedule(schedule.func, Target(vector_bits=bits))
    first = next(n.buffer for n in walk(func.body) if isinstance(n, st.Alloc))
    assert [int(n.value) for n in first.shape] == tile
    unrolled = [x for x in loops_of(func.body) if x.kind == "unroll" and "ii" in x.var.name]
    assert bool(unrolled) == (len(tile) > 1)


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64", "cpu:x86-64-v3"])
@pytest.mark.parametrize("size", [3, 4, 12])
def test_tiles_of_rows_compute_every_width(target, size):
    pattern = sps.random_array((5, 4), density=0.5, rng=0)
    csr = sps.csr_array(sps.kron(pattern, np.arange(1.0, 1 + size * size).reshape(size, size)))
    kernel = spcomp.decompose(source("csrmm"), A=spcomp.formats.bsr(size)).compile(target=target)
    bound = kernel.bind(A=csr.astype(np.float32))
    for feat in (1, 7, 16, 20, 33, 64, 100):
        b = operands(feat, columns=4 * size)[1]
        np.testing.assert_allclose(bound(B=b), csr @ b, rtol=1e-5, atol=1e-3)


def test_a_tile_of_rows_is_kept_in_registers_under_a_mask():
    flat = spcomp.compile(full_blocks(4), target="cpu:x86-64-v3").stage("flat")
    assert "masked_load(B, " in flat
    assert "masked_load(C_local" not in flat
    assert "T.store(C_local" not in flat


def test_the_rows_at_a_block_are_asked_for_together():
    schedule = blocks(2, feat=20)
    loop = next(x for x in loops_of(schedule.func.body) if x.var.name == "jo")
    (gather,) = gathers(schedule.func, loop)
    assert (gather.load.buffer.name, gather.rows, gather.bytes) == ("B", 2, 80)
    text = schedule.prefetch("jo", 3).func.script()
    here = text.index("for ji_row in T.unroll(2):")
    assert here < text.index("for k_1_line in T.unroll(2):") < text.index("T.prefetch(B, ")
    assert "JO_count_blocks - 1)] * T.int64(2) + ji_row, k_1_line * 16)" in text


@pytest.mark.parametrize(
    ("size", "feat", "asked"),
    [(4, 16, True), (16, 16, True), (32, 16, False), (32, 64, True)],  # the last one in parts
)
def test_a_large_block_is_left_to_the_processor_to_foresee(size, feat, asked):
    steps = spcomp.compile(blocks(size, feat), target="cpu:x86-64-v3").trace
    assert any(str(step).startswith("prefetch('jo'") for _, step in steps) == asked


@pytest.mark.parametrize(
    ("name", "loop", "distance", "reason"),
    [
        ("csrmm", "j", 0, "the distance must be at least 1"),
        ("csrmm", "i", 4, "no row or fiber is read at the coordinates of 'i'"),
        ("csrmm", "j", 4, "no row or fiber"),  # of unknown extent
        ("spmv", "j", 4, "no row or fiber"),
    ],
)
def test_prefetch_is_refused_where_there_is_nothing_to_ask_for(name, loop, distance, reason):
    with pytest.raises(ScheduleError, match=re.escape(reason)):
        scheduled(name).prefetch(loop, distance)


# -- lift_loop and scatters ------------------------------------------------------------------


def test_lift_loop_moves_a_loop_around_the_block_that_holds_it():
    schedule = scheduled("csrmm").reorder("k", "j")
    assert schedule.get_loops("csrmm0") == ("i",)
    schedule = schedule.lift_loop("k")
    assert schedule.get_loops("csrmm0") == ("i", "k")
    check(schedule, "csrmm")
    check(schedule.reorder("k", "i"), "csrmm")


@pytest.mark.parametrize(
    ("name", "loop", "reason"),
    [
        ("csrmm", "i", "no block holds just this loop"),
        ("csrmm", "j", "its range depends on the block"),
    ],
)
def test_lift_loop_is_refused_where_it_would_change_the_program(name, loop, reason):
    with pytest.raises(ScheduleError, match=re.escape(reason)):
        scheduled(name).lift_loop(loop)


def scattered(name, **extents):
    """What the last nest of a program is, seen as a scatter."""
    *_, nest = outermost((fixed(name, **extents) if extents else scheduled(name)).func.body)
    return as_scatter(nest, CPU_KNOBS)


def test_scattered_rows_are_shared_in_whole_pairs_of_cache_lines():
    assert scattered("csrmm_t", feat=128) == Scatter("k", (("j",), ("i",)), 32)
    assert scattered("csrmm_t", feat=96) == Scatter("k", (("j",), ("i",)), 32)
    assert scattered("csrmm_t", feat=32) == Scatter("k", (("j",), ("i",)), 16)  # better than whole
    for feat in (1, 16, 40):
        assert scattered("csrmm_t", feat=feat) is None
    assert scattered("csrmm_t") is None
    assert scattered("csrmm", feat=128) is None


@pytest.mark.parametrize("feat", [32, 64, 96, 128])
def test_a_scatter_by_columns_is_right_and_the_same_at_any_number_of_threads(feat):
    kernel = spcomp.compile(source("csrmm_t"))
    a, _ = operands(feat)
    x = np.random.default_rng(1).standard_normal((37, feat)).astype(np.float32)
    results = []
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            results.append(kernel(A=a, X=x))
    np.testing.assert_allclose(results[0], a.T @ x, rtol=1e-4, atol=1e-5)
    assert all((result == results[0]).all() for result in results)


def test_names_are_those_of_the_corpus():
    assert {"csrmm", "csrmm_t", "spmv"} <= set(BY_NAME)
    assert names(scheduled("csrmm")) == ["i", "j", "k"]


def test_a_decision_of_which_one_step_is_not_legal_leaves_nothing_behind():
    func = fixed("csrmm", feat=20).func
    plan = CpuPlan(func, CPU, Facts())
    without_rows = Prefetch("i", 4)  # no row is read at the coordinates of 'i'
    assert not plan.attempt([Parallel("i"), without_rows])
    assert (plan.func, plan.steps) == (func, ())
    assert plan.attempt([Parallel("i")])
    assert plan.steps == (Parallel("i"),)


def below(body):
    """The program in position space with A of n int64 and indices E that *body* is of."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = f"""from spcomp import script as T


@T.prim_func
def below(a: T.handle, e: T.handle, n: T.int64, m: T.int64) -> None:
    T.func_attr({{"sparse_tir_level": 1}})
    A = T.match_buffer(a, (n,), "int64")
    E = T.match_buffer(e, (n,), "int32")
{lines}
"""
    return parse_source(text, "below.py")[0]


def called(program, n, m):
    a, e = np.zeros(n + 64, np.int64), np.arange(n, dtype=np.int32)
    spcomp.compile(program)(a[32 : 32 + n], e, n, m)
    assert (a[:32] == 0).all()
    assert (a[32 + n :] == 0).all()
    return a[32 : 32 + n].tolist()


@pytest.mark.parametrize("n", [1, 4, 5, 6, 13, 22])
def test_a_loop_in_vectors_that_ends_before_it_begins_runs_no_times(n):
    ones = max(n - 5, 0)
    assert called(below("for k in T.serial(n - 5):\n    A[k] = 1"), n, 0) == [1] * ones + [0] * (
        n - ones
    )


def test_a_division_under_a_condition_that_no_lane_fulfils_does_not_fail():
    program = below("for k in T.serial(n):\n    if k < m:\n        A[k] = 10 // m")
    assert called(program, 16, 0) == [0] * 16
    assert called(program, 16, 2) == [5] * 2 + [0] * 14


def test_a_prefetch_by_a_person_neither_fails_nor_reads_outside():
    program = below("for k in T.serial(n):\n    T.prefetch(A, E[k + 1000])\n    A[k] = E[k]")
    assert called(program, 9, 0) == list(range(9))
    assert "T.if_then_else" in spcomp.compile(program).stage("flat")


@pytest.mark.parametrize("extent", [0, 2**31 - 1])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
@pytest.mark.sample(16, long=4)
def test_no_extent_is_too_short_or_too_long_for_registers_of_any_width(program, extent):
    func = source(program.name)
    with without_warnings():
        for name in (param.name for param in func.params if param.type.is_integer):
            for bits in (128, 512):
                lower(func, Target(vector_bits=bits), {name: extent})


@pytest.mark.parametrize("facts", [Facts(), Facts(hubs=True, skewed=True, runs=True)])
def test_rows_of_no_columns_are_scheduled_as_others_are(facts):
    for bits in (128, 256, 512):
        steps = default_schedule(fixed("csrmm", feat=0).func, Target(vector_bits=bits), facts)[1]
        assert any(isinstance(step, Parallel) for step in steps)
