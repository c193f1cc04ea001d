"""Index notation as Python objects says what the strings say, and refuses what they refuse."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import notation as N
from spcomp.errors import ScriptError
from tests.level_tensors import full

MATRIX = np.array([[1.0, 0, 2], [0, 3, 0]])
VECTOR = np.array([1.0, 2, 4])
i, j, k = spcomp.indices("i j k")


@pytest.mark.parametrize("sign", [1, -1])
def test_an_increase_adds_to_what_is_given(sign):
    A, x, y = spcomp.symbols("A x y")
    if sign > 0:
        y[i] += A[i, j] * x[j]
    else:
        y[i] -= A[i, j] * x[j]
    result = np.array([10.0, 20])
    made = spcomp.compile(y)(A=sps.csr_array(MATRIX), x=VECTOR, y=result)
    assert made is result
    assert np.array_equal(result, np.array([10.0, 20]) + sign * MATRIX @ VECTOR)


def test_an_increase_of_something_else_is_a_sum():
    x, y, z = spcomp.symbols("x y z")
    value = x[i]
    value += 1
    value -= z[i]
    y[i] = value
    assert np.array_equal(spcomp.compile(y)(x=VECTOR, z=VECTOR), np.ones(3))


def test_functions_and_numbers_of_numpy_are_those_of_index_notation():
    x, y = spcomp.symbols("x y")
    y[i] = np.float64(2) * np.exp(x[i]) + np.sqrt(x[i]) * np.int64(3) - np.abs(-x[i])
    expected = 2 * np.exp(VECTOR) + np.sqrt(VECTOR) * 3 - VECTOR
    np.testing.assert_allclose(spcomp.compile(y)(x=VECTOR), expected)
    own = {"f": lambda value: np.tanh(value) + np.log(value)}
    found = spcomp.compile("y[i] = f(x[i])", functions=own)(x=VECTOR)
    np.testing.assert_allclose(found, np.tanh(VECTOR) + np.log(VECTOR))


def test_one_value_can_be_assigned_to_two_tensors():
    x, y, z = spcomp.symbols("x y z")
    value = x[i] * 2
    y[i], z[i] = value, value
    made = spcomp.compile((y, z))(x=VECTOR)
    assert np.array_equal(made.y, made.z)
    y[i] = value
    with pytest.raises(ScriptError, match="y is assigned twice"):
        spcomp.compile(y)(x=VECTOR)


def test_max_of_values_is_the_larger_one():
    x, y, z = spcomp.symbols("x y z")
    y[i] = N.max(x[i], 3, z[i])
    assert np.array_equal(spcomp.compile(y)(x=VECTOR, z=3 - VECTOR), [3, 3, 4])
    y = spcomp.symbols("y")
    y[()] = N.max(i, x[i])
    assert spcomp.compile(y)(x=VECTOR) == 4


def test_numpy_numbers_are_numbers():
    x, y = spcomp.symbols("x y")
    y[i] = np.float32(2) * x[i] + np.int64(1)
    assert np.array_equal(spcomp.compile(y)(x=VECTOR), 2 * VECTOR + 1)
    y = spcomp.symbols("y")
    y[()] = x[np.int64(2)]
    assert spcomp.compile(y)(x=VECTOR) == 4


def assign(key, value):
    A = spcomp.symbols("A")
    A[key] = value


B, X = spcomp.symbols("B X")


@pytest.mark.parametrize(
    ("call", "message"),
    [(lambda: assign((i, i), B[i]), r"an index occurs twice in the result A\[i, i\]"),
     (lambda: assign(i([2, 2]), B[i]), "a coordinate occurs twice in the result"),
     (lambda: assign(i, VECTOR), "ndarray has no meaning in index notation"),
     (lambda: assign(i, None), "NoneType has no meaning"),
     (lambda: X[::0], "the step of a window is not 0"),
     (lambda: X[0:1.5], "the ends of a window are whole numbers"),
     (lambda: X[i("a")], "the ends of a window are whole numbers"),
     (lambda: X[i()], "a window takes start, stop and step"),
     (lambda: X[1.5], "X has an index that is none: 1.5"),
     (lambda: N.sum("i", X[i]), "sum takes an index and a value"),
     (lambda: N.sum(X[i]), "sum takes an index and a value"),
     (lambda: N.sum((), X[i]), "sum takes an index and a value"),
     (lambda: N.maximum(X[i]), "maximum does not take 1 arguments"),
     (lambda: N.exp(X[i], 2), "exp does not take 2 arguments")],
)  # fmt: skip
def test_what_means_nothing_is_refused(call, message):
    with pytest.raises(ScriptError, match=message):
        call()


def test_a_tensor_has_no_elements_to_go_through():
    with pytest.raises(TypeError, match="not iterable"):
        list(X)


def test_a_kernel_is_called_as_its_text():
    text = "C[i, k] = A[i, j] * B[j, k]"
    kernel = spcomp.compile(text)
    assert kernel.name == "C_i_k_A_i_j_B_j_k"
    assert repr(kernel) == f"<NotationKernel C_i_k_A_i_j_B_j_k: {text!r}>"
    args = {"A": np.ones((2, 2)), "B": np.ones((2, 2))}
    assert repr(kernel.specialize(**args)).startswith("<Kernel C_i_k_A_i_j_B_j_k_kernel for cpu")
    assert spcomp.compile(text, name="spmm").name == "spmm"
    long = spcomp.compile(" + ".join(["C[i] = exp(A[i])", *["exp(A[i])"] * 30]))
    assert long.name.startswith("C_i_exp_A_i_exp")
    assert len(long.name) <= 48
    odd = spcomp.compile("ζ[ξ] = λ[ξ]")
    assert odd.name.isidentifier()
    np.testing.assert_array_equal(odd(λ=np.ones(2)), 1)


@pytest.mark.parametrize("zero", ["keep", "fill"])
@pytest.mark.parametrize("storage", [np.asarray, sps.coo_array])
def test_a_mask_in_a_function_says_where_it_has_a_value(zero, storage):
    functions = {"f": spcomp.Function(lambda a: (a * 2).masked(a > 0), zero=zero)}
    x = storage(np.array([1.0, -2, 3]))
    y = spcomp.compile("y[i] = f(x[i])", functions=functions)(x=x)
    np.testing.assert_array_equal(full(y), [2, 0, 6])
    assert spcomp.compile("s = sum(i, f(x[i]))", functions=functions)(x=x) == 8
    assert spcomp.compile("s = max(i, f(-x[i]))", functions=functions)(x=x) == 4
    other = spcomp.compile("y[i] = f(x[i]) + z[i]", functions=functions)(x=x, z=np.ones(3))
    np.testing.assert_array_equal(other, [3, 1, 7])


def test_functions_are_imported_by_name_in_a_fresh_process():
    code = "from spcomp.notation import exp, maximum, min_plus, where; print(min_plus.add)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "min\n", done.stderr


def test_names_of_slices_are_not_names_of_indices():
    A, x = np.arange(16.0).reshape(4, 4), np.array([1.0, 10, 100, 1000])
    for index in ("_i", "__", "_k0"):
        C = spcomp.compile(f"C[{index}, :] = A[{index}, :] * x[:]")(A=A, x=x)
        np.testing.assert_array_equal(C, A * x)
    for text in ("C[_0, :] = A[_0, :] * x[:]", "y[:] = A[x[_1], :]"):
        with pytest.raises(ScriptError, match=r"_\d is the name of the index of a slice"):
            spcomp.compile(text)
    with pytest.raises(ScriptError, match=r"_\d is the name of the index of a slice"):
        spcomp.symbols("A")[:, spcomp.indices("_1")]


def test_functions_of_numpy_are_those_of_the_same_meaning():
    x, y = spcomp.symbols("x y")
    a, b = np.array([1.0, -2, 3]), np.array([2.0, -3, 3])
    for ufunc in (np.maximum, np.minimum, np.arctan2, np.hypot, np.multiply, np.less_equal):
        z = spcomp.symbols("z")
        z[i] = ufunc(x[i], y[i]) * np.float64(2)
        np.testing.assert_allclose(spcomp.compile(z)(x=a, y=b), ufunc(a, b) * 2, rtol=1e-14)
    for ufunc in (np.exp, np.abs, np.negative, np.rint, np.sin):
        z = spcomp.symbols("z")
        z[i] = np.float32(2) - ufunc(x[i])
        np.testing.assert_allclose(spcomp.compile(z)(x=a), 2 - ufunc(a), rtol=1e-14)
    assert str(np.maximum(x[i], 0)) == str(N.maximum(x[i], 0))


def test_functions_of_numpy_that_have_no_meaning_are_refused():
    x = spcomp.symbols("x")
    with pytest.raises(ScriptError, match="numpy's sign has no meaning in index notation"):
        np.sign(x[i])
    with pytest.raises(ScriptError, match="ndarray has no meaning"):
        np.ones(3) * x[i]
    with pytest.raises(ScriptError, match="takes values of index notation alone"):
        np.add(x[i], 1, out=np.ones(3))
