"""Intersections of fibers of any lengths: in step, by searches, or by leaps."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.script.parse import parse_source
from tests.interpreted_notation import interpreted
from tests.level_tensors import full

ROWS, COLUMNS = 40, 300
X = np.arange(1.0, 1 + COLUMNS * 2).reshape(COLUMNS, 2)
PROGRAMS = {
    "y[i] = A[i, j] * B[i, j]": lambda a, b, d: (a * b).sum(axis=1),
    "y[i] = A[i, j] * B[i, j] * D[i, j]": lambda a, b, d: (a * b * d).sum(axis=1),
    "Y[i, k] = A[i, j] * B[i, j] * X[j, k]": lambda a, b, d: (a * b) @ X,
    "Y[i, k] = A[i, j] * B[i, j] * D[i, j] * X[j, k]": lambda a, b, d: (a * b * d) @ X,
    "C[i, j] = A[i, j] * B[i, j] * D[i, j]": lambda a, b, d: a * b * d,
}


def uneven(seed: int) -> np.ndarray:
    """A matrix whose rows hold from none to all of their columns."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0, 0.01, 0.1, 0.5, 1], ROWS)[:, None]
    return rng.integers(1, 9, (ROWS, COLUMNS)) * (rng.random((ROWS, COLUMNS)) < share) * 1.0


@pytest.mark.parametrize("text", PROGRAMS)
@pytest.mark.parametrize("layout", ["csr", "dcsr"])
def test_fibers_of_any_lengths_are_intersected(text, layout):
    arrays = {name: uneven(seed) for seed, name in enumerate("ABD")}
    used = {n: sps.csr_array(a) for n, a in arrays.items() if f"{n}[" in text}
    given = {n: spcomp.convert(a, layout) for n, a in used.items()}
    given |= {"X": X} if "X[" in text else {}
    kernel = spcomp.compile(text)
    want = PROGRAMS[text](*arrays.values())
    got = kernel(**given)
    np.testing.assert_array_equal(full(got), want)
    if not text.startswith("C"):
        np.testing.assert_array_equal(interpreted(kernel, given, "flat"), want)


@pytest.mark.parametrize("text", [text for text in PROGRAMS if text[0] in "yY"])
def test_an_intersection_leaps(text):
    arrays = {name: sps.csr_array(uneven(k)) for k, name in enumerate("ABD") if f"{name}[" in text}
    arrays |= {"X": X} if "X[" in text else {}
    kernel = spcomp.compile(text)
    kernel(**arrays)
    flat = kernel.stage("flat")
    assert "T.gallop(A_j_indices" in flat
    assert ("far = " in flat) == (text == "Y[i, k] = A[i, j] * B[i, j] * X[j, k]"), (
        "two step where they are alike"
    )


MERGES = """
@T.prim_func
def walk(p: T.handle, y: T.handle, n: T.int64) -> None:
    T.func_attr({{"sparse_tir_level": 1}})
    P = T.match_buffer(p, (n,), "int32")
    Y = T.match_buffer(y, (1,), "int64")
    with T.merge("{kind}", T.cursor(P, 0, n)) as [j, q]:
        with T.case(True):
            Y[0] = Y[0] + j * 10 + q
"""


@pytest.mark.parametrize("kind", ["union", "intersect"])
def test_a_merge_of_one_fiber_goes_through_it(kind):
    (func,) = parse_source("from spcomp import script as T\n" + MERGES.format(kind=kind), "m.py")
    made = np.zeros(1, np.int64)
    spcomp.compile(func)(np.array([1, 4, 7], np.int32), made, 3)
    assert made[0] == 120 + 3
