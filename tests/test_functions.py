"""Every function of one and two numbers: against numpy, in every dtype, at every length."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

import spcomp
from spcomp import dtypes as dt
from spcomp.codegen import cpu
from spcomp.ir import expr as ex
from spcomp.ir.expr import ARITY, CALLS, NUMPY_NAMES, const
from spcomp.ir.module import Module
from spcomp.runtime.executable import Executable
from spcomp.script.parse import parse_source
from spcomp.target import target
from tests.test_codegen import buffer, from_bfloat, function, load, slots_of, store, to_bfloat

UNITS = 4  # of the last place that a result may be wrong by, as docs/notation.md says
NOT_OF_FLOATS_TO_FLOATS = {"popcount", "isnan", "isinf", "fma"}
FUNCTIONS = sorted(CALLS - NOT_OF_FLOATS_TO_FLOATS)
OF_ONE = [name for name in FUNCTIONS if ARITY[name] == 1]
OF_TWO = [name for name in FUNCTIONS if ARITY[name] == 2]
DTYPES = ("float64", "float32", "float16", "bfloat16")
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, np.pi / 2, 1e-8, -1e-8]
TINY = {"float64": 5e-324, "float32": 1e-45, "float16": 6e-8, "bfloat16": 9.2e-41}
HUGE = {"float64": 1.7e308, "float32": 3.4e38, "float16": 65504.0, "bfloat16": 3.38e38}


def numpys(name):
    """The function in numpy, of arrays of any float type."""
    own = {
        "erf": np.vectorize(math.erf, otypes=[np.float64]),
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "pow": np.power,
    }
    return own.get(name) or getattr(np, NUMPY_NAMES.get(name, name))


def stored(x, dtype):
    """The numbers *x* as an array of *dtype*, bfloat16 as its bits."""
    with np.errstate(over="ignore"):
        return to_bfloat(x) if dtype == "bfloat16" else np.asarray(x).astype(dtype)


def read(x, dtype):
    """What :func:`stored` holds, in a type at least as wide."""
    return from_bfloat(x) if dtype == "bfloat16" else x


def numbers(dtype, count, seed=0):
    """Numbers of all sizes and both signs, special ones first."""
    rng = np.random.default_rng(seed)
    edges = [*SPECIAL, TINY[dtype], -TINY[dtype], 40 * TINY[dtype], HUGE[dtype], -HUGE[dtype]]
    spread = rng.normal(size=count) * 10.0 ** rng.integers(-6, 4, count)
    return np.concatenate([edges, rng.uniform(-1, 1, count), spread])[:count]


def units(found, exact, dtype):
    """How many units of the last place of *dtype* each of *found* is off, inf if it is no match."""
    wide = np.longdouble
    found, exact = found.astype(wide), np.asarray(exact, wide)
    with np.errstate(all="ignore"):
        rounded = stored(exact, dtype) if dtype != "bfloat16" else to_bfloat(exact.astype("f4"))
        rounded = read(rounded, dtype).astype(wide)
        spacing = {"bfloat16": lambda x: np.spacing(x.astype("f4")).astype(wide) * 65536}
        unit = spacing.get(dtype, lambda x: np.spacing(x.astype(dtype)).astype(wide))(rounded)
        off = np.abs(found - exact) / np.abs(unit)
        same = (found == rounded) & (np.signbit(found) == np.signbit(rounded))
        same |= np.isnan(found) & np.isnan(exact)
        near = np.isfinite(found) & np.isfinite(rounded) & (off <= UNITS) & (found != 0)
        near |= (found == 0) & (rounded == 0) & same
        near |= ~np.isfinite(rounded) & (np.abs(found) >= HUGE[dtype] * 0.999) & ~np.isnan(rounded)
    return np.where(same, 0, np.where(near, off, np.inf))


@cache
def kernel(name, dtype):
    args = ", ".join(f"{letter.upper()}[i]" for letter in "xz"[: ARITY[name]])
    handles = "".join(f"{letter}: T.handle, " for letter in "xz"[: ARITY[name]])
    matches = "".join(
        f'    {letter.upper()} = T.match_sparse_buffer({letter}, (N,), "{dtype}")\n'
        for letter in "xz"[: ARITY[name]]
    )
    text = f"""@T.prim_func
def f({handles}y: T.handle, n: T.int32) -> None:
    N = T.dense_fixed(n)
{matches}    Y = T.match_sparse_buffer(y, (N,), "{dtype}")
    with T.sp_iter([N], "S", "f") as [i]:
        Y[i] = T.{name}({args})
