"""Sparse outputs whose coordinates come in any order: marked, counted, put in order, computed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, LoweringError, ScheduleError
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.interpret.program import interpret
from spcomp.ir.stmt import Alloc, For, Prefetch
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import walk
from spcomp.script.parse import parse_source
from tests.layers import TARGET, source, stages

HEAD = """from spcomp import script as T


@T.prim_func
def product(a: T.handle, b: T.handle, c: T.handle, d: T.handle, a_indptr: T.handle,
            a_indices: T.handle, b_indptr: T.handle, b_indices: T.handle, m: T.int32, l: T.int32,
            n: T.int32, nnz_a: T.int32, nnz_b: T.int32) -> None:
    I = T.dense_fixed(m)
    K = T.sparse_variable(I, (l, nnz_a), (a_indptr, a_indices))
    L = T.dense_fixed(l)
    J = T.sparse_variable(L, (n, nnz_b), (b_indptr, b_indices))
    N = T.dense_fixed(n)
    JC = T.sparse_variable(I, (n, None), (None, None))
    A = T.match_sparse_buffer(a, (I, K), "float32")
    B = T.match_sparse_buffer(b, (L, J), "float32")
    D = T.match_sparse_buffer(d, (N,), "float32")
    C = T.match_sparse_buffer(c, (I, JC), "float32")
    with T.sp_iter([I, K, T.attach(J, K)], "SRS", "product") as [i, k, j]:
"""
PLAIN = "        C[i, j] = C[i, j] + A[i, k] * B[k, j]\n"


def _program(body):
    (func,) = parse_source(HEAD + body, "product.py")
    return func


def _random(rng, rows, columns, density):
    return sps.random_array((rows, columns), density=density, rng=rng, dtype=np.float32).tocsr()


def _assert_same(got, want):
    want = sps.csr_array(want)
    want.sort_indices()
    np.testing.assert_array_equal(got.indptr, want.indptr)
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_allclose(got.data, want.data, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 4095, 4097, 300_000])
def test_products_of_all_widths_are_those_of_scipy(columns):
    rng = np.random.default_rng(columns)
    a, b = _random(rng, 40, 30, 0.2), _random(rng, 30, columns, min(0.3, 400 / columns))
    _assert_same(spcomp.compile(_program(PLAIN))(A=a, B=b, D=np.zeros(columns, np.float32)), a @ b)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)])
def test_products_without_elements_are_empty(shape):
    rows, inner, columns = shape
    a = sps.csr_array((rows, inner), dtype=np.float32)
    b = sps.csr_array((inner, columns), dtype=np.float32)
    got = spcomp.compile(_program(PLAIN))(A=a, B=b, D=np.zeros(columns, np.float32))
    assert got.shape == (rows, columns)
    assert got.nnz == 0
    np.testing.assert_array_equal(got.indptr, np.zeros(rows + 1))


def test_the_same_bits_come_at_any_number_of_threads():
    rng = np.random.default_rng(7)
    a = _random(rng, 3000, 3000, 0.01)
    kernel = spcomp.compile(_program(PLAIN))
    results = []
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            results.append(kernel(A=a, B=a, D=np.zeros(3000, np.float32)))
    _assert_same(results[0], a @ a)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].indices, other.indices)
        np.testing.assert_array_equal(results[0].data, other.data)


def test_coordinates_may_be_computed():
    rng = np.random.default_rng(1)
    a, b = _random(rng, 9, 8, 0.4), _random(rng, 8, 70, 0.2)
    mirrored = "        C[i, n - 1 - j] = C[i, n - 1 - j] + A[i, k] * B[k, j]\n"
    got = spcomp.compile(_program(mirrored))(A=a, B=b, D=np.zeros(70, np.float32))
    _assert_same(got, (a @ b).toarray()[:, ::-1])


def test_a_computed_coordinate_outside_the_axis_fails_the_call():
    rng = np.random.default_rng(1)
    a, b = _random(rng, 9, 8, 0.4), _random(rng, 8, 70, 0.2)
    shifted = "        C[i, j + 60] = C[i, j + 60] + A[i, k] * B[k, j]\n"
    with pytest.raises(ArgumentError, match="outside of JC"):
        spcomp.compile(_program(shifted))(A=a, B=b, D=np.zeros(70, np.float32))


def test_only_what_a_condition_keeps_is_created():
    rng = np.random.default_rng(2)
    a, b = _random(rng, 20, 8, 0.4), _random(rng, 8, 70, 0.2)
    keep = (np.arange(70) % 3 == 0).astype(np.float32)
    body = f"        if D[j] > T.float32(0):\n    {PLAIN}"
    got = spcomp.compile(_program(body))(A=a, B=b, D=keep)
    assert set(got.indices % 3) == {0}
    full = (a @ b).toarray()
    np.testing.assert_allclose(got.toarray()[:, ::3], full[:, ::3], rtol=1e-5)


@pytest.mark.parametrize("words", [1, 7, 8, 9, 31, 32, 33, 70])
def test_rows_of_few_and_of_many_words_come_in_order(words):
    columns = 64 * np.random.default_rng(words).permutation(100)[:words]  # a word each
    rows = np.repeat(np.arange(words), 3)
    places = (columns[:, None] + [5, 0, 63]).ravel()
    b = sps.coo_array(
        (np.arange(1, 3 * words + 1, dtype=np.float32), (rows, places)), (words, 6400)
    )
    a = sps.csr_array(np.ones((2, words), np.float32))
    _assert_same(spcomp.compile(_program(PLAIN))(A=a, B=b.tocsr(), D=np.zeros(6400, "f")), a @ b)


def test_fibers_at_stored_coordinates_are_asked_for_ahead():
    count, fill = lower(_program(PLAIN), TARGET).position.funcs
    for func, buffers in (
        (count, ["J_indices", "J_indptr"]),
        (fill, ["J_indices", "B", "J_indptr"]),
    ):
        (loop,) = (n for n in walk(func.body) if isinstance(n, For) and n.var.name == "k")
        hints = [n for n in walk(loop.body) if isinstance(n, Prefetch)]
        assert [hint.buffer.name for hint in hints] == buffers
        assert "T.min(K_indptr[vi] + (k + 16), nnz_a - T.int64(1))" in func.script()
        assert "T.min(K_indptr[vi] + (k + 32), nnz_a - T.int64(1))" in func.script()


def test_interpreted_phases_agree_with_the_program():
    for name in ("spgemm", "spgemm_min_plus"):
        func = source(name)
        inputs = {
            "m": 2, "n": 3, "nnz_a": 3, "nnz_b": 4,
            "a": np.float32([1, 2, 3]), "a_indptr": np.int32([0, 2, 3]),
            "a_indices": np.int32([0, 2, 1]), "b": np.float32([4, 5, 6, 7]),
            "b_indptr": np.int32([0, 1, 3, 4]), "b_indices": np.int32([2, 0, 1, 2]),
        }  # fmt: skip
        want = interpret(func, dict(inputs))
        for stage in ("position", "flat"):
            got = interpret(getattr(stages(name), stage), dict(inputs))
            for array in ("JC_indptr", "JC_indices", "c"):
                np.testing.assert_array_equal(got[array], want[array])


def test_workspaces_are_made_once_a_chunk():
    count, _ = lower(_program(PLAIN), TARGET).position.funcs
    parallel = next(n for n in walk(count.body) if isinstance(n, For) and n.kind == "parallel")
    (rows,) = (n for n in walk(parallel) if isinstance(n, For) and n.var.name == "i")
    assert not any(_is_workspace(n) for n in walk(rows))
    assert any(_is_workspace(n) for n in walk(parallel))


def _is_workspace(node):
    return isinstance(node, Alloc) and node.buffer.scope == "workspace"


def test_a_parallel_loop_keeps_its_workspaces():
    func = lower(_program(PLAIN), TARGET, trace=spcomp.Schedule(source("spmv")).trace)
    sch = spcomp.Schedule(func.position.funcs[0], lowered=True)
    with pytest.raises(ScheduleError, match="each iteration needs workspaces of its own"):
        sch.parallel("i").share_workspace("i")
    with pytest.raises(ScheduleError, match="there is no workspace in the loop"):
        sch.share_workspace("k")


def test_statements_around_a_shared_workspace_are_printed_as_they_can_be_parsed():
    (func,) = parse_source(
        """from spcomp import script as T

