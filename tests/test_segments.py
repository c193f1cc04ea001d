"""Reductions by sorted keys: cut between keys, run by run, the same bits at any thread count."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError, ScheduleError
from spcomp.ir.interpret import program as interpret_module
from spcomp.ir.interpret.position import PositionInterpreter
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.printer.program import print_program
from spcomp.ir.program import PosFunc
from spcomp.ir.stmt import For, While
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.knobs import CPU_KNOBS, knobs_of
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import reduction_loops
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.loops.tiling import Split
from spcomp.schedule.steps.sharing.segments import GroupRuns, SplitSorted, runs, segments
from spcomp.schedule.steps.sharing.sorted_rows import SortedRows, sorted_rows
from spcomp.script.parse import parse_source
from spcomp.target import Target
from tests.corpus_base import fresh, variants
from tests.corpus_coo import COO, COO_KEYS, COO_MAX, COO_SEGMENT
from tests.layers import TARGET, source

ROUTES = {
    "chunks": (SplitSorted("e", 2),),
    "runs": (GroupRuns("e"),),
    "both": (SplitSorted("e", 3), GroupRuns("e")),
    "shared": (SplitSorted("e", 1, 1), GroupRuns("e")),
}
STARTED = {"coo_segment": "e_1", "coo_keys": "e_1", "coo_spmm": "i"}  # by the loop of this name
PAIRS = [
    *((program, route) for program in COO for route in ROUTES),
    *((program, "rows") for program in COO if program.name in STARTED),
]
VARIANTS = [(program, route, *v) for program, route in PAIRS for v in variants(program)]
every_variant = pytest.mark.parametrize(
    ("program", "route", "dtype", "idtype"),
    VARIANTS,
    ids=lambda v: v if isinstance(v, str) else v.name,
)


def steps_of(program, route):
    if route in ROUTES:
        return ROUTES[route]
    return (SortedRows("e", STARTED[program.name], 3),)


@cache
def parsed(program, dtype="float32", idtype="int32"):
    return program.build(dtype, idtype)


def position(program, dtype="float32", idtype="int32"):
    """*program* in position space, nothing decided."""
    return Schedule(parsed(program, dtype, idtype)).lower_sparse_iter().func


def scheduled(func, steps):
    for step in steps:
        func = step.apply(func)
    return func


def kernel(program, steps, threads=None):
    func = parsed(program)
    return spcomp.compile(func, trace=Trace().extend(func.name, steps), threads=threads)


@every_variant
@pytest.mark.sample(8, long=3)
def test_every_level_means_what_the_oracle_says(program, route, dtype, idtype):
    func = parsed(program, dtype, idtype)
    trace = Trace().extend(func.name, steps_of(program, route))
    stages = lower(func, TARGET, trace=trace)
    compiled = spcomp.compile(func, trace=trace)
    for case in program.cases:
        inputs = program.inputs(case, dtype, idtype)
        for module in (single(func), stages.position, stages.flat):
            results = fresh(inputs)
            interpret(module, results)
            program.check(inputs, results, dtype, f"interpreted, {case}")
        results = fresh(inputs)
        compiled(*(results[param.name] for param in func.params))
        program.check(inputs, results, dtype, f"compiled, {case}")


@pytest.mark.parametrize(("program", "route"), PAIRS, ids=lambda v: getattr(v, "name", v))
def test_what_the_steps_make_is_legal_and_prints_to_the_same(program, route):
    func = scheduled(position(program), steps_of(program, route))
    verify(func, "schedule")
    (back,) = parse_source(print_program(func), "coo.py")
    assert structural_equal(back, func)


def long_keys():
    """Inputs of the segment sums: many keys, some missing, one that holds most rows."""
    rng = np.random.default_rng(3)
    rows = np.sort(np.concatenate([rng.integers(2, 300, 2000), np.full(9000, 77)])).astype("int32")
    values = rng.standard_normal((len(rows), 5)).astype("float32")
    return {"x": values.reshape(-1), "indptr": np.array([0, len(rows)], "int32"), "rows": rows}


@pytest.mark.parametrize("route", [*ROUTES, "rows"])
def test_the_sums_have_the_same_bits_at_any_number_of_threads_as_in_order(route):
    given = long_keys()
    want = np.zeros((310, 5), "float32")
    for row, values in zip(given["rows"], given["x"].reshape(-1, 5), strict=True):
        want[row] += values
    others = np.arange(310) != (77 if route == "shared" else None)
    made = []
    for threads in (1, 2, 5):
        y = np.full((310, 5), 9, "float32")
        kernel(COO_SEGMENT, steps_of(COO_SEGMENT, route), threads)(
            **given, y=y, m=310, nnz=len(given["rows"])
        )
        np.testing.assert_array_equal(y[others], want[others])
        np.testing.assert_allclose(y, want, rtol=1e-4)
        made.append(y.tobytes())
    assert len(set(made)) == 1


class Ranges(PositionInterpreter):
    """Notes what the loop over the rest of a chunk runs over, and that over its head."""

    def visit_For(self, node):
        if node.var.name in self.found:
            self.found[node.var.name].append((self.number(node.begin), self.number(node.end)))
        super().visit_For(node)


@pytest.mark.parametrize("many", [10, 40, 100])
def test_a_key_that_fills_more_than_two_chunks_is_shared_among_them(many, monkeypatch):
    found = {"e": [], "e_hub": []}
    monkeypatch.setattr(Ranges, "found", found, raising=False)
    monkeypatch.setitem(interpret_module._LEVELS, PosFunc, Ranges)
    rows = np.sort(np.concatenate([np.arange(40), np.full(many, 17)])).astype("int32")
    x, indptr, count = np.ones(len(rows), "float32"), np.array([0, len(rows)], "int32"), len(rows)
    given = {"x": x, "indptr": indptr, "rows": rows, "y": np.zeros(40, "float32")}
    func = scheduled(position(COO_MAX), (SplitSorted("e", 5, 2),))
    interpret(single(func), {**given, "m": 40, "nnz": count})
    end = 18 + many  # of the long run, which begins at 17
    assert found["e_hub"] == [(at, min(at + 5, end)) for at in range(30, end, 5)]
    run = sorted({*found["e"], *found["e_hub"]})
    assert [e for first, last in run for e in range(first, last)] == list(range(count))


def test_keys_out_of_order_are_refused_at_the_call_only_where_chunks_need_them():
    rows = np.array([3, 1, 2], "int32")
    given = {"x": np.ones(3, "float32"), "indptr": np.array([0, 3], "int32"), "rows": rows}
    with pytest.raises(ArgumentError, match="out of order"):
        kernel(COO_MAX, ROUTES["chunks"])(**given, y=np.zeros(4, "float32"), m=4, nnz=3)
    y = np.zeros(4, "float32")
    kernel(COO_MAX, ROUTES["runs"])(**given, y=y, m=4, nnz=3)
    assert y.tolist() == [0, 1, 1, 1]


TWO_NESTS = """
@T.prim_func
def two(x: T.handle, y: T.handle, rows: T.handle, m: T.int32, nnz: T.int32) -> None:
    O = T.dense_fixed(1)
    E = T.sparse_fixed(O, (m, nnz), rows, idtype="int32", unique=False)
    I = T.dense_fixed(m)
    K = T.dense_fixed(3)
    X = T.match_sparse_buffer(x, (O, E, K), "float32")
    Y = T.match_sparse_buffer(y, (I, K), "float32")
    with T.sp_iter([I, K], "SS", "clear") as [i, k]:
        Y[i, k] = 7.0
    with T.sp_iter([O, E, K], "SRS", "sums") as [o, e, k]:
        Y[e, k] = Y[e, k] + X[o, e, k]
