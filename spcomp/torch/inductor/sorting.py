"""At a call of compiled code: index vectors, known again by their contents and sorted once."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.locks import Lock, cached_property
from spcomp.torch.inductor.equal import are_equal
from spcomp.torch.inductor.kernels import kernel

MOST_VECTORS = 128  # kept in memory; the least recently used is forgotten
MOST_ELEMENTS = 1 << 22  # of these vectors together, unless there are fewer than four; with all
# that is made of them, an element takes some 80 bytes
_MOST_USES = 8  # of a vector, or of a sorted one, that are kept
_MADE = TypeVar("_MADE")
_FIRST = int.from_bytes(os.urandom(7), "little")  # no key is that of another process


class _Few(Generic[_MADE]):
    """What was made for the last few keys: *most* of them, and fewer if they are large."""

    def __init__(self, most: int) -> None:
        self._made: OrderedDict[Any, _MADE] = OrderedDict()
        self._sizes: dict[Any, int] = {}
        self._most = most
        self._lock = Lock()

    def get(self, key: Any) -> _MADE | None:
        """Return what was made for *key*, or None."""
        with self._lock:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
            return found

    def put(self, key: Any, made: _MADE, size: int = 0) -> None:
        """Keep what was *made* for *key*, of *size* elements."""
        with self._lock:
            self._made[key] = made
            self._made.move_to_end(key)
            self._sizes[key] = size
            while len(self._made) > self._most or (
                len(self._made) > 4 and sum(self._sizes.values()) > MOST_ELEMENTS
            ):
                self._sizes.pop(self._made.popitem(last=False)[0])

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._made.clear()
            self._sizes.clear()

    def of(self, key: Any, make: Callable[[], _MADE]) -> _MADE:
        """Return what was made for *key*, or *make* it."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found


class Vector:
    """A private copy of an index vector, of 32 bits if that does. *key*: a number of its own."""

    def __init__(self, index: torch.Tensor, key: int) -> None:
        least, most = (x.item() for x in torch.aminmax(index)) if len(index) else (0, -1)
        self._least, self._most = least, most
        dtype = torch.int32 if max(-least, most) < 1 << 31 else torch.int64
        self.contents = index.to(dtype, copy=True).contiguous()
        self.key = key
        self._places: _Few[Places] = _Few(_MOST_USES)

    def places(self, size: int, *, wraps: bool, use: str) -> Places:
        """Return the vector as places from 0 to *size*; raises ArgumentError.

        *wraps*: places below 0 are counted from the end. *use*: what they are.
        """
        low = -size if wraps else 0
        if self._least < low or self._most >= size:
            wrong = self._most if self._most >= size else self._least
            at = int((self.contents == wrong).nonzero()[0, 0])
            raise ArgumentError(
                f"an index vector of a compiled model: got {wrong} at position {at}, expected"
                f" {low}..{size - 1}, {use}"
            )
        return self._places.of((size, wraps), lambda: self._wrapped(size))

    def _wrapped(self, size: int) -> Places:
        at = self.contents
        if self._least < 0:
            at = at.to(torch.int64)
            at = torch.where(at < 0, at + size, at)
        return Places(at, size)


class Places:
    """An index vector *at* of numbers from 0 to *size*."""

    def __init__(self, at: torch.Tensor, size: int) -> None:
        self.at = at
        self.size = size
        self._bound: _Few[Any] = _Few(_MOST_USES)
        self._numbers: _Few[tuple[torch.Tensor, torch.Tensor]] = _Few(_MOST_USES)

    @cached_property
    def rows(self) -> tuple[Array, Array]:
        """Where the elements of each place begin, and the elements by place, in their order."""
        at, order = self.at.numpy(), np.arange(len(self.at))
        for shift in range(0, self.size.bit_length(), 16):  # numpy needs one pass for 16 bits
            digits = (at[order] >> shift).astype(np.uint16)
            order = order[np.argsort(digits, kind="stable")]
        counts = np.bincount(at, minlength=self.size)
        return np.concatenate([[0], counts.cumsum()]), order

    @cached_property
    def order(self) -> torch.Tensor:
        """The elements by their places, those of one place in their order."""
        return torch.from_numpy(self.rows[1])

    @cached_property
    def counts(self) -> torch.Tensor:
        """How many elements each place has."""
        return torch.from_numpy(np.diff(self.rows[0]))

    @cached_property
    def empty(self) -> torch.Tensor:
        """The places without elements."""
        return (self.counts == 0).nonzero().reshape(-1)

    def sorted(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return *numbers*, one for each element, by their places; kept as long as they stay."""
        flat = numbers.reshape(-1)
        bits = flat.view(torch.int64 if flat.dtype == torch.float64 else torch.int32)
        key = flat.dtype, flat.data_ptr()
        known = self._numbers.get(key)
        if known is not None and are_equal(bits, known[0]):
            return known[1]
        made = flat[self.order]
        self._numbers.put(key, (bits.clone(), made))
        return made

    def bound(self, program: str, source: Places | None) -> Any:
        """Return the kernel of *program*, for edges whose other ends *source* says."""
        key = program, id(source)
        known = self._bound.get(key)
        if known is None:  # the source is kept with it, so that no other gets its id
            known = self._bind(program, source), source
            self._bound.put(key, known)
        return known[0]

    def _bind(self, program: str, source: Places | None) -> Any:
        rows = len(self.at) if source is None else source.size
        idtype = "int32" if max(rows, len(self.at)) < 1 << 31 else "int64"
        pointers, order = (array.astype(idtype) for array in self.rows)
        indices = order if source is None else source.at[self.order].numpy().astype(idtype)
        arrays = {"indptr": pointers, "indices": indices}
        made = kernel(program.replace('"int32"', f'"{idtype}"'))
        if "ORDER" in program:
            arrays["ORDER"] = order
        return made.bind(**arrays, n=rows)


_VECTORS: _Few[Vector] = _Few(MOST_VECTORS)  # by their keys
_RECENT: _Few[tuple[int, ...]] = _Few(MOST_VECTORS)  # keys of vectors, by their length
_KEYS = count(_FIRST)


def key_of(index: torch.Tensor) -> int:
    """Return the key of the vector that *index* holds now.

    Contents are compared with those of the last vectors of the same length, so it does not matter
    which tensor holds them, and no change in place goes unseen, however it was made.
    """
    length = len(index)
    recent = _RECENT.get(length) or ()
    for key in recent:
        vector = _VECTORS.get(key)
        if vector is not None and are_equal(index, vector.contents):
            return key
    made = Vector(index, next(_KEYS))
    _VECTORS.put(made.key, made, length)
    _RECENT.put(length, (made.key, *recent)[:_MOST_USES])
    return made.key


def forget() -> None:
    """Forget all vectors; one that is needed again is sorted again."""
    _VECTORS.clear()
    _RECENT.clear()


def vector_of(index: torch.Tensor, key: int) -> Vector:
    """Return the vector *key*, that of *index* if it was forgotten."""
    found = _VECTORS.get(key)
    return found if found is not None else Vector(index, key)
