"""Programs of index notation that were computed wrongly once, or refused without need."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import Format
from tests.interpreted_notation import interpreted
from tests.level_tensors import full, tensor

DCSR = Format(("compressed", "compressed"))
SQUARE = np.arange(16.0).reshape(4, 4)


def vector(values: list[float], dtype: str = "float64") -> sps.coo_array:
    """A sparse vector of the values that are not 0."""
    return sps.coo_array(np.array(values, dtype))


def cube(*shape: int) -> tuple[np.ndarray, sps.coo_array]:
    """Small whole numbers, about half of them stored."""
    rng = np.random.default_rng(1)
    array = rng.integers(-3, 4, shape) * (rng.random(shape) < 0.5) * 1.0
    return array, sps.coo_array(array)


def test_a_diagonal_of_a_dense_matrix_is_a_diagonal():
    assert spcomp.compile("t = A[i, i]")(A=SQUARE) == np.trace(SQUARE)
    both = spcomp.compile("t = A[i, i] + B[i, j]")(A=SQUARE, B=sps.csr_array(SQUARE))
    assert both == np.trace(SQUARE) + SQUARE.sum()
    got = spcomp.compile("y[i] = A[i, i] * x[i]")(A=SQUARE, x=np.ones(4))
    np.testing.assert_array_equal(got, np.diag(SQUARE))


def test_what_is_neutral_in_a_narrow_type_is_not_taken_for_a_value_in_a_wider_one():
    least = spcomp.compile("C[i] = A[i] + B[i]", semiring="min_plus", formats={"C": "dense"})
    narrow = vector([0, 1, 0], "bool")
    np.testing.assert_array_equal(least(A=narrow, B=vector([3.0, 4.0, 0.0])), [3.0, 1.0, np.inf])
    narrow = vector([0, 1, 0], "int8")
    got = least(A=narrow, B=vector([300, 4, 0], "int64"))
    assert got.tolist()[:2] == [300, 1]


def test_an_absent_argument_of_a_function_that_fills_reads_as_zero_whatever_it_is_made_of():
    fills = spcomp.Function(lambda a, b: a + b + 1, zero="fill")
    kernel = spcomp.compile("C[i] = f(exp(A[i]), B[i] + 1)", functions={"f": fills})
    got = kernel(A=vector([0, 2, 0]), B=vector([0, 0, 5]))
    np.testing.assert_allclose(got, [2.0, np.exp(2) + 2, 7.0])
    twice = spcomp.compile("C[i] = f(f(A[i], B[i]), A[i])", functions={"f": fills})
    got = twice(A=vector([0, 2, 0]), B=vector([0, 0, 5]))
    np.testing.assert_array_equal(got.to_dense(), [0.0, 6.0, 7.0])


def test_what_is_added_to_a_given_result_takes_its_type():
    total = np.ones(3)
    spcomp.compile("C[i] += A[i]")(A=np.array([1, 2, 3]), C=total)
    np.testing.assert_array_equal(total, [2.0, 3.0, 4.0])


def test_numbers_are_joined_by_or_where_the_first_fills_the_result():
    kernel = spcomp.compile("C[i] = A[i] + B[i]", semiring="or_and")
    got = kernel(A=np.array([0, 2, 0]), B=np.array([0, 0, 5]))
    assert got.dtype == bool
    assert got.tolist() == [False, True, True]


def test_a_merge_inside_of_a_merge_is_marked_in_its_case():
    b, sparse_b = cube(3, 2, 4)
    a, sparse_a = cube(3, 2, 2, 4)
    got = spcomp.compile("C[j, i, k] = B[l, j, k] * A[l, i, j, k]")(A=sparse_a, B=sparse_b)
    want = np.einsum("ljk,lijk->jik", b, a)
    np.testing.assert_array_equal(got.to_dense() if hasattr(got, "to_dense") else got, want)


def test_rows_that_are_not_stored_stay_absent_in_a_format_that_is_iterated_as_another():
    array = np.array([[3.0, 4.0], [0.0, 0.0], [5.0, 6.0]])
    for levels in ("hashed,dense", "runs,dense", "bitmap,dense"):
        given = tensor(array, array != 0, spcomp.Format(levels))
        assert spcomp.compile("C = min((i, j), A[i, j])")(A=given) == 3.0, levels


def test_what_is_subtracted_is_negated_in_the_type_of_the_result():
    for dtype, value in (("uint8", 3), ("int8", -128)):
        narrow = np.array([value, 0], dtype)
        for given in (narrow, sps.coo_array(narrow)):
            got = spcomp.compile("C[i] = A[i] - B[i]")(A=np.array([0.5, 2.0]), B=given)
            np.testing.assert_array_equal(got, [0.5 - value, 2.0])
        total = spcomp.compile("c = sum(i, A[i]) - sum(i, B[i])")(A=np.array([1.5]), B=narrow[:1])
        assert total == 1.5 - value


def test_a_reduced_dimension_of_one_coordinate_does_not_start_a_reduction():
    matrix = np.array([[3.0, 0.0, 5.0]])
    given = tensor(matrix, matrix != 0, spcomp.Format("ell"))
    kernel = spcomp.compile("C[l] = E[k, l] * D[k, k]", formats={"C": "dense"})
    np.testing.assert_array_equal(kernel(E=given, D=np.array([[2.0]])), [6.0, 0.0, 10.0])


def test_the_interpreter_reads_the_end_of_the_last_row_below_a_level_of_fixed_width():
    array = np.array([[3.0], [2.0], [0.0]])
    given = tensor(array, array != 0, spcomp.Format("fixed,ragged"))
    kernel = spcomp.compile("C = prod((i, j), B[j, i])")
    for stage in ("coordinate", "position", "flat"):
        assert interpreted(kernel, {"B": given}, stage) == 6.0, stage


def test_an_element_is_started_by_a_loop_that_is_none_of_the_nest_that_updates_it():
    B = spcomp.Tensor((1, 4), [None, ("fixed", np.array([[0, 2, 3]]))], np.array([[1, 2, 3]]))
    D = np.array([[5], [6], [7], [8]], np.int32)
    got = spcomp.compile("C[j, m, i] = B[j, i] + D[m, j]")(B=B, D=D)
    np.testing.assert_array_equal(got[0], B.to_dense() + D)


RNG = np.random.default_rng(5)
A, X, Y, x, z = (RNG.random(shape) for shape in ((6, 7), (7, 4), (6, 4), 7, 6))
A[RNG.random(A.shape) < 0.6] = 0
ACROSS = {
    "y[j] = 0.5 * sum(i, A[i, j] * z[i]) + 2": lambda: 0.5 * A.T @ z + 2,
    "y[j] = minimum(x[j], min(i, A[i, j] + z[i] if A[i, j]))": lambda: np.minimum(
        x, np.where(A != 0, A + z[:, None], np.inf).min(0)
    ),
    "C[i, j] = A[i, j] / (2 + sum(k, A[k, j]))": lambda: A / (2 + A.sum(0)),
    "C[i, j] = A[i, j] * half(sum(k, A[k, j]))": lambda: A * A.sum(0) / 2,
    "y[j] = sum(i, A[i, j]) if x[j] > 0.5": lambda: np.where(x > 0.5, A.sum(0), 0),
    "H[i, k] = maximum(0, sum(j, A[i, j] * X[j, k]))": lambda: np.maximum(0, A @ X),
    "H[j, k] = sum(i, A[i, j] * Y[i, k]) / (2 + sum(i, A[i, j]))": lambda: (
        A.T @ Y / (2 + A.sum(0))[:, None]
    ),
}


@pytest.mark.parametrize("text", ACROSS)
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_a_reduction_inside_that_runs_across_rows_is_computed_before(text, form):
    kernel = spcomp.compile(text, functions={"half": lambda value: value / 2})
    given = {"A": sps.coo_array(A).asformat(form), "X": X, "Y": Y, "x": x, "z": z}
    made = kernel(**{name: given[name] for name in kernel.arguments})
    np.testing.assert_allclose(made.toarray() if sps.issparse(made) else made, ACROSS[text]())
    assert kernel.name.startswith(f"{text[0]}_")
    assert "if stored" not in kernel.explain()


def test_a_reduction_that_an_operand_keeps_small_stays_inside():
    for mask in (
        "C[i, j] = A[i, j] * sum(k, F[i, k] * B[k, j])",
        "C[i, j] = A[i, j] / sum(k, A[i, k])",
        "C[i, j] = A[i, j] * sum(k, B[k, j] // m[j])",
    ):
        assert len(spcomp.compile(mask).program.statements) == 1


def test_a_matrix_of_tensors_without_empty_rows_is_found_by_their_levels():
    """Rows that take every coordinate would leave nothing to iterate below a compressed one."""
    (a, A), (b, B) = cube(4, 5, 6), cube(4, 5, 6)
    A, B = (spcomp.convert(x, "csf") for x in (A, B))
    kernel = spcomp.compile("C[i, k] = A[i, j, k] * B[i, j, k]")
    np.testing.assert_array_equal(full(kernel(A=A, B=B)), (a * b).sum(axis=1))
    assert "for k in intersect(level 2 of A, level 2 of B)" in kernel.explain()
    M = sps.csr_array(a[0])
    kernel = spcomp.compile("C[i, l] = A[i, j, k] * M[l, k]")
    np.testing.assert_array_equal(full(kernel(A=A, M=M)), np.einsum("ijk,lk->il", a, a[0]))
    assert "for i in level 0 of A" in kernel.explain()


@pytest.mark.filterwarnings("error")
def test_a_product_with_a_reduction_inside_is_assembled_by_its_coordinates():
    (a, A), (b, B) = cube(4), cube(5, 6)
    D = np.arange(1.0, 13.0).reshape(4, 3)
    kernel = spcomp.compile("Z[j, i] = sum(n, a[i] * B[j, n] * prod(m, D[i, m]))")
    want = np.einsum("i,jn,i->ji", a, b, D.prod(1))
    np.testing.assert_array_equal(full(kernel(a=A, B=B, D=D)), want)
    np.testing.assert_array_equal(full(interpreted(kernel, {"a": A, "B": B, "D": D})), want)


@pytest.mark.parametrize("layout", ["csc", Format(("compressed", "compressed"), (1, 0)), DCSR])
def test_a_result_that_two_statements_assign_is_returned_by_its_dimensions(layout):
    matrix = np.array([[1.0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 5, 7]])
    A = sps.csc_array(matrix) if layout == "csc" else tensor(matrix, matrix != 0, layout)
    kernel = spcomp.compile("C[i, j] = 2 * A[i, j]\nC[i, j] += A[i, j]")
    np.testing.assert_array_equal(full(kernel(A=A)), 3 * matrix)
    np.testing.assert_array_equal(full(kernel(A=A, out=kernel(A=A))), 3 * matrix)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin_are_the_first_nan(name):
    """As numpy's, in whatever order elements are visited."""
    matrix = np.array([[2, np.nan, 5], [np.nan, 1, np.nan], [3, np.inf, -np.inf], [0, 4, np.nan]])
    want = getattr(np, name)(matrix, 1)
    kernel = spcomp.compile(f"y[i] = {name}(j, A[i, j])")
    columns = sps.csc_array((matrix.T.ravel(), np.tile(range(4), 3), [0, 4, 8, 12]), (4, 3))
    for stored in (matrix, columns.tocsr(), columns, columns.tocoo()):
        np.testing.assert_array_equal(kernel(A=stored), want)


