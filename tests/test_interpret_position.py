"""What a position program means: offsets, blocks and their inits, merges."""

from __future__ import annotations

import numpy as np
import pytest

from spcomp.errors import InternalError
from spcomp.ir.access import Load, Search
from spcomp.ir.axis import Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, binary, cast, const
from spcomp.ir.interpret.program import interpret
from spcomp.ir.interpret.storage import Storage
from spcomp.ir.position import Case, Cursor, Merge
from spcomp.ir.program import PosFunc
from spcomp.ir.stmt import Alloc, Evaluate, If, Let, Prefetch, seq
from tests.interpret_helpers import (
    add,
    aux,
    block,
    compressed,
    dense,
    f32,
    fixed,
    get,
    i32,
    ids,
    index,
    length,
    loop,
    program,
    put,
    ragged,
    sparse,
    var,
)

i, j, k, f, vi, vj, vk = (var(name) for name in ("i", "j", "k", "f", "vi", "vj", "vk"))

I, F, G = dense("I", 3), dense("F", 2), dense("G", 2)
J, V, S = compressed("J", I, 4), ragged("V", I, 4), fixed("S", I, 4, 2)
K, T = compressed("K", J, 4), fixed("T", J, 4, 2)
U = compressed("U", S, 4)
ARRAYS = {
    "J_indptr": ids(0, 2, 2, 5),
    "K_indptr": ids(0, 1, 1, 3, 4, 6),
    "V_indptr": ids(0, 1, 3, 4),
}
ARRAYS["U_indptr"] = ids(0, 1, 1, 2, 4, 4, 5)
LAYOUTS = [
    *[(), (I,), (F, G), (I, J), (I, J, F), (I, J, F, G), (F, I, J), (I, F, J), (I, F, J, G, K)],
    *[(I, J, K), (I, J, F, K), (F, I, G, J, K), (I, V, F), (I, S), (I, F, S), (I, S, J), (I, J, S)],
    *[(I, J, T), (I, F, J, T), (I, S, U), (I, F, S, G, U), (F, G, I)],
]


def storage(arrays=ARRAYS):
    return Storage(arrays, lambda extent: extent.value)


def elements(store, axes):
    """Every tuple of positions, in lexicographic order, with the absolute ones."""
    found = [((), ())]
    for axis in axes:
        grown = []
        for positions, absolute in found:
            above = absolute[axes.index(axis.parent)] if axis.parent else 0
            fiber = store.fiber(axis, above)
            grown += [((*positions, p), (*absolute, at)) for p, at in enumerate(fiber)]
        found = grown
    return found


@pytest.mark.parametrize("axes", LAYOUTS, ids=lambda axes: "".join(a.name for a in axes))
def test_elements_lie_in_lexicographic_order_of_positions(axes):
    store, A = storage(), SparseBuffer("A", None, axes, f32)
    every = elements(store, axes)
    assert store.elements(A) == len(every)
    for rank, (positions, absolute) in enumerate(every):
        assert store.absolute(A, positions) == list(absolute)
        assert store.offset(axes, absolute) == rank


@pytest.mark.parametrize("axes", [(I, J), (I, J, F), (I, F, J), (I, J, K), (I, S), (I, J, T)])
def test_an_absolute_position_stands_for_its_ancestors(axes):
    store, A = storage(), SparseBuffer("A", None, axes, f32)
    deepest = max(axes, key=lambda axis: len(axis.path()))
    for rank, (positions, absolute) in enumerate(elements(store, axes)):
        given = [None if a in deepest.path() else p for a, p in zip(axes, positions, strict=True)]
        given[axes.index(deepest)] = absolute[axes.index(deepest)]
        assert store.offset(axes, store.absolute(A, given)) == rank


def test_unused_positions_before_the_first_fiber_count():
    store = storage({"J_indptr": ids(2, 3, 3, 5)})
    A = SparseBuffer("A", None, (I, J, F), f32)
    offsets = [store.offset(A.axes, store.absolute(A, at)) for at in ((0, 0, 1), (2, 1, 0))]
    assert offsets == [5, 8]
    assert store.elements(A) == 10


