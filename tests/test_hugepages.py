"""Immutable copies of large arrays: the same bytes, wherever they lie."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from spcomp.runtime import hugepages
from spcomp.runtime.hugepages import LARGE, immutable
from spcomp.tensors.checks import private


@pytest.mark.parametrize("count", [0, 5, LARGE // 4 - 1, LARGE // 4, LARGE // 4 + 1, LARGE + 7])
def test_a_copy_has_the_bytes_of_the_array(count):
    array = np.random.default_rng(count).integers(-9, 9, count).astype("int32")
    copy = immutable(array)
    assert type(copy) is bytes
    assert copy == array.tobytes()
    assert hash(copy) == hash(array.tobytes())


def test_a_view_is_copied_in_the_order_of_its_elements():
    array = np.arange(LARGE, dtype="int64").reshape(2048, -1)[::2].T
    assert immutable(array) == array.tobytes()


def test_a_system_without_huge_pages_copies_all_the_same(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    array = np.arange(LARGE, dtype="int32")
    assert hugepages.immutable(array) == array.tobytes()


def test_what_is_private_cannot_be_written_and_is_not_copied_again():
    array = np.arange(LARGE, dtype="int32")
    mine = private(array)
    array[:] = 0
    assert mine[-1] == LARGE - 1
    assert not mine.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        mine.flags.writeable = True
    assert private(mine) is mine
