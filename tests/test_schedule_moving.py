"""Steps that move blocks into loops, or into each other: what they build, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from tests.corpus_base import fresh
from tests.layers import reparsed, source
from tests.programs import BY_NAME
from tests.test_schedule_memory import allocated, block, extents, refused, replays, runs
from tests.test_schedule_steps import check, scheduled


@T.prim_func
def blur(a: T.handle, c: T.handle, n: T.int32):
    A = T.match_buffer(a, (n + 2, 8), "float32")
    C = T.match_buffer(c, (n, 8), "float32")
    B = T.alloc_buffer((n + 2, 8), "float32")
    for i in T.serial(n + 2):
        for j in T.serial(8):
            with T.block("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0
    for x in T.serial(n):
        for y in T.serial(8):
            with T.block("blur"):
                vx, vy = T.axis.remap("SS", [x, y])
                C[vx, vy] = B[vx, vy] + B[vx + 1, vy] + B[vx + 2, vy]


@T.prim_func
def rows(a: T.handle, c: T.handle, n: T.int32):
    A = T.match_buffer(a, (n, 6), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
    for i in T.serial(n):
        for j in T.serial(6):
            with T.block("sum"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    B[vi] = 0.0
                B[vi] = B[vi] + A[vi, vj]
    for x in T.serial(n):
        with T.block("scale"):
            vx = T.axis.spatial(n, x)
            C[vx] = B[vx] * 2.0


def outputs(func, n, shape_a, shape_c):
    rng = np.random.default_rng(n)
    a = rng.random(shape_a, dtype=np.float32).ravel()
    arrays = {"a": a, "c": np.full(shape_c, 9, np.float32).ravel(), "n": n}
    with np.errstate(all="ignore"):
        interpret(single(func), arrays)
    return arrays["a"], arrays["c"]


def same(schedule, source, shapes):
    """The schedule gives what *source* does, interpreted, compiled, reparsed and replayed."""
    verify(schedule.func, "schedule")
    kernel = spcomp.compile(schedule)
    for n in (0, 1, 5):
        shape_a, shape_c = shapes(n)
        a, wanted = outputs(source, n, shape_a, shape_c)
        assert np.array_equal(outputs(schedule.func, n, shape_a, shape_c)[1], wanted)
        got = np.full_like(wanted, 9)
        kernel(a.reshape(shape_a), got.reshape(shape_c), n)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    again = Schedule(source).replay(Trace.from_json_lines(schedule.trace.to_json_lines()))
    assert again.func.script() == schedule.func.script()
    assert reparsed(schedule.func, "moved").script() == schedule.func.script()


def same_blur(schedule):
    same(schedule, blur, lambda n: ((n + 2, 8), (n, 8)))


def same_rows(schedule):
    same(schedule, rows, lambda n: ((n, 6), (n,)))


# compute_at


def test_compute_at_computes_the_rows_that_an_iteration_needs():
    schedule = Schedule(blur).compute_at("double", "x")
    assert schedule.get_loops("double") == ("x", "i", "j")
    assert extents(schedule, "B") == [3, 8]
    same_blur(schedule)
    same_blur(schedule.parallel("x"))


def test_compute_at_of_the_innermost_loop_keeps_unit_loops_if_told():
    schedule = Schedule(blur).compute_at("double", "y", preserve_unit_loops=True)
    assert schedule.get_loops("double") == ("x", "y", "i", "j")
    assert Schedule(blur).compute_at("double", "y").get_loops("double") == ("x", "y", "i")
    assert extents(schedule, "B") == [3, 1]
    same_blur(schedule)


def test_compute_at_of_a_split_loop_stays_in_bounds():
    schedule = Schedule(blur).split("x", 4).compute_at("double", "x_o")
    assert extents(schedule, "B") == [6, 8]
    same_blur(schedule)


def test_compute_at_takes_a_whole_reduction_along():
    schedule = Schedule(rows).compute_at("sum", "x")
    assert schedule.get_loops("sum") == ("x", "j")
    same_rows(schedule.parallel("x"))


def test_compute_at_loads_rows_of_a_gathered_operand_one_by_one():
    schedule = scheduled("csrmm").cache_read("csrmm1", 2, "local").compute_at("csrmm1_load", "j")
    assert schedule.get_loops("csrmm1_load") == ("j", "ax1")
    check(schedule, "csrmm")
    runs(schedule, "csrmm")
    replays(schedule, "csrmm")


def test_compute_at_does_not_ask_for_elements_behind_the_end_of_a_split_row():
    split = scheduled("spmv").split("j", 2).cache_read("spmv1", 2, "global")
    inner = split.compute_at("spmv1_load", "j_i")
    (copy,) = (n for n in walk(inner.func.body) if isinstance(n, Block) and "load" in n.name)
    assert copy.where is not None  # J_indices has no element behind the end
    check(inner, "spmv")
    whole = scheduled("spmv").cache_read("spmv1", 2, "global").compute_at("spmv1_load", "j")
    check(whole, "spmv")
    message = refused(lambda: split.compute_at("spmv1_load", "j_o"))
    assert message.endswith("what 'j_o' needs of X_global has no bounds")


def test_compute_at_loads_a_tile_of_features_of_all_rows():
    schedule = scheduled("csrmm").split("k", 4).reorder("k_o", "j", "k_i")
    schedule = schedule.cache_read("csrmm1", 2, "local").compute_at("csrmm1_load", "k_o")
    assert schedule.get_loops("csrmm1_load") == ("k_o", "ax0", "ax1")
    check(schedule, "csrmm")


@pytest.mark.parametrize("loop", ["j", "k"])
def test_compute_at_of_a_sparse_copy_follows_its_fiber(loop):
    schedule = scheduled("csrmm").cache_read("csrmm1", 1, "local").compute_at("csrmm1_load", loop)
    check(schedule, "csrmm")
    runs(schedule, "csrmm")


def test_compute_at_says_why_not():
    schedule = Schedule(blur)
    assert refused(lambda: schedule.compute_at("blur", "i")) == (
        "compute_at('blur', 'i', False): the block stands after the loop"
    )
    assert "not in nests side by side" in refused(lambda: schedule.compute_at("double", "i"))
    assert "no loop 'z'" in refused(lambda: schedule.compute_at("double", "z"))
    lanes = schedule.vectorize("y")
    assert "runs in vector lanes" in refused(lambda: lanes.compute_at("double", "y"))
    assert "it does not write just one buffer that is allocated here" in refused(
        lambda: Schedule(in_place).compute_at("first", "x")
    )
    assert "B is touched outside 'x' too" in refused(
        lambda: Schedule(twice).compute_at("double", "x")
    )
    assert "the loop writes what the block reads" in refused(
        lambda: Schedule(overwritten).compute_at("double", "x")
    )
    assert "what 'x' needs of B has no bounds" in refused(
        lambda: Schedule(gathered).compute_at("double", "x")
    )
    assert "B is touched outside 'x' too" in refused(
        lambda: Schedule(counted).compute_at("count", "x")
    )


@T.prim_func
def in_place(a: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    for i in T.serial(n):
        with T.block("first"):
            vi = T.axis.spatial(n, i)
            A[vi] = 1.0
    for x in T.serial(n):
        with T.block("second"):
            vx = T.axis.spatial(n, x)
            A[vx] = A[vx] + 1.0


@T.prim_func
def twice(a: T.handle, c: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
    for i in T.serial(n):
        with T.block("double"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * 2.0
    for x in T.serial(n):
        with T.block("one"):
            vx = T.axis.spatial(n, x)
            C[vx] = B[vx]
    for z in T.serial(n):
        with T.block("two"):
            vz = T.axis.spatial(n, z)
            C[vz] = C[vz] + B[vz]


@T.prim_func
def overwritten(a: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
    for i in T.serial(n):
        with T.block("double"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * 2.0
    for x in T.serial(n):
        with T.block("back"):
            vx = T.axis.spatial(n, x)
            A[n - 1 - vx] = B[vx]


@T.prim_func
def gathered(a: T.handle, c: T.handle, p: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (n, 4), "float32")
    P = T.match_buffer(p, (n, 4), "int32")
    B = T.alloc_buffer((n,), "float32")
    T.assume_buffer_domain(P, [0, n - 1])
    for i in T.serial(n):
        with T.block("double"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * 2.0
    for x in T.serial(n):
        for y in T.serial(4):
            with T.block("gather"):
                vx, vy = T.axis.remap("SS", [x, y])
                C[vx, vy] = B[P[vx, vy]]


@T.prim_func
def counted(c: T.handle, n: T.int32):
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
    for z in T.serial(n):
        with T.block("zero"):
            vz = T.axis.spatial(n, z)
            B[vz] = 0.0
    for i in T.serial(n):
        with T.block("count"):
            vi = T.axis.spatial(n, i)
            B[vi] = B[vi] + 1.0
    for x in T.serial(n):
        with T.block("use"):
            vx = T.axis.spatial(n, x)
            C[vx] = B[vx]


# reverse_compute_at


def test_reverse_compute_at_runs_the_consumer_where_its_input_is_complete():
    schedule = Schedule(rows).reverse_compute_at("scale", "i")
    assert schedule.get_loops("scale") == ("i",)
    assert extents(schedule, "B") == [1]
    same_rows(schedule.parallel("i"))
    kept = Schedule(rows).reverse_compute_at("scale", "i", preserve_unit_loops=True)
    assert kept.get_loops("scale") == ("i", "x")
    same_rows(kept)


def test_reverse_compute_at_of_a_split_producer_copies_its_inner_loop():
    schedule = Schedule(rows).split("i", 4).reverse_compute_at("scale", "i_o")
    assert schedule.get_loops("scale") == ("i_o", "x")
    assert block(schedule, "scale").where is not None
    assert extents(schedule, "B") == [4]
    same_rows(schedule)


def test_the_tile_of_the_default_schedule_is_cache_write_and_reverse_compute_at():
    schedule = scheduled("csrmm").split("k", 4).cache_write("csrmm1").reorder("k_o", "j", "k_i")
    schedule = schedule.reverse_compute_at("csrmm1_store", "k_o")
    assert schedule.get_loops("csrmm1_store") == ("k_o", "k_i_1")
    assert extents(schedule, "C_local") == [4]
    check(schedule, "csrmm")
    runs(schedule.parallel("i").vectorize("k_i").vectorize("k_i_1"), "csrmm")
    replays(schedule, "csrmm")


def test_the_write_back_of_hyb_adds_a_tile_after_the_last_element():
    schedule = scheduled("ellmm").reorder("i", "bi", "f", "j", "bj")
    schedule = schedule.annotate("ellmm0", "atomic", True).reverse_cache_write("ellmm0", 0, "local")
    schedule = schedule.reverse_compute_at("ellmm0_store", "f", True)
    assert schedule.get_loops("ellmm0_store") == ("i", "bi", "f", "i_1", "bi_1", "f_1")
    assert extents(schedule, "C_local") == [1, 1, 1]
    schedule = schedule.decompose_reduction("ellmm0", "f")
    check(schedule, "ellmm")
    runs(schedule, "ellmm")
    replays(schedule, "ellmm")


def test_reverse_compute_at_says_why_not():
    schedule = Schedule(rows)
    assert "the block stands before the loop" in refused(
        lambda: schedule.reverse_compute_at("sum", "x")
    )
    assert "iterations of 'j' compute the same elements" in refused(
        lambda: schedule.reverse_compute_at("scale", "j")
    )
    assert "across 'i', iterations" in refused(
        lambda: Schedule(blur).reverse_compute_at("blur", "i")
    )
    assert "what stands between them touches" in refused(
        lambda: Schedule(twice).reverse_compute_at("two", "i")
    )
    assert "may not reach all of 'x'" in refused(
        lambda: Schedule(partly).reverse_compute_at("second", "i")
    )
    assert "reads nothing that 'i' computes" in refused(
        lambda: Schedule(backwards).reverse_compute_at("second", "i")
    )


@T.prim_func
def partly(a: T.handle, c: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    for i in T.serial(n - 1):
        with T.block("first"):
            vi = T.axis.spatial(n, i)
            A[vi] = 1.0
    for x in T.serial(n):
        with T.block("second"):
            vx = T.axis.spatial(n, x)
            C[vx] = A[vx]


@T.prim_func
def backwards(a: T.handle, c: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    for i in T.serial(n):
        with T.block("first"):
            vi = T.axis.spatial(n, i)
            A[vi] = 1.0
    for x in T.serial(n):
        with T.block("second"):
            vx = T.axis.spatial(n, x)
            C[vx] = A[n - 1 - vx]


# compute_inline and reverse_compute_inline


def test_compute_inline_puts_the_producer_where_it_is_read():
    schedule = Schedule(blur).compute_inline("double")
    assert not any(isinstance(node, Alloc) for node in walk(schedule.func.body))
    assert schedule.loops == ("x", "y")
    same_blur(schedule)
    split = Schedule(blur).split("i", 4).compute_inline("double")
    assert split.loops == ("x", "y")
    same_blur(split)


def test_compute_inline_undoes_a_cache_read():
    schedule = scheduled("csrmm").cache_read("csrmm1", 2, "local").compute_inline("csrmm1_load")
    assert not allocated(schedule)
    check(schedule, "csrmm")
    replays(schedule, "csrmm")


def test_compute_inline_says_why_not():
    assert "block sum does not just store one element" in refused(
        lambda: Schedule(rows).compute_inline("sum")
    )
    assert "C is not allocated here" in refused(lambda: Schedule(blur).compute_inline("blur"))
    assert "A changes before B is read" in refused(
        lambda: Schedule(overwritten).compute_inline("double")
    )
    assert "B is not only read after the block" in refused(
        lambda: Schedule(counted).compute_inline("zero")
    )


def test_what_is_read_where_a_block_stores_nothing_is_not_inlined():
    # the copy has room for the longest row: what reads all of it would read A beyond a row's end
    start = scheduled("csrmm").cache_read("csrmm1", 1).cache_write("csrmm1_load", 0, "local")
    again = start.cache_read("csrmm1_load_store", 0)
    assert "may be read where the block stores nothing" in refused(
        lambda: again.compute_inline("csrmm1_load")
    )


@T.prim_func
def scaled(a: T.handle, c: T.handle, n: T.int32):
    A = T.match_buffer(a, (n, 6), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
    for i in T.serial(n):
        with T.block("first"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi, 0] + 1.0
    for x in T.serial(n):
        with T.block("scale"):
            vx = T.axis.spatial(n, x)
            C[n - 1 - vx] = B[vx] * 2.0


def test_reverse_compute_inline_puts_the_consumer_where_its_input_is_made():
    schedule = Schedule(scaled).reverse_compute_inline("scale")
    assert schedule.loops == ("i",)
    assert not allocated(schedule)
    same(schedule, scaled, lambda n: ((n, 6), (n,)))
    split = Schedule(scaled).split("i", 4).reverse_compute_inline("scale")
    same(split, scaled, lambda n: ((n, 6), (n,)))


@T.prim_func
def padded(a: T.handle, c: T.handle):
    A = T.match_buffer(a, (3,), "float32")
    C = T.match_buffer(c, (4,), "float32")
    B = T.alloc_buffer((3,), "float32")
    for i in T.serial(3):
        with T.block("copy"):
            vi = T.axis.spatial(3, i)
            B[vi] = A[vi]
    for x in T.serial(4):
        with T.block("pad"):
            vx = T.axis.spatial(4, x)
            C[vx] = T.if_then_else(vx < 3, B[vx], 1.0)


def test_reverse_compute_inline_says_why_not():
    assert "it reads B under a condition only" in refused(
        lambda: Schedule(padded).reverse_compute_inline("pad")
    )
    assert "B is not stored by one block, once" in refused(
        lambda: Schedule(rows).reverse_compute_inline("scale")
    )
    assert "does not read one element of one buffer" in refused(
        lambda: Schedule(blur).reverse_compute_inline("blur")
    )
    assert "B is read elsewhere too" in refused(
        lambda: Schedule(twice).reverse_compute_inline("one")
    )


def test_a_step_on_blocks_needs_blocks():
    with pytest.raises(ScheduleError, match="has no blocks at this level"):
        Schedule(source("csrmm")).compute_inline("x")


def test_a_block_does_not_leave_a_loop_with_other_nests_in_it():
    schedule = Schedule(source("sampled_attention")).lower_sparse_iter()
    schedule = schedule.horizontal_fuse(["i", "i1"], 8)
    with pytest.raises(ScheduleError, match="the block would leave the loop 'rows_c'"):
        schedule.compute_at("total0", "j2")


def test_the_names_that_stand_above_a_nest_move_with_it():
    schedule = Schedule(source("normalize")).lower_sparse_iter().split_nnz("i", 2)
    moved = schedule.compute_at("total0", "i1")
    assert moved.get_loops("total0") == ("i1", "i_c", "i")
    verify(moved.func, "moved")
    program = BY_NAME["normalize"]
    inputs = program.inputs("random", "float32", seed=3)
    own = fresh(inputs)
    program.check(inputs, {**own, **interpret(moved.func, own)}, "float32", "moved")
