"""pytorch_scatter's names, arguments and values: tables of small numbers, and any rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spcomp.errors import ArgumentError
from tests.test_torch_operations import REDUCTIONS, expected, numbers

torch = pytest.importorskip("torch", reason="needs the torch extra")
st: Any = pytest.importorskip("spcomp.torch")

pytestmark = pytest.mark.torch
TABLE = [  # src, index, dim, and what each reduction gives; of min and max also the elements
    (
        [2, 7, 1, 3, 4, 8],
        [0, 1, 0, 1, 1, 3],
        -1,
        {
            "sum": [3, 14, 0, 8],
            "mul": [2, 84, 1, 8],
            "mean": [1, 4, 0, 8],
            "min": ([1, 3, 0, 8], [2, 3, 6, 5]),
            "max": ([2, 7, 0, 8], [0, 1, 6, 5]),
        },
    ),
    (
        [[2, 1], [7, 3], [4, 5]],
        [2, 0, 2],
        0,
        {
            "sum": [[7, 3], [0, 0], [6, 6]],
            "mul": [[7, 3], [1, 1], [8, 5]],
            "mean": [[7, 3], [0, 0], [3, 3]],
            "min": ([[7, 3], [0, 0], [2, 1]], [[1, 1], [3, 3], [0, 0]]),
            "max": ([[7, 3], [0, 0], [4, 5]], [[1, 1], [3, 3], [2, 2]]),
        },
    ),
    (
        [[2, 1, 4], [7, 3, 5]],
        [[0, 0, 1], [2, 0, 0]],
        1,
        {
            "sum": [[3, 4, 0], [8, 0, 7]],
            "mul": [[2, 4, 1], [15, 1, 7]],
            "mean": [[1, 4, 0], [4, 0, 7]],
            "min": ([[1, 4, 0], [3, 0, 7]], [[1, 2, 3], [1, 3, 0]]),
            "max": ([[2, 4, 0], [5, 0, 7]], [[0, 2, 3], [2, 3, 0]]),
        },
    ),
    (
        [[[2, 1], [4, 6]], [[7, 3], [5, 9]]],
        [[0, 0], [2, 0]],
        1,
        {
            "sum": [[[6, 7], [0, 0], [0, 0]], [[5, 9], [0, 0], [7, 3]]],
            "mul": [[[8, 6], [1, 1], [1, 1]], [[5, 9], [1, 1], [7, 3]]],
            "mean": [[[3, 3], [0, 0], [0, 0]], [[5, 9], [0, 0], [7, 3]]],
            "min": (
                [[[2, 1], [0, 0], [0, 0]], [[5, 9], [0, 0], [7, 3]]],
                [[[0, 0], [2, 2], [2, 2]], [[1, 1], [2, 2], [0, 0]]],
            ),
            "max": (
                [[[4, 6], [0, 0], [0, 0]], [[5, 9], [0, 0], [7, 3]]],
                [[[1, 1], [2, 2], [2, 2]], [[1, 1], [2, 2], [0, 0]]],
            ),
        },
    ),
]


def some(*names: str, of: tuple[str, ...]) -> list[Any]:
    """The parameters *of* a test, of which only *names* run in the short suite."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.long) for name in of]


DTYPES = ("int64", "int32", "float64", "float32", "float16", "bfloat16")


@pytest.mark.parametrize("dtype", some("int64", "bfloat16", of=DTYPES))
def test_tables_of_values(dtype: str) -> None:
    for values, index, dim, table in TABLE:
        src, at = torch.tensor(values, dtype=getattr(torch, dtype)), torch.tensor(index)
        for reduce, wanted in table.items():
            pair = wanted if isinstance(wanted, tuple) else (wanted, None)
            found = st.scatter(src, at, dim, reduce=reduce)
            if reduce == "mean" and src.is_floating_point():
                assert found.long().tolist() == pair[0]
            else:
                assert found.tolist() == pair[0]
            named = getattr(st, f"scatter_{reduce}")(src, at, dim)
            assert (named if pair[1] is None else named[0]).tolist() == found.tolist()
            assert pair[1] is None or named[1].tolist() == pair[1]


