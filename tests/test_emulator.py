"""The emulator of GPU kernels: results against numpy, and planted faults, each found."""

import gc
import pickle
import re
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp.errors import ArgumentError, EmulationError
from spcomp.runtime.emulator import Emulated
from tests.emulator_kernels import ADD, BARRIER, DYNAMIC, SPMM, SREG, G, S, at, block_sum, module

BLOCKS = (1, 31, 32, 33, 1024)
SEEDS = (None, -1, 0, 7)
POISON = 0x7FFFFFFF


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("threads", BLOCKS)
def test_vector_add_with_guard(threads, check):
    n = 2 * threads + 1
    a, b = rng().random(n, np.float32), rng(1).random(n, np.float32)
    c = np.zeros(n, np.float32)
    kernel = Emulated(ADD, check=check)
    for seed in SEEDS:
        c[:] = 0
        kernel.launch("k", (3, 1, 1), (threads, 1, 1), 0, [a, b, c, np.int32(n)], seed=seed)
        assert np.array_equal(c, a + b)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 32, 64, 1024])
def test_block_reduction_through_shared_memory(threads, check):
    x = rng().integers(-1000, 1000, 5 * threads, dtype=np.int32)
    kernel = Emulated(block_sum(), check=check)
    for seed in SEEDS:
        out = np.zeros(5, np.int32)
        kernel.launch("k", (5, 1, 1), (threads, 1, 1), 4 * threads, [x, out], seed=seed)
        assert np.array_equal(out, x.reshape(5, -1).sum(1, dtype=np.int32))


def test_the_reduction_without_its_barrier_is_a_race():
    x, out = np.ones(128, np.int32), np.zeros(2, np.int32)
    kernel = Emulated(block_sum("%nothing = add i32 0, 0"))
    for seed in SEEDS:
        with pytest.raises(EmulationError, match="nothing orders them") as caught:
            kernel.launch("k", (2, 1, 1), (64, 1, 1), 256, [x, out], seed=seed)
        error = caught.value
        assert error.kind == "race"
        assert len(set(error.threads)) == 2
        assert set(error.lines) <= {f"k.py:{n}" for n in (4, 19, 20, 22, 31)}
        assert error.blocks[0] == error.blocks[1]


def test_an_access_out_of_bounds_names_buffer_index_line_and_thread():
    a = np.zeros(40, np.float32)
    with pytest.raises(EmulationError) as caught:
        Emulated(ADD).launch(
            "k",
            (2, 1, 1),
            (32, 1, 1),
            0,
            [a, a[:35].copy(), a.copy(), np.int32(40)],
            names=["left", "right", "sum", "n"],
        )
    error = caught.value
    assert (error.kind, error.buffer, error.index) == ("bounds", "right", 35)
    assert error.lines == ("k.py:7",)
    assert error.threads == ((3, 0, 0),)
    assert error.blocks == ((1, 0, 0),)
    assert "right[35], which has 35 elements" in str(error)
    assert "k.py:7" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.buffer, again.threads, str(again)) == ("right", error.threads, str(error))


