"""At a conversion: what anything that is a tensor holds, as coordinates and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from spcomp.compiler import validate
from spcomp.compiler.conversions_sort import index_type, majors_of
from spcomp.compiler.convert import put_together, scipy_holds, sound
from spcomp.compiler.foreign import bridge, hint_about, is_tensor
from spcomp.compiler.tensor import Tensor
from spcomp.dtypes import DType
from spcomp.dtypes import dtype as dtype_of
from spcomp.errors import ArgumentError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Family: TypeAlias = Literal["numpy", "scipy", "tensor", "torch", "pydata", "dlpack"]


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """The stored elements of a tensor: an array of coordinates per dimension, and the values.

    Coordinates are all int32 or all int64; they may be in any order, and may repeat. They were
    checked, or are when they are put in order.
    """

    shape: tuple[int, ...]
    coordinates: tuple[Array, ...]
    values: Array


def family_of(given: Any) -> Family:
    """Return the library whose tensor *given* is; raises ArgumentError for something else."""
    kind: Any = type(given)
    if (family := _family_of(kind)) is not None:
        return family
    if kind.__module__.partition(".")[0] == "sparse" and hasattr(given, "fill_value"):
        return "pydata"
    if hasattr(given, "__dlpack__"):
        return "dlpack"
    raise ArgumentError(
        f"argument x: got {type(given).__name__}, expected a tensor",
        hint=hint_about(
            given,
            "give a numpy, scipy.sparse, torch or pydata sparse array, a spcomp.Tensor, or what"
            " has __dlpack__",
        ),
    )


@lru_cache(maxsize=64)
def _family_of(kind: Any) -> Family | None:
    """What says the type of a tensor alone."""
    if issubclass(kind, np.ndarray):
        return "numpy"
    if issubclass(kind, Tensor):
        return "tensor"
    if is_tensor(kind):
        return "torch"
    if not hasattr(kind, "format"):
        return None
    import scipy.sparse as sps

    return "scipy" if issubclass(kind, (sps.sparray, sps.spmatrix)) else None


def item_type(values: Any) -> DType:
    """Return the type of the array *values*; raises ArgumentError for one that is none of ours."""
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


def elements_of(given: Any, who: str = "") -> Elements:
    """Return what *given* holds; raises ArgumentError, about index arrays of *who*.

    Of a dense array that are the elements that are not zero: NaN is one, -0.0 is not.
    """
    family = family_of(given)
    return _sound(_READ[family](in_range(given, who) if family == "scipy" else given))


def from_arrays(shape: tuple[int, ...], coordinates: Sequence[Any], values: Array) -> Elements:
    """Return the elements at *coordinates*, an array per dimension; raises ArgumentError."""
    return _sound(Elements(shape, _alike(shape, coordinates), values))


def _sound(made: Elements) -> Elements:
    made = replace(made, values=validate.native("values", made.values))
    item_type(made.values)
    if not made.shape:
        raise ArgumentError("argument x: has no dimensions, expected at least one")
    if made.values.ndim != 1 or any(own.shape != made.values.shape for own in made.coordinates):
        raise ArgumentError("argument x: has not as many coordinates as values")
    return made


def dense_array(given: Any) -> Array:
    """Return the numpy array over the memory of *given*, which has ``__dlpack__``."""
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"argument x: {type(given).__name__} gives no array: {error}") from None


def _of_numpy(given: Array) -> Elements:
    given = validate.native("x", given)
    item_type(given)
    stored = given if given.dtype.kind != "V" else given.view(np.uint16) & 0x7FFF  # bfloat16
    found = stored.nonzero() if given.ndim else ()
    return Elements(given.shape, _alike(given.shape, found), given[found])


def _of_dlpack(given: Any) -> Elements:
    return _of_numpy(dense_array(given))


def _of_tensor(given: Tensor) -> Elements:
    values = np.asarray(given.values).reshape(-1)
    kinds = tuple("dense" if level is None else level.kind for level in given.levels)
    level = given.levels[-1] if given.levels else None
    if kinds == ("dense", "compressed") and level is not None and len(given.order) == 2:
        assert level.indptr is not None
        assert level.indices is not None
        kind = index_type(*given.shape)
        major = majors_of(level.indptr, len(level.indices), kind)
        pair = major, level.indices.astype(kind, copy=False)
        return Elements(
            given.shape, (pair[given.order.index(0)], pair[given.order.index(1)]), values
        )
    coordinates, places = given.elements()
    return Elements(given.shape, _alike(given.shape, coordinates), values[places])


def _of_scipy(found: Any) -> Elements:
    if found.ndim == 2 and found.format in ("csr", "csc"):
        pointers, kind = np.asarray(found.indptr), index_type(*found.shape)
        first, last = int(pointers[0]), int(pointers[-1])
        major = majors_of(pointers - first, last - first, kind)
        minor = np.asarray(found.indices[first:last]).astype(kind, copy=False)
        pair = (major, minor) if found.format == "csr" else (minor, major)
        return Elements(found.shape, pair, np.asarray(found.data)[first:last])
    coo = found
    if found.format != "coo":
        coo = by_scipy(found if scipy_holds(found.dtype) else found.astype(np.float32), "tocoo")
    values = np.asarray(coo.data).astype(found.dtype, copy=False)
    return Elements(coo.shape, _alike(coo.shape, coo.coords), values)


def by_scipy(given: Any, method: str, *args: Any, who: str = "x") -> Any:
    """Return what a *method* of the scipy array *given*, the argument *who*, does.

    Its index arrays have been checked. Raises ArgumentError where scipy finds fault with the rest.
    """
    try:
        return getattr(given, method)(*args)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"argument {who}: scipy cannot read the {given.format}: {error}"
        ) from None


def _of_pydata(given: Any) -> Elements:
    if not np.array_equal(given.fill_value, 0):
        raise ArgumentError(
            f"argument x: has the fill value {given.fill_value}, expected 0",
            hint="subtract it first",
        )
    coo = given if hasattr(given, "coords") else given.asformat("coo")
    return Elements(tuple(coo.shape), _alike(coo.shape, tuple(coo.coords)), np.asarray(coo.data))


def _of_torch(given: Any) -> Elements:
    shape, coordinates, values = bridge().elements(given)
    return Elements(shape, _alike(shape, coordinates), values)


_READ: Mapping[Family, Callable[[Any], Elements]] = {
    "numpy": _of_numpy,
    "scipy": _of_scipy,
    "tensor": _of_tensor,
    "torch": _of_torch,
    "pydata": _of_pydata,
    "dlpack": _of_dlpack,
}


def _alike(shape: Sequence[int], coordinates: Sequence[Any]) -> tuple[Array, ...]:
    """Return *coordinates* as contiguous arrays of the type that *shape* needs."""
    kind = index_type(*shape)
    found = []
    for dim, (given, extent) in enumerate(zip(coordinates, shape, strict=True)):
        own = validate.index_array(f"coordinates of axis {dim}", given)
        if own.dtype.itemsize > kind.itemsize:
            validate.in_range(f"coordinates of axis {dim}", own, 0, extent - 1)  # may not fit
        found.append(np.ascontiguousarray(own, kind))
    return tuple(found)


def in_range(given: Any, who: str = "") -> Any:
    """Return the scipy array *given*, sound, if its index arrays are what scipy's routines trust.

    Raises ArgumentError, which calls the arrays by their names behind *who*.
    """
    given = sound(given, who)
    kind, shape = given.format, given.shape
    if kind == "coo":
        for dim, coords in enumerate(given.coords):
            validate.in_range(f"{who}coords[{dim}]", coords, 0, shape[dim] - 1)
    elif kind == "dia":
        validate.in_range(f"{who}offsets", given.offsets, -shape[0], shape[1])
    elif kind in ("csr", "csc", "bsr") and given.ndim == 2:
        block = given.blocksize if kind == "bsr" else (1, 1)
        rows, columns = (n // b for n, b in zip(shape, block, strict=True))
        fibers, length = (columns, rows) if kind == "csc" else (rows, columns)
        indptr, indices = given.indptr, given.indices
        if indptr.dtype != indices.dtype:  # scipy's routines take them of one type
            own = (array.astype(np.int64, copy=False) for array in (indices, indptr))
            given = put_together(type(given), shape, given.data, *own)
        validate.pointers(f"{who}indptr", indptr, fibers, min(indices.size, len(given.data)))
        if kind == "bsr" and indptr[0]:
            raise ArgumentError(f"argument {who}indptr: starts at {indptr[0]}, expected 0")
        validate.in_range(f"{who}indices", indices[: int(indptr[-1])], 0, length - 1)
    return given
