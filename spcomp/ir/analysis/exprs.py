"""Beside the route: what expressions and statements contain, and how small ones are built."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from spcomp.ir.arith.linear import variables_in
from spcomp.ir.axis import AnyBuffer, SparseBuffer
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, Var, binary, cast, const
from spcomp.ir.node import Node
from spcomp.ir.position import Block, Merge
from spcomp.ir.stmt import For
from spcomp.ir.visitor import walk


def variables(node: Node) -> frozenset[Var]:
    """Return the variables used in *node*."""
    if isinstance(node, Expr):
        return variables_in(node)
    return frozenset(n for n in walk(node) if isinstance(n, Var))


def bound_by(node: Node) -> set[Var]:
    """Return the variables that *node* itself binds."""
    variables: set[Var] = set()
    for name in node.BINDERS:
        bound = getattr(node, name)
        variables.update(bound if isinstance(bound, tuple) else (bound,))
    if isinstance(node, Block):
        variables.update(item.var for item in node.iters)
    if isinstance(node, Merge):
        variables.update(cursor.pos for cursor in node.cursors)
    return variables


def may_fail(node: Node) -> bool:
    """Return whether evaluating *node* can fail the call: an integer divisor that may be zero."""
    return any(
        isinstance(n, BinOp)
        and n.op in ("//", "%")
        and n.dtype.is_integer
        and not (isinstance(n.rhs, Const) and n.rhs.value != 0)
        for n in walk(node)
    )


ZERO = const(0)


def from_zero(loop: For) -> bool:
    """Whether *loop* begins at 0."""
    return isinstance(loop.begin, Const) and loop.begin.value == 0


def trip_count(loop: For) -> int | None:
    """Return how often *loop* runs if both its ends are literals, else None."""
    begin, end = loop.begin, loop.end
    if not isinstance(begin, Const) or not isinstance(end, Const):
        return None
    return max(0, int(end.value) - int(begin.value))


def plus(a: Expr, b: Expr | int) -> Expr:
    """Return ``a + b``, leaving out zeros."""
    if isinstance(a, Const) and a.value == 0 and isinstance(b, Expr):
        return b
    if b == 0 or (isinstance(b, Const) and b.value == 0):
        return a
    return binary("+", a, b)


def times(a: Expr, b: Expr) -> Expr:
    """Return ``a * b``, leaving out ones and zeros."""
    for factor, other in ((a, b), (b, a)):
        if isinstance(factor, Const) and factor.value in (0, 1):
            return other if factor.value == 1 else ZERO
    return binary("*", a, b)


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """Return the conjunction of two guards, where None always holds."""
    if a is None or b is None:
        return b if a is None else a
    return BinOp("and", a, b)


def conjuncts(guard: Expr | None) -> list[Expr]:
    """Return the terms whose conjunction *guard* is; an empty list for None."""
    match guard:
        case None:
            return []
        case BinOp(op="and", lhs=lhs, rhs=rhs):
            return conjuncts(lhs) + conjuncts(rhs)
    return [guard]


def conjunction(terms: Iterable[Expr | None]) -> Expr | None:
    """Return the guard that holds where all *terms* do; None, which always holds, for none."""
    return reduce(both, terms, None)


def absolute(buffer: AnyBuffer, pos: Expr) -> tuple[Expr | None, ...]:
    """Return the indices that mean the absolute position *pos* in *buffer*."""
    above = buffer.axes[1:] if isinstance(buffer, SparseBuffer) else ()
    return (*(None for _ in above), pos)


def uncast(expr: Expr) -> Expr:
    """Return *expr* without the casts around it."""
    while isinstance(expr, Cast):
        expr = expr.value
    return expr


def guarded(guard: Expr | None, value: Expr, otherwise: Expr = ZERO) -> Expr:
    """Return *value* where *guard* holds, else *otherwise*; *value* is then not evaluated."""
    return value if guard is None else Select(guard, value, cast(otherwise, value.dtype))
