"""At the call of an index notation kernel: arguments in another format, and parts of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeAlias, cast

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.notation.layout import Layout
from spcomp.notation.windows import Windows, coordinates
from spcomp.runtime.cuda.arrays import is_sparse, lies_there, place_of
from spcomp.runtime.cuda.sparse import sparse_of, with_data
from spcomp.runtime.residents import Residents
from spcomp.tensors import checks as validate
from spcomp.tensors.conversions.elements import elements_of
from spcomp.tensors.libraries.foreign import is_torch
from spcomp.tensors.libraries.scipy import (
    by_scipy,
    class_like,
    in_range,
    is_scipy,
    native_scipy,
    scipy_holds,
    stored_size,
)
from spcomp.tensors.tensor import Level, Tensor, tensor_of_levels

Coordinates: TypeAlias = list[Sequence[int] | int]  # by dimension; a number leaves it out
_COMPRESSED = ("indices", "indptr")
INDEX_ARRAYS: Mapping[str, tuple[str, ...]] = {  # the index arrays of formats of scipy
    **dict.fromkeys(("csr", "csc", "bsr"), _COMPRESSED),
    "coo": ("coords",),
    "dia": ("offsets",),
}
LARGE = 1 << 15  # elements from which it pays to convert in parallel


def stored(arg: Any, layout: Layout, who: str) -> Any:
    """Return *arg* in *layout*, of dense and compressed levels: an array if all are dense.

    Else a rooted Tensor of the levels in order, in which repeated elements are summed. Raises
    ArgumentError about the argument *who*.
    """
    if layout.is_dense:
        return _plain(arg, who).transpose(layout.order)
    if _is_large(arg):
        from spcomp.tensors.convert import to_tensor

        return in_order(to_tensor(arg, layout))
    from spcomp.tensors.conversions.levels import build

    return in_order(build(elements_of(arg, f"{who}."), layout, "sum", compiled=False))


def rows(arg: Any, kind: str, who: str) -> Any:
    """Return the scipy matrix *arg* as ``csr`` or ``csc``, as *kind* says."""
    arg = native_scipy(arg, f"{who}.")
    if not _is_large(arg) and scipy_holds(arg.dtype):
        return by_scipy(in_range(arg, f"{who}."), "asformat", kind, who=who)
    from spcomp.tensors.conversions.rows import compressed

    return compressed(arg, class_like(arg, kind), (0, 1) if kind == "csr" else (1, 0))


def _is_large(arg: Any) -> bool:
    if isinstance(arg, Tensor):
        return arg.values.size > LARGE
    return stored_size(arg) > LARGE


def in_order(tensor: Tensor) -> Tensor:
    """Return *tensor*, one level per dimension, as the rooted Tensor of its levels in order.

    It is kept with *tensor*, so that later calls with the same one take the same arrays.
    """
    levels = tensor.levels
    in_place = not levels or (levels[0] is None and all(map(_is_axis, levels)))
    if in_place and tensor.is_plain:
        return tensor
    if tensor.as_axes is None:
        shape = tuple(tensor.shape[dim] for dim in tensor.order)
        axes = tensor_of_levels(shape, tuple(map(_as_axis, levels)), tensor.values)
        tensor.as_axes = axes if levels[0] is None else rooted(axes)
    return tensor.as_axes.with_values(tensor.values)


def copied(arg: Any) -> Any:
    """Return *arg*, whose index arrays are private, with values of its own.

    What lies on a GPU and is no sparse matrix is returned as it is: nothing converts it.
    """
    if isinstance(arg, np.ndarray):
        return arg.copy()
    if is_scipy(arg) and arg.format in INDEX_ARRAYS:
        result = copy(arg)
        result.data = arg.data.copy()
        return result
    if isinstance(arg, Tensor):
        return arg.with_values(np.array(arg.values))
    if lies_there(arg) and is_sparse(arg):
        place = place_of([arg])
        pattern = sparse_of(arg, place)
        return with_data(pattern, Residents(place).clone(pattern.data))
    return arg.clone() if is_torch(arg) and not lies_there(arg) else arg


def mask_of(tensor: Tensor) -> Any:
    """Return an array of which elements of *tensor*, of dense and bitmap levels, are stored."""
    extents = [tensor.shape[dim] for dim in tensor.order]
    stored: Any = None
    for at, level in enumerate(tensor.levels):
        if level is not None and level.mask is not None:
            mask = level.mask.reshape(*extents[: at + 1], *(1,) * (len(extents) - at - 1))
            stored = mask if stored is None else stored & mask
    return np.ascontiguousarray(np.broadcast_to(stored, extents))


def values_of(tensor: Tensor) -> Any:
    """Return the values of *tensor*, of dense and bitmap levels, as an array, by its levels."""
    return np.ascontiguousarray(tensor.values.reshape([tensor.shape[dim] for dim in tensor.order]))


_AXES: dict[str, Callable[[Level], Level]] = {  # levels that are axes of another kind
    "singleton": lambda level: Level("fixed", indices=cast("Any", level.indices).reshape(-1, 1)),
    "offset": lambda level: Level("fixed", indices=level.offsets),
}


def _is_axis(level: Level | None) -> bool:
    return level is None or level.kind not in _AXES


def _as_axis(level: Level | None) -> Level | None:
    return level if level is None or _is_axis(level) else _AXES[level.kind](level)


def rooted(tensor: Tensor) -> Tensor:
    """Return *tensor* with a dense level of one coordinate in front."""
    return tensor_of_levels((1, *tensor.shape), (None, *tensor.levels), tensor.values)


def unrooted(tensor: Tensor) -> Tensor:
    """Return *tensor* without its first level, which has one coordinate."""
    return tensor_of_levels(tensor.shape[1:], tensor.levels[1:], tensor.values)


def _plain(arg: Any, who: str) -> Any:
    """Return *arg* as a numpy array by dimension; of a dense Tensor, a view of its values."""
    if hasattr(arg, "toarray") and scipy_holds(arg.dtype):
        return by_scipy(in_range(arg, f"{who}."), "toarray", who=who)
    if not isinstance(arg, Tensor):
        elements = elements_of(arg)
        array = np.zeros(elements.shape, elements.values.dtype)
        np.add.at(array, elements.coordinates, elements.values)
        return array
    if not arg.layout.is_dense or arg.layout.is_split:
        return arg.to_dense()
    values = arg.values.reshape([arg.shape[dim] for dim in arg.order])
    return values.transpose(np.argsort(arg.order))


# -- windows -------------------------------------------------------------------------------------


def look_at(name: str, arg: Any, windows: Windows) -> tuple[Any, Callable[[Any], Any]]:
    """Return the *windows* of *arg*, and a function that takes them of another argument."""
    if lies_there(arg):
        raise ArgumentError(
            f"argument {name}: lies on a GPU, where no windows are cut",
            hint="give the part itself, a contiguous array",
        )

    def look(value: Any) -> Any:
        if not hasattr(value, "shape"):
            raise ArgumentError(
                f"argument {name}: got {type(value).__name__}, which has no windows",
                hint="give a numpy or scipy.sparse array, or a Tensor",
            )
        value = as_read(value, name)
        return _cut(name, value, coordinates(name, windows, value.shape))

    return look(arg), look


def as_read(arg: Any, who: str) -> Any:
    """Return *arg*, of numpy or scipy, with arrays that machine code can read."""
    if isinstance(arg, np.ndarray):
        return validate.native(who, arg)
    return native_scipy(arg, f"{who}.") if hasattr(arg, "tocsr") else arg


def _cut(who: str, arg: Any, kept: Coordinates) -> Any:
    if isinstance(arg, np.ndarray):
        part = cut_array(arg, kept)
        return part if part.ndim == 0 or part.flags.c_contiguous else np.ascontiguousarray(part)
    if isinstance(arg, Tensor) and arg.layout.is_dense:
        return _cut(who, _plain(arg, who), kept)
    if not hasattr(arg, "tocsr") or arg.ndim != 2 or not scipy_holds(arg.dtype):
        return _cut_elements(who, arg, kept)
    matrix = rows(arg, arg.format if arg.format == "csc" else "csr", who)
    first, second = (_key(range(k, k + 1) if isinstance(k, int) else k) for k in kept)
    if isinstance(first, slice) and isinstance(second, slice):
        part = by_scipy(matrix, "__getitem__", (first, second), who=who)
    else:
        part = by_scipy(matrix, "__getitem__", first, who=who)
        part = by_scipy(part, "__getitem__", (slice(None), second), who=who)
    if not any(isinstance(k, int) for k in kept):
        return part
    return _cut_elements(who, part, [0 if isinstance(k, int) else range(len(k)) for k in kept])


def cut_array(arg: Any, kept: Coordinates) -> Any:
    """Return the elements of the array *arg* at *kept*: a view of it, except for index sets."""
    for dim, coords in enumerate(kept):
        if isinstance(coords, tuple):
            arg = np.take(arg, np.asarray(coords, np.int64), axis=dim)
    keys = (slice(None) if isinstance(coords, tuple) else _key(coords) for coords in kept)
    return arg[(*keys, ...)]


def _key(coords: Sequence[int] | int) -> Any:
    """Return the key that numpy and scipy take for the *coords* of a dimension."""
    if isinstance(coords, range):
        return slice(coords.start, None if coords.stop < 0 else coords.stop, coords.step)
    return coords if isinstance(coords, int) else np.asarray(coords, np.int64)


def _cut_elements(who: str, arg: Any, kept: Coordinates) -> Any:
    """Return the elements of *arg* at *kept*: a coo array or Tensor, or an array of rank 0."""
    elements = elements_of(arg, f"{who}.")
    values, coords = elements.values, [np.asarray(c, np.int64) for c in elements.coordinates]
    for dim, window in enumerate(kept):
        at, coords[dim] = _in_window(coords[dim], (window,) if isinstance(window, int) else window)
        values = values[at]
        coords = [c if k == dim else c[at] for k, c in enumerate(coords)]
    dims = [(c, len(w)) for c, w in zip(coords, kept, strict=True) if not isinstance(w, int)]
    if not dims:
        return np.asarray(values.sum(), values.dtype)
    kept_coords: Any = tuple(c for c, _ in dims)
    shape = tuple(length for _, length in dims)
    if not scipy_holds(values.dtype):
        return Tensor.from_coo(kept_coords, values, shape)
    import scipy.sparse as sps

    return sps.coo_array((values, kept_coords), shape=shape)


def _in_window(coords: Any, window: Sequence[int]) -> tuple[Any, Any]:
    """Return which elements, at *coords* in a dimension, are in *window*, and where in it."""
    if isinstance(window, range):
        steps, rest = np.divmod(coords - window.start, window.step)
        at = np.flatnonzero((rest == 0) & (steps >= 0) & (steps < len(window)))
        return at, steps[at]
    order = np.argsort(window, kind="stable")
    ascending = np.asarray(window, np.int64)[order]
    begin, end = (np.searchsorted(ascending, coords, side) for side in ("left", "right"))
    count = end - begin
    at = np.repeat(np.arange(len(coords)), count)
    return at, order[np.arange(len(at)) - np.repeat(np.cumsum(count) - count - begin, count)]
