"""Flat IR to machine code: expressions against numpy, on functions built by hand."""

import math

import numpy as np
import pytest

from spcomp import dtypes as dt
from spcomp.codegen import cpu
from spcomp.codegen.abi import pack
from spcomp.errors import InternalError, LoweringError
from spcomp.ir import expr as ex
from spcomp.ir import stmt as st
from spcomp.ir.access import Load
from spcomp.ir.axis import WORKSPACE, Buffer
from spcomp.ir.expr import const
from spcomp.ir.module import Module, single
from spcomp.ir.program import FlatFunc
from spcomp.runtime.executable import Executable
from spcomp.target import target

ANY = (const(1),)  # the size of a parameter buffer is the caller's business
GENERIC = "cpu:x86-64"


def buffer(name, dtype):
    return Buffer(name, ex.Var(name, dt.handle), ANY, dtype)


def load(buf, index, mask=None):
    return Load(buf, (index if isinstance(index, ex.Expr) else const(index),), mask)


def store(buf, index, value, mask=None, atomic=False):
    index = index if isinstance(index, ex.Expr) else const(index)
    return st.Store(buf, (index,), value, mask, atomic)


def loop(var, end, body, kind="serial", begin=0, **attrs):
    end = end if isinstance(end, ex.Expr) else const(end)
    return st.For(var, const(begin), end, body, kind, attrs=tuple(attrs.items()))


def function(body, *params, name="f", **attrs):
    """A function of buffers and scalar variables."""
    variables = tuple(p.data if isinstance(p, Buffer) else p for p in params)
    buffers = tuple(p for p in params if isinstance(p, Buffer))
    return FlatFunc(name, variables, (), buffers, body, attrs=tuple(attrs.items()))


def build(func, where="cpu"):
    return Executable(cpu.emit(single(func), target(where)), target(where))


def slots_of(executable, args, name="f"):
    params = executable.emitted[name].params
    return np.array(
        [
            a.ctypes.data if isinstance(a, np.ndarray) else pack(p.dtype, a)
            for p, a in zip(params, args, strict=True)
        ],
        np.int64,
    )


def run(func, *args, where="cpu"):
    executable = build(func, where)
    return executable.call(func.name, slots_of(executable, args, func.name))


