"""argmax and argmin of index notation: in two passes of vectors, or in a search."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.dtypes import float16, float32, int32
from spcomp.ir.access import Load
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, Call, Cast, Select, const
from spcomp.notation.arg_reductions import repeats
from tests.machines import runnable

EMULATED = "cuda:sm_90,emulate"
FUNCTIONS = {"argmax": np.argmax, "argmin": np.argmin}
SPECIAL = [-0.0, 0.0, 1.5, 2.0, -3.0, np.inf, -np.inf, np.nan]


def expected(values, stored, name):
    """The coordinate of the best stored value in each row, -1 where nothing is stored."""
    rows = []
    for row, places in zip(values, map(np.flatnonzero, stored), strict=True):
        rows.append(places[FUNCTIONS[name](row[places])] if len(places) else -1)
    return np.array(rows, np.int64)


def values(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind != "f":
        return rng.integers(-4, 5, shape).astype(dtype)
    chances = [0.2, 0.2, 0.2, 0.2, 0.14, 0.02, 0.02, 0.02]
    return rng.choice(SPECIAL, shape, p=chances).astype(dtype)


@pytest.mark.sample(4, long=1)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32", "int64"])
@pytest.mark.parametrize("target", ["cpu", runnable("cpu:x86-64-v3"), EMULATED])
def test_rows_have_the_least_coordinate_of_the_best_value(name, dtype, target):
    kernel = spcomp.compile(f"y[i] = {name}(j, a[i, j])", target=target)
    for seed, shape in enumerate([(0, 4), (4, 0), (1, 1), (7, 8), (9, 65), (5, 200)]):
        a = values(shape, dtype, seed)
        wanted = expected(a, np.ones(shape, bool), name)
        for array in (a, np.asfortranarray(a)):
            np.testing.assert_array_equal(kernel(a=array), wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("target", ["cpu", runnable("cpu:x86-64-v3"), EMULATED])
def test_what_is_not_stored_does_not_count(name, target):
    kernel = spcomp.compile(f"y[i] = {name}(j, a[i, j])", target=target)
    for seed, (rows, columns) in enumerate([(4, 5), (30, 40), (8, 300)]):
        rng = np.random.default_rng(seed)
        stored = rng.random((rows, columns)) < 0.2
        stored[0] = False
        a = values(stored.shape, "float32", seed)
        i, j = np.nonzero(stored)
        indptr = np.concatenate([[0], np.bincount(i, minlength=rows).cumsum()])
        csr = sps.csr_array((a[stored], j, indptr), stored.shape)
        wanted = expected(a, stored, name)
        np.testing.assert_array_equal(kernel(a=csr), wanted)
        order = np.concatenate(
            [rng.permutation(p) for p in np.split(np.arange(len(i)), indptr[1:-1])]
        )
        mixed = sps.csr_array((csr.data[order], csr.indices[order], indptr), stored.shape)
        np.testing.assert_array_equal(kernel(a=mixed), wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_that_a_processor_may_round_in_two_ways_are_searched_once(name):
    kernel = spcomp.compile(f"y[i] = {name}(j, a[i, j] * b[j] + c[j])")
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in [(50, 70), 70, 70])
    found = kernel(a=a, b=b, c=c)
    exact = a.astype(float) * b + c
    best = FUNCTIONS[name](exact, 1)
    rows = np.arange(50)
    np.testing.assert_allclose(exact[rows, found], exact[rows, best], rtol=1e-5)
    (part,) = kernel.kernels()
    assert "T.vector_reduce" not in part.stage("flat")


def test_values_may_depend_on_other_reductions_and_tensors():
    rng = np.random.default_rng(1)
    a, x = rng.standard_normal((20, 33)), rng.standard_normal(33)
    kernel = spcomp.compile("y[i] = argmax(j, abs(a[i, j] - sum(k, a[i, k])) + x[j])")
    wanted = np.argmax(np.abs(a - a.sum(1, keepdims=True)) + x, 1)
    np.testing.assert_array_equal(kernel(a=a, x=x), wanted)


def test_a_matrix_is_searched_in_two_passes_of_vectors():
    kernel = spcomp.compile("y[i] = argmax(j, a[i, j])")
    kernel(a=np.zeros((3, 4), np.float32))
    (part,) = kernel.kernels()
    flat = part.stage("flat")
    assert 'T.vector_reduce("max"' in flat
    assert 'T.vector_reduce("min"' in flat
    strided = kernel.specialize(a=np.asfortranarray(np.zeros((3, 4), np.float32)))
    assert "T.vector_reduce" not in "".join(k.stage("flat") for k in strided.kernels())


def load(dtype=float32):
    return Load(Buffer("x", None, (const(3),), dtype), (const(0),))


def test_only_values_that_are_rounded_alike_everywhere_repeat():
    x, product = load(), BinOp("*", load(), load())
    assert repeats(x)
    assert repeats(product)
    assert repeats(Call("abs", (BinOp("-", x, x),)))
    assert repeats(Select(BinOp("<", x, x), product, x))
    assert repeats(BinOp("+", BinOp("*", load(int32), load(int32)), load(int32)))
    assert repeats(load(float16))
    assert repeats(Cast(load(float16), float32))
    assert not repeats(BinOp("+", product, x))
    assert not repeats(BinOp("-", x, Call("abs", (product,))))
    assert not repeats(Call("exp", (x,)))
    assert not repeats(BinOp("+", load(float16), load(float16)))
    assert repeats(product, exact=False)
    assert repeats(Call("abs", (x,)), exact=False)
    assert not repeats(BinOp("*", product, x), exact=False)
    assert not repeats(BinOp("/", x, x), exact=False)


@pytest.mark.parametrize("text", ["a[i, j]", "a[i, j] / b[j]", "a[i, j] * b[j] * 3.1"])
def test_floats_in_any_order_have_a_best_coordinate_too(text):
    kernel = spcomp.compile(f"y[i] = argmax(j, {text})", fast_math=True)
    rng = np.random.default_rng(0)
    a, b = rng.random((40, 77), np.float32), rng.random(77, np.float32) + 1
    found = kernel(a=a, b=b) if "b" in text else kernel(a=a)
    exact = eval(text.replace("[i, j]", "").replace("[j]", ""), {"a": a, "b": b})
    np.testing.assert_array_equal(found, exact.argmax(1))
