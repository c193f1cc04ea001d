"""Models under torch.compile: what becomes a kernel of ours; results stay those of eager."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError
from tests.torch_graphs import ALWAYS, E, F, M, N, both, column, compiled, edges, numbers

torch = pytest.importorskip("torch", reason="needs the torch extra")
st: Any = pytest.importorskip("spcomp.torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning")]


def by_scatter_add(x: Any, ei: Any) -> Any:
    rows = x.index_select(0, ei[0])
    return x.new_zeros(M, *x.shape[1:]).scatter_add_(0, column(ei[1], rows), rows)


def by_scatter_reduce(x: Any, ei: Any) -> Any:
    rows = x[ei[0]]
    out = torch.zeros(M, *x.shape[1:], dtype=x.dtype)
    return torch.scatter_reduce(out, 0, column(ei[1], rows), rows, "sum")


def by_index_add(x: Any, ei: Any) -> Any:
    return torch.zeros(M, *x.shape[1:], dtype=x.dtype).index_add(0, ei[1], x[ei[0]])


def by_index_put(x: Any, ei: Any) -> Any:
    out = torch.zeros(M, *x.shape[1:], dtype=x.dtype)
    return out.index_put_((ei[1],), x[ei[0]], accumulate=True)


def by_gather(x: Any, ei: Any) -> Any:
    at = ei[0].reshape(-1, 1).expand(-1, x.shape[1])
    return torch.zeros(M, x.shape[1], dtype=x.dtype).index_add_(0, ei[1], x.gather(0, at))


def onto_others(x: Any, ei: Any) -> Any:
    return torch.ones(M, *x.shape[1:], dtype=x.dtype).index_add(0, ei[1], x[ei[0]]).relu()


def reduced(reduce: str, includes: bool, base: float = 0) -> Callable[..., Any]:
    def model(x: Any, ei: Any) -> Any:
        rows = x[ei[0]]
        out = x.new_full((M, *x.shape[1:]), base)
        return out.scatter_reduce(0, column(ei[1], rows), rows, reduce, include_self=includes)

    return model


SUMS = [by_scatter_add, by_scatter_reduce, by_index_add, by_index_put, by_gather, onto_others]
MEANS = [reduced("mean", includes) for includes in (True, False)]
EXTREMES = [reduced(name, includes) for name in ("amax", "amin") for includes in (True, False)]
ONTO = [
    reduced(name, includes, base)
    for name, base in (("amax", -np.inf), ("amax", 0.5), ("amin", np.inf), ("sum", 2), ("mean", 2))
    for includes in (True, False)
]


@pytest.mark.parametrize("model", SUMS)
def test_sums_of_gathered_rows_in_all_spellings(model: Any) -> None:
    x, ei = numbers(N, F), edges()
    both(model, compiled(model), x, ei)
    told = st.explain(model, x, ei, costs=ALWAYS)
    wanted = [f"program {number}, the sum of gathered rows" for number in (1, 2)]
    assert [finding.by for finding in told.replaced] == wanted  # forward and backward
    assert not told.left
    both(model, compiled(model), x.detach(), ei)
    both(model, compiled(model), numbers(N, F, dtype=torch.float64), ei.int().long())


@pytest.mark.parametrize("model", [*MEANS, *EXTREMES, *ONTO])
@pytest.mark.sample(8)
def test_means_and_extremes(model: Any) -> None:
    x, ei = numbers(N, F), edges()
    both(model, compiled(model), x, ei)
    assert not st.explain(model, x, ei, costs=ALWAYS).left
    tied = torch.tensor([[1.0, -2], [1, 0], [-3, 0], [1, 1], [0, 1], [-3, 2], [0, 0]])
    both(model, compiled(model), tied.requires_grad_(), ei)
    odd = torch.tensor([[np.nan, -np.inf], [1, np.inf], [-3, 0], [1, 1], [0, 1], [-3, 2], [0, 0]])
    both(model, compiled(model), odd.float(), ei)


@pytest.mark.parametrize("includes", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_rows_join_what_was_there_before(reduce: str, includes: bool) -> None:
    def model(x: Any, base: Any, ei: Any) -> Any:
        rows = x[ei[0]]
        return base.scatter_reduce(0, column(ei[1], rows), rows, reduce, include_self=includes)

    def counts(base: Any, ei: Any) -> Any:
        ones = torch.ones(ei.shape[1])
        return base.scatter_reduce(0, ei[1], ones, reduce, include_self=includes)

    both(model, compiled(model), numbers(N, F), numbers(M, F, seed=2), edges())
    both(counts, compiled(counts), numbers(M, seed=2).detach(), edges())


@pytest.mark.parametrize("shape", [(N,), (N, 1), (N, 2, 3), (N, 0)])
def test_rows_of_any_rank(shape: tuple[int, ...]) -> None:
    for model in (by_scatter_add, by_index_put, reduced("mean", includes=False)):
        both(model, compiled(model), numbers(*shape), edges())


def test_weights_in_either_order_and_for_heads() -> None:
    def left(x: Any, w: Any, ei: Any) -> Any:
        rows = w.reshape(*w.shape, *[1] * (x.dim() - w.dim())) * x[ei[0]]
        return x.new_zeros(M, *x.shape[1:]).scatter_add_(0, column(ei[1], rows), rows)

    def right(x: Any, w: Any, ei: Any) -> Any:
        rows = x[ei[0]] * w.reshape(*w.shape, *[1] * (x.dim() - w.dim()))
        return torch.zeros(M, *x.shape[1:]).index_add(0, ei[1], rows)

    for model in (left, right):
        for x, w in (
            (numbers(N, F), numbers(E, seed=1)),
            (numbers(N), numbers(E, seed=1)),
            (numbers(N, 2, 3), numbers(E, 2, seed=1)),
            (numbers(N, 2, 3), numbers(E, seed=1)),
            (numbers(N, 2, 3), numbers(E, 1, 1, seed=1)),
            (numbers(N, 2, 3), numbers(E, 2, 3, seed=1)),
        ):
            both(model, compiled(model), x, w, edges())
        told = st.explain(model, numbers(N, 2, 3), numbers(E, 2), edges(), costs=ALWAYS)
        weighted = [f"program {n}, the sum of rows computed of gathered ones" for n in (1, 2)]
        assert [finding.by for finding in told.replaced] == weighted
    scalar = compiled(lambda x, s, ei: left(x, s.expand(E), ei))
    both(lambda x, s, ei: left(x, s.expand(E), ei), scalar, numbers(N, F), numbers(1), edges())


def test_degrees_and_messages_of_both_ends() -> None:
    def degrees(ei: Any) -> Any:
        wide = torch.zeros(M, 3).scatter_add(0, column(ei[1], torch.ones(E, 3)), torch.ones(E, 3))
        return wide + torch.zeros(M).index_add(0, ei[1], torch.ones(E))[:, None]

    def messages(x: Any, y: Any, ei: Any) -> Any:
        rows = torch.relu(x[ei[0]] + y[ei[1]])
        return rows.new_zeros(M, F).index_add(0, ei[1], rows) + rows.sum()

    both(degrees, compiled(degrees), edges())
    told = st.explain(degrees, edges(), costs=ALWAYS)
    assert [finding.by for finding in told.replaced] == ["degrees"] * 2
    both(messages, compiled(messages), numbers(N, F), numbers(M, F, seed=1), edges())
    told = st.explain(messages, numbers(N, F), numbers(M, F), edges(), costs=ALWAYS)
    assert len(told.replaced) == 3
    assert not told.left


def test_negative_indices_and_those_out_of_range() -> None:
    x, ei = numbers(N, F), edges()
    behind = ei - torch.tensor([[N], [M]])
    both(by_index_put, compiled(by_index_put), x, behind)
    first = int(ei[1].argmin())
    for model, wrong, message in (
        (by_index_put, ei + torch.tensor([[N], [0]]), "expected -7..6, rows that are gathered"),
        (by_index_put, ei + M, "expected -5..4, places that rows are added to"),
        (by_scatter_add, ei + torch.tensor([[0], [M]]), "expected 0..4, places"),
        (by_scatter_add, torch.stack([ei[0], behind[1]]), f"got -5 at position {first}, expected"),
    ):
        with pytest.raises((ArgumentError, IndexError, RuntimeError)):
            model(x, wrong)
        with pytest.raises(ArgumentError, match="an index vector of a compiled model: got") as info:
            compiled(model)(x, wrong)
        assert message in info.value.message


@pytest.mark.parametrize(("name", "wrong"), [("call", -1), ("density", "a"), ("edge", True)])
def test_costs_are_numbers_from_0_on(name: str, wrong: Any) -> None:
    with pytest.raises(ArgumentError) as info:
        st.Costs(**{name: wrong})
    assert info.value.message == f"argument {name}: got {wrong!r}, expected a number from 0 on"


def test_options_that_are_none_are_refused() -> None:
    args = numbers(N, F), edges()
    for name, options, message in (
        ("spcomp", {"spcomp": {"x": 1}}, "got dict, expected Costs"),
        ("spcomp_eager", {"spcomp": {"x": 1}}, "got dict, expected Costs"),
        ("spcomp_eager", {"spcomb": ALWAYS}, "got 'spcomb', which is no option of spcomp_eager"),
    ):
        torch._dynamo.reset()
        call = torch.compile(by_index_put, backend=name, options=options)
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message) as caught:
            call(*args)
        assert isinstance(caught.value.inner_exception, ArgumentError)


def test_sizes_that_change_are_compiled_once() -> None:
    graphs: list[Any] = []

    def model(x: Any, w: Any, ei: Any, size: int) -> Any:
        rows = x[ei[0]] * w[:, None]
        sums = x.new_zeros(size, F).index_add(0, ei[1], rows)
        return sums / x.new_zeros(size).index_add(0, ei[1], torch.ones_like(w)).clamp(1)[:, None]

    costs = st.Costs(density=float("inf"), call=0, edge=0, element=0)
    backend = torch._dynamo.lookup_backend("spcomp_eager")

    def counted(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return backend(graph, inputs, options={"spcomp": costs})

    torch._dynamo.reset()
    call = torch.compile(model, backend=counted, dynamic=True)
    for nodes, count, size in ((7, 40, 5), (9, 30, 6), (8, 60, 11)):
        rng = np.random.default_rng(count)
        ei = torch.from_numpy(
            np.stack([rng.integers(nodes, size=count), rng.integers(5, size=count)])
        )
        args = numbers(nodes, F), numbers(count, seed=1), ei
        both(lambda *a, size=size: model(*a, size), lambda *a, size=size: call(*a, size), *args)
    assert len(graphs) == 1
    none = torch.zeros(2, 0, dtype=torch.int64)
    both(by_index_add, compiled(by_index_add), numbers(N, F), none)
    both(EXTREMES[0], compiled(EXTREMES[0]), numbers(N, F), none)


def test_an_index_that_changed_is_sorted_again() -> None:
    x, ei = numbers(N, F), edges()
    view, call = ei[:, : E // 2], compiled(by_scatter_add)
    for write in (
        lambda: None,
        lambda: ei.__setitem__((0, 0), 1),
        lambda: ei.data.__setitem__((1, 1), 4),
        lambda: ei.numpy().__setitem__((1, 2), 3),
        lambda: view.copy_(edges(1)[:, : E // 2]),
        lambda: ei.copy_(edges(2)),
        lambda: ei.copy_(edges(1).flip(1)),
    ):
        write()
        both(by_scatter_add, call, x, ei)
        both(by_scatter_add, call, x, ei.clone())
        both(by_scatter_add, compiled(by_scatter_add), x, view)


@pytest.mark.parametrize("bound", ["MOST_VECTORS", "MOST_ELEMENTS"])
def test_a_vector_forgotten_before_the_way_back_is_sorted_again(
    bound: str, monkeypatch: Any
) -> None:
    sorting: Any = pytest.importorskip("spcomp.torch.inductor.sorting")
    few = sorting._Few(10 if bound == "MOST_VECTORS" else 1000)
    monkeypatch.setattr(sorting, "_VECTORS", few)
    monkeypatch.setattr(sorting, "MOST_ELEMENTS", 10 * E)
    x, ei, call = numbers(N, F), edges(), compiled(by_scatter_add)
    found = call(x, ei).square().sum()
    for seed in range(1, 30):
        both(by_scatter_add, call, x.detach(), edges(seed))
    assert len(few._made) == len(few._sizes) == 10
    ours, theirs = (
        torch.autograd.grad(y, x)[0] for y in (found, by_scatter_add(x, ei).square().sum())
    )
    assert torch.allclose(ours, theirs)


def test_the_same_bits_in_each_run_and_with_any_threads() -> None:
    rng = np.random.default_rng(0)
    ei = torch.from_numpy(np.stack([rng.integers(900, size=9000), rng.integers(M, size=9000)]))
    x, w = numbers(900, 33), numbers(9000, 1)

    def model(x: Any, w: Any, ei: Any) -> Any:
        return torch.zeros(M, 33).index_add(0, ei[1], x[ei[0]] * w)

    call, seen = compiled(model), []
    for threads in (1, 2, 1):
        with spcomp.num_threads(threads):
            found = call(x, w, ei)
            seen.append((found, *torch.autograd.grad(found.square().sum(), (x, w))))
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_what_is_not_ours_stays_as_it_was() -> None:
    ei = edges()
    each = torch.from_numpy(np.random.default_rng(1).integers(M, size=(E, F)))

    def scattered(reduce: str) -> Callable[..., Any]:
        def model(x: Any, ei: Any) -> Any:
            rows = x[ei[0]]
            return torch.ones(M, F).scatter_reduce(0, column(ei[1], rows), rows, reduce)

        return model

    for model, args, why in (
        (by_index_put, (numbers(N, F).bfloat16().detach(), ei), "is bfloat16"),
        (by_index_put, (torch.arange(N * F).reshape(N, F), ei), "is int64"),
        (
            lambda x, ei: torch.zeros(F, M).index_add(1, ei[1], x[ei[0]].T),
            (numbers(N, F), ei),
            "is along dimension 1",
        ),
        (
            lambda x, ei: torch.zeros(N, M).index_put((ei[0], ei[1]), x[ei[0], 0], accumulate=True),
            (numbers(N, F).detach(), ei),
            "has indices for several dimensions",
        ),
        (
            lambda x, ei: torch.func.vmap(
                lambda row: torch.zeros(M).index_add(0, ei[1], row[ei[0]])
            )(x.T),
            (numbers(N, F).detach(), ei),
            "is along dimension 1",
        ),
        (
            lambda x, ei: torch.zeros(M, F).scatter(0, each, x[ei[0]], reduce="add"),
            (numbers(N, F).detach(), ei),
            "is scatter with a reduction",
        ),
        (
            lambda x, ei: torch.nn.functional.embedding_bag(ei[0], x, torch.tensor([0, 9])),
            (numbers(N, F).detach(), ei),
            "is one function of PyTorch already",
        ),
        (
            lambda x, ei: torch.zeros(M, F).scatter_add(0, each, x[ei[0]]),
            (numbers(N, F).detach(), ei),
            "each element",
        ),
        (scattered("prod"), (numbers(N, F).detach(), ei), "reduces by prod"),
        (
            lambda x, ei: torch.zeros(M, F + 1).scatter_add(0, column(ei[1], x[ei[0]]), x[ei[0]]),
            (numbers(N, F).detach(), ei),
            "a part of each row",
        ),
    ):
        told = st.explain(model, *args, costs=ALWAYS)
        assert why in str(told), str(told)
        assert told.left
        wanted, found = model(*args), compiled(model)(*args)
        assert torch.allclose(found, wanted)


def test_small_and_dense_graphs_stay_and_the_report_says_so() -> None:
    x, ei = numbers(N, F), edges()
    told = st.explain(by_index_add, x, ei)
    assert "index_put (aten.index_put.default) stays: it has 40 edges between 7 and 5" in str(told)
    small = st.explain(by_index_add, x, ei, costs=st.Costs(density=2))
    assert str(small).count("is small: 160 numbers") == 2
    assert not st.explain(lambda x: x.relu().sum(), x).replaced
    assert str(st.explain(lambda x: x.relu(), x)) == "graph 1: no aggregation"
    nothing = str(st.explain(torch.sparse.mm, torch.eye(N).to_sparse(), x))
    assert nothing.startswith("no graphs: torch.compile took nothing of it")


SUM = """
@T.prim_func
def edges(
    indptr: T.handle, indices: T.handle, a0: T.handle, y0: T.handle, m: T.int64, n: T.int64,
    nnz: T.int64, f: T.int64,
) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32", sorted=False)
    N = T.dense_fixed(n)
    F = T.dense_fixed(f)
    A0 = T.match_sparse_buffer(a0, (N, F), "float32")
    Y0 = T.match_sparse_buffer(y0, (I, F), "float32")
    with T.sp_iter([I, J, F], "SRS", "sum") as [i, j, k]:
        with T.init():
            Y0[i, k] = 0.0
        Y0[i, k] = Y0[i, k] + A0[j, k]
