"""Programs for the tests of the shim: a sum of rows, and nests over three matrices."""

from __future__ import annotations

from spcomp import sparsetir as tvm
from spcomp.sparsetir.script import tir as T

HEAD = "from spcomp.sparsetir.script import tir as T\n\n\n@T.prim_func\n"


@T.prim_func
def rowsum(a: T.handle, b: T.handle, p: T.handle, j: T.handle, m: T.int32, n: T.int32,
           nnz: T.int32) -> None:  # fmt: skip
    T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (p, j), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (I,), "float32")
    with T.sp_iter([I, J], "SR", "rowsum") as [vi, vj]:
        with T.init():
            B[vi] = 0.0
        B[vi] = B[vi] + A[vi, vj]


def nest(body: str, head: str = "n: T.int32") -> object:
    """A function over X, Y and Z, each of 8 x 8 floats, with this *body*."""
    lines = "\n    ".join(body.strip("\n").splitlines())
    args = "x: T.handle, y: T.handle, z: T.handle"
    declared = "\n    ".join(
        f'{name.upper()} = T.match_buffer({name}, (8, 8), "float32")' for name in "xyz"
    )
    return tvm.script.from_source(
        f"{HEAD}def f({args}, {head}) -> None:\n    {declared}\n    {lines}\n"
    )
