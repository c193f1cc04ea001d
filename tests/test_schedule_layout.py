"""transform_layout and pad_einsum: what they build, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp import script as T
from spcomp.errors import ScheduleError
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.expr import Const
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc
from spcomp.ir.structural import structural_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.script.parse import parse_source
from tests.layers import interpreted
from tests.programs import BY_NAME
from tests.test_schedule_reduction import flat
from tests.test_schedule_steps import scheduled


@T.prim_func
def staged(x: T.handle, y: T.handle, n: T.int32) -> None:
    X = T.match_buffer(x, (n, 6), "float32")
    Y = T.match_buffer(y, (n, 6), "float32")
    S = T.alloc_buffer((n, 6), "float32")
    for i, j in T.grid(n, 6):
        with T.block("fill"):
            vi, vj = T.axis.remap("SS", [i, j])
            S[vi, vj] = X[vi, vj] + 1.0
    for i1, j1 in T.grid(n, 6):
        with T.block("use"):
            vi, vj = T.axis.remap("SS", [i1, j1])
            Y[vi, vj] = S[vi, 5 - vj]


def shapes(schedule):
    allocs = (n.buffer for n in walk(schedule.func.body) if isinstance(n, Alloc))
    return {
        b.name: [str(n.value) if isinstance(n, Const) else "?" for n in b.shape] for b in allocs
    }


def check_staged(schedule, n=5):
    x = np.arange(n * 6, dtype="float32")
    for run in (lambda *a: interpreted(schedule.func, dict(zip("xyn", a, strict=True))),
                lambda *a: interpreted(flat(schedule), dict(zip("xyn", a, strict=True))),
                spcomp.compile(schedule)):  # fmt: skip
        y = np.full(n * 6, 7, "float32")
        run(x, y, n)
        assert np.array_equal(y.reshape(n, 6), x.reshape(n, 6)[:, ::-1] + 1)


# -- transform_layout --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index_map", "shape"),
    [
        (lambda i, j: (j, i), ["6", "?"]),
        (lambda i, j: (i // 4, j, i % 4), ["?", "6", "4"]),
        (lambda i, j: i * 6 + j, ["?"]),
        (lambda i, j: (i, j // 4, j % 4), ["?", "2", "4"]),
        ("lambda r, c: (c // 2, r, c % 2)", ["3", "?", "2"]),
    ],
)
def test_a_local_buffer_takes_any_layout_that_has_a_place_for_each_element(index_map, shape):
    schedule = Schedule(staged).transform_layout("fill", "S", index_map)
    assert shapes(schedule) == {"S": shape}
    check_staged(schedule)
    check_staged(schedule, 0)
    again = Schedule(staged).replay(Trace.from_json_lines(schedule.trace.to_json_lines()))
    assert structural_equal(again.func, schedule.func)


@pytest.mark.parametrize(
    ("buffer", "index_map", "reason"),
    [
        ("S", lambda i, j: i + j, "two elements may get one place"),
        ("S", lambda i, j: (i // 2, j), "two elements may get one place"),
        ("S", lambda i: i, "S has 2 axes"),
        ("X", lambda i, j: (j, i), "X is a parameter, or lies along sparse axes"),
        ("Y", lambda i, j: (j, i), "block fill has no Y"),
        ("S", "lambda i, j: (i / 2, j)", "is not made of parameters, integers"),
        ("S", "i, j", "is no lambda"),
        ("S", "lambda i, j: (", "is no Python"),
        ("S", lambda i, j: ("a", j), "no index map"),
    ],
)
def test_a_layout_is_refused_with_the_reason(buffer, index_map, reason):
    with pytest.raises(ScheduleError, match=reason):
        Schedule(staged).transform_layout("fill", buffer, index_map)


def test_an_index_map_is_its_text():
    for text in ("lambda i, j: (j, i)", "lambda i: ((i + 3) // 4, i % 4)", "lambda i: i * -2"):
        made = IndexMap.from_text(text)
        assert structural_equal(
            (made.params, made.results),
            ((again := IndexMap.from_text(str(made))).params, again.results),
        )
    with pytest.raises(ValueError, match="is not made of"):
        IndexMap.from_text("lambda i: k")


# -- pad_einsum --------------------------------------------------------------------------------


def einsum(*, start="0.0", combine="Y[vi, vj] + {}", value="A[vi, vk] * B[vk, vj]"):
    text = """from spcomp import script as T


@T.prim_func
def gemm(a: T.handle, b: T.handle, y: T.handle, m: T.int32, n: T.int32, k: T.int32) -> None:
    A = T.match_buffer(a, (m, k), "float32")
    B = T.match_buffer(b, (k, n), "float32")
    Y = T.match_buffer(y, (m, n), "float32")
    for i, j, l in T.grid(m, n, k):
        with T.block("gemm"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, l])
