"""Prints what LLVM makes of every operation in every type: run by itself, as LLVM may end it.

``python -m tests.ptx_of_everything ARCH`` writes the PTX of one kernel for each type and width.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings

from spcomp.codegen import nvvm
from spcomp.compiler.pipeline import lower
from spcomp.errors import LoweringError, ScriptError, SpcompWarning
from spcomp.ir.expr import CALLS
from spcomp.script.parse import parse_source
from spcomp.target import target

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
TYPES = (*FLOATS, *INTEGERS, "bool")
BINARY = tuple(f"{{a}} {op} {{b}}" for op in ("+", "-", "*", "/", "//", "%", "&", "|", "^"))
BINARY += tuple(f"{{a}} {op} {{b}}" for op in ("<<", ">>", "<", "<=", "==", "!="))
BINARY += ("T.min({a}, {b})", "T.max({a}, {b})", "-{a}", "T.if_then_else({a} < {b}, {a}, {b})")
OF_TWO = {"pow", "atan2", "hypot", "fmod", "copysign"}
ATOMICS = ("{c} + {a}", "{c} * {a}", "T.min({c}, {a})", "T.max({c}, {a})")
SUMS = ATOMICS

HEAD = """from spcomp import script as T


@T.prim_func
def f(a: T.handle, b: T.handle, c: T.handle, d: T.handle, n: T.int64) -> None:
    T.func_attr({{"sparse_tir_level": {level}}})
    A = T.match_buffer(a, (n,), "{kind}")
    B = T.match_buffer(b, (n,), "{kind}")
    C = T.match_buffer(c, (n,), "{result}")
    D = T.match_buffer(d, (1,), "{kind}")
"""
ELEMENTWISE = """    for i in T.thread_binding((n + 127) // 128, thread="blockIdx.x"):
        for t in T.thread_binding(32, thread="threadIdx.x"):
            for k in T.vectorized(4):
                if i * 128 + t * 4 + k < n:
                    C[i * 128 + t * 4 + k] = {value}
"""
SCALAR = """    for i in T.thread_binding(n, thread="blockIdx.x"):
        C[i] = {value}
"""
SUM = """    for i in T.thread_binding(n, thread="blockIdx.x"):
        for t in T.thread_binding({threads}, thread="threadIdx.x"):
            C[i] = {value}
"""
ATOMIC = """    for i in T.thread_binding(n, thread="blockIdx.x"):
        with T.block("update"):
            vi = T.axis.spatial(n, i)
            T.block_attr({{"atomic": True}})
            D[0] = {value}
"""


def programs() -> list[tuple[str, str]]:
    """Return a name and a script for each."""
    calls = [
        f"T.{name}({{a}}, {{b}})" if name in OF_TWO else f"T.{name}({{a}})"
        for name in sorted(CALLS - {"fma"})
    ]
    found = []
    for kind, value in itertools.product(TYPES, (*BINARY, *calls)):
        text = f'T.cast({value.format(a="A[i]", b="B[i]")}, "{kind}")'
        found.append((f"{kind} {value}", kind, kind, SCALAR.format(value=text)))
    for kind, value in itertools.product(TYPES, ("{a} + {b}", "T.max({a}, {b})", "T.exp({a})")):
        place = "[i * 128 + t * 4 + k]"
        text = f'T.cast({value.format(a=f"A{place}", b=f"B{place}")}, "{kind}")'
        found.append((f"vectors of {kind} {value}", kind, kind, ELEMENTWISE.format(value=text)))
    for kind, other in itertools.product(TYPES, TYPES):
        text = f'T.cast(A[i], "{other}")'
        found.append((f"{kind} to {other}", kind, other, SCALAR.format(value=text)))
    for kind, value, threads in itertools.product(TYPES, SUMS, (32, 5)):
        text = value.format(a="A[t]", c="C[i]")
        body = SUM.format(value=text, threads=threads)
        found.append((f"{kind} {value} by {threads}", kind, kind, body))
    for kind, value in itertools.product(TYPES, ATOMICS):
        text = value.format(a="A[vi]", c="D[0]")
        found.append((f"atomic {kind} {value}", kind, kind, ATOMIC.format(value=text)))
    return [
        (name, HEAD.format(level=1, kind=kind, result=result) + body)
        for name, kind, result, body in found
    ]


def main(arch: str) -> None:
    """Compile all; print as JSON the names of those that are refused, with the reason."""
    warnings.simplefilter("ignore", SpcompWarning)
    goal, refused, done = nvvm.resolve(target(f"cuda:{arch}")), {}, 0
    for name, text in programs():
        sys.stderr.write(f"{name}\n")  # the last one, if LLVM ends this process
        try:
            emitted = nvvm.emit(lower(parse_source(text, "f.py")[0], goal).flat, goal)
        except (LoweringError, ScriptError) as error:
            refused[name] = error.message
            continue
        nvvm.ptx(emitted.llvm_ir, goal)
        done += 1
    sys.stdout.write(json.dumps({"done": done, "refused": refused}))


if __name__ == "__main__":
    main(sys.argv[1])
