"""Kernels that may fail are not waited for: a later call, or ``check``, says that one failed."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.errors import ArgumentError, SpcompWarning
from spcomp.runtime.cuda.status import Status
from spcomp.runtime.cuda.timing import capture
from tests.programs import BY_NAME
from tests.test_cuda_kernels import Torch, kinds

TARGET = "cuda:sm_90"


@pytest.fixture
def quotients(gpu):
    """A bound kernel that divides, its result, and the divisors, which tests change."""
    there = Torch(gpu)
    numbers, divisors = np.arange(9, dtype=np.int32), np.arange(1, 10, dtype=np.int32)
    kernel = spcomp.compile("q[i] = a[i] // b[i]", target=TARGET)
    arrays = {"b": there.put(divisors), "out": there.put(np.zeros(9, np.int32))}
    bound = kernel.bind(a=there.put(numbers))
    bound(**arrays)  # the first call of a kind waits
    return bound, arrays, there.get(arrays["b"]), there.get(arrays["out"])


def test_a_call_that_may_fail_waits_for_nothing(gpu, quotients):
    bound, arrays, divisors, result = quotients
    gpu.log.clear()
    before = len(gpu.memory)
    divisors[:] = 2
    bound(**arrays)
    np.testing.assert_array_equal(result, np.arange(9) // 2)
    assert not kinds(gpu, "synchronize", "upload")
    assert [size for _, size, _ in gpu.log] == [4]  # the word, behind the kernel
    assert len(gpu.memory) == before
    bound.check()


def test_the_next_call_raises_what_failed_and_then_nothing_has(quotients):
    bound, arrays, divisors, result = quotients
    divisors[4] = 0
    bound(**arrays)
    divisors[4] = 3
    result[:] = -7
    with pytest.raises(ArgumentError, match="division by zero, in an earlier call"):
        bound(**arrays)
    assert (result == -7).all()  # it did not run
    bound(**arrays)
    assert result[4] == 1
    bound.check()


def test_check_raises_what_failed_once(gpu, quotients):
    bound, arrays, divisors, _ = quotients
    divisors[0] = 0
    bound(**arrays)
    with pytest.raises(ArgumentError, match="division by zero") as caught:
        bound.check()
    assert "kernel.check()" in caught.value.hint
    bound.check()
    assert kinds(gpu, "synchronize")


def test_a_call_that_may_fail_can_be_recorded_as_a_graph(quotients):
    bound, arrays, divisors, result = quotients
    graph = capture(lambda stream: bound(**arrays, stream=stream))
    divisors[:] = 4
    graph.launch()
    np.testing.assert_array_equal(result, np.arange(9) // 4)
    bound.check()
    divisors[2] = 0
    graph.launch()
    with pytest.raises(ArgumentError, match="division by zero"):
        bound.check()


def test_a_failure_that_nobody_asks_for_is_a_warning(gpu):
    status = Status(["divide"], 0, 1)
    gpu.array(status.word(0), (1,), "int32")[:] = 0
    status.follow(1)
    assert status.failed
    with pytest.warns(SpcompWarning, match=r"divide failed on the GPU: kernel\.check\(\) says why"):
        del status


def test_programs_of_several_kernels_keep_them_apart(gpu):
    there = Torch(gpu)
    kernel = spcomp.compile(BY_NAME["floor_division"].build("int32", "int32"), target=TARGET)
    a, d = there.put(np.arange(7, dtype=np.int32)), 2
    q, r = (there.put(np.zeros(7, np.int32)) for _ in range(2))
    with pytest.raises(ArgumentError, match="integer division by zero"):
        kernel(a, q, r, 7, 0)  # not bound: it waits
    kernel(a, q, r, 7, d)
    np.testing.assert_array_equal(there.get(q), np.arange(7) // 2)
