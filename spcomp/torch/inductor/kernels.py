"""At a call of compiled code: the kernels that gather rows along edges and reduce them."""

# ruff: noqa: E741, N806, N812
# mypy: disable-error-code="valid-type, operator"
from __future__ import annotations

from functools import cache
from math import inf
from typing import TYPE_CHECKING

from spcomp import script as T
from spcomp.kernels.compile import compile as compile_program

if TYPE_CHECKING:
    from spcomp.kernels.kernel import Kernel

_START = {"sum": 0.0, "max": -inf, "min": inf}


@cache
def kernel(reduce: str, dtype: str, idtype: str, *, weighted: bool) -> Kernel:
    """Return the kernel that reduces the rows of X that the indices of each row of Y name.

    It goes through them in their order, and they may be repeated. *reduce*: ``sum``, ``max`` or
    ``min``. *weighted*: it adds rows times a weight for each head, of X with a dimension for heads.
    """
    if weighted:
        return _weighted(dtype, idtype)
    start, adds, greatest = _START[reduce], reduce == "sum", reduce == "max"

    @T.prim_func
    def aggregate(
        x: T.handle,
        y: T.handle,
        indptr: T.handle,
        indices: T.handle,
        m: T.int64,
        n: T.int64,
        feat: T.int64,
        nnz: T.int64,
    ) -> None:
        I = T.dense_fixed(m)
        J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype, sorted=False, unique=False)
        N = T.dense_fixed(n)
        K = T.dense_fixed(feat)
        X = T.match_sparse_buffer(x, (N, K), dtype)
        Y = T.match_sparse_buffer(y, (I, K), dtype)
        with T.sp_iter([I, J, K], "SRS", "aggregate") as [i, j, k]:
            with T.init():
                Y[i, k] = start
            if adds:
                Y[i, k] = Y[i, k] + X[j, k]
            elif greatest:
                Y[i, k] = T.max(Y[i, k], X[j, k])
            else:
                Y[i, k] = T.min(Y[i, k], X[j, k])

    made: Kernel = compile_program(aggregate)
    return made


def _weighted(dtype: str, idtype: str) -> Kernel:
    @T.prim_func
    def aggregate(
        w: T.handle,
        x: T.handle,
        y: T.handle,
        indptr: T.handle,
        indices: T.handle,
        m: T.int64,
        n: T.int64,
        heads: T.int64,
        feat: T.int64,
        nnz: T.int64,
    ) -> None:
        I = T.dense_fixed(m)
        J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype, sorted=False, unique=False)
        N = T.dense_fixed(n)
        H = T.dense_fixed(heads)
        K = T.dense_fixed(feat)
        W = T.match_sparse_buffer(w, (I, J, H), dtype)
        X = T.match_sparse_buffer(x, (N, H, K), dtype)
        Y = T.match_sparse_buffer(y, (I, H, K), dtype)
        with T.sp_iter([I, J, H, K], "SRSS", "aggregate") as [i, j, h, k]:
            with T.init():
                Y[i, h, k] = 0.0
            Y[i, h, k] = Y[i, h, k] + W[i, j, h] * X[j, h, k]

    made: Kernel = compile_program(aggregate)
    return made
