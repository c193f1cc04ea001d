"""Memory of large results, which serves again when they are gone."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from spcomp.runtime import recycle
from spcomp.runtime.recycle import LARGE, empty

FLOAT = np.dtype(np.float32)
COUNT = LARGE // 2


@pytest.fixture(autouse=True)
def nothing_kept():
    recycle._free.clear()
    yield
    recycle._free.clear()


def place(array):
    return array.__array_interface__["data"][0]


def test_a_small_array_is_an_ordinary_one():
    array = empty(10, FLOAT)
    assert array.flags.owndata
    assert array.dtype == FLOAT
    assert array.shape == (10,)


def test_memory_serves_again_when_the_array_and_its_views_are_gone():
    first = empty(COUNT, FLOAT)
    first[:] = 3
    at, view = place(first), first[5:20]
    del first
    second = empty(COUNT, FLOAT)
    assert place(second) != at
    second[:] = 4
    assert (view == 3).all()
    del view
    gc.collect()
    third = empty(COUNT - 7, FLOAT)
    assert place(third) == at
    assert third.shape == (COUNT - 7,)


def test_memory_is_not_given_to_arrays_far_smaller():
    large = empty(8 * COUNT, FLOAT)
    at = place(large)
    del large
    assert place(empty(COUNT, FLOAT)) != at


def test_no_more_than_a_limit_is_kept(monkeypatch):
    monkeypatch.setattr(recycle, "MOST", 7 * LARGE)
    arrays = [empty(COUNT, FLOAT) for _ in range(6)]
    del arrays
    assert sum(memory.size for memory in recycle._free) <= 7 * LARGE


def test_arrays_begin_where_vectors_do():
    array = empty(COUNT, np.dtype(np.int64))
    assert place(array) % 64 == 0
    array[-1] = 9
    assert array[-1] == 9


def test_more_memory_than_there_can_be_is_refused():
    with pytest.raises(MemoryError, match="no memory for a result of up to"):
        empty(1 << 60, FLOAT)


def test_one_larger_than_the_limit_drives_out_nothing(monkeypatch):
    monkeypatch.setattr(recycle, "MOST", 7 * LARGE)
    small, large = empty(COUNT, FLOAT), empty(4 * COUNT, FLOAT)
    del small
    del large
    assert len(recycle._free) == 1


def test_arrays_may_end_while_memory_is_looked_for():
    """As they do where Python collects garbage: in whatever instruction of this thread."""

    class Late(list):
        def __iter__(self):
            while self.ends:
                self.ends.pop()
            return super().__iter__()

    ends = [empty(COUNT, FLOAT) for _ in range(3)]
    recycle._free.append(recycle._Memory(4 * LARGE))
    late = recycle._free = Late(recycle._free)
    late.ends = ends
    try:
        assert empty(COUNT, FLOAT).size == COUNT
        assert not ends
        empty(COUNT, FLOAT)
        assert len(recycle._free) + len(recycle._returned) >= 3
    finally:
        recycle._free = []
