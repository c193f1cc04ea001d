"""Scripts that Python takes part in: conditions it decides, and macros."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ScriptError
from spcomp.ir.func import Func
from spcomp.ir.interpret.program import interpret
from spcomp.ir.stmt import If, Store
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import walk
from spcomp.script.parse import parse


def scaled(by: int, clipped: bool, dtype: str = "float32") -> Func:
    @T.prim_func
    def scale(x: T.handle, n: T.int64):
        X = T.match_buffer(x, (n,), dtype)
        for i in T.serial(n):
            value = X[i] * by if by != 1 else X[i]
            if clipped and by > 1:
                X[i] = T.min(value, limit)  # noqa: F821 - not read
            elif not clipped:
                X[i] = value

    return scale


def test_a_branch_that_python_does_not_take_is_not_read():
    func = scaled(3, clipped=False)
    assert not any(isinstance(node, If) for node in walk(func))
    assert sum(isinstance(node, Store) for node in walk(func)) == 1
    assert structural_equal(parse(func.script()), func)
    x = np.arange(4, dtype=np.float32)
    interpret(func, {"x": x, "n": 4})
    assert x.tolist() == [0, 3, 6, 9]
    assert not any(isinstance(node, Store) for node in walk(scaled(1, clipped=True)))
    with pytest.raises(ScriptError, match="unknown name 'limit'"):
        scaled(2, clipped=True)


def test_a_condition_of_literals_stays():
    func = parse(
        "@T.prim_func\ndef f(x: T.handle):\n    X = T.match_buffer(x, (1,), 'int32')\n"
        "    if True:\n        X[0] = 1\n"
    )
    assert any(isinstance(node, If) for node in walk(func))
    assert structural_equal(parse(func.script()), func)


START = 7


@T.macro
def total(source, into, begin, end, dtype):
    Sum = T.alloc_buffer((1,), dtype, scope="local")
    Sum[0] = START
    for i in T.serial(begin, end):
        Sum[0] = Sum[0] + T.cast(source[i], dtype)
    into[0] = Sum[0]


def test_a_macro_stands_for_its_statements_with_names_of_its_own():
    @T.prim_func
    def twice(x: T.handle, y: T.handle, z: T.handle, n: T.int64):
        X = T.match_buffer(x, (n,), "int32")
        Y = T.match_buffer(y, (1,), "int64")
        Z = T.match_buffer(z, (1,), "int64")
        for _i in T.serial(1):
            begin = n // 2
            total(X, Y, 0, begin, "int64")
            total(X, into=Z, begin=begin, end=begin + T.min(n, 2), dtype="int64")

    assert structural_equal(parse(twice.script()), twice)
    x, y, z = np.arange(10, dtype=np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64)
    spcomp.compile(twice)(x=x, y=y, z=z, n=10)
    assert (y[0], z[0]) == (7 + 0 + 1 + 2 + 3 + 4, 7 + 5 + 6)


@T.macro
def power(x, times):
    if times > 0:
        x[0] = x[0] * 2
        power(x, times - 1)


@T.macro
def wrong(x):
    x[0] = unknwon  # noqa: F821


@T.macro
def starred(*x):
    pass


def test_a_macro_may_call_itself_as_often_as_python_says():
    @T.prim_func
    def eight(x: T.handle):
        X = T.match_buffer(x, (1,), "int32")
        power(X, 3)

    assert sum(isinstance(node, Store) for node in walk(eight)) == 3
    assert structural_equal(parse(eight.script()), eight)


def test_wrong_macros_are_told_at_their_line():

    with pytest.raises(ScriptError, match="unknown name 'unknwon'") as info:

        @T.prim_func
        def f(x: T.handle):
            X = T.match_buffer(x, (1,), "int32")
            wrong(X)

    assert info.value.span.file == __file__
    assert info.value.__notes__[0].startswith(f"in the macro wrong, called at {__file__}:")
    with pytest.raises(ScriptError, match="missing a required argument: 'times'") as info:

        @T.prim_func
        def g(x: T.handle):
            X = T.match_buffer(x, (1,), "int32")
            power(X)

    assert "power(x, times)" in str(info.value)
    with pytest.raises(ScriptError, match="plain arguments only"):

        @T.prim_func
        def h(x: T.handle):
            X = T.match_buffer(x, (1,), "int32")
            starred(X)

    with pytest.raises(ScriptError, match="only in a script"):
        power(1, 2)
