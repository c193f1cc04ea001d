"""Reductions recognised in statements."""

import pytest

from spcomp.dtypes import bool_, float16, float32, int32, int64, uint8
from spcomp.ir.access import Load
from spcomp.ir.analysis.reduction import as_reduction, combine, identity
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Cast, Const, Select, UnOp, Var, const
from spcomp.ir.stmt import Fail, If, Seq, Store
from spcomp.ir.structural import expr_equal
from tests.test_arith import evaluate

i, j, n = (Var(name, int64) for name in "ijn")
x, y = (Var(name, float32) for name in "xy")
B = Buffer("B", None, (n,), float32)
A = Buffer("A", None, (n,), int64)
H = Buffer("H", None, (n,), float16)
OWN = Load(B, (i + 1,))


def store(value, buffer=B, index=None):
    return Store(buffer, (i + 1 if index is None else index,), value)


def op(name, lhs, rhs):
    return BinOp(name, lhs, rhs)


@pytest.mark.parametrize("name", ["+", "*", "min", "max"])
def test_an_update_by_an_operator_in_either_order(name):
    for value in (op(name, OWN, x), op(name, x, OWN)):
        found = as_reduction(store(value))
        assert found is not None
        assert (found.combiner, found.buffer) == (name, B)
        assert found.value is x
        assert expr_equal(found.indices[0], i + 1)
        assert expr_equal(found.identity[0], identity(name, float32))
        assert not found.is_tuple


def test_and_and_or_of_booleans():
    flags = Buffer("F", None, (n,), bool_)
    p = Var("p", bool_)
    for name in ("and", "or"):
        found = as_reduction(Store(flags, (i,), op(name, Load(flags, (i,)), p)))
        assert found is not None
        assert found.identity[0].value == (name == "and")


def test_nested_operands_are_joined_and_subtracted_ones_negated():
    found = as_reduction(store(op("+", op("+", OWN, x), y)))
    assert expr_equal(found.value, op("+", x, y))
    found = as_reduction(store(op("-", OWN, x)))
    assert found.combiner == "+"
    assert expr_equal(found.value, UnOp("-", x))
    found = as_reduction(store(op("-", op("+", x, OWN), op("-", y, x))))
    assert expr_equal(found.value, op("+", op("+", x, UnOp("-", y)), x))


def test_a_half_precision_buffer_is_combined_in_the_wider_float():
    value = Cast(op("+", Cast(Load(H, (i,)), float32), x), float16)
    found = as_reduction(Store(H, (i,), value))
    assert found is not None
    assert found.value is x
    assert found.identity[0].dtype == float32


@pytest.mark.parametrize(
    ("value", "combiner"),
    [
        (lambda x, own: Select(op(">", x, own), x, own), "max"),
        (lambda x, own: Select(op("<", own, x), x, own), "max"),
        (lambda x, own: Select(op("<", x, own), x, own), "min"),
        (lambda x, own: Select(op(">=", own, x), own, x), "max"),
        (lambda x, own: Select(op("<", own, x), own, x), "min"),
    ],
)
def test_a_choice_by_comparing_is_min_or_max(value, combiner):
    found = as_reduction(store(value(j, Load(A, (i + 1,))), A))
    assert found is not None
    assert (found.combiner, found.value) == (combiner, j)


def test_a_choice_of_floats_is_none_but_for_those_who_keep_it():
    """``max`` returns what is not a number, a comparison passes over it."""
    choice = store(Select(op(">", x, OWN), x, OWN))
    assert as_reduction(choice) is None
    assert as_reduction(choice, choices=True).combiner == "max"
    forgetful = store(Select(op(">=", OWN, x), OWN, x))
    assert as_reduction(forgetful, choices=True) is None
    guarded = If(op(">", x, OWN), store(x))
    assert as_reduction(guarded) is None
    assert as_reduction(guarded, choices=True).combiner == "max"


def test_a_guarded_store_is_min_or_max():
    own = Load(A, (i + 1,))
    assert as_reduction(If(op(">", j, own), store(j, A))).combiner == "max"
    assert as_reduction(Seq((If(op(">=", own, j), store(j, A)),))).combiner == "min"


def test_argmax_carries_its_coordinate():
    for stores in ((store(x), store(j, A)), (store(j, A), store(x))):
        found = as_reduction(If(op(">", x, OWN), Seq(stores)))
        assert found is not None
        assert (found.combiner, found.buffers, found.values) == ("max", (B, A), (x, j))
        assert found.is_tuple
        assert found.identity[0].value == float("-inf")
        assert found.identity[1].value == 2**63 - 1


def test_a_tie_that_takes_the_later_coordinate_is_no_argmax():
    assert as_reduction(If(op(">=", x, OWN), Seq((store(x), store(j, A))))) is None


@pytest.mark.parametrize(
    "stmt",
    [
        store(x),
        store(op("-", x, OWN)),
        store(op("/", OWN, x)),
        store(op("+", OWN, OWN)),
        store(op("+", OWN, op("*", OWN, x))),
        store(op("+", OWN, Load(B, (i,)))),
        store(op("+", Load(B, (i,)), x)),
        Store(B, (i + 1,), op("+", OWN, x), Var("mask", bool_)),
        store(Select(op("<", x, y), x, OWN)),
        store(Select(op("<", x, OWN), y, OWN)),
        If(op(">", x, OWN), store(y)),
        If(op(">", x, OWN), store(x), Fail("no")),
        If(op(">", x, OWN), Seq((store(x), store(j, A, i)))),
        If(op(">", x, OWN), Seq((store(x), Fail("no")))),
        Fail("no"),
        Seq((store(op("+", OWN, x)), store(op("+", OWN, x)))),
    ],
)
def test_other_statements_are_none(stmt):
    assert as_reduction(stmt) is None


@pytest.mark.parametrize(
    ("name", "dtype", "value"),
    [
        *(("+", int32, 0), ("*", float32, 1.0), ("and", bool_, True), ("or", bool_, False)),
        *(("min", int32, 2**31 - 1), ("max", int32, -(2**31)), ("max", uint8, 0)),
        *(("min", float32, float("inf")), ("max", float32, float("-inf")), ("max", bool_, False)),
    ],
)
def test_identities(name, dtype, value):
    found = identity(name, dtype)
    assert (found.value, found.dtype) == (value, dtype)
    assert type(found.value) is type(value)


def test_combining_scalars():
    assert evaluate(combine("max", const(3), Const(5, int64)), {}) == 5
