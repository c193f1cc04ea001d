"""In position space: the step horizontal_fuse, which runs several nests as one parallel loop.

The result is ``for c in parallel(chunks): for i in range(..): s; for j in range(..): t``: each nest
has a loop of its own in every chunk. There are two ways to cut the chunks.

By rows: the parts of a decomposed format update the same output, at rows that are data, so two of
them cannot be proved independent. But in an array that is written, each nest touches only the row
of its iteration, which is the loop variable or comes from a sorted list of rows. So each chunk owns
some rows: it runs, in program order, what every nest has for these, found by binary search. There
are no partial results and no atomics, and each row is computed in the order of the program, at any
number of threads. The rows of a chunk are cleared and updated while they are in cache.

By ranges: nests that are proved independent divide their concatenated ranges.

Source: SparseTIR (ASPLOS 2023), section 3.4.1, which concatenates grids and needs atomics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Replace, Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, Let, Seq, Stmt, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import (
    changes_range,
    conflicts,
    conflicts_between,
    coordinate_conflicts,
    loops_of,
)
from spcomp.schedule.nests.nests import find_loop, runs_once
from spcomp.schedule.nests.sites import bound_in, refusal
from spcomp.schedule.nests.values import binding_values, ceil_div, starts_inside
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.segments import Keys, sorted_keys
from spcomp.schedule.steps.sharing.split_nnz import MAX_CHUNKS, ROW


@dataclass(frozen=True, slots=True)
class HorizontalFuse(Step):
    """``for i: s; for j: t  ->  for c in parallel(chunks): for i in part(c): s; for j in ...: t``.

    *loops* are the outermost loops of nests that follow each other. There are at most 256 chunks
    of about *size* elements each. Legal in two cases. Either each nest touches arrays that are
    written only at the coordinate of one of its loops, which ascends: chunks then own rows. Or the
    nests can run in parallel and are independent of each other: chunks are then parts of the
    concatenated ranges. Where the rows of a nest are a list, each call checks that it ascends.
    """

    name: ClassVar[str] = "horizontal_fuse"
    loops: tuple[str, ...]
    size: int

    def plan(self, func: Func) -> _Fusion:
        """Return the nests, and the parallel loop that replaces them."""
        nests = [find_loop(func, name, self) for name in self.loops]
        if self.size < 1 or not nests:
            raise refusal(self, "the size, and the loops, must be at least 1")
        stmts = together(func.body, nests[0])
        if stmts is None or not follow(stmts, nests):
            why = "the loops are not outermost, one directly after the other"
            raise self.error(why, nests[0])
        for loop in (inner for nest in nests for inner in loops_of(nest)):
            if loop.kind == "bound":
                raise self.error(f"{loop.var.name!r} is bound to {loop.thread}", loop)
        reasons: list[str] = []
        names = Names(func)
        fusion = _by_rows(func, nests, names, self.size, reasons)
        if fusion is None:
            fusion = _by_ranges(nests, names, reasons)
        if fusion is None:
            raise self.error("; ".join(reasons), nests[0])
        return fusion

    def rewrite(self, func: Func, plan: _Fusion) -> Func:
        """Return *func* with the nests in one parallel loop."""
        keyed = {*plan.sorted_axes, *func.attr("order_needed", ())}
        body = Put(plan.nests, plan.stmt).rewrite(func.body)
        func = func.replace(body=body)
        return func.with_attr("order_needed", tuple(sorted(keyed))) if keyed else func


@dataclass(frozen=True, slots=True)
class _Fusion:
    """Nests that follow each other, what replaces them, and the axes that must ascend."""

    nests: list[For]
    stmt: Stmt
    sorted_axes: tuple[str, ...] = ()


class Put(Rewriter):
    """Replaces several statements that follow each other by one."""

    def __init__(self, nests: list[For], new: Stmt) -> None:
        self.nests, self.new = nests, new

    def visit_For(self, loop: For) -> Node:
        """Replace the first nest, outside a list."""
        return self.new if loop is self.nests[0] else self.visit_Node(loop)

    def visit_Seq(self, stmt: Seq) -> Node:
        """Replace the first nest, and remove the others."""
        gone = set(self.nests[1:])
        return seq(*(self.rewrite(part) for part in stmt.body if part not in gone))


def siblings(stmt: Stmt) -> Iterator[tuple[Stmt, ...]]:
    """Yield the lists of statements in *stmt* that are in no loop or condition."""
    match stmt:
        case Seq(body=body):
            yield body
            for part in body:
                if not isinstance(part, For):
                    yield from siblings(part)
        case Let(body=inner) | Alloc(body=inner):
            yield from siblings(inner)
        case For():
            yield (stmt,)


def together(stmt: Stmt, first: For) -> tuple[Stmt, ...] | None:
    """Return the list of statements with *first*, which is in no loop or condition; None: none."""
    return next((body for body in siblings(stmt) if first in body), None)


def follow(body: tuple[Stmt, ...], nests: list[For]) -> bool:
    """Whether *nests* are in *body*, one directly after the other."""
    at = body.index(nests[0])
    return list(body[at : at + len(nests)]) == nests


# -- by rows ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A nest, and its loop over rows: all rows, or those that *keys* list."""

    nest: For
    loop: For
    keys: Keys | None

    @property
    def coordinate(self) -> Expr:
        """The row of an iteration."""
        if self.keys is None:
            return self.loop.var
        return Load(self.keys.buffer, (*self.keys.outer, self.loop.var))

    @property
    def length(self) -> Expr:
        """The number of rows, a bound of all row numbers."""
        return self.loop.end if self.keys is None else cast(self.keys.axis.length, int64)

    def cut(self, row: Expr) -> Expr:
        """The first iteration whose row is at least *row*."""
        if self.keys is None:
            return BinOp("min", row, self.loop.end)
        keys = self.keys
        end = plus(keys.begin, self.loop.end)
        return binary("-", Search("lower", keys.buffer, keys.begin, end, row), keys.begin)


