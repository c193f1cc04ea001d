"""On GPUs, the last trips of unrolled loops load together, and do nothing behind the end."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.variants import facts
from spcomp.knobs import CUDA_KNOBS
from tests.emulated import EMULATED
from tests.layers import source

LENGTHS = [*range(20), 0, 33, 64, 65]
COLUMNS = 70


def matrix(lengths, columns=COLUMNS):
    rng = np.random.default_rng(11)
    indices = [np.sort(rng.choice(columns, n, replace=False)) for n in lengths]
    indptr = np.cumsum([0, *lengths]).astype(np.int32)
    values = rng.random(indptr[-1], np.float32)
    return sps.csr_array(
        (values, np.concatenate(indices).astype(np.int32), indptr), shape=(len(lengths), columns)
    )


def scheduled(most):
    """SpMV on pairs of threads, each with up to *most* terms on their way."""
    sch = spcomp.Schedule(source("spmv")).lower_sparse_iter()
    sch = sch.split("j", 2).reorder("j_i", "j_o").rfactor("j_i").set_scope("spmv1_rf", 0, "local")
    sch = sch.bind("j_i", "threadIdx.x").bind("j_i_1", "threadIdx.x")
    sch = sch.unroll("j_o").annotate("j_o", "pragma_auto_unroll_max_step", most)
    sch = sch.split("i", 8).bind("i_o", "blockIdx.x").bind("i_i", "threadIdx.y")
    return spcomp.compile(sch, target=EMULATED)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 8])
def test_a_row_of_any_length_is_added_up(most):
    a = matrix(LENGTHS)
    x = np.random.default_rng(1).random(COLUMNS, np.float32)
    np.testing.assert_allclose(scheduled(most)(A=a, X=x), a @ x, rtol=1e-5)


@pytest.mark.parametrize("feat", [1, 31, 32, 33])
def test_rows_of_several_columns_too(feat):
    a = matrix([n % 9 for n in range(4200)])  # of up to 8 elements: all at once
    b = np.random.default_rng(2).random((COLUMNS, feat), np.float32)
    kernel = spcomp.compile(source("csrmm"), target=EMULATED)
    np.testing.assert_allclose(kernel(A=a, B=b), a @ b, rtol=1e-5)


def test_what_is_behind_the_end_of_a_row_is_not_added():
    """An infinity that only the next row reads stays there; the last one of a row counts once."""
    a = matrix([1, 2, 3, 5, 6, 7, 1])
    a.indices[:] = np.concatenate([np.arange(n) for n in np.diff(a.indptr)])
    x = np.ones(COLUMNS, np.float32)
    x[[4, 0]] = np.inf, -0.0
    kernel = spcomp.compile(source("spmv"), target=EMULATED)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(kernel(A=a, X=x), a @ x, rtol=1e-5)


def test_trips_that_write_memory_are_not_run_behind_the_end():
    program = spcomp.compile("y[i] = a[i] * 2", target=EMULATED)
    for n in range(7):
        a = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(program(a=a), 2 * a)


@pytest.mark.ptxas
@pytest.mark.parametrize(("lengths", "count"), [([7] * 5000, 4), ([15] * 5000, 4)])
def test_short_rows_take_few_registers(lengths, count):
    """As many threads run as a multiprocessor holds: 2048 of 32 registers."""
    a = matrix(lengths)
    kernel = spcomp.compile(source("spmv"), target="cuda:sm_90")
    version = kernel.specialize(A=a, X=np.ones(COLUMNS, np.float32))
    (took,) = version.resources.values()
    assert took.registers <= 32
    assert version.source("ptx").count("ld.global.nc.b32") >= 2 + 2 * 3 * count


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([3] * 2000 + [300], (True, 64, True)),  # few rows: shorter pieces
        ([3] * 2000 + [200], (False, 0, True)),
        ([3] * 2000 + [10_000], (True, 128, True)),
        ([10] * 200_000 + [600], (True, 128, False)),
        ([400] * 20_000 + [2_000], (True, 256, False)),  # a long row is one of several pieces
        ([400] * 20_000 + [900], (False, 0, False)),
    ],
)
def test_how_long_pieces_are_follows_from_the_matrix(lengths, expected):
    indptr = np.cumsum([0, *lengths])
    known = facts(("p",), {"p": indptr}, CUDA_KNOBS, hubs=True)
    assert (known.hubs, known.piece, known.few) == expected


def test_threads_of_a_small_matrix_are_enough_for_a_row_that_is_not_short():
    a = matrix([3] * 100 + [1000], 3000)
    x = np.ones(3000, np.float32)
    text = spcomp.compile(source("spmv"), target=EMULATED).explain(A=a, X=x)
    assert "split_rows" not in text
    assert "threads 32 x 4" in text
    b = np.ones((3000, 8), np.float32)
    text = spcomp.compile(source("csrmm"), target=EMULATED).explain(A=a, B=b)
    assert "split_rows('i', 'j', 64)" in text
