"""Where a value is present: reductions, wherever they are computed, and what is not stored."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import notation as N
from spcomp.errors import ScriptError, SpcompError
from spcomp.ir.printer.program import print_program
from spcomp.ir.structural import structural_equal
from spcomp.kernels.kernel import Kernel
from spcomp.script.parse import parse_source
from tests.level_tensors import full

RNG = np.random.default_rng(7)
SIZE = 6


def halves(*shape: int) -> np.ndarray:
    """Small whole numbers, about half of them 0."""
    return RNG.integers(1, 5, shape) * (RNG.random(shape) < 0.5) * 1.0


A, B, M, X = halves(SIZE, SIZE), halves(SIZE, SIZE), halves(SIZE, SIZE), halves(SIZE, SIZE) + 1
b = halves(SIZE)
b[:2] = 0, 3


def stored_as(array: np.ndarray, layout: str) -> object:
    return array if layout == "dense" else spcomp.convert(array, layout)


# -- reductions are present everywhere -------------------------------------------------------------

INSIDE = {
    "z = min(n, sum(m, A[m, n] * b[n]))": (A * b).sum(0).min(),
    "z = sum(n, exp(sum(m, A[m, n] * b[n])))": np.exp((A * b).sum(0)).sum(),
    "z = sum(n, exp(sum(m, A[n, m] * b[n])))": np.exp((A.T * b).sum(0)).sum(),
    "y[n] = maximum(3, sum(m, A[m, n] * b[n]))": np.maximum(3, (A * b).sum(0)),
    "y[n] = maximum(3, sum(m, A[n, m] * b[n]))": np.maximum(3, (A.T * b).sum(0)),
    "y[n] = 2 + sum(m, A[m, n] * b[n]) / 2": 2 + (A * b).sum(0) / 2,
    "y[n] = sigmoid(sum(m, A[m, n] * b[n]))": 1 / (1 + np.exp(-(A * b).sum(0))),
    "y[n] = exp(sum(m, b[m] * A[m, n]) - sum(m, b[n] * A[m, n]))": np.exp(b @ A - b * A.sum(0)),
    "C[i, j] = exp(sum(k, A[k, i] * B[k, j]))": np.exp(A.T @ B),
    "C[i, j] = exp(sum(k, A[i, k] * B[k, j]))": np.exp(A @ B),
    "C[i, j] = sum(k, A[k, i] * B[k, j]) if b[j]": A.T @ B * (b != 0),
    "C[i, j] = A[i, j] / (1 + sum(k, A[k, j] * b[j]))": A / (1 + (A * b).sum(0)),
}


@pytest.mark.parametrize("text", INSIDE)
@pytest.mark.parametrize("vector", ["dense", "sparse"])
@pytest.mark.parametrize("matrix", ["dense", "csr", "csc", "dcsr"])
@pytest.mark.sample(8, long=3)
def test_a_reduction_inside_a_value_is_present_everywhere_wherever_it_is_computed(
    text, vector, matrix
):
    given = {"A": stored_as(A, matrix), "B": stored_as(B, matrix), "b": stored_as(b, vector)}
    kernel = spcomp.compile(text)
    result = kernel(**{name: given[name] for name in kernel.arguments})
    if "if b[j]" in text and vector == "dense":
        result = np.asarray(result) * (b != 0)
    np.testing.assert_allclose(
        result if np.ndim(result) == 0 else full(result), INSIDE[text], rtol=1e-12
    )


def test_what_is_computed_before_has_no_format_to_ask_for():
    with pytest.raises(SpcompError, match="the program has no sum_2") as caught:
        spcomp.compile("y[n] = exp(sum(m, A[m, n]))", formats={"sum_2": "sparse"})
    assert caught.value.hint == "it has A, y"


def test_an_index_of_a_reduction_may_be_called_as_one_outside():
    least = spcomp.compile("z = sum(j, min(i, sum(j, a[j]) * B[i, j]))")
    assert least(a=np.arange(4.0), B=X[:, :4]) == (6 * X[:, :4]).min(0).sum()
    shares = spcomp.compile("C[i, j] = A[i, j] / sum(j, A[i, j])")(A=sps.csr_array(X))
    np.testing.assert_allclose(full(shares), X / X.sum(1, keepdims=True))
    keep = spcomp.Function(lambda a, b: a * b)
    kernel = spcomp.compile("y[j] = f(max(j, x[j]), x[j])", functions={"f": keep})
    np.testing.assert_array_equal(full(kernel(x=stored_as(b, "sparse"))), b.max() * b)


# -- reductions between the loops of a sparse result ----------------------------------------------


@pytest.mark.parametrize("matrix", ["csr", "csc", "dcsr"])
@pytest.mark.parametrize("inner", ["prod(m, D[i, m])", "sum(m, D[i, m]) * prod(m, D[i, m])"])
def test_a_product_of_sparse_operands_may_have_a_reduction_between_its_loops(matrix, inner):
    D = X[:, :3]
    factor = D.prod(1) * (D.sum(1) if "sum" in inner else 1)
    want = np.outer(B.sum(1), b * factor)
    given = {"a": stored_as(b, "sparse"), "B": stored_as(B, matrix), "D": D}
    for target, expected in (("Z[j, i]", want), ("Z[i, j]", want.T)):
        result = spcomp.compile(f"{target} = sum(n, a[i] * B[j, n] * {inner})")(**given)
        assert not isinstance(result, np.ndarray)
        np.testing.assert_allclose(full(result), expected)


def test_memory_inside_a_merge_is_printed_and_read_again():
    kernel = spcomp.compile("C[j] = (x[j] + y[j]) * prod(m, D[j, m])")
    func = kernel.planned({"x": stored_as(b, "sparse"), "y": stored_as(b, "sparse"), "D": X}).func
    stages = Kernel.of(func, kernel.options)._compiled.stages
    for module in (stages.coordinate, stages.position, stages.flat):
        whole = module.funcs[0] if module.is_single else module
        assert structural_equal(parse_source(print_program(whole), "printed.py")[0], whole)


# -- what is not stored ----------------------------------------------------------------------------

HAS = M != 0
NOT_STORED = {
    "C[i, j] = A[i, j] if {}": A * ~HAS,
    "C[i, j] = X[i, j] if {}": X * ~HAS,
    "C[i, j] = (A[i, j] + B[i, j]) if {}": (A + B) * ~HAS,
    "C[i, j] = (A[i, j] if {}) + B[i, j]": A * ~HAS + B,
    "C[i, j] = (A[i, j] if {}) + M[i, j]": A * ~HAS + M,
    "C[i, j] = A[i, j] * B[i, j] if {}": A * B * ~HAS,
    "C[i, j] = (A[i, k] * B[k, j]) if {}": A @ B * ~HAS,
    "C[i, j] = sum(k, A[i, k] * B[k, j]) if {}": A @ B * ~HAS,
    "C[i, j] = A[i, j] if {} and X[i, j] > 1": A * ~HAS * (X > 1),
    "C[i, j] = A[i, j] if {} else B[i, j]": np.where(HAS, B, A),
    "y[i] = (A[i, j] * b[j]) if {}": (A * ~HAS) @ b,
    "y[i] = X[i, j] if {}": (X * ~HAS).sum(1),
    "s = A[i, j] if {}": (A * ~HAS).sum(),
}
FORMATS = ("csr", "csc", "dcsr", "csf", "coo", "bitmap", "hash", "ell", "rle")


@pytest.mark.parametrize("text", NOT_STORED)
@pytest.mark.parametrize("spelled", ["M[i, j] is None", "not stored(M[i, j])"])
@pytest.mark.sample(8, long=3)
def test_the_complement_of_a_pattern_is_a_mask_whatever_its_format(text, spelled):
    want = NOT_STORED[text]
    for at, layout in enumerate(FORMATS):
        asked = {"C": "dense"} if at % 2 and text[0] == "C" else {}
        kernel = spcomp.compile(text.format(spelled), formats=asked)
        given = {"A": stored_as(A, FORMATS[at - 1]), "B": stored_as(B, "csr"), "X": X, "b": b}
        given |= {"M": stored_as(M, layout)}
        result = kernel(**{name: given[name] for name in kernel.arguments})
        np.testing.assert_array_equal(full(result) if np.ndim(result) else result, want)
        if not asked and text in ("C[i, j] = A[i, j] if {}", "C[i, j] = (A[i, k] * B[k, j]) if {}"):
            assert result.nnz == np.count_nonzero(want)  # what is left out is not stored


def test_a_stored_zero_is_stored():
    zeros = sps.csr_array((np.zeros(SIZE), (np.arange(SIZE), np.arange(SIZE))))
    given = {"A": sps.csr_array(X), "M": zeros}
    for spelled in ("M[i, j] is not None", "stored(M[i, j])", "M[i, j]", "M[i, j] == 0"):
        result = spcomp.compile(f"C[i, j] = A[i, j] if {spelled}")(**given)
        np.testing.assert_array_equal(full(result), np.diag(X.diagonal()))
    result = spcomp.compile("C[i, j] = A[i, j] if M[i, j] is None")(**given)
    np.testing.assert_array_equal(full(result), X - np.diag(X.diagonal()))
    assert result.nnz == SIZE * (SIZE - 1)


def test_a_dense_operand_is_stored_everywhere_and_what_is_asked_is_a_value_too():
    given = {"A": sps.csr_array(A), "M": M}
    assert spcomp.compile("C[i, j] = A[i, j] if M[i, j] is None")(**given).nnz == 0
    result = spcomp.compile("C[i, j] = A[i, j] if stored(M[i, j])")(**given)
    np.testing.assert_array_equal(full(result), A)
    counts = spcomp.compile("y[i] = sum(j, stored(M[i, j]))")
    np.testing.assert_array_equal(counts(M=sps.csr_array(M)), HAS.sum(1))
    np.testing.assert_array_equal(counts(M=M), [SIZE] * SIZE)
    either = spcomp.compile("C[i, j] = A[i, j] if stored(B[i, j]) or stored(M[i, j])")
    result = either(A=sps.csr_array(A), B=sps.csr_array(B), M=sps.csr_array(M))
    np.testing.assert_array_equal(full(result), A * ((B != 0) | HAS))


def test_python_objects_ask_what_is_stored():
    i, j = spcomp.indices("i j")
    given = {"A": sps.csr_array(A), "M": sps.csr_array(M)}
    for cond in (lambda m: ~N.stored(m), lambda m: N.stored(m) == 0):
        a, m, C = spcomp.symbols("A M C")
        C[i, j] = a[i, j].masked(cond(m[i, j]))
        np.testing.assert_array_equal(full(spcomp.compile(C)(**given)), A * ~HAS)
    with pytest.raises(ScriptError, match="only an operand with indices is stored, not 2"):
        N.stored(2)


def test_a_complement_of_a_matrix_in_parts_is_refused_or_right():
    parts = spcomp.compile("y[i] = (A[i, j] * b[j]) if M[i, j] is None", formats={"A": "hyb"})
    result = parts(A=sps.csr_array(A), M=sps.csr_array(M), b=b)
    np.testing.assert_array_equal(result, (A * ~HAS) @ b)
    over = spcomp.compile("y[i] = X[i, j] if M[i, j] is None", formats={"M": "hyb"})
    with pytest.raises(SpcompError, match="M cannot be stored as"):
        over(X=X, M=sps.csr_array(M))


# -- negations with two meanings ---------------------------------------------------------------

NEGATED = {  # the column, what it says, and the hint
    "C[i, j] = A[i, j] if not M[i, j]": (21, "not M[i, j]", "M[i, j] is None, or M[i, j] == 0"),
    "C[i, j] = A[i, j] if not M[i, j] else X[i, j]": (21, "not M[i, j]", "M[i, j] is None"),
    "C[i, j] = A[i, j] if not (X[i, j] and M[i, j])": (21, "not (X", "M[i, j] is None"),
    "C[i, j] = A[i, j] if X[i, j] and not M[j, i]": (33, "not M[j, i]", "M[j, i] is None"),
    "C[i, j] = A[i, j] if ~M[i, j]": (21, "~M[i, j]", "M[i, j] is None"),
    "C[i, j] = A[i, j] if M[i, j] or X[i, j]": (
        21,
        "M[i, j] or X",
        "stored(M[i, j]), or M[i, j] != 0",
    ),
    "C[i, j] = A[i, j] if M[i, j] | X[i, j]": (21, "M[i, j] | X", "stored(M[i, j])"),
    "C[i, j] = where(not M[i, j], A[i, j], 0)": (16, "not M[i, j]", "M[i, j] is None"),
    "C[i, j] = where(M[i, j], A[i, j], X[i, j])": (10, "where(M", "stored(M[i, j])"),
    "C[i, j] = not M[i, j]": (10, "not M[i, j]", "M[i, j] is None"),
    "C[i, j] = ~M[i, j]": (10, "~M[i, j]", "M[i, j] is None"),
    "W[i, j] = 2 * M[i, j]\nC[i, j] = A[i, j] if not W[i, j]": (
        21,
        "not W[i, j]",
        "W[i, j] is None",
    ),
}


@pytest.mark.parametrize("text", NEGATED)
def test_what_negates_a_sparse_operand_as_if_it_were_false_elsewhere_is_refused(text):
    column, message, hint = NEGATED[text]
    kernel = spcomp.compile(text)
    given = {"A": sps.csr_array(A), "M": sps.csr_array(HAS), "X": X > 1}
    with pytest.raises(ScriptError) as caught:
        kernel(**{name: given[name] for name in kernel.arguments})
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.span is not None
    assert caught.value.span.col == column
    given |= {"M": HAS}
    kernel(**{name: given[name] for name in kernel.arguments})  # a dense one has one meaning


def test_a_negated_argument_that_is_read_twice_is_called_as_the_user_does():
    kernel = spcomp.compile("C[i, j] = A[i, j] if not A[j, i]")
    with pytest.raises(ScriptError, match=r"whether A\[j, i\], which is sparse"):
        kernel(A=sps.csr_array(A))


def test_values_may_be_negated_and_both_may_be_asked():
    given = {"A": sps.csr_array(A), "M": sps.csr_array(M)}
    for cond, want in (
        ("not (M[i, j] > 2)", HAS & (M <= 2)),
        ("M[i, j] and A[i, j]", HAS),
        ("not isnan(M[i, j])", HAS),
    ):
        result = spcomp.compile(f"C[i, j] = A[i, j] if {cond}")(**given)
        np.testing.assert_array_equal(full(result), A * want)
    whole = sps.csr_array(M.astype(np.int64))
    np.testing.assert_array_equal(
        full(spcomp.compile("C[i, j] = ~M[i, j]")(M=whole)), ~M.astype(int) * HAS
    )
