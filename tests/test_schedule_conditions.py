"""Steps read and compute nothing that the program does not: under conditions, in empty ranges."""

from __future__ import annotations

import numpy as np
import pytest

from spcomp import script as T
from spcomp.errors import ScheduleError
from spcomp.schedule.schedule import Schedule
from tests.test_schedule_soundness import run


@T.prim_func
def row_of_counter(a: T.handle, b: T.handle, counter: T.handle) -> None:
    A = T.match_buffer(a, (8,), "float32")
    B = T.match_buffer(b, (8, 8), "float32")
    J = T.match_buffer(counter, (4,), "int32")
    for i in range(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            A[vi] = B[T.max(0, T.min(J[0], 7)), vi]
            J[0] = J[0] + 1


@T.prim_func
def opened_inside(c: T.handle, x: T.handle, y: T.handle, p: T.handle) -> None:
    C = T.match_buffer(c, (16,), "int32")
    P = T.match_buffer(p, (16,), "int32")
    X = T.match_buffer(x, (16,), "float32")
    Y = T.match_buffer(y, (16,), "float32")
    T.assume_buffer_domain(P, [0, 15])
    t = T.alloc_buffer((16,), "float32")
    for k in range(16):
        with T.block("p"):
            vk = T.axis.spatial(16, k)
            t[vk] = X[vk] + 1.0
    for i in range(4):
        for _j in range(2):
            with T.block("w"):
                vi = T.axis.spatial(4, i)
                C[vi] = 1
        for _j2 in range(2):
            with T.block("q"):
                vi = T.axis.spatial(4, i)
                T.where(C[i] > 0)
                Y[vi] = t[P[i]]


def test_cache_read_copies_the_row_of_an_index_only_if_the_nest_does_not_write_that():
    b = np.arange(64, dtype=np.float32).reshape(8, 8)
    given = {"a": np.zeros(8, np.float32), "b": b, "counter": np.zeros(4, np.int32)}
    for schedule in (row_of_counter, Schedule(row_of_counter).cache_read("b", 0)):
        np.testing.assert_array_equal(run(schedule, "a", **given)[0], np.diag(b))


def test_compute_at_runs_under_no_condition_that_the_loop_changes():
    x = np.arange(16, dtype=np.float32)
    given = {
        "c": np.array([0, 1, 0, 1] + [0] * 12, np.int32),
        "x": x,
        "y": np.zeros(16, np.float32),
        "p": np.arange(16, dtype=np.int32)[::-1].copy(),
    }
    (y,) = run(opened_inside, "y", **given)
    np.testing.assert_array_equal(y[:4], x[::-1][:4] + 1)
    with pytest.raises(ScheduleError, match="has no bounds"):
        Schedule(opened_inside).compute_at("p", "i")


@T.prim_func
def bit_and_element(y: T.handle, x: T.handle, p: T.handle) -> None:
    Y = T.match_buffer(y, (8,), "bool")
    A = T.match_buffer(x, (8,), "float32")
    P = T.match_buffer(p, (4,), "int32")
    T.assume_buffer_domain(P, [0, 7])
    X = T.alloc_buffer((8,), "float32")
    for k in range(8):
        with T.block("p"):
            vk = T.axis.spatial(8, k)
            X[vk] = A[vk] - 3.0
    for i in range(8):
        with T.block("q"):
            vi = T.axis.spatial(8, i)
            Y[vi] = i < 4 and X[P[i]] > 0.0


def test_compute_at_evaluates_no_index_that_and_guards():
    x, p = np.arange(8, dtype=np.float32) + 1, np.array([1, 7, 2, 4], np.int32)
    (y,) = run(bit_and_element, "y", x=x, p=p, y=np.zeros(8, bool))
    np.testing.assert_array_equal(y, [*(x[p] > 3), *[False] * 4])
    with pytest.raises(ScheduleError, match="has no bounds"):
        Schedule(bit_and_element).compute_at("p", "i")


@T.prim_func
def grows(c: T.handle, x: T.handle) -> None:
    C = T.match_buffer(c, (1,), "int32")
    X = T.match_buffer(x, (8, 8), "int32")
    for j in range(C[0]):
        for k in range(8):
            with T.block("p"):
                vj = T.axis.reduce(8, j)
                vk = T.axis.reduce(8, k)
                C[0] = C[0] + X[vj & 7, vk]


@T.prim_func
def grows_apart(c: T.handle) -> None:
    C = T.match_buffer(c, (8,), "int32")
    for j in range(C[0]):
        for k in range(8):
            with T.block("p"):
                vj = T.axis.reduce(8, j)
                vk = T.axis.spatial(8, k)
                C[vk] = C[vk] + vj + 1


def test_loops_change_places_only_if_their_ranges_stay():
    (c,) = run(grows, "c", c=np.array([2], np.int32), x=np.ones((8, 8), np.int32))
    assert c == 18
    with pytest.raises(ScheduleError, match="iterations may change the range"):
        Schedule(grows).reorder("k", "j")
    (c,) = run(grows_apart, "c", c=np.full(8, 2, np.int32))
    np.testing.assert_array_equal(c, np.full(8, 5))
    with pytest.raises(ScheduleError, match="iterations may change the range"):
        Schedule(grows_apart).reorder("k", "j")


@T.prim_func
def guarded_weight(
    a: T.handle, c: T.handle, p: T.handle, q: T.handle, indptr: T.handle, indices: T.handle,
    m: T.int32, n: T.int32, nnz: T.int32,
) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_indptr = T.match_sparse_buffer(indptr, (I,), "int32", extra_storage=1)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    P = T.match_buffer(p, (m,), "int32")
    Q = T.match_buffer(q, (3,), "float32")
    C = T.match_buffer(c, (m, 4), "float32")
    for i in range(m):
        with T.block("w0"):
            vi = T.axis.spatial(m, i)
            for j in range(J_indptr[vi + 1] - J_indptr[vi]):
                for k in range(4):
                    with T.block("w1"):
                        vj = T.axis.reduce(n, j)
                        vk = T.axis.spatial(4, k)
                        C[vi, vk] = C[vi, vk] + T.if_then_else(
                            P[vi] >= vk, T.exp(A[vi, vj] * Q[P[vi]]), T.float32(0.0)
                        )


def test_stage_weights_computes_nothing_that_a_choice_guards():
    with pytest.raises(ScheduleError, match="no function or quotient"):
        Schedule(guarded_weight).stage_weights("i", "j")


@T.prim_func
def sums_at(x: T.handle, w: T.handle, ip: T.handle, idx: T.handle) -> None:
    W = T.match_buffer(w, (4,), "float32")
    X = T.match_buffer(x, (16,), "float32")
    IP = T.match_buffer(ip, (7,), "int32")
    I = T.match_buffer(idx, (6,), "int32")
    for i in range(6):
        for j in range(IP[i + 1] - IP[i]):
            with T.block("q"):
                vi = T.axis.spatial(6, i)
                vj = T.axis.reduce(16, j)
                W[I[vi]] = W[I[vi]] + X[IP[vi] + vj]


@T.prim_func
def read_at(x: T.handle, w: T.handle, ip: T.handle, idx: T.handle) -> None:
    W = T.match_buffer(w, (4,), "float32")
    X = T.match_buffer(x, (6,), "float32")
    IP = T.match_buffer(ip, (7,), "int32")
    I = T.match_buffer(idx, (6,), "int32")
    for i in range(6):
        for j in range(IP[i + 1] - IP[i]):
            with T.block("q"):
                vi = T.axis.spatial(6, i)
                vj = T.axis.reduce(16, j)
                X[vi] = X[vi] + W[I[vi]] * vj


@pytest.mark.parametrize(
    "step",
    [
        lambda: Schedule(sums_at).cache_write("q", 0, at="i"),
        lambda: Schedule(sums_at).cache_write("q", 0),
        lambda: Schedule(sums_at).reverse_cache_write("q", 0),
        lambda: Schedule(read_at).reverse_cache_read("q", 1),
    ],
)
def test_an_index_of_an_empty_row_need_not_be_a_place(step):
    given = {
        "x": np.ones(16, np.float32),
        "w": np.zeros(4, np.float32),
        "ip": np.array([0, 2, 2, 3, 5, 5, 7], np.int32),
        "idx": np.array([0, -1, 2, 1, 99, 3], np.int32),
    }
    np.testing.assert_array_equal(run(sums_at, "w", **given)[0], [2, 2, 1, 2])
    with pytest.raises(ScheduleError, match="may be wrong where no iteration runs"):
        step()


@T.prim_func
def up_to_a_limit(
    x: T.handle, w: T.handle, indptr: T.handle, indices: T.handle,
    n: T.int32, nnz: T.int32, limit: T.int32,
) -> None:  # fmt: skip
    I = T.dense_fixed(1)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    Jd = T.dense_fixed(n)
    J_indptr = T.match_sparse_buffer(indptr, (I,), "int32", extra_storage=1)
    J_indices = T.match_sparse_buffer(indices, (I, J), "int32")
    A = T.match_sparse_buffer(x, (I, J), "float32")
    W = T.match_sparse_buffer(w, (Jd,), "float32")
    for e in range(limit):
        with T.block("q"):
            ve = T.axis.reduce(limit, e)
            T.where(ve < J_indptr[1] - J_indptr[0])
            W[J_indices[0, ve]] = W[J_indices[0, ve]] + A[0, ve]


def test_group_runs_reads_no_coordinate_that_a_condition_guards():
    with pytest.raises(ScheduleError, match="where the coordinate is read"):
        Schedule(up_to_a_limit).group_runs("e")


@T.prim_func
def merged(ja: T.handle, jb: T.handle, y: T.handle) -> None:
    JA = T.match_buffer(ja, (4,), "int32")
    JB = T.match_buffer(jb, (4,), "int32")
    Y = T.match_buffer(y, (4, 16), "float32")
    for i in range(4):
        with T.block("both"):
            vi = T.axis.spatial(4, i)
            with T.merge(  # noqa: SIM117  (a case stands in the merge)
                "intersect", T.cursor(JA, 0, 4), T.cursor(JB, 0, 4)
            ) as [c, _p, _q]:
                with T.case(1, 1):
                    Y[vi, c] = 1.0
        with T.block("clear"):
            vi = T.axis.spatial(4, i)
            JA[vi] = JA[vi] - 1


def test_a_merge_reads_the_coordinates_of_its_cursors():
    with pytest.raises(ScheduleError, match="of JA"):
        Schedule(merged).parallel("i")


@T.prim_func
def starts_another(x: T.handle, c: T.handle) -> None:
    X = T.match_buffer(x, (3, 5), "float32")
    C = T.match_buffer(c, (6,), "float32")
    for i in range(3):
        for k in range(5):
            with T.block("b"):
                vi = T.axis.spatial(3, i)
                vk = T.axis.reduce(5, k)
                with T.init():
                    C[vi + 3] = 7.0
                C[vi] = C[vi] + X[vi, vk]


def test_pad_einsum_pads_no_block_whose_init_starts_another_element():
    given = {"x": np.ones((3, 5), np.float32), "c": np.zeros(6, np.float32)}
    np.testing.assert_array_equal(run(starts_another, "c", **given)[0], [5, 5, 5, 7, 7, 7])
    with pytest.raises(ScheduleError, match="more than a constant stored"):
        Schedule(starts_another).pad_einsum("b", (4, 4))


@T.prim_func
def starts_beside(x: T.handle, c: T.handle, d: T.handle) -> None:
    X = T.match_buffer(x, (4, 8), "float32")
    C = T.match_buffer(c, (4,), "float32")
    D = T.match_buffer(d, (4,), "float32")
    for i in range(4):
        for k in range(8):
            with T.block("b"):
                vi = T.axis.spatial(4, i)
                vk = T.axis.reduce(8, k)
                with T.init():
                    D[vi] = 7.0
                C[vi] = C[vi] + X[vi, vk]


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.cache_write("b", 1),
        lambda s: s.cache_write("b", 1, at="i"),
        lambda s: s.reverse_cache_write("b", 1),
    ],
)
def test_a_copy_starts_from_the_init_only_if_that_stores_the_element(step):
    given = {
        "x": np.ones((4, 8), np.float32),
        "c": np.ones(4, np.float32),
        "d": np.zeros(4, np.float32),
    }
    for schedule in (starts_beside, step(Schedule(starts_beside))):
        c, d = run(schedule, "c", "d", **given)
        np.testing.assert_array_equal((c, d), (np.full(4, 9), np.full(4, 7)))


def test_a_tile_is_one_of_the_buffer_that_was_named():
    with pytest.raises(ScheduleError, match="the update is one of C, not D"):
        Schedule(starts_beside).cache_write("b", 0, at="i")
