"""blockize, intrinsics and tensorize: what is matched, what is put there, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.errors import ScheduleError
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.position import Block
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.tensor.intrinsics import INTRINSICS, register_intrinsic
from spcomp.script.parse import parse_source
from tests.layers import interpreted
from tests.test_schedule_reduction import flat, row_sums
from tests.test_schedule_steps import check, scheduled


@T.prim_func
def outer_product(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (2, 3), "float32")
    B = T.match_buffer(b, (3, 8), "float32")
    C = T.match_buffer(c, (2, 8), "float32")
    for i, k, j in T.grid(2, 3, 8):
        C[i, j] = C[i, j] + A[i, k] * B[k, j]


@T.prim_func
def in_registers(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (2, 3), "float32")
    B = T.match_buffer(b, (3, 8), "float32")
    C = T.match_buffer(c, (2, 8), "float32")
    t = T.alloc_buffer((2, 8), "float32", scope="local")
    for i in T.unroll(2):
        for j in T.vectorized(8):
            t[i, j] = C[i, j]
    for k in T.unroll(3):
        for i1 in T.unroll(2):
            for j1 in T.vectorized(8):
                t[i1, j1] = t[i1, j1] + A[i1, k] * B[k, j1]
    for i2 in T.unroll(2):
        for j2 in T.vectorized(8):
            C[i2, j2] = t[i2, j2]


@pytest.fixture(autouse=True)
def _intrinsics():
    before = dict(INTRINSICS)
    register_intrinsic("outer", outer_product, in_registers)
    yield
    INTRINSICS.clear()
    INTRINSICS.update(before)


@T.prim_func
def bsrmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
          m: T.int32, n: T.int32, nnz: T.int32, feat: T.int32) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    II = T.dense_fixed(2)
    JJ = T.dense_fixed(3)
    F = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J, II, JJ), "float32")
    B = T.match_sparse_buffer(b, (J_detach, JJ, F), "float32")
    C = T.match_sparse_buffer(c, (I, II, F), "float32")
    with T.sp_iter([I, J, II, JJ, F], "SRSRS", "bsrmm") as [i, j, ii, jj, f]:
        with T.init():
            C[i, ii, f] = 0.0
        C[i, ii, f] = C[i, ii, f] + A[i, j, ii, jj] * B[j, jj, f]


def bsr(feat=16):
    schedule = Schedule(bsrmm.specialize({"feat": feat})).lower_sparse_iter()
    return schedule.split("f", 8).reorder("f_o", "j", "ii", "jj", "f_i")


def check_bsr(schedule, feat=16):
    rng = np.random.default_rng(0)
    blocks = sps.random_array((5, 4), density=0.4, rng=rng).tocsr()
    data = rng.integers(-4, 5, (blocks.nnz, 2, 3)).astype("float32")
    matrix = sps.bsr_array((data, blocks.indices, blocks.indptr), shape=(10, 12))
    B = rng.integers(-4, 5, (12, feat)).astype("float32")
    inputs = {"a": data.reshape(-1).copy(), "b": B.reshape(-1).copy(), "m": 5, "n": 4}
    inputs |= {"indptr": blocks.indptr, "indices": blocks.indices, "nnz": blocks.nnz}
    for func in (schedule.func, flat(schedule)):
        C = np.full(10 * feat, 7, "float32")
        interpreted(func, {**inputs, "c": C})
        assert np.array_equal(C.reshape(10, feat), matrix @ B)
    C = spcomp.compile(schedule)(A=matrix, B=B.reshape(4, 3, feat))
    assert np.array_equal(C.reshape(10, feat), matrix @ B)


# -- blockize ----------------------------------------------------------------------------------


def blocks(schedule):
    return {n.name: n for n in walk(schedule.func.body) if isinstance(n, Block)}


def test_blockize_makes_a_block_over_the_loops_around():
    schedule = scheduled("csrmm").split("k", 4).reorder("k_o", "j", "k_i").blockize("k_i")
    assert schedule.made == ("csrmm1_o", "csrmm1_init")
    outer = blocks(schedule)["csrmm1_o"]
    assert [(own.value.name, own.kind) for own in outer.iters] == [("j", "R"), ("k_o", "S")]
    assert schedule.get_loops("csrmm1") == ("k_i",)
    assert outer.init is not None
    assert blocks(schedule)["csrmm1"].init is None
    check(schedule, "csrmm")


def test_loops_around_that_pick_one_thing_make_one_iter():
    schedule = Schedule(bsrmm.specialize({"feat": 16})).lower_sparse_iter().split("f", [None, 2, 4])
    schedule = schedule.reorder("f_0", "f_1", "j", "ii", "jj", "f_2").blockize("ii")
    outer = blocks(schedule)["bsrmm1_o"]
    assert [own.kind for own in outer.iters] == ["R", "S"]
    assert outer.iters[1].extent.value == 4
    assert {v.name for v in variables(outer.iters[1].value)} == {"f_0", "f_1"}
    check_bsr(schedule)


def test_loops_that_go_further_than_what_they_pick_make_iters_that_do_too():
    schedule = scheduled("csrmm").split("k", 4)
    check(schedule.reorder("k_o", "k_i", "j").blockize("j"), "csrmm")


def test_a_reduction_that_is_whole_inside_starts_inside():
    schedule = scheduled("csrmm").reorder("k", "j").blockize("j")
    assert schedule.made == ("csrmm1_o",)
    assert blocks(schedule)["csrmm1_o"].init is None
    check(schedule, "csrmm")


@pytest.mark.parametrize(("name", "loop"), [("sddmm", "k"), ("spmv_max", "j"), ("ell_spmm", "j")])
def test_blocks_of_blocks_compute_the_same(name, loop):
    check(scheduled(name).split(loop, 4).blockize(f"{loop}_i"), name)


def test_the_init_of_a_blockized_reduction_can_be_decomposed():
    schedule = scheduled("csrmm").split("k", 4).reorder("k_o", "j", "k_i").blockize("k_i")
    schedule = schedule.decompose_reduction("csrmm1_o", "j")
    assert schedule.made == ("csrmm1_o_init",)
    check(schedule, "csrmm")


def test_blockize_is_refused_for_loops_around_more_than_a_block():
    with pytest.raises(ScheduleError, match="it is not nested perfectly around a block"):
        Schedule(row_sums).blockize("i")


# -- intrinsics --------------------------------------------------------------------------------


def test_an_implementation_that_differs_is_refused_with_the_element():
    @T.prim_func
    def forgets(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2, 3), "float32")
        B = T.match_buffer(b, (3, 8), "float32")
        C = T.match_buffer(c, (2, 8), "float32")
        for i, k, j in T.grid(2, 2, 8):
            C[i, j] = C[i, j] + A[i, k] * B[k, j]

    with pytest.raises(ScheduleError, match="description and implementation differ: C has"):
        register_intrinsic("forgets", outer_product, forgets)


def test_an_implementation_that_leaves_its_buffers_is_refused():
    @T.prim_func
    def too_far(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2, 3), "float32")
        B = T.match_buffer(b, (3, 8), "float32")
        C = T.match_buffer(c, (2, 8), "float32")
        for i, k, j in T.grid(2, 4, 8):
            C[i, j] = C[i, j] + A[i, k] * B[k, j]

    with pytest.raises(ScheduleError, match="an index of A may be outside it"):
        register_intrinsic("too_far", outer_product, too_far)

    @T.prim_func
    def by_data(x: T.handle, y: T.handle, a: T.float32) -> None:
        X = T.match_buffer(x, (4,), "float32")
        Y = T.match_buffer(y, (4,), "float32")
        for i in range(4):
            Y[i] = Y[i] + a * X[i]
        if a > 1e30:
            Y[T.cast(a, "int64")] = 0.0

    with pytest.raises(ScheduleError, match="an index of Y may be outside it"):
        register_intrinsic("by_data", axpy4, by_data)


def test_a_description_does_not_say_what_is_not_read():
    @T.prim_func
    def masked(x: T.handle, y: T.handle, n: T.int64) -> None:
        X = T.match_buffer(x, (4,), "float32")
        Y = T.match_buffer(y, (4,), "float32")
        for i in range(4):
            Y[i] = T.if_then_else(i < n, X[i], T.float32(0))

    with pytest.raises(ScheduleError, match="reads elements under a condition"):
        register_intrinsic("masked", masked, masked)


def test_an_implementation_must_not_write_what_the_description_reads():
    @T.prim_func
    def writes(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2, 3), "float32")
        B = T.match_buffer(b, (3, 8), "float32")
        C = T.match_buffer(c, (2, 8), "float32")
        for i, k, j in T.grid(2, 3, 8):
            C[i, j] = C[i, j] + A[i, k] * B[k, j]
            B[k, j] = B[k, j]

    with pytest.raises(ScheduleError, match="only the implementation writes B"):
        register_intrinsic("writes", outer_product, writes)


def test_a_description_is_one_nest_whose_loops_run_along_the_axes():
    @T.prim_func
    def diagonal(a: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (4, 4), "float32")
        C = T.match_buffer(c, (4,), "float32")
        for i in range(4):
            C[i] = A[i, i]

    with pytest.raises(ScheduleError, match="A is not indexed by one loop along each of its axes"):
        register_intrinsic("diagonal", diagonal, diagonal)

    @T.prim_func
    def sized(a: T.handle, n: T.int32) -> None:
        A = T.match_buffer(a, (n,), "float32")
        for i in range(n):
            A[i] = 0.0

    with pytest.raises(ScheduleError, match="A is no dense buffer of constant sizes"):
        register_intrinsic("sized", sized, sized)


def test_a_false_claim_of_an_implementation_is_found():
    @T.prim_func
    def races(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (2, 3), "float32")
        B = T.match_buffer(b, (3, 8), "float32")
        C = T.match_buffer(c, (2, 8), "float32")
        for i in T.serial(2):
            for k in T.serial(3):
                for j in T.vectorized(8):
                    C[i, j] = C[i, j] + A[i, k] * B[k, j]
                for j1 in T.vectorized(7):
                    C[i, j1 + 1] = C[i, j1] + C[i, j1 + 1] - C[i, j1]

    with pytest.raises(ScheduleError, match="loop j1 cannot be vectorized"):
        register_intrinsic("races", outer_product, races)


def test_a_name_is_taken_until_it_is_overridden():
    assert register_intrinsic("outer", outer_product, in_registers) == "outer"
    with pytest.raises(ScheduleError, match="intrinsic 'outer' is registered"):
        register_intrinsic("outer", outer_product, outer_product)
    register_intrinsic("outer", outer_product, outer_product, override=True)


# -- tensorize ---------------------------------------------------------------------------------


def test_a_nest_over_blocks_of_a_sparse_matrix_becomes_the_intrinsic():
    schedule = bsr().decompose_reduction("bsrmm1", "f_o").tensorize("ii", "outer")
    assert schedule.made == ("bsrmm1_o",)
    assert set(schedule.loops) & {"ii", "jj", "f_i"} == set()
    check_bsr(schedule)
    check_bsr(schedule.parallel("i"))


def test_a_block_that_was_made_before_is_tensorized_with_the_init_it_has():
    schedule = bsr().blockize("ii").tensorize("bsrmm1_o", "outer")
    check_bsr(schedule)


def test_an_intrinsic_may_be_used_twice():
    schedule = Schedule(bsrmm.specialize({"feat": 24})).lower_sparse_iter()
    schedule = schedule.reorder("f", "j", "ii", "jj").decompose_reduction("bsrmm1", "f")
    schedule = schedule.loop_partition("f", 16).split("f", 8).split("f_rest", 8)
    for suffix in ("", "_rest"):
        loops = [f"j{suffix}", f"ii{suffix}", f"jj{suffix}", f"f{suffix}_i"]
        schedule = schedule.reorder(f"f{suffix}_o", *loops).tensorize(f"ii{suffix}", "outer")
    check_bsr(schedule, 24)


def test_a_trace_with_an_intrinsic_replays_while_it_is_registered():
    schedule = bsr().decompose_reduction("bsrmm1", "f_o").tensorize("ii", "outer")
    text = schedule.trace.to_json_lines()
    start = Schedule(bsrmm.specialize({"feat": 16})).lower_sparse_iter()
    assert structural_equal(start.replay(Trace.from_json_lines(text)).func, schedule.func)
    del INTRINSICS["outer"]
    with pytest.raises(ScheduleError, match="no intrinsic 'outer' is registered"):
        start.replay(Trace.from_json_lines(text))


def test_a_trace_does_not_take_another_intrinsic_of_the_same_name():
    schedule = bsr().decompose_reduction("bsrmm1", "f_o").tensorize("ii", "outer")
    trace = schedule.trace
    before = spcomp.compile(bsrmm, constants={"feat": 16}, trace=trace)
    register_intrinsic("outer", outer_product, outer_product, override=True)
    with pytest.raises(ScheduleError, match="'outer' is not the intrinsic that it was"):
        Schedule(bsrmm.specialize({"feat": 16})).lower_sparse_iter().replay(trace)
    again = bsr().decompose_reduction("bsrmm1", "f_o").tensorize("ii", "outer").trace
    assert again != trace
    after = spcomp.compile(bsrmm, constants={"feat": 16}, trace=again)
    assert before.object_bytes != after.object_bytes


@T.prim_func
def axpy4(x: T.handle, y: T.handle, a: T.float32) -> None:
    X = T.match_buffer(x, (4,), "float32")
    Y = T.match_buffer(y, (4,), "float32")
    for i in range(4):
        Y[i] = Y[i] + a * X[i]


@T.prim_func
def axpy4_vector(x: T.handle, y: T.handle, a: T.float32) -> None:
    X = T.match_buffer(x, (4,), "float32")
    Y = T.match_buffer(y, (4,), "float32")
    for i in T.vectorized(4):
        Y[i] = X[i] * a + Y[i]


def position(text, name="f"):
    (func,) = parse_source(
        "from spcomp import script as T\n\n\n@T.prim_func\n" + text, f"{name}.py"
    )
    return func


def axpy(target="Y[vk, vi]", source="X[vi, vk]", extent=4, more=""):
    return Schedule(position(f"""
