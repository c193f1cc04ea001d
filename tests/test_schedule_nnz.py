"""Loops over rows cut by elements, and rows so long that all threads share them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
import spcomp.ir.interpret.program as interpret_module
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError, ScriptError
from spcomp.ir.interpret.position import PositionInterpreter
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.program import PosFunc
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.knobs import CPU_KNOBS
from spcomp.passes.iterations.lower_iterations import LowerIterations
from spcomp.schedule.legality.dependence import conflicts, loops_of
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.blocks.memory import CacheWrite
from spcomp.schedule.steps.loops.loops import Parallel, Vectorize
from spcomp.schedule.steps.loops.tiling import Reorder, Split
from spcomp.schedule.steps.sharing.hubs import SplitHubs, hub_split
from spcomp.schedule.steps.sharing.split_nnz import SplitNnz, chunk_size, nnz_chunks
from spcomp.script.parse import parse_source
from tests.layers import TARGET, reparsed, source
from tests.programs import BY_NAME, PROGRAMS, Program, fresh

SINGLE = [p for p in PROGRAMS if not p.assembles]


@cache
def position(name, dtype="float32", idtype="int32"):
    """The program *name* of the corpus in position space, nothing decided."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LowerIterations(CPU_KNOBS).run(single(source(name, dtype, idtype))).funcs[0]


def fibers_of(func):
    """The pairs of loops of which the second may run over the fiber of the first."""
    loops = list(loops_of(func.body))
    return [(a.var.name, b.var.name) for a in loops for b in loops_of(a.body)]


def check(name, func, dtype="float32", idtype="int32"):
    """*func*, and what is lowered from it, mean what the oracle of the program *name* says."""
    program: Program = BY_NAME[name]
    verify(func, "schedule")
    assert structural_equal(reparsed(func, name), func)
    flat = lower(Schedule(func, lowered=True), TARGET, trace=Trace()).flat
    for case in program.cases:
        inputs = program.inputs(case, dtype, idtype)
        for module in (single(func), flat):
            results = fresh(inputs)
            with np.errstate(all="ignore"):
                interpret(module, results)
            program.check(inputs, results, dtype, case)


def compiled(name, steps, dtype="float32", idtype="int32", threads=2):
    """The program *name* of the corpus with *steps* for its schedule."""
    trace = Trace().extend(source(name).name, steps)
    return spcomp.compile(source(name, dtype, idtype), trace=trace, threads=threads)


@pytest.mark.parametrize("program", SINGLE, ids=lambda p: p.name)
@pytest.mark.sample(8)
def test_where_rows_may_be_cut_by_elements_the_program_means_the_same(program):
    func = position(program.name)
    steps = [nnz_chunks(func, loop.var.name, 3) for loop in loops_of(func.body)]
    for step in filter(None, steps):
        check(program.name, step.apply(func))


@pytest.mark.parametrize("program", SINGLE, ids=lambda p: p.name)
@pytest.mark.sample(8)
def test_where_long_rows_may_be_shared_the_program_means_the_same(program):
    func = position(program.name)
    for step in filter(None, (hub_split(func, i, j, 1) for i, j in fibers_of(func))):
        new = step.apply(func)
        check(program.name, new)
        check(program.name, SplitNnz(step.loop, 3).apply(new))


def draw(kind, rows=60, columns=90):
    """A matrix of float32 whose hubs lie where *kind* says."""
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 5, rows)
    counts[[0, 1, rows - 1]] = 0
    for row in {"first": [0], "middle": [30], "last": [rows - 1], "several": [3, 4, 40]}.get(
        kind, []
    ):
        counts[row] = columns - 7
    if kind == "nothing":
        counts[:] = 0
    lists = [np.sort(rng.permutation(columns)[:count]) for count in counts]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = np.concatenate(lists).astype(int)
    data = rng.standard_normal(len(indices)).astype("float32")
    return sps.csr_array((data, indices, indptr), shape=(rows, columns))


