"""Machine code that checks index arrays says what a plain loop says."""

import itertools

import numpy as np
import pytest

from spcomp.errors import ArgumentError
from spcomp.runtime.pool import num_threads
from spcomp.runtime.replay import entry
from spcomp.tensors import checks as validate

pytestmark = pytest.mark.skipif(not entry.available(), reason="no machine code on this platform")
INTS = pytest.mark.parametrize("dtype", ["int32", "int64"])


def extremes(dtype):
    limits = np.iinfo(dtype)
    return [-1, 0, 1, 99, 100, limits.max, limits.min]


def pointers_by_hand(p, first, low, high, longest):
    steps = [int(b) - int(a) for a, b in itertools.pairwise(p)]
    ends = 0 <= p[0] <= first and low <= p[-1] <= high
    return bool(ends and all(0 <= step <= longest for step in steps))


def indices_by_hand(x, low, high, order, indptr):
    if len(x) and not low <= x.min() <= x.max() <= high:
        return False
    if not order or not len(x):
        return True
    if indptr[0] != 0 or indptr[-1] != len(x):
        return False
    fibers = [x[a:b].astype(object) for a, b in itertools.pairwise(indptr)]
    return all((np.diff(fiber) >= order - 1).all() for fiber in fibers if len(fiber) > 1)


def draw(rng, dtype):
    """Pointers and ascending coordinates below 100, one of them spoilt in half of the cases."""
    counts = rng.integers(0, 3 + rng.integers(0, 40), rng.integers(1, 60))
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(dtype)
    rows = [np.sort(rng.choice(100, n, replace=bool(rng.random() < 0.01))) for n in counts]
    indices = np.concatenate(rows).astype(dtype)
    for array in (indptr, indices):
        if array.size and rng.random() < 0.25:
            array[rng.integers(array.size)] = rng.choice(extremes(dtype))
    return indptr, indices


@INTS
def test_pointers_are_judged_as_by_hand(dtype):
    rng, verdicts = np.random.default_rng(0), []
    for _ in range(1500):
        indptr, indices = draw(rng, dtype)
        first, low = int(rng.choice([0, 5])), int(rng.choice([0, len(indices)]))
        longest = int(rng.choice([2, 40, 1 << 62]))
        limits = (first, low, len(indices), longest)
        verdicts.append(entry.pointers_ok(indptr, *limits))
        assert verdicts[-1] == pointers_by_hand(indptr, *limits), (indptr, limits)
    assert 0.2 < np.mean(verdicts) < 0.8


@INTS
def test_indices_are_judged_as_by_hand(dtype):
    rng, verdicts = np.random.default_rng(1), []
    for _ in range(1500):
        indptr, indices = draw(rng, dtype)
        if not pointers_by_hand(indptr, 0, 0, len(indices), len(indices)):
            continue  # order is asked for only where these are right
        order, low = int(rng.integers(3)), int(rng.choice([0, 0, -3]))
        verdicts.append(entry.indices_ok(indices, low, 99, order, indptr))
        assert verdicts[-1] == indices_by_hand(indices, low, 99, order, indptr), (indices, indptr)
    assert 0.2 < np.mean(verdicts) < 0.95


@INTS
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_one_fault_in_a_large_array_is_found_wherever_it_is(dtype, threads):
    rows, width = 4001, 23
    indptr = np.arange(rows + 1, dtype=dtype) * width
    indices = np.tile(np.arange(0, 10 * width, 10), rows).astype(dtype)
    with num_threads(threads):
        assert entry.pointers_ok(indptr, 0, len(indices), len(indices), width)
        assert entry.indices_ok(indices, 0, 220, 2, indptr)
        for at in (1, 16383, 16384, 16385, 40000, len(indices) - 1):
            for value in (-1, 221, indices[at - 1] if at % width else -1):
                spoilt = indices.copy()
                spoilt[at] = value
                assert not entry.indices_ok(spoilt, 0, 220, 2, indptr), (at, value)
        for at in (1, 2000, rows - 1):
            spoilt = indptr.copy()
            spoilt[at] += width + 1
            assert not entry.pointers_ok(spoilt, 0, len(indices), len(indices), len(indices)), at


@INTS
def test_large_arrays_get_the_messages_of_small_ones(dtype):
    rows = 20_000
    indptr, indices = np.arange(rows + 1, dtype=dtype), np.zeros(rows, dtype)
    validate.pointers("p", indptr, rows, rows, exact=True)
    validate.in_range("x", indices, 0, 0)
    assert validate.ascends(indptr, indices, 0, strict=True)
    assert not validate.ascends(np.array([0, rows], dtype), indices, 0, strict=True)
    assert validate.ascends(np.array([0, rows], dtype), indices, 0, strict=False)
    indptr[7], indices[9] = 5, 1
    with pytest.raises(ArgumentError, match="p: decreases from 6 to 5 at position 7"):
        validate.pointers("p", indptr, rows, rows)
    with pytest.raises(ArgumentError, match=r"x: got 1 at position 9, expected 0\.\.0"):
        validate.in_range("x", indices, 0, 0)


def test_arrays_that_there_is_no_code_for_are_left_to_numpy():
    wide = np.zeros(10, "uint32")
    assert not entry.pointers_ok(wide, 0, 0, 0, 0)
    assert not entry.indices_ok(np.zeros(20, "int32")[::2], 0, 5)
    assert not entry.indices_ok(np.zeros(10, ">i4"), 0, 5)
    validate.in_range("x", np.zeros(20_000, "uint8"), 0, 0)
