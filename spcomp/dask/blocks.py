"""What runs on a worker: blocks are cut, joined, and read at some coordinates only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof
from scipy.sparse import coo_array, csc_array, csr_array

from spcomp.arrays import Array
from spcomp.dask.received import aligned, empty, staying, stays
from spcomp.tensors.tensor import Tensor

INT32 = (1 << 31) - 1


class BlockStatistics(NamedTuple):
    """Of a block: how many rows have an element, how many columns, and its stored elements.

    *size*: the bytes of its arrays. Rows are the first dimension, columns the last.
    """

    rows: int
    columns: int
    nnz: int
    size: int


def statistics(block: Any) -> BlockStatistics:
    """Return the statistics of *block*."""
    coords, values = elements(block)
    touched = [int(np.unique(coord).size) for coord in (coords[0], coords[-1])]
    return BlockStatistics(touched[0], touched[1], int(values.size), bytes_of(block))


def bytes_of(block: Any) -> int:
    """Return the bytes of the arrays of *block*."""
    if isinstance(block, np.ndarray):
        return int(block.nbytes)
    if isinstance(block, Tensor):
        levels = (a for level in block.levels if level for a in (level.indptr, level.indices))
        return sum(array.nbytes for array in (block.values, *levels) if array is not None)
    return int(block.data.nbytes + block.indices.nbytes + block.indptr.nbytes)


for _kind in (csr_array, csc_array, Tensor):  # Dask takes them for a few bytes, and moves them
    sizeof.register(_kind, bytes_of)


def given(block: Any) -> Any:
    """Return *block* at cache lines: a task, and no data, so that workers know sizes of blocks."""
    return staying(aligned(block))


def apart(part: Any, whole: Any) -> Any:
    """Return *part*, a part of the block *whole*, with values and indices of its own."""
    if isinstance(part, Tensor):  # was made of copies
        return part
    arrays = part.data, part.indices
    if not any(map(np.may_share_memory, arrays, (whole.data, whole.indices))):
        return part
    return type(part)((*map(np.array, arrays), part.indptr), shape=part.shape)


def result(blocks: list[Any], counts: tuple[int, ...]) -> Any:
    """Return *blocks* joined, to be handed out: as a copy, if that is a block that stays here."""
    whole = join(blocks, counts)
    if not stays(whole):
        return whole
    return whole.with_values(np.array(whole.values)) if isinstance(whole, Tensor) else whole.copy()


def elements(block: Any) -> tuple[tuple[Array, ...], Array]:
    """Return the coordinates of the stored elements of *block*, by dimension, and their values."""
    if isinstance(block, Tensor):
        coords, places = block.elements()
        return coords, block.values.reshape(-1)[places]
    major = np.repeat(np.arange(len(block.indptr) - 1), np.diff(block.indptr))
    minor = block.indices[: major.size]
    coords = (major, minor) if block.format == "csr" else (minor, major)
    return coords, block.data[: major.size]


def like(meta: Any, coords: Sequence[Array], values: Array, shape: Sequence[int]) -> Any:
    """Return the *values* at *coords* in the format of the block *meta*."""
    if isinstance(meta, Tensor):
        return Tensor.from_coo(coords, values, tuple(shape), meta.layout)
    index = index_type(max(*shape, len(values)))
    pairs: Any = tuple(coord.astype(index, copy=False) for coord in coords)
    return coo_array((values, pairs), shape=tuple(shape)).asformat(meta.format)


def cut(block: Any, begins: tuple[int, ...], ends: tuple[int, ...]) -> Any:
    """Return the part of *block* from *begins* to *ends*, by dimension."""
    if isinstance(block, np.ndarray):
        return block[tuple(map(slice, begins, ends))]
    shape = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
    major = {"csr": 0, "csc": 1}.get(getattr(block, "format", ""), -1)
    if major >= 0 and shape[1 - major] == block.shape[1 - major]:
        return _rows(block, major, begins[major], ends[major])
    coords, values = elements(block)
    kept = np.ones(values.size, bool)
    for coord, begin, end in zip(coords, begins, ends, strict=True):
        kept &= (coord >= begin) & (coord < end)
    moved = [coord[kept] - begin for coord, begin in zip(coords, begins, strict=True)]
    return like(block, moved, values[kept], shape)


def _rows(block: Any, major: int, begin: int, end: int) -> Any:
    """Return the rows of a csr block, or the columns of one in csc, from *begin* to *end*."""
    first, last = int(block.indptr[begin]), int(block.indptr[end])
    arrays = (
        block.data[first:last],
        block.indices[first:last],
        block.indptr[begin : end + 1] - block.indptr[begin],
    )
    shape = list(block.shape)
    shape[major] = end - begin
    return type(block)(arrays, shape=tuple(shape))


def join(blocks: list[Any], counts: tuple[int, ...]) -> Any:
    """Return *blocks*, listed row by row in a grid of *counts* by dimension, as one block."""
    if len(blocks) == 1:
        return blocks[0]
    grid = np.empty(len(blocks), object)
    for at, block in enumerate(blocks):  # at once, numpy would look inside of them
        grid[at] = block
    grid = grid.reshape(counts)
    if isinstance(blocks[0], np.ndarray):
        return _joined(blocks, grid)
    starts = [
        np.concatenate([[0], np.cumsum([part.shape[dim] for part in _line(grid, dim)])])
        for dim in range(len(counts))
    ]
    found = []
    for place in np.ndindex(*counts):
        coords, values = elements(grid[place])
        moved = [c + starts[dim][place[dim]] for dim, c in enumerate(coords)]
        found.append((moved, values))
    joined = [np.concatenate([moved[dim] for moved, _ in found]) for dim in range(len(counts))]
    values = np.concatenate([values for _, values in found])
    return like(blocks[0], joined, values, [int(start[-1]) for start in starts])


def _joined(blocks: list[Array], grid: Any) -> Array:
    """Return the dense *blocks* of *grid* in one array."""
    if grid.size > max(grid.shape):
        return np.block(grid.tolist())
    dim = grid.shape.index(grid.size)
    shape = list(blocks[0].shape)
    shape[dim] = sum(block.shape[dim] for block in blocks)
    whole = empty(shape, np.result_type(*blocks))
    return np.concatenate(blocks, dim, out=whole)


def _line(grid: Any, dim: int) -> Any:
    return grid[tuple(slice(None) if d == dim else 0 for d in range(grid.ndim))]


def needed(block: Any) -> Array:
    """Return the minor coordinates that a csr or csc block has, each once, in order."""
    return np.unique(block.indices[: int(block.indptr[-1])])


def touched(block: Any, starts: Sequence[int]) -> tuple[int, ...]:
    """Return the pieces of the minor dimension, which begin at *starts*, that a block needs."""
    pieces = np.searchsorted(np.asarray(starts[1:]), needed(block), "right")
    return tuple(np.unique(pieces).tolist())


def section(coords: Array, begin: int, end: int) -> Array:
    """Return those of the ascending *coords* from *begin* to *end*, counted from *begin*."""
    first, last = np.searchsorted(coords, (begin, end))
    return (coords[first:last] - begin).astype(index_type(end - begin))


def index_type(extent: int) -> np.dtype[Any]:
    """Return the type of coordinates and positions up to *extent*."""
    return np.dtype(np.int32 if extent <= INT32 else np.int64)


def compact(block: Any, coords: Array) -> Any:
    """Return *block* with its minor coordinates counted among *coords*, which has them all."""
    count = int(block.indptr[-1])
    index = np.searchsorted(coords, block.indices[:count]).astype(block.indices.dtype)
    shape = list(block.shape)
    shape[1 if block.format == "csr" else 0] = coords.size
    return type(block)((block.data[:count], index, block.indptr), shape=tuple(shape))


def take(block: Any, dim: int, coords: Array) -> Any:
    """Return *block* at *coords* of the dimension *dim* only, ascending, each once."""
    if coords.size == block.shape[dim]:
        return block
    if isinstance(block, np.ndarray):
        return np.take(block, coords, axis=dim)
    if not isinstance(block, Tensor) and dim == 0 and block.format == "csr":
        return block[coords]
    places, values = elements(block)
    at = np.searchsorted(coords, places[dim])
    kept = np.isin(places[dim], coords)
    shape = [*block.shape[:dim], coords.size, *block.shape[dim + 1 :]]
    found = [(at if d == dim else place)[kept] for d, place in enumerate(places)]
    return like(block, found, values[kept], shape)
