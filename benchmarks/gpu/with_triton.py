"""Kernels in Triton, as a user of PyTorch would write them: by rows, by elements, by blocks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import need
from benchmarks.gpu.devices import Ready
from benchmarks.gpu.ours import Contenders

if TYPE_CHECKING:
    from benchmarks.gpu.problems import Problem

BLOCK = 64  # queries and keys of a block of attention
REACH = {"band": 256}  # of the masks that are no whole blocks


def _kernels() -> Any:
    need("triton")
    return need("benchmarks.gpu.triton_kernels")


def _spmm(work: Problem) -> Any:
    kernels, csr, feat = _kernels(), work.pattern, work.line.feat
    out, b = work.device.empty(work.out), work.arrays["B"]
    wide, found = min(feat, 128), {}
    grid = csr.shape[0], feat // wide
    for together, warps in ((4, 1), (8, 2), (16, 4)):
        args = csr.indptr, csr.indices, csr.values, b, out, feat, wide, together
        call = partial(kernels.spmm_rows[grid], *args, num_warps=warps)
        found[f"{together} at once, {warps} warps"] = Ready(call, lambda _: out)
    return found


def _sddmm(work: Problem) -> Any:
    kernels, csr, feat = _kernels(), work.pattern, work.line.feat
    arrays, out, found = work.arrays, work.device.empty(work.out), {}
    for together, warps in ((16, 2), (32, 4), (64, 4)):
        grid = (-(-csr.nnz // together),)
        args = arrays["rows"], csr.indices, arrays["X"], arrays["Y"], out, csr.nnz, feat, together
        call = partial(kernels.sddmm_elements[grid], *args, num_warps=warps)
        found[f"{together} at once, {warps} warps"] = Ready(call, lambda _: out)
    return found


def _softmax(work: Problem) -> Any:
    kernels, csr, out = _kernels(), work.pattern, work.device.empty(work.out)
    grid, found = (csr.shape[0],), {}
    for wide in (32, 128):
        args = csr.indptr, csr.values, out, wide
        call = partial(kernels.softmax_rows[grid], *args, num_warps=max(1, wide // 64))
        found[f"{wide} at once"] = Ready(call, lambda _: out)
    return found


def _attention(work: Problem) -> Any:
    kernels, torch, arrays = _kernels(), work.device.torch, work.arrays
    heads, size, width = arrays["Q"].shape
    indptr, indices = blocks_of(torch, work.pattern, BLOCK)
    out = work.device.empty((heads, size, width))
    reach = REACH.get(work.line.workload, 0)
    args = arrays["Q"], arrays["K"], arrays["V"], out, indptr, indices, size, width, BLOCK, reach
    grid, found = (size // BLOCK, heads), {}
    for warps in (4, 8):
        call = partial(kernels.attention_blocks[grid], *args, num_warps=warps)
        found[f"{warps} warps"] = Ready(call, lambda _: out.swapaxes(0, 1))
    return found


def blocks_of(torch: Any, mask: Any, block: int) -> tuple[Any, Any]:
    """Return the pattern of the blocks of *mask* in which something is stored, as int32."""
    rows = torch.repeat_interleave(
        torch.arange(mask.shape[0], device=mask.indptr.device), mask.indptr.diff().long()
    )
    count = mask.shape[0] // block
    key = torch.unique(rows // block * count + mask.indices // block)
    counts = torch.bincount(key // count, minlength=count)
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return indptr.int(), (key % count).int()


CONTENDERS: dict[str, Contenders] = {
    "spmm": {"Triton": _spmm},
    "sddmm": {"Triton": _sddmm},
    "softmax": {"Triton": _softmax},
    "attention": {"Triton": _attention},
}
