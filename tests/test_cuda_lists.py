"""The default schedule on GPUs of parts and relations: each row gathers what lists have for it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from benchmarks import programs
from benchmarks.gpu.ours import RGCN
from spcomp.errors import ArgumentError, ScheduleError
from spcomp.formats import hyb, sell
from spcomp.ir.interpret.program import interpret
from spcomp.ir.structural import structural_equal
from spcomp.schedule.default.cuda import default_schedule
from spcomp.schedule.default.facts import Facts
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.sharing.gather_rows import GatherRows
from spcomp.target import target
from tests.emulated import EMULATED, ORDERS, order
from tests.layers import reparsed

COLUMNS = 90
HYB = hyb(1, [1, 2, 4, 16])
LENGTHS = {
    "hub": [0, 3, 88, 1, 0, 2, 17, 15],
    "one element": [0, 1, 0],
    "one row": [90],
    "empty": [0] * 5,
    "no rows": [],
}


def csr(kind):
    rng = np.random.default_rng(5)
    lists = [np.sort(rng.permutation(COLUMNS)[:n]) for n in LENGTHS[kind]]
    indptr = np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int32)
    indices = np.concatenate([np.zeros(0, int), *lists]).astype(np.int32)
    values = rng.random(len(indices), np.float32)
    return sps.csr_array((values, indices, indptr), shape=(len(lists), COLUMNS))


def operand(feat):
    return np.random.default_rng(7).random((COLUMNS, feat), np.float32)


def in_all_orders(call):
    """The result of *call*, which has the same bits whatever the order of blocks and threads."""
    results = []
    for seed in ORDERS:
        with order(seed):
            results.append(np.asarray(call()))
    assert all(np.array_equal(results[0], other) for other in results)
    return results[0]


@pytest.mark.sample(4, long=3)
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("feat", [1, 31, 32, 33, 128])
def test_products_in_hyb_are_right_and_have_the_same_bits_in_any_order(kind, feat):
    matrix, dense = csr(kind), operand(feat)
    made = spcomp.decompose(programs.parse(programs.SPMM), A=HYB).compile(target=EMULATED)
    bound = made.bind(A=matrix)
    assert np.allclose(in_all_orders(lambda: bound(B=dense)), matrix @ dense, rtol=1e-5)
    assert "gather_rows(" in bound.specialize(B=dense).explain()


@pytest.mark.parametrize(
    "layout", [hyb(2, [2, 16]), hyb(1, [1, 4, 16], padded=True), hyb(3, [1, 10])], ids=str
)
def test_column_parts_padding_and_remainders_are_right(layout):
    matrix, dense = csr("hub"), operand(32)
    made = spcomp.decompose(programs.parse(programs.SPMM), A=layout).compile(target=EMULATED)
    assert np.allclose(in_all_orders(lambda: made(A=matrix, B=dense)), matrix @ dense, rtol=1e-5)
    assert "gather_rows(" in made.explain()


def test_vectors_and_maxima_are_right():
    matrix, dense = csr("hub"), operand(32)
    made = spcomp.decompose(programs.parse(programs.SPMV), A=HYB).compile(target=EMULATED)
    assert np.allclose(in_all_orders(lambda: made(A=matrix, X=dense[:, 0])), matrix @ dense[:, 0])
    made = spcomp.decompose(programs.parse(programs.SPMM_MAX), A=HYB).compile(target=EMULATED)
    plain = spcomp.compile(programs.parse(programs.SPMM_MAX))
    assert np.array_equal(in_all_orders(lambda: made(A=matrix, B=dense)), plain(A=matrix, B=dense))
    assert "gather_rows(" in made.explain()


def relations(count, rows, density, skipped=0):
    """Relations between *rows* nodes: their arrays, and a dense tensor.

    *skipped*: so many entries, and elements, are in no relation.
    """
    rng = np.random.default_rng(11)
    dense = np.where(rng.random((count, rows, rows)) < density, rng.random((count, rows, rows)), 0)
    dense = dense.astype(np.float32)
    lists = [np.flatnonzero(each.any(1)) for each in dense]
    nodes = [np.flatnonzero(dense[r, i]) for r, each in enumerate(lists) for i in each]
    ends = [skipped + np.cumsum([0, *map(len, group)]) for group in (lists, nodes)]
    extra = np.zeros(skipped, int)
    ends[1] = np.concatenate([np.arange(skipped), ends[1]])
    arrays = (ends[0], np.concatenate([extra, *lists]), ends[1], np.concatenate([extra, *nodes]))
    names = "indptr_i", "indices_i", "indptr_j", "indices_j"
    values = np.concatenate([np.zeros(skipped), dense[dense != 0]]).astype(np.float32)
    return dense, {n: a.astype(np.int32) for n, a in zip(names, arrays, strict=True)}, values


@pytest.mark.parametrize(
    ("count", "rows", "density", "feat"),
    [(3, 40, 0.05, 32), (5, 30, 0.02, 33), (1, 1, 1.0, 1), (4, 9, 0.3, 128), (2, 7, 0.9, 31)],
)
@pytest.mark.parametrize("skipped", [0, 3])
def test_layers_over_relations_are_right_and_have_the_same_bits_in_any_order(
    count, rows, density, feat, skipped
):
    dense, pattern, values = relations(count, rows, density, skipped)
    rng = np.random.default_rng(13)
    w, x = rng.random((count, 8, feat), np.float32), rng.random((rows, 8), np.float32)
    bound = spcomp.compile(programs.parse(RGCN), target=EMULATED).bind(**pattern, A=values)
    out = np.zeros((rows, feat), np.float32)
    y = in_all_orders(lambda: bound(W=w, X=x, out=out).copy())
    assert np.allclose(y, np.einsum("rij,rkl,jk->il", dense, w, x), rtol=1e-4)
    assert "gather_rows(" in bound.specialize(W=w, X=x, m=rows).explain()


def test_rows_do_not_look_for_themselves_in_lists_that_name_few():
    func = Schedule(programs.parse(RGCN)).lower_sparse_iter().func
    assert isinstance(default_schedule(func, target("cuda"), Facts(full=True))[1][0], GatherRows)
    assert not any(isinstance(s, GatherRows) for s in default_schedule(func, target("cuda"))[1])
    _, pattern, values = relations(1, 4, 0.5)
    pattern["indptr_i"] = np.append(pattern["indptr_i"], [pattern["indptr_i"][-1]] * 400)
    w, x = np.zeros((401, 8, 4), np.float32), np.zeros((4, 8), np.float32)
    bound = spcomp.compile(programs.parse(RGCN), target=EMULATED).bind(**pattern, A=values)
    assert "gather_rows(" not in bound.specialize(W=w, X=x, m=4).explain()


def test_a_call_refuses_lists_that_do_not_ascend():
    _, pattern, values = relations(1, 9, 0.9)
    pattern["indices_i"] = pattern["indices_i"][::-1].copy()
    bound = spcomp.compile(programs.parse(RGCN), target=EMULATED).bind(**pattern, A=values)
    with pytest.raises(ArgumentError, match="ascend"):
        bound(W=np.zeros((1, 8, 4), np.float32), X=np.zeros((9, 8), np.float32), m=9)


def test_the_step_means_the_same_in_the_interpreter_and_can_be_printed():
    schedule = Schedule(programs.parse(RGCN)).lower_sparse_iter()
    gathered = schedule.gather_rows(["i_1", "r"], apart=["r"])
    dense, pattern, values = relations(3, 8, 0.3)
    rng = np.random.default_rng(17)
    w, x = rng.random((3, 4, 5), np.float32), rng.random((8, 4), np.float32)
    arrays = dict(pattern, a=values, w=w.reshape(-1), x=x.reshape(-1), y=np.zeros(40, np.float32))
    sizes = {"m": 8, "n": 8, "relations": 3, "feat": 4, "feat_out": 5}
    sizes |= {"nnz_i": len(pattern["indices_i"]), "nnz_j": len(values)}
    interpret(gathered.func, {**arrays, **sizes})
    expected = np.einsum("rij,rkl,jk->il", dense, w, x).reshape(-1)
    assert np.allclose(arrays["y"], expected, rtol=1e-4)
    assert structural_equal(reparsed(gathered.func, "gathered"), gathered.func)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((["i_1"], 1, []), "a nest that starts rows, others"),
        ((["i_1", "r"], 1, []), "several lists, which must be apart"),
        ((["r", "i_1"], 1, ["i_1"]), "not outermost, one directly after the other"),
        ((["i_1", "r"], 2, ["r"]), "not a multiple of 2"),
        ((["i_1", "r"], 1, ["j"]), "a nest that starts rows, others"),
    ],
)
def test_the_step_says_why_it_cannot_be_applied(arguments, why):
    loops, width, apart = arguments
    schedule = Schedule(programs.parse(RGCN)).lower_sparse_iter()
    with pytest.raises(ScheduleError, match=why):
        schedule.gather_rows(loops, width, apart=apart)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("Y[i, l] = 0.0", "Y[i, l] = X[i, 0]", "more than start each element"),
        ("Y[i, l] = 0.0", "Y[i, l] = T.float32(l)", "does not start all elements alike"),
        ("* X[j, k]", "* X[j, k] * Y[i, l]", "more than update one element|runs over no sorted"),
        ('"int32")\n    J =', '"int32", unique=False)\n    J =', "have no row twice"),
    ],
)
def test_the_step_is_refused_where_rows_are_not_only_updated(before, after, why):
    assert before in RGCN
    schedule = Schedule(programs.parse(RGCN.replace(before, after))).lower_sparse_iter()
    with pytest.raises(ScheduleError, match=why):
        schedule.gather_rows(["i_1", "r"], 1, apart=["r"])


@pytest.mark.parametrize("window", [None, 1])
def test_slices_of_rows_are_right_on_a_gpu(window):
    rng = np.random.default_rng(3)
    matrix = sps.random_array((77, COLUMNS), density=0.1, format="csr", rng=rng, dtype=np.float32)
    x = operand(1)[:, 0]
    made = spcomp.decompose(programs.parse(programs.SPMV), A=sell(16, window))
    bound = made.compile(target=EMULATED).bind(A=matrix)
    assert np.allclose(in_all_orders(lambda: bound(X=x)), matrix @ x, rtol=1e-5)
