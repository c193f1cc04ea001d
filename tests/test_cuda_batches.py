"""The default schedule on GPUs of rows in a batch: its loops run on the grid, too."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from benchmarks import programs
from benchmarks.gpu.ours import ATTENTION
from tests.emulated import EMULATED

PRODUCTS = """
from spcomp import script as T

@T.prim_func
def products(b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
             sets: T.int32, heads: T.int32, m: T.int32, n: T.int32, nnz: T.int32) -> None:
    S = T.dense_fixed(sets)
    H = T.dense_fixed(heads)
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    N = T.dense_fixed(n)
    K = T.dense_fixed(12)
    B = T.match_sparse_buffer(b, (S, H, N, K), "float32")
    C = T.match_sparse_buffer(c, (S, H, I{}), "float32")
    with T.sp_iter([S, H, I, J, K], "SSSR{}", "products") as [s, h, i, j, k]:
        with T.init():
            C[s, h, i{}] = 0.0
        C[s, h, i{}] = C[s, h, i{}] + B[s, h, j, k]
"""


def pattern(rows, columns):
    rng = np.random.default_rng(4)
    a = sps.random_array((rows, columns), density=0.3, format="lil", rng=rng, dtype=np.float32)
    if rows > 3:
        a[3] = 0
    a = sps.csr_array(a)
    a.data[:] = 1
    return a


@pytest.mark.parametrize("shape", [(3, 1, 20), (2, 4, 33), (0, 2, 4), (2, 0, 4), (1, 1, 1)])
@pytest.mark.parametrize("by_columns", [True, False])
def test_products_of_several_loops_around_rows(shape, by_columns):
    at, kind = (", k", "S") if by_columns else ("", "R")
    text = PRODUCTS.format(", K" if by_columns else "", kind, at, at, at)
    kernel = spcomp.compile(programs.parse(text), target=EMULATED)
    a, b = pattern(shape[2], 17), np.random.default_rng(1).integers(-3, 3, (*shape[:2], 17, 12))
    operands = {"B": b.astype(np.float32), "indptr": a.indptr, "indices": a.indices, "m": shape[2]}
    assert shape[2] == 1 or "bind('s_h', 'blockIdx.z')" in kernel.explain(**operands)
    right = np.einsum("ij,shjk->shik", a.toarray(), b)
    right = right if by_columns else right.sum(-1)
    np.testing.assert_array_equal(np.reshape(kernel(**operands), right.shape), right)


def test_attention_of_several_heads_is_one_kernel_on_blocks_for_each():
    kernel = spcomp.compile(programs.parse(ATTENTION), target=EMULATED)
    a, rng = pattern(30, 30), np.random.default_rng(2)
    q, k, v = (rng.standard_normal((3, 30, 64)).astype(np.float32) for _ in range(3))
    operands = {"Q": q, "K": k, "V": v, "indptr": a.indptr, "indices": a.indices}
    text = kernel.explain(**operands)
    assert text.count("launch ") == 1
    assert "online_softmax('i', 32)" in text
    assert "bind('h', 'blockIdx.z')" in text
    weights = np.where(a.toarray() > 0, np.exp(np.einsum("hif,hjf->hij", q, k)), 0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    np.testing.assert_allclose(kernel(**operands), weights @ v, rtol=1e-3, atol=1e-5)
