"""Beside the route, for every level: the value of an expression, exact in its dtype.

Values are numpy scalars, or arrays for vectors, in the type they are computed in: integers wrap,
float16 and bfloat16 are float32 between a load and the next store or cast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import DType
from spcomp.errors import InternalError
from spcomp.ir.access import Load, Search
from spcomp.ir.arith.fold import RULES
from spcomp.ir.axis import AnyBuffer, home
from spcomp.ir.expr import (
    NUMPY_NAMES,
    BinOp,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Ramp,
    Reduce,
    Select,
    UnOp,
    Var,
)
from spcomp.ir.interpret.storage import Storage, decode, encode, number_type
from spcomp.ir.visitor import Visitor

_BINARY: dict[str, Callable[[Any, Any], Any]] = RULES | {  # of lanes too, and ufuncs to reduce by
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "-": RULES["negative"],
    "not": np.logical_not,
    "~": RULES["~"],
}
_REDUCE: dict[str, Any] = _BINARY | {"+": np.add, "*": np.multiply}
_ROUNDING = frozenset({"floor", "ceil", "round", "trunc"})


def _probe(entries: Any, key: int) -> int:
    """Return the slot of *key* in the table of *entries*; their number if it is missing."""
    slots = len(entries)
    slot = home(key, slots) & (slots - 1)
    for _ in range(slots):
        if entries[slot] < 0:
            break
        if entries[slot] == key:
            return slot
        slot = (slot + 1) & (slots - 1)
    return slots


def _fma(a: Any, b: Any, c: Any) -> Any:
    if a.dtype.kind != "f":
        return a * b + c
    return a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)


def _pow(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.power(a, b)
    signs = np.where(b % 2 == 0, np.abs(a), a)  # numpy refuses a negative integer exponent
    return np.where(b >= 0, np.power(a, np.maximum(b, 0)), np.where(np.abs(a) == 1, signs, 0))


_SAME_NAME = (
    "exp exp2 expm1 log log2 log10 log1p sqrt cbrt abs sin cos tan sinh cosh tanh hypot"
    " floor ceil trunc isnan isinf"
)
_CALLS: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in _SAME_NAME.split()} | {
    **{name: getattr(np, numpys) for name, numpys in NUMPY_NAMES.items()},
    "popcount": lambda x: np.bitwise_count(x.view(f"u{x.dtype.itemsize}")),  # not of abs(x)
    "pow": _pow,
    "fma": _fma,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "sigmoid": lambda x: np.reciprocal(1 + np.exp(-x)),
}


def as_number(value: Any, dtype: DType) -> Any:
    """Return a Python or numpy scalar as a value of *dtype*, rounded to what *dtype* holds."""
    scalar = np.asarray(value).astype(number_type(dtype))[()]
    return _round(scalar, dtype)


def _round(value: Any, dtype: DType) -> Any:
    short = dtype.is_float and dtype.bits == 16
    return decode(encode(value, dtype), dtype) if short else value


class Evaluator(Visitor[Any]):
    """The value of an expression in *env*; each level defines what a load reads.

    *failures* are the messages of the error that the call raises at its end.
    """

    def __init__(self, arrays: Mapping[str, Array], failures: list[str]) -> None:
        self.env: dict[Var, Any] = {}
        self.storage = Storage(arrays, lambda extent: int(self.visit(extent)))
        self.failures = failures

    def visit_Var(self, var: Var) -> Any:
        """Return what *var* is bound to."""
        try:
            return self.env[var]
        except KeyError:
            raise InternalError("interpretation", f"variable {var.name} is not bound") from None

    def visit_Const(self, literal: Const) -> Any:
        """Return the literal."""
        return as_number(literal.value, literal.type)

    def visit_BinOp(self, node: BinOp) -> Any:
        """Combine both sides; the right one is evaluated only if the left does not decide."""
        lhs = self.visit(node.lhs)
        if node.op in ("and", "or") and node.dtype.lanes == 1 and bool(lhs) == (node.op == "or"):
            return lhs
        rhs = self.visit(node.rhs)
        if node.op in ("//", "%") and not node.dtype.is_float:
            rhs, lhs = self._divisor(rhs, lhs)
        return _BINARY[node.op](lhs, rhs)

    def _divisor(self, rhs: Any, lhs: Any) -> tuple[Any, Any]:
        """Return divisor and dividend such that a division by zero fails the call and gives 0."""
        zero = rhs == 0
        if not np.any(self.active(zero)):
            return rhs, lhs
        self.failures.append("integer division by zero")
        return rhs + zero.astype(rhs.dtype), np.where(zero, 0, lhs).astype(lhs.dtype)[()]

    def active(self, lanes: Any) -> Any:
        """Return *lanes*, a bool for each, with False for those that are not evaluated."""
        return lanes

    def visit_UnOp(self, node: UnOp) -> Any:
        """Apply the operator."""
        return _UNARY[node.op](self.visit(node.value))

    def visit_Cast(self, node: Cast) -> Any:
        """Convert as numpy's astype; a cast to a 16-bit float rounds."""
        value = self.visit(node.value).astype(number_type(node.type.element))
        return _round(value, node.type)

    def visit_Select(self, node: Select) -> Any:
        """Evaluate the side that *cond* chooses; both where lanes disagree."""
        cond = self.visit(node.cond)
        if np.all(cond):
            return self.visit(node.then)
        if not np.any(cond):
            return self.visit(node.otherwise)
        return np.where(cond, self.visit(node.then), self.visit(node.otherwise))

    def visit_Call(self, node: Call) -> Any:
        """Call the function in the type of its arguments."""
        args = [self.visit(arg) for arg in node.args]
        if node.func in _ROUNDING and not node.dtype.is_float:
            return args[0]
        value = np.asarray(_CALLS[node.func](*args))
        return value.astype(number_type(node.dtype.element))[()]

    def visit_Load(self, node: Load) -> Any:
        """Read an element; each level defines which."""
        raise NotImplementedError

    def visit_Search(self, node: Search) -> Any:
        """Search values at absolute positions."""
        begin, end = int(self.visit(node.begin)), int(self.visit(node.end))
        key = self.visit(node.key)
        array = self.storage.array(node.buffer)
        if not 0 <= begin <= end <= len(array):
            message = f"a search in {begin}..{end} of {node.buffer.name}, which has {len(array)}"
            raise InternalError("interpretation", message)
        values = decode(array[begin:end], node.buffer.dtype)
        if node.slope:
            values = values + node.slope * np.arange(begin, end)
        if node.kind == "probe":
            return np.int64(begin + _probe(values, int(key)))
        if node.kind in ("linear", "run"):
            passes = values != key if node.kind == "linear" else values == key
            before = np.logical_and.accumulate(passes)
        else:
            before = values <= key if node.kind == "upper" else values < key
        return np.int64(begin + int(np.count_nonzero(before)))

    def visit_Ramp(self, node: Ramp) -> Any:
        """Return the vector ``base, base + stride, ...``."""
        base = self.visit(node.base)
        return base + np.arange(node.lanes).astype(base.dtype) * base.dtype.type(node.stride)

    def visit_Broadcast(self, node: Broadcast) -> Any:
        """Return the vector of equal lanes."""
        value = self.visit(node.value)
        return np.full(node.lanes, value, value.dtype)

    def visit_Reduce(self, node: Reduce) -> Any:
        """Combine the lanes in order."""
        value = self.visit(node.value)
        return _REDUCE[node.op].reduce(value, dtype=value.dtype)

    def number(self, expr: Expr) -> int:
        """Return the value of a scalar integer expression as a Python int."""
        return int(self.visit(expr))

    def fill(self, buffer: AnyBuffer) -> Any:
        """Return what a coordinate of *buffer* that is not stored reads as."""
        return as_number(getattr(buffer, "fill", 0), buffer.dtype)
