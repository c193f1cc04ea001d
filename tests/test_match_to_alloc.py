"""match_to_alloc: an array between two steps of a program becomes the program's own."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.position import Block
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from tests.test_schedule_bind import program
from tests.test_schedule_steps import refused


@T.prim_func
def two_steps(
    a: T.handle,
    x: T.handle,
    w: T.handle,
    y: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    JD = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    X = T.match_sparse_buffer(x, (JD,), "float32")
    W = T.match_sparse_buffer(w, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SS", "scale") as [i, j]:
        W[i, j] = A[i, j] * X[j]
    with T.sp_iter([I, J], "SR", "add") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + W[i, j]


def test_an_array_between_two_steps_becomes_the_programs_own():
    schedule = Schedule(two_steps).lower_sparse_iter().match_to_alloc("scale1", 0)
    assert "w" not in [param.name for param in schedule.func.params]
    assert len([n for n in walk(schedule.func.body) if isinstance(n, Block)]) == 4  # no fill
    kernel = spcomp.compile(schedule.parallel("i"))
    assert [param.name for param in kernel.signature.params][:3] == ["A", "X", "Y"]
    a = sps.random_array((6, 7), density=0.4, dtype=np.float32, rng=np.random.default_rng(0))
    x = np.arange(7, dtype=np.float32)
    np.testing.assert_allclose(kernel(A=a.tocsr(), X=x), a @ x, rtol=1e-6)
    again = Trace.from_json_lines(schedule.trace.to_json_lines())
    assert Schedule(two_steps).replay(again).func.script() == schedule.func.script()


@pytest.mark.parametrize("at", ["", "j"])
def test_a_result_that_is_accumulated_in_a_copy_is_still_a_result(at):
    schedule = Schedule(two_steps).lower_sparse_iter().decompose_reduction("add1", "j_1")
    copied = schedule.cache_write("add1", 0, "local", at and "j_1")
    error = refused(lambda: copied.match_to_alloc("add0", 0))
    assert error.message.endswith("nothing but the caller reads Y")
    assert "w" not in [p.name for p in copied.match_to_alloc("scale1", 0).func.params]


PARTLY = """for i in T.serial(m):
    with T.block("some"):
        vi = T.axis.spatial(m, i)
        T.writes(A[vi, 0])
        A[vi, 0] = 3.0
for k in T.serial(m):
    with T.block("all"):
        vk = T.axis.spatial(m, k)
        C[vk] = A[vk, 0] + A[vk, 1]"""


def test_what_is_not_written_of_an_array_begins_with_its_fill_value():
    schedule = Schedule(program(PARTLY)).match_to_alloc("some", 0)
    c = np.zeros(3, np.float32)
    interpret(single(schedule.func), {"c": c, "m": 3, "n": 2})
    assert c.tolist() == [3, 3, 3]
    np.testing.assert_array_equal(spcomp.compile(schedule)(m=3, n=2), c)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            'with T.block("b"):\n    T.writes(C[0])\n    C[0] = 1.0',
            "nothing but the caller reads C",
        ),
        (
            'with T.block("b"):\n    T.writes(C[0])\n    C[0] = C[0] + 1.0',
            "C is read before it is written",
        ),
        (
            (
                'D = T.match_buffer(c, (m,), "int32")\nwith T.block("b"):\n    T.writes(C[0])\n'
                "    C[0] = 1.0"
            ),
            "another buffer lies in the memory of C",
        ),
        (
            (
                "S = T.alloc_buffer((4,), 'float32')\n"
                'with T.block("b"):\n    T.writes(S[0])\n    S[0] = 1.0'
            ),
            "S is allocated already",
        ),
        ('with T.block("b"):\n    C[0] = 1.0', "the block declares 0 writes, counted from 0"),
    ],
)
def test_an_array_that_others_need_stays_a_parameter(body, reason):
    error = refused(lambda: Schedule(program(body)).match_to_alloc("b", 0))
    assert error.message.endswith(reason)
