"""At a call of compiled code: whether two vectors hold the same numbers.

They are compared on the thread of the caller: threads of torch that took part would wait on their
processors for more work while the kernel runs, and waking those of the pool takes as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

from spcomp.errors import SpcompError
from spcomp.runtime.native import load as native
from spcomp.runtime.native.equal_ir import NAME, equal_ir
from spcomp.target import Target


def are_equal(index: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether *index* and a contiguous *copy* hold the same integers; the copy may have 32 bits."""
    if index.shape != copy.shape:
        return False
    if index.is_contiguous():
        if index.dtype == copy.dtype and (compare := _memcmp()) is not None:
            return compare(index.data_ptr(), copy.data_ptr(), copy.nbytes) == 0
        kinds = index.dtype, copy.dtype
        if kinds == (torch.int64, torch.int32) and (narrow := _narrow()) is not None:
            return narrow(index.data_ptr(), copy.data_ptr(), len(index)) == 1
    return bool(torch.equal(index.to(torch.int64), copy.to(torch.int64)))


@cache
def _memcmp() -> Callable[[int, int, int], int] | None:
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):  # the C library is no part of the process
        return None
    found.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    return found


@cache
def _narrow() -> Callable[[int, int, int], int] | None:
    from spcomp.codegen import cpu
    from spcomp.codegen.cpu.machine import attributes

    try:
        address = native.load([equal_ir(attributes(cpu.resolve(Target())))], [NAME])[NAME]
    except SpcompError:  # there is no code generator
        return None
    kinds = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(address)