@T.prim_func
def f(a: T.handle, m: T.int32, n: T.int32) -> None:
    T.func_attr({"sparse_tir_level": 1})
    A = T.match_buffer(a, (m, n), "float32")
    for i in T.serial(m):
        A[i, 0] = T.float32(1)
        with T.alloc_buffer((n,), "float32", scope="workspace") as W:
            A[i, 1] = W[1]
            A[i, 2] = W[2]
        A[i, 3] = T.float32(2)
""",
        "around.py",
    )
    shared = spcomp.Schedule(func).share_workspace("i").func
    (again,) = parse_source(shared.script(), "printed.py")
    assert structural_equal(again, shared)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("        with T.init():\n            C[i, j] = D[j]\n" + PLAIN, "assign a constant"),
        ("        if C[i, j] < T.float32(3):\n    " + PLAIN, "depends on C, a result"),
        (
            PLAIN + '    with T.sp_iter([I, K, T.attach(J, K)], "SRS", "more") as [i, k, j]:\n'
            + PLAIN,
            "assembled by two iterations",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_assembled_is_refused(body, message):
    with pytest.raises(LoweringError, match=message) as caught:
        spcomp.compile(_program(body))
    assert caught.value.span is not None
    assert caught.value.hint


def _rows_of(lengths, columns, seed=0):
    """Return operands whose product has rows of *lengths* elements, some added up, in no order."""
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(columns)[:length] for length in lengths]
    rows = np.repeat(np.arange(len(lengths)), lengths)
    b = sps.coo_array((rng.random(len(rows), np.float32), (rows, np.concatenate(chosen))))
    b = sps.csr_array(sps.csr_array(b, shape=(len(lengths), columns)))
    a = sps.csr_array(sps.diags_array(np.ones(len(lengths), np.float32)))
    return a, b


LENGTHS = (0, 1, 31, 32, 33, 63, 64, 65, 66, 255, 256, 257, 300)
UNORDERED = HEAD.replace("(None, None))", "(None, None), sorted=False)")


@pytest.mark.parametrize("head", [HEAD, UNORDERED])
def test_short_and_long_rows_are_computed_alike(head):
    assert head == HEAD or "sorted=False" in head
    (func,) = parse_source(head + PLAIN, "product.py")
    _, b = _rows_of(LENGTHS, 1000)
    half = sps.csr_array(np.tril(np.ones((len(LENGTHS), len(LENGTHS)), np.float32)))
    for a in (sps.csr_array(sps.eye_array(len(LENGTHS), dtype=np.float32)), half):
        got = spcomp.compile(func)(A=a, B=b, D=np.zeros(1000, np.float32))
        np.testing.assert_array_equal(np.diff(got.indptr), np.diff((a @ b).indptr))
        if head == HEAD:
            _assert_same(got, a @ b)
        got.sort_indices()
        _assert_same(got, a @ b)


def test_elements_that_need_no_order_come_as_they_are_met():
    (func,) = parse_source(UNORDERED + PLAIN, "product.py")
    b = sps.csr_array(np.eye(5, 90, k=3, dtype=np.float32) + np.eye(5, 90, k=7, dtype=np.float32))
    a = sps.csr_array(np.float32([[1, 0, 1, 0, 1]]))
    got = spcomp.compile(func)(A=a, B=b, D=np.zeros(90, np.float32))
    assert got.indices.tolist() == [3, 7, 5, 9, 11]
    assert got.data.tolist() == [1, 2, 1, 1, 1]


def test_coordinates_that_fall_on_one_slot_are_told_apart():
    every = np.arange(200_000, dtype=np.int64)
    slots = (every * 2_654_435_769 >> 24) & 255  # of a row of 33 to 64 elements
    same = every[slots == slots[12345]][:60]
    b = sps.coo_array((np.ones(60, np.float32), (np.arange(60), same)), (60, 200_000)).tocsr()
    a = sps.csr_array(np.ones((2, 60), np.float32))
    _assert_same(spcomp.compile(_program(PLAIN))(A=a, B=b, D=np.zeros(200_000, "f")), a @ b)


def test_several_results_along_one_axis_are_put_in_order_together():
    head = HEAD.replace("c: T.handle,", "c: T.handle, e: T.handle,").replace(
        "    with T.sp_iter",
        '    E = T.match_sparse_buffer(e, (I, JC), "float32")\n    with T.sp_iter',
    )
    body = PLAIN + "        E[i, j] = T.max(E[i, j], B[k, j])\n"
    (func,) = parse_source(head + body, "product.py")
    rng = np.random.default_rng(5)
    a, b = _random(rng, 30, 20, 0.3), _random(rng, 20, 400, 0.1)
    found = spcomp.compile(func)(A=a, B=b, D=np.zeros(400, np.float32))
    _assert_same(found.C, a @ b)
    pattern = (a.toarray() != 0).astype(np.float32)
    want = np.stack([(row[:, None] * b.toarray()).max(axis=0) for row in pattern])
    np.testing.assert_allclose(found.E.toarray(), want, rtol=1e-6)


def test_workspaces_take_two_bits_for_each_coordinate_and_tables_for_short_rows():
    """Of a million coordinates: bits, the words that hold any, and what comes before each."""
    n = 1 << 20
    func = _program(PLAIN).specialize({"n": n})
    count, fill = lower(func, TARGET).position.funcs
    for phase, limit in ((count, 1.51), (fill, 2.02)):
        buffers = [node.buffer for node in walk(phase.body) if _is_workspace(node)]
        bits = {b.name: simplify(b.shape[0]).value * b.dtype.bits for b in buffers}
        small = [size for size in bits.values() if size <= 64 * 1024]
        assert sum(small) < 64 * 1024
        assert sum(bits.values()) < limit * n + 64 * 1024


def test_a_format_may_leave_the_order_of_a_row_open():
    rng = np.random.default_rng(8)
    a = _random(rng, 60, 60, 0.2)
    formats = {"C": "dense,compressed(unordered)"}
    got = spcomp.compile("C[i, j] = A[i, k] * B[k, j]", formats=formats)(A=a, B=a)
    assert not got.has_sorted_indices
    assert got.nnz == (a @ a).nnz
    np.testing.assert_allclose(got.toarray(), (a @ a).toarray(), rtol=1e-5)
    got = spcomp.compile("C[i, j] = A[i, j] + B[i, j]", formats=formats)(A=a, B=a)
    np.testing.assert_array_equal(got.toarray(), 2 * a.toarray())
