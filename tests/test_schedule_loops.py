"""Steps on loops and blocks of stage II: what they build, what they refuse, what they choose."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError
from spcomp.ir.expr import BinOp
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, If
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import find_block
from spcomp.schedule.sampled import make_generator
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.loops.sampling import divisors, draw_index, draw_tile
from spcomp.schedule.steps.loops.tiling import Split
from spcomp.script.parse import parse_source
from tests.layers import source
from tests.programs import BY_NAME, fresh
from tests.test_schedule_bind import program, same_everywhere
from tests.test_schedule_odd import SUMS, agrees, loops
from tests.test_schedule_steps import SERIAL, names, refused, scheduled

# -- split --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factors", "made"),
    [
        (4, ("k_o", "k_i")),
        ([None, 4], ("k_o", "k_i")),
        ([3, None], ("k_o", "k_i")),
        ([None, 2, 3], ("k_0", "k_1", "k_2")),
        ([2, None, 3], ("k_0", "k_1", "k_2")),
        ([2, 3, None], ("k_0", "k_1", "k_2")),
        ([1, None, 1, 1], ("k_0", "k_1", "k_2", "k_3")),
    ],
)
@pytest.mark.parametrize("name", ["csrmm", "sddmm"])
def test_a_loop_is_split_in_as_many_as_there_are_factors(name, factors, made):
    schedule = scheduled(name).split("k", factors)
    assert schedule.made == made
    same_everywhere(schedule, name)


@pytest.mark.parametrize("factors", [[None, 3], [2, None], [None, 2, 2], [3, None, 2]])
def test_a_loop_over_a_fiber_is_split_whatever_its_length(factors):
    same_everywhere(scheduled("csrmm").split("j", factors), "csrmm")
    same_everywhere(scheduled("ellmm").split("bj", factors), "ellmm")


def test_a_number_stands_for_an_inferred_outer_loop():
    assert Split("k", 4) == Split("k", (None, 4))
    assert str(Split("k", (None, 4))) == "split('k', 4)"
    assert Split("k", (4, None)) != Split("k", 4)


def test_given_factors_cover_a_constant_trip_count_and_guard_what_is_too_much():
    func = scheduled("csrmm").func.specialize({"feat": 24})
    schedule = Schedule(func)
    exact = schedule.split("k", [2, 3, 4])
    assert all(n.where is None for n in walk(exact.func.body) if isinstance(n, Block))
    more = schedule.split("k", [2, 4, 4])
    assert any(n.where is not None for n in walk(more.func.body) if isinstance(n, Block))
    a = sps.random_array((5, 6), density=0.5, dtype=np.float32, rng=np.random.default_rng(0))
    b = np.random.default_rng(1).uniform(-1, 1, (6, 24)).astype(np.float32)
    for made in (exact, more):
        result = spcomp.compile(made)(A=a.tocsr(), B=b)
        np.testing.assert_allclose(result, a @ b, rtol=1e-5, atol=1e-6)
    error = refused(lambda: schedule.split("k", [2, 3, 3]))
    assert error.message.endswith("the loop may run more often than 18 times")
    error = refused(lambda: scheduled("csrmm").split("k", [4, 8]))
    assert error.message.endswith("the loop may run more often than 32 times")


@pytest.mark.parametrize(
    ("factors", "reason"),
    [
        ([None, 0], "the factor must be at least 1"),
        ([2, -1, None], "the factor must be at least 1"),
        ([None, 2.0], "factors cannot be (None, 2.0)"),
        ([None, None, 2], "only one factor can be inferred"),
        ([None], "a loop is split in at least two"),
        ([], "a loop is split in at least two"),
        ([1] * 17, "a loop is split in at most 16"),
    ],
)
def test_factors_that_say_nothing_are_refused(factors, reason):
    assert refused(lambda: scheduled("csrmm").split("k", factors)).message.endswith(reason)


BARE = """for i in T.serial(m):
    C[i] = C[i] + 1.0"""
BESIDE = """for i in T.serial(m):
    C[i] = 1.0
    with T.block("more"):
        vi = T.axis.spatial(m, i)
        C[vi] = C[vi] + A[vi, 0]"""
READS = """for i in T.serial(m):
    for j in T.serial(T.min(T.cast(A[i, 0], "int64"), n)):
        x = A[i, 1]
        with T.block("sum"):
            vi = T.axis.spatial(m, i)
            vj = T.axis.spatial(n, j)
            C[vi] = C[vi] + x"""
MERGED = """for i in T.serial(m):
    if i > 1:
        with T.block("sums"):
            vi = T.axis.spatial(m, i)
            C[vi] = A[vi, 1]"""


@pytest.mark.parametrize("body", [BARE, BESIDE, READS, MERGED])
@pytest.mark.parametrize("factors", [4, [2, None], [None, 2, 2]])
def test_nothing_is_touched_behind_the_end_of_a_split_loop(body, factors):
    original = loops(body)
    for m in (0, 1, 3, 8):
        agrees(original.split("i", factors), original, m, 5)


UNDER = """for i in T.serial(m):
    for j in T.serial(n):
        if {cond}:
            with T.block("sums"):
                vi = T.axis.spatial(m, i)
                vj = T.axis.reduce(n, j)
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vj]
        else:
            with T.block("others"):
                wi = T.axis.spatial(m, i)
                wj = T.axis.reduce(n, j)
                with T.init():
                    C[wi] = 1.0
                C[wi] = C[wi] - A[wi, wj]"""


@pytest.mark.parametrize("cond", ["i > 0", "j > 2", "i > 0 and j > 2"])
def test_a_reduction_under_a_condition_starts_only_where_it_can_hold(cond):
    original = loops(UNDER.format(cond=cond))
    agrees(original, original)
    agrees(original.split("i", 4), original)
    agrees(original.split("j", 4), original)
    agrees(original.split("j", [None, 2, 2]).split("i", [2, None]), original)


def test_a_let_that_a_condition_needs_is_there_for_the_init():
    body = """for i in T.serial(m):
    for j in T.serial(n):
        limit = i * 2
        if limit > 1:
            with T.block("sums"):
                vi = T.axis.spatial(m, i)
                vj = T.axis.reduce(n, j)
                T.where(limit < 5)
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + A[vi, vj]"""
    agrees(loops(body), loops(body))
    agrees(loops(body).split("i", 2), loops(body))


MEETING = """D = T.match_buffer(d, (m,), "int32")
E = T.match_buffer(e, (n,), "int32")
for i in T.serial(m):
    with T.merge("{kind}", T.cursor(D, 0, m), T.cursor(E, 0, n)) as [x, p, q]:
        with T.case(1, 1):
            with T.block("sums"):
                vi = T.axis.spatial(m, i)
                vx = T.axis.reduce(100, x)
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + T.cast(vx, "float32")"""


@pytest.mark.parametrize("kind", ["union", "intersect"])
def test_a_reduction_over_a_co_iteration_starts_before_it(kind):
    body = MEETING.format(kind=kind)
    func = program(
        body, "a: T.handle, c: T.handle, d: T.handle, e: T.handle, m: T.int64, n: T.int64"
    )
    arrays = {"d": np.array([1, 2, 3], np.int32), "e": np.array([2, 3, 5, 7], np.int32)}
    results = []
    for module in (single(func), lower(func, SERIAL, trace=Trace(), trusted=True).flat):
        c = np.full(3, 7, np.float32)
        interpret(module, {"a": np.zeros(12, np.float32), "c": c, "m": 3, "n": 4, **arrays})
        results.append(c.tolist())
    assert results == [[5, 5, 5], [5, 5, 5]]


def test_a_condition_stands_only_where_a_split_loop_may_run_too_far():
    assert any(isinstance(n, If) for n in walk(loops(BARE).split("i", 4).func.body))
    func = loops(BARE).func.specialize({"m": 8})
    assert not any(isinstance(n, If) for n in walk(Schedule(func).split("i", 4).func.body))


# -- fuse, reorder, kinds -------------------------------------------------------------------------


def test_many_loops_are_fused_in_order():
    schedule = scheduled("csrmm").split("k", [None, 2, 2]).fuse("k_0", "k_1", "k_2")
    assert schedule.made == ("k_0_k_1_k_2",)
    same_everywhere(schedule, "csrmm")
    schedule = scheduled("bsrmm")
    nest = schedule.get_loops("bsrmm1")
    same_everywhere(schedule.fuse(*nest[-2:]), "bsrmm")


def test_loops_inside_a_block_do_not_divide_for_the_indices_of_the_fused_loop_around_it():
    program = loops("""for h in T.serial(2):
    for i in T.serial(m):
        with T.block("row"):
            vh = T.axis.reduce(2, h)
            vi = T.axis.spatial(m, i)
            for j in T.serial(n):
                with T.block("sums"):
                    vj = T.axis.reduce(n, j)
                    C[vi] = C[vi] + A[vi, vj] * T.cast(vh + 1, "float32")""")
    fused = program.fuse("h", "i")
    agrees(fused, program)
    flat = lower(fused.func, SERIAL, trace=Trace(), trusted=True).flat
    (inner,) = (n for n in walk(flat.funcs[0].body) if isinstance(n, For) and n.var.name == "j")
    assert not any(isinstance(n, BinOp) and n.op in ("//", "%") for n in walk(inner))


def test_one_loop_is_nothing_to_fuse():
    assert refused(lambda: scheduled("csrmm").fuse("k")).message.endswith("two loops or more")


def test_loops_of_two_indices_of_the_grid_are_not_fused():
    schedule = scheduled("csrmm").split("k", 4).bind("k_o", "blockIdx.x")
    error = refused(lambda: schedule.bind("k_i", "threadIdx.x").fuse("k_o", "k_i"))
    assert error.message.endswith("one is blockIdx.x, the other threadIdx.x")


def test_pieces_of_a_loop_may_change_places_and_run_in_parallel():
    schedule = scheduled("csrmm").split("k", [None, 2, 4]).reorder("k_2", "k_0", "k_1", "j")
    same_everywhere(schedule.parallel("k_2"), "csrmm")


@pytest.mark.parametrize("name", ["csrmm", "sddmm", "csrmm_t"])
def test_a_unit_loop_changes_nothing(name):
    schedule = scheduled(name)
    block = schedule.get_output_blocks()[-1]
    schedule = schedule.add_unit_loop(block).add_unit_loop(schedule.loops[0])
    assert f"{block}_u" in schedule.loops
    same_everywhere(schedule, name)


def test_a_unit_loop_goes_around_what_exists():
    error = refused(lambda: scheduled("csrmm").add_unit_loop("nothing"))
    assert error.message.endswith("nothing is called 'nothing' in csrmm")
    error = refused(lambda: Schedule(source("csrmm")).add_unit_loop("csrmm"))
    assert error.message.endswith("'csrmm' is no block or loop")


# -- questions ------------------------------------------------------------------------------------

SEVERAL = """S = T.alloc_buffer((m,), "float32")
for i in T.serial(m):
    with T.block("first"):
        vi = T.axis.spatial(m, i)
        S[vi] = A[vi, 0]
