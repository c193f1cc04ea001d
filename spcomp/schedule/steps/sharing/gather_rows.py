"""In position space: the step gather_rows, which finds for each row what lists have for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeAlias

from spcomp.dtypes import DType, int64
from spcomp.errors import ScheduleError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, from_zero, plus, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import Auxiliary, positions
from spcomp.ir.analysis.reduction import Reduction, accumulator, as_reduction, combine, identity
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.arith.memory import read_by
from spcomp.ir.arith.simplify import simplify
from spcomp.ir.axis import AnyBuffer, Buffer, memory_of
from spcomp.ir.expr import BinOp, Const, Expr, Var, binary, cast, const, plain
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import walk
from spcomp.schedule.nests.nests import chain, find_loop, runs_once
from spcomp.schedule.nests.sites import bound_in, refusal
from spcomp.schedule.nests.values import binding_values
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.horizontal import Put, follow, together
from spcomp.schedule.steps.sharing.segments import Keys, sorted_keys

TOGETHER = 8  # lists whose entries of a row are looked up at the same time, as registers hold them


@dataclass(frozen=True, slots=True)
class GatherRows(Step):
    """``for i: W[i] = 0; for p: W[row[p]] op= x  ->  for i: t = 0; for p of i: t op= x; W[i] = t``.

    *loops* are the outermost loops of nests that follow each other: the first starts all rows of
    W, the others update those that sorted lists name, as the parts of a composable format do, or
    the relations of a tensor. The new loop over rows has the name of the first. It has *width*
    neighbouring elements of a row in ``t`` at a time, which is written once. A nest before it finds
    by binary search where each list has its rows.

    *apart*: those of *loops* whose lists have many or expensive entries for a row. Each entry has a
    sum of its own, made by a nest over all entries, and a row adds these up in order. So the result
    depends on the data only. Each call then checks that the lists ascend. Legal where all nests
    update by the same associative operation, and read nothing that they write.
    """

    name: ClassVar[str] = "gather_rows"
    loops: tuple[str, ...]
    width: int = 1
    apart: tuple[str, ...] = field(default=(), kw_only=True)

    def plan(self, func: Func) -> _Gather:
        """Return the nests, and what their rows are."""
        nests = [find_loop(func, name, self) for name in self.loops]
        if len(nests) < 2 or self.width < 1 or not {*self.apart} <= {*self.loops[1:]}:
            raise refusal(self, "it needs a nest that starts rows, others, and a positive width")
        stmts = together(func.body, nests[0])
        if stmts is None or not follow(stmts, nests):
            why = "the loops are not outermost, one directly after the other"
            raise self.error(why, nests[0])
        return _Gather(self, func, nests)

    def rewrite(self, func: Func, plan: _Gather) -> Func:
        """Return *func* with the loop over rows, after the nests over entries."""
        names = {*func.attr("order_needed", ()), *(part.keys.axis.name for part in plan.parts)}
        new = func.replace(body=Put(plan.nests, plan.build(Names(func))).rewrite(func.body))
        attrs = tuple(pair for pair in new.attrs if pair[0] != "horizontal_fuse")
        return new.replace(attrs=attrs).with_attr("order_needed", tuple(sorted(names)))


def _is_of(var: Var, begin: Expr) -> bool:
    """Whether *begin* is where the fiber with the number *var* begins."""
    load = plain(begin)
    at = load.indices[-1] if isinstance(load, Load) else None
    return at is not None and plain(at) is var


@dataclass(frozen=True, slots=True, eq=False)
class _List:
    """A nest that updates the rows of a list: *loop* runs over its entries, for each of *outer*.

    *store* updates an element, which the loop *column* picks in its row, if a row has several.
    """

    nest: For
    loop: For
    keys: Keys
    outer: tuple[For, ...]
    store: Store
    update: Reduction
    column: For | None

    def begin(self, at: Mapping[Var, Expr]) -> Expr:
        """The position of the first entry in the array, where the loops *outer* are *at*."""
        return self._at(self.keys.begin, at)

    def size(self, at: Mapping[Var, Expr]) -> Expr:
        """The number of entries there."""
        return self._at(self.loop.end, at)

    def search(self, row: Expr, at: Mapping[Var, Expr]) -> Expr:
        """The number of entries there whose row is below *row*."""
        begin = self.begin(at)
        end = plus(begin, self.size(at))
        return binary("-", Search("lower", self.keys.buffer, begin, end, row), begin)

    def _at(self, value: Expr, at: Mapping[Var, Expr]) -> Expr:
        once = {n.var: ZERO for n in walk(self.nest) if isinstance(n, For) and runs_once(n)}
        return simplify(substitute(substitute(value, binding_values(self.nest)), {**once, **at}))

    @property
    def trips(self) -> Expr:
        """How many lists there are."""
        return self.outer[0].end if self.outer else const(1)


Found: TypeAlias = dict[_List, tuple[Buffer, ...]]


class _Gather:
    """Nests that start and update the same rows, and the nests that replace them."""

    def __init__(self, step: GatherRows, func: Func, nests: list[For]) -> None:
        self.step, self.func, self.nests = step, func, nests
        self.rows = nests[0]
        self.parts = [self._list(nest) for nest in nests[1:]]
        self.target: AnyBuffer = self.parts[0].store.buffer
        self.dtype: DType = accumulator(self.target.dtype)
        self.combiner = self.parts[0].update.combiner
        self.columns, self.start = self._start()
        for part in self.parts:
            self._check(part)

    def error(self, why: str, at: For) -> ScheduleError:
        return refusal(self.step, why, at.span)

    # -- legality -----------------------------------------------------------------------------

    def _list(self, nest: For) -> _List:
        """Return *nest* as one that updates rows of a list."""
        outer: list[For] = []
        stmt: Stmt = nest
        while (keys := sorted_keys(self.func, stmt) if isinstance(stmt, For) else None) is None:
            if isinstance(stmt, For) and not runs_once(stmt):
                known = from_zero(stmt) and not variables(stmt.end) & bound_in(nest)
                if outer or not known or any(isinstance(n, Load) for n in walk(stmt.end)):
                    raise self.error(f"{nest.var.name!r} runs over no sorted list of rows", nest)
                outer.append(stmt)
            elif not isinstance(stmt, For | Block):
                raise self.error(f"{nest.var.name!r} runs over no sorted list of rows", nest)
            stmt = stmt.body
        assert isinstance(stmt, For)
        stmts = [n for n in walk(nest) if isinstance(n, Stmt)]
        stores = [n for n in stmts if isinstance(n, Store)]
        update = as_reduction(stores[0]) if len(stores) == 1 else None
        simple = all(isinstance(n, For | Block | If | Let | Store) for n in stmts) and all(
            n.init is None and n.where is None for n in stmts if isinstance(n, Block)
        )
        if update is None or update.is_tuple or not simple or stores[0].mask is not None:
            raise self.error(f"{nest.var.name!r} does more than update one element", nest)
        column = self._column(nest, stmt, stores[0])
        return _List(nest, stmt, keys, tuple(outer), stores[0], update, column)

    def _column(self, nest: For, loop: For, store: Store) -> For | None:
        """Return the loop that picks the element in its row; None if a row has one element."""
        values = binding_values(nest)
        place = [substitute(i, values) for i in store.indices if i is not None]
        others = [i for i in place if not isinstance(plain(i), Load)]
        if len(store.indices) == 1:
            return None
        loops = [n for n in walk(loop.body) if isinstance(n, For) and n.var in others]
        if len(place) != 2 or len(loops) != 1:
            raise self.error("a row is more than a vector", nest)
        (column,) = loops
        if not from_zero(column) or variables(substitute(column.end, values)) & bound_in(nest):
            raise self.error(f"the range of {column.var.name!r} is not the same throughout", nest)
        return column

    def _start(self) -> tuple[For | None, Expr]:
        """Return the loop of the first nest over the elements of a row, and what they start as."""
        loops, block = chain(self.rows)
        store = block.body if isinstance(block, Block) else None
        if not isinstance(block, Block) or block.init or block.where or len(loops) > 2:
            raise self.error("the first nest does more than start each element", self.rows)
        if not isinstance(store, Store) or any(isinstance(n, Load) for n in walk(store.value)):
            raise self.error("the first nest does more than start each element", self.rows)
        value = substitute(store.value, block.values)
        place = [substitute(i, block.values) for i in store.indices if i is not None]
        if place != [x.var for x in loops] or variables(value) & {x.var for x in loops}:
            raise self.error("the first nest does not start all elements alike", self.rows)
        if store.buffer is not self.target or not all(map(from_zero, loops)):
            raise self.error("the first nest does not start what the others update", self.rows)
        return (loops[1] if len(loops) > 1 else None), value

    def _check(self, part: _List) -> None:
        """Raise unless *part* updates rows of the target that the first nest starts."""
        key, nest = part.keys, part.nest
        same = part.store.buffer is self.target and part.update.combiner == self.combiner
        reads = sum(memory_of(buffer) is memory_of(self.target) for buffer in read_by(nest))
        row = part.store.indices[0]
        at = None if row is None else plain(substitute(row, binding_values(nest)))
        own = isinstance(at, Load) and at.buffer is key.buffer
        if not (same and own) or reads != 1:
            raise self.error(f"{nest.var.name!r} updates or reads something else", nest)
        ends = [(self.rows.end, cast(key.axis.length, int64))]
        if (part.column is None) != (self.columns is None):
            raise self.error(f"the rows of {nest.var.name!r} have another shape", nest)
        if part.column is not None and self.columns is not None:
            ends.append((self.columns.end, part.column.end))
        if not all(expr_equal(a, b) for a, b in ends):
            raise self.error(f"the rows of {nest.var.name!r} have another shape", nest)
        if part.outer and not (self.is_apart(part) and key.axis.unique):
            why = "has several lists, which must be apart and have no row twice"
            raise self.error(f"{nest.var.name!r} {why}", nest)
        if part.outer and not _is_of(part.outer[0].var, part.begin({})):
            raise self.error(f"{nest.var.name!r} has no list of its own in each iteration", nest)
        if self.is_apart(part) and positions(key.axis) is None:
            raise self.error(f"no parameter says how many entries {key.axis.name} has", nest)
        width = self.columns.end if self.columns is not None else const(1)
        divides = isinstance(width, Const) and width.value % self.step.width == 0
        if self.step.width > 1 and not divides:
            raise self.error(f"a row is not a multiple of {self.step.width} elements", nest)

    def is_apart(self, part: _List) -> bool:
        """Whether each entry of *part* has a sum of its own."""
        return part.nest.var.name in self.step.apart

    # -- construction -------------------------------------------------------------------------

    @cached_property
    def arrays(self) -> Auxiliary:
        """The arrays that say where lists begin."""
        return Auxiliary.of(self.func)

    def build(self, names: Names) -> Stmt:
        """Return the nests, and the memory between them."""
        found = {part: self._place_of(names, part) for part in self.parts}
        sums = {part: self._sums(names, part) for part in self.parts if self.is_apart(part)}
        nests = [self._find(names, found), self._find_in_all(names, found)]
        nests += [self._entries(names, part, buffer) for part, buffer in sums.items()]
        stmt: Stmt = annotate_regions(seq(*filter(None, nests), self._rows(names, found, sums)))
        for buffer in (*(b for buffers in found.values() for b in buffers), *sums.values()):
            stmt = Alloc(buffer, stmt)
        return stmt

    def _place_of(self, names: Names, part: _List) -> tuple[Buffer, ...]:
        """Return the memory for where rows are in *part*.

        In one list this is where each row begins; in several, how many name it, and where.
        """
        axis, name, rows = part.keys.axis, part.loop.var.name, self.rows.end
        if not part.outer:
            dtype = axis.idtype if axis.unique else int64
            return (Buffer(names.unique(f"{name}_first"), None, (plus(rows, 1),), dtype),)
        count = Buffer(names.unique(f"{name}_count"), None, (rows,), axis.idtype)
        at = Buffer(names.unique(f"{name}_at"), None, (rows, part.trips), axis.idtype)
        return count, at

    def _sums(self, names: Names, part: _List) -> Buffer:
        """Return the memory for the sums of the entries of *part*."""
        entries = positions(part.keys.axis)
        assert entries is not None
        shape = (entries,) if self.columns is None else (entries, self.columns.end)
        return Buffer(names.unique(f"{self.target.name}_parts"), None, shape, self.dtype)

    def _find(self, names: Names, found: Found) -> Stmt | None:
        """Return the nest that finds where rows begin in each single list; None: there is none."""
        row = names.var(f"{self.rows.var.name}_first")
        stores = [
            Store(found[part][0], (row,), cast(part.search(row, {}), found[part][0].dtype))
            for part in self.parts
            if not part.outer
        ]
        end = plus(self.rows.end, 1)
        return For(row, ZERO, end, seq(*stores), span=self.rows.span) if stores else None

    def _find_in_all(self, names: Names, found: Found) -> Stmt | None:
        """Return the nest that finds each row in all lists where there are several; or None."""
        row = names.var(f"{self.rows.var.name}_found")
        stmts = [self._find_in(names, part, row, *found[part]) for part in self.parts if part.outer]
        return For(row, ZERO, self.rows.end, seq(*stmts), span=self.rows.span) if stmts else None

    def _find_in(self, names: Names, part: _List, row: Var, count: Buffer, at: Buffer) -> Stmt:
        """Return the loop that finds *row* in the lists of *part*: how often, and where."""
        (outer,) = part.outer
        which, place = (names.var(f"{outer.var.name}_{end}") for end in ("found", "place"))
        many = Buffer(names.unique(f"{count.name}_of"), None, (const(1),), int64, "local")
        so_far, here = Load(many, (ZERO,)), {outer.var: which}
        begin, key = part.begin(here), part.keys
        note = seq(
            Store(at, (row, so_far), cast(place, at.dtype)),
            Store(many, (ZERO,), plus(so_far, 1)),
        )
        same = BinOp("==", cast(Load(key.buffer, (which, binary("-", place, begin))), int64), row)
        body: Stmt = If(BinOp("<", place, plus(begin, part.size(here))), If(same, note))
        body = Let(place, plus(begin, part.search(row, here)), body)
        finish = Store(count, (row,), cast(so_far, count.dtype))
        loop = For(which, ZERO, part.trips, body, span=outer.span)
        return Alloc(many, seq(Store(many, (ZERO,), ZERO), loop, finish))

    def _entries(self, names: Names, part: _List, sums: Buffer) -> Stmt:
        """Return the nest that makes the sum of each entry of *part*."""
        entry = names.var(f"{part.loop.var.name}_entry")
        of = names.var(f"{part.nest.var.name}_of")
        at: dict[Var, Expr] = {x.var: of for x in part.outer}
        index = binary("-", entry, part.begin(at)) if part.outer else entry
        tile = _Tile(self, names, entry)

        work: Stmt = _Update(part, tile, {**at, part.loop.var: index}).rewrite(part.nest)
        neutral = identity(self.combiner, self.dtype)
        body = tile.nest(neutral, [work], lambda place: Load(sums, (entry, *place)))
        if part.outer:  # an array may have more entries than the lists
            inside = (BinOp("<=", ZERO, index), BinOp("<", index, part.size(at)))
            body = If(BinOp("and", *inside), body)
            holder = self.arrays.holder(part.keys.axis, entry, ZERO, part.trips)
            body = Let(of, BinOp("max", holder, ZERO), body)
            body = tile.block(body)
        return For(entry, ZERO, sums.shape[0], body, span=part.nest.span)

    def _rows(self, names: Names, found: Found, sums: dict[_List, Buffer]) -> Stmt:
        """Return the nest over rows, which adds up what the lists have for each."""
        row = self.rows.var
        tile = _Tile(self, names, row)
        works: list[Stmt] = []
        for parts in (self.parts[k : k + TOGETHER] for k in range(0, len(self.parts), TOGETHER)):
            reads: list[tuple[Var, Expr]] = []
            adds = [self._add(names, p, tile, found[p], sums.get(p), reads) for p in parts]
            stmt = seq(*adds)
            for var, value in reversed(reads):
                stmt = Let(var, value, stmt)
            works.append(stmt)
        body = tile.nest(self.start, works, lambda place: Load(self.target, (row, *place)))
        return For(row, ZERO, self.rows.end, body, span=self.rows.span)

    def _add(
        self,
        names: Names,
        part: _List,
        tile: _Tile,
        found: tuple[Buffer, ...],
        sums: Buffer | None,
        reads: list[tuple[Var, Expr]],
    ) -> Stmt:
        """Return the loop that adds to *tile* what *part* has for the row.

        What it has to know of the row first is added to *reads*: names, and what they stand for.
        """
        row = tile.row
        ends = [Load(found[0], (plus(row, k),)) for k in ((0,) if part.outer else (0, 1))]
        known = [names.var(f"{found[0].name}_{k}") for k in range(len(ends))]
        reads += zip(known, (cast(end, int64) for end in ends), strict=True)
        begin, end = (ZERO, *known)[-2:]
        if sums is None:
            return _Update(part, tile, {}, (begin, end)).rewrite(part.nest)
        entry = names.var(f"{part.loop.var.name}_sum")
        at: Expr = cast(Load(found[1], (row, entry)), int64) if part.outer else entry
        value = tile.add(lambda place: Load(sums, (at, *place)))
        return For(entry, begin, end, value, span=part.nest.span)


class _Tile:
    """Neighbouring elements of the row *row*, in a local buffer, and the loop over such tiles."""

    def __init__(self, gather: _Gather, names: Names, row: Var) -> None:
        self.gather, self.names, self.row = gather, names, row
        self.width = gather.step.width
        wish = f"{gather.target.name}_sum"
        self.sums = Buffer(names.unique(wish), None, (const(self.width),), gather.dtype, "local")
        columns = gather.columns
        is_rows = row is gather.rows.var
        self.var: Var | None = None
        if columns is not None:
            self.var = columns.var if is_rows else names.var(f"{columns.var.name}_entry")

    def place(self, lane: Expr) -> tuple[Expr, ...]:
        """Return the index of the element number *lane* in a row."""
        if self.var is None:
            return ()
        return (self.var if self.width == 1 else plus(binary("*", self.var, self.width), lane),)

    def lanes(self, body: Callable[[Var], Stmt]) -> For:
        """Return the loop over the elements of a tile."""
        lane = self.names.var(f"{self.var.name if self.var else self.row.name}_lane")
        return For(lane, ZERO, const(self.width), body(lane))

    def add(self, value: Callable[[tuple[Expr, ...]], Expr]) -> Stmt:
        """Return the loop that updates each element by *value* of its place."""

        def update(lane: Var) -> Stmt:
            both = Load(self.sums, (lane,)), value(self.place(lane))
            return Store(self.sums, (lane,), combine(self.gather.combiner, *both))

        return self.lanes(update)

    def nest(self, start: Expr, works: list[Stmt], at: Callable[[tuple[Expr, ...]], Load]) -> Stmt:
        """Return the nest over the tiles of a row, which does *works* and stores *at* its place."""
        first = cast(start, self.sums.dtype)

        def finish(lane: Var) -> Stmt:
            there = at(self.place(lane))
            value = cast(Load(self.sums, (lane,)), there.buffer.dtype)
            return Store(there.buffer, there.indices, value)

        clear = self.lanes(lambda lane: Store(self.sums, (lane,), first))
        body: Stmt = Alloc(self.sums, seq(clear, *works, self.lanes(finish)))
        if self.var is not None and (columns := self.gather.columns) is not None:
            tiles = simplify(binary("//", columns.end, self.width))
            body = For(self.var, ZERO, tiles, self.block(body), span=columns.span)
        return self.block(body)

    def block(self, body: Stmt) -> Block:
        """Return *body* as one block, which takes the condition of loops that are split."""
        return Block(self.names.unique(f"{self.row.name}_row"), (), (), (), None, body)


class _Update(Rewriter):
    """Copies the nest of a list so that it updates a tile, for a *run* of entries or one of them.

    *at*: what stands for the loops that are gone.
    """

    def __init__(
        self, part: _List, tile: _Tile, at: dict[Var, Expr], run: tuple[Expr, Expr] | None = None
    ) -> None:
        self.part, self.tile, self.at, self.run = part, tile, dict(at), run
        self.lane: Expr = ZERO

    def visit_Var(self, var: Var) -> Node:
        return self.at.get(var, var)

    def visit_For(self, loop: For) -> Node:
        if loop is self.part.column:
            return self.tile.lanes(lambda lane: self._element(loop, lane))
        if loop is self.part.loop and self.run is not None:
            return loop.replace(begin=self.run[0], end=self.run[1], body=self.rewrite(loop.body))
        return self.rewrite(loop.body) if loop.var in self.at else self.visit_Node(loop)

    def _element(self, loop: For, lane: Var) -> Stmt:
        """Return the body of *loop* for the element *lane* of the tile."""
        self.lane = lane
        (self.at[loop.var],) = self.tile.place(lane)
        body: Stmt = self.rewrite(loop.body)
        return body

    def visit_Block(self, block: Block) -> Node:
        """Let the loops over entries reduce."""
        new = self.visit_Node(block)
        assert isinstance(new, Block)
        over = {self.part.loop.var, *(x.var for x in self.part.outer)}
        kinds = ("R" if variables(i.value) & over else i.kind for i in block.iters)
        return new.replace(
            iters=tuple(i.replace(kind=kind) for i, kind in zip(new.iters, kinds, strict=True))
        )

    def visit_Store(self, store: Store) -> Node:
        sums, update = self.tile.sums, self.part.update
        value = cast(self.rewrite(update.value), sums.dtype)
        total = combine(update.combiner, Load(sums, (self.lane,)), value)
        return Store(sums, (self.lane,), total, span=store.span)
