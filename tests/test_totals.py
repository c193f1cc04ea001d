"""Reductions into one element, or into one row: what default schedules do, and their results."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sps

import spcomp
from spcomp.knobs import CPU_KNOBS, CUDA_GRID
from tests.machines import runnable
from tests.test_schedule_steps import scheduled

EMULATED = "cuda:sm_90,emulate"
STRIP, WARP_STRIP = CPU_KNOBS.chunk_elements, CUDA_GRID.total_elements
LENGTHS = (0, 1, 31, STRIP - 1, STRIP, STRIP + 1, 3 * STRIP + 77)
GPU_LENGTHS = (0, 1, 31, WARP_STRIP, WARP_STRIP + 1, 2 * WARP_STRIP + 77)
SHAPES = ((0, 3), (3, 0), (1, 1), (127, 5), (128, 5), (129, 33), (300, 7), (2100, 3), (5, 700))
REDUCTIONS = {
    "sum({}, {})": lambda a, axis: a.sum(axis),
    "max({}, {})": lambda a, axis: a.max(axis, initial=-9),
    "min({}, {})": lambda a, axis: a.min(axis, initial=9),
    "any({}, {} > 2)": lambda a, axis: (a > 2).any(axis),
    "all({}, {} < 3)": lambda a, axis: (a < 3).all(axis),
}


def numbers(*shape, dtype="float32"):
    """Small whole numbers, so that sums are exact in any order; 3 is rare."""
    rng = np.random.default_rng(sum(shape))
    found = rng.integers(-3, 3, shape)
    found[rng.random(shape) < 3e-4] = 3
    return found.astype(dtype)


def steps(kernel):
    return str(kernel.trace)


@pytest.mark.sample(4, long=1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("text", REDUCTIONS)
@pytest.mark.parametrize("target", ["cpu", runnable("cpu:x86-64-v3"), EMULATED])
def test_totals_of_vectors_are_those_of_numpy(text, dtype, target):
    kernel = spcomp.compile("y = " + text.format("i", "a[i]"), target=target)
    for length in GPU_LENGTHS if target == EMULATED else LENGTHS:
        if length or text[:3] not in ("max", "min"):
            a = numbers(length, dtype=dtype)
            assert kernel(a=a) == REDUCTIONS[text](a, None), length


@pytest.mark.parametrize("name", ["any", "all"])
@pytest.mark.parametrize("target", ["cpu", EMULATED])
def test_totals_of_conditions_in_memory_are_those_of_numpy(name, target):
    kernel = spcomp.compile(f"y = {name}(i, a[i])", target=target)
    for length in (1, 63, 64, 65, WARP_STRIP + 1, STRIP + 1):
        for at in {0, length // 2, length - 1}:
            a = np.full(length, name == "all")
            assert kernel(a=a) == (name == "all")
            a[at] ^= True
            assert kernel(a=a) == (name == "any")


@pytest.mark.sample(2, long=1)
@pytest.mark.parametrize("text", REDUCTIONS)
@pytest.mark.parametrize("target", ["cpu", EMULATED])
def test_totals_of_rows_of_columns_and_of_matrices_are_those_of_numpy(text, target):
    for left, index, axis in (("y", "(i, j)", (0, 1)), ("y[j]", "i", 0), ("y[i]", "j", 1)):
        kernel = spcomp.compile(f"{left} = " + text.format(index, "a[i, j]"), target=target)
        for shape in SHAPES:
            a = numbers(*shape, dtype="int32")
            if a.size or text[:3] not in ("max", "min"):
                np.testing.assert_array_equal(kernel(a=a), REDUCTIONS[text](a, axis))


def test_a_total_has_the_same_bits_with_any_number_of_threads():
    a = np.random.default_rng(0).standard_normal(10 * STRIP + 5).astype(np.float32)
    kernel = spcomp.compile("y = sum(i, a[i] * a[i])")
    found = set()
    for count in (1, 2, 3, 7):
        with spcomp.num_threads(count):
            found.add(float(kernel(a=a)))
    assert len(found) == 1
    assert found.pop() == pytest.approx(float(a.astype(float) @ a), rel=1e-5)


def test_a_long_vector_is_reduced_in_strips_on_all_threads():
    kernel = spcomp.compile("y = sum(i, a[i])").specialize(a=np.zeros(3, np.float32))
    for step in (f"loop_partition('i', {STRIP})", "partial_results('i_o')", "parallel('i_o')"):
        assert step in steps(kernel)
    assert "vectorize('i_i')" in steps(kernel)


def test_columns_are_reduced_on_all_threads():
    kernel = spcomp.compile("y[j] = sum(i, a[i, j])").specialize(a=np.zeros((3, 3), np.float32))
    assert "parallel('j_o')" in steps(kernel)


@pytest.mark.parametrize("name", ["any", "all"])
def test_conditions_are_reduced_in_vectors(name):
    kernel = spcomp.compile(f"y = {name}(i, a[i] > 0)").specialize(a=np.zeros(3, np.float32))
    assert "vectorize('i_i')" in steps(kernel)
    (part,) = kernel.kernels()
    assert "T.vector_reduce(" in part.stage("flat")


def test_gpus_reduce_totals_on_many_threads_in_few_launches():
    cases = {
        "y = sum(i, v[i])": 4,
        "y = sum((i, j), a[i, j])": 5,
        "y[j] = sum(i, a[i, j])": 2,
        "y = sum((i, j), s[i, j] * a[i, j])": 3,
    }
    rng = np.random.default_rng(0)
    a = rng.random((40, 30)).astype(np.float32)
    arrays = {"v": a[0], "a": a, "s": sps.csr_array(a * (a > 0.5))}
    for text, launches in cases.items():
        args = {name: array for name, array in arrays.items() if f"{name}[" in text}
        kernel = spcomp.compile(text, target=EMULATED)
        kernel(**args)
        (part,) = kernel.kernels()
        assert part.source("ptx").count(".entry") == launches
        assert "threadIdx.x" in part.stage("position")


def test_lanes_of_a_warp_exchange_conditions_whatever_they_are():
    kernel = spcomp.compile("y[i] = all(j, a[i, j] < 3)", target=EMULATED)
    a = np.where(np.eye(33) > 0, 3, 0)  # one lane after the other has the condition that fails
    assert not kernel(a=a).any()
    (part,) = kernel.kernels()
    assert re.search(r"partial\[\w+\] & partial\[\w+ \^ ", part.stage("flat"))


def test_partitioning_is_legal_after_a_reduction_has_started():
    schedule = scheduled("csrmm").decompose_reduction("csrmm1", "j").loop_partition("j", 4)
    assert "j_rest" in schedule.func.script()
