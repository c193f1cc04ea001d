"""Loops bound to the grid, notes on blocks and loops, and what a CPU makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError, ScriptError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.stmt import Store
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.nests.nests import find_block, replace_stmt
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.script.parse import parse_source
from tests.layers import source
from tests.programs import BY_NAME, fresh
from tests.test_schedule_steps import SERIAL, check, refused, scheduled


def same_everywhere(schedule, name):
    """The schedule prints, replays and computes what the oracle says, interpreted and compiled."""
    (back,) = parse_source(schedule.func.script(), "printed.py")
    assert back.script() == schedule.func.script()
    trace = Trace.from_json_lines(schedule.trace.to_json_lines())
    assert trace == schedule.trace
    assert scheduled(name).replay(trace).func.script() == schedule.func.script()
    check(schedule, name)
    kernel = spcomp.compile(schedule)
    for case in ("random", "empty_rows", "one", "zero"):
        inputs = BY_NAME[name].inputs(case)
        arguments = fresh(inputs)
        kernel(*(arguments[param.name] for param in source(name).params))
        BY_NAME[name].check(inputs, arguments, "float32", case)
    return kernel


def flat_kinds(schedule):
    """How each loop of the flat program runs, by name."""
    flat = lower(schedule, SERIAL).flat.funcs[0]
    return {loop.var.name: loop.kind for loop in loops_of(flat.body)}


def program(body, parameters="a: T.handle, c: T.handle, m: T.int64, n: T.int64"):
    """A program in position space with A of (m, n) and C of (m,)."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = f"""from spcomp import script as T