def csrmm(inits=True):
    """Stage II of csrmm, as docs/index.md has it."""
    m, columns = dense("I", 3), dense("K", 2)
    J = compressed("J", m, 3)
    indptr, indices = aux(J)
    A, B = sparse("A", (m, J)), sparse("B", (dense("Jd", 3), columns))
    C = sparse("C", (m, columns))
    product = binary("*", get(A, vi, vj), get(B, index(get(indices, vi, vj)), vk))
    inner = block(
        "inner",
        [("R", vj, 3, j), ("S", vk, 2, k)],
        add(C, (vi, vk), product),
        put(C, (vi, vk), 0.0) if inits else None,
    )
    body = loop(j, length(indptr, vi), loop(k, 2, inner))
    outer = loop(i, 3, block("outer", [("S", vi, 3, i)], body))
    return program(PosFunc, outer, (A, B, C, indptr, indices))


CSR = {"a": np.float32([1, 2, 3, 4]), "J_indptr": ids(0, 2, 2, 4), "J_indices": ids(1, 2, 0, 2)}
CSR["b"] = np.arange(6, dtype="float32")


def test_init_runs_before_the_reduction_loop_even_if_it_is_empty():
    c = np.full(6, 77, "float32")
    interpret(csrmm(), CSR | {"c": c})
    full = np.float32([[0, 1, 2], [0, 0, 0], [3, 0, 4]])
    assert np.array_equal(c.reshape(3, 2), full @ CSR["b"].reshape(3, 2))
    c[:] = 1
    interpret(csrmm(inits=False), CSR | {"c": c})
    assert c.tolist() == [11, 14, 1, 1, 17, 24]


def summed(nest, value, init=0.0, *, rows=2, columns=3, where=None):
    """Y[vi] += X[vi, vj] in a block whose iters have the values given, in the nest given."""
    X, Y = Buffer("X", var_x, (const(rows), const(columns)), f32), sparse("Y", (dense("R", rows),))
    iters = [("R", vj, columns, value[1]), ("S", vi, rows, value[0])]
    inner = block("b", iters, add(Y, (vi,), get(X, vi, vj)), put(Y, (vi,), init), where)
    func = program(PosFunc, nest(inner), (X, Y))
    y = np.full(rows, 77, "float32")
    interpret(func, {"x": np.arange(rows * columns, dtype="float32"), "y": y})
    return y.tolist()


var_x = sparse("X", ()).data


@pytest.mark.parametrize("spatial_first", [True, False])
def test_init_is_independent_of_the_order_of_loops(spatial_first):
    def nest(inner):
        if spatial_first:
            return loop(i, 2, loop(j, 3, inner))
        return loop(j, 3, loop(i, 2, inner))

    assert summed(nest, (i, j)) == [3, 12]


def test_init_runs_once_for_each_spatial_value_of_a_fused_loop():
    split = (binary("//", f, 3), binary("%", f, 3))
    assert summed(lambda inner: loop(f, 6, inner), split, init=1.0) == [4, 13]


def test_init_runs_in_the_loops_that_say_where_a_spatial_loop_begins_and_ends():
    def nest(inner):
        return loop(j, 3, loop(k, 2, loop(i, binary("+", k, 1), inner, k)))

    assert summed(nest, (i, j)) == [3, 12]


def test_a_reduction_may_be_driven_through_a_let_and_split_in_two():
    at = var("at")
    sum_ = binary("+", binary("*", j, 2), k)

    def nest(inner):
        return loop(i, 2, loop(j, 2, loop(k, 2, Let(at, sum_, inner))))

    assert summed(nest, (i, at), where=binary("<", at, const(3))) == [3, 12]


def test_guards_on_spatial_values_hold_for_init_and_those_on_reductions_do_not():
    row, column = binary("<", i, const(1)), binary("<", const(0), j)

    def nest(inner):
        return loop(j, 3, loop(i, 2, If(BinOp("and", row, column), inner)))

    assert summed(nest, (i, j)) == [3, 77]
    both = BinOp("and", binary("<", vi, const(1)), binary("<", const(0), vj))
    assert summed(lambda b: loop(j, 3, loop(i, 2, b)), (i, j), where=both) == [3, 77]

    def other(inner):
        return loop(j, 3, loop(i, 2, If(row, Evaluate(const(0)), inner)))

    assert summed(other, (i, j)) == [77, 12]


