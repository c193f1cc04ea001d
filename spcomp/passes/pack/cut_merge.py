"""Beside the route, for merges: one that is all of a result is cut into ranges of coordinates."""

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
from spcomp.passes.pack.row_bounds import Fibers, Span, sum_of

MakePart: TypeAlias = Callable[[Merge, Expr, Expr], Stmt]
"""Makes a part: of its merge, how many elements that meets at most, and whether it is the last."""
WORK = 1 << 15  # elements of the operands in a part, on average
MOST_PARTS = 1 << 10


@dataclass(frozen=True, slots=True)
class CutMerge:
    """*merge* in parts of equal work, which makes at most as many elements as *bound* says.

    A part is a range of coordinates. Where it begins is searched for: the first coordinate before
    which the operands have as many elements as its number asks for. That follows from the data
    alone, however many threads there are. Source: merge path, Odeh et al. (IPDPSW 2012).
    """

    merge: Merge
    bound: tuple[Span, ...]

    @property
    def weights(self) -> tuple[Fibers, ...]:
        """What lies below the positions of each cursor."""
        return tuple(fibers for span in self.bound for fibers in span.options)

    def parts(self) -> Expr:
        """Return how many parts there are, an int64."""
        work = sum_of([fibers.total() for fibers in self.weights])
        many = binary("min", binary("//", work, WORK), MOST_PARTS)
        return binary("max", many, 1)

    def part(self, names: Names, number: Expr, parts: Expr, body: MakePart) -> Stmt:
        """Return what *body* makes of the merge in part *number* of *parts*."""
        begins, ends = (
            [self._var(names, c, what) for c in self.cursors] for what in ("from", "to")
        )
        ranges = zip(self.cursors, begins, ends, strict=True)
        cursors = tuple(c.replace(begin=begin, end=end) for c, begin, end in ranges)
        places = iter(zip(begins, ends, strict=True))
        sizes = [span.within([next(places) for _ in span.options]) for span in self.bound]
        last = BinOp("==", number, binary("-", parts, 1))
        stmt = body(self.merge.replace(cursors=cursors), sum_of(sizes), last)
        for what, own, at in (("last", ends, binary("+", number, 1)), ("first", begins, number)):
            edge = self._var(names, self.merge, what)
            for cursor, var in zip(self.cursors, own, strict=True):
                stmt = Let(var, _before(cursor, edge), stmt)
            stmt = self._find(names, edge, at, parts, stmt)
        return stmt

    @property
    def cursors(self) -> tuple[Cursor, ...]:
        """The cursors of the merge."""
        return self.merge.cursors

    def _var(self, names: Names, of: Cursor | Merge, what: str) -> Var:
        own = of.pos if isinstance(of, Cursor) else of.coordinate
        return names.var(f"{own.name}_{what}")

    def _find(self, names: Names, edge: Var, number: Expr, parts: Expr, stmt: Stmt) -> Stmt:
        """Return *stmt* with *edge* bound to the coordinate at which part *number* begins."""
        low, high = (
            Buffer(names.unique(f"{edge.name}_{what}"), None, (const(1),), int64, "local")
            for what in ("low", "high")
        )
        middle, goal = names.var(f"{edge.name}_middle"), names.var(f"{edge.name}_goal")
        at_low, at_high = Load(low, (ZERO,)), Load(high, (ZERO,))
        below = self._weight([_before(cursor, middle) for cursor in self.cursors])
        narrow = If(
            BinOp("<", below, goal),
            Store(low, (ZERO,), binary("+", middle, 1)),
            Store(high, (ZERO,), middle),
        )
        half = BinOp(">>", binary("+", at_low, at_high), const(1))
        loop = While(BinOp("<", at_low, at_high), Let(middle, half, narrow))
        start = Store(low, (ZERO,), ZERO), Store(high, (ZERO,), self._limit())
        found = seq(*start, loop, Let(edge, at_low, stmt))
        whole = self._weight([cursor.end for cursor in self.cursors])
        share = binary("//", binary("*", whole, number), parts)
        return Let(goal, share, Alloc(low, Alloc(high, found)))

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
    """Return what cuts *start*, which makes as many elements as *bound* says, if it is a merge."""
    match start:
        case Seq(body=(Store(), Merge() as merge)):
            cut = CutMerge(merge, tuple(bound))
            stored = all(isinstance(c.indices, SparseBuffer) for c in merge.cursors)
            return cut if stored and len(cut.weights) == len(merge.cursors) else None
    return None


def in_parts(names: Names, loop: For, cut: CutMerge, body: MakePart) -> Stmt:
    """Return *loop*, which runs once, as one over the parts of its merge, made by *body*."""
    part, parts = names.var(f"{loop.var.name}_part"), names.var("parts")
    made = _Replaced(cut.merge, cut.part(names, part, parts, body)).rewrite(loop.body)
    once = substitute(made, {loop.var: ZERO})
    each = For(part, ZERO, parts, once, "parallel", attrs=(("grain", 1),), span=loop.span)
    return Let(parts, cut.parts(), each)


class _Replaced(Rewriter):
    """Puts *new* in the place of *merge*, of which it is made."""

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