@pytest.mark.parametrize("check", [True, False])
def test_grids_and_blocks_in_three_dimensions(check):
    names = [f"{what}.{axis}" for what in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    lines = "".join(f"  %s{k} = {SREG}.{name}()\n" for k, name in enumerate(names))
    # The number of the thread among all of the grid.
    lines += "  %z = add i32 0, 0\n"
    order = [("s8", "s11"), ("s7", "s10"), ("s6", "s9"), ("s2", "s5"), ("s1", "s4"), ("s0", "s3")]
    last = "z"
    for k, (index, extent) in enumerate(order):
        lines += f"  %m{k} = mul i32 %{last}, %{extent}\n  %n{k} = add i32 %m{k}, %{index}\n"
        last = f"n{k}"
    lines += f"  %i = zext i32 %{last} to i64\n"
    for k in range(12):
        lines += f"  %j{k}a = mul i64 %i, 12\n  %j{k} = add i64 %j{k}a, {k}\n"
        lines += at(f"p{k}", "%out", f"%j{k}") + f"  store i32 %s{k}, ptr addrspace(1) %p{k}\n"
    grid, block = (2, 3, 4), (3, 2, 5)
    out = np.full((4, 3, 2, 5, 2, 3, 12), -1, np.int32)
    kernel = Emulated(module(lines + "  ret void", f"{G} %out"), check=check)
    kernel.launch("k", grid, block, 0, [out], seed=5)
    for cz, cy, cx, tz, ty, tx in np.ndindex(out.shape[:-1]):
        row = out[cz, cy, cx, tz, ty, tx].tolist()
        assert row == [tx, ty, tz, *block, cx, cy, cz, *grid]


@pytest.mark.parametrize("grid", [(0, 1, 1), (3, 0, 2), (1, 1, 0)])
def test_a_grid_of_no_blocks_does_nothing(grid):
    Emulated(ADD).launch("k", grid, (32, 1, 1), 0, [np.zeros(0, np.float32)] * 3 + [np.int32(9)])


def test_arrays_without_elements():
    empty = [np.zeros(0, np.float32)] * 3
    kernel = Emulated(ADD)
    kernel.launch("k", (1, 1, 1), (32, 1, 1), 0, [*empty, np.int32(0)])
    with pytest.raises(EmulationError) as caught:
        kernel.launch("k", (1, 1, 1), (32, 1, 1), 0, [*empty, np.int32(1)])
    assert (caught.value.kind, caught.value.buffer) == ("bounds", "a")


LAST = module(
    '  %o = atomicrmw xchg ptr addrspace(1) %x, i32 %gid syncscope("device") monotonic\n  ret void',
    f"{G} %x",
)


def test_the_result_of_a_kernel_that_depends_on_the_order_differs():
    results = {}
    for seed in (None, -1, 0, 1, 2, 1):
        x = np.zeros(1, np.int32)
        Emulated(LAST).launch("k", (40, 1, 1), (50, 1, 1), 0, [x], seed=seed)
        assert results.setdefault(seed, x[0]) == x[0]  # the same seed, the same order
    assert results[None] == 1999
    assert results[-1] == 0
    assert len(set(results.values())) == 5


@pytest.mark.parametrize("check", [True, False])
def test_memory_that_nobody_wrote_is_poison_in_every_block(check):
    body = (
        at("s", "@shared", "%t", "i32", 3)
        + "  %v = load i32, ptr addrspace(3) %s\n"
        + "  %l = alloca [4 x i32], align 4\n"
        + "  %e = getelementptr i32, ptr %l, i64 2\n  %w = load i32, ptr %e\n"
        + at("p", "%x", "%g")
        + "  store i32 %v, ptr addrspace(1) %p\n"
        + at("q", "%y", "%g")
        + "  store i32 %w, ptr addrspace(1) %q\n"
        + "  store i32 5, ptr addrspace(3) %s\n  store i32 5, ptr %e\n  ret void"
    )
    x, y = np.zeros(6, np.int32), np.zeros(6, np.int32)
    Emulated(module(body, f"{G} %x, {G} %y", variables=DYNAMIC), check=check).launch(
        "k", (3, 1, 1), (2, 1, 1), 8, [x, y]
    )
    assert (x == POISON).all()
    assert (y == -1).all()
    assert np.isnan(x.view(np.float32)).all()


def test_values_without_names_switches_and_helper_functions():
    ir = f"""
@table = internal addrspace(4) constant [3 x i32] [i32 10, i32 20, i32 30], align 4
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier0()
define internal <2 x i32> @pair(i32 %0, i32 %1) {{
  %3 = insertelement <2 x i32> poison, i32 %0, i64 0
  %4 = insertelement <2 x i32> %3, i32 %1, i64 1
  ret <2 x i32> %4
}}
define ptx_kernel void @"a kernel"({G}) {{
  %2 = tail call range(i32 0, 1024) i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %3 = zext i32 %2 to i64
  call void @llvm.nvvm.barrier0()
  switch i32 %2, label %8 [
    i32 0, label %4
    i32 1, label %6
  ]
4:
  call void @llvm.nvvm.barrier0()
  %5 = load i32, ptr addrspace(4) getelementptr (i8, ptr addrspace(4) @table, i64 4)
  br label %8
6:
  call void @llvm.nvvm.barrier0()
  %7 = add i32 %2, 6
  br label %8
8:
  %9 = phi i32 [ %2, %1 ], [ %5, %4 ], [ %7, %6 ]
  %10 = call <2 x i32> @pair(i32 %9, i32 %2)
  %11 = getelementptr <2 x i32>, ptr addrspace(1) %0, i64 %3
  store <2 x i32> %10, ptr addrspace(1) %11, align 8
  ret void
}}
"""
    x = np.zeros((1, 2), np.int32)
    kernel = Emulated(ir)
    assert kernel.kernels == ("a kernel",)
    kernel.launch("a kernel", (1, 1, 1), (1, 1, 1), 0, [x])
    assert x.tolist() == [[20, 0]]
    x = np.zeros((3, 2), np.int32)
    with pytest.raises(EmulationError) as caught:
        kernel.launch("a kernel", (1, 1, 1), (3, 1, 1), 0, [x])
    assert caught.value.kind == "barrier"


def test_copies_of_memory_by_intrinsics():
    x, y, shared = f"{G} align 4 %x", f"{G} align 4 %y", f"{S} align 4 @shared"
    copy = f"  call void @llvm.memcpy.p3.p1.i64({shared}, {x}, i64 %n, i1 false)\n"
    back = f"  call void @llvm.memmove.p1.p3.i64({y}, {shared}, i64 %n, i1 false)\n"
    wipe = f"  call void @llvm.memset.p1.i64({x}, i8 7, i64 %n, i1 false)\n"
    kernel = module(copy + back + wipe + "  ret void", f"{G} %x, {G} %y, i64 %n", variables=DYNAMIC)
    x, y = np.arange(5, dtype=np.int32), np.zeros(5, np.int32)
    Emulated(kernel).launch("k", (1, 1, 1), (1, 1, 1), 20, [x, y, np.int64(18)])
    assert y.tolist() == [0, 1, 2, 3, 4]
    assert x.tolist() == [0x07070707] * 4 + [0x0707]
    with pytest.raises(EmulationError) as caught:
        Emulated(kernel).launch("k", (1, 1, 1), (1, 1, 1), 20, [x, y[:4], np.int64(18)])
    assert (caught.value.buffer, caught.value.lines) == ("y", ("k.py:2",))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("call void @llvm.nvvm.mbarrier.init(ptr null, i32 1)", "llvm.nvvm.mbarrier.init"),
        ("call void @llvm.nvvm.no.such.thing(i32 1)", "llvm.nvvm.no.such.thing"),
        ('call void asm sideeffect "trap;", ""()', "inline assembly"),
        ("call void %f()", "calls of pointers"),
        ("call void @elsewhere()", "@elsewhere"),
        ("call void @waits()", "outside a kernel"),
        ("%l = alloca i32, i32 %tid", "known at run time"),
    ],
)
def test_what_it_does_not_know_is_an_error(line, what):
    more = "declare void @elsewhere()\n" if "elsewhere" in line else ""
    more += f"define internal void @waits() {{\n  {BARRIER}\n  ret void\n}}\n"
    with pytest.raises(EmulationError, match=re.escape(what)) as caught:
        Emulated(module(f"  {line}\n  ret void", "ptr %f", more=more))
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "define ptx_kernel void @k() {\n  %x = add i32 %y, 1\n  ret void\n}",
        ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }",
    ],
)
def test_text_that_is_no_llvm_ir_is_refused(text):
    with pytest.raises(ArgumentError, match=r"ir: is not LLVM IR \(PTX is not read\)") as caught:
        Emulated(text)
    assert 'source("llvm")' in caught.value.hint
    with pytest.raises(ArgumentError, match="ir: got bytes"):
        Emulated(text.encode())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"name": "j"}, "there is k"),
        ({"block": (1025, 1, 1)}, "block is"),
        ({"block": (0, 1, 1)}, "block is"),
        ({"block": (32, 33, 1)}, "1056 threads"),
        ({"grid": (1, 65536, 1)}, "grid is"),
        ({"grid": (-1, 1, 1)}, "grid is"),
        ({"shared_bytes": 4}, "the module can have 0"),
        ({"grid": (1.0, 1, 1)}, "grid is"),
        ({"grid": (1,)}, r"grid is \(1,\): give three extents \(x, y, z\)"),
        ({"block": 32}, "block is 32: give three extents"),
        ({"seed": -2}, "seed is -2"),
        ({"args": []}, "takes 4 arguments"),
        ({"args": [1, 2, 3, 4]}, "argument a: expected a C-contiguous"),
        ({"args": [np.zeros((4, 4))[:, 1]] * 3 + [np.int32(1)]}, "C-contiguous"),
        (
            {"args": [np.zeros(4)] * 3 + [np.int64(1)]},
            "argument n: got int64, expected np.int32 for i32",
        ),
        ({"args": [np.zeros(4)] * 3 + [np.float32(1)]}, "argument n: got float32"),
        ({"args": [np.zeros(4)] * 3 + [1]}, "argument n: got int"),
        ({"args": [np.zeros(9, np.int8)[1:]] * 3 + [np.int32(1)]}, "no multiple of 4 bytes"),
    ],
)
def test_wrong_arguments_of_a_launch(change, what):
    args = [np.zeros(4, np.float32)] * 3 + [np.int32(4)]
    launch = {"name": "k", "grid": (1, 1, 1), "block": (4, 1, 1), "shared_bytes": 0, "args": args}
    with pytest.raises(ArgumentError, match=what):
        Emulated(ADD).launch(**(launch | change))


