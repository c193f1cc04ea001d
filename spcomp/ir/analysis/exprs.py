"""Beside the route: what expressions and statements hold, and small expressions put together."""

from __future__ import annotations

from spcomp.ir.arith.linear import variables_in
from spcomp.ir.axis import AnyBuffer, SparseBuffer
from spcomp.ir.expr import BinOp, Const, Expr, Select, Var, binary, cast, const
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
    found: set[Var] = set()
    for name in node.BINDERS:
        bound = getattr(node, name)
        found.update(bound if isinstance(bound, tuple) else (bound,))
    if isinstance(node, Block):
        found.update(own.var for own in node.iters)
    if isinstance(node, Merge):
        found.update(cursor.pos for cursor in node.cursors)
    return found


def may_fail(node: Node) -> bool:
    """Return whether evaluating *node* can fail the call: an integer divisor that may be zero."""
    return any(
        isinstance(n, BinOp)
        and n.op in ("//", "%")
        and n.dtype.is_integer
        and not (isinstance(n.rhs, Const) and n.rhs.value != 0)
        for n in walk(node)
    )


def fingerprint(node: object) -> object:
    """Return a hashable value, equal for expressions that are spelled alike over the same names."""
    if isinstance(node, Var) or not isinstance(node, Node):
        return tuple(map(fingerprint, node)) if isinstance(node, tuple) else node
    if not isinstance(node, Expr):  # a buffer or an axis is itself
        return node
    fields = (fingerprint(getattr(node, name)) for name in node.FIELDS if name != "span")
    return (type(node), *fields)


ZERO = const(0)


def from_zero(loop: For) -> bool:
    """Whether *loop* begins at 0."""
    return isinstance(loop.begin, Const) and loop.begin.value == 0


def plus(a: Expr, b: Expr | int) -> Expr:
    """Return ``a + b``, leaving out zeros."""
    if isinstance(a, Const) and a.value == 0 and isinstance(b, Expr):
        return b
    if b == 0 or (isinstance(b, Const) and b.value == 0):
        return a
    return binary("+", a, b)


def both(a: Expr | None, b: Expr | None) -> Expr | None:
    """Return the conjunction of two guards, where None always holds."""
    if a is None or b is None:
        return b if a is None else a
    return BinOp("and", a, b)


def conjuncts(guard: Expr | None) -> list[Expr]:
    """Return the terms of which *guard* is the conjunction; none of None."""
    match guard:
        case None:
            return []
        case BinOp(op="and", lhs=lhs, rhs=rhs):
            return conjuncts(lhs) + conjuncts(rhs)
    return [guard]


def absolute(buffer: AnyBuffer, pos: Expr) -> tuple[Expr | None, ...]:
    """Return the indices that mean the absolute position *pos* in *buffer*."""
    above = buffer.axes[1:] if isinstance(buffer, SparseBuffer) else ()
    return (*(None for _ in above), pos)


def guarded(guard: Expr | None, value: Expr, otherwise: Expr = ZERO) -> Expr:
    """Return *value* where *guard* holds, else *otherwise*; *value* is then not evaluated."""
    return value if guard is None else Select(guard, value, cast(otherwise, value.dtype))
