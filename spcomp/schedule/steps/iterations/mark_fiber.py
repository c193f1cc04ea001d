"""In position space: the step mark_fiber, which looks up an operand of intersections in marks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, bound_by, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import Axis, SparseBuffer, memory_of
from spcomp.ir.expr import Expr, Var, binary, cast
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Cursor, Merge
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import For, If, Let, Seq, Stmt, While
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.passes.assembly.marks import Ranks
from spcomp.schedule.nests.nests import replace_stmt, runs_once
from spcomp.schedule.nests.sites import path_to, refusal
from spcomp.schedule.steps.base import Step, find_named


@dataclass(frozen=True, slots=True)
class MarkFiber(Step):
    """``for k: merge(intersect, a[k], m): s  ->  mark m; for k: for j in a[k]: if j in m: s``.

    *merge* is the coordinate of an intersection, *cursor* the number of the operand to mark: one
    bit for each coordinate, and ranks where its positions are used. The marks are made as far out
    as the fiber is known. A loop over the other operand remains, or an intersection of several,
    under the old name. Legal where a loop lies between, nothing in it writes the coordinates, and
    each occurs once. Takes time linear in the marked fiber once, and in the others each time.
    Source: Gustavson (TOMS 1978); masks as in SuiteSparse:GraphBLAS (Davis, TOMS 2019).
    """

    name: ClassVar[str] = "mark_fiber"
    merge: str
    cursor: int

    def plan(self, func: Func) -> Merge:
        """Return the merge."""
        merge = _find(func, self)
        assert isinstance(func, PosFunc)
        if not 0 <= self.cursor < len(merge.cursors):
            count = len(merge.cursors)
            raise refusal(self, f"{self.merge!r} has {count} operands", merge.span)
        if (why := _reason(func, merge, self.cursor)) is not None:
            raise refusal(self, why, merge.span)
        return merge

    def rewrite(self, func: Func, plan: Merge) -> Func:
        """Return *func* with the operand marked."""
        assert isinstance(func, PosFunc)
        return _MarkBuilder(func, plan, self.cursor).build()


def markable(func: PosFunc) -> Iterator[MarkFiber]:
    """Yield the legal steps that mark an operand of an intersection in *func*."""
    for merge in (n for n in walk(func.body, skip=Expr) if isinstance(n, Merge)):
        for cursor in range(len(merge.cursors)):
            if _reason(func, merge, cursor) is None:
                yield MarkFiber(merge.coordinate.name, cursor)


def _find(func: Func, step: MarkFiber) -> Merge:
    if not isinstance(func, PosFunc):
        raise refusal(step, f"{func.name} has no merges at this level")
    merges = (n for n in walk(func.body, skip=Expr) if isinstance(n, Merge))
    labelled = ((n.coordinate.name, n) for n in merges)
    none = f"{step}: nothing is merged along {step.merge!r}"
    return find_named(labelled, step.merge, none, "coordinates of merges")


def _reason(func: PosFunc, merge: Merge, cursor: int) -> str | None:
    """Return why the operand may not be marked; None if it may."""
    if merge.kind != "intersect" or len(merge.cases) != 1:
        return "it is no intersection"
    axes = [_axis(other) for other in merge.cursors]
    if any(axis is None or not (axis.sorted and axis.unique) for axis in axes):
        return "an operand is no list of coordinates that ascend"
    params = {*func.params}
    if any(variables(axis.length) - params for axis in axes if axis is not None):
        return "the length of an axis is not known when the function is called"
    around = path_to(func, merge)
    outer, depth = _outermost(around, merge.cursors[cursor])
    inside = around[depth:]
    if not _repeats(inside):
        return "its fiber differs from one intersection to the next"
    if any(isinstance(n, (If, While)) or (isinstance(n, Block) and n.where) for n in inside):
        return "whether it is looked at depends on a condition"
    if _memory(outer) & writes_of(inside[0]):
        return "its coordinates are written in between"
    return None


def _axis(cursor: Cursor) -> Axis | None:
    """Return the axis of the coordinates that *cursor* runs over; None for a dense fiber."""
    return cursor.indices.axes[-1] if isinstance(cursor.indices, SparseBuffer) else None


def _memory(cursor: Cursor) -> set[object]:
    """Return the memory that the coordinates and the bounds of *cursor* are read from."""
    read = reads_of(cursor.begin, cursor.end)
    return read if cursor.indices is None else {*read, memory_of(cursor.indices)}


def _outermost(around: tuple[Node, ...], cursor: Cursor) -> tuple[Cursor, int]:
    """Return *cursor* with bounds that are known as far out as possible, and the depth of that.

    The depth is the number of the node on the path to the merge. If the bounds as they stand give
    no depth with a loop inside, iters are replaced by their values, and the variables of loops
    that run once by 0.
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
    """Whether one of the nodes *inside* is a loop that may run more than once."""
    loops = (node for node in inside if isinstance(node, (For, While)))
    return any(isinstance(loop, While) or not runs_once(loop) for loop in loops)


