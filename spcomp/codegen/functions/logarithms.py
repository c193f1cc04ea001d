"""Functions as LLVM text, logarithms: log, log2, log10, log1p, asinh, acosh, atanh, and pow.

``x = 2 ** k * (1 + f)`` with ``1 + f`` from sqrt(1/2) to sqrt(2), and log(1 + f) is a polynomial,
or for pow the series of atanh in pairs of floats. Sources: Cody and Waite, "Software Manual for the
Elementary Functions", 5 and 7; Muller, "Elementary Functions", 3rd edition, 11.5; for infinities,
zeros and NaN ISO C, annex F.
"""

from __future__ import annotations

from math import inf, nan

from spcomp.codegen.functions.exponentials import LN2, RANGE, Terms, exponential
from spcomp.codegen.functions.values import (
    Pair,
    Value,
    divide,
    multiply,
    polynomial,
    product,
    quick_sum,
    split,
    two_sum,
)

PER_LN2 = (1.4426950408889634, 2.0355273740931033e-17)
PER_LN10 = (0.4342944819032518, 1.098319650216765e-17)
THIRD = (0.3333333333333333, 1.850371707708594e-17)
ROOT = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}  # the bits of sqrt(1/2)
LN2_SHORT = {  # so short that its product with an exponent is exact; and the rest
    32: (0.693145751953125, 1.4286068203094173e-06),
    64: (0.6931471805598903, 5.497923018708371e-14),
}
LOG: Terms = {  # (log(1 + f) - f + f ** 2 / 2) / f ** 3
    32: (
        0.3333333,
        -0.25000823,
        0.20001225,
        -0.16623354,
        0.14201789,
        -0.13160236,
        0.12761407,
        -0.07634174,
    ),
    64: (
        0.3333333333333314,
        -0.24999999999987976,
        0.20000000000066587,
        -0.1666666666982588,
        0.14285714280095485,
        -0.12499999691443507,
        0.11111111147351291,
        -0.10000015206170534,
        0.09090923935096414,
        -0.08332913544790752,
        0.07691529765736362,
        -0.07149439420586012,
        0.06684589623446555,
        -0.06196679527612081,
        0.05668375243918542,
        -0.05677777049817815,
        0.0650349360196412,
        -0.05981722452615492,
        0.026151078071592174,
    ),
}
ATANH: Terms = {  # (atanh(s) / s - 1 - z / 3) / z ** 2 with z = s ** 2
    32: (
        0.20000078,
        0.14273328,
        0.11715261,
    ),
    64: (
        0.2,
        0.1428571428571418,
        0.11111111111147803,
        0.09090909084231205,
        0.07692308412443732,
        0.06666618270966981,
        0.05884399470520355,
        0.05210355340855533,
        0.05514734394165306,
    ),
}


def parted(x: Value) -> tuple[Value, Value]:
    """Return k, an integer, and ``1 + f``, for a normal positive x."""
    layout = x.format
    bits = x.bits()
    k = (bits - ROOT[layout.bits]) >> layout.fraction
    return k, (bits - (k << layout.fraction)).real()


def parted_normal(x: Value) -> tuple[Value, Value]:
    """Return k, as a float, and ``1 + f``, for any positive x."""
    digits = x.format.fraction + 1
    small = x < 2.0 ** (1 - x.format.bias)
    k, m = parted(small.select(x * 2.0**digits, x))
    k = small.select(k - digits, k)
    return k.convert("sitofp", x.kind), m


def log_of_parts(f: Value) -> Pair:
    """Return log(1 + f)."""
    cube = f * f * f
    return quick_sum(f, cube.fma(polynomial(f, LOG[f.format.bits]), f * f * -0.5))


def joined(k: Value, logarithm: Pair) -> Value:
    """Return ``k * ln 2 + logarithm``."""
    first, second = LN2_SHORT[k.format.bits]
    high, low = two_sum(k * first, logarithm[0])
    return high + k.fma(second, low + logarithm[1])


def at_edges(x: Value, result: Value) -> Value:
    """Return *result*, or what logarithms of zeros, infinity, negative numbers and NaN are."""
    result = (x < inf).select(result, x)
    result = (x < 0.0).select(x.to(nan), result)
    return x.equals(0.0).select(x.to(-inf), result)


def log(x: Value) -> Value:
    """Return the natural logarithm of x."""
    k, m = parted_normal(x)
    return at_edges(x, joined(k, log_of_parts(m - 1.0)))


def log2(x: Value) -> Value:
    """Return the logarithm of x to the base 2."""
    k, m = parted_normal(x)
    high, low = multiply(log_of_parts(m - 1.0), split(PER_LN2, x)[:2])
    total, rest = two_sum(k, high)
    return at_edges(x, total + (rest + low))


def log10(x: Value) -> Value:
    """Return the logarithm of x to the base 10."""
    k, m = parted_normal(x)
    first, second = LN2_SHORT[x.format.bits]
    natural = log_of_parts(m - 1.0)
    total, rest = two_sum(k * first, natural[0])
    low = k.fma(second, rest + natural[1])
    high, low = quick_sum(total, low)
    high, low = multiply((high, low), split(PER_LN10, x)[:2])
    return at_edges(x, high + low)


