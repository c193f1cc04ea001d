"""Steps on what will be needed soon: prefetch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir import stmt as st
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, fingerprint, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.arith.simplify import coefficient
from spcomp.ir.axis import Axis, SparseBuffer
from spcomp.ir.expr import Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.position import Block
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import substitute
from spcomp.ir.stmt import For, Stmt, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import Replace, chain, find_loop, replaced
from spcomp.schedule.nests.sites import bound_in
from spcomp.schedule.steps.base import Step

LINE = 64  # bytes that come with one prefetch


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """``for j: s(B[J_indices[j], k])  ->  for j: prefetch B[J_indices[j + d], k]; s``.

    *loop* runs over the positions of a sparse axis; rows of dense buffers at its coordinates, or at
    those of the blocks that are stored there, are asked for *distance* positions ahead, in the
    fibers that follow too, and so is where fibers at its coordinates begin; their bounds, twice as
    far ahead. Always legal where there is such a row or fiber: the position is clamped to the last
    one that is stored.
    """

    name: ClassVar[str] = "prefetch"
    loop: str
    distance: int

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the prefetches at the start of the loop's body."""
        loop = find_loop(func, self.loop, self, span)
        assert isinstance(func, PosFunc)
        if self.distance < 1:
            raise ScheduleError(f"{self}: the distance must be at least 1", span or loop.span)
        names = Names(func)
        hints = [_hint(func, g, self.distance, names) for g in gathers(func, loop)]
        hints += [h for f in fibers(func, loop) for h in _hints(func, f, self.distance)]
        if not hints:
            raise ScheduleError(
                f"{self}: no row or fiber is read at the coordinates of {self.loop!r}",
                span or loop.span,
            )
        return replaced(func, loop, loop.replace(body=seq(*hints, loop.body)))


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
        """How much of the row is read."""
        return self.trips * self.load.buffer.dtype.itemsize

    @property
    def rows(self) -> int:
        """How many rows are read at the coordinate."""
        return prod(_trips(loop) for loop in self.across)


@dataclass(frozen=True, slots=True)
class Fiber:
    """A fiber that is read at a coordinate: by *loads*, of one element each; *place* as above."""

    loads: tuple[Load, ...]
    place: Load
    axis: Axis


def gathers(func: PosFunc, loop: For) -> tuple[Gather, ...]:
    """Return the rows that *loop* reads at the coordinates of the positions it runs over.

    Those whose extent is known, in the block that the loop is nested around perfectly.
    """
    loops, block = chain(loop)
    if not isinstance(block, Block):
        return ()
    axes, own = _listing(func.axes), bound_in(block.body)
    found: dict[object, Gather] = {}
    for node in _loads(block.body):
        if len(node.indices) < 2 or None in node.indices or variables(node) & own:
            continue
        load = substitute(node, block.values)
        for gather in _gathers(load, loop, loops[1:], axes):
            found.setdefault((load.buffer, fingerprint(load.indices)), gather)
    return tuple(found.values())


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
    """Yield the loads in *body* from what is there before it."""
    own = {node.buffer for node in walk(body, skip=Expr) if isinstance(node, st.Alloc)}
    for node in walk(body):
        if isinstance(node, Load) and node.buffer not in own:
            yield node


def _using(index: Expr, loops: list[For]) -> tuple[For, ...]:
    return tuple(loop for loop in loops if loop.var in variables(index))


def _trips(loop: For) -> int:
    """Return how often *loop* runs, from 0 on; 0: not known."""
    return int(loop.end.value) if from_zero(loop) and isinstance(loop.end, Const) else 0


def fibers(func: PosFunc, loop: For) -> tuple[Fiber, ...]:
    """Return the fibers that loops inside *loop* run along, at the coordinates it passes."""
    if not any(axis.is_variable for axis in func.axes):
        return ()
    inner = {n.var for n in walk(loop.body, skip=Expr) if isinstance(n, For)}
    loads = [load for load in _loads(loop.body) if _in_fiber(load)] if inner else []
    values: dict[Var, Expr] = {}
    for block in walk(loop.body, skip=Expr) if loads else ():
        if isinstance(block, Block):
            values |= {var: substitute(value, values) for var, value in block.values.items()}
    axes, own, found = _listing(func.axes), bound_in(loop.body), dict[object, Fiber]()
    for load in (substitute(n, values) for n in loads):
        place = load.indices[-2]
        if (
            load.indices[-1] in inner
            and _is_met(load, loop, own)
            and isinstance(place, Load)
            and place.buffer.data in axes
        ):
            key, axis = fingerprint(place), axes[place.buffer.data]
            same = found.get(key, Fiber((), place, axis))
            if all(known.buffer is not load.buffer for known in same.loads):
                found[key] = Fiber((*same.loads, load), place, axis)
    return tuple(found.values())


