"""Above a Tensor: the part of it at a key of integers and slices."""

from __future__ import annotations

import operator
from typing import Any

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
    layout = tensor.layout
    if len(left) < tensor.ndim:
        layout = Format(("compressed",) if len(left) == 1 else rows_of(len(left)))
    return build(from_arrays(shape, [own for own, _ in left], values), layout, "sum")


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
