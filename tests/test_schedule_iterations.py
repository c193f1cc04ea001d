"""Schedules in coordinate space, and from one level to the next: what they keep and refuse."""

from __future__ import annotations

import itertools
import re
import warnings

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.errors import LoweringError, ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.program import CoordFunc, FlatFunc, PosFunc
from spcomp.ir.verify.program import verify
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.iterations.sparse import iterations_of
from spcomp.script.parse import parse_source
from tests.layers import reparsed, source
from tests.programs import BY_NAME, PROGRAMS, fresh

LOWERED = [p.name for p in PROGRAMS if isinstance(source(p.name), CoordFunc) and not p.assembles]
CSR = sps.random_array((13, 9), density=0.3, format="csr", dtype=np.float32, random_state=3)
B = np.random.default_rng(4).random((9, 6), dtype=np.float32)


def check(func, name, case="random"):
    """The function still computes what the oracle of the program *name* says."""
    program = BY_NAME[name]
    inputs = program.inputs(case)
    arguments = fresh(inputs)
    with np.errstate(all="ignore"):
        interpret(single(func), arguments)
    program.check(inputs, arguments, "float32", case)


def accepted(schedule):
    """Yield *schedule* after each legal reorder, and after each legal fuse of neighbours."""
    for it in iterations_of(schedule.func):
        names = tuple(var.name for var in it.vars)
        orders = itertools.islice(itertools.permutations(names), 1, 25)
        spans = itertools.combinations(range(len(names) + 1), 2)
        steps = [(schedule.sparse_reorder, order) for order in orders]
        steps += [(schedule.sparse_fuse, names[a:b]) for a, b in spans if b - a > 1]
        for method, variables in steps:
            try:
                made = method(it.name, variables)
            except ScheduleError:
                continue
            yield made


@pytest.mark.parametrize("name", LOWERED)
def test_whatever_step_is_accepted_keeps_what_a_program_computes(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for made in accepted(Schedule(source(name))):
            verify(made.func, "schedule")
            for case in ("random", "empty_rows", "zero"):
                check(made.func, name, case)
            check(made.lower_sparse_iter().func, name)


def test_steps_are_accepted_where_they_are_of_use():
    def count(name):
        return len(list(accepted(Schedule(source(name)))))

    assert count("csrmm") == 3  # i k j, k i j, and i j fused
    assert count("sddmm") >= 3
    assert sum(count(name) > 0 for name in LOWERED) > len(LOWERED) // 2


# -- what the steps make ------------------------------------------------------------------------


def test_a_reorder_moves_variables_with_their_axes_and_kinds():
    made = Schedule(source("csrmm")).sparse_reorder("csrmm", ["k", "i", "j"])
    (it,) = iterations_of(made.func)
    assert [axis.name for axis in it.domains] == ["K", "I", "J"]
    assert it.kinds == "SSR"
    assert made.get_sp_iters("csrmm") == ("k", "i", "j")
    assert made.lower_sparse_iter().loops == ("k", "i", "j")


def test_a_fuse_makes_one_loop_over_the_stored_elements():
    made = Schedule(source("csrmm")).sparse_fuse("csrmm", ["i", "j"])
    assert made.get_sp_iters("csrmm") == ("i", "j", "k")
    assert "T.fuse(I, J)" in made.func.script()
    reparsed(made.func, "fused")
    assert made.lower_sparse_iter().loops[-2:] == ("i_j", "k")


def test_fused_variables_are_moved_together_and_fused_further():
    schedule = Schedule(source("csrmm")).sparse_fuse("csrmm", ["i", "j"])
    moved = schedule.sparse_reorder("csrmm", ["k", "i", "j"])
    check(moved.func, "csrmm")
    error = refused(lambda: schedule.sparse_reorder("csrmm", ["i", "k", "j"]))
    assert error.message.endswith("variables of one fused domain stay together")


@T.prim_func
def recurrences(a: T.handle, y: T.handle, indptr: T.handle, indices: T.handle,
                m: T.int32, n: T.int32, nnz: T.int32) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(3)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (N, K), "float32")
    with T.sp_iter([I, J, K], "RRS", "rows") as [i, j, k]:
        Y[j, k] = Y[j, k] * 0.5 + A[i, j]
    with T.sp_iter([I, K], "RR", "around") as [i, k]:  # noqa: SIM117
        with T.sp_iter([N, J], "SR", "inside") as [c, j]:
            Y[c, 0] = Y[c, 0] * 0.5 + A[i, j]
    with T.sp_iter([N, K, K], "SSS", "square") as [c, k, l]:
        Y[c, l] = Y[c, l] + 1.0
    with T.sp_iter([N], "S", "twin") as [c]:
        Y[c, 0] = Y[c, 0] + 1.0
    with T.sp_iter([N], "S", "twin") as [c]:
        Y[c, 1] = Y[c, 1] + 1.0


def arguments_of_recurrences():
    csr = CSR.astype(np.float32)
    y = np.arange(27, dtype=np.float32)
    arrays = {"a": csr.data, "y": y, "indptr": csr.indptr, "indices": csr.indices}
    return {**arrays, "m": 13, "n": 9, "nnz": csr.nnz}