def _by_rows(
    func: Func, nests: list[For], names: Names, size: int, reasons: list[str]
) -> _Fusion | None:
    """Return the nests in a loop over chunks of rows; None if not legal, with why in *reasons*."""
    all_rows: list[_Rows] = []
    for nest in nests:
        rows = _rows_of(func, nest)
        if rows is None:
            reasons.append(f"{nest.var.name!r} runs over no rows that tell apart what it writes")
            return None
        all_rows.append(rows)
    if stray := coordinate_conflicts([(rows.nest, rows.coordinate) for rows in all_rows]):
        reasons.append(str(stray[0]))
        return None
    chunk, chunks, share = (names.var(f"rows_{what}") for what in ("c", "chunks", "share"))
    parts: list[Stmt] = []
    for rows in all_rows:
        begin, end = (rows.cut(binary("*", plus(chunk, k), share)) for k in (0, 1))
        cut = rows.loop.replace(begin=begin, end=end, kind="serial")
        nest = Replace(rows.loop, cut).rewrite(rows.nest)
        assert isinstance(nest, For)
        parts.append(nest.replace(kind="serial"))
    length: Expr = all_rows[0].length
    for rows in all_rows[1:]:
        if not any(
            expr_equal(rows.length, other.length) for other in all_rows[: all_rows.index(rows)]
        ):
            length = BinOp("max", length, rows.length)
    work: Expr = ZERO
    for rows in all_rows:
        work = plus(work, _work(func, rows))
    stmt = _chunks(parts, chunk, chunks, share, length, work, size)
    axes = tuple(rows.keys.axis.name for rows in all_rows if rows.keys is not None)
    return _Fusion(nests, stmt, axes)