def test_launches_from_many_threads():
    kernel = Emulated(block_sum(), check=False)
    x = rng(8).integers(0, 99, (8, 20, 64), dtype=np.int32)
    out = np.zeros((8, 20), np.int32)
    with ThreadPoolExecutor(8) as pool:
        shape = ((20, 1, 1), (64, 1, 1), 256)
        for result in [pool.submit(kernel.launch, "k", *shape, [x[k], out[k]]) for k in range(8)]:
            result.result()
    assert np.array_equal(out, x.sum(2))


def test_the_code_is_freed_with_the_object():
    kernel = Emulated(ADD)
    code = weakref.ref(kernel._loaded._keep)
    del kernel
    gc.collect()
    assert code() is None


def test_a_loop_that_waits_for_a_later_thread_ends_with_an_error():
    body = """
  %first = icmp eq i32 %tid, 0
  br i1 %first, label %again, label %set
again:
  %v = atomicrmw or ptr addrspace(1) %x, i32 0 syncscope("device") monotonic
  %c = icmp eq i32 %v, 0
  br i1 %c, label %again, label %done
set:
  %o = atomicrmw or ptr addrspace(1) %x, i32 1 syncscope("device") monotonic
  br label %done
done:
  ret void"""
    kernel, x = Emulated(module(body, f"{G} %x")), np.zeros(1, np.int32)
    kernel.launch("k", (1, 1, 1), (2, 1, 1), 0, [x], seed=-1)
    x[:] = 0
    with pytest.raises(EmulationError, match="without an end") as caught:
        kernel.launch("k", (1, 1, 1), (2, 1, 1), 0, [x])
    assert (caught.value.kind, caught.value.lines) == ("limit", ("k.py:4",))


