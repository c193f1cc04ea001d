"""Extents of 0, 1 and 2 in every place: versions with them compiled in compute what others do."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from tests.notation_oracle import REDUCTIONS, SEMIRINGS
from tests.random_notation import Case, Writer, elements
from tests.test_notation_random import CHUNK_COMPILED, run

RNG = np.random.default_rng(5)
EXTENTS = (0, 1, 2)
CALLS = 4  # the first plans, the second is learnt, and so on
START, COUNT = 200_000, 120


class Narrow(Writer):
    """Writes programs whose extents are mostly 0 and 1."""

    def _sizes(self) -> None:
        self.case.sizes = {name: self.random.choice((0, 1, 1, 2, 3)) for name in "ijkl"}
        self.case.sizes["m"] = self.case.sizes["i"]


def masked(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Values without a zero, and where they are there."""
    return RNG.integers(1, 9, shape).astype(float), RNG.random(shape) < 0.6


@pytest.mark.parametrize("form", [None, "csr", "dcsr", "bitmap"])
@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.sample(16, long=6)
def test_reductions_give_what_is_there(op, form):
    """With a mask that is dense, and with one that stores what it has."""
    text = f"C[i, j] = {op}(k, A[j, i] if B[j, k])"
    dense, sparse = (spcomp.compile(text, formats={"C": form} if form else {}) for _ in range(2))
    for i, j, k in product(EXTENTS, repeat=3):
        (a, _), (b, there) = masked((j, i)), masked((j, k))
        b = b * there
        case = Case(
            text=text.replace("])", "] else ABSENT)"),
            sizes={"i": i, "j": j, "k": k},
            arrays={"A": (a, np.ones_like(a, bool)), "B": (b, np.ones_like(there))},
        )
        for kernel, mask in ((dense, b), (sparse, sps.csr_array(b))):
            for _ in range(CALLS):
                case.check(kernel(A=a, B=mask), kernel)


@pytest.mark.parametrize("form", ["csr", "dcsr"])
@pytest.mark.parametrize("semiring", [*SEMIRINGS])
@pytest.mark.sample(8, long=4)
def test_products_of_any_inner_extent_are_assembled(semiring, form):
    """Of a dense matrix and a sparse one, in either place."""
    text = "C[i, j] = A[i, k] * B[k, j]"
    kernels = [
        spcomp.compile(text, formats={"C": form}, semiring=spcomp.Semiring(*SEMIRINGS[semiring]))
        for _ in range(2)
    ]
    for i, j, k in product(EXTENTS, repeat=3):
        (a, _), (b, there) = masked((i, k)), masked((k, j))
        full = np.ones_like(a, bool)
        case = Case(text, {"i": i, "j": j, "k": k}, semiring=semiring)
        for _ in range(CALLS):
            case.arrays = {"A": (a, full), "B": (b * there, there)}
            case.check(kernels[0](A=a, B=sps.csr_array(b * there)), kernels[0])
            case.arrays = {"A": (b.T * there.T, there.T), "B": (a.T, full.T)}
            turned = Case(text, {"i": j, "j": i, "k": k}, arrays=case.arrays, semiring=semiring)
            turned.check(kernels[1](A=sps.csr_array(b.T * there.T), B=a.T), kernels[1])


@pytest.mark.parametrize("start", range(START, START + COUNT, CHUNK_COMPILED))
@pytest.mark.sample(3)
def test_random_programs_over_small_extents_compute_what_masked_numpy_does(start):
    for seed in range(start, start + CHUNK_COMPILED):
        case = Narrow(seed).write()
        if run(seed, compiled=True, writer=Narrow) and not case.unclear:
            kernel = case.kernel()
            for _ in range(CALLS):
                case.check(kernel(**case.arguments()), kernel)


def test_a_result_of_empty_blocks_has_its_shape():
    args = {"A": sps.csr_array(np.eye(2)), "B": np.ones((2, 0))}
    kernel = spcomp.compile("C[i, j, k, l] = A[i, j] * B[k, l]")
    for _ in range(CALLS):
        made = kernel(**args)
        assert made.shape == (2, 2, 2, 0)
        assert elements(made)[1].size == 0
