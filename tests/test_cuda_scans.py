"""Running sums between kernels, on the GPU: right for any length, in any order of blocks."""

from __future__ import annotations

import numpy as np
import pytest

import spcomp
from spcomp.compiler.pipeline import lower
from spcomp.errors import ArgumentError
from spcomp.ir.module import Launch, Scan
from spcomp.knobs import CUDA_GRID
from spcomp.script.parse import parse_source
from tests.emulated import EMULATED, ORDERS, TARGET, Kernels, order, small_blocks

TEXT = """
from spcomp import script as T


@T.ir_module
class sums:
    @T.prim_func
    def source(x: T.handle, y: T.handle, n: T.int64) -> None:
        X = T.match_buffer(x, (n,), "int64")
        Y = T.match_buffer(y, (n,), "{dtype}")
        Y[0] = 0

    @T.prim_func
    def copy(x: T.handle, y: T.handle, n: T.int64) -> None:
        X = T.match_buffer(x, (n,), "int64")
        Y = T.match_buffer(y, (n,), "{dtype}")
        for i in T.parallel(n):
            Y[i] = T.cast(X[i], "{dtype}")

    @T.host
    def main(x: T.handle, y: T.handle, n: T.int64) -> None:
        y = T.host_alloc(n, "{dtype}")
        T.launch("copy")
        T.scan(y)
{more}
        T.host_return(y)
"""
MORE = """
        z = T.host_alloc(y[n - 1], "int64")
        T.scan(z)
"""


def scan(dtype="int64", more=""):
    return parse_source(TEXT.format(dtype=dtype, more=more), "sums.py")[0]


def numbers(length, seed=0):
    return np.random.default_rng(seed).integers(0, 9, length)


def expected(x):
    return np.cumsum(np.r_[np.zeros(min(x.size, 1), np.int64), x[1:]])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_arrays_of_any_length_are_added_up(dtype):
    kernels, tile = Kernels(scan(dtype)), CUDA_GRID.block_threads * CUDA_GRID.scan_elements
    lengths = (
        0,
        1,
        2,
        CUDA_GRID.scan_elements,
        CUDA_GRID.scan_elements + 1,
        tile - 1,
        tile,
        tile + 1,
        3 * tile + 5,
    )
    for number, length in enumerate(lengths):
        x = numbers(length, number)
        with order(ORDERS[number % len(ORDERS)]):
            got = kernels({"x": x, "n": length})["y"]
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, expected(x), f"{length} elements")


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_the_totals_of_more_tiles_than_fit_one_block_are_added_up_in_turns(threads):
    tile = threads * CUDA_GRID.scan_elements
    length = tile * (tile + 2) - 1
    with small_blocks(threads):
        kernels = Kernels(scan())
        for seed in ORDERS[1:3]:
            x = numbers(length)
            with order(seed):
                np.testing.assert_array_equal(kernels({"x": x, "n": length})["y"], expected(x))


def test_a_sum_that_the_array_cannot_hold_fails_the_call():
    kernels = Kernels(scan("int8"))
    fits = np.full(128, 1)
    np.testing.assert_array_equal(kernels({"x": fits, "n": 128})["y"], np.arange(128))
    with pytest.raises(ArgumentError, match="failed"):
        kernels({"x": np.full(129, 1), "n": 129})


def test_the_message_says_what_to_do():
    kernel = spcomp.compile(scan("int8"), target=EMULATED)
    with pytest.raises(ArgumentError, match=r"more elements than int8 .* idtype=\"int64\""):
        kernel(X=np.full(129, 1), n=129)


def test_no_array_is_added_up_on_the_host():
    host = lower(scan(), TARGET).flat.host
    assert not any(isinstance(op, Scan) for op in host)
    names = [op.func for op in host if isinstance(op, Launch)]
    assert names == ["copy", "y_scan_0", "y_scan_1", "y_scan_2"]


def test_an_array_whose_size_lies_in_memory_is_left_to_the_host():
    flat = lower(scan(more=MORE), TARGET).flat
    assert [op.buffer.name for op in flat.host if isinstance(op, Scan)] == ["z"]
