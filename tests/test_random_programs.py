"""Programs that nobody would write mean one thing at every stage, on any number of threads."""

from __future__ import annotations

import copy
import os
import warnings

import numpy as np
import pytest

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, LoweringError, SpcompWarning
from spcomp.ir.interpret.program import interpret
from spcomp.runtime.pool import num_threads
from spcomp.script.parse import parse_source
from tests.layers import TARGET
from tests.random_programs import Writer

COUNT = int(os.environ.get("SPCOMP_RANDOM_PROGRAMS", "160"))  # more of them, by hand
BATCH = 20
EXACT = 2**20  # floats up to here are integers without rounding, in any order


def _outcome(run, args):
    """Return the arguments after *run*, or None if it failed as a call may."""
    args = copy.deepcopy(args)
    try:
        run(args)
    except ArgumentError:
        return None
    return args


def _differences(want, got):
    """Return the names of the arrays that differ; rounding is no matter here."""
    if want is None or got is None:
        return [] if want is got else ["one of them fails"]
    found = []
    for name, array in want.items():
        if isinstance(array, np.ndarray):
            inexact = array.dtype.kind == "f" and not (np.abs(array) < EXACT).all()
            if not inexact and not np.array_equal(array, got[name]):
                found.append(name)
    return found


def _runs(func):
    """Yield a name and a function for each way to run *func* below its source."""
    stages = lower(func, TARGET)
    for stage in ("position", "flat"):
        yield stage, lambda args, stage=stage: interpret(getattr(stages, stage), args)
    kernel = spcomp.compile(func)

    def call(args, threads):
        with num_threads(threads):
            kernel(*(args[param.name] for param in func.params))

    for threads in (1, 2, 5):
        yield f"{threads} threads", lambda args, threads=threads: call(args, threads)


def _check(seed):
    """Return whether the program *seed* is one; assert that all its stages agree."""
    writer = Writer(seed)
    (func,) = parse_source(writer.source, f"seed{seed}.py")
    try:
        runs = list(_runs(func))
    except LoweringError:  # a domain whose parent is not iterated around it
        return False
    for draw in range(2):
        args = writer.inputs(draw)
        want = _outcome(lambda a: interpret(func, a), args)
        for name, run in runs:
            found = _differences(want, _outcome(run, args))
            assert not found, f"seed {seed}, inputs {draw}, {name}: {found}\n{writer.source}"
    return True


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
@pytest.mark.sample(8, long=4)
def test_every_stage_of_a_random_program_means_the_same(first):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)  # false spatial claims are the point
        compiled = sum(_check(seed) for seed in range(first, first + BATCH))
    assert compiled >= BATCH // 2


@pytest.mark.parametrize("seed", range(10_000, 10_012))
def test_a_random_program_gives_the_same_bits_on_any_number_of_threads(seed):
    writer = Writer(seed)
    (func,) = parse_source(writer.source, f"seed{seed}.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)
        try:
            runs = dict(_runs(func))
        except LoweringError:
            return
    args = writer.inputs(0, scale=12)
    want = _outcome(runs["1 threads"], args)
    for threads in (2, 5):
        got = _outcome(runs[f"{threads} threads"], args)
        assert (want is None) == (got is None)
        for name, array in (want or {}).items():
            np.testing.assert_array_equal(array, got[name], err_msg=f"{seed}: {name}")
