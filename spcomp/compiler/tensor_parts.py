"""Above a Tensor: the part of it at a key of integers and slices, and it in another shape."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from spcomp.compiler.conversions_build import build
from spcomp.compiler.conversions_source import from_arrays
from spcomp.compiler.tensor_levels import Key, cut
from spcomp.errors import ArgumentError
from spcomp.formats.format import Format
from spcomp.formats.rules import rows_of


def part_of(tensor: Any, key: Any) -> Any:
    """Return what ``tensor[key]`` is; raises ArgumentError."""
    coordinates, places = tensor.elements()
    keys = _keys(key, tensor.ndim)
    for dim, (one, extent) in enumerate(zip(keys, tensor.shape, strict=True)):
        if isinstance(one, int) and not -extent <= one < extent:
            raise ArgumentError(f"argument key: got {one}, dimension {dim} is {extent}")
    inside, left = cut(coordinates, tensor.shape, keys)
    values = tensor.values.reshape(-1)[places[inside]]
    if not left:
        return values.any() if values.dtype.kind == "b" else values.sum(dtype=values.dtype)
    shape = tuple(extent for _, extent in left)
    return _like(tensor, shape, [own for own, _ in left], values)


def reshaped(tensor: Any, given: tuple[Any, ...]) -> Any:
    """Return what ``tensor.reshape(*given)`` is; raises ArgumentError."""
    shape = _shape_of(given, tensor.size)
    coordinates, places = tensor.elements()
    flat = np.zeros(len(places), np.int64)
    for own, extent in zip(coordinates, tensor.shape, strict=True):
        flat = flat * extent + own
    found: list[Any] = []
    for extent in reversed(shape):
        flat, own = np.divmod(flat, max(extent, 1))
        found.insert(0, own)
    return _like(tensor, shape, found, tensor.values.reshape(-1)[places])


def _like(tensor: Any, shape: tuple[int, ...], coordinates: list[Any], values: Any) -> Any:
    """Return the Tensor of these elements: in the format of *tensor*, if that has the rank."""
    layout, rank = tensor.layout, len(shape)
    if rank != tensor.ndim:
        layout = Format(("compressed",) if rank == 1 else rows_of(rank))
    return build(from_arrays(shape, coordinates, values), layout, "sum")


def _shape_of(given: tuple[Any, ...], size: int) -> tuple[int, ...]:
    """Return the extents *given*, one by one or in a sequence, with *size* coordinates."""
    several = len(given) == 1 and isinstance(given[0], (tuple, list))
    try:
        shape = tuple(map(operator.index, given[0] if several else given))
    except TypeError:
        raise ArgumentError(f"argument shape: got {given}, expected integers") from None
    if shape.count(-1) == 1 and (rest := -math.prod(shape)):
        shape = tuple(size // rest if extent == -1 else extent for extent in shape)
    if not shape or min(shape) < 0 or math.prod(shape) != size or size >= 1 << 63:
        raise ArgumentError(f"argument shape: got {given} for {size} coordinates")
    return shape


def _keys(key: Any, rank: int) -> list[Key]:
    """Return an integer or a slice for each of *rank* dimensions."""
    given = list(key) if isinstance(key, tuple) else [key]
    if sum(one is ... for one in given) > 1 or len(given) - (... in given) > rank:
        raise ArgumentError(f"argument key: got {len(given)} for {rank} dimensions")
    at = given.index(...) if ... in given else len(given)
    given[at : at + 1] = [slice(None)] * (rank - len(given) + (at < len(given)))
    return [_key(one) for one in given]


def _key(one: Any) -> Key:
    try:
        if not isinstance(one, slice):
            return operator.index(one)
        if one.step is not None and operator.index(one.step) < 1:
            raise ArgumentError(f"argument key: got the step {one.step}, expected 1 or more")
        one.indices(1)  # raises TypeError for what are no integers
    except TypeError:
        raise ArgumentError(
            f"argument key: got {type(one).__name__}, expected integers and slices",
            hint='spcomp.convert(A, "csr") gives an array of scipy, which takes others',
        ) from None
    return one
