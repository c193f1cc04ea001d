"""Attention, relations and sampled products: values against plain torch, and their gradients."""

from __future__ import annotations

from typing import Any

import pytest

from spcomp.errors import ArgumentError, SpcompError
from tests.test_torch_operations import numbers

torch = pytest.importorskip("torch", reason="needs the torch extra")
st: Any = pytest.importorskip("spcomp.torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Sparse")]
LONG = pytest.mark.long
EDGES = torch.tensor([[0, 1, 3, 3, 0, 2], [2, 2, 0, 0, 2, 4]])  # one of them twice
MASK = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 0], [4, -1, 0, 5]]).double()


def test_products_where_a_mask_stores_elements() -> None:
    X, Y = numbers(3, 2), numbers(2, 4)
    wanted = torch.where(MASK != 0, X @ Y, 0)
    for mask in (MASK.to_sparse_csr(), (MASK != 0).to_sparse_csr(), MASK.to_sparse()):
        found = st.sampled_matmul(X, Y, mask)
        assert found.layout == torch.sparse_csr
        assert torch.allclose(found.to_dense(), wanted)
    csr = MASK.to_sparse_csr()
    call = lambda X, Y: st.sampled_matmul(X, Y, csr).to_dense()  # noqa: E731
    assert torch.autograd.gradcheck(call, (X, Y))


def test_queries_of_no_width_attend_to_all_keys() -> None:
    value = numbers(4, 2)
    found = st.attention(torch.zeros(3, 0), torch.zeros(4, 0), value, torch.ones(3, 4).to_sparse())
    assert torch.allclose(found, value.mean(0).expand(3, 2))


def gat(x: Any, a: Any, b: Any, edges: Any, slope: float) -> Any:
    """What gat_attention returns, in plain torch, node by node."""
    scores = torch.nn.functional.leaky_relu(a[edges[0]] + b[edges[1]], slope)
    rows = []
    for n in range(len(b)):
        at = edges[1] == n
        weights = scores[at].softmax(0)
        rows.append((weights[..., None] * x[edges[0][at]]).sum(0))
    return torch.stack(rows)


def test_attention_along_edges() -> None:
    args = numbers(4, 2, 3), numbers(4, 2, seed=1), numbers(5, 2, seed=2)
    for slope in (0.2, 0.0):
        found = st.gat_attention(*args, EDGES, negative_slope=slope)
        assert torch.allclose(found, gat(*args, EDGES, slope))
    assert torch.equal(found[1], torch.zeros(2, 3).double())
    call = lambda *args: st.gat_attention(*args, EDGES)  # noqa: E731
    assert torch.autograd.gradcheck(call, args)
    half = st.gat_attention(*(x.detach().bfloat16() for x in args), EDGES)
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.double(), call(*args), atol=0.05)
    assert torch.equal(st.gat_attention(*args, EDGES[:, :0]), torch.zeros(5, 2, 3).double())
    scores = numbers(6, 2)
    weights = st.edge_softmax(scores, EDGES, 5)
    for n in (0, 2, 4):
        assert torch.allclose(weights[EDGES[1] == n], scores[EDGES[1] == n].softmax(0))
    for wrong in ((args[0][0], *args[1:], EDGES), (*args, EDGES + 1), (*args, EDGES[0])):
        with pytest.raises(ArgumentError, match="argument"):
            st.gat_attention(*wrong)


@pytest.mark.long
def test_second_derivatives_of_attention() -> None:
    args = numbers(4, 1, 2), numbers(4, 1, seed=1), numbers(5, 1, seed=2)
    assert torch.autograd.gradgradcheck(lambda *x: st.gat_attention(*x, EDGES), args)
    rows, csr = [numbers(n, 2, seed=n) for n in (3, 4, 4)], MASK.to_sparse_csr()
    assert torch.autograd.gradgradcheck(lambda *x: st.attention(*x, csr), rows)
    sampled = lambda X, Y: st.sampled_matmul(X, Y, csr).to_dense()  # noqa: E731
    assert torch.autograd.gradgradcheck(sampled, (numbers(3, 2), numbers(2, 4)))


