"""The learnt way of calls that assemble their result: several functions, and arrays between."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.runtime import host
from spcomp.runtime.replay import entry
from spcomp.script.parse import parse
from tests.entry_programs import CASES
from tests.test_entry import full_way, learnt

pytestmark = pytest.mark.skipif(not entry.available(), reason="no call entry on this Python")

DIVIDED = """
@T.prim_func
def divided(a: T.handle, b: T.handle, c: T.handle, p: T.handle, q: T.handle, r: T.handle,
            s: T.handle, m: T.int32, n: T.int32, nnz_a: T.int32, nnz_b: T.int32) -> None:
    I = T.dense_fixed(m)
    K = T.sparse_variable(I, (n, nnz_a), (p, q), idtype="int32")
    L = T.dense_fixed(n)
    J = T.sparse_variable(L, (n, nnz_b), (r, s), idtype="int32")
    JC = T.sparse_variable(I, (n, None), (None, None), idtype="int32")
    A = T.match_sparse_buffer(a, (I, K), "int32")
    B = T.match_sparse_buffer(b, (L, J), "int32")
    C = T.match_sparse_buffer(c, (I, JC), "int32")
    with T.sp_iter([I, K, T.attach(J, K)], "SRS", "divided") as [i, k, j]:
        with T.init():
            C[i, j] = 0
        C[i, j] = C[i, j] + A[i, k] // B[k, j]
"""


def test_any_function_of_a_program_that_fails_says_so_in_a_repeated_call():
    a = sps.csr_array(np.full((4, 4), 6, "int32"))
    b = sps.csr_array(np.full((4, 4), 2, "int32"))
    kernel = learnt(spcomp.compile(parse(DIVIDED)), lambda: {"A": a, "B": b})
    assert len(kernel._calls.repeats[0].plan.functions) == 2
    np.testing.assert_array_equal(kernel(A=a, B=b).toarray(), np.full((4, 4), 12))
    b.data[5] = 0
    messages = []
    for call in (kernel, full_way(kernel)):
        with pytest.raises(ArgumentError, match="division by zero") as caught:
            call(A=a, B=b)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_repeated_call_has_the_error_of_an_array_that_cannot_be_made(monkeypatch):
    args = CASES["product"][1](np.random.default_rng(20))
    kernel = learnt(spcomp.compile(CASES["product"][0]), lambda: args)

    def scan(memory, array):
        raise ArgumentError("the result has too many elements")

    monkeypatch.setattr(host.HostMemory, "scan", scan)
    with pytest.raises(ArgumentError, match="too many elements"):
        kernel(**args)


def test_a_result_is_not_kept_by_what_was_learnt():
    args = CASES["sum"][1](np.random.default_rng(21))
    kernel = spcomp.compile(CASES["sum"][0])
    results = [weakref.ref(kernel(**args).indices.base) for _ in range(4)]
    gc.collect()
    assert kernel._calls.repeats
    assert [result() for result in results] == [None] * 4
