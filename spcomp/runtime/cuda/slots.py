"""At a launch on a GPU: the types of parameters, and the 8 bytes that hold a value of each."""

from __future__ import annotations

import ctypes
import operator
from typing import Any

import numpy as np

from spcomp import dtypes
from spcomp.codegen.abi import pack
from spcomp.errors import ArgumentError

TYPES = {
    "ptr": dtypes.handle, "bool": dtypes.bool_, "bf16": dtypes.bfloat16,
    **{f"i{bits}": dtypes.DType("int", bits) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": dtypes.DType("uint", bits) for bits in (8, 16, 32, 64)},
    **{f"f{bits}": dtypes.DType("float", bits) for bits in (16, 32, 64)},
}  # fmt: skip
KINDS = {dtype: kind for kind, dtype in TYPES.items()}
_LIMITS = {
    kind: range(-(1 << (d.bits - 1)), 1 << (d.bits - 1)) if d.kind == "int" else range(1 << d.bits)
    for kind, d in TYPES.items()
    if not d.is_float
}
_DIRECT = {"ptr": range(1 << 63), **{k: limits for k, limits in _LIMITS.items() if k[0] == "i"}}


def slot(kind: str, value: Any) -> int:
    """Return the slot for *value*, of the parameter type *kind*; raises ArgumentError.

    Values are numbers of Python, numpy or ctypes. A pointer is a number, or None for no array.
    """
    if type(value) is int and value in _DIRECT.get(kind, ()):
        return value
    if kind == "ptr":
        value = 0 if value is None else value
    if isinstance(value, ctypes._SimpleCData):  # noqa: SLF001 (the base of c_int and the others)
        value = value.value
    dtype, boolean = TYPES[kind], isinstance(value, bool | np.bool_)
    try:
        if boolean == (kind == "bool"):
            whole = int if boolean else operator.index
            number = value.__float__() if dtype.is_float else whole(value)  # not of a str
            if dtype.is_float or number in _LIMITS[kind]:
                return pack(dtype, number)
    except (AttributeError, TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(f"got {value!r} for a parameter of type {kind}")
