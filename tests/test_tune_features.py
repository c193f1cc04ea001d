"""AutoTVM's loop features: TVM's own programs, its documentation, and loops counted by running."""

from __future__ import annotations

import json
import math
import random
import re

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ArgumentError, LoweringError
from spcomp.ir.access import Load
from spcomp.ir.expr import BinOp, Var
from spcomp.ir.module import single
from spcomp.ir.stmt import For, Seq
from spcomp.tune import (
    flatten_itervar_feature,
    from_tvm_ast,
    get_flatten_name,
    get_itervar_feature,
    get_itervar_feature_flatten,
)
from tests.layers import source
from tests.programs import PROGRAMS


@T.prim_func
def gemm(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (128, 128), "float32")
    B = T.match_buffer(b, (128, 128), "float32")
    C = T.match_buffer(c, (128, 128), "float32")
    for y, x, k in T.grid(128, 128, 128):
        with T.block("C"):
            vy, vx, vk = T.axis.remap("SSR", [y, x, k])
            with T.init():
                C[vy, vx] = 0.0
            C[vy, vx] = C[vy, vx] + A[vy, vk] * B[vk, vx]


csrmm = source("csrmm").specialize({"feat": 64})


LISTING = """
---------------------------
_itervar_ [y]
_attr_ [128, 1, 128, 2097152, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
_arith_ [0, 0, 0]
A_0 [128, -1, 16384, 128, 0, 0]
B_0 [0, -1, 16384, 128, 0, 0]
C_0 [128, -1, 16384, 1, 0, 0]
C_1 [128, -1, 16384, 128, 0, 0]
C_2 [128, -1, 16384, 128, 0, 0]
---------------------------
_itervar_ [x]
_attr_ [128, 2, 16384, 16384, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
_arith_ [0, 0, 0]
A_0 [0, -1, 128, 128, 0, 0]
B_0 [1, -1, 16384, 1, 0, 0]
C_0 [1, -1, 128, 1, 0, 0]
C_1 [1, -1, 128, 128, 0, 0]
C_2 [1, -1, 128, 128, 0, 0]
---------------------------
_itervar_ [k]
_attr_ [128, 3, 2097152, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
_arith_ [1, 1, 0]
A_0 [1, -1, 128, 1, 0, 0]
B_0 [128, -1, 128, 1, 0, 0]
C_1 [0, -1, 1, 128, 0, 0]
C_2 [0, -1, 1, 128, 0, 0]
"""  # what AutoTVM's documentation prints, with its spaces


def listing(fea):
    """The text that the documentation's loop prints, in single spaces as it shows it."""
    lines = []
    for row in fea:
        lines.append("\n---------------------------")
        lines += ["%-10s %s" % (pair[0], pair[1:]) for pair in row]  # noqa: UP031 (its own line)
    return re.sub(" +", " ", re.sub("\n+", "\n", "\n".join(lines))) + "\n"


def entry(fea, loop, key):
    (row,) = [row for row in fea if row[0][1] == loop]
    (values,) = [values for name, *values in row[1:] if name == key]
    return values


def test_the_listing_of_the_documentation_prints_exactly():
    assert listing(get_itervar_feature(gemm, slots=10, init=True)) == LISTING


def test_a_schedule_its_function_its_module_and_its_flat_function_have_the_same_features():
    schedule = spcomp.Schedule(gemm).split("x", 32).reorder("x_o", "k", "x_i").vectorize("x_i")
    want = get_itervar_feature(schedule, init=True)
    assert get_itervar_feature(schedule.func, init=True) == want
    assert get_itervar_feature(schedule.mod, init=True) == want
    assert get_itervar_feature(schedule.lower_sparse_buffer()) == want
    assert get_itervar_feature(schedule.lower_sparse_buffer().func) == want
    assert [row[0][1] for row in get_itervar_feature(schedule)] == ["y", "x_o", "k", "x_i"]


@pytest.mark.shared_data
def test_programs_of_tvm_have_tvms_features(shared_data):
    cases = json.loads((shared_data / "itervar" / "reference.json").read_text())["cases"]
    assert len(cases) == 20
    for name, case in cases.items():
        func = from_tvm_ast(case["ast"])
        fea = get_itervar_feature(func)
        assert fea == case["features"], name
        assert flatten_itervar_feature(fea) == case["flatten"], name
        assert get_flatten_name(fea) == case["names"], name
        assert get_itervar_feature_flatten(func) == case["flatten_fast_log"], name
        assert get_itervar_feature_flatten(func, False) == case["flatten_fast_nolog"], name
        logs = flatten_itervar_feature(get_itervar_feature(func, take_log=True))
        np.testing.assert_allclose(logs, case["flatten_of_log_features"], rtol=1e-14)
        with_init = get_itervar_feature(from_tvm_ast(case["with_init"]["ast"]))
        assert with_init == case["with_init"]["features"], name


