"""Masked products and triangle counts: only what the mask keeps is computed, through marks."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ScheduleError
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.stmt import Alloc
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.script.parse import parse_source
from tests.layers import source


def _csr(rng, rows, columns, density, dtype=np.float32):
    made = sps.random_array((rows, columns), density=density, rng=rng, dtype=dtype)
    return sps.csr_array(made)


def _square(seed, count=300):
    """Return a random matrix in which some rows are long and some are empty."""
    rng = np.random.default_rng(seed)
    rows = (count * rng.random(4000) ** 3).astype(np.int32)
    columns = (count * rng.random(4000) ** 2).astype(np.int32)
    made = sps.coo_array((rng.random(4000, np.float32), (rows, columns)), (count, count))
    return sps.csr_array(made.tocsr())


def _masked(a, b, mask):
    kept = sps.csr_array((np.ones_like(mask.data), mask.indices, mask.indptr), mask.shape)
    return (a @ b).multiply(kept).toarray()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
def test_a_masked_product_has_the_pattern_of_its_mask(count):
    a, mask = _square(1, count), _square(2, count)
    kernel = spcomp.compile("C[i, j] = (A[i, k] * B[k, j]) if M[i, j]")
    got = kernel(A=a, B=a, M=mask)
    np.testing.assert_array_equal(got.indptr, mask.indptr)
    np.testing.assert_array_equal(got.indices, mask.indices)
    np.testing.assert_allclose(got.toarray(), _masked(a, a, mask), rtol=1e-4, atol=1e-5)


def test_a_masked_product_shares_the_arrays_of_its_mask():
    a, mask = _square(1), _square(2)
    got = spcomp.compile("C[i, j] = (A[i, k] * B[k, j]) if M[i, j]")(A=a, B=a, M=mask)
    assert np.shares_memory(got.indices, mask.indices)


def test_values_of_the_mask_take_part_where_they_are_multiplied():
    a, mask = _square(3), _square(4)
    got = spcomp.compile("C[i, j] = A[i, k] * B[k, j] * M[i, j]")(A=a, B=a, M=mask)
    np.testing.assert_allclose(got.toarray(), (a @ a).multiply(mask).toarray(), rtol=1e-4)


@pytest.mark.parametrize("form", ["L[i, k] * L[k, j] * L[i, j]", "L[i, k] * L[j, k] * L[i, j]"])
def test_triangles_are_counted_by_rows_and_by_dot_products(form):
    square = _square(5)
    both = square + square.T
    lower = sps.csr_array(sps.tril(both, -1))
    full = (both.toarray() != 0).astype(np.int64)
    np.fill_diagonal(full, 0)
    kernel = spcomp.compile(f"n = {form}", semiring="plus_pair")
    counts = []
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            counts.append(int(kernel(L=lower)))
    assert counts == [np.trace(full @ full @ full) // 6] * 3


def test_a_sum_over_everything_has_the_same_bits_at_any_number_of_threads():
    a = _square(6, 2000)
    kernel = spcomp.compile("n = A[i, k] * A[k, j] * A[i, j]")
    totals = []
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            totals.append(kernel(A=a).tobytes())
    assert len(set(totals)) == 1


def _marked(program, **arguments):
    kernel = spcomp.compile(program).specialize(**arguments)
    return [str(step) for _, step in kernel.trace if step.name == "mark_fiber"]


def test_what_stays_the_same_is_marked_and_the_others_are_gone_through():
    a = _square(1)
    assert _marked("n = A[i, k] * A[k, j] * A[i, j]", A=a) == ["mark_fiber('j', 1)"]
    assert _marked("n = A[i, k] * A[j, k] * A[i, j]", A=a) == ["mark_fiber('k', 0)"]
    assert _marked("C[i, j] = A[i, j] * B[i, j]", A=a, B=a) == []


def test_marks_take_a_bit_for_each_coordinate_and_half_a_bit_if_positions_are_asked_for():
    rows = Schedule(source("masked_total").specialize({"n": 6400})).lower_sparse_iter()
    assert _workspaces(rows.mark_fiber("j", 1).func) == {"JD_words": 6400, "JD_before": 3200}
    dots = Schedule(source("masked_dots").specialize({"l": 6400})).lower_sparse_iter()
    assert _workspaces(dots.mark_fiber("k", 0).func) == {"K_words": 6400, "K_before": 3200}
    a = _square(1)
    counting = spcomp.compile("n = A[i, k] * A[k, j] * A[i, j]", semiring="plus_pair")
    counting(A=a)
    assert "before" not in counting.stage("position")


def _workspaces(func):
    """Return the bits of each workspace of *func*, by its name."""
    found = [n.buffer for n in walk(func.body) if isinstance(n, Alloc)]
    return {b.name: simplify(b.shape[0]).value * b.dtype.bits for b in found}


def test_a_vector_is_marked_once_for_all_rows():
    a = _square(7)
    x = sps.coo_array(a[[5]].toarray()[0])
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    got = kernel(A=a, x=x)
    assert kernel.stage("position").index("for mark") < kernel.stage("position").index("for i ")
    np.testing.assert_allclose(got, a @ x.toarray(), rtol=1e-4)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (lambda s: s.mark_fiber("j", 0), "its fiber differs from one intersection to the next"),
        (lambda s: s.mark_fiber("j", 2), "has 2 operands"),
        (lambda s: s.mark_fiber("k", 0), "nothing is merged along 'k'"),
        (lambda s: s.partial_results("o"), "it does more than to reduce into one element"),
        (lambda s: s.partial_results("k"), "how often it runs is not known"),
        (lambda s: s.unroll("i").partial_results("i"), "is no serial loop"),
    ],
)
def test_what_cannot_be_marked_or_parted_is_refused(steps, message):
    with pytest.raises(ScheduleError) as caught:
        steps(Schedule(source("masked_total")).lower_sparse_iter())
    assert message in caught.value.message


def test_an_operand_with_repeated_coordinates_is_not_marked():
    rng = np.random.default_rng(0)
    a, b = _csr(rng, 20, 30, 0.2), _csr(rng, 30, 20, 0.2)
    mask = _csr(rng, 20, 20, 0.3)
    twice = sps.csr_array(
        (np.repeat(mask.data, 2), np.repeat(mask.indices, 2), 2 * mask.indptr), mask.shape
    )
    got = spcomp.compile("n = A[i, k] * B[k, j] * M[i, j]")(A=a, B=b, M=twice)
    np.testing.assert_allclose(got, 2 * (a @ b).multiply(mask).sum(), rtol=1e-4)


def test_marks_around_a_whole_nest_are_printed_as_they_can_be_parsed():
    """Two of three vectors that are intersected again for each element."""
    a = _square(8)
    vectors = {
        name: sps.coo_array(_square(9)[[row]].toarray()[0]) for row, name in enumerate("xyz")
    }
    kernel = spcomp.compile("n = A[i, k] * x[j] * y[j] * z[j]")
    x, y, z = (vector.toarray() for vector in vectors.values())
    np.testing.assert_allclose(kernel(A=a, **vectors), a.sum() * (x * y * z).sum(), rtol=1e-3)
    text = kernel.stage("position")
    assert text.count("for mark") == 2
    assert parse_source(text, "printed.py")[0].script().strip() == text.strip()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("2", "may not be there"),
        ("i", "more than to reduce into one"),
        ("K[0]", "may not be there"),
    ],
)
def test_an_element_that_may_not_be_there_has_no_partial_results(index, message):
    """It would be touched even where no iteration does."""
    (func,) = parse_source(
        f"""from spcomp import script as T

