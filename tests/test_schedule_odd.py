"""Steps on odd programs, where a shortcut would show: guards, ranges that end early, views."""

from __future__ import annotations

import numpy as np
import pytest

from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError
from spcomp.ir.interpret.program import interpret
from spcomp.ir.module import single
from spcomp.ir.position import Block
from spcomp.ir.verify.program import verify
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import loops_of
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.schedule.steps.loops.loops import Parallel
from spcomp.script.parse import parse_source
from tests.test_schedule_steps import SERIAL, refused


def loops(body, parameters="m: T.int64, n: T.int64"):
    """The program in position space with A of (m, n) and C of (m,) that *body* is of."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    text = f"""from spcomp import script as T


@T.prim_func
def odd(a: T.handle, c: T.handle, {parameters}) -> None:
    T.func_attr({{"sparse_tir_level": 1}})
    A = T.match_buffer(a, (m, n), "float32")
    C = T.match_buffer(c, (m,), "float32")
{lines}
"""
    return Schedule(parse_source(text, "odd.py")[0])


SUMS = """for i in T.serial(m):
    for j in T.serial(n):
        with T.block("sums"):
            vi = T.axis.spatial(m, i)
            vj = T.axis.reduce(n, j)
            with T.init():
                C[vi] = 0.0
            C[vi] = C[vi] + A[vi, vj]"""
LAST = """for i in T.serial(m):
    for j in T.serial(n):
        with T.block("last"):
            vi = T.axis.spatial(m, i)
            vj = T.axis.spatial(n, j)
            C[vi] = A[vi, vj]"""
NESTED = """for i in T.serial(m):
    with T.block("row"):
        vi = T.axis.spatial(m, i)
        for j in T.serial(n):
            with T.block("sums"):
                wi = T.axis.spatial(m, vi)
                vj = T.axis.reduce(n, j)
                with T.init():
                    C[wi] = 0.0
                C[wi] = C[wi] + A[wi, vj]"""
SKEWED = """for x in T.serial(4):
    for y in T.serial(4):
        with T.block("skewed"):
            vx = T.axis.spatial(4, x)
            vy = T.axis.{kind}(4, y)
            C[vx + vy] = C[vx + vy] + A[vx, vy]"""
GUARDED = """for i in T.serial(m):
    for j in T.serial(n):
        with T.block("guarded"):
            vi = T.axis.spatial(m, i)
            vj = T.axis.reduce(n, j)
            T.where({guard})
            C[vi] = C[vi] + A[vi, vj]"""
SHORT = """for i in T.serial(m - 4):
    for j in T.serial(n - 4):
        with T.block("short"):
            vi = T.axis.spatial(m, i)
            vj = T.axis.spatial(n, j)
            C[vi] = C[vi] + A[vi, vj]"""


def agrees(schedule, program, m=3, n=5):
    """The scheduled program computes what *program* does, in both levels below."""
    verify(schedule.func, "schedule")
    flat = lower(schedule.func, SERIAL, trace=Trace(), trusted=True).flat
    values = np.arange(m * n, dtype=np.float32) + 1
    results = []
    for module in (single(program.func), single(schedule.func), flat):
        c = np.full(m, 7, np.float32)
        interpret(module, {"a": values.copy(), "c": c, "m": m, "n": n})
        results.append(c.tolist())
    assert results[0] == results[1] == results[2]


def test_an_init_is_guarded_by_what_does_not_depend_on_the_reduction():
    program = loops(SUMS)
    schedule = program.split("i", 4).split("j", 4)
    agrees(schedule, program)
    agrees(schedule.reorder("j_o", "i_i"), program)
    agrees(schedule.decompose_reduction("sums", "i_o"), program)
    agrees(program.split("j", 4).decompose_reduction("sums", "i"), program)


def test_an_element_that_no_iteration_stores_keeps_its_value():
    program = loops(LAST)
    agrees(program.cache_write("last", at="i"), program)
    agrees(program.cache_write("last", at="i"), program, n=0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (SKEWED.format(kind="reduce"), "which element is stored depends on what is reduced"),
        (GUARDED.format(guard="vj < 3"), "the condition of the block depends on what is reduced"),
        (GUARDED.format(guard="C[vi] < 10.0"), "a condition or a range reads C"),
    ],
)
def test_a_tile_whose_elements_are_not_its_own_is_refused(body, reason):
    program = loops(body)
    block = next(n.name for n in walk(program.func.body) if isinstance(n, Block))
    outer = next(loops_of(program.func.body)).var.name
    error = refused(lambda: program.cache_write(block, at=outer))
    assert error.message.endswith(reason)


def test_a_tile_of_which_two_places_are_one_element_is_refused():
    body = "for r in T.serial(2):\n" + "\n".join(
        f"    {line}" for line in SKEWED.format(kind="spatial").splitlines()
    )
    error = refused(lambda: loops(body).cache_write("skewed", at="r"))
    assert error.message.endswith("two places of the tile may be one element")


def test_a_loop_that_drives_a_reduction_is_not_lifted_over_its_init():
    error = refused(lambda: loops(NESTED).lift_loop("j"))
    assert error.message.endswith("it drives a reduction that starts inside")


@pytest.mark.parametrize(("m", "n"), [(3, 3), (3, 9), (9, 3), (9, 9)])
def test_loops_that_end_before_they_begin_run_no_times(m, n):
    program = loops(SHORT)
    agrees(program.fuse("i", "j"), program, m, n)
    agrees(program.loop_partition("i", 8), program, m, n)
    program = loops("for i in T.vectorized(m - 4):\n    C[i] = 1.0")
    agrees(program, program, m, n)


def test_a_range_that_the_loop_changes_is_not_computed_again():
    body = """for k in T.serial(T.cast(C[0], "int64")):
    with T.block("changes"):
        vk = T.axis.spatial(m, k)
        C[vk] = 100.0"""
    for act in (lambda s: s.split("k", 4), lambda s: s.loop_partition("k", 4)):
        error = refused(lambda act=act: act(loops(body)))
        assert error.message.endswith("iterations may change the range of C")
    error = refused(lambda: loops(body).vectorize("k"))
    assert error.message.endswith("iterations may change the range of C")


def test_a_claim_is_checked_of_blocks_side_by_side():
    body = """for k in T.vectorized(m - 1):
    with T.block("first"):
        vk = T.axis.spatial(m, k)
        A[vk + 1, 0] = C[vk]
    with T.block("second"):
        wk = T.axis.spatial(m, k)
        C[wk + 1] = 1.0"""
    with pytest.raises(ScheduleError, match="loop k cannot be vectorized"):
        lower(loops(body).func, SERIAL)


@pytest.mark.parametrize(
    ("view", "independent"),
    [("(n, 1)", False), ("(8, 1)", True), ("(1, 8)", True), ("(1, 1)", False)],
)
def test_iterations_are_told_apart_in_memory_whatever_the_strides(view, independent):
    body = f"""D = T.match_buffer(c, (8, 8), "float32", strides={view})
