"""What a coordinate program means, by hand-made numbers."""

from __future__ import annotations

import numpy as np
import pytest

from spcomp import dtypes as dt
from spcomp.errors import ArgumentError, FormatError, InternalError, LoweringError
from spcomp.ir.axis import Attach, Axis, Buffer, Flatten, Fuse, Intersect, SparseBuffer, Union
from spcomp.ir.expr import Call, binary, cast, const
from spcomp.ir.interpret.program import interpret
from spcomp.ir.program import CoordFunc
from spcomp.ir.stmt import Evaluate, Fail, Seq, seq
from tests.interpret_helpers import (
    add,
    assembled,
    compressed,
    dense,
    f32,
    fixed,
    get,
    handle,
    i32,
    i64,
    ids,
    program,
    put,
    ragged,
    sp_iter,
    sparse,
    var,
)

i, j, k, r, f = (var(name) for name in "ijkrf")
# [[0, 1, 2], [0, 0, 0], [3, 0, 4]]
INDPTR, INDICES = ids(0, 2, 2, 4), ids(1, 2, 0, 2)
RESULTS = ("Z_indptr", "Z_indices", "c")
DENSE = np.array([[0, 1, 2], [0, 0, 0], [3, 0, 4]], "float32")


def csr(name="J", rows=3, columns=3, **more):
    I = dense("I", rows)
    J = compressed(name, I, columns, **more)
    return I, J, sparse("A", (I, J))


def args(**more):
    given = {"a": np.float32([1, 2, 3, 4]), "J_indptr": INDPTR, "J_indices": INDICES}
    return given | more


def row_sums(**more):
    I, J, A = csr(**more)
    B = sparse("B", (I,))
    body = sp_iter([I, J], "SR", [i, j], add(B, (i,), get(A, i, j)), put(B, (i,), 0.0))
    return program(CoordFunc, body, (A, B))


def test_csrmm_equals_the_dense_product_and_an_empty_row_is_zero():
    I, J, A = csr()
    Jd, K = dense("Jd", 3), dense("K", 2)
    B, C = sparse("B", (Jd, K)), sparse("C", (I, K))
    product = binary("*", get(A, i, j), get(B, j, k))
    body = sp_iter([I, J, K], "SRS", [i, j, k], add(C, (i, k), product), put(C, (i, k), 0.0))
    b, c = np.arange(6, dtype="float32"), np.full(6, 77, "float32")
    assert interpret(program(CoordFunc, body, (A, B, C)), args(b=b, c=c)) == {}
    assert np.array_equal(c.reshape(3, 2), DENSE @ b.reshape(3, 2))


def test_without_init_elements_that_are_not_reached_keep_their_value():
    I, J, A = csr()
    B = sparse("B", (I,))
    body = sp_iter([I, J], "SR", [i, j], add(B, (i,), get(A, i, j)))
    b = np.float32([10, 20, 30])
    interpret(program(CoordFunc, body, (A, B)), args(b=b))
    assert b.tolist() == [13, 20, 37]


def test_the_maximum_of_an_empty_row_is_what_init_says():
    I, J, A = csr()
    B = sparse("B", (I,))
    store = put(B, (i,), binary("max", get(B, i), get(A, i, j)))
    body = sp_iter([I, J], "SR", [i, j], store, put(B, (i,), -np.inf))
    b = np.zeros(3, "float32")
    interpret(program(CoordFunc, body, (A, B)), args(b=b))
    assert b.tolist() == [2, -np.inf, 4]


def test_an_absent_coordinate_reads_as_the_fill_value():
    I, J = csr()[:2]
    A = sparse("A", (I, J), fill=9)
    N = dense("N", 4)
    B = sparse("B", (I, N))
    body = sp_iter([I, N], "SS", [i, j], put(B, (i, j), get(A, i, j)))
    b = np.zeros(12, "float32")
    interpret(program(CoordFunc, body, (A, B)), args(b=b))
    assert b.reshape(3, 4).tolist() == [[9, 1, 2, 9], [9, 9, 9, 9], [3, 9, 4, 9]]


def test_fibers_may_begin_behind_the_start_of_the_arrays():
    b = np.zeros(3, "float32")
    a = np.float32([50, 60, 1, 2, 3, 4])
    arrays = {"J_indptr": INDPTR + np.int32(2), "J_indices": ids(0, 0, *INDICES)}
    interpret(row_sums(), {"a": a, "b": b, **arrays})
    assert b.tolist() == [3, 0, 7]


