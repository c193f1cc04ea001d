"""Beside the route, stage II: how many elements the rows of a result have at most. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TypeAlias

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, absolute, fingerprint, from_zero, plus
from spcomp.ir.axis import AnyBuffer, Axis
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Var, binary, cast
from spcomp.ir.position import Block, Cursor, Merge
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True)
class Level:
    """The *axis* whose fibers lie below positions, from ``indptr[position]`` on."""

    axis: Axis
    indptr: AnyBuffer


Chain: TypeAlias = tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class Fibers:
    """The elements of the fibers of *axis*, of which *indptr* says where they begin.

    Or those of the last of the levels *below*, each along the one before.
    """

    axis: Axis
    indptr: AnyBuffer
    below: Chain = ()

    def between(self, first: Expr, last: Expr) -> Expr:
        """Return how many there are in rows ``first..last-1``, an int64."""
        begin, end = (cast(Load(self.indptr, (at,)), int64) for at in (first, last))
        return binary("-", self.leaves(end), self.leaves(begin))

    def leaves(self, position: Expr) -> Expr:
        """Return how many elements lie before *position* of the axis, an int64."""
        for level in self.below:
            found = Load(level.indptr, absolute(level.indptr, position))
            position = cast(found, int64)
        return position

    def total(self) -> Expr:
        """Return how many there are at most, an int64."""
        leaf = self.below[-1].axis if self.below else self.axis
        assert leaf.nnz is not None
        return cast(leaf.nnz, int64)


@dataclass(frozen=True, slots=True)
class Span:
    """At most as many elements as each of *options* has."""

    options: tuple[Fibers, ...]

    def between(self, first: Expr, last: Expr) -> Expr:
        """Return how many there are at most in rows ``first..last-1``, an int64."""
        return _least([option.between(first, last) for option in self.options])

    def within(self, places: Sequence[tuple[Expr, Expr]]) -> Expr:
        """Return how many there are at most between two positions on the axis of each option."""
        pairs = zip(self.options, places, strict=True)
        sizes = [binary("-", own.leaves(end), own.leaves(begin)) for own, (begin, end) in pairs]
        return _least(sizes)

    def total(self) -> Expr:
        """Return how many there are at most in all rows, an int64."""
        return _least([option.total() for option in self.options])


def sum_of(sizes: list[Expr]) -> Expr:
    """Return the sum of *sizes*, int64."""
    total: Expr = ZERO
    for size in sizes:
        total = plus(total, size)
    return total


def _least(sizes: list[Expr]) -> Expr:
    least, *others = sizes
    for size in others:
        least = binary("min", least, size)
    return least


def bound_of(stmt: Stmt, rows: AbstractSet[Var], axes: tuple[Axis, ...]) -> tuple[Span, ...] | None:
    """Return spans that the elements made by *stmt* in a row fit in together; None if not known.

    *rows*: the variables whose value is the row. A loop or a case of a merge makes one element for
    each of its iterations, or goes through the fibers below a position; nothing is made elsewhere.
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
            return self._nested(merge, known) if len(known) == len(fibers) else None
        if merge.kind == "intersect":
            return (Span(known),) if known else None
        return tuple(Span((x,)) for x in known) if len(known) == len(fibers) else None

    def _nested(self, merge: Merge, fibers: tuple[Fibers, ...]) -> tuple[Span, ...] | None:
        """Return the spans of a merge whose cases go through what lies below its cursors."""
        paths: dict[Var, _Path] = {}
        for cursor, own in zip(merge.cursors, fibers, strict=True):
            begin = _plain(cursor.begin)
            assert isinstance(begin, Load)
            paths[cursor.pos] = _Path(own.axis, (_key(begin.indices[-1]),)).at(cursor)
        chains = _Below(self.axes).cases(merge, paths)
        if chains is None:
            return None
        pairs = zip(merge.cursors, fibers, strict=True)
        return tuple(
            Span((replace(own, below=chains[c.pos]),)) for c, own in pairs if c.pos in chains
        )

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


