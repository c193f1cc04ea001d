"""III to III: what is done once, one block does; no block needs what another one has written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, TypeAlias

from spcomp.dtypes import int64
from spcomp.errors import LoweringError
from spcomp.ir.access import Load, Search
from spcomp.ir.analysis.exprs import conjuncts, trip_count, variables
from spcomp.ir.analysis.grid import BLOCKS, THREADS
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import as_reduction
from spcomp.ir.arith.memory import reads_of, writes_of
from spcomp.ir.axis import AnyBuffer, memory_of
from spcomp.ir.expr import Expr, UnOp, Var, const
from spcomp.ir.node import Node
from spcomp.ir.program import FlatFunc
from spcomp.ir.rewrite import Rewriter, substitute
from spcomp.ir.stmt import Alloc, For, If, Let, Stmt, Store, While
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import below, statements, walk
from spcomp.passes.base import FuncPass, Stage
from spcomp.passes.grid.places import injective_under

_INDEX = {name: Var(name, int64) for name in (*BLOCKS, *THREADS)}  # one for all loops over it
Ranges: TypeAlias = dict[Var, tuple[Expr, Expr]]


@dataclass(frozen=True, slots=True)
class IndependentBlocks(FuncPass):
    """``for b in blocks: a[b] = 1; c[0] = 2  ->  ...; for one in blocks(1): c[0] = 2``.

    What a kernel does outside its loops over an index of blocks, its first block does, if it
    writes memory that others see. Blocks run in any order, and never wait for each other: raises
    LoweringError where one may touch what another one writes.
    """

    name: ClassVar[str] = "independent_blocks"
    takes: ClassVar[Stage] = Stage.FLAT
    gives: ClassVar[Stage] = Stage.FLAT

    def run_func(self, func: FlatFunc) -> FlatFunc:
        """Return *func* with stores of the first block."""
        loops = [n for n in statements(func.body) if isinstance(n, For)]
        used = {loop.thread for loop in loops if trip_count(loop) != 1}
        axes = tuple(axis for axis in BLOCKS if axis in used)
        if not axes:
            return func
        body = _OneBlock(axes, Names(func)).rewrite(func.body)
        for axis in axes:
            _check(body, axis)
        return func if body is func.body else func.replace(body=body)


class _OneBlock(Rewriter):
    """Lets the first block store what no loop over blocks stores."""

    def __init__(self, axes: tuple[str, ...], names: Names) -> None:
        self.axes, self.names = axes, names
        self.open: tuple[str, ...] = ()
        self.own: set[AnyBuffer] = set()  # what each block has for itself

    def visit_For(self, loop: For) -> Node:
        before = self.open
        self.open = (*before, loop.thread)
        new = self.visit_Node(loop)
        self.open = before
        return new

    def visit_Alloc(self, alloc: Alloc) -> Node:
        self.own.add(alloc.buffer)
        return self.visit_Node(alloc)

    def visit_Store(self, store: Store) -> Node:
        stmt: Stmt = store
        for axis in self.axes:
            if axis not in self.open and store.buffer not in self.own:
                var = self.names.var("one")
                stmt = For(var, const(0), const(1), stmt, "bound", axis, span=store.span)
        return stmt


@cache
def _variable(depth: int) -> Var:
    """Return the variable of all loops that are inside *depth* others."""
    return Var(f"depth_{depth}", int64)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an access is made, seen from one index of blocks.

    *loop*: the loop over this index that is around. *again*: whether that runs several times.
    *values*: of variables, in terms of such as are the same for equal loops;
    *ranges*: of these. *steady*: those that are bound inside *loop*. *conditions*: which hold.
    *own*: the buffers that each block has for itself; *inner*: that each iteration of *loop* has.
    """

    loop: For | None = None
    again: bool = False
    depth: int = 0
    values: tuple[tuple[Var, Expr], ...] = ()
    ranges: tuple[tuple[Var, tuple[Expr, Expr]], ...] = ()
    steady: frozenset[Var] = frozenset()
    conditions: tuple[Expr, ...] = ()
    own: frozenset[AnyBuffer] = frozenset()
    inner: frozenset[AnyBuffer] = frozenset()

    def of(self, value: Expr) -> Expr:
        """Return *value* in terms of variables that are the same for equal loops."""
        return substitute(value, dict(self.values))

    def inside(self, node: Node, axis: str) -> _Place:
        """Return the place inside *node*."""
        match node:
            case For(thread=thread) if thread in _INDEX:
                new = self._bound(node, _INDEX[thread])
                return replace(new, loop=node) if thread == axis else new
            case For():
                new = self._bound(node, _variable(self.depth))
                again = self.again or (self.loop is None and trip_count(node) not in (0, 1))
                return replace(new, depth=self.depth + 1, again=again)
            case While():
                return replace(self, again=self.again or self.loop is None)
            case Let():
                return replace(self, values=(*self.values, (node.var, self.of(node.value))))
            case Alloc() if self.loop is None:
                return replace(self, own=self.own | {node.buffer})
            case Alloc():
                return replace(self, inner=self.inner | {node.buffer})
        return self

    def _bound(self, loop: For, var: Var) -> _Place:
        ends = self.of(loop.begin), self.of(loop.end)
        steady = self.steady | {var} if self.loop is not None or loop.thread else self.steady
        values, ranges = (*self.values, (loop.var, var)), (*self.ranges, (var, ends))
        return replace(self, values=values, ranges=ranges, steady=steady)


