"""At the call of an adjoint: matrices stored by columns, whose pattern is turned once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.runtime.cuda.arrays import is_sparse, lies_there
from spcomp.runtime.cuda.sparse import kind_of
from spcomp.tensors.conversions.rows import How
from spcomp.tensors.convert import to_tensor
from spcomp.tensors.tensor import Tensor

_LEVELS = ("dense", "compressed")


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The index arrays of a matrix, a *transposed* tensor of it, and the *places* of its values.

    *order*: the dimensions along which its levels lie.
    """

    shape: tuple[int, ...]
    order: tuple[int, int]
    arrays: tuple[Array, ...]
    transposed: Tensor
    places: Array

    def fits(
        self, shape: tuple[int, ...], order: tuple[int, int], arrays: tuple[Array, ...], count: int
    ) -> bool:
        """Whether a matrix of *count* values with these index *arrays* has the pattern."""
        if (self.shape, self.order, len(self.places)) != (shape, order, count):
            return False
        pairs = zip(self.arrays, arrays, strict=True)
        return all(a is b or np.array_equal(a, b) for a, b in pairs)


@dataclass(slots=True)
class Columns:
    """Turns matrices from rows to columns, or back; keeps the last pattern of each argument.

    A pattern is known again by its contents, so arrays that changed in between are seen.
    """

    patterns: dict[str, Pattern] = field(default_factory=dict)

    @staticmethod
    def takes(value: Any) -> bool:
        """Whether *value* is a matrix in rows, or in columns, whose values are one array."""
        if isinstance(value, Tensor):
            kinds = tuple(level.kind if level else "dense" for level in value.levels)
            return value.ndim == 2 and kinds == _LEVELS
        if lies_there(value):
            return is_sparse(value) and kind_of(value) == "csr" and len(value.shape) == 2
        scipy = type(value).__module__.startswith("scipy.sparse")
        return scipy and getattr(value, "format", "") in ("csr", "csc") and value.ndim == 2

    def of(self, name: str, value: Any) -> Any:
        """Return the matrix *value*, the argument *name*, stored the other way.

        A matrix on a GPU is left to the kernel, which has it by columns there.
        """
        if lies_there(value):
            return value
        arrays, values, order = _parts(value)
        shape = tuple(value.shape)
        known = self.patterns.get(name)
        if known is None or not known.fits(shape, order, arrays, len(values)):
            target = Format(_LEVELS, order=order[::-1])
            try:
                numbers = _with_values(value, np.arange(len(values), dtype=np.int64))
                tensor = to_tensor(numbers, target, How(duplicates="error"))
            except (ArgumentError, ValueError):  # repeated coordinates: summed; else the user's
                return to_tensor(value, target)
            kept = arrays if isinstance(value, Tensor) else tuple(a.copy() for a in arrays)
            known = self.patterns[name] = Pattern(shape, order, kept, tensor, tensor.values)
        return known.transposed.with_values(np.take(values, known.places))


def _parts(value: Any) -> tuple[tuple[Array, ...], Array, tuple[int, int]]:
    """Return the index arrays, the values, and the order of dimensions of the matrix *value*."""
    if isinstance(value, Tensor):
        level = value.levels[1]
        assert level is not None
        first, second = value.order
        return level.arrays, value.values.reshape(-1), (first, second)
    count = int(value.indptr[-1]) if len(value.indptr) else 0
    order = (0, 1) if value.format == "csr" else (1, 0)
    return (value.indptr, value.indices[:count]), value.data[:count], order


def _with_values(value: Any, values: Array) -> Any:
    if isinstance(value, Tensor):
        return value.with_values(values)
    count = len(values)
    return type(value)((values, value.indices[:count], value.indptr), shape=value.shape)
