"""Under the compiler's binding of arguments: immutable copies of large arrays, in huge pages."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

LARGE = 1 << 22  # bytes: from this size on, numpy asks for huge pages, too
_HEADER = bytes.__basicsize__ - 1  # bytes of the object before its contents


def immutable(array: Array) -> bytes:
    """Return the elements of *array* in C order, as ``array.tobytes()`` does.

    With pages of 4 KiB, random reads of a large object wait for the processor's page tables. So
    huge pages are requested, if the system has them, before the object is filled.
    """
    if array.nbytes < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return array.tobytes()
    source = np.ascontiguousarray(array)
    make, advise = _functions()
    copy: bytes = make(None, source.nbytes)  # nobody else has it, so it can be written
    begin = id(copy) + _HEADER
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (begin + source.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    advise(first, last - first, mmap.MADV_HUGEPAGE)  # only a hint, which may fail
    ctypes.memmove(begin, source.ctypes.data, source.nbytes)
    return copy


@cache
def _functions() -> tuple[Callable[..., bytes], Callable[..., int]]:
    """Return Python's function that makes bytes, and the system's that advises on pages."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
    kinds = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    advise = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(("madvise", ctypes.CDLL(None)))
    return make(("PyBytes_FromStringAndSize", ctypes.pythonapi)), advise
