"""``spcomp.einsum`` with dots: dimensions without letters, as numpy broadcasts them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, BackendError
from tests.level_tensors import full

RNG = np.random.default_rng(3)


def some(*shape: int) -> np.ndarray:
    """Whole numbers, which add up exactly."""
    return RNG.integers(-4, 5, shape).astype(float)


DOTS = {
    "...ij,jk->...ik": (some(2, 3, 4, 5), some(5, 6)),
    "...ij,...jk->...ik": (some(2, 3, 4, 5), some(3, 5, 6)),
    "...ij,...jk": (some(2, 3, 4, 5), some(1, 3, 5, 2)),
    "...ij, jk": (some(4, 5), some(5, 6)),
    "...,...": (some(2, 3), some(2, 3)),
    "... , ... -> ...": (some(3, 1), some(1, 4)),
    "...,... ->...": (some(0, 1), some(1, 4)),
    "...->...": (some(1, 3),),
    "...i->...": (some(5, 6),),
    "i...->i...": (some(2, 3, 4),),
    "i...j->...ji": (some(2, 1, 4),),
    "...ii->...i": (some(2, 3, 3),),
    "...i,i": (some(3), some(3)),
}


@pytest.mark.parametrize("subscripts", DOTS)
def test_dots_are_what_numpy_broadcasts(subscripts):
    operands = DOTS[subscripts]
    want = np.einsum(subscripts, *operands)
    made = spcomp.einsum(subscripts, *operands)
    assert np.shape(made) == want.shape
    np.testing.assert_array_equal(made, want)


@pytest.mark.parametrize("kind", [sps.csr_array, sps.csc_array, lambda x: spcomp.convert(x, "csf")])
def test_dots_of_sparse_operands(kind):
    A, B = some(4, 5), some(5, 2)
    np.testing.assert_array_equal(full(spcomp.einsum("...j,jk->...k", kind(A), B)), A @ B)
    single = spcomp.einsum("...j,...j->...j", kind(A[:1]), B.T[:, [0, 1, 1, 0, 1]])
    np.testing.assert_array_equal(full(single), A[:1] * B.T[:, [0, 1, 1, 0, 1]])


@pytest.mark.parametrize(
    ("subscripts", "operands", "message"),
    [
        ("...ij->ij", (some(2, 3, 4),), "lacks the dots"),
        ("..ij->ij", (some(2, 3),), "dots are three"),
        ("...i...->i", (some(2, 3),), "dots are three"),
        ("...ijk->...", (some(2, 3),), "operand0: got 2 dimensions"),
        ("...,...->...", (some(2), some(3)), "operand1: dimension 0"),
    ],
)
def test_dots_that_mean_nothing_are_refused(subscripts, operands, message):
    with pytest.raises(ArgumentError, match=message):
        spcomp.einsum(subscripts, *operands)


def test_einsum_runs_on_the_target_that_is_asked_for():
    a = sps.random_array((6, 5), density=0.4, format="csr", rng=0)
    x = np.random.default_rng(0).random((5, 3))
    made = spcomp.einsum("ij,jk->ik", a, x, target="cuda:sm_90,emulate")
    np.testing.assert_allclose(made, a @ x)
    with pytest.raises(BackendError, match="unknown GPU 'sm_91'"):
        spcomp.einsum("ij,jk->ik", a, x, target="cuda:sm_91,emulate")


def test_what_is_checked_is_what_the_environment_says_now(monkeypatch):
    a = sps.csr_array(np.eye(4))
    broken = sps.csr_array(np.eye(4))
    broken.indices[1] = 9
    for check, raises in (("off", False), ("full", True)):
        monkeypatch.setenv("SPCOMP_CHECK", check)
        spcomp.einsum("ij,jk->ik", a, a)
        if raises:
            with pytest.raises(ArgumentError, match="got 9"):
                spcomp.einsum("ij,jk->ik", broken, a)
            with pytest.raises(ArgumentError, match="got 9"):
                spcomp.Tensor.from_scipy(a) + broken
        else:
            spcomp.Tensor.from_scipy(a) + spcomp.Tensor.from_scipy(a)


def test_the_format_of_the_result_is_named():
    with pytest.raises(ArgumentError, match="argument format: got list, expected the name"):
        spcomp.einsum("ij,jk->ik", sps.csr_array(np.eye(4)), np.eye(4), format=["csr"])