"""
    return spcomp.compile(parse_source(text, f"{name}.py")[0])


def exact_of(name, *arrays):
    """The function of *arrays* in the widest type there is."""
    with np.errstate(all="ignore"):
        if name == "erf":
            return numpys(name)(*(a.astype(np.float64) for a in arrays))
        return numpys(name)(*(a.astype(np.longdouble) for a in arrays))


def check(name, dtype, *arrays):
    found = np.zeros(len(arrays[0]), "uint16" if dtype == "bfloat16" else dtype)
    kernel(name, dtype)(*arrays, found, len(found))
    wide = [read(a, dtype) for a in arrays]
    off = units(read(found, dtype), exact_of(name, *wide), dtype)
    at = int(off.argmax())
    assert off.max() <= UNITS, (name, [float(a[at]) for a in wide], read(found, dtype)[at], off[at])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.sample(8)
def test_a_function_is_within_four_units_of_the_last_place(name, dtype):
    check(name, dtype, stored(numbers(dtype, 1000), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OF_TWO)
def test_a_function_of_two_is_within_four_units_of_the_last_place(name, dtype):
    some = stored(numbers(dtype, 60), dtype)
    check(name, dtype, np.repeat(some, len(some)), np.tile(some, len(some)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_has_the_same_bits_at_every_length(name, dtype):
    letters = "XZ"[: ARITY[name]]
    arrays = {x: stored(numbers(dtype, 129, ord(x)), dtype) for x in letters}
    whole = kernel(name, dtype)(**arrays)
    for length in range(1, 129):
        part = kernel(name, dtype)(**{x: a[-length:] for x, a in arrays.items()})
        np.testing.assert_array_equal(part, whole[-length:])


def pairs(name, dtype, lanes):
    """A function for each ``name(g(x))`` and ``name(x) op g(x)``, of a vector; with g and op."""
    index, kind = ex.Ramp(const(0), 1, lanes), getattr(dt, dtype)
    funcs = []
    for other in OF_ONE:
        x, out = buffer("x", kind), buffer("out", kind)
        first, second = (ex.Call(func, (load(x, index),)) for func in (name, other))
        made = {op: ex.BinOp(op, first, second) for op in "/*-"}
        made["of"] = ex.Call(name, (second,))
        for op, value in made.items():
            func = function(store(out, index, value), x, out, name=f"{other}_{'/*-of'.find(op)}")
            funcs.append((func, other, op))
    return funcs


@pytest.mark.parametrize(
    ("dtype", "lanes", "fast_math"),
    [
        ("float64", 2, True),
        pytest.param("float64", 2, False, marks=pytest.mark.long),
        pytest.param("float32", 4, True, marks=pytest.mark.long),
        pytest.param("float32", 16, False, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.sample(16, long=16)
def test_two_functions_in_one_expression_are_what_they_are_alone(name, dtype, lanes, fast_math):
    made = pairs(name, dtype, lanes)
    where = target("cpu")
    emitted = cpu.emit(
        Module(made[0][0], tuple(func for func, _, _ in made), ()), where, fast_math=fast_math
    )
    code = Executable(emitted, where)
    x = stored(numbers(dtype, 48), dtype)
    alone = {func: kernel(func, dtype)(X=x) for func in OF_ONE}
    apply = {"/": np.divide, "*": np.multiply, "-": np.subtract}
    for func, other, op in made:
        found = np.zeros_like(x)
        for at in range(0, len(x), lanes):
            part = slice(at, at + lanes)
            assert code.call(func.name, slots_of(code, [x[part], found[part]], func.name)) == 0
        with np.errstate(all="ignore"):
            if op == "of":
                expected = kernel(name, dtype)(X=alone[other])
            else:
                expected = apply[op](alone[name], alone[other])
        few = 4 * np.finfo(dtype).eps if fast_math else 0
        np.testing.assert_allclose(found, expected, rtol=few, atol=0, err_msg=f"{name}{op}{other}")


def test_sigmoid_of_numbers_far_below_zero_is_subnormal():
    """Where ``exp(-x)`` overflows, ``1 / (1 + exp(-x))`` would be 0."""
    x = np.float32([-88.72283, -88.72284, -95, -103, -104, -np.inf, np.nan])
    result = spcomp.compile("y[i] = sigmoid(x[i])")(x=x)
    wide = x.astype(np.float64)
    expected = (np.exp(wide) / (1 + np.exp(wide))).astype(np.float32)
    np.testing.assert_array_max_ulp(result[:-1], expected[:-1], maxulp=2)
    assert np.isnan(result[-1])
