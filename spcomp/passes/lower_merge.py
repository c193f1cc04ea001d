"""II to II: co-iteration becomes while loops, which suit what a processor can foresee."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from spcomp.dtypes import bool_, int64
from spcomp.ir.axis import AnyBuffer, Buffer
from spcomp.ir.expr import (
    BinOp,
    BinOpKind,
    Cast,
    Expr,
    Load,
    Search,
    Select,
    Var,
    binary,
    cast,
    const,
)
from spcomp.ir.node import Node
from spcomp.ir.position import Cursor, Merge, PosFunc
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While, seq
from spcomp.ir.visitor import Rewriter, walk
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.blend import blended
from spcomp.passes.copies import Fresh
from spcomp.passes.foresight import Foresight
from spcomp.passes.names import Names
from spcomp.passes.positions import ZERO

FAR = 32  # times as long as another: a fiber in which the other's coordinates are searched for
FEW = 16  # coordinates of a fiber of which the other's are first compared with what all have
SIEVES = (0, 6)  # from which bit on a coordinate decides on its place among 64
LAST = const(2**63 - 1)  # the coordinate of a cursor that has run out


@dataclass(frozen=True, slots=True)
class LowerMerge(FuncPass):
    """``merge(union, a, b): cases  ->  while any left: j = min(...); if ...: case; advance``.

    Two cursors run while both are left, and those of a union then along the rest of each. Both
    advance without branches; or, as long as what they do in a fiber is what they did in the one
    before, by branches, which a processor then foresees. Of two fibers to intersect the coordinates
    of one are searched for in a far longer one.
    """

    name: ClassVar[str] = "lower_merge"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.POSITION

    def run_func(self, func: PosFunc) -> PosFunc:
        """Return *func* without merges."""
        body = _LowerMerge(Names(func)).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


@dataclass(frozen=True, slots=True)
class _Run:
    """A merge on its way: where each cursor stands, where it ends, its coordinate there."""

    merge: Merge
    states: tuple[Buffer, ...]
    ends: tuple[Var, ...]
    coords: tuple[Var, ...]

    def more(self, joint: BinOpKind) -> Expr:
        """Whether all (``and``) or any (``or``) of the cursors are left."""
        return _all_of(
            joint, [BinOp("<", _at(s), end) for s, end in zip(self.states, self.ends, strict=True)]
        )

    def at_cursors(self, body: Stmt, *, guarded: bool = False) -> Stmt:
        """Return *body* with positions and coordinates bound; *guarded*: some have run out."""
        for k in range(len(self.coords) - 1, -1, -1):
            cursor = self.merge.cursors[k]
            value = _coordinate(cursor)
            if guarded:
                value = Select(BinOp("<", cursor.pos, self.ends[k]), value, LAST)
            body = Let(cursor.pos, _at(self.states[k]), Let(self.coords[k], value, body))
        return body

    def only(self, k: int, names: Names) -> _Run:
        """Return the merge of cursor *k* alone, with names of its own."""
        cursor = self.merge.cursors[k]
        at, pos, crd = (
            names.var(f"{v.name}_rest") for v in (self.merge.coordinate, cursor.pos, self.coords[k])
        )
        alone = self.merge.replace(coordinate=at, cursors=(cursor.replace(pos=pos),))
        return _Run(alone, (self.states[k],), (self.ends[k],), (crd,))

    def again(self, names: Names, suffix: str) -> _Run:
        """Return the same with new names for what is bound at each coordinate."""
        cursors = tuple(
            c.replace(pos=names.var(f"{c.pos.name}{suffix}")) for c in self.merge.cursors
        )
        at = names.var(f"{self.merge.coordinate.name}{suffix}")
        coords = tuple(names.var(f"{crd.name}{suffix}") for crd in self.coords)
        merge = self.merge.replace(coordinate=at, cursors=cursors)
        return _Run(merge, self.states, self.ends, coords)

    def values(self, other: _Run, cursors: Sequence[int]) -> dict[Var, Expr]:
        """Return what stands in *other* for what a case binds here, where *cursors* are present."""
        values: dict[Var, Expr] = {self.merge.coordinate: other.merge.coordinate}
        for k, cursor in zip(cursors, other.merge.cursors, strict=True):
            values[self.merge.cursors[k].pos] = cursor.pos
        return values


class _LowerMerge(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.foresights: list[Foresight] | None = None  # of the merges in the loop around

    def visit_For(self, loop: For) -> Node:
        outer, self.foresights = self.foresights, [] if loop.kind == "serial" else None
        stmt = self.visit_Node(loop)
        assert isinstance(stmt, Stmt)
        for foresight in self.foresights or ():
            stmt = foresight.around(stmt)
        self.foresights = outer
        return stmt

    def visit_Merge(self, merge: Merge) -> Node:
        outer, self.foresights = self.foresights, None
        new = self.visit_Node(merge)
        self.foresights = outer
        assert isinstance(new, Merge)
        states = tuple(
            Buffer(self.names.unique(f"{c.pos.name}_at"), None, (const(1),), int64, "local")
            for c in new.cursors
        )
        ends = tuple(self.names.var(f"{c.pos.name}_end") for c in new.cursors)
        coords = tuple(self.names.var(f"{c.pos.name}_crd") for c in new.cursors)
        run = _Run(new, states, ends, coords)
        stmt = self._pair(run) if _is_pair(new) else self._loop(run)
        for cursor, state in zip(new.cursors, states, strict=True):
            stmt = seq(Store(state, (ZERO,), cursor.begin), stmt)
        for state in reversed(states):
            stmt = Alloc(state, stmt)
        for cursor, end in zip(reversed(new.cursors), reversed(ends), strict=True):
            stmt = Let(end, cursor.end, stmt, span=merge.span)
        return stmt

    def _pair(self, run: _Run) -> Stmt:
        """Return a merge of two as loops while both are left, then one over the rest of each.

        In the first no cursor has run out, so that what all cases load is there: where they differ
        in what they store only, that is selected.
        """
        bodies = {case.present: case.body for case in run.merge.cases}
        cases = [bodies.get(present) for present in ((True, True), (True, False), (False, True))]
        if self.foresights is None:
            both = self._free(run, cases)
        else:
            foresight = Foresight.of(self.names, run.merge.coordinate.name)
            self.foresights.append(foresight)
            free = run.again(self.names, "_free")
            values = run.values(free, (0, 1))
            copies = [None if c is None else self._copy(c, values, "_free") for c in cases]
            other = self._free(free, copies)
            if run.merge.kind == "intersect":
                other = self._sieved(run, cases[0], other)
            both = foresight.choice(self._steered(run, cases, foresight), other)
        if run.merge.kind == "intersect":
            return self._searched(run, cases[0], both)
        rests: list[Stmt] = []
        for k, rest in enumerate(cases[1:]):
            if rest is not None:
                alone = run.only(k, self.names)
                copy = self._copy(rest, run.values(alone, (k,)), "_rest")
                state = run.states[k]
                step = Store(state, (ZERO,), binary("+", _at(state), 1))
                body = Let(alone.merge.coordinate, alone.coords[0], seq(copy, step))
                rests.append(While(alone.more("and"), alone.at_cursors(body), span=rest.span))
        return seq(both, *rests)

    def _copy(self, stmt: Stmt, values: dict[Var, Expr], suffix: str) -> Stmt:
        copy = Fresh(self.names, suffix, values).rewrite(stmt)
        assert isinstance(copy, Stmt)
        return copy

    def _searched(self, run: _Run, case: Stmt | None, both: Stmt) -> Stmt:
        """Return *both*, or searches of one's coordinates in the other where that is far longer."""
        if case is None or any(cursor.indices is None for cursor in run.merge.cursors):
            return both
        sizes = [binary("-", end, _at(s)) for s, end in zip(run.states, run.ends, strict=True)]
        for k, suffix in ((1, "_in"), (0, "_of")):  # each of cursor k in the other
            here = run.again(self.names, suffix)
            copy = self._copy(case, run.values(here, (0, 1)), suffix)
            far = BinOp(">", sizes[1 - k], binary("*", sizes[k], FAR))
            both = If(far, self._search(here, k, copy), both)
        return If(run.more("and"), both)  # asked first, for many may be empty

    def _sieved(self, run: _Run, case: Stmt | None, both: Stmt) -> Stmt:
        """Return *both*, or searches in one that is short, for what passes a sieve of its own.

        Where few coordinates are in both fibers, few pass, so that a step waits for no other.
        """
        if case is None or any(cursor.indices is None for cursor in run.merge.cursors):
            return both
        for k, suffix in ((0, "_on"), (1, "_by")):  # each of cursor k in the other
            here = run.again(self.names, suffix)
            copy = self._copy(case, run.values(here, (0, 1)), suffix)
            short, end = run.states[1 - k], run.ends[1 - k]
            sieve = Buffer(self.names.unique("sieve"), None, (const(2),), int64, "local")
            at = self.names.var(f"{run.merge.cursors[1 - k].pos.name}_sieve")
            crd = _coordinate(run.merge.cursors[1 - k].replace(pos=at))
            holes = [
                Store(sieve, (const(s),), BinOp("|", Load(sieve, (const(s),)), _bit(crd, shift)))
                for s, shift in enumerate(SIEVES)
            ]
            fill = For(at, _at(short), end, seq(*holes))
            clean = [Store(sieve, (const(s),), ZERO) for s in range(len(SIEVES))]
            loop = self._search(here, k, copy, sieve)
            few = BinOp("<=", binary("-", end, _at(short)), const(FEW))
            both = If(few, Alloc(sieve, seq(*clean, fill, loop)), both)
        return both

    def _search(self, run: _Run, k: int, case: Stmt, sieve: Buffer | None = None) -> Stmt:
        """Return the loop along cursor *k* that searches the other for each coordinate.

        *sieve*: a bit is set for what may be found.
        """
        one, other = run.merge.cursors[k], run.merge.cursors[1 - k]
        state, ahead = run.states[k], run.states[1 - k]
        assert other.indices is not None
        key = run.coords[k]
        found = Search("lower", other.indices, _at(ahead), run.ends[1 - k], key)
        match = If(BinOp("==", _coordinate(other), key), case)
        body = seq(
            If(BinOp("<", other.pos, run.ends[1 - k]), match), Store(ahead, (ZERO,), other.pos)
        )
        body = Let(run.merge.coordinate, key, Let(other.pos, found, body))
        if sieve is not None:
            seen = [
                BinOp(">>", Load(sieve, (const(s),)), _place(key, shift))
                for s, shift in enumerate(SIEVES)
            ]
            passes = BinOp("&", BinOp("&", *seen), const(1))
            body = If(BinOp("!=", passes, ZERO), body)
        body = seq(body, Store(state, (ZERO,), binary("+", _at(state), 1)))
        body = Let(one.pos, _at(state), Let(key, _coordinate(one), body))
        return While(run.more("and"), body, span=run.merge.span)

    def _steered(self, run: _Run, cases: Sequence[Stmt | None], foresight: Foresight) -> Stmt:
        """Return the loop, while both are left, in which branches say what to do."""
        a, b = run.coords
        ups = [Store(s, (ZERO,), binary("+", _at(s), 1)) for s in run.states]
        moves = ((0, ups), (1, ups[:1]), (2, ups[1:]))
        both, first, second = (seq(cases[k], *steps, foresight.note(k)) for k, steps in moves)
        body: Stmt = If(BinOp("==", a, b), both, If(BinOp("<", a, b), first, second))
        body = Let(run.merge.coordinate, BinOp("min", a, b), body)
        return While(run.more("and"), run.at_cursors(body), span=run.merge.span)

    def _free(self, run: _Run, cases: Sequence[Stmt | None]) -> Stmt:
        """Return the loop, while both are left, that advances both without branches."""
        a, b = run.coords
        here = [self.names.var(f"{crd.name}_here", bool_) for crd in run.coords]
        both = BinOp("and", *here)
        known = [case for case in cases if case is not None]
        missing = [binary("-", const(1), Cast(h, int64)) for h in here]
        which = binary("+", binary("*", missing[0], 2), missing[1])  # as in the list of cases
        body = blended(known, which, self.names) if len(known) == len(cases) else None
        if body is None:
            sides = zip((both, *here), cases, strict=True)
            body = _first_of([(cond, case) for cond, case in sides if case is not None])
        steps = [
            Store(s, (ZERO,), binary("+", _at(s), Cast(h, int64)))
            for s, h in zip(run.states, here, strict=True)
        ]
        body = Let(run.merge.coordinate, BinOp("min", a, b), seq(body, *steps))
        body = Let(here[0], BinOp("<=", a, b), Let(here[1], BinOp("<=", b, a), body))
        return While(run.more("and"), run.at_cursors(body), span=run.merge.span)

    def _loop(self, run: _Run) -> Stmt:
        """Return the loop that runs the cases for any number of cursors."""
        joint: BinOpKind = "or" if run.merge.kind == "union" else "and"
        here = [BinOp("==", crd, run.merge.coordinate) for crd in run.coords]
        steps = [
            Store(s, (ZERO,), binary("+", _at(s), Cast(h, int64)))
            for s, h in zip(run.states, here, strict=True)
        ]
        body = seq(self._choice(run.merge, here), *steps)
        body = Let(run.merge.coordinate, _all_of("min", run.coords), body)
        body = run.at_cursors(body, guarded=joint == "or")
        return While(run.more(joint), body, span=run.merge.span)

    def _choice(self, merge: Merge, here: Sequence[Expr]) -> Stmt:
        """Return the case that fits which cursors are *here*; nothing if there is none."""
        sides: list[tuple[Expr, Stmt]] = []
        for case in merge.cases:
            present = [h for h, there in zip(here, case.present, strict=True) if there]
            sides.append((_all_of("and", present), case.body))
        if merge.kind == "union" and _complete(merge) and len(sides) > 1:
            return _first_of(sides[:-1], sides[-1][1])
        return _first_of(sides)


