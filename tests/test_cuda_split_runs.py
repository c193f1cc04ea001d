"""Reductions by sorted keys on GPUs: parts with equally many elements, whatever the keys are."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

import spcomp
from benchmarks import programs
from spcomp.errors import ScheduleError
from spcomp.passes.pipelines import lower_sparse_iter
from spcomp.schedule.schedule import Schedule
from tests.emulated import EMULATED, ORDERS, order
from tests.layers import source

ROWS = 60
KINDS = ("even", "skewed", "equal", "distinct", "ends at cuts", "one", "none")
TEMPLATE = """
from spcomp import script as T

@T.prim_func
def by_keys(x: T.handle, y: T.handle, rows: T.handle, m: T.int32, nnz: T.int32) -> None:
    O = T.dense_fixed(1)
    E = T.sparse_fixed(O, (m, nnz), rows, "{index}", unique=False)
    I = T.dense_fixed(m)
    K = T.dense_fixed({feat})
    X = T.match_sparse_buffer(x, (O, E, K), "{dtype}")
    Y = T.match_sparse_buffer(y, (I, K), "{dtype}")
    with T.sp_iter([O, E, K], "SSS", "by_keys") as [o, e, k]:
        with T.init():
            Y[e, k] = {start}
        Y[e, k] = {update}
