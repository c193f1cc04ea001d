"""At the call of an index notation kernel: arguments in another format, and parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from spcomp.compiler import convert, validate
from spcomp.compiler.conversions_source import by_scipy, elements_of, in_range
from spcomp.compiler.tensor import Level, Tensor, put_together
from spcomp.errors import ArgumentError
from spcomp.notation.layout import Layout
from spcomp.notation.windows import Windows, coordinates

Coordinates: TypeAlias = list[Sequence[int] | int]  # by dimension; a number leaves it out
LARGE = 1 << 15  # elements from which it pays to convert in parallel


def stored(given: Any, layout: Layout, who: str) -> Any:
    """Return *given* in *layout*, of dense and compressed levels: an array if all are dense.

    Else a Tensor of the levels in order, rooted, in which repeated elements are summed. Raises
    ArgumentError, about the argument *who*.
    """
    if layout.is_dense:
        return _plain(given, who).transpose(layout.order)
    if _is_large(given):
        from spcomp.compiler.conversions import to_tensor

        return in_order(to_tensor(given, layout))
    from spcomp.compiler.conversions_build import build

    return in_order(build(elements_of(given, f"{who}."), layout, "sum", compiled=False))


def rows(given: Any, kind: str, who: str) -> Any:
    """Return the scipy matrix *given* as ``csr`` or ``csc``, as *kind* says."""
    given = convert.sound(given, f"{who}.")
    if not _is_large(given) and convert.scipy_holds(given.dtype):
        return by_scipy(in_range(given, f"{who}."), "asformat", kind, who=who)
    import scipy.sparse as sps

    from spcomp.compiler.conversions import as_rows

    make = getattr(sps, f"{kind}_{'array' if isinstance(given, sps.sparray) else 'matrix'}")
    return as_rows(given, make, (0, 1) if kind == "csr" else (1, 0))


def _is_large(given: Any) -> bool:
    if isinstance(given, Tensor):
        return given.values.size > LARGE
    return convert.stored_size(given) > LARGE


def in_order(tensor: Tensor) -> Tensor:
    """Return *tensor*, one level per dimension, as the Tensor of its levels, rooted.

    What is known of it is kept, so that calls with the same one are alike.
    """
    levels = tensor.levels
    kept = not levels or (levels[0] is None and all(map(_is_axis, levels)))
    if kept and tensor.is_plain:
        return tensor
    if tensor.as_axes is None:
        shape = tuple(tensor.shape[dim] for dim in tensor.order)
        made = put_together(shape, tuple(map(_as_axis, levels)), tensor.values)
        tensor.as_axes = made if levels[0] is None else rooted(made)
    return tensor.as_axes.with_values(tensor.values)


def mask_of(tensor: Tensor) -> Any:
    """Return which elements of *tensor*, of dense and bitmap levels, are there: by its levels."""
    extents = [tensor.shape[dim] for dim in tensor.order]
    found: Any = None
    for at, level in enumerate(tensor.levels):
        if level is not None and level.mask is not None:
            own = level.mask.reshape(*extents[: at + 1], *(1,) * (len(extents) - at - 1))
            found = own if found is None else found & own
    return np.ascontiguousarray(np.broadcast_to(found, extents))


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
    return put_together((1, *tensor.shape), (None, *tensor.levels), tensor.values)


def unrooted(tensor: Tensor) -> Tensor:
    """Return *tensor* without its first level, which has one coordinate."""
    return put_together(tensor.shape[1:], tensor.levels[1:], tensor.values)


def _plain(given: Any, who: str) -> Any:
    """A numpy array of the elements of *given*, by dimension; a view of a dense Tensor's values."""
    if hasattr(given, "toarray") and convert.scipy_holds(given.dtype):
        return by_scipy(in_range(given, f"{who}."), "toarray", who=who)
    if not isinstance(given, Tensor):
        found = elements_of(given)
        made = np.zeros(found.shape, found.values.dtype)
        np.add.at(made, found.coordinates, found.values)
        return made
    if not given.layout.is_dense or given.layout.is_split:
        return given.to_dense()
    values = given.values.reshape([given.shape[dim] for dim in given.order])
    return values.transpose(np.argsort(given.order))


# -- windows -------------------------------------------------------------------------------------


