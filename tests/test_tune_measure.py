"""Measurements of the tuner: intervals, races, compilation, and results that are checked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp.kernels.timing import Timing
from spcomp.schedule.step import Trace
from spcomp.tune.choice import Choice
from spcomp.tune.measure import Bench, Entry, Interval, by_evaluator, interval, race
from spcomp.tune.space import Candidate
from spcomp.tune.task import Expected, Task
from tests.tune_helpers import (
    ROWS,
    matrix,
    prefetching,
    task_of,
)
from tests.tune_helpers import store as store


def test_the_interval_of_a_median_is_from_order_statistics():
    assert interval([1.0]) == Interval(1.0, 1.0, 1.0, 1)
    assert interval([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0, 3)
    assert interval([float(k) for k in range(1, 10)]) == Interval(5.0, 2.0, 8.0, 9)
    assert interval([float(k) for k in range(1, 26)]) == Interval(13.0, 8.0, 18.0, 25)


def test_the_interval_covers_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    draws = np.exp(rng.standard_normal((1000, 12)))
    covered = sum(found.low <= 1.0 <= found.high for found in map(interval, draws.tolist()))
    assert covered >= 940


class Clock:
    """A clock that stands still except where a call takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def entry(self, seconds: float) -> Entry:
        def call() -> None:
            self.now += seconds

        return Entry(Candidate(), Choice(), call=call, seconds=seconds)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("spcomp.tune.measure.perf_counter", clock)
    return clock


def test_a_race_is_over_when_the_slower_is_clearly_slower(clock):
    slow = clock.entry(4e-3)
    ratio = race(slow, clock.entry(1e-3), until=10)
    assert (ratio.value, ratio.rounds) == (pytest.approx(0.25), 3)
    assert slow.seconds == pytest.approx(4e-3)
    assert not ratio.is_faster


def test_a_race_shows_the_faster_and_ends_when_there_is_no_doubt(clock):
    ratio = race(clock.entry(1e-3), clock.entry(3e-3), until=10)
    assert (ratio.value, ratio.rounds, ratio.is_faster) == (pytest.approx(3), 6, True)
    patient = race(clock.entry(1e-3), clock.entry(3e-3), until=10, most=20, patient=True)
    assert patient.rounds == 20


def test_a_race_ends_in_time(clock):
    late = race(clock.entry(2e-2), clock.entry(2e-2), until=0.25, patient=True)
    assert clock.now <= 0.25
    assert late.rounds < 6
    assert not late.is_faster


def test_three_lucky_rounds_are_no_win():
    assert not Interval(1.5, 1.4, 1.6, 3).is_faster
    assert Interval(1.5, 1.4, 1.6, 6).is_faster


def test_a_wrong_result_is_found_and_rounding_is_none():
    expected = Expected.of(task_of())
    (want,) = expected.arrays
    assert expected.difference([want * np.float32(1 + 2e-7)]) == ""
    assert "elements differ" in expected.difference([want * np.float32(1.001)])
    nothing = want.copy()
    nothing[5] = np.nan
    assert "elements differ" in expected.difference([nothing])
    assert "shape" in expected.difference([want[1:]])


def test_integers_have_to_be_equal():
    csr = sps.csr_array(matrix().astype(bool), dtype=np.int32)
    task = Task.of("y[i] = A[i, j] * x[j]", {"A": csr, "x": np.arange(ROWS, dtype=np.int32)})
    expected = Expected.of(task)
    (want,) = expected.arrays
    assert expected.difference([want]) == ""
    assert "1 of 400" in expected.difference([want + (np.arange(ROWS) == 3)])


def test_magnitudes_leave_the_arguments_as_they_are():
    indptr, indices = np.array([0, 3, 5, 6]), np.array([2, 0, 0, 1, 0, 2])
    csr = sps.csr_array((np.arange(1.0, 7), indices, indptr), shape=(3, 3))
    for array in (csr.data, csr.indices, csr.indptr):
        array.flags.writeable = False
    (want,) = Expected.of(Task.of("y[i] = A[i, j] * x[j]", {"A": csr, "x": np.ones(3)})).arrays
    np.testing.assert_array_equal(want, [6, 9, 6])
    np.testing.assert_array_equal(csr.indices, [2, 0, 0, 1, 0, 2])


def test_candidates_with_wrong_results_do_not_count():
    task = task_of()
    bench = Bench(task)
    other = Bench(task)
    other.expected = replace(bench.expected, arrays=[bench.expected.arrays[0] + 1])
    (good,), (bad,) = (b.compile([(Candidate(), prefetching(4))]) for b in (bench, other))
    bench.prepare(good)
    other.prepare(bad)
    assert good.call is not None
    assert bad.call is None
    assert bad.error.startswith("wrong")


def test_a_conversion_does_not_contain_what_the_first_one_compiles(clock, monkeypatch):
    bench, bind, times = Bench(task_of()), Task.bind, iter([9.0, 2.0, 0.5])

    def timed(self: Task, *args: Any) -> Any:
        clock.now += next(times)
        return bind(self, *args)

    blocks = Choice((("A", "bsr(2)"),))
    first, again = bench.compile([(Candidate(), blocks)] * 2)
    monkeypatch.setattr(Task, "bind", timed)
    bench.prepare(first)
    bench.prepare(again)  # of what the first one converted
    assert (first.conversion, again.conversion) == (2.0, 2.0)


def test_equal_code_is_one_candidate():
    bench = Bench(task_of())
    default, same, other = bench.compile(
        [(Candidate(), Choice()), (Candidate(), prefetching(16)), (Candidate(), prefetching(4))]
    )
    assert default.code == same.code != other.code


def test_what_cannot_be_compiled_says_why():
    bench = Bench(task_of())
    trace = Trace.from_json_lines('{"func": "csrmm", "step": "parallel", "loop": "j"}')
    (bad,) = bench.compile([(Candidate(), Choice((), trace))])
    assert "may write the same element" in bad.error


def test_arrays_that_the_program_changes_are_copied():
    before = np.ones(ROWS, np.float32)
    given = before.copy()
    task = Task.of("y[i] += A[i, j] * x[j]", {"A": matrix(), "x": before, "y": given})
    found = Expected.of(task).arrays
    np.testing.assert_allclose(found[0], 1 + matrix() @ before, rtol=1e-5)
    np.testing.assert_array_equal(given, before)


def test_what_runs_on_a_gpu_times_itself():
    class Kernel:
        def __call__(self, **named: float) -> float:
            return named["x"]

        def time_evaluator(self, *, number: int) -> Any:
            return lambda x: Timing((x / number,))

    call = partial(Kernel(), x=3.0)
    entry = Entry(Candidate(), Choice(), call=call, seconds=1.0, calls=5, timer=by_evaluator)
    assert race(entry, replace(entry), until=0).value == pytest.approx(1.0)
    assert entry.seconds == pytest.approx(0.6)
