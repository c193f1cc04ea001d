"""Beside the kernels: what the emulator does for each intrinsic of NVPTX, as tables."""

from __future__ import annotations

import re

from spcomp.runtime.emulator import layout as at

_MMA = "mma.m16n8k16.row.col."
# What a thread waits at: its kind, and which operand comes first (the mask, where there is one).
MEETINGS: dict[str, tuple[int, int]] = {
    "barrier.cta.sync.aligned.all": (at.BARRIER, 0),
    "bar.warp.sync": (at.WARP_SYNC, 0),
    "activemask": (at.ACTIVEMASK, 0),
    "match.any.sync.i32": (at.MATCH_ANY, 0),
    _MMA + "f32.f32": (at.MMA_F16, 0),
    _MMA + "bf16": (at.MMA_BF16, 0),
    "mma.m16n8k8.row.col.tf32": (at.MMA_TF32, 0),
    "mma.m8n8k4.row.col.f64": (at.MMA_F64, 0),
    **{
        f"shfl.sync.{mode}.{kind}": (code, 0)
        for mode, code in (
            ("idx", at.SHFL_IDX),
            ("up", at.SHFL_UP),
            ("down", at.SHFL_DOWN),
            ("bfly", at.SHFL_BFLY),
        )
        for kind in ("i32", "f32")
    },
    **{
        f"vote.{mode}.sync": (at.VOTE_BALLOT + k, 0)
        for k, mode in enumerate(("ballot", "any", "all", "uni"))
    },
    **{
        f"redux.sync.{mode}": (at.REDUX_ADD + k, 1)
        for k, mode in enumerate(("add", "min", "max", "umin", "umax", "and", "or", "xor"))
    },
    **{
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.b16.p3": (at.LDMATRIX + k + bool(trans) * 4, 0)
        for k, count in enumerate((1, 2, 4))
        for trans in ("", ".trans")
    },
}
# Asynchronous copies: the number of bytes, by name.
COPIES = {
    f"cp.async.{cache}.shared.global.{size}{part}": size
    for cache, sizes in (("ca", (4, 8, 16)), ("cg", (16,)))
    for size in sizes
    for part in ("", ".s")
}
WAITS = {
    "cp.async.commit.group": "commit",
    "cp.async.wait.group": "wait_groups",
    "cp.async.wait.all": "wait_all",
}
NOTHING = frozenset({"membar.cta", "membar.gl", "membar.sys"})  # one thread runs at a time

_SREG = re.compile(r"read\.ptx\.sreg\.(?:(tid|ntid|ctaid|nctaid)\.([xyz])|(laneid|warpsize))")
# Functions of numbers, by the begin of their names: LLVM IR with T for the type, S for its suffix,
# F for the function and 0, 1, 2 for the operands.
_FUNCTIONS = {
    r"ex2\.approx": "call T @llvm.exp2.S(T {0})",
    r"lg2\.approx": "call T @llvm.log2.S(T {0})",
    r"(sin|cos)\.approx": "call T @llvm.F.S(T {0})",
    r"tanh\.approx": "call T @llvm.tanh.S(T {0})",
    r"rcp\.(approx|rn|rz|rm|rp)": "fdiv T 1.0, {0}",
    r"rsqrt\.approx": "call T @emu.rsqrt.S(T {0})",
    r"sqrt(\.(approx|rn|rz|rm|rp))?": "call T @llvm.sqrt.S(T {0})",
    r"fabs": "call T @llvm.fabs.S(T {0})",
    r"fma\.rn": "call T @llvm.fma.S(T {0}, T {1}, T {2})",
    r"mul\.rn": "fmul T {0}, {1}",
    r"add\.rn": "fadd T {0}, {1}",
    r"div\.(approx|full|rn)": "fdiv T {0}, {1}",
    r"fmin": "call T @llvm.minnum.S(T {0}, T {1})",
    r"fmax": "call T @llvm.maxnum.S(T {0}, T {1})",
}
_FUNCTIONS_RE = [
    (re.compile(rf"{name}(\.ftz)?\.(f|d|f32|f64)"), text) for name, text in _FUNCTIONS.items()
]


def register(name: str) -> str | None:
    """Return the LLVM function of the emulator that reads the special register *name*."""
    found = _SREG.fullmatch(name)
    return f"@emu.{found[3] or f'{found[1]}.{found[2]}'}" if found else None


def function(name: str, kind: str, operands: list[str]) -> str | None:
    """Return the instruction that computes the function *name*, whose result has type *kind*."""
    if name.startswith("f2tf32.rna"):
        return f"call i32 @emu.tf32(float {operands[0]})"
    suffix = {"float": "f32", "double": "f64"}.get(kind, "")
    for pattern, text in _FUNCTIONS_RE:
        if suffix and pattern.fullmatch(name):
            text = text.replace("T", kind).replace(".S(", f".{suffix}(")
            return text.replace(".F.", f".{name[:3]}.").format(*operands)
    return None


