"""Programs published for SparseTIR: its names, its conversions, its hyb SpMM."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

from spcomp import sparsetir as tvm
from spcomp.errors import ArgumentError, BackendError, ScheduleError, SpcompWarning
from spcomp.script.parse import parse_source
from spcomp.sparsetir.script import tir as T
from spcomp.sparsetir.sparse import (
    FormatRewriteRule,
    column_part_hyb,
    condense,
    csf_to_ell3d,
    format_decompose,
    lower_sparse_buffer,
    lower_sparse_iter,
)
from tests.layers import source

RNG = np.random.default_rng(7)


def matrix(rows: int, cols: int, density: float, *, hub: bool = False, seed: int = 0):
    """A CSR matrix of whole numbers with an empty row, and a full one if *hub*."""
    rng = np.random.default_rng(seed)
    there = rng.random((rows, cols)) < density
    there[rows // 3] = False
    if hub:
        there[rows // 2] = True
    return sps.csr_array((there * rng.integers(1, 9, (rows, cols))).astype(np.float32))


MATRICES = {
    "scattered": matrix(20, 24, 0.2),
    "hub": matrix(30, 30, 0.05, hub=True),
    "full": matrix(4, 9, 1.0),
    "one row": matrix(3, 5, 1.0)[1:2],
    "nothing stored": sps.csr_array((6, 6), dtype=np.float32),
    "no rows": sps.csr_array((0, 4), dtype=np.float32),
    "no columns": sps.csr_array((4, 0), dtype=np.float32),
}
every_matrix = pytest.mark.parametrize("csr", MATRICES.values(), ids=MATRICES)


# -- conversions --------------------------------------------------------------------------------


def naive_hyb(csr, parts, buckets):
    """What column_part_hyb stores, row by row: {(part, bucket): [(row, [(column, value)])]}."""
    wide = max(1, -(-csr.shape[1] // parts))
    result = {(p, b): [] for p in range(parts) for b in range(len(buckets))}
    for row in range(csr.shape[0]):
        at = slice(csr.indptr[row], csr.indptr[row + 1])
        elements = list(zip(csr.indices[at].tolist(), csr.data[at].tolist(), strict=True))
        for p in range(parts):
            own = [(c, v) for c, v in elements if c // wide == p]
            b = next((b for b, width in enumerate(buckets) if len(own) <= width), len(buckets) - 1)
            width = buckets[b]
            result[p, b] += [(row, own[k : k + width]) for k in range(0, len(own), width)]
    return result


@every_matrix
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("buckets", [[1], [1, 2, 4], [2, 3, 8]])
def test_hyb_stores_each_row_in_the_first_bucket_that_holds_it(csr, parts, buckets):
    arrays = csr.shape[0], csr.shape[1], csr.indptr, csr.indices, parts, buckets
    rows, cols, masks = column_part_hyb(*arrays)
    values = column_part_hyb(*arrays, values=csr.data)[2]
    for (p, b), expected in naive_hyb(csr, parts, buckets).items():
        width = buckets[b]
        assert rows[p][b].tolist() == [row for row, _ in expected]
        padded = [own + [(0, 0)] * (width - len(own)) for _, own in expected]
        assert cols[p][b].tolist() == [[c for c, _ in own] for own in padded]
        assert values[p][b].tolist() == [[v for _, v in own] for own in padded]
        there = [[1] * len(own) + [0] * (width - len(own)) for _, own in expected]
        assert masks[p][b].tolist() == there
        assert masks[p][b].shape == (len(expected), width)
        assert masks[p][b].dtype == np.int32
        assert values[p][b].dtype == np.float32


@pytest.mark.parametrize("idtype", ["int32", "int64"])
def test_conversions_keep_the_type_of_the_indices(idtype):
    csr = MATRICES["hub"]
    arrays = csr.indptr.astype(idtype), csr.indices.astype(idtype)
    rows, cols, _ = column_part_hyb(*csr.shape, *arrays, 2, [1, 4])
    group_indptr, tiles, _ = condense(*arrays, 4, 2)
    assert {x.dtype for x in (rows[1][1], cols[1][1], group_indptr, tiles)} == {np.dtype(idtype)}


@every_matrix
@pytest.mark.parametrize(("t", "g"), [(1, 1), (4, 2), (3, 5)])
def test_condensed_tiles_hold_the_columns_that_their_rows_have(csr, t, g):
    indptr, tiles, mask = condense(csr.indptr, csr.indices, t, g)
    values = condense(csr.indptr, csr.indices, t, g, values=csr.data)[2]
    dense = csr.toarray()
    assert len(indptr) == -(-csr.shape[0] // t) + 1
    assert mask.shape == values.shape == (indptr[-1], t, g)
    for block in range(len(indptr) - 1):
        rows = dense[block * t : (block + 1) * t]
        own = slice(indptr[block], indptr[block + 1])
        columns = np.flatnonzero((rows != 0).any(0))
        stored = tiles[own].reshape(-1)
        assert len(stored) == -(-len(columns) // g) * g
        assert stored[: len(columns)].tolist() == columns.tolist()
        assert not stored[len(columns) :].any()
        held = values[own].transpose(1, 0, 2).reshape(t, -1)
        assert np.array_equal(held[: len(rows), : len(columns)], rows[:, columns])
        assert not held[len(rows) :].any()
        assert not held[:, len(columns) :].any()
    assert np.array_equal(mask, values != 0)


def test_values_at_one_coordinate_are_added_up_in_a_tile():
    indptr, indices = np.array([0, 3], np.int32), np.array([2, 2, 0], np.int32)
    _, tiles, mask = condense(indptr, indices, 1, 2, values=np.array([1.0, 2.0, 4.0]))
    assert tiles.tolist() == [[0, 2]]
    assert mask.tolist() == [[[4.0, 3.0]]]


def relations(seed: int = 0):
    """Three CSR matrices as one CSF tensor, the second of them empty."""
    parts = [matrix(9, 12, 0.3, seed=seed), sps.csr_array((9, 12)), matrix(9, 12, 0.1, hub=True)]
    rows = [np.flatnonzero(np.diff(part.indptr)) for part in parts]
    indptr_0 = np.cumsum([0, *map(len, rows)])
    degrees = [np.diff(part.indptr)[own] for part, own in zip(parts, rows, strict=True)]
    indptr_1 = np.cumsum([0, *np.concatenate(degrees)])
    arrays = indptr_0, np.concatenate(rows), indptr_1, np.concatenate([p.indices for p in parts])
    values = np.concatenate([part.data for part in parts]).astype(np.float32)
    return parts, tuple(array.astype(np.int32) for array in arrays), values


def test_relations_in_three_dimensional_buckets_hold_each_element_once():
    parts, arrays, values = relations()
    sizes, widths = [4, 2, 1], [1, 2, 4]
    indptr, rows, cols, masks = csf_to_ell3d(*arrays, sizes, widths)
    held = csf_to_ell3d(*arrays, sizes, widths, values=values)[3]
    result = np.zeros((3, 9, 12), np.float32)
    for b, (size, width) in enumerate(zip(sizes, widths, strict=True)):
        groups = int(indptr[b][-1])
        assert len(indptr[b]) == 4
        assert rows[b].shape == (groups, size)
        assert cols[b].shape == masks[b].shape == (groups, size, width)
        assert np.array_equal(masks[b], held[b] != 0)
        relation = np.repeat(np.arange(3), np.diff(indptr[b]))
        where = np.broadcast_arrays(relation[:, None, None], rows[b][:, :, None], cols[b])
        np.add.at(result, tuple(where), held[b])
        needed = [len(set(rows[b][relation == r].reshape(-1).tolist())) for r in range(3)]
        assert all(n <= size * g for n, g in zip(needed, np.diff(indptr[b]), strict=True))
    assert np.array_equal(result, np.stack([part.toarray() for part in parts]))


def test_rows_that_fill_a_group_up_repeat_the_last_row_of_their_relation():
    indptr_0, rows_0 = np.array([0, 1, 3], np.int32), np.array([5, 2, 7], np.int32)
    indptr_1, cols_1 = np.array([0, 1, 2, 3], np.int32), np.array([3, 4, 6], np.int32)
    indptr, rows, cols, mask = csf_to_ell3d(indptr_0, rows_0, indptr_1, cols_1, [4], [1])
    assert indptr[0].tolist() == [0, 1, 2]
    assert rows[0].tolist() == [[5, 5, 5, 5], [2, 7, 7, 7]]
    assert cols[0].reshape(2, 4).tolist() == [[3, 0, 0, 0], [4, 6, 0, 0]]
    assert mask[0].reshape(2, 4).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]


HUB = MATRICES["hub"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: column_part_hyb(30, 30, HUB.indptr, HUB.indices, 1, [2, 1]), "buckets: got"),
        (lambda: column_part_hyb(30, 30, HUB.indptr, HUB.indices, 1, []), "buckets: got"),
        (lambda: column_part_hyb(30, 30, HUB.indptr, HUB.indices, 0, [1]), "num_col_parts: got 0"),
        (lambda: column_part_hyb(29, 30, HUB.indptr, HUB.indices, 1, [1]), "indptr: got 31"),
        (lambda: column_part_hyb(30, 9, HUB.indptr, HUB.indices, 1, [1]), "expected 0..8"),
        (lambda: column_part_hyb(30, 30, HUB.indptr[::-1], HUB.indices, 1, [1]), "indptr"),
        (lambda: column_part_hyb(30, 30, HUB.indptr, HUB.data, 1, [1]), "indices: got float32"),
        (lambda: column_part_hyb(30, 30, HUB.indptr, HUB.indices, 1, [1], [1.0]), "values: got 1"),
        (lambda: condense(HUB.indptr, HUB.indices, 0, 1), "argument t: got 0"),
        (lambda: condense(HUB.indptr[:0], HUB.indices, 1, 1), "indptr: is empty"),
        (lambda: csf_to_ell3d(*relations()[1], [1], [1, 2]), "nnz_rows_bkt"),
        (lambda: csf_to_ell3d(*relations()[1], [0], [1]), "nnz_rows_bkt"),
        (lambda: csf_to_ell3d(*relations()[1][:2], HUB.indptr, HUB.indices, [1], [1]), "31"),
    ],
)
def test_arrays_and_sizes_that_do_not_fit_are_refused(act, message):
    with pytest.raises(ArgumentError, match=message):
        act()


# -- programs over them -------------------------------------------------------------------------


@T.prim_func
def tcspmm(a: T.handle, b: T.handle, c: T.handle, indptr: T.handle, indices: T.handle,
           mb: T.int32, nb: T.int32, nnzb: T.int32, feat_size: T.int32,
           tile_size: T.int32, group_size: T.int32) -> None:  # fmt: skip
    T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
    IO = T.dense_fixed(mb)
    JO = T.dense_variable(IO, (nb, nnzb), indptr, "int32")
    II = T.dense_fixed(tile_size)
    JI = T.sparse_fixed(JO, (nb * group_size, group_size), indices, "int32")
    J = T.dense_fixed(nb * group_size)
    F = T.dense_fixed(feat_size)
    A = T.match_sparse_buffer(a, [IO, JO, II, JI], "float32")
    B = T.match_sparse_buffer(b, [J, F], "float32")
    C = T.match_sparse_buffer(c, [IO, II, F], "float32")
    with T.iter([IO, JO, II, JI, F], "SRSRS", "tcspmm") as [io, jo, ii, ji, f]:
        with T.init():
            C[io, ii, f] = 0.0
        C[io, ii, f] = C[io, ii, f] + A[io, jo, ii, ji] * B[ji, f]


@pytest.mark.parametrize("name", ["scattered", "hub", "nothing stored"])
def test_the_published_program_over_condensed_tiles_computes_the_product(name):
    csr, t, g, feat = MATRICES[name], 4, 3, 8
    m, n = csr.shape
    indptr, tiles, values = condense(csr.indptr, csr.indices, t, g, values=csr.data)
    sizes = -(-m // t), -(-n // g), values.shape[0], feat, t, g
    params = tcspmm.params[-6:]
    mod = tvm.IRModule.from_expr(tcspmm.specialize(dict(zip(params, sizes, strict=True))))
    built = tvm.build(lower_sparse_buffer(lower_sparse_iter(mod)))
    x = np.zeros((sizes[1] * g, feat), np.float32)
    x[:n] = RNG.random((n, feat))
    c = tvm.nd.empty((sizes[0] * t, feat))
    built(values.reshape(-1), x.reshape(-1), c.reshape(-1), indptr, tiles.reshape(-1))
    tvm.testing.assert_allclose(c.numpy()[:m], csr @ x[:n], rtol=1e-4)


@T.prim_func
def rgcn(a: T.handle, w: T.handle, x: T.handle, y: T.handle, indptr_i: T.handle,
         indices_i: T.handle, indptr_j: T.handle, indices_j: T.handle, m: T.int32, n: T.int32,
         num_rels: T.int32, feat_size: T.int32, nnz_i: T.int32, nnz_j: T.int32):  # fmt: skip
    T.func_attr({"global_symbol": "main", "tir.noalias": True, "sparse_tir_level": 2})
    R = T.dense_fixed(num_rels)
    I = T.sparse_variable(R, (m, nnz_i), (indptr_i, indices_i), "int32")
    J = T.sparse_variable(I, (n, nnz_j), (indptr_j, indices_j), "int32")
    I_detach = T.dense_fixed(m)
    J_detach = T.dense_fixed(n)
    F_in = T.dense_fixed(feat_size)
    F_out = T.dense_fixed(feat_size)
    A = T.match_sparse_buffer(a, (R, I, J), "float32")
    W = T.match_sparse_buffer(w, (R, F_out, F_in), "float32")
    X = T.match_sparse_buffer(x, (J_detach, F_in), "float32")
    Y = T.match_sparse_buffer(y, (I_detach, F_out), "float32")
    with T.iter([F_out, R, I, J, F_in], "SSSRR", "rgcn") as [fo, r, i, j, fi]:
        with T.init():
            Y[i, fo] = 0.0
        Y[i, fo] = Y[i, fo] + A[r, i, j] * W[r, fo, fi] * X[j, fi]


@T.prim_func
def ell3d(a: T.handle, indptr_io: T.handle, indices_ii: T.handle, indices_j: T.handle,
          d0: T.int32, d1: T.int32, d2: T.int32, nnz: T.int32, nnz_rows: T.int32,
          nnz_cols: T.int32) -> None:  # fmt: skip
    R = T.dense_fixed(d0, idtype="int32")
    IO = T.dense_variable(R, (d1, nnz), indptr_io, idtype="int32")
    II = T.sparse_fixed(IO, (d2, nnz_rows), indices_ii, idtype="int32")
    J = T.sparse_fixed(II, (d2, nnz_cols), indices_j, idtype="int32")
    A = T.match_sparse_buffer(a, (R, IO, II, J), dtype="float32")  # noqa: F841
    T.evaluate(0)


@pytest.mark.filterwarnings("ignore:.*is declared spatial")
def test_the_published_relational_layer_runs_over_three_dimensional_buckets():
    parts, arrays, values = relations()
    widths, sizes, feat = [1, 2, 4], [8, 4, 2], 8
    indptr, rows, cols, held = csf_to_ell3d(*arrays, sizes, widths, values=values)
    *_, d0, d1, d2, nnz, nnz_rows, nnz_cols = ell3d.params
    rules = []
    for k, (size, width) in enumerate(zip(sizes, widths, strict=True)):
        known = {d0: 3, d1: 9, d2: 12, nnz: rows[k].shape[0], nnz_rows: size, nnz_cols: width}
        rules.append(
            FormatRewriteRule(
                str(k), ell3d.specialize(known), ["A"], ["R", "I", "J"], ["R", "IO", "II", "J"],
                {"R": ["R"], "I": ["IO", "II"], "J": ["J"]},
                lambda r, i, j: (r, 0, i, j), lambda r, io, ii, j: (r, ii, j),
            )
        )  # fmt: skip
    arguments = dict(zip(rgcn.params[-6:-2], (9, 12, 3, feat), strict=True))
    mod = format_decompose(tvm.IRModule.from_expr(rgcn.specialize(arguments)), rules)
    mod = tvm.tir.transform.RemovePreprocess()(mod)
    sch = tvm.tir.Schedule(mod["main"])
    for k in range(len(widths)):
        iteration = sch.get_sparse_iteration(f"rgcn_{k}")
        fo, r, io, ii, j, fi = sch.get_sp_iters(iteration)
        sch.sparse_reorder(iteration, [r, io, ii, j, fo, fi])
        sch.sparse_fuse(iteration, [r, io])
    mod = tvm.tir.transform.RemoveUnusedArgs()(lower_sparse_buffer(lower_sparse_iter(sch.mod)))
    built = tvm.build(mod["main"])
    w, x = RNG.random((3, feat, feat), np.float32), RNG.random((12, feat), np.float32)
    y = tvm.nd.empty((9, feat))
    args = [w.reshape(-1), x.reshape(-1), y.reshape(-1)]
    for k in range(len(widths)):
        args += [held[k].reshape(-1), indptr[k], rows[k].reshape(-1), cols[k].reshape(-1)]
    built(*args)
    dense = np.stack([part.toarray() for part in parts])
    expected = np.einsum("rij,rok,jk->io", dense, w, x)
    tvm.testing.assert_allclose(y.numpy(), expected, rtol=1e-4)


# -- the names of TVM ---------------------------------------------------------------------------


def test_a_schedule_changes_in_place_and_returns_names_as_tvm_does():
    mod = lower_sparse_iter(tvm.IRModule.from_expr(source("csrmm")))
    schedule = tvm.tir.Schedule(mod)
    j, k = schedule.get_loops(schedule.get_block("csrmm1"))
    assert schedule.reorder(k, j) is None
    assert schedule.get_loops("csrmm1") == ["k", "j"]
    assert schedule.split(j, 4) == ["j_o", "j_i"] or schedule.get_loops("csrmm1")[1:]
    assert schedule.mod["main"] is not mod["main"]
    assert mod["main"] is lower_sparse_iter(mod)["main"]


def test_a_module_is_a_dictionary_of_functions():
    func = source("csrmm")
    mod = tvm.IRModule.from_expr(func)
    assert list(mod) == ["main"]
    assert mod["main"] is func
    mod["main"] = func.with_attr("horizontal_fuse", True)
    assert mod["main"].attr("horizontal_fuse") is True
    assert mod.script() == mod["main"].script()
    with pytest.raises(ArgumentError, match="expected a function"):
        mod["main"] = "csrmm"
    with pytest.raises(KeyError):
        mod["other"]


def test_a_function_that_is_taken_out_is_still_what_the_compiler_made():
    mod = lower_sparse_iter(tvm.IRModule.from_expr(source("csrmm")))
    schedule = tvm.tir.Schedule(mod["main"])
    schedule.bind("i", "blockIdx.x")
    taken = tvm.IRModule.from_expr(lower_sparse_buffer(schedule.mod)["main"])
    assert taken.schedules["main"].lowered
    assert taken.schedules["main"].trace == schedule.trace
    assert "T.parallel" in tvm.build(taken).kernel.stage("flat")
    printed = parse_source(taken.script(), "printed.py")
    assert not tvm.IRModule.from_expr(printed[0]).schedules["main"].lowered
    assert tvm.tir.transform.RemovePreprocess()(mod)["main"] is mod["main"]


def test_what_no_schedule_has_is_no_attribute():
    schedule = tvm.tir.Schedule(source("csrmm"))
    with pytest.raises(AttributeError):
        schedule.no_such_step  # noqa: B018
    with pytest.raises(ScheduleError):
        schedule.get_block("no such block")


def test_a_gpu_is_emulated_with_a_warning_and_a_target_that_nobody_has_is_refused():
    mod = tvm.IRModule.from_expr(source("csrmm"))
    for target in ("cuda", "cuda -arch=sm_80", "nvidia/nvidia-a100"):
        with pytest.warns(SpcompWarning, match="on the CPU"):
            built = tvm.build(mod, target=target)
        assert "define" in built.imported_modules[0].get_source()
    with pytest.raises(BackendError, match="rocm"):
        tvm.build(mod, target="rocm")


def test_arrays_are_copies_and_give_copies():
    arguments = np.arange(3.0)
    result = tvm.nd.array(arguments, device=tvm.cuda(0))
    result[0] = 7
    out = result.numpy()
    out[1] = 9
    assert arguments.tolist() == [0, 1, 2]
    assert result.tolist() == [7, 1, 2]
    assert type(out) is np.ndarray
    assert not tvm.nd.empty((2, 3)).any()


def test_close_arrays_pass_and_others_do_not():
    tvm.testing.assert_allclose(np.ones(3), np.ones(3) + 1e-6, rtol=1e-4)
    with pytest.raises(AssertionError):
        tvm.testing.assert_allclose(np.ones(3), np.zeros(3))
    with pytest.raises(AssertionError):
        tvm.testing.assert_allclose(np.ones((1, 3)), np.ones(3))


def test_a_module_lowered_by_hand_is_built_and_timed():
    csr = matrix(20, 24, 0.2)
    mod = lower_sparse_buffer(lower_sparse_iter(tvm.IRModule.from_expr(source("csrmm"))))
    built = tvm.build(mod)
    b = tvm.nd.array(RNG.random((24, 8), dtype=np.float32))
    c = tvm.nd.empty((20, 8))
    args = [csr.data, b, c, csr.indptr, csr.indices, 20, 24, 8, csr.nnz]
    built(*args)
    tvm.testing.assert_allclose(c.numpy(), csr @ b.numpy(), rtol=1e-5)
    timing = built.time_evaluator(built.entry_name, tvm.cpu(0), number=2, repeat=3)(*args)
    assert len(timing.results) == 3
    assert "define" in built.get_source()
    with pytest.raises(ArgumentError, match="no function 'other'"):
        built.time_evaluator("other")
