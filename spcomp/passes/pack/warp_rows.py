"""II to II, on GPUs: a row of many products is made by a warp.

Its lanes mark the coordinates as bits, in any order. Positions follow from running sums over the
words. Then the products are added up, those with one element of the first matrix at a time: they
belong to different elements of the result, so that each of these is a sum in the order of the
program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.copies import Fresh
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus
from spcomp.ir.analysis.grid import THREADS
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import Call, Expr, Var, binary, cast, const
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Replace, substitute
from spcomp.ir.stmt import Alloc, For, Let, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.knobs import CUDA_GRID
from spcomp.passes.assembly.assemble import Marked, MarkOnly, Place, close, put
from spcomp.passes.assembly.marks import BITS, Marks, scalar

WARP = CUDA_GRID.warp_threads


class WarpMarks(Marks):
    """Marks that the lanes of a warp make at the same time; no list is kept of them."""

    __slots__ = ()

    def add(self, coord: Expr) -> Stmt:
        """Return the statement that marks *coord*, whoever else marks at the same time."""
        at, word = self.names.var("at"), self.names.var("word")
        bit = binary("<<", const(1, self.words.dtype), cast(binary("&", at, 63), self.words.dtype))
        marked = binary("|", Load(self.words, (word,)), bit)
        mark = Store(self.words, (word,), marked, atomic=True)
        return Let(at, coord, Let(word, binary(">>", at, BITS), mark))

    def emit_word(self, place: Expr, into: Buffer, put: Callable[[Var], Stmt]) -> Stmt:
        """Return the statement that runs *put* on the coordinates of the word at *place*."""
        return self._emit_word(place, into, put)


@dataclass(slots=True)
class WarpRows(Marked):
    """Makes rows of more products, each on a warp."""

    mark_lanes: int = field(kw_only=True)  # on one row of the second matrix, while they mark
    partial: Buffer | None = None  # of each lane: how many coordinates its words hold
    failed: bool = False  # whether the loops do not have the form that lanes can share

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber, whose marks are clear."""
        axis = place.axis
        marks = Marks.of(axis, names, self.knobs)
        marks = WarpMarks(**{name: getattr(marks, name) for name in Marks.__slots__})
        self.parents[axis], self.marks[axis] = place.parent, marks
        self.partial = of_lanes(names, "partial")
        count = scalar(names, f"{axis.name}_count")  # a lane has its own in the fill

        def wrap(stmt: Stmt) -> Stmt:
            if self.phase == "count":
                body = seq(
                    self._on_rows(names, stmt),
                    self._sizes(names, marks, clear=True),
                    self._total(names, count, const(WARP)),
                    close(place, count, aux),
                )
                return Alloc(count, body)
            first = Fresh(names, "_m", {}).rewrite(MarkOnly(self.marks).rewrite(stmt))

            def element(coord: Var) -> Stmt:
                position = Load(count, (ZERO,))
                where = (*place.parent.indices(), position)
                starts = (Store(b, where, const(v, b.dtype)) for b, v in self.starts.items())
                return seq(put(place, position, coord, aux), *starts)

            return seq(
                self._on_rows(names, first),
                self._sizes(names, marks, clear=False),
                self._emit(names, marks, count, element),
                self._on_row(names, stmt),
                self._clear(names, marks),
            )

        return wrap

    def _on_rows(self, names: Names, stmt: Stmt) -> Stmt:
        """Return *stmt* with the lanes of a warp on several rows of the second matrix at a time."""
        loops = _chain(stmt)
        if len(loops) < 2:
            return self._on_row(names, stmt)
        (outer, *_, inner), lane, width = loops, names.var("lane"), self.mark_lanes
        column, row = binary("&", lane, width - 1), binary(">>", lane, width.bit_length() - 1)
        columns = Replace(inner, _strided(names, inner, column, width)).rewrite(outer)
        rows = _strided(names, columns, row, WARP // width)
        return on_lanes(lane, Replace(outer, rows).rewrite(stmt))

    def _on_row(self, names: Names, stmt: Stmt) -> Stmt:
        """Return *stmt* with the lanes of a warp on the innermost loop, over one row."""
        loops = _chain(stmt)
        if not loops:
            self.failed = True
            return stmt
        lane, inner = names.var("lane"), loops[-1]
        return Replace(inner, on_lanes(lane, _strided(names, inner, lane, WARP))).rewrite(stmt)

    def _words(self, names: Names, marks: Marks, body: Callable[[Var], Stmt], lane: Var) -> Stmt:
        """Return the loop of a *lane* over its words."""
        word, share = names.var("word"), names.var("share")
        size = marks.words.shape[0]
        begin = binary("*", lane, share)
        own = For(word, begin, binary("min", binary("+", begin, share), size), body(word))
        each = binary(">>", plus(size, WARP - 1), WARP.bit_length() - 1)
        return Let(share, each, own)

    def _sizes(self, names: Names, marks: Marks, *, clear: bool) -> Stmt:
        """Return the statement that stores how many coordinates the words of each lane hold."""
        assert self.partial is not None
        held, lane = scalar(names, "held"), names.var("lane")

        def add(word: Var) -> Stmt:
            marked = cast(Call("popcount", (Load(marks.words, (word,)),)), int64)
            more = Store(held, (ZERO,), binary("+", Load(held, (ZERO,)), marked))
            zero = Store(marks.words, (word,), const(0, marks.words.dtype))
            return seq(more, zero if clear else None)

        note = Store(self.partial, (lane,), Load(held, (ZERO,)))
        own = seq(Store(held, (ZERO,), ZERO), self._words(names, marks, add, lane), note)
        return on_lanes(lane, Alloc(held, own))

    def _total(self, names: Names, into: Buffer, end: Expr) -> Stmt:
        """Return the statement that sets *into* to what the lanes before *end* have."""
        assert self.partial is not None
        other = names.var("other")
        total = binary("+", Load(into, (ZERO,)), Load(self.partial, (other,)))
        add = For(other, ZERO, end, Store(into, (ZERO,), total))
        return seq(Store(into, (ZERO,), ZERO), add)

    def _emit(
        self, names: Names, marks: WarpMarks, count: Buffer, element: Callable[[Var], Stmt]
    ) -> Stmt:
        """Return the statement that stores all coordinates, and where those of a word begin."""
        lane = names.var("lane")
        emit = self._words(names, marks, lambda word: marks.emit_word(word, count, element), lane)
        return on_lanes(lane, Alloc(count, seq(self._total(names, count, lane), emit)))

    def _clear(self, names: Names, marks: Marks) -> Stmt:
        """Return the statement that clears the marks, each lane those of its words."""
        lane, zero = names.var("lane"), const(0, marks.words.dtype)
        clear = self._words(names, marks, lambda word: Store(marks.words, (word,), zero), lane)
        return on_lanes(lane, clear)


def on_lanes(lane: Var, body: Stmt) -> For:
    """Return *body* on each *lane* of a warp."""
    return For(lane, ZERO, const(WARP), body, "bound", THREADS[0])


def of_lanes(names: Names, wish: str) -> Buffer:
    """Return memory of a warp, with an int64 for each lane."""
    return Buffer(names.unique(wish), None, (const(WARP),), int64, "shared")


def _chain(stmt: Stmt) -> list[For]:
    """Return the loops of *stmt*, outermost first, if they are nested perfectly; else none."""
    loops: list[For] = []
    while True:
        match stmt:
            case Block(init=None, where=None, body=body) | Let(body=body):
                stmt = body
            case For(kind="serial", body=body) if from_zero(stmt):
                loops.append(stmt)
                stmt = body
            case _:
                is_leaf = not any(isinstance(n, For) for n in walk(stmt))
                return loops if is_leaf else []


def _strided(names: Names, loop: For, first: Expr, step: int) -> For:
    """Return the iterations of *loop* from *first* on, each *step* after the one before."""
    turn = names.var(f"{loop.var.name}_turn")
    trips = binary("-", plus(loop.end, step - 1), first)
    body = substitute(loop.body, {loop.var: plus(binary("*", turn, step), first)})
    return loop.replace(var=turn, end=binary(">>", trips, step.bit_length() - 1), body=body)
