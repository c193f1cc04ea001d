"""Arithmetic on values: numbers, whether they are present, and how far rounding may move them.

Numbers are computed by numpy in the type that they have; ``error`` bounds what another order of
operations, or another library's functions, make of them. Infinity there: nothing is known, not even
whether the value is present (a comparison that rounding may turn, the sign of a zero divided by).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

Array = np.ndarray[Any, Any]
ULPS = 2  # of functions; operators round once; four times as much is allowed
TINY = {np.dtype(kind): float(np.finfo(kind).tiny) for kind in ("float16", "float32", "float64")}


class Meaningless(Exception):
    """A program that has to be refused."""


@dataclass(frozen=True)
class Value:
    """Arrays that broadcast against each other; *weak* is a Python number, whose type gives way."""

    number: Array
    present: Array
    error: Array
    weak: Any = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.number.dtype)

    def unknown(self) -> Array:
        return np.isinf(self.error)


def exact(number: Any, present: Any = True, weak: Any = None) -> Value:
    """Return a value that is known."""
    number = np.asarray(number)
    return Value(number, np.asarray(present), np.zeros((1,) * number.ndim), weak)


def eps(dtype: np.dtype[Any]) -> float:
    """Return how far a rounding moves a number of *dtype*, as a part of it."""
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


def bounded(number: Array, present: Array, error: Array, unknown: Array) -> Value:
    """Return a value whose *error* is sane: none on infinities, infinite where *unknown*."""
    number, present, error, unknown = np.broadcast_arrays(number, present, error, unknown)
    error = np.where(np.isnan(error), 0.0, error)
    if number.dtype.kind == "f":
        error = np.where(np.isfinite(number), error, 0.0)
    return Value(number, present, np.where(unknown, np.inf, error))


def common(values: list[Value], *, counts: bool = True) -> np.dtype[Any]:
    """Return the type in which *values* are combined: numpy's, but integers take that of floats.

    *counts*: in arithmetic, in which bools alone count as integers.
    """
    strong = [value.dtype for value in values if value.weak is None]
    weak = [value.weak for value in values if value.weak is not None]
    floats = [dtype for dtype in strong if dtype.kind == "f"]
    if floats:
        return np.dtype(np.result_type(*floats))
    found = np.dtype(np.result_type(*strong, *weak))
    return np.dtype("int64") if found.kind == "b" and counts else found


def cast(value: Value, dtype: Any) -> Value:
    """Return *value* in another type."""
    dtype = np.dtype(dtype)
    unknown = value.unknown()
    error = value.error
    if value.dtype.kind == "f" and dtype.kind in "iub":
        with np.errstate(all="ignore"):
            low, high = value.number - error, value.number + error
            moved = low.astype(dtype) != high.astype(dtype)
            limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            wide = value.number.astype("float64")
            beyond = ~np.isfinite(wide) | (wide <= limits[0] - 1) | (wide >= limits[1])
        if dtype.kind != "b":
            unknown = unknown | beyond
        unknown, error = unknown | moved, np.zeros_like(error)
    with np.errstate(all="ignore"):
        number = value.number.astype(dtype)
        if dtype.kind == "f":
            error = error + np.abs(number.astype("float64")) * eps(dtype) + TINY[dtype]
    return bounded(number, value.present, error, unknown)


def _functions() -> dict[str, Callable[..., Any]]:
    """Return numpy's functions by the names they have in index notation."""
    same = "exp exp2 expm1 log log2 log10 log1p sqrt cbrt floor ceil trunc hypot"
    same += " sin cos tan sinh cosh tanh"
    arcs = {name: getattr(np, f"arc{name[1:]}") for name in ("asin", "acos", "atan", "atan2")}
    arcs |= {name: getattr(np, f"arc{name[1:]}") for name in ("asinh", "acosh", "atanh")}
    return {
        **{name: getattr(np, name) for name in same.split()},
        **arcs,
        "erf": special.erf,
        "round": np.rint,
        "sigmoid": special.expit,
        "rsqrt": lambda x: 1 / np.sqrt(x),
    }