def _first_of(sides: Sequence[tuple[Expr, Stmt]], otherwise: Stmt | None = None) -> Stmt:
    """Return the first statement whose condition holds, else *otherwise*."""
    chain = otherwise
    for cond, body in reversed(sides):
        chain = If(cond, body, chain, span=body.span)
    return chain or Seq(())


def _is_pair(merge: Merge) -> bool:
    """Whether *merge* is one of two, with little to do for each coordinate."""
    loops = (For, While, Merge)
    few = not any(isinstance(n, loops) for case in merge.cases for n in walk(case.body, skip=Expr))
    return len(merge.cursors) == 2 and few


def _complete(merge: Merge) -> bool:
    """Whether the cases cover all combinations, so that the last needs no test."""
    return len(merge.cases) + 1 == 1 << len(merge.cursors)


def _place(coordinate: Expr, shift: int) -> Expr:
    """Return the place of *coordinate* among the 64 of a sieve, by its bits from *shift* on."""
    high = BinOp(">>", coordinate, const(shift)) if shift else coordinate
    return BinOp("&", high, const(63))


def _bit(coordinate: Expr, shift: int) -> Expr:
    return BinOp("<<", const(1), _place(coordinate, shift))


def _at(state: Buffer) -> Expr:
    return Load(state, (ZERO,))


def _all_of(op: BinOpKind, parts: Sequence[Expr]) -> Expr:
    """Return *parts* combined by *op*, from the left."""
    return functools.reduce(lambda a, b: BinOp(op, a, b), parts)


def _coordinate(cursor: Cursor) -> Expr:
    if cursor.indices is None:
        return binary("-", cursor.pos, cursor.begin)
    return cast(Load(cursor.indices, _absolute(cursor.indices, cursor.pos)), int64)


def _absolute(buffer: AnyBuffer, pos: Expr) -> tuple[Expr | None, ...]:
    count = len(buffer.axes) if not isinstance(buffer, Buffer) else 1
    return (*(None for _ in range(count - 1)), pos)
