"""What lanes of a warp do together in the emulator, against models of the PTX ISA in numpy."""

import numpy as np
import pytest

from spcomp.errors import EmulationError
from spcomp.runtime.emulator import Emulated
from tests.emulator_kernels import DYNAMIC, SREG, G, S, at, module, per_thread

POISON = 0x7FFFFFFF
MASK, V, K = "i32 %m", "i32 %v", "i32 %k"


def run(kernel, x, mask, by, *, check=True, seed=None):
    out = np.full(x.size, -7, np.int32)
    arrays = [np.ascontiguousarray(a, np.int32) for a in (x, mask, by)]
    Emulated(kernel, check=check).launch(
        "k", (1, 1, 1), (x.size, 1, 1), 0, [*arrays, out], seed=seed
    )
    return out


def random_groups(rng, lanes):
    """Masks: each lane's names the lanes of its random group."""
    group = rng.integers(0, rng.integers(1, 5), 32)
    bits = [int(sum(1 << j for j in range(32) if group[j] == group[i])) for i in range(32)]
    return np.array(bits[:lanes], np.uint32).view(np.int32)


def shuffled(mode, values, masks, by, clamp):
    """The PTX ISA's pseudocode of shfl.sync."""
    result = []
    for lane in range(values.size):
        b, c, segment = by[lane] & 31, clamp & 31, (clamp >> 8) & 31
        last = (lane & segment) | (c & ~segment & 31)
        first = lane & segment
        j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | (b & ~segment & 31)}
        j = j[mode]
        if not (j >= last if mode == "up" else j <= last):
            j = lane
        there = j < values.size and (int(masks[lane]) >> j) & 1
        result.append(values[j] if there else POISON)
    return np.array(result, np.int32)


@pytest.mark.parametrize("lanes", [1, 7, 32])
@pytest.mark.parametrize("mode", ["up", "down", "idx", "bfly"])
@pytest.mark.parametrize("width", [2, 8, 32])
def test_shuffles_with_segments_and_random_masks(mode, width, lanes):
    rng = np.random.default_rng(width * 100 + lanes)
    clamp = ((32 - width) << 8) | (0 if mode == "up" else 31)
    call = f"call i32 @llvm.nvvm.shfl.sync.{mode}.i32({MASK}, {V}, {K}, i32 {clamp})"
    for seed in range(5):
        x = rng.integers(-1000, 1000, lanes, dtype=np.int32)
        masks, by = random_groups(rng, lanes), rng.integers(0, 40, lanes, dtype=np.int32)
        got = run(per_thread(call), x, masks, by, seed=seed, check=seed % 2 == 0)
        assert np.array_equal(got, shuffled(mode, x, masks, by, clamp))


def test_a_butterfly_of_floats_sums_parts_of_a_warp():
    steps = "".join(
        f"  %o{k} = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %s{k}, i32 {k},"
        " i32 31)\n"
        f"  %s{k // 2} = fadd float %s{k}, %o{k}\n"
        for k in (4, 2, 1)
    )
    body = (
        at("p", "%x", "%g", "float") + "  %s4 = load float, ptr addrspace(1) %p, align 4\n" + steps
    )
    kernel = module(body + "  store float %s0, ptr addrspace(1) %p, align 4\n  ret void", f"{G} %x")
    x = np.random.default_rng(0).integers(0, 99, 96).astype(np.float32)
    got = x.copy()
    Emulated(kernel).launch("k", (1, 1, 1), (96, 1, 1), 0, [got], seed=1)
    assert np.array_equal(got, np.repeat(x.reshape(-1, 8).sum(1), 8))


def lanes_of(mask):
    return [j for j in range(32) if (int(mask) >> j) & 1]


VOTES = {
    "ballot": ("i32", lambda lanes, bits: sum(1 << j for j in lanes if bits[j])),
    "any": ("i1", lambda lanes, bits: any(bits[j] for j in lanes)),
    "all": ("i1", lambda lanes, bits: all(bits[j] for j in lanes)),
    "uni": ("i1", lambda lanes, bits: len({bool(bits[j]) for j in lanes}) == 1),
}


@pytest.mark.parametrize("mode", VOTES)
def test_votes(mode):
    kind, model = VOTES[mode]
    kernel = per_thread(f"call {kind} @llvm.nvvm.vote.{mode}.sync({MASK}, i1 %bit)", kind)
    rng = np.random.default_rng(3)
    for high in (1, 2, 2, 3):
        x, masks = rng.integers(0, high, 32), random_groups(rng, 32)
        want = [model(lanes_of(m), x & 1) for m in masks]
        got = run(kernel, x, masks, x)
        assert np.array_equal(got.view(np.uint32), np.array(want, np.uint32))


def test_match_any():
    rng = np.random.default_rng(4)
    x, masks = rng.integers(0, 3, 32), random_groups(rng, 32)
    got = run(per_thread(f"call i32 @llvm.nvvm.match.any.sync.i32({MASK}, {V})"), x, masks, x)
    want = [sum(1 << j for j in lanes_of(m) if x[j] == x[i]) for i, m in enumerate(masks)]
    assert np.array_equal(got.view(np.uint32), np.array(want, np.uint32))


