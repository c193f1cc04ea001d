"""At the call: sizes as a script writes them, evaluated and solved for the scalars in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from spcomp.errors import ArgumentError
from spcomp.ir.access import Load
from spcomp.ir.arith.fold import RULES
from spcomp.ir.expr import BinOp, Cast, Const, Expr, Select, UnOp, Var

if TYPE_CHECKING:
    from spcomp.ir.axis import AnyBuffer

REMEMBERED = 1 << 12  # expressions whose evaluators are kept
Values: TypeAlias = Mapping[str, Any]  # scalars and arrays by the names of the parameters


def array_name(buffer: AnyBuffer, values: Values) -> str:
    """Return the name under which *values* holds the array of *buffer*; KeyError if none does."""
    if buffer.name not in values and buffer.data is not None:
        return buffer.data.name
    return buffer.name


def evaluate(expr: Expr, values: Values) -> Any:
    """Return *expr* in Python numbers, which do not overflow.

    Raises KeyError for a name that *values* lacks, ZeroDivisionError, and ArgumentError for an
    expression that is not arithmetic.
    """
    return _evaluator(expr)(values)


@lru_cache(maxsize=REMEMBERED)
def _evaluator(expr: Expr) -> Callable[[Values], Any]:
    """Return what ``evaluate`` does for *expr*, as a function of the values."""
    match expr:
        case Var(name=name):
            return itemgetter(name)
        case Const(value=value):
            return lambda _: value
        case BinOp(op=op, lhs=lhs, rhs=rhs) if op != "<<":  # it drops bits
            rule, left, right = RULES[op], _evaluator(lhs), _evaluator(rhs)
            return lambda values: rule(left(values), right(values))
        case Cast(value=value, type=dtype):
            kind, inner = float if dtype.is_float else int, _evaluator(value)
            return lambda values: kind(inner(values))
        case UnOp(op="-", value=value):
            inner = _evaluator(value)
            return lambda values: -inner(values)
        case Select(cond=cond, then=then, otherwise=otherwise):
            holds, yes, no = map(_evaluator, (cond, then, otherwise))
            return lambda values: (yes if holds(values) else no)(values)
        case Load(buffer=buffer, indices=(Expr() as index,)):
            place = _evaluator(index)
            return lambda values: values[array_name(buffer, values)].flat[place(values)].item()
    raise ArgumentError(
        f"a size is a {type(expr).__name__}, which the arguments do not give",
        expr.span,
        hint="make it a parameter",
    )


def solve(expr: Expr, value: int, values: Values) -> tuple[Var, int] | None:
    """Return the one unknown of ``expr == value`` and what it must be.

    None if *expr* has no unknown, several, or no integer answer.
    """
    while not isinstance(expr, Var):
        match expr:
            case Cast(value=inner):
                expr = inner
            case BinOp(op="+" | "-" | "*" as op, lhs=lhs, rhs=rhs):
                step = _undo(op, lhs, rhs, value, values)
                if step is None:
                    return None
                expr, value = step
            case _:
                return None
    return None if expr.name in values else (expr, value)


def _undo(op: str, lhs: Expr, rhs: Expr, value: int, values: Values) -> tuple[Expr, int] | None:
    """Return the unknown side of ``lhs op rhs == value`` and what it equals."""
    left, right = _value_or_none(lhs, values), _value_or_none(rhs, values)
    if (left is None) == (right is None):
        return None
    unknown, known = (rhs, left) if right is None else (lhs, right)
    if op == "+":
        return unknown, value - known
    if op == "-":
        return unknown, known - value if right is None else value + known
    if known == 0 or value % known:
        return None
    return unknown, value // known


def _value_or_none(expr: Expr, values: Values) -> Any:
    try:
        return evaluate(expr, values)
    except KeyError:
        return None


def text(expr: Expr) -> str:
    """Return *expr* as a message shows it."""
    match expr:
        case Var(name=name):
            return name
        case Const(value=value):
            return str(value)
        case BinOp(op="min" | "max" as op, lhs=lhs, rhs=rhs):
            return f"{op}({text(lhs)}, {text(rhs)})"
        case BinOp(op=op, lhs=lhs, rhs=rhs):
            sides = [f"({text(s)})" if isinstance(s, BinOp) else text(s) for s in (lhs, rhs)]
            return f"{sides[0]} {op} {sides[1]}"
        case Cast(value=value):
            return text(value)
        case Select(cond=cond, then=then, otherwise=otherwise):
            return f"({text(then)} if {text(cond)} else {text(otherwise)})"
        case Load(buffer=buffer, indices=indices):
            return f"{buffer.name}[{', '.join(text(i) if i else '_' for i in indices)}]"
    return f"<{type(expr).__name__}>"
