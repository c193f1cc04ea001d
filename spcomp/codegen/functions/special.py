"""Functions as LLVM text, others: cbrt, hypot, erf, fmod."""

from __future__ import annotations

from math import inf, nan

from spcomp.codegen.functions.exponentials import Terms, exponential
from spcomp.codegen.functions.values import Value, polynomial, product, repeat

ERF: Terms = {  # erf(x) / x - 1 in z = x ** 2, to 1
    32: (
        0.12837917,
        -0.37612626,
        0.112835996,
        -0.026854401,
        0.0051894416,
        -0.0008019926,
        7.8857964e-05,
    ),
    64: (
        0.12837916709551256,
        -0.37612638903183543,
        0.11283791670945156,
        -0.026866170643260096,
        0.005223977607285508,
        -0.0008548325982836187,
        0.00012055295108571707,
        -1.4924740473194528e-05,
        1.6447464618383318e-06,
        -1.6208759852082742e-07,
        1.3721137179990592e-08,
        -7.79768641241474e-10,
    ),
}
ERFC: Terms = {  # -log(1 - erf(t + 2)), from t = -1
    32: (
        5.364941,
        4.4181595,
        0.9237531,
        0.016487272,
        -0.003543664,
        0.00071275013,
        -0.00018556116,
    ),
    64: (
        5.364941264616636,
        4.418160805994413,
        0.9237508418239427,
        0.016465118137390464,
        -0.0035707563478124924,
        0.000732399377989844,
        -0.0001353093308044006,
        2.0706470486570094e-05,
        -1.95218687123019e-06,
        -2.0372697085185895e-07,
        1.73171725253527e-07,
        -5.769641360526115e-08,
        1.3989972528323066e-08,
        -2.6094915235255062e-09,
        2.5688128746602986e-10,
        7.153172301471084e-11,
        -3.662072918074791e-11,
        4.8650461609172525e-12,
    ),
}
MOST_ERF = {32: 3.94, 64: 5.94}  # erf is 1 from here
START = {32: 0x54A1F000, 64: 0x553EE00000000000}  # less a third of the bits of x: near 1 / cbrt(x)


def cbrt(x: Value) -> Value:
    """Return the cube root of x: ``x * r ** 2`` where r is the root of ``1 / x``, by iteration."""
    layout = x.format
    size = abs(x)
    subnormal = size < 2.0 ** (1 - layout.bias)
    scale = 3 * (layout.fraction // 3 + 1)
    a = subnormal.select(size * 2.0**scale, size)
    r = (START[layout.bits] - a.bits() // 3).real()
    for terms in ((1.0, 1 / 3, 2 / 9, 14 / 81),) * (2 if layout.bits == 64 else 1):
        error = 1.0 - a * r * (r * r)
        r = r * polynomial(error, terms)
    root = a * (r * r)
    square, low = product(root, root)
    error = (-square).fma(root, a) - low * root
    root = (r * r * (1 / 3)).fma(error, root)
    root = subnormal.select(root * 2.0 ** -(scale // 3), root)
    return ((size > 0.0) & (size < inf)).select(root.copysign(x), x)


def hypot(x: Value, y: Value) -> Value:
    """Return ``sqrt(x ** 2 + y ** 2)`` without overflow on the way."""
    layout = x.format
    a, b = abs(x), abs(y)
    exponent = layout.bias // 2
    large = (a > 2.0**exponent) | (b > 2.0**exponent)
    low = (a < 2.0**-exponent) & (b < 2.0**-exponent)
    one, power = x.to(1.0), 2.0 ** (exponent + layout.fraction)
    down = large.select(x.to(1 / power), low.select(x.to(power), one))
    up = large.select(x.to(power), low.select(x.to(1 / power), one))
    c, d = a * down, b * down
    square, rest = product(d, d)
    more, tail = product(c, c)
    total = square + more
    larger = square > more
    error = larger.select(square - total + more, more - total + square) + (rest + tail)
    root = (total + error).call("sqrt")
    result = root * up
    return (a.equals(inf) | b.equals(inf)).select(x.to(inf), result)


def erf(x: Value) -> Value:
    """Return the error function of x: a polynomial to 1, then 1 less an exponential."""
    bits = x.format.bits
    size = abs(x)
    near = polynomial(x * x, ERF[bits])
    t = size.clamp(0.0, MOST_ERF[bits]) - 2.0
    exponent = polynomial(t, ERFC[bits])
    far = 1.0 - exponential(-exponent, x.to(0.0))
    return (size > 1.0).select(far.copysign(x), x.fma(near, x))


def fmod(x: Value, y: Value) -> Value:
    """Return the exact remainder of x by y, with the sign of x: in integers, some digits a step."""
    layout, a, b = x.format, abs(x), abs(y)
    (digits, above), (divisor, below) = integer(a), integer(b)
    divisor = divisor.equals(0).select(divisor.to(1), divisor)
    most = 63 - layout.fraction  # digits to append to a remainder so that it still is a word

    def step(rest: Value, left: Value) -> tuple[Value, ...]:
        some = (left < most).select(left, most)
        return (rest << some) % divisor, left - some

    first = (digits % divisor, above - below)
    rest, _ = repeat(first, lambda rest, left: left > 0, step)  # noqa: ARG005
    exponent = below if layout.bits == 64 else below.convert("trunc", layout.word)
    scale = (exponent << layout.fraction).real()
    result = rest.convert("uitofp", x.kind) * 2.0**-layout.fraction * scale
    result = (a < b).select(x, result.copysign(x))
    valid = (a < inf) & (b > 0.0)  # and y is no number where it is not ordered
    return valid.select(result, nan)


def integer(x: Value) -> tuple[Value, Value]:
    """Return the digits of a positive x as a 64-bit integer, and its exponent as stored."""
    layout = x.format
    bits = x.bits()
    bits = bits if layout.bits == 64 else bits.convert("zext", "i64")
    exponent, digits = bits.shifted(layout.fraction), bits & ((1 << layout.fraction) - 1)
    normal = exponent.differs(0)
    return normal.select(digits | (1 << layout.fraction), digits), normal.select(exponent, 1)
