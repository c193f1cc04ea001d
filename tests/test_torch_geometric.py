"""Layers of torch_geometric under our backend: results and gradients are those of eager.

``pip install torch_geometric`` for these; CI does without.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")
layers: Any = pytest.importorskip("torch_geometric.nn", reason="needs torch_geometric")
st: Any = pytest.importorskip("spcomp.torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
ALWAYS = st.Costs(density=float("inf"), call=0, edge=0, element=0)
NODES, EDGES, F = 30, 120, 8
WEIGHT, FEATURES = "weight", "features"  # what a layer takes for each edge

# name, arguments, what it takes for each edge, and how many aggregations are replaced at least
# (forward and backward)
LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], str | None, int]] = [
    ("GCNConv", (F, F), {"normalize": False}, WEIGHT, 2),
    ("GCNConv", (F, F), {}, None, 3),
    ("GraphConv", (F, F), {}, WEIGHT, 2),
    ("GraphConv", (F, F), {"aggr": "mean"}, WEIGHT, 3),
    ("GraphConv", (F, F), {"aggr": "max"}, None, 3),
    ("SAGEConv", (F, F), {}, None, 3),
    ("SAGEConv", (F, F), {"aggr": "max"}, None, 3),
    ("SAGEConv", (F, F), {"aggr": "sum"}, None, 2),
    ("GINConv", ("mlp",), {}, None, 2),
    ("GINEConv", ("mlp",), {"edge_dim": 4}, FEATURES, 2),
    ("GATConv", (F, 4), {"heads": 2, "add_self_loops": False}, None, 7),
    ("GATv2Conv", (F, 4), {"heads": 2, "add_self_loops": False}, None, 7),
    ("TransformerConv", (F, 4), {"heads": 2}, None, 7),
    ("TAGConv", (F, F), {"normalize": False}, WEIGHT, 6),
    ("SGConv", (F, F), {"add_self_loops": False}, WEIGHT, 3),
    ("APPNP", (2, 0.1), {"normalize": False}, WEIGHT, 4),
    ("ChebConv", (F, F, 2), {}, None, 3),
    ("ARMAConv", (F, F), {}, WEIGHT, 1),
    ("GatedGraphConv", (F, 2), {}, WEIGHT, 4),
    ("ResGatedGraphConv", (F, F), {}, None, 4),
    ("LEConv", (F, F), {}, WEIGHT, 3),
    ("GENConv", (F, F), {}, None, 5),
    ("GENConv", (F, F), {"aggr": "max"}, None, 3),
    ("EdgeConv", ("pairs",), {}, None, 4),
    ("FiLMConv", (F, F), {}, None, 5),
    ("SuperGATConv", (F, 4), {"heads": 2, "add_self_loops": False}, None, 6),
    ("NNConv", (F, F, "edges"), {}, FEATURES, 2),
    ("CGConv", (F, 4), {}, FEATURES, 3),
]


def made(argument: Any) -> Any:
    """The *argument* of a layer; some names stand for modules."""
    linear = {"mlp": (F, F), "pairs": (2 * F, F), "edges": (4, F * F)}.get(str(argument))
    return argument if linear is None else torch.nn.Sequential(torch.nn.Linear(*linear))


@pytest.mark.parametrize(("name", "args", "more", "takes", "least"), LAYERS)
def test_a_layer_is_that_of_eager(
    name: str, args: tuple[Any, ...], more: dict[str, Any], takes: str | None, least: int
) -> None:
    torch.manual_seed(0)
    layer = getattr(layers, name)(*map(made, args), **more).eval()
    x = torch.randn(NODES, F, requires_grad=True)
    inputs = [x, torch.randint(NODES, (2, EDGES))]
    if takes:
        inputs.append(torch.rand(EDGES) if takes == WEIGHT else torch.randn(EDGES, 4))
    leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
    torch._dynamo.reset()
    call = torch.compile(layer, backend="spcomp_eager", options={"spcomp": ALWAYS})
    wanted, found = layer(*inputs), call(*inputs)
    assert torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)
    up = torch.randn_like(wanted)
    theirs, ours = (torch.autograd.grad(y, leaves, up, allow_unused=True) for y in (wanted, found))
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-4, rtol=1e-4)
    assert len(st.explain(layer, *inputs, costs=ALWAYS).replaced) >= least