for j in T.serial(m):
    with T.block("second"):
        vj = T.axis.spatial(m, j)
        C[vj] = S[vj]
for k in T.serial(m):
    with T.block("third"):
        vk = T.axis.spatial(m, k)
        with T.block("inner"):
            wk = T.axis.spatial(m, vk)
            C[wk] = C[wk] + 1.0"""


def test_a_schedule_says_which_blocks_hang_together():
    schedule = loops(SEVERAL)
    assert schedule.get_producers("first") == ()
    assert schedule.get_consumers("first") == ("second",)
    assert schedule.get_producers("third") == ("second",)
    assert schedule.get_consumers("second") == ("third",)
    assert schedule.get_child_blocks("third") == ("inner",)
    assert schedule.get_child_blocks("i") == ("first",)
    assert schedule.get_output_blocks() == ("second", "third", "inner")
    assert schedule.get_output_blocks("third") == ("inner",)
    with pytest.raises(ScheduleError, match="no block 'fourth'"):
        schedule.get_producers("fourth")


# -- choices --------------------------------------------------------------------------------------


def test_a_tile_is_drawn_once_and_replayed():
    func = scheduled("csrmm").func.specialize({"feat": 48})
    schedule = Schedule(func).sample_perfect_tile("k", 3, max_innermost_factor=8, seed=1)
    tile = schedule.sampled
    assert len(tile) == 3
    assert np.prod(tile) == 48
    assert tile[-1] <= 8
    assert schedule.func is func
    assert Schedule(func).sample_perfect_tile("k", 3, 8, seed=1).trace == schedule.trace
    trace = Trace.from_json_lines(schedule.split("k", tile).trace.to_json_lines())
    assert Schedule(func).replay(trace).func.script() == schedule.split("k", tile).func.script()


def test_divisors_follow_from_the_prime_factors():
    for number in (1, 2, 12, 97, 360, 2 * 9973):
        assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
    assert len(divisors(10**15)) == 16**2  # not by trial


def test_every_tile_can_be_drawn_and_none_that_is_not_allowed():
    drawn = {draw_tile(12, 3, 3, make_generator(seed, Trace(), "")) for seed in range(300)}
    every = {(a, b, c) for a in range(1, 13) for b in range(1, 13) for c in (1, 2, 3)}
    assert drawn == {tile for tile in every if np.prod(tile) == 12}
    assert draw_tile(7, 1, 2, make_generator(0, Trace(), "")) == (7,)


def test_choices_after_each_other_are_not_the_same_choice():
    schedule = scheduled("csrmm")
    chosen = []
    for _ in range(8):
        schedule = schedule.sample_categorical(list(range(100)), seed=3)
        chosen.append(schedule.sampled)
    assert len(set(chosen)) > 4


def test_a_choice_is_as_likely_as_is_said():
    drawn = [draw_index((0.0, 3.0, 1.0), make_generator(seed, Trace(), "")) for seed in range(400)]
    assert 0 not in drawn
    assert 250 < drawn.count(1) < 350


def test_a_choice_can_be_given_and_may_be_of_anything_that_is_written_down():
    schedule = scheduled("csrmm").sample_categorical(["x", 2, 0.5], [0.5, 0.25, 0.25], decision=2)
    assert schedule.sampled == 0.5
    assert Trace.from_json_lines(schedule.trace.to_json_lines()) == schedule.trace
    assert scheduled("csrmm").sampled is None


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda s: s.sample_perfect_tile("k", 2), "the trip count is not a constant"),
        (lambda s: s.sample_perfect_tile("x", 2), "no loop 'x' in csrmm"),
        (
            lambda s: s.split("k", 8).sample_perfect_tile("k_i", 2, decision=[3, 2]),
            "(3, 2) is no tile of 8 in 2 parts",
        ),
        (
            lambda s: s.split("k", 8).sample_perfect_tile("k_i", 2, 2, decision=[2, 4]),
            "(2, 4) is no tile of 8 in 2 parts",
        ),
        (
            lambda s: s.split("k", 8).sample_perfect_tile("k_i", 0),
            "() is no tile of 8 in 0 parts",
        ),
        (lambda s: s.sample_categorical([]), "each candidate has a probability, and one is not 0"),
        (
            lambda s: s.sample_categorical([1, 2], [1.0]),
            "each candidate has a probability, and one is not 0",
        ),
        (
            lambda s: s.sample_categorical([1, 2], [0.0, 0.0]),
            "each candidate has a probability, and one is not 0",
        ),
        (
            lambda s: s.sample_categorical([1, 2], decision=2),
            "the decision is no index of the candidates",
        ),
    ],
)
def test_a_choice_of_nothing_is_refused(act, reason):
    assert refused(lambda: act(scheduled("csrmm"))).message.endswith(reason)


# -- blocks ---------------------------------------------------------------------------------------


def test_the_iters_of_a_block_are_put_in_another_order():
    schedule = scheduled("csrmm").reorder_block_iter_var("csrmm1", [1, 0])
    iters = find_block(schedule.func, "csrmm1", "", None).iters
    assert [own.var.name for own in iters] == ["vk", "vj"]
    same_everywhere(schedule, "csrmm")


@pytest.mark.parametrize("order", [[0], [0, 0], [1, 2], [0, 1, 2]])
def test_an_order_that_is_none_of_the_iters_is_refused(order):
    error = refused(lambda: scheduled("csrmm").reorder_block_iter_var("csrmm1", order))
    assert error.message.endswith("the order is not one of the 2 iters of the block")


def test_a_block_need_not_declare_what_it_reads():
    schedule = scheduled("csrmm").hide_buffer_access("csrmm1", "read", [0, 3])
    schedule = schedule.hide_buffer_access("csrmm1", "write", [0])
    block = find_block(schedule.func, "csrmm1", "", None)
    assert [region.buffer.name for region in block.reads] == ["A", "B"]
    assert block.writes == ()
    same_everywhere(schedule, "csrmm")
    error = refused(lambda: schedule.parallel("j"))  # it still writes what it writes
    assert error.message.endswith("iterations may write the same element of C")


@pytest.mark.parametrize(
    ("what", "indices", "reason"),
    [
        ("reads", [0], "'reads' is neither read nor write"),
        ("read", [9], "the block declares 4 reads, counted from 0"),
        ("write", [0, 0], "the block declares 1 writes, counted from 0"),
    ],
)
def test_a_region_that_is_not_there_cannot_be_hidden(what, indices, reason):
    error = refused(lambda: scheduled("csrmm").hide_buffer_access("csrmm1", what, indices))
    assert error.message.endswith(reason)


def test_names_of_pieces_are_new_where_they_are_taken():
    schedule = loops(SUMS).split("i", 2).split("i_i", [None, 1]).fuse("i_i_o", "i_i_i")
    assert names(schedule) == ["i_o", "i_i_o_i_i_i", "j"]
    agrees(schedule, loops(SUMS))


def test_a_dot_product_in_vectors_that_gets_a_condition_later_is_still_one_sum():
    schedule = Schedule(source("ellmm")).lower_sparse_iter().reorder("f", "bj")
    schedule = schedule.add_unit_loop("bj").vectorize("bj").split("bj_u", [4, 1])
    flat = lower(schedule, SERIAL).flat
    inputs = BY_NAME["ellmm"].inputs("random")
    arguments = fresh(inputs)
    interpret(flat, arguments)
    BY_NAME["ellmm"].check(inputs, arguments)


@pytest.mark.parametrize("factors", [[None, 2, 16], [None, 8, 4], [2, None, 2, 4]])
def test_a_loop_that_is_fused_and_split_again_runs_in_vectors(factors):
    (func,) = parse_source(
        """from spcomp import script as T

