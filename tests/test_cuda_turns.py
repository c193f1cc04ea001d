"""Code for a GPU: trips of an unrolled loop load before lanes exchange values; signs of zeros."""

from __future__ import annotations

import re

import numpy as np
import scipy.sparse as sps

import spcomp
from spcomp.codegen import nvvm
from spcomp.codegen.nvvm.turns import turn_of
from spcomp.codegen.nvvm.zeros import unsigned_sums
from spcomp.compiler.pipeline import lower
from spcomp.ir import stmt as st
from spcomp.ir.visitor import walk
from spcomp.target import target
from tests.emulated import EMULATED
from tests.programs import BY_NAME

TARGET = "cuda:sm_90"


def sddmm(where=TARGET, **constants):
    program = BY_NAME["sddmm"].build("float32", "int32")
    return spcomp.compile(program, target=where, constants=constants)


def flat(width):
    func = BY_NAME["sddmm"].build("float32", "int32").specialize({"feat": width})
    return lower(func, nvvm.resolve(target(TARGET))).flat.funcs[-1]


def operands(mean, width=32, rows=60):
    rng = np.random.default_rng(mean)
    density = min(1.0, mean / 300)
    S = sps.random_array((rows, 300), density=density, format="csr", dtype=np.float32, rng=rng)
    return S, rng.random((rows, width), np.float32), rng.random((300, width), np.float32)


def unrolled(func):
    return next(n for n in walk(func.body) if isinstance(n, st.For) and turn_of(n.body))


def test_loads_of_several_trips_come_before_the_first_exchange():
    before, *_ = sddmm(feat=32).source("ptx").partition("shfl.sync")
    assert len(re.findall(r"ld\.global\.nc\.v4", before)) == 8  # four of A, and four of B


def test_what_needs_an_exchange_or_may_fail_stays_where_it_is():
    loop = unrolled(flat(32))
    turn = turn_of(loop.body)
    written = {n.buffer.scope for n in walk(turn.first) if isinstance(n, st.Store)}
    assert written == {"local"}
    assert turn_of(st.Seq((*turn.rest.body, *turn.first.body))) is None
    assert turn_of(st.Seq((*turn.first.body, st.Fail("no"), *turn.rest.body))) is None
    stored = next(n for n in walk(turn.rest) if isinstance(n, st.Store) and n.buffer.data)
    read = next(n for n in walk(turn.first) if isinstance(n, st.For))
    assert turn_of(st.Seq((stored, read, *turn.rest.body))) is None


def test_only_vectors_with_one_term_have_no_sign_of_zero():
    # columns: one turn of 8 threads with 4 each, for four elements and for one, or two turns
    for width, count in ((32, 4 + 1), (64, 0)):
        assert len(unsigned_sums(flat(width))) == count


def test_a_sum_of_negative_zeros_is_zero_as_on_a_cpu():
    S, X, Y = operands(20)
    pattern = {"indptr": S.indptr, "indices": S.indices, "m": 60, "n": 300}
    for where in ("cpu", EMULATED):
        made = sddmm(where)(A=np.full_like(X, -0.0), B=Y, **pattern)
        assert not np.signbit(made).any()
