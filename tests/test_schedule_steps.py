"""Steps that rearrange loops and move values: what they build, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import LoweringError, ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc, Store
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.knobs import CPU_KNOBS
from spcomp.passes.iterations.lower_iterations import LowerIterations
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.claims import without_false_claims
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.script.parse import parse_source
from spcomp.target import Target
from tests.layers import source
from tests.programs import BY_NAME, fresh

SERIAL = Target("cpu", "x86-64-v3", vector_bits=256)


def scheduled(name):
    """The program *name* of the corpus in position space, nothing decided."""
    return Schedule(LowerIterations(CPU_KNOBS).run(single(source(name))).funcs[0])


def check(schedule, name):
    """The scheduled program still computes what the oracle says, in both levels below."""
    verify(schedule.func, "schedule")
    program = BY_NAME[name]
    stages = lower(schedule.func, SERIAL, trace=Trace())
    for module in (single(schedule.func), stages.flat):
        for case in ("random", "empty_rows", "one", "zero"):
            inputs = program.inputs(case)
            arguments = fresh(inputs)
            with np.errstate(all="ignore"):
                interpret(module, arguments)
            program.check(inputs, arguments, "float32", case)


def names(schedule):
    return [loop.var.name for loop in loops_of(schedule.func.body)]


def test_split_of_an_unknown_extent_guards_the_block():
    schedule = scheduled("csrmm").split("k", 4)
    assert names(schedule) == ["i", "j", "k_o", "k_i"]
    guards = [n.where is not None for n in walk(schedule.func.body) if isinstance(n, Block)]
    assert guards == [False, True]
    check(schedule, "csrmm")


def test_split_of_a_loop_that_is_a_multiple_needs_no_guard():
    schedule = scheduled("csrmm").reorder("k", "j").loop_partition("k", 4).split("k", 4)
    blocks = [n for n in walk(schedule.func.body) if isinstance(n, Block)]
    assert all(block.where is None for block in blocks)
    check(schedule, "csrmm")


def test_split_of_a_reduction_keeps_its_init():
    schedule = scheduled("csrmm").split("j", 3)
    assert names(schedule) == ["i", "j_o", "j_i", "k"]
    check(schedule, "csrmm")


def test_reorder_moves_the_features_outside_the_non_zeros():
    schedule = scheduled("csrmm").reorder("k", "j")
    assert names(schedule) == ["i", "k", "j"]
    check(schedule, "csrmm")


def test_reorder_keeps_the_places_of_loops_that_are_not_named():
    schedule = scheduled("bsrmm")
    before = names(schedule)
    schedule = schedule.reorder("f", "bj")
    assert names(schedule) == [{"f": "bj", "bj": "f"}.get(name, name) for name in before]
    check(schedule, "bsrmm")


def test_two_reductions_may_change_places():
    schedule = scheduled("ellmm").reorder("bj", "j")
    check(schedule, "ellmm")


def test_loop_partition_runs_the_rest_in_a_copy_with_names_of_its_own():
    schedule = scheduled("csrmm").reorder("k", "j").loop_partition("k", 4)
    assert names(schedule) == ["i", "k", "j", "k_rest", "j_rest"]
    blocks = [n.name for n in walk(schedule.func.body) if isinstance(n, Block)]
    assert blocks == ["csrmm0", "csrmm1", "csrmm1_rest"]
    check(schedule, "csrmm")


def test_cache_write_accumulates_in_a_local_tile():
    schedule = scheduled("csrmm").reorder("k", "j").loop_partition("k", 4).split("k", 4)
    schedule = schedule.reorder("k_o", "j", "k_i").cache_write("csrmm1", at="k_o")
    (alloc,) = [n for n in walk(schedule.func.body) if isinstance(n, Alloc)]
    assert alloc.buffer.scope == "local"
    assert [extent.value for extent in alloc.buffer.shape] == [4]
    check(schedule, "csrmm")


def test_cache_write_of_an_update_without_init_starts_from_what_is_there():
    schedule = scheduled("csrmm_t").cache_write("csrmm_t1", at="k")
    check(schedule, "csrmm_t")


def test_cache_write_of_what_a_loop_indexes_without_a_block_iter():
    """gather_rows makes such sums, ``C_sum[k_lane]``; their copies had loops of their own, and
    read the sum of a variable that was not bound there."""
    func = single(Schedule(source("coo_spmm")).sparse_reorder("coo_spmm", "oejk").func)
    schedule = Schedule(LowerIterations(CPU_KNOBS).run(func).funcs[0]).gather_rows(("i", "o"), 1)
    check(schedule.cache_write("coo_spmm1", at="e"), "coo_spmm")


def test_a_guarded_tile_writes_back_only_what_it_guards():
    schedule = scheduled("csrmm").reorder("k", "j").split("k", 8)
    schedule = schedule.reorder("k_o", "j", "k_i").cache_write("csrmm1", at="k_o").vectorize("k_i")
    check(schedule, "csrmm")


def test_a_guarded_loop_in_vectors_reads_and_writes_under_a_mask():
    schedule = scheduled("csrmm").split("k", 8).vectorize("k_i")
    flat = lower(schedule.func, SERIAL, trace=Trace(), trusted=True).flat.funcs[0]
    stores = [n for n in walk(flat.body) if isinstance(n, Store) and n.value.dtype.lanes > 1]
    assert stores
    assert all(store.mask is not None for store in stores)
    check(schedule, "csrmm")


@pytest.mark.parametrize("name", ["csrmm", "bsrmm", "ellmm", "mttkrp", "sddmm", "csrmm_t"])
def test_the_default_schedule_replays_to_the_same_program(name):
    stages = lower(source(name), SERIAL)
    trace = Trace.from_json_lines(stages.trace.to_json_lines())
    assert trace == stages.trace
    again = lower(source(name), SERIAL, trace=trace)
    assert again.flat.funcs[0].script() == stages.flat.funcs[0].script()


# -- refusals -----------------------------------------------------------------------------------


def refused(act):
    with pytest.raises(ScheduleError) as caught:
        act()
    assert caught.value.span is not None
    return caught.value


def test_a_factor_below_one_is_refused():
    error = refused(lambda: scheduled("csrmm").split("k", 0))
    assert error.message == "split('k', 0): the factor must be at least 1"
    error = refused(lambda: scheduled("csrmm").loop_partition("k", 0))
    assert error.message == "loop_partition('k', 0): the multiple must be at least 1"


def test_partitioning_a_reduction_is_refused():
    error = refused(lambda: scheduled("csrmm").loop_partition("j", 4))
    assert "a reduction would start again in its second part" in error.message
    assert error.hint == "decompose_reduction('csrmm1', 'j')"


def test_reorder_of_loops_that_are_not_nested_directly_is_refused():
    error = refused(lambda: scheduled("csrmm").reorder("k", "i"))
    assert "are not nested directly in each other" in error.message


@T.prim_func
def diagonals(a: T.handle, b: T.handle, m: T.int32, n: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 1})
    A = T.match_buffer(a, (m, n), "float32")
    B = T.match_buffer(b, (m + n,), "float32")
    for i in T.serial(m):
        for j in T.serial(n):
            B[i + j] = A[i, j]


def test_reorder_that_changes_what_is_written_last_is_refused():
    error = refused(lambda: Schedule(diagonals).reorder("j", "i"))
    assert error.message == "reorder(('j', 'i')): iterations may write the same element of B"


def test_a_tile_of_unknown_size_is_refused():
    error = refused(lambda: scheduled("csrmm").cache_write("csrmm1", at="j"))
    assert error.message == (
        "cache_write('csrmm1', 0, 'local', 'j'):"
        " a reduction goes on outside the loop, and starts there"
    )
    error = refused(lambda: scheduled("csrmm_t").cache_write("csrmm_t1", at="j"))
    assert error.message.endswith("the trip count of 'k' is not a constant")


def test_a_tile_that_is_too_large_is_refused():
    schedule = scheduled("csrmm_t").split("k", 4096)
    error = refused(lambda: schedule.cache_write("csrmm_t1", at="k_o"))
    assert error.message.endswith("a tile of 4096 elements is too large")


@T.prim_func
def running_sum(a: T.handle, b: T.handle, m: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 1})
    A = T.match_buffer(a, (m,), "float32")
    B = T.match_buffer(b, (m,), "float32")
    for i in T.serial(m):
        with T.block("sum"):
            vi = T.axis.spatial(m, i)
            B[vi] = B[vi - 1] + A[vi]


@T.prim_func
def two_stores(a: T.handle, b: T.handle, m: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 1})
    A = T.match_buffer(a, (m,), "float32")
    B = T.match_buffer(b, (m,), "float32")
    for i in T.serial(m):
        with T.block("both"):
            vi = T.axis.spatial(m, i)
            A[vi] = 1.0
            B[vi] = A[vi]


@T.prim_func
def triangle(a: T.handle, m: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 1})
    A = T.match_buffer(a, (m, m), "float32")
    for i in T.serial(m):
        for j in T.serial(i):
            A[i, j] = 1.0


def test_a_tile_of_a_buffer_that_is_read_elsewhere_is_refused():
    error = refused(lambda: Schedule(running_sum).cache_write("sum", at="i"))
    assert error.message.endswith("B is accessed at another place too")


def test_a_tile_of_a_block_with_two_stores_is_refused():
    error = refused(lambda: Schedule(two_stores).cache_write("both", at="i"))
    assert error.message.endswith("the block does not store one element")


def test_reorder_that_takes_a_trip_count_from_inside_is_refused():
    error = refused(lambda: Schedule(triangle).reorder("j", "i"))
    assert error.message == (
        "reorder(('j', 'i')): the trip count of 'j' depends on a loop then inside it"
    )


def test_cache_write_needs_the_loop_right_around_the_block():
    error = refused(lambda: scheduled("csrmm").cache_write("csrmm1", at="i"))
    assert "'i' is not nested perfectly around the block" in error.message
    assert error.hint == "blocks are csrmm0, csrmm1"


ROW_SUMS = """from spcomp import script as T


