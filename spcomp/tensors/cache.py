"""Under conversions at a call: what was made of index arrays, kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

import numpy as np

from spcomp.arrays import Array

MOST_PATTERNS = 64  # kept in memory; the least recently used is forgotten
_MADE = TypeVar("_MADE")


class Cache(Generic[_MADE]):
    """What was made of index arrays, known again by their contents.

    Contents are compared with private copies, so no change of an array in place goes unseen.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[object, tuple[tuple[Array, ...], _MADE]] = OrderedDict()
        self._lock = Lock()

    def get(self, kind: object, arrays: tuple[Array, ...], make: Callable[[], _MADE]) -> _MADE:
        """Return what was made of these *arrays* for what *kind* says, or *make* it."""
        places = tuple((_address(a), a.shape, a.strides, a.dtype.str) for a in arrays)
        key = kind, places  # where they lie: contents are compared with one entry only
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
        if known is not None and all(map(np.array_equal, known[0], arrays)):
            return known[1]
        copies = tuple(array.copy() for array in arrays)
        made = make()
        with self._lock:
            self._kept[key] = copies, made
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_PATTERNS:
                self._kept.popitem(last=False)
        return made


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
