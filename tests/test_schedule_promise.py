"""Steps that are legal where listed coordinates are distinct, which a call then checks."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError, ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.script.parse import parse_source

ROWS = """from spcomp import script as T

@T.prim_func
def rows(a: T.handle, c: T.handle, listed: T.handle, m: T.int32, n: T.int32, some: T.int32) -> None:
    O = T.dense_fixed(1)
    R = T.sparse_fixed(O, (m, some), listed, "int32")
    J = T.dense_fixed(n)
    I = T.dense_fixed(m)
    A = T.match_sparse_buffer(a, (O, R, J), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([O, R, J], "SSR", "rows") as [o, r, j]:
        C[r] = C[r] + A[o, r, j]
"""
STEPS = {
    "parallel": lambda sch: sch.parallel("r"),
    "a part in parallel": lambda sch: sch.split("r", [None, 2]).parallel("r_o"),
    "reorder": lambda sch: sch.reorder("j", "r"),
    "bind": lambda sch: sch.bind("r", "blockIdx.x"),
}


def schedule(text=ROWS):
    (func,) = parse_source(text, "rows.py")
    return spcomp.Schedule(func).lower_sparse_iter()


@pytest.mark.parametrize("step", STEPS)
def test_a_step_promises_that_listed_rows_are_distinct(step):
    before = schedule()
    made = STEPS[step](before)
    assert before.func.attr("order_needed", ()) == ()
    assert made.func.attr("order_needed") == ("R",)
    rows, values = np.array([1, 2, 5], np.int32), np.arange(12, dtype=np.float32)
    out = [np.ones(6, np.float32) for _ in range(3)]
    named = {"a": values, "listed": rows, "m": 6, "n": 4, "some": 3}
    for func, c in ((before.func, out[0]), (made.func, out[1])):
        interpret(func, named | {"c": c})
    kernel = spcomp.compile(made)
    kernel(values, out[2], rows, 6, 4, 3)
    assert out[1].tolist() == out[2].tolist() == out[0].tolist() == [1, 7, 23, 1, 1, 39]
    with pytest.raises(ArgumentError, match="strictly ascending"):
        kernel(values, out[2], np.array([1, 1, 5], np.int32), 6, 4, 3)


@pytest.mark.parametrize("step", STEPS)
def test_where_rows_may_repeat_it_is_refused(step):
    with pytest.raises(ScheduleError, match="iterations may write the same element of C"):
        STEPS[step](schedule(ROWS.replace('"int32")\n    J', '"int32", unique=False)\n    J')))


def test_a_promise_that_is_not_needed_is_not_made():
    made = schedule().reorder("r", "o").unroll("j")
    assert made.func.attr("order_needed", ()) == ()
