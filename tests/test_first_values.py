"""Reductions without ``T.init()``: a warning where the first value is not what they begin at."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import SpcompWarning

A = sps.csr_array(np.array([[-1, -2], [0, 3]], "float32"))
ROWS = """from spcomp import script as T


@T.prim_func
def rows(a: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
         nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32", fill={fill})
    with T.sp_iter([I, J], "SR", "rows") as [i, j]:
        {body}
"""
LOCAL = """from spcomp import script as T


@T.prim_func
def local(a: T.handle, y: T.handle, m: T.int32, n: T.int32) -> None:
    A = T.match_buffer(a, (m, n), "float32")
    Y = T.match_buffer(y, (m,), "float32")
    for i in T.serial(m):
        s = T.alloc_buffer((1,), "float32"{scope})
        {first}
        for j in T.serial(n):
            s[0] = s[0] + A[i, j]
        Y[i] = s[0]
"""


def rows(body, fill=0):
    return spcomp.compile(spcomp.parse(ROWS.format(body=body, fill=fill)))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("Y[i] = T.max(Y[i], A[i, j])", r"12:9: Y has no T.init\(\).* by max begins at 0,.* -inf"),
        ("Y[i] = Y[i] * A[i, j]", r"by \* begins at 0, its fill value, not at 1"),
    ],
)
def test_a_result_that_begins_at_another_value_is_told(body, said):
    with pytest.warns(SpcompWarning, match=said):
        rows(body)(A=A)


def test_what_begins_where_it_should_is_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total = rows("Y[i] = Y[i] + A[i, j]")
        assert total(A=A).tolist() == [-3, 3]
        assert total(A=A, Y=np.ones(2, "float32")).tolist() == [-2, 4]  # a legal accumulation
        least = rows("Y[i] = T.max(Y[i], A[i, j])")
        assert least(A=A, Y=np.full(2, -9, "float32")).tolist() == [-1, 3]
        assert rows("Y[i] = Y[i] * A[i, j]", fill=1)(A=A).tolist() == [2, 3]
        whole = "with T.init():\n            Y[i] = 1.0\n        Y[i] = Y[i] * A[i, j]"
        assert rows(whole)(A=A).tolist() == [2, 3]


def test_a_local_sum_without_a_first_value_is_told():
    def kernel(first="pass", scope=""):
        return spcomp.compile(spcomp.parse(LOCAL.format(first=first, scope=scope)))

    with pytest.warns(SpcompWarning, match=r"12:13: s has no first value"):
        kernel()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel("s[0] = 0.0")(A=A.toarray()).tolist() == [-3, 3]


def test_printed_stages_have_first_values_under_masks():
    kernel = rows("Y[i] = Y[i] + A[i, j]")
    spmm = spcomp.compile("C[i, k] = A[i, j] * B[j, k]").specialize(A=A, B=np.ones((2, 5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in (kernel.stage("flat"), spmm.stage("flat"), spmm.stage("position")):
            spcomp.compile(spcomp.parse(text), check="off")


def test_a_branch_that_stores_a_first_value_is_one_for_the_other():
    update = "s[0] = s[0] + A[i, j]"
    step = f"if j > 0:\n{' ' * 16}{update}\n{' ' * 12}else:\n{' ' * 16}s[0] = A[i, j]"
    text = LOCAL.format(first="pass", scope="").replace(update, step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spcomp.compile(spcomp.parse(text))(A=A.toarray()).tolist() == [-3, 3]
