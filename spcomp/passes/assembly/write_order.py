"""I to I, before assembly: whether coordinates are written in order, and inits of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from spcomp.errors import LoweringError
from spcomp.ir.access import Load
from spcomp.ir.analysis.positions import is_unit, limit
from spcomp.ir.arith.linear import expr_equal
from spcomp.ir.axis import AnyBuffer, Axis, Flatten, SparseBuffer, domain_axes, domain_width
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While, seq
from spcomp.ir.visitor import Walker, walk

Value: TypeAlias = int | float | bool


def in_order(func: CoordFunc, axes: AbstractSet[Axis]) -> bool:
    """Whether what *func* writes along *axes* is at ascending coordinates, one fiber at a time."""
    order = _Order(axes)
    order.visit(func.body)
    return order.ascends


def written_once(func: CoordFunc, axes: AbstractSet[Axis]) -> frozenset[Axis]:
    """Return those of *axes*, along which *func* writes in order, that each write is new to.

    That is, no coordinate is written twice, and none is read.
    """
    order = _Order(axes)
    order.visit(func.body)
    uses = [a for n in walk(func.body) if isinstance(n, (Load, Store)) for a in _axes(n)]
    return frozenset(axis for axis in order.fresh if uses.count(axis) == 1)


class _Order(Walker):
    """Compares the indices of stores with the variables of the iterations around them.

    *ascends*: whether they write in order; *fresh*: the axes with a store that writes no coordinate
    twice.
    """

    def __init__(self, axes: AbstractSet[Axis]) -> None:
        self.axes, self.ascends = axes, True
        self.fresh: set[Axis] = set()
        self.repeats = False  # there is a loop around besides iterations
        self.around: list[tuple[Var, bool, bool]] = []  # do coordinates ascend, are they unique
        self.single: set[Var] = set()  # those that take one value
        self.limits: dict[Var, Expr] = {}  # what each is less than

    def visit_SpIter(self, it: SpIter) -> None:
        outer = list(self.around)
        at = 0
        for domain in it.domains:
            width = domain_width(domain)
            if not isinstance(domain, Flatten):
                path = domain_axes(domain)
                ascends = all(axis.sorted for axis in path)
                unique = all(axis.unique for axis in path)
                own = it.vars[at : at + width]
                self.around += [(var, ascends, unique) for var in own]
                self.single |= set(own) if is_unit(path[0]) else set()
                self.limits |= {var: limit(it, var) for var in own}
            at += width
        self.visit(it.body)
        self.around = outer

    def visit_Store(self, store: Store) -> None:
        for axis in (a for a in _axes(store) if a in self.axes):
            above, last = store.indices[: len(axis.path()) - 1], store.indices[len(axis.path()) - 1]
            wanted = [*above, *digits(last, self.limits)]
            skipped = self.single.difference(wanted)  # loops of one step
            around = [own for own in self.around if own[0] not in skipped]
            first = around[: len(wanted)]
            same = [var for var, _, _ in first] == wanted
            self.ascends &= same and all(ascends for _, ascends, _ in first)
            if same and len(around) == len(wanted) and not self.repeats:
                self.fresh |= {axis} if all(unique for _, _, unique in first) else set()

    def visit_For(self, loop: For) -> None:
        self._repeat(loop)

    def visit_While(self, loop: While) -> None:
        self._repeat(loop)

    def _repeat(self, loop: For | While) -> None:
        outer, self.repeats = self.repeats, True
        self.visit_Node(loop)
        self.repeats = outer


def digits(index: Expr | None, limits: Mapping[Var, Expr]) -> list[Expr | None]:
    """Return *index* as the digits of a number, ``(a * n + b) * m + c`` as a, b, c.

    Each but the first has to be less than its base by *limits*, so that the number ascends where
    they do, one after the other. Else it is itself.
    """
    match index:
        case BinOp(op="+", lhs=BinOp(op="*", lhs=high, rhs=base), rhs=Var() as low) if (
            low in limits and expr_equal(base, limits[low])
        ):
            return [*digits(high, limits), low]
    return [index]


def without_inits(
    func: CoordFunc, axes: AbstractSet[Axis]
) -> tuple[CoordFunc, dict[AnyBuffer, Value]]:
    """Return *func* without inits of what lies along *axes*, and what these start with.

    Raises LoweringError unless that is one constant for each buffer.
    """
    taken = _TakeInits(axes)
    return func.replace(body=taken.rewrite(func.body)), taken.starts


class _TakeInits(Rewriter):
    """Takes the stores along *axes* out of inits."""

    def __init__(self, axes: AbstractSet[Axis]) -> None:
        self.axes = axes
        self.starts: dict[AnyBuffer, Value] = {}

    def visit_SpIter(self, it: SpIter) -> Node:
        kept: list[Stmt] = []
        for stmt in it.init.body if isinstance(it.init, Seq) else (it.init,):
            stores = [] if stmt is None else [n for n in walk(stmt) if isinstance(n, Store)]
            if stmt is not None and all(self.axes.isdisjoint(_axes(s)) for s in stores):
                kept.append(stmt)
            elif stmt is not None:
                self._take(it, stmt)
        return it.replace(init=seq(*kept) if kept else None, body=self.rewrite(it.body))

    def _take(self, it: SpIter, stmt: Stmt) -> None:
        value = stmt.value if isinstance(stmt, Store) else None
        while isinstance(value, Cast):
            value = value.value
        if not isinstance(stmt, Store) or not isinstance(value, Const):
            raise LoweringError(
                f"the init of {it.name!r} does not assign a constant to an assembled buffer",
                stmt.span or it.span,
                hint="write T.init() as C[i, j] = constant",
            )
        if self.starts.setdefault(stmt.buffer, value.value) != value.value:
            message = f"{stmt.buffer.name} starts with two values, and is assembled"
            raise LoweringError(message, stmt.span or it.span)


def refuse_late_conditions(func: CoordFunc, axes: AbstractSet[Axis]) -> None:
    """Raise if what is created depends on what is only known when all of it is created."""
    late = _late(func, axes)
    for node in walk(func.body):
        for part in _decisions(node, axes):
            for load in walk(part):
                if isinstance(load, Load) and load.buffer in late:
                    raise LoweringError(
                        f"which elements are assembled depends on {load.buffer.name}, a result",
                        load.span or node.span,
                        hint="compute it in a program of its own, run before",
                    )


def _late(func: CoordFunc, axes: AbstractSet[Axis]) -> set[AnyBuffer]:
    """The outputs, what is computed together with an assembled one, and what follows from them."""
    stores = [n for n in walk(func.body) if isinstance(n, Store)]
    late = {s.buffer for s in stores if s.buffer.data is not None}
    for it in (n for n in walk(func.body) if isinstance(n, SpIter)):
        inside = [n for n in walk(it.body) if isinstance(n, (Store, Alloc))]
        own = {n.buffer for n in inside if isinstance(n, Alloc)}
        written = {n.buffer for n in inside if isinstance(n, Store)} - own
        if any(not axes.isdisjoint(_axes(n)) for n in inside if isinstance(n, Store)):
            late |= written
    while True:
        more = {
            s.buffer
            for s in stores
            if any(isinstance(n, Load) and n.buffer in late for n in walk(s.value))
        }
        if more <= late:
            return late
        late |= more


def _decisions(node: Node, axes: AbstractSet[Axis]) -> Iterator[Expr]:
    """What decides, at *node*, which coordinates are written."""
    match node:
        case If(cond=cond) | While(cond=cond):
            yield cond
        case For(begin=begin, end=end):
            yield from (begin, end)
        case Let(value=value):
            yield value
        case Store(indices=indices) if not axes.isdisjoint(_axes(node)):
            yield from (i for i in indices if i is not None)


def _axes(access: Load | Store) -> tuple[Axis, ...]:
    return access.buffer.axes if isinstance(access.buffer, SparseBuffer) else ()
