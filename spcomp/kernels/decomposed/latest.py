"""Around the route: what was made last of matrices that nobody can change, known again by them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from spcomp.tensors.parts.parts import Parts
from spcomp.tensors.tensor import Tensor

T = TypeVar("T")


class Identity(NamedTuple):
    """The *arrays* of matrices that cannot change, and what else tells the matrices apart."""

    arrays: tuple[Any, ...]
    about: tuple[Any, ...]


def identity_of(names: Iterable[str], matrices: Mapping[str, Any]) -> Identity | None:
    """Return what tells the *matrices* called *names* from others; None if one can change."""
    each = [_identity_of(matrices.get(name)) for name in names]
    if not each or None in each:
        return None
    known = [identity for identity in each if identity is not None]
    arrays = tuple(array for identity in known for array in identity.arrays)
    return Identity(arrays, tuple(identity.about for identity in known))


def _identity_of(matrix: Any) -> Identity | None:
    kind = type(matrix)
    if isinstance(matrix, Parts):
        return Identity((matrix,), (kind,))
    if isinstance(matrix, Tensor):
        levels = tuple(level and (level.kind, len(level.arrays)) for level in matrix.levels)
        stored = (array for level in matrix.levels if level for array in level.arrays)
        identity = Identity((matrix.values, *stored), (kind, matrix.shape, matrix.order, levels))
    else:
        parts = (getattr(matrix, name, None) for name in ("data", "indptr", "indices"))
        shape, layout = getattr(matrix, "shape", ()), getattr(matrix, "format", "")
        identity = Identity(tuple(parts), (kind, tuple(shape), layout))
    return identity if all(map(_is_frozen, identity.arrays)) else None


def _is_frozen(array: Any) -> bool:
    """Whether neither *array* nor what it is a view of can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        if array.base is None:
            return True
        array = array.base
    return type(array) is bytes  # under what checks.private makes


class Latest(Generic[T]):
    """The value made last of matrices that cannot change, whose arrays it does not keep alive."""

    def __init__(self) -> None:
        self._entry: tuple[list[weakref.ref[Any]], tuple[Any, ...], T] | None = None

    def find(self, identity: Identity | None) -> T | None:
        """Return the value if it was made of these very matrices."""
        entry = self._entry
        if identity is None or entry is None or entry[1] != identity.about:
            return None
        arrays, _, value = entry
        same = (known() is array for known, array in zip(arrays, identity.arrays, strict=True))
        return value if all(same) else None

    def keep(self, identity: Identity | None, value: T) -> T:
        """Return *value*, kept if it was made of the matrices of *identity*."""
        if identity is not None:
            self._entry = [weakref.ref(array) for array in identity.arrays], identity.about, value
        return value
