"""Products of sparse matrices on GPUs: rows on threads and warps, in the emulator."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError
from spcomp.knobs import CUDA_GRID
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, Kernels, order
from tests.layers import source
from tests.programs import BY_NAME

PRODUCT = "C[i, j] = A[i, k] * B[k, j]"
GOAL = target(EMULATED)


def drawn(rows, columns, density, seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    made = sps.random_array((rows, columns), density=density, rng=rng, format="csr")
    return made.astype(dtype)


def star(size):
    """Return a matrix with one full row and one full column."""
    dense = np.eye(size, dtype="float32") * 0.3
    dense[size // 3], dense[:, size // 2] = 1.7, 2.1
    return sps.csr_array(dense)


MATRICES = {
    "short rows": (drawn(30, 40, 0.1, 1), drawn(40, 50, 0.1, 2)),
    "long rows": (drawn(9, 40, 0.5, 3), drawn(40, 200, 0.3, 4)),
    "both": (drawn(33, 40, 0.2, 5), drawn(40, 300, 0.04, 6)),
    "one full row": (star(40), star(40)),
    "a warp and one more": (drawn(33, 33, 0.9, 7), drawn(33, 33, 0.9, 8)),
    "a warp": (drawn(32, 32, 0.9, 9), drawn(32, 32, 0.9, 10)),
    "a warp but one": (drawn(31, 31, 0.9, 11), drawn(31, 31, 0.9, 12)),
    "a column": (drawn(20, 100, 0.9, 13), drawn(100, 1, 0.9, 14)),
    "one element": (drawn(1, 1, 1.0, 15), drawn(1, 1, 1.0, 16)),
    "nothing stored": (drawn(5, 7, 0.0, 17), drawn(7, 5, 0.0, 18)),
    "no rows": (drawn(0, 4, 0.0, 19), drawn(4, 5, 0.5, 20)),
    "no columns": (drawn(4, 3, 0.5, 21), drawn(3, 0, 0.0, 22)),
}


@contextmanager
def grid(**knobs):
    """Let the thresholds of grids be others."""
    before = {name: getattr(CUDA_GRID, name) for name in knobs}
    try:
        for name, value in knobs.items():
            object.__setattr__(CUDA_GRID, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(CUDA_GRID, name, value)


@pytest.fixture(scope="module")
def kernels():
    made = (spcomp.compile(PRODUCT, formats={"C": "csr"}, target=t) for t in (EMULATED, "cpu"))
    return tuple(made)


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("name", MATRICES)
def test_every_sum_has_the_order_of_the_program(name, kernels):
    emulated, on_cpu = kernels
    a, b = MATRICES[name]
    expected = on_cpu(A=a, B=b)
    for turn in ORDERS:
        with order(turn):
            found = emulated(A=a, B=b)
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(found.data, expected.data)


@pytest.mark.parametrize(("few", "least", "most"), [(8, 1, 1), (16, 2, 4)], ids=str)
def test_warps_look_at_several_rows_at_a_time(few, least, most):
    """With few warps, each has all rows, some of them at once, and marks that it used before."""
    program = BY_NAME["spgemm"]
    knobs = {"few_products": few, "warps_least": least, "warps_most": most, "warp_turns": 1}
    with grid(**knobs, block_threads=32):
        kernel = Kernels(source("spgemm"))
        for number, case in enumerate(program.cases):
            inputs = program.inputs(case)
            with order(ORDERS[number % len(ORDERS)]):
                program.check(inputs, kernel(dict(inputs)), "float32", case)


def names_of(program):
    return [func.name.removeprefix(program.name) for func in lower(program, GOAL).flat.funcs]


def test_products_have_functions_for_short_and_long_rows():
    found = names_of(source("spgemm"))
    assert [n for n in found if "scan" not in n] == [
        "_work", "_count_short", "_count_long", "_fill_short", "_fill_long",
    ]  # fmt: skip


@T.prim_func
def mirrored(a: T.handle, b: T.handle, c: T.handle, a_indptr: T.handle, a_indices: T.handle,
             b_indptr: T.handle, b_indices: T.handle, m: T.int32, n: T.int32, nnz_a: T.int32,
             nnz_b: T.int32) -> None:  # fmt: skip
    I = T.dense_fixed(m)
    K = T.sparse_variable(I, (n, nnz_a), (a_indptr, a_indices), "int32")
    L = T.dense_fixed(n)
    J = T.sparse_variable(L, (n, nnz_b), (b_indptr, b_indices), "int32")
    M = T.sparse_variable(I, (n, None), (None, None), "int32")
    A = T.match_sparse_buffer(a, (I, K), "float32")
    B = T.match_sparse_buffer(b, (L, J), "float32")
    C = T.match_sparse_buffer(c, (I, M), "float32")
    with T.sp_iter([I, K, T.attach(J, K)], "SRS", "product") as [i, k, j]:
        with T.init():
            C[i, j] = 0.0
        C[i, j // 2] = C[i, j // 2] + A[i, k] * B[k, j]


@pytest.mark.filterwarnings("ignore::spcomp.errors.SpcompWarning")
def test_a_row_whose_elements_may_meet_is_made_by_one_thread():
    """Two lanes would add to one element at the same time."""
    assert not [name for name in names_of(mirrored) if "long" in name]


def test_coordinates_that_come_twice_in_a_row_are_refused():
    """Two lanes would add to one element at the same time here, too."""
    kernel = spcomp.compile(source("spgemm"), target=EMULATED)
    given = {
        "A": np.ones(1, np.float32), "B": np.ones(100, np.float32), "m": 1, "n": 200,
        "a_indptr": np.array([0, 1], np.int32), "a_indices": np.array([0], np.int32),
        "b_indptr": np.array([0, *[100] * 200], np.int32),
    }  # fmt: skip
    columns = np.arange(100, dtype=np.int32)
    assert kernel(b_indices=columns, **given).nnz == 100
    columns[7] = 6
    with pytest.raises(ArgumentError, match="b_indices"):
        kernel(b_indices=columns, **given)


def test_nothing_waits_for_the_kernels_of_rows(kernels):
    emulated, _ = kernels
    a, b = MATRICES["both"]
    launches = emulated.explain(A=a, B=b)
    assert "count_long" in launches
    assert "rows of up to" not in launches  # no version for the lengths of rows
