"""``T.stored``: the question whether an element is stored, at every level and in machine code."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import InternalError, ScriptError
from spcomp.ir.access import Load, Stored
from spcomp.ir.expr import const
from spcomp.ir.printer.program import print_func
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.script.parse import parse_source

SOURCE = """
from spcomp import script as T

@T.prim_func
def kept(a: T.handle, b: T.handle, c: T.handle, pa: T.handle, ia: T.handle, pb: T.handle,
         ib: T.handle, m: T.int32, n: T.int32, na: T.int32, nb: T.int32) -> None:
    I = T.dense_fixed(m)
    JA = T.sparse_variable(I, (n, na), (pa, ia), "int32")
    JB = T.sparse_variable(I, (n, nb), (pb, ib), "int32")
    A = T.match_sparse_buffer(a, (I, JA), "float32")
    B = T.match_sparse_buffer(b, (I, JB), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I, {domain}], "SR", "kept") as [i, j]:
        with T.init():
            C[i] = 0.0
        C[i] = C[i] + T.if_then_else(T.stored(B[i, j]), A[i, j], T.float32(0))
"""


def program(domain: str = "JA"):
    (func,) = parse_source(SOURCE.format(domain=domain), "kept.py")
    return func


def matrices() -> tuple[sps.csr_array, sps.csr_array]:
    rng = np.random.default_rng(3)
    return tuple(
        sps.csr_array(np.where(rng.random((5, 7)) < 0.5, rng.random((5, 7)), 0), dtype=np.float32)
        for _ in range(2)
    )


@pytest.mark.parametrize("domain", ["JA", "T.union(JA, JB)", "T.intersect(JA, JB)"])
def test_a_search_a_merge_or_the_iteration_itself_gives_the_answer(domain):
    a, b = matrices()
    b.data[0] = 0  # a zero that is stored is stored
    want = (a.toarray() * (b.toarray() != 0)).sum(1)
    row, column = 0, b.indices[0]
    want[row] += a.toarray()[row, column]
    kernel = spcomp.compile(program(domain))
    np.testing.assert_allclose(kernel(A=a, B=b), want, rtol=1e-6)


def test_what_is_printed_parses_to_the_same_question():
    func = program()
    text = print_func(func)
    assert "T.stored(B[i, j])" in text
    (again,) = parse_source(text, "again.py")
    assert print_func(again) == text


def test_no_question_is_left_below_coordinate_space():
    stages = lower(program("T.union(JA, JB)"), spcomp.target.target("cpu"), {})
    for module in (stages.position, stages.flat):
        assert not any(isinstance(n, Stored) for f in module.funcs for n in walk(f.body))


def test_only_elements_can_be_asked_for():
    with pytest.raises(ScriptError, match="asks for an element"):
        parse_source(SOURCE.format(domain="JA").replace("T.stored(B[i, j])", "T.stored(2.0)"), "x")
    func = program()
    store = next(n for n in walk(func.body) if isinstance(n, Stored))
    assert isinstance(store.element, Load)
    wrong = func.replace(body=func.body.replace(init=None, body=_asking(func)))
    with pytest.raises(InternalError, match="asks for no element"):
        verify(wrong, "test")


def _asking(func):
    from spcomp.ir.stmt import Evaluate

    return Evaluate(Stored(const(1)))
