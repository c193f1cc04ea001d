"""In position space: the step prefetch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar

from spcomp.ir import stmt as st
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, parent_at, positions
from spcomp.ir.arith.simplify import coefficient
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.expr import Const, Expr, Var, binary, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Replace, substitute
from spcomp.ir.stmt import For, Stmt, seq
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import statements, walk
from spcomp.schedule.nests.nests import chain, find_loop, replace_stmt
from spcomp.schedule.nests.sites import bound_in
from spcomp.schedule.nests.values import path_values
from spcomp.schedule.steps.base import Step

LINE = 64  # bytes that come with one prefetch


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """``for j: s(B[J_indices[j], k])  ->  for j: prefetch B[J_indices[j + d], k]; s``.

    *loop* runs over the positions of a sparse axis. Prefetched *distance* positions ahead, also
    across the end of a fiber: rows of dense buffers at its coordinates (or at those of the blocks
    stored there), and the beginnings of fibers at its coordinates. The bounds of these fibers are
    prefetched twice as far ahead. Legal where there is such a row or fiber; positions are clamped
    to the last one that is stored.
    """

    name: ClassVar[str] = "prefetch"
    loop: str
    distance: int

    def plan(self, func: Func) -> tuple[For, tuple[Gather, ...], tuple[Fiber, ...]]:
        """Return the loop, and the rows and fibers to prefetch."""
        loop = find_loop(func, self.loop, self)
        assert isinstance(func, PosFunc)
        if self.distance < 1:
            raise self.error("the distance must be at least 1", loop)
        rows, below = gathers(func, loop), fibers(func, loop)
        if not (rows or below):
            raise self.error(f"no row or fiber is read at the coordinates of {self.loop!r}", loop)
        return loop, rows, below

    def rewrite(self, func: Func, plan: tuple[For, tuple[Gather, ...], tuple[Fiber, ...]]) -> Func:
        """Return *func* with the prefetches at the start of the loop's body."""
        assert isinstance(func, PosFunc)
        loop, rows, below = plan
        names = Names(func)
        hints = [_hint(func, row, self.distance, names) for row in rows]
        hints += [hint for fiber in below for hint in _hints(func, fiber, self.distance)]
        return replace_stmt(func, loop, loop.replace(body=seq(*hints, loop.body)))


@dataclass(frozen=True, slots=True)
class Gather:
    """A row that is read at a coordinate: *load* in terms of loops, *place* reads the coordinate.

    *inner*: the loop that runs along the row, of *trips* elements; *across*: those over the rows
    of a block that is stored at the coordinate.
    """

    load: Load
    place: Load
    axis: Axis
    inner: Var
    trips: int
    across: tuple[For, ...] = ()

    @property
    def bytes(self) -> int:
        """How many bytes of the row are read; a vector may be wider than the row."""
        buffer = self.load.buffer
        last = buffer.axes[-1].length if isinstance(buffer, SparseBuffer) else buffer.shape[-1]
        most = int(last.value) if isinstance(last, Const) else self.trips
        return min(self.trips, most) * buffer.dtype.itemsize

    @property
    def rows(self) -> int:
        """How many rows are read at the coordinate."""
        return prod(_trips(loop) for loop in self.across)


@dataclass(frozen=True, slots=True)
class Fiber:
    """A fiber that is read at a coordinate: *loads* read its elements; *place* as in Gather."""

    loads: tuple[Load, ...]
    place: Load
    axis: Axis


def gathers(func: PosFunc, loop: For) -> tuple[Gather, ...]:
    """Return the rows of known extent that *loop* reads at the coordinates of its positions.

    Only in a block that the loop is nested around perfectly.
    """
    loops, block = chain(loop)
    if not isinstance(block, Block):
        return ()
    axes, inner_vars = _sparse_axes(func.axes), bound_in(block.body)
    rows: dict[object, Gather] = {}
    for node in _loads(block.body):
        if len(node.indices) < 2 or None in node.indices or variables(node) & inner_vars:
            continue
        load = substitute(node, block.values)
        for gather in _gathers(load, loop, loops[1:], axes):
            rows.setdefault((load.buffer, fingerprint(load.indices)), gather)
    return tuple(rows.values())


def _gathers(
    load: Load, loop: For, inside: list[For], axes: dict[Var | None, Axis]
) -> Iterator[Gather]:
    *above, last = (index for index in load.indices if index is not None)
    along = _using(last, inside)
    if len(along) != 1 or coefficient(last, along[0].var) != 1 or not _trips(along[0]):
        return
    moving = [index for index in above if _using(index, inside)]
    for index in above:
        across = _using(index, inside)
        loads = [n for n in walk(index) if isinstance(n, Load)]
        if not loads or not {*loads} <= {*walk(loads[0])} or along[0] in across:
            continue
        if any(other is not index for other in moving):
            continue
        place, trips = loads[0], [_trips(loop) for loop in across]
        if place.buffer.data in axes and place.indices[-1] is loop.var and all(trips):
            axis = axes[place.buffer.data]
            yield Gather(load, place, axis, along[0].var, _trips(along[0]), across)


def _loads(body: Stmt) -> Iterator[Load]:
    """Yield the loads in *body* from buffers that exist outside it."""
    private = {node.buffer for node in walk(body, skip=Expr) if isinstance(node, st.Alloc)}
    for node in walk(body):
        if isinstance(node, Load) and node.buffer not in private:
            yield node


