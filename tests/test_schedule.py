"""The schedule frame: steps, traces, legality, and the default decisions."""

from __future__ import annotations

import pytest

from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError
from spcomp.ir.module import single
from spcomp.ir.structural import structural_equal
from spcomp.knobs import CPU_KNOBS
from spcomp.passes.iterations.lower_iterations import LowerIterations
from spcomp.schedule.default.cpu import default_steps
from spcomp.schedule.legality.dependence import conflicts, loops_of
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.blocks.memory import CacheWrite
from spcomp.schedule.steps.loops.loops import Parallel, Unroll, Vectorize, set_kind
from spcomp.schedule.steps.loops.prefetch import Prefetch
from spcomp.schedule.steps.loops.tiling import LoopPartition, Reorder, Split
from spcomp.target import Target
from tests.layers import source

CPU = Target(vector_bits=256)


@T.prim_func
def csrmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    feat: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    with T.sp_iter([I, J, K], "SRS", "csrmm") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + A[i, j] * B[j, k]


@T.prim_func
def scatter(
    a: T.handle,
    x: T.handle,
    y: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    feat: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (I, K), "float32")
    Y = T.match_sparse_buffer(y, (J_detach, K), "float32")
    with T.sp_iter([I, J, K], "RSS", "scatter") as [i, j, k]:
        with T.init():
            Y[j, k] = 0.0
        Y[j, k] = Y[j, k] + A[i, j] * X[i, k]


@T.prim_func
def row_dot(x: T.handle, y: T.handle, z: T.handle, m: T.int32, n: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I, J), "float32")
    Z = T.match_sparse_buffer(z, (I,), "float32")
    with T.sp_iter([I, J], "SR", "row_dot") as [i, j]:
        with T.init():
            Z[i] = 0.0
        Z[i] = Z[i] + X[i, j] * Y[i, j]


def position(func):
    return LowerIterations(CPU_KNOBS).run(single(func)).funcs[0]


def test_default_steps_run_rows_in_parallel_and_features_in_register_tiles():
    steps = default_steps(position(csrmm), CPU)
    assert steps[:8] == (
        Parallel("i"),
        Reorder(("k", "j")),
        LoopPartition("k", 64),
        Split("k", 64),
        Reorder(("k_o", "j", "k_i")),
        CacheWrite("csrmm1", at="k_o"),
        Vectorize("k_i"),
        Vectorize("k_i_1"),
    )
    assert steps[8:] == (
        Split("k_rest", 8),
        Reorder(("k_rest_o", "j_rest", "k_rest_i")),
        CacheWrite("csrmm1_rest", at="k_rest_o"),
        Vectorize("k_rest_i"),
        Vectorize("k_rest_i_1"),
        Prefetch("j", 16),
    )


def test_a_dot_product_is_vectorized():
    assert default_steps(position(row_dot), CPU) == (Parallel("i"), Vectorize("j"))


def test_a_scatter_is_not_parallel_over_its_source_but_its_init_is():
    steps = default_steps(position(scatter), CPU)
    assert Parallel("i") not in steps
    assert [s for s in steps if isinstance(s, Parallel)] == [Parallel("j_1")]


def test_a_scheduled_program_gets_no_default_steps():
    func = Schedule(position(csrmm)).unroll("k").func
    assert default_steps(func, CPU) == ()


def test_conflicts_name_the_buffer_that_iterations_share():
    func = position(scatter)
    rows = next(loop for loop in loops_of(func.body) if loop.var.name == "i")
    assert [c.buffer for c in conflicts(rows)] == ["Y"]


def test_parallel_refuses_a_reduction_and_says_which_buffer_is_shared():
    with pytest.raises(ScheduleError) as caught:
        Schedule(position(csrmm)).parallel("j")
    assert caught.value.message == "parallel('j'): iterations may write the same element of C"
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


def test_vectorize_refuses_a_loop_around_loops():
    with pytest.raises(ScheduleError, match="not straight-line"):
        Schedule(position(csrmm)).vectorize("i")


