"""Python syntax to expressions: calls of the language's own functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from spcomp.dtypes import int64
from spcomp.ir.access import Load, Search, Stored
from spcomp.ir.expr import (
    CALLS,
    BinOpKind,
    Broadcast,
    Cast,
    Const,
    Expr,
    Ramp,
    Reduce,
    SearchKind,
    Select,
)
from spcomp.ir.promotion import Value, coerce, fits, limit, literal, resolve
from spcomp.script.scope import DTYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from spcomp.dtypes import DType
    from spcomp.script.parse_expr import Expressions

_SEARCHES: dict[str, SearchKind] = {
    "lower_bound": "lower",
    "upper_bound": "upper",
    "gallop": "gallop",
    "linear_search": "linear",
    "hash_probe": "probe",
    "run_end": "run",
}
_REDUCTIONS: tuple[BinOpKind, ...] = ("+", "*", "min", "max")


def parse(ex: Expressions, name: str, call: ast.Call) -> Value:
    """Return the value of ``T.name(...)``; raises ScriptError if it has none."""
    args = ex.ctx.arguments(call)
    if name in DTYPE_NAMES:
        return _typed_constant(ex, name, args["value"], call)
    if name in CALLS:
        dtype = args.pop("dtype", None)
        result = ex.call(name, [ex.value(arg) for arg in args.values()], call)
        return result if dtype is None else _convert(ex, result, ex.ctx.dtype(dtype), call)
    handler = _HANDLERS.get(name)
    if handler is None:
        raise ex.ctx.error(call, f"T.{name} has no value")
    return handler(ex, name, args, call)


def extreme(ex: Expressions, name: str, values: list[Value], node: ast.AST) -> Value:
    """Return the minimum or maximum of two or more *values*."""
    op: BinOpKind = "min" if name == "min" else "max"
    result = values[0]
    for value in values[1:]:
        result = ex.binary(op, result, value, node)
    return result


def _extreme(ex: Expressions, name: str, args: dict[str, Any], call: ast.Call) -> Value:
    values = [ex.value(arg) for arg in args.get("values", ())]
    if len(values) < 2:
        raise ex.ctx.error(call, f"T.{name} takes two or more values")
    return extreme(ex, name, values, call)


def _division(ex: Expressions, name: str, args: dict[str, Any], call: ast.Call) -> Value:
    op: BinOpKind = "//" if name == "floordiv" else "%"
    return ex.binary(op, ex.value(args["a"]), ex.value(args["b"]), call)


def _select(ex: Expressions, _name: str, args: dict[str, Any], call: ast.Call) -> Value:
    cond = ex.condition(args["condition"])
    return ex.select(cond, ex.value(args["then"]), ex.value(args["otherwise"]), call)


def _cast(ex: Expressions, _name: str, args: dict[str, Any], call: ast.Call) -> Value:
    value, dtype = args["value"], args["dtype"]
    if _is_dtype(ex, value):
        value, dtype = dtype, value
    return _convert(ex, ex.value(value), ex.ctx.dtype(dtype), call)


def _is_dtype(ex: Expressions, node: ast.expr) -> bool:
    if isinstance(node, ast.Constant) or ex.ctx.syntax_name(node) in DTYPE_NAMES:
        return not isinstance(node, ast.Constant) or isinstance(node.value, str)
    return isinstance(ex.ctx.python(node), str)


def _convert(ex: Expressions, value: Value, dtype: DType, call: ast.Call) -> Value:
    """Return *value* as *dtype*: a literal takes the type, any other value is cast."""
    if dtype.kind == "handle":
        raise ex.ctx.error(call, "nothing can be cast to a handle")
    dtype = dtype.with_lanes(max(dtype.lanes, value.dtype.lanes))
    if value.weak and not _loses(value.expr, dtype):
        return Value(coerce(value, dtype))
    with ex.ctx.blame(call):
        return Value(Cast(resolve(value), dtype, span=ex.ctx.span(call)))


def _loses(expr: Expr, dtype: DType) -> bool:
    if isinstance(expr, Select):
        return _loses(expr.then, dtype) or _loses(expr.otherwise, dtype)
    return isinstance(expr, Const) and not fits(expr.value, dtype.element)


def _typed_constant(ex: Expressions, name: str, node: ast.expr, call: ast.Call) -> Value:
    dtype = ex.ctx.dtype(call.func)
    if dtype.kind == "handle":
        raise ex.ctx.error(call, "T.handle is the type of a parameter, not of a value")
    if isinstance(node, ast.Constant) and node.value in ("inf", "-inf", "nan"):
        value = literal(float(node.value))
    else:
        value = ex.value(node)
    if not value.weak:
        same = value.dtype == dtype
        return value if same else Value(Cast(value.expr, dtype, span=ex.ctx.span(call)))
    with ex.ctx.blame(call, f'T.cast(value, "{name}") converts it'):
        return Value(coerce(value, dtype).replace(span=ex.ctx.span(call)))


def _limit(ex: Expressions, name: str, args: dict[str, Any], call: ast.Call) -> Value:
    dtype = ex.ctx.dtype(args["dtype"])
    if dtype.kind == "handle" or dtype.lanes > 1:
        raise ex.ctx.error(call, f"{dtype} has no {name.replace('_', ' ')}")
    return Value(limit(dtype, largest=name == "max_value").replace(span=ex.ctx.span(call)))


def _masked_load(ex: Expressions, _name: str, args: dict[str, Any], call: ast.Call) -> Value:
    buffer = ex.ctx.buffer(args["buffer"])
    indices = ex.indices(buffer, args["index"])
    return Value(Load(buffer, indices, ex.condition(args["mask"]), span=ex.ctx.span(call)))


def _stored(ex: Expressions, _name: str, args: dict[str, Any], call: ast.Call) -> Value:
    element = ex.value(args["element"]).expr
    if not isinstance(element, Load):
        raise ex.ctx.error(call, "T.stored asks for an element, such as T.stored(A[i, j])")
    ex.ctx.features.setdefault("T.stored", call)
    return Value(Stored(element, span=ex.ctx.span(call)))


def _search(ex: Expressions, name: str, args: dict[str, Any], call: ast.Call) -> Value:
    buffer = ex.ctx.buffer(args["buffer"])
    begin, end = ex.count(args["begin"]), ex.count(args["end"])
    key = ex.expr(args["key"])
    slope = ex.whole(args["slope"]) if "slope" in args else 0
    if slope and (buffer.dtype.kind != "int" or key.dtype != int64 or abs(slope) >> 31):
        raise ex.ctx.error(call, "a small slope, integers and an int64 key are needed here")
    if name == "hash_probe" and not (buffer.dtype.kind == "int" and key.dtype.is_integer):
        raise ex.ctx.error(call, "a hash table has signed integers, and is probed for an integer")
    return Value(Search(_SEARCHES[name], buffer, begin, end, key, slope, span=ex.ctx.span(call)))


def _ramp(ex: Expressions, _name: str, args: dict[str, Any], call: ast.Call) -> Value:
    base = ex.integer(args["base"])
    stride, lanes = ex.whole(args["stride"]), _lanes(ex, args["lanes"])
    return Value(Ramp(base, stride, lanes, span=ex.ctx.span(call)))


def _broadcast(ex: Expressions, _name: str, args: dict[str, Any], call: ast.Call) -> Value:
    value = ex.expr(args["value"])
    return Value(Broadcast(value, _lanes(ex, args["lanes"]), span=ex.ctx.span(call)))


def _lanes(ex: Expressions, node: ast.expr) -> int:
    lanes = ex.whole(node)
    if lanes < 2:
        raise ex.ctx.error(node, "a vector has two or more lanes")
    return lanes


def _reduce(ex: Expressions, _name: str, args: dict[str, Any], call: ast.Call) -> Value:
    name = ex.ctx.text(args["op"], "the operation")
    op = next((op for op in _REDUCTIONS if op == name), None)
    if op is None:
        raise ex.ctx.error(args["op"], f"no reduction {name!r}", hint="it is +, *, min or max")
    return Value(Reduce(op, ex.expr(args["value"]), span=ex.ctx.span(call)))


_HANDLERS: dict[str, Callable[[Expressions, str, dict[str, Any], ast.Call], Value]] = {
    "min": _extreme,
    "max": _extreme,
    "floordiv": _division,
    "floormod": _division,
    "if_then_else": _select,
    "Select": _select,
    "cast": _cast,
    "Cast": _cast,
    "min_value": _limit,
    "max_value": _limit,
    "masked_load": _masked_load,
    "stored": _stored,
    "lower_bound": _search,
    "upper_bound": _search,
    "gallop": _search,
    "linear_search": _search,
    "hash_probe": _search,
    "run_end": _search,
    "ramp": _ramp,
    "broadcast": _broadcast,
    "vector_reduce": _reduce,
}
