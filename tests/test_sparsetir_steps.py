"""Steps as SparseTIR's programs take them, and what of the schedule had to learn for these."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import sparsetir as tvm
from spcomp.errors import ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.schedule.legality.dependence import conflicts, loops_of
from spcomp.schedule.schedule import Schedule
from spcomp.script.parse import parse_source
from spcomp.sparsetir import tir
from spcomp.sparsetir.script import tir as T
from spcomp.sparsetir.sparse import lower_sparse_iter


def loop_in(body):
    """The first loop of a program over P and M with this *body*."""
    lines = "\n    ".join(body.strip().splitlines())
    text = f"""from spcomp import script as T

@T.prim_func
def f(m: T.handle, p: T.handle, n: T.int32, size: T.int32) -> None:
    M = T.match_buffer(m, (size,), "int32")
    P = T.match_buffer(p, (n + 1,), "int32")
    {lines}
"""
    (func,) = parse_source(text, "f.py")
    return next(loops_of(func.body))


def test_an_offset_that_all_iterations_read_alike_keeps_their_elements_apart():
    assert not conflicts(loop_in("for i in T.serial(P[n] - P[0]):\n    M[P[0] + i] = 1"))
    assert not conflicts(loop_in("for i in T.serial(n):\n    M[P[1] - i] = 1"))


@pytest.mark.parametrize(
    "body",
    [
        "for i in T.serial(n):\n    M[P[i] + i] = 1",  # another offset in each
        "for i in T.serial(n):\n    M[M[0] + i] = 1",  # which an iteration may change
        "for i in T.serial(n):\n    M[P[0] + i // 2] = 1",
        "for i in T.serial(n):\n    for k in T.serial(2):\n        M[P[k] + i] = 1",
    ],
)
def test_an_offset_that_may_change_does_not(body):
    assert conflicts(loop_in(body))


def test_a_loop_of_one_iteration_changes_places_with_any_other():
    sch = Schedule(rowsum).lower_sparse_iter().add_unit_loop("rowsum0")
    i, j, unit = sch.get_loops("rowsum0")
    moved = sch.reorder(i, unit, j)
    assert moved.get_loops("rowsum0") == (i, unit, j)
    assert summed(moved.func) == summed(sch.func)


@T.prim_func
def rowsum(a: T.handle, b: T.handle, m: T.int32, n: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I, J], "SR", "rowsum") as [i, j]:
        with T.init():
            B[i] = 0.0
        B[i] = B[i] + A[i, j]


def summed(func):
    a = np.arange(24, dtype=np.float32)
    b = np.full(3, 9, np.float32)
    interpret(func, {"a": a, "b": b, "m": 3, "n": 8})
    return b.tolist()


def test_partial_sums_in_two_whole_nests():
    sch = Schedule(rowsum).lower_sparse_iter().split("j", [None, 4])
    shared = sch.rfactor("j_i")
    whole = sch.rfactor("j_i", 1, whole=True)
    assert set(shared.get_loops("rowsum0_rf")) & set(shared.get_loops("rowsum0")) == {"i"}
    assert not set(whole.get_loops("rowsum0_rf")) & set(whole.get_loops("rowsum0"))
    assert summed(whole.func) == summed(shared.func) == summed(sch.func)
    assert whole.replay(whole.trace.without("rfactor"), skip=True).func is not None
    assert Schedule(rowsum).replay(whole.trace).func.script() == whole.func.script()


def test_a_block_that_is_in_the_loop_stays_where_it_is():
    sch = Schedule(rowsum).lower_sparse_iter().split("j", [None, 4]).rfactor("j_i")
    moved = sch.reverse_compute_at("rowsum0", "i")
    assert moved.func is sch.func
    assert moved.made == ()
    with pytest.raises(ScheduleError):
        sch.reverse_compute_at("rowsum0", "j_o")


def test_what_a_reduction_updates_is_not_counted_among_what_it_reads():
    sch = tir.Schedule(lower_sparse_iter(tvm.IRModule.from_expr(rowsum)))
    assert sch.cache_read("rowsum0", 0, "local") == "rowsum0_load"
    assert "A_local = T.alloc_buffer" in sch.mod["main"].script()


def test_what_is_updated_is_read_first_once_its_init_stands_apart():
    sch = tir.Schedule(lower_sparse_iter(tvm.IRModule.from_expr(rowsum)))
    assert sch.decompose_reduction("rowsum0", sch.get_loops("rowsum0")[1]) == "rowsum0_init"
    sch.cache_read("rowsum0", 1, "local")
    assert "A_local = T.alloc_buffer" in sch.mod["main"].script()
    sch.hide_buffer_access("rowsum0", "read", [0, 3])  # the copy has no region to be hidden
    assert summed(sch.mod["main"]) == [28, 92, 156]


@T.prim_func
def four_sums(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (4, 8), "float32")
    B = T.match_buffer(b, (4,), "float32")
    with T.block("root"):
        T.reads(A[0:4, 0:8], B[0:4])
        T.writes(B[0:4])
        for i, j in T.grid(4, 8):
            with T.block("update"):
                vi, vj = T.axis.remap("SR", [i, j])
                B[vi] = B[vi] + A[vi, vj]


def test_an_intrinsic_may_be_written_in_a_block_around_all_of_it_as_in_tvm():
    tir.TensorIntrin.register("four_sums", four_sums, four_sums)
    program = rowsum.specialize({"m": 12, "n": 8})
    sch = tir.Schedule(lower_sparse_iter(tvm.IRModule.from_expr(program)))
    i, j = sch.get_loops("rowsum0")
    sch.decompose_reduction("rowsum0", i)
    _, inner = sch.split(i, [None, 4])
    sch.tensorize(inner, "four_sums")
    b, a = np.zeros(12, np.float32), np.arange(96, dtype=np.float32)
    tvm.build(sch.mod)(a, b)
    assert b.tolist() == a.reshape(12, 8).sum(1).tolist()
    with pytest.raises(tir.ScheduleError, match="no intrinsic"):
        sch.tensorize(j, "none")


def test_threads_that_reduce_into_one_element_share_its_updates():
    sch = tir.Schedule(lower_sparse_iter(tvm.IRModule.from_expr(rowsum)))
    i, j = sch.get_loops("rowsum0")
    sch.bind(i, "blockIdx.x")
    sch.bind(j, "threadIdx.x")
    text = sch.mod["main"].script()
    assert '"atomic": True' in text
    assert "rowsum0_init" in text
    assert summed(sch.mod["main"]) == [28, 92, 156]
    b = np.zeros(3, np.float32)
    tvm.build(sch.mod)(np.arange(24, dtype=np.float32), b, 3, 8)
    assert b.tolist() == [28, 92, 156]


@T.prim_func
def scattered(
    a: T.handle, c: T.handle, rows: T.handle, m: T.int32, count: T.int32, width: T.int32
) -> None:
    O = T.dense_fixed(1)
    I = T.sparse_fixed(O, (m, count), rows, unique=False)
    J = T.dense_fixed(width)
    M = T.dense_fixed(m)
    A = T.match_sparse_buffer(a, (O, I, J), "float32")
    C = T.match_sparse_buffer(c, (M,), "float32")
    with T.sp_iter([O, I, J], "SSR", "add") as [o, i, j]:
        C[i] = C[i] + A[o, i, j]


@pytest.mark.filterwarnings("ignore:.*is declared spatial")
def test_a_copy_of_what_a_block_in_a_block_adds_up_is_started_for_each_element():
    sch = Schedule(scattered).lower_sparse_iter()
    name = next(b for b in ("add1", "add0") if b in sch.func.script())
    sch = sch.blockize("j").reverse_cache_write(name, 0, "local")
    assert "add" in sch.decompose_reduction(name, "j").made[0]
    rows = np.array([0, 0, 2], np.int32)
    for func in (sch.func, sch.decompose_reduction(name, "j").func):
        arguments = {"a": np.ones(6, np.float32), "c": np.zeros(3, np.float32), "rows": rows}
        interpret(func, {**arguments, "m": 3, "count": 3, "width": 2})
        assert arguments["c"].tolist() == [4, 0, 2]


def test_loops_over_all_elements_run_as_often_as_there_are_positions():
    @T.prim_func
    def scale(
        a: T.handle,
        b: T.handle,
        indptr: T.handle,
        indices: T.handle,
        m: T.int32,
        n: T.int32,
        nnz: T.int32,
    ) -> None:
        I = T.dense_fixed(m)
        J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
        A = T.match_sparse_buffer(a, (I, J), "float32")
        B = T.match_sparse_buffer(b, (I,), "float32")
        with T.sp_iter([T.fuse(I, J)], "SS", "scale") as [i, j]:
            A[i, j] = A[i, j] * B[i]

    mod = tvm.tir.transform.RemovePreprocess()(lower_sparse_iter(tvm.IRModule.from_expr(scale)))
    mod = tvm.tir.transform.RemoveUnusedArgs()(tvm.sparse.lower_sparse_buffer(mod))
    assert [p.name for p in mod["main"].params] == ["a", "b", "m", "nnz", "mid_0_ptr"]
    csr = sps.random_array((5, 6), density=0.4, rng=np.random.default_rng(0), format="csr")
    a, b = csr.data.astype(np.float32), np.arange(5, dtype=np.float32)
    f = tvm.build(mod)
    f(a, b, 5, csr.nnz, csr.tocoo().coords[0].astype(np.int32))
    assert np.allclose(a, csr.data * b[csr.tocoo().coords[0]])
    with pytest.raises(spcomp.errors.SpcompError):
        f(a, b, 5, csr.nnz, np.full(csr.nnz, 5, np.int32))