def test_an_access_beyond_a_local_variable():
    body = (
        "  %l = alloca [4 x i32], align 4\n"
        "  %e = getelementptr [4 x i32], ptr %l, i64 0, i64 %n\n"
        "  store i32 1, ptr %e, align 4\n  ret void"
    )
    kernel = Emulated(module(body, "i64 %n"))
    kernel.launch("k", (1, 1, 1), (2, 1, 1), 0, [np.int64(3)])
    for index in (4, -1):
        with pytest.raises(EmulationError, match="beyond its local variable") as caught:
            kernel.launch("k", (1, 1, 1), (2, 1, 1), 0, [np.int64(index)])
        assert (caught.value.kind, caught.value.lines) == ("bounds", ("k.py:3",))


def test_variables_of_the_module_in_global_and_shared_memory():
    variables = """
@bias = internal addrspace(1) global [2 x i32] [i32 7, i32 9], align 4
@tile = internal addrspace(3) global [2 x i32] undef, align 8
@one = internal unnamed_addr addrspace(3) global i32 undef, align 4
"""
    body = (
        at("b", "@bias", "%t")
        + "  %v = load i32, ptr addrspace(1) %b, align 4\n"
        + at("s", "@tile", "%t", "i32", 3)
        + "  store i32 %v, ptr addrspace(3) %s, align 4\n"
        + "  %w = load i32, ptr addrspace(3) %s, align 4\n"
        + "  %q = load i32, ptr addrspace(3) @one, align 4\n"
        + at("p", "%x", "%t", "<2 x i32>")
        + "  %u = insertelement <2 x i32> poison, i32 %w, i64 0\n"
        + "  %r = insertelement <2 x i32> %u, i32 %q, i64 1\n"
        + "  store <2 x i32> %r, ptr addrspace(1) %p, align 8\n  ret void"
    )
    x = np.zeros((2, 2), np.int32)
    Emulated(module(body, f"{G} %x", variables=variables)).launch("k", (1, 1, 1), (2, 1, 1), 0, [x])
    assert x.tolist() == [[7, POISON], [9, POISON]]


