"""What messages tell the user to do, for what people write who come from numpy and scipy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import notation as N
from spcomp.errors import ArgumentError, ScriptError, SpcompError, SpcompWarning
from tests.layers import source

CSR = sps.random_array((6, 6), density=0.4, format="csr", rng=0)
X = np.arange(6.0)

WRITTEN = {  # what is not notation, and what the hint says
    "y[i] = clip(x[i], 0, 1)": "write minimum(maximum(x, low), high)",
    "y[i] = count(j, A[i, j])": "write sum(j, 1 if A[i, j])",
    "y[i] = cumsum(i, x[i])": "numpy.cumsum",
    "y[i] = mean(j, A[i, j])": "write sum(j, A[i, j]) / n",
    "y[i] = sign(x[i])": "write where(x > 0, 1, where(x < 0, -1, 0))",
    "y[i] = ln(x[i])": "write log(x)",
    "y[i] = sqr(x[i])": "did you mean 'sqrt'?",
    "y[i] = nothing_near(x[i])": "functions={'nothing_near'",
    "y[i] = any(x[i])": "write any(k, A[i, k])",
    "y[i] = sum(A[i, j], axis=1)": "write sum(k, A[i, k])",
    "y[i] = A[i, j].sum()": "write sum(k, A[i, k])",
    "y[i] = np.exp(x[i])": "write exp(...)",
    "y[i] = A[i][j]": "write A[i, j]",
    "y[i] = x[i] if x[i] > 1 && x[i] < 3": 'write "and"',
    "y(i) = A(i, j) * x(j)": 'with brackets: "C[i, k] = A[i, j]',
    "y[i] = x[p[i]]": 'convert it with .astype("int64")',
    "y[i] = y[i] + z[i]": "write y[i] += ...",
    "s = s + z[i]": "write s += ...",
    "s = x[i] ** 2": "write sum(i, x[i] ** 2), or sum(i, x[i]) ** 2",
    "y[i] = x[i] ^ 2": "a power is written with **",
    "y[i] = A[i] * x[j]": "write A[i, j], an index for each dimension",
    "y[i] = A[i, j] * x": "write x[i], an index for each dimension",
}


def _run(text):
    kernel = spcomp.compile(text)
    return kernel(**{name: CSR if name == "A" else X for name in kernel.arguments})


@pytest.mark.parametrize("text", WRITTEN)
def test_what_is_written_otherwise_elsewhere_is_told(text):
    with pytest.raises(SpcompError) as caught:
        _run(text)
    assert WRITTEN[text] in caught.value.hint


RUNS = {  # the hints, applied
    "y[i] = minimum(maximum(x[i], 1), 3)": X.clip(1, 3),
    "y[i] = sum(j, 1 if A[i, j])": np.diff(CSR.indptr),
    "y[i] = where(x[i] > 0, 1, where(x[i] < 0, -1, 0))": np.sign(X),
    "s = sqrt(sum(i, x[i] ** 2))": np.linalg.norm(X),
}


@pytest.mark.parametrize("text", RUNS)
def test_what_hints_say_runs(text):
    np.testing.assert_allclose(_run(text), RUNS[text])


@pytest.mark.parametrize(
    "text",
    ["y[i] = (-x[i]) ** 2", "y[i] = -x[i] ** 2", "y[i] = (x[i] ** 2) ** 0.5", "y[i] = 2 ** -x[i]",
     "y[i] = x[i] ** z[i] ** 0.5", "y[i] = (-2) ** x[i]", "y[i] = (x[i] + 1) ** -2 * z[i]"],
)  # fmt: skip
def test_powers_are_shown_as_they_are_written(text):
    kernel = spcomp.compile(text)
    assert str(kernel.program) == text
    again = spcomp.compile(str(kernel.program))
    assert again.program == kernel.program


ARGUMENTS = {
    "complex": (X.astype(complex), ".real and .imag"),
    "number": (1j, ".real and .imag"),
    "float128": (X.astype(np.longdouble), 'astype("float64")'),
    "texts": (np.array(["a"] * 6), 'astype("float64")'),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_types_of_numbers_that_there_are_not_here(case):
    given, hint = ARGUMENTS[case]
    text = "y[i] = 2 * x[i]" if isinstance(given, np.ndarray) else "y[i] = a * x[i]"
    if np.dtype(np.longdouble).itemsize == 8 and case == "float128":
        pytest.skip("it is float64 on this machine")
    named = {"x": given} if isinstance(given, np.ndarray) else {"a": given, "x": X}
    with pytest.raises(ArgumentError) as caught:
        spcomp.compile(text)(**named)
    assert hint in caught.value.hint


def test_an_array_for_the_result_has_its_type():
    with pytest.raises(ArgumentError, match="argument y: got float32, expected float64") as caught:
        spcomp.compile("y[i] = 2 * x[i]")(x=X, out=np.zeros(6, np.float32))
    assert 'np.empty(shape, "float64")' in caught.value.hint
    with pytest.raises(ArgumentError, match="argument B: got float64") as caught:
        spcomp.compile(source("csrmm"))(A=CSR.astype(np.float32), B=np.ones((6, 2)))
    assert caught.value.hint == 'convert it with .astype("float32")'


def test_coordinates_below_zero_are_none():
    i, j = spcomp.indices("i j")
    with pytest.raises(ScriptError, match="whole numbers from 0 on"):
        spcomp.compile("C[i, j] = A[i([1, -1]), j]")
    with pytest.raises(ScriptError, match="whole numbers from 0 on"):
        N.exp(spcomp.symbols("A")[i([1, -1]), j])


@pytest.mark.parametrize(
    "text",
    ["C[0:4, j] = A[0:4, j]\nC[2:6, j] = A[2:6, j]",
     "C[i, 0:4] += A[i, 0:4]\nC[i, 2:6] += A[i, 2:6]",  # in copies, which share no memory
     "C[i([1, 3]), j] = A[0:2, j]\nC[3, j] = x[j]"],
)  # fmt: skip
def test_parts_that_overlap_are_refused_by_the_name_of_their_array(text):
    kernel = spcomp.compile(text)
    given = {"A": np.ones((6, 6)), "x": X}
    with pytest.raises(ArgumentError, match="argument C: two parts of it that are assigned over"):
        kernel(**{n: given[n] for n in kernel.arguments if n != "C"}, C=np.zeros((6, 6)))


def test_parts_that_only_touch_are_written():
    text = "C[0:3, 0:4] = A[0:3, 0:4]\nC[3:6, 0:4] = A[3:6, 0:4]\nC[i, 4] = x[i]\nC[i, 5] = x[i]"
    found = spcomp.compile(text)(A=np.ones((6, 6)), x=X, out=np.zeros((6, 6)))
    want = np.ones((6, 6))
    want[:, 4:] = X[:, None]
    np.testing.assert_array_equal(found, want)


def test_a_flat_stage_takes_arrays_and_not_matrices():
    given = CSR.astype(np.float32), np.ones((6, 2), np.float32)
    flat = spcomp.parse(spcomp.compile(source("csrmm")).stage("flat"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpcompWarning)
        kernel = spcomp.compile(flat)
    for matrix in (given[0], spcomp.convert(given[0], spcomp.Format("csr"))):
        with pytest.raises(ArgumentError, match="and the program is over flat buffers") as caught:
            kernel(A=matrix, B=given[1])
        assert "kernel.signature lists them" in caught.value.hint


def test_a_warning_points_to_the_line_of_the_user():
    text = source("csrmm").script().replace('"SRS"', '"SSS"')
    with pytest.warns(SpcompWarning) as caught:
        spcomp.compile(spcomp.parse(text))
    assert {warning.filename for warning in caught} == {__file__}


def test_a_matrix_is_decomposed_into_a_format_by_name():
    matrix, dense = CSR.astype(np.float32), np.ones((6, 2), np.float32)
    kernel = spcomp.compile(spcomp.decompose(source("csrmm"), A="hyb"))
    np.testing.assert_allclose(kernel(A=matrix, B=dense), matrix @ dense, rtol=1e-6)
    with pytest.raises(ArgumentError, match="got 'bsr', expected a format") as caught:
        spcomp.decompose(source("csrmm"), A="bsr")
    assert "spcomp.formats.bsr(4)" in caught.value.hint


def test_what_becomes_of_repeated_elements_has_one_spelling_and_the_released_ones(tmp_path):
    given = ([0, 0], [1, 1]), [1.0, 2.0], (2, 2)
    twice = spcomp.Tensor.from_coo(*given, "coo", duplicates="keep")
    for spelling in ("error", "refuse"):
        with pytest.raises(ArgumentError, match="element"):
            spcomp.convert(twice, "csr", duplicates=spelling)
        with pytest.raises(ArgumentError):
            spcomp.Tensor.from_coo(*given, duplicates=spelling)
        spcomp.write(tmp_path / "a.mtx", CSR)
        spcomp.read(tmp_path / "a.mtx", duplicates=spelling)
    for call in (spcomp.convert, spcomp.Tensor.to):
        with pytest.raises(ArgumentError, match='expected "sum", "error" or "keep"'):
            call(twice, "csr", duplicates="first")
    with pytest.raises(ArgumentError, match="argument duplicates: got 'first'"):
        spcomp.Tensor.from_coo(*given, duplicates="first")


@pytest.mark.parametrize("how", [True, False, "greedy", "optimal", ["einsum_path", (0, 1)]])
def test_einsum_takes_what_numpy_calls_optimize(how):
    found = spcomp.einsum("ij,j->i", CSR, X, optimize=how)
    np.testing.assert_allclose(found, CSR @ X)
    path, _ = np.einsum_path("ij,j->i", CSR.toarray(), X)
    np.testing.assert_allclose(spcomp.einsum("ij,j->i", CSR, X, optimize=path), CSR @ X)


def test_einsum_refuses_what_numpy_does_not_know():
    with pytest.raises(ArgumentError, match="argument optimize: got 'best'"):
        spcomp.einsum("ij,j->i", CSR, X, optimize="best")