def elementwise(make, in_dtypes, out_dtype, lanes, where="cpu"):
    """Return a callable on arrays: out[i] = make(ins[i]...), by vectors of *lanes*."""
    i = ex.Var("i", dt.int64)
    ins = [buffer(f"in{k}", d) for k, d in enumerate(in_dtypes)]
    out, n = buffer("out", out_dtype), ex.Var("n", dt.int64)
    index = i if lanes == 1 else ex.Ramp(i * lanes, 1, lanes)
    body = loop(i, n, store(out, index, make(*[load(b, index) for b in ins])))
    executable = build(function(body, out, *ins, n), where)

    def call(*arrays, out_type=None):
        result = np.empty(len(arrays[0]), out_type or out_dtype.numpy_name)
        status = executable.call("f", slots_of(executable, [result, *arrays, len(result) // lanes]))
        return result, status

    return call


def values(dtype, n=64, seed=0):
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        x = rng.normal(size=n) * 4
        return x.astype(dtype.numpy_name) if dtype.kind == "float" else to_bfloat(x)
    if dtype.kind == "bool":
        return rng.integers(0, 2, n).astype(bool)
    info = np.iinfo(dtype.numpy_name)
    x = rng.integers(info.min, info.max, n, dtype=dtype.numpy_name, endpoint=True)
    x[:4] = [info.min, info.max, 0, 1]
    return x


def to_bfloat(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def widen(x, dtype):
    if dtype.kind == "bfloat":
        return from_bfloat(x)
    return x.astype(np.float32) if dtype == dt.float16 else x


ARITHMETIC = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
NUMBERS = [d for d in dt.SCALARS if d.kind != "bool"]


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_operators_agree_with_numpy_for_every_dtype(dtype, lanes):
    a, b = values(dtype, seed=1), values(dtype, seed=2)
    b[::7] = a[::7]
    body, outs = [], []
    ins = [buffer("a", dtype), buffer("b", dtype)]
    i = ex.Var("i", dt.int64)
    index = i if lanes == 1 else ex.Ramp(i * lanes, 1, lanes)
    for k, op in enumerate(ARITHMETIC):
        value = ex.BinOp(op, load(ins[0], index), load(ins[1], index))
        outs.append(buffer(f"o{k}", value.dtype.element))
        body.append(store(outs[-1], index, value))
    func = function(loop(i, 64 // lanes, st.Seq(tuple(body))), *ins, *outs)
    results = [np.empty(64, o.dtype.numpy_name) for o in outs]
    assert run(func, a, b, *results) == 0
    with np.errstate(all="ignore"):
        for (op, numpy_op), result in zip(ARITHMETIC.items(), results, strict=True):
            expected = numpy_op(widen(a, dtype), widen(b, dtype))
            if expected.dtype == np.float32 and dtype.bits == 16:
                expected = (
                    to_bfloat(expected) if dtype.kind == "bfloat" else expected.astype(np.float16)
                )
            assert np.array_equal(result, expected), op


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [dt.int8, dt.int32, dt.int64, dt.uint8, dt.uint64], ids=str)
def test_floor_division_shifts_and_bits_agree_with_numpy(dtype, lanes):
    a, b = values(dtype, seed=1), values(dtype, seed=2)
    b[b == 0] = 3
    shifts = (values(dtype, seed=3) % (dtype.bits + 8)).astype(dtype.numpy_name)
    with np.errstate(over="ignore"):
        for op, numpy_op, rhs in [
            ("//", np.floor_divide, b),
            ("%", np.remainder, b),
            ("&", np.bitwise_and, b),
            ("|", np.bitwise_or, b),
            ("^", np.bitwise_xor, b),
            ("<<", np.left_shift, shifts),
            (">>", np.right_shift, shifts),
        ]:
            call = elementwise(lambda x, y, op=op: ex.BinOp(op, x, y), [dtype] * 2, dtype, lanes)
            result, status = call(a, rhs)
            assert status == 0
            assert np.array_equal(result, numpy_op(a, rhs)), op


@pytest.mark.parametrize("divisor", [1, 2, 3, 8, -1, -2, -7])
def test_division_by_a_constant_rounds_down(divisor):
    a = values(dt.int32)
    for op, numpy_op in (("//", np.floor_divide), ("%", np.remainder)):
        call = elementwise(
            lambda x, op=op: ex.BinOp(op, x, const(divisor, dt.int32)), [dt.int32], dt.int32, 1
        )
        with np.errstate(over="ignore"):
            assert np.array_equal(call(a)[0], numpy_op(a, np.int32(divisor)))


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [dt.int32, dt.int64, dt.uint8], ids=str)
def test_integer_division_by_zero_sets_the_status_and_does_not_trap(dtype, lanes):
    a, b = values(dtype, 16), np.ones(16, dtype.numpy_name)
    b[5] = 0
    for op in ("//", "%"):
        call = elementwise(lambda x, y, op=op: ex.BinOp(op, x, y), [dtype] * 2, dtype, lanes)
        assert call(a, b)[1] == -1
        assert call(a, np.ones_like(b))[1] == 0


def test_least_integer_divided_by_minus_one_wraps():
    a = np.full(4, np.iinfo(np.int64).min)
    b = np.full(4, -1)
    call = elementwise(lambda x, y: x // y, [dt.int64] * 2, dt.int64, 1)
    result, status = call(a, b)
    assert status == 0
    assert np.array_equal(result, a)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=str)
def test_float_floor_division_agrees_with_numpy(dtype, lanes):
    a, b = values(dtype, seed=1), values(dtype, seed=2)
    a[:6] = [6, -6, 5.5, -5.5, 1, -1]
    b[:6] = [3, 3, -2, 2, 0, 0]
    with np.errstate(all="ignore"):
        for op, numpy_op in (("//", np.floor_divide), ("%", np.remainder)):
            call = elementwise(lambda x, y, op=op: ex.BinOp(op, x, y), [dtype] * 2, dtype, lanes)
            assert np.array_equal(call(a, b)[0], numpy_op(a, b), equal_nan=True)


FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "abs": np.abs,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "sin": np.sin,
    "cos": np.cos,
}


@pytest.mark.parametrize("where", ["cpu", GENERIC])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16, dt.bfloat16], ids=str)
def test_functions_agree_with_numpy(dtype, lanes, where):
    i = ex.Var("i", dt.int64)
    index = i if lanes == 1 else ex.Ramp(i * lanes, 1, lanes)
    source = buffer("a", dtype)
    outs = [buffer(f"o_{name}", dtype) for name in FUNCTIONS]
    body = [
        store(out, index, ex.Call(name, (load(source, index),)))
        for out, name in zip(outs, FUNCTIONS, strict=True)
    ]
    a = values(dtype, 32)
    a[:4] = values(dtype, 4, 9) if dtype.kind == "bfloat" else [0.5, -1.5, 2.5, np.inf]
    results = [np.empty(32, dtype.numpy_name) for _ in outs]
    func = function(loop(i, 32 // lanes, st.Seq(tuple(body))), source, *outs)
    assert run(func, a, *results, where=where) == 0
    eps = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 5e-7, "float64": 1e-14}[str(dtype)]
    with np.errstate(all="ignore"):
        for (name, numpy_function), result in zip(FUNCTIONS.items(), results, strict=True):
            expected = numpy_function(widen(a, dtype).astype(np.float64))
            np.testing.assert_allclose(
                widen(result, dtype), expected, rtol=eps, atol=eps, err_msg=name
            )


@pytest.mark.parametrize("lanes", [1, 4])
def test_functions_of_several_arguments_and_tests(lanes):
    a, b, c = (np.abs(values(dt.float64, 16, s)) for s in range(3))
    power = elementwise(lambda x, y: ex.Call("pow", (x, y)), [dt.float64] * 2, dt.float64, lanes)
    np.testing.assert_allclose(power(a, b)[0], a**b, rtol=1e-13)
    fused = elementwise(
        lambda x, y, z: ex.Call("fma", (x, y, z)), [dt.float64] * 3, dt.float64, lanes
    )
    np.testing.assert_allclose(fused(a, b, c)[0], a * b + c, rtol=1e-15)
    special = np.array([0, np.nan, np.inf, -np.inf] * 4)
    for name, test in (("isnan", np.isnan), ("isinf", np.isinf)):
        call = elementwise(lambda x, n=name: ex.Call(n, (x,)), [dt.float64], dt.bool_, lanes)
        assert np.array_equal(call(special)[0], test(special))


@pytest.mark.parametrize("lanes", [1, 4])
def test_functions_of_integers(lanes):
    a = np.array([-3, -1, 0, 1, 2, 5, 7, -2], np.int32)
    b = np.array([3, -3, 0, -5, 10, 2, -1, 1], np.int32)
    power = elementwise(lambda x, y: ex.Call("pow", (x, y)), [dt.int32] * 2, dt.int32, lanes)
    assert power(a, b)[0].tolist() == [-27, -1, 1, 1, 1024, 25, 0, -2]
    absolute = elementwise(lambda x: ex.Call("abs", (x,)), [dt.int32], dt.int32, lanes)
    assert np.array_equal(absolute(a)[0], np.abs(a))
    bits = elementwise(lambda x: ex.Call("popcount", (x,)), [dt.int32], dt.int32, lanes)
    assert np.array_equal(bits(a)[0], np.bitwise_count(a.view(np.uint32)))
    same = elementwise(lambda x: ex.Call("floor", (x,)), [dt.int32], dt.int32, lanes)
    assert np.array_equal(same(a)[0], a)


@pytest.mark.parametrize("index", [dt.int8, dt.int32, dt.uint32, dt.int64], ids=str)
@pytest.mark.parametrize("lanes", [2, 3, 4, 8])
def test_lanes_are_read_where_indices_of_any_dtype_say(lanes, index):
    places, x, out = buffer("places", index), buffer("x", dt.float64), buffer("out", dt.float64)
    every = ex.Ramp(const(0), 1, lanes)
    func = function(store(out, every, load(x, load(places, every))), places, x, out)
    at, values = np.arange(lanes)[::-1] * 3, np.arange(30.0)
    result = np.zeros(lanes)
    assert run(func, at.astype(index.numpy_name), values, result) == 0
    assert result.tolist() == at.tolist()


def test_a_function_of_floats_on_integers_is_refused():
    with pytest.raises(LoweringError, match="exp of int32"):
        elementwise(lambda x: ex.Call("exp", (x,)), [dt.int32], dt.int32, 1)


@pytest.mark.parametrize("where", ["cpu", GENERIC])
def test_minimum_and_maximum_propagate_nan(where):
    a, b = np.array([1, np.nan, 3, np.nan]), np.array([np.nan, 2, 4, np.nan])
    for op, numpy_op in (("min", np.minimum), ("max", np.maximum)):
        for lanes in (1, 4):
            call = elementwise(
                lambda x, y, op=op: ex.BinOp(op, x, y), [dt.float64] * 2, dt.float64, lanes, where
            )
            assert np.array_equal(call(a, b)[0], numpy_op(a, b), equal_nan=True)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("source", dt.SCALARS, ids=str)
@pytest.mark.sample(8)
def test_casts_agree_with_astype(source, lanes):
    a = values(source, 32, 3)
    wide = widen(a, source)
    for goal in dt.SCALARS:
        if source.is_float and goal.kind == "uint":
            continue  # a negative one gives any integer
        call = elementwise(lambda x, g=goal: ex.Cast(x, g.with_lanes(lanes)), [source], goal, lanes)
        result, _ = call(a)
        with np.errstate(all="ignore"):
            expected = (
                to_bfloat(wide.astype(np.float32))
                if goal.kind == "bfloat"
                else wide.astype(goal.numpy_name)
            )
        if source.is_float and goal.is_integer:
            inside = np.abs(np.trunc(wide.astype(np.float64))) < 2.0 ** (goal.bits - 1)
            result, expected = result[inside], expected[inside]
        assert np.array_equal(result, expected), goal


def test_float_to_integer_casts_saturate():
    a = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -1.9, 1.9, 0])
    call = elementwise(lambda x: ex.Cast(x, dt.int32), [dt.float64], dt.int32, 1)
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    assert call(a)[0].tolist() == [0, high, low, high, low, -1, 1, 0]