def _registers() -> str:
    lines = []
    where = [("tid", "@emu.thread", at.TID), ("ntid", "@emu.launch", at.NTID)]
    where += [("ctaid", "@emu.launch", at.CTAID), ("nctaid", "@emu.launch", at.NCTAID)]
    places = [
        (f"{name}.{axis}", base, word + k)
        for name, base, word in where
        for k, axis in enumerate("xyz")
    ]
    for name, base, word in [*places, ("laneid", "@emu.thread", at.LANE)]:
        first = "%t = load ptr, ptr @emu.launch\n"
        if base == "@emu.thread":
            first += "  %l = load ptr, ptr %t\n"
        source = "%l" if base == "@emu.thread" else "%t"
        lines.append(
            f"define internal i32 @emu.{name}() #0 {{\n  {first}"
            f"  %p = getelementptr i32, ptr {source}, i64 {word}\n"
            "  %v = load i32, ptr %p\n  ret i32 %v\n}\n"
        )
    return "".join(lines)


# What every translated module begins with.
SCRATCH = 256  # bytes of a value that is kept over a wait, at most
PRELUDE = f"""@emu.launch = global ptr null
@emu.scratch = internal global [{SCRATCH} x i8] zeroinitializer, align 64
declare i64 @emu.fail(i64, i64, i64, i64, i64)
declare i64 @emu.check(i64, i64, i64, i64)
declare i64 @emu.check_local(i64, i64, i64, i64, i64, i64)
declare i64 @emu.copy_async(i64, i64, i64, i64, i64, i64)
declare i64 @emu.commit(i64)
declare i64 @emu.wait_groups(i64, i64)
declare i64 @emu.wait_all(i64)
define void @emu.resume(ptr %handle, ptr %again) #0 {{
  call void @llvm.coro.resume(ptr %handle)
  ret void
}}
define internal i32 @emu.warpsize() #0 {{
  ret i32 32
}}
define internal i64 @emu.self() #0 {{
  %p = load ptr, ptr @emu.launch
  %v = ptrtoint ptr %p to i64
  ret i64 %v
}}
define internal i1 @emu.may(i64 %where, i64 %size, i64 %site) #0 {{
  %l = call i64 @emu.self()
  %r = call i64 @emu.check(i64 %l, i64 %where, i64 %size, i64 %site)
  %b = icmp ne i64 %r, 0
  ret i1 %b
}}
define internal i1 @emu.may_local(i64 %where, i64 %size, i64 %site, ptr %p, i64 %bytes) #0 {{
  %l = call i64 @emu.self()
  %low = ptrtoint ptr %p to i64
  %r = call i64 @emu.check_local(i64 %l, i64 %where, i64 %size, i64 %site, i64 %low, i64 %bytes)
  %b = icmp ne i64 %r, 0
  ret i1 %b
}}
define internal i1 @emu.well() #0 {{
  %l = load ptr, ptr @emu.launch
  %p = getelementptr i64, ptr %l, i64 {at.FAULT}
  %v = load i64, ptr %p
  %b = icmp eq i64 %v, 0
  ret i1 %b
}}
define internal ptr @emu.wait(i32 %kind, i32 %site) #0 {{
  %l = load ptr, ptr @emu.launch
  %t = load ptr, ptr %l
  %k = getelementptr i32, ptr %t, i64 {at.KIND}
  store i32 %kind, ptr %k
  %s = getelementptr i32, ptr %t, i64 {at.SITE}
  store i32 %site, ptr %s
  %w = getelementptr i32, ptr %t, i64 {at.STATUS}
  store i32 {at.WAITING}, ptr %w
  %o = getelementptr i8, ptr %t, i64 {at.OPERANDS}
  ret ptr %o
}}
define internal ptr @emu.result() #0 {{
  %l = load ptr, ptr @emu.launch
  %t = load ptr, ptr %l
  %r = getelementptr i8, ptr %t, i64 {at.RESULT}
  ret ptr %r
}}
define internal float @emu.rsqrt.f32(float %x) #0 {{
  %s = call float @llvm.sqrt.f32(float %x)
  %r = fdiv float 1.0, %s
  ret float %r
}}
define internal double @emu.rsqrt.f64(double %x) #0 {{
  %s = call double @llvm.sqrt.f64(double %x)
  %r = fdiv double 1.0, %s
  ret double %r
}}
define internal i32 @emu.tf32(float %x) #0 {{
  %b = bitcast float %x to i32
  %n = fcmp uno float %x, %x
  %u = add i32 %b, 4096
  %c = select i1 %n, i32 %b, i32 %u
  %r = and i32 %c, -8192
  ret i32 %r
}}
""" + _registers()
