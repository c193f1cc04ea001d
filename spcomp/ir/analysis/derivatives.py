"""Beside the route: the derivative of each operator and function, as data.

A rule takes the functions of an algebra, the gradient of the value, and the arguments; it gives
the gradient of each argument. Where a function has a corner, as ``abs`` has at 0, the gradient is
PyTorch's. The same rules serve index notation and coordinate IR: an algebra has operators on its
values, and the functions by name.
"""

# ruff: noqa: ARG005 (a rule takes all arguments of its function)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from spcomp.ir.expr import CALLS, COMPARISONS


class Algebra(Protocol):
    """The functions of an algebra: ``f.exp(x)``, ``f.where(c, a, b)``."""

    def __getattr__(self, name: str) -> Callable[..., Any]: ...


Rule: TypeAlias = Callable[..., tuple[Any, ...]]
_LN2, _LN10 = math.log(2), math.log(10)

RULES: dict[str, Rule] = {
    "neg": lambda f, g, x: (-g,),
    "+": lambda f, g, x, y: (g, g),
    "-": lambda f, g, x, y: (g, -g),
    "*": lambda f, g, x, y: (g * y, g * x),
    "/": lambda f, g, x, y: (g / y, -(g * x / y / y)),
    "%": lambda f, g, x, y: (g, -(g * (x // y))),
    "maximum": lambda f, g, x, y: (_larger(f, g, x, y), _larger(f, g, y, x)),
    "minimum": lambda f, g, x, y: (_larger(f, g, y, x), _larger(f, g, x, y)),
    "where": lambda f, g, c, x, y: (None, f.where(c, g, 0), f.where(c, 0, g)),
    "exp": lambda f, g, x: (g * f.exp(x),),
    "exp2": lambda f, g, x: (g * f.exp2(x) * _LN2,),
    "expm1": lambda f, g, x: (g * f.exp(x),),
    "log": lambda f, g, x: (g / x,),
    "log2": lambda f, g, x: (g / (x * _LN2),),
    "log10": lambda f, g, x: (g / (x * _LN10),),
    "log1p": lambda f, g, x: (g / (x + 1),),
    "sqrt": lambda f, g, x: (g * 0.5 / f.sqrt(x),),
    "rsqrt": lambda f, g, x: (g * -0.5 * f.rsqrt(x) / x,),
    "cbrt": lambda f, g, x: (g / (f.cbrt(x) * f.cbrt(x) * 3),),
    "abs": lambda f, g, x: (f.where(x > 0, g, f.where(x < 0, -g, 0)),),
    "sigmoid": lambda f, g, x: (g * f.sigmoid(x) * f.sigmoid(-x),),
    "tanh": lambda f, g, x: (g * (1 - f.tanh(x) * f.tanh(x)),),
    "erf": lambda f, g, x: (g * f.exp(-(x * x)) * (2 / math.sqrt(math.pi)),),
    "sin": lambda f, g, x: (g * f.cos(x),),
    "cos": lambda f, g, x: (-(g * f.sin(x)),),
    "tan": lambda f, g, x: (g * (f.tan(x) * f.tan(x) + 1),),
    "asin": lambda f, g, x: (g / f.sqrt((1 - x) * (x + 1)),),
    "acos": lambda f, g, x: (-(g / f.sqrt((1 - x) * (x + 1))),),
    "atan": lambda f, g, x: (g / (x * x + 1),),
    "sinh": lambda f, g, x: (g * f.cosh(x),),
    "cosh": lambda f, g, x: (g * f.sinh(x),),
    "asinh": lambda f, g, x: (g / f.sqrt(x * x + 1),),
    "acosh": lambda f, g, x: (g / f.sqrt((x - 1) * (x + 1)),),
    "atanh": lambda f, g, x: (g / ((1 - x) * (x + 1)),),
    "atan2": lambda f, g, y, x: (g * x / (x * x + y * y), -(g * y / (x * x + y * y))),
    "hypot": lambda f, g, x, y: (g * (x / f.hypot(x, y)), g * (y / f.hypot(x, y))),
    "fma": lambda f, g, x, y, z: (g * y, g * x, g),
    "pow": lambda f, g, x, y: (
        f.where(y == 0, 0, g * y * f.pow(x, y - 1)),
        f.where((x == 0) & (y >= 0), 0, g * f.pow(x, y) * f.log(x)),
    ),
}
FLAT = frozenset(  # the gradient is zero wherever there is one
    {
        *(COMPARISONS | {"and", "or", "not", "~", "&", "|", "^", "<<", ">>", "//", "stored"}),
        *("floor", "ceil", "round", "trunc", "isnan", "isinf", "popcount"),
    }
)
WITHOUT_RULE = CALLS - FLAT - RULES.keys()  # a test says that there is none


def power(f: Algebra, g: Any, x: Any, exponent: float) -> Any:
    """Return the gradient of the base of ``x ** exponent``, a number, which needs no test."""
    if exponent == 0:
        return None
    if exponent in (1, 2):
        return g if exponent == 1 else g * x * 2
    return g * exponent * f.pow(x, exponent - 1)


def exponential(f: Algebra, g: Any, base: float, y: Any) -> Any:
    """Return the gradient of the exponent of ``base ** y``, where *base* is a number."""
    if base > 0:
        return g * f.pow(base, y) * math.log(base)
    if base == 0:
        return f.where(y >= 0, 0, -(g * f.pow(base, y)))
    return g * f.pow(base, y) * f.log(y * 0 + base)


def of_extreme(f: Algebra, g: Any, wins: Any, ties: Any) -> Any:
    """Return the gradient of a term of a minimum or maximum: the *ties* that it *wins* share it."""
    return f.where(wins, g / ties, 0)


def of_product(f: Algebra, g: Any, x: Any, zeros: Any, rest: Any) -> Any:
    """Return the gradient of a factor x: the product of the others.

    *zeros*: how many factors are zero; *rest*: the product of those that are not.
    """
    alone = f.where(zeros == 1, g * rest, 0)
    return f.where(x == 0, alone, f.where(zeros == 0, g * rest / x, 0))


def _larger(f: Algebra, g: Any, x: Any, y: Any) -> Any:
    """Return what x gets of the gradient of the larger of x and y: half where they are equal."""
    return f.where(x > y, g, f.where(x == y, g * 0.5, 0))
