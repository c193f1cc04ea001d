"""What flat programs, expressions and host programs mean."""

from __future__ import annotations

import math

import numpy as np
import pytest

from spcomp import dtypes as dt
from spcomp.errors import ArgumentError, InternalError
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import (
    BinOp,
    Broadcast,
    Call,
    Cast,
    Reduce,
    Select,
    UnOp,
    binary,
    cast,
    const,
)
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import HostAlloc, Launch, Module, Return, Scan, single
from spcomp.ir.program import CoordFunc, FlatFunc
from spcomp.ir.stmt import Alloc, Evaluate, For, If, Let, Prefetch, Seq, While, seq
from tests.interpret_helpers import (
    add,
    dense,
    evaluate,
    f32,
    flat,
    get,
    handle,
    i32,
    i64,
    ids,
    loop,
    program,
    put,
    ramp,
    sp_iter,
    sparse,
    var,
)

i, j, x = var("i"), var("j"), var("x")


def binop(op, a, b, dtype):
    return evaluate(BinOp(op, const(a, dtype), const(b, dtype)))


@pytest.mark.parametrize(
    ("op", "a", "b", "dtype", "result"),
    [
        ("+", 127, 1, dt.int8, -128),
        ("*", 2**31 - 1, 2, i32, -2),
        ("-", 0, 1, dt.uint8, 255),
        ("+", 2**63 - 1, 1, i64, -(2**63)),
        ("//", -7, 2, i64, -4),
        ("%", -7, 2, i64, 1),
        ("//", 7, -2, i32, -4),
        ("%", 7, -2, i32, -1),
        ("//", 7, 2, dt.uint64, 3),
        ("min", -1, 2, i32, -1),
        ("<<", 1, 7, dt.int8, -128),
        (">>", -8, 1, i32, -4),
        ("^", 6, 3, i32, 5),
        ("&", 6, 3, i32, 2),
        ("|", 6, 3, i32, 7),
    ],
)
def test_integers_wrap_and_divide_towards_minus_infinity(op, a, b, dtype, result):
    value = binop(op, a, b, dtype)
    assert (value, value.dtype.name) == (result, dtype.numpy_name)


def test_floats_are_computed_in_their_own_width():
    assert binop("+", 1, 1e-8, dt.float32) == 1
    assert binop("+", 1, 1e-8, dt.float64) > 1
    assert binop("/", 1, 3, dt.float32) == np.float32(1) / np.float32(3)
    assert binop("/", 1, 0, dt.float64) == np.inf
    assert (binop("//", -1, 0.3, dt.float64), binop("%", -1, 0.75, dt.float64)) == (-4, 0.5)


def test_minimum_and_maximum_are_nan_if_a_side_is():
    for op in ("min", "max"):
        assert np.isnan(binop(op, math.nan, 1, f32))
        assert np.isnan(binop(op, 1, math.nan, dt.float64))


def test_division_by_zero_fails_the_call_and_gives_zero():
    out = flat("Out", 3, i32)
    y = ids(7, 7, 7)
    dividend = Broadcast(const(9, i32), 2)
    divisor = Cast(ramp(0, 2, 3), i32.with_lanes(2))
    quotients = put(out, (ramp(1, 2),), BinOp("//", dividend, divisor))
    body = seq(put(out, (0,), binary("%", const(1, i32), 0)), quotients)
    with pytest.raises(ArgumentError, match="integer division by zero"):
        interpret(program(FlatFunc, body, (out,)), {"out": y})
    assert y.tolist() == [0, 0, 3]


def test_only_what_decides_is_evaluated():
    zero = binary("==", binary("//", const(1), 0), 0)
    true, false = const(True, dt.bool_), const(False, dt.bool_)
    assert evaluate(BinOp("or", true, zero))
    assert not evaluate(BinOp("and", false, zero))
    assert evaluate(BinOp("and", true, UnOp("not", false)))
    assert evaluate(Select(true, const(3), binary("//", const(1), 0))) == 3
    assert evaluate(Select(false, binary("//", const(1), 0), const(4))) == 4


