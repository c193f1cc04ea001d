"""Models under torch.compile: what is computed along edges is one program with sums at nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.torch_graphs import ALWAYS, E, F, M, N, both, column, compiled, edges, numbers, st, torch

LONG = pytest.mark.long
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]


def attention(x: Any, one: Any, other: Any, ei: Any) -> Any:
    score = torch.nn.functional.leaky_relu(one[ei[0]] + other[ei[1]], 0.2)
    to = column(ei[1], score)
    most = score.new_zeros(M, 2).scatter_reduce(0, to, score.detach(), "amax", include_self=False)
    raised = (score - most[ei[1]]).exp()
    total = score.new_zeros(M, 2).scatter_add(0, to, raised)
    alpha = raised / (total.index_select(0, ei[1]) + 1e-16)
    rows = alpha[..., None] * x[ei[0]]
    return x.new_zeros(M, 2, 3).scatter_add(0, column(ei[1], rows), rows)


def attention_by_reduce(x: Any, one: Any, other: Any, ei: Any) -> Any:
    score = torch.tanh(one.index_select(0, ei[0]) * other[ei[1]])
    most = torch.full((M, 2), 0.0).index_put((ei[1],), score * 0, accumulate=True)
    most = most.scatter_reduce(0, column(ei[1], score), score, "amax")  # with zeros
    raised = torch.exp(score - most.gather(0, column(ei[1], score)))
    total = torch.zeros(M, 2).index_add(0, ei[1], raised)
    return torch.zeros(M, 2, 3).index_add(0, ei[1], (raised / total[ei[1]])[..., None] * x[ei[0]])


@pytest.mark.parametrize(
    "model", [attention, pytest.param(attention_by_reduce, marks=pytest.mark.long)]
)
def test_softmax_over_edges_and_attention(model: Any) -> None:
    x, one, other, ei = numbers(N, 2, 3), numbers(N, 2, seed=1), numbers(M, 2, seed=2), edges()
    both(model, compiled(model), x, one, other, ei)
    both(model, compiled(model), x.detach(), one.detach(), other.detach(), ei)


def test_attention_is_a_program_in_each_direction() -> None:
    x, one, other, ei = numbers(N, 2, 3), numbers(N, 2, seed=1), numbers(M, 2, seed=2), edges()
    told = st.explain(attention, x, one, other, ei, costs=ALWAYS)
    assert [finding.by.split(",")[0] for finding in told.replaced] == [
        *["program 1"] * 3,  # the largest score, the sum, and the weighted rows
        *["program 2", "program 3", "program 3", "program 2"],  # gradients at the two ends
    ]
    assert not told.left


def gated(x: Any, y: Any, e: Any, b: Any, ei: Any) -> Any:
    """Messages of both ends and the edge, each with a gate; then a bias, the node, and a ReLU."""
    rows = torch.relu(x[ei[0]] + y[ei[1]] + e) * torch.sigmoid(x[ei[0]] - b)
    return torch.relu(torch.zeros_like(y).index_add(0, ei[1], rows) / 3 + b + 0.5 * y)


def test_messages_are_computed_where_they_are_added() -> None:
    x, y, e, b = numbers(N, F), numbers(M, F, seed=1), numbers(E, F, seed=2), numbers(F, seed=3)
    both(gated, compiled(gated), x, y, e, b, edges())
    narrow = numbers(E, 1, seed=2)
    both(gated, compiled(gated), x, y, narrow, b, edges())
    both(gated, compiled(gated), x, y, e[:0].detach(), b, edges()[:, :0])
    double = [z.detach().double().requires_grad_() for z in (x, y, e, b)]
    both(gated, compiled(gated), *double, edges())
    told = st.explain(gated, x, y, e, b, edges(), costs=ALWAYS)
    assert not told.left
    assert told.replaced[0].by == "program 1, the sum of rows computed of gathered ones"


def left_by(model: Callable[..., Any], *args: Any) -> list[str]:
    """The functions of the graph of *model* and its gradients that are not in programs of ours."""
    passes: Any = pytest.importorskip("spcomp.torch.inductor.passes")
    graphs, rewrite = [], passes.rewrite
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "rewrite", lambda *g: (graphs.append(g[0]), rewrite(*g))[1])
        st.explain(model, *args, costs=ALWAYS)
    calls = (node for graph in graphs for node in graph.nodes if node.op == "call_function")
    return [str(node.target).split(".")[1] for node in calls if "." in str(node.target)]


def test_what_only_the_end_of_a_program_needs_is_part_of_it() -> None:
    def model(x: Any, y: Any, eps: Any, ei: Any) -> Any:
        sums = torch.zeros(M, F).index_add(0, ei[1], torch.relu(x)[ei[0]])
        return sums + (1 + eps) * torch.exp(y)

    x, y, eps = numbers(N, F), numbers(M, F, seed=1), numbers(1, seed=2)
    both(model, compiled(model), x, y, eps, edges())
    left = left_by(model, x.detach(), y.detach(), eps.detach(), edges())
    assert not {"mul", "exp", "zeros", "full"} & set(left)
    assert left.count("add") == 1  # of two numbers
    assert "where" not in left_by(model, x, y, eps, edges())  # the gradient of relu
    assert left_by(model, x, y, eps, edges()).count("exp") == 1  # its gradient needs it again


def test_what_others_need_as_well_is_computed_once_and_not_for_each_edge() -> None:
    def model(x: Any, ei: Any) -> Any:
        both_ends = torch.exp(x)
        rows = both_ends[ei[0]] * torch.tanh(x)[ei[1]]
        sums = torch.zeros(N, F).index_add(0, ei[0], rows)
        return sums * torch.sigmoid(both_ends)

    x, ei = numbers(N, F).detach(), edges()
    both(model, compiled(model), x, ei)
    left = left_by(model, x, ei)
    assert (left.count("exp"), left.count("tanh"), left.count("sigmoid")) == (1, 1, 0)


def test_messages_of_tensors_for_each_edge_are_computed_by_torch() -> None:
    def model(a: Any, b: Any, ei: Any) -> Any:
        return torch.zeros(M, F).index_add(0, ei[1], torch.sigmoid(a) * torch.relu(b))

    def scaled(a: Any, w: Any, ei: Any) -> Any:
        return torch.zeros(M, F).index_add(0, ei[1], torch.sigmoid(a) * w[:, None])

    a, b, w = numbers(E, F), numbers(E, F, seed=1), numbers(E, seed=2)
    both(model, compiled(model), a, b, edges())
    both(scaled, compiled(scaled), a, w, edges())
    assert "sigmoid" in left_by(model, a.detach(), b.detach(), edges())
    assert "sigmoid" not in left_by(scaled, a.detach(), w.detach(), edges())  # one row, one pass


def functions(x: Any, y: Any, ei: Any) -> Any:
    a, b = x[ei[0]], y[ei[1]]
    rows = torch.exp(-a.abs()) + torch.log1p(b * b) - (a.abs() + 1).sqrt() * (b.abs() + 1).rsqrt()
    rows = rows + torch.erf(a) / (2 + torch.tanh(b)) + torch.where(a > b, a, torch.maximum(a, -b))
    rows = rows + a.clamp(min=-0.5, max=0.5) + torch.reciprocal(b * b + 1) - torch.minimum(a, b)
    rows = (
        rows + torch.where((a > 0) & ~(b <= 0), torch.expm1(a), (b + 5).log()) + a.sub(b, alpha=3)
    )
    return rows.new_zeros(M, F).index_add(0, ei[1], rows)


@pytest.mark.long
def test_functions_of_elements_are_those_of_torch() -> None:
    x, y = numbers(N, F), numbers(M, F, seed=1)
    both(functions, compiled(functions), x, y, edges())
    odd = x.detach().clone()
    odd[0, 0], odd[1, 1], odd[2, 2] = float("nan"), float("inf"), -float("inf")
    both(functions, compiled(functions), odd, y.detach(), edges())


def scripts(model: Callable[..., Any], *args: Any) -> list[str]:
    """The programs that aggregate in the graph of *model*."""
    found: list[str] = []
    rewrite: Any = pytest.importorskip("spcomp.torch.inductor.rewrite")
    before = rewrite.script
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "script", lambda p: found.append(before(p)) or found[-1])
        st.explain(model, *args, costs=ALWAYS)
    return found


def test_what_is_made_of_a_sum_alone_is_part_of_its_program() -> None:
    args = [z.detach() for z in (numbers(N, F), numbers(M, F), numbers(E, F), numbers(F))]
    (text,) = scripts(gated, *args, edges())
    *_, last = text.splitlines()
    assert last.split(" = ")[1].startswith("T.max((((Y0[i, k0] / 3.0) + A")
    assert text.count("T.sp_iter") == 2

    def used_twice(x: Any, ei: Any) -> Any:
        sums = torch.zeros(M, F).index_add(0, ei[1], x[ei[0]])
        return torch.relu(sums) + sums.sum()

    (text,) = scripts(used_twice, args[0], edges())
    assert text.count("T.sp_iter") == 1
    both(used_twice, compiled(used_twice), numbers(N, F), edges())


@pytest.mark.long
def test_sums_that_need_each_other_through_a_product_are_programs_of_their_own() -> None:
    def model(x: Any, w: Any, ei: Any) -> Any:
        first = torch.zeros(M, F).index_add(0, ei[1], x[ei[0]])
        second = torch.zeros(M, F).index_add(0, ei[1], x[ei[0]] * (first @ w)[ei[1]])
        third = torch.zeros(M, F).index_add(0, ei[1], x[ei[0]] * first[ei[1]])
        back = torch.zeros(N, F).index_add(0, ei[0], (second * third)[ei[1]])
        return torch.zeros(M, F).index_add(0, ei[1], back[ei[0]]) + second

    args = numbers(N, F), numbers(F, F, seed=1), edges()
    both(model, compiled(model), *args)
    told = st.explain(model, *(z.detach() for z in args), costs=ALWAYS)
    numbered = [finding.by.split(",")[0] for finding in told.replaced]
    assert numbered == [f"program {n}" for n in (1, 2, 2, 3, 4)]


@pytest.mark.parametrize(
    ("message", "width"),
    [
        (lambda x, y, e: e / (y * y + 1) + x, F),
        pytest.param(lambda x, y, e: torch.maximum(x, y) * e, F, marks=LONG),  # is rounded once
        pytest.param(lambda x, y, e: (x * y).exp().sum(-1, keepdim=True) - e, 1, marks=LONG),
    ],
)
def test_extremes_of_computed_messages_are_found_again(message: Any, width: int) -> None:
    def model(x: Any, y: Any, e: Any, ei: Any) -> Any:
        rows = message(x[ei[0]], y[ei[1]], e)
        to, zeros = column(ei[1], rows), rows.new_zeros(M, width)
        return torch.relu(zeros.scatter_reduce(0, to, rows, "amax", include_self=False))

    call = compiled(model)
    for seed in range(5):
        args = numbers(N, F, seed=seed), numbers(M, F, seed=seed + 1), numbers(E, width, seed=seed)
        both(model, call, *args, edges(seed))


def test_gradients_of_extremes_store_nothing_for_each_edge() -> None:
    def model(x: Any, ei: Any) -> Any:
        rows = x[ei[0]]
        zeros = rows.new_zeros(M, F)
        return zeros.scatter_reduce(0, column(ei[1], rows), rows, "amax", include_self=False)

    told = st.explain(model, numbers(N, F), edges(), costs=ALWAYS)
    assert [finding.by for finding in told.replaced] == [
        "program 1, the max of gathered rows",
        "program 1, the sum of rows computed of gathered ones",  # how many are the largest
        "program 2, the sum of rows computed of gathered ones",
    ]
    assert not any("(E," in text for text in scripts(model, numbers(N, F), edges()))
    for dtype in (torch.float32, torch.float64):
        ties = torch.from_numpy(np.random.default_rng(0).integers(3, size=(N, F))).to(dtype)
        both(model, compiled(model), ties.requires_grad_(), edges())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conditions_are_numbers_where_they_are_multiplied(dtype: Any) -> None:
    """A condition times infinity is NaN where it is false, as in torch."""

    def model(x: Any, y: Any, ei: Any) -> Any:
        one, other = x[ei[0]], y[ei[1]]
        rows = (one > other) * one + (one < 0).to(dtype) + (other < 1) * one.abs()
        sums = torch.zeros(M, F, dtype=dtype).index_add(0, ei[1], rows)
        return sums * (sums > 0) + torch.where((sums > 1) * (sums < 2), 1.0, sums)

    x, y = numbers(N, F, dtype=dtype), numbers(M, F, seed=1, dtype=dtype).detach()
    both(model, compiled(model), x, y, edges())
    assert all("if_then_else" in text for text in scripts(model, x, y, edges()))
    odd = x.detach().clone()
    odd[0, 0], odd[1, 1], odd[2, 2] = float("nan"), float("inf"), -float("inf")
    both(model, compiled(model), odd, y, edges())


def test_conditions_that_are_all_the_same_stay() -> None:
    def model(x: Any, y: Any, ei: Any) -> Any:
        one, other, every = x[ei[0]], y[ei[1]], torch.ones(E, 1, dtype=torch.bool)
        rows = torch.where(torch.logical_and(every, one > other), one, other)
        rows = rows + torch.where(every, one + other, 0.0) * every
        return torch.zeros(M, F).index_add(0, ei[1], rows)

    both(model, compiled(model), numbers(N, F), numbers(M, F, seed=1), edges())


@pytest.mark.parametrize("how", ["amax", "amin"])
def test_extremes_of_no_edges_are_zeros_in_what_is_made_of_them(how: str) -> None:
    def model(x: Any, ei: Any) -> Any:
        rows, to = x[ei[0]], column(ei[1], x[ei[0]])
        most = torch.zeros(M, F).scatter_reduce(0, to, rows, how, include_self=False)
        total = torch.zeros(M, F).scatter_add(0, to, rows * rows)
        return torch.cat([most - total * 2, (most + 1) / (total + 1)])

    ei = edges()
    ei[1][ei[1] < 3] = M - 1  # no edge goes there
    both(model, compiled(model), numbers(N, F), ei)


@pytest.mark.parametrize("how", ["amax", "amin"])
def test_gradients_of_extremes_of_sizes_that_change(how: str) -> None:
    def model(x: Any, w: Any, ei: Any) -> Any:
        rows = w[:, None] * x[ei[0]]
        to = column(ei[1], rows)
        return torch.zeros_like(x).scatter_reduce(0, to, rows, how, include_self=False)

    call = compiled(model, dynamic=True)
    for size in (N, N + 3):
        both(model, call, numbers(size, F), numbers(E), edges())


def test_what_is_converted_is_computed_in_its_type() -> None:
    def model(x: Any, w: Any, ei: Any) -> Any:
        rows = (x[ei[0]].double() * w[ei[1]]).float() + (x[ei[0]] > 0).double().float()
        sums = torch.zeros(M, F).index_add(0, ei[1], rows)
        return (sums.double() * w - w * sums.double() + sums).float() + (sums > 0)

    w = 1e9 * numbers(M, F, seed=1, dtype=torch.float64).detach()
    both(model, compiled(model), numbers(N, F), w, edges())


def test_numbers_are_rounded_to_the_type_of_their_tensor() -> None:
    def model(x: Any, ei: Any) -> Any:
        rows = x[ei[0]] * torch.full((E, F), 0.1)  # of float32
        return torch.zeros(M, F, dtype=x.dtype).index_add(0, ei[1], rows)

    x = numbers(N, F, dtype=torch.float64).detach()
    assert torch.allclose(compiled(model)(x, edges()), model(x, edges()), rtol=0, atol=1e-14)


def test_aggregations_of_rows_without_elements_leave_others_alone() -> None:
    x, ei, w = numbers(N, F), edges(), numbers(E, 1)

    def model(x: Any, w: Any, first: int, second: int) -> Any:
        rows = x[ei[0]]
        sums = (torch.zeros(M, n).index_add(0, ei[1], rows[:, :n] * w) for n in (first, second))
        return tuple(sums)

    for sizes in ((F, 0), (0, F), (0, 0)):
        found = compiled(model)(x, w, *sizes)
        for ours, theirs in zip(found, model(x, w, *sizes), strict=True):
            assert torch.allclose(ours, theirs)


def test_numbers_that_are_all_the_same_stay() -> None:
    def model(x: Any, ei: Any) -> Any:
        halves = torch.full((E, F), 0.5)
        return x + torch.zeros(N, F).index_add(0, ei[0], halves)

    both(model, compiled(model), numbers(N, F), edges())
    told = st.explain(model, numbers(N, F), edges(), costs=ALWAYS)
    assert "stays: it reduces one number" in str(told)


def test_weights_that_change_in_place_are_seen() -> None:
    def model(x: Any, w: Any, ei: Any) -> Any:
        return torch.zeros(M, F).index_add(0, ei[1], x[ei[0]] * w[:, None])

    x, w, ei = numbers(N, F).detach(), numbers(E).detach(), edges()
    call = compiled(model)
    for change in (0.0, 2.0, -1.0):
        w.numpy()[3:7] += change
        both(model, call, x, w, ei)
    w[:] = float("nan")
    both(model, call, x, w, ei)


def several(x: Any, ei: Any) -> Any:
    """Reductions of which the gradient counts elements that are the largest."""
    rows, to = x[ei[0]], column(ei[1], x[ei[0]])
    most = x.new_zeros(M, F).scatter_reduce(0, to, rows, "amax", include_self=False)
    return torch.relu(x.new_zeros(M, F).scatter_add(0, to, rows)) + most


@pytest.mark.parametrize("layer", [several, pytest.param(attention, marks=LONG)])
def test_layers_under_checkpoint(layer: Any) -> None:
    checkpoint: Any = pytest.importorskip("torch.utils.checkpoint").checkpoint

    def model(*args: Any) -> Any:
        once = checkpoint(layer, *args, use_reentrant=False)
        return torch.sigmoid(once) * checkpoint(layer, *args, use_reentrant=False)

    rows = numbers(N, F) if layer is several else numbers(N, 2, 3)
    ends = () if layer is several else (numbers(N, 2, seed=1), numbers(M, 2, seed=2))
    both(model, compiled(model), rows, *ends, edges())
    assert not st.explain(model, rows, *ends, edges(), costs=ALWAYS).left
