"""Arrays that are copied in another order, where neighbours in memory are picked one by one."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.kernels.notation import crossed
from spcomp.kernels.notation.arguments import call_arguments
from spcomp.kernels.notation.crossed import crossings, uncrossed

RNG = np.random.default_rng(5)
A = sps.random_array((40, 30), density=0.5, format="csr", rng=RNG)
FEW = sps.random_array((40, 30), density=0.01, format="csr", rng=RNG)
X, L = RNG.random((30, 8)), RNG.random((40, 8))
SPMM = "C[i, k] = A[i, j] * X[j, k]"
SDDMM = "C[i, j] = A[i, j] * L[i, k] * Y[k, j]"
GATHER = "C[e, k] = X[at[e], k]"


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    monkeypatch.setattr(crossed, "LEAST", 1)


def copied(text, **named):
    """The names of the arrays of *named* that are copied before *text* runs, with their order."""
    program = spcomp.compile(text).program
    arguments = call_arguments(named)
    after = uncrossed(arguments, crossings(program), ())
    for name, argument in after.items():
        if isinstance(argument.value, np.ndarray):
            np.testing.assert_array_equal(argument.value, named[name])
    changed = {name for name in named if after[name].value is not named[name]}
    return {name: "F" if after[name].value.flags.f_contiguous else "C" for name in changed}


@pytest.mark.parametrize(
    ("text", "named", "wanted"),
    [
        (SPMM, {"A": A, "X": np.asfortranarray(X)}, {"X": "C"}),
        (SPMM, {"A": A, "X": X}, {}),
        (SPMM, {"A": A, "X": X[:, ::2]}, {}),
        (SPMM, {"A": spcomp.Tensor.from_scipy(A), "X": np.asfortranarray(X)}, {"X": "C"}),
        (SPMM, {"A": FEW, "X": np.asfortranarray(X)}, {}),
        (SPMM, {"A": A.toarray(), "X": np.asfortranarray(X)}, {}),
        (SDDMM, {"A": A, "L": L, "Y": X.T.copy()}, {"Y": "F"}),
        (SDDMM, {"A": A, "L": np.asfortranarray(L), "Y": X.T}, {"L": "C"}),
        (GATHER, {"X": np.asfortranarray(X), "at": RNG.integers(0, 30, 50)}, {"X": "C"}),
        (GATHER, {"X": np.asfortranarray(X), "at": RNG.integers(0, 30, 5)}, {}),
        ("C[i, j] = A[i, j] * X[j, i]", {"A": A, "X": RNG.random((30, 40))}, {}),
        ("X[j, k] = A[i, j] * L[i, k]", {"A": A, "L": L}, {}),
    ],
)
def test_what_is_read_along_sparse_coordinates_is_copied_if_it_is_read_often(text, named, wanted):
    assert copied(text, **named) == wanted


@pytest.mark.parametrize("times", [1, 5])
def test_results_are_the_same_and_arrays_in_order_still_go_straight_to_the_code(times):
    kernel = spcomp.compile(SPMM)
    want = A @ X
    for x in (np.asfortranarray(X), X) * times:
        np.testing.assert_allclose(kernel(A=A, X=x), want)
    if times > 1:
        assert kernel._runner.fast_path.ways


def test_what_is_bound_is_not_copied():
    x = np.asfortranarray(X)
    bound = spcomp.compile(SPMM).bind(X=x)
    x *= 2
    np.testing.assert_allclose(bound(A=A), 2 * (A @ X))
