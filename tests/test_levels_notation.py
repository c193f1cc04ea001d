"""Operands of index notation in any level format: against numpy, and what becomes of them."""

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import Format, Tensor
from spcomp.errors import ArgumentError
from spcomp.notation.layout import iterable_layout
from tests.level_tensors import CUBES, MATRICES, full, present, random, tensor

KERNELS = {
    text: spcomp.compile(text)
    for text in (
        "y[i] = A[i, j] * x[j]",
        "y[i] = max(j, A[i, j])",
        "C[i, k] = A[i, j] * X[j, k]",
        "C[i, j] = A[i, j] + B[i, j]",
        "C[j, i] = 2 * A[i, j]",
        "C[i, j] = T[i, j, k] * v[k]",
        "s = A[i, j] * A[i, j] if B[i, j]",
    )
}


@pytest.mark.parametrize("layout", MATRICES, ids=str)
def test_products_with_a_matrix_of_any_format(layout):
    array, stored = random((6, 7))
    A = tensor(array, stored, layout)
    x = np.arange(7.0)
    np.testing.assert_array_equal(KERNELS["y[i] = A[i, j] * x[j]"](A=A, x=x), array @ x)


@pytest.mark.parametrize("layout", MATRICES, ids=str)
def test_reductions_range_over_what_a_format_stores_and_not_its_padding(layout):
    array, stored = random((6, 7))
    array -= 9 * stored
    A = tensor(array, stored, layout)
    want = np.where(present(A), array, -np.inf).max(axis=1, initial=-np.inf)
    np.testing.assert_array_equal(KERNELS["y[i] = max(j, A[i, j])"](A=A), want)


@pytest.mark.parametrize("layout", MATRICES[::2], ids=str)
def test_a_matrix_of_any_format_times_a_dense_one(layout):
    array, stored = random((6, 7))
    X = np.arange(14.0).reshape(7, 2)
    C = KERNELS["C[i, k] = A[i, j] * X[j, k]"](A=tensor(array, stored, layout), X=X)
    np.testing.assert_array_equal(full(C), array @ X)


@pytest.mark.parametrize(
    ("one", "other"), list(zip(MATRICES[::2], MATRICES[::-2], strict=False)), ids=str
)
def test_sums_of_matrices_of_two_formats(one, other):
    a, b = random((6, 7)), random((6, 7), 1)
    C = KERNELS["C[i, j] = A[i, j] + B[i, j]"](A=tensor(*a, one), B=tensor(*b, other))
    np.testing.assert_array_equal(full(C), a[0] + b[0])


@pytest.mark.parametrize("layout", CUBES, ids=str)
def test_a_tensor_of_any_format_times_a_vector(layout):
    array, stored = random((3, 4, 5))
    v = np.arange(5.0)
    C = KERNELS["C[i, j] = T[i, j, k] * v[k]"](T=tensor(array, stored, layout), v=v)
    np.testing.assert_array_equal(full(C), array @ v)


def test_a_mask_may_have_any_format():
    array, _ = random((6, 7))
    other, mask = random((6, 7), 1)
    kernel = KERNELS["s = A[i, j] * A[i, j] if B[i, j]"]
    for layout in (Format("bitmap"), Format("hash"), Format("coo")):
        B = tensor(other, mask, layout)
        assert kernel(A=sps.csr_array(array), B=B) == (array**2)[mask].sum()


def test_parts_of_a_tensor_of_any_format():
    array, stored = random((6, 7))
    part = spcomp.compile("C[:, j] = 3 * A[0:6:2, j(1, 6, 2)]")
    row = spcomp.compile("y[j] = A[-2, j] * x[j]")
    one = spcomp.compile("s = 2 * A[5, 3]")
    x = np.arange(7.0)
    for layout in (Format("hash"), Format("sell(2)"), Format("csc"), Format("rle")):
        A = tensor(array, stored, layout)
        np.testing.assert_array_equal(full(part(A=A)), 3 * array[0:6:2, 1:6:2])
        np.testing.assert_array_equal(full(row(A=A, x=x)), array[-2] * x)
        assert one(A=A) == 2 * array[5, 3]
    assert one(A=array) == one(A=sps.csr_array(array)) == 2 * array[5, 3]


