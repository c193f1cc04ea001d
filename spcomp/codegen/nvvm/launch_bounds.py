"""For code for a GPU: how many blocks of a kernel a multiprocessor holds, or none."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from spcomp.codegen.nvvm.machine import SHARED
from spcomp.errors import LoweringError
from spcomp.ir import stmt as st
from spcomp.ir.analysis.exprs import trip_count
from spcomp.ir.visitor import statements
from spcomp.knobs import CUDA_GRID

if TYPE_CHECKING:
    from spcomp.codegen.abi import FunctionABI
    from spcomp.ir.analysis.grid import Grid
    from spcomp.ir.program import FlatFunc
    from spcomp.target import Target

MOST_BLOCKS = 16  # that every multiprocessor can hold


def has_many_loops(func: FlatFunc) -> bool:
    """Whether so many loops of *func* follow each other that the values between them matter."""
    loops = (n for n in statements(func.body) if isinstance(n, st.For) and n.kind != "bound")
    return sum(trip_count(loop) is None for loop in loops) > CUDA_GRID.few_loops


def attributes(number: int, grid: Grid, func: FlatFunc) -> str:
    """Return the attributes of a kernel: how many registers a thread may have follows from them."""
    size, many = ",".join(map(str, grid.threads)), has_many_loops(func)
    threads = CUDA_GRID.resident_threads_many if many else CUDA_GRID.resident_threads
    resident = min(MOST_BLOCKS, threads // prod(grid.threads))
    if grid.most < resident * CUDA_GRID.processors:  # there are never so many
        resident = -(-int(grid.most) // CUDA_GRID.processors)
    resident = max(1, resident)
    facts = f'"nvvm.maxntid"="{size}" "nvvm.minctasm"="{resident}"'
    return f"attributes #{number} = {{ nounwind {facts} }}"


def check_shared(func: FlatFunc, abi: FunctionABI, target: Target) -> None:
    """Raise LoweringError where a block of *func* needs more shared memory than *target* has."""
    most = SHARED[target.cpu] << 10
    if abi.grid is not None and abi.grid.shared > most:
        raise LoweringError(
            f"{func.name} needs {abi.grid.shared} bytes of shared memory for a block, and"
            f" {target.cpu} has {most}",
            func.span,
            hint="copy smaller parts into shared memory",
        )
