"""Faults planted in GPU kernels: the emulator finds each and says where."""

import numpy as np
import pytest

from spcomp.errors import ArgumentError, EmulationError
from spcomp.runtime.emulator import Emulated
from tests.emulator_kernels import BARRIER, DYNAMIC, G, S, at, module

SEEDS = (None, -1, 0, 7)
WARP_SYNC = "call void @llvm.nvvm.bar.warp.sync(i32 -1)"


def fault(kernel, grid, block, shared, args, **more):
    with pytest.raises(EmulationError) as caught:
        Emulated(kernel).launch("k", (grid, 1, 1), (block, 1, 1), shared, args, **more)
    return caught.value


def exchange(between, threads=32, distance=1):
    """Each thread writes shared memory, and reads what its neighbour wrote."""
    return module(
        f"""
  %mine = getelementptr i32, ptr addrspace(3) @shared, i64 %t
  store i32 %tid, ptr addrspace(3) %mine, align 4
  {between}
  %next = add i32 %tid, {distance}
  %wrapped = urem i32 %next, {threads}
  %n = zext i32 %wrapped to i64
  %theirs = getelementptr i32, ptr addrspace(3) @shared, i64 %n
  %v = load i32, ptr addrspace(3) %theirs, align 4
  %p = getelementptr i32, ptr addrspace(1) %out, i64 %g
  store i32 %v, ptr addrspace(1) %p, align 4
  ret void""",
        f"{G} %out",
        variables=DYNAMIC,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warp_synchronisation_orders_lanes_and_a_shuffle_does_not(seed):
    out = np.zeros(32, np.int32)
    launch = {"grid": (1, 1, 1), "block": (32, 1, 1), "shared_bytes": 128, "args": [out]}
    Emulated(exchange(WARP_SYNC)).launch("k", **launch, seed=seed)
    assert np.array_equal(out, (np.arange(32) + 1) % 32)
    shuffle = "%s = call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 %tid, i32 0, i32 31)"
    error = fault(exchange(shuffle), 1, 32, 128, [out], seed=seed)
    assert (error.kind, set(error.lines)) == ("race", {"k.py:2", "k.py:8"})
    first, second = (t[0] for t in error.threads)
    assert (first - second) % 32 in (1, 31)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warp_synchronisation_does_not_order_two_warps(seed):
    out = np.zeros(64, np.int32)
    error = fault(exchange(WARP_SYNC, 64), 1, 64, 256, [out], seed=seed)
    assert error.kind == "race"
    assert len({t[0] // 32 for t in error.threads}) == 2
    Emulated(exchange(BARRIER, 64)).launch("k", (1, 1, 1), (64, 1, 1), 256, [out], seed=seed)
    assert np.array_equal(out, (np.arange(64) + 1) % 64)


def test_a_synchronisation_of_half_a_warp_orders_that_half():
    halves = "%low = icmp slt i32 %tid, 16\n  %m = select i1 %low, i32 65535, i32 -65536\n"
    halves += "  call void @llvm.nvvm.bar.warp.sync(i32 %m)"
    inside = exchange(halves).replace("%wrapped = urem i32 %next, 32", "%wrapped = xor i32 %tid, 1")
    out = np.zeros(32, np.int32)
    for seed in SEEDS:
        Emulated(inside).launch("k", (1, 1, 1), (32, 1, 1), 128, [out], seed=seed)
        assert np.array_equal(out, np.arange(32) ^ 1)
        error = fault(exchange(halves, distance=16), 1, 32, 128, [out], seed=seed)
        assert error.kind == "race"


ONE = "store i32 %gid, ptr addrspace(1) %x, align 4"
READ = "%v = load i32, ptr addrspace(1) %x, align 4"
ATOMIC = '%a = atomicrmw add ptr addrspace(1) %x, i32 1 syncscope("device") monotonic, align 4'
NARROW = ATOMIC.replace("device", "block")


def alternate(even, odd):
    """Even threads, or blocks, do one thing, and odd ones another."""
    body = f"""
  %bit = and i32 %WHO, 1
  %c = icmp eq i32 %bit, 0
  br i1 %c, label %even, label %odd
even:
  {even}
  br label %done
odd:
  {odd.replace("%v", "%w").replace("%a ", "%b ")}
  br label %done
done:
  ret void"""
    return module(body, f"{G} %x")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("who", ["tid", "bid"])
@pytest.mark.parametrize(
    ("even", "odd", "race"),
    [
        (ONE, ONE, True),
        (ONE, READ, True),
        (ONE, ATOMIC, True),
        (READ, ATOMIC, True),
        (READ, READ, False),
        (ATOMIC, ATOMIC, False),
        (ATOMIC, NARROW, "blocks"),
        (NARROW, NARROW, "blocks"),
    ],
)
def test_races_of_threads_and_of_blocks(even, odd, race, who, seed):
    x = np.zeros(1, np.int32)
    kernel = alternate(even, odd).replace("%WHO", f"%{who}")
    shape = (1, 4) if who == "tid" else (4, 1)
    if race is True or (race == "blocks" and who == "bid"):
        error = fault(kernel, *shape, 0, [x], seed=seed)
        assert (error.kind, error.buffer, error.index) == ("race", "x", 0)
        assert error.threads[0] != error.threads[1] or error.blocks[0] != error.blocks[1]
        assert set(error.lines) <= {"k.py:5", "k.py:8"}
    else:
        Emulated(kernel).launch("k", (shape[0], 1, 1), (shape[1], 1, 1), 0, [x], seed=seed)


def test_a_barrier_does_not_order_blocks():
    body = f"""
  {READ}
  {BARRIER}
  %c = icmp eq i32 %gid, 2
  br i1 %c, label %write, label %done
write:
  store i32 %v, ptr addrspace(1) %x, align 4
  br label %done
done:
  ret void"""
    kernel = module(body, f"{G} %x")
    for seed in SEEDS:
        error = fault(kernel, 3, 2, 0, [np.zeros(1, np.int32)], seed=seed)
        assert (error.kind, error.blocks[0] != error.blocks[1]) == ("race", True)
        assert "two launches" in error.hint
    Emulated(kernel).launch("k", (1, 1, 1), (3, 1, 1), 0, [np.zeros(1, np.int32)])


def test_bytes_of_one_word_belong_to_different_threads():
    body = at("p", "%x", "%g", "i8") + "  store i8 1, ptr addrspace(1) %p, align 1\n  ret void"
    x = np.zeros(70, np.int8)
    Emulated(module(body, f"{G} %x")).launch("k", (2, 1, 1), (35, 1, 1), 0, [x], seed=0)
    assert x.all()
    wide = at("p", "%x", "%g", "i8") + "  store i16 1, ptr addrspace(1) %p, align 1\n  ret void"
    error = fault(module(wide, f"{G} %x"), 2, 35, 0, [x], seed=0)
    assert error.kind == "race"


def test_arguments_that_share_memory_race():
    body = (
        at("p", "%x", "%g")
        + at("q", "%y", "%g")
        + (
            "  %v = load i32, ptr addrspace(1) %p, align 4\n"
            "  store i32 %v, ptr addrspace(1) %q, align 4\n  ret void"
        )
    )
    kernel, x = module(body, f"{G} %x, {G} %y"), np.ones(9, np.int32)
    error = fault(kernel, 1, 8, 0, [x[1:], x[:-1]])
    assert error.kind == "race"
    Emulated(kernel).launch("k", (1, 1, 1), (8, 1, 1), 0, [x, x])
    assert x.all()


def test_barriers_in_different_branches():
    body = f"""
  %c = icmp eq i32 %tid, 5
  br i1 %c, label %one, label %two
one:
  {BARRIER}
  br label %done
two:
  {BARRIER}
  br label %done
done:
  ret void"""
    for seed in SEEDS:
        error = fault(module(body, ""), 2, 40, 0, [], seed=seed)
        assert (error.kind, set(error.lines)) == ("barrier", {"k.py:4", "k.py:7"})
        assert (5, 0, 0) in error.threads
        assert "neither can go on" in str(error)


def test_a_shuffle_that_some_lanes_never_reach():
    body = f"""
  %c = icmp slt i32 %tid, 9
  br i1 %c, label %one, label %two
one:
  %s = call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 %tid, i32 0, i32 31)
  br label %two
two:
  {BARRIER}
  ret void"""
    error = fault(module(body, ""), 1, 32, 0, [])
    assert (error.kind, error.lines) == ("barrier", ("k.py:4", "k.py:7"))
    assert error.threads == ((0, 0, 0), (9, 0, 0))


def vector_load(offset, align=16):
    return module(
        f"  %i = add i64 %g, {offset}\n"
        + at("p", "%x", "%i", "float")
        + f"  %v = load <4 x float>, ptr addrspace(1) %p, align {align}\n"
        + at("q", "%out", "%g", "<4 x float>")
        + "  store <4 x float> %v, ptr addrspace(1) %q, align 16\n  ret void",
        f"{G} %x, {G} %out",
    )


def test_a_vector_that_is_not_aligned():
    x, out = np.arange(12, dtype=np.float32), np.zeros(4, np.float32)
    for offset in range(8):
        launch = {"grid": (1, 1, 1), "block": (1, 1, 1), "shared_bytes": 0, "args": [x, out]}
        if offset % 4 == 0:
            Emulated(vector_load(offset)).launch("k", **launch)
            assert np.array_equal(out, x[offset : offset + 4])
        else:
            error = fault(vector_load(offset), 1, 1, 0, [x, out])
            assert (error.kind, error.buffer, error.index) == ("alignment", "x", offset)
            assert error.lines == ("k.py:3",)
        Emulated(vector_load(offset, 4)).launch("k", **launch)
        assert np.array_equal(out, x[offset : offset + 4])


@pytest.mark.parametrize("index", [-1, 10, 1000, 2**40])
def test_bounds_are_those_of_the_argument_even_if_other_memory_follows(index):
    whole = np.zeros(40, np.int32)
    body = at("p", "%y", str(index)) + "  store i32 1, ptr addrspace(1) %p, align 4\n  ret void"
    args = [whole[:10], whole[10:20], whole[20:]]
    error = fault(module(body, f"{G} %x, {G} %y, {G} %z"), 1, 1, 0, args)
    assert (error.kind, error.buffer, error.index) == ("bounds", "y", index)
    assert not whole.any()


def test_a_vector_may_not_end_outside():
    x, out = np.zeros(7, np.float32), np.zeros(4, np.float32)
    assert fault(vector_load(4), 1, 1, 0, [x, out]).index == 4


def test_shared_memory_ends_with_the_launch_and_with_its_variable():
    write = at("p", "@shared", "%t", "i32", 3) + "  store i32 1, ptr addrspace(3) %p\n  ret void"
    kernel = Emulated(module(write, "", variables=DYNAMIC))
    kernel.launch("k", (1, 1, 1), (8, 1, 1), 32, [])
    error = fault(module(write, "", variables=DYNAMIC), 1, 9, 32, [])
    assert (error.kind, error.buffer, error.index) == ("bounds", "shared memory @shared", 32)
    tiles = "".join(
        f"@{name} = internal addrspace(3) global [4 x i32] undef, align 16\n" for name in "ab"
    )
    error = fault(module(write.replace("@shared", "@a"), "", variables=tiles), 1, 5, 0, [])
    assert (error.buffer, error.index, error.threads) == ("shared memory @a", 16, ((4, 0, 0),))


def test_a_buffer_that_may_only_be_read():
    kernel = module("  store i32 1, ptr addrspace(1) %x\n  ret void", f"{G} readonly %x")
    assert fault(kernel, 1, 1, 0, [np.zeros(1, np.int32)]).kind == "read-only"
    frozen = np.zeros(1, np.int32)
    frozen.flags.writeable = False
    error = fault(kernel.replace(" readonly", ""), 1, 1, 0, [frozen], names=["data"])
    assert (error.kind, error.buffer) == ("read-only", "data")
    unchecked = Emulated(kernel.replace(" readonly", ""), check=False)
    with pytest.raises(ArgumentError, match="the array is read-only"):
        unchecked.launch("k", (1, 1, 1), (1, 1, 1), 0, [frozen])


def test_pointers_of_several_origins_stay_in_some_buffer():
    body = f"""
  %c = icmp eq i32 %tid, 0
  %p = select i1 %c, {G} %x, {G} %y
  %q = getelementptr i32, ptr addrspace(1) %p, i64 %g
  %r = addrspacecast ptr addrspace(1) %q to ptr
  store i32 3, ptr %r, align 4
  %s = getelementptr i32, ptr addrspace(1) %p, i64 %far
  store i32 4, ptr addrspace(1) %s, align 4
  ret void"""
    x, y = np.zeros(4, np.int32), np.zeros(4, np.int32)
    kernel = module(body, f"{G} %x, {G} %y, i64 %far")
    Emulated(kernel).launch("k", (1, 1, 1), (2, 1, 1), 0, [x, y, np.int64(3)])
    assert (x.tolist(), y.tolist()) == ([3, 0, 0, 4], [0, 3, 0, 4])
    error = fault(kernel, 1, 2, 0, [x, y, np.int64(2**40)])
    assert (error.kind, error.lines) == ("bounds", ("k.py:7",))


def test_a_fault_in_a_function_ends_the_kernel():
    helper = """
define internal i32 @get(ptr addrspace(1) %p, i64 %i) {
  %q = getelementptr i32, ptr addrspace(1) %p, i64 %i
  %v = load i32, ptr addrspace(1) %q, align 4
  ret i32 %v
}
"""
    body = f"""
  br label %loop
loop:
  %v = call i32 @get({G} %x, i64 %g)
  %again = icmp eq i32 %v, 0
  br i1 %again, label %loop, label %done
done:
  ret void"""
    kernel = module(body, f"{G} %x", more=helper)
    Emulated(kernel).launch("k", (1, 1, 1), (3, 1, 1), 0, [np.ones(3, np.int32)])
    error = fault(kernel, 1, 4, 0, [np.ones(3, np.int32)])
    assert (error.kind, error.threads) == ("bounds", ((3, 0, 0),))
    assert "load i32" in error.lines[0]


def pipeline(wait, barrier=BARRIER, part=""):
    """Two stages: while one tile is copied, the thread reads its right neighbour in the other."""
    size = ", i32 %some" if part else ""
    copy = f"call void @llvm.nvvm.cp.async.ca.shared.global.4{part}({S} %to, {G} %from{size})"
    return module(
        f"""
  %some = mul i32 %part, 1
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %i1, %next ]
  %sum = phi i32 [ 0, %entry ], [ %sum1, %next ]
  %more = icmp slt i32 %i, %tiles
  br i1 %more, label %issue, label %commit
issue:
  %slot = and i32 %i, 1
  %slotbase = mul i32 %slot, %ntid
  %slotindex = add i32 %slotbase, %tid
  %si = zext i32 %slotindex to i64
  %to = getelementptr i32, ptr addrspace(3) @shared, i64 %si
  %tile = mul i32 %i, %ntid
  %source = add i32 %tile, %tid
  %gi = zext i32 %source to i64
  %from = getelementptr i32, ptr addrspace(1) %x, i64 %gi
  {copy}
  br label %commit
commit:
  call void @llvm.nvvm.cp.async.commit.group()
  %first = icmp eq i32 %i, 0
  br i1 %first, label %next, label %use
use:
  {wait}
  {barrier}
  %j = add i32 %tid, 1
  %jw = urem i32 %j, %ntid
  %i0 = add i32 %i, 1
  %old = and i32 %i0, 1
  %oldbase = mul i32 %old, %ntid
  %oldindex = add i32 %oldbase, %jw
  %oi = zext i32 %oldindex to i64
  %p = getelementptr i32, ptr addrspace(3) @shared, i64 %oi
  %v = load i32, ptr addrspace(3) %p, align 4
  {barrier}
  br label %next
next:
  %add = phi i32 [ 0, %commit ], [ %v, %use ]
  %sum1 = add i32 %sum, %add
  %i1 = add i32 %i, 1
  %go = icmp sle i32 %i1, %tiles
  br i1 %go, label %loop, label %end
end:
  %po = getelementptr i32, ptr addrspace(1) %out, i64 %t
  store i32 %sum1, ptr addrspace(1) %po, align 4
  ret void""",
        f"{G} readonly %x, {G} %out, i32 %tiles, i32 %part",
        variables=DYNAMIC,
    )


WAIT_1 = "call void @llvm.nvvm.cp.async.wait.group(i32 1)"
WAIT_ALL = "call void @llvm.nvvm.cp.async.wait.all()"


def test_double_buffering_by_asynchronous_copies():
    x, out = (
        np.random.default_rng(0).integers(0, 99, (6, 64), dtype=np.int32),
        np.zeros(64, np.int32),
    )
    args = [x, out, np.int32(6), np.int32(4)]
    for wait in (WAIT_1, WAIT_ALL):
        for seed in SEEDS:
            for check in (True, False):
                kernel = Emulated(pipeline(wait), check=check)
                kernel.launch("k", (1, 1, 1), (64, 1, 1), 512, args, seed=seed)
                assert np.array_equal(out, np.roll(x.sum(0, dtype=np.int32), -1))
    args[3] = np.int32(0)  # zeros instead of the source
    Emulated(pipeline(WAIT_1, part=".s")).launch("k", (1, 1, 1), (64, 1, 1), 512, args)
    assert not out.any()


def test_asynchronous_copies_that_are_not_waited_for():
    x, out = np.ones((6, 64), np.int32), np.zeros(64, np.int32)
    args = [x, out, np.int32(6), np.int32(4)]
    error = fault(pipeline("call void @llvm.nvvm.cp.async.wait.group(i32 2)"), 1, 64, 512, args)
    assert error.kind == "race"  # the copy may arrive after the barrier
    assert set(error.lines) == {"k.py:18", "k.py:35"}
    error = fault(pipeline(WAIT_1, WARP_SYNC), 1, 64, 512, args)
    assert error.kind == "race"
    assert error.threads[0][0] // 32 != error.threads[1][0] // 32


def test_an_asynchronous_copy_out_of_bounds_or_not_aligned():
    size = "call void @llvm.nvvm.cp.async.cg.shared.global.16"
    body = at("p", "%x", "%far") + f"  {size}({S} @shared, {G} %p)\n  ret void"
    kernel = module(body, f"{G} %x, i64 %far", variables=DYNAMIC)
    x = np.zeros(8, np.int32)
    Emulated(kernel).launch("k", (1, 1, 1), (1, 1, 1), 16, [x, np.int64(4)])
    assert fault(kernel, 1, 1, 16, [x, np.int64(8)]).buffer == "x"
    assert fault(kernel, 1, 1, 16, [x, np.int64(1)]).kind == "alignment"
    assert fault(kernel, 1, 1, 12, [x, np.int64(0)]).buffer == "shared memory @shared"


@pytest.mark.parametrize(
    ("operation", "values", "bad"),
    [
        ("sdiv", [7, 2], None),
        ("sdiv", [7, 0], 1),
        ("srem", [-(2**31), -1], 1),
        ("udiv", [-(2**31), -1], None),
        ("urem", [3, 0], 1),
    ],
)
@pytest.mark.parametrize("kind", ["i32", "<2 x i32>"])
def test_a_division_by_zero_ends_the_kernel_and_not_the_process(kind, operation, values, bad):
    body = (
        at("pa", "%x", "0", kind)
        + f"  %a = load {kind}, {G} %pa, align 4\n"
        + at("pb", "%x", "1", kind)
        + f"  %b = load {kind}, {G} %pb, align 4\n"
        + f"  %q = {operation} {kind} %a, %b\n  store {kind} %q, {G} %pa, align 4\n  ret void"
    )
    x = np.repeat(np.array(values, np.int32), 2 if kind.startswith("<") else 1)
    kernel = module(body, f"{G} %x")
    if bad is None:
        Emulated(kernel).launch("k", (1, 1, 1), (1, 1, 1), 0, [x])
        assert x[0] == (3 if operation == "sdiv" else 0)
    else:
        error = fault(kernel, 1, 1, 0, [x])
        assert (error.kind, error.lines) == ("division", ("k.py:5",))


def test_a_trap_and_what_cannot_be_reached():
    body = """
  %c = icmp eq i32 %tid, 3
  br i1 %c, label %bad, label %done
bad:
  TRAP
  unreachable
done:
  ret void"""
    for trap, line in (("call void @llvm.trap()", 4), ("%nothing = add i32 0, 0", 5)):
        error = fault(module(body.replace("TRAP", trap), ""), 1, 5, 0, [])
        assert (error.kind, error.lines) == ("trap", (f"k.py:{line}",))
        assert error.threads == ((3, 0, 0),)


def test_a_size_below_zero_is_out_of_bounds():
    call = f"  call void @llvm.memset.p1.i64({G} %x, i8 0, i64 %n, i1 false)\n  ret void"
    kernel, x = module(call, f"{G} %x, i64 %n"), np.ones(4, np.int8)
    Emulated(kernel).launch("k", (1, 1, 1), (1, 1, 1), 0, [x, np.int64(4)])
    assert not x.any()
    for size in (-1, 5, 2**62, 2**63 - 1):
        assert fault(kernel, 1, 1, 0, [x, np.int64(size)]).kind == "bounds"


def test_a_local_vector_that_is_not_aligned():
    body = (
        "  %l = alloca [8 x float], align 16\n"
        "  %e = getelementptr float, ptr %l, i64 %n\n"
        "  store <4 x float> zeroinitializer, ptr %e, align 16\n  ret void"
    )
    kernel = module(body, "i64 %n")
    Emulated(kernel).launch("k", (1, 1, 1), (1, 1, 1), 0, [np.int64(4)])
    assert fault(kernel, 1, 1, 0, [np.int64(1)]).kind == "alignment"
    small = "  %l = alloca float, align 4\n  store <4 x float> zeroinitializer, ptr %l, align 4\n"
    assert fault(module(small + "  ret void", ""), 1, 1, 0, []).kind == "bounds"