@dataclass(frozen=True, slots=True)
class _Path:
    """A position on *axis*: how it is spelled by those above, and whether it is absolute."""

    axis: Axis
    keys: tuple[object, ...]
    absolute: bool = False

    def at(self, cursor: Cursor) -> _Path:
        """Return the path of the position of *cursor*, which runs over a fiber at this one."""
        return replace(
            self,
            keys=(*self.keys, _key(BinOp("-", cursor.pos, cursor.begin))),
            absolute=True,
        )

    def spells(self, indices: tuple[Expr | None, ...]) -> bool:
        """Whether *indices* mean this position."""
        plain = self.absolute and all(index is None for index in indices[:-1])
        return plain or tuple(map(_key, indices)) == self.keys


@dataclass(frozen=True, slots=True)
class _Below:
    """Which levels statements go through below positions."""

    axes: tuple[Axis, ...]

    def of(self, stmt: Stmt, paths: Mapping[Var, _Path]) -> dict[Var, Chain] | None:
        """Return the levels below those of the positions *paths* that *stmt* goes through.

        It makes at most as many elements as lie there together. None if that is not known.
        """
        if _makes_one(stmt):
            return dict.fromkeys(paths, ())
        match stmt:
            case Block(init=None, where=None, body=body) | Let(body=body) | Alloc(body=body):
                return self.of(body, paths)
            case Merge():
                return self._merge(stmt, paths)
            case For(end=end) if from_zero(stmt):
                return self._loop(stmt, _plain(end), paths)
        return None

    def cases(self, merge: Merge, paths: Mapping[Var, _Path]) -> dict[Var, Chain] | None:
        """Return the levels below the positions of the cursors of *merge*, whatever the case."""
        found: dict[Var, Chain] = {}
        for case in merge.cases:
            present = zip(merge.cursors, case.present, strict=True)
            own = self.of(case.body, {c.pos: paths[c.pos] for c, here in present if here})
            if not own or any(found.setdefault(pos, chain) != chain for pos, chain in own.items()):
                return None
        return found

    def _merge(self, merge: Merge, paths: Mapping[Var, _Path]) -> dict[Var, Chain] | None:
        rows = [self._fiber(c.begin, c.end, paths) for c in merge.cursors]
        known = [row for row in rows if row is not None]
        if len({row for row, _ in known}) < len(rows):
            return None
        pairs = list(zip(merge.cursors, known, strict=True))
        inner = {c.pos: replace(paths[row], axis=own.axis).at(c) for c, (row, own) in pairs}
        chains = self.cases(merge, inner)
        if chains is None:
            return None
        return {row: (own, *chains[c.pos]) for c, (row, own) in pairs if c.pos in chains}

    def _loop(self, loop: For, size: Expr, paths: Mapping[Var, _Path]) -> dict[Var, Chain] | None:
        found = self._fiber(size.rhs, size.lhs, paths) if isinstance(size, BinOp) else None
        if found is None or not isinstance(size, BinOp) or size.op != "-":
            return None
        row, own = found
        blocks = (n for n in walk(loop.body) if isinstance(n, Block))
        same = (it.var for block in blocks for it in block.iters if it.value is loop.var)
        keys = paths[row].keys
        inner = {v: _Path(own.axis, (*keys, _key(v))) for v in (loop.var, *same)}
        chains = {*(self.of(loop.body, inner) or {}).values()}
        return {row: (own, *chains.pop())} if len(chains) == 1 else None

    def _fiber(
        self, begin: Expr, end: Expr, paths: Mapping[Var, _Path]
    ) -> tuple[Var, Level] | None:
        """Return the position in whose fiber ``begin..end-1`` lie, and the level of that."""
        match _plain(begin), _plain(end):
            case (
                Load(buffer=indptr, indices=(*above, Var() as row)),
                Load(
                    buffer=other,
                    indices=(*again, BinOp(op="+", lhs=Var() as after, rhs=Const(value=1))),
                ),
            ) if indptr is other and row is after and row in paths:
                found = (a for a in self.axes if a.indptr is indptr.data and a.nnz is not None)
                axis = next((a for a in found if a.parent is paths[row].axis), None)
                fits = paths[row].spells((*above, row)) and paths[row].spells((*again, row))
                return (row, Level(axis, indptr)) if axis is not None and fits else None
        return None


def _key(index: Expr | None) -> object:
    """Return what is equal for indices that are spelled alike, whatever their types."""
    if index is None:
        return None
    plain = _plain(index)
    if isinstance(plain, BinOp):
        return plain.op, _key(plain.lhs), _key(plain.rhs)
    return fingerprint(plain)


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
