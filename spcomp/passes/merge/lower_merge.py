"""II to II: co-iteration becomes while loops, which suit what a processor can foresee."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from spcomp.dtypes import bool_, int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.copies import Fresh
from spcomp.ir.analysis.exprs import ZERO, absolute, plus
from spcomp.ir.analysis.names import Names
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import BinOp, BinOpKind, Cast, Expr, Select, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.position import Cursor, Merge
from spcomp.ir.program import PosFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While, seq
from spcomp.ir.visitor import walk
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.merge.blend import blended
from spcomp.passes.merge.foresight import Foresight
from spcomp.passes.merge.lattice import Lattice, Point
from spcomp.passes.merge.meetings import Fiber, Meetings

Cases: TypeAlias = Mapping[Point, Stmt]

FAR = 4  # times as long as another: a fiber in which the other's coordinates are searched for
MOST = 3  # operands of a union that has a loop for each point of its lattice
LAST = const(2**63 - 1)  # the coordinate of a cursor that has run out


@dataclass(frozen=True, slots=True)
class LowerMerge(FuncPass):
    """``merge(union, a, b): cases  ->  while any left: j = min(...); if ...: case; advance``.

    Few cursors run while all are left; those of a union then by fewer, as the lattice says, along
    the rest of each. All advance without branches; or, as long as what they do in a fiber is what
    they did in the one before, by branches, which a processor then foresees. Two fibers to
    intersect are first asked whether they meet at all, as long as few do; the coordinates of one
    are searched for in a far longer one. Of more fibers, those behind leap to where another is.
    Source: leapfrog join, Veldhuizen (ICDT 2014).
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

    def longer(self) -> list[Expr]:
        """Whether the first of two cursors has far more coordinates than the other; the reverse."""
        one, other = (
            binary("-", end, _at(s)) for s, end in zip(self.states, self.ends, strict=True)
        )
        return [BinOp(">", a, binary("*", b, FAR)) for a, b in ((one, other), (other, one))]

    def at_cursors(self, body: Stmt, *, guarded: bool = False) -> Stmt:
        """Return *body* with positions and coordinates bound; *guarded*: some have run out."""
        for k in range(len(self.coords) - 1, -1, -1):
            cursor = self.merge.cursors[k]
            value = _coordinate(cursor)
            if guarded:
                value = Select(BinOp("<", cursor.pos, self.ends[k]), value, LAST)
            body = Let(cursor.pos, _at(self.states[k]), Let(self.coords[k], value, body))
        return body

    def among(self, cursors: Sequence[int], names: Names, suffix: str) -> _Run:
        """Return the merge of these *cursors*, with new names for what is bound at a coordinate."""
        own = [self.merge.cursors[k] for k in cursors]
        made = tuple(c.replace(pos=names.var(f"{c.pos.name}{suffix}")) for c in own)
        at = names.var(f"{self.merge.coordinate.name}{suffix}")
        coords = tuple(names.var(f"{self.coords[k].name}{suffix}") for k in cursors)
        merge = self.merge.replace(coordinate=at, cursors=made)
        states = tuple(self.states[k] for k in cursors)
        return _Run(merge, states, tuple(self.ends[k] for k in cursors), coords)

    def again(self, names: Names, suffix: str) -> _Run:
        """Return the same with new names for what is bound at each coordinate."""
        return self.among(range(len(self.states)), names, suffix)

    @property
    def points(self) -> tuple[Point, ...]:
        """The combinations of cursors that may be at a coordinate, those with the most first."""
        names = tuple(cursor.pos.name for cursor in self.merge.cursors)
        return tuple(sorted(Lattice("union", names).points, key=lambda p: -sum(p)))

    def values(self, other: _Run, cursors: Sequence[int]) -> dict[Var, Expr]:
        """Return what stands in *other* for what a case binds here, where *cursors* are present."""
        values: dict[Var, Expr] = {self.merge.coordinate: other.merge.coordinate}
        for k, cursor in zip(cursors, other.merge.cursors, strict=True):
            values[self.merge.cursors[k].pos] = cursor.pos
        return values


