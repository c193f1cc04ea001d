"""The front door of distributed tensors: made of tensors here, and of arrays of Dask."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.tokenize import tokenize

from spcomp.dask import blocks
from spcomp.dask.chunks import Grid, by_elements, grid_of, offsets
from spcomp.dask.collection import DistributedTensor
from spcomp.errors import ArgumentError
from spcomp.tensors.convert import convert
from spcomp.tensors.libraries.scipy import is_scipy
from spcomp.tensors.tensor import Tensor


def from_scipy(matrix: Any, chunks: Any = -1) -> DistributedTensor:
    """Return a sparse matrix, or a ``spcomp.Tensor``, in blocks.

    Args:
        matrix: A matrix or array of scipy; csr and csc stay what they are, others become csr. Its
            index arrays are checked now. Or a Tensor.
        chunks: The rows of a block; or, for each dimension, the extent of a block, -1 for the
            whole, or a tuple of extents. ``("nonzeros", 8)``: 8 blocks of rows with about as many
            stored elements.

    Raises:
        ArgumentError: for other arguments.
    """
    if not isinstance(matrix, Tensor) and not (is_scipy(matrix) and matrix.ndim == 2):
        raise ArgumentError(
            f"argument matrix: got {type(matrix).__name__}, expected a sparse matrix or a Tensor",
            hint="from_array takes arrays of Dask; dense arrays need no blocks of spcomp",
        )
    whole = matrix if isinstance(matrix, Tensor) else _checked(matrix)
    return cut(whole, _chunks(chunks, whole))


def _checked(matrix: Any) -> Any:
    """Return *matrix* as a csr or csc array whose index arrays are right."""
    from scipy.sparse import csc_array, csr_array

    found = convert(matrix, matrix.format if matrix.format in ("csr", "csc") else "csr")
    if isinstance(found, Tensor):  # of 16-bit floats, which scipy does not store
        return found
    return csr_array(found) if found.format == "csr" else csc_array(found)


def _chunks(chunks: Any, whole: Any) -> Grid:
    """Return *chunks* as a grid; raises ArgumentError."""
    if not (isinstance(chunks, tuple) and chunks and chunks[0] == "nonzeros"):
        return grid_of(chunks, whole.shape)
    if len(chunks) != 2 or not isinstance(chunks[1], int) or chunks[1] < 1:
        raise ArgumentError(f'argument chunks: got {chunks!r}, expected ("nonzeros", 8)')
    rows = blocks.elements(whole)[0][0]
    counts = np.bincount(rows, minlength=whole.shape[0])
    cut_rows = by_elements(np.concatenate([[0], np.cumsum(counts)]), chunks[1])
    return (cut_rows, *((extent,) for extent in whole.shape[1:]))


def cut(whole: Any, grid: Grid) -> DistributedTensor:
    """Return *whole*, a block, in the blocks of *grid*, which become part of the graph.

    They are copies: the graph is known by what they hold now.
    """
    name = f"from-scipy-{tokenize(whole, grid)}"
    starts = tuple(map(offsets, grid))
    layer = {}
    for at in np.ndindex(*map(len, grid)):
        begins = tuple(s[k] for s, k in zip(starts, at, strict=True))
        ends = tuple(s[k + 1] for s, k in zip(starts, at, strict=True))
        part = blocks.apart(blocks.cut(whole, begins, ends), whole)
        layer[name, *at] = Task((name, *at), blocks.given, part)
    graph = HighLevelGraph.from_collections(name, layer)
    return DistributedTensor(graph, name, grid, empty(whole))


def empty(block: Any) -> Any:
    """Return a tensor like *block* of extents 0."""
    rank = block.ndim
    none = [np.zeros(0, np.int64)] * rank
    return blocks.like(block, none, np.zeros(0, block.dtype), (0,) * rank)


def empty_matrix(kind: str, dtype: str) -> Any:
    """Return a csr or csc array of extents 0."""
    return convert(np.zeros((0, 0), dtype), kind)


def from_array(array: Any, format: str = "csr") -> DistributedTensor:  # noqa: A002
    """Return an array of Dask, whose chunks are of scipy, ``sparse`` or numpy, as sparse blocks.

    Args:
        array: A matrix with known chunks. Of chunks of numpy, what is not 0 is stored.
        format: The format of the blocks, ``csr`` or ``csc``.

    Raises:
        ArgumentError: for another argument, or extents of chunks that Dask does not know.
    """
    if not isinstance(array, da.Array) or array.ndim != 2:
        raise ArgumentError(
            f"argument array: got {type(array).__name__}, expected a matrix of Dask",
            hint="from_scipy takes matrices that are here",
        )
    if format not in ("csr", "csc"):
        raise ArgumentError(f"argument format: got {format!r}, expected csr or csc")
    grid = known_chunks("array", array)
    name = f"from-array-{tokenize(array.name, format)}"
    layer = {
        (name, *at): Task((name, *at), _block, TaskRef((array.name, *at)), format)
        for at in np.ndindex(*array.numblocks)
    }
    graph = HighLevelGraph.from_collections(name, layer, [array])
    meta = empty(_block(np.zeros((1, 1), array.dtype), format))
    return DistributedTensor(graph, name, grid, meta)


def known_chunks(name: str, array: Any) -> Grid:
    """Return the chunks of *array*; raises ArgumentError if Dask does not know them."""
    if any(np.isnan(n) for chunks in array.chunks for n in chunks):
        raise ArgumentError(
            f"argument {name}: the extents of its chunks are not known",
            hint="compute them with .compute_chunk_sizes()",
        )
    return tuple(tuple(map(int, chunks)) for chunks in array.chunks)


def _block(chunk: Any, kind: str) -> Any:
    return convert(chunk, kind)


def collection(name: str, arg: Any) -> Any:
    """Return *arg* as a collection: of one block, if it is here."""
    if isinstance(arg, DistributedTensor):
        return arg
    if isinstance(arg, da.Array):
        known_chunks(name, arg)
        sparse = not isinstance(arg._meta, np.ndarray)  # noqa: SLF001 (Dask has no other name)
        return from_array(arg) if sparse else arg
    if isinstance(arg, Tensor) or is_scipy(arg):
        return from_scipy(arg)
    if hasattr(arg, "__array__") or np.isscalar(arg):
        array = np.asarray(arg)
        return da.from_array(array, chunks=-1, name=f"array-{tokenize(array)}")
    raise ArgumentError(
        f"argument {name}: got {type(arg).__name__}, expected an array",
        hint="give a DistributedTensor, an array of Dask, numpy or scipy.sparse, or a Tensor",
    )
