"""Beside the route: what a scheduled program does with a matrix, estimated without running it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import ceil, prod
from typing import TYPE_CHECKING, TypeAlias

from spcomp.errors import ArgumentError, expect, front_door
from spcomp.ir.axis import SparseBuffer
from spcomp.ir.expr import Cast, Expr, Var
from spcomp.ir.func import Func
from spcomp.ir.program import FlatFunc
from spcomp.passes.pipelines import lower_sparse_iter
from spcomp.schedule.schedule import Schedule
from spcomp.tune.machine import Machine, this_machine
from spcomp.tune.statistics import MatrixStatistics
from spcomp.tune.walk import Access, Expected, Loop, expected

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spcomp.ir.axis import AnyBuffer, Axis

LINE = 64  # bytes that a cache moves at least
Statistics: TypeAlias = Mapping[str, MatrixStatistics]


@dataclass(frozen=True, slots=True)
class CandidateFeatures:
    """What :func:`candidate_features` returns; counts are for one call, sizes in bytes.

    *loops*, *varying*: all loops, and those whose extent the data decide; *trips*: the mean number
    of iterations of the latter. *operations*: on floats; *vectorized*: the share of them in vector
    loops; *lanes*: operations for each instruction.

    *prefetch_distance*: positions ahead, 0 without prefetches; *prefetches*: how many.
    *merges*: loops over several fibers; *merge_steps*: their iterations; *matches*: those where all
    fibers have an element.

    *chunks*: iterations of the parallel loop with the most operations (1: serial); *balance*: the
    mean work of a thread over the most that one has to do, up to 1.

    *requested*: bytes of all loads and stores; *from_l2*, *from_l3*, *from_memory*: bytes that the
    caches above do not have; *working_set*: bytes of all elements in use, and *over_l1*, *over_l2*,
    *over_l3*: as multiples of the caches.
    """

    loops: int
    varying: int
    trips: float
    operations: float
    vectorized: float
    lanes: float
    prefetch_distance: int
    prefetches: float
    merges: int
    merge_steps: float
    matches: float
    chunks: float
    balance: float
    requested: float
    from_l2: float
    from_l3: float
    from_memory: float
    working_set: float
    over_l1: float
    over_l2: float
    over_l3: float

    @property
    def numbers(self) -> dict[str, float]:
        """All features by name, as a cost model takes them."""
        return asdict(self)

    def __str__(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return "\n".join(
            f"{name:<20}{f'{value:.4g}' if isinstance(value, float) else value}"
            for name, value in values
        )


@front_door
def candidate_features(
    program: Schedule | Func,
    matrices: Statistics,
    sizes: Mapping[str, float] | None = None,
    *,
    machine: Machine | None = None,
) -> CandidateFeatures:
    """Return what *program* will do with matrices like *matrices*, without lowering or running it.

    Args:
        program: A Schedule or function with loops, in position space; one in coordinate space is
            lowered to it first.
        matrices: Statistics by the name of the buffer. They say what is gathered again, how long
            the longest row is, and, for a matrix along rows and a sparse axis, how many rows,
            columns and elements there are.
        sizes: The other scalar parameters, by name.
        machine: Where it runs; by default here, with the threads that calls now use.

    Raises:
        ArgumentError: A name or a size is unknown, or *program* is over flat buffers.
        LoweringError: *program* is a function in coordinate space that needs several phases.
    """
    func = _position(program)
    machine = machine or this_machine()
    lines = _matrix_axes(func, matrices)
    found = expected(func, _sizes(func, lines, sizes or {}), machine.vector_bits)
    traffic = _Traffic(found, lines)
    varying = [loop for loop in found.loops if loop.varies]
    started = sum(loop.runs for loop in varying)
    chunks, balance = _sharing(found.loops, lines, machine.threads)
    levels = [traffic.below(size) for size in machine.caches]
    return CandidateFeatures(
        loops=len(found.loops),
        varying=len(varying),
        trips=sum(loop.runs * loop.trips for loop in varying) / started if started else 0.0,
        operations=found.operations,
        vectorized=found.vectorized / found.operations if found.operations else 0.0,
        lanes=found.operations / found.vectors if found.vectors else 1.0,
        prefetch_distance=found.prefetch_distance,
        prefetches=found.prefetches,
        merges=found.merges,
        merge_steps=found.merge_steps,
        matches=found.matches,
        chunks=chunks,
        balance=balance,
        requested=sum(access.runs * access.buffer.dtype.itemsize for access in found.accesses),
        from_l2=levels[0],
        from_l3=levels[1],
        from_memory=levels[2],
        working_set=traffic.working_set,
        over_l1=traffic.working_set / machine.l1,
        over_l2=traffic.working_set / machine.l2,
        over_l3=traffic.working_set / machine.l3,
    )


def _position(program: Schedule | Func) -> Func:
    expect("program", program, (Schedule, Func), "a Schedule or a function")
    func = program.func if isinstance(program, Schedule) else program
    if isinstance(func, FlatFunc):
        raise ArgumentError(
            f"{func.name} is over flat buffers", hint="give the schedule before lower_sparse_buffer"
        )
    return lower_sparse_iter(func)


def _matrix_axes(func: Func, matrices: Statistics) -> dict[Axis, MatrixStatistics]:
    """Return the statistics by the axis that holds the columns of each matrix."""
    buffers = {b.name: b for b in func.buffers if isinstance(b, SparseBuffer)}
    lines: dict[Axis, MatrixStatistics] = {}
    for name, statistics in matrices.items():
        expect(
            f"matrices[{name!r}]", statistics, MatrixStatistics, "what matrix_statistics returns"
        )
        axes = buffers[name].axes if name in buffers else ()
        sparse = [axis for axis in axes if axis.is_sparse]
        if not sparse:
            rest = ", ".join(n for n, b in buffers.items() if any(a.is_sparse for a in b.axes))
            raise ArgumentError(
                f"{name!r} is no buffer along a sparse axis", hint=f"these are {rest}"
            )
        lines[sparse[-1]] = statistics
    return lines


def _sizes(
    func: Func, lines: Mapping[Axis, MatrixStatistics], sizes: Mapping[str, float]
) -> dict[Var, float]:
    """Return the values of scalar parameters, by *lines* and by *sizes*."""
    values: dict[Var, float] = {}
    value: float
    for axis, statistics in lines.items():
        if axis.parent is None or axis.parent.parent is not None:
            continue
        for extent, value in (
            (axis.parent.length, statistics.rows),
            (axis.length, statistics.columns),
            (axis.nnz, statistics.nnz),
        ):
            if (var := _variable(extent)) is not None:
                values[var] = value
    params = {param.name: param for param in func.params}
    for name, value in sizes.items():
        if name not in params:
            raise ArgumentError(f"no size {name!r}", hint=f"parameters: {', '.join(params)}")
        expect(f"sizes[{name!r}]", value, (int, float), "a number")
        values[params[name]] = value
    return values


def _variable(extent: Expr | None) -> Var | None:
    while isinstance(extent, Cast):
        extent = extent.value
    return extent if isinstance(extent, Var) else None


def _sharing(
    loops: Iterable[Loop], lines: Mapping[Axis, MatrixStatistics], threads: int
) -> tuple[float, float]:
    """Return the trips and the balance of the parallel loop around the most iterations.

    Its heaviest iteration is that with the longest row, if a fiber is run through inside of one.
    """
    shared = [loop for loop in loops if loop.kind in ("parallel", "bound") and loop.runs <= 1]
    if not shared:
        return 1.0, 1 / threads
    widest = max(shared, key=lambda loop: loop.trips)
    trips = max(widest.trips, 1.0)
    rows = (lines[axis] for loop in loops for axis in loop.fibers & lines.keys())
    longest = max((s.longest / s.nnz for s in rows if s.nnz), default=0.0)
    heaviest = max(1 / trips, longest, ceil(trips / threads) / trips)
    return trips, min(1 / (threads * heaviest), 1.0)


class _Traffic:
    """Bytes that accesses move; several to the same elements count as the one that runs most."""

    def __init__(self, found: Expected, lines: Mapping[Axis, MatrixStatistics]) -> None:
        often = sorted(found.accesses, key=lambda access: -access.runs)
        unlike = {(access.buffer, access.loops): access for access in reversed(often)}
        self.accesses = list(unlike.values())
        self.lines = lines
        self.bytes = {b: count * b.dtype.itemsize for b, count in found.elements.items()}
        self.within: dict[Loop, float] = defaultdict(float)  # bytes of different elements in a run
        used: dict[AnyBuffer, float] = defaultdict(float)
        for access in self.accesses:
            for depth, loop in enumerate(access.path):
                self.within[loop] += self.different(access, depth)
            used[access.buffer] = max(used[access.buffer], self.different(access, 0))
        self.working_set = sum(used.values())
        gathered = {access.buffer for access in self.accesses if access.axis is not None}
        self.streamed = sum(size for buffer, size in used.items() if buffer not in gathered)

    def different(self, access: Access, depth: int) -> float:
        """Return the bytes of different elements in a run of the loop at *depth* of the path."""
        inside = prod(loop.trips for loop in access.path[depth:] if loop in access.loops)
        return min(inside * access.buffer.dtype.itemsize, self.bytes[access.buffer])

    def below(self, cache: float) -> float:
        """Return the bytes that a cache of *cache* bytes asks the next level for."""
        return sum(self._missed(access, cache) for access in self.accesses)

    def _missed(self, access: Access, cache: float) -> float:
        """Each run of the outermost loop whose elements fit reads them once."""
        if access.axis is not None:
            return self._gathered(access, cache, self.lines.get(access.axis))
        requested = access.runs * access.buffer.dtype.itemsize
        for depth, loop in enumerate(access.path):
            if self.within[loop] <= cache:
                return min(loop.runs * self.different(access, depth), requested)
        return requested

    def _gathered(self, access: Access, cache: float, statistics: MatrixStatistics | None) -> float:
        """Rows, or cache lines, are there if little else was used since; at first, none is."""
        depths = [d for d, loop in enumerate(access.path) if loop in access.gathering]
        inner = access.path[depths[-1] + 1 :] if depths else access.path
        row = prod(loop.trips for loop in inner if loop in access.loops)
        width = max(row * access.buffer.dtype.itemsize, LINE)
        gathers = access.runs / max(prod(loop.trips for loop in inner), 1e-9)
        everything = self.bytes[access.buffer]
        if everything <= cache:
            return min(gathers * width, everything)
        if statistics is None:
            return gathers * width
        between = self.streamed / max(gathers, 1.0)  # bytes of other buffers, for each gather
        first = 1 - statistics.hits(statistics.columns)
        missed = 1 - statistics.hits(cache / (width + between))
        return gathers * width * max(missed - first, 0.0) + min(gathers * width * first, everything)