def test_an_argument_can_be_asked_for_in_any_format_and_explain_says_what_became_of_it():
    array, _ = random((6, 7))
    x = np.arange(7.0)
    for wanted in ("hash", Format("csc"), "bsr(2)", Format(("hashed", "bitmap"), (1, 0))):
        kernel = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": wanted})
        for given in (sps.csr_array(array), array, sps.coo_array(array)):
            np.testing.assert_array_equal(kernel(A=given, x=x), array @ x)
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": "hash"})
    assert "A[i, j]: hash, iterated as csr, float64" in kernel.explain(A=sps.csr_array(array), x=x)
    with pytest.raises(ArgumentError, match="'cssr' is no format of 2 dimensions"):
        spcomp.compile("y[i] = A[i, j] * x[j]", formats={"A": "cssr"})
    with pytest.raises(ArgumentError, match="csr is no format of 1 dimensions"):
        spcomp.compile("y[i] = A[i, j] * x[j]", formats={"x": Format("csr")})


LISTED = {
    "y[i] = A[i, j] * x[j]": "ij,j->i",
    "z[j] = A[i, j] * w[i]": "ij,i->j",
    "C[i, k] = -A[i, j] * X[j, k]": "ij,jk->ik",
    "s = A[i, j] * w[i] * x[j]": "ij,i,j->",
}


@pytest.mark.parametrize("text", LISTED)
def test_a_sum_of_products_goes_through_a_list_of_elements_as_it_is(text):
    array, stored = random((6, 7))
    own = {"x": np.arange(7.0), "w": np.arange(6.0), "X": np.arange(14.0).reshape(7, 2)}
    given = {name: own[name] for name in own if name in text}
    names = sorted(given, key=text.index)
    kernel = spcomp.compile(text)
    result = kernel(A=tensor(array, stored, Format("coo")), **given)
    assert "A[i, j]: coo, float64" in kernel.explain()
    want = np.einsum(LISTED[text], array, *(given[name] for name in names))
    np.testing.assert_array_equal(result, -want if "-" in text else want)


@pytest.mark.parametrize(
    "text",
    [
        "y[i] = exp(A[i, j]) * x[j]",
        "C[i, j] = A[i, j] * x[j]",
        "y[i] = A[i, j] * A[i, k] * x[j] * x[k]",
        "y[i] = A[i, j] * x[j] + x[i]",
        "y[i] = sum(j, A[i, j] * x[j]) / sum(j, A[i, j])",
        "y[i] = argmax(j, A[i, j])",
        "y[i] = sum((j, k), A[i, j] * A[k, j])",
    ],
)
def test_where_elements_depend_on_each_other_a_list_is_converted(text):
    array, stored = random((6, 6), 3)
    A, x = tensor(array, stored, Format("coo")), np.arange(6.0) + 1
    given = {"x": x} if "x[" in text.replace("max", "") else {}
    kernel = spcomp.compile(text)
    result = full(kernel(A=A, **given))
    rows = spcomp.convert(A, "csr") if hasattr(spcomp, "convert") else sps.csr_array(array)
    np.testing.assert_allclose(result, full(spcomp.compile(text)(A=rows, **given)))
    assert "coo, iterated as csr" in kernel.explain() or "converted" in kernel.explain()


def test_a_list_with_repeated_or_unsorted_elements_is_summed_first():
    levels = [("compressed", [0, 4], [2, 0, 2, 0]), ("singleton", [1, 3, 1, 3])]
    twice = Tensor((3, 4), levels, np.array([1.0, -5.0, 2.0, 4.0]))
    largest = spcomp.compile("y[i] = max(j, A[i, j] * x[j])")
    np.testing.assert_array_equal(largest(A=twice, x=np.ones(4)), [-1, -np.inf, 3])
    assert "coo" not in largest.explain().splitlines()[1].split("iterated as")[-1]
    once = Tensor((3, 4), [("compressed", [0, 2], [0, 2]), ("singleton", [3, 1])], np.ones(2))
    np.testing.assert_array_equal(largest(A=once, x=np.ones(4)), [1, -np.inf, 1])


