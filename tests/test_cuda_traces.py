"""Random schedules for GPUs: kernels compute what the program means, or the schedule is refused."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest

import spcomp
from spcomp.errors import LoweringError, ScheduleError, SpcompWarning
from tests.emulated import EMULATED, ORDERS, order
from tests.programs import PROGRAMS, fresh
from tests.random_grids import compose_grid

SINGLE = [program for program in PROGRAMS if not program.assembles]
SHORT, LONG, CHUNK = 40, 1000, 100
# seeds that showed faults
FOUND = (84, 137, 407, 474, 477, 510, 563, 568, 2333, 5046, 64471, 66167, 200466)


def run(seed: int) -> bool:
    """Check the schedule of *seed*; False: it is refused."""
    program = SINGLE[seed % len(SINGLE)]
    composer, inputs, dtype = compose_grid(program, seed)
    schedule = composer.schedule
    what = f"seed {seed}: {schedule.trace}".replace("\n", "; ")
    try:
        kernel = spcomp.compile(schedule, target=EMULATED)
    except (ScheduleError, LoweringError) as error:
        assert error.hint, what  # noqa: PT017
        return False
    names = {param.name for param in schedule.func.params}
    gone = {k: v for k, v in program.expected(inputs).items() if k not in names}
    args = fresh(inputs)
    with order(ORDERS[seed % len(ORDERS)]):
        kernel(*(args[param.name] for param in schedule.func.params))
    program.check(inputs, {**args, **gone}, dtype, what)
    return True


def check(seeds: range | tuple[int, ...]) -> Counter[bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)  # false spatial claims are in the corpus
        return Counter(map(run, seeds))


def test_some_schedules_compute_what_the_program_means_or_are_refused():
    done = check((*FOUND, *range(SHORT)))
    assert done[True] > done[False]


@pytest.mark.long
@pytest.mark.parametrize("start", range(1000, 1000 + LONG, CHUNK))
@pytest.mark.sample(10, long=10)
def test_schedules_compute_what_the_program_means_or_are_refused(start):
    done = check(range(start, start + CHUNK))
    assert done[True] > done[False]
