"""Part of the careful reading: words to numbers, and numbers to the type that is asked for."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from spcomp.errors import ArgumentError

if TYPE_CHECKING:
    from spcomp.io.source import Source

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
INTEGER = re.compile(rb"[+-]?[0-9]{1,40}")
REAL = re.compile(
    rb"[+-]?(?:([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE
)
_INTEGERS = (f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
DTYPES = ("bool", *_INTEGERS, "float32", "float64")


def show(word: bytes) -> str:
    """Return *word* as it stands in a message: quoted, ASCII and short."""
    text = word[:40].decode("ascii", "backslashreplace")
    return repr(text + "..." if len(word) > 40 else text).replace("\\\\", "\\")


def integer(source: Source, line: int, word: bytes, dtype: str = "int64") -> int:
    """Return the integer that *word* spells; raises FileError if it is none of *dtype*."""
    if not INTEGER.fullmatch(word):
        source.refuse(line, f"{show(word)} is not an integer")
    value, kind = int(word), np.iinfo(dtype)
    if not kind.min <= value <= kind.max:
        source.refuse(line, f"{show(word)} overflows {dtype}")
    return value


def index(source: Source, line: int, word: bytes, extent: int, axis: str) -> int:
    """Return the 0-based coordinate that *word* spells 1-based; raises FileError if out of range.

    A negative *extent*: there is no upper bound but that of int64.
    """
    value = integer(source, line, word)
    if value < 1 or value > extent >= 0:
        expected = f"1..{extent}" if extent > 0 else "at least 1" if extent < 0 else "none"
        source.refuse(line, f"{axis} {value} is out of range, expected {expected}")
    return value - 1


def real(source: Source, line: int, word: bytes) -> float:
    """Return the float64 nearest to what *word* spells; raises FileError if it is no number."""
    match = REAL.fullmatch(word)
    if not match:
        source.refuse(line, f"{show(word)} is not a number")
    value = float(word)
    if match[1] and math.isinf(value):
        source.refuse(line, f"{show(word)} overflows float64")
    return value


def wanted(dtype: Any) -> np.dtype[Any] | None:
    """Return the type of values that *dtype* asks for; raises ArgumentError for one we lack."""
    if dtype is None:
        return None
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        found = None
    if found is None or found.name not in DTYPES:
        raise ArgumentError(f"argument dtype: got {dtype!r}, expected one of {', '.join(DTYPES)}")
    made: np.dtype[Any] = np.dtype(found.name)  # in the byte order of the machine
    return made


def cast(source: Source, values: Array, dtype: np.dtype[Any] | None) -> Array:
    """Return *values* as *dtype*; raises FileError for a value that it cannot hold.

    Floats are rounded to narrower floats; nothing else changes a value.
    """
    if dtype is None or dtype == values.dtype:
        return values
    with np.errstate(all="ignore"):
        made = values.astype(dtype)
    lost = np.isinf(made) & np.isfinite(values) if dtype.kind == "f" else ~_kept(values, made)
    if lost.any():
        value = values.reshape(-1)[np.flatnonzero(lost)[0]]
        source.refuse(0, f"the value {value} does not fit {dtype}")
    return made


def _kept(values: Array, made: Array) -> Array:
    """Where *made*, of integers or bool, is what *values* were."""
    if made.dtype.kind == "b":
        return np.asarray(values == made)
    kind = np.iinfo(made.dtype)
    if values.dtype.kind == "f":  # the bounds are powers of two: exact as floats
        inside = (values >= float(kind.min)) & (values < float(kind.max // 2 + 1) * 2)
    elif values.dtype.kind == "b":
        return np.ones(values.shape, np.bool_)
    else:
        inside = (values >= kind.min) & (values <= kind.max)
    return np.asarray(inside & (values == made))
