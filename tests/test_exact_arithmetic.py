"""Floats are added and multiplied in the order written, unless ``fast_math`` lets it be."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import dtypes as dt
from spcomp import script as T
from spcomp.codegen import cpu
from spcomp.errors import ArgumentError
from spcomp.ir import expr as ex
from spcomp.ir.expr import const
from spcomp.ir.module import single
from spcomp.target import Target
from tests.test_codegen import buffer, elementwise, function, load, run, store

COUNTS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 129)
EXPRESSIONS = {  # of a and b, as index notation and as numpy
    "(({a} + 1e17) - 1e17) * {b}": lambda a, b: ((a + 1e17) - 1e17) * b,
    "{a} + 0 * {a}": lambda a, b: a + 0 * a,
    "({a} + {b}) - {a}": lambda a, b: (a + b) - a,
    "{a} / {b} * {b}": lambda a, b: a / b * b,
    "({a} * 1e200) * 1e200 * 1e-200": lambda a, b: (a * 1e200) * 1e200 * 1e-200,
    "sin({a}) / cos({a})": lambda a, b: np.sin(a) / np.cos(a),
    "cos({a}) / sin({a})": lambda a, b: np.cos(a) / np.sin(a),
    "exp(log({a}))": lambda a, b: np.exp(np.log(a)),
    "2.0 ** log2({a})": lambda a, b: 2.0 ** np.log2(a),
    "sqrt({a}) * sqrt({a})": lambda a, b: np.sqrt(a) * np.sqrt(a),
    "({a} + 0.0) / 0.0": lambda a, b: (a + 0.0) / 0.0,
}


@T.prim_func
def kahan(x: T.handle, s: T.handle, n: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 0})
    X = T.match_buffer(x, (n,), "float32")
    S = T.match_buffer(s, (2,), "float32")
    S[0] = 0.0
    S[1] = 0.0
    for i in T.serial(n):
        term = X[i] - S[1]
        total = S[0] + term
        S[1] = (total - S[0]) - term
        S[0] = total


def operands(count):
    rng = np.random.default_rng(count)
    a = rng.normal(size=count) * 10.0 ** rng.integers(-3, 4, count)
    a[::5] = [np.inf, -0.0, -1.5, 3.0, 0.0, np.nan, 5e-324, -np.inf][count % 8]
    return a, rng.normal(size=count)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_is_computed_as_it_is_written(text):
    kernel = spcomp.compile(f"y[i] = {text.format(a='A[i]', b='B[i]')}")
    for count in COUNTS:
        a, b = operands(count)
        with np.errstate(all="ignore"):
            expected = EXPRESSIONS[text](a, b)
        np.testing.assert_allclose(
            kernel(**({"A": a, "B": b} if "b" in text else {"A": a})), expected, rtol=1e-15, atol=0
        )


@pytest.mark.parametrize("text", ["A + 1e17 * A - 1e17 * A", "A + 0 * A"])
def test_a_number_does_not_depend_on_the_format_it_is_stored_in(text):
    matrix = np.array([[np.inf, 1.0, 0], [0, 3.0, -2.5], [-0.0, 7, np.nan]])
    kernel = spcomp.compile(f"C[i, j] = {text.replace('A', 'A[i, j]')}")
    with np.errstate(invalid="ignore"):
        expected = eval(text, {"A": matrix})
    np.testing.assert_allclose(kernel(A=matrix), expected)
    for made in (sps.csr_array, sps.csc_array, sps.coo_array):
        np.testing.assert_allclose(kernel(A=made(matrix)).toarray(), expected)


def test_a_compensated_sum_is_exact():
    x, s = np.full(1_000_000, 0.1, "float32"), np.zeros(2, "float32")
    spcomp.compile(kahan)(x, s, len(x))
    assert s[0] == np.float32(x.sum(dtype="float64"))
    spcomp.compile(kahan, fast_math=True)(x, s, len(x))
    assert s[0] != np.float32(x.sum(dtype="float64"))  # what the option costs


@pytest.mark.parametrize("op", ["+", "*"])
@pytest.mark.parametrize("lanes", [2, 3, 4, 5, 7, 8, 13, 16, 31, 32, 64])
@pytest.mark.parametrize("where", ["cpu", "cpu:x86-64"])
def test_lanes_are_combined_by_halves(lanes, op, where):
    source, out = buffer("a", dt.float32), buffer("o", dt.float32)
    value = ex.Reduce(op, load(source, ex.Ramp(const(0), 1, lanes)))
    func = function(store(out, 0, value), source, out)
    a = np.random.default_rng(lanes).normal(size=lanes).astype("float32")
    result = np.zeros(1, "float32")
    assert run(func, a, result, where=where) == 0
    width = 1 << (lanes - 1).bit_length()
    rest = np.full(width, -0.0 if op == "+" else 1.0, "float32")
    rest[:lanes] = a
    while len(rest) > 1:
        low, high = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        rest = low + high if op == "+" else low * high
    assert result[0] == rest[0]


@pytest.mark.parametrize("exponent", [*range(-18, 19), 0.5, -0.5, 1.5])
def test_a_power_by_a_constant_is_right_to_a_unit_for_each_factor(exponent):
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 5e-324, -1e308, 1e-170]
    a = np.array([*special, *np.random.default_rng(0).normal(size=31) * 3])
    call = elementwise(
        lambda x: ex.Call("pow", (x, ex.Broadcast(const(float(exponent), dt.float64), 4))),
        [dt.float64], dt.float64, 4,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        expected = np.power(a, float(exponent))
        few = abs(2 * exponent if exponent < 0 else exponent) * np.spacing(np.abs(expected))
        found = call(a)[0]
        same = (found == expected) & (np.signbit(found) == np.signbit(expected))
        same |= np.isnan(found) & np.isnan(expected)
        assert (same | (np.abs(found - expected) <= few)).all(), (a, found, expected)


def test_only_products_and_sums_are_fused_unless_the_user_lets_more_be():
    line = "y[i] = A[i, j] * x[j]"
    args = {"A": sps.eye_array(20, format="csr"), "x": np.ones(20)}
    for fast_math, flags in ((False, ("contract",)), (True, ("reassoc", "nsz", "contract", "afn"))):
        kernel = spcomp.compile(line, fast_math=fast_math)
        kernel(**args)
        words = set(kernel.source("llvm").split())
        assert {"reassoc", "nsz", "contract", "afn", "fast"} & words == set(flags)
        assert ("fast_math" in kernel.explain()) is fast_math


def test_fast_math_is_asked_for_in_every_way_a_program_is_compiled():
    a, x = sps.random_array((9, 8), density=0.4, format="csr", rng=0), np.arange(8.0)
    exact, fast = (spcomp.compile("y[i] = A[i, j] * x[j]", fast_math=f) for f in (False, True))
    np.testing.assert_allclose(fast(A=a, x=x), exact(A=a, x=x))
    stored = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": "hyb"}, fast_math=True)
    np.testing.assert_allclose(stored(A=a, x=x), a @ x)
    assert "reassoc" in stored.source("llvm")
    with pytest.raises(ArgumentError, match="fast_math: got int, expected True or False"):
        spcomp.compile("y[i] = x[i]", fast_math=1)


def test_functions_are_called_as_they_are_even_in_fast_math():
    source, out = buffer("a", dt.float64), buffer("o", dt.float64)
    index = ex.Ramp(const(0), 1, 8)
    sine, cosine = (ex.Call(name, (load(source, index),)) for name in ("sin", "cos"))
    func = function(store(out, index, ex.BinOp("/", sine, cosine)), source, out)
    for machine, call in (("v2", "declare double @sin("), ("v4", "@spcomp.sin.v8f64(")):
        text = cpu.emit(single(func), Target(cpu=f"x86-64-{machine}"), fast_math=True).llvm_ir
        assert "llvm.sin" not in text
        assert call in text
        own = [part for part in text.split("define ") if part.startswith("internal <8 x double>")]
        assert len(own) == (2 if machine == "v4" else 0)
        assert not any(" fast " in part for part in own)
