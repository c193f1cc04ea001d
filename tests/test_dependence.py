"""The legality oracle: which iterations, and which statements, may change places."""

from __future__ import annotations

from spcomp import script as T
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import memory_of
from spcomp.ir.position import Block
from spcomp.ir.stmt import For
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import Accesses, conflicts, depends, loops_of


def loop(func, name):
    return next(found for found in loops_of(func.body) if found.var.name == name)


def blocks(func):
    return {n.name: n for n in walk(func.body) if isinstance(n, Block)}


def buffer(func, name):
    return memory_of(next(b for b in func.buffers if b.name == name))


@T.prim_func
def stages(a: T.handle, b: T.handle, c: T.handle, n: T.int32):
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    for i in T.serial(n):
        with T.block("make"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi]
    for j in T.serial(n):
        with T.block("use"):
            vj = T.axis.spatial(n, j)
            C[0] = B[vj]
    for k in T.serial(n):
        with T.block("read"):
            vk = T.axis.spatial(n, k)
            X = T.alloc_buffer((1,), "float32")
            X[0] = A[vk]


def test_a_statement_writes_and_reads_memory():
    func = stages
    assert writes_of(loop(func, "i")) == {buffer(func, "B")}
    assert reads_of(loop(func, "i")) == {buffer(func, "A")}
    assert writes_of(loop(func, "j")) == {buffer(func, "C")}


def test_what_reads_depends_on_what_writes_in_either_order():
    func = stages
    make, use, read = (loop(func, name) for name in "ijk")
    assert str(depends(make, use)) == "what the other one writes of B"
    assert str(depends(use, make)) == "what the other one reads of B"
    assert depends(make, read) is None  # both only read A; X is nobody else's
    assert depends(read, use) is None


def test_two_writers_of_one_buffer_depend_on_each_other():
    func = stages
    assert depends(loop(func, "i"), loop(func, "i")) is not None


def test_conflicts_may_be_asked_about_some_memory_alone():
    func = stages
    use = loop(func, "j")
    assert [conflict.buffer for conflict in conflicts(use)] == ["C"]
    assert conflicts(use, {buffer(func, "B")}) == ()
    assert conflicts(use, {buffer(func, "C")}) != ()


def test_accesses_see_through_what_is_entered():
    func = stages
    make = loop(func, "i")
    found = Accesses()
    found.enter(make)
    found.enter(make.body)
    found.visit(make.body.body)
    assert all(access.indices == (make.var,) for access in found.accesses)


@T.prim_func
def positions(a: T.handle, indptr: T.handle, n: T.int32, nnz: T.int32):
    I = T.dense_fixed(n)
    J = T.dense_variable(I, (n, nnz), indptr)
    J_indptr = T.match_sparse_buffer(indptr, (I,), "int32", extra_storage=1)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    T.assume_buffer_domain(J_indptr, [0, nnz])
    for p in T.serial(2):
        with T.block("mixed"):
            vp = T.axis.spatial(2, p)
            A[_, vp] = A[1, vp]  # noqa: F821
    for q in T.serial(2):
        with T.block("alike"):
            vq = T.axis.spatial(2, q)
            A[1, vq] = A[1, vq] + 1.0


def test_absolute_positions_are_not_taken_for_positions_in_a_fiber():
    assert conflicts(loop(positions, "p"))
    assert not conflicts(loop(positions, "q"))


def test_every_loop_is_found_outer_ones_first():
    assert [found.var.name for found in loops_of(stages.body)] == ["i", "j", "k"]
    assert all(isinstance(found, For) for found in loops_of(stages.body))
    assert set(blocks(stages)) == {"make", "use", "read"}