@pytest.mark.shared_data
def test_the_documentation_has_ten_slots(shared_data):
    reference = json.loads((shared_data / "itervar" / "reference.json").read_text())
    func = from_tvm_ast(reference["cases"]["gemm_yxk"]["with_init"]["ast"])
    assert get_itervar_feature(func, slots=10) == reference["seed_document"]["rows"]


# Loops counted by running


def accesses_under(loop):
    """Run *loop* once; for each access, count the different loop states of its index, and all."""
    accesses = {}

    def visit(stmt, env):
        if isinstance(stmt, Seq):
            for part in stmt.body:
                visit(part, env)
        elif isinstance(stmt, For):
            for value in range(stmt.end.value):
                visit(stmt.body, {**env, stmt.var: value})
        else:
            for access in (stmt, *loads(stmt.value)):
                used = variables(access.indices[0])
                state = tuple(env[var] for var in env if var in used)
                states, times = accesses.get(access, (set(), 0))
                accesses[access] = (states | {state}, times + 1)

    visit(loop, {})
    return [(len(states), times) for states, times in accesses.values()]


def loads(expr):
    if isinstance(expr, Load):
        return [expr]
    return [load for side in (expr.lhs, expr.rhs) for load in loads(side)]


def variables(expr):
    if isinstance(expr, Var):
        return {expr}
    if isinstance(expr, BinOp):
        return variables(expr.lhs) | variables(expr.rhs)
    return set()


def random_nest(rng):
    """A nest as TVM writes it, whose loops run 1 to 4 times, and the names of its accesses."""
    names = [f"i{k}" for k in range(rng.randint(1, 4))]
    extents = {name: rng.randint(1, 4) for name in names}

    def index():
        used = rng.sample(names, rng.randint(0, len(names)))
        expr = ["imm", "int32", 3]
        for name in used:
            term = ["mul", "int32", ["var", name, 0], ["imm", "int32", rng.randint(2, 9)]]
            expr = ["add", "int32", term, expr]
        return expr

    value = ["load", "float32", "A", index()]
    for buffer in rng.sample("BCD", 2):
        value = [rng.choice(["add", "mul"]), "float32", value, ["load", "float32", buffer, index()]]
    ast = ["store", "Z", value, index()]
    for name in reversed(names):
        ast = ["for", name, 0, ["imm", "int32", extents[name]], "serial", ast]
    return ast, extents


@pytest.mark.parametrize("seed", range(20))
def test_the_numbers_are_those_of_running_the_loops(seed):
    ast, extents = random_nest(random.Random(seed))
    func = from_tvm_ast(ast)
    loop, around = func.body, 1
    for level, row in enumerate(get_itervar_feature(func), 1):
        (_, name), (_, length, nest_level, topdown, bottomup, *_), (_, *arith), *touches = row
        around *= extents[name]
        assert (length, nest_level, topdown) == (extents[name], level, around)
        counted = accesses_under(loop)
        assert bottomup == max(times for _, times in counted)
        got = sorted((count, count * reuse) for _, _, _, count, reuse, _, _ in touches)
        assert got == sorted(counted)
        innermost = level == len(extents)
        assert sum(arith) == (2 if innermost else 0)
        loop = loop.body


# Schedules


def test_kinds_of_loops_are_annotations():
    schedule = (
        spcomp.Schedule(gemm).split("x", 32).split("k", 4).reorder("y", "x_o", "k_o", "k_i", "x_i")
    )
    fea = get_itervar_feature(schedule.parallel("y").unroll("k_i").vectorize("x_i"))
    hot = {str(row[0][1]): row[1][5:].index(1) for row in fea}
    assert hot == {"y": 8, "x_o": 9, "k_o": 9, "k_i": 6, "x_i": 7}


