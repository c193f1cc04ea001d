"""``viz.timeline``, and the pool's log that it is made of: all work, once, by whom it was done."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import viz
from spcomp.errors import ArgumentError
from spcomp.runtime import pool
from spcomp.runtime.pool import Chunks
from tests.programs import BY_NAME

A = sps.random(3000, 200, 0.1, "csr", dtype="float32", rng=np.random.default_rng(1))
B = np.ones((200, 32), "float32")


@pytest.fixture(scope="module")
def spmm():
    return spcomp.compile(BY_NAME["csrmm"].build())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_log_has_every_iteration_once(spmm, threads):
    with pool.num_threads(threads):
        expected = spmm(A=A, B=B)
        with pool.log() as chunks:
            assert np.array_equal(spmm(A=A, B=B), expected)
    loops = {loop: [c for c in chunks if c.loop == loop] for loop in {c.loop for c in chunks}}
    rows = [own for own in loops.values() if max(c.end for c in own) == 3000]
    assert rows
    for own in rows:
        ranges = sorted((c.begin, c.end) for c in own)
        assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert all(c.start <= c.stop for c in chunks)
    assert threading.get_ident() in {c.thread for c in chunks}
    assert len({c.thread for c in chunks}) <= threads


def test_outside_of_a_log_nothing_is_recorded(spmm):
    with pool.log() as chunks:
        pass
    spmm(A=A, B=B)
    assert chunks == []


def test_loops_inside_of_chunks_belong_to_them(monkeypatch):
    rows = [(1, 7, 0, 9, 100, 900), (1, 8, 0, 4, 200, 300), (2, 8, 0, 4, 150, 250)]
    memory = np.array([0, 0, *np.ravel(rows), *[0] * (6 * (pool.LOG_ROOM - 3))], np.int64)
    monkeypatch.setattr(pool, "_log_memory", lambda: memory)
    with pool.log() as chunks:
        memory[1] = 3
    assert [(c.thread, c.loop) for c in chunks] == [(1, 7), (2, 8)]


def test_a_timeline_says_who_was_busy(spmm):
    found = viz.timeline(spmm, A=A, B=B)
    first, *threads = str(found).splitlines()
    assert first.startswith("csrmm: ")
    assert len(threads) == len(found.rows)
    assert 0 < found.busy <= 1
    assert found.seconds > 0
    ET.fromstring(found.svg)
    assert found.svg == found._repr_svg_()


def test_a_picture_of_many_pieces_joins_neighbours(monkeypatch):
    chunks = tuple(Chunks(1, 5 + (k >= 50), k, k + 1, k * 1e-6, (k + 1) * 1e-6) for k in range(100))
    found = viz.Timeline("f", 2, chunks)
    assert found.busy == pytest.approx(0.5)
    assert len(found._pieces()) == 100
    monkeypatch.setattr(sys.modules["spcomp.viz.timeline"], "MOST", 10)
    assert [piece[:2] for piece in found._pieces()] == [(0, 0), (0, 1)]
    assert found._pieces()[-1][3] == pytest.approx(found.seconds)


def test_matplotlib_gets_the_same_pieces(spmm):
    calls = []
    ax = SimpleNamespace(
        barh=lambda *args, **named: calls.append(named), set=lambda **named: calls.append(named)
    )
    found = viz.timeline(spmm, A=A, B=B)
    assert found.draw(ax) is ax
    assert len(calls) == len(found._pieces()) + 1


def test_a_call_without_parallel_loops_is_an_empty_picture():
    found = viz.Timeline("f", 2, ())
    assert (found.seconds, found.busy, found.loops) == (0, 0, ())
    ET.fromstring(found.svg)


def test_what_has_no_timeline_is_refused(spmm):
    with pytest.raises(ArgumentError, match="expected a kernel"):
        viz.timeline(BY_NAME["csrmm"].build(), A=A, B=B)
    emulated = spcomp.compile(BY_NAME["csrmm"].build(), target="cuda:sm_90,emulate")
    with pytest.raises(ArgumentError, match="for a GPU"):
        viz.timeline(emulated, A=A[:4], B=B)
