"""Conversions derived from rules: every kind of axis, sizes that are solved, what is refused."""

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.errors import ArgumentError, FormatError
from spcomp.formats import FormatRewriteRule
from spcomp.tensors.conversions.order import keys_in_order
from spcomp.tensors.conversions.runs import bounds
from tests.format_helpers import in_rows, interpreted_parts, matrices, others, parse, program
from tests.test_formats_decompose import ELL, block_rule, ell_rule

MATRICES = matrices()
KINDS = {
    "dense": """
    X = T.dense_fixed(m)
    Y = T.dense_fixed(n)
    A = T.match_sparse_buffer(a, (X, Y), "float32")
""",
    "compressed": """
    X = T.dense_fixed(m)
    Y = T.sparse_variable(X, (n, count), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (X, Y), "float32")
""",
    "transposed": """
    Y = T.dense_fixed(n)
    X = T.sparse_variable(Y, (m, count), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (Y, X), "float32")
""",
    "profile": """
    X = T.dense_fixed(m)
    Y = T.dense_variable(X, (n, count), indptr)
    A = T.match_sparse_buffer(a, (X, Y), "float32")
""",
    "padded": """
    X = T.dense_fixed(m)
    Y = T.sparse_fixed(X, (n, width), indices, "int32", unique=False)
    A = T.match_sparse_buffer(a, (X, Y), "float32")
""",
    "listed": """
    O = T.dense_fixed(1)
    X = T.sparse_variable(O, (m, count), (indptr, indices), "int32", unique=False)
    Y = T.sparse_fixed(X, (n, 1), indices2, "int32")
    A = T.match_sparse_buffer(a, (O, X, Y), "float32")
""",
    "beside": """
    Y = T.dense_fixed(n)
    O = T.dense_fixed(1)
    X = T.sparse_variable(O, (m, count), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (Y, O, X), "float32")
""",
    "doubly compressed": """
    O = T.dense_fixed(1)
    Y = T.sparse_variable(O, (n, columns), (indptr, indices), "int32")
    X = T.sparse_variable(Y, (m, count), (indptr2, indices2), "int32")
    A = T.match_sparse_buffer(a, (O, Y, X), "float32")
""",
    "profiles of blocks": """
    X = T.dense_fixed(m)
    P = T.dense_variable(X, (p, count), indptr)
    Y = T.sparse_variable(P, (2, count2), (indptr2, indices2), "int32")
    A = T.match_sparse_buffer(a, (X, P, Y), "float32")
""",
}
MAPS = {
    "transposed": (("Y", "X"), lambda i, j: (j, i), lambda y, x: (x, y)),
    "listed": (("O", "X", "Y"), lambda i, j: (0, i, j), lambda o, x, y: (x, y)),
    "beside": (("Y", "O", "X"), lambda i, j: (j, 0, i), lambda y, o, x: (x, y)),
    "doubly compressed": (("O", "Y", "X"), lambda i, j: (0, j, i), lambda o, y, x: (x, y)),
    "profiles of blocks": (
        ("X", "P", "Y"), lambda i, j: (i, j // 2, j % 2), lambda x, p, y: (x, p * 2 + y),
    ),
}  # fmt: skip


def rule_of(kind, *, padded=None):
    """The rule for the kind of axes called *kind*, in sizes of its own."""
    body = KINDS[kind]
    names = ("a", "indptr", "indices", "indptr2", "indices2")
    handles = [name for name in names if f"{name}," in body or f"{name})" in body]
    sizes = [name for name in ("m", "n", "count", "count2", "columns", "width", "p")
             if f"({name}," in body or f", {name})" in body or f"({name})" in body]  # fmt: skip
    params = [f"{name}: T.handle" for name in handles] + [f"{name}: T.int32" for name in sizes]
    source = "from spcomp import script as T\n\n@T.prim_func\n"
    source += f"def f({', '.join(params)}) -> None:{body}    T.evaluate(0)\n"
    same = ("X", "Y"), lambda i, j: (i, j), lambda x, y: (x, y)
    axes, forward, backward = MAPS.get(kind, same)
    pads = kind in ("dense", "profile", "padded", "beside")
    return FormatRewriteRule(
        "new", parse(source), ["A"], ["I", "J"], axes,
        {"I": ["X"], "J": [name for name in axes if name in "YP"]}, forward, backward,
        padded=pads if padded is None else padded,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["spmv", "max"])
def test_any_kind_of_axes_is_filled_from_its_map(kind, name):
    kernel = spcomp.decompose(program(name), A=[rule_of(kind)]).compile()
    for which in ("nothing stored", "one element", "scattered", "empty rows", "wide", "tall"):
        csr = MATRICES[which]
        dense = others(name, csr.shape)["B"]
        want = in_rows(name)(A=csr, B=dense)
        np.testing.assert_array_equal(kernel(A=csr, B=dense), want)
        start = np.full(want.shape, 7, np.float32)
        np.testing.assert_array_equal(interpreted_parts(kernel, csr, dense, start), want)


@pytest.mark.parametrize("kind", KINDS)
def test_elements_are_read_back_from_any_kind_of_axes(kind):
    kernel = spcomp.decompose(program("spmv"), A=[rule_of(kind)]).compile()
    for which in ("nothing stored", "one element", "scattered", "empty rows", "wide", "tall"):
        made = kernel.convert(A=MATRICES[which])
        np.testing.assert_array_equal(made.to_scipy().toarray(), MATRICES[which].toarray())


def test_the_arrays_of_a_transposed_matrix_are_those_of_scipy():
    csr = MATRICES["scattered"]
    kernel = spcomp.decompose(program("spmv"), A=[rule_of("transposed")]).compile()
    made, want = kernel.convert(A=csr), csr.tocsc()
    part = made.parts["new"]
    np.testing.assert_array_equal(part["indptr"], want.indptr)
    np.testing.assert_array_equal(part["indices"], want.indices)
    np.testing.assert_array_equal(part["values"], want.data)
    assert made.sizes["new"] == {"n": 25, "m": 25, "count": csr.nnz}


def test_elements_go_to_the_first_rule_that_can_hold_them():
    desc = parse(ELL)
    rules = [ell_rule(f"w{w}", new_format_desc=desc.specialize({"width": w})) for w in (2, 3)]
    kernel = spcomp.decompose(program("spmv"), A=[*rules, rule_of("compressed")]).compile()
    lengths = [0, 2, 3, 1, 2, 5]
    csr = sps.csr_array([[1.0 + k] * n + [0] * (5 - n) for k, n in enumerate(lengths)])
    csr = csr.astype(np.float32)
    made = kernel.convert(A=csr)
    assert made.parts["w2"]["rows_indices"].tolist() == [1, 4]
    assert made.parts["w3"]["rows_indices"].tolist() == [2]
    assert made.sizes["w2"] == {"m": 6, "n": 5, "count": 2}
    assert made.parts["new"]["indptr"].tolist() == [0, 0, 0, 0, 1, 1, 6]
    dense = others("spmv", csr.shape)["B"]
    np.testing.assert_array_equal(kernel(A=csr, B=dense), csr @ dense)


def test_a_rule_holds_what_its_condition_says():
    left = rule_of("compressed")
    fields = {"name": "left", "where": lambda i, j: j < 3}
    names = ("new_format_desc", "buffers_to_rewrite", "axes_before_rewrite", "axes_after_rewrite",
             "axis_map", "idx_map", "inv_idx_map", "padded")  # fmt: skip
    left = FormatRewriteRule(**{n: getattr(left, n) for n in names}, **fields)
    kernel = spcomp.decompose(program("spmv"), A=[left, rule_of("transposed")]).compile()
    csr = MATRICES["full"]
    made = kernel.convert(A=csr)
    assert set(made.parts["left"]["indices"]) == {0, 1, 2}
    assert made.parts["new"]["indptr"].tolist() == [0, 0, 0, *range(0, 91, 9)]
    dense = others("spmv", csr.shape)["B"]
    np.testing.assert_array_equal(kernel(A=csr, B=dense), csr @ dense)


def converted(rules, which="scattered"):
    return spcomp.decompose(program("spmv"), A=rules).compile().convert(A=MATRICES[which])


def test_elements_that_lie_in_no_part_are_named():
    short = ell_rule("w1", new_format_desc=parse(ELL).specialize({"width": 1}))
    with pytest.raises(ArgumentError, match=r"elements lie in no part .* such as the one at \(0,"):
        converted([short])
    with pytest.raises(ArgumentError, match="elements lie in no part"):
        converted([block_rule()], "stored zeros")


def test_fibers_that_differ_in_length_ask_for_padding():
    with pytest.raises(ArgumentError, match="the fibers of Y differ in length, the rule 'new' is"):
        converted([rule_of("padded", padded=False)])


def test_axes_that_elements_cannot_be_put_along_are_refused():
    source = """from spcomp import script as T

@T.prim_func
def f(a: T.handle, xs: T.handle, ys: T.handle, m: T.int32, n: T.int32, k: T.int32) -> None:
    O = T.dense_fixed(1)
    P = T.dense_fixed(1)
    X = T.sparse_fixed(O, (m, k), xs, "int32")
    Y = T.sparse_fixed(P, (n, k), ys, "int32")
    A = T.match_sparse_buffer(a, (O, X, P, Y), "float32")
    T.evaluate(0)
"""
    rule = FormatRewriteRule(
        "new", parse(source), ["A"], ["I", "J"], ["O", "X", "P", "Y"], {"I": ["X"], "J": ["Y"]},
        lambda i, j: (0, i, 0, j), lambda o, x, p, y: (x, y), padded=True,
    )  # fmt: skip
    with pytest.raises(FormatError, match="A lies along several sparse axes"):
        converted([rule])


def test_a_list_that_is_no_format_is_refused():
    with pytest.raises(ArgumentError, match=r"argument A: got \[\], expected a format"):
        spcomp.decompose(program("spmv"), A=[])
    with pytest.raises(FormatError, match="it rewrites A"):
        spcomp.decompose(program("spmv"), B=[rule_of("compressed")])


@pytest.mark.parametrize("count", [0, 1, 2, 5000, 150_000])
@pytest.mark.parametrize("bits", [1, 12, 40])
def test_keys_are_sorted_and_equal_ones_stay_in_order(count, bits):
    keys = np.random.default_rng(count).integers(0, 1 << bits, count)
    order = np.argsort(keys, kind="stable")
    made, ids = keys_in_order(keys, None)
    np.testing.assert_array_equal(made, keys[order])
    assert (order == np.arange(count)).all() if ids is None else (ids == order).all()
    given = np.arange(count)[::-1].copy()
    np.testing.assert_array_equal(keys_in_order(keys, given)[1], given[order])
    groups = made >> 3
    np.testing.assert_array_equal(bounds(made, 8)[:-1], np.flatnonzero(np.diff(groups, prepend=-1)))


@pytest.mark.parametrize("within", [1 << 8, 1000, 70_000, 1 << 33])
def test_groups_that_are_in_order_are_sorted_each_by_itself(within):
    rng = np.random.default_rng(within)
    groups = np.sort(rng.integers(0, 700, 30_000))
    groups[5000:9000] = groups[5000]
    keys = np.sort(groups) * within + rng.integers(0, within, 30_000)
    order = np.argsort(keys, kind="stable")
    given = rng.permutation(30_000)
    copy = keys.copy(), given.copy()
    for ids in (None, given):
        made, moved = keys_in_order(keys, ids, within)
        np.testing.assert_array_equal(made, keys[order])
        np.testing.assert_array_equal(moved, order if ids is None else given[order])
    np.testing.assert_array_equal((keys, given), copy)


def test_groups_that_come_again_are_not_taken_for_sorted_ones():
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(400)[::-1], 20)  # each ends where the next, a lower one, begins
    for turned in (groups, np.concatenate([groups[::-1], groups])):
        keys = turned * 1000 + rng.integers(0, 1000, len(turned))
        made, ids = keys_in_order(keys, None, 1000)
        np.testing.assert_array_equal(ids, np.argsort(keys, kind="stable"))
        np.testing.assert_array_equal(made, np.sort(keys))
