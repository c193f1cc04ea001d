"""Tensor cores: intrinsics that follow from descriptions, as products of tiles, emulated."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.codegen import nvvm
from spcomp.errors import LoweringError, ScheduleError
from spcomp.target import target

A, B, C = (f"wmma.{part}" for part in ("matrix_a", "matrix_b", "accumulator"))
SHAPES = [
    (16, 8, 16, "float16"),
    (16, 16, 16, "float16"),
    (8, 32, 16, "float16"),
    (16, 8, 16, "bfloat16"),
    (16, 8, 8, "float32"),
]


def copy(rows, columns, dtype, source, to):
    @T.prim_func
    def copied(x: T.handle, y: T.handle) -> None:
        X = T.match_buffer(x, (rows, columns), dtype, scope=source)
        Y = T.match_buffer(y, (rows, columns), dtype, scope=to)
        for i, j in T.grid(rows, columns):
            Y[i, j] = X[i, j]

    return copied


def register(m, n, k, dtype):
    """Register what a warp does with an m x n x k product; the names begin with tile."""

    @T.prim_func
    def fill(z: T.handle) -> None:
        Z = T.match_buffer(z, (m, n), "float32", scope=C)
        for i, j in T.grid(m, n):
            Z[i, j] = T.float32(0)

    @T.prim_func
    def multiply(x: T.handle, y: T.handle, z: T.handle) -> None:
        X = T.match_buffer(x, (m, k), dtype, scope=A)
        Y = T.match_buffer(y, (k, n), dtype, scope=B)
        Z = T.match_buffer(z, (m, n), "float32", scope=C)
        for i, j, p in T.grid(m, n, k):
            Z[i, j] = Z[i, j] + T.cast(X[i, p], "float32") * T.cast(Y[p, j], "float32")

    parts = {
        "load_a": copy(m, k, dtype, "global", A),
        "load_b": copy(k, n, dtype, "global", B),
        "store": copy(m, n, "float32", C, "global"),
        "fill": fill,
        "multiply": multiply,
    }
    for name, description in parts.items():
        role = spcomp.register_fragments(f"tile_{name}", description, override=True)
        assert role == name.partition("_")[0]


def product(m, n, k, dtype, warps=2):
    """The schedule of a product of 2 x 3 and 3 x 2 tiles, a warp for each column of tiles."""

    @T.prim_func
    def gemm(x: T.handle, y: T.handle, z: T.handle) -> None:
        X = T.match_buffer(x, (2 * m, 3 * k), dtype)
        Y = T.match_buffer(y, (3 * k, warps * n), dtype)
        Z = T.match_buffer(z, (2 * m, warps * n), "float32")
        for bi in T.thread_binding(2, thread="blockIdx.x"):
            for bj in T.thread_binding(warps, thread="threadIdx.y"):
                CC = T.alloc_buffer((m, n), "float32", scope=C)
                with T.block("fill"):
                    for i, j in T.grid(m, n):
                        CC[i, j] = T.float32(0)
                for p in T.serial(3):
                    AA = T.alloc_buffer((m, k), dtype, scope=A)
                    BB = T.alloc_buffer((k, n), dtype, scope=B)
                    with T.block("load_a"):
                        for i1, j1 in T.grid(m, k):
                            AA[i1, j1] = X[bi * m + i1, p * k + j1]
                    with T.block("load_b"):
                        for i2, j2 in T.grid(k, n):
                            BB[i2, j2] = Y[p * k + i2, bj * n + j2]
                    with T.block("multiply"):
                        for i3, j3, k3 in T.grid(m, n, k):
                            CC[i3, j3] = CC[i3, j3] + T.cast(AA[i3, k3], "float32") * T.cast(
                                BB[k3, j3], "float32"
                            )
                with T.block("store"):
                    for i4, j4 in T.grid(m, n):
                        Z[bi * m + i4, bj * n + j4] = CC[i4, j4]

    return spcomp.Schedule(gemm)


def numbers(rng, shape, dtype):
    """Small integers, exact in every type, and what a call takes for them."""
    values = rng.integers(-3, 4, shape).astype("float32")
    if dtype == "bfloat16":
        return values, (values.view(np.uint32) >> 16).astype(np.uint16)
    return values, values.astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "m{}n{}k{} {}".format(*s))
def test_tiles_are_multiplied_on_tensor_cores_and_on_a_cpu(shape):
    m, n, k, dtype = shape
    register(*shape)
    schedule = product(*shape)
    for name in ("fill", "load_a", "load_b", "multiply", "store"):
        schedule = schedule.tensorize(name, f"tile_{name}")
    rng = np.random.default_rng(0)
    x, given_x = numbers(rng, (2 * m, 3 * k), dtype)
    y, given_y = numbers(rng, (3 * k, 2 * n), dtype)
    for where in ("cuda:sm_80,emulate", "cpu"):
        f, z = spcomp.compile(schedule, target=where), np.zeros((2 * m, 2 * n), np.float32)
        f(given_x, given_y, z)
        assert np.array_equal(z, x @ y)
        if where != "cpu":
            code = nvvm.ptx(f.source("llvm"), nvvm.resolve(target("cuda:sm_80")))
            assert "mma.sync.aligned.m16n8k" in code


def test_elements_of_a_fragment_are_no_elements_of_a_thread():
    with pytest.raises(LoweringError, match="outside nests of a whole warp"):
        spcomp.compile(product(*SHAPES[0]), target="cuda:sm_80,emulate")


def test_sizes_that_no_tensor_core_has_are_refused():
    shape = (4, 8, 16, "float16")
    register(*shape)
    schedule = product(*shape)
    for name in ("fill", "load_a", "load_b", "multiply", "store"):
        schedule = schedule.tensorize(name, f"tile_{name}")
    with pytest.raises(LoweringError, match="a warp does not hold"):
        spcomp.compile(schedule, target="cuda:sm_80,emulate")


def test_a_fragment_of_another_kind_does_not_match():
    register(*SHAPES[0])
    with pytest.raises(ScheduleError, match="does not compute what the description says"):
        product(*SHAPES[0]).tensorize("load_b", "tile_store")


def shared_copy_product(m, n, k, dtype):  # noqa: C901
    """Products of one tile for each block, whose operands come through shared memory."""

    @T.prim_func
    def gemm(x: T.handle, y: T.handle, z: T.handle) -> None:  # noqa: C901
        X = T.match_buffer(x, (2 * m, k), dtype)
        Y = T.match_buffer(y, (k, n), dtype)
        Z = T.match_buffer(z, (2 * m, n), "float32")
        for b in T.thread_binding(2, thread="blockIdx.x"):
            XS = T.alloc_buffer((m, k), dtype, scope="shared")
            YS = T.alloc_buffer((k, n), dtype, scope="shared")
            for t in T.thread_binding(32, thread="threadIdx.x"):
                for i0 in T.serial(m * k // 32):
                    XS[(i0 * 32 + t) // k, (i0 * 32 + t) % k] = X[
                        b * m + (i0 * 32 + t) // k, (i0 * 32 + t) % k
                    ]
            for t1 in T.thread_binding(32, thread="threadIdx.x"):
                for i5 in T.serial(k * n // 32):
                    YS[(i5 * 32 + t1) // n, (i5 * 32 + t1) % n] = Y[
                        (i5 * 32 + t1) // n, (i5 * 32 + t1) % n
                    ]
            AA = T.alloc_buffer((m, k), dtype, scope=A)
            BB = T.alloc_buffer((k, n), dtype, scope=B)
            CC = T.alloc_buffer((m, n), "float32", scope=C)
            with T.block("fill"):
                for i, j in T.grid(m, n):
                    CC[i, j] = T.float32(0)
            with T.block("load_a"):
                for i1, j1 in T.grid(m, k):
                    AA[i1, j1] = XS[i1, j1]
            with T.block("load_b"):
                for i2, j2 in T.grid(k, n):
                    BB[i2, j2] = YS[i2, j2]
            with T.block("multiply"):
                for i3, j3, k3 in T.grid(m, n, k):
                    CC[i3, j3] = CC[i3, j3] + T.cast(AA[i3, k3], "float32") * T.cast(
                        BB[k3, j3], "float32"
                    )
            with T.block("store"):
                for i4, j4 in T.grid(m, n):
                    Z[b * m + i4, j4] = CC[i4, j4]

    return spcomp.Schedule(gemm)


@pytest.mark.parametrize("shape", SHAPES[:4], ids=lambda s: "m{}n{}k{} {}".format(*s))
def test_rows_in_shared_memory_are_loaded_by_ldmatrix(shape):
    m, n, k, dtype = shape
    register(*shape)
    parts = {"load_a": copy(m, k, dtype, "shared", A), "load_b": copy(k, n, dtype, "shared", B)}
    for name, description in parts.items():
        spcomp.register_fragments(f"tile_{name}", description, override=True)
    schedule = shared_copy_product(*shape)
    for name in ("fill", "load_a", "load_b", "multiply", "store"):
        schedule = schedule.tensorize(name, f"tile_{name}")
    rng = np.random.default_rng(0)
    x, given_x = numbers(rng, (2 * m, k), dtype)
    y, given_y = numbers(rng, (k, n), dtype)
    f, z = spcomp.compile(schedule, target="cuda:sm_80,emulate"), np.zeros((2 * m, n), np.float32)
    f(given_x, given_y, z)
    assert np.array_equal(z, x @ y)
    code = nvvm.ptx(f.source("llvm"), nvvm.resolve(target("cuda:sm_80")))
    assert code.count("ldmatrix.sync.aligned.m8n8") == 2 + ((m, n) == (8, 32))
    assert ".trans" in code
