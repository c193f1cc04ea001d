"""Buffers that belong to an iteration: what compact moves and shrinks, and what it refuses."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.printer.program import print_program
from spcomp.ir.stmt import Alloc, For
from spcomp.ir.structural import structural_equal
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.steps.blocks.compact import Compact
from spcomp.script.parse import parse_source
from tests.corpus_base import fresh
from tests.layers import TARGET, source
from tests.programs import BY_NAME

ROWS = """from spcomp import script as T

@T.prim_func
def softmax(a: T.handle, b: T.handle, indptr: T.handle, indices: T.handle,
            heads: T.int32, m: T.int32, n: T.int32, nnz: T.int32) -> None:
    H = T.dense_fixed(heads)
    I = T.dense_fixed(m)
    J = T.sparse_variable(I, (n, nnz), (indptr, indices), "int32")
    A = T.match_sparse_buffer(a, (H, I, J), "float32")
    B = T.match_sparse_buffer(b, (H, I, J), "float32")
    S = T.alloc_sparse_buffer((H, I, J), "float32")
    SUM = T.alloc_sparse_buffer((H, I), "float32")
    with T.sp_iter([H, I], "SS", "row") as [h, i]:
        with T.sp_iter([J], "S", "weigh") as [j]:
            S[h, i, j] = T.exp(A[h, i, j])
        with T.sp_iter([J], "R", "sum") as [j]:
            with T.init():
                SUM[h, i] = T.float32(0)
            SUM[h, i] = SUM[h, i] + S[h, i, j]
        with T.sp_iter([J], "S", "divide") as [j]:
            B[h, i, j] = S[h, i, j] / SUM[h, i]
"""


@cache
def rows():
    (func,) = parse_source(ROWS, "rows.py")
    return Schedule(func).lower_sparse_iter()


def inputs(heads=2, m=5, n=6, seed=0):
    rng = np.random.default_rng(seed)
    stored = rng.random((m, n)) < 0.5
    stored[1] = False
    count = int(stored.sum())
    indptr = np.append(0, stored.sum(axis=1).cumsum()).astype(np.int32)
    given = {"indptr": indptr, "indices": stored.nonzero()[1].astype(np.int32)}
    given |= {"a": rng.standard_normal(heads * count).astype(np.float32)}
    given |= {"b": np.zeros(heads * count, np.float32)}
    return {**given, "heads": heads, "m": m, "n": n, "nnz": count}


def allocated(func):
    return {n.buffer.name: n.buffer for n in walk(func.body) if isinstance(n, Alloc)}


def test_an_iteration_allocates_what_it_needs():
    made = rows().compact("S", "i").compact("SUM", "i").func
    assert allocated(made).keys() == {"S_own", "SUM_own"}
    loop = next(n for n in walk(made.body) if isinstance(n, For) and n.var.name == "i")
    assert {n.buffer.name for n in walk(loop) if isinstance(n, Alloc)} == {"S_own", "SUM_own"}
    assert [len(buffer.shape) for buffer in allocated(made).values()] == [1, 1]


def test_the_loop_may_stand_further_out_than_the_indices_go():
    made = rows().compact("SUM", "h").func
    assert len(allocated(made)["SUM_own"].shape) == 1  # along I


def test_the_result_stays():
    before, given = fresh(inputs()), fresh(inputs())
    interpret(rows().func, before)
    made = rows().compact("S", "i").compact("SUM", "i").func
    interpret(made, given)
    np.testing.assert_array_equal(given["b"], before["b"])
    flat = fresh(inputs())
    interpret(lower(made, TARGET, trusted=True).flat.funcs[0], flat)
    np.testing.assert_allclose(flat["b"], before["b"], rtol=1e-5)


def test_iterations_can_be_copied_with_what_they_allocate():
    made = rows().compact("S", "i").compact("SUM", "i").loop_partition("i", 3).func
    names = {"S_own", "SUM_own", "S_own_rest", "SUM_own_rest"}
    verify(made, "loop_partition")
    assert allocated(made).keys() == names
    before, given, flat = (fresh(inputs()) for _ in range(3))
    interpret(rows().func, before)
    interpret(made, given)
    np.testing.assert_array_equal(given["b"], before["b"])
    interpret(lower(made, TARGET, trusted=True).flat.funcs[0], flat)
    np.testing.assert_allclose(flat["b"], before["b"], rtol=1e-5)


def test_iterations_then_run_in_parallel_with_the_same_bits_at_any_number_of_threads(monkeypatch):
    made = rows().compact("S", "i").compact("SUM", "i").parallel("i")
    kernel, given = spcomp.compile(made), inputs(3, 300, 40)
    expected, results = fresh(given), []
    interpret(rows().func, expected)
    call = {name: given[name] for name in ("indptr", "indices", "n", "heads")}
    for count in (1, 2, 5):
        monkeypatch.setenv("SPCOMP_NUM_THREADS", str(count))
        out = kernel(**call, A=given["a"])
        results.append(np.asarray(out).tobytes())
    np.testing.assert_allclose(np.asarray(out).reshape(-1), expected["b"], rtol=1e-5)
    assert len(set(results)) == 1


def test_what_is_compact_is_printed_as_it_is_parsed():
    made = rows().compact("S", "i").func
    verify(single(made), "compact")
    (parsed,) = parse_source(print_program(single(made)), "made.py")
    assert structural_equal(parsed, made)


def test_a_buffer_inside_the_loop_loses_the_indices_of_the_loops_around():
    sch = Schedule(source("csrmm")).lower_sparse_iter().cache_read("csrmm1", 1)
    made = sch.compact("A_local", "i").func
    assert len(allocated(made)["A_local_own"].shape) == 1


@pytest.mark.parametrize(
    ("buffer", "loop", "reason"),
    [
        ("X", "i", "X is not allocated here"),
        ("S", "j", "used outside the loop"),
        ("S", "x", "no loop 'x'"),
    ],
)
def test_what_would_change_the_meaning_is_refused(buffer, loop, reason):
    with pytest.raises(ScheduleError, match=reason):
        Compact(buffer, loop).apply(rows().func)


def test_a_buffer_whose_rows_other_iterations_read_stays():
    program = BY_NAME["sampled_attention"].build()
    sch = Schedule(program).lower_sparse_iter()
    with pytest.raises(ScheduleError, match="used outside the loop"):
        sch.compact("S", "i")


def test_a_value_that_lives_from_one_pass_to_the_next_stays():
    text = ROWS.replace("S = T.alloc_sparse_buffer((H, I, J)", "S = T.alloc_sparse_buffer((I, J)")
    (func,) = parse_source(text.replace("S[h, i, j]", "S[i, j]").replace('"SS"', '"RS"'), "rows.py")
    sch = Schedule(func).lower_sparse_iter()
    with pytest.raises(ScheduleError, match="'h' is no index of all its accesses"):
        sch.compact("S", "i")


def test_a_row_below_a_split_loop_has_no_length_of_its_own():
    schedule = Schedule(source("square_sum_two_K")).lower_sparse_iter().split("i", 2)
    schedule = schedule.cache_read("square_sum_two_K2", 0, "global")
    with pytest.raises(ScheduleError, match="how long rows of K1_indices_global are differs"):
        schedule.compact("K1_indices_global", "j")