def look_at(name: str, arg: Any, windows: Windows) -> tuple[Any, Callable[[Any], Any]]:
    """Return the *windows* of *arg*, and what takes them of another argument."""

    def look(given: Any) -> Any:
        if not hasattr(given, "shape"):
            raise ArgumentError(
                f"argument {name}: got {type(given).__name__}, which has no windows",
                hint="give a numpy or scipy.sparse array, or a Tensor",
            )
        given = as_read(given, name)
        return _cut(name, given, coordinates(name, windows, given.shape))

    return look(arg), look


def as_read(given: Any, who: str) -> Any:
    """Return *given*, of numpy or scipy, with arrays as machine code reads them."""
    if isinstance(given, np.ndarray):
        return validate.native(who, given)
    return convert.sound(given, f"{who}.") if hasattr(given, "tocsr") else given


def _cut(who: str, given: Any, kept: Coordinates) -> Any:
    if isinstance(given, np.ndarray):
        part = cut_array(given, kept)
        return part if part.ndim == 0 or part.flags.c_contiguous else np.ascontiguousarray(part)
    if isinstance(given, Tensor) and given.layout.is_dense:
        return _cut(who, _plain(given, who), kept)
    if not hasattr(given, "tocsr") or given.ndim != 2 or not convert.scipy_holds(given.dtype):
        return _cut_elements(who, given, kept)
    matrix = rows(given, given.format if given.format == "csc" else "csr", who)
    first, second = (_key(range(k, k + 1) if isinstance(k, int) else k) for k in kept)
    if isinstance(first, slice) and isinstance(second, slice):
        part = by_scipy(matrix, "__getitem__", (first, second), who=who)
    else:
        part = by_scipy(matrix, "__getitem__", first, who=who)
        part = by_scipy(part, "__getitem__", (slice(None), second), who=who)
    if not any(isinstance(k, int) for k in kept):
        return part
    return _cut_elements(who, part, [0 if isinstance(k, int) else range(len(k)) for k in kept])


def cut_array(given: Any, kept: Coordinates) -> Any:
    """Return the elements of the array *given* at *kept*: a view of it, but for index sets."""
    for dim, own in enumerate(kept):
        if isinstance(own, tuple):
            given = np.take(given, np.asarray(own, np.int64), axis=dim)
    return given[(*(slice(None) if isinstance(own, tuple) else _key(own) for own in kept), ...)]


def _key(own: Sequence[int] | int) -> Any:
    """What numpy and scipy take for the coordinates *own* of a dimension."""
    if isinstance(own, range):
        return slice(own.start, None if own.stop < 0 else own.stop, own.step)
    return own if isinstance(own, int) else np.asarray(own, np.int64)


def _cut_elements(who: str, given: Any, kept: Coordinates) -> Any:
    """The elements of *given* at *kept*, as a coo array or Tensor, or a scalar one."""
    found = elements_of(given, f"{who}.")
    values, places = found.values, [np.asarray(own, np.int64) for own in found.coordinates]
    for dim, own in enumerate(kept):
        at, places[dim] = _met(places[dim], (own,) if isinstance(own, int) else own)
        values = values[at]
        places = [place if k == dim else place[at] for k, place in enumerate(places)]
    left = [(p, len(own)) for p, own in zip(places, kept, strict=True) if not isinstance(own, int)]
    if not left:
        return np.asarray(values.sum(), values.dtype)
    coords: Any = tuple(place for place, _ in left)
    shape = tuple(length for _, length in left)
    if not convert.scipy_holds(values.dtype):
        return Tensor.from_coo(coords, values, shape)
    import scipy.sparse as sps

    return sps.coo_array((values, coords), shape=shape)


def _met(place: Any, own: Sequence[int]) -> tuple[Any, Any]:
    """Which elements, at *place* in a dimension, are at coordinates of *own*, and at which."""
    if isinstance(own, range):
        steps, rest = np.divmod(place - own.start, own.step)
        at = np.flatnonzero((rest == 0) & (steps >= 0) & (steps < len(own)))
        return at, steps[at]
    order = np.argsort(own, kind="stable")
    ascending = np.asarray(own, np.int64)[order]
    begin, end = (np.searchsorted(ascending, place, side) for side in ("left", "right"))
    count = end - begin
    at = np.repeat(np.arange(len(place)), count)
    return at, order[np.arange(len(at)) - np.repeat(np.cumsum(count) - count - begin, count)]
