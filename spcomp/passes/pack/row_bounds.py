"""Beside the route, stage II: bounds of the number of elements in rows of a result. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TypeAlias

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus, uncast
from spcomp.ir.analysis.positions import begin_at, fiber_of
from spcomp.ir.axis import AnyBuffer, Axis
from spcomp.ir.expr import BinOp, Expr, Var, binary, cast
from spcomp.ir.position import Block, Cursor, Merge
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While
from spcomp.ir.structural import fingerprint
from spcomp.ir.visitor import walk


@dataclass(frozen=True, slots=True)
class Level:
    """An *axis* below a position: its fiber begins at ``indptr[position]``."""

    axis: Axis
    indptr: AnyBuffer


Chain: TypeAlias = tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class Fibers:
    """The elements of the fibers of *axis*, which begin as *indptr* says.

    With levels *below*, each under the one before: the elements of the last level.
    """

    axis: Axis
    indptr: AnyBuffer
    below: Chain = ()

    def between(self, first: Expr, last: Expr) -> Expr:
        """Return the number of elements in rows ``first..last-1``, an int64."""
        begin, end = (begin_at(self.indptr, at) for at in (first, last))
        return binary("-", self.leaves(end), self.leaves(begin))

    def leaves(self, position: Expr) -> Expr:
        """Return how many elements lie before *position* of the axis, an int64."""
        for level in self.below:
            position = begin_at(level.indptr, position)
        return position

    def total(self) -> Expr:
        """Return an upper bound of their number, an int64."""
        leaf = self.below[-1].axis if self.below else self.axis
        assert leaf.nnz is not None
        return cast(leaf.nnz, int64)


@dataclass(frozen=True, slots=True)
class Span:
    """A bound: no more elements than any of *options* has."""

    options: tuple[Fibers, ...]

    def between(self, first: Expr, last: Expr) -> Expr:
        """Return the bound for rows ``first..last-1``, an int64."""
        return _least([option.between(first, last) for option in self.options])

    def within(self, places: Sequence[tuple[Expr, Expr]]) -> Expr:
        """Return the bound between two positions on the axis of each option."""
        pairs = zip(self.options, places, strict=True)
        sizes = [
            binary("-", option.leaves(end), option.leaves(begin)) for option, (begin, end) in pairs
        ]
        return _least(sizes)

    def total(self) -> Expr:
        """Return the bound for all rows together, an int64."""
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
    """Return spans whose sum bounds the elements that *stmt* makes in a row; None if not known.

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
                bounds = [self.of(part) for part in parts]
                known_bounds = [spans for spans in bounds if spans is not None]
                return sum(known_bounds, ()) if len(known_bounds) == len(bounds) else None
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
        """Return the spans of a merge whose cases go through the fibers below its cursors."""
        paths: dict[Var, _Path] = {}
        for cursor, fiber in zip(merge.cursors, fibers, strict=True):
            begin = uncast(cursor.begin)
            assert isinstance(begin, Load)
            paths[cursor.pos] = _Path(fiber.axis, (_key(begin.indices[-1]),)).at(cursor)
        chains = _Below(self.axes).cases(merge, paths)
        if chains is None:
            return None
        pairs = zip(merge.cursors, fibers, strict=True)
        return tuple(
            Span((replace(fiber, below=chains[c.pos]),)) for c, fiber in pairs if c.pos in chains
        )

    def _cursor(self, cursor: Cursor) -> Fibers | None:
        return self._fibers(cursor.begin, cursor.end)

    def _size(self, extent: Expr) -> Fibers | None:
        match uncast(extent):
            case BinOp(op="-", lhs=end, rhs=begin):
                return self._fibers(begin, end)
        return None

    def _fibers(self, begin: Expr, end: Expr) -> Fibers | None:
        """Return the fibers that ``begin..end-1`` belong to, if it is the fiber of the row."""
        match fiber_of(begin, end):
            case indptr, (row,), (same,) if {row, same} <= self.rows:
                axes = (a for a in self.axes if a.indptr is indptr.data and a.nnz is not None)
                axis = next(axes, None)
                return None if axis is None else Fibers(axis, indptr)
        return None


