"""Functions as LLVM text, trigonometry: sin, cos, tan of any finite argument.

``x = n * pi / 2 + r``. For small x, r comes of products with pi / 2 in three parts (Cody and Waite,
"Software Manual for the Elementary Functions", 8). For others the digits of ``x * 2 / pi`` that
count are computed in integers (Payne and Hanek, "Radian Reduction for Trigonometric Functions",
1983): the digits of 2 / pi come from constants that are shifted, not from a table in memory.
"""

from __future__ import annotations

from spcomp.codegen.functions.exponentials import Terms
from spcomp.codegen.functions.values import (
    Pair,
    Value,
    divide,
    either,
    polynomial,
    product,
    quick_sum,
    round_to_integer,
    scalar,
    two_sum,
)

PER_HALF_PI = 0.6366197723675814
HALF_PI = {
    32: (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
}
NEAR = {32: 17, 64: 30}  # the exponent from which Payne and Hanek's reduction is used
TWO_PER_PI = int(  # its first 1192 binary digits, enough for the largest double
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e006492eea09d1921cfe"
    "1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f49c845f8bbdf9283b1ff897ffde05980fef2f"
    "118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d08560330"
    "46fc",
    16,
)
DIGITS = 1192
SIN: Terms = {  # (sin(r) / r - 1) / z with z = r ** 2
    32: (
        -0.16666654,
        0.008332084,
        -0.00019504344,
    ),
    64: (
        -0.16666666666666624,
        0.00833333333332004,
        -0.00019841269827855653,
        2.755731299973983e-06,
        -2.5050647808469655e-08,
        1.589030950985879e-10,
    ),
}
COS: Terms = {  # (cos(r) - 1 + z / 2) / z ** 2 with z = r ** 2
    32: (
        0.041666646,
        -0.0013887243,
        2.4423938e-05,
    ),
    64: (
        0.04166666666666658,
        -0.001388888888887091,
        2.480158728741546e-05,
        -2.7557313741017843e-07,
        2.087563855924658e-09,
        -1.1355191695608277e-11,
    ),
}


def reduced(x: Value) -> tuple[Value, Pair]:
    """Return n, of which two bits count, and r with ``x = n * pi / 2 + r``, ``|r| < 0.8``."""

    def near() -> tuple[Value, ...]:
        first, second, third = HALF_PI[x.format.bits]
        count, n = round_to_integer(x, PER_HALF_PI)
        exact = (-count).fma(first, x)  # both are multiples of the last place of pi / 2
        high, low = product(count, -second)
        total, rest = two_sum(exact, high)
        return n, *quick_sum(total, rest + count.fma(-third, low))

    def far() -> tuple[Value, ...]:
        n, (high, low) = reduced_far(abs(x))
        negative = x.bits() < 0
        return tuple(negative.select(-value, value) for value in (n, high, low))

    large = abs(x) >= 2.0 ** NEAR[x.format.bits]
    n, high, low = either(large, far, near)
    return n, (high, low)


def reduced_far(x: Value) -> tuple[Value, Pair]:
    """Return n and r of a positive x that is not near; any numbers of infinity and NaN."""
    layout = x.format
    width, wide = layout.bits, f"i{2 * layout.bits}"
    bits = x.bits()
    digits = (bits & ((1 << layout.fraction) - 1)) | (1 << layout.fraction)
    # The last place of digits is 2 ** exponent: earlier digits of 2 / pi give multiples of 4.
    exponent = bits.shifted(layout.fraction) - (layout.bias + layout.fraction)
    high, middle, low = window(exponent, layout.fraction - NEAR[width])
    factor = digits.convert("zext", wide)
    last = (factor * low.convert("zext", wide)).shifted(width)
    total = factor * middle.convert("zext", wide) + last
    total = total + ((digits * high).convert("zext", wide) << width)
    n = (total + (1 << (2 * width - 3))).shifted(2 * width - 2).convert("trunc", layout.word)
    return n, angle(total << 2, x.kind)


def window(exponent: Value, most_negative: int) -> tuple[Value, ...]:
    """Return three words of the digits of 2 / pi, from the one that *exponent* asks for."""
    width = int(scalar(exponent.kind)[1:])
    zeros = most_negative + 2  # in front, so that the least exponent asks for the first digit
    count = 19 if width == 64 else 7
    digits = TWO_PER_PI << (count * width) >> (DIGITS + zeros)
    words = [digits >> (width * (count - 1 - i)) & ((1 << width) - 1) for i in range(count)]
    signed = (word - (word >> (width - 1) << width) for word in words)
    values = [exponent.to(word) for word in signed]
    at = exponent + most_negative
    step = 1 << ((count - 4).bit_length() - 1)
    while step:
        skip = (at & (step * width)).differs(0)
        most = min(len(values) - step, 3 + step)
        values = [skip.select(values[i + step], values[i]) for i in range(most)]
        step >>= 1
    return tuple(values[i].call("fshl", values[i + 1], at & (width - 1)) for i in range(3))


def angle(fraction: Value, real: str) -> Pair:
    """Return the signed *fraction* of a quarter turn, of two words, as radians."""
    if scalar(real) == "float":
        radians = fraction.convert("sitofp", "double") * (1.5707963267948966 * 2.0**-64)
        high = radians.convert("fptrunc", real)
        return high, (radians - high.convert("fpext", "double")).convert("fptrunc", real)
    first = (fraction >> 96).convert("trunc", "i32").convert("sitofp", real)
    second = fraction.shifted(64).convert("trunc", "i32").convert("uitofp", real)
    third = fraction.convert("trunc", "i64").convert("uitofp", real)
    high, low = quick_sum(first * 2.0**-32, second * 2.0**-64)
    high, low = quick_sum(high, low + third * 2.0**-128)
    half_pi = HALF_PI[64]
    total, rest = product(high, half_pi[0])
    return quick_sum(total, low.fma(half_pi[0], high.fma(half_pi[1], rest)))


def sine(r: Pair) -> Pair:
    """Return the sine of r."""
    high, low = r
    z = high * high
    cosine = z.fma(-0.5, 1.0)
    return high, (high * z).fma(polynomial(z, SIN[high.format.bits]), low * cosine)


def cosine(r: Pair) -> Pair:
    """Return the cosine of r."""
    high, low = r
    z, rest = product(high, high)
    total, error = quick_sum(high.to(1.0), z * -0.5)
    tail = (z * z).fma(polynomial(z, COS[high.format.bits]), rest * -0.5)
    return total, error + (-high).fma(low, tail)


def of_quarters(x: Value, add: int) -> Value:
    """Return the sine of ``x + add * pi / 2``."""
    n, r = reduced(x)
    n = n + add if add else n
    sines, cosines = sine(r), cosine(r)
    odd, negative = (n & 1).differs(0), (n & 2).differs(0)
    result = odd.select(cosines[0], sines[0]) + odd.select(cosines[1], sines[1])
    return finite(x, negative.select(-result, result))


def finite(x: Value, result: Value) -> Value:
    """Return *result*, or NaN if x is not finite."""
    return (abs(x) < float("inf")).select(result, x - x)


def sin(x: Value) -> Value:
    """Return the sine of x."""
    tiny = abs(x) < 2.0 ** -(x.format.fraction // 2 + 2)
    return tiny.select(x, of_quarters(x, 0))


def cos(x: Value) -> Value:
    """Return the cosine of x."""
    return of_quarters(x, 1)


def tan(x: Value) -> Value:
    """Return the tangent of x."""
    n, r = reduced(x)
    sines, cosines = quick_sum(*sine(r)), quick_sum(*cosine(r))
    odd = (n & 1).differs(0)
    over = [odd.select(-c, s) for c, s in zip(cosines, sines, strict=True)]
    under = [odd.select(s, c) for c, s in zip(cosines, sines, strict=True)]
    tiny = abs(x) < 2.0 ** -(x.format.fraction // 2 + 2)
    return tiny.select(x, finite(x, divide((over[0], over[1]), (under[0], under[1]))[0]))