def test_a_recurrence_moves_only_where_elements_are_told_apart():
    schedule = Schedule(recurrences)
    made = schedule.sparse_reorder("rows", ["i", "k", "j"])
    made = made.sparse_reorder("rows", ["k", "i", "j"]).sparse_reorder("inside", ["j", "c"])
    before, after = arguments_of_recurrences(), arguments_of_recurrences()
    interpret(schedule.func, before)
    interpret(made.func, after)
    assert np.array_equal(before["y"], after["y"])


def test_a_recurrence_that_meets_its_elements_again_stays():
    schedule = Schedule(recurrences)
    error = refused(lambda: schedule.sparse_reorder("around", ["k", "i"]))
    assert error.message == (
        "sparse_reorder('around', ('k', 'i')): iterations may write the same element of Y"
    )


# -- refusals -----------------------------------------------------------------------------------


def refused(act):
    with pytest.raises(ScheduleError) as caught:
        act()
    assert caught.value.span is not None
    assert caught.value.span.file == __file__
    return caught.value


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda s: s.sparse_reorder("csrmm", ["j", "i", "k"]), "J would run before what it"),
        (lambda s: s.sparse_reorder("csrmm", ["k", "i"]), "must have each variable once"),
        (lambda s: s.sparse_reorder("csrmm", ["k", "i", "i"]), "must have each variable once"),
        (lambda s: s.sparse_fuse("csrmm", ["j", "k"]), "J, K are no chain of axes"),
        (lambda s: s.sparse_fuse("csrmm", ["i"]), "I are no chain of axes"),
        (lambda s: s.sparse_fuse("csrmm", []), "are no chain of axes"),
        (lambda s: s.sparse_fuse("csrmm", ["j", "i"]), "do not follow each other"),
        (lambda s: s.sparse_fuse("csrmm", ["i", "k"]), "do not follow each other"),
        (lambda s: s.sparse_fuse("csrmm", ["i", "x"]), "a name is no variable"),
        (lambda s: s.get_sp_iters("spmm"), "no sparse iteration 'spmm' in csrmm"),
        (lambda s: s.get_sparse_iteration("spmm"), "no sparse iteration 'spmm' in csrmm"),
        (lambda s: s.split("i", 4), "csrmm has no loops at this level"),
        (
            lambda s: s.lower_sparse_iter().sparse_fuse("csrmm", ["i", "j"]),
            "csrmm has no sparse iterations at this level",
        ),
        (lambda s: s.lower_sparse_buffer().parallel("i"), "csrmm has no loops at this level"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_at_the_users_line(act, reason):
    assert reason in refused(lambda: act(Schedule(source("csrmm")))).message


def test_the_iterations_that_there_are_are_listed():
    error = refused(lambda: Schedule(recurrences).get_sparse_iteration("f"))
    assert error.hint == "iterations are rows, around, inside, square, twin, twin"
    error = refused(lambda: Schedule(recurrences).get_sparse_iteration("twin"))
    assert error.message == "'twin' is the name of 2 iterations"
    assert re.search(r"square, twin \(line \d+\), twin \(line \d+\)$", error.hint)
    error = refused(lambda: Schedule(source("csrmm")).sparse_reorder("csrmm", ["i", "j"]))
    assert error.hint == "variables are i, j, k"


def test_an_axis_that_is_run_over_twice_is_not_moved():
    error = refused(lambda: Schedule(recurrences).sparse_reorder("square", ["c", "l", "k"]))
    assert "an axis is run over twice" in error.message


# -- from level to level ------------------------------------------------------------------------


def stages(schedule):
    """The schedule before it is lowered, and at the two levels below."""
    return schedule, schedule.lower_sparse_iter(), schedule.lower_sparse_buffer()


@pytest.mark.parametrize(
    "prepare",
    [
        lambda s: s,
        lambda s: s.sparse_reorder("csrmm", ["i", "k", "j"]),
        lambda s: s.sparse_fuse("csrmm", ["i", "j"]),
        lambda s: s.sparse_reorder("csrmm", ["i", "k", "j"]).lower_sparse_iter().parallel("i"),
        lambda s: s.lower_sparse_iter().split("k", 4).parallel("i").unroll("k_i"),
    ],
)
def test_compile_finishes_a_schedule_from_every_level(prepare):
    for level, schedule in enumerate(stages(prepare(Schedule(source("csrmm"))))):
        if level < 2 or isinstance(schedule.func, FlatFunc):
            kernel = spcomp.compile(schedule)
            assert np.allclose(kernel(A=CSR, B=B), CSR @ B, rtol=1e-5)
            assert kernel.trace.steps[: len(schedule.trace)] == schedule.trace.steps


def test_each_level_has_its_class_and_is_left_as_it_is_the_second_time():
    kinds = CoordFunc, PosFunc, FlatFunc
    for schedule, kind in zip(stages(Schedule(source("csrmm"))), kinds, strict=True):
        assert type(schedule.func) is kind
        assert schedule.lower_sparse_buffer().func.script() == stages(schedule)[2].func.script()
    low = Schedule(source("csrmm")).lower_sparse_iter(check_invalid_binary_search=True)
    assert low.lower_sparse_iter() is low
    assert low.func.script() == Schedule(source("csrmm")).lower_sparse_iter().func.script()


def test_default_steps_follow_where_none_was_taken_on_loops():
    undecided = Schedule(source("csrmm")).sparse_fuse("csrmm", ["i", "j"])
    assert not undecided.decided
    assert not undecided.lower_sparse_iter().decided
    assert len(spcomp.compile(undecided.lower_sparse_iter()).trace) > 1
    decided = undecided.lower_sparse_iter().unroll("k")
    assert decided.decided
    assert spcomp.compile(decided).trace == decided.trace


def test_a_trace_over_two_levels_replays_to_the_same_machine_code():
    func = source("csrmm")
    schedule = Schedule(func).sparse_reorder("csrmm", ["i", "k", "j"]).lower_sparse_iter()
    schedule = schedule.split("k", 8).parallel("i")
    trace = Trace.from_json_lines(schedule.trace.to_json_lines())
    assert trace == schedule.trace
    again = Schedule(func).replay(trace)
    assert again.func.script() == schedule.func.script()
    kernels = [spcomp.compile(schedule), spcomp.compile(again), spcomp.compile(func, trace=trace)]
    assert len({kernel.source() for kernel in kernels}) == 1
    assert {kernel.trace for kernel in kernels} == {trace}


def test_a_step_for_iterations_in_a_trace_of_a_lowered_program_is_refused():
    low = Schedule(source("csrmm")).lower_sparse_iter()
    trace = Schedule(source("csrmm")).sparse_fuse("csrmm", ["i", "j"]).trace
    with pytest.raises(ScheduleError, match="no sparse iterations at this level"):
        spcomp.compile(low.func, trace=trace)
    with pytest.raises(ScheduleError, match="no sparse iterations at this level"):
        low.replay(trace)
    assert low.replay(trace, skip=True).func is low.func


def test_the_functions_return_what_they_are_given():
    func = source("csrmm")
    low = spcomp.lower_sparse_iter(func)
    assert type(low) is PosFunc
    assert spcomp.lower_sparse_iter(low) is low
    flat = spcomp.lower_sparse_buffer(low)
    assert type(flat) is FlatFunc
    assert spcomp.lower_sparse_buffer(flat) is flat
    module = spcomp.lower_sparse_buffer(spcomp.lower_sparse_iter(single(func)))
    assert module.source is func
    assert module["main"].script() == flat.script()
    with pytest.raises(LoweringError, match="still has sparse iterations"):
        spcomp.lower_sparse_buffer(func)


def test_a_program_of_several_phases_is_lowered_as_a_module():
    func = source("csr_add")
    with pytest.raises(LoweringError, match="assembles its output in 2 phases"):
        spcomp.lower_sparse_iter(func)
    module = spcomp.lower_sparse_buffer(spcomp.lower_sparse_iter(single(func)))
    assert [type(phase) for phase in module.funcs] == [FlatFunc, FlatFunc]
    with pytest.raises(ScheduleError, match="assembles its output in 2 phases"):
        Schedule(module)


def test_a_module_of_one_function_is_scheduled_as_the_function():
    func = source("csrmm")
    schedule = Schedule(single(func))
    assert schedule.func is func
    assert schedule.mod.is_single
    assert schedule.lower_sparse_buffer().mod.source is func


def test_a_false_claim_is_found_although_no_step_is_taken():
    text = Schedule(source("csrmm")).lower_sparse_iter().func.script()
    claims = text.replace("for j in T.serial", "for j in T.parallel")
    (func,) = parse_source(claims, "claims.py")
    with pytest.raises(ScheduleError, match="loop j cannot be parallel"):
        spcomp.compile(Schedule(func))
    with pytest.raises(ScheduleError, match="loop j cannot be parallel"):
        Schedule(func).lower_sparse_buffer()


# -- timing -------------------------------------------------------------------------------------


def test_an_evaluator_times_calls_and_gives_seconds():
    kernel = spcomp.compile(source("csrmm"))
    timing = kernel.time_evaluator(number=3, repeat=4)(A=CSR, B=B)
    assert len(timing.results) == 4
    assert 0 < timing.min <= timing.median <= timing.max < 1
    assert timing.min <= timing.mean <= timing.max
    assert timing.std >= 0
    bound = kernel.bind(A=CSR).time_evaluator(number=1)(B=B)
    assert len(bound.results) == 1


def test_an_evaluator_calls_as_often_as_it_says():
    calls = []
    evaluator = spcomp.compile(source("csrmm")).time_evaluator(number=3, repeat=2)
    counted = type(evaluator)(lambda **named: calls.append(named), 3, 2)
    counted(A=1)
    assert calls == [{"A": 1}] * 7  # one call that is not timed
    with pytest.raises(spcomp.errors.ArgumentError, match="repeat: got 0"):
        spcomp.compile(source("csrmm")).time_evaluator(repeat=0)