REDUX = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "umin": np.minimum, "umax": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("mode", REDUX)
def test_redux(mode):
    rng = np.random.default_rng(5)
    x = rng.integers(-(2**31), 2**31, 32).astype(np.int32)
    masks = random_groups(rng, 32)
    values = x.view(np.uint32) if mode.startswith("u") else x
    got = run(per_thread(f"call i32 @llvm.nvvm.redux.sync.{mode}({V}, {MASK})"), x, masks, x)
    want = [REDUX[mode].reduce(values[lanes_of(m)], dtype=values.dtype) for m in masks]
    assert np.array_equal(got.view(values.dtype), want)


def test_lanes_that_ask_together_are_active_together():
    body = """
  %c = icmp slt i32 %tid, 5
  br i1 %c, label %a, label %b
a:
  %m = call i32 @llvm.nvvm.activemask()
  br label %end
b:
  %n = call i32 @llvm.nvvm.activemask()
  br label %end
end:
  %r = phi i32 [ %m, %a ], [ %n, %b ]
  %p = getelementptr i32, ptr addrspace(1) %x, i64 %g
  store i32 %r, ptr addrspace(1) %p, align 4
  ret void"""
    x = np.zeros(20, np.uint32)
    Emulated(module(body, f"{G} %x")).launch("k", (1, 1, 1), (20, 1, 1), 0, [x], seed=2)
    assert x.tolist() == [0b11111] * 5 + [((1 << 20) - 1) ^ 0b11111] * 15


# Fragments as the PTX ISA's figures have them: (row, column) of element i in a lane.


def fragment_16x16(lane, i):  # A of m16n8k16
    return lane // 4 + 8 * (i // 2 % 2), lane % 4 * 2 + i % 2 + 8 * (i // 4)


def fragment_b16(lane, i):  # B of m16n8k16
    return lane % 4 * 2 + i % 2 + 8 * (i // 2), lane // 4


def fragment_c(lane, i):  # C and D of m16n8
    return lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2


def fragment_tf32(lane, i):  # A of m16n8k8
    return lane // 4 + 8 * (i % 2), lane % 4 + 4 * (i // 2)


def fragment_b_tf32(lane, i):
    return lane % 4 + 4 * i, lane // 4


def fragment_f64(lane, _):  # A of m8n8k4
    return lane // 4, lane % 4


def fragment_b_f64(lane, _):
    return lane % 4, lane // 4


def bits(x, kind):
    if kind == "bf16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype({"f16": np.float16, "tf32": np.float32, "f64": np.float64}[kind])


MMA = {  # kind: name, m k, fragments, elements of A and B in a lane, register types
    "f16": ("m16n8k16.row.col.f32.f32", 16, 16, fragment_16x16, fragment_b16, 8, 4, "<2 x half>"),
    "bf16": ("m16n8k16.row.col.bf16", 16, 16, fragment_16x16, fragment_b16, 8, 4, "i32"),
    "tf32": ("m16n8k8.row.col.tf32", 16, 8, fragment_tf32, fragment_b_tf32, 4, 2, "i32"),
    "f64": ("m8n8k4.row.col.f64", 8, 4, fragment_f64, fragment_b_f64, 1, 1, "double"),
}


def mma_kernel(name, count_a, count_b, count_c, register, result):
    """Each lane loads its registers from its part of a, b and c, and stores those of D to c."""
    lines, operands = "", []
    for array, count, kind in (
        ("a", count_a, register),
        ("b", count_b, register),
        ("c", count_c, result),
    ):
        for k in range(count):
            lines += f"  %i{array}{k} = mul i64 %t, {count}\n"
            lines += f"  %j{array}{k} = add i64 %i{array}{k}, {k}\n"
            lines += at(f"p{array}{k}", f"%{array}", f"%j{array}{k}", kind)
            lines += f"  %{array}{k} = load {kind}, ptr addrspace(1) %p{array}{k}\n"
            operands.append(f"{kind} %{array}{k}")
    tuple_type = "{ " + ", ".join([result] * count_c) + " }"
    lines += f"  %d = call {tuple_type} @llvm.nvvm.mma.{name}({', '.join(operands)})\n"
    for k in range(count_c):
        lines += f"  %d{k} = extractvalue {tuple_type} %d, {k}\n"
        lines += f"  store {result} %d{k}, ptr addrspace(1) %pc{k}\n"
    return module(lines + "  ret void", f"{G} %a, {G} %b, {G} %c")


@pytest.mark.parametrize("kind", MMA)
def test_mma_is_a_product_of_matrices(kind):
    name, m, k, of_a, of_b, count_a, count_b, register = MMA[kind]
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-8, 9, shape).astype(np.float64) / 4 for shape in ((m, k), (k, 8)))
    c = rng.integers(-8, 9, (m, 8)).astype(np.float64)
    count_c = m * 8 // 32
    dtype = np.float64 if kind == "f64" else np.float32
    left = np.array([[a[of_a(lane, i)] for i in range(count_a)] for lane in range(32)])
    right = np.array([[b[of_b(lane, i)] for i in range(count_b)] for lane in range(32)])
    third = np.array(
        [[c[fragment_c(lane, i)] for i in range(count_c)] for lane in range(32)], dtype
    )
    packed = 2 if kind in ("f16", "bf16") else 1
    kernel = mma_kernel(
        name,
        count_a // packed,
        count_b // packed,
        count_c,
        register,
        "double" if kind == "f64" else "float",
    )
    for check in (True, False):
        got = third.copy()
        Emulated(kernel, check=check).launch(
            "k", (1, 1, 1), (32, 1, 1), 0, [bits(left, kind), bits(right, kind), got], seed=0
        )
        want = a @ b + c
        assert np.array_equal(
            got, [[want[fragment_c(l, i)] for i in range(count_c)] for l in range(32)]
        )