@dataclass(frozen=True, slots=True)
class _Access:
    node: Load | Search | Store
    place: _Place

    @property
    def index(self) -> Expr | None:
        """Where in the buffer it is, if that is a single element."""
        index = None if isinstance(self.node, Search) else self.node.indices[0]
        return None if index is None or index.dtype.lanes > 1 else self.place.of(index)

    @property
    def is_first(self) -> bool:
        """Whether only the first block makes it."""
        return self.place.loop is not None and trip_count(self.place.loop) == 1

    @property
    def is_atomic(self) -> bool:
        """Whether it is an update that others may make at the same time."""
        return isinstance(self.node, Store) and self.node.atomic


def _accesses(node: Node, axis: str, place: _Place) -> Iterator[_Access]:
    """Yield the accesses in *node*, which is at *place*."""
    if isinstance(node, For) and trip_count(node) == 0:
        return
    if isinstance(node, (Load, Search, Store)) and node.buffer not in place.inner:
        yield _Access(node, place)
    if isinstance(node, If):
        cond = place.of(node.cond)
        yield from _accesses(node.cond, axis, place)
        for side, branch in ((cond, node.then), (UnOp("not", cond), node.otherwise)):
            if branch is not None:
                inner = replace(place, conditions=(*place.conditions, side))
                yield from _accesses(branch, axis, inner)
        return
    inner = place.inside(node, axis)
    for item in _parts(node):
        yield from _accesses(item, axis, inner if isinstance(item, Stmt) else place)


def _parts(node: Node) -> list[Node]:
    """Return the children of *node*; of an atomic update, without the element that it updates."""
    update = as_reduction(node) if isinstance(node, Store) and node.atomic else None
    if update is not None and isinstance(node, Store):
        return [part for part in (*node.indices, *update.values) if part is not None]
    return below(node)


def _check(body: Stmt, axis: str) -> None:
    """Raise LoweringError where a block of *axis* may touch what another one writes."""
    by_memory: dict[object, list[_Access]] = {}
    written = writes_of(body)
    for access in _accesses(body, axis, _Place()):
        by_memory.setdefault(memory_of(access.node.buffer), []).append(access)
    for accesses in by_memory.values():
        for write in (access for access in accesses if isinstance(access.node, Store)):
            other = next((x for x in accesses if _meet(write, x, axis, written)), None)
            if other is not None:
                raise LoweringError(
                    f"one block of {axis} may touch what another one writes to"
                    f" {write.node.buffer.name}",
                    other.node.span or write.node.span,
                    hint="blocks do not wait for each other: bind a loop that is around both, or"
                    " let a loop that is parallel inside of others run in order",
                )


