"""Under a call: memory for large results, which is reused when they are gone."""

from __future__ import annotations

import mmap
import sys
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    Array = np.ndarray[Any, np.dtype[Any]]

LARGE = 1 << 22  # bytes: from this size on, a result has memory of its own
MOST = 1 << 28  # bytes that are kept for later results, at most
PAGE = 1 << 21  # bytes of a huge page
UNRESERVED = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, which mmap has from 3.13


class _Memory:
    """*size* bytes from the system, aligned to a huge page."""

    def __init__(self, size: int) -> None:
        self.size = size
        private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
        flags = [private | UNRESERVED] if private else []  # only pages that are written take memory
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

    def release(self) -> None:
        """Let the system take the pages back when it needs them, without saving their contents."""
        if hasattr(mmap, "MADV_FREE"):
            self.pages.madvise(mmap.MADV_FREE)


class _Lease:
    """Lends memory to an array, and takes it back when the array and its views are gone."""

    def __init__(self, memory: _Memory, count: int) -> None:
        self.memory = memory
        self.__array_interface__ = memory.array(count).__array_interface__

    def __del__(self) -> None:
        _give_back(self.memory)


_returned: deque[_Memory] = deque(maxlen=64)  # by arrays, which end at any instruction
_free: list[_Memory] = []  # the oldest first
_sorting = Lock()  # nobody waits for it: arrays may end, and signals arrive, where it is held


def empty(size: int, dtype: DTypeLike) -> Array:
    """Return an uninitialized array of *size* elements of *dtype*.

    Memory is used only for elements that are written. A large array reuses the memory of an earlier
    result, if that has room, since pages that the process already has need not be requested and
    cleared. At most MOST bytes are kept for that, which the system may take back at any time.
    """
    count = size * np.dtype(dtype).itemsize
    if count < LARGE:
        return np.empty(size, dtype)
    memory = _take(count) or _Memory(-(-count // PAGE) * PAGE)
    return np.asarray(_Lease(memory, count)).view(dtype)


def _take(count: int) -> _Memory | None:
    """Return the smallest free memory of *count* bytes or more, but less than four times that."""
    if not _sorting.acquire(blocking=False):
        return None
    try:
        _sort_in()
        fitting = [memory for memory in _free if count <= memory.size < 4 * count]
        if not fitting:
            return None
        smallest = min(fitting, key=lambda memory: memory.size)
        _free.remove(smallest)
        return smallest
    finally:
        _sorting.release()


def _give_back(memory: _Memory) -> None:
    """Keep *memory* for later results."""
    try:
        memory.release()
        _returned.append(memory)
        if _sorting.acquire(blocking=False):
            try:
                _sort_in()
            finally:
                _sorting.release()
    except (OSError, TypeError):  # the process exits
        return


def _sort_in() -> None:
    """Add what was returned to what is free, and drop the oldest of more than MOST bytes."""
    while _returned:
        memory = _returned.popleft()
        if memory.size <= MOST:
            _free.append(memory)
    while sum(memory.size for memory in _free) > MOST:
        _free.pop(0)
