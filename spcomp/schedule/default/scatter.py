"""What the default schedule makes of scatters: nests whose iterations collide in whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spcomp.ir.access import Load
from spcomp.ir.expr import Const
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.stmt import Alloc, For, Let, Seq, Stmt, Store
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.nests.nests import chain

PARTS = 4  # of a row, run at the same time; each reads the pattern again
LINE = 128  # bytes that no two threads should share: processors fetch lines in pairs


@dataclass(frozen=True, slots=True)
class Scatter:
    """A nest of which only the innermost loop, along the rows that it updates, is independent.

    *levels*: the names of the loops around *inner*, from the innermost block outwards; *width*: how
    many elements of a row a thread takes. Source: column-parallel transposed SpMM.
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


def as_scatter(nest: For) -> Scatter | None:
    """Return how *nest* is best run in parallel over parts of the rows it updates, if it can be."""
    levels: list[tuple[str, ...]] = []
    body: Node = nest
    while isinstance(body, For):
        loops, block = chain(body)
        if any(loop.kind != "serial" for loop in loops) or not isinstance(block, Block):
            return None
        levels.append(tuple(loop.var.name for loop in loops))
        inner, body = loops[-1], block.body
        if isinstance(body, For) and (block.init or block.where):
            return None
    if not isinstance(body, Store) or not isinstance(inner.end, Const) or conflicts(inner):
        return None
    width = _width(int(inner.end.value), body)
    if not width or not conflicts(nest):
        return None
    levels[-1] = levels[-1][:-1]
    around = tuple(level for level in reversed(levels) if level)
    return Scatter(inner.var.name, around, width) if around else None


def _width(extent: int, body: Stmt) -> int:
    """Return how much of a row a thread takes, in whole cache lines; 0 if it cannot be shared."""
    sizes = [n.buffer.dtype.itemsize for n in walk(body) if isinstance(n, (Load, Store))]
    for bytes_ in (LINE, LINE // 2):  # to share pairs of lines is better than not to share at all
        line = bytes_ // max(sizes)
        lines = -(-extent // line)
        width = -(-lines // PARTS) * line
        if width < extent and extent % width == 0:
            return width
    return 0
