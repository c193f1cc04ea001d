"""What was made of index arrays, kept for the next call."""

from __future__ import annotations

import numpy as np

from spcomp.tensors.cache import Cache


def test_what_is_kept_is_made_of_a_limited_number_of_bytes():
    kept: Cache[int] = Cache(most_bytes=100)
    arrays = [np.full(10, k, np.int32) for k in range(4)]
    for k, array in enumerate(arrays):
        assert kept.get("kind", (array,), lambda k=k: k) == k
    assert kept.get("kind", (arrays[3],), lambda: -1) == 3
    assert kept.get("kind", (arrays[2],), lambda: -1) == 2
    assert kept.get("kind", (arrays[0],), lambda: -1) == -1


def test_the_newest_is_kept_however_large_it_is():
    kept: Cache[int] = Cache(most_bytes=8)
    array = np.arange(10)
    assert [kept.get("kind", (array,), lambda k=k: k) for k in range(2)] == [0, 0]