def test_unary_operators():
    a = values(dt.int32)
    for op, numpy_op in (("-", np.negative), ("~", np.invert)):
        call = elementwise(lambda x, op=op: ex.UnOp(op, x), [dt.int32], dt.int32, 4)
        with np.errstate(over="ignore"):
            assert np.array_equal(call(a)[0], numpy_op(a))
    b = values(dt.bool_)
    for lanes in (1, 4):
        call = elementwise(lambda x: ex.UnOp("not", x), [dt.bool_], dt.bool_, lanes)
        assert np.array_equal(call(b)[0], ~b)
    call = elementwise(lambda x: ex.UnOp("-", x), [dt.float32], dt.float32, 1)
    c = values(dt.float32)
    assert np.array_equal(call(c)[0], -c)


def test_division_of_integers_by_slash_is_refused():
    with pytest.raises(LoweringError, match="/ of int32"):
        elementwise(lambda x, y: ex.BinOp("/", x, y), [dt.int32] * 2, dt.int32, 1)


@pytest.mark.parametrize(
    "name", ["exp", "malloc", "calloc", "main", "sincos", "größe", "spcomp_parallel_for"]
)
def test_a_function_may_have_any_name(name):
    out, work = buffer("out", dt.float64), Buffer("work", None, ANY, dt.float64, WORKSPACE)
    exp, sin, cos = (ex.Call(func, (load(out, 0),)) for func in ("exp", "sin", "cos"))
    body = st.Alloc(work, store(out, 0, exp * (sin + cos) + load(work, 0)))
    result = np.zeros(1)
    assert run(function(body, out, name=name), result) == 0
    assert result[0] == 1


