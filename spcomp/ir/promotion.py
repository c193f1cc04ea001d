"""Beside the route: how operand types combine: the rules of the parser, inverted by the printer."""

from __future__ import annotations

import ast
import math
import sys
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from spcomp.dtypes import SCALARS, DType, bool_, float64, int64, promote, uint64
from spcomp.ir.expr import (
    CALLS,
    COMPARISONS,
    BinOp,
    BinOpKind,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Select,
    UnOp,
    Var,
    cast,
    const,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spcomp.errors import Span

_RANK = {"bool": 0, "int": 1, "uint": 1, "bfloat": 2, "float": 2}
BITWISE = frozenset({"&", "|", "^", "<<", ">>"})
_MIRRORED: dict[BinOpKind, BinOpKind] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
FLOAT_CALLS = CALLS - {"abs", "fma", "popcount"}  # applied to integers they give a float64
_PLURAL = {"bool": "bools", "int": "integers", "uint": "integers", "bfloat": "floats"}


@dataclass(frozen=True, slots=True)
class Value:
    """An operand; a *weak* one is made of Python numbers and takes the dtype of other operands.

    A weak expression is of int64, float64 or bool: a Const, a Var that stands for a number of any
    type, which is always cast to one, or an expression of such.
    """

    expr: Expr
    weak: bool = False

    @property
    def dtype(self) -> DType:
        """The type of the value; of a weak one, its type without other operands."""
        return self.expr.dtype


def resolve(value: Value) -> Expr:
    """Return *value* without other operands; raises ValueError for an integer beyond int64."""
    return _retype(value.expr, value.dtype) if value.weak else value.expr


def coerce(value: Value, dtype: DType) -> Expr:
    """Return *value* as *dtype*; raises ValueError for a literal that does not fit."""
    expr = value.expr
    if value.weak:
        scalar = _retype(expr, dtype.element)
        return scalar if dtype.lanes == 1 else Broadcast(scalar, dtype.lanes, span=place_of(expr))
    if isinstance(expr, Const) and expr.dtype != dtype and not fits(expr.value, dtype.element):
        return Cast(expr, dtype, span=place_of(expr))
    return cast(expr, dtype)


def implicit(value: Value, dtype: DType) -> Expr:
    """Return *value* as *dtype*, for a store; raises ValueError for a lower kind of number."""
    source = value.dtype
    if source.kind == "handle" or _RANK[source.kind] > _RANK[dtype.kind]:
        raise ValueError(f"{a_value(value)} does not become {_article(dtype)} by itself")
    if source.lanes not in (1, dtype.lanes):
        raise ValueError(f"a vector of {source.lanes} lanes does not become {_article(dtype)}")
    return coerce(value, dtype)


def truth(value: Value) -> Expr:
    """Return *value* as a condition: itself if it is bool, else whether it is not zero."""
    return coerce(value, bool_.with_lanes(value.dtype.lanes))


def unify(values: Sequence[Value]) -> tuple[Expr, ...]:
    """Return *values* in their common type; raises ValueError for a literal that does not fit."""
    common = common_dtype(values)
    return tuple(coerce(value, common) for value in values)


def common_dtype(values: Sequence[Value]) -> DType:
    """Return the type in which *values* are combined."""
    strong = [value.dtype for value in values if not value.weak]
    weak = [value.dtype for value in values if value.weak]
    if not strong:
        return max(weak, key=lambda dtype: _RANK[dtype.kind])
    common = reduce(promote, strong)
    for dtype in weak:
        if _RANK[dtype.kind] > _RANK[common.kind]:
            common = promote(common, dtype)
    return common


def combine(op: BinOpKind, a: Value, b: Value, span: Span | None = None) -> Expr:
    """Return ``a op b``; raises ValueError where it has no meaning.

    Integers are compared by value, whatever their types.
    """
    if op in COMPARISONS:
        a, b = _by_value(a, b), _by_value(b, a)
        for first, second, op_ in ((a, b, op), (b, a, _MIRRORED.get(op, op))):
            if _is_beyond(second, first.dtype) and not first.weak:
                assert isinstance(second.expr, Const)
                low = second.expr.value < 0
                holds = op_ == "!=" or op_ in ((">", ">=") if low else ("<", "<="))
                return const(holds, bool_).replace(span=span)
            if first.dtype == uint64 and second.dtype.kind == "int" and not second.weak:
                return _compare_mixed(op_, first.expr, cast(second.expr, int64), span)
    lhs, rhs = operands(op, a, b)
    return BinOp(op, lhs, rhs, span=span)


def _by_value(value: Value, other: Value) -> Value:
    """Return *value* as int64 if it is an integer known only at the call, beside an integer."""
    is_known = isinstance(value.expr, (Const, Select)) or value.dtype.kind != "int"
    beside = other.dtype.is_integer and not other.weak
    return Value(resolve(value)) if value.weak and beside and not is_known else value


def _is_beyond(value: Value, dtype: DType) -> bool:
    """Whether *value* is an integer literal that the scalar integer type *dtype* cannot hold."""
    if not value.weak or not isinstance(value.expr, Const) or value.dtype.kind != "int":
        return False
    return dtype in SCALARS and dtype.is_integer and not fits(value.expr.value, dtype)


def _compare_mixed(op: BinOpKind, unsigned: Expr, signed: Expr, span: Span | None) -> Expr:
    """Return ``unsigned op signed`` of a uint64 and an int64, for which no type holds both."""
    among = BinOp(op, unsigned, cast(signed, uint64), span=span)
    zero = const(0, int64)
    if op in (">", ">=", "!="):
        return BinOp("or", BinOp("<", signed, zero), among, span=span)
    return BinOp("and", BinOp(">=", signed, zero), among, span=span)


def operands(op: BinOpKind, a: Value, b: Value) -> tuple[Expr, ...]:
    """Return *a* and *b* as the operands of *op*; raises ValueError where it has no meaning."""
    if op in ("and", "or"):
        return truth(a), truth(b)
    common = common_dtype((a, b))
    if op in BITWISE and common.is_float and a.dtype.is_integer and b.dtype.is_integer:
        raise ValueError(f"{op} of {a.dtype} and {b.dtype}: no integer type holds both")
    if op in BITWISE and (common.is_float or (op in ("<<", ">>") and not common.is_integer)):
        raise ValueError(f"{op} needs integers, not {_plural(common)}")
    if common.kind == "bool" and op in ("+", "-", "*", "/", "//", "%"):
        raise ValueError(f"no arithmetic {op} on bools")
    if op == "/" and common.is_integer:
        common = float64.with_lanes(common.lanes)
    return coerce(a, common), coerce(b, common)


def arguments(func: str, values: Sequence[Value]) -> tuple[Expr, ...]:
    """Return *values* as the arguments of the Call *func*; raises ValueError as operands does."""
    common = common_dtype(values)
    if func in FLOAT_CALLS and not common.is_float:
        common = float64.with_lanes(common.lanes)
    if func == "popcount" and not common.is_integer:
        raise ValueError(f"popcount needs an integer, not {_article(common)}")
    if common.kind == "bool":
        raise ValueError(f"{func} needs a number, not a bool")
    return tuple(coerce(value, common) for value in values)


def folds(values: Sequence[Value]) -> bool:
    """Say whether *values* are all literals, so that their combination is a literal too."""
    return all(value.weak and isinstance(value.expr, Const) for value in values)


def fits(value: float, dtype: DType) -> bool:
    """Say whether *dtype* holds the Python number *value*.

    Every float type holds every number but integers beyond Python's floats.
    """
    if dtype.is_float:
        return isinstance(value, float) or abs(value) <= sys.float_info.max
    if isinstance(value, float):
        return False
    if dtype.kind == "bool":
        return value in (0, 1)
    low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
    return low <= value < low + (1 << dtype.bits)


def limit(dtype: DType, *, largest: bool) -> Const:
    """Return the largest or smallest value of *dtype*; of floats, an infinity."""
    if dtype.is_float:
        return const(math.inf if largest else -math.inf, dtype)
    if dtype.kind == "bool":
        return const(largest, dtype)
    low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
    return const(low + (1 << dtype.bits) - 1 if largest else low, dtype)


def literal(value: float) -> Value:
    """Return a Python number as a weak operand."""
    if isinstance(value, bool):
        return Value(Const(value, bool_), weak=True)
    return Value(Const(value, float64 if isinstance(value, float) else int64), weak=True)


def a_value(value: Value) -> str:
    """Say what *value* is, for messages: ``the literal 2`` or ``a value of float32``."""
    if value.weak and isinstance(value.expr, Const):
        return f"the literal {value.expr.value}"
    return f"a value of {value.dtype}"


def _retype(expr: Expr, dtype: DType) -> Expr:
    if isinstance(expr, Select):
        sides = _retype(expr.then, dtype), _retype(expr.otherwise, dtype)
        return Select(expr.cond, *sides, span=expr.span)
    if isinstance(expr, Var):
        own_dtype = expr.dtype if "bool" in (expr.dtype.kind, dtype.kind) else dtype
        return cast(Cast(expr, own_dtype, span=place_of(expr)), dtype)
    if not isinstance(expr, Const):
        return _retype_operands(expr, dtype)
    if not fits(expr.value, dtype):
        raise ValueError(f"the literal {expr.value} does not fit {dtype}")
    return const(expr.value, dtype).replace(span=expr.span)


def _retype_operands(expr: Expr, dtype: DType) -> Expr:
    """Return the weak *expr* in *dtype*: integers are computed in the type of other operands."""
    if not (expr.dtype.is_integer and dtype.is_integer):
        return cast(expr, dtype)
    match expr:
        case Cast(value=Var() as var):
            return _retype(var, dtype)
        case Cast():
            return cast(expr, dtype)
        case UnOp(op="-") if dtype.kind == "uint":
            raise ValueError(f"- of Python numbers does not fit {dtype}")
        case UnOp(value=value):
            return expr.replace(value=_retype(value, dtype))
        case BinOp(lhs=lhs, rhs=rhs):
            return expr.replace(lhs=_retype(lhs, dtype), rhs=_retype(rhs, dtype))
        case Call(args=args):
            return expr.replace(args=tuple(_retype(arg, dtype) for arg in args))
    return cast(expr, dtype)


def _plural(dtype: DType) -> str:
    return _PLURAL.get(dtype.kind, "floats")


def _article(dtype: DType) -> str:
    return f"an {dtype}" if str(dtype)[0] in "aeiou" else f"a {dtype}"


BINARY_OPS: dict[type[ast.AST], BinOpKind] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.And: "and",
    ast.Or: "or",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