class _LowerMerge(Rewriter):
    def __init__(self, names: Names) -> None:
        self.names = names
        # what the merges in the loop around keep from fiber to fiber
        self.kept: list[Foresight | Meetings] | None = None

    def visit_For(self, loop: For) -> Node:
        outer, self.kept = self.kept, [] if loop.kind == "serial" else None
        stmt = self.visit_Node(loop)
        assert isinstance(stmt, Stmt)
        for kept in self.kept or ():
            stmt = kept.around(stmt)
        self.kept = outer
        return stmt

    def visit_Merge(self, merge: Merge) -> Node:
        outer, self.kept = self.kept, None
        new = self.visit_Node(merge)
        self.kept = outer
        assert isinstance(new, Merge)
        states = tuple(
            Buffer(self.names.unique(f"{c.pos.name}_at"), None, (const(1),), int64, "local")
            for c in new.cursors
        )
        ends = tuple(self.names.var(f"{c.pos.name}_end") for c in new.cursors)
        coords = tuple(self.names.var(f"{c.pos.name}_crd") for c in new.cursors)
        run = _Run(new, states, ends, coords)
        many = self._every if new.kind == "union" or len(states) < 2 else self._common
        stmt = self._few(run) if _is_few(new) else many(run)
        for cursor, state in zip(new.cursors, states, strict=True):
            stmt = seq(Store(state, (ZERO,), cursor.begin), stmt)
        for state in reversed(states):
            stmt = Alloc(state, stmt)
        for cursor, end in zip(reversed(new.cursors), reversed(ends), strict=True):
            stmt = Let(end, cursor.end, stmt, span=merge.span)
        return stmt

    def _few(self, run: _Run) -> Stmt:
        """Return a merge of few as loops while all are left, then while some of them are.

        In each no cursor has run out, so that what all cases load is there: where they differ in
        what they store only, that is selected.
        """
        cases: Cases = {case.present: case.body for case in run.merge.cases}
        every = range(len(run.states))
        if self.kept is None:
            all_left = self._free(run, cases)
        else:
            foresight = Foresight.of(self.names, run.merge.coordinate.name, 1 << len(every))
            self.kept.append(foresight)
            free = self._among(run, every, cases, "_free")
            assert free is not None
            all_left = foresight.choice(self._steered(run, cases, foresight), free)
        if run.merge.kind == "intersect":
            return self._sought(run, cases.get((True, True)), all_left)
        rests = [[k for k in every if point[k]] for point in run.points[1:]]
        return seq(all_left, *(self._among(run, rest, cases, "_rest") for rest in rests))

    def _among(self, run: _Run, cursors: Sequence[int], cases: Cases, suffix: str) -> Stmt | None:
        """Return the loop while all of *cursors* are left, the others having run out."""
        part = run.among(cursors, self.names, suffix)
        values = run.values(part, cursors)
        copies = {
            tuple(point[k] for k in cursors): self._copy(body, values, suffix)
            for point, body in cases.items()
            if sum(point) == sum(point[k] for k in cursors)
        }
        return self._free(part, copies) if copies else None

    def _copy(self, stmt: Stmt, values: dict[Var, Expr], suffix: str) -> Stmt:
        copy = Fresh(self.names, suffix, values).rewrite(stmt)
        assert isinstance(copy, Stmt)
        return copy

    def _sought(self, run: _Run, case: Stmt | None, both: Stmt) -> Stmt:
        """Return *both* for fibers to intersect, unless one is empty or far longer.

        Where its branches are not foreseen, the fibers are first asked whether they meet.
        """
        indices = [c.indices for c in run.merge.cursors if c.indices is not None]
        if case is None or len(indices) < len(run.merge.cursors):
            return both
        if self.kept is None or not isinstance(both, If) or both.otherwise is None:
            return If(run.more("and"), self._far(run, case, both))
        meetings = Meetings.of(self.names, run.merge.coordinate.name)
        self.kept.append(meetings)
        one, other = map(Fiber, indices, map(_at, run.states), run.ends)
        free = self._far(run, case, both.otherwise)
        asked = meetings.asked(self.names, (one, other), free)
        both = both.replace(then=self._far(run, case, both.then), otherwise=asked)
        return If(run.more("and"), both)  # asked first, for many may be empty

    def _far(self, run: _Run, case: Stmt, both: Stmt) -> Stmt:
        """Return *both*, or searches of one's coordinates in the other where that is far longer."""
        first, second = run.longer()
        for k, suffix, far in ((1, "_in", first), (0, "_of", second)):  # each of k in the other
            here = run.again(self.names, suffix)
            copy = self._copy(case, run.values(here, (0, 1)), suffix)
            both = If(far, self._search(here, k, copy), both)
        return both

    def _search(self, run: _Run, k: int, case: Stmt) -> Stmt:
        """Return the loop along cursor *k* that searches the other for each coordinate."""
        one, other = run.merge.cursors[k], run.merge.cursors[1 - k]
        state, ahead = run.states[k], run.states[1 - k]
        assert other.indices is not None
        key = run.coords[k]
        found = Search("gallop", other.indices, _at(ahead), run.ends[1 - k], key)
        match = If(BinOp("==", _coordinate(other), key), case)
        body = seq(
            If(BinOp("<", other.pos, run.ends[1 - k]), match), Store(ahead, (ZERO,), other.pos)
        )
        body = Let(run.merge.coordinate, key, Let(other.pos, found, body))
        body = seq(body, Store(state, (ZERO,), binary("+", _at(state), 1)))
        body = Let(one.pos, _at(state), Let(key, _coordinate(one), body))
        return While(run.more("and"), body, span=run.merge.span)

    def _steered(self, run: _Run, cases: Cases, foresight: Foresight) -> Stmt:
        """Return the loop, while all are left, in which branches say what to do."""
        sides: list[tuple[Expr, Stmt]] = []
        for way, point in enumerate(run.points):
            present = [k for k, there in enumerate(point) if there]
            ups = [Store(run.states[k], (ZERO,), plus(_at(run.states[k]), 1)) for k in present]
            first, *others = (run.coords[k] for k in present)
            rest = [crd for crd, there in zip(run.coords, point, strict=True) if not there]
            tests = [BinOp("==", first, crd) for crd in others]
            tests += [BinOp("<", first, crd) for crd in rest]
            sides.append((_all_of("and", tests), seq(cases.get(point), *ups, foresight.note(way))))
        body: Stmt = _first_of(sides[:-1], sides[-1][1])
        body = Let(run.merge.coordinate, _all_of("min", run.coords), body)
        return While(run.more("and"), run.at_cursors(body), span=run.merge.span)

    def _free(self, run: _Run, cases: Cases) -> Stmt:
        """Return the loop, while all are left, that advances all without branches."""
        here = [self.names.var(f"{crd.name}_here", bool_) for crd in run.coords]
        if len(here) == 1:
            body = seq(*cases.values())
            ups: Sequence[Stmt] = (Store(run.states[0], (ZERO,), plus(_at(run.states[0]), 1)),)
        else:
            body, ups = self._selected(run, cases, here), tuple(map(_step, run.states, here))
        body = Let(run.merge.coordinate, _all_of("min", run.coords), seq(body, *ups))
        for k, var in reversed([*enumerate(here)] if len(here) > 1 else []):
            others = (crd for crd in run.coords if crd is not run.coords[k])
            least = [BinOp("<=", run.coords[k], crd) for crd in others]
            body = Let(var, _all_of("and", least), body)
        return While(run.more("and"), run.at_cursors(body), span=run.merge.span)

    def _selected(self, run: _Run, cases: Cases, here: Sequence[Var]) -> Stmt:
        """Return the case that fits which cursors are *here*, by values alone if they can be."""
        points = Lattice("union", tuple(var.name for var in here)).points
        known = [cases[point] for point in points if point in cases]
        if len(known) == len(points):
            which: Expr = ZERO  # as in *points*: a digit for each cursor, 1 where it is not here
            for h in here:
                which = plus(binary("*", which, 2), binary("-", const(1), Cast(h, int64)))
            body = blended(known, which, self.names)
            if body is not None:
                return body
        return _chosen(run, cases, here)

    def _common(self, run: _Run) -> Stmt:
        """Return the loop over what all fibers have; those behind leap to where another is.

        Two fibers of like length step instead, without branches.
        """
        here, far = self.names.var("here", bool_), self.names.var("far", bool_)
        last = self.names.var("last", int64)
        key = binary("+", last, Cast(here, int64))
        every = zip(run.merge.cursors, run.states, run.ends, strict=True)
        ahead = seq(*(Store(s, (ZERO,), _reached(c, end, key)) for c, s, end in every))
        if pair := len(run.coords) == 2:
            behind = (BinOp("<=", crd, run.merge.coordinate) for crd in run.coords)
            ahead = If(far, ahead, seq(*map(_step, run.states, behind)))
        body = seq(If(here, seq(*(case.body for case in run.merge.cases))), ahead)
        same = _all_of("and", [BinOp("==", run.coords[0], crd) for crd in run.coords[1:]])
        body = Let(last, _all_of("max", run.coords), Let(here, same, body))
        body = Let(run.merge.coordinate, _all_of("min", run.coords), body)
        loop = While(run.more("and"), run.at_cursors(body), span=run.merge.span)
        return Let(far, _all_of("or", run.longer()), loop) if pair else loop

    def _every(self, run: _Run) -> Stmt:
        """Return the loop over what any fiber has, for any number of them."""
        here = [BinOp("==", crd, run.merge.coordinate) for crd in run.coords]
        steps = map(_step, run.states, here)
        cases = {case.present: case.body for case in run.merge.cases}
        body = seq(_chosen(run, cases, here), *steps)
        body = Let(run.merge.coordinate, _all_of("min", run.coords), body)
        return While(run.more("or"), run.at_cursors(body, guarded=True), span=run.merge.span)