def test_more_shared_memory_than_a_block_can_have():
    static = "@tile = internal addrspace(3) global [12289 x i32] undef, align 4"
    with pytest.raises(EmulationError, match="49156 bytes of static shared memory"):
        Emulated(module("  ret void", "", variables=static))
    kernel = Emulated(module("  ret void", "", variables=DYNAMIC))
    kernel.launch("k", (1, 1, 1), (1, 1, 1), 227 * 1024, [])
    with pytest.raises(ArgumentError, match="the module can have 232448"):
        kernel.launch("k", (1, 1, 1), (1, 1, 1), 227 * 1024 + 1, [])


@pytest.mark.parametrize("check", [True, False])
def test_a_sparse_product_of_a_row_per_warp(check):
    a = sps.random_array((70, 50), density=0.4, format="csr", dtype=np.float32, rng=0)
    a.data[:] = rng(9).integers(-4, 5, a.nnz)
    x = rng(10).integers(-4, 5, (50, 32)).astype(np.float32)
    kernel = Emulated(SPMM, check=check)
    for seed in SEEDS:
        out = np.full((70, 32), np.nan, np.float32)
        args = [a.indptr.astype(np.int32), a.indices.astype(np.int32), a.data, x, out, np.int32(70)]
        kernel.launch("k", (18, 1, 1), (128, 1, 1), 0, args, seed=seed)
        assert np.array_equal(out, a @ x)


def test_the_environment_says_in_which_order_threads_run(monkeypatch):
    kernel, found = Emulated(LAST), dict[str | int | None, int]()
    for seed in (-1, 5, None):
        last = np.zeros(1, np.int32)
        kernel.launch("k", (40, 1, 1), (50, 1, 1), 0, [last], seed=seed)
        monkeypatch.setenv("SPCOMP_CUDA_EMULATE_SEED", "" if seed is None else str(seed))
        again = np.zeros(1, np.int32)
        kernel.launch("k", (40, 1, 1), (50, 1, 1), 0, [again])
        monkeypatch.delenv("SPCOMP_CUDA_EMULATE_SEED")
        assert np.array_equal(last, again)
        found[seed] = int(last[0])
    assert len({*found.values()}) == 3
    monkeypatch.setenv("SPCOMP_CUDA_EMULATE_SEED", "first")
    with pytest.raises(ArgumentError, match="'first', expected -1 or more"):
        kernel.launch("k", (1, 1, 1), (1, 1, 1), 0, [last])
