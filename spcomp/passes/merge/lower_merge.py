"""II to II: co-iteration becomes while loops that suit the branch prediction of processors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from spcomp.knobs import Knobs
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.merge.blend import blend
from spcomp.passes.merge.foresight import Foresight, get
from spcomp.passes.merge.lattice import Lattice, Point
from spcomp.passes.merge.meetings import Fiber, Meetings

Cases: TypeAlias = Mapping[Point, Stmt]

LAST = const(2**63 - 1)  # the coordinate of a cursor that has run out


@dataclass(frozen=True, slots=True)
class LowerMerge(FuncPass):
    """``merge(union, a, b): cases  ->  while any left: j = min(...); if ...: case; advance``.

    A merge of few cursors runs while none has ended; a union then continues with fewer, point by
    point of the lattice. Cursors advance without branches; or with branches, as long as each fiber
    repeats what the one before did, so that a processor predicts them. Two fibers to intersect are
    first tested for a common coordinate, as long as few have one; if one is far longer, it is
    searched for the coordinates of the other. In an intersection of more fibers, those behind leap
    to the one ahead. Source: leapfrog join, Veldhuizen (ICDT 2014).
    """

    name: ClassVar[str] = "lower_merge"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.POSITION
    knobs: Knobs = field(repr=False)

    def run_func(self, func: PosFunc) -> PosFunc:
        """Return *func* without merges."""
        body = _LowerMerge(Names(func), self.knobs).rewrite(func.body)
        return func if body is func.body else func.replace(body=body)


@dataclass(frozen=True, slots=True)
class _Run:
    """A merge being lowered: for each cursor its state, its end, and its current coordinate."""

    merge: Merge
    states: tuple[Buffer, ...]
    ends: tuple[Var, ...]
    coords: tuple[Var, ...]

    def more(self, joint: BinOpKind) -> Expr:
        """Return the condition that all (``and``) or any (``or``) of the cursors have not ended."""
        return _all_of(
            joint, [BinOp("<", get(s), end) for s, end in zip(self.states, self.ends, strict=True)]
        )

    def longer(self, factor: int) -> list[Expr]:
        """Return whether the first of two cursors has over *factor* times as many; the reverse."""
        first, second = (
            binary("-", end, get(s)) for s, end in zip(self.states, self.ends, strict=True)
        )
        return [
            BinOp(">", a, binary("*", b, factor)) for a, b in ((first, second), (second, first))
        ]

    def at_cursors(self, body: Stmt, *, may_end: bool = False) -> Stmt:
        """Return *body* with positions and coordinates bound; *may_end*: some may have ended."""
        for k in range(len(self.coords) - 1, -1, -1):
            cursor = self.merge.cursors[k]
            value = _coordinate(cursor)
            if may_end:
                value = Select(BinOp("<", cursor.pos, self.ends[k]), value, LAST)
            body = Let(cursor.pos, get(self.states[k]), Let(self.coords[k], value, body))
        return body

    def among(self, cursors: Sequence[int], names: Names, suffix: str) -> _Run:
        """Return the merge of these *cursors*, with new variables at each coordinate."""
        selected = [self.merge.cursors[k] for k in cursors]
        renamed = tuple(c.replace(pos=names.var(f"{c.pos.name}{suffix}")) for c in selected)
        at = names.var(f"{self.merge.coordinate.name}{suffix}")
        coords = tuple(names.var(f"{self.coords[k].name}{suffix}") for k in cursors)
        merge = self.merge.replace(coordinate=at, cursors=renamed)
        states = tuple(self.states[k] for k in cursors)
        return _Run(merge, states, tuple(self.ends[k] for k in cursors), coords)

    def again(self, names: Names, suffix: str) -> _Run:
        """Return the same merge with new variables at each coordinate."""
        return self.among(range(len(self.states)), names, suffix)

    @property
    def points(self) -> tuple[Point, ...]:
        """The combinations of cursors at a coordinate, those with most cursors first."""
        names = tuple(cursor.pos.name for cursor in self.merge.cursors)
        return tuple(sorted(Lattice("union", names).points, key=lambda p: -sum(p)))

    def values(self, other: _Run, cursors: Sequence[int]) -> dict[Var, Expr]:
        """Return the variables of *other* for those of this merge, where *cursors* are present."""
        values: dict[Var, Expr] = {self.merge.coordinate: other.merge.coordinate}
        for k, cursor in zip(cursors, other.merge.cursors, strict=True):
            values[self.merge.cursors[k].pos] = cursor.pos
        return values


class _LowerMerge(Rewriter):
    def __init__(self, names: Names, knobs: Knobs) -> None:
        self.names, self.knobs = names, knobs
        # state that the merges in the loop around keep from fiber to fiber
        self.trackers: list[Foresight | Meetings] | None = None

    def visit_For(self, loop: For) -> Node:
        outer, self.trackers = self.trackers, [] if loop.kind == "serial" else None
        stmt = self.visit_Node(loop)
        assert isinstance(stmt, Stmt)
        for tracker in self.trackers or ():
            stmt = tracker.around(stmt)
        self.trackers = outer
        return stmt

    def visit_Merge(self, merge: Merge) -> Node:
        outer, self.trackers = self.trackers, None
        new = self.visit_Node(merge)
        self.trackers = outer
        assert isinstance(new, Merge)
        states = tuple(
            Buffer(self.names.unique(f"{c.pos.name}_at"), None, (const(1),), int64, "local")
            for c in new.cursors
        )
        ends = tuple(self.names.var(f"{c.pos.name}_end") for c in new.cursors)
        coords = tuple(self.names.var(f"{c.pos.name}_crd") for c in new.cursors)
        run = _Run(new, states, ends, coords)
        lower_many = self._any_fiber if new.kind == "union" or len(states) < 2 else self._leapfrog
        stmt = self._lower_few(run) if _is_few(new, self.knobs.union_operands) else lower_many(run)
        for cursor, state in zip(new.cursors, states, strict=True):
            stmt = seq(Store(state, (ZERO,), cursor.begin), stmt)
        for state in reversed(states):
            stmt = Alloc(state, stmt)
        for cursor, end in zip(reversed(new.cursors), reversed(ends), strict=True):
            stmt = Let(end, cursor.end, stmt, span=merge.span)
        return stmt

    def _lower_few(self, run: _Run) -> Stmt:
        """Return a merge of few as loops while no cursor has ended, then for fewer of them.

        In each loop no cursor has ended, so that all cases can load their elements: cases that
        only differ in stored values select among these.
        """
        cases: Cases = {case.present: case.body for case in run.merge.cases}
        all_cursors = range(len(run.states))
        if self.trackers is None:
            all_left = self._branch_free_loop(run, cases)
        else:
            wish, limit = run.merge.coordinate.name, self.knobs.surprise_limit
            foresight = Foresight.of(self.names, wish, 1 << len(all_cursors), limit)
            self.trackers.append(foresight)
            free = self._loop_among(run, all_cursors, cases, "_free")
            assert free is not None
            all_left = foresight.choice(self._branching_loop(run, cases, foresight), free)
        if run.merge.kind == "intersect":
            return self._lower_intersection(run, cases.get((True, True)), all_left)
        rests = [[k for k in all_cursors if point[k]] for point in run.points[1:]]
        return seq(all_left, *(self._loop_among(run, subset, cases, "_rest") for subset in rests))

    def _loop_among(
        self, run: _Run, cursors: Sequence[int], cases: Cases, suffix: str
    ) -> Stmt | None:
        """Return the loop while none of *cursors* has ended, and all others have."""
        part = run.among(cursors, self.names, suffix)
        values = run.values(part, cursors)
        copies = {
            tuple(point[k] for k in cursors): self._copy(body, values, suffix)
            for point, body in cases.items()
            if sum(point) == sum(point[k] for k in cursors)
        }
        return self._branch_free_loop(part, copies) if copies else None

    def _copy(self, stmt: Stmt, values: dict[Var, Expr], suffix: str) -> Stmt:
        copy = Fresh(self.names, suffix, values).rewrite(stmt)
        assert isinstance(copy, Stmt)
        return copy

    def _lower_intersection(self, run: _Run, case: Stmt | None, loop: Stmt) -> Stmt:
        """Return *loop* for fibers to intersect, unless one is empty or far longer.

        Where its branches are not predicted, the fibers are first tested for a common coordinate.
        """
        indices = [c.indices for c in run.merge.cursors if c.indices is not None]
        if case is None or len(indices) < len(run.merge.cursors):
            return loop
        if self.trackers is None or not isinstance(loop, If) or loop.otherwise is None:
            return If(run.more("and"), self._with_searches(run, case, loop))
        meetings = Meetings.of(self.names, run.merge.coordinate.name, self.knobs)
        self.trackers.append(meetings)
        first, second = map(Fiber, indices, map(get, run.states), run.ends)
        free = self._with_searches(run, case, loop.otherwise)
        tested = meetings.skip_if_apart(self.names, (first, second), free)
        loop = loop.replace(then=self._with_searches(run, case, loop.then), otherwise=tested)
        return If(run.more("and"), loop)  # tested first, as many fibers may be empty

    def _with_searches(self, run: _Run, case: Stmt, loop: Stmt) -> Stmt:
        """Return *loop*, or searches in one fiber if it is far longer than the other."""
        first, second = run.longer(self.knobs.search_factor)
        for k, suffix, far in ((1, "_in", first), (0, "_of", second)):  # each of k in the other
            copied_run = run.again(self.names, suffix)
            copy = self._copy(case, run.values(copied_run, (0, 1)), suffix)
            loop = If(far, self._search(copied_run, k, copy), loop)
        return loop

    def _search(self, run: _Run, k: int, case: Stmt) -> Stmt:
        """Return the loop along cursor *k* that searches the other for each coordinate."""
        cursor, target = run.merge.cursors[k], run.merge.cursors[1 - k]
        state, ahead = run.states[k], run.states[1 - k]
        assert target.indices is not None
        key = run.coords[k]
        search = Search("gallop", target.indices, get(ahead), run.ends[1 - k], key)
        match = If(BinOp("==", _coordinate(target), key), case)
        body = seq(
            If(BinOp("<", target.pos, run.ends[1 - k]), match), Store(ahead, (ZERO,), target.pos)
        )
        body = Let(run.merge.coordinate, key, Let(target.pos, search, body))
        body = seq(body, Store(state, (ZERO,), binary("+", get(state), 1)))
        body = Let(cursor.pos, get(state), Let(key, _coordinate(cursor), body))
        return While(run.more("and"), body, span=run.merge.span)

    def _branching_loop(self, run: _Run, cases: Cases, foresight: Foresight) -> Stmt:
        """Return the loop, while no cursor has ended, that branches to the case."""
        sides: list[tuple[Expr, Stmt]] = []
        for way, point in enumerate(run.points):
            present = [k for k, is_present in enumerate(point) if is_present]
            ups = [Store(run.states[k], (ZERO,), plus(get(run.states[k]), 1)) for k in present]
            first, *others = (run.coords[k] for k in present)
            absent_coords = [
                crd for crd, is_present in zip(run.coords, point, strict=True) if not is_present
            ]
            tests = [BinOp("==", first, crd) for crd in others]
            tests += [BinOp("<", first, crd) for crd in absent_coords]
            sides.append((_all_of("and", tests), seq(cases.get(point), *ups, foresight.note(way))))
        body: Stmt = _first_of(sides[:-1], sides[-1][1])
        body = Let(run.merge.coordinate, _all_of("min", run.coords), body)
        return While(run.more("and"), run.at_cursors(body), span=run.merge.span)

    def _branch_free_loop(self, run: _Run, cases: Cases) -> Stmt:
        """Return the loop, while no cursor has ended, that advances all without branches."""
        present = [self.names.var(f"{crd.name}_here", bool_) for crd in run.coords]
        if len(present) == 1:
            body = seq(*cases.values())
            ups: Sequence[Stmt] = (Store(run.states[0], (ZERO,), plus(get(run.states[0]), 1)),)
        else:
            body, ups = (
                self._select_case(run, cases, present),
                tuple(map(_step, run.states, present)),
            )
        body = Let(run.merge.coordinate, _all_of("min", run.coords), seq(body, *ups))
        for k, var in reversed([*enumerate(present)] if len(present) > 1 else []):
            others = (crd for crd in run.coords if crd is not run.coords[k])
            least = [BinOp("<=", run.coords[k], crd) for crd in others]
            body = Let(var, _all_of("and", least), body)
        return While(run.more("and"), run.at_cursors(body), span=run.merge.span)

    def _select_case(self, run: _Run, cases: Cases, present: Sequence[Var]) -> Stmt:
        """Return the case for the cursors that are *present*, by a table of values if possible."""
        points = Lattice("union", tuple(var.name for var in present)).points
        bodies = [cases[point] for point in points if point in cases]
        if len(bodies) == len(points):
            number: Expr = ZERO  # as in *points*: a digit for each cursor, 1 where it is absent
            for h in present:
                number = plus(binary("*", number, 2), binary("-", const(1), Cast(h, int64)))
            body = blend(bodies, number, self.names)
            if body is not None:
                return body
        return _case_for(run, cases, present)

    def _leapfrog(self, run: _Run) -> Stmt:
        """Return the loop over common coordinates; fibers that are behind leap to the one ahead.

        Two fibers of similar length step instead, without branches.
        """
        is_common, far = self.names.var("here", bool_), self.names.var("far", bool_)
        last = self.names.var("last", int64)
        key = binary("+", last, Cast(is_common, int64))
        table = zip(run.merge.cursors, run.states, run.ends, strict=True)
        ahead = seq(*(Store(s, (ZERO,), _advance(c, end, key)) for c, s, end in table))
        if pair := len(run.coords) == 2:
            behind = (BinOp("<=", crd, run.merge.coordinate) for crd in run.coords)
            ahead = If(far, ahead, seq(*map(_step, run.states, behind)))
        body = seq(If(is_common, seq(*(case.body for case in run.merge.cases))), ahead)
        same = _all_of("and", [BinOp("==", run.coords[0], crd) for crd in run.coords[1:]])
        body = Let(last, _all_of("max", run.coords), Let(is_common, same, body))
        body = Let(run.merge.coordinate, _all_of("min", run.coords), body)
        loop = While(run.more("and"), run.at_cursors(body), span=run.merge.span)
        if not pair:
            return loop
        return Let(far, _all_of("or", run.longer(self.knobs.search_factor)), loop)

    def _any_fiber(self, run: _Run) -> Stmt:
        """Return the loop over the coordinates of any fiber, for any number of fibers."""
        present = [BinOp("==", crd, run.merge.coordinate) for crd in run.coords]
        steps = map(_step, run.states, present)
        cases = {case.present: case.body for case in run.merge.cases}
        body = seq(_case_for(run, cases, present), *steps)
        body = Let(run.merge.coordinate, _all_of("min", run.coords), body)
        return While(run.more("or"), run.at_cursors(body, may_end=True), span=run.merge.span)


def _case_for(run: _Run, cases: Cases, present: Sequence[Expr]) -> Stmt:
    """Return the case that fits which cursors are *present*; nothing if there is none."""
    union = run.merge.kind == "union"
    points = run.points if union else ((True,) * len(present),)
    sides: list[tuple[Expr, Stmt]] = []
    for point in points:
        tests = [h for h, is_present in zip(present, point, strict=True) if is_present]
        sides.append((_all_of("and", tests), cases.get(point, Seq(()))))
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


def _is_few(merge: Merge, most: int) -> bool:
    """Whether *merge* has at most *most* cursors, and no loops in its cases."""
    loops = (For, While, Merge)
    few = not any(isinstance(n, loops) for case in merge.cases for n in walk(case.body, skip=Expr))
    return few and len(merge.cursors) in ((2,) if merge.kind == "intersect" else range(2, most + 1))


def _step(state: Buffer, is_present: Expr) -> Stmt:
    """Return the statement that advances a cursor by one if it *is_present*."""
    return Store(state, (ZERO,), binary("+", get(state), Cast(is_present, int64)))


def _all_of(op: BinOpKind, parts: Sequence[Expr]) -> Expr:
    """Return *parts* combined by *op*, from the left."""
    return functools.reduce(lambda a, b: BinOp(op, a, b), parts)


def _advance(cursor: Cursor, end: Expr, coordinate: Expr) -> Expr:
    """Return the first position of *cursor*, from its current one, not below *coordinate*."""
    if cursor.indices is None:
        return BinOp("min", end, binary("+", cursor.begin, coordinate))
    return Search("gallop", cursor.indices, cursor.pos, end, coordinate)


def _coordinate(cursor: Cursor) -> Expr:
    if cursor.indices is None:
        return binary("-", cursor.pos, cursor.begin)
    return cast(Load(cursor.indices, absolute(cursor.indices, cursor.pos)), int64)