@pytest.mark.parametrize(
    ("value", "source", "target", "result"),
    [
        (-1.7, f32, i32, -1),
        (300, i32, dt.uint8, 44),
        (2, i64, dt.bool_, True),
        (2**24 + 1, i32, f32, 2**24),
        (True, dt.bool_, f32, 1),
        (-1, i32, dt.uint64, 2**64 - 1),
    ],
)
def test_casts_convert_as_numpy_does(value, source, target, result):
    assert evaluate(Cast(const(value, source), target)) == result


def test_sixteen_bit_floats_round_when_stored_or_cast_and_not_between():
    half = const(0.1, dt.float16)
    assert evaluate(half) == np.float16(0.1)
    tenth = Cast(const(2049, f32), dt.float16)
    assert evaluate(Cast(tenth, f32)) == 2048
    wide = BinOp("-", BinOp("+", const(2048, dt.float16), const(1, dt.float16)), tenth)
    assert evaluate(Cast(wide, f32)) == 1
    assert evaluate(const(1, dt.bfloat16)) == 0x3F80
    for value, bits in ((257, 0x4380), (259, 0x4382), (math.inf, 0x7F80), (math.nan, 0x7FC0)):
        assert evaluate(Cast(const(value, f32), dt.bfloat16)) == bits
    loaded = flat("A", 1, dt.bfloat16)
    out = flat("Out", 1, f32)
    body = put(out, (0,), Cast(get(loaded, 0), f32))
    array = np.zeros(1, "float32")
    interpret(program(FlatFunc, body, (loaded, out)), {"a": np.uint16([0xC020]), "out": array})
    assert array[0] == -2.5


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("exp", (1,), math.e),
        ("log", (2,), math.log(2)),
        ("log2", (8,), 3),
        ("sqrt", (2,), math.sqrt(2)),
        ("rsqrt", (4,), 0.5),
        ("abs", (-2,), 2),
        ("sigmoid", (0.5,), 1 / (1 + math.exp(-0.5))),
        ("tanh", (0.5,), math.tanh(0.5)),
        ("erf", (0.5,), math.erf(0.5)),
        ("pow", (2, -0.5), 2**-0.5),
        ("floor", (-0.5,), -1),
        ("ceil", (0.5,), 1),
        ("round", (2.5,), 2),
        ("trunc", (-1.5,), -1),
        ("sin", (1,), math.sin(1)),
        ("cos", (1,), math.cos(1)),
        ("fma", (2, 3, 4), 10),
        ("isnan", (math.nan,), True),
        ("isinf", (math.inf,), True),
    ],
)
@pytest.mark.parametrize("dtype", [dt.float64, dt.float32, dt.float16])
def test_functions_have_the_dtype_of_their_arguments(name, args, result, dtype):
    value = evaluate(Call(name, tuple(const(arg, dtype) for arg in args)))
    assert value == pytest.approx(result, rel={64: 1e-15, 32: 1e-6, 16: 1e-3}[dtype.bits])
    assert value.dtype.name == ("bool" if name.startswith("is") else dtype.numpy_name)


def test_functions_of_integers_stay_exact():
    big = 2**62 + 1
    assert evaluate(Call("floor", (const(big),))) == big
    assert evaluate(Call("abs", (const(-3, i32),))) == 3
    assert evaluate(Call("popcount", (const(255, i32),))) == 8
    assert evaluate(Call("popcount", (const(255, i32),))).dtype.name == "int32"
    assert evaluate(Call("popcount", (const(-1, dt.int8),))) == 8
    wraps = tuple(const(value) for value in (2**62, 2, -3))
    assert evaluate(Call("fma", wraps)) == 2**63 - 3
    power = [(3, 4, 81), (-1, -3, -1), (-1, -2, 1), (2, -1, 0), (0, 0, 1)]
    for base, exponent, result in power:
        assert evaluate(Call("pow", (const(base), const(exponent)))) == result