"""
    if start is not None:
        text += f"            with T.init():\n                Y[vi, vj] = {start}\n"
    text += f"            Y[vi, vj] = {combine.format(value)}\n"
    (func,) = parse_source(text, "gemm.py")
    return Schedule(func)


def check_einsum(before, after, *cases):
    kernel, lowered = spcomp.compile(after), flat(after)
    for m, n, k in cases:
        rng = np.random.default_rng(0)
        a, b, y = (rng.integers(-4, 5, s).astype("float32") for s in (m * k, k * n, m * n))
        a[:1], b[:1] = np.inf, np.inf
        arguments = {"a": a, "b": b, "m": m, "n": n, "k": k}
        want, first, second, third = (y.copy() for _ in range(4))
        interpreted(before.func, {**arguments, "y": want})
        interpreted(after.func, {**arguments, "y": first})
        interpreted(lowered, {**arguments, "y": second})
        kernel(a, b, third, m, n, k)
        for got in (first, second, third):
            assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("start", ["0.0", None])
@pytest.mark.parametrize("padding", [(4, 1, 1), (1, 4, 1), (1, 1, 4), (4, 4, 4)])
def test_extents_are_rounded_up_and_the_result_is_the_same(padding, start):
    before = einsum(start=start)
    after = before.pad_einsum("gemm", padding)
    assert "gemm_A_pad" in after.made or "gemm_B_pad" in after.made
    check_einsum(before, after, (3, 2, 5), (4, 4, 4), (1, 1, 1), (0, 3, 2), (3, 2, 0))


def test_a_padded_loop_splits_without_a_guard():
    after = einsum().pad_einsum("gemm", (1, 8, 1)).split("j", 8)
    assert all(n.where is None for n in walk(after.func.body) if isinstance(n, Block))
    check_einsum(einsum(), after, (5, 6, 7))


@pytest.mark.parametrize(
    ("start", "combine", "value"),
    [
        ("T.min_value('float32')", "T.max(Y[vi, vj], {})", "A[vi, vk] + B[vk, vj]"),
        ("T.max_value('float32')", "T.min(Y[vi, vj], {})", "A[vi, vk] + B[vk, vj]"),
        ("1.0", "Y[vi, vj] * {}", "(A[vi, vk] * B[vk, vj])"),
        ("0.0", "Y[vi, vj] - {}", "2.0 * A[vi, vk] * B[vk, vj]"),
    ],
)
def test_operands_are_filled_up_with_what_changes_nothing(start, combine, value):
    before = einsum(start=start, combine=combine, value=value)
    check_einsum(before, before.pad_einsum("gemm", (4, 4, 4)), (3, 3, 3))


def test_extents_that_are_multiples_are_left_alone():
    before = scheduled("csrmm")
    assert before.pad_einsum("csrmm1", (1, 1)).func is before.func


@pytest.mark.parametrize(
    ("program", "padding", "reason"),
    [
        ({}, (4, 4), "gemm has 3 iters"),
        ({}, (4, 4, 0), "extents are rounded up to multiples of at least 1"),
        ({"value": "A[vi, vk] * B[0, vj]"}, (1, 1, 4), "infinities in it would show"),
        ({"value": "A[vi, vk] * B[vk + 0, vj]"}, (4, 4, 4), "an index of B is no iter"),
        ({"value": "T.exp(A[vi, vk])"}, (1, 1, 4), "is not made of products of elements"),
        (
            {"start": "1.0", "combine": "Y[vi, vj] * {}", "value": "(-A[vi, vk] * B[vk, vj])"},
            (1, 1, 4),
            "is not made of products of elements",
        ),
        ({"combine": "{}"}, (4, 4, 4), "it is no associative update of one element"),
        ({"start": "B[0, vj]"}, (4, 4, 4), "its init is more than a constant stored"),
    ],
)
def test_pad_einsum_says_what_stands_against_it(program, padding, reason):
    with pytest.raises(ScheduleError, match=reason):
        einsum(**program).pad_einsum("gemm", padding)


def test_operands_that_divide_are_not_filled_up_with_zeros():
    text = einsum(value="A[vi, vk] // B[vk, vj]").func.script().replace("float32", "int32")
    (func,) = parse_source(text.replace("= 0.0", "= 0"), "gemm.py")
    with pytest.raises(ScheduleError, match="a division by what operands are filled up with"):
        Schedule(func).pad_einsum("gemm", (4, 1, 1))


def test_a_contraction_over_stored_positions_is_not_padded_along_them():
    with pytest.raises(ScheduleError, match="how often 'j' runs is not known at the call"):
        scheduled("csrmm").pad_einsum("csrmm1", (4, 1))
    with pytest.raises(ScheduleError, match="it is no plain nest of one loop for each iter"):
        scheduled("csrmm").split("k", 4).pad_einsum("csrmm1", (1, 4))


def test_a_shared_result_is_not_copied():
    with pytest.raises(ScheduleError, match="may update its elements at the same time"):
        einsum().annotate("gemm", "atomic", True).pad_einsum("gemm", (4, 4, 4))


def test_what_is_read_under_a_condition_only_is_not_copied():
    schedule = Schedule(BY_NAME["ell_product"].build("float32"))
    fused = schedule.sparse_fuse("ell_product", ("i", "j")).lower_sparse_iter()
    with pytest.raises(ScheduleError, match="B is read under a condition only"):
        fused.pad_einsum("ell_product1", (4,))


def test_pad_einsum_replays():
    schedule = einsum().pad_einsum("gemm", [4, 4, 4])
    text = schedule.trace.to_json_lines()
    again = einsum().replay(Trace.from_json_lines(text))
    assert structural_equal(again.func, schedule.func)
