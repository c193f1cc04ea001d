"""Results whose coordinates are assembled as one number, and unions under unions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, LoweringError
from spcomp.ir.position import Merge
from spcomp.ir.printer.program import print_program
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import walk
from spcomp.script.parse import parse_source
from tests.test_assembly import CPU, csr, stages_agree


@T.prim_func
def nested_sum(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    ip: T.handle,
    ii: T.handle,
    jp: T.handle,
    ji: T.handle,
    kp: T.handle,
    ki: T.handle,
    lp: T.handle,
    li: T.handle,
    m: T.int64,
    n: T.int64,
    p: T.int64,
    q: T.int64,
    r: T.int64,
    s: T.int64,
) -> None:
    R = T.dense_fixed(1)
    I = T.sparse_variable(R, (m, p), (ip, ii))
    J = T.sparse_variable(I, (n, q), (jp, ji))
    K = T.sparse_variable(R, (m, r), (kp, ki))
    L = T.sparse_variable(K, (n, s), (lp, li))
    Z = T.sparse_variable(R, (m * n, None), (None, None), idtype="int64")
    A = T.match_sparse_buffer(a, (R, I, J), "float64")
    B = T.match_sparse_buffer(b, (R, K, L), "float64")
    C = T.match_sparse_buffer(c, (R, Z), "float64")
    with T.sp_iter([R, T.union(I, K), T.union(J, L)], "SSS", "nested") as [o, i, j]:
        C[o, i * n + j] = A[o, i, j] + B[o, i, j]


def doubly(matrix, names):
    """The arrays of *matrix*, whose empty rows are left out, called *names*."""
    rows = np.flatnonzero(np.diff(matrix.indptr)).astype(np.int32)
    outer = np.array([0, len(rows)], np.int32)
    inner = np.append(matrix.indptr[rows], matrix.nnz).astype(np.int32)
    return dict(zip(names, (outer, rows, inner, matrix.indices, matrix.data), strict=True))


def test_a_union_under_a_union_runs_over_what_is_there():
    a, b = csr(0), csr(3)
    args = doubly(a, ("ip", "ii", "jp", "ji", "a")) | doubly(b, ("kp", "ki", "lp", "li", "b"))
    counts = {"p": len(args["ii"]), "q": a.nnz, "r": len(args["ki"]), "s": b.nnz}
    result = stages_agree(nested_sum, {**args, **counts, "m": 5, "n": 6})
    want = sps.csr_array(abs(a) + abs(b)).reshape((1, 30)).tocsr()
    np.testing.assert_array_equal(result["Z_indices"], want.indices)
    both = (a + b).toarray().reshape(-1)
    np.testing.assert_array_equal(result["c"], both[result["Z_indices"]])


def test_a_case_without_one_operand_does_not_merge_with_it():
    merges = [
        n for n in walk(lower(nested_sum, CPU).position.funcs[0].body) if isinstance(n, Merge)
    ]
    assert len(merges) == 2


@T.prim_func
def shorter(
    a: T.handle,
    c: T.handle,
    ip: T.handle,
    ii: T.handle,
    m: T.int32,
    n: T.int32,
    p: T.int32,
    q: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    Z = T.sparse_variable(I, (q, None), (None, None))
    A = T.match_sparse_buffer(a, (I, J), "float64")
    C = T.match_sparse_buffer(c, (I, Z), "float64")
    with T.sp_iter([I, J], "SS", "shorter") as [i, j]:
        C[i, j] = A[i, j]


def test_a_coordinate_beyond_the_assembled_axis_fails_the_call():
    kernel, matrix = spcomp.compile(shorter), csr(0)
    assert (kernel(A=matrix, q=6) != matrix).nnz == 0
    with pytest.raises(ArgumentError, match="outside of Z"):
        kernel(A=matrix, q=3)


@T.prim_func
def numbers_that_fall(
    a: T.handle, c: T.handle, ip: T.handle, ii: T.handle, m: T.int64, n: T.int64, p: T.int64
) -> None:
    R = T.dense_fixed(1)
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    Z = T.sparse_variable(R, (m * n, None), (None, None), idtype="int64")
    A = T.match_sparse_buffer(a, (I, J), "float64")
    C = T.match_sparse_buffer(c, (R, Z), "float64")
    with T.sp_iter([R, I, J], "SSS", "transpose") as [o, i, j]:
        C[o, j * m + i] = A[i, j]


def test_numbers_in_another_order_are_put_in_order():
    a = csr(4)
    args = {"a": a.data, "ip": a.indptr, "ii": a.indices, "m": 5, "n": 6, "p": a.nnz}
    result = stages_agree(numbers_that_fall, args)
    want = a.T.tocsr().reshape((1, 30)).tocsr()
    np.testing.assert_array_equal(result["Z_indices"], want.indices)
    np.testing.assert_array_equal(result["c"], want.data)


@T.prim_func
def reads_another_number(
    a: T.handle, c: T.handle, ip: T.handle, ii: T.handle, m: T.int64, n: T.int64, p: T.int64
) -> None:
    R = T.dense_fixed(1)
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, p), (ip, ii))
    Z = T.sparse_variable(R, (m * n, None), (None, None), idtype="int64")
    A = T.match_sparse_buffer(a, (I, J), "float64")
    C = T.match_sparse_buffer(c, (R, Z), "float64")
    with T.sp_iter([R, I, J], "SSS", "prefix") as [o, i, j]:
        C[o, i * n + j] = C[o, i * n + j - 1] + A[i, j]


def test_a_number_that_is_read_has_to_be_the_one_written():
    with pytest.raises(LoweringError, match="fibers are not written one by one"):
        spcomp.compile(reads_another_number)


def test_what_is_lowered_prints_as_it_is_read_again():
    stages = lower(nested_sum, CPU)
    for program in (stages.coordinate.source, stages.position, stages.flat):
        (back,) = parse_source(print_program(program), "nested.py")
        assert structural_equal(back, program)


INIT = """
@T.prim_func
def f(a: T.handle, c: T.handle, ip: T.handle, ix: T.handle, m: T.int32, n: T.int32, nnz: T.int32):
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (ip, ix), "int32")
    K = T.sparse_variable(I, (n, None), (None, None), "int32")
    A = T.match_sparse_buffer(a, (I, J), "DTYPE")
    C = T.match_sparse_buffer(c, (I, K), "DTYPE")
    with T.sp_iter([I, J], "SS", "f") as [i, j]:
        with T.init():
            C[i, j] = VALUE
        C[i, j] = C[i, j] + A[i, j]
"""


@pytest.mark.parametrize(
    ("dtype", "value", "first"),
    [
        ("uint8", 'T.cast(300, "uint8")', 44),
        ("float64", "T.float32(0.1)", float(np.float32(0.1))),
        ("int32", 'T.cast(2.7, "int32")', 2),
        ("float64", "T.uint8(3)", 3),
    ],
)
def test_an_init_is_cast_as_a_number_is(dtype, value, first):
    source = INIT.replace("DTYPE", dtype).replace("VALUE", value)
    A = sps.csr_array(np.array([[1, 0], [2, 3]], dtype))
    made = spcomp.compile(spcomp.parse(source))(A=A)
    np.testing.assert_array_equal(made.data, A.data + np.dtype(dtype).type(first))


def test_an_init_that_no_integer_holds_is_refused():
    source = INIT.replace("DTYPE", "int32").replace("VALUE", 'T.cast(1e300, "int32")')
    with pytest.raises(LoweringError, match="does not assign a constant"):
        spcomp.compile(spcomp.parse(source))
