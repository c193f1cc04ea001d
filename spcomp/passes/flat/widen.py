"""III to III: what the body of a vectorized loop is for a vector of its iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from spcomp.dtypes import DType, bool_, int32, int64
from spcomp.ir.access import Load
from spcomp.ir.analysis.exprs import ZERO, from_zero, variables
from spcomp.ir.analysis.names import Names
from spcomp.ir.analysis.reduction import EAGER, Combiner, identity
from spcomp.ir.arith.bounds import bounds_of
from spcomp.ir.arith.simplify import Interval, simplify
from spcomp.ir.axis import Buffer
from spcomp.ir.expr import (
    BinOp,
    BinOpKind,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Ramp,
    Reduce,
    Select,
    Var,
    binary,
    cast,
    const,
)
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.stmt import For, If, Let, Stmt, Store
from spcomp.ir.visitor import walk

Bounds: TypeAlias = Mapping[Var, Interval]


def cast_lanes(value: Expr, dtype: DType) -> Expr:
    """Return *value* cast to elements of *dtype*, with the same lanes."""
    return cast(value, dtype.with_lanes(value.dtype.lanes))


def wide(value: Expr, lanes: int) -> Expr:
    """Return *value* in *lanes* lanes: a number is the same in all."""
    return value if value.dtype.lanes == lanes else Broadcast(value, lanes)


class Widen(Rewriter):
    """Replaces a scalar index by the vector of *lanes* indices from *base* on."""

    def __init__(
        self,
        loop: For,
        base: Expr,
        lanes: int,
        bounds: Bounds | None = None,
        mask: Expr | None = None,
    ) -> None:
        self.bounds: Bounds = bounds or {}
        self.loop, self.var, self.end = loop, loop.var, loop.end
        self.base, self.lanes, self.mask = base, lanes, mask

    def vector(self) -> Stmt | None:
        """Return the body of the loop for the vector; None if no lane of it runs."""
        body = self.loop.body
        if isinstance(body, If):
            holds = None
            if isinstance(self.base, Const):
                first = int(self.base.value)
                holds = _holds(self.loop, first, first + self.lanes - 1, self.bounds)
            if holds is False:
                return None
            if holds is None:
                self.mask = wide(self.rewrite(body.cond), self.lanes)
                if self._may_miss(body):
                    return If(Reduce("max", self.mask), self.rewrite(body.then))
            body = body.then
        return self.rewrite(body)

    def _may_miss(self, body: If) -> bool:
        """Whether elements that *body* reads for all lanes may only exist if a lane runs."""
        loads = [variables(n) for n in walk(body.then) if isinstance(n, Load)]
        return any(self.var not in names and names & variables(body.cond) for names in loads)

    def visit_Load(self, load: Load) -> Node:
        """Return the load of the lanes that run."""
        new = self.visit_Node(load)
        assert isinstance(new, Load)
        if new is load or self._is_tile(load):
            return new
        return new.replace(mask=self.mask)

    def _is_tile(self, access: Load | Store) -> bool:
        """Whether every lane of *access* lies in a local buffer, so that none needs a mask."""
        buffer = access.buffer
        if buffer.data is not None or not isinstance(buffer, Buffer):
            return False
        (size,), (index,) = buffer.shape, access.indices
        if index is self.var:
            return _same(size, self.end)
        if index is None or buffer.scope != "local":
            return False
        least = bounds_of(size).low
        places = bounds_of(index, self.bounds)  # in all trips of the loop, which lanes do not pass
        return least is not None and places in Interval(0, least - 1)

    def visit_Var(self, var: Var) -> Node:
        """Return the indices of the lanes for that of the loop."""
        if var is not self.var:
            return var
        return Ramp(self.base, 1, self.lanes) if self.lanes > 1 else self.base

    def visit_BinOp(self, op: BinOp) -> Node:
        """Return the operation on vectors, as a ramp if it is one."""
        lhs, rhs = self.rewrite(op.lhs), self.rewrite(op.rhs)
        if lhs is op.lhs and rhs is op.rhs:
            return op
        if (ramp := _ramp(op.op, lhs, rhs)) is not None:
            return ramp
        return op.replace(lhs=wide(lhs, self.lanes), rhs=wide(rhs, self.lanes))

    def visit_Cast(self, node: Cast) -> Node:
        """Return the conversion of all lanes."""
        value = self.rewrite(node.value)
        if value is node.value:
            return node
        if isinstance(value, Ramp) and node.type == int64:
            return Ramp(cast(value.base, int64), value.stride, value.lanes)
        return Cast(value, node.type.with_lanes(self.lanes), span=node.span)

    def visit_Call(self, call: Call) -> Node:
        """Return the call for all lanes."""
        args = tuple(self.rewrite(a) for a in call.args)
        if all(a is b for a, b in zip(args, call.args, strict=True)):
            return call
        return call.replace(args=tuple(wide(a, self.lanes) for a in args))

    def visit_Select(self, select: Select) -> Node:
        """Return the choice in each lane, or one for all."""
        parts = [self.rewrite(p) for p in (select.cond, select.then, select.otherwise)]
        if parts == [select.cond, select.then, select.otherwise]:
            return select
        cond, then, otherwise = (wide(p, self.lanes) for p in parts)
        if parts[0] is select.cond:  # a scalar for all lanes: only one side is evaluated
            cond = select.cond
        return Select(cond, then, otherwise, span=select.span)

    def visit_Store(self, store: Store) -> Node:
        """Return the store of the lanes that run."""
        indices = tuple(wide(self.rewrite(i), self.lanes) for i in store.indices if i is not None)
        value = wide(self.rewrite(store.value), self.lanes)
        if self.mask is not None and self._is_tile(store):  # blended, so that it stays in registers
            value = Select(self.mask, value, Load(store.buffer, indices))
            return store.replace(indices=indices, value=value)
        return store.replace(indices=indices, value=value, mask=self.mask)


class LastLanes(Widen):
    """Runs the last iterations of *loop*, fewer than *lanes*, as some lanes of a vector.

    Its reads are bound to variables, so that they are vector loads under the mask, not loads of
    each lane in one side of a select.
    """

    def __init__(self, loop: For, lanes: int, names: Names) -> None:
        self.names, self.runs = names, names.var(f"{loop.var.name}_runs", bool_.with_lanes(lanes))
        super().__init__(loop, loop.begin, lanes, mask=self.runs)

    def reduce(
        self, value: Expr, acc: Buffer, op: Combiner, inside: Callable[[Stmt], Stmt]
    ) -> Stmt:
        """Return the statement that combines *value*, in the lanes that run, with *acc*.

        *inside* puts a statement into the loops around *value*.
        """
        at = (Ramp(ZERO, 1, self.lanes),)
        terms = wide(cast_lanes(self.rewrite(value), acc.dtype), self.lanes)
        term = self.names.var(f"{self.var.name}_term", terms.dtype)
        masked = Select(self.runs, term, Broadcast(identity(op, acc.dtype), self.lanes))
        stmt = Store(acc, at, BinOp(EAGER.get(op, op), Load(acc, at), masked))
        count = cast(binary("max", binary("-", self.end, self.base), 0), int32)
        runs = BinOp("<", Ramp(const(0, int32), 1, self.lanes), Broadcast(count, self.lanes))
        return Let(self.runs, runs, inside(Let(term, terms, stmt)))


def _same(a: Expr, b: Expr) -> bool:
    return isinstance(a, Const) and isinstance(b, Const) and a.value == b.value


def _ramp(op: BinOpKind, lhs: Expr, rhs: Expr) -> Ramp | None:
    """Return ``lhs op rhs`` as a ramp; None if it is not one."""
    match op, lhs, rhs:
        case (("+" | "-"), Ramp(), _) if rhs.dtype.lanes == 1:
            return lhs.replace(base=binary(op, lhs.base, rhs))
        case "+", _, Ramp() if lhs.dtype.lanes == 1:
            return rhs.replace(base=binary("+", lhs, rhs.base))
        case "*", Ramp(), Const(value=int(factor)):
            return Ramp(binary("*", lhs.base, rhs), lhs.stride * factor, lhs.lanes)
        case "*", Const(value=int(factor)), Ramp():
            return Ramp(binary("*", lhs, rhs.base), rhs.stride * factor, rhs.lanes)
    return None


def pieces(loop: For, lanes: int, most: int, bounds: Bounds) -> list[tuple[int, int]] | None:
    """Return the starts and widths of vectors for a masked loop of few constant trips.

    None for any other loop, and for one of more than *most* vectors.

    If the mask is known to hold only for the first lanes of a vector, it is shortened to these if
    they are a power of two, and split into powers of two if it writes to memory: masked loads are
    fast, masked stores slow.
    """
    if not isinstance(loop.body, If) or not from_zero(loop) or not isinstance(loop.end, Const):
        return None
    if loop.end.value % lanes or loop.end.value > most * lanes:
        return None
    pieces: list[tuple[int, int]] = []
    for at in range(0, int(loop.end.value), lanes):
        count = _active_lanes(loop, at, lanes, bounds)
        if count == lanes or not (count.bit_count() == 1 or _writes(loop.body)):
            pieces.append((at, lanes))
            continue
        for width in (1 << bit for bit in reversed(range(count.bit_length()))):
            if count & width:
                pieces.append((at, width))
                at += width
    return pieces


def _active_lanes(loop: For, at: int, lanes: int, bounds: Bounds) -> int:
    """Return the number of first lanes for which alone the condition holds; all if not known."""
    if _holds(loop, at, at + lanes - 1, bounds):
        return lanes
    for lane in range(lanes):
        if not (holds := _holds(loop, at + lane, at + lane, bounds)):
            never = holds is False and _holds(loop, at + lane, at + lanes - 1, bounds) is False
            return lane if never else lanes
    return lanes


def _holds(loop: For, first: int, last: int, bounds: Bounds) -> bool | None:
    """Whether the condition around the body holds for ``first..last``; None if not known."""
    assert isinstance(loop.body, If)
    cond = simplify(loop.body.cond, {**bounds, loop.var: Interval(first, last)})
    return bool(cond.value) if isinstance(cond, Const) else None


def _writes(body: Stmt) -> bool:
    """Whether *body* stores to the memory of a parameter."""
    return any(isinstance(n, Store) and n.buffer.data is not None for n in walk(body))
