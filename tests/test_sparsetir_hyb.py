"""The hyb SpMM that SparseTIR published: it runs under its own names, on this machine."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp import sparsetir as tvm
from spcomp.errors import ArgumentError, ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.stmt import For
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts, loops_of
from spcomp.schedule.nests.claims import without_false_claims
from spcomp.schedule.schedule import Schedule
from spcomp.script.parse import parse_source
from spcomp.sparsetir import tir
from spcomp.sparsetir.script import tir as T
from spcomp.sparsetir.sparse import (
    FormatRewriteRule,
    column_part_hyb,
    format_decompose,
    lower_sparse_buffer,
    lower_sparse_iter,
)

SEEDS = Path(__file__).parents[2] / "shared" / "seeds"


@T.prim_func
def csrmm(
    a: T.handle,
    b: T.handle,
    c: T.handle,
    indptr: T.handle,
    indices: T.handle,
    m: T.int32,
    n: T.int32,
    num_tiles: T.int32,
    nnz: T.int32,
    cwm: T.int32,
) -> None:
    T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    J_detach = T.dense_fixed(n)
    K1 = T.dense_fixed(num_tiles)
    K2 = T.dense_fixed(cwm)
    K3 = T.dense_fixed(32)
    A = T.match_sparse_buffer(a, (I, J), "float32")
    B = T.match_sparse_buffer(b, (J_detach, K1, K2, K3), "float32")
    C = T.match_sparse_buffer(c, (I, K1, K2, K3), "float32")
    with T.sp_iter([I, J, K1, K2, K3], "SRSSS", "csrmm") as [i, j, k1, k2, k3]:
        with T.init():
            C[i, k1, k2, k3] = 0.0
        C[i, k1, k2, k3] = C[i, k1, k2, k3] + A[i, j] * B[j, k1, k2, k3]


@T.prim_func
def ell(
    a: T.handle,
    indptr_i: T.handle,
    indices_i: T.handle,
    indices_j: T.handle,
    m: T.int32,
    n: T.int32,
    num_rows: T.int32,
    nnz_cols: T.int32,
) -> None:
    O = T.dense_fixed(1)
    I = T.sparse_variable(O, (m, num_rows), (indptr_i, indices_i))
    J = T.sparse_fixed(I, (n, nnz_cols), indices_j)
    A = T.match_sparse_buffer(a, (O, I, J), "float32")  # noqa: F841
    T.evaluate(0)


def decomposed(parts, buckets):
    """The module with an iteration per part and bucket, and nothing that fills them."""
    rules = [
        FormatRewriteRule(
            f"{part}_{bucket}",
            ell.specialize({ell.params[-1]: width}),
            ["A"],
            ["I", "J"],
            ["O", "I", "J"],
            {"I": ["O", "I"], "J": ["J"]},
            lambda i, j: (0, i, j),
            lambda o, i, j: (i, j),
        )
        for part in range(parts)
        for bucket, width in enumerate(buckets)
    ]
    mod = format_decompose(tvm.IRModule.from_expr(csrmm), rules)
    return tvm.tir.transform.RemovePreprocess()(mod)


def specialized(csr, parts, buckets, feat, cwm, rows):
    """The module for the sizes of *csr*, parameters called by their published places."""
    mod = decomposed(parts, buckets)
    params = mod["main"].params
    sizes = (*csr.shape, feat // cwm // 32, csr.nnz, cwm)
    values = dict(zip(params[5:10], sizes, strict=True))
    for k in range(parts * len(buckets)):
        count = rows[k // len(buckets)][k % len(buckets)].shape[0]
        mine = params[10 + 7 * k + 4 : 10 + 7 * k + 7]
        values |= dict(zip(mine, (*csr.shape, count), strict=True))
    mod["main"] = mod["main"].specialize(values).with_attr("horizontal_fuse", True)
    return mod


def scheduled(mod, parts, buckets, atomic=None):
    """The module with the published schedule; *atomic*: which buckets, by default as published."""
    kernels = [(p, b) for p in range(parts) for b in range(len(buckets))]
    sch = tir.Schedule(mod)
    for p, b in kernels:
        iteration = sch.get_sparse_iteration(f"csrmm_{p}_{b}")
        sch.sparse_fuse(iteration, sch.get_sp_iters(iteration)[:2])
    sch = tir.Schedule(lower_sparse_iter(sch.mod))
    for p, b in kernels:
        blk = sch.get_block(f"csrmm_{p}_{b}0")
        i, j, foo, foi, fi = sch.get_loops(blk)
        sch.reorder(foo, fi, j, foi)
        if (parts > 1 or b + 1 == len(buckets)) if atomic is None else atomic:
            sch.annotate(blk, "atomic", True)
            write_blk = sch.reverse_cache_write(blk, 0, "local")
            sch.reverse_compute_at(write_blk, fi, True)
        sch.bind(fi, "threadIdx.x")
        sch.bind(foo, "blockIdx.y")
        sch.unroll(foi)
        sch.annotate(foi, "pragma_unroll_explicit", 0)
        sch.unroll(j)
        io, _, ii = sch.split(i, [None, buckets[-1] // buckets[b], 8])
        sch.bind(io, "blockIdx.x")
        sch.bind(ii, "threadIdx.y")
        init_blk = sch.decompose_reduction(blk, fi)
        ax0, ax1 = sch.get_loops(init_blk)[-2:]
        sch.bind(ax0, "threadIdx.x")
        sch.unroll(ax1)
    return sch.mod


def built(mod):
    """The module over flat buffers, without the parameters it has no use for, compiled."""
    mod = tvm.tir.transform.RemoveUnusedArgs()(lower_sparse_buffer(mod))
    return tvm.build(mod, target="llvm")


def matrix(size, density=0.1, *, hub=True, seed=0):
    """A square 0/1 matrix with an empty row, and a full one if *hub*."""
    pattern = np.random.default_rng(seed).random((size, size)) < density
    pattern[size // 3] = False
    pattern[size // 2] |= hub
    return sps.csr_array(pattern.astype(np.float32))


def arguments(csr, parts, buckets, feat):
    """What the published program is called with, its result array, and the rows of the buckets."""
    hyb = column_part_hyb(*csr.shape, csr.indptr, csr.indices, parts, buckets)
    x = np.random.default_rng(1).random((csr.shape[1], feat), dtype=np.float32)
    c = tvm.nd.empty((csr.shape[0] * feat,))
    args = [tvm.nd.array(x.reshape(-1)), c]
    for rows, cols, mask in zip(*(itertools.chain(*lists) for lists in hyb), strict=True):
        args += [tvm.nd.array(mask.numpy().reshape(-1).astype("float32")), rows]
        args.append(tvm.nd.array(cols.numpy().reshape(-1)))
    return args, c, hyb[0], csr @ x


CASES = [
    pytest.param(matrix(40), 1, [1, 2, 4, 8], 64, 2, id="a hub row"),
    pytest.param(matrix(33), 3, [1, 2, 4], 32, 1, id="three column parts"),
    pytest.param(matrix(20, hub=False), 1, [1, 16], 64, 1, id="two buckets"),
    pytest.param(matrix(7, hub=False), 3, [1, 2], 32, 1, id="empty buckets"),
    pytest.param(sps.csr_array((6, 6), dtype=np.float32), 1, [1, 2], 32, 1, id="nothing stored"),
]


@pytest.mark.parametrize(("csr", "parts", "buckets", "feat", "cwm"), CASES)
def test_the_published_schedule_computes_the_product(csr, parts, buckets, feat, cwm):
    args, c, rows, expected = arguments(csr, parts, buckets, feat)
    f = built(scheduled(specialized(csr, parts, buckets, feat, cwm, rows), parts, buckets))
    results = []
    for threads in (1, 2):
        c[:] = 7
        with spcomp.num_threads(threads):
            f(*args)
        results.append(c.numpy())
    tvm.testing.assert_allclose(results[0].reshape(-1, feat), expected, rtol=1e-4)
    assert np.array_equal(*results)


def test_the_interpreter_agrees_with_the_published_schedule():
    csr, buckets = matrix(9), [1, 4]
    args, c, rows, expected = arguments(csr, 2, buckets, 32)
    mod = scheduled(specialized(csr, 2, buckets, 32, 1, rows), 2, buckets)
    flat = tvm.tir.transform.RemoveUnusedArgs()(lower_sparse_buffer(mod))["main"]
    interpret(flat, {p.name: arg for p, arg in zip(flat.params, args, strict=True)})
    assert np.allclose(np.asarray(c).reshape(-1, 32), expected, rtol=1e-5)


def test_parameters_come_in_the_published_order():
    names = [param.name for param in decomposed(2, [1, 2])["main"].params]
    own = ["a", "indptr_i", "indices_i", "indices_j", "m", "n", "num_rows"]
    assert names[:10] == [param.name for param in csrmm.params]
    assert names[10:] == [f"{name}_{p}_{b}" for p in range(2) for b in range(2) for name in own]


def test_the_program_that_fills_the_parts_is_had_by_itself():
    rule = FormatRewriteRule(
        "e", ell.specialize({"nnz_cols": 2}), ["A"], ["I", "J"], ["O", "I", "J"],
        {"I": ["O", "I"], "J": ["J"]}, lambda i, j: (0, i, j), lambda o, i, j: (i, j),
    )  # fmt: skip
    mod = format_decompose(tvm.IRModule.from_expr(csrmm), [rule])
    fill = tvm.tir.transform.ExtractPreprocess()(mod)
    assert [p.name for p in fill["main"].params] == [p.name for p in mod["main"].params]
    fill = tvm.tir.transform.RemoveUnusedArgs()(fill)
    (name,) = re.findall(r'"(rewrite_\w+)"\)', fill.script())
    assert len(tir.Schedule(fill).get_sp_iters(name)) == 3
    csr, rows, cols = matrix(6), np.array([1, 3], np.int32), np.array([0, 2, 1, 3], np.int32)
    a = np.zeros(4, np.float32)
    arguments = {"a": csr.data, "indptr": csr.indptr, "indices": csr.indices, "m": 6, "n": 6}
    arguments |= {"nnz": csr.nnz, "a_e": a, "indices_i_e": rows, "indices_j_e": cols}
    arguments |= {"m_e": 6, "n_e": 6, "num_rows_e": 2}
    tvm.build(fill).kernel(*(arguments[param.name] for param in fill["main"].params))
    assert a.tolist() == csr.toarray()[[1, 1, 3, 3], cols].tolist()


# -- rows that are written at once --------------------------------------------------------------


def test_rows_of_a_bucket_run_in_parallel_and_a_call_checks_that_none_is_twice():
    csr, buckets = matrix(20, hub=False), [4, 16]
    args, c, rows, expected = arguments(csr, 1, buckets, 32)
    f = built(scheduled(specialized(csr, 1, buckets, 32, 1, rows), 1, buckets))
    assert "T.parallel" in f.kernel.stage("flat")
    f(*args)
    assert np.allclose(np.asarray(c).reshape(-1, 32), expected, rtol=1e-4)
    args[3] = args[3].copy()
    args[3][1] = args[3][0]
    with pytest.raises(ArgumentError, match="strictly ascending"):
        f(*args)


def bucket(axis="T.sparse_fixed(O, (m, count), rows)", update="C[i, k] = C[i, k] + A[o, i, k]"):
    """A program over some rows of a dense matrix, *axis* their axis."""
    text = f"""from spcomp import script as T

