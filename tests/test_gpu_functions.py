"""Mathematical functions of our own, for GPUs: the same text as machine code of this CPU.

No instruction of theirs may be changed by LLVM, so they have the same bits on both.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import special

from spcomp import dtypes as dt
from spcomp.codegen.cpu import object_code
from spcomp.codegen.cpu.machine import attributes, resolve
from spcomp.codegen.functions.define import FUNCTIONS, OF_TWO, per_element
from spcomp.codegen.functions.trigonometry import DIGITS, TWO_PER_PI
from spcomp.codegen.llvm.code import Code, Unit
from spcomp.codegen.nvvm.emit import DIALECT
from spcomp.errors import LoweringError
from spcomp.ir.expr import CALLS, NUMPY_NAMES
from spcomp.knobs import knobs_of
from spcomp.runtime.jit import load
from spcomp.target import target

KINDS = {"float32": "float", "float64": "double"}
INSTRUCTIONS = {"sqrt", "rsqrt", "abs", "floor", "ceil", "round", "trunc", "fma", "popcount"}
OF_BITS = {"isnan", "isinf"}
DOCUMENT = (Path(__file__).parents[1] / "docs" / "gpu.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \|", re.MULTILINE)
BOUNDS = {  # of the errors, in units of the last place
    (row[0], kind): float(bound)
    for row in ROW.findall(DOCUMENT)
    for kind, bound in zip(KINDS, row[1:], strict=True)
}
ONES = sorted(set(FUNCTIONS) - set(OF_TWO))
SIZES = [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 2**24 + 1, 4.0**60, 1e300, 1.7e308, np.inf, np.nan]
EDGES = [sign * x for x in (*SIZES, 5e-324, 3e-320, 2.0**-149, 2.0**-1022) for sign in (1, -1)]
ALL_OF = {  # magnitudes between which every float32 is tried
    "exp": (2.0**-25, 105),
    "expm1": (2.0**-25, 90),
    "tanh": (2.0**-13, 10),
    "log": (0.5, 4),
    "sigmoid": (2.0**-25, 105),
    "sin": (2.0**-13, 2.0**9),
    "cos": (2.0**-13, 2.0**9),
    "erf": (2.0**-13, 4),
    "cbrt": (1, 8),
    "log1p": (2.0**-13, 1),
    "atan": (2.0**-13, 2.0**13),
}
LONG_DOUBLE = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double has the digits of double here"
)


def text(func, kind, lanes=1):
    """A module with ``i32 run(ptr slots)``: the function over arrays; slots: x, y, out, count."""
    unit = Unit(knobs_of(target("cpu")), DIALECT)
    code = Code(unit)
    dtype = getattr(dt, kind).with_lanes(lanes)
    scalar = KINDS[kind]
    vector = scalar if lanes == 1 else f"<{lanes} x {scalar}>"
    args = ["%x", "%y"][: 1 + (func in OF_TWO)]
    result = per_element(code, dtype, func, *args)
    loads = [f"  %{n}p = load ptr, ptr %{n}s" for n in ("x", "y", "o")]
    body = [f"  %{n}a = getelementptr {vector}, ptr %{n}p, i64 %i" for n in ("x", "y", "o")]
    body += [f"  {n} = load {vector}, ptr {n}a, align 4" for n in args]
    lines = [
        "define i32 @run(ptr %xs) nounwind {",
        "entry:",
        *(f"  %{n}s = getelementptr ptr, ptr %xs, i64 {k}" for k, n in ((1, "y"), (2, "o"))),
        *loads,
        "  %cs = getelementptr i64, ptr %xs, i64 3",
        "  %n = load i64, ptr %cs",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %j, %loop ]",
        *body,
        *code.lines,
        f"  store {vector} {result}, ptr %oa, align 4",
        "  %j = add i64 %i, 1",
        "  %more = icmp slt i64 %j, %n",
        "  br i1 %more, label %loop, label %exit",
        "exit:",
        "  ret i32 0",
        "}",
    ]
    return "\n".join([*unit.declarations.values(), *lines]) + "\n"


@cache
def compiled(func, kind, lanes=1):
    host = resolve(target("cpu"))
    own = text(func, kind, lanes).replace(" nounwind ", f" nounwind {attributes(host)} ")
    return load(object_code(own, host), ["run"]).function("run")


def run(func, *arrays, lanes=1):
    arrays = [np.ascontiguousarray(a) for a in arrays]
    out = np.empty_like(arrays[0])
    run = compiled(func, str(out.dtype), lanes)
    slots = (ctypes.c_void_p * 4)(
        arrays[0].ctypes.data, arrays[-1].ctypes.data, out.ctypes.data, out.size // lanes
    )
    run(ctypes.addressof(slots))
    return out


def exact(func, *arrays):
    """The function of *arrays* in a type with more digits."""
    wide = np.float64 if arrays[0].dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        arrays = [a.astype(wide) for a in arrays]
        match func:
            case "sigmoid":
                return 1 / (1 + np.exp(-arrays[0]))
            case "erf" if wide == np.float64:
                return special.erf(*arrays)
            case "erf":
                with mpmath.workprec(80):
                    values = [long(mpmath.erf(float(x))) for x in arrays[0]]
                return np.copysign(np.array(values), arrays[0])
            case "pow":
                return np.power(*arrays)
        return getattr(np, NUMPY_NAMES.get(func, func))(*arrays)


def long(x):
    high = np.longdouble(float(x))
    return high + float(x - float(x)) if x and mpmath.isfinite(x) else high


def units(found, want):
    """How many units of the last place *found* is off; inf if it is not even of the same kind."""
    kind = found.dtype
    with np.errstate(all="ignore"):
        rounded = want.astype(kind)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(kind).max)).astype(want.dtype)
        off = np.abs(found.astype(want.dtype) - want) / unit
    same = np.isnan(found) == np.isnan(rounded)
    same &= (np.signbit(found) == np.signbit(rounded)) | np.isnan(rounded)
    off[(found == rounded) & np.isinf(found) | np.isnan(found)] = 0
    return np.where(same, off, np.inf)


def check(func, *arrays):
    off = units(run(func, *arrays), exact(func, *arrays))
    at = int(off.argmax())
    where = [float(x[at]) for x in arrays]
    assert off[at] <= BOUNDS[func, str(arrays[0].dtype)], (func, where, run(func, *arrays)[at])


def numbers(kind, count, seed=0):
    """Numbers of all sizes: any bits, of sizes that are frequent, and near to one."""
    rng = np.random.default_rng(seed)
    bits = 8 * np.dtype(kind).itemsize
    signs = rng.choice([-1, 1], (2, count))
    spread = signs * rng.uniform(1, 2, (2, count))
    spread *= 2.0 ** np.stack([rng.integers(-12, 11, count), rng.integers(-bits, 1, count)])
    spread[1] += signs[0]
    with np.errstate(over="ignore"):
        some = [np.array(EDGES).astype(kind), *spread.astype(kind)]
    anything = rng.integers(0, 1 << bits, count, dtype=f"u{bits // 8}").view(kind)
    return np.concatenate([*some, anything])


@LONG_DOUBLE
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("func", ONES)
def test_a_function_is_within_its_bound_in_all_binades(func, kind):
    check(func, numbers(kind, 2000 if func == "erf" and kind == "float64" else 40_000))


@LONG_DOUBLE
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("func", OF_TWO)
def test_a_function_of_two_is_within_its_bound(func, kind):
    x = numbers(kind, 30_000)
    check(func, x, np.random.default_rng(1).permutation(x))
    with np.errstate(all="ignore"):
        near = x * np.random.default_rng(2).uniform(-4, 4, x.size).astype(kind)
    check(func, x, near)


@LONG_DOUBLE
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("func", OF_TWO)
def test_edges_of_two_are_those_of_the_standard(func, kind):
    with np.errstate(over="ignore"):
        some = np.array(EDGES).astype(kind)
    check(func, np.repeat(some, some.size), np.tile(some, some.size))


@LONG_DOUBLE
@pytest.mark.parametrize("kind", KINDS)
def test_powers_are_within_the_bound_up_to_where_they_overflow(kind):
    rng = np.random.default_rng(0)
    x = np.abs(numbers(kind, 30_000))
    with np.errstate(all="ignore"):
        y = rng.uniform(-760, 720, x.size) / np.log(x.astype(np.float64))
        check("pow", x, (y / (8 if kind == "float32" else 1)).astype(kind))


def near_quarters(kind, count):
    """Floats of all sizes nearest to a multiple of a quarter turn, and the hardest one."""
    rng = np.random.default_rng(0)
    digits, most = (24, 127) if kind == "float32" else (53, 1023)
    hardest = {"float32": 16367173 * 2.0**72, "float64": 6381956970095103 * 2.0**797}
    found = [hardest[kind]]
    with mpmath.workprec(2200):
        for _ in range(count):
            size = mpmath.mpf(2) ** int(rng.integers(1, most)) * (1 + rng.uniform())
            multiple = mpmath.nint(size / (mpmath.pi / 2)) * (mpmath.pi / 2)
            with mpmath.workprec(digits):
                found.append(float(+multiple))
    return np.array(found, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("func", ["sin", "cos", "tan"])
def test_angles_of_any_size_are_reduced_by_all_digits_of_pi(func, kind):
    x = near_quarters(kind, 1000)
    with mpmath.workprec(2200):
        values = [getattr(mpmath, func)(mpmath.mpf(float(a))) for a in x]
        found = [mpmath.mpf(float(value)) for value in run(func, x)]
        for a, value, result in zip(x, values, found, strict=True):
            unit = float(np.spacing(np.abs(np.dtype(kind).type(float(value)))))
            assert abs(value - result) <= unit * BOUNDS[func, kind], a


def test_the_digits_of_two_over_pi_are_right():
    with mpmath.workprec(2 * DIGITS):
        assert int(mpmath.floor(2 / mpmath.pi * mpmath.mpf(2) ** DIGITS)) == TWO_PER_PI


@pytest.mark.long
@pytest.mark.parametrize("func", ONES)
@pytest.mark.sample(6, long=6)
def test_every_61st_float_is_within_the_bound(func):
    for start in range(0, 1 << 32, 61 << 16):
        bits = np.arange(start, min(start + (61 << 16), 1 << 32), 61)
        check(func, bits.astype(np.uint32).view(np.float32))


@pytest.mark.long
@pytest.mark.sample(4, long=4)
@pytest.mark.parametrize("func", ALL_OF)
def test_every_float_of_the_usual_sizes_is_within_the_bound(func):
    first, last = np.array(ALL_OF[func], np.float32).view(np.uint32).tolist()
    for start in range(first, last, 1 << 16):
        bits = np.arange(start, min(start + (1 << 16), last), dtype=np.uint32).view(np.float32)
        check(func, bits)
        check(func, -bits)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("func", FUNCTIONS)
def test_a_lane_of_a_vector_has_the_bits_of_the_number_alone(func, kind):
    x = numbers(kind, 100)[:256]
    arrays = [x, np.roll(x, 7)][: 1 + (func in OF_TWO)]
    np.testing.assert_array_equal(run(func, *arrays, lanes=4), run(func, *arrays))


def test_there_is_every_function_that_is_no_instruction_and_its_bound():
    assert set(FUNCTIONS) == CALLS - INSTRUCTIONS - OF_BITS | {"fmod"}
    assert set(BOUNDS) == {(func, kind) for func in FUNCTIONS for kind in KINDS}
    with pytest.raises(LoweringError, match="popcount on a GPU"):
        text("popcount", "float32")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("func", FUNCTIONS)
def test_a_function_is_of_instructions_that_nothing_may_change(func, kind):
    own = text(func, kind)
    known = {"fma", "fabs", "copysign", "sqrt", "trunc", "fshl"}
    assert set(re.findall(r"@llvm\.(\w+)", own)) <= known
    assert not re.search(r"contract|reassoc|afn|nnan|ninf|nsz|arcp|fast", own)


CHILD = """
import sys, pathlib, llvmlite.binding as llvm
llvm.initialize_all_targets(), llvm.initialize_all_asmprinters()
target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.ll")):
    machine = target.create_target_machine(cpu="sm_80", opt=3)
    module = llvm.parse_assembly(path.read_text())
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    path.with_suffix(".ptx").write_text(machine.emit_assembly(module))
"""


@pytest.fixture(scope="module")
def ptx(tmp_path_factory):
    """A folder with the PTX of each function, by a process that LLVM may end."""
    folder = tmp_path_factory.mktemp("ptx")
    for func in FUNCTIONS:
        for kind in KINDS:
            kernel = text(func, kind).replace("define i32 @run", "define ptx_kernel void @run")
            kernel = kernel.replace("ret i32 0", "ret void")
            (folder / f"{func}_{kind}.ll").write_text(kernel)
    subprocess.run([sys.executable, "-c", CHILD, folder], capture_output=True, text=True)
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("func", FUNCTIONS)
def test_a_function_is_ptx_whose_arithmetic_is_rounded_as_written(ptx, func, kind):
    file = ptx / f"{func}_{kind}.ptx"
    assert file.exists(), "LLVM's NVPTX back end ends the process on this function or one before"
    own = file.read_text()
    assert not re.search(r"\t(add|sub|mul|div|sqrt|rcp|fma)\.(?!rn)[\w.]*f(32|64)", own)
    assert ".local" not in own
    assert "approx" not in own
    assert ".ftz" not in own


@pytest.mark.ptxas
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("func", FUNCTIONS)
def test_the_assembler_takes_a_function_and_keeps_it_in_registers(ptx, func, kind, tmp_path):
    command = ["ptxas", "-v", "-arch=sm_80", ptx / f"{func}_{kind}.ptx", "-o", tmp_path / "k"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in result.stderr
    assert int(re.search(r"Used (\d+) registers", result.stderr)[1]) <= 64