def f(x: T.handle, y: T.handle, s: T.handle) -> None:
    X = T.match_buffer(x, (4, 4), "float32")
    Y = T.match_buffer(y, (4, 4), "float32")
    Z = T.match_buffer(y, (4, 4), "float32")
    S = T.match_buffer(s, (4,), "float32")
    for k in range(4):
        for i in range({extent}):
            with T.block("axpy"):
                vk = T.axis.spatial(4, k)
                vi = T.axis.spatial(4, i)
                {more or "T.reads()"}
                {target} = {source} * S[vk] + {target}
"""))  # fmt: skip


def test_parameters_and_strides_are_found_and_operands_change_places():
    register_intrinsic("axpy", axpy4, axpy4_vector)
    schedule = axpy("Y[vi, vk]", "X[vk, vi]").tensorize("i", "axpy")
    rng = np.random.default_rng(0)
    x, y, s = (rng.integers(-4, 5, n).astype("float32") for n in (16, 16, 4))
    want = y.reshape(4, 4) + (x.reshape(4, 4) * s[:, None]).T
    interpreted(flat(schedule), {"x": x, "y": y, "s": s})
    assert np.array_equal(y.reshape(4, 4), want)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ({"extent": 3}, "its loops run 3 times, those of the intrinsic 4"),
        ({"source": "-X[vk, vi]"}, "it does not compute what the description says"),
        ({"source": "X[vi, vi]"}, None),
        ({"target": "Y[vk, 0]"}, "two elements of what is written may be one element of Y"),
        ({"target": "Y[vk, vi // 2]"}, "two elements of what is written may be one element of Y"),
        ({"source": "Z[vk, vi]"}, "Z is two buffers of the intrinsic, one of them written"),
        ({"source": "X[vk, vi]", "more": "T.where(i < 3)"}, "it has a condition"),
    ],
)
def test_a_nest_is_tensorized_only_if_it_is_the_description(program, reason):
    register_intrinsic("axpy", axpy4, axpy4_vector)
    schedule = axpy(**{"target": "Y[vk, vi]", "source": "X[vk, vi]", **program})
    if reason is None:
        schedule.tensorize("i", "axpy")
        return
    with pytest.raises(ScheduleError, match=reason):
        schedule.tensorize("i", "axpy")


def test_what_other_iterations_may_update_is_left_alone():
    register_intrinsic("axpy", axpy4, axpy4_vector)
    schedule = axpy("Y[vi, vk]", "X[vk, vi]").annotate("axpy", "atomic", True)
    with pytest.raises(ScheduleError, match="may update its elements at the same time"):
        schedule.tensorize("i", "axpy")


def test_loops_that_matter_do_not_change_places():
    text = """
def f(x: T.handle, y: T.handle) -> None:
    X = T.match_buffer(x, (4, 4), "float32")
    Y = T.match_buffer(y, (4,), "float32")
    for {}, {} in T.grid(4, 4):
        with T.block("last"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi] = X[vi, vj] * Y[vi]
"""
    last = position(text.format("i", "j"))
    register_intrinsic("last", last, last)
    Schedule(position(text.format("i", "j"))).tensorize("i", "last")
    swapped = Schedule(position(text.format("j", "i")))
    swapped.tensorize("j", "last")  # a product, formed in another order
    text = text.replace("* Y[vi]", "- Y[vi]")
    first = position(text.format("i", "j"))
    register_intrinsic("minus", first, first)
    with pytest.raises(ScheduleError, match="its loops are in another order, which matters"):
        Schedule(position(text.format("j", "i"))).tensorize("j", "minus")
