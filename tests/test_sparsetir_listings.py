"""Programs that SparseTIR published: they run under its own names, on this machine.

The steps are those of its examples; changed are the imports, the data, the device and the sizes.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import sparsetir as tvm
from spcomp.ir.interpret.program import interpret
from spcomp.sparsetir import tir
from spcomp.sparsetir.script import tir as T
from spcomp.sparsetir.sparse import (
    FormatRewriteRule,
    condense,
    csf_to_ell3d,
    format_decompose,
    lower_sparse_buffer,
    lower_sparse_iter,
)


def at_any_thread_count(f, args, result):
    """What *f* leaves in *result*, which must be the same bits on one thread and on two."""
    results = []
    for threads in (1, 2):
        result[:] = 7
        with spcomp.num_threads(threads):
            f(*args)
        results.append(result.numpy())
    assert np.array_equal(*results)
    return results[0]


# -- SDDMM (examples/sddmm/bench_sddmm.py) ------------------------------------------------------


def sddmm(m: int, n: int, feat_size: int, nnz: int):
    @T.prim_func
    def func(
        a: T.handle,
        b: T.handle,
        c: T.handle,
        indptr: T.handle,
        indices: T.handle,
    ) -> None:
        T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
        I = T.dense_fixed(m)
        J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
        J_detach = T.dense_fixed(n)
        K = T.dense_fixed(feat_size)
        A = T.match_sparse_buffer(a, (I, K), "float32")
        B = T.match_sparse_buffer(b, (J_detach, K), "float32")
        C = T.match_sparse_buffer(c, (I, J), "float32")

        with T.iter([I, J, K], "SSR", "sddmm") as [i, j, k]:
            with T.init():
                C[i, j] = 0.0
            C[i, j] = C[i, j] + A[i, k] * B[j, k]

    return func


def fused_sddmm(m, n, feat_size, nnz):
    """The module with one loop over all elements, and searches as blocks."""
    mod = tvm.IRModule.from_expr(sddmm(m, n, feat_size, nnz))
    sch = tir.Schedule(mod)
    sp_iteration = sch.get_sparse_iteration("sddmm")
    i, j, _ = sch.get_sp_iters(sp_iteration)
    sch.sparse_fuse(sp_iteration, [i, j])
    return lower_sparse_iter(sch.mod)


def scheduled_preprocess(mod):
    mod_preprocess = tvm.tir.transform.ExtractPreprocess()(mod)
    sch = tir.Schedule(mod_preprocess)
    blk = sch.get_block("binary_search_block_0_0")
    (i,) = sch.get_loops(blk)
    io, ii = sch.split(i, [None, 32])
    sch.bind(ii, "threadIdx.x")
    sch.bind(io, "blockIdx.x")
    return lower_sparse_buffer(sch.mod)


def scheduled_sddmm(mod, ty, tx, vec_size, group_size):
    sch = tir.Schedule(tvm.tir.transform.RemovePreprocess()(mod))
    blk = sch.get_block("sddmm0")
    j, k = sch.get_loops(blk)
    ko, kio, kii = sch.split(k, [None, tx, vec_size])
    rf_blk = sch.rfactor(kio, 2)
    j = sch.get_loops(rf_blk)[0]
    joo, joi, ji = sch.split(j, [None, ty, group_size])
    sch.bind(joo, "blockIdx.x")
    sch.bind(joi, "threadIdx.y")
    sch.unroll(ji)
    sch.reverse_compute_at(blk, joi, True)
    sch.set_scope(rf_blk, 0, "local")
    read_A = sch.cache_read(rf_blk, 0, "local")
    read_B = sch.cache_read(rf_blk, 2, "local")
    write_C = sch.cache_write(blk, 0, "local")
    ko, kio, kii = sch.get_loops(rf_blk)[-3:]
    sch.reorder(ko, ji)
    # schedule read A
    sch.compute_at(read_A, ji, True)
    ax0, ax1 = sch.split(sch.get_loops(read_A)[-1], [tx, vec_size])
    sch.bind(ax0, "threadIdx.x")
    sch.vectorize(ax1)
    # schedule read B
    sch.compute_at(read_B, ji, True)
    ax0, ax1 = sch.split(sch.get_loops(read_B)[-1], [tx, vec_size])
    sch.bind(ax0, "threadIdx.x")
    sch.vectorize(ax1)
    # schedule write C
    sch.reverse_compute_at(write_C, joi, True)
    ax0, ax1 = sch.get_loops(write_C)[-2:]
    sch.vectorize(ax1)
    # schedule rf
    sch.bind(kio, "threadIdx.x")
    sch.unroll(kii)
    sch.unroll(ko)
    # schedule write back
    ax0, ax1, ax2 = sch.get_loops(blk)[-3:]
    sch.reorder(ax1, ax2, ax0)
    sch.bind(ax0, "threadIdx.x")
    sch.unroll(ax2)
    sch.unroll(ax1)
    return lower_sparse_buffer(sch.mod)


def graph(m, n, density, seed=0):
    """A matrix with an empty row and a full one."""
    pattern = np.random.default_rng(seed).random((m, n)) < density
    pattern[m // 3] = False
    pattern[m // 2] = density > 0
    return sps.csr_array(pattern.astype(np.float32))


def sddmm_arguments(csr, feat):
    rng = np.random.default_rng(1)
    a, b = (rng.random((size, feat), dtype=np.float32) for size in csr.shape)
    arrays = a.reshape(-1), b.reshape(-1), np.zeros(csr.nnz, np.float32)
    index = csr.indptr.astype(np.int32), csr.indices.astype(np.int32), np.full(csr.nnz, -9, "int32")
    args = [tvm.nd.array(array, tvm.cuda()) for array in (*arrays, *index)]
    return args, (a @ b.T)[csr.tocoo().coords]


@pytest.mark.parametrize(
    ("csr", "config"),
    [
        (graph(20, 30, 0.3), (1, 8, 1, 1)),
        (graph(20, 30, 0.3), (2, 8, 2, 2)),
        (graph(31, 17, 0.2), (4, 16, 2, 4)),
        (graph(5, 6, 0.0), (4, 32, 1, 2)),
    ],
    ids=["one by one", "in pairs", "groups of four", "nothing stored"],
)
def test_sddmm_over_all_elements_at_once_with_partial_sums(csr, config):
    mod = fused_sddmm(*csr.shape, 32, csr.nnz)
    preproc = tvm.build(scheduled_preprocess(mod)["main"], target="llvm")
    args, expected = sddmm_arguments(csr, 32)
    rows = at_any_thread_count(preproc, args, args[-1])
    assert np.array_equal(rows, csr.tocoo().coords[0])
    f = tvm.build(scheduled_sddmm(mod, *config)["main"], target="llvm")
    c = at_any_thread_count(f, args, args[2])
    tvm.testing.assert_allclose(c, expected, rtol=1e-5)


def test_the_interpreter_agrees_with_the_schedule_of_sddmm():
    csr = graph(7, 9, 0.3)
    mod = fused_sddmm(*csr.shape, 16, csr.nnz)
    args, expected = sddmm_arguments(csr, 16)
    for result in (scheduled_preprocess(mod), scheduled_sddmm(mod, 2, 8, 2, 2)):
        func = result["main"]
        interpret(func, {p.name: arg for p, arg in zip(func.params, args, strict=True)})
    assert np.allclose(args[2], expected, rtol=1e-5)


def test_rows_that_are_no_rows_are_never_read():
    csr = graph(20, 30, 0.3)
    mod = fused_sddmm(*csr.shape, 32, csr.nnz)
    f = tvm.build(scheduled_sddmm(mod, 2, 8, 2, 2)["main"], target="llvm")
    args, _ = sddmm_arguments(csr, 32)
    for wrong in (-1, 20, 2**31 - 1):
        args[-1][:] = wrong
        with pytest.raises(spcomp.errors.SpcompError):
            f(*args)


# -- RGCN (examples/rgms/rgcn/bench_rgcn_composable.py) -----------------------------------------


@T.prim_func
def rgcn_hetero_forward(
    a: T.handle,
    w: T.handle,
    x: T.handle,
    y: T.handle,
    indptr_i: T.handle,
    indices_i: T.handle,
    indptr_j: T.handle,
    indices_j: T.handle,
    m: T.int32,
    n: T.int32,
    num_rels: T.int32,
    feat_size: T.int32,
    nnz_i: T.int32,
    nnz_j: T.int32,
):
    T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
    R = T.dense_fixed(num_rels)
    I = T.sparse_variable(R, (m, nnz_i), (indptr_i, indices_i), "int32")
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), "int32")
    I_detach = T.dense_fixed(m)
    J_detach = T.dense_fixed(n)
    F_in = T.dense_fixed(feat_size)
    F_out = T.dense_fixed(feat_size)
    A = T.match_sparse_buffer(a, (R, I, J), "float32")
    W = T.match_sparse_buffer(w, (R, F_out, F_in), "float32")
    X = T.match_sparse_buffer(x, (J_detach, F_in), "float32")
    Y = T.match_sparse_buffer(y, (I_detach, F_out), "float32")
    with T.iter([F_out, R, I, J, F_in], "SSSRR", "rgcn-hetero-forward") as [fo, r, i, j, fi]:
        with T.init():
            Y[i, fo] = 0.0
        Y[i, fo] = Y[i, fo] + A[r, i, j] * W[r, fo, fi] * X[j, fi]


@T.prim_func
def ell3d(
    a: T.handle,
    indptr_io: T.handle,
    indices_ii: T.handle,
    indices_j: T.handle,
    d0: T.int32,
    d1: T.int32,
    d2: T.int32,
    nnz: T.int32,
    nnz_rows: T.int32,
    nnz_cols: T.int32,
) -> None:
    R = T.dense_fixed(d0, idtype="int32")
    IO = T.dense_variable(R, (d1, nnz), indptr_io, idtype="int32")
    II = T.sparse_fixed(IO, (d2, nnz_rows), indices_ii, idtype="int32")
    J = T.sparse_fixed(II, (d2, nnz_cols), indices_j, idtype="int32")
    A = T.match_sparse_buffer(a, (R, IO, II, J), dtype="float32")  # noqa: F841
    T.evaluate(0)


def convert_indptr_to_mid_array(indptr):
    return np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr.numpy()))


def relational(dense, buckets, group_size):
    """The arrays of the buckets of *dense*, each of whose relations has all rows.

    The description of a bucket has rows and columns of one length, as those of a graph are.
    """
    rels, m, _ = dense.shape
    counts = dense.sum(2).reshape(-1)
    arrays = (
        np.arange(rels + 1) * m,
        np.tile(np.arange(m), rels),
        np.concatenate([[0], np.cumsum(counts)]),
        np.nonzero(dense)[2],
    )
    arguments = [tvm.nd.array(array.astype(np.int32), device=tvm.cpu(0)) for array in arrays]
    return csf_to_ell3d(*arguments, [group_size // _ for _ in buckets], buckets)


def decomposed_rgcn(shape, feat_size, sizes, buckets, group_size):
    rels, m, n = shape
    d0, d1, d2, nnz, nnz_rows, nnz_cols = ell3d.params[-6:]
    rewrites = []
    for bucket_id, bucket_size in enumerate(buckets):
        rewrites.append(
            FormatRewriteRule(
                str(bucket_id),
                ell3d.specialize(
                    {
                        d0: rels,
                        d1: m,
                        d2: n,
                        nnz: sizes[bucket_id],
                        nnz_rows: group_size // bucket_size,
                        nnz_cols: bucket_size,
                    }
                ),
                ["A"],
                ["R", "I", "J"],
                ["R", "IO", "II", "J"],
                {"R": ["R"], "I": ["IO", "II"], "J": ["J"]},
                lambda r, i, j: (r, 0, i, j),
                lambda r, io, ii, j: (r, ii, j),
            )
        )
    params = rgcn_hetero_forward.params
    mod = tvm.IRModule.from_expr(
        rgcn_hetero_forward.specialize(
            {params[-6]: m, params[-5]: n, params[-4]: rels, params[-3]: feat_size}
        ).with_attr("horizontal_fuse", True)
    )
    return tvm.tir.transform.RemovePreprocess()(format_decompose(mod, rewrites))


def scheduled_rgcn(mod, buckets, split_factor_f):
    sch = tir.Schedule(mod["main"])
    for bucket_id, _ in enumerate(buckets):
        sp_iteration = sch.get_sparse_iteration(f"rgcn-hetero-forward_{bucket_id}")
        fo, r, io, ii, j, fi = sch.get_sp_iters(sp_iteration)
        sch.sparse_reorder(sp_iteration, [r, io, ii, j, fo, fi])
        sch.sparse_fuse(sp_iteration, [r, io])
    mod = lower_sparse_iter(sch.mod)
    mod = tvm.tir.transform.RemovePreprocess()(mod)

    sch = tir.Schedule(mod["main"])
    for bucket_id, _ in enumerate(buckets):
        blk = sch.get_block(f"rgcn-hetero-forward_{bucket_id}0")
        io, ii, j, fo, fi = sch.get_loops(blk)
        foo, foi = sch.split(fo, [split_factor_f, None])
        sch.reorder(io, ii, foo, foi, j, fi)
        _, blk_inner = sch.blockize(j, True), blk
        read_W = sch.cache_read(blk_inner, 2, "local")
        write_Y = sch.cache_write(blk_inner, 0, "local")
        sch.annotate(write_Y, "atomic", True)
        sch.bind(fi, "threadIdx.x")
        sch.bind(sch.get_loops(read_W)[-1], "threadIdx.x")
        sch.unroll(j)
        sch.bind(foi, "threadIdx.y")
        sch.bind(io, "blockIdx.x")
        sch.unroll(ii)
        sch.unroll(foo)
    return lower_sparse_buffer(sch.mod)


@pytest.mark.filterwarnings("ignore:.*is declared spatial")
@pytest.mark.parametrize(
    ("shape", "density", "buckets"),
    [((3, 12, 12), 0.25, [1, 2, 4]), ((2, 9, 9), 0.9, [1, 4]), ((4, 6, 6), 0.0, [1, 2])],
    ids=["some rows", "rows in pieces", "nothing stored"],
)
def test_rgcn_over_relations_in_buckets(shape, density, buckets):
    feat, group_size, rng = 8, 8, np.random.default_rng(0)
    dense = rng.random(shape) < density
    indptr, row_indices, col_indices, mask = relational(dense, buckets, group_size)
    sizes = [rows.shape[0] for rows in row_indices]
    mod = scheduled_rgcn(decomposed_rgcn(shape, feat, sizes, buckets, group_size), buckets, 2)
    f = tvm.build(tvm.tir.transform.RemoveUnusedArgs()(mod)["main"], target="llvm")

    weight = rng.random((shape[0], feat, feat), dtype=np.float32)
    x = rng.random((shape[2], feat), dtype=np.float32)
    args = [tvm.nd.array(weight.reshape(-1)), tvm.nd.array(x.reshape(-1))]
    args.append(tvm.nd.array(np.zeros(shape[1] * feat, np.float32)))
    for bucket_id, _ in enumerate(buckets):
        args.append(tvm.nd.array(mask[bucket_id].numpy().reshape(-1).astype(np.float32)))
        args.append(tvm.nd.array(row_indices[bucket_id].numpy().reshape(-1)))
        args.append(tvm.nd.array(col_indices[bucket_id].numpy().reshape(-1)))
    for bucket_id, _ in enumerate(buckets):
        args.append(tvm.nd.array(convert_indptr_to_mid_array(indptr[bucket_id])))
    y = at_any_thread_count(f, args, args[2])
    expected = np.einsum("rij,rof,jf->io", dense.astype(np.float32), weight, x)
    tvm.testing.assert_allclose(y.reshape(-1, feat), expected, rtol=1e-3)


# -- SpMM over condensed tiles (examples/spmm/bench_tc_spmm.py) ---------------------------------


@T.prim_func
def tcspmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    mb: T.int32,
    nb: T.int32,
    nnzb: T.int32,
    feat_size: T.int32,
    tile_size: T.int32,
    group_size: T.int32,
) -> None:
    T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
    IO = T.dense_fixed(mb)
    JO = T.dense_variable(IO, (nb, nnzb), indptr, "int32")
    II = T.dense_fixed(tile_size)
    JI = T.sparse_fixed(JO, (nb * group_size, group_size), indices, "int32")
    J = T.dense_fixed(nb * group_size)
    F = T.dense_fixed(feat_size)
    A = T.match_sparse_buffer(a, [IO, JO, II, JI], "float16")
    B = T.match_sparse_buffer(b, [J, F], "float16")
    C = T.match_sparse_buffer(c, [IO, II, F], "float16")
    with T.iter([IO, JO, II, JI, F], "SRSRS", "tcspmm") as [io, jo, ii, ji, f]:
        with T.init():
            C[io, ii, f] = T.float16(0)
        C[io, ii, f] = C[io, ii, f] + A[io, jo, ii, ji] * B[ji, f]


@T.prim_func
def mma_m8n32k16_desc(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (8, 16), "float16")
    B = T.match_buffer(b, (16, 32), "float16")
    C = T.match_buffer(c, (8, 32), "float16")
    for i, k, j in T.grid(8, 16, 32):
        C[i, j] = C[i, j] + A[i, k] * B[k, j]


@T.prim_func
def mma_m8n32k16_impl(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (8, 16), "float16")
    B = T.match_buffer(b, (16, 32), "float16")
    C = T.match_buffer(c, (8, 32), "float16")
    for i in T.serial(8):
        for k in T.serial(16):
            for j in T.vectorized(32):
                C[i, j] = C[i, j] + A[i, k] * B[k, j]


def scheduled_tcspmm(mod, feat_size, mma_n):
    """The module with the published schedule, without what is about the fragments of a warp.

    The copies into them are the affair of the intrinsic; and threads take whole rows of B.
    """
    sch = tir.Schedule(lower_sparse_iter(mod))
    blk_outer = sch.get_block("tcspmm0")
    blk_inner = sch.get_block("tcspmm1")
    (i,) = sch.get_loops(blk_outer)
    sch.bind(i, "blockIdx.x")
    jo, ii, ji, f = sch.get_loops(blk_inner)
    foo, foi, fi = sch.split(f, [None, min(4, feat_size // mma_n), mma_n])
    sch.bind(foo, "blockIdx.y")
    sch.unroll(foi)
    sch.reorder(foo, jo, foi, ii, ji, fi)
    B_shared = sch.reverse_cache_read(blk_inner, 1, "shared")
    sch.compute_at(B_shared, foi)
    sch.decompose_reduction(blk_inner, jo)
    sch.tensorize(sch.get_loops(blk_inner)[-3], "mma_m8n32k16_sync")
    ax0, ax1 = sch.get_loops(B_shared)[-2:]
    ax1, ax2 = sch.split(ax1, [None, 8])
    sch.bind(ax0, "threadIdx.x")
    sch.vectorize(ax2)
    return lower_sparse_buffer(sch.mod)


@pytest.mark.parametrize("csr", [graph(37, 50, 0.1), graph(8, 16, 0.0)], ids=["some", "nothing"])
def test_spmm_over_condensed_tiles_with_an_intrinsic(csr):
    spcomp.register_intrinsic("mma_m8n32k16_sync", mma_m8n32k16_desc, mma_m8n32k16_impl)
    tile_size, mma_n, group_size, feat_size = 8, 32, 16, 64
    (m, n), arrays = csr.shape, (csr.indptr, csr.indices)
    mb, nb = -(-m // tile_size), -(-n // group_size)
    index = (tvm.nd.array(array.astype("int32"), device=tvm.cpu()) for array in arrays)
    group_indptr, tile_indices, mask = condense(*index, tile_size, group_size)
    sizes = (mb, nb, mask.shape[0], feat_size, tile_size, group_size)
    func = tcspmm.specialize(dict(zip(tcspmm.params[-6:], sizes, strict=True)))
    f = tvm.build(scheduled_tcspmm(tvm.IRModule.from_expr(func), feat_size, mma_n), target="llvm")

    x = np.random.default_rng(2).integers(0, 8, (nb * group_size, feat_size)).astype("float16")
    args = [mask.numpy().astype("float16").flatten(), x.flatten()]
    args += [np.zeros(mb * tile_size * feat_size, "float16"), group_indptr, tile_indices.flatten()]
    args = [tvm.nd.array(array, tvm.cuda()) for array in args]
    c = at_any_thread_count(f, args, args[2])
    assert np.array_equal(c.reshape(-1, feat_size)[:m], csr @ x[:n].astype("float32"))
