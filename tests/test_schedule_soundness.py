"""Steps keep what a program computes, or are refused: values that outlive an iteration."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ScheduleError
from spcomp.schedule.schedule import Schedule

TABLE = np.arange(32, dtype=np.float32).reshape(4, 8) + 1


def run(schedule, *outputs, **arguments):
    """Run a program or schedule and return the arrays of the arguments called *outputs*."""
    arguments = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    spcomp.compile(schedule)(**arguments)
    return [arguments[name] for name in outputs]


def of_table(schedule):
    return run(schedule, "y", a=TABLE, y=np.zeros_like(TABLE))[0]


@T.prim_func
def previous_row(a: T.handle, y: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "float32")
    Y = T.match_buffer(y, (4, 8), "float32")
    t = T.alloc_buffer((4, 8), "float32")
    for z in range(4):
        for k in range(8):
            with T.block("p"):
                vz = T.axis.spatial(4, z)
                vk = T.axis.spatial(8, k)
                t[vz, vk] = A[vz, vk]
        for i in range(z):
            with T.block("q"):
                vz = T.axis.spatial(4, z)
                vi = T.axis.spatial(8, i)
                Y[vz, vi] = t[vz - 1, vi]


@T.prim_func
def first_row_too(a: T.handle, y: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "float32")
    Y = T.match_buffer(y, (4, 8), "float32")
    t = T.alloc_buffer((4, 8), "float32")
    for z in range(4):
        for k in range(8):
            with T.block("p"):
                vz = T.axis.spatial(4, z)
                vk = T.axis.spatial(8, k)
                t[vz, vk] = A[vz, vk]
        for i in range(8):
            with T.block("q"):
                vz = T.axis.spatial(4, z)
                vi = T.axis.spatial(8, i)
                Y[vz, vi] = t[vz, vi] + t[0, vi]


@T.prim_func
def shorter_rows(a: T.handle, y: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "float32")
    Y = T.match_buffer(y, (4, 8), "float32")
    t = T.alloc_buffer((8,), "float32")
    for z in range(4):
        for k in range(8 - z):
            with T.block("p"):
                vz = T.axis.spatial(4, z)
                vk = T.axis.spatial(8, k)
                t[vk] = A[vz, vk]
        for i in range(8):
            with T.block("q"):
                vz = T.axis.spatial(4, z)
                vi = T.axis.spatial(8, i)
                Y[vz, vi] = t[vi]


@T.prim_func
def same_row(a: T.handle, y: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "float32")
    Y = T.match_buffer(y, (4, 8), "float32")
    t = T.alloc_buffer((8,), "float32")
    for z in range(4):
        for k in range(8):
            with T.block("p"):
                vz = T.axis.spatial(4, z)
                vk = T.axis.spatial(8, k)
                t[vk] = A[vz, vk]
        for i in range(8):
            with T.block("q"):
                vz = T.axis.spatial(4, z)
                vi = T.axis.spatial(8, i)
                Y[vz, vi] = t[vi] + t[vi // 2]


EARLIER = {
    "previous_row": (previous_row, np.tril(np.roll(TABLE, 1, 0), -1)),
    "first_row_too": (first_row_too, TABLE + TABLE[:1]),
    "shorter_rows": (
        shorter_rows,
        np.array([[TABLE[min(z, 7 - i), i] for i in range(8)] for z in range(4)]),
    ),
}


@pytest.mark.parametrize("name", EARLIER)
def test_compute_at_keeps_what_earlier_iterations_around_have_stored(name):
    program, expected = EARLIER[name]
    np.testing.assert_array_equal(of_table(program), expected)
    with pytest.raises(ScheduleError, match="may read what p stored earlier"):
        Schedule(program).compute_at("p", "i")


def test_compute_at_moves_a_row_that_is_stored_again_in_every_iteration_around():
    expected = TABLE + TABLE[:, np.arange(8) // 2]
    np.testing.assert_array_equal(of_table(same_row), expected)
    np.testing.assert_array_equal(of_table(Schedule(same_row).compute_at("p", "i")), expected)


@T.prim_func
def row_before(a: T.handle, y: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "float32")
    Y = T.match_buffer(y, (4, 8), "float32")
    t = T.alloc_buffer((4, 8), "float32")
    for z in range(4):
        for i in range(8):
            with T.block("p"):
                vz = T.axis.spatial(4, z)
                vi = T.axis.spatial(8, i)
                t[vz, vi] = A[vz, vi]
        for k in range(8):
            with T.block("q"):
                vz = T.axis.spatial(4, z)
                vk = T.axis.spatial(8, k)
                Y[vz, vk] = t[vz, vk] + T.if_then_else(
                    vz > 0, t[T.max(vz - 1, 0), vk], T.float32(0.0)
                )


@T.prim_func
def two_rows(a: T.handle, y: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "float32")
    Y = T.match_buffer(y, (4, 8), "float32")
    t = T.alloc_buffer((5, 8), "float32")
    for z in range(4):
        for i in range(8):
            with T.block("p"):
                vz = T.axis.spatial(4, z)
                vi = T.axis.spatial(8, i)
                t[vz + 1, vi] = A[vz, vi]
        for k in range(8):
            with T.block("q"):
                vz = T.axis.spatial(4, z)
                vk = T.axis.spatial(8, k)
                T.where(z > 0)
                Y[vz, vk] = t[vz + 1, vk] + t[vz, vk]


@T.prim_func
def only_once(a: T.handle, y: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "float32")
    Y = T.match_buffer(y, (4, 8), "float32")
    t = T.alloc_buffer((8,), "float32")
    for z in range(4):
        for i in range(8):
            with T.block("p"):
                vz = T.axis.spatial(4, z)
                vi = T.axis.spatial(8, i)
                T.where(vz < 1)
                t[vi] = A[vz, vi]
        for k in range(8):
            with T.block("q"):
                vz = T.axis.spatial(4, z)
                vk = T.axis.spatial(8, k)
                Y[vz, vk] = t[vk]


ABOVE = np.vstack([np.zeros((1, 8), np.float32), TABLE[:-1]])
KEPT = {
    "row_before": (row_before, TABLE + ABOVE),
    "two_rows": (two_rows, np.where(np.arange(4)[:, None] > 0, TABLE + ABOVE, 0)),
    "only_once": (only_once, np.repeat(TABLE[:1], 4, 0)),
}


@pytest.mark.parametrize("name", KEPT)
def test_reverse_compute_at_keeps_what_earlier_iterations_around_have_stored(name):
    program, expected = KEPT[name]
    np.testing.assert_array_equal(of_table(program), expected)
    moved = Schedule(program).reverse_compute_at("q", "i")
    np.testing.assert_array_equal(of_table(moved), expected)


@T.prim_func
def first_of_all(y: T.handle) -> None:
    Y = T.match_buffer(y, (4,), "int32")
    X = T.alloc_buffer((8,), "int32")
    for i in range(4):
        for a in range(1):
            with T.block("p"):
                va = T.axis.spatial(8, i + a)
                X[va] = T.cast(va + 10 * i, "int32")
        for _b in range(1):
            with T.block("q"):
                vi = T.axis.spatial(4, i)
                Y[vi] = X[0]


@T.prim_func
def lower_part(y: T.handle, x: T.handle) -> None:
    Y = T.match_buffer(y, (4, 4), "int32")
    A = T.match_buffer(x, (4,), "int32")
    X = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("p"):
            vi = T.axis.spatial(4, i)
            X[vi] = A[vi]
        for a in range(4):
            with T.block("q"):
                va = T.axis.spatial(4, a)
                vi = T.axis.spatial(4, i)
                T.where(a <= i)
                Y[vi, va] = X[va]


def test_compute_inline_keeps_a_value_of_an_earlier_iteration():
    (y,) = run(first_of_all, "y", y=np.ones(4, np.int32))
    np.testing.assert_array_equal(y, np.zeros(4))
    with pytest.raises(ScheduleError, match="where an earlier iteration stored it"):
        Schedule(first_of_all).compute_inline("p")


def test_reverse_compute_inline_keeps_reads_of_earlier_iterations():
    x = np.arange(4, dtype=np.int32) + 1
    (y,) = run(lower_part, "y", x=x, y=np.zeros((4, 4), np.int32))
    np.testing.assert_array_equal(y, np.tril(np.repeat(x[None], 4, 0)))
    with pytest.raises(ScheduleError, match="in a later iteration than it is stored"):
        Schedule(lower_part).reverse_compute_inline("q")
