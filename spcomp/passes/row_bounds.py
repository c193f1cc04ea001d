"""Beside the route, stage II: how many elements the rows of a result have at most. Plain data."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from spcomp.dtypes import int64
from spcomp.ir.axis import AnyBuffer, Axis
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Load, Var, binary, cast
from spcomp.ir.position import Block, Cursor, Merge
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While
from spcomp.ir.visitor import walk
from spcomp.passes.positions import from_zero


@dataclass(frozen=True, slots=True)
class Fibers:
    """The elements of the fibers of *axis*, of which *indptr* says where they begin."""

    axis: Axis
    indptr: AnyBuffer

    def between(self, first: Expr, last: Expr) -> Expr:
        """Return how many there are in rows ``first..last-1``, an int64."""
        begin, end = (cast(Load(self.indptr, (at,)), int64) for at in (first, last))
        return binary("-", end, begin)

    def total(self) -> Expr:
        """Return how many there are at most, an int64."""
        assert self.axis.nnz is not None
        return cast(self.axis.nnz, int64)


@dataclass(frozen=True, slots=True)
class Span:
    """At most as many elements as each of *options* has."""

    options: tuple[Fibers, ...]

    def between(self, first: Expr, last: Expr) -> Expr:
        """Return how many there are at most in rows ``first..last-1``, an int64."""
        return _least([option.between(first, last) for option in self.options])

    def total(self) -> Expr:
        """Return how many there are at most in all rows, an int64."""
        return _least([option.total() for option in self.options])


def _least(sizes: list[Expr]) -> Expr:
    least, *others = sizes
    for size in others:
        least = binary("min", least, size)
    return least


def bound_of(stmt: Stmt, rows: AbstractSet[Var], axes: tuple[Axis, ...]) -> tuple[Span, ...] | None:
    """Return spans that the elements made by *stmt* in a row fit in together; None if not known.

    *rows*: the variables whose value is the row. A loop or a case of a merge makes one element for
    each of its iterations; nothing is made outside of these, nor in loops inside.
    """
    return _Bounds(rows, axes).of(stmt)


@dataclass(frozen=True, slots=True)
class _Bounds:
    rows: AbstractSet[Var]
    axes: tuple[Axis, ...]

    def of(self, stmt: Stmt) -> tuple[Span, ...] | None:
        match stmt:
            case Seq(body=parts):
                found = [self.of(part) for part in parts]
                known = [spans for spans in found if spans is not None]
                return sum(known, ()) if len(known) == len(found) else None
            case Block(body=body) | Let(body=body) | Alloc(body=body):
                return self.of(body)
            case Merge():
                return self._merge(stmt)
            case For(body=body) if from_zero(stmt) and _makes_one(body):
                fibers = self._size(stmt.end)
                return None if fibers is None else (Span((fibers,)),)
            case Store():
                return ()
        return None

    def _merge(self, merge: Merge) -> tuple[Span, ...] | None:
        fibers = [self._cursor(cursor) for cursor in merge.cursors]
        known = tuple(x for x in fibers if x is not None)
        if not all(_makes_one(case.body) for case in merge.cases):
            return None
        if merge.kind == "intersect":
            return (Span(known),) if known else None
        return tuple(Span((x,)) for x in known) if len(known) == len(fibers) else None

    def _cursor(self, cursor: Cursor) -> Fibers | None:
        return self._fibers(cursor.begin, cursor.end)

    def _size(self, extent: Expr) -> Fibers | None:
        match _plain(extent):
            case BinOp(op="-", lhs=end, rhs=begin):
                return self._fibers(begin, end)
        return None

    def _fibers(self, begin: Expr, end: Expr) -> Fibers | None:
        """Return whose elements ``begin..end-1`` are, if they are those of the row."""
        match _plain(begin), _plain(end):
            case (
                Load(buffer=indptr, indices=(Var() as row,)),
                Load(
                    buffer=other,
                    indices=(BinOp(op="+", lhs=Var() as after, rhs=Const(value=1)),),
                ),
            ) if indptr is other and {row, after} <= self.rows:
                found = (a for a in self.axes if a.indptr is indptr.data and a.nnz is not None)
                axis = next(found, None)
                return None if axis is None else Fibers(axis, indptr)
        return None


def _plain(expr: Expr) -> Expr:
    while isinstance(expr, Cast):
        expr = expr.value
    return expr


def _makes_one(stmt: Stmt) -> bool:
    """Whether *stmt* runs nothing repeatedly and not two things that each may make an element."""
    if any(isinstance(n, (For, While, Merge)) for n in walk(stmt)):
        return False
    return _counts(stmt) <= 1


def _counts(stmt: Stmt) -> int:
    """How often *stmt* counts at most: it stores a count that it loads."""
    match stmt:
        case Seq(body=parts):
            return sum(map(_counts, parts))
        case If(then=then, otherwise=otherwise):
            return max(_counts(then), 0 if otherwise is None else _counts(otherwise))
        case Block(body=body) | Let(body=body) | Alloc(body=body):
            return _counts(body)
        case Store(buffer=buffer, value=value):
            own = (n for n in walk(value) if isinstance(n, Load) and n.buffer is buffer)
            return int(next(own, None) is not None and buffer.data is None)
    return 0