def test_fma_rounds_once():
    a = 1 + 2**-27
    assert evaluate(Call("fma", tuple(const(v, dt.float64) for v in (a, a, -1)))) == 2**-26 + 2**-54


def test_vectors_load_store_and_reduce_by_lanes():
    A, Y = flat("A", 8), flat("Y", 5)
    a, y = np.arange(8, dtype="float32"), np.full(5, 9, "float32")
    strided = get(A, ramp(1, 4, 2))
    doubled = BinOp("*", strided, Broadcast(const(2, f32), 4))
    total = Reduce("+", strided)
    body = seq(put(Y, (ramp(0, 4),), doubled), put(Y, (4,), total))
    interpret(program(FlatFunc, body, (A, Y)), {"a": a, "y": y})
    assert y.tolist() == [2, 6, 10, 14, 16]
    values = Cast(ramp(-1, 4, 2), i32.with_lanes(4))
    results = {op: evaluate(Reduce(op, values)) for op in ("+", "*", "min", "max")}
    assert results == {"+": 8, "*": -15, "min": -1, "max": 5}
    assert all(value.dtype.name == "int32" for value in results.values())
    chosen = Select(binary("<", ramp(0, 4), const(2)), ramp(0, 4), ramp(10, 4))
    assert evaluate(chosen).tolist() == [0, 1, 12, 13]


def test_lanes_that_what_was_before_decides_divide_nothing():
    lane, two = ramp(0, 4), Broadcast(const(2), 4)
    divides = BinOp(">", BinOp("//", two, lane), Broadcast(const(0), 4))
    positive, zero = BinOp(">", lane, Broadcast(const(0), 4)), BinOp("==", lane, lane - lane)
    assert evaluate(BinOp("and", positive, divides)).tolist() == [False, True, True, False]
    assert evaluate(BinOp("or", zero, divides)).tolist() == [True, True, True, False]
    assert evaluate(Select(positive, BinOp("//", two, lane), two)).tolist() == [2, 2, 1, 0]


def test_lanes_with_a_false_mask_touch_no_memory():
    A, Y = flat("A", 3), flat("Y", 4)
    a, y = np.float32([1, 2, 3]), np.full(4, 9, "float32")
    mask = BinOp("<", ramp(0, 4), Broadcast(const(3), 4))
    loaded = get(A, ramp(0, 4), mask=mask)
    interpret(program(FlatFunc, put(Y, (ramp(0, 4),), loaded), (A, Y)), {"a": a, "y": y})
    assert y.tolist() == [1, 2, 3, 0]
    ones = Broadcast(const(5, f32), 4)
    interpret(program(FlatFunc, put(A, (ramp(0, 4),), ones, mask), (A,)), {"a": a})
    assert a.tolist() == [5, 5, 5]
    off = get(A, 7, mask=const(False, dt.bool_))
    interpret(program(FlatFunc, put(A, (0,), off), (A,)), {"a": a})
    assert a.tolist() == [0, 5, 5]


@pytest.mark.parametrize("at", [-1, 3])
def test_an_offset_outside_the_array_is_a_bug_of_the_program(at):
    A = flat("A", 3)
    for body in (
        Evaluate(get(A, at)),
        put(A, (at,), 1.0),
        put(A, (ramp(at, 2),), get(A, ramp(0, 2))),
    ):
        with pytest.raises(InternalError, match=f"element {at} of A, which has 3"):
            interpret(program(FlatFunc, body, (A,)), {"a": np.zeros(3, "float32")})


