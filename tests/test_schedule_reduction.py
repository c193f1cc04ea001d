"""decompose_reduction and rfactor: what they build, what they refuse, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc, Evaluate
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from tests.layers import interpreted
from tests.programs import fresh
from tests.test_schedule_steps import SERIAL, check, scheduled


@T.prim_func
def ellmm(a: T.handle, b: T.handle, c: T.handle, rows: T.handle, indices: T.handle,
          m: T.int32, n: T.int32, r: T.int32) -> None:  # fmt: skip
    """One part of a decomposed SpMM: it only accumulates, and rows may be split over parts."""
    O = T.dense_fixed(1)
    I = T.sparse_fixed(O, (m, r), rows, "int32")
    J = T.sparse_fixed(I, (n, 2), indices, "int32")
    I_detach = T.dense_fixed(m)
    J_detach = T.dense_fixed(n)
    K1 = T.dense_fixed(2)
    K2 = T.dense_fixed(2)
    K3 = T.dense_fixed(4)
    A = T.match_sparse_buffer(a, (O, I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K1, K2, K3), "float32")
    C = T.match_sparse_buffer(c, (I_detach, K1, K2, K3), "float32")
    with T.sp_iter([T.fuse(O, I), J, K1, K2, K3], "SSRSSS", "csrmm") as [o, i, j, k1, k2, k3]:
        C[i, k1, k2, k3] = C[i, k1, k2, k3] + A[o, i, j] * B[j, k1, k2, k3]


def ell_inputs(rng, rows=(0, 1, 1, 4)):
    m, n, r = 5, 6, 4
    arrays = {"a": rng.integers(-3, 4, r * 2), "b": rng.integers(-3, 4, n * 16)}
    arrays["c"] = rng.integers(-3, 4, m * 16)
    inputs = {name: array.astype("float32") for name, array in arrays.items()}
    inputs["rows"] = np.array(rows, "int32")
    inputs["indices"] = np.array([0, 3, 1, 2, 0, 5, 4, 5], "int32")
    return {**inputs, "m": m, "n": n, "r": r}


def flat(schedule):
    return lower(schedule.func, SERIAL, trace=Trace()).flat.funcs[0]


def check_ell(schedule, *rows):
    inputs = ell_inputs(np.random.default_rng(0), *rows)
    want = interpreted(ellmm, fresh(inputs))["c"]
    assert np.array_equal(interpreted(schedule.func, fresh(inputs))["c"], want)
    arguments = fresh(inputs)
    spcomp.compile(schedule)(*(arguments[p.name] for p in ellmm.params))
    assert np.array_equal(arguments["c"], want)


# -- decompose_reduction -----------------------------------------------------------------------


@pytest.mark.parametrize("is_atomic", [False, True])
def test_the_published_schedule_of_a_part_binds_the_loops_of_its_init(is_atomic):
    sch = Schedule(ellmm).lower_sparse_iter()
    blk = sch.get_block("csrmm0")
    i, j, foo, foi, fi = sch.get_loops(blk)
    sch = sch.reorder(foo, fi, j, foi)
    if is_atomic:
        sch = sch.annotate(blk, "atomic", True).reverse_cache_write(blk, 0, "local")
        (write_blk,) = sch.made
        sch = sch.reverse_compute_at(write_blk, fi, True)
    sch = sch.bind(fi, "threadIdx.x").bind(foo, "blockIdx.y").unroll(foi).unroll(j)
    sch = sch.split(i, [None, 2, 8])
    sch = sch.bind(sch.made[0], "blockIdx.x").bind(sch.made[2], "threadIdx.y")
    sch = sch.decompose_reduction(blk, fi)
    (init_blk,) = sch.made
    ax0, ax1 = sch.get_loops(init_blk)[-2:]
    assert ax0 == fi if is_atomic else ax0.startswith(f"{fi}_")
    assert ax1.startswith(f"{foi}_")
    rows = (0, 1, 1, 4) if is_atomic else (0, 1, 2, 4)  # else no two parts share a row
    check_ell(sch.bind(ax0, "threadIdx.x").unroll(ax1), rows)


def test_an_empty_init_costs_no_code():
    schedule = Schedule(ellmm).lower_sparse_iter()
    loop = schedule.get_loops("csrmm0")[2]
    split = schedule.decompose_reduction("csrmm0", loop)
    assert any(isinstance(n, Evaluate) for n in walk(split.func.body))
    assert structural_equal(flat(split), flat(schedule))


@T.prim_func
def row_sums(x: T.handle, y: T.handle, n: T.int32) -> None:
    X = T.match_buffer(x, (n, 8), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i in T.serial(n):
        t = T.alloc_buffer((2,), "float32", scope="local")
        for j, k in T.grid(4, 2):
            with T.block("sums"):
                vi, vj, vk = T.axis.remap("SRS", [i, j, k])
                with T.init():
                    t[vk] = 0.0
                t[vk] = t[vk] + X[vi, vj * 2 + vk]
        with T.block("store"):
            v = T.axis.spatial(n, i)
            Y[v] = t[0] + t[1]


def test_the_init_goes_into_the_allocation_of_what_it_starts():
    schedule = Schedule(row_sums).decompose_reduction("sums", "i")
    (init,) = schedule.made
    assert schedule.get_loops(init) == ("i", "k_1")
    x, y = np.arange(24, dtype="float32"), np.empty(3, "float32")
    interpreted(schedule.func, {"x": x, "y": y, "n": 3})
    assert np.array_equal(y, x.reshape(3, 8).sum(1))


def test_the_init_nest_copies_the_pieces_of_a_split_loop():
    schedule = scheduled("csrmm").reorder("k", "j").split("k", [None, 2, 4])
    schedule = schedule.decompose_reduction("csrmm1", "k_1")
    (init,) = schedule.made
    assert schedule.get_loops(init) == ("k_0", "k_1_1", "k_2_1")
    check(schedule, "csrmm")


@T.prim_func
def halves(x: T.handle, y: T.handle, n: T.int32) -> None:
    """Two iterations start the same element: the last one stays."""
    X = T.match_buffer(x, (n, 3), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i, j in T.grid(n, 3):
        with T.block("sums"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                Y[vi // 2] = 0.0
            Y[vi // 2] = Y[vi // 2] + X[vi, vj]


def test_an_init_that_would_run_before_what_it_overwrites_is_refused():
    with pytest.raises(ScheduleError, match="iterations may write the same element of Y"):
        Schedule(halves).decompose_reduction("sums", "i")
    Schedule(halves).decompose_reduction("sums", "j")


@T.prim_func
def used_before(x: T.handle, y: T.handle, n: T.int32) -> None:
    X = T.match_buffer(x, (n, 3), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i in range(n):
        with T.block("double"):
            vi = T.axis.spatial(n, i)
            X[vi, 0] = X[vi, 0] + Y[vi]
        for j in range(3):
            with T.block("sums"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    Y[vi] = 0.0
                Y[vi] = Y[vi] + X[vi, vj]


def test_an_init_does_not_pass_what_reads_the_old_value():
    with pytest.raises(ScheduleError, match="Y is used before it is started"):
        Schedule(used_before).decompose_reduction("sums", "i")
    Schedule(used_before).decompose_reduction("sums", "j")


@T.prim_func
def if_any(x: T.handle, y: T.handle, n: T.int32) -> None:
    X = T.match_buffer(x, (n, 3), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i in range(n):
        t = T.alloc_buffer((1,), "float32")
        with T.block("first"):
            vi = T.axis.spatial(n, i)
            t[0] = X[vi, 0]
        for j in range(3):
            with T.block("sums"):
                vi, vj = T.axis.remap("SR", [i, j])
                T.where(t[0] > 0.0)
                with T.init():
                    Y[vi] = 0.0
                Y[vi] = Y[vi] + X[vi, vj]


def test_an_init_does_not_pass_what_decides_whether_it_runs():
    with pytest.raises(ScheduleError, match="t, on which the init depends, is written there"):
        Schedule(if_any).decompose_reduction("sums", "i")
    schedule = Schedule(if_any).decompose_reduction("sums", "j")
    x, y = np.array([1, 2, 3, -1, 5, 6], "float32"), np.full(2, 7, "float32")
    interpreted(schedule.func, {"x": x, "y": y, "n": 2})
    assert y.tolist() == [6, 7]


def test_decompose_reduction_knows_its_blocks_and_loops():
    schedule = scheduled("csrmm")
    with pytest.raises(ScheduleError, match="no block 'x' in csrmm"):
        schedule.decompose_reduction("x", "j")
    with pytest.raises(ScheduleError, match="'i' is not around the block, or more is between"):
        schedule.decompose_reduction("csrmm1", "i")
    with pytest.raises(ScheduleError, match="block csrmm0 has no init, and does not reduce"):
        schedule.decompose_reduction("csrmm0", "i")


# -- rfactor -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["csrmm", "spmv", "spmv_max", "spmv_min_plus", "spmv_prod", "ell_spmm", "sddmm"]
)
def test_rfactor_makes_partial_results_of_a_loop_split_by_a_constant(name):
    schedule = scheduled(name)
    block = next(n for n in walk(schedule.func.body) if isinstance(n, Block) and n.init)
    reduced = next(i.value.name for i in block.iters if i.kind == "R")
    schedule = schedule.split(reduced, 4).rfactor(f"{reduced}_i")
    assert schedule.made == (f"{block.name}_rf",)
    made, combined = (
        n for n in walk(schedule.func.body) if isinstance(n, Block) and n.init is not None
    )
    assert (made.name, combined.name) == (f"{block.name}_rf", block.name)
    kinds = {i.value.name: i.kind for i in made.iters}
    assert kinds[f"{reduced}_o"] == "R"
    assert kinds[f"{reduced}_i"] == "S"
    check(schedule, name)


@T.prim_func
def total(x: T.handle, y: T.handle, n: T.int32) -> None:
    X = T.match_buffer(x, (n, 8), "float32")
    Y = T.match_buffer(y, (1,), "float32")
    for i, j in T.grid(n, 8):
        with T.block("total"):
            vi, vj = T.axis.remap("RR", [i, j])
            with T.init():
                Y[0] = 0.0
            Y[0] = Y[0] + X[vi, vj]


def check_total(schedule, n=5):
    x = np.arange(n * 8, dtype="float32")
    for run in (lambda *a: interpreted(schedule.func, dict(zip("xyn", a, strict=True))),
                lambda *a: interpreted(flat(schedule), dict(zip("xyn", a, strict=True))),
                spcomp.compile(schedule)):  # fmt: skip
        y = np.full(1, 7, "float32")
        run(x, y, n)
        assert y[0] == x.sum()


def test_partial_results_of_a_whole_sum_are_made_in_parallel():
    schedule = Schedule(total).rfactor("i").parallel("i")
    check_total(schedule)
    check_total(schedule, 0)


def test_partial_results_are_made_in_vectors():
    check_total(Schedule(total).reorder("j", "i").rfactor("j").reorder("i", "j").vectorize("j"))


def test_factor_axis_says_where_the_new_axis_stands():
    shapes = []
    for axis in (0, 1):
        schedule = scheduled("csrmm").split("j", 4).rfactor("j_i", axis)
        shapes.append([n.buffer.shape for n in walk(schedule.func.body) if isinstance(n, Alloc)])
        check(schedule, "csrmm")
    assert [len(shape) for (shape,) in shapes] == [2, 2]
    assert shapes[0][0][0].value == shapes[1][0][1].value == 4


@T.prim_func
def choose_max(x: T.handle, y: T.handle, n: T.int32) -> None:
    """A choice, unlike max, passes over what is not a number."""
    X = T.match_buffer(x, (n, 8), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i, j in T.grid(n, 8):
        with T.block("best"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                Y[vi] = T.float32(0)
            Y[vi] = T.if_then_else(X[vi, vj] > Y[vi], X[vi, vj], Y[vi])


def test_a_choice_stays_a_choice_and_what_it_starts_from_is_used_once():
    schedule = Schedule(choose_max).split("j", [None, 4]).rfactor("j_i")
    x = np.random.default_rng(0).normal(size=(5, 8)).astype("float32")
    x[1] = -1
    x[2, 3], x[3] = np.nan, np.nan
    for func in (schedule.func, flat(schedule)):
        y = np.full(5, 9, "float32")
        interpreted(func, {"x": x.reshape(-1).copy(), "y": y, "n": 5})
        assert np.array_equal(y, np.nanmax(np.maximum(np.nan_to_num(x, nan=-1), 0), axis=1))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (lambda s: s.rfactor("k"), "it does not drive the reduction of csrmm1"),
        (lambda s: s.rfactor("j"), "how often 'j' runs is not known when the function is called"),
        (lambda s: s.split("j", 4).rfactor("j_i", 2), "the partial results have 2 axes"),
        (lambda s: s.decompose_reduction("csrmm1", "j").split("j", 4).rfactor("j_o"),
         "how often 'j_o' runs is not known when the function is called"),
    ],
)  # fmt: skip
def test_rfactor_says_what_stands_against_it(steps, reason):
    with pytest.raises(ScheduleError, match=reason):
        steps(scheduled("csrmm"))


def test_rfactor_is_refused_for_ties_and_for_what_is_no_reduction():
    with pytest.raises(ScheduleError, match="ties would be decided in another order"):
        scheduled("argmax").split("j", 4).rfactor("j_i")
    with pytest.raises(ScheduleError, match="csrmm_t0 is no associative update of one element"):
        scheduled("csrmm_t").rfactor("i")


def test_the_element_may_be_picked_by_what_reduces_further_out():
    schedule = scheduled("coo_spmm").split("j", 4).blockize("j_o").rfactor("j_i")
    check(schedule, "coo_spmm")


def test_a_permission_stays_with_the_update_and_not_with_partial_results():
    schedule = Schedule(ellmm).lower_sparse_iter().annotate("csrmm0", "atomic", True)
    j = schedule.get_loops("csrmm0")[1]
    schedule = schedule.rfactor(j)
    attrs = {n.name: dict(n.attrs) for n in walk(schedule.func.body) if isinstance(n, Block)}
    assert "atomic" in attrs["csrmm0"]
    assert "atomic" not in attrs["csrmm0_rf"]
    check_ell(schedule)


def test_both_steps_replay_from_their_trace():
    schedule = scheduled("csrmm").split("j", 4).rfactor("j_i", 1)
    schedule = schedule.decompose_reduction("csrmm1", "k_1")
    again = scheduled("csrmm").replay(Trace.from_json_lines(schedule.trace.to_json_lines()))
    assert structural_equal(again.func, schedule.func)
    check(schedule, "csrmm")
