"""Proofs about index arithmetic: what is proved holds, and what schedules need is proved."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spcomp.dtypes import bool_, int32, int64
from spcomp.ir.access import Load
from spcomp.ir.arith.bounds import Env
from spcomp.ir.arith.simplify import Interval, coefficient, divides, injective, prove
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Cast, Const, UnOp, Var, const
from tests.test_arith import evaluate

i, j, k, v, m, n = (Var(name, int64) for name in "ijkvmn")
P = Buffer("indptr", None, (m,), int32)
ZERO = const(0)


def op(name, lhs, rhs):
    return BinOp(name, lhs, rhs)


def at(index):
    return Cast(Load(P, (index,)), int64)


def upto(extent):
    return ZERO, const(extent) if isinstance(extent, int) else extent


@pytest.mark.parametrize(
    ("cond", "facts"),
    [
        (op("<", v, m), {v: upto(m)}),
        (op(">=", v, ZERO), {v: upto(m)}),
        (op("<", v * n + k, m * n), {v: upto(m), k: upto(n)}),
        (op(">", m, ZERO), {v: upto(m)}),
        (op("<", i * 4 + j, m), {i: upto(m // 4), j: upto(4)}),
        (op("<", i * 4 + j, m), {i: upto((m + 3) // 4), j: upto(op("min", const(4), m - i * 4))}),
        (op("<", op("min", i, const(7)), const(8)), {i: upto(m)}),
        (op("<", v // 4, (m + 3) // 4), {v: upto(m)}),
        (op("<=", (m // 8) * 8, m), {}),
        (op("and", op("<", v, m), UnOp("not", op("<", v, ZERO))), {v: upto(m)}),
        (op("or", op("<", k, ZERO), op("!=", v, m)), {v: upto(m)}),
        (op("==", v + k - v, k), {}),
        (op("<", k, m), {v: upto(m), k: upto(v)}),
        (op(">=", op("max", v, k), ZERO), {v: upto(m)}),
        (op("<", m - 1 - v, m), {v: upto(m)}),
        (Const(True, bool_), {}),
    ],
)
def test_what_schedules_ask_for_is_proved(cond, facts):
    assert prove(cond, facts)
    assert not prove(UnOp("not", cond), facts)


@pytest.mark.parametrize(
    ("cond", "facts"),
    [
        (op("<", v, n), {v: upto(m)}),
        (op("<", v + 1, m), {v: upto(m)}),
        (op("<", i * 4 + j, m), {i: upto((m + 3) // 4), j: upto(4)}),
        (op("<", v * n + k, m * n), {v: upto(m), k: upto(n + 1)}),
        (op(">=", m, ZERO), {}),
        (op("<", Cast(v, int32), Cast(v + 1, int32)), {v: upto(m)}),
        (op("<", k // 3, k // 3), {}),
        (op(">", const(2**63 - 1), v * 4), {}),
    ],
)
def test_what_does_not_follow_is_not_proved(cond, facts):
    assert not prove(cond, facts)


def test_bounds_help_to_prove():
    cond = op("<", at(v), const(10))
    assert not prove(cond, {})
    assert prove(cond, {}, Env({}, {P: Interval(0, 9)}))
    assert prove(op("<", v, const(10)), {}, {v: Interval(0, 9)})


@pytest.mark.parametrize(
    ("expr", "expected"),
    [(v * 3 + k, 3), (k, 0), (v, 1), (k - v, -1), ((v + k) * 2 - v * 2, 0), (v * 2 + v, 3)],
)
def test_coefficient_of_a_linear_variable(expr, expected):
    assert coefficient(expr, v) == expected


@pytest.mark.parametrize("expr", [v * k, v * v, v // 2, at(v) + v, op("min", v, k)])
def test_no_coefficient_where_it_is_not_linear(expr):
    assert coefficient(expr, v) is None


def test_divisibility():
    assert divides(4, v * 8 + k * 4 - 12)
    assert divides(4, (v // 4) * 4)
    assert divides(4, op("min", v * 4, const(8)))
    assert not divides(4, v * 2)
    assert not divides(4, v * 4 + 2)
    assert not divides(0, v)


@pytest.mark.parametrize(
    ("indices", "inner", "expected"),
    [
        ((v, k), {k: upto(n)}, True),
        ((k, v), {k: upto(n)}, True),
        ((v * 4 + k,), {k: upto(4)}, True),
        ((v * 4 + k,), {k: upto(5)}, False),
        ((v * n + k,), {k: upto(n)}, True),
        ((v * n + k,), {k: upto(n + 1)}, False),
        ((v * n + k,), {k: upto(m)}, False),
        ((v * n,), {k: upto(n)}, False),  # no k, so n may be zero
        ((k,), {k: upto(n)}, False),
        ((at(v),), {}, False),
        ((v // 4, v % 4), {}, True),
        ((v // n, v % n), {}, True),
        ((v // n, v % m), {}, False),
        ((v // 4,), {}, False),
        (((v // 4) * 8 + v % 4,), {}, True),
        (((v // 4) * 3 + v % 4,), {}, False),
        ((v + k, k), {k: upto(n)}, True),
        ((v + k,), {k: upto(n)}, False),
        ((v - i * n,), {}, True),
        ((k * 4 + v,), {k: upto(n), v: upto(4)}, True),
        ((k * 4 + v,), {k: upto(n)}, False),
        (((v * m + j) * n + k,), {j: upto(m), k: upto(n)}, True),
        ((m - v,), {}, True),
        ((None, v), {}, True),
        ((v * k,), {k: upto(n)}, False),
        ((v * 2 + k, k // 2), {k: upto(4)}, False),
        ((v * 2 + k, k), {k: upto(4)}, True),
        ((const(0),), {}, False),
        ((v + v // 2,), {}, True),
        ((v - v // 2,), {}, False),
        ((v, at(v)), {}, True),
        ((at(i) + v,), {}, True),
        (((v * 2 + j) // 2, j), {j: upto(2)}, True),
        ((v * 4 + j,), {j: (ZERO, op("min", const(4), m - v * 4))}, True),
        ((at(j) * n * 2 + k * n + v,), {j: upto(m), k: upto(m), v: upto(n)}, True),  # v is a rest
        ((at(j) * n * 2 + k * n + v,), {j: upto(m), k: upto(m), v: upto(n + 1)}, False),
        ((at(j) * n * 2 + k * m + v,), {j: upto(m), k: upto(m), v: upto(n)}, False),
        ((v * at(j) + k,), {j: upto(1), k: upto(at(j))}, True),  # j is 0
        ((v * at(j) + k,), {j: upto(2), k: upto(at(j))}, False),
    ],
)
def test_injectivity(indices, inner, expected):
    assert injective(indices, v, inner) == expected


def test_rows_of_a_monotone_indptr_do_not_meet():
    row = {j: upto(at(v + 1) - at(v))}
    longer = {j: upto(at(v + 1) - at(v) + 1)}
    assert injective((at(v) + j,), v, row, monotone=(P,))
    assert injective(((at(v) + j) * n + k,), v, {**row, k: upto(n)}, monotone=(P,))
    assert not injective((at(v) + j,), v, row)
    assert not injective((at(v) + j,), v, longer, monotone=(P,))
    absolute = {j: (at(v), at(v + 1))}
    assert injective((j,), v, absolute, monotone=(P,))


def terms(variables):
    atoms = st.sampled_from(variables).flatmap(
        lambda var: st.sampled_from(
            [var, var // 2, var % 2, var // 3, var % 3, (var + 1) // 2, op("min", var, const(2))]
        )
    )
    scaled = st.tuples(atoms, st.integers(-4, 6)).map(lambda p: p[0] * p[1])
    return st.lists(scaled, min_size=1, max_size=3).map(lambda ts: sum(ts[1:], ts[0]))


@settings(max_examples=250)
@given(
    st.lists(terms([v, j, k]), min_size=1, max_size=2),
    st.integers(1, 4),
    st.integers(0, 4),
    st.booleans(),
)
def test_injectivity_is_never_claimed_wrongly(indices, width, height, dependent):
    extent = v + 1 if dependent else const(height)
    inner = {j: upto(width), k: (ZERO, extent)}
    if not injective(indices, v, inner):
        return
    seen = {}
    for value in range(7):
        high = value + 1 if dependent else height
        for pair in itertools.product(range(width), range(high)):
            env = {v: value, j: pair[0], k: pair[1]}
            found = tuple(evaluate(index, env) for index in indices)
            assert seen.setdefault(found, value) == value


@settings(max_examples=250)
@given(terms([i, j, k]), terms([i, j, k, m]), st.integers(0, 4), st.sampled_from(["<", "<=", "!="]))
def test_what_is_proved_holds(lhs, rhs, width, name):
    cond = op(name, lhs, rhs)
    facts = {i: upto(m), j: (i, m), k: upto(width)}
    if not prove(cond, facts):
        return
    for size in range(5):
        for first in range(size):
            for second in range(first, size):
                for third in range(width):
                    env = {m: size, i: first, j: second, k: third}
                    assert evaluate(cond, env)