def log_of_pair(x: Value, low: Value) -> Value:
    """Return the natural logarithm of the pair (x, low), which is at least the epsilon."""
    layout = x.format
    k, m = parted(x)
    exponent = layout.bias - k
    exponent = (exponent > 0).select(exponent, 0)  # low does not count where x is that large
    low = low * (exponent << layout.fraction).real()
    f, rest = quick_sum(m - 1.0, low)
    high, tail = log_of_parts(f)
    return joined(k.convert("sitofp", x.kind), (high, tail + (-f).fma(rest, rest)))


def log1p(x: Value) -> Value:
    """Return the natural logarithm of ``1 + x``."""
    result = at_edges(x + 1.0, log_of_pair(*two_sum(x.to(1.0), x)))
    return (abs(x) < 2.0 ** -(x.format.fraction + 2)).select(x, result)


def square_root(high: Value, low: Value) -> Pair:
    """Return the root of a pair."""
    root = high.call("sqrt")
    rest = ((-root).fma(root, high) + low) / (root + root)
    return root, high.equals(0.0).select(high, rest)


def of_sum(x: Value, root: Pair) -> Value:
    """Return ``log(x + root)``."""
    high, low = two_sum(root[0], x)
    return log_of_pair(*quick_sum(high, low + root[1]))


def series(x: Value, third: float, fifth: float) -> Value:
    """Return ``x + x ** 3 * third + x ** 5 * fifth``."""
    square = x * x
    return (x * square).fma(square.fma(fifth, third), x)


def small(x: Value) -> Value:
    """Return whether three terms of a series are exact enough."""
    return abs(x) < 2.0 ** -(x.format.fraction // 3)


def asinh(x: Value) -> Value:
    """Return the number whose hyperbolic sine is x: ``log(|x| + sqrt(x ** 2 + 1))``."""
    size = abs(x)
    large = size > 2.0 ** (x.format.fraction + 1)
    near = large.select(x.to(1.0), size)
    square, rest = product(near, near)
    total, low = two_sum(square, 1.0)
    result = of_sum(near, square_root(total, low + rest))
    result = large.select(log(size) + LN2[0], result)
    return small(x).select(series(x, -1 / 6, 3 / 40), result).copysign(x)


def acosh(x: Value) -> Value:
    """Return the number from 0 on whose hyperbolic cosine is x: ``log(x + sqrt(x ** 2 - 1))``."""
    large = x > 2.0 ** (x.format.fraction + 1)
    near = large.select(x.to(1.0), x)
    square, rest = product(near, near)
    total, low = two_sum(square, -1.0)
    result = of_sum(near, square_root(*quick_sum(total, low + rest)))
    result = large.select(log(x) + LN2[0], result)
    return (x < 1.0).select(x.to(nan), result)


def atanh(x: Value) -> Value:
    """Return the number whose hyperbolic tangent is x: ``log((1 + x) / (1 - x)) / 2``."""
    size = abs(x)
    result = log_of_pair(*divide(two_sum(x.to(1.0), size), two_sum(x.to(1.0), -size))) * 0.5
    result = (size < 1.0).select(result, size.equals(1.0).select(x.to(inf), nan)).copysign(x)
    return small(x).select(series(x, 1 / 3, 1 / 5), result)


def log_in_pairs(x: Value) -> Pair:
    """Return the natural logarithm of a positive x; its relative error is below 2 ** -64."""
    k, m = parted_normal(x)
    f = m - 1.0
    s = divide((f, f.to(0.0)), two_sum(f, 2.0))
    z = multiply(s, s)
    third = multiply(z, split(THIRD, x)[:2])
    tail = z[0] * z[0] * polynomial(z[0], ATANH[x.format.bits])
    more = multiply(s, quick_sum(third[0], third[1] + tail))
    high, low = quick_sum(s[0], more[0])
    high, low = high * 2.0, (low + (s[1] + more[1])) * 2.0
    first, second = LN2_SHORT[x.format.bits]
    rest = product(k, second)
    total, error = two_sum(k * first, high)
    total, other = two_sum(total, rest[0])
    return quick_sum(total, error + other + (low + rest[1]))


def pow(x: Value, y: Value) -> Value:  # noqa: A001
    """Return x ** y: ``exp(y * log(|x|))`` and a sign."""
    size = abs(x)
    least, most = RANGE[x.format.bits]
    log_high, log_low = log_in_pairs(size)
    exponent, error = product(y, log_high)
    inside = abs(exponent) < -least
    low = inside.select(y.fma(log_low, error), 0.0)
    result = exponential(exponent.clamp(least, most), low)
    vanishes = (size < 1.0).select(y > 0.0, y < 0.0)
    extreme = size.equals(0.0) | size.equals(inf) | abs(y).equals(inf)
    result = extreme.select(vanishes.select(x.to(0.0), inf), result)
    result = size.equals(1.0).select(x.to(1.0), result)
    whole, half = y.call("trunc").equals(y), y * 0.5
    odd = whole & half.call("trunc").differs(half)
    negative = x.bits() < 0
    result = (negative & odd).select(-result, result)
    result = ((x < 0.0) & (size < inf) & ~whole).select(x.to(nan), result)
    result = (x.equals(x) & y.equals(y)).select(result, x + y)
    return (x.equals(1.0) | y.equals(0.0)).select(x.to(1.0), result)