def test_a_guard_keeps_an_iter_that_passes_its_extent_from_running():
    split = binary("+", binary("*", k, 2), i)

    def nest(inner):
        return loop(k, 2, loop(i, 2, loop(j, 3, inner)))

    assert summed(nest, (split, j), rows=3, where=binary("<", split, const(3))) == [3, 12, 21]
    with pytest.raises(InternalError, match="vi is 3 in block b, out of its extent"):
        summed(nest, (split, j), rows=3)


def test_without_a_reduction_init_runs_right_before_the_body():
    Y = sparse("Y", (dense("R", 3),))
    body = block("b", [("S", vi, 3, i)], add(Y, (vi,), cast(vi, f32)), put(Y, (vi,), 5.0))
    y = np.zeros(3, "float32")
    interpret(program(PosFunc, loop(i, 3, body), (Y,)), {"y": y})
    assert y.tolist() == [5, 6, 7]


def test_init_that_hangs_on_a_reduction_is_a_bug_of_the_program():
    Y = sparse("Y", (dense("R", 3),))
    body = block("b", [("R", vj, 3, j)], add(Y, (vj,), const(1, f32)), put(Y, (vj,), 0.0))
    with pytest.raises(InternalError, match="variable vj is not bound"):
        interpret(program(PosFunc, loop(j, 3, body), (Y,)), {"y": np.zeros(3, "float32")})


def merge(kind, cases):
    """Rows 0 of two fibers: coordinates 0, 3 and 2, 3; *cases* map presence to a number."""
    P = dense("P", 2)
    A, B = sparse("A", (P,), i32), sparse("B", (P,), i32)
    Y, c = sparse("Y", (dense("N", 5),)), var("c")
    p, q = var("p"), var("q")
    cursors = tuple(Cursor(x, buf, const(0), const(2)) for x, buf in ((p, A), (q, B)))
    bodies = {
        (True, False): binary("+", p, 10),
        (False, True): binary("+", q, 20),
        (True, True): binary("+", binary("+", p, q), 30),
    }
    made = tuple(Case(x, put(Y, (c,), cast(bodies[x], f32))) for x in cases)
    y = np.zeros(5, "float32")
    given = {"a": ids(0, 3), "b": ids(2, 3), "y": y}
    interpret(program(PosFunc, Merge(kind, c, cursors, made), (A, B, Y)), given)
    return y.tolist()


def test_a_union_runs_the_case_of_the_cursors_that_are_present():
    every = [(True, False), (False, True), (True, True)]
    assert merge("union", every) == [10, 0, 20, 32, 0]
    assert merge("union", [(True, False)]) == [10, 0, 0, 0, 0]


def test_an_intersection_runs_where_all_cursors_are_present():
    assert merge("intersect", [(True, True)]) == [0, 0, 0, 32, 0]


def test_init_runs_before_a_merge_that_reduces_even_if_nothing_meets():
    A, Y = sparse("A", (dense("P", 2),), i32), sparse("Y", (dense("N", 2),))
    c, p, q, n = var("c"), var("p"), var("q"), var("n")
    cursors = (Cursor(p, A, const(0), n), Cursor(q, None, const(0), const(4)))
    one = add(Y, (vi,), cast(vj, f32))
    inner = block("b", [("S", vi, 2, i), ("R", vj, 9, c)], one, put(Y, (vi,), 1.0))
    body = Merge("intersect", c, cursors, (Case((True, True), inner),))
    y = np.float32([7, 7])
    nest = loop(i, 2, Let(n, binary("*", i, 2), body))
    interpret(program(PosFunc, nest, (A, Y)), {"a": ids(3, 5), "y": y})
    assert y.tolist() == [1, 4]


def test_init_repeats_the_spatial_merge_and_let_below_the_reduction():
    A, Y = sparse("A", (dense("P", 2),), i32), sparse("Y", (dense("N", 8),))
    c, p, twice = var("c"), var("p"), var("twice")
    inner = block(
        "b",
        [("S", vi, 8, twice), ("R", vj, 3, j)],
        add(Y, (vi,), cast(vj, f32)),
        put(Y, (vi,), 1.0),
    )
    body = Let(twice, binary("*", c, 2), inner)
    nest = Merge("union", c, (Cursor(p, A, const(0), const(2)),), (Case((True,), body),))
    y = np.full(8, 9, "float32")
    interpret(program(PosFunc, loop(j, 3, nest), (A, Y)), {"a": ids(0, 3), "y": y})
    assert y.tolist() == [4, 9, 9, 9, 9, 9, 4, 9]


