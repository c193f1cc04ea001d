"""What no step may be given: other types, numbers whose products overflow, endless code."""

from __future__ import annotations

import pytest

from spcomp.compiler.pipeline import lower
from spcomp.errors import ScheduleError
from spcomp.ir.arith.indexmap import IndexMap
from spcomp.ir.visitor import walk
from spcomp.schedule.schedule import Schedule
from spcomp.schedule.step import Trace
from spcomp.script.parse import parse_source
from spcomp.target import Target
from tests.programs import BY_NAME

SERIAL = Target("cpu", "x86-64-v3", vector_bits=256)


def schedule(name="csrmm"):
    return Schedule(BY_NAME[name].build()).lower_sparse_iter()


@pytest.mark.parametrize("factors", [2.5, "", None, True, 2**31, [2, 2.0], [[1], None]])
def test_factors_of_other_types_or_sizes_are_refused_with_a_place(factors):
    with pytest.raises(ScheduleError, match="factors cannot be") as caught:
        schedule().split("k", factors)
    assert caught.value.span is not None


def test_an_argument_that_is_no_name_is_refused_in_a_trace_too():
    line = '{"func": "csrmm", "step": "split", "loop": ["k"], "factors": 16}'
    with pytest.raises(ScheduleError, match="loop cannot be"):
        schedule().replay(Trace.from_json_lines(line))
    with pytest.raises(ScheduleError, match="multiple cannot be"):
        schedule().loop_partition("k", 1.5)


def test_factors_whose_product_would_overflow_are_refused():
    with pytest.raises(ScheduleError, match="multiply to"):
        schedule().split("k", [2**20, None, 2**20])
    assert schedule().split("k", [2**15, None, 2**15]).made == ("k_0", "k_1", "k_2")


def test_a_loop_in_vectors_is_not_split_any_more():
    with pytest.raises(ScheduleError, match="split it first"):
        schedule().vectorize("k").split("k", 4)


def test_a_stride_is_not_rounded_up_to_more_than_memory_holds():
    made = schedule().cache_read("csrmm1", 2, "local")
    with pytest.raises(ScheduleError, match="larger than"):
        made.storage_align("csrmm1_load", 0, 0, 2**30, 1)


def test_an_index_map_that_divides_by_zero_is_none():
    for op in ("//", "%"):
        with pytest.raises(ValueError, match="divides by 0"):
            IndexMap.from_text(f"lambda i: i {op} 0")


def test_guards_of_nested_gathers_grow_with_the_program():
    (func,) = parse_source(schedule("hyper_gnn").func.script(), "hyper_gnn.py")
    before = sum(1 for _ in walk(func.body))
    after = sum(1 for _ in walk(lower(func, SERIAL, trace=Trace()).flat.funcs[0].body))
    assert after < 10 * before  # each gather was checked by what checked its index: 40 times
