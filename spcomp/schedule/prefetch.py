"""Steps on what will be needed soon: prefetch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import ScheduleError, Span
from spcomp.ir import stmt as st
from spcomp.ir.arith import coefficient
from spcomp.ir.axis import Axis
from spcomp.ir.expr import Const, Load, Var, binary, cast, const
from spcomp.ir.position import Block, PosFunc
from spcomp.ir.stmt import For, Func, Stmt, seq
from spcomp.ir.visitor import substitute, walk
from spcomp.passes.names import Names
from spcomp.passes.positions import ZERO, from_zero
from spcomp.passes.scope import fingerprint, variables
from spcomp.schedule.nests import Replace, chain, find_loop, replaced
from spcomp.schedule.step import Step

LINE = 64  # bytes that come with one prefetch


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """``for j: s(B[J_indices[j], k])  ->  for j: prefetch B[J_indices[j + d], k]; s``.

    *loop* runs over the positions of a sparse axis; rows of dense buffers at its coordinates are
    asked for *distance* positions ahead, in the fibers that follow too. Always legal where there
    is such a row: the position is clamped to the last one that is stored.
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
        hints = [_hint(func, g, self.distance) for g in gathers(func, loop)]
        if not hints:
            raise ScheduleError(
                f"{self}: no row of a dense buffer is read at the coordinates of {self.loop!r}",
                span or loop.span,
            )
        return replaced(func, loop, loop.replace(body=seq(*hints, loop.body)))


@dataclass(frozen=True, slots=True)
class Gather:
    """A row that is read at a coordinate: *load* in terms of loops, *place* reads the coordinate.

    *inner*: the loop that runs along the row, of *trips* elements.
    """

    load: Load
    place: Load
    axis: Axis
    inner: Var
    trips: int

    @property
    def bytes(self) -> int:
        """How much of the row is read."""
        return self.trips * self.load.buffer.dtype.itemsize


def gathers(func: PosFunc, loop: For) -> tuple[Gather, ...]:
    """Return the rows that *loop* reads at the coordinates of the positions it runs over.

    Those whose extent is known, in the block that the loop is nested around perfectly.
    """
    loops, block = chain(loop)
    if not isinstance(block, Block):
        return ()
    axes = {axis.indices: axis for axis in func.axes if axis.kind == "sparse_variable"}
    found: dict[object, Gather] = {}
    for node in walk(block.body):
        if not isinstance(node, Load) or len(node.indices) < 2 or None in node.indices:
            continue
        load = substitute(node, block.values)
        for gather in _gathers(load, loop, loops[1:], axes):
            found.setdefault((load.buffer, fingerprint(load.indices)), gather)
    return tuple(found.values())


def _gathers(
    load: Load, loop: For, inside: list[For], axes: dict[Var | None, Axis]
) -> Iterator[Gather]:
    last = load.indices[-1]
    assert last is not None
    runs = [x for x in inside if x.var in variables(load)]
    if len(runs) != 1 or not isinstance(runs[0].end, Const) or not from_zero(runs[0]):
        return
    if coefficient(last, runs[0].var) != 1 or any(
        runs[0].var in variables(i) for i in load.indices[:-1] if i is not None
    ):
        return
    for index in load.indices[:-1]:
        if isinstance(index, Load) and index.buffer.data in axes and index.indices[-1] is loop.var:
            axis = axes[index.buffer.data]
            yield Gather(load, index, axis, runs[0].var, int(runs[0].end.value))


def _hint(func: PosFunc, gather: Gather, distance: int) -> Stmt:
    """Return the prefetches of the row *distance* positions after the one at hand."""
    place, axis = gather.place, gather.axis
    indptr = next(b for b in func.buffers if b.data is axis.indptr)
    start = cast(Load(indptr, place.indices[:-1]), int64)
    here = place.indices[-1]
    assert axis.nnz is not None
    assert here is not None
    last = binary("-", cast(axis.nnz, int64), 1)
    ahead = binary("min", binary("+", start, binary("+", here, distance)), last)
    path = (*(None for _ in place.indices[:-1]), ahead)
    soon = Replace(place, place.replace(indices=path)).rewrite(gather.load)
    step = LINE // soon.buffer.dtype.itemsize
    lines = -(-gather.trips // step)
    line = Names(func).var(f"{gather.inner.name}_line")
    at = substitute(soon, {gather.inner: binary("*", line, step)})
    return For(line, ZERO, const(lines), st.Prefetch(at.buffer, at.indices), "unroll")
