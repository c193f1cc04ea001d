"""Tensors of any format, built element by element from dense arrays: slow and obviously right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spcomp
from spcomp import Format, Tensor
from spcomp.formats.format import NAMED
from spcomp.formats.levels import LevelFormat
from tests.corpus_padded import table

MATRICES = [Format.parse(name, 2) for name in NAMED if name not in ("sparse", "coo3")] + [
    Format(text)
    for text in (
        "bsr(2, 3)",
        "dbsr(3)",
        "sell(2)",
        "compressed,dense",
        "hashed,compressed",
        "bitmap,bitmap",
        "compressed,hashed",
        "dense,hashed of dimensions 1,0",
        "dense,offset of dimensions 1,0",
        "compressed,ragged",
        "hashed,offset",
        "runs,dense",
        "compressed,fixed of dimensions 1,0",
        "ragged,compressed",
        "dense,dense of dimensions 1,0",
    )
]
CUBES = [
    Format.parse("coo3", 3),
    Format.parse("csf", 3),
    Format.parse("hash", 3),
    Format(("dense", "dense", "compressed")),
    Format(("compressed", "dense", "compressed"), (2, 0, 1)),
    Format(("compressed", "dense", "dense"), (1, 2, 0)),
    Format(("hashed", "dense", "bitmap"), (1, 0, 2)),
    Format(("dense", "offset", "runs")),
    Format(("dense", "fixed", "ragged")),
]


Element = tuple[tuple[int, ...], Any]  # a coordinate per level, and the value
Fibers = list[list[Element]]


def tensor(array: Any, stored: Any, layout: spcomp.Format) -> Tensor:
    """Return a Tensor in *layout* of the elements of *array* where *stored* holds.

    Levels that cannot leave out an element between two others store zeros there.
    """
    extents = layout.extents(array.shape)
    elements = _elements(array, stored, layout)
    fibers: Fibers = [elements]
    levels: list[Any] = []
    for at, (kind, extent) in enumerate(zip(layout.kinds, extents, strict=True)):
        last = at == len(extents) - 1
        spec, fibers = _LEVELS[kind.name](fibers, at, extent, kind, last)
        levels.append(spec)
    values = np.array([fiber[0][1] if fiber else 0 for fiber in fibers], array.dtype)
    return Tensor(array.shape, levels, values, layout.order)


def _elements(array: Any, stored: Any, layout: spcomp.Format) -> list[Element]:
    found: list[Element] = []
    seen: dict[tuple[int, ...], int] = {}
    for place in np.argwhere(stored).tolist():
        coords: list[int] = []
        left = list(place)
        for dim, stride in zip(layout.order, layout.strides(), strict=True):
            if dim < 0:  # the number of the element in its row
                coords.append(seen.get(tuple(place[:1]), 0))
                seen[tuple(place[:1])] = coords[-1] + 1
                continue
            coords.append(left[dim] // stride)
            left[dim] %= stride
        found.append((tuple(coords), array[tuple(place)]))
    return sorted(found, key=lambda element: element[0])


def _below(fiber: list[Element], at: int, coordinate: int) -> list[Element]:
    return [element for element in fiber if element[0][at] == coordinate]


def _distinct(fiber: list[Element], at: int) -> list[int]:
    return sorted({element[0][at] for element in fiber})


def _pointers(counts: list[int]) -> Any:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _ints(values: Any) -> Any:
    return np.array(list(values), np.int64)


def _dense(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    below = [_below(fiber, at, c) for fiber in fibers for c in range(extent)]
    return (None if kind.size is None else ("dense", kind.size)), below


def _bitmap(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    _, below = _dense(fibers, at, extent, kind, last)
    return ("bitmap", np.array([bool(fiber) for fiber in below], bool)), below


def _compressed(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    if kind.unique:
        groups = [[_below(f, at, c) for c in _distinct(f, at)] for f in fibers]
    else:
        groups = [[[element] for element in fiber] for fiber in fibers]
    below = [group for own in groups for group in own]
    indptr = _pointers([len(own) for own in groups])
    return ("compressed", indptr, _ints(group[0][0][at] for group in below)), below


def _singleton(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    return ("singleton", _ints(f[0][0][at] if f else -1 for f in fibers)), fibers


def _ragged(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    counts = [1 + max(_distinct(fiber, at), default=-1) for fiber in fibers]
    below = [
        _below(f, at, c) for f, count in zip(fibers, counts, strict=True) for c in range(count)
    ]
    return ("ragged", _pointers(counts)), below


def _fixed(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    width = max((len(_distinct(fiber, at)) for fiber in fibers), default=0)
    rows = [[*_distinct(f, at), *(-1,) * (width - len(_distinct(f, at)))] for f in fibers]
    below = [_below(f, at, c) for f, row in zip(fibers, rows, strict=True) for c in row]
    return ("fixed", np.array(rows, np.int64).reshape(len(fibers), width)), below


def _hashed(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    slots: list[int] = []
    below: Fibers = []
    counts = []
    for fiber in fibers:
        own = _distinct(fiber, at)
        size = 1 << (2 * len(own) - 1).bit_length() if own else 0
        filled = table(own, size)
        slots += filled
        below += [_below(fiber, at, c) for c in filled]
        counts.append(size)
    return ("hashed", _pointers(counts), _ints(slots)), below


def _offset(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    steps = sorted({e[0][at] - e[0][at - 1] for fiber in fibers for e in fiber})
    rows = len(fibers)
    below = [
        [e for e in fiber if e[0][at] - e[0][at - 1] == step] for fiber in fibers for step in steps
    ]
    assert len(below) == rows * len(steps)
    return ("offset", _ints(steps)), below


def _runs(fibers: Fibers, at: int, extent: int, kind: LevelFormat, last: bool) -> Any:
    starts: list[int] = []
    ends: list[int] = []
    below: Fibers = []
    counts = []
    for fiber in fibers:
        before = len(starts)
        for coordinate in _distinct(fiber, at):
            own = _below(fiber, at, coordinate)
            joins = last and len(starts) > before and ends[-1] == coordinate
            if joins and below[-1][0][1] == own[0][1]:
                ends[-1] += 1
                continue
            starts.append(coordinate)
            ends.append(coordinate + 1)
            below.append(own)
        counts.append(len(starts) - before)
    return ("runs", _pointers(counts), _ints(starts), _ints(ends)), below


_LEVELS: dict[str, Callable[..., Any]] = {
    "dense": _dense,
    "bitmap": _bitmap,
    "compressed": _compressed,
    "singleton": _singleton,
    "ragged": _ragged,
    "fixed": _fixed,
    "hashed": _hashed,
    "offset": _offset,
    "runs": _runs,
}


def random(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """An array, and where it has elements: some of the values there are 0."""
    rng = np.random.default_rng(seed)
    stored = rng.random(shape) < 0.4
    return np.where(stored, rng.integers(0, 4, shape), 0).astype(float), stored


def present(given: Tensor) -> np.ndarray:
    """Where *given* has elements."""
    found = np.zeros(given.shape, bool)
    found[given.coordinates()] = True
    return found


def full(result: object) -> np.ndarray:
    if isinstance(result, np.ndarray):
        return result
    return result.to_dense() if isinstance(result, Tensor) else result.toarray()
