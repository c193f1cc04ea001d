"""The graph of imports has no circle, with those inside functions and for type checkers."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1]
SANCTIONED = {  # what a tensor can do: convert itself, and be computed with
    ("spcomp.tensors.tensor", "spcomp.tensors.convert"),
    ("spcomp.tensors.tensor", "spcomp.tensors.torch"),
    ("spcomp.tensors.parts.parts", "spcomp.tensors.convert"),
    ("spcomp.tensors.operators", "spcomp.tensors.indexing"),
    ("spcomp.tensors.operators", "spcomp.kernels.compile"),
}


def import_graph() -> nx.DiGraph:
    """Each module of spcomp, with an edge to each that it imports anywhere."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((ROOT / "spcomp").rglob("*.py"))
    }
    graph = nx.DiGraph()
    graph.add_nodes_from(modules)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            for imported in _imported(node):
                found = [other for other in imported if other in modules]
                graph.add_edges_from((name, other) for other in found[:1])
    return graph


def _imported(node: ast.AST) -> list[tuple[str, ...]]:
    """What *node* imports: a module, or a name of one that may be a module itself."""
    if isinstance(node, ast.Import):
        return [(alias.name,) for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
    return []


def test_the_graph_sees_imports_inside_of_functions():
    graph = import_graph()
    assert graph.has_edge("spcomp.schedule.step", "spcomp.schedule.steps.catalog")
    assert graph.has_edge("spcomp.script.decorators", "spcomp.script.parse")


def test_there_are_no_circles_but_the_sanctioned_ones():
    graph = import_graph()
    assert all(graph.has_edge(*arrow) for arrow in SANCTIONED)
    graph.remove_edges_from(SANCTIONED)
    circles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles
