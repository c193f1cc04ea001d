"""A script without a schedule: a softmax of each row gives the weights of a product."""

from __future__ import annotations

from spcomp import script as T
from spcomp.schedule.schedule import Schedule


@T.prim_func
def weighted(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    feat: T.int32,
    nnz: T.int32,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(feat)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (N, K), "float32")
    C = T.match_sparse_buffer(c, (I, K), "float32")
    TOP = T.alloc_sparse_buffer((I,), "float32")
    SUM = T.alloc_sparse_buffer((I,), "float32")
    with T.sp_iter([I, J], "SR", "top") as [i, j]:
        with T.init():
            TOP[i] = T.min_value("float32")
        TOP[i] = T.max(TOP[i], A[i, j])
    with T.sp_iter([I, J], "SR", "total") as [i, j]:
        with T.init():
            SUM[i] = 0.0
        SUM[i] = SUM[i] + T.exp(A[i, j] - TOP[i])
    with T.sp_iter([I, J, K], "SRS", "mix") as [i, j, k]:
        with T.init():
            C[i, k] = 0.0
        C[i, k] = C[i, k] + T.exp(A[i, j] - TOP[i]) / SUM[i] * B[j, k]


def rows() -> Schedule:
    """The program with all nests in one loop over rows."""
    schedule = Schedule(weighted).lower_sparse_iter()
    return schedule.reverse_compute_at("total0", "i").reverse_compute_at("mix0", "i")