def test_threads_share_what_the_loops_inside_touch():
    schedule = spcomp.Schedule(gemm).bind("y", "blockIdx.x").bind("x", "threadIdx.x")
    fea = get_itervar_feature(schedule)
    assert entry(fea, "y", "_attr_")[4:].index(1) == 0
    assert entry(fea, "x", "_attr_")[4:].index(1) == 3
    assert entry(fea, "x", "A_0") == [0, -1, 128, 128, 1, 128]
    assert entry(fea, "x", "B_0") == [1, -1, 128 * 128, 1, 128, 1]
    assert entry(fea, "k", "B_0")[-2:] == [0, 0]


def test_a_virtual_thread_has_a_slot_only_among_eleven():
    schedule = spcomp.Schedule(gemm).bind("y", "vthread.x")
    assert sum(entry(get_itervar_feature(schedule), "y", "_attr_")[4:]) == 1
    assert sum(entry(get_itervar_feature(schedule, slots=10), "y", "_attr_")[4:]) == 0


def test_loops_whose_extent_the_data_decide_have_length_minus_one_or_what_is_said():
    schedule = spcomp.Schedule(csrmm).lower_sparse_iter()
    fea = get_itervar_feature(schedule)
    lengths = {str(row[0][1]): row[1][1] for row in fea}
    assert lengths == {"i": -1, "j": -1, "k": 64}
    fea = get_itervar_feature(schedule, extents={"i": 1000, "j": 12})
    assert entry(fea, "i", "_attr_")[:4] == [1000, 1, 1000, 1000 * 12 * 64]
    assert entry(fea, "j", "B_0") == [1, -1, 12 * 64, 1, 0, 0]  # the stride of the index inside
    assert entry(fea, "k", "_arith_") == [1, 1, 0]


def test_a_prefetch_touches_nothing():
    schedule = spcomp.Schedule(csrmm).lower_sparse_iter()
    rows = {row[0][1]: row for row in get_itervar_feature(schedule.prefetch("j", 16))}
    for row in get_itervar_feature(schedule):
        assert rows.pop(row[0][1]) == row
    (prefetches,) = rows.values()  # a loop over cache lines
    assert prefetches[1][4] == -1
    assert len(prefetches) == 3


def test_a_merge_is_a_while_loop():
    merging = next(p for p in PROGRAMS if "T.intersect" in p.source and not p.assembles)
    fea = get_itervar_feature(single(merging.build()), extents={"while": 7})
    (length, *_) = next(row[1][1:] for row in fea if row[0][1] == "while")
    assert length == 7


@pytest.mark.filterwarnings("ignore:.*it is treated as a reduction")
def test_every_program_of_the_corpus_has_features_with_names():
    for program in PROGRAMS:
        fea = get_itervar_feature(single(program.build()))
        names = get_flatten_name(fea)
        assert len(names) == len(set(names)) == len(flatten_itervar_feature(fea)), program.name
        assert all(map(math.isfinite, get_itervar_feature_flatten(single(program.build()))))


# Refusals


def test_wrong_arguments_are_refused():
    with pytest.raises(ArgumentError, match="slots is 9"):
        get_itervar_feature(gemm, slots=9)
    with pytest.raises(ArgumentError, match="program"):
        get_itervar_feature("for i: ...")
    with pytest.raises(ArgumentError, match="no loop 'q'\nhint: loops are i, j, k"):
        get_itervar_feature(csrmm, extents={"q": 3})
    with pytest.raises(ArgumentError, match="extents"):
        get_itervar_feature(csrmm, extents={"j": 1.5})


ZERO = ["imm", "int32", 0]


@pytest.mark.parametrize(
    ("ast", "message"),
    [
        (["loop"], r"not a TVM statement: \['loop'\]"),
        (["store", "A", ["call", "float32", "tir.magic"], ZERO], "not a TVM call"),
        (["store", "A", ["var", "i", []], ZERO], "not a TVM expression"),
        (["store", "A", ["load", "float7", "B", ZERO], ZERO], "unknown dtype 'float7'"),
        (["attr", "thread_extent", "lane", 0, 4, ["seq"]], "no index of a grid: 'lane'"),
        (None, "not a TVM statement: None"),
    ],
)
def test_what_is_no_statement_of_tvm_is_refused(ast, message):
    with pytest.raises(ArgumentError, match=message):
        from_tvm_ast(ast)


def test_a_function_of_several_phases_is_refused_and_its_module_is_not():
    program = next(p for p in PROGRAMS if p.assembles)
    assert get_itervar_feature(single(program.build()))
    with pytest.raises(LoweringError, match="phases"):
        spcomp.lower_sparse_iter(program.build())
