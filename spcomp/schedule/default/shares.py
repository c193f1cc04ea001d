"""In position space: how the threads of a GPU share the iterations of a loop."""

from __future__ import annotations

from collections.abc import Iterator

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.vectors import lane_bits
from spcomp.ir.expr import Const
from spcomp.ir.position import Block
from spcomp.ir.stmt import For, Store
from spcomp.ir.visitor import walk
from spcomp.knobs import CUDA_GRID
from spcomp.schedule.default.plan import is_contiguous
from spcomp.schedule.legality.reductions import innermost, is_dot
from spcomp.schedule.nests.nests import runs_once

WARP, LANES = CUDA_GRID.warp_threads, CUDA_GRID.row_threads


def reduces(loop: For) -> bool:
    """Whether *loop* is innermost and reduces into one element."""
    return isinstance(loop.body, Block) and not runs_once(loop) and is_dot(*innermost(loop))


def _widths(loop: For) -> Iterator[int]:
    """Yield how many neighbours of *loop*, of constant extent, one load may have, most first."""
    body, var = innermost(loop)
    accesses = (n for n in walk(body) if isinstance(n, Load | Store) and var in variables(n))
    bits = max((lane_bits(n.buffer.dtype) for n in accesses), default=64)
    return (w for w in (128 // bits, 64 // bits, 1) if w and _extent(loop) % w == 0)


def shares(loop: For) -> tuple[int, int]:
    """Return how many neighbours of *loop* a thread has, and how many threads are side by side."""
    if not isinstance(loop.end, Const):
        return 1, WARP
    extent = _extent(loop)
    width = next(_widths(loop))
    lanes = -(-extent // width)
    if lanes <= WARP:
        return width, max(1, lanes)
    divisors = [n for n in range(LANES, WARP + 1) if lanes % n == 0]
    return width, max(divisors, default=WARP)


def parts_of(dot: For) -> tuple[int, int, int] | None:
    """Return how threads share a dot product of constant length; None if it is of another kind.

    The neighbours that a thread has, the number of threads, and how many loads that are for each,
    of both rows and the coordinate.
    """
    if not isinstance(dot.end, Const) or not is_contiguous(dot):
        return None
    width, threads = shares(dot)
    extent, most = _extent(dot), threads & -threads
    if most == 1 and extent > width * LANES:
        width, most = 1, LANES
    threads = min(most, LANES)
    while threads < most and extent > CUDA_GRID.row_loads * width * threads:
        threads *= 2
    return width, threads, 1 + 2 * -(-extent // (width * threads))


def group_size(leaves: list[For], otherwise: int) -> int:
    """Return how many threads share the loops *leaves* of a row: a power of two."""
    longest = max((x for x in leaves if isinstance(x.end, Const)), key=_extent, default=None)
    if longest is None:
        return otherwise
    width = next((w for w in _widths(longest) if _extent(longest) >= w * LANES), 1)
    return min(WARP, 1 << (-(-_extent(longest) // width) - 1).bit_length())


def neighbours(loop: For, threads: int) -> int:
    """Return how many neighbours of *loop* each of *threads* has."""
    whole = isinstance(loop.end, Const) and is_contiguous(loop)
    fit = (w for w in _widths(loop) if _extent(loop) % (w * threads) == 0)
    return next(fit, 1) if whole else 1


def _extent(loop: For) -> int:
    assert isinstance(loop.end, Const)
    return int(loop.end.value)