@pytest.mark.parametrize("reduce", some("mean", "max", of=REDUCTIONS))
def test_segments_along_any_dimension(reduce: str) -> None:
    src = numbers(2, 3, 6, 2).detach()
    pointers = torch.tensor([[0, 2, 2, 5, 6], [1, 1, 4, 4, 5]])
    each = torch.stack([pointers, (pointers + 1).clamp(max=6), pointers // 2], -1).mT
    for indptr in (pointers[:1, None], pointers[:, None], each):
        found = st.segment_csr(src, indptr, reduce=reduce)
        assert found.shape == (2, 3, 4, 2)
        whole = indptr.expand(2, 3, 5)
        for b, c in np.ndindex(2, 3):
            at = whole[b, c]
            index = torch.full((6,), 9)
            for n in range(4):
                index[at[n] : at[n + 1]] = n
            wanted, arg = expected(src[b, c], index, 4, reduce)
            assert torch.allclose(found[b, c], wanted)
            if reduce in ("min", "max"):
                named = getattr(st, f"segment_{reduce}_csr")(src, indptr)
                assert torch.equal(named[0], found)
                assert torch.equal(named[1][b, c], arg)
    index = torch.tensor([[[3, 0, 3, 1, 0, 3]], [[0, 0, 1, 1, 1, 1]]])
    found = st.segment_coo(src, index, reduce=reduce, dim_size=4)
    for b, c in np.ndindex(2, 3):
        assert torch.allclose(found[b, c], expected(src[b, c], index[b, 0], 4, reduce)[0])
    if reduce in ("min", "max"):
        assert torch.equal(getattr(st, f"segment_{reduce}_coo")(src, index)[0], found)
    index = torch.tensor([0, 1, 0])  # along the dimension in the middle
    found = st.scatter(src, index[None, :, None, None].expand_as(src), 1, reduce=reduce)
    assert torch.equal(found, st.scatter(src, index, 1, reduce=reduce))


def test_gathers_are_the_reverse() -> None:
    src = numbers(2, 3, 2)
    indptr = torch.tensor([[0, 2, 2, 5], [0, 1, 4, 5]])
    index = torch.tensor([[0, 0, 2, 2, 2], [0, 1, 1, 1, 2]])
    wanted = torch.stack([row[at] for row, at in zip(src, index, strict=True)])
    for call in (lambda x: st.gather_csr(x, indptr), lambda x: st.gather_coo(x, index)):
        assert torch.equal(call(src), wanted)
        assert torch.autograd.gradcheck(call, (src,))
    assert torch.equal(st.gather_coo(src, index[:1]), src[:, index[0]])
    assert torch.equal(st.gather_coo(src[0], index[1].int()), src[0][index[1]])
    out = torch.empty_like(wanted)
    assert st.gather_coo(src.detach(), index, out) is out
    assert torch.equal(out, wanted)
    with pytest.raises(ArgumentError, match="argument indptr"):
        st.gather_csr(src, torch.tensor([[0, 2, 2, 5], [0, 1, 4, 4]]))
    with pytest.raises(ArgumentError, match="argument index: got 3 at"):
        st.gather_coo(src, index + 1)


@pytest.mark.parametrize("reduce", some("mean", "min", of=REDUCTIONS))
def test_results_that_are_given_take_part(reduce: str) -> None:
    src, index = torch.tensor([4.0, -2, 5, 3]), torch.tensor([1, 0, 1, 3])
    out = torch.tensor([-3.0, 7, 2, 3])
    whole = torch.cat([out, src]), torch.cat([torch.arange(4), index])
    wanted, _ = expected(*whole, 4, "sum" if reduce == "mean" else reduce)
    if reduce == "mean":  # as pytorch_scatter counts: without what was there
        wanted = wanted / torch.tensor([1, 2, 1, 1])
    given = out.clone()
    assert st.scatter(src, index, out=given, reduce=reduce) is given
    assert torch.equal(given, wanted)
    if reduce in ("min", "max"):
        places = getattr(st, f"scatter_{reduce}")(src, index, -1, out.clone())[1]
        beaten = {"min": [4, 0, 4, 4], "max": [1, 4, 4, 4]}[reduce]
        assert places.tolist() == beaten


def parts(src: Any, index: Any, size: int) -> list[Any]:
    """The elements of each segment of the vector *src*."""
    return [src[index == n] for n in range(size)]


def test_softmax_over_segments() -> None:
    src = torch.tensor([0.2, 0.0, 0.2, -2.1, 3.2, 7, -1, 1]).double().requires_grad_()
    index = torch.tensor([0, 1, 0, 1, 1, 2, 4, 4])
    found = st.scatter_softmax(src, index)
    logs = st.scatter_log_softmax(src, index)
    sums = st.scatter_logsumexp(src, index)
    for n, part in enumerate(parts(src, index, 5)):
        assert torch.allclose(found[index == n], part.softmax(0))
        assert torch.allclose(logs[index == n], part.log_softmax(0))
        assert torch.allclose(sums[n], part.logsumexp(0) if len(part) else torch.zeros(()).double())
    out = torch.tensor([0.5, -1, 2, 3, 0]).double()
    given = out.clone()
    assert st.scatter_logsumexp(src.detach(), index, out=given) is given
    for n, part in enumerate(parts(src.detach(), index, 5)):
        assert torch.allclose(given[n], torch.cat([part, out[n : n + 1]]).logsumexp(0))
    infinite = torch.tensor([torch.inf, 1, -torch.inf, -torch.inf, torch.nan])
    sums = st.scatter_logsumexp(infinite, torch.tensor([0, 0, 1, 1, 2]))
    assert sums[:2].tolist() == [torch.inf, 0]
    assert sums[2].isnan()
    large = st.scatter_softmax(torch.tensor([1e4, 1e4, -1e4]).half(), torch.tensor([0, 0, 0]))
    assert large.dtype == torch.half
    assert large.tolist() == [0.5, 0.5, 0]
    assert st.scatter_softmax(src[:0], index[:0], dim_size=3).shape == (0,)
    assert st.scatter_logsumexp(src[:0], index[:0], dim_size=2).tolist() == [0, 0]
    with pytest.raises(ArgumentError, match="expected floats"):
        st.scatter_softmax(index, index)


@pytest.mark.parametrize("unbiased", [True, False])
def test_deviations_over_segments(unbiased: bool) -> None:
    src, index = numbers(7), torch.tensor([0, 1, 0, 1, 1, 3, 0])
    found = st.scatter_std(src, index, dim_size=5, unbiased=unbiased)
    wanted = [
        part.std(unbiased=unbiased) if len(part) > 1 else torch.zeros(()).double()
        for part in parts(src, index, 5)
    ]
    assert torch.allclose(found, torch.stack(wanted))
    (grad,) = torch.autograd.grad(found.sum(), src)
    (like,) = torch.autograd.grad(torch.stack(wanted).sum(), src)
    assert torch.allclose(grad, like)


def gradients(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The function *name* at an index of two dimensions, and its argument."""
    function, src = getattr(st, f"scatter_{name}"), numbers(2, 5, 2)
    index = torch.tensor([[3, 0, 3, 0, 0], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        src[0, 1] = src[0, 3]  # two are equal
        src[0, 4] += 1
    return lambda x: function(x, index, 1, dim_size=4), (src,)


FUNCTIONS = ("softmax", "log_softmax", "logsumexp", "std")


@pytest.mark.parametrize("name", some("logsumexp", of=FUNCTIONS))
def test_gradients_over_segments(name: str) -> None:
    assert torch.autograd.gradcheck(*gradients(name))


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_over_segments(name: str) -> None:
    assert torch.autograd.gradgradcheck(*gradients(name))


@pytest.mark.parametrize("reduce", some("mean", of=("sum", "mean", "prod", "min", "max")))
def test_segments_as_those_of_torch(reduce: str) -> None:
    data = numbers(2, 6, 3)
    lengths = torch.tensor([[2, 0, 3, 1], [0, 6, 0, 0]])
    offsets = torch.tensor([[0, 2, 2, 5, 6], [0, 0, 6, 6, 6]])
    for initial in (None, 0.5):
        wanted = torch.segment_reduce(data, reduce, lengths=lengths, axis=1, initial=initial)
        for given in ({"lengths": lengths}, {"offsets": offsets}):
            found = st.segment_reduce(data, reduce, axis=1, initial=initial, **given)
            assert torch.allclose(found, wanted, equal_nan=True)
    wanted = torch.segment_reduce(data[0], reduce, lengths=lengths[0])
    found = st.segment_reduce(data[0], reduce, lengths=lengths[0])
    assert torch.allclose(found, wanted, equal_nan=True)
    full = torch.tensor([2, 3, 1])

    def call(x: Any) -> Any:
        return st.segment_reduce(x, reduce, lengths=full)

    assert torch.autograd.gradcheck(call, (data[0],))
    assert torch.autograd.gradgradcheck(call, (data[0],))
    equal = torch.ones(3, 1).double().requires_grad_()
    mine, its = (
        torch.autograd.grad(f(equal, reduce, lengths=torch.tensor([3])).sum(), equal)[0]
        for f in (st.segment_reduce, torch.segment_reduce)
    )
    assert torch.equal(mine, its)
    with pytest.raises(ArgumentError, match="expected 2 for axis=1"):
        st.segment_reduce(data, reduce, lengths=lengths[0], axis=1)
    with pytest.raises(ArgumentError, match="either lengths or offsets"):
        st.segment_reduce(data, reduce)


# -- found by trying them --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("at", range(3))
def test_a_nan_is_the_least_and_the_greatest_wherever_it_stands(name, at):
    src = torch.tensor([2.0, 3.0, 5.0]).index_fill(0, torch.tensor([at]), float("nan"))
    values, args = getattr(st, f"scatter_{name}")(src, torch.tensor([0, 0, 0]))
    assert values.isnan().all()
    assert args.tolist() == [at]


def test_dimensions_without_elements_keep_the_length_that_is_asked_for():
    zeros = lambda *shape: torch.zeros(shape, dtype=torch.long)  # noqa: E731
    empty = torch.zeros(6, 33, 0)
    assert st.scatter(empty, zeros(6, 33), dim=1, dim_size=5).shape == (6, 5, 0)
    for reduce in ("sum", "max"):
        found = st.segment_coo(torch.zeros(0, 7, 6), zeros(0, 7), dim_size=2, reduce=reduce)
        assert found.shape == (0, 2, 6)
    assert st.segment_coo(torch.zeros(3, 0), zeros(3, 0), dim_size=2).shape == (3, 2)
    assert st.segment_csr(torch.zeros(0, 7), zeros(0, 3)).shape == (0, 2)


def test_extremes_of_nothing_have_gradients():
    src = torch.zeros(0, requires_grad=True)
    values, _ = st.scatter_max(src, torch.zeros(0, dtype=torch.long), dim_size=2)
    values.sum().backward()
    assert src.grad.shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, i: st.scatter(x, i, out=torch.zeros(2, 2)), r"out: has the shape \(2, 2\)"),
        (lambda x, i: st.scatter(x, i, out=torch.zeros(5), dim_size=2), "dim_size: got 2"),
        (lambda x, i: st.scatter(x, i, out=torch.zeros(2).long()), "out: has the type torch.int64"),
        (lambda x, i: st.segment_csr(x, i, out=torch.zeros(7)), r"out: has the shape \(7,\)"),
        (lambda x, i: st.scatter_std(x, i, out=torch.zeros(2, 1)), r"expected \(3,\)"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(torch.ones(3), torch.tensor([0, 0, 1]))


@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_index_vectors_of_short_integers(dtype):
    src, index = numbers(4, 2), torch.tensor([0, 2, 2, 1])
    pointers = torch.tensor([0, 1, 1, 4])
    short = getattr(torch, dtype)
    assert torch.equal(st.gather_coo(src, index.to(short)), src[index])
    for call in (st.segment_csr, st.gather_csr):
        rows = src[: len(pointers) - 1] if call is st.gather_csr else src
        assert torch.equal(call(rows, pointers.to(short)), call(rows, pointers))
    with pytest.raises(ArgumentError, match="ascending"):
        st.segment_csr(src, torch.tensor([0, 2, 1], dtype=short))


def test_a_nan_is_the_extreme_beside_what_is_there() -> None:
    index = torch.zeros(3, dtype=torch.int64)
    src = torch.tensor([1.0, torch.nan, 2.0])
    for named, reduce in ((st.scatter_max, "amax"), (st.scatter_min, "amin")):
        for there in (0.0, torch.nan, 9.0):
            out = torch.full((1,), there)
            wanted = out.clone().scatter_reduce(0, index, src, reduce)
            values, places = named(src, index, out=out)
            torch.testing.assert_close(values, wanted, equal_nan=True)
            assert places.item() == (3 if there != there else 1)
        kept = named(src[::2], index[:2], out=torch.tensor([torch.nan]))
        assert kept[0].isnan().all()
        assert kept[1].item() == 2


@pytest.mark.parametrize("reduce", ["min", "max"])
@pytest.mark.parametrize("signs", [[0.0, -0.0, 1.0], [-0.0, 0.0, -1.0], [-0.0, -0.0, 0.0]])
def test_zeros_have_the_same_sign_whether_torch_follows_them_or_not(
    reduce: str, signs: list[float]
) -> None:
    src, index = torch.tensor(signs).repeat(40), torch.arange(120) // 3
    named = st.scatter_min if reduce == "min" else st.scatter_max
    seen = [st.scatter(src, index, reduce=reduce), named(src, index)[0]]
    seen.append(st.scatter(src.requires_grad_(), index, reduce=reduce).detach())
    assert seen[0].signbit().tolist() == seen[1].signbit().tolist() == seen[2].signbit().tolist()


def test_bools_stay_bools() -> None:
    src, index = torch.tensor([True, False, True]), torch.tensor([0, 0, 1])
    assert st.scatter(src, index, reduce="min").tolist() == [False, True]
    values, places = st.scatter_max(src, index)
    assert (values.dtype, values.tolist(), places.tolist()) == (torch.bool, [True, True], [0, 2])


def test_what_is_there_can_be_followed_into_a_logarithm() -> None:
    index = torch.tensor([0, 0, 1])
    src = torch.randn(3, dtype=torch.float64, requires_grad=True)
    there = torch.randn(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda src, there: st.scatter_logsumexp(src, index, out=there.clone()), (src, there)
    )


def test_a_softmax_with_an_infinity_is_that_of_torch() -> None:
    src = torch.tensor([1.0, torch.inf, 2.0, 3.0])
    index = torch.tensor([0, 0, 1, 1])
    for ours, theirs in (
        (st.scatter_softmax, torch.softmax),
        (st.scatter_log_softmax, torch.log_softmax),
    ):
        wanted = torch.cat([theirs(src[:2], 0), theirs(src[2:], 0)])
        torch.testing.assert_close(ours(src, index), wanted, equal_nan=True)
    assert st.scatter_logsumexp(src, index)[0] == torch.inf


DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduce", ["min", "max"])
def test_extremes_are_the_same_whether_torch_follows_them_or_not(dtype: str, reduce: str) -> None:
    rng = np.random.default_rng(4)
    kind = getattr(torch, dtype)
    src = torch.from_numpy(rng.integers(0, 9, size=(60, 21)).astype(np.float64)).to(kind)
    if kind.is_floating_point:
        src[rng.random(src.shape) < 0.03] = torch.nan
        src[3] = -torch.inf
        src[5] = torch.inf
    index = torch.from_numpy(rng.choice([0, 1, 3, 4, 7], 60))
    values, places = (
        st.scatter_max(src, index, 0) if reduce == "max" else st.scatter_min(src, index, 0)
    )
    for at in range(8):
        rows = src[index == at].double().numpy()
        if not len(rows):
            assert not values[at].any()
            assert (places[at] == 60).all()
            continue
        first = (rows.argmax if reduce == "max" else rows.argmin)(0)
        np.testing.assert_array_equal(values[at].double(), rows[first, range(21)])
        np.testing.assert_array_equal(places[at], np.flatnonzero(index == at)[first])
    alone = st.scatter(src, index, 0, reduce=reduce)
    edges = torch.stack([torch.arange(60), index])
    gathered = st.gather_scatter(src, edges, reduce, dim_size=8)
    for other in (alone, gathered):
        assert other.dtype == values.dtype == kind
        assert torch.equal(other.nan_to_num(9), values.nan_to_num(9))
    if kind.is_floating_point:
        followed = st.scatter(src.requires_grad_(), index, 0, reduce=reduce)
        assert torch.equal(followed.detach().nan_to_num(9), values.nan_to_num(9))
        followed.sum().backward()
        assert src.grad.sum() == 5 * 21  # one element of each segment
