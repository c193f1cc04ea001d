"""Above a Tensor: slices of it, and the same elements in another shape."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.formats.rules import rows_of
from spcomp.tensors.conversions.elements import from_arrays
from spcomp.tensors.conversions.levels import build
from spcomp.tensors.levels import Key, elements_inside


def part_of(tensor: Any, key: Any) -> Any:
    """Return ``tensor[key]``; raises ArgumentError."""
    coordinates, places = tensor.elements()
    keys = _keys(key, tensor.ndim)
    for dim, (part, extent) in enumerate(zip(keys, tensor.shape, strict=True)):
        if isinstance(part, int) and not -extent <= part < extent:
            raise ArgumentError(f"argument key: got {part}, dimension {dim} is {extent}")
    inside, kept = elements_inside(coordinates, tensor.shape, keys)
    values = tensor.values.reshape(-1)[places[inside]]
    if not kept:
        return values.any() if values.dtype.kind == "b" else values.sum(dtype=values.dtype)
    shape = tuple(extent for _, extent in kept)
    return _like(tensor, shape, [along for along, _ in kept], values)


def reshaped(tensor: Any, extents: tuple[Any, ...]) -> Any:
    """Return ``tensor.reshape(*extents)``; raises ArgumentError."""
    shape = _shape_of(extents, tensor.size)
    coordinates, places = tensor.elements()
    kind: Any = np.int64 if tensor.size < 1 << 63 else object  # integers of Python
    flat = np.zeros(len(places), kind)
    for along, extent in zip(coordinates, tensor.shape, strict=True):
        flat = flat * extent + along
    axes: list[Any] = []
    for extent in reversed(shape):
        axes.insert(0, (flat % max(extent, 1)).astype(np.int64, copy=False))
        flat //= max(extent, 1)
    return _like(tensor, shape, axes, tensor.values.reshape(-1)[places])


def _like(tensor: Any, shape: tuple[int, ...], coordinates: list[Any], values: Any) -> Any:
    """Return the Tensor of these elements, in the format of *tensor* if the rank is the same."""
    layout, rank = tensor.layout, len(shape)
    if rank != tensor.ndim:
        layout = Format(("compressed",) if rank == 1 else rows_of(rank))
    return build(from_arrays(shape, coordinates, values), layout, "sum")


def _shape_of(extents: tuple[Any, ...], size: int) -> tuple[int, ...]:
    """Return the shape from *extents*, given one by one or as a sequence, of *size* coordinates."""
    several = len(extents) == 1 and isinstance(extents[0], (tuple, list))
    try:
        shape = tuple(map(operator.index, extents[0] if several else extents))
    except TypeError:
        raise ArgumentError(f"argument shape: got {extents}, expected integers") from None
    if shape.count(-1) == 1 and (rest := -math.prod(shape)):
        shape = tuple(size // rest if extent == -1 else extent for extent in shape)
    if not shape or min(shape) < 0 or math.prod(shape) != size:
        raise ArgumentError(f"argument shape: got {extents} for {size} coordinates")
    if max(shape) >= 1 << 63:
        raise ArgumentError(f"argument shape: got {extents}, and {max(shape)} is too large")
    return shape


def _keys(key: Any, rank: int) -> list[Key]:
    """Return an integer or a slice for each of *rank* dimensions."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if sum(part is ... for part in keys) > 1 or len(keys) - (... in keys) > rank:
        raise ArgumentError(f"argument key: got {len(keys)} for {rank} dimensions")
    at = keys.index(...) if ... in keys else len(keys)
    keys[at : at + 1] = [slice(None)] * (rank - len(keys) + (at < len(keys)))
    return [_key(part) for part in keys]


def _key(part: Any) -> Key:
    try:
        if not isinstance(part, slice):
            return operator.index(part)
        if part.step is not None and operator.index(part.step) < 1:
            raise ArgumentError(f"argument key: got the step {part.step}, expected 1 or more")
        part.indices(1)  # raises TypeError for anything but integers
    except TypeError:
        raise ArgumentError(
            f"argument key: got {type(part).__name__}, expected integers and slices",
            hint='spcomp.convert(A, "csr") gives an array of scipy, which takes others',
        ) from None
    return part
