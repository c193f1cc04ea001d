"""The simplifier and the bounds it stands on: same values, fewer operations."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spcomp.dtypes import bool_, float32, int8, int32, int64, uint8, uint32, wrap
from spcomp.ir.access import Load, Search
from spcomp.ir.arith.bounds import Env, dtype_range
from spcomp.ir.arith.simplify import Interval, bounds_of, simplify, simplify_stmt
from spcomp.ir.axis import Axis, Buffer, BufferDomain, SparseBuffer
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import (
    COMPARISONS,
    BinOp,
    Broadcast,
    Call,
    Cast,
    Const,
    Ramp,
    Select,
    UnOp,
    Var,
    const,
)
from spcomp.ir.position import Block, BlockIter, Case, Cursor, Merge
from spcomp.ir.program import FlatFunc
from spcomp.ir.stmt import Alloc, Evaluate, Fail, For, If, Let, Seq, Store, While
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk

x, y, z = (Var(name, int64) for name in "xyz")
a, b = (Var(name, int32) for name in "ab")
s, t = (Var(name, int8) for name in "st")
u = Var("u", uint8)
flag = Var("flag", bool_)
f = Var("f", float32)


class Failed(Exception):
    """A division by zero."""


def evaluate(expr, env):
    """The value of *expr* as the machine computes it."""
    match expr:
        case Var():
            return env[expr]
        case Const(value=value):
            return value
        case Cast(value=value, type=to):
            inner = evaluate(value, env)
            return bool(inner) if to.kind == "bool" else wrap(int(inner), to)
        case UnOp(op="not", value=value):
            return not evaluate(value, env)
        case UnOp(op=op, value=value):
            inner = evaluate(value, env)
            return wrap(-inner if op == "-" else ~inner, expr.dtype)
        case Select(cond=cond, then=then, otherwise=otherwise):
            return evaluate(then if evaluate(cond, env) else otherwise, env)
        case BinOp(op="and" | "or" as op, lhs=lhs, rhs=rhs):
            first = evaluate(lhs, env)
            return first if first == (op == "or") else evaluate(rhs, env)
        case BinOp(op=op, lhs=lhs, rhs=rhs):
            p, q = evaluate(lhs, env), evaluate(rhs, env)
            if op in ("//", "%") and q == 0:
                raise Failed
            rules = {
                "+": lambda: p + q,
                "-": lambda: p - q,
                "*": lambda: p * q,
                "//": lambda: p // q,
                "%": lambda: p % q,
                "min": lambda: min(p, q),
                "max": lambda: max(p, q),
                "&": lambda: p & q,
                "|": lambda: p | q,
                "^": lambda: p ^ q,
                "<": lambda: p < q,
                "<=": lambda: p <= q,
                ">": lambda: p > q,
                ">=": lambda: p >= q,
                "==": lambda: p == q,
                "!=": lambda: p != q,
            }
            value = rules[op]()
            return value if op in COMPARISONS else wrap(value, expr.dtype)
    raise AssertionError(expr)


def outcome(expr, env):
    try:
        return evaluate(expr, env)
    except Failed:
        return "failed"


DTYPES = (int64, int32, int8, uint8)
NAMES = {int64: (x, y, z), int32: (a, b), int8: (s, t), uint8: (u,)}
ARITHMETIC = ("+", "-", "*", "//", "%", "min", "max", "+", "-", "*", "&", "|", "^")


def random_integer(rng, dtype, depth):
    """A random expression of *dtype*; a seed drives it, drawing it node by node is slow."""
    if depth == 0 or rng.random() < 0.1:
        number = Const(rng.randint(0 if dtype.kind == "uint" else -9, 9), dtype)
        return rng.choice([*NAMES[dtype], number])
    match rng.randrange(8):
        case 0 | 1 | 2:
            sides = [random_integer(rng, dtype, depth - 1) for _ in range(2)]
            return BinOp(rng.choice(ARITHMETIC), *sides)
        case 3 | 4:
            number = Const(rng.choice([1, 2, 3, 4, 6, 8]), dtype)
            name = rng.choice(["//", "%", "*", "+"])
            return BinOp(name, random_integer(rng, dtype, depth - 1), number)
        case 5:
            return UnOp(rng.choice("-~"), random_integer(rng, dtype, depth - 1))
        case 6:
            sides = [random_integer(rng, dtype, depth - 1) for _ in range(2)]
            return Select(random_condition(rng, depth - 1), *sides)
    inner = random_integer(rng, rng.choice(DTYPES), depth - 1)
    return inner if inner.dtype == dtype else Cast(inner, dtype)


def random_condition(rng, depth):
    if depth > 0 and rng.random() < 0.4:
        sides = [random_condition(rng, depth - 1) for _ in range(2)]
        return rng.choice([UnOp("not", sides[0]), BinOp(rng.choice(["and", "or"]), *sides)])
    dtype = rng.choice(DTYPES)
    sides = [random_integer(rng, dtype, max(depth - 1, 0)) for _ in range(2)]
    return BinOp(rng.choice(sorted(COMPARISONS)), *sides)


def random_case(seed):
    """An expression, intervals of the variables, and some values inside them."""
    rng = random.Random(seed)
    if rng.random() < 0.7:
        expr = random_integer(rng, rng.choice(DTYPES), 4)
    else:
        expr = random_condition(rng, 4)
    bounds = {}
    for var in (x, y, z, a, b, s, t, u):
        full = dtype_range(var.type)
        near = Interval(max(full.low, -12), min(full.high, 12))
        within = rng.choice([near, full])
        bounds[var] = Interval(*sorted(rng.randint(within.low, within.high) for _ in range(2)))
    choose = [min, max, *[lambda ends: rng.randint(*ends)] * 3]
    values = [{v: pick((i.low, i.high)) for v, i in bounds.items()} for pick in choose]
    return expr, bounds, values


seeds = st.integers(0, 2**32)


@settings(max_examples=500)
@given(seeds)
def test_simplifying_changes_no_value_and_no_failure(seed):
    expr, bounds, cases = random_case(seed)
    simpler = simplify(expr, bounds)
    assert simpler.dtype == expr.dtype
    for values in cases:
        assert outcome(simpler, values) == outcome(expr, values)
    assert len(list(walk(simpler))) <= len(list(walk(expr)))


@settings(max_examples=300)
@given(seeds)
def test_bounds_hold_every_value(seed):
    expr, bounds, cases = random_case(seed)
    where = bounds_of(expr, bounds)
    for values in cases:
        found = outcome(expr, values)
        assert found == "failed" or int(found) in where


def same(expr, expected, bounds=None):
    return expr_equal(simplify(expr, bounds), expected)


def op(name, lhs, rhs):
    return BinOp(name, lhs, rhs)


P = Buffer("indptr", None, (x,), int32)


def at(index):
    return Cast(Load(P, (index,)), int64)


def test_sums_cancel():
    assert same(x + y - x, y)
    assert same(at(x) + (y - at(x)), y)
    assert same(x - x, const(0))
    assert same(x * 3 - x * 2, x)
    assert same((x + 1) * y - x * y, y)
    assert same(a + b - a, b)


def test_identities_of_integers():
    for expr in (
        x + 0,
        x * 1,
        x // 1,
        op("max", x, x),
        Select(flag, x, x),
        UnOp("-", UnOp("-", x)),
    ):
        assert simplify(expr) is x or expr_equal(simplify(expr), x)
    assert same(x * 0, const(0))
    assert same(x % 1, const(0))


def test_division_by_constants_uses_divisibility_and_bounds():
    small = {y: Interval(0, 3), x: Interval(0, 1 << 40)}
    assert same((x * 4 + y) // 4, x, small)
    assert same((x * 4 + y) % 4, y, small)
    assert same((x * 8 + y * 2) // 8, x, small)
    assert same(x // 4 // 2, x // 8, small)
    assert same((x // 2) * 2 + x % 2, x)
    assert same(((x // 6) * 3 + (x // 2) % 3) * 2 + x % 2, x)


def test_division_is_left_alone_where_the_sum_may_wrap():
    expr = (x * 4 + y) // 4
    assert simplify(expr, {y: Interval(0, 3)}) is expr
    assert same((x * 4 + y) % 4, y, {y: Interval(0, 3)})  # wrapping keeps multiples of 4


def test_a_division_that_may_fail_stays():
    for expr in (x // y - x // y, (x // y) * 0, op("and", op("<", x // y, x), Const(False, bool_))):
        assert any(isinstance(n, BinOp) and n.op == "//" for n in walk(simplify(expr)))
    assert same(x // y - x // y, const(0), {y: Interval(1, 5)})


def test_sums_that_do_not_get_shorter_stay_as_written():
    for expr in ((x + y) * z, x * 4 + y, x - y + z, op("min", x, y), x // y, (x * 2 + y) % 3):
        assert simplify(expr) is expr


def test_constants_fold_as_the_machine_computes():
    big = Const(2**31 - 1, int32)
    assert same(op("+", big, Const(1, int32)), Const(-(2**31), int32))
    assert same(op("//", const(-7), const(2)), const(-4))
    assert same(op("%", const(-7), const(2)), const(1))
    assert same(op("-", Const(0, uint32), Const(1, uint32)), Const(2**32 - 1, uint32))
    assert same(op("<<", const(1), const(4)), const(16))
    assert same(UnOp("~", const(0)), const(-1))
    zero = op("//", const(1), const(0))
    assert simplify(zero) is zero


def test_floats_keep_every_bit():
    one, nought = Const(1.0, float32), Const(0.0, float32)
    assert simplify(op("*", f, one)) is f
    assert simplify(op("*", one, f)) is f
    for expr in (op("+", f, nought), op("-", f, f), op("*", f, nought), op("<", f, f)):
        assert simplify(expr) is expr
    scaled = op("+", op("+", f, one), one)
    assert simplify(scaled) is scaled


def test_comparisons_are_decided_by_bounds_and_by_difference():
    near = {x: Interval(0, 9), y: Interval(10, 12)}
    assert same(op("<", x, y), Const(True, bool_), near)
    assert same(op("==", x, y), Const(False, bool_), near)
    assert same(op("==", x + 1, x), Const(False, bool_))
    assert same(op("<", x, x + 1), Const(True, bool_), near)
    undecided = op("<", x, x + 1)  # false for the greatest integer
    assert simplify(undecided) is undecided
    assert same(op("min", x, y), x, near)
    assert same(op("max", x, x + y), x + y, near)


def test_logic_and_choices_fold():
    true, false = Const(True, bool_), Const(False, bool_)
    assert same(op("and", flag, true), flag)
    assert same(op("or", flag, true), true)
    assert same(op("and", flag, flag), flag)
    assert same(UnOp("not", UnOp("not", flag)), flag)
    assert same(UnOp("not", op("<", x, y)), op(">=", x, y))
    nan = UnOp("not", op("<", f, f))
    assert simplify(nan) is nan
    assert same(Select(false, x, y), y)
    assert same(Select(op("<", x, const(5)), x, y), x, {x: Interval(0, 4)})


def test_casts_fold_and_join():
    assert same(Cast(Const(300, int32), int8), Const(44, int8))
    assert same(Cast(Const(3, int32), float32), Const(3.0, float32))
    assert same(Cast(Const(2.0, float32), int32), Const(2, int32))
    assert same(Cast(Cast(s, int32), int64), Cast(s, int64))
    assert same(Cast(Cast(a, int64), int32), a)
    assert same(Cast(Cast(x, int32), int64), x, {x: Interval(0, 100)})
    wraps = Cast(Cast(x, int32), int64)
    assert simplify(wraps) is wraps
    rounds = Cast(Cast(a, float32), int64)
    assert simplify(rounds) is rounds
    inexact = Cast(Const(2**24 + 1, int32), float32)
    assert simplify(inexact) is inexact


def test_an_unchanged_statement_is_the_same_object():
    buffer = Buffer("B", None, (x,), float32)
    loop = For(y, const(0), x, Store(buffer, (y,), f))
    assert simplify_stmt(loop) is loop


B = Buffer("B", None, (x,), float32)
EMPTY = Seq(())


def body(index=y):
    return Store(B, (index,), f)


def test_loops_that_never_run_go_and_loops_that_run_once_stay():
    assert simplify_stmt(For(y, const(3), const(3), body())).body == ()
    assert simplify_stmt(For(y, x, x, body())).body == ()
    once = For(y, const(0), const(1), Evaluate(y + x))
    kept = simplify_stmt(once)
    assert isinstance(kept, For)
    assert kept.body.value is not None


def test_branches_that_are_known_are_taken():
    true = op("<", const(1), const(2))
    assert isinstance(simplify_stmt(If(true, body(), Fail("no"))), Store)
    assert simplify_stmt(If(UnOp("not", true), body())).body == ()
    assert isinstance(simplify_stmt(If(UnOp("not", true), body(), Fail("no"))), Fail)
    assert simplify_stmt(If(flag, EMPTY)).body == ()
    assert simplify_stmt(If(flag, body(), EMPTY)).otherwise is None
    assert isinstance(simplify_stmt(If(op("<", x // y, x), EMPTY)), If)
    assert simplify_stmt(While(UnOp("not", true), body())).body == ()


def test_sequences_flatten():
    first, second = body(), Fail("no")
    flat = simplify_stmt(Seq((Seq((first, EMPTY)), Seq((second,)), Evaluate(const(1)))))
    assert flat.body == (first, second)
    assert simplify_stmt(Seq((first,))) is first
    assert simplify_stmt(Alloc(B, EMPTY)).body == ()


def test_guards_are_decided_by_the_loops_around_them():
    io, ii = Var("io", int64), Var("ii", int64)
    m = Cast(a, int64)
    guarded = If(op("<", io * 4 + ii, m), body(io * 4 + ii))

    def nest(outer):
        return For(io, const(0), outer, For(ii, const(0), const(4), guarded))

    assert isinstance(simplify_stmt(nest(m // 4)).body.body, Store)
    assert isinstance(simplify_stmt(nest((m + 3) // 4)).body.body, If)


def test_let_and_block_variables_have_the_bounds_of_their_values():
    inside = If(op("<", z, const(8)), body(z))
    let = For(y, const(0), const(4), Let(z, y * 2, inside))
    assert isinstance(simplify_stmt(let).body.body, Store)
    block = Block("b", (BlockIter(z, const(4), y),), (), (), None, inside)
    assert isinstance(simplify_stmt(For(y, const(0), const(8), block)).body.body, Store)


def test_the_guard_of_a_block_is_not_decided_by_what_it_guards():
    where = op("<", z, const(6))
    block = Block("b", (BlockIter(z, const(6), y),), (), (), None, body(z), where)
    loop = For(y, const(0), const(8), block)
    assert simplify_stmt(loop) is loop
    assert simplify_stmt(For(y, const(0), const(6), block)).body.where is None


def test_domains_of_buffers_bound_what_is_loaded():
    index = Buffer("indices", None, (x,), int32)
    value = Cast(Load(index, (y,)), int64)
    guard = For(y, const(0), const(4), If(op("<", value, const(10)), body(value)))
    domain = BufferDomain(index, const(0), const(9))
    func = FlatFunc("f", (), (), (index, B), guard, (domain,))
    assert isinstance(simplify_stmt(func).body.body, Store)
    assert simplify_stmt(func.replace(domains=())).body is guard


def test_coordinates_lie_within_the_length_of_their_axis():
    axis = Axis("I", "dense_fixed", a)
    C = SparseBuffer("C", None, (axis,), float32)
    inside = op("and", op("<", y, Cast(a, int64)), op(">=", y, const(0)))
    it = SpIter((y,), (axis,), "S", "it", None, If(inside, Store(C, (y,), f)))
    assert isinstance(simplify_stmt(it).body, Store)


def test_cursors_lie_between_their_ends():
    inside = op(">=", z, const(0))
    merge = Merge(
        "union", y, (Cursor(z, None, const(0), x),), (Case((True,), If(inside, body(z))),)
    )
    assert isinstance(simplify_stmt(merge).cases[0].body, Store)


@pytest.mark.parametrize(
    ("expr", "low", "high"),
    [
        (Call("popcount", (x,)), 0, 64),
        (Call("abs", (s,)), -128, 127),  # abs(-128) wraps
        (Search("lower", P, const(2), const(9), x), 2, 9),
        (Ramp(const(4), -1, 4), 1, 4),
        (Broadcast(const(4), 4), 4, 4),
        (Load(P, (x,), flag), 0, 7),
        (op("<<", Const(1, int8), Const(3, int8)), 8, 8),
        (op(">>", u, Const(4, uint8)), 0, 15),
        (op("&", s, Const(6, int8)), 0, 6),
        (op("|", u, Const(1, uint8)), 0, 255),
    ],
)
def test_bounds_of_other_nodes(expr, low, high):
    assert bounds_of(expr, Env({}, {P: Interval(5, 7)})) == Interval(low, high)


def test_a_coordinate_that_is_not_stored_reads_as_fill():
    axis = Axis("I", "dense_fixed", a)
    E = SparseBuffer("E", None, (axis,), int32, fill=-1)
    assert bounds_of(Load(E, (x,)), Env({}, {E: Interval(0, 4)})) == Interval(-1, 4)


def test_intervals():
    assert Interval(0, None) * Interval(-1, 2) == Interval()
    assert Interval(0, None) * Interval(2, 2) == Interval(0, None)
    assert Interval(None, 3) | Interval(5, 6) == Interval(None, 6)
    assert Interval(0, 3) & Interval(2, None) == Interval(2, 3)
    assert 3 in Interval(3, None)
    assert Interval(0, None) not in Interval(0, 5)