def _in_fiber(load: Load) -> bool:
    """Whether *load* reads an element of a fiber below another axis."""
    axes = load.buffer.axes if isinstance(load.buffer, SparseBuffer) else ()
    return len(axes) > 1 and axes[-1].is_variable


def _is_met(load: Load, loop: For, own: Collection[Var]) -> bool:
    """Whether *load*, but for its last index, is at a coordinate that *loop* reads.

    In terms of the variables of loops; *own*: those that are known only inside of *loop*.
    """
    *path, _ = load.indices
    place = path[-1]
    at_stored = isinstance(place, Load) and place.indices[-1] is loop.var
    return at_stored and all(i is None or variables(i).isdisjoint(own) for i in path)


@lru_cache(maxsize=4)  # of one program many questions are asked
def _listing(axes: tuple[Axis, ...]) -> dict[Var | None, Axis]:
    """Those of *axes* that list coordinates, a known number of them, by the array that does."""
    listing = (axis for axis in axes if axis.is_sparse and not axis.shifted)
    return {axis.indices: axis for axis in listing if _stored(axis)}


def _hints(func: PosFunc, fiber: Fiber, distance: int) -> Iterator[Stmt]:
    """Yield the prefetches of where a fiber begins, and of its bounds before these are needed."""
    soon, later = (_ahead(func, fiber.place, fiber.axis, d) for d in (distance, 2 * distance))
    row = binary("max", soon, 0) if fiber.axis.padded else soon  # where it begins is read
    for load in fiber.loads:
        yield st.Prefetch(load.buffer, (*load.indices[:-2], row, ZERO))
    (*outer, _, _), buffer = fiber.loads[0].indices, fiber.loads[0].buffer
    assert isinstance(buffer, SparseBuffer)
    bounds = next(b for b in func.buffers if b.data is buffer.axes[-1].indptr)
    yield st.Prefetch(bounds, (*outer, later))


def _ahead(func: PosFunc, place: Load, axis: Axis, distance: int) -> Load:
    """Return *place* at *distance* positions after the one at hand, or at the last."""
    (*outer, here), stored = place.indices, _stored(axis)
    is_absolute = bool(outer) and outer[-1] is None
    start = ZERO if is_absolute else _begin(func, axis, tuple(outer))
    assert here is not None
    assert stored is not None
    last = binary("-", stored, 1)
    ahead = binary("min", plus(start, binary("+", here, distance)), last)
    return place.replace(indices=(*(None for _ in place.indices[:-1]), ahead))


def _hint(func: PosFunc, gather: Gather, distance: int, names: Names) -> Stmt:
    """Return the prefetches of the rows *distance* positions after the one at hand."""
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


def _begin(func: PosFunc, axis: Axis, outer: tuple[Expr | None, ...]) -> Expr:
    """Return the absolute position where the fiber of *axis* at *outer* begins."""
    if axis.is_variable:
        return cast(Load(next(b for b in func.buffers if b.data is axis.indptr), outer), int64)
    *above, own = outer
    assert axis.parent is not None
    assert axis.nnz_cols is not None
    assert own is not None
    is_absolute = not above or above[-1] is None
    row = own if is_absolute else plus(_begin(func, axis.parent, tuple(above)), own)
    return binary("*", row, cast(axis.nnz_cols, int64))


def _stored(axis: Axis) -> Expr | None:
    """Return how many positions *axis* has in all; None if that is not said."""
    if axis.parent is None:
        return cast(axis.length, int64)
    if axis.is_variable:
        return None if axis.nnz is None else cast(axis.nnz, int64)
    above = _stored(axis.parent)
    return None if above is None else binary("*", above, cast(axis.nnz_cols or ZERO, int64))
