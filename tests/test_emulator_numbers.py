"""Arithmetic in the emulator: atomics, approximate functions, 16-bit floats."""

import numpy as np
import pytest

from spcomp.runtime.emulator import Emulated
from tests.emulator_kernels import G, at, module

SEEDS = (None, -1, 0, 7)


def rng(seed=0):
    return np.random.default_rng(seed)


def atomic(operation, kind="i32"):
    line = f"atomicrmw {operation} ptr addrspace(1) %x, {kind} %v "
    return module(
        at("p", "%y", "%g", kind)
        + f"  %v = load {kind}, ptr addrspace(1) %p\n"
        + f'  %old = {line}syncscope("device") monotonic\n  ret void',
        f"{G} %x, {G} %y",
    )


@pytest.mark.parametrize(
    ("operation", "dtype", "kind"),
    [
        ("add", np.int32, "i32"),
        ("add", np.int64, "i64"),
        ("max", np.int32, "i32"),
        ("umin", np.uint32, "i32"),
        ("or", np.int32, "i32"),
        ("fadd", np.float32, "float"),
        ("fadd", np.float64, "double"),
        ("fmax", np.float32, "float"),
    ],
)
def test_atomics(operation, dtype, kind):
    y = rng(2).integers(0, 1000, 200).astype(dtype)
    ufunc = {"add": np.add, "max": np.maximum, "umin": np.minimum, "or": np.bitwise_or}
    ufunc |= {"fadd": np.add, "fmax": np.maximum}
    for seed in SEEDS:
        x = np.full(1, 500, dtype)
        Emulated(atomic(operation, kind)).launch("k", (4, 1, 1), (50, 1, 1), 0, [x, y], seed=seed)
        assert x[0] == ufunc[operation].reduce(y, initial=dtype(500))


def test_pairs_of_float16_are_added_atomically():
    y = rng(3).integers(0, 9, (200, 2)).astype(np.float16)
    x = np.zeros((1, 2), np.float16)
    Emulated(atomic("fadd", "<2 x half>")).launch("k", (4, 1, 1), (50, 1, 1), 0, [x, y], seed=1)
    assert np.array_equal(x[0], y.sum(0))


def test_a_counter_by_compare_and_exchange():
    body = """
  br label %again
again:
  %old = load atomic i32, ptr addrspace(1) %x monotonic, align 4
  %new = add i32 %old, 1
  %r = cmpxchg ptr addrspace(1) %x, i32 %old, i32 %new syncscope("device") acq_rel monotonic
  %ok = extractvalue { i32, i1 } %r, 1
  fence syncscope("device") acq_rel
  br i1 %ok, label %done, label %again
done:
  ret void"""
    x = np.zeros(1, np.int32)
    Emulated(module(body, f"{G} %x")).launch("k", (4, 1, 1), (50, 1, 1), 0, [x], seed=1)
    assert x[0] == 200


FUNCTIONS = {
    "ex2.approx.f": np.exp2,
    "ex2.approx.ftz.f": np.exp2,
    "lg2.approx.f": np.log2,
    "rcp.approx.ftz.f": np.reciprocal,
    "rcp.rn.f": np.reciprocal,
    "sqrt.approx.f": np.sqrt,
    "sqrt.rn.f": np.sqrt,
    "rsqrt.approx.f": lambda x: 1 / np.sqrt(x),
    "sin.approx.f": np.sin,
    "cos.approx.f": np.cos,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    body = (
        at("p", "%x", "%g", "float")
        + "  %v = load float, ptr addrspace(1) %p\n"
        + f"  %r = call float @llvm.nvvm.{name}(float %v)\n"
        + "  %a = call float @llvm.nvvm.fma.rn.f(float %r, float 2.0, float %v)\n"
        + "  %b = call float @llvm.fma.f32(float %v, float -1.0, float %a)\n"
        + "  %c = call float @llvm.nvvm.fmax.f(float %b, float -3.0)\n"
        + "  store float %c, ptr addrspace(1) %p\n  ret void"
    )
    x = rng(4).random(64, np.float32) + np.float32(0.1)
    want = np.maximum(2 * FUNCTIONS[name](x), -3)
    Emulated(module(body, f"{G} %x")).launch("k", (1, 1, 1), (64, 1, 1), 0, [x])
    assert np.allclose(x, want, rtol=1e-5, atol=1e-6)


def convert(source, target, instruction):
    return module(
        at("p", "%x", "%g", source)
        + f"  %v = load {source}, ptr addrspace(1) %p\n"
        + f"  %r = {instruction} {source} %v to {target}\n"
        + at("q", "%y", "%g", target)
        + f"  store {target} %r, ptr addrspace(1) %q\n  ret void",
        f"{G} %x, {G} %y",
    )


def run_conversion(kernel, x, dtype):
    y = np.zeros(x.size, dtype)
    Emulated(kernel).launch("k", (-(-x.size // 256), 1, 1), (256, 1, 1), 0, [x, y])
    return y


def test_all_float16_and_all_roundings_to_16_bits():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    wide = run_conversion(convert("half", "float", "fpext"), every, np.float32)
    assert np.array_equal(wide, every.astype(np.float32), equal_nan=True)
    bits = rng(5).integers(0, 2**32, 2**14, dtype=np.uint32)
    bits[::2] = wide.view(np.uint32)[:: 2**3] ^ rng(6).integers(0, 2**14, 2**13, dtype=np.uint32)
    x = bits.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(np.float16)
        doubles = x.astype(np.float64) * (1 + 2.0**-40)
        want_of_doubles = doubles.astype(np.float16)
    got = run_conversion(convert("float", "half", "fptrunc"), x, np.float16)
    assert np.array_equal(got, want, equal_nan=True)
    got = run_conversion(convert("double", "half", "fptrunc"), doubles, np.float16)
    assert np.array_equal(got, want_of_doubles, equal_nan=True)
    finite = np.isfinite(x)
    near = run_conversion(convert("float", "bfloat", "fptrunc"), x, np.uint16).astype(np.uint32)
    want = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    assert np.array_equal(near[finite], want[finite])
    back = run_conversion(convert("bfloat", "float", "fpext"), near.astype(np.uint16), np.uint32)
    assert np.array_equal(back, near << 16)
