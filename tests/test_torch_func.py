"""``torch.func`` and forward mode: kernels, operations and operators against plain torch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import spcomp
from spcomp.errors import ArgumentError
from tests.test_torch_operations import numbers

torch = pytest.importorskip("torch", reason="needs the torch extra")
st: Any = pytest.importorskip("spcomp.torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),  # of jvp itself
]
func = torch.func
DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 5]]).double()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CSR = DENSE.to_sparse_csr()
SPMM = spcomp.compile("C[i, k] = A[i, j] * tanh(B[j, k])")
SRC, DST = torch.tensor([1, 0, 2, 1, 1]), torch.tensor([3, 0, 0, 2, 3])
SCATTER = spcomp.compile("Y[dst[e], f] = w[e] * X[src[e], f]; k = argmax(e, w[e])")
LINE = numbers(3, 4, 2).detach()


def ours(x: Any) -> Any:
    return SPMM(A=CSR, B=x)


def plain(x: Any) -> Any:
    return DENSE @ x.tanh()


def close(mine: Any, its: Any) -> bool:
    pairs = zip(*map(torch.utils._pytree.tree_leaves, (mine, its)), strict=True)
    return all(torch.allclose(one, two) for one, two in pairs)


TRANSFORMS = {
    "grad": lambda f: func.grad(lambda x: f(x[0]).square().sum()),
    "vjp": lambda f: lambda x: func.vjp(f, x[0])[1](x[1, :3]),
    "jvp": lambda f: lambda x: func.jvp(f, (x[0],), (x[1],)),
    "jacrev": lambda f: lambda x: func.jacrev(f)(x[0]),
    "jacfwd": lambda f: lambda x: func.jacfwd(f)(x[0]),
    "hessian": lambda f: lambda x: func.hessian(lambda x: f(x).square().sum())(x[0]),
    "vmap": func.vmap,
    "vmap of a middle dimension": lambda f: lambda x: func.vmap(f, 1, 2)(x.transpose(0, 1)),
    "vmap of grad": lambda f: func.vmap(func.grad(lambda x: f(x).square().sum())),
    "grad of vmap": lambda f: func.grad(lambda x: func.vmap(f)(x).square().sum()),
    "vmap of nothing": lambda f: lambda x: func.vmap(f)(x[:0]),
}


SHORT = ("grad", "jvp", "vmap of grad")
LONG = [pytest.param(name, marks=pytest.mark.long) for name in TRANSFORMS if name not in SHORT]


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("name", [*SHORT, *LONG])
def test_transforms_of_a_kernel(name: str) -> None:
    make = TRANSFORMS[name]
    assert close(make(ours)(LINE), make(plain)(LINE))


def test_several_operands_and_results() -> None:
    def scatter(x: Any, w: Any) -> Any:
        found = SCATTER(X=x, w=w, src=SRC, dst=DST, sizes={"Y": 4})
        return found.Y

    def like(x: Any, w: Any) -> Any:
        return torch.zeros(4, 2).double().index_add(0, DST, w[:, None] * x[SRC])

    x, w = numbers(4, 2).detach(), numbers(5, seed=1).detach()
    for make in (
        lambda f: func.jacrev(f, (0, 1))(x, w),
        lambda f: func.jvp(f, (x, w), (x + 1, w - 1)),
        lambda f: func.jvp(lambda w: f(x, w), (w,), (w - 1,)),
        lambda f: func.vmap(f, (None, 0))(x, torch.stack([w, -w])),
        lambda f: func.grad(lambda x: func.grad(lambda w: f(x, w).square().sum())(w).sum())(x),
    ):
        assert close(make(scatter), make(like))
    places = func.vmap(lambda w: SCATTER(X=x, w=w, src=SRC, dst=DST, sizes={"Y": 4}).k)(
        torch.stack([w, -w])
    )
    assert places.tolist() == [w.argmax(), w.argmin()]


def test_forward_mode_without_func() -> None:
    forward = torch.autograd.forward_ad
    x, t = numbers(4, 2), numbers(4, 2, seed=1).detach()
    with forward.dual_level():
        mine, its = (forward.unpack_dual(f(forward.make_dual(x, t))) for f in (ours, plain))
        assert close(mine.tangent, its.tangent)
        assert close(*(torch.autograd.grad(r.tangent.sum(), x)[0] for r in (mine, its)))
    assert torch.autograd.gradcheck(ours, (x,), check_forward_ad=True)


def test_operations_and_what_is_made_inside() -> None:
    def softmax(x: Any) -> Any:
        return st.scatter_softmax(x, torch.tensor([0, 1, 0, 1]), 0)

    def like(x: Any) -> Any:
        return torch.stack([x[::2].softmax(0), x[1::2].softmax(0)], 1).flatten(0, 1)

    for name in ("jacrev", "vmap"):
        assert close(TRANSFORMS[name](softmax)(LINE), TRANSFORMS[name](like)(LINE))
    edges = torch.stack([SRC, DST])
    greatest = func.jacrev(lambda x: st.gather_scatter(x, edges, "max"))(LINE[0])
    assert greatest.sum() == 2 * len(DST.unique())
    same = func.grad(lambda x: (x * SPMM(A=CSR, B=LINE[1])[0, 0]).sum())(LINE[0])  # without x
    assert close(same, plain(LINE[1])[0, 0].expand(4, 2))


def test_what_cannot_be_transformed_is_refused() -> None:
    index = torch.stack([SRC, DST])
    for call, message in (
        (
            lambda: func.vmap(lambda i: st.scatter(LINE[0], i[:4], 0))(index),
            "is a batch of torch.vmap",
        ),
        (
            lambda: func.grad(lambda x: st.sddmm(CSR, x[:3], x.T)[0, 0])(LINE[0]),
            "is sparse, and torch.func",
        ),
        (lambda: func.jvp(spcomp.compile("y += x[i]"), (LINE[0, 0],), (LINE[0, 0],)), "position"),
        (
            lambda: func.grad(lambda x: SPMM(A=CSR, B=x, out=torch.empty(3, 2)).sum())(LINE[0]),
            "argument out",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()


def test_operators() -> None:
    made = st.op(
        "C[i, k] = A[i, j] * tanh(B[j, k])", name="spcomp_test::func", formats={"A": "csr"}
    )
    parts = [x.clone() for x in (CSR.crow_indices(), CSR.col_indices(), CSR.values())]

    def call(x: Any) -> Any:
        return made(*parts, 4, x)

    for name in ("vjp", "vmap of grad", "grad of vmap"):
        assert close(TRANSFORMS[name](call)(LINE), TRANSFORMS[name](plain)(LINE))
    values = func.grad(lambda v: made(*parts[:2], v, 4, LINE[0]).sum())(parts[2])
    assert close(values, LINE[0].tanh().sum(1)[parts[1]])
    compiled = torch.compile(lambda x: call(x).sum(), fullgraph=True, backend="aot_eager")
    assert close(compiled(LINE[0]), plain(LINE[0]).sum())
    with pytest.raises(ArgumentError, match="no derivatives in forward mode"):
        func.jvp(call, (LINE[0],), (LINE[1],))
    with pytest.raises(ArgumentError, match="no second derivatives"):
        func.grad(lambda x: func.grad(lambda x: call(x).sum())(x).sum())(LINE[0])


def test_gradients_of_attention_under_a_mask_of_bools() -> None:
    mask = torch.eye(3).bool().to_sparse_csr()
    query = torch.randn(3, 2, dtype=torch.float64)
    value = torch.randn(3, 2, dtype=torch.float64)
    found = torch.func.grad(lambda v: st.attention(query, query, v, mask).sum())(value)
    torch.testing.assert_close(found, torch.ones_like(value))


def test_second_derivatives_of_what_is_linear_are_those_of_torch() -> None:
    func, index = torch.func, torch.tensor([0, 1, 1])
    x = torch.randn(3, dtype=torch.float64)
    dense = torch.randn(4, 3, dtype=torch.float64).relu()
    matrix = dense.to_sparse_csr()
    kernel = spcomp.compile("Y[i] = A[i, j] * x[j]")
    pairs: list[tuple[Any, Any]] = [
        (lambda x: st.gather_coo(x, index), lambda x: x[index]),
        (lambda x: st.scatter(x, index), lambda x: x.new_zeros(2).index_add(0, index, x)),
        (lambda x: kernel(A=matrix, x=x), lambda x: dense @ x),
    ]
    for ours, theirs in pairs:
        for outer in (func.jacrev, func.jacfwd):
            for inner in (func.jacrev, func.jacfwd):
                assert torch.equal(outer(inner(ours))(x), outer(inner(theirs))(x))
        for squares in (lambda f: lambda x: f(x).pow(2).sum(), lambda f: lambda x: f(x).pow(3)):
            found, wanted = (func.jacrev(func.jacfwd(squares(f)))(x) for f in (ours, theirs))
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(func.hessian(squares(ours))(x), wanted)


def test_gradients_through_a_coo_matrix_of_what_is_differentiated() -> None:
    at, size = torch.stack([SRC, DST]).flip(1), (3, 4)  # not sorted, one element twice
    weights, rows = numbers(5).detach(), numbers(4, 2, seed=1).detach()

    def loss(product: Any) -> Any:
        def call(v: Any, x: Any) -> Any:
            matrix = torch.sparse_coo_tensor(at, v.tanh(), size)
            return product(matrix, x * v.sum()).square().sum()

        return call

    mine = loss(lambda A, x: SPMM(A=A, B=x))
    its = loss(lambda A, x: torch.sparse.mm(A, x.tanh()))
    for argnums in (0, 1, (0, 1)):
        args = weights, rows
        assert close(func.grad(mine, argnums)(*args), func.grad(its, argnums)(*args))
    alone = func.grad(lambda v: SPMM(A=torch.sparse_coo_tensor(at, v, size), B=rows).sum())
    assert close(alone(weights), rows.tanh().sum(1)[at[1]])
    up = LINE[0, 0, 0]
    assert close(*(func.vjp(f, weights, rows)[1](up) for f in (mine, its)))
    twice = lambda f: func.grad(lambda v: func.grad(f)(v, rows).square().sum())(weights)  # noqa: E731
    assert close(twice(mine), twice(its))  # of which torch follows a part
