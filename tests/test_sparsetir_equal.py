"""What ``tvm.ir.assert_structural_equal`` takes for one program, and what for two."""

from __future__ import annotations

import pytest

import spcomp
from spcomp import sparsetir as tvm
from spcomp.sparsetir.sparse import lower_sparse_iter
from tests.shim_helpers import HEAD, nest, rowsum

UPDATE = """
for i in T.serial(8):
    with T.block("outer"):
        vi = T.axis.spatial(8, i)
        for j, k in T.grid(8, 8):
            with T.block("inner"):
                vj, vk = T.axis.remap("SR", [j, k])
                with T.init():
                    Z[vi, vj] = T.float32(0)
                Z[vi, vj] = Z[vi, vj] + X[vi, vk] * Y[vk, vj]
"""
SAME = {
    "names": UPDATE.replace("vj", "w").replace('"inner"', '"core"').replace("for i", "for row")
    .replace("8, i)", "8, row)"),
    "regions": UPDATE.replace("                with T.init", "                T.reads(X[vi, vk])\n"
                              "                T.writes(Z[vi, vj])\n                with T.init"),
    "what an iter is called": UPDATE.replace("(8, i)", "(8, i * 1 + 0)"),
    "a root block": "with T.block('root'):\n" + "\n".join(
        f"    {line}" for line in UPDATE.strip().splitlines()
    ),
    "sums of numbers": UPDATE.replace("T.grid(8, 8)", "T.grid(4 + 4, 8)"),
}  # fmt: skip
OTHER = {
    "an operand": UPDATE.replace("Y[vk, vj]", "X[vk, vj]"),
    "an index": UPDATE.replace("Y[vk, vj]", "Y[vj, vk]"),
    "an operation": UPDATE.replace("X[vi, vk] * Y", "X[vi, vk] + Y"),
    "a number": UPDATE.replace("T.float32(0)", "T.float32(1)"),
    "the range of a loop": UPDATE.replace("for j, k in T.grid(8, 8)", "for j, k in T.grid(8, 7)"),
    "the order of loops": UPDATE.replace("for j, k in", "for k, j in"),
    "the kind of a loop": UPDATE.replace("T.serial(8)", "T.parallel(8)"),
    "the kind of an iter": UPDATE.replace('"SR"', '"SS"'),
    "no init": "\n".join(
        line for line in UPDATE.splitlines() if "init" not in line and "float32(0)" not in line
    ),
    "where the init stands": UPDATE.replace(
        "                with T.init():\n                    Z[vi, vj] = T.float32(0)\n", ""
    ).replace("        for j, k", "        with T.init():\n            for j in T.serial(8):\n"
              "                Z[vi, j] = T.float32(0)\n        for j, k"),
    "no block": UPDATE.replace('    with T.block("outer"):\n        vi = T.axis.spatial(8, i)\n',
                               "").replace("vi", "i").replace("\n    ", "\n"),
    "a note": UPDATE.replace("                with T.init",
                             '                T.block_attr({"atomic": True})\n'
                             "                with T.init"),
}  # fmt: skip


@pytest.mark.parametrize("body", SAME.values(), ids=SAME)
def test_programs_that_differ_in_what_follows_from_the_rest_are_one(body):
    tvm.ir.assert_structural_equal(nest(UPDATE), nest(body))


@pytest.mark.parametrize("body", OTHER.values(), ids=OTHER)
def test_programs_that_differ_in_anything_else_are_two(body):
    assert not tvm.ir.structural_equal(nest(UPDATE), nest(body))
    with pytest.raises(ValueError, match="the programs differ"):
        tvm.ir.assert_structural_equal(nest(UPDATE), nest(body))


DRIVEN = """
for i, k in T.grid(8, 2):
    with T.block("outer"):
        vi = T.axis.spatial(8, i)
        vk = T.axis.reduce(2, k)
        for j in T.serial(4):
            with T.block("inner"):
                vj = T.axis.reduce(8, vk * 4 + j)
                with T.init():
                    Z[vi, 0] = T.float32(0)
                Z[vi, 0] = Z[vi, 0] + X[vi, vj]
"""


def test_an_init_that_runs_anew_in_each_outer_iteration_is_another():
    loose = nest("""
for i, k, j in T.grid(8, 2, 4):
    with T.block("inner"):
        vi = T.axis.spatial(8, i)
        vj = T.axis.reduce(8, k * 4 + j)
        with T.init():
            Z[vi, 0] = T.float32(0)
        Z[vi, 0] = Z[vi, 0] + X[vi, vj]
""")
    assert not tvm.ir.structural_equal(nest(DRIVEN), loose)


def test_parameters_and_levels_must_agree():
    lowered = lower_sparse_iter(tvm.IRModule.from_expr(rowsum))
    assert not tvm.ir.structural_equal(rowsum, lowered["main"])
    assert not tvm.ir.structural_equal(nest(UPDATE), nest(UPDATE, "n: T.int64"))
    assert tvm.ir.structural_equal(lowered, lower_sparse_iter(lowered))
    with pytest.raises(ValueError, match="differ"):
        tvm.ir.assert_structural_equal(lowered, tvm.IRModule.from_expr(rowsum))
    with pytest.raises(spcomp.errors.ArgumentError, match="rhs"):
        tvm.ir.structural_equal(rowsum, 3)


def test_the_indices_of_an_axis_lie_along_it_or_along_its_dense_image():
    listing = tvm.script.from_source(
        HEAD
        + """def g(
    a: T.handle, b: T.handle, p: T.handle, j: T.handle, m: T.int32, n: T.int32, nnz: T.int32
) -> None:
    T.func_attr({"sparse_tir_level": 1})
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (p, j), idtype="int32", sorted=True)
    J_dense = T.dense_variable(I, (n, nnz), p, idtype="int32")
    A = T.match_sparse_buffer(a, [I, J], dtype="float32")
    B = T.match_sparse_buffer(b, [I], dtype="float32")
    P = T.match_sparse_buffer(p, [I], dtype="int32", extra_storage=1)
    Q = T.match_sparse_buffer(j, [I, J_dense], dtype="int32")
    T.assume_buffer_domain(P, [0, nnz])
    for i in T.serial(m):
        with T.block("rowsum0"):
            vi = T.axis.spatial(m, i)
            T.reads(P[vi : vi + 2], A[vi, 0:n])
            T.writes(B[vi])
            for k in T.serial(P[vi + 1] - P[vi]):
                with T.block("rowsum1"):
                    vk = T.axis.reduce(n, k)
                    with T.init():
                        B[vi] = T.float32(0)
                    B[vi] = B[vi] + A[vi, vk]
"""
    )
    lowered = lower_sparse_iter(tvm.IRModule.from_expr(rowsum))["main"]
    tvm.ir.assert_structural_equal(lowered, listing, True)