ROUTES = {
    "chunks": (SplitNnz("i", 16), Parallel("i_c")),
    "hubs": (SplitHubs("i", "j", 4), Parallel("i")),
    "both": (SplitHubs("i", "j", 4), SplitNnz("i", 16), Parallel("i_c")),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", ["nothing", "first", "middle", "last", "several"])
def test_products_are_right_and_have_the_same_bits_at_any_number_of_threads(kind, route):
    a = draw(kind)
    b = np.random.default_rng(6).standard_normal((90, 3)).astype("float32")
    results = [compiled("csrmm", ROUTES[route], threads=t)(A=a, B=b) for t in (1, 2, 5)]
    np.testing.assert_allclose(results[0], a @ b, rtol=1e-4, atol=1e-5)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("idtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("spmv", dtype) for dtype in ("float32", "float16", "bfloat16", "int32")),
        *((name, "float32") for name in ("spmv_max", "spmv_min_plus", "spmv_prod")),
        *(("spmv_accumulate", dtype) for dtype in ("float32", "float64")),
        ("csrmm", "int32"),
    ],
)
@pytest.mark.sample(8)
def test_machine_code_computes_what_the_oracle_says(name, dtype, idtype, route):
    steps = [replace(s, size=1) if hasattr(s, "size") else s for s in ROUTES[route]]
    kernel = compiled(name, steps, dtype, idtype)
    program = BY_NAME[name]
    for case in program.cases:
        inputs = program.inputs(case, dtype, idtype)
        results = fresh(inputs)
        kernel(*(results[param.name] for param in source(name, dtype, idtype).params))
        program.check(inputs, results, dtype, case)


def test_rows_that_begin_behind_the_first_position_are_cut_too():
    a = draw("middle")
    shifted = np.concatenate([[9, 9, 9], a.indices]).astype("int32")
    data = np.concatenate([[7, 7, 7], a.data]).astype("float32")
    x, y = np.random.default_rng(8).random(90).astype("float32"), np.zeros(60, "float32")
    kernel = compiled("spmv", ROUTES["both"])
    given = {"a": data, "x": x, "y": y, "indptr": (a.indptr + 3).astype("int32")}
    kernel(**given, indices=shifted, m=60, n=90, nnz=len(data))
    np.testing.assert_allclose(y, a @ x, rtol=1e-4, atol=1e-5)


class Ranges(PositionInterpreter):
    """Notes what the loop ``i`` runs over, and how many pieces each long row has."""

    def visit_For(self, node):
        for name, found in (("i", self.rows), ("i_piece", self.pieces)):
            if node.var.name == name:
                found.append((self.number(node.begin), self.number(node.end)))
        super().visit_For(node)


def ranges(steps, a, monkeypatch):
    """What the loops of a product with *a* run over."""
    rows, pieces = [], []
    monkeypatch.setattr(Ranges, "rows", rows, raising=False)
    monkeypatch.setattr(Ranges, "pieces", pieces, raising=False)
    monkeypatch.setitem(interpret_module._LEVELS, PosFunc, Ranges)
    func = position("spmv")
    for step in steps:
        func = step.apply(func)
    arrays = {"indptr": a.indptr.astype("int32"), "indices": a.indices.astype("int32")}
    values = {"a": a.data, "x": np.ones(a.shape[1], "float32"), "y": np.ones(a.shape[0], "float32")}
    interpret(func, {**arrays, **values, "m": a.shape[0], "n": a.shape[1], "nnz": a.nnz})
    return rows, pieces


