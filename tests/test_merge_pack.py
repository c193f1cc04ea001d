"""Merges of sparse operands: every way to run them agrees; results are put in place in one pass."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, InternalError, ScriptError, SpcompWarning
from spcomp.ir.expr import BinOp
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import HostAlloc, Launch, Scan, Trim
from spcomp.ir.printer.program import print_module
from spcomp.ir.stmt import If, Prefix, While
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.knobs import CPU_KNOBS
from spcomp.script.parse import parse_source
from spcomp.target import Target
from tests.layers import source

CPU = Target("cpu", "x86-64-v3", vector_bits=256)
COLUMNS, ROWS = 400, 24  # more rows than are looked at before branches are avoided
SUM, PRODUCT = "csr_add", "csr_mul"


def rows(seed, lengths, columns=COLUMNS, dtype="float32"):
    """A csr_array whose rows have *lengths* elements, at random columns."""
    rng = np.random.default_rng(seed)
    picked = [np.sort(rng.choice(columns, n, replace=False)) for n in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    indices = np.concatenate([*picked, []]).astype(np.int32)
    data = rng.integers(1, 50, len(indices)).astype(dtype)
    return sps.csr_array((data, indices, indptr), shape=(len(lengths), columns))


def pair(kind, dtype="float32"):
    """Two operands whose rows relate as *kind* says, of more rows than are looked at first."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(0, 5, ROWS)
    a = rows(1, lengths, dtype=dtype)
    if kind == "one pattern":
        return a, sps.csr_array((a.data * 2, a.indices, a.indptr), shape=a.shape)
    if kind == "random":
        return a, rows(2, rng.integers(0, 5, ROWS), dtype=dtype)
    if kind == "never met":  # rows of up to several vectors
        columns = COLUMNS // 2
        a, b = (rows(s, rng.integers(0, 20, ROWS), columns, dtype) for s in (1, 2))
        return tuple(
            sps.csr_array((x.data, 2 * x.indices + odd, x.indptr), shape=(ROWS, COLUMNS))
            for odd, x in enumerate((a, b))
        )
    if kind == "often met":
        return tuple(rows(s, rng.integers(8, 20, ROWS), 30, dtype) for s in (1, 2))
    if kind == "random and long":
        return rows(1, lengths + CPU_KNOBS.meeting_shorter + 1), rows(
            2, lengths[::-1] + CPU_KNOBS.meeting_shorter + 1
        )
    if kind == "far longer":
        return a, rows(3, lengths * 0 + 4 * CPU_KNOBS.search_factor + 1, dtype=dtype)
    if kind == "far shorter":
        return rows(3, lengths * 0 + 4 * CPU_KNOBS.search_factor + 1, dtype=dtype), a
    if kind == "shifted":
        shifted = np.sort(a.toarray(), axis=1)  # the stored ones last, in every row
        return sps.csr_array(shifted), sps.csr_array(np.roll(shifted, -1, axis=1))
    return a, rows(4, lengths * 0, dtype=dtype)  # empty


KINDS = (
    "one pattern",
    "random",
    "random and long",
    "never met",
    "often met",
    "far longer",
    "far shorter",
    "shifted",
    "empty",
)


def same(got, want):
    want = want.tocsr()
    want.sort_indices()
    np.testing.assert_array_equal(got.indptr, want.indptr)
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.data, want.data)


def expected(name, a, b):
    return a + b if name == SUM else a * b


def arguments(a, b):
    args = {"a": a.data, "a_indptr": a.indptr, "a_indices": a.indices, "nnz_a": a.nnz}
    args |= {"b": b.data, "b_indptr": b.indptr, "b_indices": b.indices, "nnz_b": b.nnz}
    return {**args, "m": a.shape[0], "n": a.shape[1]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [SUM, PRODUCT])
def test_every_way_to_run_a_merge_gives_the_same_result(name, kind):
    a, b = pair(kind)
    want = expected(name, a, b)
    same(spcomp.compile(source(name, "float32"))(A=a, B=b), want)
    flat = lower(source(name, "float32"), CPU).flat
    found = interpret(flat, arguments(a, b))
    same(sps.csr_array((found["c"], found["JC_indices"], found["JC_indptr"]), a.shape), want)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8", "float16"])
