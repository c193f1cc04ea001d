"""Under torch.compile: maxima and minima, and what is compared with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.torch_graphs import ALWAYS, E, F, M, N, both, column, compiled, edges, numbers

torch = pytest.importorskip("torch", reason="needs the torch extra")
st: Any = pytest.importorskip("spcomp.torch")

pytestmark = pytest.mark.torch


def best(x: Any, y: Any, ei: Any) -> Any:
    rows = x[ei[0]] * y[ei[1]] + y[ei[0]] * x[ei[1]]
    at = column(ei[1], rows)
    top = rows.new_zeros(N, F).scatter_reduce(0, at, rows, "amax", include_self=False)
    return torch.zeros(N, F).index_add(0, ei[1], torch.where(rows >= top[ei[1]], rows, 0.0))


def best_of_torch(x: Any, y: Any, ei: Any) -> Any:
    rows = x[ei[0]] * y[ei[1]] + y[ei[0]] * x[ei[1]]
    top = rows.new_zeros(N, F).index_reduce(0, ei[1], rows, "amax", include_self=False)
    return torch.zeros(N, F).index_add(0, ei[1], torch.where(rows >= top[ei[1]], rows, 0.0))


def best_of_all(x: Any, y: Any, ei: Any) -> Any:
    rows = x[ei[0]] * y[ei[1]] + y[ei[0]] * x[ei[1]]
    return torch.zeros(N, F).index_add(0, ei[1], torch.where(rows == rows.amax(0), rows, 0.0))


def best_node(x: Any, y: Any, ei: Any) -> Any:
    own = torch.zeros(N, F).index_add(0, ei[1], x[ei[0]])
    own = torch.tanh(own * 0.3) + own * y
    rows = torch.where((own == own.amax(0))[ei[1]], own[ei[1]] * x[ei[0]], x[ei[0]])
    return torch.zeros(N, F).index_add(0, ei[1], rows)


def top_of_torch(x: Any, y: Any, ei: Any) -> Any:
    rows = x[ei[0]] * y[ei[1]] + y[ei[0]] * x[ei[1]]
    return rows.new_zeros(N, F).index_reduce(0, ei[1], rows, "amax", include_self=False)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("model", [best, best_of_torch, best_of_all, best_node, top_of_torch])
def test_what_is_compared_with_its_own_extreme_is_computed_once(model: Any) -> None:
    ei = torch.stack([edges(seed).flatten() % N for seed in (0, 1)])
    for seed in range(5):
        both(model, compiled(model), numbers(N, F, seed=seed), numbers(N, F, seed=seed + 10), ei)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_a_softmax_from_an_infinite_start_is_one_program(reduce: str) -> None:
    def model(s: Any, x: Any, ei: Any) -> Any:
        start = torch.full((M,), -np.inf if reduce == "amax" else np.inf)
        most = start.scatter_reduce(0, ei[1], s, reduce)
        share = (s - most[ei[1]]).exp()
        total = torch.zeros(M).scatter_add(0, ei[1], share)
        rows = (share / total[ei[1]])[:, None] * x[ei[0]]
        return torch.cat([torch.zeros(M, F).index_add(0, ei[1], rows), most[:, None]], 1)

    s, x = numbers(E, seed=1).detach(), numbers(N, F).detach()
    both(model, compiled(model), s, x, edges())
    told = st.explain(model, s, x, edges(), costs=ALWAYS)
    assert [str(finding.by)[:9] for finding in told.replaced] == ["program 1"] * 3


def test_a_call_pays_for_all_that_it_aggregates() -> None:
    """Alone, neither the maximum nor the sum of a softmax would be worth a call."""

    def model(s: Any, x: Any, ei: Any) -> Any:
        most = torch.zeros(M).scatter_reduce(0, ei[1], s, "amax", include_self=False)
        share = (s - most[ei[1]]).exp()
        rows = share[:, None] * x[ei[0]]
        return torch.zeros(M, F).index_add(0, ei[1], rows)

    args = numbers(E, seed=1).detach(), numbers(N, F).detach(), edges()
    numbers_of_sums, numbers_of_maxima = E * F, E
    pays = st.Costs(call=numbers_of_sums, edge=0, element=0, atomic=1.01, sorting=0, density=9)
    told = st.explain(model, *args, costs=pays)
    assert not told.left
    small = st.explain(model, *args, costs=st.Costs(call=1e9, density=9))
    assert str(small).count(f"is small: {numbers_of_sums + numbers_of_maxima} numbers") == 2
