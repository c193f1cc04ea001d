"""Which loads in the sides of a selection of vectors need no mask."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.codegen.llvm.unguarded import need_no_guard, places_read
from spcomp.dtypes import float32, handle, int32, int64
from spcomp.ir import expr as ex
from spcomp.ir.access import Load
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var, const

N, M, I, K = (Var(name, int64) for name in "nmik")
A, B = (Buffer(name, Var(name, handle), (N,), float32) for name in "AB")
SHORT = Buffer("short", Var("short", handle), (M,), float32)
ONE = Buffer("one", Var("one", handle), (const(1),), float32)
PLACES = Buffer("places", Var("places", handle), (N,), int32)
LANES = ex.Ramp(K, 1, 8)
INSIDE = ex.BinOp("<", LANES, ex.Broadcast(N, 8))


def at(buffer, index=LANES, mask=None):
    return Load(buffer, (index,), mask)


def wide(value):
    return ex.Broadcast(value, 8)


ZERO = wide(const(0.0, float32))
POSITIVE = ex.BinOp(">", at(A), ZERO)
FAR = ex.BinOp("+", LANES, wide(const(1)))
SCATTERED = ex.Ramp(ex.Cast(Load(PLACES, (I,)), int64), 1, 8)


@pytest.mark.parametrize(
    ("select", "wanted"),
    [
        (ex.Select(POSITIVE, at(A), ZERO), True),
        (ex.Select(POSITIVE, at(B), ZERO), True),  # of the same size, at the same place
        (ex.Select(POSITIVE, at(SHORT), ZERO), False),  # of another size
        (ex.Select(POSITIVE, at(B, FAR), ZERO), False),  # at another place
        (ex.Select(POSITIVE, at(A), at(B, FAR)), False),
        (ex.Select(INSIDE, at(A), at(B)), True),  # one of both is read
        (ex.Select(INSIDE, at(A), ZERO), False),
        (ex.Select(INSIDE, at(A, mask=INSIDE), ZERO), True),
        (ex.Select(INSIDE, at(A, SCATTERED, INSIDE), ZERO), True),
        (ex.Select(POSITIVE, at(A, mask=INSIDE), ZERO), False),
        (ex.Select(INSIDE, at(A, SCATTERED), ZERO), False),
        (ex.Select(INSIDE, wide(Load(ONE, (const(0),))), ZERO), True),
        (ex.Select(INSIDE, wide(Load(ONE, (const(1),))), ZERO), False),
        (ex.Select(INSIDE, ex.Select(POSITIVE, at(A), ZERO), ZERO), False),
        (ex.Select(INSIDE, ex.Select(POSITIVE, at(B), ZERO), at(A)), True),
        (ex.Select(ex.BinOp("and", INSIDE, POSITIVE), at(A), ZERO), False),
    ],
)
def test_a_load_needs_no_guard_where_its_place_is_read_in_any_case(select, wanted):
    assert need_no_guard(select, places_read(select)) is wanted


def test_nothing_is_read_where_a_condition_forbids_it():
    kernel = spcomp.compile(
        "y[i] = max(j, where(A[i, j] > 0, where(A[i, j] > 2, B[i, j] * 2, C[i, j]), -1.0))"
    )
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=(9, 37)).astype(np.float32) for _ in range(3))
    wanted = np.where(a > 0, np.where(a > 2, 2 * b, c), -1).max(1)
    np.testing.assert_array_equal(kernel(A=a, B=b, C=c), wanted)
