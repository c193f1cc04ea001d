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
from tests.programs import BY_NAME
from tests.test_entry import full_way, learnt

pytestmark = pytest.mark.skipif(not entry.available(), reason="no call entry on this Python")

QUOTIENTS = BY_NAME["spgemm"].source.replace("float32", "int32").replace(" * B[", " // B[")


def test_any_function_of_a_program_that_fails_says_so_in_a_repeated_call():
    a = sps.csr_array(np.full((4, 4), 6, "int32"))
    b = sps.csr_array(np.full((4, 4), 2, "int32"))
    kernel = learnt(spcomp.compile(parse(QUOTIENTS)), lambda: {"A": a, "B": b})
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
