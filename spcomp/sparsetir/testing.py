"""Beside the route: ``tvm.testing``."""

from __future__ import annotations

from typing import Any

import numpy as np

from spcomp.schedule.step import Trace
from spcomp.sparsetir import ir
from spcomp.sparsetir.module import IRModule, as_module
from spcomp.sparsetir.tir import Schedule


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """Raise AssertionError unless both have the same shape and are equal up to the tolerances."""
    actual, desired = np.asarray(actual), np.asarray(desired)
    np.testing.assert_allclose(actual.shape, desired.shape)
    np.testing.assert_allclose(actual, desired, rtol=rtol, atol=atol, verbose=True)


def verify_trace_roundtrip(sch: Schedule, mod: Any) -> Schedule:
    """Return the Schedule of *mod* after the steps of *sch*, written as text and read again.

    Raises ValueError if they lead to another program.
    """
    trace = Trace.from_json_lines(sch.trace.to_json_lines())
    again = IRModule()
    again.schedules = {
        name: schedule.replay(trace) for name, schedule in as_module(mod).schedules.items()
    }
    ir.assert_structural_equal(again, sch.mod)
    return Schedule(again)
