"""The step that looks one operand of an intersection up in marks, made once for several of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.errors import Span
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, bound_by, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import Axis, SparseBuffer, memory_of
from spcomp.ir.expr import Expr, Var, binary, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor, Merge
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import For, If, Let, Seq, Stmt, Store, While
from spcomp.ir.visitor import walk
from spcomp.passes.assembly.marks import Ranks
from spcomp.schedule.nests.nests import replaced, runs_once
from spcomp.schedule.nests.sites import path_to, refusal
from spcomp.schedule.steps.base import Step, the_one


@dataclass(frozen=True, slots=True)
class MarkFiber(Step):
    """``for k: merge(intersect, a[k], m): s  ->  mark m; for k: for j in a[k]: if j in m: s``.

    *merge* is the coordinate of an intersection, *cursor* says which of its operands is marked, a
    bit for each coordinate, with ranks where its positions are used: as far out as its fiber is
    known. What is left is a loop over the other operand, or an intersection of several, called as
    before. Legal where a loop lies between, nothing in it writes the coordinates, and each occurs
    once. Takes time linear in the fiber once, and in the others each time.
    Source: Gustavson (TOMS 1978); masks as in SuiteSparse:GraphBLAS (Davis, TOMS 2019).
    """

    name: ClassVar[str] = "mark_fiber"
    merge: str
    cursor: int

    def apply(self, func: Func, span: Span | None = None) -> Func:
        """Return *func* with the operand marked."""
        merge = _find(func, self, span)
        assert isinstance(func, PosFunc)
        if not 0 <= self.cursor < len(merge.cursors):
            count = len(merge.cursors)
            raise refusal(self, f"{self.merge!r} has {count} operands", span or merge.span)
        if (why := _reason(func, merge, self.cursor)) is not None:
            raise refusal(self, why, span or merge.span)
        return _Marking(func, merge, self.cursor).build()


def markable(func: PosFunc) -> Iterator[MarkFiber]:
    """Yield the steps that mark operands of intersections in *func*, each legal by itself."""
    for merge in (n for n in walk(func.body, skip=Expr) if isinstance(n, Merge)):
        for cursor in range(len(merge.cursors)):
            if _reason(func, merge, cursor) is None:
                yield MarkFiber(merge.coordinate.name, cursor)


def _find(func: Func, step: MarkFiber, span: Span | None) -> Merge:
    if not isinstance(func, PosFunc):
        raise refusal(step, f"{func.name} has no merges at this level", span)
    merges = (n for n in walk(func.body, skip=Expr) if isinstance(n, Merge))
    every = ((n.coordinate.name, n) for n in merges)
    none = f"{step}: nothing is merged along {step.merge!r}"
    return the_one(every, step.merge, none, "coordinates of merges", span)


def _reason(func: PosFunc, merge: Merge, cursor: int) -> str | None:
    """Return why the operand may not be marked; None if it may."""
    if merge.kind != "intersect" or len(merge.cases) != 1:
        return "it is no intersection"
    axes = [_axis(one) for one in merge.cursors]
    if any(axis is None or not (axis.sorted and axis.unique) for axis in axes):
        return "an operand is no list of coordinates that ascend"
    params = {*func.params}
    if any(variables(axis.length) - params for axis in axes if axis is not None):
        return "the length of an axis is not known when the function is called"
    around = path_to(func, merge)
    own, depth = _outermost(around, merge.cursors[cursor])
    inside = around[depth:]
    if not _repeats(inside):
        return "its fiber differs from one intersection to the next"
    if any(isinstance(n, (If, While)) or (isinstance(n, Block) and n.where) for n in inside):
        return "whether it is looked at depends on a condition"
    written = {memory_of(n.buffer) for n in walk(inside[0]) if isinstance(n, Store)}
    if _memory(own) & written:
        return "its coordinates are written in between"
    return None


def _axis(cursor: Cursor) -> Axis | None:
    """Return the axis that lists what *cursor* runs over; None of a dense fiber."""
    return cursor.indices.axes[-1] if isinstance(cursor.indices, SparseBuffer) else None


def _memory(cursor: Cursor) -> set[object]:
    """What the coordinates of *cursor*, and its bounds, are read from."""
    ends = (n for end in (cursor.begin, cursor.end) for n in walk(end))
    read = {memory_of(n.buffer) for n in ends if isinstance(n, (Load, Search))}
    return read if cursor.indices is None else {*read, memory_of(cursor.indices)}


def _outermost(around: tuple[Node, ...], cursor: Cursor) -> tuple[Cursor, int]:
    """Return *cursor* in the terms in which it is known farthest out, and where that is.

    That is, the number of the node on the way to the merge. What blocks call loops is seen
    through, and that the only value of one that runs once is 0, if there is no other way.
    """
    depth = _depth(around, cursor)
    if _repeats(around[depth:]):
        return cursor, depth
    values: dict[Var, Expr] = {}
    for node in around:
        if isinstance(node, Block):
            values |= {var: substitute(value, values) for var, value in node.values.items()}
        elif isinstance(node, For) and runs_once(node):
            values[node.var] = ZERO
    begin, end = (simplify(substitute(end, values)) for end in (cursor.begin, cursor.end))
    outer = cursor.replace(begin=begin, end=end)
    return outer, _depth(around, outer)


def _repeats(inside: tuple[Node, ...]) -> bool:
    """Whether there is a loop among the nodes *inside*."""
    loops = (node for node in inside if isinstance(node, (For, While)))
    return any(isinstance(loop, While) or not runs_once(loop) for loop in loops)


def _depth(around: tuple[Node, ...], cursor: Cursor) -> int:
    """Return which of the nodes on the way to a merge is the first that knows *cursor*."""
    needed = variables(cursor.begin) | variables(cursor.end)
    binders = (k for k, node in enumerate(around[:-1]) if needed & set(bound_by(node)))
    first = 1 + max(binders, default=-1)
    whole = (k for k in range(first, len(around)) if isinstance(around[k], Stmt))
    return next(k for k in whole if not isinstance(around[k], Seq))


class _Marking:
    def __init__(self, func: PosFunc, merge: Merge, cursor: int) -> None:
        self.func, self.merge = func, merge
        self.own = merge.cursors[cursor]
        self.around = path_to(func, merge)
        self.outer, self.depth = _outermost(self.around, self.own)
        self.others = tuple(one for one in merge.cursors if one is not self.own)
        self.names = Names(func)
        lengths = [axis.length for one in merge.cursors if (axis := _axis(one)) is not None]
        length = cast(lengths[0], int64)
        for other in lengths[1:]:
            if not expr_equal(other, lengths[0]):
                length = binary("max", length, cast(other, int64))
        (self.case,) = merge.cases
        assert isinstance(self.own.indices, SparseBuffer)
        ranked = any(n is self.own.pos for n in walk(self.case.body))
        wish, dtype = self.own.indices.axes[-1].name, self.own.indices.dtype
        self.ranks = Ranks.of(wish, length, dtype, self.names, ranked=ranked)

    def build(self) -> Func:
        """Return the function with the marks around what knows the fiber."""
        top, body = self.around[self.depth], self._inner()
        assert isinstance(top, Stmt)
        if top is not self.merge:
            body = replaced(self.func.replace(body=top), self.merge, body).body
        size = binary("-", self.outer.end, self.outer.begin)
        marked = self.ranks.around(body, size, lambda at: element(self.outer, at))
        return replaced(self.func, top, annotate_regions(marked))

    def _inner(self) -> Stmt:
        at = Var(self.merge.coordinate.name, int64)
        coord = self.merge.coordinate if len(self.others) > 1 else self.names.var(f"{at.name}_at")
        body = substitute(self.case.body, {self.merge.coordinate: coord})
        if self.ranks.before is not None:
            body = located(body, self.own, self.ranks.position(coord))
        body = If(self.ranks.holds(coord), body, span=self.case.span)
        if len(self.others) > 1:
            case = self.case.replace(present=(True,) * len(self.others), body=body)
            return self.merge.replace(cursors=self.others, cases=(case,))
        (other,) = self.others
        body = Let(coord, element(other, at), located(body, other, at))
        return For(at, ZERO, binary("-", other.end, other.begin), body, span=self.merge.span)


def element(cursor: Cursor, at: Expr) -> Expr:
    """Return the coordinate at position *at* of the fiber of *cursor*, an int64."""
    buffer = cursor.indices
    assert isinstance(buffer, SparseBuffer)
    begin = cursor.begin
    load = next((n for n in walk(begin) if isinstance(n, Load)), None)
    own = buffer.axes[-1]
    if load is not None and load.buffer.data is own.indptr and expr_equal(begin, cast(load, int64)):
        return cast(Load(buffer, (*load.indices, at)), int64)
    outer = (None,) * (len(buffer.axes) - 1)
    return cast(Load(buffer, (*outer, binary("+", begin, at))), int64)


def located(body: Stmt, cursor: Cursor, at: Expr) -> Stmt:
    """Return *body* with the position of *cursor* that is *at* in its fiber."""
    inner = _Relative(cursor, at).rewrite(body)
    return substitute(inner, {cursor.pos: binary("+", cursor.begin, at)})


class _Relative(Rewriter):
    """Puts *at* where positions count from the beginning of the fiber."""

    def __init__(self, cursor: Cursor, at: Expr) -> None:
        self.at, self.relative = at, binary("-", cursor.pos, cursor.begin)

    def visit_BinOp(self, expr: Expr) -> Node:
        """Compare with what positions are counted by."""
        return self.at if expr_equal(expr, self.relative) else self.visit_Node(expr)