"""


@cache
def kernel(feat, dtype="float32", index="int32", start="0.0", update="Y[e, k] + X[o, e, k]"):
    values = {"feat": feat, "dtype": dtype, "index": index, "start": start, "update": update}
    return spcomp.compile(programs.parse(TEMPLATE.format(**values)), target=EMULATED)


def keys(kind, count, index=np.int32):
    rng = np.random.default_rng(7)
    made = {
        "even": lambda: rng.integers(0, ROWS, count),
        "skewed": lambda: (ROWS * rng.random(count) ** 6).astype(int),
        "equal": lambda: np.full(count, ROWS // 2),
        "distinct": lambda: np.arange(min(count, ROWS)),
        "ends at cuts": lambda: np.repeat(np.arange(ROWS), 32)[:count],
        "one": lambda: [3],
        "none": list,
    }[kind]()
    return np.sort(np.asarray(made, index))


def whole(count, feat, dtype=np.float32):
    """Numbers whose sums are exact in any order."""
    return np.random.default_rng(5).integers(-3, 4, (count, feat)).astype(dtype)


def expected(rows, x, add=np.add, start=0):
    result = np.full((ROWS, x.shape[1]), start, np.float64)
    add.at(result, rows, x)
    return result


@pytest.mark.parametrize("feat", [1, 2, 31, 32, 33, 128])
def test_sums_are_right_whatever_the_keys_are(feat):
    many = ("equal", "skewed") if feat == 1 else ()
    for kind, count in (*product(KINDS, (32, 33, 1100)), *product(many, (18_000,))):
        rows = keys(kind, count)
        x = whole(len(rows), feat)
        result = kernel(feat)(rows=rows, X=x.reshape(-1), m=ROWS)
        np.testing.assert_array_equal(np.reshape(result, (ROWS, feat)), expected(rows, x))


@pytest.mark.parametrize("feat", [1, 32])
def test_sums_have_the_same_bits_in_any_order_of_blocks(feat):
    rows = keys("skewed", 9000 if feat == 1 else 2000)
    x = np.random.default_rng(2).standard_normal((len(rows), feat), np.float32)
    results = []
    for seed in ORDERS:
        with order(seed):
            results.append(np.asarray(kernel(feat)(rows=rows, X=x.reshape(-1), m=ROWS)).copy())
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    close = expected(rows, x)
    np.testing.assert_allclose(results[0].reshape(ROWS, feat), close, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "index", "feat"),
    [
        ("float16", "int64", 8),
        ("float64", "int64", 1),
        ("int32", "int32", 1),
        ("int64", "int64", 8),
    ],
)
def test_values_and_keys_have_any_type(dtype, index, feat):
    start = "0.0" if dtype.startswith("float") else "0"
    rows = keys("skewed", 1100, index)
    x = np.abs(whole(len(rows), feat, dtype)) % 3
    run = kernel(feat, dtype, index, f"T.{dtype}({start})")
    result = run(rows=rows, X=x.reshape(-1), m=ROWS)
    sums = expected(rows, x.astype(np.float64)).astype(dtype)
    np.testing.assert_allclose(np.reshape(result, (ROWS, feat)), sums, rtol=2e-3)


@pytest.mark.parametrize(
    ("update", "add", "start"),
    [
        ("T.max(Y[e, k], X[o, e, k])", np.maximum, -1.5),
        ("T.min(Y[e, k], X[o, e, k])", np.minimum, 1.5),
        ("Y[e, k] * X[o, e, k]", np.multiply, 2.0),
        ("Y[e, k] - X[o, e, k]", np.subtract, 1.0),
    ],
)
def test_other_operations_begin_where_the_program_says(update, add, start):
    feat = 4
    run = kernel(feat, start=f"T.float32({start})", update=update)
    assert "split_runs" in run.explain()  # two threads are no group
    for kind in ("skewed", "equal", "none"):
        rows = keys(kind, 1200)
        x = whole(len(rows), feat)
        x = np.where(x < 0, np.float32(-1), np.float32(1)) if add is np.multiply else x
        result = run(rows=rows, X=x.reshape(-1), m=ROWS)
        right = expected(rows, x, add, start)
        np.testing.assert_array_equal(np.reshape(result, (ROWS, feat)), right)


def test_a_key_of_many_elements_among_many_is_no_reason_for_other_steps():
    rows, feat = keys("skewed", 40_000), 8
    x = whole(len(rows), feat)
    text = kernel(feat).explain(rows=rows, X=x.reshape(-1), m=ROWS)
    assert "split_runs('e', 16, 64)" in text
    assert "atomic" not in text
    result = kernel(feat)(rows=rows, X=x.reshape(-1), m=ROWS)
    np.testing.assert_array_equal(np.reshape(result, (ROWS, feat)), expected(rows, x))


@pytest.mark.parametrize("name", ["coo_spmm", "coo_largest", "coo_segment", "coo_keys", "coo_max"])
def test_fibers_whose_length_is_data_are_cut_too(name):
    text = spcomp.compile(source(name), target=EMULATED).explain()
    assert "split_runs('e'" in text or "list_runs('e'" in text


def schedule(text=TEMPLATE, **values):
    given = {"feat": 4, "dtype": "float32", "index": "int32", "start": "0.0", **values}
    given.setdefault("update", "Y[e, k] + X[o, e, k]")
    return Schedule(lower_sparse_iter(programs.parse(text.format(**given))))


@pytest.mark.parametrize("step", ["split_runs", "list_runs"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_mean_the_same_in_position_space(step, kind):
    rows = keys(kind, 300)
    x = whole(len(rows), 4)
    cut = getattr(schedule(), step)("e", 8, 2)
    kernel = spcomp.compile(cut, target="cpu")
    for result in (
        kernel.interpret("position", rows=rows, X=x.reshape(-1), m=ROWS),
        kernel(rows=rows, X=x.reshape(-1), m=ROWS),
    ):
        np.testing.assert_array_equal(np.reshape(result, (ROWS, 4)), expected(rows, x))


@pytest.mark.parametrize("feat", [32, 33, 128])
def test_rows_with_enough_threads_list_their_runs(feat):
    run = kernel(feat)
    assert "list_runs('e', 512" in run.explain()
    assert len(run.emitted.functions) == 3  # no other starts the rows
    for kind, count in product(("skewed", "equal"), (511, 512, 513, 5000)):
        rows = keys(kind, count)
        x = whole(len(rows), feat)
        result = run(rows=rows, X=x.reshape(-1), m=ROWS)
        np.testing.assert_array_equal(np.reshape(result, (ROWS, feat)), expected(rows, x))


def test_rows_that_begin_with_what_is_there_are_updated_where_they_have_elements():
    init = "        with T.init():\n            Y[e, k] = {start}\n"
    first = '    with T.sp_iter([I, K], "SS", "start") as [i, k]:\n        Y[i, k] = T.float32(i)\n'
    text = TEMPLATE.replace(init, "").replace(
        "    with T.sp_iter([O", f"{first}    with T.sp_iter([O"
    )
    rows = keys("skewed", 300)
    x = whole(len(rows), 4)
    cut = schedule(text).list_runs("e", 8, 2)
    right = expected(rows, x) + np.arange(ROWS)[:, None]
    for where in ("cpu", EMULATED):
        result = spcomp.compile(cut, target=where)(rows=rows, X=x.reshape(-1), m=ROWS)
        np.testing.assert_array_equal(np.reshape(result, (ROWS, 4)), right)


@pytest.mark.parametrize("step", ["split_runs", "list_runs"])
def test_what_the_steps_cannot_cut_is_refused_with_the_reason(step):
    cases = [
        (schedule(), ("e", 30, 2), "size must be a multiple of at_once"),
        (schedule(), ("k", 32, 2), "not told apart by a sorted coordinate"),
        (schedule(TEMPLATE.replace("unique=", "sorted=False, unique=")), ("e", 32, 2), "sorted"),
        (schedule(feat=128), ("e", 32, 2), "no registers for so many sums"),
        (schedule(update="X[o, e, k]"), ("e", 32, 2), "is not updated by"),
        (schedule().split("k", 2).bind("k_o", "blockIdx.x"), ("e", 32, 2), "bound to blockIdx.x"),
    ]
    for start, arguments, why in cases:
        with pytest.raises(ScheduleError, match=why):
            getattr(start, step)(*arguments)


@pytest.mark.parametrize("step", ["split_runs", "list_runs"])
def test_elements_that_more_than_the_sorted_coordinate_tells_are_not_cut(step):
    """The columns of a coo tensor are those of its elements, too."""
    rng = np.random.default_rng(0)
    dense = rng.random((6, 4, 3)) * (rng.random((6, 4, 3)) < 0.4)
    where = np.nonzero(dense)
    A = spcomp.Tensor.from_coo(where, dense[where], dense.shape, "coo")
    kernel = spcomp.compile("Z[d, b] = A[d, a, b]", target=EMULATED)
    np.testing.assert_allclose(kernel(A=A), dense.sum(1))
    assert "split_sorted" in kernel.explain()
    (part,) = kernel.kernels()
    with pytest.raises(ScheduleError, match="depends on more than the coordinate"):
        getattr(Schedule(spcomp.parse(part.stage("coordinate"))).lower_sparse_iter(), step)(
            "d", 32, 2
        )