@pytest.mark.parametrize("other", ["f__par0", "f__loop0"])
def test_a_function_may_be_called_like_the_loops_of_another(other):
    def twice(name, value):
        i, out = ex.Var("i", dt.int64), buffer("out", dt.int32)
        loops = [loop(ex.Var("k", dt.int64), 1, store(out, i, value(out, i))) for _ in range(4)]
        return function(loop(i, 3, st.seq(*loops), "parallel"), out, name=name)

    funcs = twice("f", lambda *_: const(2, dt.int32)), twice(other, lambda out, i: load(out, i) * 3)
    executable = Executable(cpu.emit(Module(funcs[0], funcs, ()), target("cpu")), target("cpu"))
    result = np.zeros(3, np.int32)
    for name in ("f", other):
        assert executable.call(name, slots_of(executable, [result], name)) == 0
    assert result.tolist() == [2 * 3**4] * 3


@pytest.mark.parametrize("dtype", dt.SCALARS, ids=str)
def test_scalars_of_every_dtype_are_passed_in_slots(dtype):
    out, x = buffer("out", dtype), ex.Var("x", dtype)
    result = np.zeros(1, dtype.numpy_name)
    value = {"bool": True, "float": -1.5, "bfloat": -1.5, "int": -7, "uint": 200}[dtype.kind]
    assert run(function(store(out, 0, x), out, x), result, value) == 0
    assert widen(result, dtype)[0] == value


def test_an_undefined_variable_is_our_bug():
    out = buffer("out", dt.int64)
    with pytest.raises(InternalError, match="ghost"):
        build(function(store(out, 0, ex.Var("ghost", dt.int64)), out))


def test_a_loop_bound_to_a_gpu_thread_is_refused():
    out, i = buffer("out", dt.int64), ex.Var("i", dt.int64)
    body = st.For(i, const(0), const(4), store(out, i, i), "bound", "threadIdx.x")
    with pytest.raises(LoweringError, match=r"threadIdx\.x"):
        build(function(body, out))