def test_statements_run_in_order():
    A, N = flat("A", 6, i64), Buffer("N", None, (const(1),), i64)
    count = get(N, 0)
    odd = binary("==", binary("%", i, 2), 1)
    body = seq(
        put(N, (0,), const(0)),
        While(binary("<", count, 3), seq(add(A, (count,), const(10)), add(N, (0,), const(1)))),
        For(i, const(0), const(6), If(odd, add(A, (i,), i)), "parallel"),
        loop(j, 2, Let(x, binary("*", j, 5), put(A, (binary("+", j, 4),), x))),
        Prefetch(A, (const(100),)),
        Seq(()),
    )
    a = np.zeros(6, "int64")
    interpret(program(FlatFunc, Alloc(N, body), (A,)), {"a": a})
    assert a.tolist() == [10, 11, 10, 3, 0, 5]


def test_scalars_are_bound_by_name_in_their_dtype():
    A, alpha, n = flat("A", 2), var("alpha", f32), var("n", i32)
    body = seq(put(A, (0,), binary("*", alpha, const(2, f32))), put(A, (1,), cast(n, f32)))
    a = np.zeros(2, "float32")
    interpret(program(FlatFunc, body, (A,), (alpha, n)), {"a": a, "alpha": 0.1, "n": 7})
    assert a.tolist() == [np.float32(0.1) * 2, 7]


def phases():
    """Count and fill of the even numbers of x, by one host program."""
    m = var("m", i32)
    X = flat("X", 4, i32)
    P = Buffer("P", handle("Z_indptr"), (const(5),), i32)
    V = Buffer("V", handle("v"), (const(4),), i32)
    even = binary("==", binary("%", get(X, i), 2), const(0, i32))
    count = loop(i, cast(m, i64), If(even, put(P, (binary("+", i, 1),), 1)))
    fill = loop(i, cast(m, i64), If(even, put(V, (cast(get(P, i), i64),), get(X, i))))
    funcs = [
        program(FlatFunc, count, (X, P), (m,)).replace(name="count"),
        program(FlatFunc, fill, (X, P, V), (m,)).replace(name="fill"),
    ]
    source_m = var("m", i32)
    source = program(FlatFunc, Seq(()), (X,), (source_m,))
    Z = Buffer("Z_indptr", None, (binary("+", cast(source_m, i64), 1),), i32)
    v = Buffer("v", None, (cast(get(Z, cast(source_m, i64)), i64),), i32)
    host = (
        HostAlloc(Z),
        Launch("count"),
        Scan(Z),
        HostAlloc(v, -1),
        Launch("fill"),
        Return((Z, v)),
    )
    return Module(source, tuple(funcs), host)


def test_a_module_runs_its_host_program():
    made = interpret(phases(), {"x": ids(4, 5, 6, 8), "m": 4})
    assert {name: array.tolist() for name, array in made.items()} == {
        "Z_indptr": [0, 1, 1, 2, 3],
        "v": [4, 6, 8],
    }
    assert made["v"].dtype == np.int32


def test_a_host_program_that_reads_what_is_not_there_is_a_bug():
    module = phases()
    wrong = Module(module.source, module.funcs, module.host[3:])
    with pytest.raises(InternalError, match="the host program knows no Z_indptr"):
        interpret(wrong, {"x": ids(4, 5, 6, 8), "m": 4})
    beyond = HostAlloc(Buffer("v", None, (get(module.host[0].buffer, 9),), i32))
    short = Module(module.source, module.funcs, (module.host[0], beyond))
    with pytest.raises(InternalError, match="the host reads element 9 of Z_indptr"):
        interpret(short, {"x": ids(1), "m": 4})


def test_a_module_of_one_function_is_that_function():
    Y = sparse("Y", (dense("I", 2),))
    func = program(CoordFunc, sp_iter([Y.axes[0]], "S", [i], put(Y, (i,), 3.0)), (Y,))
    y = np.zeros(2, "float32")
    assert interpret(single(func), {"y": y}) == {}
    assert y.tolist() == [3, 3]


def test_an_unbound_variable_is_a_bug_of_the_program():
    with pytest.raises(InternalError, match="variable i is not bound"):
        interpret(program(FlatFunc, Evaluate(i)), {})
