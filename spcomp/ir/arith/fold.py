"""Beside the route: what operators and functions do with Python numbers; literals are folded."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from spcomp.ir.expr import Const
from spcomp.ir.promotion import Value, literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# exact, as integers of Python do not overflow: code that folds integers of a dtype wraps them
RULES: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
    "not": operator.not_,
    "~": operator.invert,
    "negative": operator.neg,
    "min": min,
    "max": max,
    "abs": abs,
    "pow": operator.pow,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "round": lambda x: float(round(x)),
    "floor": lambda x: float(math.floor(x)),
    "ceil": lambda x: float(math.ceil(x)),
    "trunc": lambda x: float(math.trunc(x)),
    "fma": lambda a, b, c: a * b + c,
    "popcount": int.bit_count,
}
_MOST_BITS = 4096  # of an integer that is computed of literals
_SAME = (
    *(math.exp, math.exp2, math.expm1, math.log, math.log2, math.log10, math.log1p, math.sqrt),
    *(math.cbrt, math.erf, math.hypot, math.isnan, math.isinf),
    *(math.sin, math.cos, math.tan, math.asin, math.acos, math.atan, math.atan2),
    *(math.sinh, math.cosh, math.tanh, math.asinh, math.acosh, math.atanh),
)
RULES |= {rule.__name__: rule for rule in _SAME}


def fold(op: str, values: Sequence[Value]) -> Value:
    """Return *op* of literals; raises ValueError where Python refuses to compute it."""
    numbers = [value.expr.value for value in values if isinstance(value.expr, Const)]
    if _is_large(op, numbers):
        raise ValueError(f"{_text(op, numbers)} has more than {_MOST_BITS} bits")
    try:
        result = RULES[op](*numbers)
    except (ArithmeticError, ValueError, TypeError) as error:
        raise ValueError(f"{_text(op, numbers)} cannot be computed: {error}") from error
    if not isinstance(result, bool | int | float):
        raise ValueError(f"{_text(op, numbers)} is no real number")  # noqa: TRY004
    return literal(result)


def _is_large(op: str, numbers: Sequence[float]) -> bool:
    """Whether *op* of *numbers* is an integer of more than _MOST_BITS bits, which takes long."""
    match op, numbers:
        case "pow", (int(base), int(exponent)):
            return abs(base) > 1 and (abs(base).bit_length() - 1) * exponent >= _MOST_BITS
        case "<<", (int(value), int(count)):
            return value != 0 and value.bit_length() + count > _MOST_BITS
    return False


def _text(op: str, numbers: Sequence[float]) -> str:
    if len(numbers) == 2 and not op.isidentifier():
        return f"{numbers[0]} {op} {numbers[1]}"
    return f"{op}({', '.join(map(str, numbers))})"
