"""Under adjoints: the gradient of an expression of coordinate IR, down to the elements it reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from typing import cast as typed

from spcomp.dtypes import DType, bool_
from spcomp.ir.access import Load
from spcomp.ir.analysis.derivatives import FLAT, RULES, power
from spcomp.ir.axis import AnyBuffer
from spcomp.ir.expr import (
    COMPARISONS,
    BinOp,
    BinOpKind,
    Call,
    Cast,
    Const,
    Expr,
    Select,
    UnOp,
    binary,
    cast,
    const,
)
from spcomp.ir.structural import expr_equal

_NAMES = {"min": "minimum", "max": "maximum"}
_OPS = {
    "__add__": "+",
    "__sub__": "-",
    "__mul__": "*",
    "__truediv__": "/",
    "__floordiv__": "//",
    "__gt__": ">",
    "__ge__": ">=",
    "__lt__": "<",
    "__eq__": "==",
    "__and__": "and",
}


class Term:
    """An expression that takes Python's operators, as rules of derivatives write them."""

    __slots__ = ("expr",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __neg__(self) -> Term:
        return Term(UnOp("-", self.expr, span=self.expr.span))

    def __rsub__(self, other: float) -> Term:
        return Term(binary("-", const(other, self.expr.dtype), self.expr))

    def __rmul__(self, other: float) -> Term:
        return Term(binary("*", const(other, self.expr.dtype), self.expr))


def _operator(op: BinOpKind) -> Any:
    def apply(self: Term, other: Any) -> Term:
        return Term(binary(op, self.expr, expr_of(other, self.expr.dtype)))

    return apply


for _name, _op in _OPS.items():
    setattr(Term, _name, _operator(typed("BinOpKind", _op)))


def expr_of(value: Any, dtype: DType) -> Expr:
    """Return the expression of *value*, a Term, or a number of *dtype*."""
    return value.expr if isinstance(value, Term) else const(value, dtype)


class Functions:
    """The functions of coordinate IR by name, on Terms."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: Term(_call(name, args))


def _call(name: str, args: tuple[Any, ...]) -> Expr:
    dtype = next(arg.expr.dtype for arg in reversed(args) if isinstance(arg, Term))
    exprs = [expr_of(arg, dtype) for arg in args]
    if name == "where":
        wide = binary("+", exprs[1], exprs[2]).dtype
        return Select(cast(exprs[0], bool_), cast(exprs[1], wide), cast(exprs[2], wide))
    return Call(name, tuple(exprs), span=exprs[0].span)


def partials(
    value: Expr, g: Expr, active: Collection[AnyBuffer], found: list[tuple[Load, Expr]]
) -> None:
    """Add to *found* the gradient of each element of *active* buffers that *value* reads.

    *g*: the gradient of *value*. Elements at equal indices get one sum.
    """
    if not is_active(value, active):
        return
    if isinstance(value, Load):
        for at, (load, sum_) in enumerate(found):
            if expr_equal(load, value):
                found[at] = load, binary("+", sum_, g)
                return
        found.append((value, g))
        return
    for part, grad in _down(value, g):
        if grad is not None and is_active(part, active):
            partials(part, grad, active, found)


def _down(value: Expr, g: Expr) -> list[tuple[Expr, Expr | None]]:
    """Return the parts of *value* with their gradients."""
    functions, term = Functions(), Term(g)
    match value:
        case Cast(value=part):
            return [(part, cast(g, part.dtype))]
        case Select(cond=cond, then=then, otherwise=otherwise):
            _, a, b = RULES["where"](functions, term, Term(cond), Term(then), Term(otherwise))
            return [(then, a.expr), (otherwise, b.expr)]
        case UnOp(value=part):
            return [(part, (-term).expr)]
        case Call(func="pow", args=(base, Const(value=exponent))):
            grad = power(functions, term, Term(base), exponent)
            return [(base, None if grad is None else grad.expr)]
        case BinOp(op=op, lhs=lhs, rhs=rhs):
            name, args = _NAMES.get(op, op), (lhs, rhs)
        case Call(func=name, args=args):
            pass
        case _:  # pragma: no cover (is_active knows the classes above)
            raise TypeError(type(value).__name__)
    grads = RULES[name](functions, term, *map(Term, args))
    return [(arg, grad.expr) for arg, grad in zip(args, grads, strict=True)]


def is_active(value: Expr, active: Collection[AnyBuffer]) -> bool:
    """Whether *value* depends on an element of *active* buffers by a derivative."""
    if not value.dtype.is_float:
        return False
    match value:
        case Load(buffer=buffer):
            return buffer in active
        case Cast(value=part) | UnOp(value=part):
            return is_active(part, active)
        case Select(then=a, otherwise=b):
            return is_active(a, active) or is_active(b, active)
        case BinOp(op=op, lhs=a, rhs=b):
            flat = op in FLAT or op in COMPARISONS
            return not flat and (is_active(a, active) or is_active(b, active))
        case Call(func=func, args=args):
            return func not in FLAT and any(is_active(arg, active) for arg in args)
    return False
