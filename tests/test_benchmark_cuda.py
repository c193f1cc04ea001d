"""What the CUDA kernels of the benchmarks compute, compiled for the CPU: against scipy, numpy."""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps
import scipy.special

CUDA = Path(__file__).parents[1] / "benchmarks" / "cuda"
KERNEL = re.compile(r"__global__ void __launch_bounds__\([^)]*\)\s+(\w+)\(")
BY_MACRO = {
    "spmv": [f"csr_spmv_{lanes}" for lanes in (4, 8, 16, 32)],
    "spmm": [f"csr_{name}_{feat}" for name in ("spmm", "softmax_spmm") for feat in (32, 128)],
}
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="fibers are those of Linux"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
]


class OnCpu:
    """The kernels of one file: ``run(name, blocks, *arguments)`` with numpy arrays and numbers."""

    def __init__(self, name: str, folder: Path) -> None:
        text = (CUDA / f"{name}.cu").read_text()
        names = KERNEL.findall(text) + BY_MACRO.get(name, [])
        source = folder / f"{name}.cpp"
        exports = "".join(f"ON_CPU({n})\n" for n in names)
        source.write_text(f'#include "{name}.cu"\n{exports}')
        library = source.with_suffix(".so")
        flags = [
            "-std=c++17",
            "-O1",
            "-Wno-unknown-pragmas",
            "-Wno-dangling-pointer",
            "-shared",
            "-fPIC",
        ]
        shim = ["-I", str(CUDA), "-include", str(CUDA / "cuda_cpu.h")]
        subprocess.run(["g++", *flags, *shim, str(source), "-o", str(library)], check=True)
        self.library = ctypes.CDLL(str(library))

    def run(self, name: str, blocks: int, *arguments: Any) -> None:
        address = ctypes.c_void_p.in_dll(self.library, f"launch_{name}").value
        slots = [
            ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int(a)
            for a in arguments
        ]
        assert address is not None
        ctypes.CFUNCTYPE(None)(address)(ctypes.c_uint(blocks), ctypes.c_uint(256), *slots)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    names = ("spmm", "spmv", "sddmm", "segments")
    return {name: OnCpu(name, folder) for name in names}