@pytest.mark.parametrize("kind", ["one pattern", "random"])
def test_a_merge_selects_values_of_any_dtype(dtype, kind):
    a, b = pair(kind, "float64")
    a, b = (x.astype(np.float32).astype(dtype) if dtype != "float16" else x for x in (a, b))
    if dtype == "float16":
        halves = [(x.data.astype(np.float16), x.indices, x.indptr) for x in (a, b)]
        args = {}
        for name, (data, indices, indptr) in zip("ab", halves, strict=True):
            args |= {name: data, f"{name}_indptr": indptr, f"{name}_indices": indices}
        flat = lower(source(SUM, dtype), CPU).flat
        sizes = {"nnz_a": a.nnz, "nnz_b": b.nnz, "m": a.shape[0], "n": a.shape[1]}
        found = interpret(flat, {**args, **sizes})
        np.testing.assert_array_equal(found["c"].astype(float), (a + b).data)
        return
    same(spcomp.compile(source(SUM, dtype))(A=a, B=b), a + b)


@pytest.mark.parametrize("name", [SUM, PRODUCT])
def test_blocks_of_rows_meet_at_any_thread_count(name):
    rng = np.random.default_rng(8)
    lengths = rng.integers(0, 9, 9_000)
    lengths[[0, 4_000, 8_999]] = COLUMNS  # some blocks take far longer
    a, b = rows(6, lengths), rows(7, rng.permutation(lengths))
    kernel = spcomp.compile(source(name, "float32"))
    want = expected(name, a, b)
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            same(kernel(A=a, B=b), want)


def test_a_sum_is_made_in_one_pass():
    stages = lower(source(SUM, "float32"), CPU)
    assert [type(op) for op in stages.position.host[1:3]] == [Launch, Scan]
    flat = stages.flat
    assert [func.name for func in flat.funcs] == ["csr_add_pack"]
    assert sum(isinstance(op, Launch) for op in flat.host) == 1
    assert sum(isinstance(op, Trim) for op in flat.host) == 2
    assert [op.fill for op in flat.host if isinstance(op, HostAlloc)] == [0, None, None]
    assert any(isinstance(n, Prefix) for n in walk(flat.funcs[0].body))


def test_a_fiber_that_is_new_each_time_takes_no_branch():
    (func,) = lower(source(SUM, "float32"), CPU).flat.funcs
    choices = [
        n
        for n in walk(func.body)
        if isinstance(n, If) and isinstance(n.otherwise, While) and "surprises" in str(n.cond)
    ]
    (free,) = (choice.otherwise for choice in choices)
    assert not any(isinstance(n, If) for n in walk(free))


WITHOUT = """
@T.prim_func
def without(p: T.handle, a: T.handle, q: T.handle, b: T.handle, y: T.handle, m: T.int64,
            n: T.int64, nnz_a: T.int64, nnz_b: T.int64) -> None:
    T.func_attr({"sparse_tir_level": 1})
    I = T.dense_fixed(m)
    JA = T.sparse_variable(I, (n, nnz_a), (p, a))
    JB = T.sparse_variable(I, (n, nnz_b), (q, b))
    P = T.match_sparse_buffer(p, (I,), "int32", extra_storage=1)
    A = T.match_sparse_buffer(a, (I, JA), "int32")
    Q = T.match_sparse_buffer(q, (I,), "int32", extra_storage=1)
    B = T.match_sparse_buffer(b, (I, JB), "int32")
    Y = T.match_sparse_buffer(y, (I,), "int64")
    for i in T.serial(m):
        with T.merge("union", T.cursor(A, P[i], P[i + 1]), T.cursor(B, Q[i], Q[i+1])) as [j, u, v]:
            with T.case(1, 0):
                Y[i] = Y[i] + j
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_combination_without_a_case_runs_nothing(kind):
    a, b = pair(kind)
    (func,) = parse_source(WITHOUT, "without.py")
    want = np.zeros(len(a.indptr) - 1, np.int64)
    for i in range(len(want)):
        rows = (set(x.indices[x.indptr[i] : x.indptr[i + 1]].tolist()) for x in (a, b))
        want[i] = sum(next(rows) - next(rows))
    args = {"p": a.indptr, "a": a.indices, "q": b.indptr, "b": b.indices}
    args |= {"m": len(want), "n": a.shape[1], "nnz_a": a.nnz, "nnz_b": b.nnz}
    for program in (func, lower(func, CPU, trusted=True).flat.funcs[0]):
        y = np.zeros_like(want)
        interpret(program, {**args, "y": y})
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("kinds", [("random", "often met"), ("one pattern",) * 2, ("empty",) * 2])
def test_three_operands_are_merged_by_the_loops_of_their_lattice(kinds):
    (a, b), (d, _) = map(pair, kinds)
    d = sps.csr_array((d.data, d.indices, d.indptr), shape=a.shape)
    kernel = spcomp.compile("C[i, j] = A[i, j] + B[i, j] + D[i, j]")
    same(kernel(A=a, B=b, D=d), a + b + d)
    flat = kernel.specialize(A=a, B=b, D=d).stage("flat")
    assert flat.count("while ") == 1 + 1 + 3 + 3  # by branches, without, by two, by one
    for values in ("7", "3"):
        assert f"T.alloc_buffer(({values},)" in flat


def test_whether_fibers_meet_is_asked_by_vectors():
    (func,) = lower(source(PRODUCT, "float32"), CPU).flat.funcs
    (ask,) = (line for line in func.script().splitlines() if "meetings[0] <" in line)
    assert f"<= {CPU_KNOBS.meeting_shorter} and" in ask
    assert ask.endswith(f"<= {CPU_KNOBS.meeting_longer}:")
    vectors = [n for n in walk(func.body) if isinstance(n, BinOp) and n.op == "^"]
    assert {n.dtype.lanes for n in vectors} == {8}  # of 32 bits
    (sums,) = lower(source(SUM, "float32"), CPU).flat.funcs
    assert "meetings" not in sums.script()


def test_a_packed_module_reads_as_it_prints_and_runs_when_read():
    flat = lower(source(SUM, "float32"), CPU).flat
    (again,) = parse_source(print_module(flat), "packed.py")
    for func, other in zip(flat.funcs, again.funcs, strict=True):
        verify(other, "test")
        assert structural_equal(func, other)
    assert [type(op) for op in again.host] == [type(op) for op in flat.host]
    a, b = pair("random")
    with pytest.warns(SpcompWarning, match="loop i_block is not proved to be parallel"):
        kernel = spcomp.compile(again)
    same(kernel(A=a, B=b), a + b)


COUNTS = """
from spcomp import script as T