@pytest.mark.parametrize("batch", [(2,), *(pytest.param(b, marks=LONG) for b in ((), (2, 3)))])
def test_attention_under_a_sparse_mask(batch: tuple[int, ...]) -> None:
    query, key, value = (numbers(*batch, n, w, seed=n) for n, w in ((3, 2), (4, 2), (4, 5)))
    dense = torch.nn.functional.scaled_dot_product_attention
    seen = MASK != 0
    wanted = dense(query, key, value, attn_mask=seen)
    wanted = torch.where(seen.any(1)[:, None], wanted, 0)
    found = st.attention(query, key, value, seen.to_sparse_csr())
    assert torch.allclose(found, wanted)
    added = torch.where(seen, MASK, -torch.inf)
    wanted = dense(query, key, value, attn_mask=added, scale=0.3)
    wanted = torch.where(seen.any(1)[:, None], wanted, 0)
    csr = MASK.to_sparse_csr()
    assert torch.allclose(st.attention(query, key, value, csr, scale=0.3), wanted)
    if len(batch) < 2:
        call = lambda *args: st.attention(*args, csr)  # noqa: E731
        assert torch.autograd.gradcheck(call, (query, key, value))
        bias = csr.clone().requires_grad_()
        st.attention(query.detach(), key.detach(), value.detach(), bias)[..., 0].sum().backward()
        assert bias.grad.layout == torch.sparse_csr
    none = st.attention(query[..., :0, :], key[..., :0, :], value[..., :0, :], csr.new_zeros(0, 0))
    assert none.shape == (*batch, 0, 5)
    with pytest.raises(SpcompError):
        st.attention(query, key[..., :3, :], value, csr)
    with pytest.raises(ArgumentError, match="batches and heads differ"):
        st.attention(query, key[None], value, csr)


def test_attention_where_a_mask_of_floats_is_infinite_or_dense() -> None:
    query, key, value = (numbers(*shape, seed=5) for shape in ((3, 2), (4, 2), (4, 5)))
    bias = torch.tensor([[-torch.inf] * 4, [1, 0, -torch.inf, 2], [0.5, 0, -1, 3]]).double()
    at, of = torch.tensor([0, 4, 8, 12]), torch.arange(4).repeat(3)

    def ours(query: Any, bias: Any) -> Any:
        mask = torch.sparse_csr_tensor(at, of, bias.reshape(-1), (3, 4))
        return st.attention(query, key, value, mask)

    def plain(query: Any, bias: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)

    args = query, bias.requires_grad_()
    leaves = *args, key, value
    for wanted, found in zip(
        *((y, *torch.autograd.grad(y.square().sum(), leaves)) for y in (plain(*args), ours(*args))),
        strict=True,
    ):
        assert torch.allclose(found, wanted)
    fixed = torch.sparse_csr_tensor(at, of, bias.detach().reshape(-1), (3, 4))
    call = lambda q: st.attention(q, key.detach(), value.detach(), fixed)  # noqa: E731
    for transform in (lambda f: torch.func.grad(lambda x: f(x).square().sum()), torch.func.vmap):
        q = torch.stack([query.detach()] * 2) if transform is torch.func.vmap else query.detach()
        same = lambda q: plain(q, bias.detach())  # noqa: E731
        for one, other in zip(transform(call)(q), transform(same)(q), strict=True):
            assert torch.allclose(one, other.detach())
    for dense in (torch.zeros(3, 4), torch.zeros(3, 4).half().numpy()):
        with pytest.raises(ArgumentError, match="argument mask: is a dense one of floats"):
            st.attention(query, key, value, dense)
    full = torch.ones(3, 4, dtype=torch.bool)
    assert torch.allclose(st.attention(query, key, value, full), plain(query, full))


@pytest.mark.parametrize("reduce", ["mean", pytest.param("max", marks=LONG)])
def test_relations(reduce: str) -> None:
    x, weight = numbers(4, 3), numbers(3, 3, 2, seed=1)
    types = torch.tensor([2, 0, 0, 0, 2, 2])  # nothing has type 1
    wanted = torch.zeros(5, 2).double()
    for r in range(3):
        edges = EDGES[:, types == r]
        wanted = wanted + st.gather_scatter(x, edges, reduce, 5) @ weight[r]
    call = lambda x, w: st.rgcn(x, w, EDGES, types, reduce, 5)  # noqa: E731
    assert torch.allclose(call(x, weight), wanted)
    assert torch.autograd.gradcheck(call, (x, weight))
    none = st.rgcn(x, weight, EDGES[:, :0], types[:0])
    assert torch.equal(none, torch.zeros(4, 2).double())
    assert st.rgcn(x, weight[:0], EDGES[:, :0], types[:0]).shape == (4, 2)
    for wrong, message in (
        ((EDGES, types + 1), "edge_type: got 3"),
        ((EDGES, types[:2]), "edge_type: has the shape"),
        ((EDGES[:1], types), "edge_index: has the shape"),
        ((EDGES + 1, types), "edge_index"),
    ):
        with pytest.raises(ArgumentError, match=message):
            st.rgcn(x, weight, *wrong, dim_size=5)
