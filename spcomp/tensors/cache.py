"""Under conversions at a call: what was made of index arrays, kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np

from spcomp.arrays import Array

MOST_PATTERNS = 64  # kept in memory; the least recently used is forgotten
MOST_BYTES = 1 << 28  # of their index arrays, but for the newest
_MADE = TypeVar("_MADE")


@dataclass(frozen=True, slots=True)
class Means:
    """How arrays of a kind are compared: their *place* in memory, and *same* contents; *copy*."""

    place: Callable[[Any], Hashable]
    same: Callable[[Any, Any], bool]
    copy: Callable[[Any], Any]


class Cache(Generic[_MADE]):
    """What was made of index arrays, known again by their contents; at most *most* of them.

    All but the newest together are made of at most *most_bytes* bytes. Contents are compared with
    private copies, so no change of an array in place goes unseen.
    """

    def __init__(self, most: int = MOST_PATTERNS, most_bytes: int = MOST_BYTES) -> None:
        self._kept: OrderedDict[object, tuple[tuple[Any, ...], _MADE]] = OrderedDict()
        self._lock, self._most, self._most_bytes = Lock(), most, most_bytes

    def get(
        self,
        kind: object,
        arrays: tuple[Any, ...],
        make: Callable[[], _MADE],
        means: Means | None = None,
    ) -> _MADE:
        """Return what was made of these *arrays* for what *kind* says, or *make* it.

        *means*: those of arrays that are not numpy's.
        """
        means = means or _NUMPY
        places = tuple(map(means.place, arrays))
        key = kind, places  # where they lie: contents are compared with one entry only
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
        if known is not None and all(map(means.same, known[0], arrays)):
            return known[1]
        copies = tuple(map(means.copy, arrays))
        made = make()
        with self._lock:
            self._kept[key] = copies, made
            self._kept.move_to_end(key)
            while len(self._kept) > self._most or (len(self._kept) > 1 and self._is_full()):
                self._kept.popitem(last=False)
        return made

    def _is_full(self) -> bool:
        """Whether what is kept is made of more bytes than that may be."""
        sizes = (int(a.nbytes) for arrays, _ in self._kept.values() for a in arrays)
        return sum(sizes) > self._most_bytes


def _place(array: Array) -> Hashable:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


_NUMPY = Means(_place, np.array_equal, np.copy)