def test_mma_reads_float16_that_are_small_infinite_or_no_number():
    name, _, _, of_a, of_b, *_ = MMA["f16"]
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    a[0, 0], a[1, 1], a[2, 2], a[3, 3] = 2.0**-24, -3 * 2.0**-20, np.inf, np.nan
    b[[0, 1, 2, 3], [0, 1, 2, 3]] = 1
    left = np.array([[a[of_a(lane, i)] for i in range(8)] for lane in range(32)], np.float16)
    right = np.array([[b[of_b(lane, i)] for i in range(4)] for lane in range(32)], np.float16)
    c = np.zeros((32, 4), np.float32)
    Emulated(mma_kernel(name, 4, 2, 4, "<2 x half>", "float")).launch(
        "k", (1, 1, 1), (32, 1, 1), 0, [left, right, c]
    )
    with np.errstate(invalid="ignore"):
        want = a @ b
    got = np.zeros((16, 8))
    for lane in range(32):
        for i in range(4):
            got[fragment_c(lane, i)] = c[lane, i]
    assert np.array_equal(got, want, equal_nan=True)


def test_mma_without_a_whole_warp_is_an_error():
    kernel = mma_kernel(MMA["f64"][0], 1, 1, 2, "double", "double")
    x = np.zeros(128)
    with pytest.raises(EmulationError, match="without all 32 lanes"):
        Emulated(kernel).launch("k", (1, 1, 1), (31, 1, 1), 0, [x, x.copy(), x.copy()])


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix(count, trans):
    result = "i32" if count == 1 else "{ " + ", ".join(["i32"] * count) + " }"
    parts = "".join(
        (
            f"  %r{k} = add i32 %r, 0\n"
            if count == 1
            else f"  %r{k} = extractvalue {result} %r, {k}\n"
        )
        + f"  %i{k} = mul i64 %t, {count}\n  %j{k} = add i64 %i{k}, {k}\n"
        + at(f"po{k}", "%out", f"%j{k}")
        + f"  store i32 %r{k}, ptr addrspace(1) %po{k}\n"
        for k in range(count)
    )
    kernel = module(
        at("px", "%x", "%t", "<8 x i16>")
        + "  %v = load <8 x i16>, ptr addrspace(1) %px, align 16\n"
        + at("ps", "@shared", "%t", "<8 x i16>", 3)
        + "  store <8 x i16> %v, ptr addrspace(3) %ps, align 16\n"
        + "  call void @llvm.nvvm.bar.warp.sync(i32 -1)\n"
        + f"  %r = call {result} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{trans}.b16.p3("
        + f"{S} %ps)\n"
        + parts
        + "  ret void",
        f"{G} %x, {G} %out",
        variables=DYNAMIC,
    )
    x = np.random.default_rng(7).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((32, count, 2), np.uint16)
    Emulated(kernel).launch("k", (1, 1, 1), (32, 1, 1), 512, [x, out], seed=3)
    for lane in range(32):
        for k in range(count):
            matrix = x[k].T if trans else x[k]
            assert out[lane, k].tolist() == matrix[lane // 4, lane % 4 * 2 :][:2].tolist()


def test_a_mask_without_its_own_lane_is_an_error():
    call = f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 6, {V}, {K}, i32 31)"
    with pytest.raises(EmulationError, match="not in the mask") as caught:
        run(per_thread(call), np.zeros(4), np.zeros(4), np.zeros(4))
    assert caught.value.threads == ((0, 0, 0),)


def test_lanes_that_are_done_need_not_come():
    body = f"""
  %lane = {SREG}.laneid()
  %c = icmp sgt i32 %lane, 20
  br i1 %c, label %done, label %go
go:
  %m = call i32 @llvm.nvvm.vote.ballot.sync(i32 -1, i1 true)
  %p = getelementptr i32, ptr addrspace(1) %x, i64 %g
  store i32 %m, ptr addrspace(1) %p, align 4
  br label %done
done:
  ret void"""
    x = np.zeros(32, np.uint32)
    Emulated(module(body, f"{G} %x")).launch("k", (1, 1, 1), (32, 1, 1), 0, [x])
    assert x.tolist() == [(1 << 21) - 1] * 21 + [0] * 11
