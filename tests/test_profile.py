"""``kernel.profile``: the time of each phase and nest of a call."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.kernels.profile import split
from spcomp.script.parse import parse_source
from tests.programs import BY_NAME

A = sps.random(50, 60, 0.1, "csr", dtype="float32", rng=np.random.default_rng(1))
TWO = """from spcomp import script as T


@T.prim_func
def two(a: T.handle, b: T.handle, n: T.int64) -> None:
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    half = n // 2
    for i in T.serial(half):
        A[i] = A[i] + 1.0
    for j in T.serial(half, n):
        B[j] = A[j - half] * 2.0
"""


@pytest.fixture
def two():
    return spcomp.compile(parse_source(TWO, "two.py")[0], check="off")


def test_each_nest_is_named_with_its_line(two):
    a, b = np.zeros(8, "float32"), np.zeros(8, "float32")
    found = two.profile(A=a, B=b, repeat=2)
    assert [(p.what, p.place.line) for p in found.phases] == [("loop i", 9), ("loop j", 11)]
    assert all(p.seconds > 0 for p in found.phases)
    assert found.whole > 0
    assert not a.any()
    text = str(found).splitlines()
    assert re.match(r" +[\d.]+ us +32 B +[\d.]+ GB/s +loop i  two.py:9:5$", text[0])
    assert text[-1].endswith("the whole")


def test_nests_are_functions_that_share_nothing(two):
    flat = two._compiled.stages.flat
    module, nests = split(flat)
    assert [op.func for op in module.host] == ["two__nest0", "two__nest1"] == list(nests)
    assert all(func.body is nests[func.name] for func in module.funcs)
    apart = spcomp.compile(module, check="off")
    a, b = np.ones(8, "float32"), np.zeros(8, "float32")
    apart(a, b, 8)
    assert a.tolist() == [2] * 4 + [1] * 4
    assert b.tolist() == [0] * 4 + [4] * 4


def test_what_the_host_does_is_a_phase():
    add = spcomp.compile(BY_NAME["csr_add"].build())
    whats = [phase.what for phase in add.profile(A=A, B=A, repeat=1).phases]
    assert "allocate JC_indptr" in whats
    assert whats[-1] == "return"
    assert any(what.startswith("loop ") for what in whats)


def test_equal_programs_from_other_places_say_their_own_line():
    for shift in (0, 30):
        func = parse_source("\n" * shift + TWO, f"two{shift}.py")[0]
        kernel = spcomp.compile(func, check="off")
        a, b = np.zeros(8, "float32"), np.zeros(8, "float32")
        first = kernel.profile(A=a, B=b, repeat=1).phases[0].place
        assert (first.file, first.line) == (f"two{shift}.py", 9 + shift)
        rows = kernel.explore().page.views[0].panes[0].rows
        assert any(row.label == str(9 + shift) and "for i" in row.text for row in rows)


def test_phases_have_bytes_and_how_busy_threads_were():
    kernel = spcomp.compile(BY_NAME["csrmm"].build())
    dense = np.ones((60, 4), "float32")
    (phase,) = kernel.profile(A=A, B=dense, repeat=1).phases
    moved = sum(x.nbytes for x in (A.data, A.indices, A.indptr, dense)) + 50 * 4 * 4
    assert phase.moved == moved
    assert phase.bandwidth == pytest.approx(moved / phase.seconds)
    assert 0 < phase.busy <= 1


def test_wrong_arguments_are_refused(two):
    with pytest.raises(ArgumentError, match="repeat"):
        two.profile(A=np.zeros(2, "float32"), B=np.zeros(2, "float32"), repeat=0)
    with pytest.raises(ArgumentError):
        two.profile(B=np.zeros(2, "float32"))
    emulated = spcomp.compile(BY_NAME["csrmm"].build(), target="cuda:sm_90,emulate")
    with pytest.raises(ArgumentError, match="for a GPU"):
        emulated.profile(A=A, B=np.ones((60, 4), "float32"))
