"""``T.print``, and ``T.fail`` with numbers: the same text from interpreters and machine code."""

from __future__ import annotations

import pickle
import re
import sys
import threading

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, LoweringError, ScriptError
from spcomp.ir.structural import structural_equal
from tests.programs import BY_NAME

A = sps.csr_array(np.array([[0, 0.5, 0], [0, 0, 0], [-2, 0, 0.1]], "float32"))
ROWS = """from spcomp import script as T


@T.prim_func
def rows(a: T.handle, y: T.handle, indptr: T.handle, indices: T.handle, m: T.int32, n: T.int32,
         nnz: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            Y[i] = 0.0
        T.print("100 %", i, j, "has", A[i, j], A[i, j] > 0.0, T.cast(A[i, j], "float64"))
        Y[i] = Y[i] + A[i, j]
"""
LINES = (
    "100 % 0 1 has 0.5 True 0.5\n"
    "100 % 2 0 has -2 False -2\n"
    "100 % 2 2 has 0.1 True 0.1000000014901161\n"
)
FLAT = """from spcomp import script as T


@T.prim_func
def flat(a: T.handle, n: T.int32) -> None:
    A = T.match_buffer(a, (n,), "float32")
    for i in T.{loop}(n):
        {statement}
"""


def flat(statement, loop="serial"):
    return spcomp.parse(FLAT.format(loop=loop, statement=statement))


def test_every_stage_prints_the_same_lines(capfd):
    kernel = spcomp.compile(spcomp.parse(ROWS))
    for stage in ("coordinate", "position", "flat", "code"):
        kernel.interpret(stage, A=A)
        assert capfd.readouterr().out == LINES, stage


def test_lines_come_with_every_call_after_what_python_printed(capfd):
    kernel = spcomp.compile(spcomp.parse(ROWS))
    for _ in range(4):  # the third would be repeated by a plan
        sys.stdout.write("before ")
        np.testing.assert_array_equal(kernel(A=A), A.sum(axis=1))
        assert capfd.readouterr().out == f"before {LINES}"


def test_a_program_that_prints_runs_in_order_and_others_as_before():
    assert "parallel" in spcomp.compile(BY_NAME["csrmm"].build()).stage("flat")
    kernel = spcomp.compile(spcomp.parse(ROWS))
    assert not list(kernel.trace)
    assert "printf" in kernel.source("llvm")


@pytest.mark.parametrize("loop", ["serial", "unroll", "vectorized"])
def test_loops_of_every_kind_print_each_iteration(loop, capfd):
    spcomp.compile(flat('T.print("é %d\\n", i)', loop))(A=np.zeros(3, "float32"))
    assert capfd.readouterr().out == "".join(f"é %d\n {i}\n" for i in range(3))


@pytest.mark.parametrize(
    "parts",
    [
        "",
        '""',
        '"a"',
        "i",
        "i, i",
        '"", i',
        'i, ""',
        'i, "", i',
        '"a b", i, "c", i, "d"',
        "i, True",
    ],
)
def test_what_is_printed_is_read_back(parts):
    for name in ("print", "fail") if parts else ("print",):
        func = flat(f"T.{name}({parts})")
        assert structural_equal(spcomp.parse(func.script()), func)


def test_numbers_of_a_failure_are_those_of_the_place_that_failed():
    shown = '"row", i, "has", A[i], A[i] < 0.0, T.uint64(18446744073709551615)'
    text = f"if A[i] < 0.0:\n            T.fail({shown})"
    x = np.ones(100_000, "float32")
    x[77_777] = -0.1
    said = f"row 77777 has -0.1 True {2**64 - 1}"
    for loop in ("serial", "parallel"):
        kernel = spcomp.compile(flat(text, loop))
        for call in (kernel, kernel, kernel, pickle.loads(pickle.dumps(kernel))):
            with pytest.raises(ArgumentError, match=re.escape(said)):
                call(A=x)
        with pytest.raises(ArgumentError, match=re.escape(said.replace("77777", "7"))):
            kernel.interpret("flat", A=x[77_770:77_780])


def test_calls_that_fail_at_once_get_their_own_numbers():
    kernel = spcomp.compile(flat('if A[i] < 0.0:\n            T.fail("the number", A[i])'))
    wrong = []

    def call(number):
        for _ in range(200):
            try:
                kernel(A=np.full(3, -number, "float32"))
            except ArgumentError as error:
                if str(error).split()[-1] not in (str(-number), "?"):  # ?: too many at once
                    wrong.append(str(error))

    threads = [threading.Thread(target=call, args=(k,)) for k in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_an_index_outside_is_a_failure_here_too():
    kernel = spcomp.compile(flat("T.print(A[i + 5])"))
    with pytest.raises(ArgumentError, match="an index is outside A"):
        kernel(A=np.zeros(3, "float32"))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ('T.print(f"row {i}")', "shown as it is written"),
        ('T.print("{}", i)', "shown as it is written"),
        ("T.print(A)", "A is a buffer"),
        ("T.fail()", "needs a message"),
    ],
)
def test_what_cannot_be_shown_is_refused(statement, message):
    with pytest.raises(ScriptError, match=message):
        flat(statement)


def test_a_gpu_does_not_print():
    with pytest.raises(LoweringError, match=r"T\.print is for programs that run on a CPU"):
        spcomp.compile(flat("T.print(i)"), target="cuda:sm_90")
