"""In position space: the step split_positions, which gives each group of elements its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, ClassVar

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import ZERO, plus
from spcomp.ir.analysis.fragments import LANES
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.positions import positions
from spcomp.ir.analysis.regions import annotate_regions
from spcomp.ir.axis import Axis, Buffer, SparseBuffer
from spcomp.ir.expr import BinOp, Expr, Var, binary, cast, const
from spcomp.ir.func import Func
from spcomp.ir.node import Node
from spcomp.ir.position import Block, BlockIter
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Stmt, Store, seq
from spcomp.ir.visitor import walk
from spcomp.schedule.legality.dependence import conflicts
from spcomp.schedule.nests.nests import find_loop, replace_stmt
from spcomp.schedule.nests.values import ceil_div
from spcomp.schedule.steps.base import Step
from spcomp.schedule.steps.sharing.hubs import Row

if TYPE_CHECKING:
    from spcomp.errors import Span


@dataclass(frozen=True, slots=True)
class SplitPositions(Step):
    """``for i: for j in row(i): s  ->  for c: for t: r = rows(c, t); for j in size: s(r[j])``.

    *inner* runs over the fiber of the row of *loop*. The elements of all rows, in order, are
    cut into groups of *size*, and these into parts, so that long rows are shared and short ones
    gathered. A part has up to *turns* groups that follow each other: all parts equally many,
    and fewer where there would be fewer than *parts*. Their number is a multiple of the largest
    power of two up to 32 that divides *parts*, so that blocks of threads are full. Where rows
    matter, a part finds that of its first element by a binary search, and goes on from row to
    row. If *listed* is not 0, a nest before does that, for so many elements at a time, and
    leaves the row of each in an array. Legal where every iteration of both loops is independent
    of the others, and a row does nothing but that for its elements. Source: position splits in
    TACO (Senanayake et al., OOPSLA 2020).
    """

    name: ClassVar[str] = "split_positions"
    loop: str
    inner: str
    size: int
    turns: int
    parts: int = field(default=1, kw_only=True)
    listed: int = field(default=0, kw_only=True)

    def plan(self, func: Func) -> _Elements:
        """Return how groups of elements find their rows."""
        loop, inner = (find_loop(func, name, self) for name in (self.loop, self.inner))
        return _Elements(self, func, loop, inner)

    def rewrite(self, func: Func, plan: _Elements) -> Func:
        """Return *func* with the loops over parts, groups and elements."""
        return replace_stmt(func, plan.loop, plan.build(Names(func)))


@dataclass(frozen=True, slots=True)
class _Groups:
    """Elements in groups of *size*: in *parts*, over which *part* runs, of *turns* groups each."""

    part: Var
    parts: Expr
    turn: Var
    turns: Expr
    size: Expr

    @property
    def first(self) -> Expr:
        """The number of the first group of a part."""
        return binary("*", self.part, self.turns)

    def offset(self, element: Expr) -> Expr:
        """Return how far behind the first of all an *element* of a group is."""
        return binary("+", binary("*", binary("+", self.first, self.turn), self.size), element)

    def nest(self, work: Stmt, span: Span | None) -> For:
        """Return the loops around the *work* on a group."""
        turns = For(self.turn, ZERO, self.turns, work, span=span)
        return For(self.part, ZERO, self.parts, turns, span=span)


class _Elements(Row):
    """A row whose elements are independent, and the nest that does the elements of all rows."""

    step: SplitPositions

    def __init__(self, step: SplitPositions, func: Func, loop: For, inner: For) -> None:
        super().__init__(step, func, loop, inner)
        if min(step.size, step.turns, step.parts) < 1 or step.listed < 0:
            raise self.error("size, turns and parts must be at least 1, listed at least 0")
        if clashes := conflicts(inner):
            raise self.error(str(clashes[0]))
        total = positions(self.axis)
        if total is None:
            raise self.error(f"no parameter says how many elements {self.axis.name} has")
        self.total = total

    def _check_body(self) -> None:
        """Raise unless a row does nothing but its loop over the elements of the fiber."""
        super()._check_body()
        body, self.around = self.loop.body, dict[Var, Expr]()
        while body is not self.inner:
            if not isinstance(body, Block):
                raise self.error("a row has other loops around that over its elements")
            self.around |= {v: substitute(x, self.around) for v, x in body.values.items()}
            body = body.body

    def build(self, names: Names) -> Stmt:
        """Return the nest over parts, groups and elements, after that which lists their rows."""
        name, step, element = self.loop.var.name, self.step, self.inner.var
        groups = self._groups(names, name, step.size, step.turns, step.parts)
        offset = groups.offset(element)
        shape, scope = (self.total, "global") if step.listed else (const(step.size), "local")
        rows = Buffer(names.unique(f"{name}_rows"), None, (shape,), self.axis.idtype, scope)
        own = Load(rows, (self._position(offset) if step.listed else element,))
        block, needs_row = self._element(names, cast(own, int64), offset)
        work = self.inner.replace(begin=ZERO, end=groups.size, body=block)
        if needs_row and not step.listed:
            return annotate_regions(self._walking(names, groups, rows, work))
        nest = groups.nest(work, self.loop.span)
        if not needs_row:
            return annotate_regions(nest)
        return Alloc(rows, annotate_regions(seq(self._listing(names, rows), nest)))

    def _groups(self, names: Names, name: str, size: int, turns: int, least: int) -> _Groups:
        """Return how elements are cut into groups of *size*; its loops begin with *name*."""
        groups = ceil_div(self.total, const(size))
        share: Expr = const(turns)
        parts: Expr = ceil_div(groups, share)
        if turns > 1:
            parts = BinOp("max", parts, BinOp("min", groups, const(least)))
            share = BinOp("min", share, ceil_div(groups, const(least)))
        parts = binary("*", parts, BinOp("min", self.loop.end, const(1)))  # no rows, no parts
        if (unit := gcd(least, LANES)) > 1:
            parts = binary("*", ceil_div(parts, const(unit)), const(unit))
        part, turn = (names.var(f"{name}_{which}") for which in ("c", "t"))
        return _Groups(part, parts, turn, share, const(size))

    def _position(self, offset: Expr) -> Expr:
        """Return where the element *offset* elements behind the first is in the array."""
        return binary("+", self.begin(ZERO), offset)

    def _listing(self, names: Names, rows: Buffer) -> Stmt:
        """Return the nest that writes the row of each element into *rows*."""
        name = rows.name
        groups = self._groups(names, name, self.step.listed, 1, 1)
        element, which, at = (names.var(n) for n in (f"{self.inner.var.name}_of", "vrow", "vat"))
        own = Buffer(names.unique(f"{name}_of"), None, (groups.size,), rows.dtype, "local")
        offset = groups.offset(element)
        row = BlockIter(which, self.loop.end, cast(Load(own, (element,)), int64))
        position = BlockIter(at, self.total, self._position(offset))
        store = Store(rows, (at,), cast(which, rows.dtype))
        where = self._is_stored(offset)
        block = Block(names.unique(name), (row, position), (), (), None, store, where)
        return self._walking(names, groups, own, For(element, ZERO, groups.size, block, "unroll"))

    def _walking(self, names: Names, groups: _Groups, rows: Buffer, work: For) -> Stmt:
        """Return the nest that puts the rows of each group in *rows* before *work* on it."""
        place = Buffer(names.unique(f"{self.loop.var.name}_at"), None, (const(2),), int64, "local")
        find = names.var(f"{work.var.name}_row")
        walk = self._walk(place, rows, groups.offset(find), find)
        search = For(find, ZERO, groups.size, walk, "unroll")
        first = plus(self.begin(ZERO), binary("*", groups.first, groups.size))
        begins = cast(first, self.axis.idtype)  # if there is an element
        start = self.arrays.holder(self.axis, begins, ZERO, self.loop.end)
        nest = groups.nest(Alloc(rows, seq(search, work)), self.loop.span)
        to_start = self._go_to(place, BinOp("max", start, ZERO))
        return nest.replace(body=Alloc(place, seq(*to_start, nest.body)))

    def _go_to(self, place: Buffer, row: Expr) -> tuple[Stmt, Stmt]:
        """Return the stores of *row*, and of where it ends, in *place*."""
        end = self.begin(plus(Load(place, (ZERO,)), 1))
        return Store(place, (ZERO,), row), Store(place, (const(1),), end)

    def _walk(self, place: Buffer, rows: Buffer, offset: Expr, find: Var) -> Stmt:
        """Return the statement that goes on from the row in *place* to that of an element."""
        at = self._position(offset)
        row, end = Load(place, (ZERO,)), Load(place, (const(1),))
        further = Search("gallop", self.indptr, plus(row, 1), self.loop.end, plus(at, 1))
        moved = seq(*self._go_to(place, binary("-", further, const(1))))
        return seq(If(BinOp("<=", end, at), moved), Store(rows, (find,), cast(row, rows.dtype)))

    def _is_stored(self, offset: Expr) -> Expr:
        """Return whether there is an element *offset* elements behind the first."""
        return BinOp("<", offset, binary("-", self.begin(self.loop.end), self.begin(ZERO)))

    def _element(self, names: Names, row: Expr, offset: Expr) -> tuple[Block, bool]:
        """Return the block that does the element *offset* elements behind the first.

        And whether it has to know the *row*.
        """
        outer = next((n for n in walk(self.loop.body) if isinstance(n, Block)), None)
        inside = any(node is outer for node in walk(self.inner.body))
        name = names.unique("elements") if outer is None or inside else outer.name
        which = names.var(f"v{self.loop.var.name}")
        at = names.var(f"v{self.loop.var.name}_{self.inner.var.name}")
        position, where = BlockIter(at, self.total, self._position(offset)), self._is_stored(offset)
        body = _AtPosition(self, which, at).rewrite(self.inner.body)
        attrs = outer.attrs if outer is not None else ()
        needs_row = any(node is which for node in walk(body))
        iters = (BlockIter(which, self.loop.end, row), position) if needs_row else (position,)
        return Block(name, iters, (), (), None, body, where, attrs), needs_row


class _AtPosition(Rewriter):
    """Turns the body of the loop over a fiber into that of the element *at* of the row *which*."""

    def __init__(self, nest: _Elements, which: Var, at: Var) -> None:
        self.row, self.element, self.axis = nest.loop.var, nest.inner.var, nest.axis
        self.values = dict(nest.around)
        relative = binary("-", at, nest.begin(which))
        self.names: dict[Var, Expr] = {self.row: which, self.element: relative}
        self.at = at

    def visit_Var(self, var: Var) -> Node:
        """Return what the variable stands for."""
        value = self.values.get(var, var)
        return substitute(value, self.names)

    def visit_Block(self, block: Block) -> Node:
        """Leave out the iters that are the row, or the position in it."""
        own = self.row, self.element
        values = {i.var: substitute(i.value, self.values) for i in block.iters}
        self.values |= {var: value for var, value in values.items() if value in own}
        iters = tuple(i for i in block.iters if values[i.var] not in own)
        return self.visit_Node(block.replace(iters=iters))

    def visit_Load(self, load: Load) -> Node:
        """Read the element at its position in the array."""
        return self.visit_Node(load.replace(indices=self._indices(load.buffer, load.indices)))

    def visit_Store(self, store: Store) -> Node:
        """Write the element at its position in the array."""
        return self.visit_Node(store.replace(indices=self._indices(store.buffer, store.indices)))

    def _indices(self, buffer: object, indices: tuple[Expr | None, ...]) -> tuple[Expr | None, ...]:
        """Return *indices* with an absolute position in place of the row and that in the row."""
        axes: tuple[Axis, ...] = buffer.axes if isinstance(buffer, SparseBuffer) else ()
        for k, axis in enumerate(axes):
            pair = indices[k - 1 : k + 1] if k and axis.indptr is self.axis.indptr else ()
            known = [i if i is None else substitute(i, self.values) for i in pair]
            if known == [self.row, self.element]:
                return (*indices[: k - 1], None, cast(self.at, int64), *indices[k + 1 :])
        return indices
