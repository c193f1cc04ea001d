"""The CUDA kernels of ``benchmarks/cuda``, written by hand, compiled where they run by NVRTC."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import MissingError, need
from benchmarks.gpu.devices import Ready
from benchmarks.gpu.ours import Contenders
from benchmarks.gpu.with_cusparse import on_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.problems import Problem

FOLDER = Path(__file__).parents[1] / "cuda"
THREADS, TILE = 256, 2048
INFINITY = """#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
"""  # NVRTC has no math.h


def source(name: str) -> str:
    """Return the text of the file *name*, for NVRTC."""
    return INFINITY + (FOLDER / f"{name}.cu").read_text(encoding="utf-8")


@cache
def _module(name: str) -> Any:
    options = ("-std=c++17", f"-I{FOLDER}")
    return need("cupy").RawModule(code=source(name), options=options, backend="nvrtc")


def _launcher(work: Problem, file: str, name: str) -> Callable[..., None]:
    """Return a function that starts the kernel *name*: blocks, then tensors and 32-bit numbers."""
    cupy, torch = need("cupy"), work.device.torch
    kernel = _module(file).get_function(name)

    def launch(blocks: int, *args: Any) -> None:
        slots = tuple(a.data_ptr() if hasattr(a, "data_ptr") else cupy.int32(a) for a in args)
        with on_stream(cupy, torch):
            kernel((blocks,), (THREADS,), slots)

    return launch


def _rows(name: str) -> Callable[[Problem], Any]:
    """Return a contender by rows: ``csr_spmm`` or ``csr_softmax_spmm``."""

    def prepare(work: Problem) -> Any:
        csr, feat, out = work.pattern, work.line.feat, work.device.empty(work.out)
        if feat not in (32, 128):
            raise MissingError("is written for F = 32 and 128")
        launch = _launcher(work, "spmm", f"{name}_{feat}")
        rows = csr.shape[0]
        blocks = -(-rows * feat // 4 // THREADS)
        args = rows, csr.indptr, csr.indices, csr.values, work.arrays["B"], out

        def call() -> Any:
            launch(blocks, *args)
            return out

        return Ready(call)

    return prepare


def _spmv(work: Problem) -> Any:
    csr, out = work.pattern, work.device.empty(work.out)
    rows, found = csr.shape[0], {}
    args = rows, csr.indptr, csr.indices, csr.values, work.arrays["B"], out
    for lanes in (4, 8, 16, 32):
        launch = _launcher(work, "spmv", f"csr_spmv_{lanes}")

        def call(launch: Any = launch, blocks: int = -(-rows * lanes // THREADS)) -> Any:
            launch(blocks, *args)
            return out

        found[f"{lanes} lanes"] = Ready(call)
    return found


def _sddmm(work: Problem) -> Any:
    csr, out, feat = work.pattern, work.device.empty(work.out), work.line.feat
    launch = _launcher(work, "sddmm", f"sddmm_{feat}")
    ones = work.device.torch.ones_like(csr.values)
    blocks = work.device.properties.multi_processor_count * (5 if feat == 32 else 3)
    arrays = work.arrays
    args = csr.nnz, arrays["rows"], csr.indices, ones, arrays["X"], arrays["Y"], out

    def call() -> Any:
        launch(blocks, *args)
        return out

    return Ready(call)


def _segments(work: Problem) -> Any:
    if work.line.feat != 1:
        raise MissingError("is written for single numbers")
    torch, x, rows = work.device.torch, work.arrays["X"], work.arrays["rows"]
    out, tiles = work.device.empty(work.out), -(-len(x) // TILE)
    keys = torch.empty(tiles, dtype=torch.int32, device=x.device)
    sums = torch.empty(tiles, device=x.device)
    add, carry = (_launcher(work, "segments", f"segment_{step}") for step in ("sum", "carry"))

    def call() -> Any:
        out.zero_()
        add(tiles, len(x), rows, x, out, keys, sums)
        carry(-(-tiles // 8), tiles, keys, sums, out)
        return out

    return Ready(call)


CONTENDERS: dict[str, Contenders] = {
    "spmm": {"CUDA C++": _rows("csr_spmm")},
    "spmv": {"CUDA C++": _spmv},
    "sddmm": {"CUDA C++": _sddmm},
    "segments": {"CUDA C++": _segments},
    "softmax_spmm": {"CUDA C++": _rows("csr_softmax_spmm")},
}