@pytest.mark.parametrize("kind", ["nothing", "first", "last", "several"])
def test_each_row_is_in_one_chunk_and_a_chunk_weighs_its_share_and_a_row(kind, monkeypatch):
    a = draw(kind)
    chunks, _ = ranges([SplitNnz("i", 32)], a, monkeypatch)
    assert [row for begin, end in chunks for row in range(begin, end)] == list(range(60))
    weights = [a.indptr[end] - a.indptr[begin] + 2 * (end - begin) for begin, end in chunks]
    longest = np.diff(a.indptr).max()
    assert max(weights) <= 32 + longest + 2
    assert len(chunks) == -(-(a.nnz + 121) // 32)


def test_there_are_at_most_256_chunks(monkeypatch):
    chunks, _ = ranges([SplitNnz("i", 1)], draw("several", rows=200), monkeypatch)
    assert len(chunks) == 256


def test_pieces_are_made_of_the_long_rows_only(monkeypatch):
    _, pieces = ranges([SplitHubs("i", "j", 10)], draw("several"), monkeypatch)
    assert pieces == [(0, 9)] * 3  # 83 elements in pieces of 10
    _, none = ranges([SplitHubs("i", "j", 30)], draw("several"), monkeypatch)
    assert none == []


def test_chunks_take_the_kind_of_the_loop_and_are_taken_one_by_one():
    for steps in ([Parallel("i"), SplitNnz("i", 4)], [SplitNnz("i", 4), Parallel("i_c")]):
        func = position("csrmm")
        for step in steps:
            func = step.apply(func)
        loops = {loop.var.name: loop for loop in loops_of(func.body)}
        assert loops["i_c"].kind == "parallel"
        assert dict(loops["i_c"].attrs) == {"grain": 1}
        assert loops["i"].kind == "serial"
        assert not conflicts(loops["i_c"])


def test_a_printed_schedule_compiles_as_it_stands():
    func = position("csrmm")
    for step in ROUTES["both"]:
        func = step.apply(func)
    a, b = draw("several"), np.ones((90, 3), "float32")
    np.testing.assert_allclose(spcomp.compile(reparsed(func, "csrmm"))(A=a, B=b), a @ b, rtol=1e-4)


@pytest.mark.parametrize(
    ("first", "last", "independent"),
    [
        ("T.lower_bound(P, 0, n, c * s)", "T.lower_bound(P, 0, n, (c + 1) * s)", True),
        ("T.upper_bound(P, 0, n, s - c)", "T.upper_bound(P, 0, n, s - (c + 1))", True),
        ("T.lower_bound(P, 0, n, c * c)", "T.lower_bound(P, 0, n, (c + 1) * (c + 1))", False),
        ("T.lower_bound(P, 0, n, c * s)", "T.lower_bound(P, 0, n, (c + 2) * s)", False),
        ("T.lower_bound(P, 0, n, c * s)", "T.upper_bound(P, 0, n, (c + 1) * s)", False),
        ("T.lower_bound(P, c, n, c * s)", "T.lower_bound(P, c + 1, n, (c + 1) * s)", False),
        ("T.linear_search(P, 0, n, c * s)", "T.linear_search(P, 0, n, (c + 1) * s)", False),
        ("T.run_end(P, 0, n, c * s)", "T.run_end(P, 0, n, (c + 1) * s)", False),
        ("T.lower_bound(Q, 0, n, c * s)", "T.lower_bound(Q, 0, n, (c + 1) * s)", False),
    ],
)
def test_only_searches_for_keys_in_even_steps_share_out_a_loop(first, last, independent):
    text = f"""
from spcomp import script as T

@T.prim_func
def f(p: T.handle, q: T.handle, n: T.int64, s: T.int64):
    P = T.match_buffer(p, (n,), "int64")
    Q = T.match_buffer(q, (n,), "int64")
    for c in T.serial(9):
        for i in T.serial({first}, {last}):
            Q[i] = Q[i] + 1
"""
    (func,) = parse_source(text, "f.py")
    assert conflicts(next(loops_of(func.body))) is not independent


def test_steps_print_and_replay():
    schedule = Schedule(position("csrmm"), lowered=True)
    made = schedule.split_hubs("i", "j", 8).split_nnz("i", 64)
    assert str(made.trace) == "csrmm: split_hubs('i', 'j', 8)\ncsrmm: split_nnz('i', 64)"
    again = schedule.replay(Trace.from_json_lines(made.trace.to_json_lines()))
    assert structural_equal(again.func, made.func)


def test_decisions_name_the_step_or_nothing():
    func = position("csrmm")
    assert nnz_chunks(func, "i", 4096) == SplitNnz("i", 4096)
    assert nnz_chunks(func, "j", 4096) is None
    assert nnz_chunks(func, "k", 4096) is None
    assert chunk_size(func, "i", CPU_KNOBS) == CPU_KNOBS.chunk_nested
    assert chunk_size(position("spmv"), "i", CPU_KNOBS) == CPU_KNOBS.chunk_elements
    assert hub_split(func, "i", "j", 2048) == SplitHubs("i", "j", 2048)
    assert hub_split(func, "i", "k", 2048) is None
    assert hub_split(func, "j", "k", 2048) is None


@pytest.mark.parametrize(
    ("name", "step", "reason"),
    [
        ("csrmm", SplitNnz("k", 4), "no loop over all rows"),
        ("csrmm", SplitNnz("i", 0), "at least 1"),
        ("csrmm", SplitHubs("i", "j", 0), "at least 1"),
        ("csrmm", SplitHubs("i", "k", 4), "does not run over the fiber"),
        ("csrmm", SplitHubs("k", "j", 4), "no loop over all rows"),
        ("csrmm_t", SplitHubs("i", "j", 4), "may write the same element"),
        ("sparse_softmax", SplitHubs("i", "j", 4), "more than update one element"),
        ("csrmm_lower", SplitHubs("i", "j", 4), "more than update one element"),
    ],
)
def test_what_would_change_the_meaning_is_refused(name, step, reason):
    with pytest.raises(ScheduleError, match=reason):
        step.apply(position(name))


def test_long_rows_of_a_sampled_product_are_done_in_pieces_side_by_side():
    steps = (SplitHubs("i", "j", 4), SplitNnz("i", 16), Parallel("i_c"))
    func = position("sddmm")
    for step in steps:
        func = step.apply(func)
    loops = {loop.var.name: loop for loop in loops_of(func.body)}
    assert loops["i_piece"].kind == "parallel"
    assert not conflicts(loops["i_piece"])
    w, rng = draw("several"), np.random.default_rng(6)
    a, b = rng.standard_normal((60, 3), "float32"), rng.standard_normal((90, 3), "float32")
    results = [np.zeros(w.nnz, "float32") for _ in range(3)]
    for threads, c in zip((1, 2, 5), results, strict=True):
        kernel = compiled("sddmm", steps, threads=threads)
        pattern = {"indptr": w.indptr.astype("int32"), "indices": w.indices.astype("int32")}
        kernel(A=a, B=b, C=c, n=90, **pattern)
    np.testing.assert_allclose(results[0], (a @ b.T)[w.nonzero()], rtol=1e-4, atol=1e-6)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_row_that_writes_besides_its_elements_is_not_cut():
    text = """
from spcomp import script as T

@T.prim_func
def f(y: T.handle, x: T.handle, indptr: T.handle, m: T.int32, n: T.int32, nnz: T.int32):
    I = T.dense_fixed(m)
    J = T.dense_variable(I, (n, nnz), indptr)
    J_indptr = T.match_sparse_buffer(indptr, (I,), "int32", extra_storage=1)
    X = T.match_sparse_buffer(x, (I, J), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    for i in T.serial(m):
        Y[i] = 0.0
        for j in T.serial(J_indptr[i + 1] - J_indptr[i]):
            X[i, j] = 1.0
"""
    (func,) = parse_source(text, "f.py")
    with pytest.raises(ScheduleError, match="more than write one element"):
        SplitHubs("i", "j", 4).apply(func)


def test_a_loop_that_is_written_out_is_not_cut():
    func = Schedule(position("csrmm"), lowered=True).unroll("i").func
    assert nnz_chunks(func, "i", 4096) is None
    assert hub_split(func, "i", "j", 2048) is None


def test_pieces_of_a_fiber_that_only_clears_are_refused():
    text = """
from spcomp import script as T

@T.prim_func
def f(y: T.handle, x: T.handle, indptr: T.handle, m: T.int32, n: T.int32, nnz: T.int32):
    I = T.dense_fixed(m)
    J = T.dense_variable(I, (n, nnz), indptr)
    K = T.dense_fixed(n)
    J_indptr = T.match_sparse_buffer(indptr, (I,), "int32", extra_storage=1)
    X = T.match_sparse_buffer(x, (I, K), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    for i in T.serial(m):
        for j in T.serial(J_indptr[i + 1] - J_indptr[i]):
            Y[i] = 0.0
        for k in T.serial(n):
            Y[i] = Y[i] + X[i, k]
"""
    (func,) = parse_source(text, "f.py")
    with pytest.raises(ScheduleError, match="not inside 'j'"):
        SplitHubs("i", "j", 4).apply(func)


_SEARCH = """
from spcomp import script as T

@T.prim_func
def cuts(p: T.handle, w: T.handle, y: T.handle, n: T.int64):
    P = T.match_buffer(p, (n,), "int32")
    W = T.match_buffer(w, (n,), "float32")
    Y = T.match_buffer(y, (20,), "int64")
    for k in T.serial(20):
        Y[k] = {search}
"""


@pytest.mark.parametrize("kind", ["lower", "upper"])
def test_a_search_with_a_slope_adds_it_for_each_position(kind):
    (func,) = parse_source(_SEARCH.format(search=f"T.{kind}_bound(P, 1, n, k, slope=2)"), "f.py")
    assert f"T.{kind}_bound(P, 1, n, k, slope=2)" in func.script()
    p = np.array([9, 0, 0, 3, 3, 8], "int32")
    side = "left" if kind == "lower" else "right"
    want = 1 + np.searchsorted(p[1:] + 2 * np.arange(1, 6), np.arange(20), side)
    for run in (
        spcomp.compile(func),
        lambda *args: interpret(func, dict(zip("pwyn", args, strict=True))),
    ):
        y = np.zeros(20, "int64")
        run(p, np.zeros(6, "float32"), y, 6)
        np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(
    "search",
    [
        "T.lower_bound(W, 0, n, W[0], slope=2)",
        "T.lower_bound(P, 0, n, P[0], slope=2)",
        "T.lower_bound(P, 0, n, k, slope=4294967296)",
    ],
)
def test_a_slope_needs_integers(search):
    with pytest.raises(ScriptError, match="slope"):
        parse_source(_SEARCH.format(search=search), "f.py")


@pytest.mark.parametrize("step", [SplitNnz("i", 8), SplitHubs("i", "j", 8)], ids=str)
def test_a_program_that_was_read_back_is_scheduled_alike(step):
    func = position("mttkrp")
    assert structural_equal(step.apply(reparsed(func, "mttkrp")), step.apply(func))


def test_chunks_compose_with_register_tiles_in_either_order():
    tiles = (Reorder(("k", "j")), Split("k", 8), Reorder(("k_o", "j", "k_i")))
    tiles = (*tiles, CacheWrite("csrmm1", at="k_o"), Vectorize("k_i"), Vectorize("k_i_1"))
    cut = (SplitNnz("i", 16), Parallel("i_c"))
    a, b = draw("several"), np.random.default_rng(9).random((90, 13)).astype("float32")
    early, late = (compiled("csrmm", s)(A=a, B=b) for s in ((*cut, *tiles), (*tiles, *cut)))
    np.testing.assert_allclose(early, a @ b, rtol=1e-4)
    np.testing.assert_array_equal(early, late)
    hubs = compiled("csrmm", (SplitHubs("i", "j", 4), *cut, *tiles))(A=a, B=b)
    np.testing.assert_allclose(hubs, a @ b, rtol=1e-4)


ROWS = """from spcomp import script as T


@T.prim_func
def rows(a: T.handle, indptr: T.handle, indices: T.handle, c: T.handle,
         m: T.int64, n: T.int64, nnz: T.int64) -> None:
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices))
    A = T.match_sparse_buffer(a, (I, J), "float32")
    C = T.match_sparse_buffer(c, (I,), "float32")
    with T.sp_iter([I], "S", "row") as [i]:
        {again}C[i] = 1.0
        {indent}with T.sp_iter([J], "R", "sum") as [j]:
            {indent}C[i] = C[i] + A[i, j]
"""


def rows_of(again="", indent=""):
    (func,) = parse_source(ROWS.format(again=again, indent=indent), "rows.py")
    return func


def rows_inputs(lengths):
    indptr = np.array([0, *np.cumsum(lengths)], np.int32)
    indices = np.concatenate([np.arange(k) for k in lengths]).astype(np.int32)
    a, c = np.ones(len(indices), np.float32), np.zeros(len(lengths), np.float32)
    sizes = {"m": len(lengths), "n": max(lengths), "nnz": len(indices)}
    return {"a": a, "indptr": indptr, "indices": indices, "c": c, **sizes}


def test_a_row_that_starts_its_sum_several_times_is_not_split():
    func = rows_of("for r in T.serial(2):\n            ", "    ")
    schedule = Schedule(func).lower_sparse_iter()
    with pytest.raises(ScheduleError, match="its init is run again and again"):
        schedule.split_hubs("i", "j", 8)


def test_pieces_behind_the_end_of_a_long_row_hold_nothing():
    schedule = Schedule(rows_of()).lower_sparse_iter().split_hubs("i", "j", 16)
    inputs = rows_inputs([1, 16 * 256 + 4, 2])  # 256 pieces of 17: the last begin behind the end
    interpret(lower(schedule.vectorize("j_hub"), TARGET).flat, inputs)
    assert inputs["c"].tolist() == [2, 4101, 3]
