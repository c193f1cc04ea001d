"""Why a step cannot be taken: a value that is asked for, the same that apply raises."""

from __future__ import annotations

import random
import warnings
from collections import Counter

import pytest

import spcomp
from spcomp.errors import ScheduleError, SpcompWarning
from spcomp.ir.analysis.names import distinct
from spcomp.ir.module import single
from spcomp.ir.structural import structural_equal
from spcomp.passes.pipelines import lower_sparse_iter
from spcomp.schedule.default.cpu import default_schedule
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.legality.dependence import loop_named
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.base import Problem
from spcomp.schedule.steps.blocks.memory import CacheWrite
from spcomp.schedule.steps.loops.loops import Parallel, Unroll
from spcomp.schedule.steps.loops.tiling import Split
from spcomp.schedule.steps.sharing.split_nnz import SplitNnz
from spcomp.schedule.steps.tensor.tensorize import Tensorize
from spcomp.target import Target
from tests.layers import source
from tests.programs import PROGRAMS
from tests.random_traces import PROPOSALS, compose

SEEDS = 4  # traces with a step of each kind
SINGLE = [program for program in PROGRAMS if not program.assembles]
FACTS = (Facts(), Facts(hubs=True, skewed=True), Facts(runs=True))


def csrmm():
    return Schedule(source("csrmm")).lower_sparse_iter()


@pytest.mark.parametrize("kind", PROPOSALS)
@pytest.mark.sample(16, long=6)
def test_a_step_has_the_problem_that_apply_raises_or_none(kind, monkeypatch):
    taken = Schedule.apply
    asked: Counter[bool] = Counter()

    def apply(schedule, step):
        func = schedule.checked()
        before = func.script()
        problems = step.problems(func)
        assert step.problems(func) == problems
        assert step.is_legal(func) is not bool(problems)
        asked[bool(problems)] += 1
        result = step.result(func)
        assert func.script() == before
        if not problems:
            after = taken(schedule, step)
            assert structural_equal(result, after.func)
            plan = step.plan(func)
            again = step.rewrite(func, plan), step.rewrite(func, plan)
            assert [made.script() for made in again] == [result.script()] * 2
            return after
        assert problems == (result,)
        with pytest.raises(ScheduleError) as caught:
            taken(schedule, step)
        assert (caught.value.message, caught.value.hint) == (result.message, result.hint)
        raise caught.value

    monkeypatch.setattr(Schedule, "apply", apply)
    rng = random.Random(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)
        for _ in range(SEEDS):
            compose(rng.choice(SINGLE), rng.randrange(1 << 30), kind)
    assert asked[True]
    assert asked[False]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.sample(8, long=3)
def test_no_default_step_has_a_problem_where_it_is_taken(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)
        module = single(program.build(program.dtypes[0]))
        funcs = lower_sparse_iter(module).funcs
        for func in map(distinct, funcs):
            for facts in FACTS:
                made, steps = default_schedule(func, Target(vector_bits=256), facts)
                now = func
                for step in steps:
                    assert step.problems(now) == ()
                    now = step.apply(now)
                assert structural_equal(now, made)


def test_a_problem_says_what_is_wrong_where_and_what_to_do():
    func = csrmm().func
    (problem,) = Parallel("j").problems(func)
    assert problem.span == loop_named(func.body, "j").span
    assert str(problem) == "parallel('j'): iterations may write the same element of C"
    (unknown,) = Parallel("x").problems(func)
    assert (unknown.span, unknown.hint) == (None, "loops are i, j, k")
    assert eval(repr(problem), {"Problem": Problem, "Span": type(problem.span)}) == problem


def test_an_error_points_at_the_users_line_else_at_what_is_at_fault():
    func = csrmm().func
    (problem,) = Parallel("j").problems(func)
    with pytest.raises(ScheduleError) as caught:
        Parallel("j").apply(func)
    assert caught.value.span == problem.span
    with pytest.raises(ScheduleError) as caught:
        csrmm().parallel("j")
    assert caught.value.span.file == __file__


def test_a_schedule_is_asked_and_stays_as_it_is():
    schedule = csrmm()
    assert schedule.problems(Split("k", 4)) == ()
    assert [str(p) for p in schedule.problems(CacheWrite("csrmm1", at="i"))] == [
        "cache_write('csrmm1', 0, 'local', 'i'): 'i' is not nested perfectly around the block"
    ]
    assert not schedule.trace


@pytest.mark.parametrize(
    "step",
    [Split("k", 0), Split("k", ("a", None)), SplitNnz("i", "4"), Unroll(7), Tensorize("k", "none")],
    ids=str,
)
def test_a_wrong_argument_is_a_problem(step):
    func = csrmm().func
    (problem,) = step.problems(func)
    with pytest.raises(ScheduleError) as caught:
        step.apply(func)
    assert caught.value.message == problem.message


def test_a_step_for_loops_has_a_problem_in_coordinate_space():
    (problem,) = Parallel("i").problems(source("csrmm"))
    assert "lower the sparse iterations first" in problem.hint


def test_a_trace_with_an_argument_of_another_type_is_refused_by_the_compiler():
    text = '{"func": "csrmm", "step": "split_nnz", "loop": "i", "size": "4"}'
    with pytest.raises(ScheduleError, match="size cannot be '4'"):
        spcomp.compile(source("csrmm"), trace=Trace.from_json_lines(text))


def test_a_replay_leaves_out_what_has_problems():
    schedule = csrmm()
    trace = Trace().extend("csrmm", (Split("x", 4), Parallel("j"), Parallel("i")))
    assert [str(step) for _, step in schedule.replay(trace, skip=True).trace] == ["parallel('i')"]
    with pytest.raises(ScheduleError, match="no loop 'x'"):
        schedule.replay(trace)
