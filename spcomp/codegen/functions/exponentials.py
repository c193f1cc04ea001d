"""Functions as LLVM text, exponentials: exp, exp2, expm1, sinh, cosh, tanh, sigmoid.

``exp(x) = 2 ** n * exp(r)`` with n the integer nearest to ``x / ln 2`` and ``|r| <= ln 2 / 2``,
r a pair of floats (Cody and Waite, "Software Manual for the Elementary Functions", 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from spcomp.codegen.functions.values import (
    Pair,
    Value,
    divide,
    polynomial,
    power_of_two,
    product,
    quick_sum,
    round_to_integer,
    split,
    times_power_of_two,
    two_sum,
)

Terms: TypeAlias = Mapping[int, tuple[float, ...]]  # by the bits of the format
LN2 = (0.6931471805599453, 2.3190468138462996e-17)
PER_LN2 = 1.4426950408889634
RANGE = {32: (-105.0, 89.5), 64: (-746.0, 710.5)}  # exp is 0 below it, and infinite above
EXP: Terms = {  # (exp(r) - 1 - r) / r ** 2
    32: (
        0.5,
        0.16666512,
        0.041666184,
        0.008369595,
        0.0013951844,
    ),
    64: (
        0.5,
        0.16666666666666685,
        0.04166666666666673,
        0.008333333333315377,
        0.0013888888888856153,
        0.00019841269900457457,
        2.480158737783401e-05,
        2.7557230818749024e-06,
        2.7557230113997363e-07,
        2.5113437578406313e-08,
        2.0927888298431055e-09,
    ),
}


def reduced(x: Value) -> tuple[Value, Pair]:
    """Return n and r with ``x = n * ln 2 + r``, for x within RANGE and a little more."""
    count, n = round_to_integer(x, PER_LN2)
    first, second, _ = split(LN2, x)
    exact = (-count).fma(first, x)  # a multiple of the last places of x and of ln 2, below 1/2
    return n, quick_sum(exact, count * -second)  # its error is small beside 1, if not beside r


def small_expm1(r: Pair) -> Pair:
    """Return ``exp(r) - 1`` for ``|r| <= ln 2 / 2``."""
    high, low = r
    return quick_sum(high, (high * high).fma(polynomial(high, EXP[high.format.bits]), low))


def exponential(x: Value, low: Value) -> Value:
    """Return exp of the pair (x, low), for x within RANGE; low is small beside 1."""
    n, (high, rest) = reduced(x)
    return times_power_of_two(1.0 + small_expm1(two_sum(high, rest + low))[0], n)


def exp(x: Value) -> Value:
    """Return e ** x."""
    n, r = reduced(x.clamp(*RANGE[x.format.bits]))
    return times_power_of_two(1.0 + small_expm1(r)[0], n)


def exp2(x: Value) -> Value:
    """Return 2 ** x."""
    least, most = RANGE[x.format.bits]
    x = x.clamp(least * 1.5, most * 1.5)
    count, n = round_to_integer(x, 1.0)
    first, second, _ = split(LN2, x)
    high, low = product(x - count, first)
    return times_power_of_two(1.0 + small_expm1((high, (x - count).fma(second, low)))[0], n)


def quarter_expm1(x: Value) -> Pair:
    """Return ``(exp(x) - 1) / 4``, which overflows later; wrong for tiny and for NaN x."""
    n, r = reduced(x.clamp(-2.0 * x.format.fraction, RANGE[x.format.bits][1]))
    high, low = small_expm1(r)
    scale = power_of_two(n - 2, x.kind)
    total, rest = two_sum(scale - 0.25, scale * high)
    return quick_sum(total, scale.fma(low, rest))


def unless_tiny(x: Value, result: Value) -> Value:
    """Return *result* with the sign of x, or x itself where a function is x to the last digit."""
    return (abs(x) >= 2.0 ** -(x.format.fraction + 2)).select(result.copysign(x), x)


def expm1(x: Value) -> Value:
    """Return e ** x - 1."""
    return unless_tiny(x, quarter_expm1(x)[0] * 4.0)


def tanh(x: Value) -> Value:
    """Return the hyperbolic tangent of x: ``t / (t + 2)`` with ``t = exp(2 x) - 1``."""
    high, low = quarter_expm1((abs(x) * 2.0).clamp(0.0, 2.0 * x.format.fraction))
    total, rest = two_sum(high, 0.5)
    return unless_tiny(x, divide((high, low), (total, rest + low))[0])


def sinh(x: Value) -> Value:
    """Return the hyperbolic sine of x: ``(t + t / (t + 1)) / 2`` with ``t = exp(x) - 1``."""
    high, low = quarter_expm1(abs(x))
    total, rest = two_sum(high, 0.25)
    other, small = divide((high, low), (total, rest + low))
    total, rest = two_sum(high, other * 0.25)
    return unless_tiny(x, (total + (low + small.fma(0.25, rest))) * 2.0)


def cosh(x: Value) -> Value:
    """Return the hyperbolic cosine of x: ``(t + 1 / t) / 2`` with ``t = exp(x)``."""
    n, r = reduced(abs(x).clamp(0.0, RANGE[x.format.bits][1]))
    high, low = small_expm1(r)
    scale = power_of_two(n - 2, x.kind)
    high, rest = quick_sum(scale, scale * high)  # a quarter of t: t itself overflows too soon
    return high.fma(2.0, scale.fma(low, rest).fma(2.0, 0.125 / high))


def sigmoid(x: Value) -> Value:
    """Return ``1 / (1 + exp(-x))``, as ``exp(x) / (1 + exp(x))`` below 0."""
    n, r = reduced((-abs(x)).clamp(RANGE[x.format.bits][0], 0.0))
    high, low = small_expm1(r)
    total, rest = quick_sum(x.to(1.0), high)
    high, low = times_power_of_two(total, n), times_power_of_two(rest + low, n)
    total, rest = quick_sum(x.to(1.0), high)
    below = x < 0.0
    numerator = (below.select(high, 1.0), below.select(low, 0.0))
    return divide(numerator, (total, rest + low))[0]
