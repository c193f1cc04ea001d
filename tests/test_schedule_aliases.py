"""Schedules of programs whose buffers are the same memory, or whose bounds are written."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ScheduleError


@T.prim_func
def one_element(a: T.handle) -> None:
    X = T.match_buffer(a, (16,), "float32")
    Y = T.match_buffer(a, (16,), "float32")
    for j in range(4):
        for k in range(4):
            with T.block("b"):
                vj = T.axis.reduce(4, j)
                vk = T.axis.reduce(4, k)
                X[5] = X[5] + Y[vj * 4 + vk]


@T.prim_func
def next_element(a: T.handle) -> None:
    X = T.match_buffer(a, (96,), "float32")
    Y = T.match_buffer(a, (96,), "float32")
    for k in range(32):
        for j in range(32):
            with T.block("b"):
                vk = T.axis.spatial(32, k)
                vj = T.axis.reduce(32, j)
                X[vk + 1] = X[vk + 1] + Y[vj + vk]


def by_hand(name, a):
    for i in range(16 if name == "one" else 1024):
        k, j = divmod(i, 32)
        target, source = (5, i) if name == "one" else (k + 1, j + k)
        a[target] += a[source]
    return a


@pytest.mark.parametrize(("name", "program"), [("one", one_element), ("next", next_element)])
def test_a_buffer_at_the_same_handle_is_no_other_memory(name, program):
    """What is added is read from the memory of the element: that is no dot product."""
    a = np.random.default_rng(1).integers(0, 2, 96 if name == "next" else 16).astype("float32")
    want = by_hand(name, a.copy())
    got = a.copy()
    spcomp.compile(program)(a=got)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "steps",
    [
        lambda s: s.reorder("k", "j"),
        lambda s: s.vectorize("k"),
        lambda s: s.split("k", 2).rfactor("k_i"),
        lambda s: s.cache_write("b", 0, at="j"),
    ],
)
def test_steps_that_reorder_a_sum_know_that_it_reads_its_own_element(steps):
    with pytest.raises(ScheduleError):
        steps(spcomp.Schedule(one_element))


def strided(program, size):
    """What *program* gives for ones, and for zeros to add them to."""
    a, b = np.zeros(size, "float32"), np.ones(16, "float32")
    spcomp.compile(program)(a=a, b=b)
    return a


@T.prim_func
def no_stride(a: T.handle, b: T.handle) -> None:
    X = T.match_buffer(a, (8,), "float32", strides=(0,))
    B = T.match_buffer(b, (16,), "float32")
    for u in range(1):  # noqa: B007 (a step names it)
        for j in range(16):
            for k in range(8):
                with T.block("b"):
                    vj = T.axis.reduce(16, j)
                    vk = T.axis.spatial(8, k)
                    X[vk] = X[vk] + B[vj]


@T.prim_func
def diagonals(a: T.handle, b: T.handle) -> None:
    X = T.match_buffer(a, (8, 8), "float32", strides=(1, 1))
    B = T.match_buffer(b, (16,), "float32")
    for u in range(8):
        for j in range(16):
            for k in range(8):
                with T.block("b"):
                    vu = T.axis.spatial(8, u)
                    vj = T.axis.reduce(16, j)
                    vk = T.axis.spatial(8, k)
                    X[vu, vk] = X[vu, vk] + B[vj]


@pytest.mark.parametrize(
    "steps",
    [
        lambda s: s.cache_write("b", 0, at="u"),
        lambda s: s.cache_write("b", 0),
        lambda s: s.reverse_cache_write("b", 0),
        lambda s: s.reorder("k", "j"),
        lambda s: s.vectorize("k"),
    ],
)
@pytest.mark.parametrize(("program", "size", "total"), [(no_stride, 1, 128), (diagonals, 15, 1024)])
def test_two_places_of_a_view_may_be_one_element(steps, program, size, total):
    try:
        scheduled = steps(spcomp.Schedule(program))
    except ScheduleError:
        return
    assert strided(scheduled, size).sum() == strided(program, size).sum() == total


@T.prim_func
def shrinking(a: T.handle, c: T.handle, m: T.int64) -> None:
    A = T.match_buffer(a, (m,), "int64")
    N = T.match_buffer(c, (1,), "int64")
    for j in range(N[0]):
        N[0] = 2
        if j < N[0]:
            A[j] = 1
        A[j] = A[j] + T.min(j, N[0])


@T.prim_func
def shrinking_in_a_block(a: T.handle, c: T.handle, m: T.int64) -> None:
    A = T.match_buffer(a, (m,), "int64")
    N = T.match_buffer(c, (1,), "int64")
    for j in range(N[0]):
        with T.block("b"):
            vj = T.axis.spatial(N[0], j)
            N[0] = 2
            if vj < N[0]:
                A[vj] = 1
            A[vj] = A[vj] + T.min(vj, N[0])


@pytest.mark.parametrize("program", [shrinking, shrinking_in_a_block])
def test_a_bound_that_the_body_writes_says_nothing_of_what_it_is_then(program):
    a, n = np.zeros(8, np.int64), np.array([8])
    spcomp.compile(program)(a=a, c=n, m=8)
    assert a.tolist() == [1, 2, 2, 2, 2, 2, 2, 2]


@T.prim_func
def running(a: T.handle, c: T.handle, n: T.int32) -> None:
    A = T.match_buffer(a, (n, 4), "int64")
    C = T.match_buffer(c, (n, 4), "int64")
    for i, j in T.grid(n, 4):
        with T.prefix(A[i, j]) as before:  # noqa: SIM117 (one with opens one thing)
            with T.block("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = before


@pytest.mark.parametrize(
    "steps",
    [
        lambda s: s.split("j", 2),
        lambda s: s.reorder("j", "i"),
        lambda s: s.fuse("i", "j"),
        lambda s: s.loop_partition("j", 3),
        lambda s: s.add_unit_loop("j"),
    ],
)
def test_the_loops_that_a_running_sum_counts_stay(steps):
    with pytest.raises(
        ScheduleError, match=r"the loops around a running sum \(T.prefix\) must stay"
    ):
        steps(spcomp.Schedule(running))


@pytest.mark.parametrize("steps", [lambda s: s.parallel("i"), lambda s: s.unroll("j")])
def test_a_running_sum_may_run_in_parallel_and_unrolled(steps):
    a = np.arange(12).reshape(3, 4)
    got = spcomp.compile(steps(spcomp.Schedule(running)))(A=a)
    np.testing.assert_array_equal(got, np.cumsum(a, axis=1) - a)


CHOICES = {
    "expression": "C[i] = T.if_then_else(A[i, j] > C[i], A[i, j], C[i])",
    "branch": "if A[i, j] > C[i]:\n            C[i] = A[i, j]",
}


@pytest.mark.parametrize("form", CHOICES)
def test_a_choice_of_floats_passes_over_what_is_not_a_number(form):
    """By default, too, where ``T.max`` runs in vectors, and returns it."""
    program = spcomp.parse(f"""
