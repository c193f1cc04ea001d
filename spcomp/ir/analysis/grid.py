"""Beside the route: how many blocks and threads of a GPU a kernel runs on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import inf, prod

from spcomp.errors import LoweringError
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.analysis.fragments import LANES, role_of
from spcomp.ir.arith.bounds import bounds_of
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.expr import Const, Expr, binary, const
from spcomp.ir.program import FlatFunc
from spcomp.ir.stmt import For
from spcomp.ir.visitor import statements

MOST_THREADS = 1024  # in a block, on every GPU
MOST_BLOCKS = 65535  # along y, and along z, on every GPU
_AXES = "xyz"
BLOCKS = tuple(f"blockIdx.{axis}" for axis in _AXES)
THREADS = tuple(f"threadIdx.{axis}" for axis in _AXES)


@dataclass(frozen=True, slots=True)
class Grid:
    """How a GPU runs a kernel: *blocks* along x, y and z, each of *threads*.

    The numbers of blocks are expressions of the kernel's parameters. *shared*: bytes of memory
    that the threads of a block share. *may_fail*: the last parameter is the status word.
    """

    blocks: tuple[Expr, ...]
    threads: tuple[int, int, int]
    shared: int = 0
    may_fail: bool = False

    @property
    def fits(self) -> bool:
        """Whether there are sure to be no more blocks along y and z than a GPU can have."""
        return all(0 <= _at_most(extent) <= MOST_BLOCKS for extent in self.blocks[1:])

    @property
    def most(self) -> float:
        """The most blocks that there can be; infinite if that is not known."""
        return prod(max(0, _at_most(extent)) for extent in self.blocks)

    def along_x(self) -> Grid:
        """Return this grid with all blocks along x; x is the index that changes first."""
        counts = (simplify(binary("max", extent, 0)) for extent in self.blocks)
        total = simplify(reduce(lambda a, b: binary("*", a, b), counts))
        return replace(self, blocks=(total, const(1), const(1)))


def grid_of(func: FlatFunc) -> Grid:
    """Return the grid of the kernel *func*, from its loops over blocks and threads.

    Each index has as many values as the longest loop bound to it. Raises LoweringError for a
    number of blocks that the host does not know, of threads that is not constant, or too many.
    """
    extents: dict[str, list[Expr]] = {}
    warps = False
    for loop in statements(func.body):
        if isinstance(loop, For) and loop.kind == "bound":
            _check_extent(func, loop)
            extents.setdefault(loop.thread, []).append(trips(loop))
        if isinstance(loop, For) and role_of(loop) is not None:
            extents.setdefault(THREADS[0], []).append(const(LANES))
            warps = True
    blocks = [_most(extents.get(f"blockIdx.{axis}", ())) for axis in _AXES]
    threads = [_most(extents.get(f"threadIdx.{axis}", ())) for axis in _AXES]
    sizes = [int(size.value) for size in threads if isinstance(size, Const)]
    if warps and sizes[0] != LANES:
        raise LoweringError(
            f"{func.name} uses tensor cores, and has {sizes[0]} threads along x",
            func.span,
            hint=f"a warp is {LANES} threads: bind loops of {LANES} to {THREADS[0]}",
        )
    if reduce(int.__mul__, sizes) > MOST_THREADS:
        raise LoweringError(
            f"{func.name} has blocks of {' x '.join(map(str, sizes))} threads",
            func.span,
            hint=f"a block has at most {MOST_THREADS}",
        )
    return Grid(tuple(blocks), (sizes[0], sizes[1], sizes[2]))


def _at_most(extent: Expr) -> float:
    high = bounds_of(extent).high
    return inf if high is None else high


def trips(loop: For) -> Expr:
    """Return how many iterations *loop* has, if it has any."""
    return simplify(binary("-", loop.end, loop.begin))


def _most(extents: list[Expr] | tuple[()]) -> Expr:
    different = list({str(extent): extent for extent in extents}.values()) or [const(1)]
    return reduce(lambda a, b: simplify(binary("max", a, b)), different)


def _check_extent(func: FlatFunc, loop: For) -> None:
    extent = trips(loop)
    if loop.thread.startswith("threadIdx") and not isinstance(extent, Const):
        raise not_constant(loop)
    unknown = sorted(var.name for var in variables(extent) - {*func.params})
    if unknown:
        raise LoweringError(
            f"loop {loop.var.name} over {loop.thread} ends where {unknown[0]} says",
            loop.span,
            hint="the number of blocks is known before the kernel runs: bind another loop",
        )


def not_constant(loop: For) -> LoweringError:
    """Return the error of a *loop* over threads of which nobody knows how many there are."""
    return LoweringError(
        f"loop {loop.var.name} over {loop.thread} has no constant extent",
        loop.span,
        hint="split it by a constant, and bind the inner loop",
    )
