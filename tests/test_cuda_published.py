"""The GPU programs that SparseTIR published, as kernels that are emulated and watched for races.

Programs and steps are those of its examples; changed are the imports, the data and the sizes.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp import sparsetir as tvm
from spcomp.errors import ScheduleError
from spcomp.runtime.emulator import Emulated
from spcomp.sparsetir import tir
from spcomp.sparsetir.script import tir as T
from spcomp.sparsetir.sparse import condense, lower_sparse_buffer, lower_sparse_iter
from tests import test_sparsetir_hyb as hyb
from tests import test_sparsetir_listings as listings

TARGET = "cuda:sm_80,emulate"


@pytest.fixture
def in_any_order(monkeypatch):
    """A function that runs a kernel with threads in three orders, and compares its result."""
    launch, seed = Emulated.launch, [None]

    def ordered(self, *args, **options):
        launch(self, *args, **{**options, "seed": seed[0]})

    monkeypatch.setattr(Emulated, "launch", ordered)

    def check(f, args, result, expected, rtol=1e-4):
        for order in (None, -1, 7):
            seed[0] = order
            result[:] = 7
            f(*args)
            got = np.asarray(result).astype("float32").reshape(expected.shape)
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-5)

    return check


def launches(f):
    """How many kernels *f* launches."""
    return f.kernel.stage("flat").count("T.launch(")


# -- SpMM (examples/spmm/bench_spmm_naive.py, bench_spmm.py) ------------------------------------


def naive(csr, feat, cwm):
    mod = tvm.IRModule.from_expr(hyb.csrmm)
    params = mod["main"].params
    sizes = (*csr.shape, feat // cwm // 32, csr.nnz, cwm)
    mod["main"] = mod["main"].specialize(dict(zip(params[5:10], sizes, strict=True)))
    sch = tir.Schedule(lower_sparse_iter(mod))
    outer_blk, inner_blk = sch.get_block("csrmm0"), sch.get_block("csrmm1")
    (i,) = sch.get_loops(outer_blk)
    j, foo, foi, fi = sch.get_loops(inner_blk)
    sch.reorder(foo, fi, j, foi)
    sch.bind(fi, "threadIdx.x")
    sch.bind(foo, "blockIdx.y")
    sch.unroll(foi)
    io, ii = sch.split(i, [None, 8])
    sch.bind(io, "blockIdx.x")
    sch.bind(ii, "threadIdx.y")
    init_blk = sch.decompose_reduction(inner_blk, fi)
    ax0, _ = sch.get_loops(init_blk)[-2:]
    sch.bind(ax0, "threadIdx.x")
    return lower_sparse_buffer(sch.mod)


@pytest.mark.parametrize(("size", "feat", "cwm"), [(40, 64, 2), (33, 64, 1), (5, 32, 1)])
def test_spmm_by_rows(in_any_order, size, feat, cwm):
    csr = hyb.matrix(size)
    f = tvm.build(naive(csr, feat, cwm)["main"], target=TARGET)
    x = np.random.default_rng(1).random((size, feat), dtype=np.float32)
    c = tvm.nd.empty((size * feat,))
    index = csr.indptr.astype(np.int32), csr.indices.astype(np.int32)
    in_any_order(f, [csr.data, x.reshape(-1), c, *index], c, csr @ x)


@pytest.mark.parametrize(("csr", "parts", "buckets", "feat", "cwm"), hyb.CASES)
def test_spmm_over_buckets_is_one_kernel_after_the_init(
    in_any_order, csr, parts, buckets, feat, cwm
):
    args, c, rows, expected = hyb.arguments(csr, parts, buckets, feat)
    mod = hyb.scheduled(hyb.specialized(csr, parts, buckets, feat, cwm, rows), parts, buckets)
    mod = tvm.tir.transform.RemoveUnusedArgs()(lower_sparse_buffer(mod))
    f = tvm.build(mod, target=TARGET)
    assert launches(f) == 2
    in_any_order(f, args, c, expected)


# -- SDDMM (examples/sddmm/bench_sddmm.py) ------------------------------------------------------


@pytest.mark.parametrize("config", [(1, 8, 1, 1), (2, 8, 2, 2), (4, 16, 2, 4), (8, 32, 1, 2)])
def test_sddmm_with_partial_sums_that_lanes_exchange(in_any_order, config):
    csr = listings.graph(20, 30, 0.3)
    mod = listings.fused_sddmm(*csr.shape, 32, csr.nnz)
    rows = tvm.build(listings.scheduled_preprocess(mod)["main"], target=TARGET)
    args, expected = listings.sddmm_arguments(csr, 32)
    in_any_order(rows, args, args[-1], csr.tocoo().coords[0].astype("float32"))
    f = tvm.build(listings.scheduled_sddmm(mod, *config)["main"], target=TARGET)
    flat = f.kernel.stage("flat")
    assert 'scope="warp"' in flat  # lanes exchange partial sums
    assert "host_alloc" not in flat  # rows of A and B are in registers
    in_any_order(f, args, args[2], expected)


# -- RGCN (examples/rgms/rgcn/bench_rgcn_composable.py) -----------------------------------------


@pytest.mark.filterwarnings("ignore:.*is declared spatial")
@pytest.mark.parametrize("density", [0.3, 0.0], ids=["some rows", "nothing stored"])
def test_rgcn_over_relations_in_buckets(in_any_order, density):
    feat, group, buckets, rng = 8, 4, [1, 2], np.random.default_rng(0)
    dense = rng.random((2, 7, 7)) < density
    indptr, rows, cols, mask = listings.relational(dense, buckets, group)
    sizes = [array.shape[0] for array in rows]
    mod = listings.decomposed_rgcn(dense.shape, feat, sizes, buckets, group)
    mod = tvm.tir.transform.RemoveUnusedArgs()(listings.scheduled_rgcn(mod, buckets, 2))
    f = tvm.build(mod["main"], target=TARGET)
    weight = rng.random((2, feat, feat), dtype=np.float32)
    x = rng.random((7, feat), dtype=np.float32)
    args = [weight.reshape(-1), x.reshape(-1), np.zeros(7 * feat, np.float32)]
    for k, _ in enumerate(buckets):
        args += [mask[k].numpy().reshape(-1).astype(np.float32)]
        args += [rows[k].numpy().reshape(-1), cols[k].numpy().reshape(-1)]
    args += [listings.convert_indptr_to_mid_array(indptr[k]) for k, _ in enumerate(buckets)]
    expected = np.einsum("rij,rof,jf->io", dense.astype(np.float32), weight, x)
    assert launches(f) == 2
    in_any_order(f, args, args[2], expected)


# -- tensor cores (examples/spmm/bench_tc_spmm.py, blocksparse/bsr_spmm.py) ---------------------


def wmma(m, n, k, order="ikj"):
    """The published descriptions of what a warp does with matrices, and what implements them."""
    a, b, c = (f"wmma.{part}" for part in ("matrix_a", "matrix_b", "accumulator"))

    def copy(rows, columns, source, target):
        @T.prim_func
        def desc(x: T.handle, y: T.handle) -> None:
            X = T.match_buffer(
                x, (rows, columns), "float16", align=128, offset_factor=16, scope=source
            )
            Y = T.match_buffer(
                y, (rows, columns), "float16", align=128, offset_factor=16, scope=target
            )
            with T.block("root"):
                for i, j in T.grid(rows, columns):
                    with T.block("copy"):
                        vi, vj = T.axis.remap("SS", [i, j])
                        Y[vi, vj] = X[vi, vj]

        return desc

    @T.prim_func
    def fill(z: T.handle) -> None:
        Z = T.match_buffer(z, (m, n), "float16", scope=c)
        with T.block("root"):
            for i, j in T.grid(m, n):
                with T.block("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    Z[vi, vj] = T.float16(0)

    @T.prim_func
    def multiply(x: T.handle, y: T.handle, z: T.handle) -> None:
        X = T.match_buffer(x, (m, k), "float16", scope=a)
        Y = T.match_buffer(y, (k, n), "float16", scope=b)
        Z = T.match_buffer(z, (m, n), "float16", scope=c)
        with T.block("root"):
            for i, kk, j in T.grid(m, k, n):
                with T.block("update"):
                    vi, vk, vj = T.axis.remap("SRS", [i, kk, j])
                    T.block_attr({"sparse": True})
                    Z[vi, vj] = Z[vi, vj] + X[vi, vk] * Y[vk, vj]

    return {
        "load_a_global": (copy(m, k, "global", a), load),
        "load_b_shared": (copy(k, n, "shared", b), load),
        "store": (copy(m, n, c, "global"), store),
        "fill": (fill, clear),
        "sync": (multiply, mma),
    }


@T.prim_func
def load(a: T.handle, a_frag: T.handle) -> None:
    A = T.match_buffer(a, (16, 16), "float16", strides=[s0, s1])  # noqa: F821 (not parsed)
    T.evaluate(T.tvm_load_matrix_sync(a_frag, 16, 16, 16, 0, A.access_ptr("r"), s0, "row_major"))  # noqa: F821


@T.prim_func
def store(c_frag: T.handle, c: T.handle) -> None:
    T.evaluate(T.tvm_store_matrix_sync(c_frag, 16, 16, 16, 0, c, 16, "row_major"))


@T.prim_func
def clear(c_frag: T.handle) -> None:
    T.evaluate(T.tvm_fill_fragment(c_frag, 16, 16, 16, 0, T.float16(0)))


@T.prim_func
def mma(a_frag: T.handle, b_frag: T.handle, c_frag: T.handle) -> None:
    T.evaluate(T.tvm_mma_sync(c_frag, 0, a_frag, 0, b_frag, 0, c_frag, 0))


def registered(m, n, k):
    """Register the intrinsics for matrices of these sizes; return what their names begin with."""
    name = f"wmma_m{m}n{n}k{k}"
    for what, (desc, impl) in wmma(m, n, k).items():
        tir.TensorIntrin.register(f"{name}_{what}", desc, impl, override=True)
    return name


def test_an_implementation_does_what_its_description_says():
    parts = wmma(16, 16, 16)
    with pytest.raises(ScheduleError, match="store is to store, and the description to load"):
        tir.TensorIntrin.register("wrong", parts["load_a_global"][0], store)
    with pytest.raises(ScheduleError, match="neither fills, loads, multiplies nor stores"):
        tir.TensorIntrin.register("wrong", listings.mma_m8n32k16_desc, mma)


def scheduled_tcspmm(mod, feat_size, shape):
    mma_n, name = shape[1], registered(*shape)
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
    A_wmma = sch.cache_read(blk_inner, 0, "wmma.matrix_a")
    sch.compute_at(A_wmma, jo)
    B_shared = sch.reverse_cache_read(blk_inner, 1, "shared")
    sch.compute_at(B_shared, foi)
    C_wmma = sch.cache_write(blk_inner, 0, "wmma.accumulator")
    sch.reverse_compute_at(C_wmma, foo)
    B_wmma = sch.reverse_cache_read(blk_inner, 1, "wmma.matrix_b")
    ax0, ax1 = sch.get_loops(C_wmma)[-2:]
    ax1, ax2 = sch.split(ax1, [None, mma_n])
    sch.reorder(ax1, ax0, ax2)
    sch.unroll(ax1)
    sch.decompose_reduction(blk_inner, jo)
    sch.hide_buffer_access(blk_inner, "read", [3])
    sch.tensorize(sch.get_loops(A_wmma)[-2], f"{name}_load_a_global")
    sch.tensorize(sch.get_loops(C_wmma)[-2], f"{name}_store")
    sch.tensorize(sch.get_loops(B_wmma)[-2], f"{name}_load_b_shared")
    sch.tensorize(sch.get_loops(blk_inner)[-3], f"{name}_sync")
    ax0, ax1 = sch.get_loops(B_shared)[-2:]
    ax0, ax1, ax2 = sch.split(sch.fuse(ax0, ax1), [None, 32, 8])
    sch.unroll(ax0)
    sch.bind(ax1, "threadIdx.x")
    sch.vectorize(ax2)
    sch.tensorize(sch.get_loops(sch.get_block("tcspmm1_init"))[-2], f"{name}_fill")
    return lower_sparse_buffer(sch.mod)


@pytest.mark.parametrize("shape", [(8, 32, 16), (16, 16, 16)], ids=["m8n32k16", "m16n16k16"])
@pytest.mark.parametrize("feat", [32, 64])
def test_spmm_over_condensed_tiles_on_tensor_cores(in_any_order, shape, feat):
    csr = listings.graph(37, 50, 0.1)
    (m, n), (tile, _, group) = csr.shape, shape
    mb, nb = -(-m // tile), -(-n // group)
    index = (tvm.nd.array(x.astype("int32"), tvm.cpu()) for x in (csr.indptr, csr.indices))
    indptr, indices, mask = condense(*index, tile, group)
    sizes = (mb, nb, mask.shape[0], feat, tile, group)
    func = listings.tcspmm.specialize(dict(zip(listings.tcspmm.params[-6:], sizes, strict=True)))
    f = tvm.build(scheduled_tcspmm(tvm.IRModule.from_expr(func), feat, shape), target=TARGET)
    assert "llvm.nvvm.mma.m16n8k16" in f.get_source()
    x = np.random.default_rng(2).integers(0, 8, (nb * group, feat)).astype("float16")
    c = np.zeros(mb * tile * feat, "float16")
    args = [mask.numpy().astype("float16").flatten(), x.flatten(), c, indptr, indices.flatten()]
    expected = np.zeros((mb * tile, feat), np.float32)
    expected[:m] = csr @ x[:n].astype("float32")
    in_any_order(f, args, c, expected)


def bsrmm(mb, nb, nnz, blk, feat_size):
    @T.prim_func
    def func(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle) -> None:
        T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
        I = T.dense_fixed(mb)
        J = T.sparse_variable(I, (nb, nnz), (indptr, indices), "int32")
        J_detach = T.dense_fixed(nb)
        BI = T.dense_fixed(blk)
        BJ = T.dense_fixed(blk)
        F = T.dense_fixed(feat_size)
        A = T.match_sparse_buffer(a, (I, J, BI, BJ), "float16")
        B = T.match_sparse_buffer(b, (J_detach, BJ, F), "float16")
        C = T.match_sparse_buffer(c, (I, BI, F), "float16")
        with T.sp_iter([I, BI, BJ, F, J], "SSRSR", "bsrmm") as [i, bi, bj, f, j]:
            with T.init():
                C[i, bi, f] = T.float16(0.0)
            C[i, bi, f] = C[i, bi, f] + A[i, j, bi, bj] * B[j, bj, f]

    return func


def scheduled_bsrmm(func, block_size):
    name = registered(16, 16, 16)
    sch = tir.Schedule(tvm.IRModule.from_expr(func))
    sp_iteration = sch.get_sparse_iteration("bsrmm")
    i, bi, bj, f, j = sch.get_sp_iters(sp_iteration)
    sch.sparse_reorder(sp_iteration, [i, j, bi, f, bj])
    sch = tir.Schedule(lower_sparse_iter(sch.mod))
    blk_inner, blk_outer = sch.get_block("bsrmm1"), sch.get_block("bsrmm0")
    j, bi, f, bj = sch.get_loops(blk_inner)
    bio, bii = sch.split(bi, [block_size // 16, 16])
    bjo, bji = sch.split(bj, [block_size // 16, 16])
    foo, foi, fi = sch.split(f, [None, 2, 16])
    sch.reorder(foo, j, bio, foi, bjo, bii, fi, bji)
    sch.unroll(foi)
    (i,) = sch.get_loops(blk_outer)
    sch.bind(i, "blockIdx.x")
    sch.bind(bio, "threadIdx.y")
    sch.bind(foo, "blockIdx.y")
    C_local = sch.cache_write(blk_inner, 0, "wmma.accumulator")
    sch.reverse_compute_at(C_local, foo, True)
    ax0, ax1 = sch.get_loops(C_local)[-2:]
    ax2, ax3 = sch.split(ax1, [None, 16])
    ax0, ax1 = sch.split(ax0, [None, 16])
    sch.reorder(ax0, ax2, ax1, ax3)
    sch.unroll(ax2)
    sch.bind(ax0, "threadIdx.y")
    init_blk = sch.decompose_reduction(blk_inner, j)
    A_local = sch.cache_read(blk_inner, 1, "wmma.matrix_a")
    sch.compute_at(A_local, bio)
    ax0, ax1 = sch.get_loops(A_local)[-2:]
    ax1, ax2 = sch.split(ax1, [None, 16])
    sch.reorder(ax1, ax0, ax2)
    sch.unroll(ax1)
    B_shared = sch.cache_read(blk_inner, 2, "shared")
    sch.compute_at(B_shared, foi)
    B_local = sch.cache_read(blk_inner, 2, "wmma.matrix_b")
    sch.compute_at(B_local, bjo)
    sch.hide_buffer_access(blk_inner, "read", [3])
    sch.tensorize(sch.get_loops(blk_inner)[-3], f"{name}_sync")
    sch.tensorize(sch.get_loops(B_local)[-2], f"{name}_load_b_shared")
    sch.tensorize(sch.get_loops(A_local)[-2], f"{name}_load_a_global")
    sch.tensorize(sch.get_loops(C_local)[-2], f"{name}_store")
    sch.tensorize(sch.get_loops(init_blk)[-2], f"{name}_fill")
    ax0, ax1 = sch.get_loops(B_shared)[-2:]
    ax0, ax1, ax2, ax3 = sch.split(sch.fuse(ax0, ax1), [None, 2, 32, 4])
    sch.vectorize(ax3)
    sch.bind(ax2, "threadIdx.x")
    sch.bind(ax1, "threadIdx.y")
    sch.unroll(ax0)
    return lower_sparse_buffer(sch.mod)


def test_block_sparse_spmm_on_tensor_cores_with_two_warps_that_share_a_copy(in_any_order):
    rng = np.random.default_rng(0)
    csr = sps.random_array((4, 3), density=0.5, rng=rng, format="csr")
    data = rng.integers(-3, 4, (csr.nnz, 32, 32)).astype("float32")
    bsr = sps.bsr_array((data, csr.indices, csr.indptr), shape=(128, 96), blocksize=(32, 32))
    mod = scheduled_bsrmm(bsrmm(4, 3, csr.nnz, 32, 64), 32)
    f = tvm.build(mod["main"], target=TARGET)
    x = rng.integers(-3, 4, (96, 64)).astype("float16")
    c = np.zeros(128 * 64, "float16")
    index = csr.indptr.astype("int32"), csr.indices.astype("int32")
    args = [data.reshape(-1).astype("float16"), x.reshape(-1), c, *index]
    in_any_order(f, args, c, bsr @ x.astype("float32"))
