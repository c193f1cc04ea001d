"""Jagged nested tensors in and out of kernels, with their gradients."""

from __future__ import annotations

from typing import Any

import pytest

import spcomp
from spcomp.errors import ArgumentError
from tests.test_torch_operations import numbers

torch = pytest.importorskip("torch", reason="needs the torch extra")
pytest.importorskip("spcomp.torch")

pytestmark = pytest.mark.torch
OFFSETS = torch.tensor([0, 2, 2, 6])


def nested(values: Any) -> Any:
    return torch.nested.nested_tensor_from_jagged(values, offsets=OFFSETS)


def test_values_and_offsets_go_through_a_kernel() -> None:
    both = spcomp.compile("Z[b, j, f] = X[b, j, f] * Y[b, j, f]")
    values, weight = numbers(6, 2), numbers(2, 3)
    scale = spcomp.compile("Z[b, j, o] = X[b, j, f] * W[f, o]")
    found = scale(X=nested(values), W=weight)
    assert found.layout == torch.jagged
    assert found.offsets() is OFFSETS
    assert torch.allclose(found.values(), values @ weight)
    with torch.no_grad():
        assert torch.equal(scale(X=nested(values), W=weight).values(), found.values())
    total = spcomp.compile("s[b, f] = sum(j, X[b, j, f])")
    wanted = torch.stack([values[:2].sum(0), 0 * values[0], values[2:].sum(0)])
    assert torch.allclose(total(X=nested(values)), wanted)
    product = both(X=nested(values), Y=nested(values))  # two patterns decide: it is assembled
    assert torch.equal(product.coalesce().values(), (values * values).flatten())
    for call, args in (
        (lambda x, w: scale(X=nested(x), W=w).values(), (values, weight)),
        (lambda x: total(X=nested(x)), (values,)),
    ):
        assert torch.autograd.gradcheck(call, args)
    leaf = nested(values.detach()).requires_grad_()
    (grad,) = torch.autograd.grad(total(X=leaf).sum(), leaf)
    assert grad.layout == torch.jagged
    assert torch.equal(grad.values(), torch.ones(6, 2).double())


def test_types_and_empty_rows() -> None:
    double = spcomp.compile("Z[b, j] = 2 * X[b, j]")
    for dtype in (torch.bfloat16, torch.float16, torch.int64):
        found = double(X=nested(torch.arange(6).to(dtype)))
        assert found.dtype == dtype
        assert found.values().tolist() == [0, 2, 4, 6, 8, 10]
    none = torch.nested.nested_tensor_from_jagged(torch.zeros(0), offsets=torch.zeros(3, dtype=int))
    assert double(X=none).values().shape == (0,)
    weighted = spcomp.compile("Z[b, j, f] = X[b, j, f] * w[b]")
    leaf = nested(torch.zeros(6, 0)).requires_grad_()  # rows, but no features
    found = weighted(X=leaf, w=torch.ones(3))
    assert found.values().shape == (6, 0)
    (grad,) = torch.autograd.grad(found.values().sum(), leaf)
    assert grad.values().shape == (6, 0)


def test_nested_tensors_with_gaps_are_refused() -> None:
    gaps = torch.nested.nested_tensor_from_jagged(
        torch.arange(6.0), offsets=OFFSETS, lengths=torch.tensor([1, 0, 3])
    )
    with pytest.raises(ArgumentError, match="argument X: is nested otherwise"):
        spcomp.compile("Z[b, j] = 2 * X[b, j]")(X=gaps)