@T.prim_func
def total(a: T.handle, c: T.handle, k: T.handle, m: T.int32, n: T.int32) -> None:
    T.func_attr({{"sparse_tir_level": 1}})
    A = T.match_buffer(a, (m,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    K = T.match_buffer(k, (1,), "int32")
    for i in T.serial(m):
        C[{index}] = C[{index}] + A[i]
""",
        "total.py",
    )
    with pytest.raises(ScheduleError) as caught:
        Schedule(func).partial_results("i")
    assert message in caught.value.message


CONDITIONS = ("i >= j", "S[i, j] is None", "M[i, j]", "D[i, j] > 0.5")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_addends_are_masked_one_by_one(condition):
    """So that a sum of products is sparse under a mask that is everywhere."""
    rng = np.random.default_rng(0)
    S, M = (sps.random_array((13, 13), density=0.2, format="csr", rng=rng) for _ in range(2))
    L = sps.random_array((13, 7), density=0.2, format="csr", rng=rng)
    D = rng.random((13, 13))
    rows, columns = np.indices(D.shape)
    s, m, products = S.toarray(), M.toarray(), (L @ L.T).toarray()
    holds = dict(zip(CONDITIONS, (rows >= columns, s == 0, m != 0, D > 0.5), strict=True))
    for value, dense in (
        ("S[i, j] + L[i, k] * L[j, k]", s + products),
        ("S[i, j] * D[i, j] - 2 * L[i, k] * L[j, k] - S[j, i]", s * D - 2 * products - s.T),
    ):
        kernel = spcomp.compile(f"C[i, j] = ({value}) if {condition}")
        known = {"S": S, "M": M, "L": L, "D": D}
        made = kernel(**{name: known[name] for name in kernel.arguments})
        assert sps.issparse(made)
        np.testing.assert_allclose(made.toarray(), np.where(holds[condition], dense, 0))


def test_a_mask_over_a_large_sum_of_products_takes_no_dense_memory():
    L = sps.random_array((100_000, 20), density=1e-4, format="csr", rng=np.random.default_rng(3))
    S = sps.eye_array(100_000, format="csr")
    made = spcomp.compile("C[i, j] = (S[i, j] + L[i, k] * L[j, k]) if i >= j")(S=S, L=L)
    assert abs(made - sps.tril(S + L @ L.T)).max() < 1e-12
