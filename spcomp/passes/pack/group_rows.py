"""II to II, on GPUs: short rows of products have a thread, long ones a warp.

First come the numbers of products of all rows, which bound their elements. A row of few is made by
one thread, with a hash table in shared memory. A warp marks the coordinates of a longer row as
bits, many at a time; then it adds up the products, row by row of the second matrix, the elements of
which differ: each sum is in the order of the program. Sources: Gustavson (TOMS 1978); rows by
their number of products as in Nagasaka et al. (ICPP Workshops 2018).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from spcomp.dtypes import handle, int64, uint8
from spcomp.ir.access import Load
from spcomp.ir.analysis.copies import Fresh
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus
from spcomp.ir.analysis.memory import Layout
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary
from spcomp.ir.axis import AnyBuffer, Axis, Buffer, SparseBuffer, domain_axes, domain_width
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Call, Expr, Select, Var, binary, cast, const
from spcomp.ir.module import HostAlloc, HostOp, Launch, Module, Return, Scan
from spcomp.ir.position import Block
from spcomp.ir.program import CoordFunc, PosFunc
from spcomp.ir.rewrite import relink, substitute
from spcomp.ir.stmt import Alloc, Fail, For, If, Let, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.knobs import GridKnobs, Knobs
from spcomp.passes.assembly.assemble import Assembly, Marked, MarkOnly, Place, close, put
from spcomp.passes.assembly.marks import Marks, lanes, scalar
from spcomp.passes.assembly.short_fibers import ShortFiber
from spcomp.passes.assembly.write_order import Value, without_inits
from spcomp.passes.base import Pass, Stage
from spcomp.passes.iterations.lower_iterations import lower_function
from spcomp.passes.pack.pack_rows import find_products
from spcomp.passes.pack.row_work import row_work

WARP = 32
SHARED = 48 << 10  # bytes of a block that every GPU has


@dataclass(frozen=True, slots=True)
class GroupRows(Pass):
    """``count; scan; fill  ->  bound; count short; count long; scan; fill short; fill long``.

    Nothing changes unless all writes are those of a product, whose last index picks elements of a
    fiber, and nobody has decided how its loops run.
    """

    name: ClassVar[str] = "group_rows"
    takes: ClassVar[Stage] = Stage.POSITION
    gives: ClassVar[Stage] = Stage.POSITION
    knobs: Knobs = field(repr=False)
    grid: GridKnobs = field(repr=False)

    def run(self, module: Module[Any]) -> Module[Any]:
        """Return *module* with two functions in place of each phase, where that is possible."""
        match module.host:
            case (HostAlloc(), Launch(), Scan(), *_, Launch(func=name), Return()):
                if isinstance(module.source, CoordFunc) and find_products(module[name]):
                    product = _product_of(module.source)
                    made = product and _Groups(product, self.knobs, self.grid).module()
                    return made or module
        return module


@dataclass(frozen=True, slots=True)
class _Product:
    """A program that only assembles *results* along *axis*; *starts*: what their elements are."""

    source: CoordFunc
    axis: Axis
    results: tuple[SparseBuffer, ...]


def _product_of(source: CoordFunc) -> _Product | None:
    """Return the parts of *source* if its last index picks different elements of each result."""
    it, axes = source.body, [axis for axis in source.axes if axis.is_assembled]
    if not isinstance(it, SpIter) or len(axes) != 1 or len(it.domains) < 2:  # noqa: PLR2004
        return None
    (axis,), domain = axes, it.domains[-1]
    inner = domain_axes(domain)
    stores = [n for n in walk(it.body) if isinstance(n, Store)]
    results = tuple(b for b in source.buffers if axis in getattr(b, "axes", ()))
    is_apart = domain_width(domain) == 1 and len(inner) == 1 and inner[0].unique
    if not is_apart or any(isinstance(n, SpIter | Alloc) for n in walk(it.body)):
        return None
    if any(s.buffer not in results or s.indices[-1] is not it.vars[-1] for s in stores):
        return None
    return _Product(source, axis, results)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Few(Assembly):
    """Makes rows of up to *limit* products, each on one thread, with memory that the block has."""

    knobs: Knobs = field(kw_only=True)
    limit: int = field(kw_only=True)
    work: Buffer = field(kw_only=True)
    starts: Mapping[SparseBuffer, Value] = field(default_factory=dict)
    fiber: ShortFiber | None = None
    count: Buffer | None = None
    spot: Buffer | None = None

    @property
    def ascending(self) -> bool:
        """Always false: any order will do."""
        return False

    @property
    def bytes(self) -> int:
        """How much memory a thread needs."""
        assert self.fiber is not None
        rows = [row for row, _ in self.fiber.values.values()]
        buffers = (self.fiber.table, self.fiber.coords, *rows)
        return sum(int(b.shape[0].value) * b.dtype.itemsize for b in buffers)  # type: ignore[attr-defined]

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber: an empty table."""
        axis = place.axis
        self.parents[axis] = place.parent
        self.fiber = fiber = self._fiber(axis, names)
        self.count = count = scalar(names, f"{axis.name}_count")
        self.spot = spot = scalar(names, f"{axis.name}_spot")
        few = BinOp("<=", _products(self.work, place), const(self.limit))

        def wrap(stmt: Stmt) -> Stmt:
            size = fiber.table.shape[0]
            empty = lanes(
                names, size, lambda lane: Store(fiber.table, (lane,), const(0, fiber.table.dtype))
            )
            end = close(place, count, aux) if self.counts_only else self._emit(place, names, aux)
            body = seq(Store(count, (ZERO,), ZERO), empty, stmt, end)
            for buffer in (spot, count, *_buffers(fiber)):
                body = Alloc(buffer, body)
            bits = const((2 * self.limit).bit_length() - 1)
            return If(few, Let(fiber.bits, bits, body))

        return wrap

    def _fiber(self, axis: Axis, names: Names) -> ShortFiber:
        """Return the table: sizes are odd, in words, lest threads meet in one bank."""
        starts = {} if self.counts_only else self.starts
        fiber = ShortFiber.of(axis, starts, names, self.knobs)

        def sized(buffer: Buffer, size: int) -> Buffer:
            return buffer.replace(shape=(const(size),), scope="shared")

        values = {b: (sized(row, self.limit + 1), v) for b, (row, v) in fiber.values.items()}
        table = sized(fiber.table, 2 * self.limit + 4).replace(dtype=uint8)
        coords = sized(fiber.coords, self.limit + self.knobs.rank_lanes + 1)
        return replace(
            fiber, limit=self.limit, table=table, coords=coords, order=None, values=values
        )

    def load(self, buffer: AnyBuffer, place: Place, fill: Expr) -> Expr:  # noqa: ARG002
        """Return the element that the next write is to."""
        if self.counts_only:
            return fill
        assert self.fiber is not None
        assert self.spot is not None
        row, _ = self.fiber.values[buffer]  # type: ignore[index]
        return Load(row, (Load(self.spot, (ZERO,)),))

    def store(self, stmt: Store, value: Expr, place: Place, aux: Auxiliary) -> Stmt:  # noqa: ARG002
        """Return the write, after the search for the coordinate, which adds it if it is new."""
        assert self.fiber is not None
        assert self.count is not None
        assert self.spot is not None
        fiber, count, spot = self.fiber, self.count, self.spot
        key, before = fiber.names.var("key"), fiber.names.var("before")
        rows = fiber.values.values()

        def note(at: Expr) -> Stmt:
            fresh = BinOp("<", before, Load(count, (ZERO,)))
            start = seq(*(Store(row, (at,), first) for row, first in rows))
            return seq(Store(spot, (ZERO,), at), If(fresh, start) if rows else None)

        find = Let(before, Load(count, (ZERO,)), fiber.add(count, key, note))
        write: Stmt | None = None
        if not self.counts_only:
            row, _ = fiber.values[stmt.buffer]  # type: ignore[index]
            write = Store(row, (Load(spot, (ZERO,)),), value, span=stmt.span)
        new = seq(Let(key, place.coord, find), write)
        return _inside(place, new, stmt)

    def _emit(self, place: Place, names: Names, aux: Auxiliary) -> Stmt:
        """Return the statement that stores the elements, each where the number of lesser ones is."""
        assert self.fiber is not None
        assert self.count is not None
        fiber, width = self.fiber, self.knobs.rank_lanes
        length = Load(self.count, (ZERO,))
        block, other = names.var("block"), names.var("other")
        coord = names.var("coord", fiber.coords.dtype)
        rank = Buffer(names.unique("rank"), None, (const(width),), int64, "local")

        def at(lane: Var) -> Expr:
            return plus(plus(binary("*", block, width), lane), 1)

        def compare(lane: Var) -> Stmt:
            less = Select(BinOp("<", coord, Load(fiber.coords, (at(lane),))), const(1), ZERO)
            return Store(rank, (lane,), binary("+", Load(rank, (lane,)), less))

        def write(lane: Var) -> Stmt:
            position = Load(rank, (lane,)) if place.axis.sorted else plus(at(lane), -1)
            where = (*place.parent.indices(), position)
            stores: list[Stmt] = [put(place, position, Load(fiber.coords, (at(lane),)), aux)]
            stores += [
                Store(b, where, Load(row, (at(lane),))) for b, (row, _) in fiber.values.items()
            ]
            return If(BinOp("<=", at(lane), length), seq(*stores))

        each = functools.partial(_unrolled, names, const(width))
        listed = Load(fiber.coords, (plus(other, 1),))
        ranked = For(other, ZERO, length, Let(coord, listed, each(compare)))
        clear = each(lambda lane: Store(rank, (lane,), ZERO))
        blocks = binary(">>", plus(length, width - 1), width.bit_length() - 1)
        parts = (clear, ranked, each(write)) if place.axis.sorted else (each(write),)
        return For(block, ZERO, blocks, Alloc(rank, seq(*parts)))