@pytest.mark.parametrize("rows", [0, 1])
def test_a_matrix_without_elements_has_zero_sums(rows):
    b = np.full(rows, 7, "float32")
    arrays = {"a": np.zeros(0, "float32"), "J_indices": ids(), "J_indptr": ids(*[0] * (rows + 1))}
    interpret(row_sums(rows=rows), {"b": b, **arrays})
    assert b.tolist() == [0] * rows


def test_a_write_that_misses_raises_when_all_else_is_done():
    I, _, A = csr()
    N = dense("N", 3)
    body = seq(
        sp_iter([I, N], "SS", [i, j], put(A, (i, j), 8.0)),
        sp_iter([I], "S", [k], put(A, (k, const(2)), 5.0)),
    )
    a = np.float32([1, 2, 3, 4])
    message = "write to a coordinate that is not stored in A"
    with pytest.raises(ArgumentError, match=message):
        interpret(program(CoordFunc, body, (A, sparse("B", (N,)))), args(a=a, b=a[:3].copy()))
    assert a.tolist() == [8, 5, 8, 5]


def test_init_of_a_sparse_output_skips_what_is_not_stored():
    I, J, A = csr()
    K = dense("K", 2)
    X = sparse("X", (I, K))
    product = binary("*", get(X, i, k), get(X, j, k))
    body = sp_iter([I, J, K], "SSR", [i, j, k], add(A, (i, j), product), put(A, (i, j), 0.0))
    a, x = np.full(4, 7, "float32"), np.arange(6, dtype="float32")
    interpret(program(CoordFunc, body, (A, X)), args(a=a, x=x))
    full = x.reshape(3, 2) @ x.reshape(3, 2).T
    assert a.tolist() == full[[0, 0, 2, 2], [1, 2, 0, 2]].tolist()


def test_a_spatial_axis_that_does_not_index_the_output_is_summed_over():
    R, I = dense("R", 3), dense("I", 2)
    Y, X = sparse("Y", (I,)), sparse("X", (R, I))
    body = sp_iter([R, I], "SS", [r, i], add(Y, (i,), get(X, r, i)), put(Y, (i,), 0.0))
    y, x = np.float32([5, 5]), np.arange(6, dtype="float32")
    interpret(program(CoordFunc, body, (Y, X)), {"y": y, "x": x})
    assert y.tolist() == [6, 9]


def test_init_sets_each_element_once():
    I, B = dense("I", 4), dense("B", 2)
    Y = sparse("Y", (B,))
    half = binary("//", i, 2)
    start = put(Y, (half,), binary("+", get(Y, half), cast(const(1), f32)))
    body = sp_iter([I], "S", [i], add(Y, (half,), cast(i, f32)), start)
    y = np.float32([10, 20])
    interpret(program(CoordFunc, body, (Y, sparse("X", (I,)))), {"y": y, "x": y})
    assert y.tolist() == [12, 26]


def test_init_of_an_inner_iteration_keeps_the_outer_coordinates():
    I, J, A = csr()
    S = sparse("S", (I,))
    inner = sp_iter([J], "R", [j], add(S, (i,), get(A, i, j)), put(S, (i,), 0.0))
    normed = put(A, (i, k), binary("/", get(A, i, k), get(S, i)))
    body = sp_iter([I], "S", [i], seq(inner, sp_iter([J], "S", [k], normed)))
    a = np.float32([1, 2, 3, 4])
    interpret(program(CoordFunc, body, (A, S)), args(a=a, s=np.zeros(3, "float32")))
    assert np.allclose(a, [1 / 3, 2 / 3, 3 / 7, 4 / 7])


def test_a_fused_iteration_visits_what_the_nested_one_does():
    I, J, A = csr()
    B = sparse("B", (I,))
    body = sp_iter([Fuse((I, J))], "SR", [i, j], add(B, (i,), get(A, i, j)), put(B, (i,), 0.0))
    b = np.ones(3, "float32")
    interpret(program(CoordFunc, body, (A, B)), args(b=b))
    assert b.tolist() == DENSE.sum(1).tolist()