FUNCTIONS = _functions()
COMPARISONS: dict[str, Callable[..., Array]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
BITWISE: dict[str, Callable[..., Array]] = {
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
}


def _moved(compute: Callable[..., Array], numbers: list[Array], errors: list[Array]) -> Array:
    """Return how far *compute* goes astray where its arguments do, one after the other."""
    with np.errstate(all="ignore"):
        middle = compute(*numbers).astype("float64")
        error = np.zeros(middle.shape)
        for at, by in enumerate(errors):
            if not np.any(by > 0):
                continue
            for sign in (-1, 1):
                other = numbers.copy()
                shifted = numbers[at].astype("float64") + sign * np.where(np.isinf(by), 0, by)
                other[at] = shifted
                moved = np.abs(compute(*other).astype("float64") - middle)
                error = error + np.where(np.isnan(moved) & ~np.isnan(middle), np.inf, moved)
    return np.where(np.isnan(error), 0.0, error)


def _computed(
    compute: Callable[..., Any], values: list[Value], ulps: float, odd: Any = False
) -> Value:
    """Return *compute* of *values* of one type, present where all are; unknown where *odd*."""
    present, unknown = np.asarray(True), np.asarray(odd)
    for value in values:
        present, unknown = present & value.present, unknown | value.unknown()
    numbers = [value.number for value in values]
    with np.errstate(all="ignore"):
        number = compute(*numbers)
    moved = _moved(compute, numbers, [value.error for value in values])
    unknown = unknown | np.isinf(moved)
    if number.dtype == np.float16:  # computed in float32, where less is infinite
        unknown = unknown | ~np.isfinite(number)
    if number.dtype.kind == "f":
        size = np.abs(number.astype("float64"))
        moved = moved + ulps * (size * eps(number.dtype) + TINY[number.dtype])
    return bounded(number, present, moved, unknown)


def compare(name: str, a: Value, b: Value) -> Value:
    """Return whether *a* and *b* compare so; unknown where rounding decides."""
    if a.dtype.kind in "iub" and b.dtype.kind in "iub":
        number = COMPARISONS[name](a.number, b.number)
        return bounded(number, a.present & b.present, np.zeros(()), a.unknown() | b.unknown())
    kind = common([a, b])
    a, b = (cast(x, kind) if x.dtype != kind else x for x in (a, b))
    with np.errstate(all="ignore"):
        number = COMPARISONS[name](a.number, b.number)
        room = a.error + b.error
        near = np.abs(a.number.astype("float64") - b.number.astype("float64")) <= room
    unknown = a.unknown() | b.unknown() | (near & (room > 0))
    return bounded(number, a.present & b.present, np.zeros(()), unknown)


def truth(value: Value) -> Value:
    """Return whether *value* is not zero."""
    return value if value.dtype == bool else compare("!=", value, exact(0, weak=0))


def _divided(name: str, a: Value, b: Value) -> Value:
    zero = b.number == 0
    if a.dtype.kind != "f":  # an integer divided by zero raises, whatever numpy gives
        compute = np.floor_divide if name == "//" else np.mod
        return _computed(compute, [a, b], 1, odd=zero)
    sign = zero & (a.number != 0)
    if name == "/":
        return _computed(np.divide, [a, b], 1, odd=sign)
    quotient = _computed(np.divide, [a, b], 1)
    near = np.abs(np.rint(quotient.number) - quotient.number) <= quotient.error
    huge = np.abs(quotient.number.astype("float64")) * eps(a.dtype) > 0.1
    exactly = (a.error == 0) & (b.error == 0) if name == "//" else np.asarray(False)
    compute = np.floor_divide if name == "//" else np.mod
    odd = zero | ~np.isfinite(quotient.number) | (near & ~exactly) | huge
    return _computed(compute, [a, b], 4, odd=odd)


def _power(x: Array, y: Array) -> Array:
    return np.power(x, y)


def combined(name: str, args: list[Value]) -> Value:
    """Return the operator or function *name* of *args*, present where all are.

    Python numbers that meet only each other stay Python numbers.
    """
    out = _combined(name, args)
    if any(arg.weak is None for arg in args):
        return out
    weak = np.append(out.number, out.dtype.type(0)).flat[0].item()
    return Value(out.number, out.present, out.error, weak)


def _combined(name: str, args: list[Value]) -> Value:
    if name in COMPARISONS:
        return compare(name, *args)
    if name in ("and", "or", "not"):
        truths = [truth(arg) for arg in args]
        logic = {"and": np.logical_and, "or": np.logical_or, "not": np.logical_not}[name]
        return _computed(logic, truths, 0)
    if name in ("isnan", "isinf"):
        return _computed(np.isnan if name == "isnan" else np.isinf, [cast(args[0], "float64")], 0)
    if name in ("where",):
        kind = common(args[1:], counts=False)
        branches = [cast(arg, kind) for arg in args[1:]]
        return _computed(np.where, [truth(args[0]), *branches], 1)
    if name in (*BITWISE, "~"):
        kind = common(args) if any(arg.dtype.kind != "b" for arg in args) else np.dtype("bool")
        if kind.kind == "f":
            raise Meaningless(f"{name} of {kind}")
        compute = np.invert if name == "~" else BITWISE[name]
        return _computed(compute, [cast(arg, kind) for arg in args], 0)
    return _arithmetic(name, args)


def _arithmetic(name: str, args: list[Value]) -> Value:
    kind = common(args)
    floating = name in FUNCTIONS or name in ("/", "**", "pow")
    whole = name in ("**", "pow") and all(isinstance(arg.weak, int) for arg in args)
    if floating and kind.kind != "f" and not (whole and np.all(args[1].number >= 0)):
        kind = np.dtype("float64")
    args = [cast(arg, kind) if arg.dtype != kind else arg for arg in args]
    if name in FUNCTIONS:
        odd = np.asarray(False)
        if name == "atan2":
            odd = (args[0].number == 0) | (args[1].number == 0)
        if name == "rsqrt":
            odd = args[0].number == 0
        if name == "log1p":
            odd = args[0].number == -1
        if name == "tan":  # near a pole
            steep = 1 + np.tan(args[0].number.astype("float64")) ** 2
            odd = args[0].error * steep > 0.1
        wide = kind == np.float16  # by way of float32
        function = FUNCTIONS[name]
        compute = (
            (lambda *x: function(*(y.astype("float32") for y in x)).astype(x[0].dtype))
            if wide
            else function
        )
        return _computed(compute, args, ULPS, odd)
    if name in ("**", "pow"):
        return _computed(_power, args, 2 * ULPS, (args[0].number == 0) & (args[1].number < 0))
    if name in ("/", "//", "%"):
        return _divided(name, *args)
    if name == "fma":
        product = _computed(np.multiply, args[:2], 1)
        return merged("+", product, args[2], everywhere=True)
    simple: dict[str, Callable[..., Any]] = {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "neg": np.negative,
        "abs": np.abs,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "max": np.maximum,
        "min": np.minimum,
    }
    return _computed(simple[name], args, 1)


def merged(name: str, a: Value, b: Value, *, everywhere: bool = False) -> Value:
    """Return *a* and *b* added up: present where one is, and what is absent adds nothing."""
    both = combined(name, [a, b])
    if everywhere:
        return both
    kind = both.dtype
    one = truth(a) if name in ("or", "and") else cast(a, kind)
    other = truth(b) if name in ("or", "and") else cast(b, kind)
    if name == "-":
        other = combined("neg", [other])
    number = np.where(both.present, both.number, np.where(one.present, one.number, other.number))
    error = np.where(both.present, both.error, np.where(one.present, one.error, other.error))
    unknown = a.unknown() | b.unknown()
    found = bounded(number, one.present | other.present, error, unknown | np.isinf(error))
    return replace(found, weak=both.weak)