@T.prim_func
def loops({parameters}) -> None:
    T.func_attr({{"sparse_tir_level": 1}})
    A = T.match_buffer(a, (m, n), "float32")
    C = T.match_buffer(c, (m,), "float32")
{lines}
"""
    return parse_source(text, "loops.py")[0]


# -- bind ---------------------------------------------------------------------------------------


def test_a_grid_of_blocks_and_threads_runs_its_blocks_in_parallel():
    schedule = scheduled("csrmm").split("k", [None, 2, 4]).reorder("k_0", "k_2", "j", "k_1")
    schedule = schedule.bind("i", "blockIdx.x").bind("k_0", "blockIdx.y")
    schedule = schedule.bind("k_2", "threadIdx.x").unroll("k_1")
    kernel = same_everywhere(schedule, "csrmm")
    assert "spcomp_parallel_for" in kernel.source("llvm")
    kinds = flat_kinds(schedule)
    assert (kinds["i"], kinds["k_0"], kinds["k_2"]) == ("parallel", "serial", "serial")


def test_perfectly_nested_blocks_are_one_parallel_loop():
    func = scheduled("csrmm").func.specialize({"feat": 8})
    schedule = Schedule(func, lowered=True).reorder("k", "j").lift_loop("k").split("k", 4)
    schedule = schedule.bind("i", "blockIdx.y").bind("k_o", "blockIdx.x").bind("k_i", "threadIdx.x")
    assert flat_kinds(schedule)["i_k_o"] == "parallel"
    kernel = spcomp.compile(schedule)
    a = np.array([[1, 0, 2], [0, 0, 0], [0, 3, 0]], np.float32)
    b = np.arange(24, dtype=np.float32).reshape(3, 8)
    np.testing.assert_allclose(kernel(A=sps.csr_array(a), B=b), a @ b)


def test_a_thread_loop_along_memory_runs_in_vectors():
    schedule = scheduled("csrmm").split("k", 16).bind("k_i", "threadIdx.x").bind("i", "blockIdx.x")
    same_everywhere(schedule, "csrmm")
    lowered = Schedule(source("csrmm")).lower_sparse_iter().replay(schedule.trace)
    flat = lower(lowered, SERIAL).flat.funcs[0]
    stores = [n for n in walk(flat.body) if isinstance(n, Store)]
    assert any(store.value.dtype.lanes > 1 for store in stores)


@pytest.mark.parametrize("name", ["sddmm", "bsrmm", "ellmm"])
def test_the_outermost_loop_can_be_blocks_and_an_inner_one_threads(name):
    schedule = scheduled(name)
    first = schedule.loops[0]
    schedule = schedule.split(first, [None, 2, 3])
    schedule = schedule.bind(f"{first}_0", "blockIdx.x").bind(f"{first}_1", "vthread")
    schedule = schedule.bind(f"{first}_2", "threadIdx.y")
    assert "spcomp_parallel_for" in same_everywhere(schedule, name).source("llvm")


def test_an_index_of_the_grid_that_does_not_exist_is_refused():
    error = refused(lambda: scheduled("csrmm").bind("i", "blockIdx.w"))
    assert error.message == "bind('i', 'blockIdx.w'): there is no index 'blockIdx.w'"
    assert "blockIdx.x" in error.hint


def test_iterations_that_meet_are_not_bound():
    error = refused(lambda: scheduled("csrmm").bind("j", "threadIdx.x"))
    assert "depends on what is computed" in error.message
    assert error.hint == "split it by a constant, rfactor the inner loop, and bind it"
    error = refused(lambda: scheduled("csrmm").split("j", 4).bind("j_i", "threadIdx.x"))
    assert error.message == (
        "bind('j_i', 'threadIdx.x'): iterations may write the same element of C"
    )


def test_a_nest_has_each_index_of_the_grid_once():
    schedule = scheduled("csrmm").bind("i", "blockIdx.x")
    error = refused(lambda: schedule.bind("k", "blockIdx.x"))
    assert error.message.endswith("'i', bound to blockIdx.x, is around 'k'")
    schedule = scheduled("csrmm").bind("k", "blockIdx.x")
    error = refused(lambda: schedule.bind("i", "blockIdx.x"))
    assert error.message.endswith("'i', bound to blockIdx.x, is around 'k'")


SIDE_BY_SIDE = """for i in T.serial(m):
    S = T.alloc_buffer((8,), "float32", scope="shared")
    for t in T.serial(8):
        with T.block("put"):
            vt = T.axis.spatial(8, t)
            S[vt] = A[i, vt] * T.float32(2)
    for u in T.serial({extent}):
        with T.block("get"):
            vu = T.axis.spatial({extent}, u)
            A[i, vu] = S[7 - vu]"""


def test_threads_side_by_side_see_what_the_others_put_into_a_shared_buffer():
    func = program(SIDE_BY_SIDE.format(extent=8))
    schedule = Schedule(func).bind("i", "blockIdx.x").bind("t", "threadIdx.x")
    schedule = schedule.bind("u", "threadIdx.x")
    values = np.arange(24, dtype=np.float32).reshape(3, 8)
    expected = 2 * values[:, ::-1]
    interpreted, compiled = values.copy().reshape(-1), values.copy()
    c = np.zeros(3, np.float32)
    interpret(single(schedule.func), {"a": interpreted, "c": c, "m": 3, "n": 8})
    spcomp.compile(schedule)(compiled, c, 3, 8)
    np.testing.assert_array_equal(interpreted.reshape(3, 8), expected)
    np.testing.assert_array_equal(compiled, expected)


def test_loops_of_one_index_in_a_nest_run_equally_often():
    func = program(SIDE_BY_SIDE.format(extent=4))
    schedule = Schedule(func).bind("i", "blockIdx.x").bind("t", "threadIdx.x")
    error = refused(lambda: schedule.bind("u", "threadIdx.x"))
    assert error.message.endswith(
        "'t' is bound to threadIdx.x too, and is not known to run as often as 'u'"
    )


def test_a_loop_that_begins_further_on_is_split_before_it_is_bound():
    body = """for i in T.serial(2, m):
    with T.block("set"):
        vi = T.axis.spatial(m, i)
        C[vi] = 1.0"""
    error = refused(lambda: Schedule(program(body)).bind("i", "blockIdx.x"))
    assert error.message.endswith("it does not begin at 0")
    schedule = Schedule(program(body)).split("i", 4).bind("i_o", "blockIdx.x")
    c = np.zeros(7, np.float32)
    spcomp.compile(schedule)(np.zeros((7, 1), np.float32), c, 7, 1)
    assert c.tolist() == [0, 0, 1, 1, 1, 1, 1]


WRITTEN = """for i in T.thread_binding(m, thread="{first}"):
    for j in T.thread_binding(n, thread="{second}"):
        {store}"""


def test_what_a_script_binds_is_checked():
    fine = program(WRITTEN.format(first="blockIdx.x", second="threadIdx.x", store="A[i, j] = 1.0"))
    a = np.zeros((3, 5), np.float32)
    spcomp.compile(fine)(a, np.zeros(3, np.float32), 3, 5)
    assert (a == 1).all()
    meet = program(WRITTEN.format(first="blockIdx.x", second="threadIdx.x", store="C[i] = A[i, j]"))
    with pytest.raises(ScheduleError, match=r"loop j cannot be bound to threadIdx\.x"):
        spcomp.compile(meet)
    twice = program(WRITTEN.format(first="blockIdx.x", second="blockIdx.x", store="A[i, j] = 1.0"))
    with pytest.raises(ScheduleError, match=r"'i', bound to blockIdx\.x, is around 'j'"):
        spcomp.compile(twice)


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        ('T.thread_binding(m, thread="gridIdx.x")', "no index 'gridIdx.x' of the grid"),
        ('T.parallel(m, annotations={"grain": "x"})', "grain is an integer from 1"),
        ('T.parallel(m, annotations={"grain": 0})', "grain is an integer from 1"),
    ],
)
def test_a_script_names_an_index_of_the_grid_and_a_size_of_chunks_that_exist(loop, reason):
    with pytest.raises(ScriptError, match=reason):
        program(f"for i in {loop}:\n    C[i] = 1.0")


def test_a_bound_loop_can_be_made_another_kind_again():
    schedule = scheduled("csrmm").bind("i", "blockIdx.x").parallel("i")
    assert schedule.get_kind("i") == "parallel"
    same_everywhere(schedule, "csrmm")


# -- notes --------------------------------------------------------------------------------------


def test_notes_are_printed_and_taken_away_again():
    schedule = scheduled("csrmm").annotate("j", "pragma_unroll_explicit", 0)
    schedule = schedule.annotate("csrmm1", "note", "hot").annotate("j", "weight", 0.5)
    assert schedule.annotations("j") == {"pragma_unroll_explicit": 0, "weight": 0.5}
    same_everywhere(schedule, "csrmm")
    plain = schedule.unannotate("j", "weight").unannotate("j", "pragma_unroll_explicit")
    assert plain.unannotate("csrmm1", "note").func.script() == scheduled("csrmm").func.script()


def test_a_note_on_an_iteration_is_there_before_there_are_loops():
    schedule = Schedule(source("csrmm")).annotate("csrmm", "note", True)
    assert schedule.annotations("csrmm")["note"] is True
    assert "'note': True" in schedule.func.script().replace('"', "'")


@pytest.mark.parametrize(
    ("target", "key", "value", "reason"),
    [
        ("nowhere", "note", 1, "nothing is called 'nowhere' in csrmm"),
        ("j", "note", float("nan"), "a value is a finite number, a string or a bool"),
        ("j", "note", (1, 2), "value cannot be (1, 2)"),
        ("j", "", 1, "a key is a string"),
        ("j", "atomic", True, "atomic is True or False for a block"),
        ("csrmm1", "atomic", 1, "atomic is True or False for a block"),
        ("csrmm1", "pragma_unroll_explicit", 1, "is an integer from 0 for a loop"),
        ("j", "pragma_auto_unroll_max_step", -1, "is an integer from 0 for a loop"),
        ("i", "grain", 0, "grain is an integer from 1 for a loop"),
    ],
)
def test_a_note_that_means_nothing_is_refused(target, key, value, reason):
    error = refused(lambda: scheduled("csrmm").annotate(target, key, value))
    assert error.message.endswith(reason)


def test_a_note_that_is_not_there_cannot_be_taken_away():
    error = refused(lambda: scheduled("csrmm").annotate("j", "note", 1).unannotate("j", "other"))
    assert error.message == "unannotate('j', 'other'): 'j' has no such annotation"
    assert error.hint == "its annotations are note"


def test_a_bound_loop_is_not_partitioned():
    """Both parts would run over one index, each with its own extent."""
    schedule = scheduled("csrmm").bind("i", "blockIdx.x")
    error = refused(lambda: schedule.loop_partition("i", 8))
    assert error.message == (
        "loop_partition('i', 8): 'i' is bound to blockIdx.x, its parts would not run as often"
    )


def test_a_loop_over_which_threads_reduce_is_not_split():
    """Its pieces would update the element side by side."""
    error = refused(lambda: scheduled("sddmm").bind("k", "threadIdx.x").split("k", 8))
    assert error.message == "split('k', 8): threads reduce over it together"
    assert error.hint == "split it before bind"


# -- the permission to share updates -------------------------------------------------------------


def test_shared_updates_are_permitted_and_run_in_order_on_a_cpu():
    plain = scheduled("csrmm_t")
    refused(lambda: plain.parallel("i"))
    schedule = plain.annotate("csrmm_t1", "atomic", True).parallel("i")
    assert flat_kinds(schedule)["i"] == "serial"
    assert "spcomp_parallel_for" not in same_everywhere(schedule, "csrmm_t").source("llvm")
    bound = plain.annotate("csrmm_t1", "atomic", True).bind("i", "blockIdx.x")
    same_everywhere(bound, "csrmm_t")


def test_a_refusal_to_bind_says_which_permission_is_enough():
    error = refused(lambda: scheduled("csrmm_t").bind("i", "blockIdx.x"))
    assert error.message.endswith("iterations may write the same element of Y")
    assert "annotate('csrmm_t1', 'atomic', True)" in error.hint
    assert 'T.block_attr({"atomic": True})' in error.hint
    bound = 'in T.thread_binding(m, thread="blockIdx.x")'
    script = scheduled("csrmm_t").func.script().replace("in T.serial(m)", bound, 1)
    (func,) = parse_source(script, "csrmm_t.py")
    error = refused(lambda: spcomp.compile(func, target="cuda:sm_90"))
    assert "annotate('csrmm_t1', 'atomic', True)" in error.hint
    gathered = scheduled("csrmm").split("j", 4)  # which starts the element anew
    hint = refused(lambda: gathered.bind("j_i", "threadIdx.x")).hint
    assert hint.startswith("rfactor it first")
    by_hint = gathered.rfactor("j_i", scope="local").bind("j_i", "threadIdx.x")
    same_everywhere(by_hint.bind("j_i_1", "threadIdx.x"), "csrmm")


def test_what_needs_no_permission_stays_parallel_beside_what_does():
    schedule = scheduled("csrmm_t").annotate("csrmm_t1", "atomic", True)
    schedule = schedule.bind("i", "blockIdx.x").split("k", 4).reorder("k_o", "j", "k_i")
    schedule = schedule.bind("k_o", "blockIdx.y")
    kinds = flat_kinds(schedule)
    assert (kinds["i"], kinds["k_o"]) == ("serial", "parallel")
    same_everywhere(schedule, "csrmm_t")


def test_a_loop_that_needs_the_permission_says_so_whatever_becomes_of_the_block():
    schedule = scheduled("csrmm_t").annotate("csrmm_t1", "atomic", True).parallel("i")
    assert schedule.annotations("i") == {"atomic": True}
    assert scheduled("csrmm").parallel("i").annotations("i") == {}
    block = find_block(schedule.func, "csrmm_t1", "", None)
    plain = Schedule(replace_stmt(schedule.func, block, block.replace(attrs=())), schedule.trace)
    assert flat_kinds(plain)["i"] == "serial"


def test_flat_programs_keep_the_permission_and_run_in_order():
    schedule = scheduled("csrmm_t").annotate("csrmm_t1", "atomic", True).parallel("i")
    flat = schedule.lower_sparse_buffer()
    assert "atomic=True" in flat.func.script()
    assert "spcomp_parallel_for" not in spcomp.compile(flat).source("llvm")


def test_a_permission_that_a_loop_needs_is_not_taken_back():
    schedule = scheduled("csrmm_t").annotate("csrmm_t1", "atomic", True).parallel("i")
    for act in (
        lambda: schedule.unannotate("csrmm_t1", "atomic"),
        lambda: schedule.annotate("csrmm_t1", "atomic", False),
    ):
        assert "loop 'i' is parallel by this permission" in refused(act).message


def test_a_permission_says_nothing_of_inits_and_of_vectors():
    schedule = scheduled("csrmm").annotate("csrmm1", "atomic", True)
    refused(lambda: schedule.parallel("j"))  # it starts the element anew
    scatter = scheduled("csrmm_t").annotate("csrmm_t1", "atomic", True).reorder("k", "j")
    error = refused(lambda: scatter.vectorize("j"))
    assert "iterations may write the same element of Y" in error.message


def test_a_block_that_updates_nothing_needs_no_permission():
    error = refused(lambda: scheduled("csrmm_t").annotate("csrmm_t_init0", "atomic", True))
    assert error.message.endswith("the block updates no element")


ONE_BLOCK = """
from spcomp import script as T

@T.prim_func
def copy(x: T.handle, y: T.handle) -> None:
    T.func_attr({"sparse_tir_level": 0})
    X = T.match_buffer(x, (64,), "float32")
    Y = T.match_buffer(y, (64,), "float32")
    for b in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding(64, thread="threadIdx.x"):
            Y[t] = X[t]
"""


@pytest.mark.filterwarnings("error")
def test_a_loop_that_runs_once_is_no_claim():
    kernel = spcomp.compile(parse_source(ONE_BLOCK, "copy.py")[0], target="cuda:sm_90,emulate")
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernel(x, y)
    np.testing.assert_array_equal(y, x)
    assert "blocks 1, threads 64" in kernel.explain()
