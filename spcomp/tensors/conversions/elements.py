"""At a conversion: the elements of a tensor of any library, as coordinates and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from spcomp.arrays import Array
from spcomp.dtypes import DType
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError
from spcomp.tensors import checks as validate
from spcomp.tensors.conversions.keys import index_type
from spcomp.tensors.conversions.order import majors_of
from spcomp.tensors.libraries.foreign import bridge, hint_about, is_tensor
from spcomp.tensors.libraries.scipy import by_scipy, in_range, is_scipy_class, scipy_holds
from spcomp.tensors.tensor import Tensor

Family: TypeAlias = Literal["numpy", "scipy", "tensor", "torch", "pydata", "dlpack"]


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """The stored elements of a tensor: an array of coordinates per dimension, and the values.

    Coordinates are all int32 or all int64, in any order, and may repeat. They have been checked, or
    are checked when they are put in order.
    """

    shape: tuple[int, ...]
    coordinates: tuple[Array, ...]
    values: Array


def family_of(x: Any) -> Family:
    """Return the library of the tensor *x*; raises ArgumentError if it is not a tensor."""
    kind: Any = type(x)
    if (family := _family_of(kind)) is not None:
        return family
    if kind.__module__.partition(".")[0] == "sparse" and hasattr(x, "fill_value"):
        return "pydata"
    if hasattr(x, "__dlpack__"):
        return "dlpack"
    raise ArgumentError(
        f"argument x: got {type(x).__name__}, expected a tensor",
        hint=hint_about(
            x,
            "give a numpy, scipy.sparse, torch or pydata sparse array, a spcomp.Tensor, or what"
            " has __dlpack__",
        ),
    )


@lru_cache(maxsize=64)
def _family_of(kind: Any) -> Family | None:
    """The library, as far as the type of a tensor says it."""
    if issubclass(kind, np.ndarray):
        return "numpy"
    if issubclass(kind, Tensor):
        return "tensor"
    if is_tensor(kind):
        return "torch"
    return "scipy" if is_scipy_class(kind) else None


def item_type(values: Any) -> DType:
    """Return the dtype of the array *values*; raises ArgumentError if it is not supported."""
    return _item_type(values.dtype)


@lru_cache(maxsize=64)
def _item_type(kind: np.dtype[Any]) -> DType:
    name = kind.name if kind.isnative else f"{kind.name} (byte-swapped)"
    try:
        return dtype_of(name)
    except ValueError:
        raise ArgumentError(
            f"argument x: got dtype {name}",
            hint="convert it to an integer or floating type with .astype(...)",
        ) from None


def elements_of(x: Any, who: str = "") -> Elements:
    """Return the stored elements of *x*; raises ArgumentError, naming index arrays with *who*.

    Those of a dense array are the nonzero ones, with NaN and without -0.0.
    """
    family = family_of(x)
    return _checked(_READ[family](in_range(x, who) if family == "scipy" else x))


def from_arrays(shape: tuple[int, ...], coordinates: Sequence[Any], values: Array) -> Elements:
    """Return the elements with *coordinates*, an array per dimension; raises ArgumentError."""
    return _checked(Elements(shape, _index_arrays(shape, coordinates), values))


def _checked(elements: Elements) -> Elements:
    elements = replace(elements, values=validate.native("values", elements.values))
    item_type(elements.values)
    if not elements.shape:
        raise ArgumentError("argument x: has no dimensions, expected at least one")
    if elements.values.ndim != 1 or any(
        axis.shape != elements.values.shape for axis in elements.coordinates
    ):
        raise ArgumentError("argument x: has not as many coordinates as values")
    return elements


def dense_array(x: Any) -> Array:
    """Return the numpy array over the memory of *x*, which has ``__dlpack__``."""
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"argument x: {type(x).__name__} gives no array: {error}") from None


def _of_numpy(array: Array) -> Elements:
    array = validate.native("x", array)
    item_type(array)
    stored = array if array.dtype.kind != "V" else array.view(np.uint16) & 0x7FFF  # bfloat16
    places = stored.nonzero() if array.ndim else ()
    return Elements(array.shape, _index_arrays(array.shape, places), array[places])


def _of_dlpack(x: Any) -> Elements:
    return _of_numpy(dense_array(x))


def _of_tensor(tensor: Tensor) -> Elements:
    values = np.asarray(tensor.values).reshape(-1)
    kinds = tuple("dense" if level is None else level.kind for level in tensor.levels)
    level = tensor.levels[-1] if tensor.levels else None
    if kinds == ("dense", "compressed") and level is not None and len(tensor.order) == 2:
        assert level.indptr is not None
        assert level.indices is not None
        kind = index_type(*tensor.shape)
        major = majors_of(level.indptr, len(level.indices), kind)
        pair = major, level.indices.astype(kind, copy=False)
        return Elements(
            tensor.shape, (pair[tensor.order.index(0)], pair[tensor.order.index(1)]), values
        )
    coordinates, places = tensor.elements()
    return Elements(tensor.shape, _index_arrays(tensor.shape, coordinates), values[places])


def _of_scipy(matrix: Any) -> Elements:
    if matrix.ndim == 2 and matrix.format in ("csr", "csc"):
        pointers, kind = np.asarray(matrix.indptr), index_type(*matrix.shape)
        first, last = int(pointers[0]), int(pointers[-1])
        major = majors_of(pointers - first, last - first, kind)
        minor = np.asarray(matrix.indices[first:last]).astype(kind, copy=False)
        pair = (major, minor) if matrix.format == "csr" else (minor, major)
        return Elements(matrix.shape, pair, np.asarray(matrix.data)[first:last])
    coo = matrix
    if matrix.format != "coo":
        coo = by_scipy(matrix if scipy_holds(matrix.dtype) else matrix.astype(np.float32), "tocoo")
    values = np.asarray(coo.data).astype(matrix.dtype, copy=False)
    return Elements(coo.shape, _index_arrays(coo.shape, coo.coords), values)


def _of_pydata(array: Any) -> Elements:
    if not np.array_equal(array.fill_value, 0):
        raise ArgumentError(
            f"argument x: has the fill value {array.fill_value}, expected 0",
            hint="subtract it first",
        )
    coo = array if hasattr(array, "coords") else array.asformat("coo")
    return Elements(
        tuple(coo.shape), _index_arrays(coo.shape, tuple(coo.coords)), np.asarray(coo.data)
    )


def _of_torch(tensor: Any) -> Elements:
    shape, coordinates, values = bridge().elements(tensor)
    return Elements(shape, _index_arrays(shape, coordinates), values)


_READ: Mapping[Family, Callable[[Any], Elements]] = {
    "numpy": _of_numpy,
    "scipy": _of_scipy,
    "tensor": _of_tensor,
    "torch": _of_torch,
    "pydata": _of_pydata,
    "dlpack": _of_dlpack,
}


def _index_arrays(shape: Sequence[int], coordinates: Sequence[Any]) -> tuple[Array, ...]:
    """Return *coordinates* as contiguous arrays of the index type that *shape* needs."""
    kind = index_type(*shape)
    arrays = []
    for dim, (axis, extent) in enumerate(zip(coordinates, shape, strict=True)):
        array = validate.index_array(f"coordinates of axis {dim}", axis)
        if array.dtype.itemsize > kind.itemsize:
            validate.in_range(f"coordinates of axis {dim}", array, 0, extent - 1)  # may not fit
        arrays.append(np.ascontiguousarray(array, kind))
    return tuple(arrays)
