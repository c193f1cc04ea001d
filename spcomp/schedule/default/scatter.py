"""In position space: scatters, nests whose iterations update the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import trip_count
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store
from spcomp.ir.visitor import walk
from spcomp.knobs import Knobs
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.nests.nests import chain, inside_lets


@dataclass(frozen=True, slots=True)
class Scatter:
    """A nest in which only the innermost loop, along the rows that it updates, is independent.

    *levels*: the names of the loops around *inner*, from the innermost block outwards; *width*: the
    number of elements of a row that a thread takes. Source: column-parallel transposed SpMM.
    """

    inner: str
    levels: tuple[tuple[str, ...], ...]
    width: int


def outermost(stmt: Stmt) -> Iterator[For]:
    """Yield the outermost loop of each nest."""
    match stmt:
        case Seq(body=body):
            for part in body:
                yield from outermost(part)
        case Let(body=inner) | Alloc(body=inner):
            yield from outermost(inner)
        case For():
            yield stmt


def as_scatter(nest: For, knobs: Knobs, *, single: bool = False) -> Scatter | None:
    """Return how to run *nest* in parallel over parts of the rows it updates; None if it cannot.

    *single*: each part is one element of a row, however long rows are. All parts find out where
    rows are, and whether they exist, which pays if there are many.
    """
    levels: list[tuple[str, ...]] = []
    body: Node = nest
    while isinstance(body, For):
        loops, block = chain(body)
        if any(loop.kind != "serial" for loop in loops) or not isinstance(block, Block):
            return None
        levels.append(tuple(loop.var.name for loop in loops))
        inner, body = loops[-1], inside_lets(block.body) if single else block.body
        if isinstance(body, For) and (block.init or block.where):
            return None
    if single and isinstance(body, If):  # the element may be missing, which is an error
        body = body.then
    if not isinstance(body, Store) or conflicts(inner):
        return None
    extent = trip_count(inner)
    width = 1 if single else 0 if extent is None else _width(extent, body, knobs)
    if not width or not conflicts(nest):
        return None
    levels[-1] = levels[-1][:-1]
    around = tuple(reversed(levels))
    worth = any(around) if single else bool(around[0])
    return Scatter(inner.var.name, around, width) if worth else None


def _width(extent: int, body: Stmt, knobs: Knobs) -> int:
    """Return how many elements of a row a thread takes, whole cache lines; 0: cannot be shared."""
    sizes = [n.buffer.dtype.itemsize for n in walk(body) if isinstance(n, (Load, Store))]
    # parts of one line share pairs of lines, which is still better than no parts
    for bytes_ in (knobs.scatter_bytes, knobs.scatter_bytes // 2):
        line = bytes_ // max(sizes)
        lines = -(-extent // line)
        width = -(-lines // knobs.scatter_parts) * line
        if width < extent and extent % width == 0:
            return width
    return 0
