"""Beside the route, under the coordinate interpreter: results that a program assembles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from spcomp.arrays import Array
from spcomp.errors import FormatError
from spcomp.ir.axis import AnyBuffer, Axis, SparseBuffer
from spcomp.ir.func import Func
from spcomp.ir.interpret.storage import Storage, encode, locate, number_type

Coordinates = tuple[int, ...]


class Assembly:
    """The coordinates and values written so far; arrays are built when the program is over."""

    def __init__(self, func: Func, storage: Storage) -> None:
        self._storage = storage
        self._stored: dict[Axis, set[Coordinates]] = {a: set() for a in func.axes if a.is_assembled}
        self._results = [
            buffer
            for buffer in func.buffers
            if isinstance(buffer, SparseBuffer) and any(a.is_assembled for a in buffer.axes)
        ]
        self._values: dict[AnyBuffer, dict[Coordinates, Any]] = {b: {} for b in self._results}
        self._starts: dict[AnyBuffer, dict[Coordinates, Any]] = {b: {} for b in self._results}

    def __contains__(self, buffer: AnyBuffer) -> bool:
        return buffer in self._values

    def read(self, buffer: AnyBuffer, at: Coordinates, fill: Any) -> Any:
        """Return what was written at the coordinates, else what init set, else *fill*."""
        return self._values[buffer].get(at, self._starts[buffer].get(at, fill))

    def write(self, buffer: AnyBuffer, at: Coordinates, value: Any, *, init: bool) -> None:
        """Set the value at the coordinates and create them; *init* sets their initial value."""
        if init and at not in self._values[buffer]:
            self._starts[buffer][at] = value
            return
        self._values[buffer][at] = value
        axes = buffer.axes if isinstance(buffer, SparseBuffer) else ()
        for axis in axes:
            if axis.is_assembled:
                self._stored[axis].add(tuple(at[axes.index(a)] for a in axis.path()))

    def arrays(self) -> dict[str, Array]:
        """Return indptr and indices of each assembled axis and the values of each buffer."""
        result: dict[str, Array] = {}
        for axis, stored in self._stored.items():
            self._storage.assembled[axis] = self._build(axis, stored)
            result[f"{axis.name}_indptr"], result[f"{axis.name}_indices"] = self._storage.assembled[
                axis
            ]
        for buffer in self._results:
            if buffer.data is not None:
                result[buffer.data.name] = self._fill(buffer)
        return result

    def _build(self, axis: Axis, stored: Iterable[Coordinates]) -> tuple[Array, Array]:
        if axis.parent is None:
            raise FormatError(f"the assembled axis {axis.name} has no parent")
        fibers: list[list[int]] = [[] for _ in range(self._storage.count(axis.parent))]
        for *above, coordinate in stored:
            parent = self._locate(axis.parent.path(), tuple(above))
            if parent is not None:
                fibers[parent[-1]].append(coordinate)
        dtype = axis.idtype.numpy_name
        indptr = np.cumsum([0, *map(len, fibers)]).astype(dtype)
        return indptr, np.array([c for fiber in fibers for c in sorted(fiber)], dtype)

    def _fill(self, buffer: SparseBuffer) -> Array:
        dtype = buffer.dtype.numpy_name
        fill = encode(number_type(buffer.dtype)(buffer.fill), buffer.dtype)
        array = np.full(self._storage.elements(buffer), fill, dtype)
        for at, value in (self._starts[buffer] | self._values[buffer]).items():
            place = self._locate(buffer.axes, at)
            if place is not None:
                array[self._storage.offset(buffer.axes, place)] = encode(value, buffer.dtype)
        return array

    def _locate(self, axes: tuple[Axis, ...], at: Coordinates) -> list[int] | None:
        return locate(axes, lambda k, axis, parent: self._storage.find(axis, parent, at[k]))
