"""Flat IR to machine code: 16-bit floats, vectors, masks, searches, statements, allocation."""

import numpy as np
import pytest

from spcomp import dtypes as dt
from spcomp.codegen import cpu
from spcomp.errors import LoweringError
from spcomp.ir import expr as ex
from spcomp.ir import stmt as st
from spcomp.ir.access import Search
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import const
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.target import target
from tests.corpus_padded import table
from tests.test_codegen import (
    GENERIC,
    buffer,
    build,
    elementwise,
    from_bfloat,
    function,
    load,
    loop,
    run,
    slots_of,
    store,
    to_bfloat,
)

ALL_BITS = np.arange(65536, dtype=np.uint16)


@pytest.mark.parametrize("where", ["cpu", GENERIC])
@pytest.mark.parametrize("lanes", [1, 8])
def test_every_float16_widens_as_in_numpy(lanes, where):
    call = elementwise(
        lambda x: ex.Cast(x, dt.float32.with_lanes(lanes)), [dt.float16], dt.float32, lanes, where
    )
    result, _ = call(ALL_BITS)
    expected = ALL_BITS.view(np.float16).astype(np.float32)
    assert np.array_equal(result, expected, equal_nan=True)
    assert np.array_equal(np.signbit(result), np.signbit(expected))


def near_every_half():
    """Every finite float16, and the floats just below, on and above each rounding boundary."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves[:-1] + halves[1:]) / 2
    exact = np.concatenate([halves, middles, [65519.99, 65520, 65536, 1e30, 0, 1e-30, 2.0**-25]])
    return np.concatenate([exact, np.nextafter(exact, 0), np.nextafter(exact, np.inf), -exact])


@pytest.mark.parametrize("where", ["cpu", GENERIC])
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("wide", [dt.float32, dt.float64], ids=str)
def test_narrowing_to_float16_rounds_to_nearest_even(wide, lanes, where):
    x = near_every_half()
    x = np.concatenate([x, np.array([np.inf, -np.inf, np.nan]), np.zeros(-(len(x) + 3) % 8)])
    with np.errstate(all="ignore"):
        x = x.astype(wide.numpy_name)
        expected = x.astype(np.float16)
    call = elementwise(
        lambda v: ex.Cast(v, dt.float16.with_lanes(lanes)), [wide], dt.float16, lanes, where
    )
    result, _ = call(x)
    assert np.array_equal(result, expected, equal_nan=True)


@pytest.mark.parametrize("lanes", [1, 8])
def test_bfloat16_round_trips_and_rounds_to_nearest_even(lanes):
    widen = elementwise(
        lambda v: ex.Cast(v, dt.float32.with_lanes(lanes)), [dt.bfloat16], dt.float32, lanes
    )
    wide, _ = widen(ALL_BITS)
    assert np.array_equal(wide, from_bfloat(ALL_BITS), equal_nan=True)
    narrow = elementwise(
        lambda v: ex.Cast(v, dt.bfloat16.with_lanes(lanes)), [dt.float32], dt.bfloat16, lanes
    )
    x = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    x[np.isnan(x)] = 1
    assert np.array_equal(narrow(x)[0], to_bfloat(x))
    assert np.isnan(from_bfloat(narrow(np.full(8, np.nan, np.float32))[0])).all()


def test_16_bit_sums_are_kept_in_float32_until_stored():
    call = elementwise(lambda a, b: a + b - a, [dt.float16] * 2, dt.float16, 1, GENERIC)
    a, b = np.full(1, 2048, np.float16), np.full(1, 0.5, np.float16)
    assert call(a, b)[0][0] == np.float16(0.5)


def test_a_ramp_of_stride_one_is_one_load_and_others_gather():
    x, out = buffer("x", dt.float32), buffer("out", dt.float32)
    n = ex.Var("n", dt.int64)
    contiguous = ex.BinOp("+", ex.Broadcast(n, 8), ex.Ramp(const(1), 1, 8))
    body = st.seq(
        store(out, ex.Ramp(const(0), 1, 8), load(x, contiguous)),
        store(out, ex.Ramp(const(8), 1, 8), load(x, ex.Ramp(n, -2, 8))),
        store(out, ex.Ramp(const(16), 2, 8), load(x, ex.Ramp(n, 1, 8))),
    )
    func = function(body, x, out, n)
    text = build(func).llvm_ir
    assert text.count("call <8 x float> @llvm.masked.gather") == 1
    assert text.count("call void @llvm.masked.scatter") == 1
    a, result = np.arange(64, dtype=np.float32), np.zeros(40, np.float32)
    assert run(func, a, result, 20) == 0
    assert np.array_equal(result[:8], a[21:29])
    assert np.array_equal(result[8:16], a[20:4:-2])
    assert np.array_equal(result[16:32:2], a[20:28])


@pytest.mark.parametrize("where", ["cpu", GENERIC])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int8, dt.bool_, dt.float16], ids=str)
def test_masked_lanes_touch_no_memory_and_read_zero(dtype, where):
    x, out = buffer("x", dtype), buffer("out", dtype)
    index, n = buffer("index", dt.int32), ex.Var("n", dt.int64)
    lane = ex.Ramp(const(0), 1, 8)
    mask = ex.BinOp("<", lane, ex.Broadcast(n, 8))
    far = ex.BinOp("+", lane, ex.Broadcast(n, 8))
    body = st.seq(
        store(out, lane, load(x, lane, mask)),
        store(out, far, load(x, load(index, lane, mask), mask), mask),
    )
    a = np.array([1, 2, 3] if dtype.kind != "bool" else [True, False, True], dtype.numpy_name)
    where_to = np.array([2, 1, 0], np.int32)
    result = np.full(8, 1, dtype.numpy_name)
    assert run(function(body, x, out, index, n), a, result, where_to, 3, where=where) == 0
    assert np.array_equal(result, np.array([*a, *a[::-1], 0, 0], dtype.numpy_name))


def test_a_select_of_vectors_reads_only_the_chosen_lanes():
    x, index, out = buffer("x", dt.float64), buffer("i", dt.int64), buffer("out", dt.float64)
    lane = ex.Ramp(const(0), 1, 4)
    at = load(index, lane)
    inside = ex.BinOp("<", at, ex.Broadcast(const(3), 4))
    chosen = ex.Select(inside, load(x, at), ex.Broadcast(const(-1.0, dt.float64), 4))
    both = ex.BinOp("and", inside, load(x, at) < ex.Broadcast(const(1.5, dt.float64), 4))
    counted = ex.Select(both, ex.Broadcast(const(1.0, dt.float64), 4), chosen)
    result = np.zeros(4)
    far = np.array([0, 1 << 50, 2, 1 << 50])
    assert (
        run(function(store(out, lane, counted), x, index, out), np.arange(1.0, 4), far, result) == 0
    )
    assert result.tolist() == [1, -1, 3, -1]


def test_guards_keep_scalar_loads_and_divisions_from_running():
    x, out, n = buffer("x", dt.int64), buffer("out", dt.int64), ex.Var("n", dt.int64)
    missing = load(x, const(1 << 50))
    few = ex.BinOp("<", n, const(1))
    body = st.seq(
        store(out, 0, ex.Select(few, missing, const(5))),
        store(out, 1, ex.Select(ex.BinOp("==", n, const(0)), const(1) // n, const(6))),
        st.If(ex.BinOp("and", few, missing < 3), store(out, 0, const(9))),
        st.If(ex.BinOp("or", ex.UnOp("not", few), missing < 3), store(out, 2, const(7))),
        st.Store(out, (const(3),), const(8), few),
        store(out, 4, load(x, const(1 << 50), few)),
    )
    result = np.full(5, -1)
    assert run(function(body, x, out, n), np.zeros(1, np.int64), result, 2) == 0
    assert result.tolist() == [5, 6, 7, -1, 0]


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.int32, dt.uint8, dt.float16], ids=str)
def test_lanes_are_reduced(dtype, lanes):
    a = np.random.default_rng(0).integers(1, 3, lanes).astype(dtype.numpy_name)
    x, out = buffer("x", dtype), buffer("out", dtype)
    vector = load(x, ex.Ramp(const(0), 1, lanes))
    ops = {"+": np.add, "*": np.multiply, "min": np.minimum, "max": np.maximum}
    body = st.Seq(tuple(store(out, k, ex.Reduce(op, vector)) for k, op in enumerate(ops)))
    result = np.zeros(4, dtype.numpy_name)
    assert run(function(body, x, out), a, result) == 0
    assert result.tolist() == [f.reduce(a, dtype=a.dtype) for f in ops.values()]


def test_lanes_of_bool_are_reduced():
    x, out = buffer("x", dt.bool_), buffer("out", dt.bool_)
    vector = load(x, ex.Ramp(const(0), 1, 4))
    body = st.seq(
        store(out, 0, ex.Reduce("or", vector)),
        store(out, 1, ex.Reduce("and", vector)),
        store(out, 2, ex.Reduce("max", vector)),
    )
    result = np.zeros(3, bool)
    run(function(body, x, out), np.array([True, False, False, False]), result)
    assert result.tolist() == [True, False, True]


@pytest.mark.parametrize("key_dtype", [dt.int32, dt.int64], ids=str)
@pytest.mark.parametrize("dtype", [dt.int32, dt.int64, dt.uint8, dt.float32], ids=str)
def test_searches_find_absolute_positions(dtype, key_dtype):
    x, out, key = buffer("x", dtype), buffer("out", dt.int64), ex.Var("key", key_dtype)
    begin, end = ex.Var("b", dt.int64), ex.Var("e", dt.int64)
    kinds = ("lower", "upper", "linear", "run", "gallop")
    body = st.Seq(
        tuple(store(out, k, Search(kind, x, begin, end, key)) for k, kind in enumerate(kinds))
    )
    executable = build(function(body, x, out, key, begin, end))
    a = np.array([99, 1, 3, 3, 3, 8, 0], dtype.numpy_name)
    result = np.zeros(5, np.int64)
    for k in (0, 1, 2, 3, 8, 9):
        for low, high in ((1, 6), (2, 2), (2, 5)):
            executable.call("f", slots_of(executable, [a, result, k, low, high]))
            part = a[low:high]
            where = np.flatnonzero(part == k)
            assert result.tolist() == [
                low + np.searchsorted(part, k),
                low + np.searchsorted(part, k, "right"),
                low + where[0] if len(where) else high,
                low + np.argmin([*(part == k), False]),
                low + np.searchsorted(part, k),
            ]


def test_a_gallop_finds_what_is_at_any_distance():
    x, out, key = buffer("x", dt.int32), buffer("out", dt.int64), ex.Var("key", dt.int64)
    begin, end = ex.Var("b", dt.int64), ex.Var("e", dt.int64)
    gallop = Search("gallop", x, begin, end, key)
    executable = build(function(store(out, 0, gallop), x, out, key, begin, end))
    a, result = np.arange(0, 80, 2, np.int32), np.zeros(1, np.int64)
    for first in (0, 7, 40):
        for last in {first, (first + 40) // 2, 40}:
            for sought in range(-1, 82):
                executable.call("f", slots_of(executable, [a, result, sought, first, last]))
                assert result[0] == first + np.searchsorted(a[first:last], sought)


@pytest.mark.parametrize("dtype", [dt.int32, dt.int64, dt.uint8, dt.float16], ids=str)
def test_a_run_ends_where_a_value_differs_however_far_that_is(dtype):
    x, out, key = buffer("x", dtype), buffer("out", dt.int64), ex.Var("key", dtype)
    begin, end = ex.Var("b", dt.int64), ex.Var("e", dt.int64)
    executable = build(
        function(store(out, 0, Search("run", x, begin, end, key)), x, out, key, begin, end)
    )
    result = np.zeros(1, np.int64)
    for length in range(36):
        a = np.array([9] + [5] * length + [6] * 3, dtype.numpy_name)
        for last in {length // 2, length, length + 1, length + 2}:
            executable.call("f", slots_of(executable, [a, result, 5, 1, 1 + last]))
            assert result[0] == 1 + min(length, last)


@pytest.mark.parametrize("key_dtype", [dt.int32, dt.int64, dt.uint32], ids=str)
@pytest.mark.parametrize("dtype", [dt.int32, dt.int64], ids=str)
def test_a_table_is_probed_as_the_interpreter_says_whatever_is_in_it(dtype, key_dtype):
    x, out, key = buffer("x", dtype), buffer("out", dt.int64), ex.Var("key", key_dtype)
    begin, end = ex.Var("b", dt.int64), ex.Var("e", dt.int64)
    probe = Search("probe", x, begin, end, key)
    func = function(store(out, 0, probe), x, out, key, begin, end)
    executable, rng = build(func), np.random.default_rng(0)
    for size in (0, 1, 2, 3, 4, 7, 8, 16):  # those that are no powers of two are no tables
        for _ in range(20):
            a = rng.integers(-1, 6, size + 2).astype(dtype.numpy_name)
            for sought in range(6):
                got, want = np.zeros(1, np.int64), np.zeros(1, np.int64)
                executable.call("f", slots_of(executable, [a, got, sought, 1, 1 + size]))
                interpret(func, {"x": a, "out": want, "key": sought, "b": 1, "e": 1 + size})
                assert got == want
                if got[0] <= size:
                    assert a[got[0]] == sought
    full = np.array([9, *table([5, 3, 77, 2**31 - 1], 4), 9], dtype.numpy_name)
    for sought in (5, 3, 77, 2**31 - 1, 9, 0):
        executable.call("f", slots_of(executable, [full, got, sought, 1, 5]))
        assert got == (list(full[1:5]).index(sought) + 1 if sought in full[1:5] else 5)


def test_while_let_and_nested_loops():
    out, n, i = buffer("out", dt.int64), ex.Var("n", dt.int64), ex.Var("i", dt.int64)
    count, j = Buffer("count", None, (const(1),), dt.int64, "local"), ex.Var("j", dt.int64)
    x = ex.Var("x", dt.int64)
    body = st.Alloc(
        count,
        st.seq(
            store(count, 0, const(0)),
            st.While(
                load(count, 0) < n,
                st.Let(x, load(count, 0), st.seq(store(out, x, x * x), store(count, 0, x + 1))),
            ),
            loop(i, 3, loop(j, i, store(out, j + 10, i * 10 + j)), begin=1),
            st.Evaluate(load(out, 0)),
            st.Prefetch(out, (ex.Ramp(const(1 << 40), 1, 16),)),
            st.Prefetch(out, (ex.Ramp(const(5), 3, 4),)),
        ),
    )
    result = np.zeros(20, np.int64)
    assert run(function(body, out, n), result, 5) == 0
    assert result.tolist() == [0, 1, 4, 9, 16, *[0] * 5, 20, 21, *[0] * 8]


@pytest.mark.parametrize("kind", ["serial", "unroll", "vectorized"])
@pytest.mark.parametrize("trips", [0, 5, 300])
def test_loops_of_every_serial_kind_run_in_order(kind, trips):
    out, i = buffer("out", dt.int64), ex.Var("i", dt.int64)
    body = loop(i, trips, store(out, i, i * 3), kind)
    result = np.zeros(300, np.int64)
    assert run(function(body, out), result) == 0
    assert np.array_equal(result[:trips], np.arange(trips) * 3)
    assert not result[trips:].any()


@pytest.mark.parametrize("size", [0, 7, 1 << 20])
@pytest.mark.parametrize("dtype", [dt.float32, dt.bool_, dt.float16], ids=str)
def test_local_buffers_hold_values_of_constant_and_computed_size(size, dtype):
    out, n, i = buffer("out", dtype), ex.Var("n", dt.int64), ex.Var("i", dt.int64)
    for extent in (const(size), n + 0):
        local = Buffer("local", None, (extent,), dtype)
        body = st.Alloc(
            local,
            st.seq(
                loop(i, n, store(local, i, ex.Cast(ex.BinOp("%", i, const(2)), dtype))),
                loop(i, n, store(out, i, load(local, i))),
            ),
        )
        result = np.zeros(size, dtype.numpy_name)
        assert run(function(body, out, n), result, size) == 0
        assert np.array_equal(result, (np.arange(size) % 2).astype(dtype.numpy_name))


def test_memory_from_the_heap_begins_at_a_cache_line():
    n, out = ex.Var("n", dt.int64), buffer("out", dt.float32)
    local = Buffer("local", None, (n,), dt.float32)
    body = st.Alloc(local, st.seq(store(local, 0, n), store(out, 0, load(local, 0))))
    executable = build(function(body, out, n))
    assert "@llvm.ptrmask.p0.i64(ptr %" in executable.llvm_ir
    assert ", i64 -64)" in executable.llvm_ir


def test_an_allocation_that_fails_is_reported():
    n, i = ex.Var("n", dt.int64), ex.Var("i", dt.int64)
    local = Buffer("local", None, (n,), dt.float64)
    out = buffer("out", dt.float64)
    use = loop(i, 2, store(out, i, load(local, i)))
    executable = build(function(st.Alloc(local, st.seq(store(local, 0, n), use)), out, n))
    status = executable.call("f", slots_of(executable, [np.zeros(2), 1 << 55]))
    assert executable.emitted["f"].message(status) == "out of memory"


def test_fail_gives_the_number_of_the_message_and_the_first_written_wins():
    n, out = ex.Var("n", dt.int64), buffer("out", dt.int64)
    body = st.seq(
        st.If(n < 1, st.Fail("too small")),
        st.If(n < 0, st.Fail("negative")),
        st.If(n < 5, store(out, 0, const(1)), st.Fail("too big")),
    )
    executable = build(function(body, n, out))
    abi, result = executable.emitted["f"], np.zeros(1, np.int64)
    answers = {}
    for value in (3, 0, -1, 7):
        status = executable.call("f", slots_of(executable, [value, result]))
        answers[value] = abi.message(status) if status else ""
    assert answers == {3: "", 0: "too small", -1: "too small", 7: "too big"}
    assert result[0] == 1  # a failure stops nothing


def test_parameters_that_are_written_or_may_alias_are_declared_so():
    a, b = buffer("a", dt.float32), buffer("b", dt.float32)
    body = store(b, 0, load(a, 0))
    plain = cpu.emit(single(function(body, a, b)), target("cpu"))
    assert "noalias captures(none) readonly align 4 %p0" in plain.llvm_ir
    assert "ptr noalias captures(none) align 4 %p1" in plain.llvm_ir
    assert [p.written for p in plain["f"].params] == [False, True]
    assert [p.element for p in plain["f"].params] == [dt.float32, dt.float32]
    aliased = function(body, a, b, **{"tir.noalias": False})
    assert " noalias" not in cpu.emit(single(aliased), target("cpu")).llvm_ir


def test_atomic_stores_are_plain_where_no_other_thread_runs_and_exact_where_they_do():
    out, i = buffer("out", dt.int32), ex.Var("i", dt.int64)
    for dtype, op, start, expected in [
        (dt.int32, "+", 0, 8000),
        (dt.float32, "+", 0, 8000),
        (dt.float64, "max", 0, 1),
        (dt.float16, "max", 0, 1),
        (dt.uint8, "*", 1, 1),
    ]:
        out = buffer("out", dtype)
        update = ex.BinOp(op, load(out, 1), const(1, dtype))
        for kind in ("serial", "parallel"):
            body = loop(i, 8000, store(out, 1, update, atomic=True), kind, grain=7)
            executable = build(function(body, out))
            result = np.full(2, start, dtype.numpy_name)
            assert executable.call("f", slots_of(executable, [result])) == 0
            assert result[1] == expected
            assert ("cmpxchg" in executable.llvm_ir) == (kind == "parallel")


def test_an_atomic_vector_store_in_a_parallel_loop_is_refused():
    out, i = buffer("out", dt.int32), ex.Var("i", dt.int64)
    lanes = ex.Ramp(i, 1, 4)
    body = loop(
        i, 4, store(out, lanes, ex.Broadcast(const(1, dt.int32), 4), atomic=True), "parallel"
    )
    with pytest.raises(LoweringError, match="atomic vector store"):
        build(function(body, out))