for i in T.serial(8):
    for j in T.serial(8):
        D[i, j] = D[i, j] + 1.0"""
    text = body.replace("\n", "\n    ")
    source_ = f"""from spcomp import script as T


@T.prim_func
def view(c: T.handle, n: T.int64) -> None:
    T.func_attr({{"sparse_tir_level": 1}})
    {text}
"""
    program = Schedule(parse_source(source_, "view.py")[0])
    assert Parallel("i").is_legal(program.func) is independent


@pytest.mark.parametrize(("shape", "independent"), [("(8, 8)", True), ("(4, 16)", False)])
def test_two_shapes_of_one_array_are_not_told_apart_by_an_index(shape, independent):
    text = f"""from spcomp import script as T


@T.prim_func
def shapes(c: T.handle) -> None:
    T.func_attr({{"sparse_tir_level": 1}})
    C = T.match_buffer(c, (8, 8), "float32")
    D = T.match_buffer(c, {shape}, "float32")
    for i in T.serial(4):
        C[i, 0] = {"C" if independent else "D"}[i, 0]
"""
    program = Schedule(parse_source(text, "shapes.py")[0])
    assert Parallel("i").is_legal(program.func) is independent


GUARDED = """from spcomp import script as T


@T.prim_func
def total(x: T.handle, y: T.handle, m: T.int32, n: T.int32, p: T.int32) -> None:
    I = T.dense_fixed(m)
    J = T.dense_fixed(n)
    K = T.dense_fixed(p)
    X = T.match_sparse_buffer(x, (I,), "float32")
    Y = T.match_sparse_buffer(y, (I,), "float32")
    with T.sp_iter([I, J, K], "SRR", "total") as [i, j, k]:
        with T.init():
            Y[i] = 1.0
        Y[i] = Y[i] + X[i]
"""


def test_a_block_with_a_condition_inside_is_not_copied_beyond_it():
    """The rest of a split is a condition in the inner block: a copy would leave the buffer."""
    program = parse_source(GUARDED, "guarded.py")[0]
    schedule = Schedule(program).lower_sparse_iter().split("i", 4).blockize("k")
    with pytest.raises(ScheduleError, match="accessed under a condition only"):
        schedule.cache_write("total0_o", 0, "local")
