"""Steps that give blocks memory of their own: what they build, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ScheduleError
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import Buffer, SparseBuffer
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc, Store
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from tests.corpus_base import fresh
from tests.layers import reparsed, source
from tests.programs import BY_NAME
from tests.test_schedule_steps import check, scheduled


def refused(step):
    with pytest.raises(ScheduleError) as caught:
        step()
    return str(caught.value).splitlines()[0].split(": ", 1)[1]


def allocated(schedule):
    return {n.buffer.name: n.buffer for n in walk(schedule.func.body) if isinstance(n, Alloc)}


def extents(schedule, name):
    return [int(simplify(extent).value) for extent in allocated(schedule)[name].shape]


def block(schedule, name):
    (found,) = (n for n in walk(schedule.func.body) if isinstance(n, Block) and n.name == name)
    return found


def replays(schedule, name):
    """The trace, through JSON, makes the same program, which prints and parses."""
    again = scheduled(name).replay(Trace.from_json_lines(schedule.trace.to_json_lines()))
    assert again.func.script() == schedule.func.script()
    assert reparsed(schedule.func, name).script() == schedule.func.script()


def runs(schedule, name):
    """The compiled schedule computes what the oracle says."""
    program, kernel = BY_NAME[name], spcomp.compile(schedule)
    for case in ("random", "empty_rows", "zero"):
        inputs = program.inputs(case)
        arguments = fresh(inputs)
        kernel(*(arguments[param.name] for param in schedule.func.params))
        program.check(inputs, arguments, "float32", case)


# cache_read


def test_cache_read_copies_a_dense_operand_into_an_array_of_its_shape():
    schedule = scheduled("csrmm").cache_read("csrmm1", 2, "shared")
    assert schedule.made == ("csrmm1_load",)
    local = allocated(schedule)["B_shared"]
    assert isinstance(local, Buffer)
    assert (len(local.shape), local.scope) == (2, "shared")
    assert schedule.get_loops("csrmm1_load") == ("ax0", "ax1")
    check(schedule, "csrmm")
    replays(schedule, "csrmm")


def test_cache_read_of_a_sparse_operand_copies_the_fiber_that_the_nest_reads():
    schedule = scheduled("csrmm").cache_read("csrmm1", 1, "local")
    local = allocated(schedule)["A_local"]
    assert isinstance(local, SparseBuffer)
    assert schedule.get_loops("csrmm1_load") == ("ax1",)  # the row stands still
    check(schedule, "csrmm")
    runs(schedule, "csrmm")


def test_cache_read_of_all_rows_loops_over_every_fiber():
    schedule = scheduled("csrmm").cache_read("csrmm0", 3, "global")
    assert schedule.get_loops("csrmm0_load") == ("ax0", "ax1")
    check(schedule, "csrmm")
    replays(schedule, "csrmm")


@pytest.mark.parametrize("name", ["sddmm", "ellmm", "bsrmm", "mttkrp", "normalize"])
def test_cache_read_of_everything_that_a_block_only_reads_keeps_the_result(name):
    schedule = scheduled(name)
    done = 0
    for found in schedule.func.script().split('T.block("')[1:]:
        for index in range(5):
            try:
                schedule = schedule.cache_read(found.split('"')[0], index, "local")
                done += 1
            except ScheduleError:
                continue
    assert done >= 2
    check(schedule, name)


def test_cache_read_refuses_what_is_written_searched_or_no_buffer():
    schedule = scheduled("csrmm")
    assert refused(lambda: schedule.cache_read("csrmm1", 0, "local")) == (
        "cache_read('csrmm1', 0, 'local'): C is written in the nest of csrmm1"
    )
    assert refused(lambda: schedule.cache_write("csrmm1", "k")).endswith(
        "buffer_index cannot be 'k'"
    )
    assert "there is no 9" in refused(lambda: schedule.cache_read("csrmm1", 9, "local"))
    assert "unknown scope 'stack'" in refused(lambda: schedule.cache_read("csrmm1", 1, "stack"))
    assert "no block 'x'" in refused(lambda: schedule.cache_read("x", 1, "local"))
    assert "J_indptr says where fibers begin" in refused(
        lambda: schedule.cache_read("csrmm0", 0, "local")
    )


# reverse_cache_read


@pytest.mark.parametrize(
    ("name", "block", "index"),
    [("fused_sddmm", "fused_sddmm1", 0), ("flatten_scale", "flatten_scale0", 0)],
)
def test_reverse_cache_read_takes_what_says_where_fibers_begin(name, block, index):
    schedule = scheduled(name).reverse_cache_read(block, index, "local")
    assert "J_indptr_local" in allocated(schedule)
    check(schedule, name)
    runs(schedule, name)
    replays(schedule, name)


def test_reverse_cache_read_is_indexed_by_the_iters_that_pick_the_element():
    schedule = scheduled("csrmm").reverse_cache_read("csrmm1", 2, "shared")
    assert len(allocated(schedule)["B_shared"].shape) == 2
    assert "B_shared[vj, vk]" in schedule.func.script()
    assert schedule.get_loops("csrmm1_load") == ("j_1", "k_1")
    check(schedule, "csrmm")
    runs(schedule, "csrmm")
    replays(schedule, "csrmm")


def test_reverse_cache_read_orders_its_dimensions_as_told():
    schedule = scheduled("csrmm").reverse_cache_read("csrmm1", 2, "shared", [1, 0])
    assert "B_shared[vk, vj]" in schedule.func.script()
    check(schedule, "csrmm")
    replays(schedule, "csrmm")
    message = refused(lambda: scheduled("csrmm").reverse_cache_read("csrmm1", 2, "local", [0]))
    assert message.endswith("the element is picked by iters [0, 1]")


def test_a_row_is_copied_with_room_for_the_longest_one():
    schedule = scheduled("csrmm").reverse_cache_read("csrmm1", 1, "local")
    (extent,) = allocated(schedule)["A_local"].shape
    assert "n" in {node.name for node in walk(extent) if hasattr(node, "name")}
    check(schedule, "csrmm")


# cache_write and reverse_cache_write


def test_cache_write_moves_a_whole_reduction_to_a_local_row():
    schedule = scheduled("csrmm").cache_write("csrmm1", 0, "local")
    assert schedule.made == ("csrmm1_store",)
    stored = {n.buffer.name for n in walk(block(schedule, "csrmm1")) if isinstance(n, Store)}
    assert stored == {"C_local"}
    check(schedule, "csrmm")
    runs(schedule, "csrmm")
    replays(schedule, "csrmm")


def test_cache_write_of_an_update_starts_from_what_is_there():
    schedule = scheduled("spmv_accumulate")
    (name,) = _leaves(schedule)
    schedule = schedule.cache_write(name)
    assert schedule.made == (f"{name}_load", f"{name}_store")
    check(schedule, "spmv_accumulate")


def test_what_other_iterations_add_to_as_well_is_not_kept_locally():
    message = refused(lambda: scheduled("csrmm_t").cache_write("csrmm_t1"))
    assert message.endswith("two iterations may write the same element of Y")
    message = refused(lambda: scheduled("csrmm_t").cache_write("csrmm_t0"))
    assert message.endswith("by loops inside it")


def test_a_parallel_loop_keeps_others_from_reading_what_it_writes():
    schedule = scheduled("csrmm").split("k", 4).reorder("k_o", "j", "k_i").cache_write("csrmm1")
    schedule = schedule.reverse_compute_at("csrmm1_store", "k_o").reverse_cache_write(
        "csrmm1_store", 0, "shared"
    )
    check(schedule, "csrmm")
    message = refused(lambda: Schedule(shifted).parallel("i").cache_read("shift", 0, "local"))
    assert "'i' is parallel, and iterations may" in message


@T.prim_func
def shifted(a: T.handle):
    A = T.match_buffer(a, (16, 4), "float32")
    for i in T.serial(8):
        with T.block("row"):
            vi = T.axis.spatial(8, i)
            B = T.alloc_buffer((4,), "float32")
            for j in T.serial(4):
                with T.block("shift"):
                    vj = T.axis.spatial(4, j)
                    B[vj] = A[vi * 2, vj]
            for k in T.serial(4):
                with T.block("back"):
                    vk = T.axis.spatial(4, k)
                    A[vi * 2, vk] = B[3 - vk]


def test_reverse_cache_write_of_an_update_starts_from_nothing_and_adds_it():
    schedule = scheduled("spmv_accumulate")
    (name,) = (n for n in _leaves(schedule))
    schedule = schedule.annotate(name, "atomic", True).reverse_cache_write(name, 0, "local")
    assert schedule.made == (f"{name}_store",)
    assert block(schedule, name).init is not None
    assert dict(block(schedule, f"{name}_store").attrs)["atomic"] is True
    assert "atomic" not in dict(block(schedule, name).attrs)
    check(schedule, "spmv_accumulate")
    runs(schedule, "spmv_accumulate")
    replays(schedule, "spmv_accumulate")


def _leaves(schedule):
    blocks = [n for n in walk(schedule.func.body) if isinstance(n, Block)]
    return [b.name for b in blocks if not any(isinstance(n, Block) for n in walk(b.body))]


@pytest.mark.parametrize("name", ["spmv_max", "spmv_min_plus", "spmv_prod", "sddmm", "mttkrp"])
@pytest.mark.parametrize("kind", ["cache_write", "reverse_cache_write"])
def test_every_kind_of_reduction_can_be_written_back(name, kind):
    schedule = scheduled(name)
    for leaf in _leaves(schedule):
        schedule = getattr(schedule, kind)(leaf, 0, "local")
    check(schedule, name)


def test_a_split_leaves_guards_that_the_write_back_has_too():
    schedule = scheduled("csrmm").split("k", 4).cache_write("csrmm1")
    assert block(schedule, "csrmm1_store").where is not None
    check(schedule, "csrmm")


@T.prim_func
def scatter_add(a: T.handle, b: T.handle, i: T.handle):
    A = T.match_buffer(a, (8, 4), "float32")
    B = T.match_buffer(b, (16,), "float32")
    I = T.match_buffer(i, (8,), "int32")
    T.assume_buffer_domain(I, [0, 15])
    for x in T.serial(8):
        for y in T.serial(4):
            with T.block("scatter"):
                vx, vy = T.axis.remap("SR", [x, y])
                with T.init():
                    B[I[vx]] = 0.0
                B[I[vx]] = B[I[vx]] + A[vx, vy]


@T.prim_func
def scatter_late(a: T.handle, b: T.handle, i: T.handle):
    A = T.match_buffer(a, (8, 4), "float32")
    B = T.match_buffer(b, (16,), "float32")
    I = T.match_buffer(i, (8,), "int32")
    T.assume_buffer_domain(I, [0, 15])
    for y in T.serial(4):
        for x in T.serial(8):
            with T.block("scatter"):
                vx, vy = T.axis.remap("SR", [x, y])
                with T.init():
                    B[I[vx]] = 0.0
                B[I[vx]] = B[I[vx]] + A[vx, vy]


def _scattered(schedule):
    rng = np.random.default_rng(3)
    index = rng.integers(0, 5, 8).astype(np.int32)  # rows that meet
    arrays = {"a": rng.random(32, dtype=np.float32), "b": np.full(16, 7, np.float32), "i": index}
    interpret(single(schedule.func), arrays)
    return arrays["b"]


def test_rows_that_meet_are_written_back_in_their_order():
    schedule = Schedule(scatter_add).reverse_cache_write("scatter", 0, "shared")
    verify(schedule.func, "schedule")
    assert np.array_equal(_scattered(schedule), _scattered(Schedule(scatter_add)))
    assert extents(schedule, "B_shared") == [8]


def test_rows_that_meet_while_they_are_added_up_are_refused():
    message = refused(lambda: Schedule(scatter_late).reverse_cache_write("scatter", 0, "shared"))
    assert message.endswith("two iterations may write the same element of B")


@T.prim_func
def running(a: T.handle):
    A = T.match_buffer(a, (9,), "float32")
    for i in T.serial(8):
        with T.block("run"):
            vi = T.axis.spatial(8, i)
            A[vi + 1] = A[vi + 1] + A[vi]


@T.prim_func
def guarded(a: T.handle, b: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (8,), "float32")
    for i in T.serial(8):
        with T.block("copy"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.if_then_else(vi < n, A[vi], T.float32(0))


def test_what_is_read_under_a_condition_is_not_copied_ahead():
    message = refused(lambda: Schedule(guarded).reverse_cache_read("copy", 0, "local"))
    assert message.endswith("A is accessed under a condition only")


def test_a_recurrence_keeps_its_buffer():
    for kind in ("cache_write", "reverse_cache_write"):
        message = refused(lambda kind=kind: getattr(Schedule(running), kind)("run", 0))
        assert message.endswith("A is accessed at another place too")


@T.prim_func
def begun(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4, 4), "float32")
    B = T.match_buffer(b, (4,), "float32")
    for j in T.serial(4):
        T.evaluate(j)
        for i in T.serial(4):
            with T.block("sum"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    B[vi] = 0.0
                B[vi] = B[vi] + A[vi, vj]


def test_a_reduction_that_began_outside_is_written_back_behind_its_loop():
    sch = Schedule(begun).cache_write("sum", 0, "shared")
    assert "j" not in sch.get_loops(sch.made[-1])
    a, b = np.arange(16, dtype=np.float32).reshape(4, 4), np.full(4, 7, np.float32)
    spcomp.compile(sch)(a, b)
    assert np.array_equal(b, a.sum(axis=1))


@T.prim_func
def begun_under_a_condition(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4, 4), "float32")
    B = T.match_buffer(b, (4,), "float32")
    for j in T.serial(4):
        if A[0, j] > 0.0:
            for i in T.serial(4):
                with T.block("sum"):
                    vi, vj = T.axis.remap("SR", [i, j])
                    with T.init():
                        B[vi] = 0.0
                    B[vi] = B[vi] + A[vi, vj]


def test_a_reduction_that_goes_on_under_a_condition_is_not_written_back_inside():
    message = refused(lambda: Schedule(begun_under_a_condition).cache_write("sum", 0, "shared"))
    assert message.endswith("a reduction goes on outside the nest, and starts there")


@T.prim_func
def biased(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4, 4), "float32")
    B = T.match_buffer(b, (4,), "float32")
    for j in T.serial(4):
        T.evaluate(j)
        for i in T.serial(4):
            with T.block("sum"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    B[vi] = A[vi, 0]
                B[vi] = B[vi] + A[vi, vj]


def test_an_init_that_runs_before_the_nest_keeps_reading_the_buffer():
    message = refused(lambda: Schedule(biased).cache_read("sum", 0, "local"))
    assert message.endswith("an init that runs before the nest reads A")


@T.prim_func
def some(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4, 4), "float32")
    B = T.match_buffer(b, (4,), "float32")
    for j in T.serial(4):
        for i in T.serial(4):
            with T.block("most"):
                vi, vj = T.axis.remap("SR", [i, j])
                if A[0, vj] != 0.0:
                    B[vi] = T.max(B[vi], A[vi, vj])


@T.prim_func
def beyond(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4, 4), "float32")
    B = T.match_buffer(b, (4,), "float32")
    for j in T.serial(4):
        for i in T.serial(4):
            with T.block("most"):
                vi, vj = T.axis.remap("SR", [i, j])
                if vi < 3:
                    B[vi + 1] = T.max(B[vi + 1], A[vi, vj])


def test_a_tile_is_updated_under_a_condition_where_all_of_it_is_there():
    schedule = Schedule(some).add_unit_loop("j")
    tiled = schedule.cache_write("most", at="j_u")
    a = np.arange(16, dtype="float32") * (np.arange(16) % 4 > 1)
    results = [np.full(4, 2, "float32") for _ in range(2)]
    interpret(some, {"a": a, "b": results[0]})
    spcomp.compile(tiled)(a, results[1])
    np.testing.assert_array_equal(*results)
    assert all(n.buffer.scope == "local" for n in walk(block(tiled, "most")) if type(n) is Store)
    schedule = Schedule(beyond).add_unit_loop("j")
    message = refused(lambda: schedule.cache_write("most", at="j_u"))
    assert message.endswith("what is stored under a condition is not proved to be there")


# set_scope and storage_align


def test_set_scope_moves_what_is_allocated_here():
    schedule = scheduled("csrmm").cache_write("csrmm1").set_scope("csrmm1", 0, "shared")
    assert allocated(schedule)["C_local"].scope == "shared"
    check(schedule, "csrmm")
    replays(schedule, "csrmm")
    assert refused(lambda: scheduled("csrmm").set_scope("csrmm1", 0, "local")).endswith(
        "C is an argument"
    )
    assert "unknown scope" in refused(lambda: schedule.set_scope("csrmm1", 0, "register"))


def test_storage_align_makes_room_behind_a_row():
    schedule = scheduled("csrmm").cache_read("csrmm1", 2, "local")
    padded = schedule.storage_align("csrmm1_load", 0, 0, 16, 1)
    check(padded, "csrmm")
    runs(padded, "csrmm")
    replays(padded, "csrmm")
    fixed = Schedule(matrix).cache_read("copy", 0, "local")
    assert extents(fixed.storage_align("copy_load", 0, 0, 16, 1), "A_local") == [3, 33, 1]
    assert extents(fixed.storage_align("copy_load", 0, 1, 4), "A_local") == [3, 20, 4]


@T.prim_func
def matrix(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (3, 20, 1), "float32")
    B = T.match_buffer(b, (3, 20, 1), "float32")
    for i in T.serial(3):
        for j in T.serial(20):
            with T.block("copy"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj, 0] = A[vi, vj, 0] * 2.0


def test_storage_align_refuses_what_no_room_can_align():
    schedule = Schedule(matrix).cache_read("copy", 0, "local")
    align = schedule.storage_align
    assert "no dimension of A_local follows axis 2" in refused(
        lambda: align("copy_load", 0, 2, 16, 0)
    )
    assert "the offset must lie" in refused(lambda: align("copy_load", 0, 0, 4, 4))
    assert "B is an argument" in refused(lambda: align("copy", 0, 0, 4, 0))


@pytest.mark.parametrize("step", ["reverse_cache_read", "cache_read"])
def test_which_iteration_it_is_is_still_read_from_the_buffer_itself(step):
    schedule = Schedule(source("coo_max")).lower_sparse_iter()
    schedule = getattr(schedule.split_sorted("e", 2).split("e", 4), step)("coo_max1", 0, "global")
    verify(schedule.func, step)
    program = BY_NAME["coo_max"]
    inputs = program.inputs("random", "float32", seed=3)
    own = fresh(inputs)
    program.check(inputs, {**own, **interpret(schedule.func, own)}, "float32", step)