@T.prim_func
def column_sums(
    a: T.handle,
    y: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (N,), "float32")
    with T.sp_iter([I, J], "RS", "column_sums") as [i, j]:
        Y[j] = Y[j] + A[i, j]


def test_vectorize_refuses_iterations_that_share_an_element():
    with pytest.raises(ScheduleError) as caught:
        Schedule(position(column_sums)).vectorize("j")
    assert caught.value.message == "vectorize('j'): iterations may write the same element of Y"


def test_an_unknown_loop_is_refused_with_the_loops_there_are():
    with pytest.raises(ScheduleError) as caught:
        Schedule(position(csrmm)).parallel("q")
    assert caught.value.message == "parallel('q'): no loop 'q' in csrmm"
    assert caught.value.hint == "loops are i, j, k"


def test_loops_do_not_exist_before_lowering():
    with pytest.raises(ScheduleError, match="no loops at this level") as caught:
        Schedule(csrmm).parallel("i")
    assert "lower the sparse iterations first" in caught.value.hint
    with pytest.raises(ScheduleError, match="no loops at this level") as caught:
        Schedule(position(csrmm)).lower_sparse_buffer().parallel("i")
    assert "before lower_sparse_buffer" in caught.value.hint


def test_blocks_and_their_loops_are_found_by_name():
    schedule = Schedule(position(csrmm))
    assert schedule.get_loops(schedule.get_block("csrmm0")) == ("i",)
    assert schedule.get_loops("csrmm1") == ("j", "k")
    assert schedule.loops == ("i", "j", "k")


def test_an_unknown_block_is_refused_with_the_blocks_there_are():
    with pytest.raises(ScheduleError) as caught:
        Schedule(position(csrmm)).get_block("nothing")
    assert caught.value.hint == "blocks are csrmm0, csrmm1"


def test_a_trace_survives_json_and_replays_to_the_same_program():
    schedule = Schedule(position(csrmm)).parallel("i").vectorize("k")
    trace = Trace.from_json_lines(schedule.trace.to_json_lines())
    assert trace == schedule.trace
    assert structural_equal(Schedule(position(csrmm)).replay(trace).func, schedule.func)


def test_deleting_a_kind_of_step_leaves_the_others():
    trace = Schedule(position(csrmm)).parallel("i").vectorize("k").trace
    assert [str(step) for _, step in trace.without("vectorize")] == ["parallel('i')"]
    assert len(trace.without("parallel")) == 1


@pytest.mark.parametrize("line", ["{", '{"func": "f"}', '{"func": "f", "step": "dance"}', "[1]"])
def test_what_is_no_step_is_refused(line):
    with pytest.raises(ScheduleError, match="not a step"):
        Trace.from_json_lines(line)


def test_a_trace_replaces_the_default_schedule():
    stages = lower(csrmm, CPU, trace=Trace((("csrmm", Unroll("k")),)))
    assert [loop.kind for loop in loops_of(stages.position.funcs[0].body)] == [
        "serial",
        "serial",
        "unroll",
    ]
    assert str(stages.trace) == "csrmm: unroll('k')"


def test_a_schedule_lowers_the_iterations_and_goes_on():
    schedule = Schedule(csrmm).lower_sparse_iter()
    assert schedule.loops == ("i", "j", "k")
    stages = lower(schedule.parallel("i"), CPU)
    assert [loop.kind for loop in loops_of(stages.position.funcs[0].body)] == [
        "parallel",
        "serial",
        "serial",
    ]


def test_a_program_of_several_phases_is_not_scheduled_as_one():
    with pytest.raises(ScheduleError, match="csr_add assembles its output in 2 phases"):
        Schedule(source("csr_add")).lower_sparse_iter()


def test_a_step_on_a_program_with_a_false_claim_is_refused():
    func = position(scatter)
    loop = next(loop for loop in loops_of(func.body) if loop.var.name == "i")
    with pytest.raises(ScheduleError, match="loop i cannot be parallel: iterations may write"):
        Schedule(set_kind(func, loop, "parallel")).unroll("k")