"""


def two_nests(*change):
    (func,) = parse_source(TWO_NESTS.replace(*change), "two.py")
    return Schedule(func).lower_sparse_iter()


def test_a_nest_that_starts_all_rows_starts_each_when_it_is_reached():
    schedule = two_nests("", "").sorted_rows("e", "i", 2)
    y, rows = np.zeros((6, 3), "float32"), np.array([1, 1, 1, 4], "int32")
    spcomp.compile(schedule)(np.ones((4, 3), "float32"), y, rows, 6, 4)
    assert y[:, 0].tolist() == [7, 10, 7, 7, 8, 7]


@pytest.mark.parametrize(
    "change",
    [
        ("7.0", "T.cast(i, 'float32')"),  # as the row is
        ("7.0", "Y[i, k]"),
        ("[I, K]", "[I, O]"),  # not the same elements
        ('[I, K], "SS", "clear") as [i, k]', '[K, I], "SS", "clear") as [k, i]'),
        ("Y[e, k] + X", "X"),  # no update
        ("X[o, e, k]\n", "X[o, e, k] * Y[e, 0]\n"),
        ("    with T.sp_iter([O", "    Y[0, 0] = 5.0\n    with T.sp_iter([O"),
        ("m: T.int32", "m: T.int64"),  # more rows than the coordinates can name
    ],
    ids=lambda v: getattr(v, "name", v),
)
def test_rows_that_another_nest_does_not_start_stay_apart(change):
    with pytest.raises(ScheduleError, match="sorted_rows"):
        two_nests(*change).sorted_rows("e", "i", 2)


def test_a_run_updates_one_element_that_can_live_in_a_register():
    program = COO_KEYS
    func = scheduled(position(program), ROUTES["both"])
    assert {x.var.name for x in loops_of(func.body) if x.var in reduction_loops(func)} == {"e"}
    schedule = Schedule(func, lowered=True).reorder("k", "e").cache_write("coo_keys0", at="k")
    for case in program.cases:
        inputs = program.inputs(case)
        results = fresh(inputs)
        interpret(single(schedule.func), results)
        program.check(inputs, results, "float32", case)


def test_chunks_run_in_parallel_and_are_taken_one_by_one():
    (loop,) = (
        n for n in walk(scheduled(position(COO_SEGMENT), ROUTES["chunks"]).body) if _is_chunk(n)
    )
    assert loop.kind == "parallel"
    assert dict(loop.attrs) == {"grain": 1}


def _is_chunk(node):
    return isinstance(node, For) and node.var.name == "e_c"


def test_the_steps_print_and_replay():
    schedule = Schedule(parsed(COO_SEGMENT)).lower_sparse_iter()
    made = schedule.split_sorted("e", 2).group_runs("e")
    assert str(made.trace) == "coo_segment: split_sorted('e', 2, 0)\ncoo_segment: group_runs('e')"
    again = schedule.replay(Trace.from_json_lines(made.trace.to_json_lines()))
    assert structural_equal(again.func, made.func)
    assert any(isinstance(n, While) for n in walk(made.func.body))


@pytest.mark.parametrize(
    "step", ["split_sorted('e', 1, 0, most={})", "sorted_rows('e', 'e_1', 1, most={})"]
)
def test_there_are_as_many_chunks_as_most_says(step):
    schedule = Schedule(parsed(COO_SEGMENT)).lower_sparse_iter()
    kind, at = step.partition("(")[0], ("e", 1) if "split" in step else ("e", "e_1", 1)
    for most in (3, 1000):
        made = getattr(schedule, kind)(*at, most=most)
        assert str(made.trace) == f"coo_segment: {step.format(most)}"
        again = schedule.replay(Trace.from_json_lines(made.trace.to_json_lines()))
        assert structural_equal(again.func, made.func)
        assert f", {most})" in str(made.func)
    with pytest.raises(ScheduleError, match="most must be at least 1"):
        getattr(schedule, kind)(*at, most=0)


def test_decisions_name_the_step_or_nothing():
    func = position(COO_SEGMENT)
    assert segments(func, "e", CPU_KNOBS) == SplitSorted("e", 4096)
    many = SplitSorted("e", 64, 2, most=1 << 12)
    assert segments(func, "e", knobs_of(Target("cuda")), long=True) == many
    assert runs(func, "e") == GroupRuns("e")
    assert sorted_rows(func, "e", CPU_KNOBS) == SortedRows("e", "e_1", 4096)
    assert sorted_rows(position(COO_MAX), "e", CPU_KNOBS) is None
    assert segments(func, "k", CPU_KNOBS) is None
    csr = Schedule(source("csrmm")).lower_sparse_iter().func
    assert segments(csr, "j", CPU_KNOBS) is None
    assert segments(csr, "i", CPU_KNOBS) is None


@T.prim_func
def unsorted(x: T.handle, y: T.handle, indptr: T.handle, rows: T.handle, m: T.int32, nnz: T.int32):
    O = T.dense_fixed(1)
    E = T.sparse_variable(O, (m, nnz), (indptr, rows), sorted=False, unique=False)
    I = T.dense_fixed(m)
    X = T.match_sparse_buffer(x, (O, E), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([O, E], "SR", "unsorted") as [o, e]:
        Y[e] = Y[e] + X[o, e]


@T.prim_func
def neighbours(
    x: T.handle, y: T.handle, indptr: T.handle, rows: T.handle, m: T.int32, nnz: T.int32
):
    O = T.dense_fixed(1)
    E = T.sparse_variable(O, (m, nnz), (indptr, rows), unique=False)
    I = T.dense_fixed(m)
    X = T.match_sparse_buffer(x, (O, E), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([O, E], "SR", "neighbours") as [o, e]:
        Y[e] = Y[e] + X[o, e] * Y[(e + 1) % m]


@pytest.mark.parametrize("program", [unsorted, neighbours], ids=lambda p: p.name)
def test_loops_that_write_anything_but_their_own_sorted_key_are_not_cut(program):
    schedule = Schedule(program).lower_sparse_iter()
    with pytest.raises(ScheduleError, match="sorted coordinate"):
        schedule.split_sorted("e", 4)


def test_a_loop_without_coordinates_has_no_runs():
    schedule = Schedule(parsed(COO_SEGMENT)).lower_sparse_iter()
    with pytest.raises(ScheduleError, match="reads no coordinate"):
        schedule.group_runs("k")
    with pytest.raises(ScheduleError, match="at least 1"):
        schedule.split_sorted("e", 0)


@T.prim_func
def wide(x: T.handle, y: T.handle, rows: T.handle, m: T.int64, n: T.int64, nnz: T.int64):
    O = T.dense_fixed(1)
    E = T.sparse_fixed(O, (m, nnz), rows, unique=False)
    N = T.dense_fixed(n)
    X = T.match_sparse_buffer(x, (O, E), "float32")
    Y = T.match_sparse_buffer(y, (N,), "float32")
    with T.sp_iter([O, E], "SR", "wide") as [o, e]:
        if e < n:
            Y[e] = Y[e] + X[o, e]


def test_keys_may_be_narrower_than_the_length_of_their_axis():
    trace = Trace().extend("wide", [SplitSorted("e", 2)])
    y = np.zeros(9, "float32")
    rows = np.array([0, 0, 3, 8, 8], "int32")
    spcomp.compile(wide, trace=trace)(np.ones(5, "float32"), y, rows, 1 << 33, 9, 5)
    assert y.tolist() == [2, 0, 0, 1, 0, 0, 0, 0, 2]


def test_runs_are_not_looked_for_where_a_condition_may_forbid_to_read_the_coordinate():
    schedule = Schedule(source("coo_spmm")).lower_sparse_iter().split("e", 3)
    with pytest.raises(ScheduleError, match="under a condition the coordinate need not exist"):
        schedule.group_runs("j")


def test_keys_of_a_fiber_that_need_not_exist_are_not_cut():
    schedule = Schedule(source("coo_sums")).lower_sparse_iter().split("o", 3)
    with pytest.raises(ScheduleError, match="not told apart by a sorted coordinate"):
        schedule.split_sorted("e", 2)


def test_rows_are_asked_for_at_absolute_positions_too():
    schedule = Schedule(source("coo_spmm").specialize({"feat": 32}))
    made = schedule.sparse_fuse("coo_spmm", ["o", "e"]).lower_sparse_iter().prefetch("j", 1)
    verify(made.func, "prefetch")
    assert "T.prefetch(B, J_indices[_, _, T.min(" in made.func.script()


def test_a_split_that_would_start_a_reduction_further_out_is_refused():
    schedule = Schedule(source("coo_segment")).lower_sparse_iter().sorted_rows("e", "e_1", 3)
    with pytest.raises(ScheduleError, match="a reduction would start further out"):
        schedule.split("e", [4, None])
    verify(schedule.split("e", [None, 4]).func, "split")


@pytest.mark.parametrize("program", [p for p in COO if p.name in STARTED], ids=lambda p: p.name)
def test_rows_in_order_may_be_split(program):
    steps = (*steps_of(program, "rows"), Split("e", (None, 2)), Split("e_o", (None, 3)))
    func = scheduled(position(program), steps)
    compiled = kernel(program, steps)
    for case in program.cases:
        inputs = program.inputs(case)
        interpreted, results = fresh(inputs), fresh(inputs)
        interpret(single(func), interpreted)
        compiled(*(results[param.name] for param in func.params))
        program.check(inputs, interpreted, "float32", f"interpreted, {case}")
        program.check(inputs, results, "float32", f"compiled, {case}")
