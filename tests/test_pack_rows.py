"""Rows of products: bounded by their work, made in blocks in one pass, and put in place."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import SpcompWarning
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.expr import Const, Select
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import HostAlloc, Launch, Trim, single
from spcomp.ir.printer.program import print_module
from spcomp.ir.stmt import Alloc, For, Prefix
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.knobs import CPU_KNOBS
from spcomp.passes.pack.pack_results import PackResults
from spcomp.passes.pipelines import to_position
from spcomp.script.parse import parse_source
from tests.layers import TARGET, source

LENGTHS = (0, 300, 1, 63, 64, 65, 0, 0, 255, 256, 257, 7, 0)
UNORDERED = "dense,compressed(unordered)"


def rows_of(lengths, columns, seed=3):
    rng = np.random.default_rng(seed)
    chosen = [np.sort(rng.choice(columns, n, replace=False)) for n in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = rng.random(indptr[-1], np.float32) + np.float32(0.1)
    indices = np.concatenate(chosen).astype(np.int32)
    return sps.csr_array((data, indices, indptr), shape=(len(lengths), columns))


def pair(columns=1000):
    b = rows_of(LENGTHS, columns)
    a = np.tril(np.ones((3 * len(LENGTHS), len(LENGTHS)), np.float32), k=1)
    a[::5] = 0
    return sps.csr_array(a), b


def product(order):
    return spcomp.compile("C[i, j] = A[i, k] * B[k, j]", formats={"C": order})


def packed():
    return lower(source("spgemm"), TARGET).flat


def inputs(a, b):
    made = {"m": a.shape[0], "n": b.shape[1], "nnz_a": a.nnz, "nnz_b": b.nnz}
    for name, csr in (("a", a), ("b", b)):
        made |= {name: csr.data, f"{name}_indptr": csr.indptr, f"{name}_indices": csr.indices}
    return made


def test_a_product_is_made_in_one_pass():
    module = packed()
    assert [func.name for func in module.funcs] == ["spgemm_work", "spgemm_pack"]
    assert sum(isinstance(op, Launch) for op in module.host) == 2
    assert sum(isinstance(op, Trim) for op in module.host) == 2
    assert [op.fill for op in module.host if isinstance(op, HostAlloc)] == [0, 0, None, None]
    assert any(isinstance(n, Prefix) for n in walk(module.funcs[1].body))


@pytest.mark.parametrize("order", ["csr", UNORDERED])
@pytest.mark.parametrize("columns", [300, 1000, 70_000])
def test_rows_of_all_lengths_meet_at_any_thread_count(order, columns):
    a, b = pair(columns)
    want = a @ b
    want.sort_indices()
    found = []
    for threads in (1, 2, 5):
        with spcomp.num_threads(threads):
            found.append(product(order)(A=a, B=b))
    for got in found[1:]:
        np.testing.assert_array_equal(got.indices, found[0].indices)
        np.testing.assert_array_equal(got.data, found[0].data)
    got = found[0].copy()
    np.testing.assert_array_equal(got.indptr, want.indptr)
    if order == UNORDERED:
        got.sort_indices()
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_allclose(got.data, want.data, rtol=1e-5)


def test_many_blocks_follow_each_other():
    rng = np.random.default_rng(2)
    lengths = rng.integers(0, 12, 9_000)
    lengths[[0, 4_000, 8_999]] = 2_000  # some blocks take far longer
    a = rows_of(lengths, 9_000)
    want = a @ a
    want.sort_indices()
    got = product("csr")(A=a, B=a)
    np.testing.assert_array_equal(got.indptr, want.indptr)
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_allclose(got.data, want.data, rtol=1e-4)


def test_the_work_of_a_row_is_how_many_products_it_has_up_to_its_length():
    a, b = pair(300)
    work, _ = packed().funcs
    found = np.zeros(a.shape[0] + 1, np.int64)
    interpret(work, {**inputs(a, b), "JC_work": found})
    lengths = np.diff(b.indptr)
    spans = zip(a.indptr[:-1], a.indptr[1:], strict=True)
    products = [int(lengths[a.indices[p:q]].sum()) for p, q in spans]
    np.testing.assert_array_equal(found, [0, *np.minimum(products, 300)])


def test_products_are_counted_without_a_loop_over_them():
    work, _ = packed().funcs
    assert [n.var.name for n in walk(work.body) if isinstance(n, For)] == ["i", "k"]


def test_blocks_of_short_rows_have_no_bits_for_coordinates():
    """Else two bits for each, and tables for short rows."""
    n = 1 << 20
    _, pack = lower(source("spgemm").specialize({"n": n}), TARGET).flat.funcs
    assert not any(is_workspace(x) for x in walk(rows_in(pack)))
    buffers = [x.buffer for x in walk(pack.body) if is_workspace(x)]
    sizes = {b: b.shape[0] for b in buffers}
    large = {b: size for b, size in sizes.items() if isinstance(size, Select)}
    small = [size.value * b.dtype.bits for b, size in sizes.items() if isinstance(size, Const)]
    assert len(large) + len(small) == len(buffers)
    assert sum(small) < 64 * 1024
    assert all(simplify(size.otherwise).value == 0 for size in large.values())
    bits = sum(simplify(size.then).value * b.dtype.bits for b, size in large.items())
    assert bits < 2.02 * n


def is_workspace(node):
    return isinstance(node, Alloc) and node.buffer.scope == "workspace"


def test_results_start_from_their_zero_in_short_and_long_rows():
    a, b = pair()
    got = spcomp.compile("C[i, j] = A[i, k] * B[k, j]", semiring="min_plus")(A=a, B=b)
    dense = np.where(b.toarray() != 0, b.toarray(), np.inf)
    here = a.toarray() != 0
    want = [(dense[row] + a.toarray()[i][row, None]).min(axis=0, initial=np.inf)
            for i, row in enumerate(here)]  # fmt: skip
    at = np.isfinite(want)
    np.testing.assert_array_equal(np.diff(got.indptr), at.sum(axis=1))
    np.testing.assert_allclose(got.data, np.array(want)[at], rtol=1e-6)


def test_a_schedule_of_the_user_keeps_the_two_phases():
    module = lower(source("spgemm"), TARGET).position
    assert PackResults(CPU_KNOBS).run(module) is not module
    chunks = lower(source("spgemm"), TARGET, trace=spcomp.Schedule(source("spmv")).trace).position
    assert PackResults(CPU_KNOBS).run(chunks) is chunks


BEHIND = """
from spcomp import script as T