def _meet(write: _Access, access: _Access, axis: str, written: set[object]) -> bool:
    """Whether a block may make *access* where another block makes *write*."""
    if write.place.loop is access.place.loop and not write.place.again:
        return False  # iterations are independent, and what is outside is each block's own
    if write.place.loop is None and write.node.buffer in write.place.own:
        return False
    if (write.is_first and access.is_first) or (write.is_atomic and access.is_atomic):
        return False
    return not _is_own(write, access, axis, written)


def _is_own(write: _Access, access: _Access, axis: str, written: set[object]) -> bool:
    """Whether no two blocks have the place that *write* and *access* have.

    *written*: memory whose content may differ between the two.
    """
    index, other = write.index, access.index
    if index is None or other is None:
        return False
    one, two = _Region.of(index, write.place), _Region.of(other, access.place)
    if _INDEX[axis] not in variables(index) or not expr_equal(one.index, two.index):
        return False
    alike = {x for x in one.ranges.keys() & two.ranges.keys() if one.has_range_of(x, two)}
    kept = [x for x in one.conditions if any(expr_equal(x, y) for y in two.conditions)]
    shared = [x for x in kept if _is_fixed(x, one, alike, written)]
    if not _is_fixed(one.index, one, alike, written):
        return False
    if len(shared) == len(one.conditions) == len(two.conditions) and not one.changes(shared):
        return True  # as in one iteration, whose blocks are independent
    return injective_under(
        one.index, _INDEX[axis], {x: one.ranges[x] for x in one.ranges if x in alike}, shared
    )


@dataclass(frozen=True, slots=True)
class _Region:
    """The places *index* for all values of variables in *ranges*, where *conditions* hold.

    Variables have the names of their order in these, so that those of several loops can be
    compared. *changing*: those of loops around all blocks, in whose iterations others may differ.
    """

    index: Expr
    conditions: tuple[Expr, ...]
    ranges: dict[Var, tuple[Expr, Expr]]
    changing: frozenset[Var]

    @classmethod
    def of(cls, index: Expr, place: _Place) -> _Region:
        """Return the region of *index*, which is used at *place*."""
        ends = dict(place.ranges)
        terms = tuple(term for cond in place.conditions for term in conjuncts(cond))
        found: dict[Var, None] = {}
        pending: list[Node] = [index, *terms]
        for expr in pending:  # which grows
            for var in walk(expr):
                if isinstance(var, Var) and var in ends and var not in found:
                    found[var] = None
                    pending += ends[var]
        inner = place.steady | {*_INDEX.values()}
        names = {
            v: v if v in _INDEX.values() else _named(k, inner=v in inner)
            for k, v in enumerate(found)
        }
        ranges = {
            names[x]: (substitute(ends[x][0], names), substitute(ends[x][1], names))
            for x in ends
            if x in found
        }
        changing = frozenset(names[x] for x in found if x not in inner)
        conditions = tuple(substitute(term, names) for term in terms)
        return cls(substitute(index, names), conditions, ranges, changing)

    def has_range_of(self, var: Var, other: _Region) -> bool:
        """Whether *var* has the same range in *other*."""
        return all(map(expr_equal, self.ranges[var], other.ranges[var]))

    def used(self, expr: Expr) -> list[Expr]:
        """Return *expr* and the ends of the ranges of what it uses, and what those use."""
        result, seen = [expr], set[Var]()
        for item in result:  # which grows
            new = (variables(item) & self.ranges.keys()) - seen
            seen |= new
            result += [end for var in new for end in self.ranges[var]]
        return result

    def changes(self, conditions: list[Expr]) -> bool:
        """Whether the index or *conditions* differ between iterations around all blocks."""
        return any(
            variables(x) & self.changing
            for expr in (self.index, *conditions)
            for x in self.used(expr)
        )


@cache
def _named(number: int, *, inner: bool) -> Var:
    return Var(f"{'inner' if inner else 'outer'}_{number}", int64)


def _is_fixed(expr: Expr, region: _Region, alike: set[Var], written: set[object]) -> bool:
    """Whether *expr* says the same in two regions where variables *alike* have the same range."""
    exprs = region.used(expr)
    known = all(variables(x) & region.ranges.keys() <= alike for x in exprs)
    return known and written.isdisjoint(reads_of(*exprs))
