"""I to I, before assembly: whether coordinates are written in order, and inits of results."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from spcomp.errors import LoweringError
from spcomp.ir.axis import AnyBuffer, Axis, Flatten, SparseBuffer, domain_axes, domain_width
from spcomp.ir.coordinate import CoordFunc, SpIter
from spcomp.ir.expr import Cast, Const, Expr, Load, Var
from spcomp.ir.node import Node
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While, seq
from spcomp.ir.visitor import Rewriter, Walker, walk

Value: TypeAlias = int | float | bool


def in_order(func: CoordFunc, axes: AbstractSet[Axis]) -> bool:
    """Whether what *func* writes along *axes* is at ascending coordinates, one fiber at a time."""
    order = _Order(axes)
    order.visit(func.body)
    return order.ascends


class _Order(Walker):
    """Compares the indices of stores with the variables of the iterations around them."""

    def __init__(self, axes: AbstractSet[Axis]) -> None:
        self.axes, self.ascends = axes, True
        self.around: list[tuple[Var, bool]] = []  # and whether its coordinates ascend

    def visit_SpIter(self, it: SpIter) -> None:
        outer = list(self.around)
        at = 0
        for domain in it.domains:
            width = domain_width(domain)
            if not isinstance(domain, Flatten):
                ascends = all(axis.sorted for axis in domain_axes(domain))
                self.around += [(var, ascends) for var in it.vars[at : at + width]]
            at += width
        self.visit(it.body)
        self.around = outer

    def visit_Store(self, store: Store) -> None:
        for axis in (a for a in _axes(store) if a in self.axes):
            deep = len(axis.path())
            first = self.around[:deep]
            same = [var for var, _ in first] == list(store.indices[:deep])
            self.ascends &= same and all(ascends for _, ascends in first)


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


def _axes(store: Store) -> tuple[Axis, ...]:
    return store.buffer.axes if isinstance(store.buffer, SparseBuffer) else ()
