"""Index notation on the emulated GPU: every combination of formats, and random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spcomp
from spcomp.errors import SpcompError
from tests.emulated import EMULATED, ORDERS, order
from tests.random_notation import FUNCTIONS, SEMIRINGS, Case, Writer
from tests.test_notation_random import rule
from tests.test_standard_list import COMBINATIONS, PROGRAMS, argument, full, operands

CHUNKS, SHORT = 12, 100
RANDOM, PART = 1000, 100
MOST_REFUSED = 0.02


def check_combination(at: int) -> None:
    name, layouts = COMBINATIONS[at]
    program = PROGRAMS[name]
    arrays = operands(program)
    args = {n: argument(a, layouts.get(n, "dense")) for n, a in arrays.items()}
    with order(ORDERS[at % len(ORDERS)]):
        result = spcomp.compile(program.text, target=EMULATED)(**args)
    shown = f"{program.text} of {layouts}"
    np.testing.assert_array_equal(full(result), program.want(**arrays), shown)


def test_some_combinations_of_formats():
    for at in range(0, len(COMBINATIONS), SHORT):
        check_combination(at)


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("ttm", {"T": "compressed,dense,dense", "B": "dense"}),  # rows below a root
        ("masked product", {"A": "dcsr", "B": "dense", "M": "dcsr"}),  # rows in a merge
    ],
)
def test_combinations_that_were_refused(name, layouts):
    check_combination(COMBINATIONS.index((name, layouts)))


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.sample(12, long=12)
def test_every_combination_of_formats(chunk):
    for at in range(chunk, len(COMBINATIONS), CHUNKS):
        check_combination(at)


def kernel_of(case: Case) -> Any:
    functions = {
        name: spcomp.Function(func, zero)
        for name, (func, zero) in FUNCTIONS.items()
        if name in case.text
    }
    own = spcomp.Semiring(*SEMIRINGS[case.semiring])
    given = {"formats": case.formats, "semiring": own, "functions": functions}
    return spcomp.compile(case.program, **given, target=EMULATED)


def run(seed: int) -> bool:
    """Check the random program of *seed*; False: it is refused, by a rule of the notation."""
    case = Writer(seed).write()
    if case.unclear:  # refused on every target
        return True
    try:
        with order(ORDERS[seed % len(ORDERS)]):
            kernel = kernel_of(case)
            case.check(kernel(**case.arguments()), kernel)
    except SpcompError as error:
        if rule(error) is None:
            raise AssertionError(f"seed {seed}: {error}\n{case}") from error
        return False
    return True


def test_some_random_programs():
    done = [run(seed) for seed in (*range(15), 10_246)]  # the last: a sum between sums
    assert done.count(False) <= 2


@pytest.mark.parametrize("seed", [10_335, 10_443, 10_855])
def test_rows_of_several_dimensions_and_lists_inside_other_loops(seed):
    assert run(seed)


@pytest.mark.long
@pytest.mark.parametrize("start", range(10_000, 10_000 + RANDOM, PART))
@pytest.mark.sample(10, long=10)
def test_random_programs(start):
    done = [run(seed) for seed in range(start, start + PART)]
    assert done.count(False) <= 1 + MOST_REFUSED * PART
