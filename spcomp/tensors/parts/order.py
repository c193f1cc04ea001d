"""At the call, formats: where the elements of a matrix went, and other values moved there."""

# ruff: noqa: FBT001, N806, N812
# mypy: disable-error-code="valid-type, operator"
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spcomp import script as T
from spcomp.arrays import Array
from spcomp.compiler.programs import program
from spcomp.tensors import checks as validate
from spcomp.tensors.storage import Storage
from spcomp.tensors.tensor import Level


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Where the elements of a matrix went: the *numbers* of the values of each part, by rule.

    Elements are numbered from 1; 0 is padding. *origin*: the matrix without its values.
    """

    numbers: Mapping[str, Array]
    origin: Storage

    @classmethod
    def of(cls, numbers: Mapping[str, Array], storage: Storage) -> Order:
        """Return the order of the matrix in *storage*, without sharing its memory."""
        assert storage.levels is not None
        assert storage.values is not None
        levels = tuple(None if level is None else _private(level) for level in storage.levels)
        none = np.broadcast_to(storage.values.dtype.type(0), storage.values.size)
        return cls(numbers, Storage(None, none, storage.shape, levels, storage.style, checked=True))


def _private(level: Level) -> Level:
    parts = (level.indptr, level.indices)
    arrays = (None if part is None else validate.private(part) for part in parts)
    return Level(level.kind, *arrays)


def element_numbers(count: int) -> Array:
    """Return the numbers of *count* elements, from 1."""
    return np.arange(1, count + 1, dtype=np.int32 if count < 1 << 31 else np.int64)


def gather(numbers: Array, values: Array) -> Array:
    """Return the *values* with these element *numbers*, zero for padding."""
    part = np.zeros(numbers.size, values.dtype)
    move_values(numbers, values.reshape(1, -1, 1), part, back=False)
    return part.reshape(numbers.shape)


def move_values(numbers: Array, values: Array, part: Array, *, back: bool) -> None:
    """Copy elements of *values* (outer, elements, inner) to their places in *part*, or *back*."""
    outer, total, inner = values.shape
    bits = np.dtype(f"uint{8 * values.itemsize}")
    flat = (array.reshape(-1).view(bits) for array in (values, part))
    move = _mover(str(numbers.dtype), str(bits), back, inner == 1)
    move(numbers.reshape(-1), *flat, total, numbers.size, outer, inner)


@program
def _mover(number: str, bits: str, back: bool, single: bool) -> Any:
    @T.prim_func
    def move(
        numbers: T.handle, values: T.handle, part: T.handle, total: T.int64, count: T.int64,
        outer: T.int64, inner: T.int64,
    ) -> None:  # fmt: skip
        Numbers = T.match_buffer(numbers, (count,), number)
        Values = T.match_buffer(values, (outer * total * inner,), bits)
        Part = T.match_buffer(part, (outer * count * inner,), bits)
        for h in T.serial(outer):
            for p in T.parallel(count):
                e = T.cast(Numbers[p], "int64") - 1
                if e >= 0:
                    # a loop that is known to run once takes a quarter of the time
                    for s in T.serial(1 if single else inner):
                        in_values = (h * total + e) * inner + s
                        in_part = (h * count + p) * inner + s
                        if back:
                            Values[in_values] = Part[in_part]
                        else:
                            Part[in_part] = Values[in_values]

    return move