def _chosen(run: _Run, cases: Cases, here: Sequence[Expr]) -> Stmt:
    """Return the case that fits which cursors are *here*; nothing if there is none."""
    union = run.merge.kind == "union"
    points = run.points if union else ((True,) * len(here),)
    sides: list[tuple[Expr, Stmt]] = []
    for point in points:
        present = [h for h, there in zip(here, point, strict=True) if there]
        sides.append((_all_of("and", present), cases.get(point, Seq(()))))
    if union and len(cases) == len(points) > 1:  # the last needs no test
        return _first_of(sides[:-1], sides[-1][1])
    last = max((at for at, point in enumerate(points) if point in cases), default=-1)
    return _first_of(sides[: last + 1])


def _first_of(sides: Sequence[tuple[Expr, Stmt]], otherwise: Stmt | None = None) -> Stmt:
    """Return the first statement whose condition holds, else *otherwise*."""
    chain = otherwise
    for cond, body in reversed(sides):
        chain = If(cond, body, chain, span=body.span)
    return chain or Seq(())


def _is_few(merge: Merge) -> bool:
    """Whether *merge* is one of few, with little to do for each coordinate."""
    loops = (For, While, Merge)
    few = not any(isinstance(n, loops) for case in merge.cases for n in walk(case.body, skip=Expr))
    return few and len(merge.cursors) in ((2,) if merge.kind == "intersect" else range(2, MOST + 1))


def _at(state: Buffer) -> Expr:
    return Load(state, (ZERO,))


def _step(state: Buffer, here: Expr) -> Stmt:
    """Return what advances a cursor by one if it is *here*."""
    return Store(state, (ZERO,), binary("+", _at(state), Cast(here, int64)))


def _all_of(op: BinOpKind, parts: Sequence[Expr]) -> Expr:
    """Return *parts* combined by *op*, from the left."""
    return functools.reduce(lambda a, b: BinOp(op, a, b), parts)


def _reached(cursor: Cursor, end: Expr, coordinate: Expr) -> Expr:
    """Return the first position of *cursor*, from where it stands on, not below *coordinate*."""
    if cursor.indices is None:
        return BinOp("min", end, binary("+", cursor.begin, coordinate))
    return Search("gallop", cursor.indices, cursor.pos, end, coordinate)


def _coordinate(cursor: Cursor) -> Expr:
    if cursor.indices is None:
        return binary("-", cursor.pos, cursor.begin)
    return cast(Load(cursor.indices, absolute(cursor.indices, cursor.pos)), int64)