def test_a_position_outside_its_fiber_is_a_bug_of_the_program():
    P = dense("P", 2)
    Q = compressed("Q", P, 5)
    A = sparse("A", (P, Q))
    given = {"a": np.zeros(3, "float32"), "Q_indptr": ids(0, 1, 3), "Q_indices": ids(0, 0, 1)}
    with pytest.raises(InternalError, match="1 is no position of Q, indexing A"):
        interpret(program(PosFunc, Evaluate(get(A, 0, 1)), (A,)), given)
    with pytest.raises(InternalError, match="element 3 of A, which has 3"):
        interpret(program(PosFunc, Evaluate(get(A, None, 3)), (A,)), given)
    D = Buffer("D", var_x, (const(2), const(2)), f32)
    with pytest.raises(InternalError, match="outside its shape"):
        interpret(program(PosFunc, Evaluate(get(D, 1, 2)), (D,)), {"x": np.zeros(4, "float32")})


def test_allocated_buffers_live_in_their_scope_and_start_with_junk():
    Y, Z = sparse("Y", (I, J)), SparseBuffer("Z", None, (I, J), f32)
    W = Buffer("W", None, (const(1),), f32, "local")
    copy = seq(put(Z, (0, 1), 2.0), put(Y, (0, 0), get(Z, 0, 1)), put(Y, (0, 1), get(W, 0)))
    func = program(PosFunc, Alloc(Z, Alloc(W, copy)), (Y,))
    y = np.zeros(5, "float32")
    given = {"y": y, "J_indptr": ARRAYS["J_indptr"], "J_indices": ids(*range(5))}
    interpret(func, given)
    assert y[0] == 2
    assert np.isnan(y[1])
    with pytest.raises(InternalError, match="Z is not allocated"):
        interpret(program(PosFunc, copy, (Y,)), given)


def test_strides_place_the_elements_of_a_view():
    D = Buffer("D", var_x, (const(2), const(2)), f32, strides=(const(1), const(3)))
    x = np.zeros(6, "float32")
    interpret(program(PosFunc, put(D, (1, 1), 5.0), (D,)), {"x": x})
    assert x.tolist() == [0, 0, 0, 0, 5, 0]


@pytest.mark.parametrize(
    ("kind", "key", "at"),
    [
        ("lower", 3, 2),
        ("lower", 9, 5),
        ("lower", -1, 1),
        ("upper", 3, 4),
        ("gallop", 3, 2),
        ("gallop", 9, 5),
        ("linear", 4, 4),
        ("linear", 2, 5),
        ("linear", 0, 5),
        ("run", 1, 2),
        ("run", 7, 1),
    ],
)
def test_searches_return_absolute_positions(kind, key, at):
    A, Y = sparse("A", (dense("P", 6),), i32), sparse("Y", (), i32)
    found = Search(kind, A, const(1), const(5), const(key))
    y = ids(0)
    body = put(Y, (), cast(found, i32))
    interpret(program(PosFunc, body, (A, Y)), {"a": ids(0, 1, 3, 3, 4, 2), "y": y})
    assert y[0] == at


def test_a_prefetch_whose_index_is_not_there_asks_for_nothing():
    A, B = sparse("A", (dense("P", 2),), i32), sparse("B", (dense("Q", 2),), i32)
    body = Prefetch(B, (Load(A, (const(7),)),))
    given = {"a": ids(0, 1), "b": ids(3, 4)}
    interpret(program(PosFunc, body, (A, B)), given)
    assert given["b"].tolist() == [3, 4]


def test_a_search_outside_its_array_is_a_bug_of_the_program():
    A = sparse("A", (dense("P", 2),), i32)
    body = Evaluate(Search("lower", A, const(1), const(3), const(0)))
    with pytest.raises(InternalError, match=r"a search in 1\.\.3 of A, which has 2"):
        interpret(program(PosFunc, body, (A,)), {"a": ids(0, 1)})