def test_a_flattened_coordinate_is_the_absolute_position():
    I, J, A = csr()
    P = dense("P", 6)
    V, W = sparse("V", (P,)), sparse("W", (P,))
    body = sp_iter([Flatten((I, J))], "S", [k], put(W, (k,), get(V, k)), put(W, (k,), 0.0))
    w, v = np.full(6, 9, "float32"), np.arange(6, dtype="float32")
    more = {"J_indptr": INDPTR + np.int32(1), "J_indices": ids(0, *INDICES)}
    interpret(program(CoordFunc, body, (A, V, W)), args(v=v, w=w, **more))
    assert w.tolist() == [0, 1, 2, 3, 4, 9]


def test_an_attached_axis_runs_over_the_fiber_of_the_coordinate():
    I, J, A = csr()
    Jd = dense("Jd", 3)
    IT, t = compressed("IT", Jd, 5), var("t")
    H, Y, X = sparse("H", (Jd, IT)), sparse("Y", (I,)), sparse("X", (dense("N", 5),))
    weighted = binary("*", get(H, j, t), get(X, t))
    store = add(Y, (i,), weighted)
    body = sp_iter([I, J, Attach(IT, J)], "SRR", [i, j, t], store, put(Y, (i,), 0.0))
    members = np.array([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 2, 0, 3]], "float32")
    x, y = np.float32([1, 2, 3, 4, 5]), np.zeros(3, "float32")
    more = {"IT_indptr": ids(0, 2, 3, 5), "IT_indices": ids(0, 3, 1, 2, 4)}
    given = args(h=np.float32([1, 1, 1, 2, 3]), x=x, y=y, **more)
    interpret(program(CoordFunc, body, (A, H, X, Y)), given)
    assert y.tolist() == ((DENSE != 0) @ members @ x).tolist()


def two(kind):
    I = dense("I", 2)
    J1, J2 = compressed("J1", I, 5), compressed("J2", I, 5)
    A, B = sparse("A", (I, J1)), sparse("B", (I, J2))
    given = {"a": np.float32([1, 2, 3]), "J1_indptr": ids(0, 2, 3), "J1_indices": ids(0, 3, 4)}
    given |= {"b": np.float32([5, 6]), "J2_indptr": ids(0, 2, 2), "J2_indices": ids(2, 3)}
    return I, kind((J1, J2)), A, B, given


@pytest.mark.parametrize(
    ("kind", "visited"),
    [(Union, [1, 0, 1, 1, 0, 0, 0, 0, 0, 1]), (Intersect, [0, 0, 0, 1, 0, 0, 0, 0, 0, 0])],
)
def test_union_and_intersection_visit_the_coordinates_of_either_and_both(kind, visited):
    I, domain, A, B, given = two(kind)
    C = sparse("C", (I, dense("N", 5)))
    body = sp_iter([I, domain], "SS", [i, j], put(C, (i, j), 1.0))
    c = np.zeros(10, "float32")
    interpret(program(CoordFunc, body, (A, B, C)), given | {"c": c})
    assert c.tolist() == visited


def assemble(kind, op, **more):
    I, domain, A, B, given = two(kind)
    C = sparse("C", (I, assembled("Z", I, 5)), **more)
    value = binary(op, get(A, i, j), get(B, i, j))
    body = sp_iter([I, domain], "SS", [i, j], put(C, (i, j), value))
    return interpret(program(CoordFunc, body, (A, B, C)), given)


def test_the_sum_of_two_matrices_is_assembled():
    made = assemble(Union, "+")
    assert {name: array.tolist() for name, array in made.items()} == {
        "Z_indptr": [0, 3, 4],
        "Z_indices": [0, 2, 3, 4],
        "c": [1, 5, 8, 3],
    }
    assert [made[name].dtype for name in ("Z_indptr", "Z_indices", "c")] == [
        "int32",
        "int32",
        "float32",
    ]


def test_the_product_of_two_matrices_is_assembled():
    made = assemble(Intersect, "*")
    assert [made[x].tolist() for x in RESULTS] == [[0, 1, 1], [3], [12]]


def test_an_assembled_fiber_ascends_and_a_second_write_updates():
    I, N = dense("I", 2), dense("N", 3)
    C, X = sparse("C", (I, assembled("Z", I, 3)), fill=100), sparse("X", (N,))
    x = np.zeros(3, "float32")
    body = sp_iter([I, N], "SS", [i, j], add(C, (i, 1), const(1, f32)))
    made = interpret(program(CoordFunc, body, (C, X)), {"x": x})
    assert [made[x].tolist() for x in RESULTS] == [[0, 1, 2], [1, 1], [103, 103]]
    body = sp_iter([N], "S", [j], put(C, (1, binary("-", const(2), j)), cast(j, f32)))
    made = interpret(program(CoordFunc, body, (C, X)), {"x": x})
    assert [made[x].tolist() for x in RESULTS] == [[0, 0, 3], [0, 1, 2], [2, 1, 0]]