@dataclass(frozen=True, slots=True)
class _Path:
    """A position on *axis*: the keys of its indices from the root, and whether it is absolute."""

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
    """Finds the levels below positions that statements go through."""

    axes: tuple[Axis, ...]

    def of(self, stmt: Stmt, paths: Mapping[Var, _Path]) -> dict[Var, Chain] | None:
        """Return for each position of *paths* that *stmt* goes through the levels below it.

        *stmt* makes at most as many elements as lie there together. None: not known.
        """
        if _makes_one(stmt):
            return dict.fromkeys(paths, ())
        match stmt:
            case Block(init=None, where=None, body=body) | Let(body=body) | Alloc(body=body):
                return self.of(body, paths)
            case Merge():
                return self._merge(stmt, paths)
            case For(end=end) if from_zero(stmt):
                return self._loop(stmt, uncast(end), paths)
        return None

    def cases(self, merge: Merge, paths: Mapping[Var, _Path]) -> dict[Var, Chain] | None:
        """Return the levels below the cursors of *merge*, the same in all cases; else None."""
        chains: dict[Var, Chain] = {}
        for case in merge.cases:
            present = zip(merge.cursors, case.present, strict=True)
            inner = self.of(
                case.body, {c.pos: paths[c.pos] for c, is_present in present if is_present}
            )
            if not inner or any(
                chains.setdefault(pos, chain) != chain for pos, chain in inner.items()
            ):
                return None
        return chains

    def _merge(self, merge: Merge, paths: Mapping[Var, _Path]) -> dict[Var, Chain] | None:
        rows = [self._fiber(c.begin, c.end, paths) for c in merge.cursors]
        known = [row for row in rows if row is not None]
        if len({row for row, _ in known}) < len(rows):
            return None
        pairs = list(zip(merge.cursors, known, strict=True))
        inner = {c.pos: replace(paths[row], axis=level.axis).at(c) for c, (row, level) in pairs}
        chains = self.cases(merge, inner)
        if chains is None:
            return None
        return {row: (level, *chains[c.pos]) for c, (row, level) in pairs if c.pos in chains}

    def _loop(self, loop: For, size: Expr, paths: Mapping[Var, _Path]) -> dict[Var, Chain] | None:
        fiber = self._fiber(size.rhs, size.lhs, paths) if isinstance(size, BinOp) else None
        if fiber is None or not isinstance(size, BinOp) or size.op != "-":
            return None
        row, level = fiber
        blocks = (n for n in walk(loop.body) if isinstance(n, Block))
        same = (item.var for block in blocks for item in block.iters if item.value is loop.var)
        keys = paths[row].keys
        inner = {v: _Path(level.axis, (*keys, _key(v))) for v in (loop.var, *same)}
        chains = {*(self.of(loop.body, inner) or {}).values()}
        return {row: (level, *chains.pop())} if len(chains) == 1 else None

    def _fiber(
        self, begin: Expr, end: Expr, paths: Mapping[Var, _Path]
    ) -> tuple[Var, Level] | None:
        """Return the position whose fiber is ``begin..end-1``, and the level of the fiber."""
        match fiber_of(begin, end):
            case indptr, (*_, Var() as row) as first, (*_, same) as last if (
                row is same and row in paths
            ):
                candidates = (a for a in self.axes if a.indptr is indptr.data and a.nnz is not None)
                axis = next((a for a in candidates if a.parent is paths[row].axis), None)
                fits = paths[row].spells(first) and paths[row].spells(last)
                return (row, Level(axis, indptr)) if axis is not None and fits else None
        return None


def _key(index: Expr | None) -> object:
    """Return a key that is equal for equal index expressions, whatever their types."""
    if index is None:
        return None
    plain = uncast(index)
    if isinstance(plain, BinOp):
        return plain.op, _key(plain.lhs), _key(plain.rhs)
    return fingerprint(plain)


def _makes_one(stmt: Stmt) -> bool:
    """Whether *stmt* makes at most one element: it has no loop, and counts at most once."""
    if any(isinstance(n, (For, While, Merge)) for n in walk(stmt)):
        return False
    return _counts(stmt) <= 1


def _counts(stmt: Stmt) -> int:
    """Return how often *stmt* counts at most: a count is a store of a count that it loads."""
    match stmt:
        case Seq(body=parts):
            return sum(map(_counts, parts))
        case If(then=then, otherwise=otherwise):
            return max(_counts(then), 0 if otherwise is None else _counts(otherwise))
        case Block(body=body) | Let(body=body) | Alloc(body=body):
            return _counts(body)
        case Store(buffer=buffer, value=value):
            loads = (n for n in walk(value) if isinstance(n, Load) and n.buffer is buffer)
            return int(next(loads, None) is not None and buffer.data is None)
    return 0
