"""The extents of memory that is allocated inside follow when what they are made of is rewritten."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.dtypes import float32, int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Var, binary, const
from spcomp.ir.interpret.program import interpret
from spcomp.ir.printer.program import print_program
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import Alloc, Store, seq
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.script.parse import parse_source

ROWS = """from spcomp import script as T

@T.prim_func
def f(c: T.handle, n: T.int32) -> None:
    C = T.match_buffer(c, (n,), "float32")
    for i in T.serial(n):
        W = T.alloc_buffer((i + 1,), "float32")
        for p in T.serial(i + 1):
            with T.block("fill"):
                vi, vp = T.axis.remap("SS", [i, p])
                W[vp] = T.cast(vi + vp, "float32")
        for q in T.serial(i + 1):
            with T.block("sum"):
                vi, vq = T.axis.remap("SR", [i, q])
                with T.init():
                    C[vi] = 0.0
                C[vi] = C[vi] + W[vq]
"""
STEPS = {
    "split": lambda s: s.split("i", [None, 4]),
    "split and fused": lambda s: s.split("i", [None, 4]).fuse("i_o", "i_i"),
    "unrolled": lambda s: s.split("i", [None, 2]).unroll("i_i"),
    "parallel": lambda s: s.split("i", [None, 3]).parallel("i_o"),
    "bound": lambda s: s.bind("i", "blockIdx.x"),
}


def test_what_refers_to_memory_follows_when_its_extents_change():
    n, m = Var("n", int64), Var("m", int64)
    buffer = Buffer("W", None, (binary("+", n, 1),), float32)
    body = seq(
        Store(buffer, (n,), const(1.0, float32)),
        Store(buffer, (const(0),), Load(buffer, (n,))),
    )
    alloc = Alloc(buffer, body)
    assert n in variables(alloc)
    made = substitute(alloc, {n: binary("*", m, 2)})
    assert n not in variables(made)
    assert m in variables(made.buffer)
    used = {x.buffer for x in walk(made.body) if isinstance(x, (Load, Store))}
    assert used == {made.buffer}
    assert substitute(alloc, {m: n}) is alloc


@pytest.mark.parametrize("name", STEPS)
def test_memory_sized_by_a_loop_follows_the_steps_that_rewrite_the_loop(name):
    (func,) = parse_source(ROWS, "f.py")
    made = STEPS[name](Schedule(func))
    verify(made.func, name)
    (back,) = parse_source(print_program(made.func), "f.py")
    assert structural_equal(back, made.func)
    expected = [sum(i + p for p in range(i + 1)) for i in range(7)]
    out = [np.zeros(7, np.float32) for _ in range(2)]
    interpret(made.func, {"c": out[0], "n": 7})
    spcomp.compile(made)(out[1], 7)
    assert out[0].tolist() == out[1].tolist() == expected
