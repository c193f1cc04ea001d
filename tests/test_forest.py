"""The axis forest."""

import pytest

from spcomp.dtypes import float32, handle, int64
from spcomp.errors import FormatError
from spcomp.ir.analysis.forest import Forest, draw, fusable, layout_conflict, misordered
from spcomp.ir.axis import Attach, Axis, Buffer, Flatten, Fuse, SparseBuffer, Union
from spcomp.ir.expr import Var, const

m, n, nnz = (Var(name, int64) for name in ("m", "n", "nnz"))
p, q = (Var(name, handle) for name in ("indptr", "indices"))


def dense(name: str) -> Axis:
    return Axis(name, "dense_fixed", m)


def ragged(name: str, parent: Axis | None) -> Axis:
    return Axis(name, "dense_variable", n, parent, nnz, indptr=p)


def sparse(name: str, parent: Axis | None) -> Axis:
    return Axis(name, "sparse_variable", n, parent, nnz, indptr=p, indices=q)


def ell(name: str, parent: Axis) -> Axis:
    return Axis(name, "sparse_fixed", n, parent, nnz_cols=const(4), indices=q)


I, D = dense("I"), dense("D")
J = sparse("J", I)
K = sparse("K", J)
F = ell("F", I)


def test_roots_children_ancestors_and_depth():
    forest = Forest.of((I, J, K, D, F))
    assert forest.roots == (I, D)
    assert forest.children(I) == (J, F)
    assert forest.ancestors(K) == (J, I)
    assert forest.path(K) == (I, J, K)
    assert [forest.depth(axis) for axis in (I, J, K)] == [0, 1, 2]


def test_order_puts_parents_first_and_keeps_declaration_order_else():
    assert Forest.of((D, I, F, J, K)).order == (D, I, F, J, K)
    assert Forest.of((K, D, J, I)).order == (D, I, J, K)


def test_networkx_view_has_names_kinds_and_edges():
    graph = Forest.of((I, J, D)).to_networkx()
    assert list(graph.edges) == [("I", "J")]
    assert graph.nodes["J"]["kind"] == "sparse_variable"


def test_a_well_formed_forest_passes():
    Forest.of((I, J, K, D, F)).check()


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ((I, dense("I")), "two axes are named 'I'"),
        ((J,), "parent of axis 'J', 'I', is not declared"),
        ((ragged("V", None),), "dense_variable axis 'V' has no parent"),
        ((I, Axis("X", "dense_fixed", m, I)), "dense_fixed axis 'X' has a parent"),
    ],
)
def test_a_malformed_forest_is_refused(axes, message):
    with pytest.raises(FormatError, match=message):
        Forest.of(axes).check()


def test_a_cycle_is_refused_with_its_axes():
    a = ragged("A", None)
    b = ragged("B", a)
    object.__setattr__(a, "parent", b)
    for method in (Forest.of((a, b)).check, lambda: Forest.of((a, b)).order):
        with pytest.raises(FormatError, match=r"own ancestors: '[AB]' -> '[AB]' -> "):
            method()


@pytest.mark.parametrize(
    ("domains", "bound", "culprit"),
    [
        ((I, J, K), (), None),
        ((J, I), (), J),
        ((J,), (), J),
        ((J,), (I,), None),
        ((D, I, F, J), (), None),
        ((I, K, J), (), K),
        ((Fuse((I, J)), K), (), None),
        ((Fuse((J, K)),), (I,), None),
        ((Flatten((J, K)),), (), J),
        ((I, Union((J, sparse("J2", I)))), (), None),
        ((I, J, Attach(K, J)), (), None),
        ((I, D, Attach(J, D)), (), None),
        ((I, Attach(J, D)), (), J),
    ],
)
def test_an_axis_runs_after_what_it_depends_on(domains, bound, culprit):
    assert misordered(domains, bound) is culprit


def test_only_a_chain_of_axes_fuses():
    assert fusable((I, J, K))
    assert fusable((J, K))
    assert not fusable((I,))
    assert not fusable((I, K))
    assert not fusable((J, I))
    assert not fusable((I, D))


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ((I, J, K), None),
        ((I, D, J), None),
        ((I, J, F), None),
        ((I, J, D, sparse("E", D)), None),
        ((I, I), "I occurs twice"),
        ((J,), "J hangs on I, which is not an axis of the buffer"),
        ((I, K), "K hangs on J, which is not an axis of the buffer"),
        ((J, I), "J hangs on I, which comes after it"),
        ((I, J, J), "J occurs twice"),
        ((I, J, ragged("V", I)), "J and V: two variable siblings"),
        ((I, J, F, ragged("V", F)), "J and V: two variable siblings"),
    ],
)
def test_a_layout_needs_whole_chains_and_no_variable_siblings(axes, why):
    found = layout_conflict(axes)
    assert (found is None) if why is None else (found is not None and why in found.message)


def test_drawing_shows_the_tree_and_the_buffers():
    Z = Axis("Z", "sparse_variable", n, I, sorted=False)
    A = SparseBuffer("A", None, (I, J), float32)
    X = Buffer("X", None, (m, const(4)), float32)
    assert draw((I, J, K, Z, D), (A, X)).splitlines() == [
        "I dense_fixed(m)",
        "├── J sparse_variable(n, nnz, indptr=indptr, indices=indices)",
        "│   └── K sparse_variable(n, nnz, indptr=indptr, indices=indices)",
        "└── Z sparse_variable(n) assembled unsorted",
        "D dense_fixed(m)",
        "A(I, J) float32",
        "X(m, 4) float32",
    ]