"""


def test_a_result_lies_in_memory_as_views_of_it_expect() -> None:
    """A sum onto a permuted base had another order of dimensions, in which no view was possible."""

    def by_heads(x: Any, ei: Any) -> Any:
        rows = (x[:, None] * torch.arange(1.0, 3.0)[:, None])[ei[0]]
        zeros = torch.zeros(2, M, F).permute(1, 0, 2)
        return zeros.scatter_add(0, ei[1][:, None, None].expand_as(rows), rows)

    for model in (
        by_heads,
        lambda x, ei: by_heads(x, ei).reshape(M, -1),
        lambda x, ei: by_heads(x, ei).flatten(1).relu() @ torch.ones(2 * F, 2),
        lambda x, ei: torch.zeros_like(x[:M]).index_add(0, ei[1], x[ei[0]]).reshape(-1),
    ):
        for x in (numbers(N, F), numbers(F, N).detach().t().requires_grad_()):
            wanted, call = model(x, edges()), compiled(model)
            assert call(x, edges()).stride() == wanted.stride()
            both(model, call, x, edges())


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch scripts formulas then
def test_forward_mode_is_refused_where_tangents_would_be_lost() -> None:
    forward_ad: Any = torch.autograd.forward_ad
    x, ei = numbers(N, F), edges()
    model, wanted = compiled(by_index_add), by_index_add(x, ei)
    assert torch.allclose(model(x, ei), wanted, atol=1e-5)
    with forward_ad.dual_level(), pytest.raises(ArgumentError, match="in forward mode"):
        model(forward_ad.make_dual(x.detach(), x.detach()), ei)
    assert torch.allclose(model(x, ei), wanted, atol=1e-5)


def test_operators_pass_the_checks_of_torch() -> None:
    pytest.importorskip("spcomp.torch.inductor.operators")  # it defines them
    ei = edges()
    ops = torch.ops.spcomp_inductor
    key = ops.index_key(ei[1])
    checks = ("test_schema", "test_faketensor")
    rows = numbers(E, F).detach()
    for call, args in (
        (ops.degree, (ei[1], key, M, False)),
        (ops.aggregate, ([rows], ei[1], key, M, False, None, None, 0, False, [F], [1], "0", SUM)),
    ):
        assert set(torch.library.opcheck(call, args, test_utils=checks).values()) == {"SUCCESS"}


def test_keys_of_compiled_graphs_hold_the_version_and_the_costs(monkeypatch: Any) -> None:
    passes: Any = pytest.importorskip("spcomp.torch.inductor.passes")
    seen = {passes.Pass().uuid(), passes.Pass(ALWAYS).uuid()}
    assert passes.Pass().uuid() in seen
    monkeypatch.setattr(spcomp, "__version__", "0.0.0")
    assert passes.Pass().uuid() not in seen


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_runs_our_kernels_until_they_are_disabled() -> None:
    from torch._inductor.utils import run_and_get_code

    def model(x: Any, w: Any, ei: Any) -> Any:
        rows = torch.relu(x)[ei[0]] * w[:, None]
        return torch.tanh(x.new_zeros(M, F).index_add(0, ei[1], rows)) * 2

    args = numbers(N, F), numbers(E, seed=1), edges()
    torch._dynamo.reset()
    call = torch.compile(model, backend="spcomp", options={"spcomp": ALWAYS})
    both(model, call, *args)
    config: Any = torch._inductor.config
    before = config.joint_custom_pre_pass
    st.enable()
    try:
        st.enable()
        assert len(config.joint_custom_pre_pass) == 1
        config.joint_custom_pre_pass[0].costs = ALWAYS
        plain = [x.detach() for x in args]
        found, code = run_and_get_code(torch.compile(model), *plain)
        assert "spcomp_inductor.aggregate" in "".join(code)
        assert torch.allclose(found, model(*plain), atol=1e-5)
    finally:
        st.disable()
    assert config.joint_custom_pre_pass is before is None


CACHED = """
import torch, spcomp.torch
from torch._dynamo.utils import counters
edges = torch.arange(8000).reshape(2, 4000) * 7919 % 500
x = torch.arange(16000.0).reshape(500, 32).sin().requires_grad_()
def model(x, edges):
    return torch.tanh(torch.zeros_like(x).index_add(0, edges[1], torch.relu(x)[edges[0]]))
found, wanted = torch.compile(model, backend={backend!r})(x, edges), model(x, edges)
ours, theirs = (torch.autograd.grad(y.sum(), x)[0] for y in (found, wanted))
assert (found - wanted).abs().max() < 1e-4
assert (ours - theirs).abs().max() < 1e-4
print("hits", counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_what_one_process_compiled_another_one_takes_from_the_cache(tmp_path: Any) -> None:
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    for backend, hits in (("inductor", 0), ("spcomp", 0), ("spcomp", 2), ("inductor", 2)):
        command = [sys.executable, "-c", CACHED.format(backend=backend)]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr
        assert f"hits {hits}" in done.stdout
