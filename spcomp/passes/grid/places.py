"""Beside the passes for GPUs: does a place in memory tell which thread or block it belongs to?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from spcomp.dtypes import int64
from spcomp.ir.analysis.exprs import variables
from spcomp.ir.arith.simplify import injective
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Var, const
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.structural import expr_equal

Ranges = Mapping[Var, tuple[Expr, Expr]]


def tells(place: Expr, index: Var, ranges: Ranges, conditions: Iterable[Expr] = ()) -> bool:
    """Say whether two values of *index* are proved never to give the same *place*.

    *ranges*: those of all variables that may differ. *conditions*: which hold at the place; where
    one of them says that a part of the place is less than a bound, the part is taken as one number
    below the bound, which is to tell the index in its turn.
    """
    if injective((place,), index, ranges):
        return True
    for part, bound in _bounds(conditions):
        whole = Var("part", part.dtype)
        shorter = _Swap(part, whole).rewrite(place)
        known = index in variables(part) and _is_positive(part, ranges)
        if known and shorter is not place:
            more = {**ranges, whole: (const(0), bound)}
            if injective((shorter,), whole, more) and injective((part,), index, ranges):
                return True
    return False


def _bounds(conditions: Iterable[Expr]) -> Iterator[tuple[Expr, Expr]]:
    """Yield what *conditions* say to be less than what."""
    for cond in conditions:
        if isinstance(cond, BinOp) and cond.op == "and":
            yield from _bounds((cond.lhs, cond.rhs))
        elif isinstance(cond, BinOp) and cond.op == "<":
            yield cond.lhs, cond.rhs


def _is_positive(value: Expr, ranges: Ranges) -> bool:
    """Whether *value* is a sum of products of what is not negative."""
    match value:
        case Const(value=number):
            return number >= 0
        case Var():
            begin = ranges[value][0] if value in ranges else None
            return isinstance(begin, Const) and begin.value >= 0
        case Cast(value=inner):
            return value.dtype == int64 and _is_positive(inner, ranges)
        case BinOp(op="+" | "*", lhs=lhs, rhs=rhs):
            return _is_positive(lhs, ranges) and _is_positive(rhs, ranges)
    return False


class _Swap(Rewriter):
    """Puts the variable *new* in the place of the expression *old*."""

    def __init__(self, old: Expr, new: Var) -> None:
        self.old, self.new = old, new

    def visit(self, node: Node) -> Node:
        """Stop at the expression to replace."""
        if isinstance(node, Expr) and expr_equal(node, self.old):
            return self.new
        return super().visit(node)
