"""During a call on a GPU: its arrays, those of the host copied there once, and new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import DType
from spcomp.errors import ArgumentError
from spcomp.runtime.cuda import memory
from spcomp.runtime.cuda.arrays import DeviceArray, Library, Place, array_of, empty, full, to_host
from spcomp.runtime.host import HOST

Key: TypeAlias = tuple[int, int, str]


class Resident:
    """An array on a GPU that can be asked, as an array of numpy, for its size and its content.

    *copy* is the content on the host, where it is known: otherwise reading waits for *stream*.
    """

    __slots__ = ("_copy", "array", "elements", "stream")

    def __init__(self, array: DeviceArray, stream: int, copy: Array | None = None) -> None:
        self.array, self.stream, self.copy = array, stream, copy

    @property
    def copy(self) -> Array | None:
        """The content on the host, None where it is not known."""
        return self._copy

    @copy.setter
    def copy(self, copy: Array | None) -> None:
        self._copy = copy
        self.elements: dict[int, Any] = {}  # those that were read one by one

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.array.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.array.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element; that of bfloat16 is uint16."""
        return np.dtype(self.array.dtype.numpy_name)

    def reshape(self, size: int) -> Resident:  # noqa: ARG002
        """Return this array, which has one dimension."""
        return self

    @property
    def flat(self) -> _Elements:
        """The elements, each read by itself."""
        return _Elements(self)

    def __len__(self) -> int:
        return self.array.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # noqa: FBT001
        if self.copy is None:
            self.copy = to_host(self.array, self.stream)
        return np.array(self.copy, dtype, copy=copy)


class _Elements:
    """The elements of *resident* by their number, as ``flat`` of numpy."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident

    def __getitem__(self, at: int) -> Any:
        whole = self.resident.array
        at = range(whole.size)[at]  # from the end, if negative; raises IndexError
        if self.resident.copy is not None:
            return self.resident.copy.flat[at]
        if at not in self.resident.elements:
            pointer = whole.pointer + at * whole.dtype.itemsize
            one = replace(whole, pointer=pointer, shape=(1,), strides=(whole.dtype.itemsize,))
            self.resident.elements[at] = to_host(one, self.resident.stream)[0]
        return self.resident.elements[at]


class Residents:
    """The memory of a call at *place*: the host program's arrays lie in it.

    *known*: arrays of the host, by their memory, whose content lies on the GPU and stays there.
    """

    def __init__(
        self, place: Place, known: Mapping[Key, tuple[Array, Resident]] | None = None
    ) -> None:
        self.place, self.known = place, dict(known or {})

    def resident(self, array: DeviceArray) -> Resident:
        """Return *array* as one of this call."""
        return Resident(array, self.place.stream)

    def put(self, host: Array) -> Resident:
        """Return the array of the GPU with the content of *host*, which does not change."""
        if (found := self.known.get(memory_of(host))) is None:
            array = array_of(host, self.place)
            found = self.known[memory_of(host)] = host, Resident(array, self.place.stream, host)
        return Resident(found[1].array, self.place.stream, host)

    def clone(self, array: DeviceArray) -> DeviceArray:
        """Return a copy of *array*, of the same library."""
        copy = empty(array.shape, array.dtype, replace(self.place, library=array.library))
        memory.copy(copy.pointer, array.pointer, array.nbytes, array.device, self.place.stream)
        return copy

    def output(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        fill: float | None,
        library: Library | None = None,
    ) -> Resident:
        """Return a new array of *fill*, or of anything if that is None; of *library*."""
        place = self.place
        if library is not None and library != place.library:
            place = replace(place, library=library)
        if fill is None:
            return self.resident(empty(shape, dtype, place))
        return self.resident(full(shape, dtype, float(fill) if dtype.is_float else fill, place))

    def allocate(self, size: int, dtype: DType, fill: float | None) -> Resident:
        """Return a new array of *size* elements of *fill*, or of anything if that is None."""
        return self.output((size,), dtype, fill)

    def scan(self, array: Resident) -> Resident:
        """Return *array* as running sums from 0; the host adds them up, and waits.

        Raises ArgumentError if its dtype cannot hold them.
        """
        array.copy = HOST.scan(to_host(array.array, array.stream))
        memory.write(array.array.pointer, array.copy, array.array.device, array.stream)
        return array

    def trim(self, array: Resident, size: int) -> Resident:
        """Return the first *size* elements of *array*."""
        whole = array.array
        owner = whole.owner if whole.library in ("numba", "host") else whole.owner[:size]
        copy = None if array.copy is None else array.copy[:size]
        return Resident(replace(whole, shape=(size,), owner=owner), array.stream, copy)


def memory_of(array: Array) -> Key:
    """Return the memory of the contiguous *array* of the host, as a key, with its type."""
    return int(array.__array_interface__["data"][0]), array.size, array.dtype.str


def aligned(array: DeviceArray, who: str, least: int) -> DeviceArray:
    """Return *array*; raises ArgumentError unless it begins at a multiple of *least* bytes."""
    if array.pointer % least:
        copy = {"torch": ".clone()", "cupy": ".copy()"}.get(array.library, "its library")
        raise ArgumentError(
            f"argument {who}: begins at address {array.pointer:#x} of the GPU, expected a multiple"
            f" of {least}",
            hint=f"it is a part of another array: copy it with {copy}",
        )
    return array
