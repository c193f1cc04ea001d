"""cuSPARSE by its C interface, in all its algorithms for CSR; products of two sparse by CuPy."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from ctypes import byref, c_int, c_int64, c_size_t, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import MissingError, need
from benchmarks.gpu.devices import Ready
from benchmarks.gpu.ours import Contenders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.gpu.problems import Problem

FLOAT, INT32, BASE, ROW_MAJOR, AS_IT_IS, TRANSPOSED = 0, 2, 0, 2, 0, 1
SPMM = {"default": 0, "CSR 1": 4, "CSR 2": 6, "CSR 3": 12}
SPMV = {"default": 0, "CSR 1": 2, "CSR 2": 3}
ONE, ZERO = ctypes.c_float(1), ctypes.c_float(0)


@cache
def library() -> Any:
    """Return cuSPARSE; raises MissingError."""
    for name in _candidates():
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise MissingError("no libcusparse.so.12")


def _candidates() -> Iterator[str]:
    yield "libcusparse.so.12"  # PyTorch has loaded it
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from map(str, sorted(Path(folder).glob("*/lib/libcusparse.so.*")))
    for folder in (*sys.path, "/usr/local/cuda/lib64"):
        yield from map(str, sorted(Path(folder).glob("libcusparse.so.*")))


def _call(name: str, *args: Any) -> None:
    if status := getattr(library(), name)(*args):
        raise RuntimeError(f"{name} returned {status}")


@cache
def _handle() -> c_void_p:
    handle = c_void_p()
    _call("cusparseCreate", byref(handle))
    return handle


def _pointer(tensor: Any) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def _sparse(work: Problem, values: Any) -> c_void_p:
    csr, made = work.pattern, c_void_p()
    sizes = map(c_int64, (*csr.shape, csr.nnz))
    arrays = map(_pointer, (csr.indptr, csr.indices, values))
    kinds = map(c_int, (INT32, INT32, BASE, FLOAT))
    _call("cusparseCreateCsr", byref(made), *sizes, *arrays, *kinds)
    return made


def _dense(tensor: Any) -> c_void_p:
    made = c_void_p()
    if tensor.ndim == 1:
        size = c_int64(len(tensor))
        _call("cusparseCreateDnVec", byref(made), size, _pointer(tensor), c_int(FLOAT))
        return made
    rows, columns = tensor.shape
    sizes = map(c_int64, (rows, columns, columns))
    kinds = c_int(FLOAT), c_int(ROW_MAJOR)
    _call("cusparseCreateDnMat", byref(made), *sizes, _pointer(tensor), *kinds)
    return made


def _ready(
    work: Problem,
    name: str,
    operations: tuple[int, ...],
    parts: tuple[Any, ...],
    alg: int,
    out: Any,
) -> Ready:
    """Return the operation *name* of (A, B, C) = *parts*, with its buffer, prepared."""
    torch = work.device.torch
    a, b, c = parts
    head = _handle(), *map(c_int, operations), byref(ONE), a, b, byref(ZERO), c
    tail = c_int(FLOAT), c_int(alg)
    size = c_size_t()
    _call(f"{name}_bufferSize", *head, *tail, byref(size))
    room = torch.empty(max(size.value, 16), dtype=torch.uint8, device="cuda")
    args = *head, *tail, _pointer(room)
    stream = torch.cuda.current_stream
    _call("cusparseSetStream", _handle(), c_void_p(stream().cuda_stream))
    _call(f"{name}_preprocess", *args)

    def call(_room: Any = room) -> Any:
        _call("cusparseSetStream", _handle(), c_void_p(stream().cuda_stream))
        _call(name, *args)
        return out

    return Ready(call)


def _spmm(work: Problem) -> Any:
    out, b = work.device.empty(work.out), work.arrays["B"]
    vector = work.line.operation == "spmv"
    name, algorithms = ("cusparseSpMV", SPMV) if vector else ("cusparseSpMM", SPMM)
    operations = (AS_IT_IS,) if vector else (AS_IT_IS, AS_IT_IS)
    found = {}
    for text, alg in algorithms.items():  # each prepares the matrix in its own way
        parts = _sparse(work, work.pattern.values), _dense(b), _dense(out)
        found[text] = _ready(work, name, operations, parts, alg, out)
    return found


def _sddmm(work: Problem) -> Any:
    out = work.device.empty(work.out)
    parts = _dense(work.arrays["X"]), _dense(work.arrays["Y"]), _sparse(work, out)
    out.zero_()  # times beta, 0: what it holds may be read
    return _ready(work, "cusparseSDDMM", (AS_IT_IS, TRANSPOSED), parts, 0, out)


def on_stream(cupy: Any, torch: Any) -> Any:
    """Return PyTorch's current stream for CuPy."""
    return cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)


def _cupy_csr(work: Problem) -> Any:
    cupy, sparse = need("cupy"), need("cupyx.scipy.sparse")
    csr = work.pattern
    parts = tuple(map(cupy.asarray, (csr.values, csr.indices, csr.indptr)))
    return sparse.csr_matrix(parts, shape=csr.shape)


def _cupy_product(work: Problem) -> Any:
    cupy, torch = need("cupy"), work.device.torch
    a, b = _cupy_csr(work), cupy.asarray(work.arrays["B"])

    def call() -> Any:
        with on_stream(cupy, torch):
            return a @ b

    return Ready(call, partial(torch.as_tensor, device="cuda"))


def _cupy_spgemm(work: Problem) -> Any:
    cupy, torch = need("cupy"), work.device.torch
    a = _cupy_csr(work)

    def call() -> Any:
        with on_stream(cupy, torch):
            return a @ a

    return Ready(call, lambda c: torch.as_tensor(c.sum(axis=1), device="cuda").reshape(-1))


CONTENDERS: dict[str, Contenders] = {
    "spmm": {"cuSPARSE": _spmm, "CuPy": _cupy_product},
    "spmv": {"cuSPARSE": _spmm, "CuPy": _cupy_product},
    "sddmm": {"cuSPARSE": _sddmm},
    "spgemm": {"CuPy": _cupy_spgemm},
}
