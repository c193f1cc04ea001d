"""Under a call: memory for large results, which serves again when they are gone."""

from __future__ import annotations

import mmap
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

LARGE = 1 << 22  # bytes from which on a result has memory of its own
MOST = 1 << 28  # bytes that are kept for later results
PAGE = 1 << 21  # a huge one
UNRESERVED = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, which mmap has from 3.13


class _Memory:
    """*size* bytes from the system, beginning with a huge page where it has such."""

    def __init__(self, size: int) -> None:
        self.size = size
        private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
        flags = [private | UNRESERVED] if private else []  # what is not written is not needed
        try:
            self.pages = mmap.mmap(-1, size + PAGE, *flags)
        except (OSError, OverflowError):
            raise MemoryError(f"no memory for a result of up to {size} bytes") from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self.pages.madvise(mmap.MADV_HUGEPAGE)

    def array(self, count: int) -> Array:
        """Return the first *count* bytes."""
        whole = np.frombuffer(self.pages, np.uint8)
        begin = -whole.ctypes.data % PAGE
        return whole[begin : begin + count]

    def leave(self) -> None:
        """Let the system take the pages, if it needs them, without saving what they hold."""
        if hasattr(mmap, "MADV_FREE"):
            self.pages.madvise(mmap.MADV_FREE)


class _Lease:
    """Lends memory to an array, and has it back when the array and its views are gone."""

    def __init__(self, memory: _Memory, count: int) -> None:
        self.memory = memory
        self.__array_interface__ = memory.array(count).__array_interface__

    def __del__(self) -> None:
        _give_back(self.memory)


_kept: deque[_Memory] = deque()  # its methods are atomic: an array may be gone in any thread


def empty(size: int, dtype: np.dtype[Any]) -> Array:
    """Return an array of *size* elements of *dtype*, which are anything.

    Memory is used for those that are written. A large one is put where an earlier result was, if
    there is room: pages that the process has already need not be asked for, nor cleared. What is
    kept for that is at most MOST bytes, which the system may have back at any time.
    """
    count = size * dtype.itemsize
    if count < LARGE:
        return np.empty(size, dtype)
    memory = _take(count) or _Memory(-(-count // PAGE) * PAGE)
    return np.asarray(_Lease(memory, count)).view(dtype)


def _take(count: int) -> _Memory | None:
    """Return the smallest memory of those kept that has *count* bytes, and not four times that."""
    fitting = [m for m in tuple(_kept) if count <= m.size < 4 * count]
    for memory in sorted(fitting, key=lambda m: m.size):
        try:
            _kept.remove(memory)
        except ValueError:  # another thread was faster
            continue
        return memory
    return None


def _give_back(memory: _Memory) -> None:
    """Keep *memory*, and no more than MOST bytes of others."""
    try:
        memory.leave()
        _kept.append(memory)
        while sum(m.size for m in tuple(_kept)) > MOST:
            _kept.popleft()
    except (IndexError, OSError, TypeError):  # nothing is left to drop, or the process ends
        return
