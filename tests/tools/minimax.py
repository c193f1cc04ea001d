"""The polynomials of ``spcomp.codegen.nvvm``: minimax by Remez's exchange, in many digits.

``python -m tests.tools.minimax`` prints the tables of coefficients, lowest power first, each with
the largest weighted error in bits. Source: Muller, "Elementary Functions", 3rd edition, 3.6.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]


def fit(function: Function, weight: Function, low: float, high: float, degree: int):
    """The coefficients and the error of the best polynomial, least in ``weight * error``."""
    centre, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    grid = [centre - half * mp.cos(mp.pi * (i + 0.5) / (40 * degree)) for i in range(40 * degree)]
    values = [(function(t), weight(t)) for t in grid]
    points = [int((1 - math.cos(math.pi * i / (degree + 1))) / 2 * (len(grid) - 1))
              for i in range(degree + 2)]  # fmt: skip
    for _ in range(20):
        rows = mp.matrix(degree + 2, degree + 2)
        right = mp.matrix(degree + 2, 1)
        for i, at in enumerate(points):
            for j in range(degree + 1):
                rows[i, j] = grid[at] ** j
            rows[i, degree + 1] = (-1) ** i / values[at][1]
            right[i] = values[at][0]
        solution = mp.lu_solve(rows, right)
        terms = [solution[j] for j in range(degree + 1)]
        pairs = zip(grid, values, strict=True)
        errors = [w * (mp.polyval(terms[::-1], t) - f) for t, (f, w) in pairs]
        worst = max(abs(e) for e in errors)
        if worst < abs(solution[degree + 1]) * 1.01:
            break
        points = extremes(errors, degree + 2)
    return terms, worst


def extremes(errors: list[mp.mpf], count: int) -> list[int]:
    """Where *errors* alternates: the largest of each run of one sign, *count* of them."""
    found: list[int] = []
    for i, error in enumerate(errors):
        if found and (errors[found[-1]] > 0) == (error > 0):
            if abs(error) > abs(errors[found[-1]]):
                found[-1] = i
        else:
            found.append(i)
    while len(found) > count:
        found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
    assert len(found) == count, "the grid is too coarse for that many digits"
    return found


LN2, ROOT = math.log(2) / 2 * 1.01, math.sqrt(0.5)
EIGHTH, QUARTER = math.tan(math.pi / 8) * 1.001, (math.pi / 4 * 1.02) ** 2
LEAST = 1e-9  # the quotients below are 0 / 0 at 0, and lose too many digits nearer to it


def root(z: mp.mpf, function: Function) -> mp.mpf:
    """``function(x) / x`` where ``x * x`` is *z*."""
    return function(mp.sqrt(z)) / mp.sqrt(z)


def erf_tail(t: mp.mpf) -> mp.mpf:
    return -mp.log(mp.erfc(t + 2))


def table() -> dict[str, tuple[Function, Function, float, float, int, int]]:
    """By name: function, weight, interval, and the degree for float32 and float64."""
    one = lambda z: mp.mpf(1)  # noqa: E731
    return {
        "EXP": (lambda r: (mp.expm1(r) - r) / r**2, lambda r: r * r, -LN2, LN2, 4, 10),
        "LOG": (
            lambda f: (mp.log1p(f) - f + f * f / 2) / f**3,
            lambda f: f**3 / mp.log1p(f),
            ROOT - 1,
            2 * ROOT - 1,
            7,
            18,
        ),
        "ATANH": (
            lambda z: (root(z, mp.atanh) - 1 - z / 3) / z**2,
            lambda z: z * z,
            LEAST,
            (3 - 4 * ROOT) ** 2 * 1.01,
            2,
            8,
        ),
        "SIN": (lambda z: (root(z, mp.sin) - 1) / z, lambda z: z, LEAST, QUARTER, 2, 5),
        "COS": (
            lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2,
            lambda z: z * z,
            LEAST,
            QUARTER,
            2,
            5,
        ),
        "ATAN": (lambda z: (root(z, mp.atan) - 1) / z, lambda z: z, LEAST, EIGHTH**2, 4, 10),
        "ASIN": (lambda z: (root(z, mp.asin) - 1) / z, lambda z: z, LEAST, 0.2501, 4, 11),
        "ERF": (lambda z: root(z, mp.erf) - 1, one, LEAST, 1.001, 6, 11),
        "ERFC32": (erf_tail, lambda t: mp.erfc(t + 2), -1.0, 1.95, 6, 0),
        "ERFC64": (erf_tail, lambda t: mp.erfc(t + 2), -1.0, 3.95, 0, 17),
    }


def main() -> None:
    for name, (function, weight, low, high, *degrees) in table().items():
        for bits, degree in zip((32, 64), degrees, strict=True):
            if degree:
                terms, worst = fit(function, weight, low, high, degree)
                number = np.float32 if bits == 32 else np.float64
                sys.stdout.write(f"{name} {bits}: 2 ** {float(mp.log(worst, 2)):.1f}\n")
                sys.stdout.writelines(f"    {number(str(term))!s},\n" for term in terms)


if __name__ == "__main__":
    main()