def _using(index: Expr, loops: list[For]) -> tuple[For, ...]:
    return tuple(loop for loop in loops if loop.var in variables(index))


def _trips(loop: For) -> int:
    """Return the trip count of *loop*; 0 if it is no constant, or the loop does not begin at 0."""
    return int(loop.end.value) if from_zero(loop) and isinstance(loop.end, Const) else 0


def fibers(func: PosFunc, loop: For) -> tuple[Fiber, ...]:
    """Return the fibers that loops inside *loop* run along, at the coordinates it passes."""
    if not any(axis.is_variable for axis in func.axes):
        return ()
    inner = {n.var for n in walk(loop.body, skip=Expr) if isinstance(n, For)}
    loads = [load for load in _loads(loop.body) if _in_fiber(load)] if inner else []
    blocks = (n for n in statements(loop.body) if isinstance(n, Block))
    values = path_values(blocks) if loads else {}
    axes, inner_vars, result = _sparse_axes(func.axes), bound_in(loop.body), dict[object, Fiber]()
    for load in (substitute(n, values) for n in loads):
        place = load.indices[-2]
        if (
            load.indices[-1] in inner
            and _is_at_coordinate(load, loop, inner_vars)
            and isinstance(place, Load)
            and place.buffer.data in axes
        ):
            key, axis = fingerprint(place), axes[place.buffer.data]
            fiber = result.get(key, Fiber((), place, axis))
            if all(other.buffer is not load.buffer for other in fiber.loads):
                result[key] = Fiber((*fiber.loads, load), place, axis)
    return tuple(result.values())


def _in_fiber(load: Load) -> bool:
    """Whether *load* reads an element of a fiber below another axis."""
    axes = load.buffer.axes if isinstance(load.buffer, SparseBuffer) else ()
    return len(axes) > 1 and axes[-1].is_variable


def _is_at_coordinate(load: Load, loop: For, inner_vars: Collection[Var]) -> bool:
    """Whether *load* reads the fiber at a coordinate that *loop* reads.

    Its indices are in terms of loop variables; *inner_vars*: variables bound inside *loop*.
    """
    *path, _ = load.indices
    place = path[-1]
    at_stored = isinstance(place, Load) and place.indices[-1] is loop.var
    return at_stored and all(i is None or variables(i).isdisjoint(inner_vars) for i in path)


@lru_cache(maxsize=4)  # asked for every loop of a program
def _sparse_axes(axes: tuple[Axis, ...]) -> dict[Var | None, Axis]:
    """Return the sparse ones of *axes* with a known number of positions, by their indices array."""
    listing = (axis for axis in axes if axis.is_sparse and not axis.shifted)
    return {axis.indices: axis for axis in listing if positions(axis)}


def _hints(func: PosFunc, fiber: Fiber, distance: int) -> Iterator[Stmt]:
    """Yield the prefetches of the beginning of a fiber, and of its bounds, twice as far ahead."""
    soon, later = (_ahead(func, fiber.place, fiber.axis, d) for d in (distance, 2 * distance))
    row = binary("max", soon, 0) if fiber.axis.padded else soon  # padding is no row to look up
    for load in fiber.loads:
        yield st.Prefetch(load.buffer, (*load.indices[:-2], row, ZERO))
    (*outer, _, _), buffer = fiber.loads[0].indices, fiber.loads[0].buffer
    assert isinstance(buffer, SparseBuffer)
    parent = parent_at(buffer.axes[-1], (*outer, later))
    assert parent is not None
    begin = Auxiliary.of(func).indptr(buffer.axes[-1], parent)
    assert isinstance(begin, Load)
    yield st.Prefetch(begin.buffer, begin.indices)


def _ahead(func: PosFunc, place: Load, axis: Axis, distance: int) -> Load:
    """Return *place* at *distance* positions after the current one, at most at the last."""
    (*outer, position), stored = place.indices, positions(axis)
    is_absolute = bool(outer) and outer[-1] is None
    parent = None if is_absolute else parent_at(axis, tuple(outer))
    start = Auxiliary.of(func).begin(axis, parent)
    assert position is not None
    assert stored is not None
    last = binary("-", stored, 1)
    ahead = binary("min", plus(start, binary("+", position, distance)), last)
    return place.replace(indices=(*(None for _ in place.indices[:-1]), ahead))


def _hint(func: PosFunc, gather: Gather, distance: int, names: Names) -> Stmt:
    """Return the prefetches of the rows at *distance* positions after the current one."""
    soon = Replace(gather.place, _ahead(func, gather.place, gather.axis, distance)).rewrite(
        gather.load
    )
    step = LINE // soon.buffer.dtype.itemsize
    line = names.var(f"{gather.inner.name}_line")
    at = substitute(soon, {gather.inner: binary("*", line, step)})
    hint: Stmt = st.Prefetch(at.buffer, at.indices)
    hint = For(line, ZERO, const(-(-gather.trips // step)), hint, "unroll")
    for loop in gather.across:
        row = names.var(f"{loop.var.name}_row")
        hint = For(row, ZERO, loop.end, substitute(hint, {loop.var: row}), "unroll")
    return hint
