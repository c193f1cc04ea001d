"""Programs of index notation: the standard list, formats of results, semirings, calls."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import notation as N
from spcomp.errors import ArgumentError, LoweringError
from spcomp.ir.structural import structural_equal
from spcomp.script.parse import parse_source

RNG = np.random.default_rng(5)
M, NN, K = 6, 7, 4


def sparse(m: int, n: int, density: float = 0.4) -> np.ndarray:
    """A matrix with zeros where nothing is to be stored."""
    return np.where(RNG.random((m, n)) < density, RNG.uniform(-1, 1, (m, n)), 0.0)


A, B, F, SQUARE = sparse(M, NN), sparse(M, NN), sparse(M, NN), sparse(M, M)
X, Y = RNG.random((NN, K)), RNG.random((M, K))
x, z, w = RNG.random(NN), RNG.random(M), RNG.random(M)
CUBE = np.where(RNG.random((M, NN, K)) < 0.3, RNG.uniform(-1, 1, (M, NN, K)), 0.0)
FORMATS = ("csr", "csc", "coo", "bsr", "lil")


def as_format(matrix: np.ndarray, name: str) -> sps.sparray:
    return sps.coo_array(matrix).asformat(name)


def csr(matrix: np.ndarray) -> sps.csr_array:
    return sps.csr_array(matrix)


def cube() -> sps.coo_array:
    return sps.coo_array(CUBE)


def full(result: object) -> np.ndarray:
    if isinstance(result, spcomp.Tensor):
        return result.to_dense()
    return result.toarray() if sps.issparse(result) else np.asarray(result)


def check(text: str, want: object, kind: str = "", **args: object) -> spcomp.NotationKernel:
    """Compile and call; *kind* is the format of the result."""
    kernel = spcomp.compile(text)
    result = kernel(**args)
    np.testing.assert_allclose(full(result), want, atol=1e-12)
    assert not kind or getattr(result, "format", "dense") == kind
    return kernel


STANDARD = {
    "y[i] = A[i,j] * x[j]": (A @ x, {"x": x}),
    "y[j] = A[i,j] * z[i]": (A.T @ z, {"z": z}),
    "y[j] = alpha * A[i,j] * z[i] + beta * x[j]": (
        2 * A.T @ z + 3 * x,
        {"z": z, "x": x, "alpha": 2, "beta": 3.0},
    ),
    "y[i] = z[i] - A[i,j] * x[j]": (z - A @ x, {"z": z, "x": x}),
    "C[i,k] = A[i,j] * X[j,k]": (A @ X, {"X": X}),
    "C[j,k] = A[i,j] * Y[i,k]": (A.T @ Y, {"Y": Y}),
    "s = A[i,j] * A[i,j]": ((A * A).sum(), {}),
    "s = z[i] * A[i,j] * x[j]": (z @ A @ x, {"x": x, "z": z}),
    "C[i,j] = A[i,j] * Y[i,k] * X[j,k]": (A * (Y @ X.T), {"X": X, "Y": Y}),
    "C[i,j] = sum(k, Y[i,k] * X[j,k]) if A[i,j]": (np.where(A, Y @ X.T, 0), {"X": X, "Y": Y}),
    "C[i,j] = A[i,j] + 1": (A + 1, {}),
    "C[i,j] = exp(A[i,j])": (np.where(A, np.exp(A), 0), {}),
    "y[i] = sum(j, abs(A[i,j]))": (abs(A).sum(1), {}),
    "y[j] = sum(i, A[i,j] ** 2)": ((A**2).sum(0), {}),
    "C[i,j] = A[i,j] / z[i]": (A / z[:, None], {"z": z}),
    "C[j,i] = A[i,j]": (A.T, {}),
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("text", STANDARD)
def test_one_sparse_operand_in_any_format(text, layout):
    want, args = STANDARD[text]
    check(text, want, A=as_format(A, layout), **args)


PAIRS = {
    "C[i,j] = A[i,j] + B[i,j]": A + B,
    "C[i,j] = A[i,j] - B[i,j]": A - B,
    "C[i,j] = A[i,j] * B[i,j]": A * B,
    "C[i,j] = A[i,j] + B[i,j] * 2 + A[i,j] * B[i,j]": A + 2 * B + A * B,
    "C[i,j] = (A[i,j] + B[i,j]) * A[i,j]": (A + B) * A,
    "C[i,j] = A[i,j] if B[i,j]": np.where(B, A, 0),
    "C[i,k] = A[i,j] * B[k,j]": A @ B.T,
    "C[j,k] = A[i,j] * B[i,k]": A.T @ B,
    "s = A[i,j] * B[i,j]": (A * B).sum(),
    "y[i] = sum(j, abs(A[i,j] - B[i,j]))": abs(A - B).sum(1),
    "C[i,k] = (A[i,j] * B[k,j]) if S[i,k]": np.where(SQUARE, A @ B.T, 0),
}


@pytest.mark.parametrize("b", ["csr", "csc"])
@pytest.mark.parametrize("a", ["csr", "csc", "coo"])
@pytest.mark.parametrize("text", PAIRS)
def test_two_sparse_operands_in_any_formats(text, a, b):
    args = {"A": as_format(A, a), "B": as_format(B, b)}
    if "S[" in text:
        args["S"] = csr(SQUARE)
    check(text, PAIRS[text], **args)


def test_three_sparse_operands_are_added_in_one_pass():
    kernel = check(
        "C[i,j] = A[i,j] + B[i,j] + F[i,j]", A + B + F, "csr", A=csr(A), B=csr(B), F=csr(F)
    )
    assert "union(level 1 of A, level 1 of B, level 1 of F)" in kernel.explain()


TENSORS = {
    "C[i,j] = T[i,j,k] * v[k]": np.einsum("ijk,k->ij", CUBE, Y[0]),
    "C[i,j,l] = T[i,j,k] * Z[k,l]": np.einsum("ijk,kl->ijl", CUBE, Y[:K]),
    "D[i,r] = T[i,j,k] * X[j,r] * Z[k,r]": np.einsum("ijk,jr,kr->ir", CUBE, X, Y[:K]),
    "s = T[i,j,k] * T[i,j,k]": (CUBE**2).sum(),
    "y[k] = T[i,j,k]": CUBE.sum((0, 1)),
}


@pytest.mark.parametrize("text", TENSORS)
def test_a_tensor_of_three_dimensions(text):
    given = {"T": cube(), "v": Y[0], "Z": Y[:K], "X": X}
    check(text, TENSORS[text], **{n: a for n, a in given.items() if f"{n}[" in text.split("=")[1]})


def test_the_result_has_the_pattern_of_its_operand_and_shares_its_arrays():
    matrix = csr(A)
    result = spcomp.compile("C[i,j] = 2 * A[i,j]")(A=matrix)
    assert np.shares_memory(result.indices, matrix.indices)
    assert spcomp.compile("C[j,i] = 2 * A[i,j]")(A=matrix).format == "csc"


def test_what_is_not_stored_contributes_nothing_to_a_reduction():
    rows = np.where(A.any(1), np.where(A, A, -np.inf).max(1), -np.inf)
    check("y[i] = max(j, A[i,j])", rows, A=csr(A))
    products = np.where(A, A, 1).prod(1)
    check("y[i] = prod(j, A[i,j])", products, A=csr(A))
    check("y[i] = min(j, A[i,j] * x[j])", np.where(A, A * x, np.inf).min(1), A=csr(A), x=x)


def test_a_number_is_present_everywhere_and_infinity_meets_only_what_is_stored():
    check("y[i] = sum(j, A[i,j] + 1)", (A + 1).sum(1), A=csr(A))
    wild = x.copy()
    wild[0] = np.inf
    matrix = A.copy()
    matrix[:, 0] = 0
    check("y[i] = A[i,j] * x[j]", matrix @ x, A=csr(matrix), x=wild)
    other = as_format(np.where(B, np.inf, 0), "csc")
    want = np.where(A.astype(bool) & B.astype(bool), np.copysign(np.inf, A), 0)
    assert not np.isnan(full(spcomp.compile("C[i,j] = A[i,j] * B[i,j]")(A=csr(A), B=other))).any()
    check("C[i,j] = A[i,j] * B[i,j]", want, A=csr(A), B=other)


def test_argmax_and_argmin_give_the_least_coordinate_of_what_is_stored():
    matrix = A.copy()
    matrix[2] = 0
    matrix[3, 1:4] = 5
    stored = np.where(matrix, matrix, -np.inf)
    want = np.where(matrix.any(1), stored.argmax(1), -1)
    least = np.where(matrix.any(0), np.where(matrix, matrix, np.inf).argmin(0), -1)
    for layout in FORMATS:
        check("y[i] = argmax(j, A[i,j])", want, A=as_format(matrix, layout))
        check("y[j] = argmin(i, A[i,j])", least, A=as_format(matrix, layout))
    nearest = abs(z[:, None] - x).argmin(1)
    check("y[i] = argmin(j, abs(z[i] - x[j]))", nearest, z=z, x=x)


def test_filters_keep_what_their_condition_says():
    check("C[i,j] = A[i,j] if A[i,j] > 0.2", np.where(A > 0.2, A, 0), "csr", A=csr(A))
    check("y[i] = sum(j, A[i,j] if A[i,j] > 0)", np.maximum(A, 0).sum(1), A=csr(A))
    dense = B > 0
    check("C[i,j] = A[i,j] if D[i,j]", np.where(dense, A, 0), A=csr(A), D=dense)
    check("C[i,j] = A[i,j] if B[i,j] else 2 * A[i,j]", np.where(B, A, 2 * A), A=csr(A), B=csr(B))


def test_reductions_inside_terms_are_computed_where_their_indices_are_bound():
    sums = A.sum(1, keepdims=True)
    check("C[i,j] = A[i,j] / sum(k, A[i,k])", np.where(A, A / sums, 0), "csr", A=csr(A))
    shifted = "exp(A[i,k] - max(l, A[i,l])) if A[i,k]"
    text = f"C[i,j] = (exp(A[i,j] - max(k, A[i,k])) if A[i,j]) / sum(k, {shifted})"
    top = np.where(A, np.exp(A), 0)
    rows = top.sum(1, keepdims=True)
    check(text, np.where(A, top / np.where(rows, rows, 1), 0), A=csr(A))


def test_several_statements_return_what_is_not_read_again():
    text = """
        m[i] = max(j, A[i, j])
        e[i, j] = exp(A[i, j] - m[i]) if A[i, j]
        C[i, j] = e[i, j] / sum(k, e[i, k])
    """
    top = np.where(A, np.exp(A), 0)
    rows = top.sum(1, keepdims=True)
    check(text, np.where(A, top / np.where(rows, rows, 1), 0), "csr", A=csr(A))
    both = spcomp.compile("y[i] = A[i,j] * x[j]; n = sum((i, j), A[i,j])")(A=csr(A), x=x)
    np.testing.assert_allclose(both.y, A @ x)
    np.testing.assert_allclose(both.n, A.sum())


def test_an_argument_may_be_read_at_several_tuples_of_indices():
    check("C[i,j] = S[i,j] * S[j,i]", SQUARE * SQUARE.T, S=csr(SQUARE))
    triangles = ((SQUARE @ SQUARE) * SQUARE).sum()
    check("s = S[i,k] * S[k,j] * S[i,j]", triangles, S=csr(SQUARE))
    check("y[i] = S[i,i]", np.diag(SQUARE), S=csr(SQUARE))
    check("t = S[i,i]", np.trace(SQUARE), S=csr(SQUARE))


def test_windows_strides_and_single_coordinates():
    check("y[j] = A[0:6:2, j] * z[:3]", A[0:6:2].T @ z[:3], A=csr(A), z=z)
    check("y[j] = A[i(1, 4), j] * z[i(2, 5)]", A[1:4].T @ z[2:5], A=csr(A), z=z)
    check("y[j] = A[3, j] + x[j]", A[3] + x, A=csr(A), x=x)
    check("y[i] = A[i, -1]", A[:, -1], A=csr(A))
    check("C[:, j] = A[::2, j] + B[1::2, j]", A[::2] + B[1::2], A=csr(A), B=csr(B))
    check("y[i] = X[2, i]", X[2], X=X)


SEMIRINGS = {
    "min_plus": np.where(A, A + x, np.inf).min(1),
    "max_plus": np.where(A, A + x, -np.inf).max(1),
    "max_times": np.where(A, A * x, -np.inf).max(1),
    "min_max": np.where(A, np.maximum(A, x), np.inf).min(1),
    "plus_pair": (A != 0).sum(1),
    "plus_times": A @ x,
    "or_and": (A.astype(bool) & x.astype(bool)).any(1),
}


@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("name", SEMIRINGS)
def test_semirings_say_what_plus_and_times_are(name, layout):
    kernel = spcomp.compile("y[i] = A[i,j] * x[j]", semiring=name)
    result = kernel(A=as_format(A, layout), x=x)
    np.testing.assert_allclose(result, SEMIRINGS[name])


def test_a_sum_over_a_semiring_skips_what_is_absent():
    kernel = spcomp.compile("C[i,j] = A[i,j] + B[i,j]", semiring=N.min_plus)
    inf = np.inf
    least = np.minimum(np.where(A, A, inf), np.where(B, B, inf))
    result = kernel(A=csr(A), B=csr(B))
    np.testing.assert_allclose(full(result), np.where(np.isinf(least), 0, least))
    own = spcomp.Semiring("max", "min")
    assert own.zero == -inf
    with pytest.raises(ArgumentError, match="neutral"):
        spcomp.Semiring("min", "+", zero=0)


def test_user_functions_with_a_declared_behaviour_at_zero():
    largest = {"largest": spcomp.Function(N.maximum, zero="fill")}
    kernel = spcomp.compile("C[i,j] = largest(A[i,j], B[i,j])", functions=largest)
    either = A.astype(bool) | B.astype(bool)
    np.testing.assert_allclose(
        full(kernel(A=csr(A), B=csr(B))), np.where(either, np.maximum(A, B), 0)
    )
    relu = {"relu": lambda value: N.maximum(value, 0) + 0.5}
    kernel = spcomp.compile("C[i,j] = relu(A[i,j])", functions=relu)
    np.testing.assert_allclose(full(kernel(A=csr(A))), np.where(A, np.maximum(A, 0) + 0.5, 0))


def test_the_same_program_as_python_objects():
    i, j, k = spcomp.indices("i j k")
    a, b, c, s = spcomp.symbols("A, X, C, s")
    c[i, k] = s * a[i, j] * b[j, k] - 1
    result = spcomp.compile(c)(A=csr(A), X=X, s=2)
    np.testing.assert_allclose(result, 2 * A @ X - 1)
    y = spcomp.symbols("y")
    y[i] = N.sum(j, N.exp(a[i, j]))
    np.testing.assert_allclose(spcomp.compile(y)(A=csr(A)), np.where(A, np.exp(A), 0).sum(1))
    with pytest.raises(spcomp.errors.ScriptError, match="no truth value"):
        bool(a[i, j] > 0)


def test_einsum():
    np.testing.assert_allclose(spcomp.einsum("ij,jk->ik", csr(A), X), A @ X)
    np.testing.assert_allclose(spcomp.einsum("ij,jk", csr(A), X), A @ X)
    np.testing.assert_allclose(spcomp.einsum("ij,ij->", csr(A), csr(B)), (A * B).sum())
    assert spcomp.einsum("ij->ji", csr(A)).format == "csc"
    product = spcomp.einsum("ij,kj->ik", csr(A), csr(B), format="csr")
    np.testing.assert_allclose(product.toarray(), A @ B.T)
    with pytest.raises(ArgumentError, match="2 operands are named, 1 given"):
        spcomp.einsum("ij,jk->ik", X)
    with pytest.raises(ArgumentError, match="subscripts"):
        spcomp.einsum("i1->i", X)


def test_results_are_written_to_what_is_given():
    y = np.full(M, 77.0)
    kernel = spcomp.compile("y[i] = A[i,j] * x[j]")
    assert kernel(A=csr(A), x=x, out=y) is y
    np.testing.assert_allclose(y, A @ x)
    more = spcomp.compile("y[i] += A[i,j] * x[j]")
    more(A=csr(A), x=x, out=y)
    more(A=csr(A), x=x, y=y)
    np.testing.assert_allclose(y, 3 * A @ x)
    less = spcomp.compile("y[i] -= A[i,j] * x[j]")
    np.testing.assert_allclose(less(A=csr(A), x=x, y=y), 2 * A @ x)
    with pytest.raises(ArgumentError, match="missing argument y"):
        more(A=csr(A), x=x)


def test_what_is_added_to_a_result_is_added_whatever_it_is():
    y = np.ones(M)
    largest = np.where(A.any(1), np.where(A, A, -np.inf).max(1), -np.inf)
    result = spcomp.compile("y[i] += max(j, A[i,j])")(A=csr(A), y=y.copy())
    np.testing.assert_allclose(result, y + largest)
    result = spcomp.compile("y[i] += z[i] * 2 - A[i,j] * x[j]")(A=csr(A), x=x, z=z, y=y.copy())
    np.testing.assert_allclose(result, y + 2 * z - A @ x)
    matrix = csr(A)
    for text, added in {
        "C[i,j] += 2 * A[i,j]": 2 * A,
        "C[i,j] += A[i,j] * Y[i,k] * X[j,k]": A * (Y @ X.T),
        "C[i,j] += max(k, Y[i,k] * X[j,k]) if A[i,j]": np.where(A, (Y[:, None] * X).max(2), 0),
    }.items():
        target = matrix.copy()
        args = {"X": X, "Y": Y} if "X" in text else {}
        assert spcomp.compile(text)(A=matrix, C=target, **args) is target
        np.testing.assert_allclose(target.toarray(), A + added)


def test_bound_arguments_are_taken_in_once():
    kernel = spcomp.compile("y[i] = A[i,j] * x[j]")
    for layout in FORMATS:
        bound = kernel.bind(A=as_format(A, layout))
        for scale in (1, 2):
            np.testing.assert_allclose(bound(x=scale * x), scale * A @ x)
    with pytest.raises(ArgumentError, match="bound already"):
        bound(A=csr(A), x=x)
    with pytest.raises(ArgumentError, match="missing argument x"):
        bound()
    with pytest.raises(ArgumentError, match="unexpected argument q"):
        kernel.bind(q=1)


def test_what_is_stored_without_a_value_is_the_zero_of_the_semiring():
    rows = sps.coo_array(np.where(np.arange(M) % 2, np.inf, 0.0))
    result = spcomp.compile("C[i,j] = A[i,j] * r[i]")(A=csr(A), r=rows)
    want = np.where(np.arange(M)[:, None] % 2 * (A != 0), np.copysign(np.inf, A), 0)
    np.testing.assert_array_equal(result.toarray(), want)
    assert result.nnz == np.count_nonzero(A)
    least = spcomp.compile("C[i,j] = A[i,j] * r[i]", semiring="min_plus")
    stored = least(A=csr(A), r=sps.coo_array(np.eye(M)[1]))
    np.testing.assert_array_equal(np.isinf(stored.toarray()[2]), A[2] != 0)


def test_every_element_of_a_given_output_is_written():
    rows = np.where(RNG.random(M) < 0.5, 1.0, 0.0)
    matrix = csr(A)
    for text in ("C[i,j] = A[i,j] * r[i]", "C[i,j] = A[i,j] * r[i] * Y[i,k] * X[j,k]"):
        target = matrix.copy()
        target.data[:] = 77
        more = Y @ X.T if "X" in text else 1
        args = {"X": X, "Y": Y} if "X" in text else {}
        spcomp.compile(text)(A=matrix, r=sps.coo_array(rows), out=target, **args)
        np.testing.assert_allclose(target.toarray(), A * rows[:, None] * more)


def test_an_output_in_another_order_is_refused_not_transposed():
    kernel = spcomp.compile("C[i,j] = A[i,j] + B[j,i]")
    with pytest.raises(ArgumentError, match="not C-contiguous"):
        kernel(A=SQUARE, B=SQUARE, out=np.zeros((M, M), order="F"))
    turned = np.asfortranarray(SQUARE)
    np.testing.assert_allclose(kernel(A=turned, B=turned), SQUARE + SQUARE.T)


def test_formats_of_results_can_be_asked_for():
    kernel = spcomp.compile("C[i,j] = A[i,j] * B[i,j]", formats={"C": "dense"})
    assert isinstance(kernel(A=csr(A), B=csr(B)), np.ndarray)
    for layout in ("csr", "csc"):
        kernel = spcomp.compile("C[i,j] = A[i,j] + B[i,j]", formats={"C": layout})
        result = kernel(A=csr(A), B=csr(B))
        assert result.format == layout
        np.testing.assert_allclose(result.toarray(), A + B)
    hyper = spcomp.compile("y[i] = A[i,j] * x[j]", formats={"A": "dcsr"})(A=csr(A), x=x)
    np.testing.assert_allclose(hyper, A @ x)
    rows = spcomp.compile("C[i,j] = 2 * A[i,j]", formats={"A": "dcsr"})(A=csr(A))
    assert rows.format == "compressed,compressed"
    np.testing.assert_allclose(full(rows), 2 * A)
    vector = sps.coo_array(A[0])
    result = spcomp.compile("y[j] = a[j] * x[j]")(a=vector, x=x)
    assert result.format == "compressed"
    np.testing.assert_allclose(full(result), A[0] * x)


def test_dtypes_follow_from_the_arguments():
    matrix = csr(A).astype(np.float32)
    kernel = spcomp.compile("y[i] = alpha * A[i,j] * x[j]")
    assert kernel(A=matrix, x=x.astype(np.float32), alpha=2.5).dtype == np.float32
    assert kernel(A=matrix, x=x, alpha=2).dtype == np.float64
    whole = csr((A * 10).astype(np.int32))
    assert kernel(A=whole, x=np.arange(NN, dtype=np.int64), alpha=2).dtype == np.int64
    mask = csr(A.astype(bool))
    counted = spcomp.compile("y[i] = sum(j, A[i,j])")(A=mask)
    assert counted.dtype == np.int64
    np.testing.assert_array_equal(counted, A.astype(bool).sum(1))
    found = spcomp.compile("y[i] = any(j, A[i,j] > 0.5)")(A=csr(A))
    np.testing.assert_array_equal(found, (A > 0.5).any(1))
    wide = csr(A)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    np.testing.assert_allclose(kernel(A=wide, x=x, alpha=1), A @ x)


def test_one_version_per_kind_of_arguments_and_any_size():
    kernel = spcomp.compile("y[i] = A[i,j] * x[j]")
    for m, n in ((3, 4), (8, 2), (0, 5), (1, 1)):
        matrix, vector = sparse(m, n), RNG.random(n)
        np.testing.assert_allclose(kernel(A=csr(matrix), x=vector), matrix @ vector)
    assert len(kernel._runner.versions) == 1
    kernel(A=as_format(A, "csc"), x=x)
    assert len(kernel._runner.versions) == 2
    again = pickle.loads(pickle.dumps(kernel))
    np.testing.assert_allclose(again(A=csr(A), x=x), A @ x)


def test_explain_says_what_was_chosen_and_why():
    kernel = spcomp.compile("C[i,j] = (A[i,j] + B[i,j]) * X[i,j]")
    text = kernel.explain(A=csr(A), B=csr(B), X=A)
    assert "A[i, j]: csr, float64" in text
    assert "C[i, j]: csr, assembled, its pattern is A[i, j] or B[i, j]" in text
    assert "for j in union(level 1 of A, level 1 of B): one of them suffices" in text
    with pytest.raises(ArgumentError, match="not known yet"):
        spcomp.compile("y[i] = x[i]").explain()
    assert "sp_iter" in kernel.stage("coordinate")


PRINTED = (
    "C[i,j] = A[i,j] + B[i,j]",
    "C[i,k] = A[i,j] * B[k,j]",
    "C[i,j] = (S[i,k] * A[k,j]) if B[i,j]",
    "y[i] = sum(j, abs(A[i,j] - x[j]))",
    "y[i] = argmax(j, A[i,j] if B[i,j] > 0)",
    "C[i,j] = A[i,j] / sum(k, B[i,k] * A[i,k])",
)


@pytest.mark.parametrize("text", PRINTED)
def test_what_is_emitted_prints_and_parses_to_the_same_program(text):
    given = {"A": csr(A), "B": csr(B), "S": csr(SQUARE), "x": x}
    used = {name: arg for name, arg in given.items() if f"{name}[" in text.split("=", 1)[1]}
    (kernel,) = spcomp.compile(text).specialize(**used).kernels()
    func = kernel._compiled.program
    (again,) = parse_source(func.script(), "printed.py")
    assert structural_equal(func, again)


def test_a_masked_product_merges_the_mask_with_the_rows_of_an_operand():
    kernel = spcomp.compile("C[i,j] = (S[i,k] * A[k,j]) if B[i,j]")
    result = kernel(S=csr(SQUARE), A=csr(A), B=csr(B))
    np.testing.assert_allclose(result.toarray(), np.where(B, SQUARE @ A, 0))
    assert "for j in intersect(level 1 of A, level 1 of B)" in kernel.explain()
    assert "T.intersect(T.attach(A_j, S_k), B_j)" in kernel.stage("coordinate")
    both = spcomp.compile("C[i,j] = S[i,k] * (A[k,j] + B[k,j])", formats={"C": "dense"})
    np.testing.assert_allclose(both(S=csr(SQUARE), A=csr(A), B=csr(B)), SQUARE @ (A + B))
    assert "for j in union(level 1 of A, level 1 of B)" in both.explain()


def test_products_of_sparse_operands_are_assembled_row_by_row():
    for layout in ("csr", "csc"):
        kernel = spcomp.compile("C[i,k] = A[i,j] * B[k,j]", formats={"C": layout})
        result = kernel(A=csr(A), B=csr(B))
        assert result.format == layout
        assert result.nnz == ((A != 0).astype(int) @ (B != 0).T.astype(int) > 0).sum()
        np.testing.assert_allclose(result.toarray(), A @ B.T)
    vector = sps.coo_array(np.where(np.arange(M) % 2, 1.5, 0))
    outer = spcomp.compile("C[i,j] = r[i] * B[k,j] * S[k,k]")(r=vector, B=csr(B), S=csr(SQUARE))
    want = np.outer(vector.toarray(), (np.diag(SQUARE)[:, None] * B).sum(0))
    np.testing.assert_allclose(full(outer), want)


def test_a_literal_is_true_unless_it_is_zero():
    kernel = spcomp.compile("y[i] = A[i,j] * 2", semiring="or_and")
    np.testing.assert_array_equal(kernel(A=csr(A)), A.any(1))


def test_what_cannot_be_stored_as_asked_is_refused_with_a_way_out():
    with pytest.raises(LoweringError, match="present everywhere"):
        spcomp.compile("C[i,j] = A[i,j] + 1", formats={"C": "csr"})(A=csr(A))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("q[i] = A[i, j] * p[j]; pq = p[i] * q[i]", "pq_p_i_q_i"),  # q is read, so no result
        ("q[i] = A[i, j] * p[j]; r[i] = 2 * p[i]", "q_i_A_i_j_p_j"),
    ],
)
def test_a_kernel_is_called_as_the_statement_of_its_first_result(text, name):
    assert spcomp.compile(text).name == name
