"""Adjoints of index notation beside the gradients of PyTorch, and on its tensors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from tests.test_adjoint import PROGRAMS, SPMM, arguments_of, as_tuple, incoming, operand

RNG = np.random.default_rng(12)


@pytest.mark.torch
@pytest.mark.parametrize(
    "name", ["spmm", "spmv", "sddmm", "least", "diagonal", "inner", "total", "product"]
)
def test_dense_gradients_are_those_of_pytorch(name):
    import torch

    program, wrt = PROGRAMS[name]
    forms = {
        "spmm": lambda A, B: A @ B,
        "spmv": lambda A, x, z, alpha: alpha * (A @ x) + 0.5 * z,
        "sddmm": lambda A, X, B: A * (X @ B.T),
        "least": lambda A, z: (A * z[:, None]).amin(0),
        "diagonal": lambda Q, z: torch.diagonal(Q) * z + Q.sum(1),
        "inner": lambda A, X, B: (A * (X @ B.T)).sum(1),
        "total": lambda A: (A * A).sum(),
        "product": lambda A: A.prod(1),
    }
    forward, adjoint = spcomp.compile(program), spcomp.adjoint(program, wrt)
    arguments = arguments_of(forward, "dense")
    grads, (weight,) = incoming(adjoint, forward, arguments)
    tensors = {
        n: torch.tensor(x, dtype=torch.float64, requires_grad=True) for n, x in arguments.items()
    }
    result = forms[name](**tensors)
    result.backward(torch.tensor(weight))
    found = as_tuple(spcomp.compile(adjoint)(**arguments, **grads))
    for operand_name, grad in zip(wrt, found, strict=True):
        np.testing.assert_allclose(grad, tensors[operand_name].grad, rtol=1e-12, atol=1e-14)


@pytest.mark.torch
def test_ties_are_those_of_pytorch():
    import torch

    a = np.round(RNG.random((20, 6)) * 3)
    g = RNG.random(20)
    tensor = torch.tensor(a, requires_grad=True)
    tensor.amax(1).backward(torch.tensor(g))
    grad = spcomp.compile(spcomp.adjoint("m[i] = max(j, A[i, j])", "A"))(A=a, grad_m=g)
    np.testing.assert_allclose(grad, tensor.grad)
    b = np.round(RNG.random((20, 6)) * 3)
    pair = [torch.tensor(x, requires_grad=True) for x in (a, b)]
    torch.maximum(*pair).backward(torch.ones(20, 6, dtype=torch.float64))
    kernel = spcomp.compile(spcomp.adjoint("C[i, j] = maximum(A[i, j], B[i, j])", ("A", "B")))
    for got, want in zip(kernel(A=a, B=b, grad_C=np.ones((20, 6))), pair, strict=True):
        np.testing.assert_array_equal(got, want.grad)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Sparse")
def test_torch_tensors_in_and_out():
    import torch

    a, b, g = operand("A", "csr"), operand("B", ""), RNG.random((5, 4))
    kernel = spcomp.compile(spcomp.adjoint(SPMM, ("A", "B")))
    sparse = spcomp.Tensor.from_scipy(a)
    got = kernel(A=sparse, B=torch.tensor(b), grad_C=torch.tensor(g))
    assert all(isinstance(x, torch.Tensor) for x in got)
    np.testing.assert_allclose(got[1], a.T @ g)


@pytest.mark.torch
def test_a_square_matrix_and_its_transpose_have_gradients_of_their_own():
    import torch

    text = "C[i, k] = A[i, j] * B[j, k]\nE[j, k] = A[i, j] * D[i, k]"
    kernel, rng = spcomp.compile(text), np.random.default_rng(3)
    a = sps.random_array((20, 20), density=0.3, format="csr", rng=rng)
    for matrix in (a, a.T, a, a.T):
        b, d = (torch.rand(20, 4, dtype=torch.float64, requires_grad=True) for _ in "bd")
        weights = [torch.rand(20, 4, dtype=torch.float64) for _ in "ce"]
        results = kernel(A=matrix, B=b, D=d)
        sum((r * w).sum() for r, w in zip(results, weights, strict=True)).backward()
        np.testing.assert_allclose(b.grad.numpy(), matrix.T @ weights[0].numpy())
        np.testing.assert_allclose(d.grad.numpy(), matrix @ weights[1].numpy())