@T.prim_func
def sums(a: T.handle, y: T.handle, m: T.int32, n: T.int32) -> None:
    A = T.match_buffer(a, (m, n), "float32")
    Y = T.match_buffer(y, (m,), "float32")
    for i, j in T.grid(m, n):
        with T.block("sums"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                Y[vi] = 0.0
            Y[vi] = Y[vi] + A[vi, vj]
"""


def test_a_sum_that_threads_share_stays_inside():
    (func,) = parse_source(ROW_SUMS, "sums.py")
    bound = Schedule(func).bind("j", "threadIdx.x")
    error = refused(lambda: bound.reorder("j", "i"))
    assert error.message == (
        "reorder(('j', 'i')): 'j' is bound, and iterations may write the same element of Y"
    )


def test_a_parallel_loop_stays_where_it_is_proved_to_be_one():
    (func,) = parse_source(ROW_SUMS, "sums.py")
    split = Schedule(func).split("i", (4, None)).parallel("i_o")
    error = refused(lambda: split.reorder("j", "i_i", "i_o"))
    assert error.message.endswith(
        "'i_o' is parallel, and iterations may write the same element of Y"
    )


def test_cache_write_in_a_loop_in_vectors_is_refused():
    before = scheduled("spmv_accumulate").vectorize("j")
    error = refused(lambda: before.cache_write("spmv_accumulate1", at="j"))
    assert "'j' is vectorized, and iterations may read what others write of Y" in error.message


# -- compiled -----------------------------------------------------------------------------------


def test_a_trace_can_be_edited_and_compiled_again():
    inputs = BY_NAME["csrmm"].inputs("random")
    default = spcomp.compile(source("csrmm"))
    edited = spcomp.compile(source("csrmm"), trace=default.trace.without("parallel"))
    assert default.source("llvm") != edited.source("llvm")
    assert "spcomp_parallel_for" not in edited.source("llvm")
    for kernel in (default, edited):
        arguments = fresh(inputs)
        kernel(*(arguments[param.name] for param in source("csrmm").params))
        BY_NAME["csrmm"].check(inputs, arguments, "float32", "random")


def test_replaying_a_trace_gives_the_same_object_code():
    default = spcomp.compile(source("csrmm"))
    trace = Trace.from_json_lines(default.trace.to_json_lines())
    assert spcomp.compile(source("csrmm"), trace=trace).object_bytes == default.object_bytes


def test_a_schedule_that_decided_nothing_in_parallel_stays_serial():
    schedule = scheduled("csrmm").reorder("k", "j")
    assert "spcomp_parallel_for" not in spcomp.compile(schedule).source("llvm")
    plain = spcomp.compile(schedule.func)  # equal IR, but nobody has decided
    assert "spcomp_parallel_for" in plain.source("llvm")


def test_fuse_runs_two_loops_as_one():
    schedule = scheduled("csrmm").reorder("k", "j").split("k", 4).fuse("k_o", "k_i")
    assert names(schedule) == ["i", "k_o_k_i", "j"]
    check(schedule, "csrmm")


def test_fuse_may_run_over_a_fiber_and_an_element_of_the_row():
    schedule = scheduled("csrmm").reorder("k", "j")
    with pytest.raises(ScheduleError, match="one of them drives a reduction that starts inside"):
        schedule.fuse("k", "j")
    check(schedule.decompose_reduction("csrmm1", "k").fuse("k", "j"), "csrmm")


@pytest.mark.parametrize(
    ("loops", "reason"),
    [(("i", "k"), "is not directly inside 'i'"), (("k", "j"), "one is unroll, the other serial")],
)
def test_fuse_is_refused_for_loops_that_do_not_form_one(loops, reason):
    schedule = scheduled("csrmm").reorder("k", "j").unroll("k")
    with pytest.raises(ScheduleError, match=reason):
        schedule.fuse(*loops)


@pytest.mark.parametrize("name", ["csrmm", "sddmm", "spmv_max"])
def test_decompose_reduction_starts_it_in_a_nest_of_its_own(name):
    schedule = scheduled(name)
    block = next(n for n in walk(schedule.func.body) if isinstance(n, Block) and n.init)
    loop = schedule.get_loops(block.name)[0]
    schedule = schedule.decompose_reduction(block.name, loop)
    blocks = [n for n in walk(schedule.func.body) if isinstance(n, Block)]
    assert f"{block.name}_init" in [b.name for b in blocks]
    assert not any(b.init for b in blocks)
    check(schedule, name)


def test_decompose_reduction_is_refused_inside_the_reduction_and_twice():
    schedule = scheduled("csrmm")
    with pytest.raises(ScheduleError, match="a loop around it drives the reduction too"):
        schedule.decompose_reduction("csrmm1", "k")
    done = schedule.decompose_reduction("csrmm1", "j")
    with pytest.raises(ScheduleError, match="has no init"):
        done.decompose_reduction("csrmm1", "j")


@pytest.mark.parametrize("name", ["csrmm", "row_dot", "spmv", "ellmm", "gather_rows"])
@pytest.mark.parametrize("kind", ["parallel", "bind"])
@pytest.mark.sample(8, long=3)
def test_pieces_of_independent_loops_are_seen_to_be_so_when_they_are_read_again(name, kind):
    base = scheduled(name)
    first = names(base)[0]
    base = base.parallel(first) if kind == "parallel" else base.bind(first, "blockIdx.x")
    for pieces in (
        base.split(first, [3, None]).loop_partition(f"{first}_i", 3),
        base.split(first, 4).loop_partition(f"{first}_i", 3),
        base.split(first, [2, None]).split(f"{first}_i", 4),
        base.split(first, [2, None]).split(f"{first}_i", 4).loop_partition(f"{first}_i_o", 2),
    ):
        assert without_false_claims(pieces.func) is pieces.func
        check(pieces, name)


def test_a_step_after_which_a_loop_is_not_seen_to_be_independent_is_refused():
    schedule = scheduled("reverse").parallel("i").split("i", [3, None])
    message = r"loop_partition\('i_i', 3\): loop 'i_o' could not be seen to be parallel: iterations"
    with pytest.raises(ScheduleError, match=message):
        schedule.loop_partition("i_i", 3)
    check(scheduled("reverse").split("i", [3, None]).loop_partition("i_i", 3), "reverse")


def test_an_init_that_would_run_in_several_trips_is_refused():
    """Only the trip of ``j_u_o`` that the condition lets through may start the sums."""
    split = scheduled("mean").add_unit_loop("j").split("j_u", (4, None))
    check(split, "mean")
    with pytest.raises(LoweringError, match="starts its reduction depends on loops inside it"):
        spcomp.compile(split.reorder("j_u_o", "j", "j_u_i"))
