"""What machine code for GPUs says about its speed, without a GPU: ``analyse(ptx, kernel)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.sass.listing import listings
from benchmarks.sass.report import Report, report
from benchmarks.sass.tools import disassembly

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Report", "analyse"]


def analyse(
    code: str | bytes | Path, kernel: str, *, arch: str = "sm_90", features: int = 0,
    nonzeros: float = 0, threads: int = 0, shared: int = 0,
) -> Report:  # fmt: skip
    """Return the figures of *kernel* in *code*.

    Args:
        code: the text of PTX, the bytes of a cubin, or the path of a .cu, .ptx or .cubin file.
        kernel: its name.
        arch: for which ptxas compiles; that of the cubin if *code* is one.
        features: the multiply-adds that a non-zero takes: columns of a product, 1 for SpMV.
        nonzeros: that a warp finishes in a trip of the main loop, where multiply-adds do not tell.
        threads: of a block, where the code has no launch bounds.
        shared: dynamic shared bytes of a block.

    Raises:
        MissingError: nvcc, ptxas or nvdisasm is needed and not there.
        ValueError: one of them refuses the code, with its words.
        KeyError: the code has no such kernel.
    """
    found = listings(disassembly(code, arch))[kernel]
    return report(found, features=features, nonzeros=nonzeros, threads=threads, shared=shared)