@T.prim_func
def largest(a: T.handle, c: T.handle, m: T.int32, n: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, J], "SR", "largest") as [i, j]:
        with T.init():
            C[i] = -1.0
        {CHOICES[form]}
""")
    a = np.random.default_rng(0).random((4, 100), np.float32)
    a[0, 5] = a[2, 99] = np.nan
    np.testing.assert_array_equal(spcomp.compile(program)(A=a), np.nanmax(a, axis=1))


def test_zeros_of_float_divisions_have_the_signs_of_numpy():
    kernel = spcomp.compile("r[i] = x[i] % y[i]; q[i] = x[i] // y[i]")
    numbers = np.array([0.0, -0.0, 1.0, -1.0, 4.0, -4.0, 0.5, np.inf, -np.inf])
    for dtype in ("float32", "float64"):
        x, y = (part.reshape(-1).astype(dtype) for part in np.meshgrid(numbers, numbers))
        x, y = x[y != 0], y[y != 0]
        result = kernel(x=x, y=y)
        with np.errstate(invalid="ignore"):
            wants = np.mod(x, y), np.floor_divide(x, y)
        for got, want in zip(result, wants, strict=True):
            np.testing.assert_array_equal(got, want)
            known = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))


@T.prim_func
def behind_a_sum(a: T.handle, y: T.handle, z: T.handle) -> None:
    A = T.match_buffer(a, (64,), "int64")
    Y = T.match_buffer(y, (128,), "int64")
    Z = T.match_buffer(z, (8,), "int64")
    for i in range(64):
        with T.prefix(A[i]) as base:  # noqa: SIM117 (one with opens one thing)
            with T.block("b"):
                vi = T.axis.spatial(64, i)
                for k in range(8):
                    Y[vi + base] = Y[vi + base] + Z[k]


def test_a_running_sum_is_not_the_same_in_all_iterations():
    """It may take each iteration to the same element: that loop is not parallel."""
    with pytest.raises(ScheduleError, match="may write the same element of Y"):
        spcomp.Schedule(behind_a_sum).parallel("i")
    assert "parallel" not in str(spcomp.compile(behind_a_sum).trace)
