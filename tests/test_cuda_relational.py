"""RGCN and sparse convolution on tensor cores, as SparseTIR published them, emulated.

Programs and steps are those of examples/rgms; changed are the imports, the data and the sizes.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp import sparsetir as tvm
from spcomp.sparsetir import tir
from spcomp.sparsetir.script import tir as T
from spcomp.sparsetir.sparse import (
    FormatRewriteRule,
    csf_to_ell3d,
    format_decompose,
    lower_sparse_buffer,
    lower_sparse_iter,
)
from tests.test_cuda_published import TARGET, clear, in_any_order, load, mma, store
from tests.test_sparsetir_listings import convert_indptr_to_mid_array

__all__ = ["in_any_order"]
A, B, C = (f"wmma.{part}" for part in ("matrix_a", "matrix_b", "accumulator"))


def copied(d0, d1, dtype, source, target):
    """The descriptions of copies of d0 x d1 x 16; an axis of length 1 is left out of the block."""

    @T.prim_func
    def desc(x: T.handle, y: T.handle) -> None:
        X = T.match_buffer(x, (d0, d1, 16), dtype, align=64, offset_factor=16, scope=source)
        Y = T.match_buffer(y, (d0, d1, 16), dtype, align=64, offset_factor=16, scope=target)
        with T.block("root"):
            for io, ii, j in T.grid(d0, d1, 16):
                with T.block("copy"):
                    vio, vii, vj = T.axis.remap("SSS", [io, ii, j])
                    Y[vio, vii, vj] = X[vio, vii, vj]

    @T.prim_func
    def desc_16_1(x: T.handle, y: T.handle) -> None:
        X = T.match_buffer(x, (16, 1, 16), dtype, align=64, offset_factor=16, scope=source)
        Y = T.match_buffer(y, (16, 1, 16), dtype, align=64, offset_factor=16, scope=target)
        with T.block("root"):
            for io, ii, j in T.grid(16, 1, 16):  # noqa: B007 (as published)
                with T.block("copy"):
                    vio, vj = T.axis.remap("SS", [io, j])
                    Y[vio, 0, vj] = X[vio, 0, vj]

    @T.prim_func
    def desc_1_16(x: T.handle, y: T.handle) -> None:
        X = T.match_buffer(x, (1, 16, 16), dtype, align=64, offset_factor=16, scope=source)
        Y = T.match_buffer(y, (1, 16, 16), dtype, align=64, offset_factor=16, scope=target)
        with T.block("root"):
            for io, ii, j in T.grid(1, 16, 16):  # noqa: B007 (as published)
                with T.block("copy"):
                    vii, vj = T.axis.remap("SS", [ii, j])
                    Y[0, vii, vj] = X[0, vii, vj]

    return desc_1_16 if d0 == 1 else desc_16_1 if d1 == 1 else desc


def load_b():
    @T.prim_func
    def desc(b: T.handle, b_frag: T.handle) -> None:
        S = T.match_buffer(b, (16, 16), "float16", align=64, offset_factor=16, scope="shared")
        F = T.match_buffer(b_frag, (16, 16), "float16", align=64, offset_factor=16, scope=B)
        with T.block("root"):
            for i, j in T.grid(16, 16):
                with T.block("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    F[vi, vj] = S[vi, vj]

    return desc


def fill(d0, d1, dtype):
    @T.prim_func
    def desc(c: T.handle) -> None:
        F = T.match_buffer(c, (d0, d1, 16), dtype, align=64, offset_factor=16, scope=C)
        with T.block("root"):
            for io, ii, j in T.grid(d0, d1, 16):
                with T.block("init"):
                    vio, vii, vj = T.axis.remap("SSS", [io, ii, j])
                    F[vio, vii, vj] = T.cast(0, dtype)

    return desc


def sync(d0, d1, dtype):
    @T.prim_func
    def desc(a: T.handle, b: T.handle, c: T.handle) -> None:
        X = T.match_buffer(a, (d0, d1, 16), "float16", align=64, offset_factor=1, scope=A)
        Y = T.match_buffer(b, (16, 16), "float16", align=64, offset_factor=1, scope=B)
        Z = T.match_buffer(c, (d0, d1, 16), dtype, align=64, offset_factor=1, scope=C)
        with T.block("root"):
            for io, ii, j, k in T.grid(d0, d1, 16, 16):
                with T.block("update"):
                    vio, vii, vj, vk = T.axis.remap("SSSR", [io, ii, j, k])
                    T.block_attr({"sparse": True})
                    Z[vio, vii, vj] = Z[vio, vii, vj] + T.cast(X[vio, vii, vk] * Y[vk, vj], dtype)

    return tvm.tir.transform.Simplify()(tvm.IRModule.from_expr(desc))["main"]


def register(buckets, dtype):
    """Register the published intrinsics for rows in *buckets*."""
    parts = {"wmma_shared_load_b": (load_b(), load)}
    for d1 in buckets:
        d0 = 16 // d1
        name = f"wmma_{d0}_{d1}"
        parts[f"{name}_shared_store"] = copied(d0, d1, dtype, C, "shared"), store
        parts[f"{name}_shared_load_a"] = copied(d0, d1, "float16", "shared", A), load
        parts[f"{name}_init"] = fill(d0, d1, dtype), clear
        parts[f"{name}_sync"] = sync(d0, d1, dtype), mma
    for name, (desc, impl) in parts.items():
        tir.TensorIntrin.register(name, desc, impl, override=True)


def forward(m, n, num_rels, feat_in, feat_out, dtype):
    @T.prim_func
    def func(
        a: T.handle,
        w: T.handle,
        x: T.handle,
        y: T.handle,
        wx: T.handle,
        indptr_i: T.handle,
        indices_i: T.handle,
        indptr_j: T.handle,
        indices_j: T.handle,
        nnz_i: T.int32,
        nnz_j: T.int32,
    ):
        T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
        R = T.dense_fixed(num_rels)
        I = T.sparse_variable(R, (m, nnz_i), (indptr_i, indices_i), "int32")
        J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), "int32")
        I_detach = T.dense_fixed(m)
        J_detach = T.dense_fixed(n)
        F_in = T.dense_fixed(feat_in)
        F_out = T.dense_fixed(feat_out)
        A = T.match_sparse_buffer(a, (R, I, J), "float16")
        W = T.match_sparse_buffer(w, (R, F_in, F_out), "float16")
        X = T.match_sparse_buffer(x, (J_detach, F_in), "float16")
        Y = T.match_sparse_buffer(y, (I_detach, F_out), dtype)
        WX = T.match_sparse_buffer(wx, (R, I, J, F_out), dtype)
        with T.sp_iter([R, I, J, F_out, F_in], "SSSSR", "forward_wx") as [r, i, j, fo, fi]:
            with T.init():
                WX[r, i, j, fo] = T.cast(0, dtype)
            WX[r, i, j, fo] += T.cast(X[j, fi] * W[r, fi, fo], dtype)
        with T.sp_iter([R, I, J, F_out], "SSRS", "forward") as [r, i, j, fo]:
            with T.init():
                Y[i, fo] = T.cast(0, dtype)
            Y[i, fo] = Y[i, fo] + T.cast(A[r, i, j], dtype) * WX[r, i, j, fo]

    return func


def ell3d(d0, d1, d2, nnz, nnz_rows, nnz_cols, feat_out, dtype):
    @T.prim_func
    def func(
        a: T.handle, wx: T.handle, indptr_io: T.handle, indices_ii: T.handle, indices_j: T.handle
    ) -> None:
        R = T.dense_fixed(d0, idtype="int32")
        IO = T.dense_variable(R, (d1, nnz), indptr_io, idtype="int32")
        II = T.sparse_fixed(IO, (d2, nnz_rows), indices_ii, idtype="int32")
        J = T.sparse_fixed(II, (d2, nnz_cols), indices_j, idtype="int32")
        FO = T.dense_fixed(feat_out, idtype="int32")
        A = T.match_sparse_buffer(a, (R, IO, II, J), dtype="float16")  # noqa: F841
        WX = T.match_sparse_buffer(wx, (R, IO, II, J, FO), dtype=dtype)  # noqa: F841
        T.evaluate(0)

    return func


def decomposed(shape, feat, groups, buckets, group_size, dtype):
    """The program over the parts; *groups*: how many of rows each bucket has."""
    num_rels, m, n = shape
    rules = [
        FormatRewriteRule(
            str(k),
            ell3d(num_rels, m, n, groups[k], group_size // width, width, feat[1], dtype),
            ["A", "WX"],
            ["R", "I", "J", "F_out"],
            ["R", "IO", "II", "J", "FO"],
            {"R": ["R"], "I": ["IO", "II"], "J": ["J"], "F_out": ["FO"]},
            lambda r, i, j, fo: (r, 0, i, j, fo),
            lambda r, io, ii, j, fo: (r, ii, j, fo),
        )
        for k, width in enumerate(buckets)
    ]
    func = forward(m, n, num_rels, *feat, dtype).with_attr("horizontal_fuse", True)
    mod = format_decompose(tvm.IRModule.from_expr(func), rules, include_format_rewrite_blks=False)
    sch = tir.Schedule(tvm.tir.transform.RemovePreprocess()(mod)["main"])
    for k, _ in enumerate(buckets):
        for name in ("forward_wx", "forward"):
            sp_iteration = sch.get_sparse_iteration(f"{name}_{k}")
            r, io = sch.get_sp_iters(sp_iteration)[:2]
            sch.sparse_fuse(sp_iteration, [r, io])
    return tvm.tir.transform.RemovePreprocess()(lower_sparse_iter(sch.mod))


def by_threads(sch, W_shared, X_shared, blk, Y_local, ty, lanes):
    """Distribute the copies to shared memory and the updates of the result over threads."""
    fused = sch.fuse(*sch.get_loops(W_shared)[-2:])
    ax0, ax1, ax2, ax3 = sch.split(fused, [None, ty, 32, lanes])
    sch.vectorize(ax3)
    sch.bind(ax2, "threadIdx.x")
    sch.bind(ax1, "threadIdx.y")
    sch.unroll(ax0)
    fused = sch.fuse(*sch.get_loops(X_shared)[-3:])
    ax0, ax1, ax2 = sch.split(fused, [None, 32, lanes])
    sch.vectorize(ax2)
    sch.bind(ax1, "threadIdx.x")
    sch.unroll(ax0)
    j_i, kk, fo = sch.get_loops(blk)[-3:]
    sch.unroll(j_i)
    ax0, ax1 = sch.split(fo, [None, 32])
    sch.unroll(ax0)
    sch.bind(ax1, "threadIdx.x")
    sch.unroll(kk)
    ax0, ax1 = sch.split(sch.get_loops(Y_local)[-1], [None, 32])
    sch.unroll(ax0)
    sch.bind(ax1, "threadIdx.x")


def scheduled(mod, buckets, ty, fi_factor, *, on_grid):
    """The published schedule; *on_grid*: features on ``blockIdx.y``, as in sparse convolution."""
    fo_factor, workloads, lanes = 2, 1, 4 if on_grid else 8
    sch = tir.Schedule(mod["main"])
    for k, width in enumerate(buckets):
        sch.set_block_filter(f"group_{k}")
        name = f"wmma_{16 // width}_{width}"
        blk_wx, blk = sch.get_block(f"forward_wx_{k}0"), sch.get_block(f"forward_{k}0")
        sch.annotate(blk_wx, f"group_{k}", 1)
        sch.annotate(blk, f"group_{k}", 1)
        sch.match_to_alloc(blk_wx, 0)
        sch.set_scope(blk_wx, 0, "shared")
        i, j, kk, fo, fi = sch.get_loops(blk_wx)[-5:]
        fooo, fooi, foi = sch.split(fo, [None, fo_factor, 16])
        fio, fii = sch.split(fi, [fi_factor, 16])
        sch.reorder(i, fooo, fooi, fio, j, kk, foi, fii)
        if on_grid:
            sch.bind(fooo, "blockIdx.y")
        else:
            sch.annotate(fooo, "pragma_unroll_explicit", 0)
            sch.unroll(fooo)
        sch.reverse_compute_at(blk, fooo, True)
        W_shared = sch.reverse_cache_read(blk_wx, 2, "shared", [0, 1, 5, 4])
        sch.compute_at(W_shared, fooo, True)
        j_unroll, j_ty, j_inner = sch.split(j, [workloads, ty, None])
        sch.reorder(j_unroll, j_ty, fooi, fio, j_inner, kk, foi, fii)
        sch.unroll(fooi)
        sch.unroll(fio)
        X_shared = sch.reverse_cache_read(blk_wx, 0, "shared")
        sch.compute_at(X_shared, fio, True)
        WX_accum = sch.reverse_cache_write(blk_wx, 0, C)
        sch.reverse_compute_at(WX_accum, fio, True)
        W_wmma = sch.reverse_cache_read(blk_wx, 2, B, [0, 1, 5, 4])
        sch.compute_at(W_wmma, fio, True)
        X_wmma = sch.reverse_cache_read(blk_wx, 0, A)
        sch.bind(sch.get_loops(blk)[0], "blockIdx.x")
        sch.bind(j_ty, "threadIdx.y")
        sch.unroll(j_unroll)
        init_blk = sch.decompose_reduction(blk_wx, fio)
        sch.reverse_compute_at(blk, j_ty, True)
        Y_local = sch.reverse_cache_write(blk, 0, "local")
        sch.annotate(Y_local, "atomic", True)
        sch.reverse_compute_at(Y_local, sch.get_loops(blk)[-3], True)
        sch.tensorize(sch.get_loops(WX_accum)[-3], f"{name}_shared_store")
        sch.tensorize(sch.get_loops(X_wmma)[-3], f"{name}_shared_load_a")
        sch.tensorize(sch.get_loops(W_wmma)[-2], "wmma_shared_load_b")
        sch.tensorize(sch.get_loops(init_blk)[-3], f"{name}_init")
        sch.hide_buffer_access(blk_wx, "read", [2, 4])
        sch.tensorize(sch.get_loops(blk_wx)[-4], f"{name}_sync")
        by_threads(sch, W_shared, X_shared, blk, Y_local, ty, lanes)
        sch.unset_block_filter()
    return tvm.tir.transform.RemoveUnusedArgs()(lower_sparse_buffer(sch.mod))


def operands(relations, feat, buckets, group_size, dtype):
    """What a call takes, where its result is, the number of groups by bucket, the numbers expected.

    The numbers are small integers, which are exact in float16.
    """
    rng = np.random.default_rng(0)
    m, n = relations[0].shape
    rows = np.tile(np.arange(m, dtype=np.int32), len(relations))
    lengths = np.concatenate([np.diff(a.indptr) for a in relations])
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    csf = (
        np.arange(len(relations) + 1, dtype=np.int32) * m,
        rows,
        starts,
        np.concatenate([a.indices for a in relations]).astype(np.int32),
    )
    arrays = (tvm.nd.array(part, device=tvm.cpu(0)) for part in csf)
    indptr, row_indices, col_indices, mask = csf_to_ell3d(
        *arrays, [group_size // width for width in buckets], buckets
    )
    x = rng.integers(-2, 3, (n, feat[0])).astype("float32")
    w = rng.integers(-1, 2, (len(relations), *feat)).astype("float32")
    y = np.zeros(m * feat[1], dtype)
    args = [w.astype("float16").ravel(), x.astype("float16").ravel(), y]
    for k, _ in enumerate(buckets):
        args += [mask[k].numpy().reshape(-1).astype("float16")]
        args += [row_indices[k].numpy().reshape(-1), col_indices[k].numpy().reshape(-1)]
    args += [convert_indptr_to_mid_array(part) for part in indptr]
    expected = sum(a @ (x @ w[k]) for k, a in enumerate(relations))
    return args, y, [part.shape[0] for part in row_indices], expected


def relations(m, n, *densities):
    rng = np.random.default_rng(1)
    graphs = [sps.random_array((m, n), density=d, rng=rng, format="csr") for d in densities]
    for graph in graphs:
        graph.data[:] = 1
    return graphs


@pytest.mark.parametrize(
    ("buckets", "ty", "feat", "dtype", "on_grid"),
    [
        ([1, 4], 4, (32, 32), "float32", False),
        pytest.param([2, 8, 16], 4, (32, 32), "float32", False, marks=pytest.mark.long),
        ([1], 8, (32, 64), "float16", True),
    ],
    ids=["rgcn", "rgcn in other buckets", "sparse convolution"],
)
def test_relational_products_on_tensor_cores(in_any_order, buckets, ty, feat, dtype, on_grid):
    graphs = relations(16, 12, 0.2, 0.1)
    args, y, groups, expected = operands(graphs, feat, buckets, ty * 16, dtype)
    register(buckets, dtype)
    shape = (len(graphs), *graphs[0].shape)
    mod = decomposed(shape, feat, groups, buckets, ty * 16, dtype)
    mod = scheduled(mod, buckets, ty, feat[0] // 16, on_grid=on_grid)
    f = tvm.build(mod["main"], target=TARGET)
    assert "llvm.nvvm.mma.m16n8k16" in f.get_source()
    in_any_order(f, args, y, expected)