def test_init_of_an_assembled_buffer_is_what_elements_start_with():
    I, N = dense("I", 2), dense("N", 2)
    C, X = sparse("C", (I, assembled("Z", I, 3))), sparse("X", (I, N))
    store = put(C, (i, const(1)), binary("max", get(C, i, const(1)), get(X, i, k)))
    body = sp_iter([I, N], "SR", [i, k], store, put(C, (i, const(1)), -10.0))
    made = interpret(program(CoordFunc, body, (C, X)), {"x": np.float32([-3, -2, -30, -40])})
    assert made["c"].tolist() == [-2, -10]
    assert made["Z_indices"].tolist() == [1, 1]


def test_an_assembled_axis_may_hold_dense_blocks_and_another_assembled_axis():
    I, BI = dense("I", 2), dense("BI", 2)
    Z = assembled("Z", I, 4)
    Y = assembled("Y", Z, 4)
    C, D = sparse("C", (I, Z, BI)), sparse("D", (I, Z, Y))
    body = seq(
        put(C, (1, 3, 1), 5.0), put(C, (0, 2, 0), 4.0), put(C, (1, 0, 0), 6.0),
        put(D, (1, 3, 2), 1.0), put(D, (1, 0, 3), 2.0), put(D, (1, 3, 0), 3.0),
    )  # fmt: skip
    made = interpret(program(CoordFunc, body, (C, D)), {})
    assert made["Z_indptr"].tolist() == [0, 1, 3]
    assert made["Z_indices"].tolist() == [2, 0, 3]
    assert made["c"].tolist() == [4, 0, 6, 0, 0, 5]
    assert made["Y_indptr"].tolist() == [0, 0, 1, 3]
    assert made["Y_indices"].tolist() == [3, 0, 2]
    assert made["d"].tolist() == [2, 3, 1]


def test_a_coordinate_beyond_an_assembled_axis_is_a_miss_and_no_axis_runs_over_it():
    I = dense("I", 2)
    Z = assembled("Z", I, 3)
    C = sparse("C", (I, Z))
    with pytest.raises(ArgumentError, match="not stored in C"):
        interpret(program(CoordFunc, put(C, (0, 3), 1.0), (C,)), {})
    body = sp_iter([I, Z], "SS", [i, j], put(C, (i, j), 1.0))
    with pytest.raises(LoweringError, match="Z is assembled"):
        interpret(program(CoordFunc, body, (C,)), {})


def test_ell_blocks_are_read_by_their_coordinates():
    I, BI, BJ, J = dense("I", 2), dense("BI", 2), dense("BJ", 2), None
    J = fixed("J", I, 3, 2)
    A, Y = sparse("A", (I, J, BI, BJ)), sparse("Y", (I, BI))
    X = sparse("X", (dense("N", 6),))
    p, q = var("p"), var("q")
    at = binary("+", binary("*", j, 2), q)
    store = add(Y, (i, p), binary("*", get(A, i, j, p, q), get(X, at)))
    body = sp_iter([I, J, BI, BJ], "SRSR", [i, j, p, q], store, put(Y, (i, p), 0.0))
    a, x = np.arange(16, dtype="float32"), np.arange(6, dtype="float32")
    y = np.ones(4, "float32")
    given = {"a": a, "J_indices": ids(0, 2, 1, 2), "x": x, "y": y}
    interpret(program(CoordFunc, body, (A, Y, X)), given)
    full = np.zeros((2, 2, 3, 2), "float32")
    blocks = a.reshape(2, 2, 2, 2)
    for row, slot, column in ((0, 0, 0), (0, 1, 2), (1, 0, 1), (1, 1, 2)):
        full[row, :, column, :] = blocks[row, slot]
    assert np.array_equal(y, full.reshape(4, 6) @ x)


def test_ragged_axes_have_the_length_of_each_fiber():
    I = dense("I", 3)
    J = ragged("J", I, 4)
    K = ragged("K", J, 4)
    A, Y = sparse("A", (I, J, K)), sparse("Y", (I, J))
    store = add(Y, (i, j), get(A, i, j, k))
    body = sp_iter([Fuse((I, J)), K], "SSR", [i, j, k], store, put(Y, (i, j), 0.0))
    y = np.ones(3, "float32")
    given = {"J_indptr": ids(0, 2, 2, 3), "K_indptr": ids(0, 1, 3, 5), "y": y}
    interpret(program(CoordFunc, body, (A, Y)), given | {"a": np.float32([1, 2, 3, 4, 5])})
    assert y.tolist() == [1, 5, 9]


