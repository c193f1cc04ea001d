"""What a GPU can have: blocks along y, shared memory, registers where there are few blocks."""

from __future__ import annotations

import re

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.errors import LoweringError
from spcomp.ir.analysis.sizes import text
from spcomp.knobs import CUDA_GRID
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, order
from tests.layers import source


@T.prim_func
def three(x: T.handle, y: T.handle, a: T.int32, b: T.int32, c: T.int32) -> None:
    X = T.match_buffer(x, (a, b, c), "float32")
    Y = T.match_buffer(y, (a, b, c), "float32")
    for i, j, k in T.grid(a, b, c):
        with T.block("copy"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            Y[vi, vj, vk] = X[vi, vj, vk] * 2.0 + T.cast(vj, "float32")


@T.prim_func
def mirrored(a: T.handle, c: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
             nnz: T.int32) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), idtype="int32")
    M = T.sparse_variable(I, (n, None), (None, None), idtype="int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I, M), "float32")
    with T.sp_iter([I, J], "SS", "mirror") as [i, j]:
        C[i, n - 1 - j] = A[i, j]


def copied(*axes):
    schedule = spcomp.Schedule(three)
    for loop, axis in zip("ijk", axes, strict=True):
        schedule = schedule.bind(loop, f"blockIdx.{axis}")
    return spcomp.compile(schedule, target=EMULATED)


@pytest.mark.parametrize("axes", ["xyz", "zyx", "yxz"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (1, 7, 2), (2, 0, 3), (5, 1, 1)])
def test_blocks_along_any_axis_do_each_element_once(axes, shape):
    kernel = copied(*axes)
    x = np.random.default_rng(0).random(shape, np.float32)
    for seed in ORDERS:
        y = np.full(shape, np.nan, np.float32)
        with order(seed):
            kernel(x, y, *shape)
        expected = x * 2 + np.arange(shape[1], dtype=np.float32)[:, None]
        np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_there_may_be_more_blocks_along_y_than_a_gpu_has():
    kernel, shape = copied("x", "y", "z"), (2, 65537, 1)
    (launch,) = kernel.launches
    assert [text(extent) for extent in launch.blocks[1:]] == ["1", "1"]
    x, y = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    kernel(x, y, *shape)
    np.testing.assert_array_equal(y[0, :, 0], 2 + np.arange(65537, dtype=np.float32))


def test_few_blocks_along_y_stay_there():
    goal = nvvm.resolve(target("cuda:sm_90"))
    (known,) = nvvm.emit(lower(source("csrmm"), goal, {"feat": 256}).flat, goal).functions
    assert str(known.grid.blocks[1].value) == "2"
    unknown = nvvm.emit(lower(source("csrmm"), goal).flat, goal)
    assert "ctaid.y" not in unknown.llvm_ir
    assert unknown.functions[0].grid.fits


def shares(kib):
    """A program whose blocks have *kib* KiB of shared memory."""

    @T.prim_func
    def staged(x: T.handle, y: T.handle, m: T.int32) -> None:
        X = T.match_buffer(x, (m, kib * 256), "float32")
        Y = T.match_buffer(y, (m, kib * 256), "float32")
        for i in T.thread_binding(m, thread="blockIdx.x"):
            S = T.alloc_buffer((kib * 256,), "float32", scope="shared")
            for t in T.thread_binding(32, thread="threadIdx.x"):
                for k in T.serial(kib * 8):
                    S[k * 32 + t] = X[i, k * 32 + t]
            for t in T.thread_binding(32, thread="threadIdx.x"):
                for k in T.serial(kib * 8):
                    Y[i, k * 32 + t] = S[kib * 256 - 1 - k * 32 - t]

    return staged


@pytest.mark.parametrize(
    ("arch", "most"), [("sm_80", 163), ("sm_86", 99), ("sm_89", 99), ("sm_90", 227)]
)
def test_more_shared_memory_than_a_block_can_have_is_refused_when_compiling(arch, most):
    kernel = spcomp.compile(shares(most), target=f"cuda:{arch}")
    (launch,) = kernel.launches
    assert launch.shared_bytes == most * 1024
    with pytest.raises(LoweringError, match=f"and {arch} has {most * 1024}"):
        spcomp.compile(shares(most + 1), target=f"cuda:{arch}")


def test_registers_are_kept_for_the_blocks_that_there_are():
    """A grid of at most 512 blocks never fills processors that could hold more of them."""
    goal = nvvm.resolve(target("cuda:sm_80"))
    share = -(-CUDA_GRID.sharing_blocks // CUDA_GRID.processors)
    for program, most in ((mirrored, share), (source("spmv"), 8)):
        ir = nvvm.emit(lower(program, goal).flat, goal).llvm_ir
        assert str(most) in re.findall(r'minctasm"="(\d+)', ir)


@pytest.mark.parametrize("kind", ["serial", "unroll"])
def test_trips_that_are_written_out_share_the_memory_of_one(kind):
    text = f"""from spcomp import script as T


@T.prim_func
def reverse(x: T.handle, z: T.handle, m: T.int32) -> None:
    X = T.match_buffer(x, (m, 8, 4, 64), "float32")
    Z = T.match_buffer(z, (m, 4, 64), "float32")
    for b in T.thread_binding(m, thread="blockIdx.x"):
        for g in T.thread_binding(4, thread="threadIdx.y"):
            for u in T.{kind}(8):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                for t in T.thread_binding(64, thread="threadIdx.x"):
                    S[t] = X[b, u, g, t]
                for v in T.thread_binding(64, thread="threadIdx.x"):
                    Z[b, g, v] = Z[b, g, v] + S[63 - v]
"""
    kernel = spcomp.compile(spcomp.parse(text), target=EMULATED)
    assert kernel.launches[0].shared_bytes == 4 * 64 * 4
    X = np.arange(3 * 8 * 4 * 64, dtype=np.float32).reshape(3, 8, 4, 64)
    Z = np.zeros((3, 4, 64), np.float32)
    kernel(X, Z, 3)
    np.testing.assert_array_equal(Z, X[..., ::-1].sum(axis=1))
