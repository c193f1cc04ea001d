"""A distributed tensor: a collection of Dask whose blocks are sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from dask.base import DaskMethodsMixin
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef
from dask.threaded import get as threaded_get
from dask.tokenize import tokenize

from spcomp.dask import blocks
from spcomp.dask.chunks import Chunks, Grid, Piece, grid_of, offsets, overlaps
from spcomp.dask.received import staying
from spcomp.errors import ArgumentError, front_doors
from spcomp.tensors.operators import Arithmetic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spcomp.dask.blocks import BlockStatistics


@front_doors
class DistributedTensor(Arithmetic, DaskMethodsMixin):  # type: ignore[misc] # Dask has no types
    """A sparse tensor in blocks, each a task of Dask; made by ``from_scipy`` and its like.

    ``A @ B``, ``A + B`` and other operators are lines of index notation; the other operand may be
    an array of Dask, or lie here.

    Args:
        graph: The tasks, of which those with the keys ``(name, row, column, ...)`` are the blocks.
        name: The name of the blocks.
        chunks: For each dimension the extents of its pieces, as for Dask's arrays.
        meta: A block without elements, of the format and type of all of them: a csr or csc array of
            scipy, or a ``spcomp.Tensor``.
    """

    def __init__(self, graph: HighLevelGraph, name: str, chunks: Grid, meta: Any) -> None:
        self.dask, self.name, self.chunks, self.meta = graph, name, chunks, meta
        self._statistics: dict[tuple[int, ...], BlockStatistics] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(map(sum, self.chunks))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.chunks)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values."""
        dtype: np.dtype[Any] = self.meta.dtype
        return dtype

    @property
    def format(self) -> str:
        """The format of each block, such as ``csr``."""
        return str(self.meta.format)

    @property
    def numblocks(self) -> tuple[int, ...]:
        """The number of pieces of each dimension."""
        return tuple(map(len, self.chunks))

    @property
    def npartitions(self) -> int:
        """The number of blocks."""
        return prod(self.numblocks)

    def places(self) -> Iterator[tuple[int, ...]]:
        """Yield the place of each block in the grid, row by row."""
        return product(*map(range, self.numblocks))

    # -- what Dask asks of a collection -------------------------------------------------------

    def __dask_graph__(self) -> HighLevelGraph:
        return self.dask

    def __dask_keys__(self) -> list[Any]:
        return [(self.name, *at) for at in self.places()]

    def __dask_layers__(self) -> tuple[str, ...]:
        return (self.name,)

    def __dask_tokenize__(self) -> Any:
        return self.name

    __dask_scheduler__ = staticmethod(threaded_get)

    # the very function of arrays: Dask gives results back in the order of their functions
    __dask_optimize__ = staticmethod(da.Array.__dask_optimize__)

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return blocks.result, (self.numblocks,)

    def __dask_postpersist__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _persisted, (self,)

    # -- questions and other partitions ------------------------------------------------------

    def statistics(self) -> Mapping[tuple[int, ...], BlockStatistics]:
        """Return for each block how many rows and columns have an element, and how many there are.

        The first call computes all blocks.
        """
        if self._statistics is None:
            name = f"statistics-{tokenize(self.name)}"
            found = self._computed(name, lambda _: (blocks.statistics, ()))
            self._statistics = dict(zip(self.places(), found, strict=True))
        return self._statistics

    def touched(self, chunks: Chunks) -> Mapping[tuple[int, ...], tuple[int, ...]]:
        """Return for each csr or csc block the pieces *chunks* that its minor coordinates are in.

        This computes all blocks.
        """
        name = f"touched-{tokenize(self.name, chunks)}"
        found = self._computed(name, lambda _: (blocks.touched, (offsets(chunks),)))
        return dict(zip(self.places(), found, strict=True))

    @property
    def nnz(self) -> int:
        """The number of stored elements; the first use computes all blocks."""
        return sum(block.nnz for block in self.statistics().values())

    def with_statistics(self, like: DistributedTensor) -> DistributedTensor:
        """Return this tensor with what is known of *like*, which has the same blocks."""
        self._statistics = like._statistics
        return self

    def _computed(self, name: str, task: Callable[[Any], tuple[Any, tuple[Any, ...]]]) -> Any:
        """Return what the *task* of each place gives for its block, in order."""
        layer = {}
        for at in self.places():
            func, rest = task(at)
            layer[name, *at] = Task((name, *at), func, TaskRef((self.name, *at)), *rest)
        graph = HighLevelGraph.from_collections(name, layer, [self])
        return Values(graph, list(layer)).compute()

    def rechunk(self, chunks: Any) -> DistributedTensor:
        """Return the same tensor in other blocks; *chunks* as in ``from_mtx``."""
        new = grid_of(chunks, self.shape)
        if new == self.chunks:
            return self
        name = f"rechunk-{tokenize(self.name, new)}"
        layer: dict[Any, Any] = {}
        pieces = [overlaps(a, b) for a, b in zip(self.chunks, new, strict=True)]
        for at in product(*map(range, map(len, new))):
            parts = [lists[k] for lists, k in zip(pieces, at, strict=True)]
            counts = tuple(map(len, parts))
            refs = [self._part(layer, name, at, chosen) for chosen in product(*parts)]
            layer[name, *at] = Task((name, *at), blocks.join, List(*refs), counts)
        graph = HighLevelGraph.from_collections(name, layer, [self])
        return DistributedTensor(graph, name, new, self.meta)

    def _part(
        self, layer: dict[Any, Any], name: str, at: Sequence[int], pieces: tuple[Piece, ...]
    ) -> TaskRef:
        """Return the key of the *pieces*, by dimension, that the new block *at* has of an old one.

        A piece that is no whole block is cut out where the block lies: *layer* gets that task.
        """
        old = tuple(piece.block for piece in pieces)
        begins, ends = tuple(p.begin for p in pieces), tuple(p.end for p in pieces)
        extents = tuple(chunks[k] for chunks, k in zip(self.chunks, old, strict=True))
        if not any(begins) and ends == extents:
            return TaskRef((self.name, *old))
        key = f"cut-{name}", *at, *old
        layer[key] = Task(key, blocks.cut, TaskRef((self.name, *old)), begins, ends)
        return TaskRef(key)

    def todense(self) -> da.Array:
        """Return the tensor as a dense array of Dask, in the same blocks."""
        name = f"todense-{tokenize(self.name)}"
        layer = {
            (name, *at): Task((name, *at), _dense, TaskRef((self.name, *at)))
            for at in self.places()
        }
        graph = HighLevelGraph.from_collections(name, layer, [self])
        return da.Array(graph, name, self.chunks, dtype=self.dtype)

    def __repr__(self) -> str:
        shape, grid = " x ".join(map(str, self.shape)), " x ".join(map(str, self.numblocks))
        return f"<DistributedTensor {shape} of {self.dtype}: {grid} blocks in {self.format}>"

    def __getitem__(self, key: object) -> Any:
        """Raise ArgumentError: there are no slices."""
        raise ArgumentError(
            f"a distributed tensor has no parts: got [{key}]", hint="take them before, or todense()"
        )

    @property
    def T(self) -> Any:  # noqa: N802
        """Raise ArgumentError: indices are exchanged instead."""
        raise ArgumentError(
            "a distributed tensor has no transpose",
            hint='exchange indices: spcomp.compile("y[j] = A[i, j] * x[i]")(A=A, x=x)',
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ArgumentError(
            "a distributed tensor is no array", hint="compute() returns its elements here"
        )


class Values(DaskMethodsMixin):  # type: ignore[misc]
    """The results of some tasks, as a list."""

    def __init__(self, graph: Mapping[Any, Any], keys: list[Any]) -> None:
        self._graph, self._keys = graph, keys

    def __dask_graph__(self) -> Mapping[Any, Any]:
        return self._graph

    def __dask_keys__(self) -> list[Any]:
        return self._keys

    __dask_scheduler__ = staticmethod(threaded_get)
    __dask_optimize__ = staticmethod(DistributedTensor.__dask_optimize__)

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return list, ()

    def __dask_postpersist__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _values, (self._keys,)


def _values(graph: Any, keys: list[Any], **_: Any) -> Values:
    return Values(graph, keys)


def _persisted(graph: Any, old: DistributedTensor, *, rename: Any = None) -> DistributedTensor:
    """Return *old*, whose blocks are in *graph*, as Dask makes it of persisted ones."""
    name = (rename or {}).get(old.name, old.name)
    if not isinstance(graph, HighLevelGraph):
        for block in graph.values():
            staying(block)
        graph = HighLevelGraph.from_collections(name, graph)
    return DistributedTensor(graph, name, old.chunks, old.meta).with_statistics(old)


def rebuilt(collection: Any, graph: HighLevelGraph) -> Any:
    """Return *collection*, a tensor or an array of Dask, with its blocks in *graph*."""
    if isinstance(collection, DistributedTensor):
        return _persisted(graph, collection)
    return da.Array(graph, collection.name, collection.chunks, meta=collection)


def _dense(block: Any) -> Any:
    return block.to_dense() if hasattr(block, "to_dense") else block.toarray()