def test_a_coordinate_that_occurs_twice_is_read_at_the_iteration_and_found_at_the_first():
    b = np.zeros(3, "float32")
    interpret(row_sums(unique=False), args(b=b, J_indices=ids(1, 1, 0, 2)))
    assert b.tolist() == [3, 0, 7]
    I, _, A = csr(unique=False)
    B = sparse("B", (I,))
    body = sp_iter([I], "S", [i], put(B, (i,), get(A, i, 1)))
    interpret(program(CoordFunc, body, (A, B)), args(b=b, J_indices=ids(1, 1, 0, 2)))
    assert b.tolist() == [1, 0, 0]


def test_coordinates_of_a_list_of_entries_are_found_through_repeated_rows():
    O = dense("O", 1)
    I = compressed("I", O, 3, unique=False)
    J = fixed("J", I, 3, 1)
    A, D = sparse("A", (O, I, J)), sparse("D", (dense("M", 3), dense("N", 3)))
    M, N = D.axes
    body = sp_iter([M, N], "SS", [i, j], put(D, (i, j), get(A, 0, i, j)))
    d = np.ones(9, "float32")
    given = {"I_indptr": ids(0, 4), "I_indices": ids(0, 0, 2, 2), "J_indices": INDICES}
    interpret(program(CoordFunc, body, (A, D)), given | {"a": np.float32([1, 2, 3, 4]), "d": d})
    assert np.array_equal(d.reshape(3, 3), DENSE)


def test_an_index_may_be_read_from_a_buffer_and_miss():
    I, R = dense("I", 4), dense("R", 3)
    E, W, Y = sparse("E", (I,), i32), sparse("W", (R,), fill=-1), sparse("Y", (I,))
    body = sp_iter([I], "S", [i], put(Y, (i,), get(W, cast(get(E, i), i64))))
    y, w = np.zeros(4, "float32"), np.float32([10, 11, 12])
    interpret(program(CoordFunc, body, (E, W, Y)), {"e": ids(2, 0, 3, -1), "w": w, "y": y})
    assert y.tolist() == [12, 10, -1, -1]


def test_the_first_failure_is_raised_when_all_is_done():
    I = dense("I", 2)
    Y = sparse("Y", (I,), i32)
    quotient = binary("//", const(7, i32), get(Y, i))
    body = seq(
        sp_iter([I], "S", [i], put(Y, (i,), quotient)),
        Fail("too late"),
        Evaluate(Call("exp", (const(1, f32),))),
        put(Y, (1,), 9),
    )
    y = ids(0, 2)
    with pytest.raises(ArgumentError, match=r"^integer division by zero$"):
        interpret(program(CoordFunc, body, (Y,)), {"y": y})
    assert y.tolist() == [0, 9]
    with pytest.raises(ArgumentError, match=r"^too late$"):
        interpret(program(CoordFunc, Seq((Fail("too late"),))), {})


def test_arguments_are_checked():
    given = args(b=np.zeros(3, "float32"))
    with pytest.raises(ArgumentError, match="missing argument J_indptr"):
        interpret(row_sums(), {x: v for x, v in given.items() if x != "J_indptr"})
    with pytest.raises(ArgumentError, match="surplus argument z"):
        interpret(row_sums(), given | {"z": 1})
    with pytest.raises(ArgumentError, match="a has dtype float64, expected float32"):
        interpret(row_sums(), given | {"a": np.zeros(4)})
    with pytest.raises(ArgumentError, match="b is not a one-dimensional array"):
        interpret(row_sums(), given | {"b": np.zeros((3, 1), "float32")})


def test_axes_that_have_no_layout_are_refused():
    I = dense("I", 3)
    J1, J2 = compressed("J1", I, 3), compressed("J2", I, 3)
    body = Evaluate(get(A := sparse("A", (I, J1, J2)), 0, 0, 0))
    given = {x: ids(0, 0, 0, 0) for x in ("J1_indptr", "J1_indices", "J2_indptr", "J2_indices")}
    with pytest.raises(FormatError, match="J2 and a sibling"):
        interpret(program(CoordFunc, body, (A,)), given | {"a": np.zeros(9, "float32")})
    body = Evaluate(get(B := SparseBuffer("B", None, (J1,), f32), 0))
    with pytest.raises(FormatError, match="J1 stands in a buffer without its parent"):
        interpret(program(CoordFunc, body, (B,)), {x: ids() for x in ("J1_indptr", "J1_indices")})


