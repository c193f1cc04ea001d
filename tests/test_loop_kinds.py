"""Vectorized loops over fibers: what is left of a row is one vector under a mask."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.codegen.cpu import resolve
from spcomp.compiler.pipeline import lower
from spcomp.ir.interpret.program import interpret
from spcomp.script.parse import parse_source
from spcomp.target import target as parse_target
from tests.layers import source

LENGTHS = (0, 1, 7, 8, 9, 0, 31, 32, 33, 47, 16, 2)
EMPTY = {"sum": "T.float32(0)", "T.max": 'T.min_value("float32")', "prod": "T.float32(1)"}
COMBINED = {"sum": "Y[i] + {x}", "T.max": "T.max(Y[i], {x})", "prod": "Y[i] * {x}"}
ROWS = """
@T.prim_func
def rows(x: T.handle, y: T.handle, indptr: T.handle, m: T.int32, n: T.int32, nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_variable(I, (n, nnz), indptr, "int32")
    X = T.match_sparse_buffer(x, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            Y[i] = {empty}
        Y[i] = {combined}
"""


def reduction(kind, dtype, x="X[i, j]"):
    text = ROWS.format(empty=EMPTY[kind], combined=COMBINED[kind].format(x=x))
    (func,) = parse_source(text.replace("float32", dtype), "rows.py")
    return func


def fibers(dtype):
    """Rows of all lengths; between them values that would show if they were taken too."""
    indptr = np.cumsum((0, *LENGTHS)).astype("int32")
    x = np.array([1, -1, 2, 0.5])[np.arange(indptr[-1]) % 4].astype(dtype)
    return indptr, x


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16", "int8"])
@pytest.mark.parametrize("kind", EMPTY)
def test_a_reduction_over_a_fiber_takes_its_elements_and_no_others(kind, dtype):
    indptr, x = fibers(dtype)
    y = np.zeros(len(LENGTHS), dtype)
    spcomp.compile(reduction(kind, dtype))(x, y, indptr, len(y), 64, len(x))
    for row, (begin, end) in enumerate(pairwise(indptr)):
        part = x[begin:end].astype("float64" if np.dtype(dtype).kind == "f" else dtype)
        want = {"sum": np.sum, "prod": np.prod, "T.max": _largest}[kind](part)
        np.testing.assert_allclose(y[row], np.asarray(want).astype(dtype), rtol=1e-3)


def _largest(part):
    if len(part):
        return part.max()
    return -np.inf if part.dtype.kind == "f" else np.iinfo(part.dtype).min


def test_neighbours_that_are_not_numbers_stay_outside():
    indptr, x = np.array([0, 3, 20], "int32"), np.arange(20, dtype="float32")
    x[3:] = np.nan
    y = np.zeros(2, "float32")
    spcomp.compile(reduction("sum", "float32"))(x, y, indptr, 2, 20, 20)
    assert y[0] == 3
    assert np.isnan(y[1])


def test_only_targets_that_load_under_a_mask_mask_what_is_left():
    func = reduction("sum", "float32")
    flat = {
        name: spcomp.compile(func, target=parse_target(name)).stage("flat")
        for name in ("cpu:x86-64", "cpu:x86-64-v3", "cpu:x86-64-v4")
    }
    assert "masked_load" not in flat["cpu:x86-64"]
    assert "T.ramp(0, 1, 8)" in flat["cpu:x86-64-v3"]
    assert all("masked_load" in flat[name] for name in ("cpu:x86-64-v3", "cpu:x86-64-v4"))
    narrow = reduction("sum", "int8")
    assert "masked_load" not in spcomp.compile(narrow, target="cpu:x86-64-v3").stage("flat")


def test_a_sparse_dot_product_asks_for_what_comes_next_and_makes_no_vector_of_a_short_row():
    flat = spcomp.compile(source("spmv"), target=parse_target("cpu:x86-64-v4")).stage("flat")
    asked = [line.split("(")[1] for line in flat.splitlines() if "T.prefetch" in line]
    assert asked == ["A, J_indptr[i] + T.int64", "J_indices, J_indptr[i] + T.int64"]
    staged, _, by_row = flat.partition("for i in ")
    assert "T.masked_load(X, T.cast(T.masked_load(J_indices, T.ramp(" in staged
    before, _, rest = by_row.partition("if 16 <= T.cast(J_indptr[i + 1] - J_indptr[i], ")
    assert "vector_reduce" in rest
    assert "ramp" not in before
    dense = spcomp.compile(reduction("sum", "float32"), target=parse_target("cpu:x86-64-v4"))
    assert "prefetch" not in dense.stage("flat")


@pytest.mark.parametrize("longest", [3, 15, 16, 17, 60])
def test_sparse_dot_products_of_all_lengths(longest):
    rng = np.random.default_rng(longest)
    lengths = [*range(longest + 1), 0, longest]
    indptr = np.cumsum([0, *lengths]).astype(np.int32)
    indices = np.concatenate([rng.permutation(64)[:n] for n in lengths]).astype(np.int32)
    values = rng.integers(-4, 5, len(indices)).astype(np.float32)
    csr = sps.csr_array((values, indices, indptr), shape=(len(lengths), 64))
    csr.sort_indices()
    x = rng.integers(-4, 5, 64).astype(np.float32)
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    np.testing.assert_array_equal(kernel(A=csr, x=x), csr @ x)


GUARDED = """
@T.prim_func
def f(x: T.handle, w: T.handle, y: T.handle, n: T.int64) -> None:
    T.func_attr({{"sparse_tir_level": 0}})
    X = T.match_buffer(x, (n,), "float32")
    W = T.match_buffer(w, (4,), "float32")
    Y = T.match_buffer(y, (n * 4,), "float32")
    for r in T.serial(4):
        for k in T.{kind}(n):
            if {cond}:
                {store}
"""
STORE = "Y[r * n + k] = T.max(Y[r * n + k], X[k])"


def guarded(cond, kind="vectorized", store=STORE, n=11):
    """The loops as they are made; they compute what the program says."""
    (func,) = parse_source(GUARDED.format(cond=cond, kind=kind, store=store), "guarded.py")
    made = lower(func, resolve(parse_target("cpu:x86-64-v3")), trusted=True).flat.funcs[0]
    results = []
    for program in (func, made):
        x, w = np.arange(1, n + 1, dtype="float32"), np.array([0, 1, 0, 2], "float32")
        results.append(np.zeros(4 * n, "float32"))
        interpret(program, {"x": x, "w": w, "y": results[-1], "n": n})
    np.testing.assert_array_equal(*results)
    assert results[0].any() or not n
    return made.script()


@pytest.mark.parametrize("kind", ["vectorized", "serial"])
def test_a_condition_that_stays_the_same_is_asked_before_the_loop(kind):
    text = guarded("W[r] != 0.0", kind)
    assert text.index("if 0 < n:") < text.index("for r")
    assert text.index("if W[r] != 0.0:") < text.index("for k")
    assert ("T.ramp" in text) == (kind == "vectorized")


def test_what_differs_from_lane_to_lane_stays_inside():
    text = guarded("W[r] != 0.0 and k < 9")
    assert text.index("W[r] != 0.0") < text.index("for k") < text.index("9")
    assert "mask" in text
    behind = guarded("k < 9 and W[k % 4] != 0.0")
    assert "T.ramp" not in behind


def test_what_is_the_same_for_all_lanes_is_read_only_where_one_runs():
    text = guarded("k + r * 11 < 15", store="Y[r * n + k] = X[k] + X[r * 8]")
    assert "vector_reduce" in text
    assert "vector_reduce" not in guarded("k < 9", store="Y[r * n + k] = X[k] + X[r * 3]")


def test_a_condition_on_what_the_loop_writes_is_asked_every_time():
    text = guarded("Y[0] == 0.0", store="Y[k] = 1.0")
    assert text.index("for k") < text.index("Y[0] == 0.0")
    assert "T.ramp" not in text


def test_a_loop_that_does_not_run_asks_nothing_of_memory():
    text = guarded("W[r + n * 0 + 9] != 0.0", kind="serial", n=0)
    assert text.index("if 0 < n:") < text.index("W[")


PAIRS = """
@T.prim_func
def f(x: T.handle, w: T.handle, y: T.handle, n: T.int64, m: T.int64) -> None:
    T.func_attr({{"sparse_tir_level": 0}})
    X = T.match_buffer(x, (n,), "float32")
    W = T.match_buffer(w, (m + 1,), "float32")
    Y = T.match_buffer(y, (2,), "float32")
    for k in T.vectorized(n):
        for r in T.serial({begin}, {end}):
            {store}
"""
LEAST = "Y[0] = T.min(Y[0], T.abs(X[k] - W[r]))"


def pairs(n, m, begin="0", end="m", store=LEAST):
    """What is computed over all pairs, by the loops and by what they are made into."""
    text = PAIRS.format(begin=begin, end=end, store=store)
    (func,) = parse_source(text, "pairs.py")
    made = lower(func, resolve(parse_target("cpu:x86-64-v3")), trusted=True).flat.funcs[0]
    rng = np.random.default_rng(n * 31 + m)
    x, w = (rng.integers(0, 99, size).astype("float32") for size in (n, m + 1))
    results = []
    for run in (lambda **args: interpret(func, args), spcomp.compile(made)):
        results.append(np.full(2, 50, "float32"))
        run(x=x, w=w, y=results[-1], n=n, m=m)
    np.testing.assert_array_equal(*results)
    return results[0], x, w, made.script()


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 40])
@pytest.mark.parametrize("m", [0, 1, 5])
def test_lanes_share_the_loops_inside_a_reduction(n, m):
    y, x, w, text = pairs(n, m)
    assert "T.ramp(0, 1, 8)" in text
    least = np.abs(x[:, None] - w[:m]).min(initial=50)
    np.testing.assert_array_equal(y, [least, 50])


def test_what_all_lanes_read_is_read_only_where_one_runs():
    text = pairs(3, 4)[-1]
    rest = text[text.index("for k_v") :]
    assert rest.index("if ") < rest.index("masked_load")


def test_loops_inside_that_differ_from_lane_to_lane_stay_as_they_are():
    assert "T.ramp" not in pairs(4, 8, end="k")[-1]
    assert "T.ramp(0, 1, 8)" not in pairs(4, 1, end="2", store=LEAST.replace("Y[0]", "Y[r]"))[-1]
    each = "Y[0] = Y[0] + X[k]; W[r] = X[k]"
    assert "T.ramp" not in pairs(4, 2, store=each.replace("; ", "\n            "))[-1]


def test_a_sum_over_an_empty_fiber_leaves_its_element_as_it_is():
    a = sps.csr_array(([1.0], ([1], [0])), shape=(3, 2), dtype=np.float32)
    y = np.full(3, -0.0, np.float32)  # -0.0 + 0.0 is 0.0
    kernel = spcomp.compile(source("spmv_accumulate"))
    kernel(A=a, X=np.ones(2, np.float32), Y=y)
    assert np.signbit(y).tolist() == [True, False, True]


def test_what_a_mask_is_made_of_is_read_once():
    kernel = spcomp.compile("y[i] = A[i,j] * x[j]")
    table = spcomp.convert(sps.eye_array(4, format="csr"), spcomp.Format.parse("hash", 2))
    flat = kernel.specialize(A=table, x=np.ones(4)).stage("flat")
    by_row = flat.partition("else:\n")[2].splitlines()
    (loop,) = (line for line in by_row if "y_acc_1[" in line and "if_then_else" in line)
    assert "A_j_indices[" not in loop
    assert "A_j_indices_read" in loop
    assert kernel(A=table, x=np.array([1.0, np.inf, np.nan, 4.0]))[[0, 3]].tolist() == [1.0, 4.0]


DOT = """
@T.prim_func
def dot(a: T.handle, b: T.handle, c: T.handle, m: T.int64) -> None:
    A = T.match_buffer(a, (m * LENGTH,), "float32")
    B = T.match_buffer(b, (m * LENGTH,), "float32")
    C = T.match_buffer(c, (m,), "float32")
    for i in range(m):
        C[i] = START
        for k in T.vectorized(LENGTH):
            C[i] = UPDATE
"""
SUM = DOT.replace("START", "1.0").replace("UPDATE", "C[i] + A[AT] * B[AT]")
MOST = DOT.replace("START", "-3.0").replace("UPDATE", "T.max(C[i], A[AT] + B[AT])")


def dots(text, length, machine):
    """The dot products as they are written, and as they are made for *machine*."""
    text = text.replace("AT", "i * LENGTH + k").replace("LENGTH", str(length))
    (func,) = parse_source(text, "dot.py")
    return func, lower(func, resolve(parse_target(machine)), trusted=True).flat.funcs[0]


@pytest.mark.parametrize("length", [1, 3, 5, 7, 11, 13, 15, 17, 23, 31, 33, 63, 79])
def test_dot_products_of_a_known_length_take_each_element_once(length):
    a, b = np.random.default_rng(length).integers(-4, 4, (2, 3, length)).astype("float32")
    for text, want in ((SUM, 1 + (a * b).sum(1)), (MOST, np.fmax(-3, (a + b).max(1)))):
        made = [dots(text, length, f"cpu:x86-64{level}")[1] for level in ("", "-v3", "-v4")]
        for run in (*made, spcomp.compile(dots(text, length, "cpu")[0])):
            args = {"a": a.ravel(), "b": b.ravel(), "c": np.zeros(3, "float32"), "m": 3}
            run(**args) if callable(run) else interpret(run, args)
            np.testing.assert_array_equal(args["c"], want)


def test_what_is_left_of_a_known_length_is_in_narrower_vectors():
    flat = dots(SUM, 15, "cpu:x86-64-v4")[1].script()
    assert "A[T.ramp(i * 15, 1, 8)]" in flat
    assert "A[T.ramp(i * 15 + 8, 1, 4)]" in flat
    assert "in T.serial(12, 15)" in flat
