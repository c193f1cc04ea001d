"""I to I, before assembly: whether coordinates are written in order, and inits of results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from spcomp.dtypes import wrap
from spcomp.errors import LoweringError
from spcomp.ir.access import Load
from spcomp.ir.analysis.positions import is_unit, upper_bound
from spcomp.ir.axis import AnyBuffer, Axis, Flatten, SparseBuffer, domain_axes, domain_width
from spcomp.ir.coordinate import SpIter
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Var, cast, const
from spcomp.ir.node import Node
from spcomp.ir.program import CoordFunc
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, While, seq
from spcomp.ir.structural import expr_equal
from spcomp.ir.visitor import Walker, walk

Value: TypeAlias = int | float | bool


def in_order(func: CoordFunc, axes: AbstractSet[Axis]) -> bool:
    """Whether *func* writes along *axes* at ascending coordinates, one fiber at a time."""
    order = _Order(axes)
    order.visit(func.body)
    return order.ascends


def written_once(func: CoordFunc, axes: AbstractSet[Axis]) -> frozenset[Axis]:
    """Return the *axes* where every write of *func* is at a new coordinate.

    *func* writes in order along *axes*. No coordinate of a returned one is written twice, or read.
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
        self.repeats = False  # whether there is a loop around besides iterations
        self.around: list[tuple[Var, bool, bool]] = []  # do coordinates ascend, are they unique
        self.single: set[Var] = set()  # variables that take only one value
        self.limits: dict[Var, Expr] = {}  # exclusive upper bounds

    def visit_SpIter(self, it: SpIter) -> None:
        outer = list(self.around)
        at = 0
        for domain in it.domains:
            width = domain_width(domain)
            if not isinstance(domain, Flatten):
                path = domain_axes(domain)
                ascends = all(axis.sorted for axis in path)
                unique = all(axis.unique for axis in path)
                variables = it.vars[at : at + width]
                self.around += [(var, ascends, unique) for var in variables]
                self.single |= set(variables) if is_unit(path[0]) else set()
                self.limits |= {var: upper_bound(it, var) for var in variables}
            at += width
        self.visit(it.body)
        self.around = outer

    def visit_Store(self, store: Store) -> None:
        for axis in (a for a in _axes(store) if a in self.axes):
            above, last = store.indices[: len(axis.path()) - 1], store.indices[len(axis.path()) - 1]
            expected = [*above, *digits(last, self.limits)]
            unit_vars = self.single.difference(expected)  # loops of one step
            around = [entry for entry in self.around if entry[0] not in unit_vars]
            first = around[: len(expected)]
            same = [var for var, _, _ in first] == expected
            self.ascends &= same and all(ascends for _, ascends, _ in first)
            if same and len(around) == len(expected) and not self.repeats:
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
    """Return *index* as the digits of a number: ``(a * n + b) * m + c`` as a, b, c.

    *limits* must show that each digit but the first is less than its base, so that the number
    ascends where the digits do, in lexicographic order. Otherwise *index* is the only digit.
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
    """Return *func* without inits of buffers along *axes*, and the initial values of these.

    Raises LoweringError unless that is one constant for each buffer.
    """
    rewriter = _ExtractInits(axes)
    return func.replace(body=rewriter.rewrite(func.body)), rewriter.starts


class _ExtractInits(Rewriter):
    """Takes the stores along *axes* out of inits, and records their values in *starts*."""

    def __init__(self, axes: AbstractSet[Axis]) -> None:
        self.axes = axes
        self.starts: dict[AnyBuffer, Value] = {}

    def visit_SpIter(self, it: SpIter) -> Node:
        others: list[Stmt] = []
        for stmt in it.init.body if isinstance(it.init, Seq) else (it.init,):
            stores = [] if stmt is None else [n for n in walk(stmt) if isinstance(n, Store)]
            if stmt is not None and all(self.axes.isdisjoint(_axes(s)) for s in stores):
                others.append(stmt)
            elif stmt is not None:
                self._extract(it, stmt)
        return it.replace(init=seq(*others) if others else None, body=self.rewrite(it.body))

    def _extract(self, it: SpIter, stmt: Stmt) -> None:
        value = _literal(stmt.value) if isinstance(stmt, Store) else None
        if not isinstance(stmt, Store) or value is None:
            raise LoweringError(
                f"the init of {it.name!r} does not assign a constant to an assembled buffer",
                stmt.span or it.span,
                hint="write T.init() as C[i, j] = constant",
            )
        if self.starts.setdefault(stmt.buffer, value.value) != value.value:
            message = f"{stmt.buffer.name} starts with two values, and is assembled"
            raise LoweringError(message, stmt.span or it.span)


def _literal(value: Expr) -> Const | None:
    """Return *value* as a literal, if it is one that is cast; what its type cannot hold is none."""
    if isinstance(value, Const):
        return value
    if not isinstance(value, Cast) or (number := _literal(value.value)) is None:
        return None
    if number.dtype.is_float and value.dtype.is_integer:
        if not math.isfinite(number.value):
            return None
        whole = const(int(number.value), value.dtype)
        return whole if wrap(int(number.value), value.dtype) == whole.value else None
    converted = cast(number, value.dtype)
    return converted if isinstance(converted, Const) else None


def refuse_late_conditions(func: CoordFunc, axes: AbstractSet[Axis]) -> None:
    """Raise if which elements are created depends on values that are only known afterwards."""
    late_buffers = _late_buffers(func, axes)
    for node in walk(func.body):
        for part in _decisions(node, axes):
            for load in walk(part):
                if isinstance(load, Load) and load.buffer in late_buffers:
                    raise LoweringError(
                        f"which elements are assembled depends on {load.buffer.name}, a result",
                        load.span or node.span,
                        hint="compute it in a program of its own, run before",
                    )


def _late_buffers(func: CoordFunc, axes: AbstractSet[Axis]) -> set[AnyBuffer]:
    """Return the outputs, buffers computed with an assembled one, and all that depend on them."""
    stores = [n for n in walk(func.body) if isinstance(n, Store)]
    buffers = {s.buffer for s in stores if s.buffer.data is not None}
    for it in (n for n in walk(func.body) if isinstance(n, SpIter)):
        inside = [n for n in walk(it.body) if isinstance(n, (Store, Alloc))]
        local = {n.buffer for n in inside if isinstance(n, Alloc)}
        written = {n.buffer for n in inside if isinstance(n, Store)} - local
        if any(not axes.isdisjoint(_axes(n)) for n in inside if isinstance(n, Store)):
            buffers |= written
    while True:
        more = {
            s.buffer
            for s in stores
            if any(isinstance(n, Load) and n.buffer in buffers for n in walk(s.value))
        }
        if more <= buffers:
            return buffers
        buffers |= more


def _decisions(node: Node, axes: AbstractSet[Axis]) -> Iterator[Expr]:
    """Yield the expressions of *node* that decide which coordinates are written."""
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