@pytest.mark.parametrize(
    ("dtype", "one", "large"),
    [(dt.float16, np.float16(1), np.float16(2048)), (dt.bfloat16, 0x3F80, 0x4380)],
)
def test_sixteen_bit_sums_are_rounded_at_each_store(dtype, one, large):
    I = dense("I", 3)
    A, B = sparse("A", (I,), dtype), sparse("B", (), dtype)
    body = sp_iter([I], "R", [i], add(B, (), get(A, i)))
    a, b = (np.array(x, dtype.numpy_name) for x in ([one] * 3, [large]))
    interpret(program(CoordFunc, body, (A, B)), {"a": a, "b": b})
    assert b[0] == large


def test_a_dense_array_reads_as_zero_outside_and_refuses_writes_there():
    D = Buffer("D", handle("d"), (const(2), const(2)), f32)
    Y = sparse("Y", (dense("I", 3),))
    body = sp_iter([Y.axes[0]], "S", [i], put(Y, (i,), get(D, i, 1)))
    d, y = np.float32([1, 2, 3, 4]), np.full(3, 9, "float32")
    interpret(program(CoordFunc, body, (D, Y)), {"d": d, "y": y})
    assert y.tolist() == [2, 4, 0]
    with pytest.raises(ArgumentError, match="not stored in D"):
        interpret(program(CoordFunc, put(D, (0, 2), 7.0), (D,)), {"d": d})
    assert d.tolist() == [1, 2, 3, 4]


def test_a_child_of_an_absent_part_of_a_union_has_no_elements():
    I1, I2 = (compressed(name, dense("O" + name, 1), 3) for name in ("P", "Q"))
    J = compressed("J", I1, 3)
    A, B, Y = sparse("A", J.path()), sparse("B", I2.path()), sparse("Y", (dense("N", 3),))
    o, o2 = var("o"), var("o2")
    roots = [I1.path()[0], I2.path()[0]]
    store = add(Y, (i,), get(A, o, i, j))
    body = sp_iter([*roots, Union((I1, I2)), J], "RRSR", [o, o2, i, j], store, put(Y, (i,), 0.0))
    given = {"P_indptr": ids(0, 2), "P_indices": ids(0, 2), "Q_indptr": ids(0, 1)}
    given |= {"Q_indices": ids(1), "J_indptr": ids(0, 2, 3), "J_indices": ids(0, 1, 2)}
    y = np.ones(3, "float32")
    values = {"a": np.float32([1, 2, 3]), "b": np.float32([7]), "y": y}
    interpret(program(CoordFunc, body, (A, B, Y)), given | values)
    assert y.tolist() == [3, 0, 3]


def test_what_has_no_meaning_in_coordinates_is_a_bug_of_the_program():
    I, J, A = csr()
    with pytest.raises(InternalError, match="A is indexed by absolute position"):
        interpret(program(CoordFunc, Evaluate(get(A, None, 0)), (A,)), args())
    with pytest.raises(InternalError, match="nothing runs over axis I here"):
        interpret(program(CoordFunc, sp_iter([J], "S", [j], Evaluate(j)), (A,)), args())
    gone = Axis("Q", "sparse_variable", const(2), I, indptr=None, indices=handle("Q_indices"))
    body = Evaluate(
        get(SparseBuffer("B", None, (I, gone.replace(kind="dense_variable")), f32), 0, 0)
    )
    with pytest.raises(InternalError, match="Q has no array"):
        interpret(program(CoordFunc, body, (A,)), args())
    short = args(J_indptr=INDPTR[:2], b=np.zeros(3, "float32"))
    with pytest.raises(InternalError, match="J has no fiber at 3"):
        interpret(row_sums(), short)
    with pytest.raises(InternalError, match="element 3 of J_indices, which has 3"):
        interpret(row_sums(), args(J_indices=INDICES[:3], b=np.zeros(3, "float32")))
    orphan = sparse("C", (Axis("Z", "sparse_variable", const(2)),))
    with pytest.raises(FormatError, match="the assembled axis Z has no parent"):
        interpret(program(CoordFunc, put(orphan, (0,), 1.0), (orphan,)), {})
