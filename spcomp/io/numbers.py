"""Part of reading: words to numbers, and numbers to the requested type."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from spcomp.io.source import Source

INTEGER = re.compile(rb"[+-]?[0-9]{1,40}")
REAL = re.compile(
    rb"[+-]?(?:([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE
)
_INTEGERS = (f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
DTYPES = ("bool", *_INTEGERS, "float32", "float64")


def show(word: bytes) -> str:
    """Return *word* for a message: quoted, ASCII and short."""
    text = word[:40].decode("ascii", "backslashreplace")
    return repr(text + "..." if len(word) > 40 else text).replace("\\\\", "\\")


def integer(source: Source, line: int, word: bytes, dtype: str = "int64") -> int:
    """Return the integer that *word* spells; raises FileError if *dtype* does not have it."""
    if not INTEGER.fullmatch(word):
        source.refuse(line, f"{show(word)} is not an integer")
    value, kind = int(word), np.iinfo(dtype)
    if not kind.min <= value <= kind.max:
        source.refuse(line, f"{show(word)} overflows {dtype}")
    return value


def index(source: Source, line: int, word: bytes, extent: int, axis: str) -> int:
    """Return the 0-based coordinate for a 1-based *word*; raises FileError if out of range.

    With a negative *extent* only int64 is a bound.
    """
    value = integer(source, line, word)
    if value < 1 or value > extent >= 0:
        expected = f"1..{extent}" if extent > 0 else "at least 1" if extent < 0 else "none"
        source.refuse(line, f"{axis} {value} is out of range, expected {expected}")
    return value - 1


def real(source: Source, line: int, word: bytes) -> float:
    """Return the float64 nearest to *word*; raises FileError if that is not a number."""
    match = REAL.fullmatch(word)
    if not match:
        source.refuse(line, f"{show(word)} is not a number")
    value = float(word)
    if match[1] and math.isinf(value):
        source.refuse(line, f"{show(word)} overflows float64")
    return value


def dtype_of(dtype: Any) -> np.dtype[Any] | None:
    """Return *dtype* as a numpy dtype; raises ArgumentError for one that is not supported."""
    if dtype is None:
        return None
    try:
        candidate = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        candidate = None
    if candidate is None or candidate.name not in DTYPES:
        raise ArgumentError(f"argument dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    result: np.dtype[Any] = np.dtype(candidate.name)  # in the byte order of the machine
    return result


def cast(source: Source, values: Array, dtype: np.dtype[Any] | None) -> Array:
    """Return *values* as *dtype*; raises FileError for a value that it cannot hold.

    Floats are rounded to narrower floats; nothing else changes a value.
    """
    if dtype is None or dtype == values.dtype:
        return values
    with np.errstate(all="ignore"):
        result = values.astype(dtype)
    lost = (
        np.isinf(result) & np.isfinite(values) if dtype.kind == "f" else ~_unchanged(values, result)
    )
    if lost.any():
        value = values.reshape(-1)[np.flatnonzero(lost)[0]]
        source.refuse(0, f"the value {value} does not fit {dtype}")
    return result


def _unchanged(values: Array, result: Array) -> Array:
    """Return where *result*, of integers or bools, equals *values*."""
    if result.dtype.kind == "b":
        return np.asarray(values == result)
    kind = np.iinfo(result.dtype)
    if values.dtype.kind == "f":  # the bounds are powers of two: exact as floats
        inside = (values >= float(kind.min)) & (values < float(kind.max // 2 + 1) * 2)
    elif values.dtype.kind == "b":
        return np.ones(values.shape, np.bool_)
    else:
        inside = (values >= kind.min) & (values <= kind.max)
    return np.asarray(inside & (values == result))
