"""Kernels of index notation called with torch tensors that require gradients."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError
from spcomp.formats import bsr, hyb, sell

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Sparse")]
DENSE = np.array([[1.0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 5]])
CSR = sps.csr_array(DENSE)
SPMM = "C[i, k] = A[i, j] * B[j, k]"
SOFTMAX = """
    m[i] = max(j, A[i, j])
    e[i, j] = exp(A[i, j] - m[i]) if A[i, j]
    C[i, j] = e[i, j] / sum(k, e[i, k])
"""
LAYOUTS = ("strided", "coo", "csr", "csc", "bsr", "bsc")


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def numbers(torch: Any, *shape: int, seed: int = 0) -> Any:
    """Random float64 that requires gradients."""
    made = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    return made.requires_grad_()


def stored(torch: Any, layout: str) -> tuple[Any, Any]:
    """The values of DENSE in *layout*, and a function that makes the tensor of values."""
    dense = torch.from_numpy(DENSE)
    if layout == "strided":
        return dense.clone().requires_grad_(), lambda values: values
    if layout == "coo":
        coo = dense.to_sparse()
        return coo.values().clone().requires_grad_(), lambda values: torch.sparse_coo_tensor(
            coo.indices(), values, coo.shape, is_coalesced=True
        )
    blocks = {"bsr": ((3, 2),), "bsc": ((1, 2),)}.get(layout, ())
    like = getattr(dense, f"to_sparse_{layout}")(*blocks)
    by_rows = layout in ("csr", "bsr")
    indices = (
        (like.crow_indices(), like.col_indices())
        if by_rows
        else (like.ccol_indices(), like.row_indices())
    )
    return like.values().clone().requires_grad_(), lambda values: torch.sparse_compressed_tensor(
        *indices, values, like.shape, layout=like.layout
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_a_product_in_every_layout(torch: Any, layout: str) -> None:
    spmm, (values, make), dense = spcomp.compile(SPMM), stored(torch, layout), numbers(torch, 4, 3)

    def product(values: Any, dense: Any) -> Any:
        return spmm(A=make(values), B=dense)

    assert torch.allclose(product(values, dense), torch.from_numpy(DENSE) @ dense)
    assert torch.autograd.gradcheck(product, (values, dense))
    if layout == "strided":
        assert torch.autograd.gradgradcheck(product, (values, dense))


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_the_gradient_of_a_sparse_tensor_has_its_pattern(torch: Any, layout: str) -> None:
    values, make = stored(torch, layout)
    sparse = make(values.detach()).requires_grad_()
    dense = numbers(torch, 4, 3)
    for times in (1, 2):  # a second gradient is added
        spcomp.compile(SPMM)(A=sparse, B=dense).sum().backward()
        assert sparse.grad.layout == sparse.layout
        expected = torch.from_numpy(DENSE != 0) * dense.detach().sum(1)
        assert torch.allclose(sparse.grad.to_dense(), times * expected)
    (first,) = torch.autograd.grad(
        (spcomp.compile(SPMM)(A=sparse, B=dense) ** 2).sum(), sparse, create_graph=True
    )
    stored_values = first.values() if layout == "csr" else first.coalesce().values()
    (second,) = torch.autograd.grad(stored_values.sum(), dense)
    full = torch.from_numpy(DENSE).requires_grad_()
    (first,) = torch.autograd.grad(((full @ dense) ** 2).sum(), full, create_graph=True)
    (expected,) = torch.autograd.grad(first[full != 0].sum(), dense)
    assert torch.allclose(second, expected)


@pytest.mark.parametrize("layout", [sell(), hyb(1, [1, 2]), bsr(2), "hyb", "dcsr"], ids=str)
def test_gradients_of_programs_over_other_formats(torch: Any, layout: Any) -> None:
    kernel = spcomp.compile("S[i, j] = A[i, j] * X[i, k] * Y[j, k]", formats={"A": layout})
    sparse = torch.from_numpy(DENSE).to_sparse_csr().requires_grad_()
    X, Y = numbers(torch, 3, 2), numbers(torch, 4, 2, seed=1)
    kernel(A=sparse, X=X, Y=Y).to_dense().sum().backward()
    assert sparse.grad.layout == torch.sparse_csr
    full, left, right = (x.detach().to_dense().requires_grad_() for x in (sparse, X, Y))
    (full * (left @ right.T)).sum().backward()
    assert torch.allclose(sparse.grad.to_dense(), full.grad * (full != 0))
    assert torch.allclose(X.grad, left.grad)
    assert torch.allclose(Y.grad, right.grad)


def test_elements_in_any_order_and_repeated_ones(torch: Any) -> None:
    spmv, x = spcomp.compile("y[i] = A[i, j] * x[j]"), numbers(torch, 4)
    rows = torch.tensor([0, 3, 4]), torch.tensor([3, 0, 1, 2])
    values = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    unsorted = torch.sparse_csr_tensor(*rows, values, (2, 4)).requires_grad_()
    spmv(A=unsorted, x=x).sum().backward()
    assert torch.equal(unsorted.grad.values(), x.detach()[rows[1]])
    repeated = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2], [1, 1, 3]]), torch.ones(3))
    repeated = repeated.double().requires_grad_()
    spmv(A=repeated, x=x).sum().backward()
    assert torch.equal(repeated.grad.to_dense()[0], torch.eye(4).double()[1] * x.detach())
    twice = torch.sparse_csr_tensor(torch.tensor([0, 2]), torch.tensor([1, 1]), values[:2], (1, 4))
    with pytest.raises(ArgumentError, match="argument A"):
        spmv(A=twice, x=x)


def test_values_that_the_way_back_needs_are_kept(torch: Any) -> None:
    softmax, (values, make) = spcomp.compile(SOFTMAX), stored(torch, "csr")

    def dense(values: Any) -> Any:
        return softmax(A=make(values)).to_dense()

    result = softmax(A=make(values))
    assert result.layout == torch.sparse_csr
    expected = torch.where(torch.from_numpy(DENSE) != 0, torch.from_numpy(DENSE), -torch.inf)
    assert torch.allclose(dense(values), expected.softmax(1))
    assert torch.autograd.gradcheck(dense, (values,))
    found = second_derivative(softmax, torch.from_numpy(DENSE).to_sparse())
    full = torch.from_numpy(DENSE)
    rows = lambda A: torch.where(full != 0, A, -torch.inf).softmax(1)  # noqa: E731
    assert torch.allclose(found, second_derivative(rows, full))


def second_derivative(call: Any, sparse: Any) -> Any:
    """The gradient of a sum of squares of gradients, as a dense tensor; *sparse* is a leaf.

    Torch follows no second derivatives through the functions that make sparse tensors of values.
    """
    import torch

    leaf, weights = sparse.detach().clone().requires_grad_(), torch.arange(12.0).reshape(3, 4)
    result = call(A=leaf)
    result = result if result.layout == torch.strided else result.to_dense()
    (first,) = torch.autograd.grad((result * weights).sum(), leaf, create_graph=True)
    first = first if first.layout == torch.strided else first.coalesce().values()
    (second,) = torch.autograd.grad((first**2).sum(), leaf)
    return second if second.layout == torch.strided else second.to_dense()


def test_numbers_products_and_several_results(torch: Any) -> None:
    grad, again = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    scaled = spcomp.compile("y[i] = alpha * A[i, j] * x[j]")
    x, alpha = numbers(torch, 4), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    several = spcomp.compile("y[i] = A[i, j] * x[j]\nz[j] = x[j] * x[j]\nn = argmax(j, x[j])")
    for call, args in (
        (lambda alpha, x: scaled(A=CSR, alpha=alpha, x=x), (alpha, x)),
        (lambda x: several(A=CSR, x=x)[:2], (x,)),
        (lambda x: spcomp.compile("s = sum(j, x[j])")(x=x) * x, (x,)),
        (lambda x: spcomp.compile("p = prod(j, x[j])")(x=x), (x,)),
        (lambda x: spcomp.einsum("ij,j->i", CSR, x), (x,)),
        (lambda x: spcomp.compile("y[i] = A[i, j] * x[j]").bind(A=CSR)(x=x), (x,)),
        (lambda x: spcomp.compile("C[i, j] = A[i, j] * x[j]")(A=CSR, x=x).to_dense(), (x,)),
    ):
        assert grad(call, args)
        assert again(call, args)
    results = several(A=CSR, x=x)
    assert results.n.dtype == torch.int64
    assert not results.n.requires_grad
    (first,) = torch.autograd.grad(results.z.sum(), x, create_graph=True)  # y has no gradient
    assert torch.allclose(torch.autograd.grad(first.sum(), x)[0], torch.full((4,), 2.0).double())


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_types_of_gradients_are_those_of_operands(torch: Any, name: str) -> None:
    spmm, dtype = spcomp.compile(SPMM), getattr(torch, name)
    sparse = torch.from_numpy(DENSE).to(dtype).to_sparse_csr().requires_grad_()
    dense = numbers(torch, 4, 3).detach().to(dtype).requires_grad_()
    result = spmm(A=sparse, B=dense)
    result.sum().backward()
    assert result.dtype == sparse.grad.dtype == dense.grad.dtype == dtype
    expected = torch.from_numpy(DENSE.sum(0))[:, None].expand(4, 3)
    assert torch.equal(dense.grad, expected.to(dtype))
    wide = numbers(torch, 4, 3)
    assert spmm(A=sparse, B=wide).dtype == torch.float64
    (grad,) = torch.autograd.grad(spmm(A=sparse, B=wide).sum(), sparse)
    assert grad.dtype == dtype


def test_changes_in_place_are_seen(torch: Any) -> None:
    spmv, x = spcomp.compile("y[i] = A[i, j] * x[j]"), numbers(torch, 4)
    sparse = torch.from_numpy(DENSE).to_sparse_csr()
    assert torch.allclose(spmv(A=sparse, x=x), torch.from_numpy(DENSE) @ x)
    for write in (
        lambda: sparse.col_indices().__setitem__(2, 0),
        lambda: sparse.col_indices().data.__setitem__(2, 2),
        lambda: sparse.col_indices().numpy().__setitem__(2, 3),
    ):
        write()
        y = spmv(A=sparse, x=x)
        assert torch.allclose(y, sparse.to_dense() @ x)
        y.sum().backward()
        assert torch.allclose(x.grad, sparse.to_dense().sum(0))
        x.grad = None
    y = spmv(A=sparse, x=x)
    sparse.values().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = spcomp.compile("y[i] = x[i] * x[i]")(x=x)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_writes_of_kernels_are_seen(torch: Any) -> None:
    array = np.full(3, 5, np.float32)
    double, add = spcomp.compile("C[i] = 2 * B[i]"), spcomp.compile("C[i] += B[i]")
    script = double.specialize(B=array)
    ways = {
        "out": lambda w: double(B=torch.from_numpy(array), out=w),
        "16 bits": lambda w: double(B=torch.ones(3).bfloat16(), out=w),
        "out beside arrays": lambda w: double(B=array, out=w),
        "named": lambda w: double(B=array, C=w),
        "bound": lambda w: double.bind(B=array)(out=w),
        "added to": lambda w: add(B=array, C=w),
        "a part": lambda w: spcomp.compile("C[0:2] = B[i]")(B=array, C=w),
        "einsum": lambda w: spcomp.einsum("i->i", array, out=w),
        "script": lambda w: script(B=array, out=w),
    }
    for way, write in ways.items():
        w = torch.ones(3, dtype=torch.bfloat16 if way == "16 bits" else torch.float32)
        y = (torch.ones(3, requires_grad=True) * w).sum()
        write(w)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_writes_to_bound_and_sparse_tensors_are_seen(torch: Any) -> None:
    array, w = np.full(3, 5, np.float32), torch.ones(3)
    bound = spcomp.compile("C[i] = 2 * B[i]").specialize(B=array).bind(C=w)
    for _ in range(4):  # calls of one kind are learnt
        y = (torch.ones(3, requires_grad=True) * w).sum()
        bound(B=array)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    eye = torch.eye(3).to_sparse_csr()
    y = spcomp.compile("y[i] = A[i, j] * x[j]")(A=eye, x=torch.ones(3, requires_grad=True))
    spcomp.compile("A[i, j] += B[i, j]")(A=eye, B=torch.eye(3).to_sparse_csr())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():
        w = torch.empty(3)
        assert spcomp.compile("C[i] = 2 * B[i]")(B=array, out=w) is w


def test_batches_of_gradients_are_refused_by_name(torch: Any) -> None:
    x = torch.ones(3, requires_grad=True)
    y = spcomp.compile("y[i] = x[i] * x[i]")(x=x)
    with pytest.raises(ArgumentError, match="is_grads_batched=True"):
        torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)


def test_threads_follow_gradients_at_once(torch: Any) -> None:
    spmm, failures = spcomp.compile(SPMM), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        full = torch.from_numpy(rng.normal(size=(5, 4)) * (rng.random((5, 4)) < 0.5))
        dense = numbers(torch, 4, 3, seed=seed)
        for _ in range(10):
            (grad,) = torch.autograd.grad(spmm(A=full.to_sparse_csr(), B=dense).sum(), dense)
            if not torch.allclose(grad, full.sum(0)[:, None].expand(4, 3)):
                failures.append(seed)

    threads = [Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_cannot_be_followed_is_refused(torch: Any) -> None:
    x = numbers(torch, 3)
    shortest = spcomp.compile("y[i] = A[i, j] * x[j]", semiring="min_plus")
    added = spcomp.compile("y[i] += x[i]")
    for call, message in (
        (lambda: shortest(A=np.eye(3), x=x), "over a semiring"),
        (lambda: added(y=torch.ones(3).double(), x=x), "is written to"),
        (lambda: spcomp.compile("y[i] = 2 * x[i]")(x=x, out=torch.empty(3)), "argument out"),
        (lambda: spcomp.compile("y[i] = 2 * x[i]").bind(x=x), "requires gradients"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    with torch.no_grad():
        assert added(y=torch.ones(3).double(), x=x).tolist() == (1 + x).tolist()
        assert not spcomp.compile("y[i] = 2 * x[i]")(x=x).requires_grad


@pytest.mark.parametrize(
    "text",
    ["Y[i] = max(j, X[i, j])", "Y[i, k] = abs(X[i, k])", "Y[i, k] = maximum(X[i, k], 0.5)"],
)
def test_gradients_that_change_in_steps_have_gradients_of_zero(text: str, torch: Any) -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(spcomp.compile(text)(X=x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    assert torch.equal(second, torch.zeros_like(x))
    whole = torch.randn(2, 2, requires_grad=True)
    (first,) = torch.autograd.grad(spcomp.compile("Y[i] = 2 * X[i, j]")(X=whole).sum(), whole,
                                   create_graph=True)  # fmt: skip
    assert not first.requires_grad  # as of torch's own sums
