"""Arithmetic of fibers: what is read of the arrays of axes is what numpy finds in them."""

from __future__ import annotations

import numpy as np
import pytest

from spcomp import Schedule
from spcomp.dtypes import handle, int32, int64
from spcomp.errors import ScheduleError
from spcomp.ir.analysis.positions import (
    Auxiliary,
    Pos,
    begin_at,
    fiber_of,
    longest_fiber,
    parent_at,
    positions,
)
from spcomp.ir.analysis.sizes import evaluate
from spcomp.ir.axis import Axis
from spcomp.ir.expr import Const, Var, cast, const
from spcomp.ir.structural import expr_equal
from spcomp.script.parse import parse_source

m, n, nnz, width, row, at = (Var(name, int64) for name in ("m", "n", "nnz", "w", "row", "at"))
I = Axis("I", "dense_fixed", m)
ARRAYS = {"indptr": Var("p", handle), "indices": Var("q", handle)}
J = Axis("J", "sparse_variable", n, I, nnz, **ARRAYS)
R = Axis("R", "dense_variable", n, I, nnz, indptr=ARRAYS["indptr"])
E = Axis("E", "sparse_fixed", n, I, nnz_cols=width, indices=ARRAYS["indices"])
K = Axis("K", "sparse_variable", n, J, None, indptr=Var("kp", handle), indices=Var("kq", handle))
D = Axis("D", "sparse_fixed", n, K, nnz_cols=const(1), indices=Var("dq", handle))
INDPTR = np.array([2, 5, 5, 9], np.int32)  # it need not begin at 0
VALUES = {"m": 3, "n": 7, "nnz": 9, "w": 4, "J_indptr": INDPTR, "R_indptr": INDPTR}


@pytest.mark.parametrize("axis", [J, R, E], ids=lambda axis: axis.kind)
@pytest.mark.parametrize("number", range(3))
def test_a_fiber_begins_and_ends_where_the_arrays_say(axis, number):
    arrays, values = Auxiliary((I, axis)), VALUES | {"row": number, "at": 1}
    parent = parent_at(axis, (row,))
    begin, end = arrays.begin(axis, parent), arrays.end(axis, parent)
    wanted = (*INDPTR[number : number + 2],) if axis.is_variable else (4 * number, 4 * number + 4)
    assert (evaluate(begin, values), evaluate(end, values)) == wanted
    assert evaluate(arrays.size(axis, parent), values) == wanted[1] - wanted[0]
    inside = Pos(axis, parent, relative=at)
    assert evaluate(arrays.absolute(inside), values) == wanted[0] + 1
    outside = Pos(axis, parent, absolute=cast(at, int64))
    assert evaluate(arrays.relative(outside), values) == 1 - wanted[0]


def test_a_root_has_one_fiber():
    arrays = Auxiliary((I,))
    assert parent_at(I, ()) is None
    ends = [evaluate(f(I, None), VALUES) for f in (arrays.begin, arrays.end, arrays.size)]
    assert ends == [
        0,
        3,
        3,
    ]


@pytest.mark.parametrize("indices", [(row, at), (None, at), (None, row, at), (row, at, row)])
def test_a_position_is_that_of_its_indices(indices):
    axis = (J, K, D)[len(indices) - 1]
    parent = parent_at(axis, indices)
    assert parent is not None
    assert parent.indices() == indices


def test_the_holder_of_a_position_of_equal_fibers_is_a_quotient():
    found = Auxiliary((I, E)).holder(E, at, const(0), m)
    assert [evaluate(found, VALUES | {"at": k}) for k in (0, 3, 4, 11)] == [0, 0, 1, 2]
    search = Auxiliary((I, J)).holder(J, at, const(0), m).lhs
    assert (search.kind, search.buffer.name, search.key) == ("upper", "J_indptr", at)


def test_how_many_positions_there_are_follows_from_parameters_or_is_not_known():
    sizes = [positions(axis) for axis in (I, J, R, E, K, D)]
    assert [None if x is None else evaluate(x, VALUES) for x in sizes] == [3, 9, 9, 12, None, None]
    assert positions(D.replace(parent=J)) is nnz  # times one


def test_the_longest_fiber_is_bounded_by_what_is_promised():
    repeated, few = J.replace(unique=False), J.replace(length=Const(5, int64))
    bounds = [longest_fiber(axis) for axis in (I, J, repeated, few, R, E, K)]
    assert [evaluate(bound, VALUES) for bound in bounds] == [3, 7, 9, 5, 9, 4, 7]
    assert longest_fiber(K.replace(sorted=False)) is None


def test_whose_fiber_a_range_is_is_seen_in_its_ends():
    arrays = Auxiliary((I, J))
    parent = parent_at(J, (row,))
    begin, end = arrays.begin(J, parent), arrays.end(J, parent)
    indptr = arrays.buffers[J.indptr]
    assert fiber_of(begin, end) == (indptr, (row,), (row,))
    assert fiber_of(begin, arrays.end(J, parent_at(J, (at,)))) == (indptr, (row,), (at,))
    assert fiber_of(begin, begin) is None
    assert fiber_of(begin, Auxiliary((I, R)).end(R, parent)) is None
    assert expr_equal(begin_at(indptr, row), begin)


SOURCE = """
@T.prim_func
def f(y: T.handle, x: T.handle, indptr: T.handle, indices: T.handle,
      m: T.int32, n: T.int32, nnz: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 1})
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices))
    J_indices = T.match_sparse_buffer(indices, (I, J), "int32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    X = T.match_buffer(x, (n, 16), "float32")
    for i in T.serial(m):
        for j in T.serial(1):
            for k in T.serial(16):
                with T.block("add"):
                    vi = T.axis.spatial(m, i)
                    vj = T.axis.reduce(1, j)
                    vk = T.axis.reduce(16, k)
                    Y[vi] = Y[vi] + X[J_indices[vi, vj], vk]
"""


def test_a_program_that_has_no_buffer_of_an_indptr_is_refused_where_it_is_needed():
    (func,) = parse_source(SOURCE, "f.py")
    with pytest.raises(
        ScheduleError, match="no buffer of indptr, which says where fibers"
    ) as error:
        Schedule(func).prefetch("j", 4)
    assert error.value.span is not None
    arrays = Auxiliary.of(func)
    assert [arrays.knows_fibers(axis) for axis in func.axes] == [True, False]
    assert {buffer.dtype for buffer in arrays.buffers.values()} >= {int32}
