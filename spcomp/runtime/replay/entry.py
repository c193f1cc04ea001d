"""The call entry: plans become Python builtins, and index arrays are checked by machine code."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import SpcompError
from spcomp.runtime import pool
from spcomp.runtime.native import load as native
from spcomp.runtime.native.checks_ir import LANES, checks_ir, symbols
from spcomp.runtime.native.entry_ir import (
    API,
    CALLS,
    DATA,
    DESCR,
    ENTRY,
    FLAGS,
    NDIM,
    POLL,
    SHAPE,
    TYPE,
    entry_ir,
)  # fmt: skip
from spcomp.runtime.replay.plan import ALIGNED, C_CONTIGUOUS, WRITEABLE, Plan
from spcomp.target import Target

_METH_O = 0x0008


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@cache
def available() -> bool:
    """Whether this Python and this numpy are laid out as the entry expects."""
    plain = sys.implementation.name == "cpython" and not hasattr(sys, "gettotalrefcount")
    if not plain or sysconfig.get_config_var("Py_GIL_DISABLED") or sys.byteorder != "little":
        return False
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    samples: list[Array] = [np.zeros((2, 3), "f4"), np.arange(5)[::2], np.empty(0), np.array(1.5)]
    samples[0].setflags(write=False)
    return all(_as_expected(sample) for sample in samples) and _loads()


def _as_expected(array: Array) -> bool:
    """Whether the fields of *array*, read at the entry's offsets, are what numpy says."""
    at = id(array)

    def word(offset: int, kind: Any = ctypes.c_int64, base: int = at) -> Any:
        return kind.from_address(base + offset).value

    if (word(TYPE), word(DESCR), word(NDIM, ctypes.c_int)) != (
        id(np.ndarray), id(array.dtype), array.ndim,
    ):  # fmt: skip
        return False
    if word(DATA) != array.__array_interface__["data"][0]:
        return False
    extents = word(SHAPE)
    shape = tuple(word(8 * n, base=extents) for n in range(array.ndim))
    bits = word(FLAGS, ctypes.c_int)
    flags = (array.flags.c_contiguous, array.flags.aligned, array.flags.writeable)
    known = tuple(bool(bits & bit) for bit in (C_CONTIGUOUS, ALIGNED, WRITEABLE))
    return shape == array.shape and known == flags


@cache
def _native() -> Mapping[str, int]:
    """The addresses of the entry and the checks; the code is the same for every plan."""
    from spcomp.codegen import cpu
    from spcomp.codegen.cpu.machine import attributes

    facts = attributes(cpu.resolve(Target()))
    imports = pool.addresses()
    for name in API:
        made = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        imports[name] = made or 0
    names = [ENTRY, POLL, *CALLS.values(), *symbols()]
    loaded = native.load([checks_ir(facts), entry_ir(facts)], names, imports)
    pool.watch(loaded[POLL])
    return loaded


@cache
def _loads() -> bool:
    """Whether there is such code for this platform: what it cannot have, it does without."""
    try:
        return bool(_native())
    except (SpcompError, AttributeError):  # no code generator; a symbol that Python lacks
        return False


@cache
def _method() -> _MethodDef:
    return _MethodDef(b"entry", _native()[ENTRY], _METH_O, None)


def make(plan: Plan, *keep: object) -> Callable[[dict[str, Any]], Any] | None:
    """Return a builtin that runs *plan* on a dict of arguments; None if there can be none.

    It returns NotImplemented for arguments of another kind, the status (an int) of a function that
    fails, else what the plan returns. *keep* lives as long as it does.
    """
    if not available() or not plan.fits:
        return None
    words, refs = plan.encode()
    method = _method()
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )
    made: Callable[[dict[str, Any]], Any] = new(
        ctypes.addressof(method), (words, refs, keep, method), None
    )
    return made


def function(address: int, count: int = 1) -> Callable[..., int]:
    """Return the function ``int32 (int64...)`` of *count* arguments at *address*; see CALLS.

    It runs without the GIL. If a signal comes meanwhile whose handler raises, so does the call.
    """
    kinds = [ctypes.c_int64] * count
    if not available():
        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(address)
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *kinds)(_native()[CALLS[count]])
    return partial(call, address)


@cache
def _check(name: str) -> Callable[..., int]:
    return function(_native()[name], 6 if "pointers" in name else 7)


def width(array: Array) -> int:
    """Return the width in bits for which there are checks of *array*, or 0."""
    bits = 8 * array.dtype.itemsize
    plain = array.dtype.kind == "i" and array.dtype.isnative and array.flags.c_contiguous
    return bits if plain and array.flags.aligned and bits in LANES else 0


def pointers_ok(indptr: Array, first: int, low: int, high: int, longest: int) -> bool:
    """Whether *indptr* never decreases and begins in 0..*first*, ends in *low*..*high*.

    No step is over *longest*. False also where there is no such check for the array.
    """
    bits = width(indptr)
    if not bits or indptr.size < 1 or not _loads():
        return False
    check = _check(f"spcomp_pointers{bits}")
    return bool(check(indptr.ctypes.data, indptr.size - 1, first, low, high, longest))


def indices_ok(
    indices: Array, low: int, high: int, order: int = 0, indptr: Array | None = None
) -> bool:
    """Whether all *indices* are in low..high and ascend in the fibers of *indptr*.

    *order*: 0 any, 1 ascending, 2 strictly. False also where there is no such check.
    """
    bits = width(indices)
    span = reach(bits, low, high)
    if span is None or (indptr is not None and width(indptr) != bits) or not _loads():
        return False
    where, fibers = (0, 0) if indptr is None else (indptr.ctypes.data, indptr.size - 1)
    check = _check(f"spcomp_indices{bits}")
    return bool(check(indices.ctypes.data, indices.size, low, span, order, where, fibers))


def reach(bits: int, low: int, high: int) -> int | None:
    """Return how far *high* is above *low* as the checks want it; None if they cannot say.

    What a number of *bits* bits cannot be is not asked for.
    """
    if not bits:
        return None
    most = (1 << (bits - 1)) - 1
    high = min(high, most)
    if low < -most or high < low:
        return None
    return high - low if high - low <= most else None
