"""On a worker: arrays that begin at cache lines, and blocks that came in a message moved there.

Dask hands out arrays as they lie in the message: at any address, often none that is a multiple of
their elements' size. A kernel would copy such arrays in each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np

from spcomp.arrays import Array
from spcomp.tensors.tensor import Tensor

LINE = 64  # bytes of a cache line, which vectors should not straddle
LEAST = 1 << 12  # bytes: in smaller arrays there is nothing to gain

_copies: dict[int, tuple[ref[Any], Any]] = {}  # by the identities of blocks, as long as they live
_staying: WeakValueDictionary[int, Array] = WeakValueDictionary()  # values, by their identities


def aligned(block: Any) -> Any:
    """Return *block* with arrays that begin at cache lines: itself, unless it came in a message."""
    if isinstance(block, np.ndarray):
        return _aligned(block)
    if isinstance(block, Tensor):  # has copies of its own
        return block
    arrays = block.data, block.indices, block.indptr
    moved = tuple(map(_aligned, arrays))
    if all(new is old for new, old in zip(moved, arrays, strict=True)):
        return block
    return type(block)(moved, shape=block.shape)


def kept(block: Any) -> Any:
    """Return :func:`aligned` of an argument of a task, which is copied once as long as it lives."""
    if not hasattr(block, "shape") or not block.shape:  # a number
        return block
    if (known := _copies.get(id(block))) is not None:
        return known[1]
    copy = aligned(block)
    if copy is not block:
        forget = partial(_forget, id(block))
        _copies[id(block)] = ref(block, forget), copy
    return copy


def staying(block: Any) -> Any:
    """Return *block*, after noting that later computations use the same values."""
    values = _values(block)
    if isinstance(values, np.ndarray):
        _staying[id(values)] = values
    return block


def stays(block: Any) -> bool:
    """Whether later computations use the values of *block*, so that nobody may change them."""
    values = _values(block)
    return values is not None and _staying.get(id(values)) is values


def _values(block: Any) -> Any:
    """Return the array of the values of *block*; None: it is none, or lies elsewhere."""
    return block.values if isinstance(block, Tensor) else getattr(block, "data", None)


def _forget(number: int, _: object) -> None:
    _copies.pop(number, None)


def _aligned(array: Array) -> Array:
    if array.flags.owndata or array.nbytes < LEAST or array.ctypes.data % LINE == 0:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return an array without contents that begins at a cache line."""
    memory = np.empty(prod(shape) + LINE // dtype.itemsize, dtype)
    begin = -memory.ctypes.data % LINE // dtype.itemsize
    return memory[begin : begin + prod(shape)].reshape(shape)
