"""Beside the passes for GPUs: does a place in memory tell which thread or block it belongs to?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spcomp.dtypes import int64
from spcomp.ir.analysis.exprs import ZERO, conjuncts, variables
from spcomp.ir.arith.simplify import injective
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Var
from spcomp.ir.node import Node
from spcomp.ir.rewrite import Rewriter
from spcomp.ir.structural import expr_equal

Ranges = Mapping[Var, tuple[Expr, Expr]]


def injective_under(
    place: Expr, index: Var, ranges: Ranges, conditions: Iterable[Expr] = ()
) -> bool:
    """Say whether two values of *index* are proved never to give the same *place*.

    *ranges*: those of all variables that may differ. *conditions*: which hold at the place; where
    one of them says that a part of the place is less than a bound, the part is taken as one number
    below the bound, which is to tell the index in its turn if it depends on it.
    """
    terms = [term for cond in conditions for term in conjuncts(cond)]
    return _injective(place, index, ranges, [cond for cond in terms if _bounds(cond, ranges)])


def _injective(place: Expr, index: Var, ranges: Ranges, conditions: list[Expr]) -> bool:
    if injective((place,), index, ranges):
        return True
    for number, cond in enumerate(conditions):
        assert isinstance(cond, BinOp)
        part, whole = cond.lhs, Var(f"part_{len(ranges)}", cond.lhs.dtype)
        swap = _Swap(part, whole)
        shorter = swap.rewrite(place)
        if shorter is place:
            continue
        others = [*conditions[:number], *conditions[number + 1 :]]
        more = {**ranges, whole: (ZERO, _positive_part(cond.rhs))}
        rest = [swap.rewrite(other) for other in others]
        if index not in variables(part):
            if _injective(shorter, index, more, rest):
                return True
        elif _injective(shorter, whole, more, rest) and _injective(part, index, ranges, others):
            return True
    return False


def _bounds(cond: Expr, ranges: Ranges) -> bool:
    """Whether *cond* says that something that is never negative is less than something else."""
    return isinstance(cond, BinOp) and cond.op == "<" and _is_positive(cond.lhs, ranges)


def _positive_part(bound: Expr) -> Expr:
    """Return *bound*, of which it is known that it is positive, without a maximum with 0."""
    if isinstance(bound, BinOp) and bound.op == "max":
        for value, other in ((bound.lhs, bound.rhs), (bound.rhs, bound.lhs)):
            if isinstance(other, Const) and other.value == 0:
                return value
    return bound


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