def test_a_minimum_of_a_narrower_type_starts_with_the_zero_of_the_result():
    """Where nothing is stored, the largest int64 is no zero of a result of floats."""
    inner = spcomp.Format(["compressed"] * 3, (1, 2, 0))
    a = spcomp.convert(np.array([[[0.0, 0.5]]]), inner)
    b, d = sps.coo_array((1,)), spcomp.convert(np.zeros((1, 1, 2)), inner)
    text = "C[j, i] = (int64(A[l, i, j]) if B[i]) + D[i, l, j]"
    result = spcomp.compile(text, semiring="min_max")(A=a, B=b, D=d)
    np.testing.assert_array_equal(result.data, np.inf)
    assert result.nnz == 1


@pytest.mark.parametrize("storage", ["csf", "coo", "csf of columns"])
@pytest.mark.parametrize("dtype", ["bool", "uint16", "int32"])
@pytest.mark.parametrize("result", ["max(l, A[l, i, j]) + B[i, j]", "B[i, j] + A[l, i, j]"])
def test_a_maximum_adds_nothing_to_a_wider_type_where_it_is_empty(result, dtype, storage):
    """The zero of unsigned integers is greater than what is negative."""
    a = np.zeros((2, 2, 2), dtype)
    a[0, 1, 0] = 1
    columns = storage == "csf of columns"
    A = spcomp.convert(a, Format(("compressed",) * 3, (1, 2, 0)) if columns else storage)
    B = sps.coo_array([[-1.5, -2.5], [0, -3.5]])
    C = spcomp.compile(f"C[i, j] = {result}", semiring="max_min")(A=A, B=B)
    np.testing.assert_array_equal(full(C), [[-1.5, -2.5], [1, -3.5]])