MASKED = {
    "y[i] = A[i, j] * x[j]": lambda a, s, d, x: a @ x,
    "y[i] = max(j, A[i, j])": lambda a, s, d, x: np.where(s, a, -np.inf).max(axis=1),
    "y[j] = sum(i, exp(A[i, j]))": lambda a, s, d, x: np.where(s, np.exp(a), 0).sum(axis=0),
    "C[i, j] = A[i, j] + D[i, j]": lambda a, s, d, x: a + d,
    "y[i] = sum(j, x[j] if A[i, j])": lambda a, s, d, x: s @ x,
    "s = A[i, j] * D[i, j]": lambda a, s, d, x: (a * d).sum(),
    "n = any((i, j), A[i, j] > 2)": lambda a, s, d, x: (a > 2).any(),
}


@pytest.mark.parametrize("text", MASKED)
def test_a_bitmap_is_used_as_it_is_and_what_lies_elsewhere_in_its_values_is_no_element(text):
    array, stored = random((6, 7))
    own = {"x": np.arange(7.0), "D": random((6, 7), 1)[0]}
    given = {name: own[name] for name in own if f" {name}[" in text}
    for layout in ("bitmap", "bitmap,bitmap", "dense,bitmap of dimensions 1,0"):
        A = tensor(array, stored, Format(layout))
        held = np.isin(np.arange(A.values.size), A.elements()[1])
        kernel = spcomp.compile(text)
        result = kernel(A=A.with_values(np.where(held, A.values, np.nan)), **given)
        want = MASKED[text](array, stored, own["D"], own["x"])
        np.testing.assert_allclose(result, want)
        assert "A[i, j]: bitmap" in kernel.explain() or "A[i, j]: dense,bitmap" in kernel.explain()
        assert "iterated as" not in kernel.explain()


def test_a_bitmap_whose_pattern_is_the_results_or_that_is_met_many_times_is_converted():
    array, stored = random((6, 7))
    A, X = tensor(array, stored, Format("bitmap")), np.ones((7, 2))
    for text, given in (("C[i, j] = 2 * A[i, j]", {}), ("C[i, k] = A[i, j] * X[j, k]", {"X": X})):
        kernel = spcomp.compile(text)
        result = full(kernel(A=A, **given))
        np.testing.assert_array_equal(result, 2 * array if not given else array @ X)
        assert "A[i, j]: bitmap, iterated as csr" in kernel.explain()


def test_a_bound_tensor_of_any_format_is_taken_in_once():
    array, stored = random((6, 7))
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    for layout in (Format("coo"), Format("bitmap"), Format("sell(2)")):
        bound = kernel.bind(A=tensor(array, stored, layout))
        for x in (np.arange(7.0), np.ones(7)):
            np.testing.assert_array_equal(bound(x=x), array @ x)


def test_a_program_of_the_script_language_takes_levels_in_order_without_padding():
    from tests.script_helpers import parse_source

    text = """from spcomp import script as T

@T.prim_func
def rows(a: T.handle, y: T.handle, indices: T.handle, m: T.int32, n: T.int32, w: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_fixed(I, (n, w), indices, "int32")
    A = T.match_sparse_buffer(a, (I, J), "float64")
    Y = T.match_sparse_buffer(y, (I,), "float64")
    with T.sp_iter([I, J], "SR", "rows") as [i, j]:
        with T.init():
            Y[i] = 0.0
        Y[i] = Y[i] + A[i, j]
"""
    kernel = spcomp.compile(parse_source(text, "rows.py")[0])
    whole = Tensor((2, 3), [None, ("fixed", [[0, 2], [1, 2]])], np.arange(4.0))
    assert kernel(A=whole).tolist() == [1, 5]
    padded = Tensor((2, 3), [None, ("fixed", [[0, 2], [1, -1]])], np.arange(4.0))
    with pytest.raises(ArgumentError, match="got a Tensor with padding"):
        kernel(A=padded)
    turned = Tensor((3, 2), [None, ("fixed", [[0, 2], [1, 2]])], np.arange(4.0), order=(1, 0))
    with pytest.raises(ArgumentError, match="expected levels in order"):
        kernel(A=turned)


