"""Gradients under masks: a tensor masks where it is stored, whatever it stores there."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp


@pytest.mark.parametrize("values", ["zeros", "ones", "dense"])
@pytest.mark.parametrize("op", ["prod", "max", "min", "sum"])
def test_a_mask_that_stores_zeros_masks_where_it_is_stored(op, values):
    rng = np.random.default_rng(0)
    mask = sps.random_array((4, 5), density=0.6, format="csr", rng=rng)
    mask.data[:] = values != "zeros"
    given = mask.toarray() if values == "dense" else mask
    text = f"Y[n, f] = {op}(e, X[e, f] if P[n, e])"
    forward = spcomp.compile(text)
    X = rng.random((5, 3)) + 0.5
    found = spcomp.compile(spcomp.adjoint(text, "X"))(X=X, P=given, grad_Y=np.ones((4, 3)))
    step = 1e-6
    for place in np.ndindex(*X.shape):
        sides = []
        for sign in (1, -1):
            moved = X.copy()
            moved[place] += sign * step
            result = forward(X=moved, P=given)
            sides.append(result[np.isfinite(result)].sum())
        np.testing.assert_allclose(found[place], (sides[0] - sides[1]) / (2 * step), atol=1e-6)


def test_a_function_that_fills_passes_gradients_where_one_argument_is_stored():
    A = sps.csr_array(np.array([[1.0, 2], [0, 0]]))
    B = sps.csr_array(np.array([[3.0, 0], [4, 0]]))
    functions = {"f": spcomp.Function(lambda a, b: a * 3 + b * 2, zero="fill")}
    adjoint = spcomp.adjoint("C[i,j] = f(A[i,j], B[i,j])", wrt=["A", "B"], functions=functions)
    grad_a, grad_b = spcomp.compile(adjoint)(A=A, B=B, grad_C=np.ones((2, 2)))
    np.testing.assert_array_equal(grad_a.data, [3, 3])
    np.testing.assert_array_equal(grad_b.data, [2, 2])


def test_a_function_that_keeps_passes_gradients_where_all_arguments_are_stored():
    A = sps.csr_array(np.array([[1.0, 2], [0, 0]]))
    B = sps.csr_array(np.array([[3.0, 0], [4, 0]]))
    functions = {"f": lambda a, b: a * 3 + b * 2}
    adjoint = spcomp.adjoint("C[i,j] = f(A[i,j], B[i,j])", wrt=["A", "B"], functions=functions)
    grad_a, grad_b = spcomp.compile(adjoint)(A=A, B=B, grad_C=np.ones((2, 2)))
    np.testing.assert_array_equal(grad_a.data, [3, 0])
    np.testing.assert_array_equal(grad_b.data, [2, 0])


def test_gradients_of_a_function_with_a_mask_pass_where_it_has_a_value():
    functions = {"f": lambda a: (a * 2).masked(a > 0)}
    adjoint = spcomp.adjoint("y[i] = f(x[i]) * z[i]", wrt=["x", "z"], functions=functions)
    x, z = np.array([1.0, -2, 3]), np.array([3.0, 4, 5])
    grad_x, grad_z = spcomp.compile(adjoint)(x=x, z=z, grad_y=np.ones(3))
    np.testing.assert_array_equal(grad_x, [6, 0, 10])
    np.testing.assert_array_equal(grad_z, [2, 0, 6])


@pytest.mark.parametrize("text", ["C[i,j] = A[i,j] * A[j,i]", "s = A[i,j] * A[j,i]"])
def test_a_gradient_has_the_pattern_of_an_operand_that_is_read_transposed(text):
    a = np.array([[1.0, 2, 0], [0, 3, 4], [5, 0, 0]])
    A = sps.csr_array(a)
    given = {"grad_C": np.ones((3, 3))} if text[0] == "C" else {"grad_s": 1.0}
    found = spcomp.compile(spcomp.adjoint(text, wrt="A"))(A=A, **given)
    np.testing.assert_array_equal(found.indices, A.indices)
    np.testing.assert_array_equal(found.toarray(), np.where(a, 2 * a.T, 0))


@pytest.mark.parametrize("base", [0, 2, 0.5, -2])
def test_gradients_of_the_exponent_of_a_number_are_those_of_pytorch(base):
    torch = pytest.importorskip("torch")
    given = torch.tensor([-1.0, 0, 1, 2], dtype=torch.float64, requires_grad=True)
    text = f"y[i] = ({base}) ** x[i]"
    spcomp.compile(text)(x=given).sum().backward()
    own = given.detach().clone().requires_grad_()
    torch.pow(torch.tensor(float(base), dtype=torch.float64), own).sum().backward()
    np.testing.assert_allclose(given.grad.numpy(), own.grad.numpy())
