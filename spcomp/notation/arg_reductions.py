"""Under statements: argmax and argmin, the coordinate of the best value.

Where values may be computed twice, two reductions find it: of the best value, then of the least
coordinate that has it. Both run in vectors. A search in one pass has a branch for each value.
"""

from __future__ import annotations

from spcomp.dtypes import int64
from spcomp.ir.access import Load
from spcomp.ir.arith.bounds import dtype_range
from spcomp.ir.expr import BinOp, Call, Cast, Const, Expr, Select, UnOp, Var, const
from spcomp.ir.visitor import walk

NOWHERE = const(dtype_range(int64).high or 0, int64)  # behind all coordinates
_EXACT_CALLS = frozenset({"abs", "sqrt", "isnan", "floor", "ceil", "trunc"})


def repeats(value: Expr, *, exact: bool = True) -> bool:
    """Whether *value* has the same bits wherever it is computed: in a vector or alone.

    Not so for functions that are approximated, and for sums of products, which processors with fma
    may round once or twice. Unless floats are *exact*, computed as they are written, a value may be
    one sum or product.
    """
    nodes = [node for node in walk(value) if isinstance(node, Expr)]
    plain = (Var, Const, BinOp, UnOp, Cast, Call, Load, Select)
    if not all(isinstance(node, plain) for node in nodes):
        return False
    computes = any(isinstance(node, (BinOp, UnOp, Call)) for node in nodes)
    if computes and any(n.dtype.is_float and n.dtype.bits < 32 for n in nodes):
        return False
    inexact = sum(map(_rounds, nodes))
    if not exact and (inexact > 1 or any(isinstance(n, BinOp) and n.op == "/" for n in nodes)):
        return False
    calls = (node.func for node in nodes if isinstance(node, Call))
    return all(name in _EXACT_CALLS for name in calls) and not any(map(_contracts, nodes))


def _rounds(node: Expr) -> bool:
    arithmetic = isinstance(node, BinOp) and node.op in ("+", "-", "*", "/")
    return node.dtype.is_float and (arithmetic or (isinstance(node, Call) and node.func == "sqrt"))


def _contracts(node: Expr) -> bool:
    """Whether *node* is a sum of floats that an fma can be part of."""
    if not isinstance(node, BinOp) or node.op not in ("+", "-") or not node.dtype.is_float:
        return False
    return any(isinstance(n, BinOp) and n.op == "*" for n in walk(node))


def same(value: Expr, best: Expr) -> Expr:
    """Return whether *value* is as good as *best*: equal, or NaN as well."""
    equal: Expr = BinOp("==", value, best)
    if not value.dtype.is_float:
        return equal
    return BinOp("or", equal, BinOp("and", Call("isnan", (value,)), Call("isnan", (best,))))