@T.prim_func
def double(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (32, 16), "float32")
    B = T.match_buffer(b, (32, 16), "float32")
    for i, j in T.grid(32, 16):
        with T.block("double"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
""",
        "double.py",
    )
    schedule = Schedule(func).fuse("i", "j").split("i_j", factors)
    schedule = schedule.vectorize(schedule.loops[-1]).parallel(schedule.loops[0])
    kernel = spcomp.compile(schedule, target="cpu:x86-64-v3")
    a, b = np.arange(512, dtype=np.float32).reshape(32, 16), np.zeros((32, 16), np.float32)
    assert np.array_equal(kernel(A=a), 2 * a)
    interpret(schedule.func, {"a": a.reshape(-1), "b": b.reshape(-1)})
    assert np.array_equal(b, 2 * a)
    assert f"<{min(8, factors[-1])} x float>" in kernel.source("llvm")


def test_a_reduction_without_iterations_is_not_left_out_to_vectorize_what_is_around_it():
    func = BY_NAME["ell_spmm"].build("float32").specialize({"cols": 0, "m": 5, "n": 7, "feat": 3})
    with pytest.raises(ScheduleError, match="not straight-line"):
        Schedule(func).lower_sparse_iter().vectorize("i")


def test_a_loop_that_is_simplified_for_vectors_keeps_the_buffers_around_it():
    func = BY_NAME["csr_reduce"].build("float32").specialize({"m": 1, "n": 1, "nnz": 1})
    schedule = Schedule(func).lower_sparse_iter().split_rows("i", "j", 1).vectorize("i_cut")
    verify(schedule.func, "vectorize")
    assert "for i_cut in T.vectorized(1)" in schedule.func.script()