@T.prim_func
def wide(a: T.handle, b: T.handle, c: T.handle, k_indptr: T.handle, k_indices: T.handle,
         j_indptr: T.handle, j_indices: T.handle, m: T.int32, n: T.int32, nnz_a: T.int32,
         nnz_b: T.int32) -> None:
    I = T.dense_fixed(m)
    K = T.sparse_variable(I, (n, nnz_a), (k_indptr, k_indices))
    L = T.dense_fixed(n)
    J = T.sparse_variable(L, (n, nnz_b), (j_indptr, j_indices))
    D = T.dense_fixed(3)
    JC = T.sparse_variable(I, (n, None), (None, None))
    A = T.match_sparse_buffer(a, (I, K), "float32")
    B = T.match_sparse_buffer(b, (L, J, D), "float32")
    C = T.match_sparse_buffer(c, (I, JC, D), "float32")
    with T.sp_iter([I, K, T.attach(J, K), D], "SRSS", "wide") as [i, k, j, d]:
        C[i, j, d] = C[i, j, d] + A[i, k] * B[k, j, d]
"""


def test_elements_with_dense_axes_below_are_counted_first():
    (func,) = parse_source(BEHIND, "wide.py")
    module = lower(func, TARGET).position
    assert PackResults(CPU_KNOBS).run(module) is module
    assert not any(is_workspace(n) for n in walk(rows_in(module.funcs[1])))


def rows_in(func):
    return next(n for n in walk(func.body) if isinstance(n, For) and n.var.name == "i")


def test_a_packed_product_reads_as_it_prints_and_runs_when_read():
    module = packed()
    (again,) = parse_source(print_module(module), "packed.py")
    for func, other in zip(module.funcs, again.funcs, strict=True):
        verify(other, "test")
        assert structural_equal(func, other)
    a, b = pair(300)
    for csr in (a, b):
        csr.resize((300, 300))
    with pytest.warns(SpcompWarning, match="not proved to be parallel"):
        kernel = spcomp.compile(again)
    np.testing.assert_array_equal(kernel(A=a, B=b).toarray(), product("csr")(A=a, B=b).toarray())


def test_phases_read_as_they_print_and_are_counted_when_read():
    position = to_position(TARGET).run(single(source("spgemm")))
    (again,) = parse_source(print_module(position), "phases.py")
    assert all(map(structural_equal, position.funcs, again.funcs))
    kernel = spcomp.compile(again)  # nobody knows who wrote it, or what it claims
    assert 'T.launch("spgemm_count")' in kernel.stage("flat")
    a, b = pair(300)
    for csr in (a, b):
        csr.resize((300, 300))
    np.testing.assert_allclose(kernel(A=a, B=b).toarray(), (a @ b).toarray(), rtol=1e-5)
    fill = spcomp.Schedule(position.funcs[-1])
    assert "one_pass" in dict(fill.func.attrs)
    assert "one_pass" not in dict(fill.lower_sparse_buffer().func.attrs)