def _rows_of(func: Func, nest: For) -> _Rows | None:
    """Return the loop of *nest* over the rows it writes; loops around it must run once. Or None."""
    loop: Stmt = nest
    while isinstance(loop, For):
        if starts_inside(func, loop) or changes_range(loop):
            return None
        if (keys := sorted_keys(func, loop)) is not None:
            return _Rows(nest, loop, keys)
        if not runs_once(loop):
            plain = from_zero(loop) and loop.kind in ("serial", "parallel")
            plain = plain and not variables(loop.end) & bound_in(nest)  # known before the nest
            return _Rows(nest, loop, None) if plain else None
        loop = loop.body
        if isinstance(loop, Block):
            if loop.init is not None or loop.where is not None:
                return None
            loop = loop.body
    return None


def _work(func: Func, rows: _Rows) -> Expr:
    """Return about how many elements the nest has in all: runs of its innermost loop."""
    values = binding_values(rows.nest)
    values |= {loop.var: ZERO for loop in walk(rows.nest) if isinstance(loop, For)}
    work = substitute(substitute(rows.loop.end, values), values)
    stored = {a.indptr: a.nnz for a in func.axes if a.is_variable}
    if rows.keys is not None and rows.keys.axis.nnz is not None:
        work = cast(rows.keys.axis.nnz, int64)
    inside = [n for n in walk(rows.loop.body) if isinstance(n, For)]
    for loop in inside:
        if not any(isinstance(n, For) for n in walk(loop.body)):
            continue  # innermost: along rows of the operands
        counts = [stored.get(n.buffer.data) for n in walk(loop.end) if isinstance(n, Load)]
        nnz = next((count for count in counts if count is not None), None)
        if isinstance(loop.end, Const):
            work = binary("*", work, int(loop.end.value))
        elif nnz is not None:
            work = cast(nnz, int64)
    return work if inside and len(inside) > 1 else binary("*", work, ROW)


def _chunks(
    parts: list[Stmt],
    chunk: Var,
    chunks: Var,
    share: Var,
    length: Expr,
    work: Expr,
    size: int,
) -> Stmt:
    """Return *parts* in the loop over chunks; each chunk has *share* of *length* rows."""
    count = BinOp("max", BinOp("min", ceil_div(work, const(size)), const(MAX_CHUNKS)), const(1))
    loop = For(chunk, ZERO, chunks, seq(*parts), "parallel", attrs=(("grain", 1),))
    return Let(chunks, count, Let(share, ceil_div(length, chunks), loop))


# -- by ranges --------------------------------------------------------------------------------


def _by_ranges(nests: list[For], names: Names, reasons: list[str]) -> _Fusion | None:
    """Return the nests in a loop over parts of their ranges, laid end to end.

    None if that is not legal, with why in *reasons*.
    """
    for k, nest in enumerate(nests):
        if not from_zero(nest) or nest.kind not in ("serial", "parallel"):
            reasons.append(f"{nest.var.name!r} is {nest.kind}, or does not run from 0")
            return None
        clashes = conflicts(nest)
        for other in nests[:k]:
            clashes = clashes or conflicts_between(other, nest)
        if clashes:
            reasons.append(str(clashes[0]))
            return None
    chunk, chunks, share = (names.var(f"ranges_{what}") for what in ("c", "chunks", "share"))
    trips = [names.var(f"{nest.var.name}_trips") for nest in nests]
    parts: list[Stmt] = []
    base: Expr = ZERO
    for nest, count in zip(nests, trips, strict=True):
        cuts = (binary("-", binary("*", plus(chunk, k), share), base) for k in (0, 1))
        begin, end = (BinOp("min", BinOp("max", cut, ZERO), count) for cut in cuts)
        parts.append(nest.replace(begin=begin, end=end, kind="serial"))
        base = plus(base, count)
    stmt = _chunks(parts, chunk, chunks, share, base, base, 1)
    for nest, count in zip(nests, trips, strict=True):
        stmt = Let(count, BinOp("max", nest.end, ZERO), stmt)
    return _Fusion(nests, stmt)
