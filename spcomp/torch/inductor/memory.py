"""At a call of compiled code: large arrays in the memory of those that are gone.

New memory is slow: the system clears each page when it is first written. PyTorch gives freed memory
on the CPU back to the system, so a model would get new pages for each result in each call.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.locks import Lock

LEAST_BYTES = 1 << 20  # of an array; smaller ones the C library keeps itself
MOST_BYTES = 1 << 29  # of memory that is kept and not in use


class Memory:
    """Blocks of memory that are kept for arrays to come."""

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}
        self._bytes = 0
        self._lock = Lock()  # reentrant: an array may be freed while its own thread holds it

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return an array of anything. Its memory comes back when the last view of it is gone."""
        size = prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return np.empty(shape, dtype)
        with self._lock:
            blocks = self._free.get(size)
            block = blocks.pop() if blocks else None
            if block is not None:
                self._bytes -= size
        if block is None:
            block = np.empty(size, np.uint8)
        return np.asarray(_Lease(self, block)).view(dtype).reshape(shape)

    def give(self, block: Array) -> None:
        """Keep *block* for others, unless that is too much; the largest are given up first."""
        with self._lock:
            self._free.setdefault(len(block), []).append(block)
            self._bytes += len(block)
            while self._bytes > MOST_BYTES:
                largest = max(size for size, blocks in self._free.items() if blocks)
                self._bytes -= len(self._free[largest].pop())
            self._free = {size: blocks for size, blocks in self._free.items() if blocks}


class _Lease:
    """The owner of an array; numpy keeps it as long as there is a view."""

    def __init__(self, memory: Memory, block: Array) -> None:
        self._memory = memory
        self._block = block
        self.__array_interface__ = block.__array_interface__

    def __del__(self) -> None:
        self._memory.give(self._block)


MEMORY = Memory()
