"""Beside the route, for merges: one that makes a whole result is cut into coordinate ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Expr, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor, Merge
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While, seq
from spcomp.knobs import Knobs
from spcomp.passes.pack.row_bounds import Fibers, Span, sum_of

MakePart: TypeAlias = Callable[[Merge, Expr, Expr], Stmt]
"""Builds a part from its merge, a bound of its elements, and whether it is the last part."""


@dataclass(frozen=True, slots=True)
class CutMerge:
    """*merge* in parts of equal work; *bound* limits the number of its elements.

    A part is a range of coordinates. A search finds where it begins: at the first coordinate below
    which the operands have its share of the elements. So the parts depend only on the data, not on
    the number of threads. Source: merge path, Odeh et al. (IPDPSW 2012).
    """

    merge: Merge
    bound: tuple[Span, ...]

    @property
    def weights(self) -> tuple[Fibers, ...]:
        """The fibers below the positions of each cursor."""
        return tuple(fibers for span in self.bound for fibers in span.options)

    def parts(self, knobs: Knobs) -> Expr:
        """Return how many parts there are, an int64."""
        work = sum_of([fibers.total() for fibers in self.weights])
        count = binary("min", binary("//", work, knobs.part_elements), knobs.result_parts)
        return binary("max", count, 1)

    def part(self, names: Names, number: Expr, parts: Expr, body: MakePart) -> Stmt:
        """Return the statement that *body* builds for part *number* of *parts*."""
        begins, ends = (
            [self._var(names, c, wish) for c in self.cursors] for wish in ("from", "to")
        )
        ranges = zip(self.cursors, begins, ends, strict=True)
        cursors = tuple(c.replace(begin=begin, end=end) for c, begin, end in ranges)
        places = iter(zip(begins, ends, strict=True))
        sizes = [span.within([next(places) for _ in span.options]) for span in self.bound]
        last = BinOp("==", number, binary("-", parts, 1))
        stmt = body(self.merge.replace(cursors=cursors), sum_of(sizes), last)
        for wish, edges, at in (("last", ends, binary("+", number, 1)), ("first", begins, number)):
            edge = self._var(names, self.merge, wish)
            for cursor, var in zip(self.cursors, edges, strict=True):
                stmt = Let(var, _before(cursor, edge), stmt)
            stmt = self._find(names, edge, at, parts, stmt)
        return stmt

    @property
    def cursors(self) -> tuple[Cursor, ...]:
        """The cursors of the merge."""
        return self.merge.cursors

    def _var(self, names: Names, of: Cursor | Merge, wish: str) -> Var:
        source = of.pos if isinstance(of, Cursor) else of.coordinate
        return names.var(f"{source.name}_{wish}")

    def _find(self, names: Names, edge: Var, number: Expr, parts: Expr, stmt: Stmt) -> Stmt:
        """Return *stmt* with *edge* bound to the coordinate at which part *number* begins."""
        low, high = (
            Buffer(names.unique(f"{edge.name}_{wish}"), None, (const(1),), int64, "local")
            for wish in ("low", "high")
        )
        middle, goal = names.var(f"{edge.name}_middle"), names.var(f"{edge.name}_goal")
        at_low, at_high = Load(low, (ZERO,)), Load(high, (ZERO,))
        below = self._weight([_before(cursor, middle) for cursor in self.cursors])
        narrow = If(
            BinOp("<", below, goal),
            Store(low, (ZERO,), binary("+", middle, 1)),
            Store(high, (ZERO,), middle),
        )
        half = binary("+", at_low, BinOp(">>", binary("-", at_high, at_low), const(1)))
        loop = While(BinOp("<", at_low, at_high), Let(middle, half, narrow))
        start = Store(low, (ZERO,), ZERO), Store(high, (ZERO,), self._limit())
        search = seq(*start, loop, Let(edge, at_low, stmt))
        total = self._weight([cursor.end for cursor in self.cursors])
        share = binary("//", binary("*", total, number), parts)
        return Let(goal, share, Alloc(low, Alloc(high, search)))

    def _weight(self, positions: Sequence[Expr]) -> Expr:
        """Return how many elements lie before *positions* of the cursors."""
        sides = zip(self.weights, positions, self.cursors, strict=True)
        return sum_of(
            [binary("-", f.leaves(pos), f.leaves(cast(c.begin, int64))) for f, pos, c in sides]
        )

    def _limit(self) -> Expr:
        """Return a number above all coordinates."""
        limit: Expr = ZERO
        for cursor in self.cursors:
            assert isinstance(cursor.indices, SparseBuffer)
            limit = binary("max", limit, cast(cursor.indices.axes[-1].length, int64))
        return limit


def cut_of(start: Stmt, bound: Sequence[Span]) -> CutMerge | None:
    """Return how to cut *start*, whose elements *bound* limits, if it is a merge; else None."""
    match start:
        case Seq(body=(Store(), Merge() as merge)):
            cut = CutMerge(merge, tuple(bound))
            is_stored = all(isinstance(c.indices, SparseBuffer) for c in merge.cursors)
            return cut if is_stored and len(cut.weights) == len(merge.cursors) else None
    return None


def in_parts(names: Names, loop: For, cut: CutMerge, body: MakePart, knobs: Knobs) -> Stmt:
    """Return *loop*, which runs once, as a loop over the parts of its merge, built by *body*."""
    part, parts = names.var(f"{loop.var.name}_part"), names.var("parts")
    body_of_part = _ReplaceMerge(cut.merge, cut.part(names, part, parts, body)).rewrite(loop.body)
    single = substitute(body_of_part, {loop.var: ZERO})
    part_loop = For(part, ZERO, parts, single, "parallel", attrs=(("grain", 1),), span=loop.span)
    return Let(parts, cut.parts(knobs), part_loop)


class _ReplaceMerge(Rewriter):
    """Replaces *merge* by *new*."""

    def __init__(self, merge: Merge, new: Stmt) -> None:
        self.merge, self.new = merge, new

    def visit_Merge(self, merge: Merge) -> Node:
        return self.new if merge is self.merge else self.visit_Node(merge)

    def visit_Block(self, block: Block) -> Node:
        return block.replace(reads=(), writes=(), body=self.rewrite(block.body))


def _before(cursor: Cursor, coordinate: Expr) -> Expr:
    """Return the first position of *cursor* whose coordinate is not below *coordinate*."""
    assert cursor.indices is not None
    begin, end = (cast(x, int64) for x in (cursor.begin, cursor.end))
    return Search("lower", cursor.indices, begin, end, coordinate)
