"""Operations for graph learning: values against plain torch, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spcomp.errors import ArgumentError

torch = pytest.importorskip("torch", reason="needs the torch extra")
st: Any = pytest.importorskip("spcomp.torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Sparse")]
REDUCTIONS = ("sum", "add", "mean", "mul", "min", "max")
EDGES = torch.zeros(2, 7, dtype=torch.int64)


def numbers(*shape: int, seed: int = 0) -> Any:
    made = torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
    return made.requires_grad_()


def expected(src: Any, index: Any, size: int, reduce: str) -> tuple[Any, Any]:
    """What *reduce* gives along dimension 0 of *src*, and the elements of min and max."""
    rows, args = [], []
    for n in range(size):
        (at,) = torch.nonzero(index == n, as_tuple=True)
        part = src[at]
        arg = torch.full(src.shape[1:], len(src))
        if reduce in ("min", "max"):
            row = src.new_zeros(src.shape[1:])
            if len(at):
                row, where = getattr(part, reduce)(0)
                arg = at[where]
        elif reduce == "mul":
            row = part.prod(0)
        else:
            row = part.sum(0)
            mode = None if src.is_floating_point() else "floor"
            if reduce == "mean":
                row = torch.div(row, max(len(at), 1), rounding_mode=mode)
        rows.append(row)
        args.append(arg)
    return torch.stack(rows), torch.stack(args)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_scatter_along_any_dimension(reduce: str) -> None:
    index = torch.tensor([3, 0, 3, 1, 0, 3])
    for dim, shape in ((0, (6,)), (0, (6, 2)), (1, (2, 6, 3)), (-1, (3, 6))):
        src = numbers(*shape)
        found = st.scatter(src, index, dim, dim_size=5, reduce=reduce)
        wanted, arg = expected(src.detach().movedim(dim, 0), index, 5, reduce)
        assert torch.allclose(found, wanted.movedim(0, dim))
        assert st.scatter(src, index, dim, reduce=reduce).shape[dim] == 4
        if reduce in ("min", "max"):
            values, places = getattr(st, f"scatter_{reduce}")(src, index, dim, dim_size=5)
            assert torch.equal(values, found)
            assert torch.equal(places, arg.movedim(0, dim))
        whole = (
            torch.arange(6).reshape(6, *(1,) * (src.dim() - 1)).expand(src.movedim(dim, 0).shape)
        )
        integers = (whole * 7 % 5 - 2).movedim(0, dim)
        wanted, _ = expected(integers.movedim(dim, 0), index, 5, reduce)
        found = st.scatter(integers, index, dim, dim_size=5, reduce=reduce)
        assert found.dtype == torch.int64
        assert torch.equal(found, wanted.movedim(0, dim))


@pytest.mark.parametrize(
    "reduce",
    ["sum", "mean", "max", *(pytest.param(n, marks=pytest.mark.long) for n in ("mul", "min"))],
)
def test_gradients_of_segments(reduce: str) -> None:
    index, indptr = torch.tensor([3, 0, 3, 1, 0, 3]), torch.tensor([0, 2, 2, 5, 6])
    each = torch.tensor([[3, 0], [0, 0], [3, 2], [1, 1], [0, 1], [3, 0]])
    for call in (
        lambda src: st.scatter(src, index, 0, dim_size=5, reduce=reduce),
        lambda src: st.scatter(src, each, 0, dim_size=5, reduce=reduce),
        lambda src: st.segment_csr(src, indptr, reduce=reduce),
    ):
        assert torch.autograd.gradcheck(call, (numbers(6, 2),))
        assert torch.autograd.gradgradcheck(call, (numbers(6, 2),))


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_an_index_for_each_element(reduce: str) -> None:
    src, index = numbers(6, 2), torch.tensor([[3, 0], [0, 0], [3, 2], [1, 1], [0, 1], [3, 0]])
    found = st.scatter(src, index, 0, dim_size=5, reduce=reduce)
    columns = [expected(src.detach()[:, k], index[:, k], 5, reduce) for k in (0, 1)]
    assert torch.allclose(found, torch.stack([column for column, _ in columns], 1))
    if reduce in ("min", "max"):
        _, arg = getattr(st, f"scatter_{reduce}")(src, index, 0, dim_size=5)
        assert torch.equal(arg, torch.stack([places for _, places in columns], 1))
    row = torch.tensor([[0, 1, 0, 1, 2, 1]])
    found = st.scatter(src.T, row, 1, reduce=reduce)
    assert torch.allclose(found, st.scatter(src, row[0], 0, reduce=reduce).T)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_that_follow_one_another(reduce: str) -> None:
    src, indptr = numbers(6, 2, 2), torch.tensor([0, 2, 2, 5, 6])
    index = torch.repeat_interleave(torch.arange(4), indptr.diff())
    wanted, arg = expected(src.detach(), index, 4, reduce)
    assert torch.allclose(st.segment_csr(src, indptr, reduce=reduce), wanted)
    assert torch.allclose(st.segment_coo(src, index, dim_size=4, reduce=reduce), wanted)
    if reduce in ("min", "max"):
        assert torch.equal(getattr(st, f"segment_{reduce}_csr")(src, indptr)[1], arg)
    part = st.segment_csr(src, torch.tensor([1, 3, 4]), reduce=reduce)
    wanted, _ = expected(src.detach()[1:4], torch.tensor([0, 0, 1]), 2, reduce)
    assert torch.allclose(part, wanted)


def test_gathers_and_products() -> None:
    grad, again = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    indptr, rows = torch.tensor([0, 2, 2, 5]), numbers(3, 2)
    assert torch.equal(st.gather_csr(rows, indptr), rows[[0, 0, 2, 2, 2]])
    full = torch.tensor([[1.0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 5]]).double()
    csr, dense, X, Y = full.to_sparse_csr(), numbers(4, 2), numbers(3, 2), numbers(2, 4)
    assert torch.allclose(st.spmm(csr, dense), full @ dense)
    found = st.sddmm(csr, X, Y)
    assert found.layout == torch.sparse_csr
    assert torch.allclose(found.to_dense(), full * (X @ Y))
    for call, args in (
        (lambda src: st.gather_csr(src, indptr), (rows,)),
        (lambda B: st.spmm(csr, B), (dense,)),
        (lambda X, Y: st.sddmm(csr, X, Y).to_dense(), (X, Y)),
    ):
        assert grad(call, args)
        assert again(call, args)


@pytest.mark.parametrize("shape", [(4,), (3, 4, 2), (2, 3, 4, 2), (0, 4, 2)])
def test_products_with_vectors_and_batches(shape: tuple[int, ...]) -> None:
    full = torch.tensor([[1.0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 5]]).double()
    dense, values = numbers(*shape), full.to_sparse_csr().values().clone().requires_grad_()

    def product(values: Any, dense: Any) -> Any:
        csr = full.to_sparse_csr()
        at = csr.crow_indices(), csr.col_indices()
        return st.spmm(torch.sparse_csr_tensor(*at, values, full.shape), dense)

    found = product(values, dense)
    assert found.shape == (full @ dense).shape
    assert torch.allclose(found, full @ dense)
    assert torch.allclose(st.spmm(full.to_sparse_coo(), dense), full @ dense)
    if dense.numel():
        assert torch.autograd.gradcheck(product, (values, dense))


def test_everything_public_is_listed() -> None:
    assert {"spmm", "op", "explain", "enable", "disable", "Costs"} <= {*dir(st)}


def test_products_refuse_the_ends_of_edges_and_numbers() -> None:
    with pytest.raises(ArgumentError, match="expected a sparse matrix") as caught:
        st.spmm(torch.tensor([[0, 1, 2], [1, 2, 0]]), numbers(3, 2))
    assert "gather_scatter" in caught.value.hint
    with pytest.raises(ArgumentError, match="argument B: got a number"):
        st.spmm(torch.eye(3).to_sparse_csr(), torch.tensor(2.0))


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_messages_along_edges(reduce: str) -> None:
    x, edges = numbers(4, 3), torch.tensor([[0, 1, 3, 3, 0, 2], [2, 2, 0, 0, 2, 4]])  # one twice
    wanted, _ = expected(x.detach()[edges[0]], edges[1], 5, reduce)
    assert torch.allclose(st.gather_scatter(x, edges, reduce, 5), wanted)
    assert torch.autograd.gradcheck(lambda x: st.gather_scatter(x, edges, reduce, 5), (x,))
    assert torch.autograd.gradgradcheck(lambda x: st.gather_scatter(x, edges, reduce, 5), (x,))
    half = st.gather_scatter(x.detach().bfloat16(), edges, reduce, 5)
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.double(), wanted, atol=0.05)


def test_what_was_sorted_is_not_used_for_another_index() -> None:
    src, index, edges = numbers(4, 2), torch.tensor([0, 1, 1, 0]), torch.tensor([[0, 1], [1, 0]])
    pointers = torch.tensor([0, 1, 4])
    for write in (
        lambda: None,
        lambda: index.__setitem__(0, 1),
        lambda: index.data.__setitem__(1, 0),
        lambda: index.numpy().__setitem__(2, 0),
        lambda: pointers.__setitem__(1, 2),
        lambda: edges.numpy().__setitem__((0, 0), 3),
    ):
        write()
        wanted, _ = expected(src.detach(), index, 2, "sum")
        assert torch.allclose(st.scatter(src, index, 0, reduce="sum"), wanted)
        assert torch.allclose(st.segment_csr(src, pointers)[0], src[: pointers[1]].sum(0))
        assert torch.allclose(st.gather_scatter(src, edges)[1], src[edges[0, 0]])


def test_lengths_of_segments_add_up_unless_they_need_not() -> None:
    data = torch.ones(4)
    for wrong in ([3], [5], [5, -1], []):
        with pytest.raises(ArgumentError, match="lengths: they do not add up to 4"):
            st.segment_reduce(data, "sum", lengths=torch.tensor(wrong, dtype=torch.int64))
    found = st.segment_reduce(data, "sum", lengths=torch.tensor([1, 2]), unsafe=True)
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "min", "max"])
@pytest.mark.parametrize("initial", [0.5, 2.0, float("nan")])
def test_segments_that_start_with_a_number_are_those_of_torch(reduce: str, initial: float) -> None:
    lengths, data = torch.tensor([2, 0, 3, 2]), torch.tensor([[1.0, 2, 2, 0, 2, 0.5, 0.5]]).T
    theirs, ours = (data.double().requires_grad_() for _ in range(2))
    wanted = torch.segment_reduce(theirs, reduce, lengths=lengths, initial=initial)
    found = st.segment_reduce(ours, reduce, lengths=lengths, initial=initial)
    assert torch.allclose(found, wanted, equal_nan=True)
    if initial == initial:
        wanted.sum().backward()
        found.sum().backward()
        assert torch.allclose(ours.grad, theirs.grad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: st.edge_softmax(torch.ones(6), EDGES), r"scores: has the shape \(6,\), .* \(7,\)"),
        (
            lambda: st.gat_attention(
                torch.ones(5, 2, 3), torch.ones(5, 1), torch.ones(5, 2), EDGES
            ),
            r"alpha_src: has the shape \(5, 1\), expected \(5, 2\)",
        ),
        (
            lambda: st.gat_attention(
                torch.ones(5, 2, 3), torch.ones(5, 2), torch.ones(5, 1), EDGES
            ),
            r"alpha_dst: has the shape \(5, 1\), expected \(any, 2\)",
        ),
        (
            lambda: st.attention(
                torch.ones(4, 3), torch.ones(5, 3), torch.ones(5, 2), torch.eye(4)
            ),
            r"mask: has the shape \(4, 4\), expected \(4, 5\)",
        ),
        (
            lambda: st.attention(
                torch.ones(4, 3), torch.ones(5, 2), torch.ones(5, 2), torch.eye(4)
            ),
            r"query: has the shape \(4, 3\), expected \(4, 2\)",
        ),
        (
            lambda: st.attention(
                torch.ones(4, 3), torch.ones(5, 3), torch.ones(4, 2), torch.eye(4)
            ),
            r"value: has the shape \(4, 2\), expected \(5, any\)",
        ),
        (
            lambda: st.rgcn(torch.ones(5, 3), torch.ones(2, 4, 4), EDGES, EDGES[0]),
            r"weight: has the shape \(2, 4, 4\), expected \(any, 3, any\)",
        ),
        (lambda: st.scatter(torch.ones(7), EDGES[0], dim_size=-1), "dim_size: got -1"),
        (lambda: st.scatter([1.0, 2.0], EDGES[0]), "src: got list, expected a dense tensor"),
        (lambda: st.scatter(torch.eye(3).to_sparse(), EDGES[0]), "src: got torch.sparse_coo"),
        (lambda: st.segment_coo(torch.eye(3).to_sparse(), EDGES[0]), "src: got torch.sparse_coo"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_the_argument(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"argument {message}"):
        call()


def test_results_that_are_given_and_what_is_refused() -> None:
    src, index = numbers(3, 2).detach(), torch.tensor([1, 0, 1])
    out = torch.ones(2, 2).double()
    assert st.scatter(src, index, 0, out=out) is out
    assert torch.allclose(out, 1 + st.scatter(src, index, 0))
    for call, message in (
        (lambda: st.scatter(src, index - 1, 0), "argument index: got -1 at position"),
        (lambda: st.scatter(src, index, 0, dim_size=1), "argument index: got 1 at position"),
        (lambda: st.scatter(src, index, 0, dim_size=1 << 50), "argument dim_size: got 1125"),
        (lambda: st.scatter(src, index.double(), 0), "expected integers"),
        (lambda: st.scatter(src, index[:2], 0), "does not fit"),
        (lambda: st.scatter(src, index, 2), "argument dim"),
        (lambda: st.scatter(src, index, 0, reduce="median"), "argument reduce"),
        (lambda: st.segment_csr(src, torch.tensor([0, 2, 1])), "argument indptr"),
        (lambda: st.segment_csr(src, torch.tensor([0, 4])), "ends at 4"),
        (lambda: st.gather_csr(src, torch.tensor([0, 4])), "argument indptr"),
        (lambda: st.gather_scatter(src, index), "argument edge_index"),
        (
            lambda: st.gather_scatter(src, torch.tensor([[2, 5], [0, 0]])),
            "5 at position 1, expected 0..2",
        ),
        (lambda: st.scatter(src, index), r"does not fit.*\n.*write dim=0; by default it is -1"),
        (lambda: st.scatter(src, torch.zeros(7, dtype=int)), r"\n.*each of the 2 elements along"),
        (
            lambda: st.segment_csr(src, torch.tensor([[0, 2], [0, 2]])),
            r"argument indptr: has the shape \(2, 2\), which does not fit \(3, 2\)",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    for reduce in ("mean", "max"):
        empty = st.scatter(src[:0], index[:0], 0, dim_size=2, reduce=reduce)
        assert torch.equal(empty, torch.zeros(2, 2).double())


def test_a_pair_of_vectors_and_a_trace_get_hints() -> None:
    with pytest.raises(ArgumentError, match=r"edge_index: got tuple.*\n.*torch.stack"):
        st.gather_scatter(numbers(7, 2), (EDGES[0], EDGES[1]))

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return st.gather_scatter(x, EDGES)

    with pytest.raises(ArgumentError, match=r"gives no array(.|\n)*spcomp.torch.op"):
        torch.export.export(Layer(), (numbers(7, 2).detach(),), strict=False)


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_wide_rows_are_copied_together_before_they_are_read_in_any_order(reduce: str) -> None:
    src, index = numbers(9, 6), torch.tensor([3, 0, 3, 1, 0, 3])
    rows = pytest.importorskip("spcomp.torch.shapes").Rows.of(src, index.expand(1, 6), 1)
    assert rows.adjacent(src).stride() == (9, 1)
    assert rows.of_src(src).stride() == (1, 6)
    results = st.scatter(src, index, 1, reduce=reduce), st.scatter(src.T, index, 0, reduce=reduce).T
    assert torch.equal(*results)
    one, other = (torch.autograd.grad(y.square().sum(), src)[0] for y in results)
    assert torch.equal(one, other)
