"""Functions as LLVM text, angles: asin, acos, atan, atan2.

An angle is pi / 2, pi / 4 or 0 and the arc tangent, or arc sine, of a smaller number, which is a
polynomial. Sources: Cody and Waite, "Software Manual for the Elementary Functions", 10 and 11;
ISO C, annex F, for zeros and infinities.
"""

from __future__ import annotations

from math import inf

from spcomp.codegen.functions.exponentials import Terms
from spcomp.codegen.functions.values import (
    Pair,
    Value,
    divide,
    polynomial,
    quick_sum,
    split,
    two_sum,
)

HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
EIGHTH = 0.41421356237309503  # the tangent of pi / 8
ATAN: Terms = {  # (atan(t) / t - 1) / z with z = t ** 2, to the tangent of pi / 8
    32: (
        -0.33333316,
        0.19998479,
        -0.14243628,
        0.10594278,
        -0.06078872,
    ),
    64: (
        -0.333333333333332,
        0.19999999999953288,
        -0.14285714280163678,
        0.11111110781680815,
        -0.09090897702725524,
        0.07692059168698365,
        -0.06663091391660349,
        0.05847791702533389,
        -0.05038840642277279,
        0.038052171428206376,
        -0.017893008260102768,
    ),
}
ASIN: Terms = {  # (asin(s) / s - 1) / z with z = s ** 2, to 1/2
    32: (
        0.16666754,
        0.07495234,
        0.04547816,
        0.024141781,
        0.042229336,
    ),
    64: (
        0.16666666666665375,
        0.0750000000034468,
        0.04464285682203795,
        0.030381959394024327,
        0.022371751955136205,
        0.017359795557124514,
        0.013884350064302099,
        0.012174950948211898,
        0.006503462411217319,
        0.019594543789927206,
        -0.01632706688485017,
        0.031981977816246114,
    ),
}


def small_arc(sine: Value) -> Value:
    """Return ``asin(sine) - sine`` for ``|sine| <= 1/2``."""
    z = sine * sine
    return sine * z * polynomial(z, ASIN[z.format.bits])


def half_arc(size: Value) -> Pair:
    """Return ``acos(size) / 2``, which is ``asin(sqrt((1 - size) / 2))``; NaN if size > 1."""
    square = (1.0 - size) * 0.5
    root = square.call("sqrt")
    rest = (-root).fma(root, square) / (root + root)
    rest = square.equals(0.0).select(square, rest)
    return quick_sum(root, small_arc(root) + rest)


def asin(x: Value) -> Value:
    """Return the angle from -pi / 2 to pi / 2 whose sine is x."""
    first, second, _ = split(HALF_PI, x)
    size = abs(x)
    high, low = half_arc(size)
    total, rest = quick_sum(first, high * -2.0)
    steep = total + (rest + low.fma(-2.0, second))
    return (size <= 0.5).select(x + small_arc(x), steep.copysign(x))


def acos(x: Value) -> Value:
    """Return the angle from 0 to pi whose cosine is x."""
    first, second, _ = split(HALF_PI, x)
    high, low = half_arc(abs(x))
    high, low = high * 2.0, low * 2.0
    total, rest = quick_sum(first * 2.0, -high)
    steep = (x < 0.0).select(total + (rest + (second * 2.0 - low)), high + low)
    total, rest = quick_sum(first, -x)
    return (abs(x) <= 0.5).select(total + (rest + (second - small_arc(x))), steep)


def arc(over: Value, under: Value) -> Pair:
    """Return the angle, 0 to pi / 2, whose tangent is ``over / under``; either may be 0."""
    low, high = over < under * EIGHTH, over > under * (2 + EIGHTH)
    total, other = two_sum(over, under), two_sum(over, -under)
    zero = over.to(0.0)
    numerator = (
        low.select(over, high.select(-under, other[0])),
        (low | high).select(zero, other[1]),
    )
    denominator = (
        low.select(under, high.select(over, total[0])),
        (low | high).select(zero, total[1]),
    )
    t, rest = divide(numerator, denominator)
    z = t * t
    tail = (t * z).fma(polynomial(z, ATAN[t.format.bits]), rest)
    first, second, _ = split(HALF_PI, t)
    at = low.select(zero, high.select(over.to(first), first / 2))
    small = low.select(zero, high.select(over.to(second), second / 2))
    total = quick_sum(at, t)
    return quick_sum(total[0], total[1] + (tail + small))


def atan(x: Value) -> Value:
    """Return the angle from -pi / 2 to pi / 2 whose tangent is x."""
    most = 2.0 ** (x.format.fraction + 4)  # of larger numbers it is pi / 2
    return arc(abs(x).clamp(0.0, most), x.to(1.0))[0].copysign(x)


def atan2(y: Value, x: Value) -> Value:
    """Return the angle from -pi to pi of the point (x, y)."""
    over, under = abs(y), abs(x)
    over, under = scaled(over, under)
    high, low = arc(over, under)
    first, second, _ = split(HALF_PI, x)
    total, rest = quick_sum(first * 2.0, -high)
    behind = total + (rest + (second * 2.0 - low))
    flat = over < under * 2.0 ** -(x.format.fraction + 2)  # the quotient may be subnormal
    ahead = flat.select(over / under, high + low)
    result = (x.bits() < 0).select(behind, ahead).copysign(y)
    return (x.equals(x) & y.equals(y)).select(result, x + y)


def scaled(a: Value, b: Value) -> tuple[Value, Value]:
    """Return numbers in the ratio a : b, the larger normal and its reciprocal too; 0 : 0 is 0."""
    layout = a.format
    more = (a > b).select(a, b)
    infinite, large, low = more.equals(inf), more > 2.0**64, more < 2.0**-64
    factor = large.select(a.to(2.0**-64), low.select(a.to(2.0 ** (layout.bias // 2 + 24)), 1.0))
    one, zero = a.to(1.0), a.to(0.0)
    a, b = (
        infinite.select(number.equals(inf).select(one, zero), number * factor) for number in (a, b)
    )
    return a, more.equals(0.0).select(one, b)
