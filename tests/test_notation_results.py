"""Sparse results of index notation: any rank and format, sums of products, read or added to."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, LoweringError, OutOfMemoryError, ScriptError
from spcomp.tensors.conversions.runs import split
from tests.interpreted_notation import interpreted
from tests.random_notation import elements

RNG = np.random.default_rng(11)
FORMATS = ("csr", "csc", "coo", "dcsr", "dcsc", "csf", "hash", "bitmap", "ell", "dia", "bsr(3, 2)")


def some(*shape: int, density: float = 0.3) -> np.ndarray:
    """Small integers, which add up exactly, and zeros where nothing is to be stored."""
    return RNG.integers(1, 5, shape) * (RNG.random(shape) < density).astype(float)


def coo(dense: np.ndarray) -> sps.coo_array:
    return sps.coo_array(dense)


def csr(dense: np.ndarray) -> sps.csr_array:
    return sps.csr_array(dense)


def full(result: object) -> np.ndarray:
    if isinstance(result, spcomp.Tensor):
        return result.to_dense()
    return result.toarray() if sps.issparse(result) else np.asarray(result)


def check(text, want, stored=None, formats=None, **args):
    """Run *text*, compiled and interpreted; *stored* is where the result stores elements."""
    kernel = spcomp.compile(text, formats=formats or {})
    compiled = kernel(**args)
    for result in (compiled, interpreted(kernel, args)):
        np.testing.assert_array_equal(full(result), want)
        if stored is not None:
            coordinates = np.array(elements(result)[0])
            np.testing.assert_array_equal(
                np.sort(coordinates.T, 0), np.sort(np.argwhere(stored), 0)
            )
    return kernel, compiled


T, U, V = some(4, 5, 6), some(4, 5, 6), some(5, 4, 6)
x, y = some(20), some(20)
A, B, C, D = some(6, 8), some(6, 8), some(8, 6), some(6, 6)
M = some(6, 3)


@pytest.mark.parametrize("form", ["sparse", "coo", "hash", "bitmap"])
def test_sparse_vectors_are_added_and_multiplied(form):
    args = {"x": coo(x), "y": coo(y)}
    check("z[i] = x[i] + y[i]", x + y, (x != 0) | (y != 0), {"z": form}, **args)
    check("z[i] = x[i] * y[i]", x * y, (x != 0) & (y != 0), {"z": form}, **args)
    check("z[i] = x[i] if x[i] > 2", np.where(x > 2, x, 0), x > 2, {"z": form}, x=args["x"])


def test_tensors_of_rank_three_are_added_level_by_level():
    args = {"T": coo(T), "U": coo(U)}
    kernel, result = check("C[i,j,k] = T[i,j,k] + U[i,j,k]", T + U, (T != 0) | (U != 0), **args)
    assert isinstance(result, spcomp.Tensor)
    assert result.format == "compressed,compressed,compressed"
    assert "for k in union(level 2 of T, level 2 of U)" in kernel.explain()
    check("C[i,j,k] = T[i,j,k] * U[i,j,k]", T * U, (T != 0) & (U != 0), **args)
    check("C[k,i,j] = T[i,j,k] - 2 * U[i,j,k]", (T - 2 * U).transpose(2, 0, 1), **args)


def test_a_sum_of_too_many_cases_is_computed_in_parts():
    parts = dict(zip("TUVW", (T, U, T[::-1], U[::-1]), strict=True))
    text = "C[i,j,k] = T[i,j,k] + U[i,j,k] + V[i,j,k] - W[i,j,k]"
    want = T + U + T[::-1] - U[::-1]
    kernel, _ = check(text, want, **{name: coo(part) for name, part in parts.items()})
    assert "C_2_2[i, j, k] = T[i, j, k] + U[i, j, k]" in kernel.explain()
    text = "C[i,j,k] = abs(T[i,j,k] + U[i,j,k] + V[i,j,k])"
    kernel = spcomp.compile(text)
    args = {name: coo(parts[name]) for name in "TUV"}
    np.testing.assert_array_equal(full(interpreted(kernel, args)), abs(want + U[::-1]))
    loops = kernel.planned(args).plans[0].nests[0].loops
    assert [loop.kind for loop in loops] == ["union", "union", "dense"]


def test_a_sum_of_products_of_too_many_cases_is_computed_in_parts():
    p, q, r, s, u, v = (some(*shape) for shape in 2 * [(6, 4), (4, 5), (5, 6)])
    first, second = np.einsum("ki,ij->ijk", p, q), np.einsum("jk,ki->ijk", r, s)
    third = np.einsum("ij,jk->ijk", u, v)
    args = {name: coo(array) for name, array in zip("PQRSUV", (p, q, r, s, u, v), strict=True)}
    text = "C[i,j,k] = P[k,i] * Q[i,j] - R[j,k] * S[k,i] + U[i,j] * V[j,k]"
    stored = np.any([first, second, third], 0)
    kernel, _ = check(text, first - second + third, stored, **args)
    assert kernel.explain().count("its pattern is") == 3


def test_operands_in_orders_that_disagree_are_converted():
    want = T + V.transpose(1, 0, 2)
    kernel, _ = check("C[i,j,k] = T[i,j,k] + V[j,i,k]", want, T=coo(T), V=coo(V))
    assert "converted" in kernel.explain()
    text = "P[i,j] = A[i,j] + B[i,j]; Q[j,i] = B[i,j] + F[j,i]"
    P, Q = spcomp.compile(text)(A=csr(A), B=csr(B), F=csr(C))
    np.testing.assert_array_equal(P.toarray(), A + B)
    np.testing.assert_array_equal(Q.toarray(), B.T + C)


@pytest.mark.parametrize("form", FORMATS)
def test_a_matrix_comes_in_the_format_that_is_asked_for(form):
    args = {"A": csr(A), "B": csr(B)}
    _, result = check("C[i,j] = A[i,j] + B[i,j]", A + B, formats={"C": form}, **args)
    known = form.partition("(")[0] in ("csr", "csc", "coo", "dia", "bsr")
    assert sps.issparse(result) if known else str(result.layout) in (form, "dcsr")


@pytest.mark.parametrize("form", ["csc", "dcsr", "coo"])
def test_a_shared_pattern_and_a_product_come_in_the_format_that_is_asked_for(form):
    check("C[i,j] = 2 * A[i,j]", 2 * A, formats={"C": form}, A=csr(A))
    check("C[i,k] = A[i,j] * F[j,k]", A @ C, formats={"C": form}, A=csr(A), F=csr(C))


def test_operands_without_empty_rows_give_a_result_without():
    args = {"A": csr(A), "B": csr(B)}
    formats = {"A": "dcsr", "B": "dcsr"}
    _, result = check("C[i,j] = A[i,j] + B[i,j]", A + B, formats=formats, **args)
    assert str(result.layout) == "dcsr"


def test_a_product_may_have_further_addends():
    args = {"A": csr(A), "F": csr(C), "D": csr(D)}
    pattern = ((A != 0) @ (C != 0)) | (D != 0)
    _, result = check("C[i,k] = A[i,j] * F[j,k] + D[i,k]", A @ C + D, pattern, **args)
    assert result.format == "csr"
    check("C[i,k] = D[i,k] - 2 * A[i,j] * F[j,k]", D - 2 * A @ C, formats={"C": "csc"}, **args)


def test_a_product_of_several_matrices_is_computed_two_by_two():
    args = {"A": csr(A), "F": csr(C), "G": csr(D), "H": csr(M)}
    text = "C[i,l] = 2 * A[i,j] * F[j,k] * G[k,m] * H[m,l]"
    kernel, _ = check(text, 2 * A @ C @ D @ M, **args)
    assert "C_2[i, k] = sum(j, A[i, j] * F[j, k])" in kernel.explain()
    narrow = {**args, "A": csr(A).astype(np.int8), "F": csr(C).astype(np.int8)}
    kernel, _ = check(text, 2 * A @ C @ D @ M, **narrow)  # int8 would not hold the first product
    assert "C_2" not in kernel.explain()
    longest = spcomp.compile("C[i,k] = A[i,j] * F[j,l] * G[l,k]", semiring="max_times")
    longest(A=csr(A), F=csr(C), G=csr(D))
    assert "C_2" not in longest.explain()  # the largest product is not that of the largest factors


def test_what_a_sum_of_products_needs_is_named_in_the_explanation():
    kernel = spcomp.compile("C[i,k] = alpha * A[i,j] * F[j,k] + D[i,k]")
    result = kernel(A=csr(A), F=csr(C), D=csr(D), alpha=2)
    np.testing.assert_array_equal(result.toarray(), 2 * A @ C + D)
    assert "C_2[i, k] = sum(j, " in kernel.explain()
    assert "C[i, k] = C_2[i, k] + D[i, k]" in kernel.explain()
    with pytest.raises(ArgumentError, match="runs as 2 programs"):
        kernel.specialize(A=csr(A), F=csr(C), D=csr(D), alpha=2)
    again = pickle.loads(pickle.dumps(kernel))(A=csr(A), F=csr(C), D=csr(D), alpha=2)
    np.testing.assert_array_equal(again.toarray(), result.toarray())
    bound = kernel.bind(A=csr(A), F=csr(C))
    np.testing.assert_array_equal(bound(D=csr(D), alpha=0.5).toarray(), 0.5 * A @ C + D)


def test_a_tensor_times_a_sparse_matrix_is_sparse():
    args = {"T": coo(T), "M": csr(M)}
    kernel, _ = check("Y[i,j,l] = T[i,j,k] * M[k,l]", np.einsum("ijk,kl->ijl", T, M), **args)
    assert "for j in level 1 of T" in kernel.explain()
    N = some(5, 3)
    want = np.einsum("ijk,jl->ilk", T, N)
    check("Y[i,l,k] = T[i,j,k] * N[j,l]", want, want != 0, T=coo(T), N=csr(N))
    want = np.einsum("ijk,il->ljk", T, N[:4])
    check("Y[l,j,k] = T[i,j,k] * N[i,l]", want, want != 0, T=coo(T), N=csr(N[:4]))
    want = np.einsum("ijk,ijl->kl", T, U)
    check("Y[k,l] = T[i,j,k] * U[i,j,l]", want, want != 0, T=coo(T), U=coo(U))


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsc"])
def test_a_sparse_matrix_times_a_sparse_vector_is_sparse_if_it_is_asked_for(form):
    v = some(8, density=0.4)
    args = {"A": spcomp.convert(csr(A), form), "v": coo(v)}
    kernel, result = check("y[i] = A[i,j] * v[j]", A @ v, A @ v != 0, {"y": "sparse"}, **args)
    assert result.format == "compressed"
    assert form != "csc" or "for j in level 0 of v" in kernel.explain()
    assert "y[i]: + of what is at one place" in kernel.explain()
    largest = np.where((A != 0) & (v != 0), A, 0).max(1)
    text = "y[i] = max(j, A[i,j] if v[j])"
    check(text, largest, largest != 0, {"y": "sparse"}, **args)


def test_subscripts_give_sparse_results_too():
    result = spcomp.einsum("ijk,kl->ijl", coo(T), csr(M), format="coo")
    np.testing.assert_array_equal(full(result), np.einsum("ijk,kl->ijl", T, M))
    result = spcomp.einsum("ij,jk->ik", csr(A), csr(C), format=spcomp.Format("dcsc"))
    np.testing.assert_array_equal(full(result), A @ C)
    assert str(result.layout) == "dcsc"


def test_an_outer_product_of_sparse_vectors_is_sparse():
    _, result = check(
        "C[i,j] = x[i] * y[j]", np.outer(x, y), np.outer(x, y) != 0, x=coo(x), y=coo(y)
    )
    assert result.format == "csr"
    want = np.einsum("i,j,k->ijk", x, y, x)
    check("C[i,j,k] = x[i] * y[j] * w[k]", want, want != 0, x=coo(x), y=coo(y), w=coo(x))


def test_values_of_a_dense_operand_may_decide():
    stored = A > 2
    _, result = check(
        "C[i,j] = A[i,j] if A[i,j] > 2", np.where(stored, A, 0), stored, {"C": "csr"}, A=A
    )
    assert result.format == "csr"


def test_a_later_statement_reads_an_assembled_result():
    text = "P[i,k] = A[i,j] * F[j,k]; E[i,k] = P[i,k] + D[i,k]; y[i] = E[i,k] * v[k]"
    args = {"A": csr(A), "F": csr(C), "D": csr(D), "v": np.arange(6.0)}
    check(text, (A @ C + D) @ args["v"], **args)
    kernel = spcomp.compile("P[i,j] = A[i,j] + B[i,j]; Q[i,j] = P[i,j] if P[i,j] > 4")
    np.testing.assert_array_equal(
        kernel(A=csr(A), B=csr(B)).toarray(), np.where(A + B > 4, A + B, 0)
    )
    text = "P[i,k] = A[i,j] * F[j,k]; P[i,k] += D[i,k]"
    check(text, A @ C + D, A=csr(A), F=csr(C), D=csr(D))


def test_a_later_statement_reads_a_result_in_a_format_with_padding():
    text = "P[i,j] = A[i,j] + B[i,j]; y[i] = P[i,j] * v[j]"
    v = np.arange(8.0)
    check(text, (A + B) @ v, formats={"P": "ell"}, A=csr(A), B=csr(B), v=v)
    padded = spcomp.convert(csr(A), spcomp.Format("ell"))
    check("y[i] = A[i,j] * v[j]", A @ v, formats={"A": "ell"}, A=padded, v=v)


def test_adding_to_a_sparse_result_of_another_pattern_returns_a_new_one():
    target = csr(B)
    result = spcomp.compile("C[i,j] += 2 * A[i,j]")(A=csr(A), C=target)
    np.testing.assert_array_equal(result.toarray(), 2 * A + B)
    np.testing.assert_array_equal(target.toarray(), B)
    kernel = spcomp.compile("C[i,j] += 2 * A[i,j]")
    same = csr(A)
    assert kernel(A=csr(A), out=same) is same
    np.testing.assert_array_equal(same.toarray(), 3 * A)
    with pytest.raises(ArgumentError, match="another pattern"):
        kernel(A=csr(A), out=csr(B))
    check("C[i,k] += A[i,j] * F[j,k]", A @ C + D, A=csr(A), F=csr(C), C=csr(D))
    check("C[i,k] -= A[i,j] * F[j,k]", D - A @ C, A=csr(A), F=csr(C), C=csr(D).tocoo())


@pytest.mark.parametrize(
    "text", ["C[i,j] += B[i,j]", "C[i,j] += B[j,i]", "C[i,j] -= B[i,k] * B[k,j]"]
)
@pytest.mark.parametrize("stored", [np.asarray, csr, sps.csc_array, sps.coo_array])
def test_what_is_added_takes_the_type_of_the_result_however_that_is_stored(text, stored):
    result = np.diag([1, 2, 3])
    more = np.array([[1.5, 0, 0], [2, 0, 0], [0, 0, 0.25]])
    kernel = spcomp.compile(text)
    with pytest.raises(ScriptError, match="a value of float64 does not become an int64 by itself"):
        kernel(B=csr(more), C=stored(result))
    wanted = {"+= B[i,j]": more, "+= B[j,i]": more.T}.get(text[7:], -more @ more) + result
    found = kernel(B=csr(more), C=stored(result.astype("float32")))
    assert found.dtype == "float32"
    dense = found.toarray() if sps.issparse(found) else found
    np.testing.assert_array_equal(dense, wanted)


def test_what_is_refused_says_what_to_do():
    with pytest.raises(LoweringError, match="present everywhere") as caught:
        spcomp.compile("C[i,j] = A[i,j] + 1", formats={"C": "dcsr"})(A=csr(A))
    assert "dense" in caught.value.hint
    with pytest.raises(ArgumentError, match="no array to write in place"):
        spcomp.compile("z[i] = x[i] + y[i]")(x=coo(x), y=coo(y), out=np.zeros(20))
    level = ("compressed", np.array([0, 1]), np.array([2**40 - 1]))
    one = spcomp.Tensor((2**40,), (level,), np.ones(1))
    with pytest.raises(ArgumentError, match="64 bits do not number"):
        spcomp.compile("C[i,j] = x[i] * y[j]", formats={"C": "dcsr"})(x=one, y=one)


def test_nothing_stored_and_nothing_to_store_give_results_without_elements():
    for shape in ((4, 5, 6), (0, 5, 6)):
        none = coo(np.zeros(shape))
        for text in ("C[i,j,k] = T[i,j,k] + U[i,j,k]", "C[k,i,j] = T[i,j,k] + U[i,j,k]"):
            result = spcomp.compile(text)(T=none, U=none)
            assert result.nnz == 0
            assert sorted(result.shape) == sorted(shape)
    outer = spcomp.compile("C[i,j] = x[i] * y[j]")(x=coo(np.zeros(5)), y=coo(np.zeros(0)))
    assert outer.shape == (5, 0)


def test_outer_levels_of_two_tensors_are_merged_in_any_order():
    text = "C[j,i] = T[i,j,k] + U[i,j,k]"
    check(text, (T + U).sum(2).T, T=coo(T), U=coo(U))
    check(text, (T + U).sum(2).T, formats={"C": "csc"}, T=coo(T), U=coo(U))


def test_the_pattern_of_rows_of_no_width_is_shared():
    level = ("fixed", np.zeros((4, 0), np.int32))
    rows = spcomp.Tensor((4, 5), (None, level), np.zeros((4, 0)))
    _, result = check("C[i,j] = 2 * A[i,j]", np.zeros((4, 5)), A=rows)
    assert result.nnz == 0


def test_minus_the_largest_is_not_the_largest_of_minus():
    largest = np.where(A != 0, A, -np.inf).max(1)
    np.testing.assert_array_equal(spcomp.compile("y[i] = -max(j, A[i,j])")(A=csr(A)), -largest)
    matrix = spcomp.compile("C[i,k] = -prod(j, A[i,j] * F[j,k])")(A=csr(A), F=csr(C))
    assert full(matrix).shape == (6, 6)


def test_matrices_give_matrices():
    result = spcomp.compile("C[i,j] = A[i,j] + B[i,j]")(A=sps.csr_matrix(A), B=sps.csr_matrix(B))
    assert isinstance(result, sps.csr_matrix)
    kernel = spcomp.compile("C[i,k] = A[i,j] * F[j,k] + D[i,k]")
    result = kernel(A=sps.csr_matrix(A), F=csr(C), D=csr(D))
    assert isinstance(result, sps.csr_matrix)


def test_index_arrays_of_a_result_that_is_a_tensor_cannot_be_changed():
    x, y, a, b = (coo(some(*shape)) for shape in ((6,), (6,), (3, 4, 2), (3, 4, 2)))
    for tensor in (
        spcomp.compile("z[i] = x[i] + y[i]")(x=x, y=y),
        spcomp.compile("C[i, j, k] = A[i, j, k] + B[i, j, k]")(A=a, B=b),
    ):
        arrays = [array for level in tensor.levels if level for array in level.arrays]
        assert arrays
        assert not any(array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    ("length", "rows"), [(1, 10**9), (7, 9_000), (5_000, 60), (2**31, 2**32 - 1)]
)
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_last_digits_are_split_off_alike_in_parts_and_at_once(length, rows, kind):
    keys = np.unique(RNG.integers(0, length * rows - 1, 50_000, endpoint=True))
    digits, left = keys % length, np.unique(keys // length)
    starts = np.searchsorted(keys // length, np.append(left, rows))
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            made = split(keys, length, np.dtype(kind))
        for own, want in zip(made, (digits, starts, left), strict=True):
            np.testing.assert_array_equal(own, want)
        assert made[0].dtype == made[1].dtype == kind


def test_a_large_result_with_compressed_levels_is_that_of_many_threads():
    few, made = [np.sort(RNG.choice(40 * 30 * 50, 30_000, replace=False)) for _ in "ab"], []
    a, b = (coo(np.bincount(at, minlength=60_000).reshape(40, 30, 50)) for at in few)
    for threads in (1, 2):
        with spcomp.num_threads(threads):
            made.append(spcomp.compile("C[i,j,k] = A[i,j,k] + B[i,j,k]")(A=a, B=b))
    np.testing.assert_array_equal(made[0].to_dense(), a.toarray() + b.toarray())
    for own, other in zip(made[0].levels, made[1].levels, strict=True):
        pairs = zip(own.arrays, other.arrays, strict=True)
        assert all(x.tobytes() == y.tobytes() for x, y in pairs)
    spcomp.Tensor(made[0].shape, [level.spec for level in made[0].levels], made[0].values)


def test_an_array_is_no_place_for_a_result_with_a_pattern():
    x, B = np.arange(1.0, 4), spcomp.convert(np.array([1.0, 3]), "sparse")
    out = np.zeros((3, 2))
    with pytest.raises(ArgumentError, match=r"argument out: C has the pattern of B\[l\], an array"):
        spcomp.compile("C[i, l] = x[i] * B[l]")(x=x, B=B, out=out)
    dense = spcomp.compile("C[i, l] = x[i] * B[l]", formats={"C": "dense"})
    assert dense(x=x, B=B, out=out) is out
    np.testing.assert_array_equal(out, np.outer(x, [1, 3]))


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool"])
def test_a_result_is_added_to_by_or(dtype):
    A, B = (spcomp.convert(np.array(v), "sparse") for v in ([0.0, 2, 3], [1.0, 0]))
    C = np.array([[1, 0], [0, 0], [0, 1]], dtype)
    made = spcomp.compile("C[i, j] += A[i] * B[j]", semiring="or_and")(A=A, B=B, C=C)
    assert made is C
    np.testing.assert_array_equal(C, np.array([[1, 0], [1, 0], [1, 1]], dtype))


def test_nothing_is_subtracted_in_a_semiring_without_minus():
    with pytest.raises(ScriptError, match="1:1: this semiring has no -, it adds by min"):
        spcomp.compile("y[i] -= x[i]", semiring="min_plus")
    i, (x, y) = spcomp.indices("i"), spcomp.symbols("x y")
    y[i] -= x[i]
    with pytest.raises(ScriptError, match="this semiring has no -, it adds by min"):
        spcomp.compile(y, semiring="min_plus")
    added = spcomp.compile("y[i] += -x[i]", semiring="min_plus")
    np.testing.assert_array_equal(added(y=np.array([3.0, 1]), x=np.array([1.0, 2])), [-1, -2])


def test_what_long_dimensions_need_is_said():
    n = 1 << 40
    shape, where = (n, n), [[0, 5, n - 1], [1, 2, n - 2]]
    given = {name: spcomp.Tensor.from_coo(where, [1.0, 2, 3], shape, "dcsr") for name in "ADM"}
    lists = {name: spcomp.convert(tensor, "coo") for name, tensor in given.items()}
    added = spcomp.compile("C[i, j] = A[i, j] + D[i, j]")
    with pytest.raises(ArgumentError, match=r"do not number\nhint: .*np.unique.*"):
        added(A=given["A"], D=given["D"])
    product = "A[i, k] * D[j, k]"
    with pytest.raises(OutOfMemoryError, match=r"argument A: as csr.*\nhint: .*if M\[i, j\]"):
        spcomp.compile(f"C[i, j] = {product}", formats={"C": "dcsr"})(A=given["A"], D=given["D"])
    masked = spcomp.compile(f"C[i, j] = ({product}) if M[i, j]")(**given)
    assert masked.values.size == 3
    twice = "C[i, j] = A[i, j] * 2"
    with pytest.raises(OutOfMemoryError, match=r'argument A: as csr.* TiB.*\nhint: .*"A": "dcsr"'):
        spcomp.compile(twice)(A=lists["A"])
    made = spcomp.compile(twice, formats={"A": "dcsr"})(A=lists["A"])
    np.testing.assert_array_equal(made.values, [2, 4, 6])
    for wide in ("C[i, j] = A[i, j] + 1", "C[i] = A[i, j] + 1"):
        with pytest.raises(MemoryError, match=r"argument C: its shape \(1099511627776,.* bytes"):
            spcomp.compile(wide)(A=given["A"])


def test_outputs_are_given_by_name():
    x, a, b = np.ones(4), np.zeros(4), np.zeros(4)
    kernel = spcomp.compile("a[i] = x[i] + 1; b[i] = x[i] * 3")
    for call in (kernel, kernel.bind(x=x)):
        rest = {"x": x} if call is kernel else {}
        for _ in range(4):
            a[:] = b[:] = 0
            result = call(**rest, a=a, b=b)
            assert result.a is a
            assert (a == 2).all()
            assert (b == 3).all()
        assert call(**rest, out={"b": b}, a=a).b is b
        assert call(**rest, a=a).a is a
        with pytest.raises(ArgumentError, match="argument a: is an output that out= has, too"):
            call(**rest, out={"a": a}, a=a)
        with pytest.raises(ArgumentError, match="argument a: is an output, and out= is given"):
            call(**rest, out=(a, b), a=a)


@pytest.mark.parametrize("storage", ["csr", "csc", "coo"])
@pytest.mark.parametrize("first", ["C[j, i] = A[i, j]", "C[i, j] = 2 * A[i, j]"])
@pytest.mark.parametrize("product", ["C[i, j] * C[j, k]", "C[i, j] * C[k, j]", "C[j, i] * C[j, k]"])
def test_a_product_of_a_result_with_itself_is_assembled(storage, first, product):
    A = sps.random_array((9, 9), density=0.2, rng=7).asformat(storage)
    E = spcomp.compile(f"{first}; E[i, k] = {product}")(A=A)
    C = A.toarray().T if first.startswith("C[j") else 2 * A.toarray()
    left, right = (C.T if part in ("C[j, i]", "C[k, j]") else C for part in product.split(" * "))
    assert E.format == "csr"
    np.testing.assert_allclose(E.toarray(), left @ right)
    assert E.nnz == np.count_nonzero(left @ right)
