"""The exponential that is computed in vectors: as exact as a library's, at the edges too."""

import numpy as np
import pytest

import spcomp
from spcomp import script as T

EDGES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 88.72, 88.73, -87.4, -103.9, -104.1, 1e30, -1e30]


@T.prim_func
def exponentials(x: T.handle, y: T.handle, n: T.int32) -> None:
    N = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (N,), "float32")
    Y = T.match_sparse_buffer(y, (N,), "float32")
    with T.sp_iter([N], "S", "exponentials") as [i]:
        Y[i] = T.exp(X[i])


def both(x):
    with np.errstate(over="ignore"):
        return spcomp.compile(exponentials)(X=x), np.exp(x.astype(np.float64))


def test_it_is_right_to_one_and_a_half_units_of_the_last_place():
    x = np.linspace(-87, 88.7, 200_003, dtype=np.float32)
    found, exact = both(x)
    units = np.abs(found - exact) / np.spacing(exact.astype(np.float32))
    assert units.max() < 1.5


def test_results_that_are_no_normal_numbers_are_right():
    found, exact = both(np.linspace(-106, -87.4, 10_001, dtype=np.float32))
    assert np.abs(found - exact).max() <= np.spacing(np.float32(0))


@pytest.mark.parametrize("count", [1, 3, 8, 12])
def test_edges_are_those_of_numpy_in_vectors_and_behind_them(count):
    x = np.array((EDGES * count)[-count * 3 :], np.float32)
    found, exact = both(x)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(found, exact.astype(np.float32), rtol=2e-7)


def test_an_element_has_the_same_bits_wherever_it_stands():
    x = np.linspace(-5, 5, 37, dtype=np.float32)
    whole, _ = both(x)
    for at in range(0, 37, 5):
        assert both(x[at : at + 1].copy())[0][0] == whole[at]