@T.prim_func
def bucket(a: T.handle, c: T.handle, rows: T.handle, m: T.int32, count: T.int32) -> None:
    O = T.dense_fixed(1)
    I = {axis}
    M = T.dense_fixed(m)
    K = T.dense_fixed(4)
    A = T.match_sparse_buffer(a, (O, I, K), "float32")
    C = T.match_sparse_buffer(c, (M, K), "float32")
    with T.sp_iter([O, I, K], "SSS", "add") as [o, i, k]:
        {update}
"""
    (func,) = parse_source(text, "bucket.py")
    return func


def test_a_loop_over_distinct_rows_is_bound_on_the_promise_that_calls_check():
    bound = Schedule(bucket()).lower_sparse_iter().bind("i", "blockIdx.x")
    assert bound.func.attr("order_needed") == ("I",)
    kernel = spcomp.compile(bound)
    a, c = np.arange(8, dtype=np.float32), np.zeros(12, np.float32)
    kernel(a, c, np.array([0, 2], np.int32), 3, 2)
    assert c.tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 4, 5, 6, 7]
    for wrong in ([2, 0], [1, 1]):
        with pytest.raises(ArgumentError, match="strictly ascending"):
            kernel(a, c, np.array(wrong, np.int32), 3, 2)


def test_the_promise_is_kept_when_the_program_is_printed_and_read():
    bound = Schedule(bucket()).lower_sparse_iter().bind("i", "blockIdx.x")
    (again,) = parse_source(bound.func.script(), "again.py")
    assert without_false_claims(again).attr("order_needed") == ("I",)
    (loop,) = [loop for loop in loops_of(again.body) if loop.kind == "bound"]
    assert conflicts(loop)
    assert not conflicts(loop, ascending={"I"})
    with pytest.raises(ScheduleError, match="cannot be bound"):
        without_false_claims(again.replace(attrs=()))


@pytest.mark.parametrize(
    "func",
    [
        bucket("T.sparse_fixed(O, (m, count), rows, unique=False)"),
        bucket("T.sparse_fixed(O, (m, count), rows, sorted=False)"),
        bucket(update="C[i // 2, k] = C[i // 2, k] + A[o, i, k]"),
        bucket(update="C[i, k] = C[i, k] + C[0, k]"),
    ],
    ids=["rows may repeat", "no order", "rows in pairs", "another row is read"],
)
@pytest.mark.filterwarnings("ignore:.*is declared spatial")
def test_rows_that_may_meet_are_not_bound(func):
    low = Schedule(func).lower_sparse_iter()
    loop = next(name for name in low.loops if name.startswith("i"))
    with pytest.raises(ScheduleError, match="iterations may"):
        low.bind(loop, "blockIdx.x")


def test_pieces_of_distinct_rows_are_told_apart():
    low = Schedule(bucket().specialize({"count": 12})).lower_sparse_iter().split("i", [None, 2, 3])
    bound = low.bind("i_0", "blockIdx.x").bind("i_2", "threadIdx.x")
    assert [n.thread for n in walk(bound.func.body) if isinstance(n, For) and n.thread] == [
        "blockIdx.x",
        "threadIdx.x",
    ]


# -- the listing itself -------------------------------------------------------------------------

CHANGES = (
    ("import dgl\n", ""),
    ("import torch as th\n", ""),
    ("import tvm\nimport tvm.testing\nimport tvm.tir as tir\n", ""),
    ("import tvm.sparse\n", ""),
    ("from tvm.", "from spcomp.sparsetir."),
    ("from utils import get_dataset, ell\n", "from spcomp import sparsetir as tvm\n"),
    ('target="cuda"', 'target="llvm"'),
)


def listing():
    """The hyb SpMM of the source document, imports and target changed; its names."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(SEEDS.glob("*.txt"))]
    blocks = [b for text in texts for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    (code,) = [block for block in blocks if "def bench_hyb" in block]
    code = code[: code.index("col_part_config")]
    for old, new in CHANGES:
        assert old in code
        code = code.replace(old, new)
    return code


@pytest.mark.skipif(not SEEDS.is_dir(), reason="no ../shared/seeds beside the repository")
@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize(
    ("csr", "parts", "buckets"),
    [(matrix(40), 1, [1, 2, 4, 8]), (matrix(20), 3, [1, 2]), (matrix(7, hub=False), 1, [1, 4])],
)
def test_the_listing_runs_with_its_imports_and_target_changed(
    tmp_path, capsys, csr, parts, buckets, implicit
):
    path = tmp_path / "listing.py"
    path.write_text(listing(), encoding="utf-8")
    names = {"__name__": "listing", "ell": ell}
    exec(compile(ast.parse(path.read_text(), str(path)), str(path), "exec"), names)
    graph = SimpleNamespace(
        adj_sparse=lambda fmt: (tvm.nd.array(csr.indptr), tvm.nd.array(csr.indices), None),
        num_dst_nodes=lambda: csr.shape[0],
        num_src_nodes=lambda: csr.shape[1],
        num_edges=lambda: csr.nnz,
    )
    x = tvm.nd.array(np.random.default_rng(2).random((csr.shape[1], 64), dtype=np.float32))
    names["bench_hyb"](
        graph, x, tvm.nd.array(csr @ x.numpy()), feat_size=64, bucket_sizes=buckets,
        num_col_parts=parts, use_implicit_unroll=implicit,
    )  # fmt: skip
    assert "tir hyb time" in capsys.readouterr().out  # it has compared the result