@T.prim_func
def sums(x: T.handle, y: T.handle, n: T.int32) -> None:
    T.func_attr({{"sparse_tir_level": 0}})
    X = T.match_buffer(x, (n,), "int32")
    Y = T.match_buffer(y, (n,), "int64")
    for i in T.{loop}(n, annotations={{"grain": 1}}):
{body}
"""
BASE = """
        with T.prefix(X[i]) as base:
            Y[i] = base
"""


@pytest.mark.parametrize("loop", ["parallel", "serial"])
def test_a_prefix_is_the_sum_over_the_iterations_before(loop):
    (func,) = parse_source(COUNTS.format(loop=loop, body=BASE), "sums.py")
    x, y = np.arange(3000, dtype=np.int32), np.zeros(3000, np.int64)
    want = np.cumsum(x) - x
    interpret(func, {"x": x, "y": y, "n": 3000})
    np.testing.assert_array_equal(y, want)
    for threads in (1, 2, 4):
        y[:] = -1
        with spcomp.num_threads(threads):
            spcomp.compile(func)(X=x, Y=y)
        np.testing.assert_array_equal(y, want)


def test_a_prefix_that_not_every_iteration_reaches_is_refused():
    body = "        if X[i] > 0:\n" + BASE.replace("\n", "\n    ")
    (func,) = parse_source(COUNTS.format(loop="parallel", body=body), "sums.py")
    with pytest.raises(InternalError, match="not in the body of a loop, or conditional"):
        verify(func, "test")


def test_a_prefix_needs_a_name():
    body = "        with T.prefix(X[i]):\n            Y[i] = 0"
    with pytest.raises(ScriptError, match="needs a name"):
        parse_source(COUNTS.format(loop="parallel", body=body), "sums.py")


def test_a_sum_of_three_and_more_operands_is_packed():
    a, b = pair("random")
    c = rows(9, np.random.default_rng(3).integers(0, 5, ROWS))
    kernel = spcomp.compile("R[i, j] = 2 * A[i, j] + B[i, j] * C[i, j] - D[i, j]")
    same(kernel(A=a, B=b, C=c, D=b), (2 * a + b * c - b).tocsr())


def test_operands_out_of_order_are_told_from_those_out_of_range():
    a, b = pair("random")
    kernel = spcomp.compile(source(SUM, "float32"))
    wide = rows(1, [5000] * 20, 20_000)
    far = sps.csr_array((wide.data, wide.indices.copy(), wide.indptr), shape=wide.shape)
    far.indices[-1] = 20_000
    with pytest.raises(ArgumentError, match=r"got 20000 at position 99999, expected 0\.\.19999"):
        kernel(A=wide, B=far)
    mixed = sps.csr_array((wide.data, wide.indices.copy(), wide.indptr), shape=wide.shape)
    mixed.indices[:2] = mixed.indices[1::-1]
    same(kernel(A=wide, B=mixed), (wide + mixed.sorted_indices()).tocsr())
    same(kernel(A=a, B=b), a + b)