def test_a_maximum_of_products_of_integers_beside_floats_starts_with_minus_infinity():
    E, M = sps.coo_array([-0.5, 0]), sps.coo_array(np.array([-3, 4], "int8"))
    H = spcomp.convert(np.zeros((2, 2), "int32"), "sell(2)")
    kernel = spcomp.compile("t[k] = E[k] + H[j, k] * M[k]", semiring="max_times")
    np.testing.assert_array_equal(full(kernel(E=E, H=H, M=M)), [-0.5, -np.inf])


def test_sides_of_a_long_sum_have_the_type_of_the_result():
    """Where A is stored and r is not, the least integer is no zero of floats."""
    A, B = (spcomp.convert(np.array([[x, 3]], "int32"), DCSR) for x in (2, 7))
    D, E = (spcomp.convert(np.array([[x, 0.0]]), DCSR) for x in (1.0, -1.0))
    text = "C[i, j] = (A[i, j] * r[j] + B[i, j] * r[j]) + (D[i, j] + E[i, j])"
    C = spcomp.compile(text, semiring="max_times")(A=A, B=B, D=D, E=E, r=vector([1, 0], "int32"))
    np.testing.assert_array_equal(full(C), [[7, -np.inf]])


@pytest.mark.parametrize(
    ("dtype", "semiring", "extreme", "want"),
    [
        ("float64", "plus_times", -np.inf, [-np.inf, 0, -np.inf, 0]),
        ("float64", "min_plus", -np.inf, [-np.inf, 0, -np.inf, 0]),
        ("int32", "min_plus", 5, [7, 0, 14, 0]),
        ("int32", "max_plus", -5, [-2, 0, 4, 0]),
    ],
)
def test_a_product_of_three_multiplies_no_sums_that_are_empty(dtype, semiring, extreme, want):
    """Neutral elements of what is added are not multiplied: infinity * 0 is NaN, others wrap."""
    A = sps.csr_array(np.array([[extreme]], dtype))
    B = spcomp.convert(np.arange(1, 9, dtype=dtype).reshape(1, 4, 2), "csf")
    D = sps.csr_array(np.array([[1, 1], [0, 0], [0, 3], [0, 0]], dtype))
    kernel = spcomp.compile("C[i, l] = A[l, k] * B[k, i, j] * D[i, j]", semiring=semiring)
    C = kernel(A=A, B=B, D=D)
    np.testing.assert_array_equal(full(C)[:, 0], want)
    assert C.nnz == 2


@pytest.mark.parametrize("order", ["oonnnn", "oonoonn", "noonnn", "nnnoonn"])
@pytest.mark.parametrize("bound", [False, True])
def test_calls_with_a_sparse_result_to_write_to_say_nothing_about_others(order, bound):
    """The kernel returns a bsr array, which becomes a Tensor, where no result is given."""
    A = sps.random_array((5, 4), density=0.5, format="csr", rng=0)
    X, W = np.ones((4, 3)), np.ones((2, 3))
    text = "Y[i, j, h, k] = A[i, j] * X[j, h] * W[k, h]"
    first = spcomp.compile(text)(A=A, X=X, W=W)
    kernel = spcomp.compile(text)
    call = kernel.bind(A=A) if bound else lambda **more: kernel(A=A, **more)
    for kind in order:
        out = {"out": first.with_values(np.zeros(first.values.shape))} if kind == "o" else {}
        found = call(X=X, W=W, **out)
        assert type(found) is spcomp.Tensor
        assert found.shape == (5, 4, 3, 2)
        np.testing.assert_array_equal(found.to_dense(), first.to_dense())