@pytest.mark.parametrize("name", ["csr", "csc", "dcsr", "dcsc"])
def test_a_tensor_in_any_order_is_added_to_in_place(name):
    array, stored = random((6, 7))
    C, A = (tensor(array, stored, Format(name)) for _ in range(2))
    assert spcomp.compile("C[i, j] += 2 * A[i, j]")(A=A, C=C) is C
    np.testing.assert_array_equal(C.to_dense(), 3 * array)


BLOCKED = {
    "y[i] = A[i, j] * x[j]": lambda a, s, x, w: np.where(s, a * np.where(s, x, 0), 0).sum(axis=1),
    "y[i] = max(j, A[i, j])": lambda a, s, x, w: np.where(s, a, -np.inf).max(axis=1),
    "y[j] = A[i, j] * w[i]": lambda a, s, x, w: a.T @ w,
}


@pytest.mark.parametrize("blocks", ["bsr(2)", "bsr(2, 3)", "dbsr(4)"])
def test_a_matrix_asked_for_in_blocks_is_stored_so_and_padding_is_no_element(blocks):
    array, stored = random((7, 9))
    x, w = np.arange(9.0), np.arange(7.0)
    x[3] = np.inf  # where blocks are padded, it meets nothing
    given = sps.csr_array((array[stored], np.nonzero(stored)), shape=array.shape)
    for text, want in BLOCKED.items():
        kernel = spcomp.compile(text, formats={"A": blocks})
        own = {name: arg for name, arg in {"x": x, "w": w}.items() if f" {name}[" in text}
        results = [kernel(A=given, **own), kernel.bind(A=given)(**own)]
        results += [kernel.bind(**own)(A=tensor(array, stored, Format("hash")))] if own else []
        with np.errstate(invalid="ignore"):
            expected = want(array, stored, x, w)
        for result in results:
            np.testing.assert_array_equal(result, expected)
        assert f"A[i, j]: {blocks}, float64" in kernel.explain()


def test_other_programs_iterate_a_matrix_in_blocks_as_csr():
    array, stored = random((7, 9))
    wanted = {
        "C[i, j] = 2 * A[i, j]": 2 * array,
        "y[i] = sum(j, exp(A[i, j]))": np.exp(array) * stored,
    }
    for text, want in wanted.items():
        kernel = spcomp.compile(text, formats={"A": "bsr(2)"})
        result = full(kernel(A=tensor(array, stored, Format("csr"))))
        np.testing.assert_allclose(result, want if text[0] == "C" else want.sum(axis=1))
        assert "A[i, j]: bsr(2), iterated as csr" in kernel.explain()


def test_what_is_iterated_is_the_nearest_format_of_axes():
    nearest = {
        "csc": "csc",
        "ell": "ell",
        "coo": "csr",
        "bsr(2, 3)": "csr",
        "sell": "csr",
        "compressed,dense,compressed": "csf",
        "dense,dense,compressed": "dense,compressed,compressed",
        "dense,compressed,dense": "dense,compressed,dense",
        "hashed,dense,fixed": "csf",
    }
    assert {text: str(iterable_layout(Format(text))) for text in nearest} == nearest
    assert str(iterable_layout(Format("ell"), padded=True)) == "csr"


def test_corrupt_index_arrays_of_scipy_are_refused_before_scipy_uses_them():
    kernel = spcomp.compile("y[i] = A[i, j] * x[j]")
    for make in (sps.coo_array, sps.csc_array):
        A = make(np.eye(3))
        kernel(A=A, x=np.ones(3))
        if make is sps.coo_array:
            A.coords[0][1] = 1 << 20
        else:
            A.indices[1] = 1 << 20
        with pytest.raises(ArgumentError, match="got 1048576"):
            kernel(A=A, x=np.ones(3))