class _WarpMarks(Marks):
    """Marks that the lanes of a warp make at the same time; no list is kept of them."""

    __slots__ = ()

    def add(self, coord: Expr) -> Stmt:
        """Return the statement that marks *coord*, whoever else marks at the same time."""
        at, word = self.names.var("at"), self.names.var("word")
        bit = binary("<<", const(1, self.words.dtype), cast(binary("&", at, 63), self.words.dtype))
        marked = binary("|", Load(self.words, (word,)), bit)
        mark = Store(self.words, (word,), marked, atomic=True)
        return Let(at, coord, Let(word, binary(">>", at, 6), mark))

    def emit_word(self, place: Expr, into: Buffer, put: Callable[[Var], Stmt]) -> Stmt:
        """Return the statement that runs *put* on the coordinates of the word at *place*."""
        return self._emit_word(place, into, put)


@dataclass(slots=True)
class _Many(Marked):
    """Makes rows of more products, each on a warp."""

    partial: Buffer | None = None  # of each lane: how many coordinates its words hold
    failed: bool = False  # whether the loops do not have the form that lanes can share

    def open(self, place: Place, names: Names, aux: Auxiliary) -> Callable[[Stmt], Stmt]:
        """Open the fiber, whose marks are clear."""
        axis = place.axis
        marks = Marks.of(axis, names, self.knobs)
        marks = _WarpMarks(**{name: getattr(marks, name) for name in Marks.__slots__})
        self.parents[axis], self.marks[axis] = place.parent, marks
        self.partial = _shared(names, "partial")
        count = scalar(names, f"{axis.name}_count")  # a lane has its own in the fill

        def wrap(stmt: Stmt) -> Stmt:
            if self.phase == "count":
                body = seq(
                    self._lanes(names, stmt, 2),
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
                self._lanes(names, first, 2),  # type: ignore[arg-type]
                self._sizes(names, marks, clear=False),
                self._emit(names, marks, count, element),
                self._lanes(names, stmt, 1),
                self._clear(names, marks),
            )

        return wrap

    def _lanes(self, names: Names, stmt: Stmt, most: int) -> Stmt:
        """Return *stmt* with the lanes of a warp on the inner *most* loops, one or two."""
        loops = _chain(stmt)
        if not loops:
            self.failed = True
            return stmt
        lane, inner = names.var("lane"), loops[-1]
        if most == 1 or len(loops) == 1:
            strided = _strided(names, inner, lane, WARP)
            return substitute_stmt(stmt, inner, For(lane, ZERO, const(WARP), strided, *_X))
        few = 8  # lanes on one row of the second matrix: many of these are short
        column, row = binary("&", lane, few - 1), binary(">>", lane, few.bit_length() - 1)
        stmt = substitute_stmt(stmt, inner, _strided(names, inner, column, few))
        outer = next(n for n in walk(stmt) if isinstance(n, For) and n.var is loops[0].var)
        stmt = substitute_stmt(stmt, outer, _strided(names, outer, row, WARP // few))
        return For(lane, ZERO, const(WARP), stmt, *_X)

    def _words(self, names: Names, marks: Marks, body: Callable[[Var, Var], Stmt]) -> For:
        """Return the loop of each lane over its words."""
        lane, word, share = (names.var(wish) for wish in ("lane", "word", "share"))
        size = marks.words.shape[0]
        begin = binary("*", lane, share)
        end = binary("min", binary("+", begin, share), size)
        own = For(word, begin, end, body(word, lane))
        each = binary(">>", plus(size, WARP - 1), WARP.bit_length() - 1)
        return Let(share, each, own), lane  # type: ignore[return-value]

    def _sizes(self, names: Names, marks: Marks, *, clear: bool) -> Stmt:
        """Return the statement that stores how many coordinates the words of each lane hold."""
        assert self.partial is not None
        held = scalar(names, "held")

        def add(word: Var, _: Var) -> Stmt:
            marked = cast(Call("popcount", (Load(marks.words, (word,)),)), int64)
            more = Store(held, (ZERO,), binary("+", Load(held, (ZERO,)), marked))
            zero = Store(marks.words, (word,), const(0, marks.words.dtype))
            return seq(more, zero if clear else None)

        loop, lane = self._words(names, marks, add)  # type: ignore[misc]
        own = seq(Store(held, (ZERO,), ZERO), loop)
        own = Alloc(held, seq(own, Store(self.partial, (lane,), Load(held, (ZERO,)))))
        return For(lane, ZERO, const(WARP), own, *_X)

    def _total(self, names: Names, into: Buffer, end: Expr) -> Stmt:
        """Return the statement that sets *into* to what the lanes before *end* have."""
        assert self.partial is not None
        other = names.var("other")
        total = binary("+", Load(into, (ZERO,)), Load(self.partial, (other,)))
        add = For(other, ZERO, end, Store(into, (ZERO,), total))
        return seq(Store(into, (ZERO,), ZERO), add)

    def _emit(
        self, names: Names, marks: _WarpMarks, count: Buffer, element: Callable[[Var], Stmt]
    ) -> Stmt:
        """Return the statement that stores all coordinates, and where those of a word begin."""
        loop, lane = self._words(  # type: ignore[misc]
            names, marks, lambda word, _: marks.emit_word(word, count, element)
        )
        own = Alloc(count, seq(self._total(names, count, lane), loop))
        return For(lane, ZERO, const(WARP), own, *_X)

    def _clear(self, names: Names, marks: Marks) -> Stmt:
        zero = const(0, marks.words.dtype)
        loop, lane = self._words(  # type: ignore[misc]
            names, marks, lambda word, _: Store(marks.words, (word,), zero)
        )
        return For(lane, ZERO, const(WARP), loop, *_X)


_X = ("bound", "threadIdx.x")


class _Groups:
    """The functions that make a *product*, and the host program of them."""

    def __init__(self, product: _Product, knobs: Knobs, grid: GridKnobs) -> None:
        self.product, self.knobs, self.grid = product, knobs, grid
        axis, source = product.axis, product.source
        self.indptr, self.indices = (
            Var(f"{axis.name}_{part}", handle) for part in ("indptr", "indices")
        )
        self.axis = axis.replace(indptr=self.indptr, indices=self.indices)
        full = relink(source, vars={}, axes={axis: self.axis}, buffers={})
        self.full, starts = without_inits(full, {self.axis})
        self.results = [
            b for b in full.buffers if isinstance(b, SparseBuffer) and self.axis in b.axes
        ]
        self.starts = {b: starts.get(b, b.fill) for b in self.results}
        self.bounds, self.handle = row_work(source, axis)
        assert self.axis.parent is not None
        self.fibers = Layout().total(self.axis.parent)
        self.work = Buffer(self.handle.name, self.handle, (plus(self.fibers, 1),), int64)

    def module(self) -> Module[Any] | None:
        """Return the program, None if its loops have another form."""
        phases = [self._few("count"), self._many("count"), self._few("fill"), self._many("fill")]
        funcs = [func for func in phases if func is not None]
        if len(funcs) != len(phases):
            return None
        return Module(
            self.product.source, (self.bounds, *funcs), self._host([f.name for f in funcs])
        )

    def _host(self, names: list[str]) -> tuple[HostOp, ...]:
        axis = self.axis
        indptr = Buffer(self.indptr.name, self.indptr, (plus(self.fibers, 1),), axis.idtype)
        total = cast(Load(indptr, (self.fibers,)), int64)
        arrays = [Buffer(self.indices.name, self.indices, (total,), axis.idtype)]
        arrays += [Buffer(b.data.name, b.data, (total,), b.dtype) for b in self.results if b.data]
        return (
            HostAlloc(self.work, None),
            Launch(self.bounds.name),
            HostAlloc(indptr),
            *map(Launch, names[:2]),
            Scan(indptr),
            *(HostAlloc(array, None) for array in arrays),
            *map(Launch, names[2:]),
            Return((indptr, *arrays)),
        )

    def _phase(self, phase: str, which: str) -> CoordFunc:
        """Return the function to lower for one *phase*, ``count`` or ``fill``."""
        full = self.full
        data = {b.data for b in self.results}
        params = tuple(p for p in full.params if phase == "fill" or p not in data)
        params = (*params, self.indptr, *((self.indices,) if phase == "fill" else ()))
        return full.replace(name=f"{self.product.source.name}_{phase}_{which}", params=params)

    def _lowered(self, func: CoordFunc, assembly: Assembly) -> PosFunc | None:
        """Return *func* in position space, with the numbers of products of its rows."""
        lowered = lower_function(func, assembly)
        if not isinstance(lowered.body, For) or not from_zero(lowered.body):
            return None
        attrs = tuple(pair for pair in lowered.attrs if pair[0] != "one_pass")
        return lowered.replace(
            params=(*lowered.params, self.handle),
            buffers=(*lowered.buffers, self.work),
            attrs=attrs,
        )

    def _few(self, phase: Any) -> PosFunc | None:
        """Return the function for short rows: each is a thread's."""
        limit, axes = self.grid.few_products, frozenset({self.axis})
        few = _Few(
            phase, axes, knobs=self.knobs, limit=limit, work=self.work, starts=self.starts
        )
        func = self._lowered(self._phase(phase, "short"), few)
        if func is None or few.fiber is None or not isinstance(func.body, For):
            return None
        size = next((n for n in (64, WARP) if n * few.bytes <= SHARED), None)
        if size is None:
            return None
        names, row = Names(func), func.body
        block, thread = names.var(f"{row.var.name}_o"), names.var(f"{row.var.name}_i")
        index = plus(binary("*", block, size), thread)
        body = Let(row.var, index, If(BinOp("<", row.var, row.end), row.body))
        body = For(thread, ZERO, const(size), body, *_X)
        blocks = binary("//", plus(row.end, size - 1), size)
        return func.replace(body=For(block, ZERO, blocks, body, "bound", "blockIdx.x"))

    def _many(self, phase: Any) -> PosFunc | None:
        """Return the function for longer rows: warps take turns at some rows that are neighbours.

        A warp looks at the numbers of products of all its next rows at once.
        """
        axes = frozenset({self.axis})
        counts = phase == "count"
        many = _Many(
            phase,
            axes if counts else frozenset(),
            frozenset() if counts else axes,
            knobs=self.knobs,
            starts=self.starts,
        )
        func = self._lowered(self._phase(phase, "long"), many)
        if func is None or many.failed or many.partial is None or not isinstance(func.body, For):
            return None
        names, row, marks = Names(func), func.body, many.marks[self.axis]
        own = (many.partial, *(() if counts else (marks.before,)), marks.words)
        return func.replace(body=_turns(names, row, self.work, marks.words, own, self.grid))


def _turns(
    names: Names, row: For, work: Buffer, words: Buffer, own: tuple[Buffer, ...], grid: GridKnobs
) -> For:
    """Return the loop *row* on warps, each with its *own* memory, for rows of more than few."""
    block, side, warp, turn, at, lane, other, first, size, warps = (
        names.var(f"{row.var.name}_{wish}")
        for wish in ("b", "y", "w", "turn", "at", "lane", "other", "first", "size", "warps")
    )
    few, sides = const(grid.few_products), grid.block_threads // WARP
    most, top = _shared(names, "most"), scalar(names, "top")
    fits = binary("//", const(grid.mark_words // sides), binary("max", words.shape[0], 1))
    least, most_blocks = grid.warps_least // sides, grid.warps_most // sides
    blocks = binary("max", const(least), binary("min", const(most_blocks), fits))
    share = binary("//", row.end, binary("*", warps, grid.warp_turns))
    share = binary("max", const(1), binary("min", const(WARP), share))
    place = plus(first, lane)
    is_own = binary("and", binary("<", lane, size), binary("<", place, row.end))
    products = Select(is_own, Load(work, (plus(place, 1),)), ZERO)
    look = For(lane, ZERO, const(WARP), Store(most, (lane,), products), *_X)
    larger = binary("max", Load(top, (ZERO,)), Load(most, (other,)))
    find = For(other, ZERO, const(WARP), Store(top, (ZERO,), larger), "unroll")
    is_long = BinOp(">", Load(most, (at,)), few)
    each = For(at, ZERO, size, If(is_long, Let(row.var, plus(first, at), row.body)))
    any_long = If(BinOp(">", Load(top, (ZERO,)), few), each)
    body: Stmt = seq(look, Alloc(top, seq(Store(top, (ZERO,), ZERO), find, any_long)))
    begin = binary("*", plus(binary("*", turn, warps), warp), size)
    body = Let(first, begin, body)
    groups = binary("//", plus(row.end, binary("-", size, 1)), size)
    last = binary("-", plus(groups, binary("-", warps, 1)), warp)
    body = For(turn, ZERO, binary("//", last, warps), body)
    body = Let(warps, binary("*", blocks, sides), Let(size, share, body))
    body = Let(warp, plus(binary("*", block, sides), side), body)
    for buffer in (most, *own):
        body = Alloc(buffer, body)
    body = For(side, ZERO, const(sides), body, "bound", "threadIdx.y")
    return For(block, ZERO, blocks, body, "bound", "blockIdx.x")


def _products(work: Buffer, place: Place) -> Expr:
    """Return how many products the row of *place* has."""
    return Load(work, (plus(place.parent.indices()[-1], 1),))  # type: ignore[arg-type]


def _inside(place: Place, stmt: Stmt, store: Store) -> Stmt:
    if place.within is None:
        return stmt
    miss = f"write to a coordinate outside of {place.axis.name}"
    return If(place.within, stmt, Fail(miss, span=store.span), span=store.span)


def _buffers(fiber: ShortFiber) -> tuple[Buffer, ...]:
    return fiber.table, fiber.coords, *(row for row, _ in fiber.values.values())


def _shared(names: Names, wish: str) -> Buffer:
    """Return memory of a warp, with an int64 for each lane."""
    return Buffer(names.unique(wish), None, (const(WARP),), int64, "shared")


def _unrolled(names: Names, count: Expr, body: Callable[[Var], Stmt]) -> Stmt:
    lane = names.var("lane")
    return For(lane, ZERO, count, body(lane), "unroll")


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
    return loop.replace(
        var=turn, end=binary(">>", trips, step.bit_length() - 1), body=body
    )


def substitute_stmt(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """Return *stmt* with *new* in place of *old*."""
    from spcomp.ir.rewrite import Rewriter

    class _Put(Rewriter):
        def visit_For(self, loop: For) -> Any:
            return new if loop is old else self.visit_Node(loop)

    return _Put().rewrite(stmt)  # type: ignore[no-any-return]