def _depth(around: tuple[Node, ...], cursor: Cursor) -> int:
    """Return the number of the first node on the path to a merge where *cursor* is known."""
    used = variables(cursor.begin) | variables(cursor.end)
    binders = (k for k, node in enumerate(around[:-1]) if used & set(bound_by(node)))
    first = 1 + max(binders, default=-1)
    candidates = (k for k in range(first, len(around)) if isinstance(around[k], Stmt))
    return next(k for k in candidates if not isinstance(around[k], Seq))


class _MarkBuilder:
    """The program with one operand of *merge* marked: the marks outside, and what remains of it."""

    def __init__(self, func: PosFunc, merge: Merge, cursor: int) -> None:
        self.func, self.merge = func, merge
        self.cursor = merge.cursors[cursor]
        self.around = path_to(func, merge)
        self.outer, self.depth = _outermost(self.around, self.cursor)
        self.others = tuple(other for other in merge.cursors if other is not self.cursor)
        self.names = Names(func)
        lengths = [axis.length for other in merge.cursors if (axis := _axis(other)) is not None]
        length = cast(lengths[0], int64)
        for other in lengths[1:]:
            if not expr_equal(other, lengths[0]):
                length = binary("max", length, cast(other, int64))
        (self.case,) = merge.cases
        assert isinstance(self.cursor.indices, SparseBuffer)
        ranked = any(n is self.cursor.pos for n in walk(self.case.body))
        wish, dtype = self.cursor.indices.axes[-1].name, self.cursor.indices.dtype
        self.ranks = Ranks.of(wish, length, dtype, self.names, ranked=ranked)

    def build(self) -> Func:
        """Return the function with the marks around what knows the fiber."""
        top, body = self.around[self.depth], self._inner()
        assert isinstance(top, Stmt)
        if top is not self.merge:
            body = replace_stmt(self.func.replace(body=top), self.merge, body).body
        size = binary("-", self.outer.end, self.outer.begin)
        marked = self.ranks.around(body, size, lambda at: element(self.outer, at))
        return replace_stmt(self.func, top, annotate_regions(marked))

    def _inner(self) -> Stmt:
        at = Var(self.merge.coordinate.name, int64)
        coord = self.merge.coordinate if len(self.others) > 1 else self.names.var(f"{at.name}_at")
        body = substitute(self.case.body, {self.merge.coordinate: coord})
        if self.ranks.before is not None:
            body = set_position(body, self.cursor, self.ranks.position(coord))
        body = If(self.ranks.holds(coord), body, span=self.case.span)
        if len(self.others) > 1:
            case = self.case.replace(present=(True,) * len(self.others), body=body)
            return self.merge.replace(cursors=self.others, cases=(case,))
        (other,) = self.others
        body = Let(coord, element(other, at), set_position(body, other, at))
        return For(at, ZERO, binary("-", other.end, other.begin), body, span=self.merge.span)


def element(cursor: Cursor, at: Expr) -> Expr:
    """Return the coordinate at position *at* of the fiber of *cursor*, an int64."""
    buffer = cursor.indices
    assert isinstance(buffer, SparseBuffer)
    begin = cursor.begin
    load = next((n for n in walk(begin) if isinstance(n, Load)), None)
    axis = buffer.axes[-1]
    if (
        load is not None
        and load.buffer.data is axis.indptr
        and expr_equal(begin, cast(load, int64))
    ):
        return cast(Load(buffer, (*load.indices, at)), int64)
    outer = (None,) * (len(buffer.axes) - 1)
    return cast(Load(buffer, (*outer, binary("+", begin, at))), int64)


def set_position(body: Stmt, cursor: Cursor, at: Expr) -> Stmt:
    """Return *body* with *cursor* at position *at* of its fiber."""
    inner = _Relative(cursor, at).rewrite(body)
    return substitute(inner, {cursor.pos: binary("+", cursor.begin, at)})


class _Relative(Rewriter):
    """Replaces the position of the cursor relative to its fiber by *at*."""

    def __init__(self, cursor: Cursor, at: Expr) -> None:
        self.at, self.relative = at, binary("-", cursor.pos, cursor.begin)

    def visit_BinOp(self, expr: Expr) -> Node:
        """Replace ``pos - begin``."""
        return self.at if expr_equal(expr, self.relative) else self.visit_Node(expr)
