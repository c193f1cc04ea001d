"""At a call of compiled code: large arrays in the memory of those that are gone.

New memory is slow: the system clears each page when it is first written. PyTorch gives freed memory
on the CPU back to the system, so a model would get new pages for each result in each call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch._C._dynamo import guards

from spcomp.arrays import Array
from spcomp.locks import Lock

LEAST_BYTES = 1 << 20  # of an array; smaller ones the C library keeps itself
ALIGNMENT = 64  # bytes, as PyTorch's own: a vector lies in one line of the cache


class Memory:
    """Blocks of memory that are kept for arrays to come.

    Together with those in use they are at most half as much again as was in use at once before: of
    what would be more, the blocks that have not been used for longest go back to the system.
    """

    def __init__(self) -> None:
        self._free: OrderedDict[int, list[Array]] = OrderedDict()  # by size, last used last
        self._bytes = 0  # of free blocks
        self._used = 0  # bytes
        self._most = 0  # bytes that were in use at once
        self._lock = Lock()  # reentrant: an array may be freed while its own thread holds it

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array of anything. Its memory comes back when the last view of it is gone."""
        size = prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self.leased(size))

    def leased(self, size: int) -> Array:
        """Return *size* bytes or up to an eighth more, which come back as in :meth:`array`."""
        step = 1 << max(size.bit_length() - 4, 12)
        size = -(-size // step) * step  # sizes that differ little share blocks
        with self._lock:
            blocks = self._free.get(size)
            block = blocks.pop() if blocks else None
            self._used += size
            self._most = max(self._most, self._used)
            if block is not None:
                self._bytes -= size
            self._trim(self._most * 3 // 2)  # not all sizes are in use at once
        if block is None:
            block = _aligned(size)
        return np.asarray(_Lease(self, block))

    def give(self, block: Array) -> None:
        """Keep *block* for others."""
        size = len(block)
        with self._lock:
            self._free.setdefault(size, []).append(block)
            self._free.move_to_end(size)
            self._bytes += size
            self._used -= size

    def clear(self) -> None:
        """Give what is not in use back to the system."""
        with self._lock:
            self._most = self._used
            self._trim(self._used)

    def _trim(self, most: int) -> None:
        while self._free and self._used + self._bytes > most:
            size, blocks = next(iter(self._free.items()))
            if blocks:
                blocks.pop()
                self._bytes -= size
            else:
                del self._free[size]


class _Lease:
    """The owner of an array; numpy keeps it as long as there is a view."""

    def __init__(self, memory: Memory, block: Array) -> None:
        self._memory = memory
        self._block = block
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._memory.give(self._block)


def _aligned(size: int) -> Array:
    block = np.empty(size + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size]


MEMORY = Memory()
_GUARDS: Any = guards  # what inductor's code calls
_empty: Callable[..., torch.Tensor] = _GUARDS._empty_strided_cpu  # noqa: SLF001
_shaped: Callable[..., torch.Tensor] = _GUARDS._reinterpret_tensor  # noqa: SLF001


def empty_strided(
    sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor of anything on the CPU; a large one in memory that is kept."""
    last = sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
    size = (last + 1) * dtype.itemsize
    if size < LEAST_BYTES or 0 in sizes:
        return _empty(sizes, strides, dtype)
    whole = torch.frombuffer(MEMORY.leased(size), dtype=dtype)
    return _shaped(whole, sizes, strides, 0)  # no view, which torch would follow
