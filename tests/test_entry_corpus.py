"""Calls that are repeated as they were learnt: every program of the corpus, every case."""

import pytest

from spcomp.ir.analysis.sizes import evaluate
from spcomp.runtime.replay import entry
from tests.layers import called, kernel
from tests.programs import PROGRAMS, fresh

pytestmark = pytest.mark.skipif(not entry.available(), reason="no call entry on this Python")
PROBES = "hashed=True"  # tables are checked by numpy, at each call
CALLED = [p for p in PROGRAMS if PROBES not in p.source]


def by_name(compiled, values):
    """The arguments of a call by name: arrays in the shapes that the program declares."""
    plans = compiled._face.by_handle
    named = dict(values)
    for name, plan in plans.items():
        if plan.layout == "dense":
            shape = [int(evaluate(extent, values)) for extent in plan.shape]
            named[name] = values[name].reshape(shape)
    return {name: named[name] for name in compiled._face.params}


@pytest.mark.parametrize("program", CALLED, ids=lambda p: p.name)
def test_a_repeated_call_computes_what_the_oracle_says(program):
    dtype = program.dtypes[0]
    compiled = kernel(program.name, dtype)
    for case in program.cases:
        inputs = program.inputs(case, dtype, "int32")
        for turn in range(8):  # learnt at the second, fourth and eighth
            values = fresh(inputs)
            if program.assembles:
                values = called(program.name, values, dtype, compiled=compiled)
            else:
                compiled(**by_name(compiled, values))
            program.check(inputs, values, dtype, f"call {turn}, {case}")
    assert compiled._calls.repeats, "no call was learnt"