def aligned(values: Any) -> np.ndarray:
    """A copy that begins at a multiple of 16 bytes, as all of a GPU's allocations do."""
    values = np.ascontiguousarray(values)
    room = np.empty(values.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    copy = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def matrix(rows: int, columns: int, lengths: Any, seed: int = 0) -> Any:
    """A CSR matrix with rows of these *lengths*, repeated as far as needed."""
    rng = np.random.default_rng(seed)
    lengths = np.resize(lengths, rows)
    indices = [np.sort(rng.choice(columns, n, replace=False)) for n in lengths]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    found = np.concatenate([np.zeros(0, int), *indices])
    values = rng.standard_normal(len(found), dtype=np.float32)
    return sps.csr_array(
        (aligned(values), aligned(found.astype(np.int32)), indptr.astype(np.int32)),
        shape=(rows, columns),
    )


MATRICES = {
    "mixed": matrix(150, 90, [0, 1, 3, 4, 5, 8, 9, 31, 32, 33, 64, 90]),
    "even": matrix(64, 40, [12]),
    "empty": matrix(70, 5, [0]),
    "one row": matrix(1, 300, [257]),
    "hub": matrix(40, 700, [1] * 17 + [650] + [2] * 22),
}


@pytest.mark.sample(3, long=2)
@pytest.mark.parametrize("feat", [32, 128])
@pytest.mark.parametrize("name", MATRICES)
def test_spmm_of_rows(on_cpu, name, feat):
    a = MATRICES[name]
    b = aligned(np.random.default_rng(1).standard_normal((a.shape[1], feat), dtype=np.float32))
    c = aligned(np.full((a.shape[0], feat), np.nan, np.float32))
    blocks = -(-a.shape[0] * feat // 4 // 256)
    on_cpu["spmm"].run(f"csr_spmm_{feat}", blocks, a.shape[0], a.indptr, a.indices, a.data, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("feat", [32, 128])
@pytest.mark.parametrize("name", MATRICES)
def test_spmm_with_the_softmax_of_rows(on_cpu, name, feat):
    a = MATRICES[name]
    scores = aligned(30 * a.data)
    weights = a.copy().astype(float)
    for begin, end in itertools.pairwise(a.indptr):
        if begin < end:
            weights.data[begin:end] = scipy.special.softmax(scores[begin:end].astype(float))
    b = aligned(np.random.default_rng(1).standard_normal((a.shape[1], feat), dtype=np.float32))
    c = aligned(np.full((a.shape[0], feat), np.nan, np.float32))
    blocks = -(-a.shape[0] * feat // 4 // 256)
    kernel = f"csr_softmax_spmm_{feat}"
    on_cpu["spmm"].run(kernel, blocks, a.shape[0], a.indptr, a.indices, scores, b, c)
    np.testing.assert_allclose(c, weights @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("feat", [32, 128])
def test_spmm_multiplies_no_infinity_by_padding(on_cpu, feat):
    a = matrix(37, 20, [3, 5, 1, 18, 0])
    b = aligned(np.ones((20, feat), np.float32))
    b[0] = b[7] = np.inf
    a.data[:] = 1
    c = aligned(np.full((37, feat), np.nan, np.float32))
    on_cpu["spmm"].run(f"csr_spmm_{feat}", 8, 37, a.indptr, a.indices, a.data, b, c)
    assert not np.isnan(c).any()
    touched = np.isin(a.indices, [0, 7])
    rows = np.repeat(np.arange(37), np.diff(a.indptr))[touched]
    assert np.array_equal(np.unique(np.nonzero(np.isinf(c))[0]), np.unique(rows))


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize("name", MATRICES)
def test_spmv_of_rows(on_cpu, name, lanes):
    a = MATRICES[name]
    x = np.random.default_rng(1).standard_normal(a.shape[1], dtype=np.float32)
    y = np.full(a.shape[0], np.nan, np.float32)
    blocks = -(-a.shape[0] * lanes // 256)
    on_cpu["spmv"].run(f"csr_spmv_{lanes}", blocks, a.shape[0], a.indptr, a.indices, a.data, x, y)
    np.testing.assert_allclose(y, a @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [0, 1, 3, 5, 1023, 4000, 5003])
def test_spmv_of_long_rows_touches_these_rows_only(on_cpu, length):
    a = matrix(7, 6000, [3, length, 1, length, 2, 0, 9])
    x = np.random.default_rng(1).standard_normal(a.shape[1], dtype=np.float32)
    y = np.full(7, np.nan, np.float32)
    rows = np.array([1, 3], np.int32)
    on_cpu["spmv"].run("csr_spmv_long", 2, rows, a.indptr, a.indices, a.data, x, y)
    np.testing.assert_allclose(y[rows], (a @ x)[rows], rtol=1e-3, atol=1e-3)
    assert np.isnan(np.delete(y, rows)).all()


@pytest.mark.parametrize("feat", [32, 128])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("name", ["mixed", "even", "one row"])
def test_sddmm_over_elements(on_cpu, name, blocks, feat):
    a = MATRICES[name].tocoo()
    rng = np.random.default_rng(1)
    x, y = (aligned(rng.standard_normal((n, feat), dtype=np.float32)) for n in a.shape)
    row, column = (aligned(i.astype(np.int32)) for i in a.coords)
    out = np.full(a.nnz, np.nan, np.float32)
    on_cpu["sddmm"].run(f"sddmm_{feat}", blocks, a.nnz, row, column, a.data, x, y, out)
    expected = a.data * np.einsum("pf,pf->p", x[row].astype(float), y[column])
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-4)


KEYS = {
    "short runs": np.sort(np.random.default_rng(2).integers(0, 900, 5000)),
    "one run": np.full(3 * 2048 + 5, 7),
    "a run over 40 tiles": np.sort(np.r_[0, 3, np.full(40 * 2048 + 77, 5), 6, 6, 9]),
    "runs end with tiles": np.repeat(np.arange(6), 1024),
    "every key once": np.arange(4096),
    "one element": np.array([4]),
}


@pytest.mark.parametrize("name", KEYS)
def test_sums_over_segments(on_cpu, name):
    keys = aligned(KEYS[name].astype(np.int32))
    values = aligned(np.random.default_rng(3).standard_normal(len(keys), dtype=np.float32))
    out = np.zeros(max(keys) + 2, np.float32)
    tiles = -(-len(keys) // 2048)
    carry_keys, carries = np.full(tiles, -9, np.int32), np.full(tiles, np.nan, np.float32)
    on_cpu["segments"].run("segment_sum", tiles, len(keys), keys, values, out, carry_keys, carries)
    on_cpu["segments"].run("segment_carry", -(-tiles // 8), tiles, carry_keys, carries, out)
    expected = np.bincount(keys, values.astype(float), len(out))
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)


def test_threads_that_wait_for_nobody_are_found(tmp_path):
    source = tmp_path / "wait.cpp"
    source.write_text(
        "void kernel(int* out) { if (threadIdx.x < 3) *out = __shfl_xor_sync(7u + 8u, 1, 1); }\n"
        "int main() { int out; cpu::Launch<&kernel>::run(1, 32, &out); }\n"
    )
    flags = ["-std=c++17", "-Wno-dangling-pointer", "-include", str(CUDA / "cuda_cpu.h")]
    program = tmp_path / "wait"
    subprocess.run(["g++", *flags, str(source), "-o", str(program)], check=True)
    run = subprocess.run([program], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "threads wait for others that do not come" in run.stderr
